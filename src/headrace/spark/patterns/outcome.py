"""What one pattern finds in the rows: the matches that count, the rows about them, and what stays open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.spark.patterns.measures import MatchedRows, compute
from headrace.spark.patterns.overflow import limited
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.runs import FoundMatches, Rows
from headrace.spark.patterns.skipping import chosen_all, chosen_one, ended
from headrace.spark.patterns.sorted_rows import SortedRows
from headrace.spark.state.bucket import NEVER, Flags, Ints
from headrace.spark.state.operator import as_lists, earliest

if TYPE_CHECKING:
    from headrace.spark.patterns.operator import MatchPatterns

__all__ = ["EVENTS", "MATCH_FIELDS", "TIME", "Outcome"]

TIME = pa.timestamp("us", "UTC")
EVENTS = "events"
MATCH_FIELDS = (
    pa.field("pattern", pa.string()),
    pa.field("timed_out", pa.bool_()),
    pa.field("match_start", TIME),
    pa.field("match_end", TIME),
    pa.field("_start_place", pa.int64()),
    pa.field("_end_place", pa.int64()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
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
    def of(cls, operator: MatchPatterns, plan: PatternPlan, number: int, rows: SortedRows) -> Outcome:
        begins = np.minimum(np.maximum(rows.held("begins", number), rows.before), rows.settled)
        testable = rows.settled if rows.closed else np.maximum(rows.settled - plan.look_ahead, 0)
        may_begin = (rows.place >= begins[rows.codes]) & (rows.place < testable[rows.codes]) & ~rows.given_up[number]
        masks = rows.masks_of(plan)
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
    def _nothing(cls, operator: MatchPatterns, number: int, rows: SortedRows, testable: Ints) -> Outcome:
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
    def _timed_out(plan: PatternPlan, found: FoundMatches, rows: SortedRows, chosen: Ints) -> Ints:
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
    def _wake(plan: PatternPlan, found: FoundMatches, rows: SortedRows) -> Ints:
        """When time alone decides something."""
        if plan.within_us is None:
            return np.full(rows.count, NEVER)
        deadlines = rows.times_us[found.undecided] + plan.within_us
        to_come = deadlines > rows.now_us  # a row that waits for the one after it has no deadline
        return earliest(rows.codes[found.undecided[to_come]], deadlines[to_come], rows.count)


def _matched(
    plan: PatternPlan, found: FoundMatches, chosen: Ints, rows: SortedRows, seen: Rows, numbers: Ints
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
    rows: SortedRows
    found: FoundMatches
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
            pa.repeat(pa.scalar(self.plan.name, pa.string()), len(starts)),
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
