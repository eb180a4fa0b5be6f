"""Which of many intervals contain a value: a segment tree in arrays, asked for many values at once.

The ends of all intervals, sorted, cut the line into places: each end, and each gap between two ends. An interval is a
run of places. It is stored at the few nodes of a binary tree over the places that make up that run, at most two per
level. A value is at one place, and the intervals that contain it are those of the nodes from that place up to the root:
as many lookups as the tree has levels, however many intervals there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.spark.state.bucket import Ints

__all__ = ["IntervalTree"]

Values = npt.NDArray[Any]
"""Integers or floating point numbers."""


class IntervalTree:
    """Closed intervals, each with a number. It does not change."""

    def __init__(self, lows: Values, highs: Values, numbers: Ints) -> None:
        self.ends = np.unique(np.r_[lows, highs])
        self.leaves = 1 << int(2 * len(self.ends)).bit_length()
        nodes, owners = self._placed(lows, highs)
        order = np.argsort(nodes, kind="stable")
        self.members: Ints = numbers[owners[order]]
        """The numbers of the intervals at each node, one node after the other."""
        self.starts = np.zeros(2 * self.leaves + 1, np.int64)
        np.cumsum(np.bincount(nodes, minlength=2 * self.leaves), out=self.starts[1:])

    def _placed(self, lows: Values, highs: Values) -> tuple[Ints, Ints]:
        """The nodes of each interval, from the leaves up."""
        first = 2 * np.searchsorted(self.ends, lows) + 1 + self.leaves
        after = 2 * np.searchsorted(self.ends, highs) + 2 + self.leaves
        owners = np.arange(len(lows))
        nodes, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        while len(owners):
            odd = (first & 1) == 1
            nodes.append(first[odd])
            found.append(owners[odd])
            first = first + odd
            odd = (after & 1) == 1
            after = after - odd
            nodes.append(after[odd])
            found.append(owners[odd])
            first, after = first >> 1, after >> 1
            goes_on = first < after
            first, after, owners = first[goes_on], after[goes_on], owners[goes_on]
        return np.concatenate(nodes), np.concatenate(found)

    def stab(self, values: Values) -> tuple[Ints, Ints, Ints]:
        """(which value, start, count): stretches of ``members`` with the intervals that contain it."""
        place = np.searchsorted(self.ends, values)
        at_end = self.ends[np.minimum(place, len(self.ends) - 1)] == values
        node = 2 * place + (at_end & (place < len(self.ends))) + self.leaves
        asked, starts, counts = [], [], []
        while node[0] if len(node) else 0:
            start = self.starts[node]
            count = self.starts[node + 1] - start
            some = np.flatnonzero(count)
            asked.append(some)
            starts.append(start[some])
            counts.append(count[some])
            node = node >> 1
        nothing = [np.zeros(0, np.int64)]
        return np.concatenate(asked or nothing), np.concatenate(starts or nothing), np.concatenate(counts or nothing)
