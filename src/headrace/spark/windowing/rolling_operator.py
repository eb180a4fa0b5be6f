"""Intervals that slide with the rows: for each row what the rows near it add up to. The operator behind ``hr.rolling``.

Two rows of a key are within an interval of each other if they are less than its length apart. ``reach`` says on which
side of a row its neighbours are looked for; the row itself is one of them always, and so are rows at the same time,
whatever the order in which they came:

    before   rows that are less than ``within`` older: what was known when the row happened
    around   rows that are less than ``within`` older or younger: all that are within the interval of each other

A row is given out once, when the watermark says that no neighbour can come any more. Until then it waits in the state;
after that its values stay as long as a row may come whose neighbour it is. So state is bounded by the rows of that
span, and a batch costs what is held of the keys that it touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.spark.aggregates.totals import Aggregate, Average, Count, Total, has_room
from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.operator import (
    BEGINNING,
    Operator,
    Step,
    Touched,
    as_lists,
    earliest,
    flatten,
    latest,
    micros,
    search,
    whole,
)

__all__ = ["Reach", "Rolling", "over_intervals"]

Reach = Literal["before", "around"]
PAIRS_MAX = 1 << 21
"""The most pairs of a row and a neighbour in memory at once."""


@dataclass(frozen=True, slots=True)
class Rolling(Operator):
    rows: pa.Schema
    """Of what comes and, before the values, of what goes out."""
    event_time: str
    within_us: int
    aggregates: tuple[Aggregate, ...]
    reach: Reach = "before"
    name: ClassVar[str] = "rolling"

    @property
    def member(self) -> pa.Schema:
        """What a neighbour has to have."""
        columns = dict.fromkeys([self.event_time, *(name for each in self.aggregates for name in each.columns)])
        return pa.schema([self.rows.field(name) for name in columns])

    @property
    def state(self) -> pa.StructType:
        """Rows that were not given out, and what is still needed of those that were."""
        waiting, past = (pa.list_(pa.struct(list(each))) for each in (self.rows, self.member))
        return pa.struct([("waiting", waiting), ("past", past)])

    @property
    def output(self) -> pa.Schema:
        return pa.schema([*self.rows, *(pa.field(each.name, each.result) for each in self.aggregates)])

    @property
    def output_time(self) -> str | None:
        """Rows come in the order of their times, up to batches, unless they wait for those after them."""
        return self.event_time if self.reach == "before" else None

    @property
    def ahead_us(self) -> int:
        """A row is ready when the watermark is so much past it: no neighbour can come then."""
        return 1 if self.reach == "before" else self.within_us

    def step(self, touched: Touched) -> Step:
        count, now = len(touched.keys), touched.now_us
        codes, rows = self._waiting(touched)
        times = micros(rows.column(self.event_time))
        ready: Flags = times + self.ahead_us <= now
        member_codes, members = self._members(touched, codes, rows)
        member_times = micros(members.column(self.event_time))

        asked = np.flatnonzero(ready)
        asked = asked[np.lexsort((times[asked], codes[asked]))]
        first = search(member_codes, member_times, codes[asked], times[asked] - self.within_us + 1)
        end = search(member_codes, member_times, codes[asked], times[asked] + self.ahead_us)
        values = [over_intervals(each, members, member_times, first, end) for each in self.aggregates]
        given_out = rows.take(pa.array(asked))

        # Rows yet to come, and those that wait, are not before ``now - ahead``, and look back ``within``.
        horizon = max(now - self.ahead_us - self.within_us + 1, BEGINNING)
        past: Flags = (member_times + self.ahead_us <= now) & (member_times > horizon)
        waiting = self._lists(codes[~ready], rows.filter(pa.array(~ready)), count)
        kept = self._lists(member_codes[past], members.filter(pa.array(past)), count)
        last = latest(member_codes[past], member_times[past], count)
        waits = np.bincount(codes[~ready], minlength=count) > 0
        forgettable = ~waits & (last > BEGINNING)
        beyond = self.within_us + self.ahead_us - 1
        return Step(
            output=pa.Table.from_arrays([*given_out.columns, *values], schema=self.output),
            states=pa.StructArray.from_arrays([waiting, kept], fields=list(self.state)),
            keep=waits | (last > BEGINNING),
            wake_us=earliest(codes[~ready], times[~ready] + self.ahead_us, count),
            expire_us=np.where(forgettable, np.where(forgettable, last, 0) + beyond, NEVER),
        )

    def _waiting(self, touched: Touched) -> tuple[Ints, pa.Table]:
        codes, held = flatten(touched.held.field("waiting"))
        waiting = pa.Table.from_arrays(held.flatten(), schema=self.rows)
        return np.r_[codes, touched.codes], pa.concat_tables([waiting, touched.rows.select(self.rows.names)])

    def _members(self, touched: Touched, codes: Ints, rows: pa.Table) -> tuple[Ints, pa.Table]:
        """All that can be a neighbour, sorted by key and time."""
        past_codes, past = flatten(touched.held.field("past"))
        held = pa.Table.from_arrays(past.flatten(), schema=self.member)
        together = pa.concat_tables([held, rows.select(self.member.names)])
        all_codes = np.r_[past_codes, codes]
        order = np.lexsort((micros(together.column(self.event_time)), all_codes))
        return all_codes[order], together.take(pa.array(order)).combine_chunks()

    def _lists(self, codes: Ints, rows: pa.Table, count: int) -> pa.ListArray:
        order = np.argsort(codes, kind="stable")
        columns = [whole(each) for each in rows.take(pa.array(order)).columns]
        return as_lists(codes[order], pa.StructArray.from_arrays(columns, fields=list(rows.schema)), count)


# ---- aggregates of many stretches of one column --------------------------------------------------------------------


def over_intervals(aggregate: Aggregate, members: pa.Table, times_us: Ints, first: Ints, end: Ints) -> pa.Array:
    """The aggregate of the rows [first, end) of the members, for each such pair.

    Counts and sums of integers are differences of running totals. Other numbers are combined along a tree of pairs,
    in as many steps as a stretch has binary digits. What is left, such as percentiles, takes all rows of all stretches;
    so do integers that are so large that their sum might not be one.
    """
    if isinstance(aggregate, Count):
        return pa.array(_running(np.asarray(aggregate.lift(members, times_us), np.int64), first, end))
    numbers = _numbers(aggregate, members)
    if numbers is None or not _has_room(aggregate, members, first, end):
        return _from_pairs(aggregate, members, times_us, first, end)
    values, valid = numbers
    counts = _running(valid.astype(np.int64), first, end)
    if isinstance(aggregate, Average):
        sums = _combined(np.where(valid, values, 0.0), first, end, np.add, 0.0)
        return pa.array(sums / np.maximum(counts, 1), mask=counts == 0)
    assert isinstance(aggregate, Total)
    if aggregate.function == "sum" and pa.types.is_integer(aggregate.type):
        return pa.array(_running(np.where(valid, values, 0), first, end), mask=counts == 0)
    combine, empty = _combining(aggregate.function, values.dtype)
    found = _combined(np.where(valid, values, empty), first, end, combine, empty)
    return pa.array(found, mask=counts == 0).cast(aggregate.type)


def _numbers(aggregate: Aggregate, members: pa.Table) -> tuple[npt.NDArray[Any], Flags] | None:
    """The column of an average, sum or extreme as numbers that numpy knows, and where there are any."""
    if not isinstance(aggregate, Average | Total):
        return None
    column = whole(members.column(aggregate.column))
    kind = pa.float64() if isinstance(aggregate, Average) else aggregate.type
    if pa.types.is_timestamp(kind):
        column, kind = column.cast(kind).cast(pa.int64()), pa.int64()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    valid: Flags = np.asarray(column.is_valid())
    return np.asarray(column.cast(kind, safe=False).fill_null(0)), valid


def _has_room(aggregate: Aggregate, members: pa.Table, first: Ints, end: Ints) -> bool:
    if not (isinstance(aggregate, Total) and aggregate.function == "sum") or not len(first):
        return True
    return has_room(whole(members.column(aggregate.column)).cast(aggregate.type), int((end - first).max()))


def _combining(function: str, kind: np.dtype[Any]) -> tuple[np.ufunc, Any]:
    """How two values become one, and the value that changes nothing. Not-a-number is larger than all numbers."""
    if function == "sum":
        return np.add, 0.0
    if kind.kind == "f":
        return (np.fmin, np.nan) if function == "min" else (np.maximum, -np.inf)
    return (np.minimum, np.iinfo(kind).max) if function == "min" else (np.maximum, np.iinfo(kind).min)


def _running(values: Ints, first: Ints, end: Ints) -> Ints:
    totals = np.r_[np.zeros(1, np.int64), np.cumsum(values)]
    found: Ints = totals[end] - totals[first]
    return found


def _combined(values: npt.NDArray[Any], first: Ints, end: Ints, combine: np.ufunc, empty: Any) -> npt.NDArray[Any]:
    """A stretch is a few whole branches of a binary tree over all values; each level gives at most two of them."""
    found = np.full(len(first), empty, values.dtype)
    low, high, level = first.copy(), end.copy(), values
    while (low < high).any():
        odd = (low < high) & (low & 1 == 1)
        found[odd] = combine(found[odd], level[low[odd]])
        low[odd] += 1
        odd = (low < high) & (high & 1 == 1)
        high[odd] -= 1
        found[odd] = combine(found[odd], level[high[odd]])
        even = level if len(level) % 2 == 0 else np.r_[level, np.full(1, empty, level.dtype)]
        level = combine(even[0::2], even[1::2])
        low, high = low >> 1, high >> 1
    return found


def _from_pairs(aggregate: Aggregate, members: pa.Table, times_us: Ints, first: Ints, end: Ints) -> pa.Array:
    states = aggregate.lift(members, times_us)
    parts = [pa.array([], aggregate.result)]
    for low, high in _portions(end - first):
        lengths = end[low:high] - first[low:high]
        groups = np.repeat(np.arange(high - low), lengths)
        places = np.arange(len(groups)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places += np.repeat(first[low:high], lengths)
        merged = aggregate.merge(groups, states.take(pa.array(places)), high - low)
        parts.append(aggregate.finish(merged).cast(aggregate.result))
    return pa.concat_arrays(parts)


def _portions(lengths: Ints) -> Iterator[tuple[int, int]]:
    """Cuts of the stretches into runs that are small enough together; a stretch that is larger alone is one."""
    ends = np.cumsum(lengths)
    low = 0
    while low < len(lengths):
        before = int(ends[low] - lengths[low])
        high = max(int(np.searchsorted(ends, before + PAIRS_MAX, side="right")), low + 1)
        yield low, high
        low = high
