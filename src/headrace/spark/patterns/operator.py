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
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.patterns.measures import type_of
from headrace.spark.patterns.outcome import EVENTS, MATCH_FIELDS, TIME, Outcome
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.sorted_rows import MASK_BITS, SortedRows
from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.operator import (
    Operator,
    Step,
    Touched,
    as_lists,
    earliest,
    flatten,
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

MASK = "_matches"
"""Columns of the rows: bit n of the m-th says whether the condition 62 · m + n on a row alone holds."""
GIVEN_UP = "_given_up"
"""A column of the rows: the numbers of the patterns that this row may not begin a match of."""
LATE = "late"


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
        touched, late, late_rows = self.in_time(touched)
        sorted_rows = SortedRows.of(self, touched)
        results, trims = [], np.full(len(touched.keys), np.iinfo(np.int64).max)
        wake_us = np.where(sorted_rows.pending > 0, earliest(*sorted_rows.unsettled(), len(touched.keys)) + 1, NEVER)
        begins, numbers, covered, dropped = [], [], [], 0
        for number, plan in enumerate(self.patterns):
            outcome = Outcome.of(self, plan, number, sorted_rows)
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

    def _marked(self, rows: SortedRows) -> pa.Table:
        """The rows with the patterns that each was given up for."""
        if GIVEN_UP not in self.rows.names:
            return rows.table
        numbers, places = np.nonzero(np.stack(rows.given_up))
        order = np.argsort(places, kind="stable")
        lists = as_lists(places[order], pa.array(numbers[order].astype(np.int32), pa.int32()), rows.table.num_rows)
        column = self.rows.get_field_index(GIVEN_UP)
        return rows.table.set_column(column, self.rows.field(GIVEN_UP), lists.cast(self.rows.field(GIVEN_UP).type))

    def in_time(self, touched: Touched) -> tuple[Touched, pa.Table | None, int]:
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
        rows: SortedRows,
        output: pa.Table,
        trims: Ints,
        wake_us: Ints,
        begins: list[Ints],
        numbers: list[Ints],
        covered: list[Ints],
    ) -> Step:
        count = rows.count
        trims, kept, codes = self.kept_rows(rows, trims)
        still_whole = rows.whole & (trims == 0)
        moved = [np.maximum(each - trims, 0) for each in begins], [np.maximum(each - trims, 0) for each in covered]
        fields = [
            kept,
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

    def kept_rows(self, rows: SortedRows, trims: Ints) -> tuple[Ints, pa.ListArray, Ints]:
        """By key: how many rows are not needed any more, and the others; and the keys of these."""
        trims = np.minimum(trims, rows.settled)
        # Equal rows stay together, so that they are counted alike next time.
        inner = np.flatnonzero(trims < rows.totals)
        trims[inner] = rows.twins[rows.starts[inner] + trims[inner]] - rows.starts[inner]
        inside = rows.place >= trims[rows.codes]
        kept = self._marked(rows).filter(pa.array(inside))
        codes = rows.codes[inside]
        structs = pa.StructArray.from_arrays([whole(each) for each in kept.columns], fields=list(self.rows))
        return trims, as_lists(codes, structs, rows.count), codes


def _lists(columns: list[Ints], count: int) -> pa.ListArray:
    """One list per key, with a number per pattern; an empty one stands for zeros."""
    values = np.stack(columns, axis=1) if columns else np.zeros((count, 0), np.int64)
    said = values.any(axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(said * len(columns), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[said].reshape(-1)))
