"""All rows of the touched keys, held and new, in the order in which a pattern sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.patterns.conditions import AllRows, Expression, holds
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.runs import Rows
from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.operator import BEGINNING, END, Touched, flatten, micros, whole

if TYPE_CHECKING:
    from headrace.spark.patterns.operator import MatchPatterns

__all__ = ["MASK_BITS", "SortedRows", "rows_in_order"]

MASK_BITS = 62
"""Bits of a long, without its sign and the one below."""
TWIN_STEP = np.int64(0x1E3779B97F4A7C15)
"""Odd, so that multiples of it differ. Numbers wrap, as hashes do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRows:
    """All rows of the touched keys, held and new, in order."""

    touched: Touched
    table: pa.Table
    codes: Ints
    times_us: Ints
    count: int
    starts: Ints
    """By key: its first row."""
    totals: Ints
    settled: Ints
    """By key: how many of its rows are before the watermark."""
    pending: Ints
    whole: Flags
    """By key: whether its first row is the first of all."""
    seen_us: Ints
    """By key: how far the watermark had come when the key was last touched."""
    now_us: int
    closed: bool
    masks: list[Ints]
    given_up: list[Flags]
    """By pattern: rows that may not begin a match of it."""
    columns: Mapping[str, pa.Array]
    place: Ints
    """By row: how many rows of its key are before it."""
    twins: Ints
    """By row: the first of the rows that are wholly equal to it."""
    names: Ints
    """By row: a number that ids of matches are made from; wholly equal rows have different ones."""
    patterns: int
    before: Ints
    """By key: how many of its rows are before the pattern counts, so that it does not see them."""
    cache: dict[str, Ints] = field(default_factory=dict)
    tested: dict[Expression, Flags] = field(default_factory=dict)
    seen_cache: dict[int, Rows] = field(default_factory=dict)

    @classmethod
    def of(cls, operator: MatchPatterns, touched: Touched) -> SortedRows:
        count = len(touched.keys)
        held_codes, held = flatten(touched.held.field("rows"))
        before = pa.Table.from_arrays(held.flatten(), schema=operator.rows)
        table = pa.concat_tables([before, touched.rows.select(operator.rows.names)]).combine_chunks()
        codes = np.r_[held_codes, touched.codes]
        times = micros(table.column(operator.event_time))
        order = rows_in_order(table, codes, times, operator.order)
        table, codes, times = table.take(pa.array(order)).combine_chunks(), codes[order], times[order]
        closed = touched.now_us >= END
        totals = np.bincount(codes, minlength=count)
        settled = totals if closed else np.bincount(codes[times < touched.now_us], minlength=count)
        hashes = np.asarray(table.column(operator.place), np.int64)
        same = np.zeros(len(codes), np.bool_)
        same[1:] = (codes[1:] == codes[:-1]) & (times[1:] == times[:-1]) & (hashes[1:] == hashes[:-1])
        twins = np.maximum.accumulate(np.where(same, 0, np.arange(len(codes))))
        return cls(
            touched=touched,
            table=table,
            codes=codes,
            times_us=times,
            count=count,
            starts=np.cumsum(totals) - totals,
            totals=totals,
            settled=settled,
            pending=totals - settled,
            whole=np.asarray(touched.held.field("whole").fill_null(True), np.bool_),
            seen_us=np.asarray(touched.held.field("seen_us").fill_null(BEGINNING), np.int64),
            now_us=touched.now_us,
            closed=closed,
            masks=[np.asarray(whole(table.column(name)).fill_null(0), np.int64) for name in operator.masks],
            given_up=operator.given_up_in(table),
            columns={name: whole(table.column(name)) for name in table.column_names},
            place=np.arange(len(codes)) - (np.cumsum(totals) - totals)[codes],
            twins=twins,
            names=hashes + (np.arange(len(codes)) - twins) * TWIN_STEP,
            patterns=len(operator.patterns),
            before=np.zeros(count, np.int64),
        )

    def during(self, begin_us: int, end_us: int) -> SortedRows:
        """As a pattern sees them that counts from one time on, and until another: what is undecided then stays so."""
        never_ends = end_us == NEVER
        if begin_us == BEGINNING and never_ends:
            return self
        settled, now_us = self.settled, self.now_us
        if end_us <= now_us and not never_ends:
            now_us = end_us
            seen = np.bincount(self.codes[self.times_us < end_us], minlength=self.count)
            # What a key had before the end was decided when the clock had passed it.
            settled = np.where(self.seen_us >= end_us, 0, seen)
        before = np.bincount(self.codes[self.times_us < begin_us], minlength=self.count)
        return replace(
            self,
            settled=settled,
            now_us=now_us,
            closed=self.closed and never_ends,
            before=before,
            seen_cache={},
        )

    def unsettled(self) -> tuple[Ints, Ints]:
        """Keys and times of rows that wait for the watermark."""
        waits = np.arange(len(self.codes)) - self.starts[self.codes] >= self.settled[self.codes]
        return self.codes[waits], self.times_us[waits]

    def tested_us(self, starts: Ints, until_us: Ints, look_ahead: int) -> Ints:
        """When all rows up to a time were tested, given the first rows of runs and that time: rows are tested when
        some rows after them are known."""
        found = until_us.copy()
        for index, (start, until) in enumerate(zip(starts.tolist(), until_us.tolist(), strict=True)):
            code = int(self.codes[start])
            end = int(self.starts[code] + self.settled[code])
            decides = start + int(np.searchsorted(self.times_us[start:end], until, "right")) - 1 + look_ahead
            found[index] = max(until, int(self.times_us[decides])) if decides < end else END
        return found

    def seen(self, testable: Ints, look_ahead: int) -> Rows:
        """For the matcher; equal for all patterns that look ahead equally far."""
        if look_ahead not in self.seen_cache:
            starts = self.starts[self.codes]
            first = starts + np.minimum(self.before, self.totals)[self.codes]
            self.seen_cache[look_ahead] = Rows(
                masks={},
                columns=self.columns,
                times_us=self.times_us,
                first=first,
                end=starts + testable[self.codes],
                known_end=starts + self.settled[self.codes],
                whole_from=np.where(self.whole[self.codes], starts, -1),
                now_us=self.now_us,
                closed=self.closed,
            )
        return self.seen_cache[look_ahead]

    def mask(self, bit: int) -> Flags:
        """Where the condition of this number holds."""
        part, place = divmod(bit, MASK_BITS)
        found: Flags = self.masks[part] & np.int64(1 << place) != 0
        return found

    def masks_of(self, plan: PatternPlan) -> dict[str, Flags]:
        """By variable: the rows that satisfy what it asks of a row alone."""
        found = {name: self.mask(bit) for name, bit in plan.bits.items()}
        for name, condition in plan.tested.items():
            if condition not in self.tested:
                self.tested[condition] = holds(condition, AllRows(self.columns, len(self.codes)))
            found[name] = self.tested[condition]
        return found

    def held(self, name: str, number: int) -> Ints:
        """What is held of each key for the n-th pattern; 0 without."""
        if name not in self.cache:
            codes, values = flatten(self.touched.held.field(name))
            width = len(values) // max(int(np.count_nonzero(np.diff(codes, prepend=-1))), 1)
            found = np.zeros((max(width, self.patterns), self.count), np.int64)
            if len(codes):
                found[:width, codes[::width]] = np.asarray(values, np.int64).reshape(-1, width).T
            self.cache[name] = found
        values_of: Ints = self.cache[name][number].copy()
        return values_of


def rows_in_order(table: pa.Table, codes: Ints, times: Ints, order: Sequence[tuple[str, str]]) -> Ints:
    """Rows by key, time and the further columns; wholly equal ones stay as they are, since what is held says which of
    them was given up.

    Key and time are one number where they fit, which takes a third of the time; the further columns are looked at only
    where that number is the same.
    """
    least, latest = (int(times.min()), int(times.max())) if len(times) else (0, 0)
    span = latest - least + 1
    if (int(codes.max(initial=0)) + 1) * span > np.iinfo(np.int64).max:
        return _by_columns(table, [("code", codes), ("time", times)], order)
    numbers = codes * span + (times - least)
    rows = np.argsort(numbers)
    numbers = numbers[rows]
    same = numbers[1:] == numbers[:-1]
    if same.any():
        tied = np.flatnonzero(np.r_[same, False] | np.r_[False, same])
        rows_of = rows[tied][np.lexsort((rows[tied], numbers[tied]))]
        rows[tied] = rows_of[_by_columns(table.take(pa.array(rows_of)), [("number", numbers[tied])], order)]
    return rows


def _by_columns(table: pa.Table, first: Sequence[tuple[str, Ints]], order: Sequence[tuple[str, str]]) -> Ints:
    """``first``: numbers that come before the columns of the order."""
    found = table.select(list(dict.fromkeys(name for name, _ in order)))
    names = [f"\x00{name}" for name, _ in first]  # which no column is called
    for name, (_, values) in zip(names, first, strict=True):
        found = found.append_column(name, pa.array(values))
    return np.asarray(pc.sort_indices(found, sort_keys=[*((name, "ascending") for name in names), *order]))
