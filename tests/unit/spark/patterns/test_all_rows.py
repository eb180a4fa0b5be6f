"""ALL ROWS PER MATCH against plain loops: running and final measures, empty matches, rows without one, however cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.patterns.clauses import parse_clauses
from tests.unit.spark.patterns.plain import Path, matches
from tests.unit.spark.patterns.world import Matching, place_of
from tests.unit.spark.state_world import Event, arrivals

WITHIN_S = 40
FAR_S = 10_000
"""When the last row of each key comes, so that NEXT is known of all others. No variable takes it."""
Rows = Sequence[Event]
Measure = Callable[[Rows, Path, Path], Any]
"""Given the rows of the key, those of the match up to the current one, and all of the match."""


def amounts(rows: Rows, path: Path, *names: str) -> list[int]:
    found = [rows[at][2] for at, name in path if not names or name in names]
    return [each for each in found if each is not None]


def near(rows: Rows, at: int) -> int | None:
    return rows[at][2] if 0 <= at < len(rows) else None


def last_of(rows: Rows, path: Path, *names: str) -> int | None:
    taken = [rows[at][2] for at, name in path if name in names]
    return taken[-1] if taken else None


MEASURES: dict[str, Measure] = {
    "SUM(amount)": lambda rows, so_far, whole: sum(amounts(rows, so_far)) if amounts(rows, so_far) else None,
    "FINAL SUM(B.amount)": lambda rows, so_far, whole: (
        sum(amounts(rows, whole, "B")) if amounts(rows, whole, "B") else None
    ),
    "COUNT(A.*)": lambda rows, so_far, whole: sum(name == "A" for _, name in so_far),
    "FINAL COUNT(*)": lambda rows, so_far, whole: len(whole),
    "LAST(B.amount)": lambda rows, so_far, whole: last_of(rows, so_far, "B"),
    "FINAL LAST(U.amount)": lambda rows, so_far, whole: last_of(rows, whole, "A", "C"),
    "MAX(B.amount)": lambda rows, so_far, whole: max(amounts(rows, so_far, "B"), default=None),
    "ARRAY_AGG(amount)": lambda rows, so_far, whole: amounts(rows, so_far) or None,
    "COUNT(DISTINCT amount)": lambda rows, so_far, whole: len(set(amounts(rows, so_far))),
    "CLASSIFIER()": lambda rows, so_far, whole: so_far[-1][1] if so_far else None,
    "PREV(FIRST(amount), 2)": lambda rows, so_far, whole: near(rows, so_far[0][0] - 2) if so_far else None,
    "PREV(amount)": lambda rows, so_far, whole: near(rows, so_far[-1][0] - 1) if so_far else None,
    "NEXT(amount)": lambda rows, so_far, whole: near(rows, so_far[-1][0] + 1) if so_far else None,
}
SKIPS: dict[str, Callable[[int, int, Path], int]] = {
    "PAST LAST ROW": lambda start, end, path: end,
    "TO NEXT ROW": lambda start, end, path: start + 1,
    "TO FIRST U": lambda start, end, path: min((at for at, name in path if name in "AC"), default=start),
    "TO LAST U": lambda start, end, path: max((at for at, name in path if name in "AC"), default=start),
    "TO B": lambda start, end, path: max((at for at, name in path if name == "B"), default=start),
}
PATTERNS = [
    "A B* C{0,2}",
    "A? {- B -} C",
    "(A | B C)*",
    "^ A | B+ C?",
    "B*? C A?",
    "A{2} | C A* | B C",
    "PERMUTE(A, B) C?",
]
OPTIONS = ["SHOW EMPTY MATCHES", "OMIT EMPTY MATCHES", "WITH UNMATCHED ROWS"]


def text_of(pattern: str, skip: str, options: str, measures: Sequence[str]) -> str:
    said = ", ".join(f"{each} AS m{number}" for number, each in enumerate(measures))
    return (
        f"PARTITION BY user ORDER BY at MEASURES MATCH_NUMBER() AS n, {said} ALL ROWS PER MATCH {options} "
        f"AFTER MATCH SKIP {skip} PATTERN ({pattern}) WITHIN '{WITHIN_S} seconds' SUBSET U = (A, C) "
        f"DEFINE A AS amount > 0, B AS amount < 3, C AS amount > PREV(amount)"
    )


def takes(name: str, rows: Rows, at: int) -> bool:
    amount, before = near(rows, at), near(rows, at - 1)
    if amount is None:
        return False
    return {"A": amount > 0, "B": amount < 3, "C": before is not None and amount > before}[name]


def by_hand(pattern: str, skip: str, options: str, measures: Sequence[str], rows: Rows) -> Counter[Any]:
    def test(name: str, at: int, path: Path) -> bool:
        first = path[0][0] if path else at
        return rows[at][1] - rows[first][1] < WITHIN_S and takes(name, rows, at)

    node = parse_clauses(text_of(pattern, skip, options, measures)).pattern
    found: Counter[Any] = Counter()
    used: set[int] = set()
    for number, (start, end, path) in enumerate(matches(node, len(rows), test, SKIPS[skip]), 1):
        used |= {start, *range(start, end)}
        for index, (at, name) in enumerate(path):
            values = [MEASURES[each](rows, path[: index + 1], path) for each in measures]
            if not ("{-" in pattern and name == "B"):
                found[str((*rows[at], number, *values))] += 1
        if not path and not options.startswith("OMIT"):
            found[str((*rows[start], number, *[MEASURES[each](rows, (), ()) for each in measures]))] += 1
    if options.startswith("WITH"):
        for at in set(range(len(rows))) - used:
            found[str((*rows[at], None, *[None] * len(measures)))] += 1
    return Counter({each: count for each, count in found.items() if f", {FAR_S}, " not in each})


def found_by(text: str, count: int, batches: list[list[Event]], restarts: set[int]) -> Counter[Any]:
    rows = Matching(text).streamed(batches, restarts)
    return Counter(
        str((row["user"], int(row["at"].timestamp()), row["amount"], row["n"], *[row[f"m{n}"] for n in range(count)]))
        for row in rows
        if row["at"].timestamp() < FAR_S
    )


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=12, deadline=None)
@given(
    skip=st.sampled_from(sorted(SKIPS)),
    options=st.sampled_from(OPTIONS),
    measures=st.lists(st.sampled_from(sorted(MEASURES)), min_size=1, max_size=4, unique=True),
    batches=arrivals(),
    restarts=st.sets(st.integers(0, 8)),
)
def test_all_rows_are_those_of_plain_loops(
    pattern: str, skip: str, options: str, measures: list[str], batches: list[list[Event]], restarts: set[int]
) -> None:
    wanted: Counter[Any] = Counter()
    batches = [*batches, [(user, FAR_S, None) for user in ("a", "b", None)]]
    together = [event for batch in batches for event in batch]
    for user in {event[0] for event in together}:
        rows = sorted((each for each in together if each[0] == user), key=lambda each: (each[1], place_of(each)))
        wanted += by_hand(pattern, skip, options, measures, rows)
    assert found_by(text_of(pattern, skip, options, measures), len(measures), batches, restarts) == wanted
