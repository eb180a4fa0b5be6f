"""Session windows: rows of a key that follow each other within a gap, with what they add up to.

A session is [start, end): from its first row to ``gap`` after its last. A row exactly at the end begins the next
session, as in Spark's own ``session_window``. Results by choice:

    final   one row per session, when the watermark has passed its end
    early   a row whenever a batch changed a session, and a final one; ``revision`` counts up within the key

A row that comes late enough to move a session's start, or to join two sessions, makes a result that was given out
wrong. Then that result is taken back: a row with its start, ``events`` = 0 and no values. So whoever keeps, per key
and ``session_start``, the row with the highest revision and leaves out those without events has at any time what is
known, and in the end exactly the final sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

from headrace.spark.state_bucket import Flags, Ints
from headrace.spark.state_operator import Operator, Step, Touched, as_lists, earliest, flatten, micros, whole

__all__ = ["Aggregate", "Emit", "Sessions"]

Emit = Literal["final", "early"]
TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value of the whole session: ``sum``, ``min`` or ``max`` of a column."""

    name: str
    function: Literal["sum", "min", "max"]
    column: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Sessions(Operator):
    keys: pa.StructType
    event_time: str
    gap_us: int
    aggregates: tuple[Aggregate, ...] = ()
    emit: Emit = "final"
    name: ClassVar[str] = "sessions"

    @property
    def session(self) -> pa.StructType:
        """An open session; ``told`` when a result of it was given out."""
        fixed = [("start", pa.int64()), ("last", pa.int64()), ("events", pa.int64()), ("told", pa.bool_())]
        return pa.struct([*fixed, *((each.name, each.type) for each in self.aggregates)])

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("revision", pa.int64()), ("open", pa.list_(self.session))])

    @property
    def output(self) -> pa.Schema:
        times = [("session_start", TIME), ("session_end", TIME), ("events", pa.int64())]
        values = [(each.name, each.type) for each in self.aggregates]
        return pa.schema([*self.keys, *times, *values, ("revision", pa.int64()), ("is_final", pa.bool_())])

    def step(self, touched: Touched) -> Step:
        pieces = self._pieces(touched)
        pieces, sessions = self._sessions(pieces)
        codes = np.asarray(sessions.column("code"), np.int64)
        ends = np.asarray(sessions.column("last"), np.int64) + self.gap_us
        final: Flags = ends <= touched.now_us
        held = touched.held.field("revision").fill_null(0)
        revisions = np.asarray(held, np.int64) + (1 if self.emit == "early" else 0)

        told = [
            self._results(touched, sessions.filter(pa.array(mask)), codes[mask], revisions, is_final)
            for is_final, mask in self._to_tell(sessions, final)
        ]
        if self.emit == "early":
            told.append(self._taken_back(touched, pieces, sessions, revisions))
            sessions = sessions.set_column(
                sessions.schema.get_field_index("told"), "told", pa.array(np.ones(len(codes), np.bool_))
            )
        remaining = sessions.filter(pa.array(~final))
        count = len(touched.keys)
        columns = [whole(remaining.column(each.name)) for each in self.session]
        opened = pa.StructArray.from_arrays(columns, fields=list(self.session))
        lists = as_lists(codes[~final], opened, count)
        return Step(
            output=pa.concat_tables(told),
            states=pa.StructArray.from_arrays([pa.array(revisions), lists], fields=list(self.state)),
            keep=np.bincount(codes[~final], minlength=count) > 0,
            wake_us=earliest(codes[~final], ends[~final], count),
        )

    def _pieces(self, touched: Touched) -> pa.Table:
        """Open sessions and new rows alike: spans with their values, sorted by key and start."""
        codes, opened = flatten(touched.held.field("open"))
        held = pa.Table.from_arrays(opened.flatten(), names=[each.name for each in self.session])
        held = held.append_column("code", pa.array(codes)).append_column(
            "new", pa.array(np.zeros(len(codes), np.bool_))
        )
        times = micros(touched.rows.column(self.event_time))
        columns = {
            "start": pa.array(times),
            "last": pa.array(times),
            "events": pa.array(np.ones(len(times), np.int64)),
            "told": pa.array(np.zeros(len(times), np.bool_)),
            **{each.name: touched.rows.column(each.column).cast(each.type) for each in self.aggregates},
            "code": pa.array(touched.codes),
            "new": pa.array(np.ones(len(times), np.bool_)),
        }
        together = pa.concat_tables([held, pa.table(columns, schema=held.schema)])
        starts, keys = np.asarray(together.column("start")), np.asarray(together.column("code"))
        return together.take(pa.array(np.lexsort((starts, keys))))

    def _sessions(self, pieces: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The pieces with the number of their session, and the sessions in the order of these numbers."""
        codes, starts, lasts = (np.asarray(pieces.column(name), np.int64) for name in ("code", "start", "last"))
        reached = pd.Series(lasts).groupby(codes).cummax().to_numpy()
        begins = np.ones(len(codes), np.bool_)
        begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] >= reached[:-1] + self.gap_us)
        pieces = pieces.append_column("session", pa.array(np.cumsum(begins) - 1))
        values = [(each.name, each.function) for each in self.aggregates]
        wanted = [
            ("code", "min"),
            ("start", "min"),
            ("last", "max"),
            ("events", "sum"),
            ("told", "any"),
            ("new", "any"),
        ]
        grouped = pieces.group_by("session", use_threads=False).aggregate([*wanted, *values])
        arrays = {column: grouped.column(f"{column}_{function}") for column, function in [*wanted, *values]}
        kinds = {each.name: each.type for each in self.session}
        return pieces, pa.table({name: each.cast(kinds.get(name, each.type)) for name, each in arrays.items()})

    def _to_tell(self, sessions: pa.Table, final: Flags) -> Iterator[tuple[bool, Flags]]:
        yield True, final
        if self.emit == "early":
            yield False, np.asarray(sessions.column("new")) & ~final

    def _results(self, touched: Touched, sessions: pa.Table, codes: Ints, revisions: Ints, is_final: bool) -> pa.Table:
        ends = pa.array(np.asarray(sessions.column("last"), np.int64) + self.gap_us).cast(TIME)
        values = [sessions.column(each.name) for each in self.aggregates]
        times = [sessions.column("start").cast(TIME), ends, sessions.column("events")]
        last = [pa.array(revisions[codes]), pa.array(np.full(len(codes), is_final))]
        keys = touched.keys.take(pa.array(codes)).flatten()
        return pa.Table.from_arrays([*keys, *times, *values, *last], schema=self.output)

    def _taken_back(self, touched: Touched, pieces: pa.Table, sessions: pa.Table, revisions: Ints) -> pa.Table:
        """Results that were given out under a start that no session has any more."""
        numbers = np.asarray(pieces.column("session"), np.int64)
        starts = np.asarray(pieces.column("start"), np.int64)
        moved = starts != np.asarray(sessions.column("start"), np.int64)[numbers]
        wrong = np.asarray(pieces.column("told")) & moved
        codes = np.asarray(pieces.column("code"), np.int64)[wrong]
        count = len(codes)
        nothing = [pa.nulls(count, each.type) for each in self.aggregates]
        times = [pa.array(starts[wrong]).cast(TIME), pa.nulls(count, TIME), pa.array(np.zeros(count, np.int64))]
        last = [pa.array(revisions[codes]), pa.array(np.ones(count, np.bool_))]
        keys = touched.keys.take(pa.array(codes)).flatten()
        return pa.Table.from_arrays([*keys, *times, *nothing, *last], schema=self.output)
