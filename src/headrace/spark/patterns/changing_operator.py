"""Patterns of a table that changes, on the state kernel: every bucket holds all patterns, and the rows of its keys.

A row of the input is an event or a change of the table of patterns:

    _event    the columns of the event but its keys and its time; such a row has these
    _change   (pattern, text, removed, position, lane); such a row is copied to every bucket, under the key of the table

Rows wait until the watermark has passed them, as for patterns known at the start, and a version of a pattern counts for
the rows from one event time to another (``pattern_table``). So which patterns a row meets depends on times, and not on
micro-batches, and a bounded frame gives the same matches. A version sees nothing of what is before it or after it: what
is undecided when it ends is no match.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.spark.patterns.operator import MatchPatterns
from headrace.spark.patterns.outcome import Outcome
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.pattern_table import TABLE_TYPE, Change, Table, Version
from headrace.spark.patterns.sorted_rows import SortedRows
from headrace.spark.patterns.stored import Limits, PatternProblem, compile_stored
from headrace.spark.state.bucket import BEGINNING, NEVER, Flags, Ints
from headrace.spark.state.operator import Operator, Step, Touched, as_lists, earliest, fields_of, flatten, whole

__all__ = ["CHANGE", "CHANGE_FIELDS", "EVENT", "TABLE", "MatchChangingPatterns"]

LOG = logging.getLogger(__name__)
EVENT = "_event"
CHANGE = "_change"
TABLE = "_table"
"""The last column of the key: whether it is the key of the table of patterns."""
CHANGE_FIELDS = ("pattern", "text", "removed", "position", "lane")
BEGIN_TYPE = pa.struct([("version", pa.int64()), ("begin", pa.int64())])
PLANS_MAX = 10_000
"""Texts whose plans a process remembers."""


@dataclass(frozen=True, slots=True)
class MatchChangingPatterns(Operator):
    matching: MatchPatterns
    """How rows are ordered and matches are given out; it has no patterns."""
    patterns_max: int
    limits: Limits
    name: ClassVar[str] = "match_patterns"
    copied: ClassVar[str | None] = TABLE
    free: ClassVar[tuple[str, ...]] = ("patterns_max", "limits")
    judges_lateness: ClassVar[bool] = True
    counters: ClassVar[Mapping[str, Literal["sum", "max"]]] = MappingProxyType(
        {
            "patterns": "max",
            "bad_patterns": "max",
            "refused_patterns": "max",
            "failed_patterns": "max",
            "late_changes": "max",
            "dropped_partials": "sum",
        }
    )

    @property
    def state(self) -> pa.StructType:
        return pa.struct(
            [
                ("rows", pa.list_(pa.struct(list(self.matching.rows)))),
                ("begins", pa.list_(BEGIN_TYPE)),
                ("seen_us", pa.int64()),
                ("table", TABLE_TYPE),
            ]
        )

    @property
    def output(self) -> pa.Schema:
        return self.matching.matches

    def step(self, touched: Touched) -> Step:
        flags = np.asarray(touched.keys.field(TABLE), np.bool_)
        place = int(np.argmax(flags)) if flags.any() else -1
        is_change = touched.codes == place
        table = self._table(touched, place)
        table.apply(self._changes(touched.rows.filter(pa.array(is_change))), touched.now_us, self.patterns_max)
        plans, bad = self._plans(table, touched.memory)
        inner, _, late_rows = self.matching.in_time(self._events(touched, is_change))
        rows = replace(SortedRows.of(self.matching, inner), patterns=len(plans))
        rows.given_up.extend(np.zeros(len(rows.codes), np.bool_) for _ in plans)
        rows.cache["begins"] = self._held_begins(touched, plans)
        step = self._matched(rows, plans)
        states, keep, wake_us = step.states, step.keep, step.wake_us
        assert wake_us is not None
        if place >= 0:
            stored = table.needed(touched.now_us)
            states = self._with_table(states, place, stored)
            keep[place] = True
            wake_us[place] = min((each.end_us for each in stored.versions), default=NEVER)
        counts = {
            "patterns": sum(each.is_open for each in table.versions),
            "bad_patterns": bad,
            "refused_patterns": table.refused,
            "late_changes": table.late,
        }
        return replace(step, states=states, late_rows=late_rows, counts={**step.counts, **counts})

    # ---- the table of patterns -------------------------------------------------------------------------------------

    def _table(self, touched: Touched, place: int) -> Table:
        """As it was before the batch."""
        if place >= 0:
            held = touched.held[place].as_py()
        else:
            held = touched.whole.state_of((*(None for _ in self.matching.keys), True))
        return Table.of(None if held is None else held["table"])

    def _changes(self, rows: pa.Table) -> list[Change]:
        times = rows.column(self.matching.event_time).cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
        given = whole(rows.column(CHANGE)).to_pylist()
        return [Change(at_us=at, **row) for at, row in zip(times.to_pylist(), given, strict=True)]

    def _plans(self, table: Table, memory: dict[str, Any]) -> tuple[list[tuple[Version, PatternPlan]], int]:
        """The versions that can be matched, and how many of those that count cannot. The table says why."""
        found, bad, versions = [], 0, []
        for version in table.versions:
            plan = self._plan(version, memory)
            versions.append(version if isinstance(plan, PatternPlan) else replace(version, error=plan))
            if isinstance(plan, PatternPlan):
                found.append((version, plan))
            else:
                bad += version.is_open
        table.versions = versions
        return found, bad

    def _plan(self, version: Version, memory: dict[str, Any]) -> PatternPlan | str:
        """A plan, or what is wrong with the text."""
        key = f"{version.pattern}\0{version.text}"
        if key not in memory:
            if len(memory) >= PLANS_MAX:
                memory.clear()
            try:
                memory[key] = compile_stored(version.pattern, version.text, self.matching.rows, self.limits)
            except PatternProblem as problem:
                LOG.warning("match_patterns: pattern %r is set aside: %s", version.pattern, problem)
                memory[key] = str(problem)
        found: PatternPlan | str = memory[key]
        return found

    def _with_table(self, states: pa.StructArray, place: int, table: Table) -> pa.StructArray:
        fields = fields_of(states)
        documents: list[dict[str, Any] | None] = [None] * len(states)
        documents[place] = table.as_document()
        fields["table"] = pa.array(documents, TABLE_TYPE)
        return pa.StructArray.from_arrays(list(fields.values()), fields=list(self.state))

    # ---- the rows --------------------------------------------------------------------------------------------------

    def _events(self, touched: Touched, is_change: Flags) -> Touched:
        """The events alone, with what is held, as the matching operator knows them."""
        chosen = touched.rows.filter(pa.array(~is_change))
        columns = dict(zip(chosen.column_names, map(whole, chosen.columns), strict=True))
        columns |= fields_of(columns[EVENT])
        schema = self.matching.rows
        keys = fields_of(touched.keys)
        held = fields_of(touched.held)
        count = len(touched.keys)
        none = {each.name: pa.nulls(count, each.type) for each in self.matching.state}
        given = {**none, "rows": held["rows"], "seen_us": held["seen_us"]}
        return replace(
            touched,
            keys=pa.StructArray.from_arrays(
                [keys[each.name] for each in self.matching.keys], fields=list(self.matching.keys)
            ),
            held=pa.StructArray.from_arrays(list(given.values()), fields=list(self.matching.state)),
            rows=pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema),
            codes=touched.codes[~is_change],
        )

    def _held_begins(self, touched: Touched, plans: list[tuple[Version, PatternPlan]]) -> Ints:
        """By version and key: from where on the key's rows may begin a match."""
        numbers = np.array([version.number for version, _ in plans], np.int64)
        found = np.zeros((len(plans), len(touched.keys)), np.int64)
        codes, given = flatten(touched.held.field("begins"))
        if len(codes) and len(plans):
            fields = fields_of(given)
            versions = np.asarray(fields["version"], np.int64)
            order = np.argsort(numbers)
            places = order[np.minimum(np.searchsorted(numbers[order], versions), len(numbers) - 1)]
            known = numbers[places] == versions
            found[places[known], codes[known]] = np.asarray(fields["begin"], np.int64)[known]
        return found

    def _matched(self, rows: SortedRows, plans: list[tuple[Version, PatternPlan]]) -> Step:
        trims = np.full(rows.count, np.iinfo(np.int64).max)
        wake_us = np.where(rows.pending > 0, earliest(*rows.unsettled(), rows.count) + 1, NEVER)
        results, begins, dropped, failed = [self.matching.matches.empty_table()], list[tuple[int, Ints]](), 0, 0
        first_us = int(rows.times_us.min()) if len(rows.times_us) else BEGINNING
        for number, (version, plan) in enumerate(plans):
            begin_us = BEGINNING if version.begin_us <= first_us else version.begin_us
            try:
                outcome = Outcome.of(self.matching, plan, number, rows.during(begin_us, version.end_us))
            except (HeadraceError, pa.ArrowException) as problem:
                LOG.warning("match_patterns: pattern %r failed: %s", version.pattern, problem)
                failed += 1
                continue
            results.append(outcome.output)
            dropped += outcome.dropped
            if version.end_us > rows.now_us:
                begins.append((version.number, outcome.begins))
                trims = np.minimum(trims, np.maximum(outcome.begins - plan.look_back, 0))
                wake_us = np.minimum(wake_us, outcome.wake_us)
        trims, kept, codes = self.matching.kept_rows(rows, trims)
        fields = [
            kept,
            _begins(begins, trims),
            pa.array(np.full(rows.count, rows.now_us)),
            pa.nulls(rows.count, TABLE_TYPE),
        ]
        return Step(
            output=pa.concat_tables(results),
            states=pa.StructArray.from_arrays(fields, fields=list(self.state)),
            keep=np.bincount(codes, minlength=rows.count) > 0,
            wake_us=wake_us,
            counts={"dropped_partials": dropped, "failed_patterns": failed},
        )


def _begins(begins: list[tuple[int, Ints]], trims: Ints) -> pa.ListArray:
    """By key: the versions that may begin a match only after some of its rows."""
    count = len(trims)
    versions = np.array([version for version, _ in begins], np.int64)
    moved = np.stack([np.maximum(each - trims, 0) for _, each in begins]) if begins else np.zeros((0, count), np.int64)
    codes, which = np.nonzero(moved.T)
    values = [pa.array(versions[which]), pa.array(moved[which, codes])]
    return as_lists(codes, pa.StructArray.from_arrays(values, fields=list(BEGIN_TYPE)), count)
