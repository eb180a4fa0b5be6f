"""Windows with results that can be early, final and corrected: the operator behind ``hr.windows``.

Rows come with the window they belong to, as columns; a row that belongs to several windows comes several times. The
key of the state is the key of the rows together with their window. So the cost of a batch depends on the
windows it touches, not on other windows of the same key.

A window is [start, end). It is over when the watermark has come to its end, and its result is final then. A row that
comes to a window that is over is late. ``late`` says what follows:

    drop     it is counted, and left out
    side     it is counted, and given out beside the results, in the column ``late``
    correct  it is counted, and counts: until the watermark is ``keep`` past the window's end, the final result that was
             given out is taken back and the new one follows. After that the row is left out.

Each result has a ``revision``, which counts up from 1 within its window. A result is taken back by a row that is the
same but for ``is_retraction``. So there are two ways to read results. A reader that keeps a table takes, per key
and window, the highest revision, and nothing if that was taken back. A reader that adds up final results adds those
that are given and subtracts those that are taken back. An early result is replaced by any later one of its window
without being taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.aggregates.totals import Aggregate, merged
from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.operator import Operator, Step, Touched, micros, whole

__all__ = ["LATE", "MOMENT", "REVISION", "TIME", "WINDOW", "Emit", "Late", "Windows", "structs"]

Emit = Literal["final", "early"]
Late = Literal["drop", "correct", "side"]
TIME = pa.timestamp("us", "UTC")
WINDOW = (pa.field("window_start", TIME), pa.field("window_end", TIME))
MOMENT = pa.field("window_time", TIME)
"""The last moment of the window: the event time of its result."""
REVISION = (pa.field("revision", pa.int64()), pa.field("is_final", pa.bool_()), pa.field("is_retraction", pa.bool_()))
LATE = "late"


@dataclass(frozen=True, slots=True)
class Windows(Operator):
    keys: pa.StructType
    """Of the rows, without the window."""
    event_time: str
    aggregates: tuple[Aggregate, ...]
    emit: Emit = "final"
    late: Late = "drop"
    keep_us: int = 0
    """How long after its end a window can be corrected."""
    rows: pa.Schema | None = None
    """Of late rows that are given out."""
    name: ClassVar[str] = "windows"
    free: ClassVar[tuple[str, ...]] = ("emit", "keep", "late")
    judges_lateness: ClassVar[bool] = True

    @property
    def state(self) -> pa.StructType:
        """``final``: a final result was given out."""
        told = [("revision", pa.int64()), ("final", pa.bool_())]
        return pa.struct([*told, *(each.held for each in self.aggregates)])

    @property
    def output(self) -> pa.Schema:
        values = [pa.field(each.name, each.result) for each in self.aggregates]
        late = [] if self.rows is None else [pa.field(LATE, pa.struct(list(self.rows)))]
        return pa.schema([*self.keys, *WINDOW, MOMENT, *values, *REVISION, *late])

    @property
    def output_time(self) -> str | None:
        """Results come when the clock has come to the window's end; corrections come at any time."""
        return MOMENT.name if self.late == "drop" else None

    def step(self, touched: Touched) -> Step:
        count, now = len(touched.keys), touched.now_us
        ends = micros(touched.keys.field("window_end").fill_null(pa.scalar(0, TIME)))
        dated: Flags = np.asarray(touched.keys.field("window_end").is_valid())
        over: Flags = ~dated | (ends <= now)
        too_late: Flags = ~dated | (ends <= touched.late_before_us)
        correctable = dated & (ends + self.keep_us > now) if self.late == "correct" else ~over

        known: Flags = np.asarray(touched.held.is_valid())
        revisions = np.asarray(touched.held.field("revision").fill_null(0), np.int64)
        was_final: Flags = np.asarray(touched.held.field("final").fill_null(False))
        accepted: Flags = (~too_late | correctable)[touched.codes]
        grew = np.bincount(touched.codes[accepted], minlength=count) > 0
        states = self._states(touched, known, accepted)

        corrected = was_final & grew
        final = over & (known | grew) & (grew | ~was_final)
        early = ~over & grew if self.emit == "early" else np.zeros(count, np.bool_)
        given_out = [
            self._results(touched, corrected, self._held(touched), revisions, final=True, retraction=True),
            self._results(touched, final, states, revisions + 1, final=True),
            self._results(touched, early, states, revisions + 1, final=False),
        ]
        late_rows: Flags = too_late[touched.codes]
        if self.rows is not None:
            given_out.append(self._late(touched, late_rows))
        is_final = was_final | final
        columns = [pa.array(revisions + (final | early)), pa.array(is_final), *states]
        return Step(
            output=pa.concat_tables(given_out),
            states=pa.StructArray.from_arrays(columns, fields=list(self.state)),
            keep=correctable & (known | grew),
            wake_us=np.where(is_final, NEVER, ends),
            expire_us=np.where(is_final, ends + self.keep_us, NEVER),
            late_rows=int(np.count_nonzero(late_rows)),
        )

    def _held(self, touched: Touched) -> list[pa.Array]:
        return [touched.held.field(each.held.name) for each in self.aggregates]

    def _states(self, touched: Touched, known: Flags, accepted: Flags) -> list[pa.Array]:
        """What is held and what has come, as one."""
        rows = touched.rows.filter(pa.array(accepted))
        times: Ints = micros(rows.column(self.event_time))
        held = [each.filter(pa.array(known)) for each in self._held(touched)]
        lifted = [each.lift(rows, times) for each in self.aggregates]
        groups = np.r_[np.flatnonzero(known), touched.codes[accepted]]
        return merged(self.aggregates, groups, [held, lifted], len(touched.keys))

    def _results(
        self,
        touched: Touched,
        chosen: Flags,
        states: list[pa.Array],
        revisions: Ints,
        *,
        final: bool,
        retraction: bool = False,
    ) -> pa.Table:
        mask = pa.array(chosen)
        count = int(np.count_nonzero(chosen))
        keys = self._keys(touched.keys.filter(mask))
        values = [each.finish(state.filter(mask)) for each, state in zip(self.aggregates, states, strict=True)]
        last = [pa.array(revisions[chosen]), pa.array([final] * count, pa.bool_())]
        columns = [*keys, *values, *last, pa.array([retraction] * count, pa.bool_())]
        return self._table(columns, count)

    def _keys(self, keys: pa.StructArray) -> list[pa.Array]:
        """With the moment that the result is of."""
        ends = keys.field("window_end")
        return [*keys.flatten(), pc.subtract(ends.cast(pa.int64()), 1).cast(TIME)]

    def _late(self, touched: Touched, late_rows: Flags) -> pa.Table:
        assert self.rows is not None
        late = structs(touched.rows.filter(pa.array(late_rows)), self.rows)
        keys = self._keys(touched.keys.take(pa.array(touched.codes[late_rows])))
        nothing = [pa.nulls(len(late), each.type) for each in list(self.output)[len(keys) : -1]]
        return pa.Table.from_arrays([*keys, *nothing, late], schema=self.output)

    def _table(self, columns: list[pa.Array], count: int) -> pa.Table:
        if self.rows is not None:
            columns = [*columns, pa.nulls(count, self.output.field(LATE).type)]
        return pa.Table.from_arrays(columns, schema=self.output)


def structs(rows: pa.Table, schema: pa.Schema) -> pa.StructArray:
    """Rows as one column."""
    return pa.StructArray.from_arrays([whole(rows.column(name)) for name in schema.names], fields=list(schema))
