"""What the matcher works on: rows, runs over them, the rows that runs took, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.spark.patterns.conditions import Memory, Register
from headrace.spark.state.bucket import Flags, Ints

__all__ = ["FoundMatches", "Paths", "Rows", "Runs", "TooManyRuns"]


class TooManyRuns(HeadraceError):
    """A partition has more unfinished runs than allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows sorted by partition and time."""

    masks: Mapping[str, Flags]
    """By variable: which rows satisfy what its condition says of a row alone. A variable without one takes any row."""
    columns: Mapping[str, pa.Array]
    times_us: Ints
    first: Ints
    """By row: the first row of its partition that is there."""
    end: Ints
    """By row: after the last row of its partition that can be matched."""
    known_end: Ints
    """By row: after the last row of its partition that can be looked at."""
    whole_from: Ints
    """By row: where its partition begins, or -1 if earlier rows of it are gone."""
    now_us: int
    """No row before this time can come any more."""
    closed: bool
    """No row at all can come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMatches:
    """Matches, sorted by their first row, and what is open."""

    starts: Ints
    ends: Ints
    """After the last row of the match; equal to the start for an empty match."""
    nodes: Ints
    completed_us: Ints
    """When each match was complete: the time of the row that decided it, or the last moment before its deadline."""
    completed_rows: Ints
    """The row that decided it, or -1 if the deadline did."""
    undecided: Ints
    """First rows that later rows may still make a match of, sorted."""
    timed_out: Ints
    timed_out_nodes: Ints
    """First rows and last nodes of runs whose time was over before they were accepted."""
    opened: Ints
    """All first rows that were asked for."""
    reach: Ints
    """By first row: the last row that a run of it came to, and END for one that is undecided. Only if that was asked
    for."""
    paths: Paths
    stopped: list[tuple[int, int, int, str]]
    """Where runs ended, if that was asked for: first row, row, state, and why."""


@dataclass(slots=True)
class Paths:
    """Which rows runs took, as a tree: a node is a row, the state that took it, and the node before."""

    parents: list[Ints] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    states: list[Ints] = field(default_factory=list)
    count: int = 0

    def add(self, parents: Ints, rows: Ints, states: Ints) -> Ints:
        self.parents.append(parents)
        self.rows.append(rows)
        self.states.append(states)
        self.count += len(rows)
        return np.arange(self.count - len(rows), self.count)

    def flattened(self, nodes: Ints) -> tuple[Ints, Ints, Ints]:
        """All rows that led to the nodes: the index of the node, the row and its state, in the order of rows."""
        parents, rows, states = (
            np.concatenate(each) if each else np.zeros(0, np.int64) for each in (self.parents, self.rows, self.states)
        )
        indexes, found = np.flatnonzero(nodes >= 0), nodes[nodes >= 0]
        collected: list[tuple[Ints, Ints]] = []
        while len(found):
            collected.append((indexes, found))
            found = parents[found]
            indexes, found = indexes[found >= 0], found[found >= 0]
        if not collected:
            nothing = np.zeros(0, np.int64)
            return nothing, nothing, nothing
        which = np.concatenate([each[0] for each in collected])
        nodes_taken = np.concatenate([each[1] for each in collected])
        order = np.lexsort((nodes_taken, which))
        return which[order], rows[nodes_taken[order]], states[nodes_taken[order]]


@dataclass(slots=True)
class Runs:
    """Grouped by first row, by preference within it."""

    starts: Ints
    states: Ints
    places: Ints
    nodes: Ints
    waiting: Flags
    registers: dict[Register, Memory]

    def pick(self, chosen: Ints | Flags) -> Runs:
        return Runs(
            self.starts[chosen],
            self.states[chosen],
            self.places[chosen],
            self.nodes[chosen],
            self.waiting[chosen],
            {each: values[chosen] for each, values in self.registers.items()},
        )

    def joined(self, other: Runs) -> Runs:
        """These runs and then the others."""
        return Runs(
            np.r_[self.starts, other.starts],
            np.r_[self.states, other.states],
            np.r_[self.places, other.places],
            np.r_[self.nodes, other.nodes],
            np.r_[self.waiting, other.waiting],
            {each: np.r_[values, other.registers[each]] for each, values in self.registers.items()},
        )
