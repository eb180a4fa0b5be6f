"""Patterns made by functions against plain loops: all combinations, in the order of their completion, however cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.patterns.fluent import Pattern, pattern
from tests.unit.spark.patterns.world import Matching, place_of
from tests.unit.spark.state_world import Event, arrivals

WITHIN_S = 30
SETS = ((1,), (2,), (1, 2), (3,), (2, 3), (1, 2, 3))
"""Amounts that a part takes."""
Taken = tuple[tuple[int, int], ...]
"""Rows and the numbers of their parts."""

amounts = st.sampled_from([1, 2, 3, 1, 2, 3, None])
events = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 60), amounts), max_size=14)


def condition(options: Sequence[int]) -> str:
    return f"amount IN ({', '.join(map(str, options))})"


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    wanted = pattern("p0").where(condition(draw(st.sampled_from(SETS))))
    looks_ahead = draw(st.integers(0, 5)) == 0
    if looks_ahead:
        wanted = wanted.where("amount <= NEXT(amount)")
    if draw(st.booleans()):
        wanted = looped(draw, wanted)
    count = draw(st.integers(1, 2))
    for number in range(1, count + 1):
        forbids = draw(st.integers(0, 3)) == 0
        if forbids:
            wanted = wanted.not_followed_by(f"n{number}").where(condition(draw(st.sampled_from(SETS[:4]))))
        elif draw(st.integers(0, 4)) == 0:
            wanted = wanted.not_next(f"n{number}").where(condition(draw(st.sampled_from(SETS[:4]))))
        how = draw(st.sampled_from(["followed_by", "followed_by_any", *([] if forbids else ["next"])]))
        wanted = getattr(wanted, how)(f"p{number}").where(condition(draw(st.sampled_from(SETS))))
        if draw(st.booleans()):
            wanted = looped(draw, wanted)
        if not forbids and draw(st.integers(0, 3)) == 0:
            wanted = wanted.optional()
    if draw(st.integers(0, 3)) == 0:
        wanted = wanted.not_followed_by("z").where(condition(draw(st.sampled_from(SETS[:4]))))
    return wanted.within(f"{WITHIN_S} seconds")


def looped(draw: st.DrawFn, wanted: Pattern) -> Pattern:
    wanted = draw(st.sampled_from([wanted.one_or_more(), wanted.times(1, 2), wanted.times(2)]))
    wanted = draw(st.sampled_from([wanted, wanted.consecutive(), wanted.allow_combinations()]))
    return wanted.until(condition(draw(st.sampled_from(SETS[:4])))) if draw(st.integers(0, 2)) == 0 else wanted


class Plain:
    """All matches of a pattern in the rows of one key."""

    def __init__(self, wanted: Pattern, rows: Sequence[Event]) -> None:
        self.parts, self.rows = wanted.parts, rows

    def fits(self, text: str, at: int) -> bool:
        amount = self.rows[at][2]
        if text.startswith("amount IN"):
            return amount is not None and str(amount) in text
        after = self.rows[at + 1][2] if at + 1 < len(self.rows) else None
        return amount is not None and after is not None and amount <= after

    def takes(self, number: int, at: int) -> bool:
        return all(self.fits(str(each), at) for each in self.parts[number].conditions)

    def in_time(self, taken: Taken, at: int) -> bool:
        return at < len(self.rows) and self.rows[at][1] < self.rows[taken[0][0]][1] + WITHIN_S

    def next_rows(self, number: int, how: str, taken: Taken, forbidden: Sequence[str]) -> Iterator[int]:
        at = taken[-1][0] + 1
        while self.in_time(taken, at) and not any(self.fits(each, at) for each in forbidden):
            if self.takes(number, at):
                yield at
                if how == "followed":
                    return
            if how == "next":
                return
            at += 1

    def matches(self) -> Iterator[tuple[int, int, Taken]]:
        """When each was complete, the row that completed it, and its rows."""
        for start in range(len(self.rows)):
            if self.takes(0, start):
                yield from self.more(0, 1, ((start, 0),))

    def more(self, number: int, rounds: int, taken: Taken) -> Iterator[tuple[int, int, Taken]]:
        """After so many rows of a part: what follows it, and further rows of it."""
        part = self.parts[number]
        if rounds >= part.least:
            yield from self.after(number + 1, taken, taken[-1][0])
        if part.most is None or rounds < part.most:
            until = [] if part.until is None else [str(part.until)]
            for at in self.next_rows(number, part.inner, taken, until):
                yield from self.more(number, rounds + 1, (*taken, (at, number)))

    def after(self, number: int, taken: Taken, decided: int) -> Iterator[tuple[int, int, Taken]]:
        if number == len(self.parts):
            yield self.rows[decided][1] * 1_000_000, decided, taken
            return
        part, forbidden = self.parts[number], list[str]()
        if part.absent and part.contiguity == "next":
            at = taken[-1][0] + 1
            if self.in_time(taken, at) and not self.takes(number, at):
                yield from self.after(number + 1, taken, at)
            return
        if part.absent and number + 1 == len(self.parts):
            later = range(taken[-1][0] + 1, len(self.rows))
            if not any(self.in_time(taken, at) and self.takes(number, at) for at in later):
                yield (self.rows[taken[0][0]][1] + WITHIN_S) * 1_000_000 - 1, -1, taken
            return
        if part.absent:
            forbidden, number = [str(each) for each in part.conditions], number + 1
            part = self.parts[number]
        for at in self.next_rows(number, part.contiguity, taken, forbidden):
            yield from self.more(number, 1, (*taken, (at, number)))
        if part.optional:
            yield from self.after(number + 1, taken, decided)


def ordered(wanted: Pattern, rows: Sequence[Event]) -> list[tuple[int, int, Taken]]:
    return sorted(Plain(wanted, rows).matches(), key=lambda each: (each[0], each[1], each[2][0][0]))


def by_hand(wanted: Pattern, rows: Sequence[Event]) -> Counter[tuple[Any, ...]]:
    """Names and times of the rows of each match, after what matches end."""
    found: Counter[tuple[Any, ...]] = Counter()
    dead, used = 0, set[int]()
    for _, _, taken in ordered(wanted, rows):
        start, end = taken[0][0], taken[-1][0] + 1
        if start < dead or start in used:
            continue
        if wanted.after.to == "next":
            used.add(start)
        if wanted.after.to == "past_last":
            dead = max(dead, end)
        found[tuple((wanted.parts[number].name, *rows[at][1:]) for at, number in taken)] += 1
    return found


def unique(wanted: Pattern, rows: Sequence[Event]) -> bool:
    """Whether no two matches with one first row are complete at once, so that it is clear which comes first."""
    places = [(each[0], each[1], each[2][0][0]) for each in ordered(wanted, rows)]
    return len(set(places)) == len(places)


def bags(found: Sequence[dict[str, Any]]) -> dict[str, Counter[tuple[Any, ...]]]:
    result: dict[str, Counter[tuple[Any, ...]]] = {}
    for row in found:
        taken = tuple((each["variable"], int(each["at"].timestamp()), each["amount"]) for each in row["events"])
        result.setdefault(row["user"], Counter())[taken, row["timed_out"]] += 1
    return result


@pytest.mark.parametrize("skip", ["none", "next", "past_last"])
@settings(max_examples=40, deadline=None)
@given(wanted=patterns(), batches=arrivals(events), restarts=st.sets(st.integers(0, 6)))
def test_matches_are_all_combinations_that_no_earlier_match_ended(
    skip: str, wanted: Pattern, batches: list[list[Event]], restarts: set[int]
) -> None:
    wanted = wanted.after_match(skip)
    matching = Matching(wanted, timeouts=True)
    streamed = bags(matching.streamed(batches, restarts))
    together = [event for batch in batches for event in batch]
    assert streamed == bags(matching.bounded(together))
    for user in ("a", "b"):
        rows = sorted((each for each in together if each[0] == user), key=lambda each: (each[1], place_of(each)))
        if skip == "none" or unique(wanted, rows):
            got = Counter({taken: count for (taken, late), count in streamed.get(user, {}).items() if not late})
            assert got == by_hand(wanted, rows)
