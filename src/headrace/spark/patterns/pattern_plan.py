"""One pattern, compiled: its automaton, its conditions, and what follows from them for the rows that are kept."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.spark.patterns.automaton import ACCEPT, Automaton
from headrace.spark.patterns.conditions import Expression, offsets_of
from headrace.spark.patterns.matcher import Matcher
from headrace.spark.patterns.measures import Atom
from headrace.spark.patterns.overflow import Overflow
from headrace.spark.patterns.skipping import Skip
from headrace.spark.state.bucket import Flags

__all__ = ["PatternPlan"]

RUNS_MAX = 1_000_000
"""Runs of a key at one time, where first rows are given up that are too many."""


@dataclass(frozen=True, kw_only=True)
class PatternPlan:
    """One pattern, ready to be sent to workers."""

    name: str
    text: str
    """The pattern as it was written, for descriptions."""
    automaton: Automaton
    bits: Mapping[str, int]
    """By variable: its bit in ``MASK``, which says what Spark found of a row alone."""
    conditions: Mapping[str, Expression]
    skip: Skip
    one: bool
    within_us: int | None
    atoms: tuple[Atom, ...] = ()
    runs_max: int = 10_000
    overflow: Overflow = "fail"
    timeouts: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    """By variable: its name as the user wrote it."""
    tested: Mapping[str, Expression] = field(default_factory=dict)
    """By variable: its condition on a row alone, of patterns that Spark did not know when the query was planned. A
    variable that is neither here nor in ``bits`` has no such condition."""

    def __repr__(self) -> str:
        return f"{self.name}: {self.text}"

    def offsets(self) -> Iterator[tuple[frozenset[str] | None, int]]:
        """Rows that conditions and measures look at: how many after or before rows of which variables."""
        for name, condition in self.conditions.items():
            yield from offsets_of(condition, name)
        yield from ((each.variables, each.offset) for each in self.atoms)

    @functools.cached_property
    def look_ahead(self) -> int:
        """How many rows after a row have to be known before it is tested."""
        return max([0, *(offset for _, offset in self.offsets())])

    @functools.cached_property
    def look_back(self) -> int:
        """How many rows are kept before the first that may begin a match. A variable that comes later in the pattern
        looks back at rows of the match itself."""
        depths = self.automaton.depths
        before = [
            -offset - min((depths.get(each, 0) for each in variables or ()), default=0)
            for variables, offset in self.offsets()
        ]
        return max([0, *before])

    @functools.cached_property
    def first_rows(self) -> tuple[str, ...]:
        """The variables of which one has to take the first row of any match, if a row alone tells; otherwise none."""
        found = []
        for target in self.automaton.start:
            state = None if target.state == ACCEPT else self.automaton.states[target.state]
            if state is None or state.kind != "row" or state.variable not in {*self.bits, *self.tested}:
                return ()
            found.append(state.variable)
        return tuple(found)

    def first(self, masks: Mapping[str, Flags]) -> Flags:
        """Which rows may begin a match, where ``first_rows`` says so."""
        return functools.reduce(np.logical_or, (masks[each] for each in self.first_rows))

    def matcher(self) -> Matcher:
        return Matcher(
            self.automaton,
            self.conditions,
            one=self.one,
            within_us=self.within_us,
            runs_max=self.runs_max if self.overflow == "fail" else RUNS_MAX,
            look_ahead=self.look_ahead,
            reaching=self.overflow != "fail",
        )
