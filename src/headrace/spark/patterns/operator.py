"""Patterns as an operator of the state kernel: which rows are kept, when a match is final, what comes out.

A row waits until the watermark has passed its time, so that rows of a key are matched in the order of their times; of
equal times, the further columns of the order decide. Then runs start at every row that may begin a match
(``matcher``). What is kept of a key are rows, not runs: from the first row that a later one may still make a match of,
and a few before it if conditions look back. Runs are computed again when the key is touched next. So the state is
plain, bounded by WITHIN, and the same after a replay.

With ``one`` (SQL) there is one match per first row, and AFTER MATCH SKIP says where the next may begin. Matches of a
key come out in the order of their first rows, each when it and all before it are decided.

Without ``one`` (the fluent patterns) every run that is accepted is a match. It comes out in the batch that completed
it: the state says how far the watermark had come before, so what was complete by then is not given out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.patterns.matcher import Found, Rows
from headrace.spark.patterns.measures import MatchedRows, compute, type_of
from headrace.spark.patterns.overflow import limited
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.skipping import chosen_all, chosen_one, ended
from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.operator import (
    BEGINNING,
    END,
    Operator,
    Step,
    Touched,
    as_lists,
    earliest,
    flatten,
    micros,
    whole,
)

__all__ = [
    "EVENTS",
    "GIVEN_UP",
    "LATE",
    "MASK",
    "MASK_BITS",
    "MATCH_FIELDS",
    "TIME",
    "MatchPatterns",
]

TIME = pa.timestamp("us", "UTC")
MASK = "_matches"
"""Columns of the rows: bit n of the m-th says whether the condition 62 · m + n on a row alone holds."""
MASK_BITS = 62
"""Bits of a long, without its sign and the one below."""
GIVEN_UP = "_given_up"
"""A column of the rows: the numbers of the patterns that this row may not begin a match of."""
LATE = "late"
TWIN_STEP = np.int64(0x1E3779B97F4A7C15)
"""Odd, so that multiples of it differ. Numbers wrap, as hashes do."""
EVENTS = "events"

MATCH_FIELDS = (
    pa.field("pattern", pa.string()),
    pa.field("timed_out", pa.bool_()),
    pa.field("match_start", TIME),
    pa.field("match_end", TIME),
    pa.field("_start_place", pa.int64()),
    pa.field("_end_place", pa.int64()),
)


@dataclass(frozen=True, slots=True)
class MatchPatterns(Operator):
    rows: pa.Schema
    """Columns that come, with ``MASK``."""
    keys: pa.StructType
    event_time: str
    order: tuple[tuple[str, Literal["ascending", "descending"]], ...]
    """Further columns of the order of rows with equal times."""
    place: str
    """A column with a hash of the row: the last column of the order, and what ids of matches are made from."""
    patterns: tuple[PatternPlan, ...]
    given: Literal["atoms", "events", "rows"]
    """Per match its atoms, or its rows as a list; or its rows, each with the atoms."""
    shown: tuple[str, ...] = ()
    """The columns of rows that come out again."""
    empty: bool = True
    unmatched: bool = False
    numbered: bool = False
    """Whether matches are counted; then keys are kept for ever."""
    anchored: bool = False
    """Whether a pattern asks for the first row of a key; then keys are kept for ever."""
    late: tuple[str, ...] | None = None
    """The columns of late rows, if these come out too."""
    name: ClassVar[str] = "match"
    free: ClassVar[tuple[str, ...]] = ()
    judges_lateness: ClassVar[bool] = True
    counters: ClassVar[Mapping[str, Literal["sum", "max"]]] = MappingProxyType({"dropped_partials": "sum"})

    @property
    def state(self) -> pa.StructType:
        ints = pa.list_(pa.int64())
        return pa.struct(
            [
                ("rows", pa.list_(pa.struct(list(self.rows)))),
                ("begins", ints),
                ("numbers", ints),
                ("covered", ints),
                ("seen_us", pa.int64()),
                ("whole", pa.bool_()),
            ]
        )

    @property
    def output(self) -> pa.Schema:
        if self.late is None:
            return self.matches
        row = pa.struct([self.rows.field(name) for name in self.late])
        return pa.schema([*self.matches, pa.field(LATE, row)])

    @property
    def matches(self) -> pa.Schema:
        types = {each.name: each.type for each in self.rows}
        fields = [*self.keys, *MATCH_FIELDS]
        if self.given == "events":
            row = [pa.field(name, types[name]) for name in self.shown]
            event = pa.struct([pa.field("variable", pa.string()), *row])
            return pa.schema([*fields, pa.field(EVENTS, pa.list_(event))])
        atoms = [pa.field(f"_a{n}", type_of(each, types)) for n, each in enumerate(self.patterns[0].atoms)]
        if self.given == "rows":
            names = {each.name for each in self.keys}
            fields += [pa.field(name, types[name]) for name in self.shown if name not in names]
        return pa.schema([*fields, *atoms])

    @property
    def output_time(self) -> str | None:
        """Without ``one`` matches come when their last row is settled; an absence comes later than its last row, and
        so does a match whose conditions ask for the next row."""
        late = any(
            each.one
            or each.timeouts
            or each.look_ahead
            or any(state.kind.startswith("absent") for state in each.automaton.states)
            for each in self.patterns
        )
        return None if late or self.given == "rows" else "match_end"

    def step(self, touched: Touched) -> Step:
        touched, late, late_rows = self._in_time(touched)
        sorted_rows = _Sorted.of(self, touched)
        results, trims = [], np.full(len(touched.keys), np.iinfo(np.int64).max)
        wake_us = np.where(sorted_rows.pending > 0, earliest(*sorted_rows.unsettled(), len(touched.keys)) + 1, NEVER)
        begins, numbers, covered, dropped = [], [], [], 0
        for number, plan in enumerate(self.patterns):
            outcome = _Outcome.of(self, plan, number, sorted_rows)
            results.append(outcome.output)
            dropped += outcome.dropped
            begins.append(outcome.begins)
            numbers.append(outcome.numbers)
            covered.append(outcome.covered)
            trims = np.minimum(trims, np.maximum(outcome.begins - plan.look_back, 0))
            wake_us = np.minimum(wake_us, outcome.wake_us)
        output = pa.concat_tables(results)
        if late is not None:
            none = pa.nulls(output.num_rows, self.output.field(LATE).type)
            output = pa.concat_tables([output.append_column(self.output.field(LATE), none), late])
        step = self._kept(sorted_rows, output, trims, wake_us, begins, numbers, covered)
        return replace(step, late_rows=late_rows, counts={"dropped_partials": dropped})

    @property
    def masks(self) -> list[str]:
        return [each for each in self.rows.names if each == MASK or each.startswith(f"{MASK}_")]

    def given_up_in(self, table: pa.Table) -> list[Flags]:
        """By pattern: the rows that may not begin a match of it."""
        count = len(self.patterns)
        if GIVEN_UP not in self.rows.names:
            return [np.zeros(table.num_rows, np.bool_) for _ in range(count)]
        rows, numbers = flatten(whole(table.column(GIVEN_UP)))
        found = np.zeros((count, table.num_rows), np.bool_)
        found[np.asarray(numbers, np.int64), rows] = True
        return list(found)

    def _marked(self, rows: _Sorted) -> pa.Table:
        """The rows with the patterns that each was given up for."""
        if GIVEN_UP not in self.rows.names:
            return rows.table
        numbers, places = np.nonzero(np.stack(rows.given_up))
        order = np.argsort(places, kind="stable")
        lists = as_lists(places[order], pa.array(numbers[order].astype(np.int32), pa.int32()), rows.table.num_rows)
        column = self.rows.get_field_index(GIVEN_UP)
        return rows.table.set_column(column, self.rows.field(GIVEN_UP), lists.cast(self.rows.field(GIVEN_UP).type))

    def _in_time(self, touched: Touched) -> tuple[Touched, pa.Table | None, int]:
        """Without the rows that are late or have no time; these, if they are wanted, and how many they are."""
        times = touched.rows.column(self.event_time).cast(TIME, safe=False).cast(pa.int64())
        kept = pc.fill_null(pc.greater_equal(times, pa.scalar(touched.late_before_us, pa.int64())), False)
        flags = np.asarray(kept, np.bool_)
        late = None if self.late is None else self._late(touched, ~flags)
        if flags.all():
            return touched, late, 0
        rows = touched.rows.filter(kept)
        return replace(touched, rows=rows, codes=touched.codes[flags]), late, int(np.count_nonzero(~flags))

    def _late(self, touched: Touched, late: Flags) -> pa.Table:
        rows = touched.rows.filter(pa.array(late))
        keys = touched.keys.take(pa.array(touched.codes[late])).flatten()
        nothing = [pa.nulls(rows.num_rows, each.type) for each in list(self.matches)[len(keys) :]]
        kind = self.output.field(LATE).type
        structs = pa.StructArray.from_arrays([whole(rows.column(each.name)) for each in kind], fields=list(kind))
        return pa.Table.from_arrays([*keys, *nothing, structs], schema=self.output)

    def _kept(
        self,
        rows: _Sorted,
        output: pa.Table,
        trims: Ints,
        wake_us: Ints,
        begins: list[Ints],
        numbers: list[Ints],
        covered: list[Ints],
    ) -> Step:
        count = rows.count
        trims = np.minimum(trims, rows.settled)
        # Equal rows stay together, so that they are counted alike next time.
        inner = np.flatnonzero(trims < rows.totals)
        trims[inner] = rows.twins[rows.starts[inner] + trims[inner]] - rows.starts[inner]
        inside = np.arange(len(rows.codes)) - rows.starts[rows.codes] >= trims[rows.codes]
        kept = self._marked(rows).filter(pa.array(inside))
        codes = rows.codes[inside]
        structs = pa.StructArray.from_arrays([whole(each) for each in kept.columns], fields=list(self.rows))
        still_whole = rows.whole & (trims == 0)
        moved = [np.maximum(each - trims, 0) for each in begins], [np.maximum(each - trims, 0) for each in covered]
        fields = [
            as_lists(codes, structs, count),
            *(_lists(each, count) for each in (moved[0], numbers, moved[1])),
            pa.array(np.full(count, rows.now_us)),
            pa.array(still_whole),
        ]
        for_ever = self.numbered or self.anchored
        return Step(
            output=output,
            states=pa.StructArray.from_arrays(fields, fields=list(self.state)),
            keep=(np.bincount(codes, minlength=count) > 0) | for_ever,
            wake_us=wake_us,
        )


def _lists(columns: list[Ints], count: int) -> pa.ListArray:
    """One list per key, with a number per pattern."""
    values = np.stack(columns, axis=1).reshape(-1) if columns else np.zeros(0, np.int64)
    offsets = np.arange(count + 1, dtype=np.int32) * len(columns)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sorted:
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
    cache: dict[str, Ints] = field(default_factory=dict)
    seen_cache: dict[int, Rows] = field(default_factory=dict)

    @classmethod
    def of(cls, operator: MatchPatterns, touched: Touched) -> _Sorted:
        count = len(touched.keys)
        held_codes, held = flatten(touched.held.field("rows"))
        before = pa.Table.from_arrays(held.flatten(), schema=operator.rows)
        table = pa.concat_tables([before, touched.rows.select(operator.rows.names)])
        codes = np.r_[held_codes, touched.codes]
        keyed = table.append_column("_code", pa.array(codes))
        sort_keys = [("_code", "ascending"), (operator.event_time, "ascending"), *operator.order]
        order = pc.sort_indices(keyed, sort_keys=sort_keys)
        table, codes = table.take(order).combine_chunks(), codes[np.asarray(order)]
        times = micros(table.column(operator.event_time))
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
            self.seen_cache[look_ahead] = Rows(
                masks={},
                columns=self.columns,
                times_us=self.times_us,
                first=starts,
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
        found: Flags = (self.masks[part] >> place) & 1 == 1
        return found

    def held(self, name: str, number: int) -> Ints:
        """What is held of each key for the n-th pattern; 0 without."""
        if name not in self.cache:
            codes, values = flatten(self.touched.held.field(name))
            width = len(values) // max(len(np.unique(codes)), 1)
            found = np.zeros((max(width, self.patterns), self.count), np.int64)
            if len(codes):
                found[:width, codes[::width]] = np.asarray(values, np.int64).reshape(-1, width).T
            self.cache[name] = found
        values_of: Ints = self.cache[name][number].copy()
        return values_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What a pattern found in the rows."""

    output: pa.Table
    begins: Ints
    """By key: the first row, counted from its first one, that may still begin a match."""
    numbers: Ints
    covered: Ints
    wake_us: Ints
    dropped: int
    """Partial matches that were given up in this batch."""

    @classmethod
    def of(cls, operator: MatchPatterns, plan: PatternPlan, number: int, rows: _Sorted) -> _Outcome:
        begins = np.minimum(rows.held("begins", number), rows.settled)
        testable = rows.settled if rows.closed else np.maximum(rows.settled - plan.look_ahead, 0)
        may_begin = (rows.place >= begins[rows.codes]) & (rows.place < testable[rows.codes]) & ~rows.given_up[number]
        masks = {name: rows.mask(bit) for name, bit in plan.bits.items()}
        candidates = np.flatnonzero(may_begin & plan.first(masks) if plan.first_rows else may_begin)
        if not len(candidates) and operator.given != "rows":
            return cls._nothing(operator, number, rows, testable)
        seen = replace(rows.seen(testable, plan.look_ahead), masks=masks)
        found = plan.matcher().find(seen, candidates)
        rest = limited(found, rows.codes, rows.times_us, plan.runs_max, plan.overflow, plan.one)
        found = rest.found
        dropped = int(np.count_nonzero(rows.times_us[rest.at] >= rows.seen_us[rows.codes[rest.at]]))
        if plan.overflow == "drop_newest":
            rows.given_up[number][rest.dropped] = True
        end_rows = rows.starts + testable
        numbers, covered = rows.held("numbers", number), rows.held("covered", number)
        if plan.one:
            chosen, next_rows = chosen_one(found, plan.skip, plan.automaton, rows.codes, rows.starts + begins, end_rows)
            timed_out = np.zeros(0, np.int64)
        else:
            chosen, next_rows = chosen_all(found, plan.skip, plan.automaton, rows.codes, rows.starts + begins, end_rows)
            timed_out = cls._timed_out(plan, found, rows, chosen)
            chosen = chosen[found.completed_us[chosen] >= rows.seen_us[rows.codes[found.starts[chosen]]]]
        matched, numbers_of = _matched(plan, found, chosen, rows, seen, numbers)
        output, covered = _Output(operator, plan, rows, found, chosen, matched, timed_out, seen).table(
            covered, begins, next_rows - rows.starts
        )
        return cls(
            output=output,
            begins=next_rows - rows.starts,
            numbers=numbers_of,
            covered=covered,
            wake_us=cls._wake(plan, found, rows),
            dropped=dropped,
        )

    @classmethod
    def _nothing(cls, operator: MatchPatterns, number: int, rows: _Sorted, testable: Ints) -> _Outcome:
        """No row may begin a match."""
        return cls(
            output=operator.matches.empty_table(),
            begins=testable,
            numbers=rows.held("numbers", number),
            covered=rows.held("covered", number),
            wake_us=np.full(rows.count, NEVER),
            dropped=0,
        )

    @staticmethod
    def _timed_out(plan: PatternPlan, found: Found, rows: _Sorted, chosen: Ints) -> Ints:
        """Runs whose time was over since the key was last touched, without those that a match ended before."""
        if not plan.timeouts or plan.within_us is None:
            return np.zeros(0, np.int64)
        decided_us = rows.times_us[found.timed_out] + plan.within_us - 1
        if plan.look_ahead:
            decided_us = rows.tested_us(found.timed_out, decided_us, plan.look_ahead)
        new = decided_us >= rows.seen_us[rows.codes[found.timed_out]]
        new &= (decided_us < rows.now_us) | rows.closed
        new &= ~ended(found, chosen, plan.skip, plan.automaton, rows.codes, decided_us)
        return np.flatnonzero(new)

    @staticmethod
    def _wake(plan: PatternPlan, found: Found, rows: _Sorted) -> Ints:
        """When time alone decides something."""
        if plan.within_us is None:
            return np.full(rows.count, NEVER)
        deadlines = rows.times_us[found.undecided] + plan.within_us
        to_come = deadlines > rows.now_us  # a row that waits for the one after it has no deadline
        return earliest(rows.codes[found.undecided[to_come]], deadlines[to_come], rows.count)


def _matched(
    plan: PatternPlan, found: Found, chosen: Ints, rows: _Sorted, seen: Rows, numbers: Ints
) -> tuple[MatchedRows, Ints]:
    """The rows of the chosen matches, and by key how many matches there have been."""
    which, places, states = found.paths.flattened(found.nodes[chosen])
    names = tuple(dict.fromkeys(each.variable for each in plan.automaton.states))
    index = np.array([names.index(each.variable) for each in plan.automaton.states], np.int64)
    codes = rows.codes[found.starts[chosen]]
    rank = (
        np.arange(len(codes))
        - np.r_[0, np.flatnonzero(codes[1:] != codes[:-1]) + 1][np.cumsum(np.r_[0, codes[1:] != codes[:-1]])]
        if len(codes)
        else np.zeros(0, np.int64)
    )
    matched = MatchedRows(
        matches=which,
        rows=places,
        variables=index[states] if len(states) else states,
        names=names,
        count=len(chosen),
        columns=seen.columns,
        first=seen.first,
        end=seen.known_end,
        numbers=numbers[codes] + rank + 1,
        labels=plan.labels,
    )
    return matched, numbers + np.bincount(codes, minlength=rows.count)


@dataclass(frozen=True, slots=True)
class _Output:
    """Rows about chosen matches."""

    operator: MatchPatterns
    plan: PatternPlan
    rows: _Sorted
    found: Found
    chosen: Ints
    matched: MatchedRows
    timed_out: Ints
    seen: Rows

    def table(self, covered: Ints, begins: Ints, next_begins: Ints) -> tuple[pa.Table, Ints]:
        schema = self.operator.matches
        if self.operator.given != "rows" and not len(self.chosen) and not len(self.timed_out):
            return schema.empty_table(), covered
        if self.operator.given == "events":
            return self._events(schema), covered
        if self.operator.given == "atoms":
            return self._atoms(schema), covered
        return self._all_rows(schema, covered, begins, next_begins)

    def _fields(self, starts: Ints, lasts: Ints, timed_out: bool) -> list[pa.Array]:
        """Keys and what every result says; ``lasts`` is -1 for an empty match."""
        keys = self.rows.touched.keys.take(pa.array(self.rows.codes[starts])).flatten()
        times = self.rows.times_us
        places = pa.array(self.rows.names)
        last_times = pa.array(times[np.maximum(lasts, 0)], mask=lasts < 0) if len(times) else pa.nulls(0, pa.int64())
        return [
            *keys,
            pa.array([self.plan.name] * len(starts), pa.string()),
            pa.array(np.full(len(starts), timed_out)),
            pa.array(times[starts]).cast(TIME),
            last_times.cast(TIME),
            places.take(pa.array(starts)),
            places.take(pa.array(np.maximum(lasts, 0), mask=lasts < 0)),
        ]

    def _lasts(self) -> Ints:
        lasts = np.full(self.matched.count, -1)
        lasts[self.matched.matches] = self.matched.rows  # sorted, so the last one stays
        return lasts

    def _atoms(self, schema: pa.Schema) -> pa.Table:
        starts = self.found.starts[self.chosen]
        values = [compute(each, self.matched, False) for each in self.plan.atoms]
        columns = [*self._fields(starts, self._lasts(), False), *values]
        return pa.Table.from_arrays(
            [each.cast(of.type) for each, of in zip(columns, schema, strict=True)], schema=schema
        )

    def _events(self, schema: pa.Schema) -> pa.Table:
        pieces = [self._with_events(schema, self.found.starts[self.chosen], self.matched, False)]
        if len(self.timed_out):
            starts = self.found.timed_out[self.timed_out]
            which, places, states = self.found.paths.flattened(self.found.timed_out_nodes[self.timed_out])
            names = self.matched.names
            index = np.array([names.index(each.variable) for each in self.plan.automaton.states], np.int64)
            partial = MatchedRows(
                matches=which,
                rows=places,
                variables=index[states],
                names=names,
                count=len(starts),
                columns=self.matched.columns,
                first=self.matched.first,
                end=self.matched.end,
                numbers=np.zeros(len(starts), np.int64),
            )
            pieces.append(self._with_events(schema, starts, partial, True))
        return pa.concat_tables(pieces)

    def _with_events(self, schema: pa.Schema, starts: Ints, matched: MatchedRows, timed_out: bool) -> pa.Table:
        lasts = np.full(matched.count, -1)
        lasts[matched.matches] = matched.rows
        kind = schema.field(EVENTS).type.value_type
        labels = [self.plan.labels.get(each, each) for each in matched.names]
        names = pa.array(labels, pa.string()).take(pa.array(matched.variables))
        values = [matched.columns[name].take(pa.array(matched.rows)) for name in self.operator.shown]
        events = pa.StructArray.from_arrays([names, *values], fields=list(kind))
        lists = as_lists(matched.matches, events, matched.count).cast(schema.field(EVENTS).type)
        return pa.Table.from_arrays([*self._fields(starts, lasts, timed_out), lists], schema=schema)

    def _all_rows(self, schema: pa.Schema, covered: Ints, begins: Ints, next_begins: Ints) -> tuple[pa.Table, Ints]:
        starts, lasts = self.found.starts[self.chosen], self._lasts()
        pieces = [self._matched_rows(schema, starts, lasts)]
        if self.operator.empty:
            pieces.append(self._single_rows(schema, starts[lasts < 0], self.matched.numbers[lasts < 0]))
        reach = covered + self.rows.starts
        if self.operator.unmatched:
            pieces.append(self._single_rows(schema, self._unmatched(starts, lasts, reach, begins, next_begins), None))
        np.maximum.at(reach, self.rows.codes[starts], lasts + 1)
        return pa.concat_tables(pieces), reach - self.rows.starts

    def _unmatched(self, starts: Ints, lasts: Ints, reach: Ints, begins: Ints, next_begins: Ints) -> Ints:
        """Rows that no match has, among those that can begin none any more."""
        place = np.arange(len(self.rows.codes)) - self.rows.starts[self.rows.codes]
        passed = (place >= begins[self.rows.codes]) & (place < next_begins[self.rows.codes])
        passed &= np.arange(len(self.rows.codes)) >= reach[self.rows.codes]
        passed[starts[lasts < 0]] = False
        inside = np.zeros(len(self.rows.codes) + 1, np.int64)
        real = lasts >= 0
        np.add.at(inside, starts[real], 1)
        np.add.at(inside, lasts[real] + 1, -1)
        return np.flatnonzero(passed & (np.cumsum(inside)[:-1] == 0))

    def _matched_rows(self, schema: pa.Schema, starts: Ints, lasts: Ints) -> pa.Table:
        matched = self.matched
        shown = ~self._excluded()
        fields = self._fields(starts[matched.matches], lasts[matched.matches], False)
        rows = [matched.columns[each].take(pa.array(matched.rows)) for each in self._shown()]
        values = [compute(each, matched, True) for each in self.plan.atoms]
        columns = [each.cast(of.type) for each, of in zip([*fields, *rows, *values], schema, strict=True)]
        return pa.Table.from_arrays(columns, schema=schema).filter(pa.array(shown))

    def _excluded(self) -> Flags:
        _, _, states = self.found.paths.flattened(self.found.nodes[self.chosen])
        flags = np.array([each.excluded for each in self.plan.automaton.states], np.bool_)
        return flags[states] if len(states) else np.zeros(0, np.bool_)

    def _single_rows(self, schema: pa.Schema, places: Ints, numbers: Ints | None) -> pa.Table:
        """Rows of empty matches, with a number, and rows without a match."""
        fields = self._fields(places, np.full(len(places), -1), False)
        rows = [self.seen.columns[each].take(pa.array(places)) for each in self._shown()]
        values = []
        for atom, of in zip(self.plan.atoms, list(schema)[len(schema) - len(self.plan.atoms) :], strict=True):
            if atom.kind == "match_number" and numbers is not None:
                values.append(pa.array(numbers))
            elif atom.kind.startswith("count") and numbers is not None:
                values.append(pa.array(np.zeros(len(places), np.int64)))
            else:
                values.append(pa.nulls(len(places), of.type))
        if numbers is None:
            width = len(self.operator.keys)
            fields[width : width + 6] = [pa.nulls(len(places), each.type) for each in MATCH_FIELDS]
        columns = [each.cast(of.type) for each, of in zip([*fields, *rows, *values], schema, strict=True)]
        return pa.Table.from_arrays(columns, schema=schema)

    def _shown(self) -> list[str]:
        names = {each.name for each in self.operator.keys}
        return [each for each in self.operator.shown if each not in names]
