"""Session windows: rows of a key that follow each other within a gap, with what they add up to.

A session is [start, end): from its first row to ``gap`` after its last. A row exactly at the end begins the next
session, as in Spark's own ``session_window``. Results by choice:

    final   one row per session, when the watermark has passed its end
    early   a row whenever a batch changed a session, and a final one; ``revision`` counts up within the session

A row that comes late enough to move a session's start, or to join two sessions, makes a result that was given out
wrong. Then that result is taken back: it comes again with ``is_retraction``. So whoever keeps, per key and
``session_start``, the row with the highest revision, and nothing if that was taken back, has at any time what is
known, and in the end exactly the final sessions. It is the rule of all windows (``windows_operator``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

from headrace.spark.state_bucket import Flags, Ints
from headrace.spark.state_operator import Operator, Step, Touched, as_lists, earliest, flatten, latest, micros
from headrace.spark.windows_aggregates import EVENTS, Aggregate, merged
from headrace.spark.windows_operator import REVISION, TIME, Emit

__all__ = ["Sessions"]

SPAN = [("start", pa.int64()), ("last", pa.int64()), ("revision", pa.int64())]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Sessions, or rows that are each a session by itself, in columns."""

    codes: Ints
    starts: Ints
    lasts: Ints
    revisions: Ints
    """Of the last result that was given out, 0 without."""
    new: Flags
    """With rows of this batch."""
    states: list[pa.Array]

    def where(self, chosen: Flags) -> _Spans:
        return _Spans(
            codes=self.codes[chosen],
            starts=self.starts[chosen],
            lasts=self.lasts[chosen],
            revisions=self.revisions[chosen],
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
    name: ClassVar[str] = "sessions"

    @property
    def session(self) -> pa.StructType:
        return pa.struct([*SPAN, *((each.name, each.state) for each in self.aggregates)])

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("open", pa.list_(self.session))])

    @property
    def output(self) -> pa.Schema:
        times = [pa.field("session_start", TIME), pa.field("session_end", TIME)]
        values = [pa.field(each.name, each.result) for each in self.aggregates]
        return pa.schema([*self.keys, *times, *values, *REVISION])

    @property
    def output_time(self) -> str | None:
        """Final results come when the watermark has come to their end; what is taken back has no such order."""
        return "session_end" if self.emit == "final" else None

    def step(self, touched: Touched) -> Step:
        pieces = self._pieces(touched)
        numbers, sessions = self._sessions(pieces)
        final: Flags = sessions.lasts + self.gap_us <= touched.now_us
        early = sessions.new & ~final if self.emit == "early" else np.zeros(len(final), np.bool_)
        moved = (pieces.revisions > 0) & (pieces.starts != sessions.starts[numbers])
        sessions.revisions[final | early] += 1
        told = [
            self._results(touched, pieces.where(moved), final=False, retraction=True),
            self._results(touched, sessions.where(final), final=True),
            self._results(touched, sessions.where(early), final=False),
        ]
        remaining = sessions.where(~final)
        count = len(touched.keys)
        spans = [pa.array(each) for each in (remaining.starts, remaining.lasts, remaining.revisions)]
        opened = pa.StructArray.from_arrays([*spans, *remaining.states], fields=list(self.session))
        return Step(
            output=pa.concat_tables(told),
            states=pa.StructArray.from_arrays([as_lists(remaining.codes, opened, count)], fields=list(self.state)),
            keep=np.bincount(remaining.codes, minlength=count) > 0,
            wake_us=earliest(remaining.codes, remaining.lasts + self.gap_us, count),
        )

    def _pieces(self, touched: Touched) -> _Spans:
        """Open sessions and new rows alike."""
        codes, opened = flatten(touched.held.field("open"))
        starts, lasts, revisions = (np.asarray(opened.field(name), np.int64) for name, _ in SPAN)
        times = micros(touched.rows.column(self.event_time))
        states = [
            pa.concat_arrays([opened.field(each.name), each.lift(touched.rows, times)]) for each in self.aggregates
        ]
        return _Spans(
            codes=np.r_[codes, touched.codes],
            starts=np.r_[starts, times],
            lasts=np.r_[lasts, times],
            revisions=np.r_[revisions, np.zeros(len(times), np.int64)],
            new=np.r_[np.zeros(len(codes), np.bool_), np.ones(len(times), np.bool_)],
            states=states,
        )

    def _sessions(self, pieces: _Spans) -> tuple[Ints, _Spans]:
        """For each piece the number of its session, and the sessions, sorted by key and start."""
        order = np.lexsort((pieces.starts, pieces.codes))
        codes, starts = pieces.codes[order], pieces.starts[order]
        reached = pd.Series(pieces.lasts[order]).groupby(codes).cummax().to_numpy()
        begins = np.ones(len(codes), np.bool_)
        begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] >= reached[:-1] + self.gap_us)
        numbers = np.empty(len(codes), np.int64)
        numbers[order] = np.cumsum(begins) - 1
        count = int(np.count_nonzero(begins))
        return numbers, _Spans(
            codes=codes[begins],
            starts=starts[begins],
            lasts=latest(numbers, pieces.lasts, count),
            revisions=latest(numbers, pieces.revisions, count),
            new=np.bincount(numbers[pieces.new], minlength=count) > 0,
            states=merged(self.aggregates, numbers, [pieces.states], count),
        )

    def _results(self, touched: Touched, spans: _Spans, *, final: bool, retraction: bool = False) -> pa.Table:
        count = len(spans.codes)
        keys = touched.keys.take(pa.array(spans.codes)).flatten()
        times = [pa.array(each).cast(TIME) for each in (spans.starts, spans.lasts + self.gap_us)]
        values = [each.finish(state) for each, state in zip(self.aggregates, spans.states, strict=True)]
        flags = [pa.array([each] * count, pa.bool_()) for each in (final, retraction)]
        return pa.Table.from_arrays([*keys, *times, *values, pa.array(spans.revisions), *flags], schema=self.output)
