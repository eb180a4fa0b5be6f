"""Operators that get rows in the order of their times: a row waits until the watermark has passed it.

Rows of a key come in any order within the lateness. An operator to which the order matters (a median of the last
samples, a pattern, a user's function) holds them back until no earlier one can come. That is written once, here: a
subclass gets the rows that are settled, sorted by key and time, and what it holds besides; rows that still wait are
kept for it, and their keys are woken when the watermark comes to them.

Because nothing is handed over before its time has passed, results do not depend on how rows were cut into batches, and
they come out in the order of time.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.operator import Operator, Step, Touched, as_lists, earliest, flatten, micros, whole

__all__ = ["InOrder", "Settled", "SettledStep"]

WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The touched keys, and those of their rows that the watermark has passed, in order."""

    keys: pa.StructArray
    held: pa.StructArray
    """What the operator holds of each key (``own``), null where there is nothing."""
    rows: pa.Table
    """Sorted by key, and by time within a key; of rows with the same time the one that came first is first."""
    codes: Ints
    """For each row the number of its key."""
    times_us: Ints
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledStep:
    """The result of settled rows. Everything but the output is per touched key, in their order."""

    output: pa.Table
    states: pa.StructArray
    """New values of ``own``."""
    keep: Flags
    """False: nothing but rows that wait is to be held of the key."""
    wake_us: Ints | None = None
    expire_us: Ints | None = None
    """A key with rows that wait does not expire before they had their turn."""


class InOrder(Operator):
    """An operator that gets rows in event-time order. A subclass has a field ``rows``, its input, and ``settle``."""

    rows: pa.Schema

    @property
    @abstractmethod
    def order_time(self) -> str:
        """The column that rows are ordered by: that of event time."""

    @property
    @abstractmethod
    def own(self) -> pa.StructType:
        """The columns held for each key, besides rows that wait."""

    @abstractmethod
    def settle(self, settled: Settled) -> SettledStep: ...

    @property
    def state(self) -> pa.StructType:
        return pa.struct([(WAITING, pa.list_(pa.struct(list(self.rows)))), *self.own])

    def step(self, touched: Touched) -> Step:
        count = len(touched.keys)
        codes, rows = self._all_rows(touched)
        times = micros(rows.column(self.order_time))
        ready: Flags = times < touched.now_us
        chosen = np.flatnonzero(ready)
        chosen = chosen[np.lexsort((times[chosen], codes[chosen]))]
        found = self.settle(
            Settled(
                keys=touched.keys,
                held=self._own(touched.held),
                rows=rows.take(pa.array(chosen)),
                codes=codes[chosen],
                times_us=times[chosen],
                now_us=touched.now_us,
            )
        )
        codes, times, rows = codes[~ready], times[~ready], rows.filter(pa.array(~ready))
        waits = np.bincount(codes, minlength=count) > 0
        wake = earliest(codes, times + 1, count)
        expire = np.full(count, NEVER) if found.expire_us is None else found.expire_us
        return Step(
            output=found.output,
            states=self._states(codes, rows, found.states, count),
            keep=waits | found.keep,
            wake_us=wake if found.wake_us is None else np.minimum(wake, found.wake_us),
            expire_us=np.where(waits, NEVER, expire),
        )

    def _all_rows(self, touched: Touched) -> tuple[Ints, pa.Table]:
        """Those that waited, then those of this batch."""
        held_codes, held = flatten(touched.held.field(WAITING))
        waiting = pa.Table.from_arrays(held.flatten(), schema=self.rows)
        return np.r_[held_codes, touched.codes], pa.concat_tables([waiting, touched.rows.select(self.rows.names)])

    def _own(self, held: pa.StructArray) -> pa.StructArray:
        columns = [held.field(each.name) for each in self.own]
        return pa.StructArray.from_arrays(columns, fields=list(self.own), mask=held.is_null())

    def _states(self, codes: Ints, rows: pa.Table, own: pa.StructArray, count: int) -> pa.StructArray:
        order = np.argsort(codes, kind="stable")
        columns = [whole(each) for each in rows.take(pa.array(order)).columns]
        waiting = as_lists(codes[order], pa.StructArray.from_arrays(columns, fields=list(self.rows)), count)
        return pa.StructArray.from_arrays([waiting, *own.flatten()], fields=list(self.state))
