"""Runs of an automaton over sorted rows: all first rows of all partitions at once, in arrays.

A run is a state that waits for a row, the row it is at, and what it remembers. The runs of one first row stand next to
each other, the preferred one first. A round of the loop tests the row of every run, replaces each run by the targets
after that row, in their order, and so keeps the order of preference without ever sorting. A run that needs a row that
is not there yet stays where it is. The loop ends when all others are gone; it has as many rounds as the longest run
has rows, whatever the number of partitions.

With ``one`` there is one match per first row, the preferred one: an accepted run ends all less preferred runs, and a
more preferred one that is accepted later takes its place. It is decided when no better run is left. Without ``one``
every accepted run is a match.

Two runs that are in the same state at the same row have the same future, if nothing is remembered. The less preferred
one is dropped then, so the number of runs is bounded by the number of states.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headrace.spark.patterns.automaton import ACCEPT, Automaton
from headrace.spark.patterns.conditions import Expression, Lookup, Memory, Register, holds, registers_of
from headrace.spark.patterns.runs import FoundMatches, Paths, Rows, Runs, TooManyRuns
from headrace.spark.state.bucket import Flags, Ints
from headrace.spark.state.operator import END, search

__all__ = ["Matcher"]

STARTS_AT_ONCE = 1 << 16
"""First rows whose runs are advanced together: as many as fit into the processor's caches."""


class Matcher:
    """An automaton with the conditions of its variables, ready for rows."""

    def __init__(
        self,
        automaton: Automaton,
        conditions: Mapping[str, Expression],
        *,
        one: bool,
        within_us: int | None,
        runs_max: int,
        look_ahead: int = 0,
        traced: bool = False,
        reaching: bool = False,
    ) -> None:
        self.automaton = automaton
        self.conditions = conditions
        self.one = one
        self.within_us = within_us
        self.runs_max = runs_max
        self.look_ahead = look_ahead
        """How many rows after a row have to be known before it is tested."""
        self.reaching = reaching
        """Whether to say how far the runs of each first row came."""
        self.traced = traced
        """Whether to say where runs ended, for explanations."""
        self.variables = [each.variable for each in automaton.states]
        self.registers = sorted(
            set().union(*[registers_of(each) for each in conditions.values()], set()),
            key=lambda each: (each.kind, sorted(each.variables or ()), each.column or "", each.skipped),
        )
        self.takes = {
            each: np.array([each.variables is None or name in each.variables for name in self.variables])
            for each in self.registers
        }
        kinds = np.array([each.kind for each in automaton.states])
        self.seeks = np.isin(kinds, ("seek", "seek_any"))
        self.guarded = self.seeks | np.array(
            [bool(each.forbidden or each.until) for each in automaton.states], np.bool_
        )
        """Which states pass over rows, or end at some."""
        self.stays = kinds == "seek_any"
        self.absent_next = kinds == "absent_next"
        self.absent_end = kinds == "absent_end"
        self.consumes = ~(self.absent_next | self.absent_end)
        self.asked = {
            name: [each for each in self.registers if each in registers_of(condition)]
            for name, condition in conditions.items()
        }
        """By variable: the registers that its condition looks at."""
        counts = np.array([len(each) for each in automaton.after], np.int64)
        self.target_counts = counts
        self.target_offsets = np.r_[0, np.cumsum(counts)][:-1].astype(np.int64)
        flat = [target for targets in automaton.after for target in targets]
        self.targets = np.array([each.state for each in flat], np.int64)
        self.targets_at_end = np.array([each.at_end for each in flat], np.bool_)

    def find(self, rows: Rows, starts: Ints) -> FoundMatches:
        """The matches of the given first rows, which are sorted."""
        paths, stopped = Paths(), list[tuple[int, int, int, str]]()
        pieces = [
            _Search(self, rows, starts[at : at + STARTS_AT_ONCE], paths, stopped).run()
            for at in range(0, len(starts), STARTS_AT_ONCE)
        ]
        matches = ("starts", "ends", "nodes", "completed_us", "completed_rows")
        names = (*matches, "undecided", "timed_out", "timed_out_nodes", "opened", "reach")
        nothing = np.zeros(0, np.int64)
        merged = {name: np.concatenate([nothing, *[each[name] for each in pieces]]) for name in names}
        return FoundMatches(paths=paths, stopped=stopped, **merged)


class _Search:
    """One block of first rows."""

    def __init__(
        self, matcher: Matcher, rows: Rows, starts: Ints, paths: Paths, stopped: list[tuple[int, int, int, str]]
    ) -> None:
        self.matcher = matcher
        self.stopped = stopped
        self.rows = rows
        self.first_rows = starts
        self.paths = paths
        self.end = rows.end[starts] if len(starts) else starts
        self.known_end = rows.known_end[starts] if len(starts) else starts
        self.deadline: Ints | None = None
        if matcher.within_us is not None and len(starts):
            self.deadline = rows.times_us[starts] + matcher.within_us
        self.best_end = np.full(len(starts), -1)
        self.best_node = np.full(len(starts), -1)
        self.accepted: list[tuple[Ints, ...]] = []
        self.over: list[tuple[Ints, Ints]] = []
        self.reach: Ints | None = starts.copy() if matcher.reaching else None
        self.over_at = self._deadline_rows() if matcher.reaching else None
        self.parked: list[Ints] = []
        """First rows of runs that were set aside, once for each run."""
        self.parked_count = 0
        self.takers: dict[str, Ints] = {}
        self.valid: dict[str, Flags] = {}
        self.numbers: dict[Register, Memory] = {}

    def run(self) -> dict[str, Ints]:
        runs = self._first()
        while len(runs.starts) and not runs.waiting.all():
            runs = self._advance(runs)
            self._reached(runs)
            self._limit(runs)
            runs = self._without_parked(runs)
        undecided = np.unique(np.concatenate([runs.starts, *self.parked]))
        if self.reach is not None:
            self.reach[undecided] = END
        if self.matcher.one:
            decided = self.best_end >= 0
            decided[undecided] = False
            chosen = np.flatnonzero(decided)
            starts, ends, nodes = self.first_rows[chosen], self.best_end[chosen], self.best_node[chosen]
            completed_us, completed_rows = ends, ends - 1
        else:
            starts, ends, nodes, completed_us, completed_rows = (
                np.concatenate([np.zeros(0, np.int64), *[each[part] for each in self.accepted]]) for part in range(5)
            )
            order = np.lexsort((nodes, ends, starts))
            starts, ends, nodes = self.first_rows[starts[order]], ends[order], nodes[order]
            completed_us, completed_rows = completed_us[order], completed_rows[order]
        late = [np.concatenate([np.zeros(0, np.int64), *[each[part] for each in self.over]]) for part in range(2)]
        # A run that could go on in several ways is one partial match.
        late[1], once = np.unique(late[1], return_index=True)
        late[0] = late[0][once]
        return {
            "starts": starts,
            "ends": ends,
            "nodes": nodes,
            "completed_us": completed_us,
            "completed_rows": completed_rows,
            "undecided": self.first_rows[undecided],
            "timed_out": self.first_rows[late[0]],
            "timed_out_nodes": late[1],
            "opened": self.first_rows,
            "reach": np.zeros(0, np.int64) if self.reach is None else self.reach,
        }

    def _deadline_rows(self) -> Ints | None:
        """By first row: the first row of its partition that comes after its time is over."""
        if self.deadline is None:
            return None
        partitions = self.rows.first
        return search(partitions, self.rows.times_us, partitions[self.first_rows], self.deadline)

    def _reached(self, runs: Runs) -> None:
        if self.reach is not None:
            places = runs.places if self.over_at is None else np.minimum(runs.places, self.over_at[runs.starts])
            np.maximum.at(self.reach, runs.starts, places)

    def _without_parked(self, runs: Runs) -> Runs:
        """Without the runs of first rows that have none but waiting ones: further rounds would only copy them."""
        if not runs.waiting.any():
            return runs
        goes_on = np.zeros(len(self.first_rows), np.bool_)
        goes_on[runs.starts[~runs.waiting]] = True
        stays = goes_on[runs.starts]
        self.parked.append(runs.starts[~stays])
        self.parked_count += len(self.parked[-1])
        return runs.pick(stays)

    def _stop(self, runs: Runs, ended: Flags, why: str) -> None:
        if self.matcher.traced:
            rows = self.first_rows[runs.starts[ended]].tolist()
            places, states = runs.places[ended].tolist(), runs.states[ended].tolist()
            self.stopped += zip(rows, places, states, [why] * len(rows), strict=True)

    def _first(self) -> Runs:
        targets = self.matcher.automaton.start
        count = len(self.first_rows)
        index = np.repeat(np.arange(count), len(targets))
        states = np.tile(np.array([each.state for each in targets], np.int64), count)
        places = self.first_rows[index]
        at_start = np.tile(np.array([each.at_start for each in targets], np.bool_), count)
        at_end = np.tile(np.array([each.at_end for each in targets], np.bool_), count)
        valid = ~at_start | (self.rows.whole_from[places] == places)
        valid &= ~at_end  # a first row is there, so this is not the end
        runs = Runs(
            index[valid],
            states[valid],
            places[valid],
            np.full(int(valid.sum()), -1),
            np.zeros(int(valid.sum()), np.bool_),
            {each: each.empty(int(valid.sum()), self.rows.columns) for each in self.matcher.registers},
        )
        return self._accept(runs)

    def _advance(self, runs: Runs) -> Runs:
        matcher, rows = self.matcher, self.rows
        runs = self._placed(runs)
        self._reached(runs)
        runs, absent = self._settled(runs)
        active = np.flatnonzero(~(runs.waiting | absent))
        now = runs if len(active) == len(absent) else runs.pick(active)
        updated = self._remembered(now)
        ok = self._tested(now, updated) ^ matcher.absent_next[now.states]
        self._stop(now, ~ok & ~matcher.seeks[now.states], "row")
        taken = absent.copy()
        taken[active[ok]] = True
        # What took the row, with its registers after it. An absence takes none.
        eats = np.flatnonzero(ok & matcher.consumes[now.states])
        nodes, registers = runs.nodes.copy(), dict(runs.registers)
        nodes[active[eats]] = self.paths.add(now.nodes[eats], now.places[eats], now.states[eats])
        places = runs.places.copy()
        places[active[eats]] += 1
        for each, values in updated.items():
            if now is runs and len(eats) == np.count_nonzero(ok):
                registers[each] = values  # only runs that took the row go on with them
                continue
            registers[each] = runs.registers[each].copy()
            registers[each][active[eats]] = values[eats]

        chosen = np.flatnonzero(taken)
        counts = matcher.target_counts[runs.states[chosen]]
        parent = np.repeat(chosen, counts)
        came_from = runs.states[parent]
        rank = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
        which = matcher.target_offsets[came_from] + rank
        after = Runs(
            runs.starts[parent],
            matcher.targets[which],
            places[parent],
            nodes[parent],
            np.zeros(len(parent), np.bool_),
            {each: values[parent] for each, values in registers.items()},
        )
        at_end = matcher.targets_at_end[which]
        if at_end.any():
            keep = ~at_end | (rows.closed & (after.places >= self.end[after.starts]))
            after, parent, came_from = after.pick(keep), parent[keep], came_from[keep]
        stays = runs.waiting.copy()
        stays[active] = matcher.stays[now.states] | (matcher.seeks[now.states] & ~ok)
        kept = np.flatnonzero(stays)
        if len(kept):  # after what the same run led to, as the less preferred
            staying = runs.pick(kept)
            staying.places = staying.places + ~staying.waiting
            order = np.argsort(np.r_[parent, kept], kind="stable")
            after, came_from = after.joined(staying).pick(order), np.r_[came_from, staying.states][order]
        return self._distinct(self._accept(after, came_from))

    def _placed(self, runs: Runs) -> Runs:
        """Runs that seek a row go there, and end if a row that is forbidden comes first."""
        guarded = self.matcher.guarded[runs.states] & ~runs.waiting
        if not guarded.any():
            return runs
        places = runs.places.copy()
        alive = np.ones(len(places), np.bool_)
        for number, state in enumerate(self.matcher.automaton.states):
            if not self.matcher.guarded[number]:
                continue
            chosen = np.flatnonzero(guarded & (runs.states == number))
            if not len(chosen):
                continue
            end = self.end[runs.starts[chosen]]
            wanted = places[chosen]
            if self.matcher.seeks[number]:
                wanted = np.minimum(self._next(state.variable, wanted), end)
            place = wanted
            for name in (*state.forbidden, *state.until):
                stop = self._next(name, places[chosen])
                ends = (stop <= wanted) & (stop < end)
                if self.deadline is not None:  # a row after the deadline finds a run whose time was over
                    ends &= np.r_[self.rows.times_us, END][stop] < self.deadline[runs.starts[chosen]]
                alive[chosen] &= ~ends
                place = np.where(ends, np.minimum(stop, place), place)
            places[chosen] = place
        runs.places = places
        self._stop(runs, ~alive, "forbidden")
        return runs.pick(alive) if not alive.all() else runs

    def _next(self, variable: str, places: Ints) -> Ints:
        """The first row from each place on that the variable can take; the number of rows where there is none."""
        mask = self.rows.masks.get(variable)
        if mask is None:
            return places
        if variable not in self.takers:
            self.takers[variable] = np.r_[np.flatnonzero(mask), len(mask)]
        takers = self.takers[variable]
        return takers[np.minimum(np.searchsorted(takers, places), len(takers) - 1)]

    def _settled(self, runs: Runs) -> tuple[Runs, Flags]:
        """Without runs whose time is over, with those marked that wait for rows; and which absences came true."""
        matcher, rows = self.matcher, self.rows
        absences = matcher.absent_end[runs.states]
        lacking = (runs.places >= self.end[runs.starts]) & ~absences
        runs.waiting = lacking & (not rows.closed)
        dead = lacking & rows.closed
        true = np.zeros(len(lacking), np.bool_)
        if self.deadline is None:
            self._stop(runs, dead, "end")
            return (runs.pick(~dead), true[~dead]) if dead.any() else (runs, true)
        deadline = self.deadline[runs.starts]
        over = rows.times_us[np.minimum(runs.places, len(rows.times_us) - 1)] >= deadline
        if lacking.any():
            # A row that is there and waits for the row after it to be tested may still be in time.
            there = runs.places < self.known_end[runs.starts]
            over = np.where(lacking & ~there, deadline <= rows.now_us, over)
        if absences.any():
            over &= ~absences
            over_now, true, runs.waiting = self._absences(runs, absences, deadline)
            dead |= over_now
        if not matcher.one:
            partial = np.flatnonzero(over & (runs.nodes >= 0))
            self.over.append((runs.starts[partial], runs.nodes[partial]))
        self._stop(runs, dead & ~over, "end")
        self._stop(runs, over, "time")
        gone = dead | over
        return (runs.pick(~gone), true[~gone]) if gone.any() else (runs, true)

    def _absences(self, runs: Runs, absences: Flags, deadline: Ints) -> tuple[Flags, Flags, Flags]:
        """Of runs that wait for something not to happen: which failed, which came true, which wait on."""
        failed, true = np.zeros(len(absences), np.bool_), np.zeros(len(absences), np.bool_)
        waiting = runs.waiting.copy()
        times = np.r_[self.rows.times_us, 0]
        for number in np.unique(runs.states[absences]).tolist():
            chosen = np.flatnonzero(absences & (runs.states == number))
            place = self._next(self.matcher.automaton.states[number].variable, runs.places[chosen])
            # What must not come is judged by the row alone, so a row counts before the one after it is known.
            known = place < self.known_end[runs.starts[chosen]]
            came = known & (times[place] < deadline[chosen])
            passed = self.rows.closed | (deadline[chosen] <= self.rows.now_us)
            failed[chosen] = came
            if self.matcher.traced:  # where it failed is the row that came
                runs.places = runs.places.copy()
                runs.places[chosen] = np.where(came, place, runs.places[chosen])
            true[chosen] = ~came & passed
            waiting[chosen] = ~came & ~passed
        return failed, true, waiting

    def _remembered(self, runs: Runs) -> dict[Register, Memory]:
        """The registers as they are when each run takes the row that it is at."""
        found = {}
        for each, values in runs.registers.items():
            takes = self.matcher.takes[each][runs.states]
            if each.kind == "first":
                due = takes & (values < 0)
                if each.skipped:
                    due &= runs.registers[each.nearer] >= 0
                found[each] = np.where(due, runs.places, values)
            elif each.kind == "last":
                found[each] = np.where(takes, runs.registers[each.nearer] if each.skipped else runs.places, values)
            else:
                found[each] = self._aggregated(each, values, takes, runs.places)
        return found

    def _aggregated(self, register: Register, values: Memory, takes: Flags, places: Ints) -> Memory:
        if register.column is None:
            return values + takes
        takes = takes & self._valid(register.column)[places]
        if register.kind == "count":
            return values + takes
        numbers = self._numbers(register)[places]
        if register.kind == "sum":
            return np.where(takes, values + numbers, values)
        better = np.fmin if register.kind == "min" else np.maximum  # NaN is the greatest number, as in Spark
        return np.where(takes, better(values, numbers), values)

    def _valid(self, name: str) -> Flags:
        """Where a column has values."""
        if name not in self.valid:
            self.valid[name] = np.asarray(self.rows.columns[name].is_valid(), np.bool_)
        return self.valid[name]

    def _numbers(self, register: Register) -> Memory:
        """What a register adds up or compares, 0 where there is no value."""
        if register not in self.numbers:
            column = self.rows.columns[str(register.column)]
            kind = pa.from_numpy_dtype(register.empty(0, self.rows.columns).dtype)
            self.numbers[register] = np.asarray(column.cast(kind, safe=False).fill_null(0))
        return self.numbers[register]

    def _tested(self, runs: Runs, remembered: dict[Register, Memory]) -> Flags:
        """Which runs may take the row that they are at."""
        ok = np.ones(len(runs.states), np.bool_)
        for number in np.flatnonzero(np.bincount(runs.states)).tolist():
            name = self.matcher.variables[number]
            mask, condition = self.rows.masks.get(name), self.matcher.conditions.get(name)
            chosen = np.flatnonzero(runs.states == number)
            if mask is not None:
                ok[chosen] = mask[runs.places[chosen]]
                chosen = chosen[ok[chosen]]
            if condition is not None and len(chosen):
                lookup = Lookup(
                    columns=self.rows.columns,
                    rows=runs.places[chosen],
                    first=self.rows.first,
                    end=self.rows.known_end,
                    registers={each: remembered[each][chosen] for each in self.matcher.asked[name]},
                )
                ok[chosen] = holds(condition, lookup)
        return ok

    def _accept(self, runs: Runs, came_from: Ints | None = None) -> Runs:
        """Without runs that have come to the end of the pattern, and, with one match, without those worse than one.

        ``came_from``: by run the state that was left last; None at the first rows, where only empty matches are.
        """
        accepted = runs.states == ACCEPT
        if not accepted.any():
            return runs
        places = np.flatnonzero(accepted)
        if not self.matcher.one:
            places = places[runs.nodes[places] >= 0]
            if came_from is not None and len(places):
                completed = self._completed(runs.starts[places], runs.places[places], came_from[places])
                self.accepted.append((runs.starts[places], runs.places[places], runs.nodes[places], *completed))
            return runs.pick(~accepted)
        starts = runs.starts[places]
        best = places[np.r_[True, starts[1:] != starts[:-1]]]  # runs are in the order of their first rows
        starts = runs.starts[best]
        self.best_end[starts] = runs.places[best]
        self.best_node[starts] = runs.nodes[best]
        cut = np.full(len(self.first_rows), len(accepted))
        cut[starts] = best
        return runs.pick(np.arange(len(accepted)) < cut[runs.starts])

    def _completed(self, starts: Ints, ends: Ints, states: Ints) -> tuple[Ints, Ints]:
        """When matches were complete, and the rows that decided them."""
        last = np.where(self.matcher.absent_next[states], ends, ends - 1)
        decided = last + self.matcher.look_ahead
        known = decided < self.known_end[starts]
        found = np.where(known, np.r_[self.rows.times_us, END][np.where(known, decided, -1)], END)
        if self.deadline is not None:
            absences = self.matcher.absent_end[states]
            found = np.where(absences, np.maximum(self.deadline[starts] - 1, found), found)
            last = np.where(absences, -1, last)
        return np.asarray(found, np.int64), np.asarray(last, np.int64)

    def _distinct(self, runs: Runs) -> Runs:
        """Without runs that have the future of a preferred one."""
        states = len(self.matcher.automaton.states)
        if not self.matcher.one or self.matcher.registers or len(runs.starts) <= len(self.first_rows):
            return runs
        if np.bincount(runs.starts).max() <= states:
            return runs
        places = (runs.starts * states + runs.states) * (len(self.rows.times_us) + 1) + runs.places
        _, first = np.unique(places, return_index=True)
        return runs.pick(np.sort(first))

    def _limit(self, runs: Runs) -> None:
        if len(runs.starts) + self.parked_count <= self.matcher.runs_max:
            return
        partitions = self.rows.first[self.first_rows[np.concatenate([runs.starts, *self.parked])]]
        most = int(np.bincount(partitions).max())
        if most > self.matcher.runs_max:
            raise TooManyRuns(
                f"a partition has {most} partial matches at once and partials_max is {self.matcher.runs_max}: make the "
                f"pattern or WITHIN narrower, raise partials_max, or say with overflow= what is given up"
            )
