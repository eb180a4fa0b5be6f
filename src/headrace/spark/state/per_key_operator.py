"""A function of the user's with state per key, as an operator: the part in columns of ``hr.per_key``.

The function is called for one key and one event time, with Python values: the rows of that time together, one time
after the other. A timer is called at its place among them, after all rows with earlier times and before those with the
same or later ones. So what the function sees does not depend on batches at all. Several times could not be handed over
at once: the first of them may set a timer that belongs before the second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.spark.state.bucket import NEVER, Flags
from headrace.spark.state.in_order import InOrder, Settled, SettledStep
from headrace.spark.state.operator import Step, Touched

__all__ = ["Answer", "PerKey"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMERS_MAX = 10_000
"""How often the timer of one key may fire in a row. At the end of a bounded input all timers fire, so one that is set
again each time would never end."""

DOES_NOT_FIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
MOMENT_US_MIN, MOMENT_US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999: Python has no times beyond."""
DAY_US = 86_400_000_000

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a function for ``hr.per_key`` returns: rows to give out, the new state, and when to be called again."""

    rows: Iterable[Values] = ()
    state: Values | None = None
    """Held for the next call; None forgets the key."""
    timer: datetime | None = None
    """Call again, without rows, when the watermark has come here. It replaces the timer that was set before."""


KeyFunction = Callable[[Values, Sequence[Values], Values | None, datetime], Answer]


@dataclass(slots=True)
class _Key:
    """One key while it is worked on."""

    state: Values | None
    timer_us: int
    output: list[Values] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PerKey(InOrder):
    rows: pa.Schema
    event_time: str
    function: KeyFunction
    held: pa.StructType
    given: pa.Schema
    """The columns that come out."""
    code: int = 1
    """Which version of the function it is; a checkpoint of another one is refused."""
    name: ClassVar[str] = "per_key"

    @property
    def order_time(self) -> str:
        return self.event_time

    @property
    def own(self) -> pa.StructType:
        return pa.struct([("held", self.held), ("timer", pa.int64())])

    @property
    def output(self) -> pa.Schema:
        return self.given

    def step(self, touched: Touched) -> Step:
        """A row with a time that Python does not have cannot be handed over. It is late, as one without a time is."""
        fits = np.ones(touched.rows.num_rows, np.bool_)
        for column in touched.rows.columns:
            fits &= _is_python(column)
        if fits.all():
            return InOrder.step(self, touched)
        told = replace(touched, rows=touched.rows.filter(pa.array(fits)), codes=touched.codes[fits])
        return replace(InOrder.step(self, told), late_rows=int(np.count_nonzero(~fits)))

    def settle(self, settled: Settled) -> SettledStep:
        # A key without a time that Python has is one without rows: the function is not called for it.
        keys = pc.if_else(pa.array(_is_python(settled.keys)), settled.keys, None).to_pylist()
        rows = settled.rows.to_pylist()
        states = settled.held.field("held").to_pylist()
        timers = np.asarray(settled.held.field("timer").fill_null(NEVER), np.int64)
        bounds = np.searchsorted(settled.codes, np.arange(len(keys) + 1))
        worked = []
        for number, key in enumerate(keys):
            at = _Key(states[number], int(timers[number]))
            first, end = int(bounds[number]), int(bounds[number + 1])
            self._run(key, at, rows[first:end], settled.times_us[first:end].tolist(), settled.now_us)
            worked.append(at)
        wake = np.asarray([each.timer_us for each in worked], np.int64)
        kept = np.asarray([each.state is not None or each.timer_us < NEVER for each in worked], np.bool_)
        return SettledStep(
            output=self._table([row for each in worked for row in each.output]),
            states=self._own_states(worked),
            keep=kept,
            wake_us=wake,
        )

    def _run(self, key: Values, at: _Key, rows: list[Values], times_us: list[int], now_us: int) -> None:
        done = fired = 0
        while True:
            is_due = at.timer_us <= now_us
            if done < len(rows) and not (is_due and at.timer_us <= times_us[done]):
                end = bisect_right(times_us, times_us[done])
                self._call(key, at, rows[done:end], times_us[done])
                done, fired = end, 0
            elif is_due:
                fired += 1
                if fired > TIMERS_MAX:
                    raise HeadraceError(
                        f"the function per key set its timer {TIMERS_MAX} times for {key} without a row between: "
                        "it would never end. Set a timer only when there is something left to do"
                    )
                moment_us, at.timer_us = at.timer_us, NEVER
                self._call(key, at, [], moment_us)
            else:
                return

    def _call(self, key: Values, at: _Key, rows: Sequence[Values], moment_us: int) -> None:
        answer: Any = self.function(key, rows, at.state, EPOCH + timedelta(microseconds=moment_us))
        if not isinstance(answer, Answer):
            found = type(answer).__name__
            raise HeadraceError(f"the function per key gave {found} and not hr.Answer(rows, state, timer)")
        at.output += answer.rows
        at.state = answer.state
        at.timer_us = NEVER if answer.timer is None else _micros(answer.timer)
        if at.timer_us <= moment_us:
            now = EPOCH + timedelta(microseconds=moment_us)
            raise HeadraceError(f"the function per key set a timer for {answer.timer}, which is not after {now}")

    def _table(self, rows: list[Values]) -> pa.Table:
        unknown = sorted({name for row in rows for name in row} - set(self.given.names))
        if unknown:
            names = ", ".join(self.given.names)
            raise HeadraceError(f"the function per key gave a column {unknown[0]!r}; output has {names}")
        try:
            return pa.Table.from_pylist(rows, schema=self.given)
        except DOES_NOT_FIT as error:
            raise HeadraceError(f"a row that the function per key gave does not fit output: {error}") from error

    def _own_states(self, worked: list[_Key]) -> pa.StructArray:
        unknown = sorted({name for each in worked for name in each.state or ()} - {each.name for each in self.held})
        if unknown:
            names = ", ".join(each.name for each in self.held)
            raise HeadraceError(f"the function per key gave a state with {unknown[0]!r}; state has {names}")
        try:
            held = pa.array([each.state for each in worked], self.held)
        except DOES_NOT_FIT as error:
            raise HeadraceError(f"the state that the function per key gave does not fit state: {error}") from error
        timers = pa.array([each.timer_us for each in worked], pa.int64())
        return pa.StructArray.from_arrays([held, timers], fields=list(self.own))


def _is_python(column: pa.ChunkedArray | pa.Array) -> Flags:
    """Which values Python has; those within structs too."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [_is_python(each) for each in column.flatten()] if len(column) else []
        return np.logical_and.reduce(parts) if parts else np.ones(len(column), np.bool_)
    if pa.types.is_timestamp(kind):
        times, unit_us = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()), 1
    elif pa.types.is_date32(kind):
        times, unit_us = column.cast(pa.int32()), DAY_US
    else:
        return np.ones(len(column), np.bool_)
    known = np.asarray(times.fill_null(0), np.int64)
    found: Flags = (known >= MOMENT_US_MIN // unit_us) & (known <= MOMENT_US_MAX // unit_us)
    return found


def _micros(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - EPOCH
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds
