"""Session windows: rows of a key that follow each other within a gap, with what they add up to.

A session is [start, end): from its first row to ``gap`` after its last. A row exactly at the end begins the next
session, as in Spark's own ``session_window``. Results by choice:

    final   one row per session, when the watermark has passed its end
    early   a row whenever a batch changed a session, and a final one; ``revision`` counts up within the session

A row that comes late enough to move a session's start, or to join two sessions, makes a result that was given out
wrong. Then that result is taken back: it comes again with ``is_retraction``. So a reader that keeps, per key and
``session_start``, the row with the highest revision, and nothing if that was taken back, has at any time what is
known, and in the end exactly the final sessions. It is the rule of all windows (``window_operator``).

A row behind the watermark is late, also when a session that is still open would have it: it may belong to one that is
over as well. What becomes of it is as for all windows. With ``correct``, sessions are kept for ``keep`` and a gap more,
so that a row that counts finds all that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from headrace.spark.aggregates.totals import EVENTS, Aggregate, merged
from headrace.spark.state.bucket import Flags, Ints
from headrace.spark.state.operator import (
    BEGINNING,
    Operator,
    Step,
    Touched,
    as_lists,
    earliest,
    flatten,
    furthest,
    latest,
    micros,
)
from headrace.spark.windowing.window_operator import LATE, REVISION, TIME, Emit, Late, structs

__all__ = ["Sessions"]

SPAN = [("start", pa.int64()), ("last", pa.int64()), ("revision", pa.int64()), ("final", pa.bool_())]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Sessions, or rows that are each a session by itself, in columns."""

    codes: Ints
    starts: Ints
    lasts: Ints
    revisions: Ints
    """Of the last result that was given out, 0 without."""
    final: Flags
    """That result was final, and is right."""
    new: Flags
    """With rows of this batch."""
    states: list[pa.Array]

    def where(self, chosen: Flags) -> _Spans:
        return _Spans(
            codes=self.codes[chosen],
            starts=self.starts[chosen],
            lasts=self.lasts[chosen],
            revisions=self.revisions[chosen],
            final=self.final[chosen],
            new=self.new[chosen],
            states=[each.filter(pa.array(chosen)) for each in self.states],
        )


@dataclass(frozen=True, slots=True)
class Sessions(Operator):
    keys: pa.StructType
    event_time: str
    gap_us: int
    aggregates: tuple[Aggregate, ...] = (EVENTS,)
    emit: Emit = "final"
    late: Late = "drop"
    keep_us: int = 0
    rows: pa.Schema | None = None
    """Of late rows that are given out."""
    name: ClassVar[str] = "sessions"
    free: ClassVar[tuple[str, ...]] = ("emit", "keep", "late")
    judges_lateness: ClassVar[bool] = True

    @property
    def session(self) -> pa.StructType:
        return pa.struct([*SPAN, *(each.held for each in self.aggregates)])

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("open", pa.list_(self.session))])

    @property
    def output(self) -> pa.Schema:
        times = [pa.field("session_start", TIME), pa.field("session_end", TIME)]
        values = [pa.field(each.name, each.result) for each in self.aggregates]
        late = [] if self.rows is None else [pa.field(LATE, pa.struct(list(self.rows)))]
        return pa.schema([*self.keys, *times, *values, *REVISION, *late])

    @property
    def output_time(self) -> str | None:
        """Final results come when the watermark has come to their end; what is taken back has no such order."""
        return "session_end" if self.emit == "final" and self.late == "drop" else None

    def step(self, touched: Touched) -> Step:
        count, now = len(touched.keys), touched.now_us
        late, accepted = self._judged(touched)
        pieces = self._pieces(touched, accepted)
        numbers, sessions = self._sessions(pieces)
        over: Flags = sessions.lasts + self.gap_us <= now
        final = over & ~sessions.final
        early = sessions.new & ~over if self.emit == "early" else np.zeros(len(over), np.bool_)
        moved = (pieces.revisions > 0) & (pieces.starts != sessions.starts[numbers])
        wrong = moved | (pieces.final & ~sessions.final[numbers])
        sessions.revisions[final | early] += 1
        told = [
            self._results(touched, pieces.where(wrong), retraction=True),
            self._results(touched, sessions.where(final), final=True),
            self._results(touched, sessions.where(early), final=False),
        ]
        if self.rows is not None:
            told.append(self._late(touched, late))
        sessions.final[final] = True
        forget_us = sessions.lasts + self.gap_us + (self.gap_us + self.keep_us if self.late == "correct" else 0)
        kept = sessions.where(forget_us > now)
        wake_us = np.where(sessions.final, forget_us, sessions.lasts + self.gap_us)[forget_us > now]
        return Step(
            output=pa.concat_tables(told),
            states=pa.StructArray.from_arrays([self._lists(kept, count)], fields=list(self.state)),
            keep=np.bincount(kept.codes, minlength=count) > 0,
            wake_us=earliest(kept.codes, wake_us, count),
            late_rows=int(np.count_nonzero(late)),
        )

    def _judged(self, touched: Touched) -> tuple[Flags, Flags]:
        """Which rows are late, and which count."""
        column = touched.rows.column(self.event_time)
        dated: Flags = np.asarray(column.is_valid())
        times = micros(column.fill_null(pa.scalar(0, column.type)))
        late: Flags = ~dated | (times < touched.late_before_us)
        if self.late != "correct":
            return late, ~late
        oldest_us = max(touched.now_us - self.gap_us - self.keep_us, BEGINNING)
        return late, dated & (~late | (times > oldest_us))

    def _pieces(self, touched: Touched, accepted: Flags) -> _Spans:
        """Open sessions and new rows alike."""
        codes, opened = flatten(touched.held.field("open"))
        starts, lasts, revisions = (np.asarray(opened.field(name), np.int64) for name, _ in SPAN[:3])
        rows = touched.rows.filter(pa.array(accepted))
        times = micros(rows.column(self.event_time))
        states = [pa.concat_arrays([opened.field(each.held.name), each.lift(rows, times)]) for each in self.aggregates]
        fresh = np.ones(len(times), np.bool_)
        return _Spans(
            codes=np.r_[codes, touched.codes[accepted]],
            starts=np.r_[starts, times],
            lasts=np.r_[lasts, times],
            revisions=np.r_[revisions, np.zeros(len(times), np.int64)],
            final=np.r_[np.asarray(opened.field("final"), np.bool_), ~fresh],
            new=np.r_[np.zeros(len(codes), np.bool_), fresh],
            states=states,
        )

    def _sessions(self, pieces: _Spans) -> tuple[Ints, _Spans]:
        """For each piece the number of its session, and the sessions, sorted by key and start."""
        order = np.lexsort((pieces.starts, pieces.codes))
        codes, starts = pieces.codes[order], pieces.starts[order]
        reached = furthest(codes, pieces.lasts[order])
        begins = np.ones(len(codes), np.bool_)
        begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] >= reached[:-1] + self.gap_us)
        numbers = np.empty(len(codes), np.int64)
        numbers[order] = np.cumsum(begins) - 1
        count = int(np.count_nonzero(begins))
        new = np.bincount(numbers[pieces.new], minlength=count) > 0
        return numbers, _Spans(
            codes=codes[begins],
            starts=starts[begins],
            lasts=latest(numbers, pieces.lasts, count),
            revisions=latest(numbers, pieces.revisions, count),
            final=(np.bincount(numbers[pieces.final], minlength=count) > 0) & ~new,
            new=new,
            states=merged(self.aggregates, numbers, [pieces.states], count),
        )

    def _lists(self, spans: _Spans, count: int) -> pa.ListArray:
        columns = [pa.array(each) for each in (spans.starts, spans.lasts, spans.revisions, spans.final)]
        opened = pa.StructArray.from_arrays([*columns, *spans.states], fields=list(self.session))
        return as_lists(spans.codes, opened, count)

    def _results(
        self, touched: Touched, spans: _Spans, *, final: bool | None = None, retraction: bool = False
    ) -> pa.Table:
        """``final``: as the spans say when None."""
        count = len(spans.codes)
        keys = touched.keys.take(pa.array(spans.codes)).flatten()
        times = [pa.array(each).cast(TIME) for each in (spans.starts, spans.lasts + self.gap_us)]
        values = [each.finish(state) for each, state in zip(self.aggregates, spans.states, strict=True)]
        is_final = spans.final if final is None else np.full(count, final)
        told = [pa.array(spans.revisions), pa.array(is_final), pa.array(np.full(count, retraction))]
        late = [] if self.rows is None else [pa.nulls(count, self.output.field(LATE).type)]
        return pa.Table.from_arrays([*keys, *times, *values, *told, *late], schema=self.output)

    def _late(self, touched: Touched, late: Flags) -> pa.Table:
        assert self.rows is not None
        rows = structs(touched.rows.filter(pa.array(late)), self.rows)
        keys = touched.keys.take(pa.array(touched.codes[late])).flatten()
        nothing = [pa.nulls(len(rows), each.type) for each in list(self.output)[len(keys) : -1]]
        return pa.Table.from_arrays([*keys, *nothing, rows], schema=self.output)
