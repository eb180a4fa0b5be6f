"""Duplicates removed, with a bound on what is remembered: ``hr.dedup(events, "id", within="1 hour", event_time="at")``.

Two rows are duplicates when their keys are equal and their times are less than ``within`` apart. The one that comes
first is given out at once, the other never. A key is remembered until the watermark is ``within`` past the row that
was given out, so memory is bounded by the keys of that span.

Which of several rows is given out depends on which came first, unless they are copies of each other with the same time
(a retry, a replay): then the result is the same whatever the order and the micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.operator import Clock, Operator, Step, Touched, as_lists, flatten, latest, micros, search

__all__ = ["Dedup", "DedupForever"]

KEPT = pa.struct([("kept", pa.list_(pa.int64()))])


@dataclass(frozen=True, slots=True)
class Dedup(Operator):
    """Of rows with the same key and less than ``within_us`` apart, the first."""

    rows: pa.Schema
    event_time: str
    within_us: int
    name: ClassVar[str] = "dedup"
    free: ClassVar[tuple[str, ...]] = ("within",)

    @property
    def state(self) -> pa.StructType:
        """The times of the rows that were given out and may still have duplicates."""
        return KEPT

    @property
    def output(self) -> pa.Schema:
        return self.rows

    @property
    def output_time(self) -> str:
        """Rows are given out as they come, and those that come are not late."""
        return self.event_time

    def step(self, touched: Touched) -> Step:
        held_codes, held = flatten(touched.held.field("kept"))
        held_times = np.asarray(held, np.int64)
        times = micros(touched.rows.column(self.event_time))
        order = np.lexsort((times, touched.codes))
        order = order[~self._near(held_codes, held_times, touched.codes[order], times[order])]
        order = order[self._firsts(touched.codes[order], times[order])]

        codes = np.r_[held_codes, touched.codes[order]]
        kept = np.r_[held_times, times[order]]
        open_still = kept + self.within_us > touched.now_us
        codes, kept = codes[open_still], kept[open_still]
        sort = np.lexsort((kept, codes))
        codes, kept = codes[sort], kept[sort]
        count = len(touched.keys)
        last = latest(codes, kept, count)
        alive = last > np.iinfo(np.int64).min
        return Step(
            output=touched.rows.take(pa.array(np.sort(order))),
            states=pa.StructArray.from_arrays([as_lists(codes, pa.array(kept), count)], fields=list(KEPT)),
            keep=alive,
            expire_us=np.where(alive, np.where(alive, last, 0) + self.within_us, NEVER),
        )

    def _near(self, held_codes: Ints, held_times: Ints, codes: Ints, times: Ints) -> Flags:
        """Which rows are within the bound of one that was given out."""
        first = search(held_codes, held_times, codes, times - self.within_us + 1)
        end = search(held_codes, held_times, codes, times + self.within_us)
        near: Flags = first < end
        return near

    def _firsts(self, codes: Ints, times: Ints) -> Ints:
        """Of rows sorted by key and time the first of each key, then the first that is far enough from that one …"""
        beyond = search(codes, times, codes, times + self.within_us)
        ends = np.searchsorted(codes, codes, side="right")
        at = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]) if len(codes) else np.zeros(0, np.int64)
        chosen = []
        while len(at):
            chosen.append(at)
            following = beyond[at]
            at = following[following < ends[at]]
        return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


SEEN = pa.struct([("seen", pa.bool_())])


@dataclass(frozen=True, slots=True)
class DedupForever(Operator):
    """The first row of each key, ever."""

    rows: pa.Schema
    name: ClassVar[str] = "dedup"
    clock: ClassVar[Clock] = "none"

    @property
    def state(self) -> pa.StructType:
        return SEEN

    @property
    def output(self) -> pa.Schema:
        return self.rows

    def step(self, touched: Touched) -> Step:
        count = len(touched.keys)
        _, first = np.unique(touched.codes, return_index=True)
        unseen: Flags = np.asarray(touched.held.is_null())
        return Step(
            output=touched.rows.take(pa.array(np.sort(first[unseen[touched.codes[first]]]))),
            states=pa.StructArray.from_arrays([pa.array(np.ones(count, np.bool_))], fields=list(SEEN)),
            keep=np.ones(count, np.bool_),
            changed=unseen,
        )
