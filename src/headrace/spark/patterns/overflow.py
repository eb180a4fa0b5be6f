"""When a key has more partial matches than it may have: which first rows are given up, and what they have found.

A first row is *open* at a later row if a run that it began has passed that row and goes on. When a first row opens and
``limit`` others are open already, ``drop_oldest`` gives up the one that opened first, from that row on, and
``drop_newest`` the new one. Rows are taken in their order, and a row ends and completes runs before it opens one. So
who is given up depends on the rows and not on how micro-batches cut them:

- Whether ``drop_oldest`` gives up a row depends on later rows alone, so it can be computed again from any earlier row.
- Whether ``drop_newest`` does depends on rows before it, which may be gone when it is computed again. So it is kept
  with the row (``GIVEN_UP``).

A match that was complete before its first row was given up stays.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from headrace.spark.patterns.runs import FoundMatches
from headrace.spark.state.bucket import Flags, Ints

__all__ = ["Overflow", "limited"]

Overflow = Literal["fail", "drop_oldest", "drop_newest"]


@dataclass(frozen=True, slots=True)
class Limited:
    """What is left of what was found."""

    found: FoundMatches
    dropped: Ints
    """First rows that were given up."""
    at: Ints
    """The rows at which they were."""


def limited(found: FoundMatches, codes: Ints, times_us: Ints, limit: int, overflow: Overflow, one: bool) -> Limited:
    nothing = np.zeros(0, np.int64)
    if overflow == "fail" or len(found.opened) <= limit:
        return Limited(found, nothing, nothing)
    opens = found.reach > found.opened
    starts, reach = found.opened[opens], found.reach[opens]
    counts = np.bincount(codes[starts]) if len(starts) else nothing
    crowded = np.flatnonzero(counts[codes[starts]] > limit)
    given_up: dict[int, int] = {}
    for code in np.unique(codes[starts[crowded]]).tolist():
        mine = crowded[codes[starts[crowded]] == code]
        given_up.update(_swept(starts[mine].tolist(), reach[mine].tolist(), limit, overflow))
    if not given_up:
        return Limited(found, nothing, nothing)
    dropped = np.array(sorted(given_up), np.int64)
    at = np.array([given_up[each] for each in dropped.tolist()], np.int64)
    return Limited(_without(found, dropped, at, times_us, one or overflow == "drop_newest"), dropped, at)


def _swept(starts: list[int], reach: list[int], limit: int, overflow: Overflow) -> dict[int, int]:
    """By first row that is given up: the row at which it is."""
    given_up: dict[int, int] = {}
    open_rows: dict[int, None] = {}  # in the order in which they opened
    closing: list[tuple[int, int]] = []
    for start, end in zip(starts, reach, strict=True):
        while closing and closing[0][0] <= start:
            open_rows.pop(heapq.heappop(closing)[1], None)
        if len(open_rows) >= limit:
            oldest = start if overflow == "drop_newest" else next(iter(open_rows))
            given_up[oldest] = start
            if overflow == "drop_newest":
                continue
            del open_rows[oldest]
        open_rows[start] = None
        heapq.heappush(closing, (end, start))
    return given_up


def _without(found: FoundMatches, dropped: Ints, at: Ints, times_us: Ints, whole: bool) -> FoundMatches:
    """``whole``: a first row that is given up has no match, as its matches are decided while it is open."""

    def given_up(rows: Ints) -> tuple[Flags, Ints]:
        places = np.minimum(np.searchsorted(dropped, rows), len(dropped) - 1)
        return dropped[places] == rows, at[places]

    gone, place = given_up(found.starts)
    if not whole:
        by_time = found.completed_rows < 0
        gone &= np.where(by_time, found.completed_us >= times_us[place], found.completed_rows > place)
    kept = ~gone
    still = ~given_up(found.undecided)[0]
    in_time = ~given_up(found.timed_out)[0]
    return replace(
        found,
        starts=found.starts[kept],
        ends=found.ends[kept],
        nodes=found.nodes[kept],
        completed_us=found.completed_us[kept],
        completed_rows=found.completed_rows[kept],
        undecided=found.undecided[still],
        timed_out=found.timed_out[in_time],
        timed_out_nodes=found.timed_out_nodes[in_time],
    )
