"""Where the next match may begin: AFTER MATCH SKIP, over what the matcher found.

``chosen_one`` is SQL's: matches are taken from the first row on, and each says from where the next may begin. A first
row that is not decided yet stops the key there. ``chosen_all`` is that of the fluent patterns, as in Flink's CEP:
matches are taken in the order in which they were completed, and each ends unfinished and later ones that began before
a certain row.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.spark.patterns.automaton import Automaton
from headrace.spark.patterns.runs import FoundMatches
from headrace.spark.state.bucket import Flags, Ints

__all__ = ["Skip", "chosen_all", "chosen_one", "ended"]


@dataclass(frozen=True, slots=True)
class Skip:
    """``none`` is for fluent patterns alone: nothing is skipped."""

    to: Literal["past_last", "next", "first", "last", "none"] = "past_last"
    variables: frozenset[str] = frozenset()


def chosen_one(
    found: FoundMatches, skip: Skip, automaton: Automaton, codes: Ints, begins: Ints, ends: Ints
) -> tuple[Ints, Ints]:
    """Which matches count, and by key the row from which the next may begin."""
    if skip.to == "next":
        return _chosen_next(found, codes, begins, ends)
    count = len(found.starts)
    rows = np.r_[found.starts, found.undecided]
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= begins[codes[rows[order]]]]
    rows, is_open = rows[order], order >= count
    # Nothing after an undecided row is decided either, so from there on it is the next key's turn.
    after = np.r_[_targets(found, skip, automaton), ends[codes[found.undecided]]][order]
    following, path, at = np.searchsorted(rows, np.maximum(after, rows + 1)).tolist(), [], 0
    while at < len(following):
        path.append(at)
        at = following[at]
    taken = np.array(path, np.int64)
    next_rows, stops = ends.copy(), rows[taken[is_open[taken]]]
    next_rows[codes[stops]] = stops
    return order[taken[~is_open[taken]]], next_rows


def _chosen_next(found: FoundMatches, codes: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Where a match skips nothing but its first row, all count that begin before the first row that is undecided."""
    open_rows = found.undecided[found.undecided >= begins[codes[found.undecided]]]
    next_rows = ends.copy()
    np.minimum.at(next_rows, codes[open_rows], open_rows)
    of_key = codes[found.starts]
    return np.flatnonzero((found.starts >= begins[of_key]) & (found.starts < next_rows[of_key])), next_rows


def _targets(found: FoundMatches, skip: Skip, automaton: Automaton) -> Ints:
    """By match: the first row at which another may begin. A variable without a row counts as the next row."""
    if skip.to == "next":
        return found.starts + 1
    if skip.to == "none":
        return found.starts
    if skip.to == "past_last":
        return np.maximum(found.ends, found.starts)
    which, rows, states = found.paths.flattened(found.nodes)
    wanted = np.array([each.variable in skip.variables for each in automaton.states], np.bool_)
    member = np.flatnonzero(wanted[states]) if len(states) else np.zeros(0, np.int64)
    targets = found.starts.copy()
    if skip.to == "first":
        member = member[::-1]
    targets[which[member]] = rows[member]
    return targets


def chosen_all(
    found: FoundMatches, skip: Skip, automaton: Automaton, codes: Ints, begins: Ints, ends: Ints
) -> tuple[Ints, Ints]:
    """Which matches count, and by key the first row that may still begin one."""
    open_rows = ends.copy()
    np.minimum.at(open_rows, codes[found.undecided], found.undecided)
    if skip.to == "none":
        return np.arange(len(found.starts)), open_rows
    targets = _targets(found, skip, automaton).tolist()
    order = _by_completion(found)
    dead, used, chosen = begins.tolist(), set(), []
    starts, at_code = found.starts.tolist(), codes[found.starts].tolist()
    for index in order.tolist():
        start, code = starts[index], at_code[index]
        if start < dead[code] or (skip.to == "next" and start in used):
            continue
        chosen.append(index)
        if skip.to == "next":
            used.add(start)
        else:
            dead[code] = max(dead[code], targets[index])
    return np.sort(np.array(chosen, np.int64)), np.maximum(open_rows, np.minimum(dead, ends))


def _by_completion(found: FoundMatches) -> Ints:
    """Of rows with equal times, the first in the order of rows completes its matches first."""
    return np.lexsort((np.arange(len(found.starts)), found.starts, found.completed_rows, found.completed_us))


def ended(found: FoundMatches, chosen: Ints, skip: Skip, automaton: Automaton, codes: Ints, over_us: Ints) -> Flags:
    """Which of the runs that timed out were ended by a chosen match before their time was over."""
    if skip.to == "none":
        return np.zeros(len(over_us), np.bool_)
    order = _by_completion(found)
    order = order[np.isin(order, chosen)]
    # By first row for ``next`` and by key otherwise: when matches came, and up to which row they ended others.
    places = found.starts if skip.to == "next" else codes[found.starts]
    targets = _targets(found, skip, automaton)
    history: dict[int, tuple[list[int], list[int]]] = {}
    for place, completed, target in zip(
        places[order].tolist(), found.completed_us[order].tolist(), targets[order].tolist(), strict=True
    ):
        times, reach = history.setdefault(place, ([], []))
        times.append(completed)
        reach.append(max(target, reach[-1] if reach else target))
    asked = found.timed_out if skip.to == "next" else codes[found.timed_out]
    result = np.zeros(len(over_us), np.bool_)
    for index, (place, start, over) in enumerate(
        zip(asked.tolist(), found.timed_out.tolist(), over_us.tolist(), strict=True)
    ):
        times, reach = history.get(place, ([], []))
        before = bisect_right(times, over)
        result[index] = before > 0 and reach[before - 1] > start
    return result
