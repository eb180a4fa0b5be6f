"""Patterns on a stream: however it was cut and restarted, the matches are those of plain loops over all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.patterns.clauses import parse_clauses
from tests.unit.spark.patterns.plain import Path, matches
from tests.unit.spark.patterns.world import Matching, place_of
from tests.unit.spark.state_world import KEYS, LATENESS_S, Event, Stream, arrivals

Partition = Sequence[Event]
Condition = Callable[[Partition, int, Path], bool]


def amount(rows: Partition, at: int) -> float:
    """Null is no number: nothing compares with it."""
    found = rows[at][2] if 0 <= at < len(rows) else None
    return float("nan") if found is None else found


def average(rows: Partition, path: Path, name: str, at: int | None = None) -> float:
    taken = [amount(rows, row) for row, of in path if of == name] + ([] if at is None else [amount(rows, at)])
    taken = [each for each in taken if each == each]
    return sum(taken) / len(taken) if taken else float("nan")


def last(path: Path, name: str) -> int:
    return max((row for row, of in path if of == name), default=-1)


@dataclass(frozen=True)
class Case:
    text: str
    conditions: dict[str, Condition]
    within_s: int | None = None
    skip: Callable[[int, int, Path], int] | None = None

    def __str__(self) -> str:
        return " ".join(self.text.split())


HEAD = "PARTITION BY user ORDER BY at MEASURES FIRST(at) AS first_at, LAST(at) AS last_at, COUNT(*) AS n "
CASES = [
    Case(
        HEAD
        + "PATTERN (S D+ U+) WITHIN '40 seconds' DEFINE D AS amount < PREV(amount), U AS U.amount > PREV(U.amount)",
        {
            "D": lambda rows, at, path: amount(rows, at) < amount(rows, at - 1),
            "U": lambda rows, at, path: amount(rows, at) > amount(rows, at - 1),
        },
        within_s=40,
    ),
    Case(
        HEAD + "AFTER MATCH SKIP TO NEXT ROW PATTERN (A+ B) WITHIN '30 seconds' "
        "DEFINE A AS A.amount > 0, B AS B.amount < AVG(A.amount)",
        {
            "A": lambda rows, at, path: amount(rows, at) > 0,
            "B": lambda rows, at, path: amount(rows, at) < average(rows, path, "A"),
        },
        within_s=30,
        skip=lambda start, end, path: start + 1,
    ),
    Case(
        HEAD + "AFTER MATCH SKIP TO LAST B PATTERN (A B+? (C | A{2})) WITHIN '1 minute' "
        "DEFINE A AS amount >= 0, B AS amount <= 2, C AS amount > LAST(B.amount) AND amount > 1",
        {
            "A": lambda rows, at, path: amount(rows, at) >= 0,
            "B": lambda rows, at, path: amount(rows, at) <= 2,
            "C": lambda rows, at, path: amount(rows, at) > max(1, amount(rows, last(path, "B"))),
        },
        within_s=60,
        skip=lambda start, end, path: last(path, "B"),
    ),
    Case(
        HEAD + "PATTERN (A B*) WITHIN '25 seconds' DEFINE A AS amount < NEXT(amount), B AS AVG(B.amount) < 2",
        {
            "A": lambda rows, at, path: amount(rows, at) < amount(rows, at + 1),
            "B": lambda rows, at, path: average(rows, path, "B", at) < 2,
        },
        within_s=25,
    ),
    Case(
        HEAD + "PATTERN (^ A | PERMUTE(B, C)) WITHIN '20 seconds' "
        "DEFINE A AS amount IS NULL, B AS amount > 1, C AS amount < 0",
        {
            "A": lambda rows, at, path: rows[at][2] is None,
            "B": lambda rows, at, path: amount(rows, at) > 1,
            "C": lambda rows, at, path: amount(rows, at) < 0,
        },
        within_s=20,
    ),
]


def by_hand(case: Case, events: Sequence[Event]) -> Counter[tuple[Any, ...]]:
    """(user, second of the first row, second of the last row, rows)"""
    found: Counter[tuple[Any, ...]] = Counter()
    node = parse_clauses(case.text).pattern
    for user in {event[0] for event in events}:
        rows = sorted((each for each in events if each[0] == user), key=lambda each: (each[1], place_of(each)))

        def test(name: str, at: int, path: Path, rows: Partition = rows) -> bool:
            first = path[0][0] if path else at
            in_time = case.within_s is None or rows[at][1] - rows[first][1] < case.within_s
            return in_time and (name not in case.conditions or case.conditions[name](rows, at, path))

        for start, end, path in matches(node, len(rows), test, case.skip):
            found[(user, rows[start][1], rows[end - 1][1], len(path))] += 1
    return found


def seconds(value: Any) -> int:
    return int(value.timestamp())


def found_by(case: Case, batches: list[list[Event]], restarts: set[int]) -> Counter[tuple[Any, ...]]:
    rows = Matching(case.text).streamed(batches, restarts)
    return Counter((row["user"], seconds(row["first_at"]), seconds(row["last_at"]), row["n"]) for row in rows)


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=25, deadline=None)
@given(batches=arrivals(), restarts=st.sets(st.integers(0, 8)))
def test_the_matches_are_those_of_plain_loops(case: Case, batches: list[list[Event]], restarts: set[int]) -> None:
    events = [event for batch in batches for event in batch]
    assert found_by(case, batches, restarts) == by_hand(case, events)


FALL = "PARTITION BY user ORDER BY at MEASURES PREV(A.amount{}) AS m PATTERN (A D D) WITHIN '5 seconds' DEFINE {}"


@pytest.mark.parametrize(
    ("measured", "define", "kept"),
    [
        (", 0", "D AS D.amount < PREV(D.amount)", 0),
        (", 0", "D AS D.amount < PREV(D.amount, 2)", 1),
        (", 0", "A AS A.amount > PREV(A.amount)", 1),
        (", 2", "D AS D.amount < PREV(A.amount)", 2),
    ],
)
def test_of_a_key_without_a_partial_match_only_rows_are_kept_that_a_first_row_looks_back_at(
    measured: str, define: str, kept: int
) -> None:
    matching = Matching(FALL.format(measured, define))
    stream = Stream(matching.operator, matching.operator.rows, KEYS)
    rows: list[Event] = [("a", second, second) for second in range(1, 9)]
    for _ in stream.take(map(matching.prepared, [rows, [("b", 100, 1)], [("b", 101, 1)]]), set()):
        pass
    held = stream.bucket.gather(stream.bucket.find(stream.bucket.layout.python_keys(pa.array([{"user": "a"}], KEYS))))
    assert len((held[0].as_py() or {"rows": []})["rows"]) == kept


def test_what_is_known_of_a_key_moves_with_the_rows_that_are_kept() -> None:
    text = (
        "PARTITION BY user ORDER BY at MEASURES MATCH_NUMBER() AS n ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN ({})"
    )
    rows: list[Event] = [("a", 1, 1), ("a", 2, 1), ("a", 50, 1), ("a", 90, 9), ("b", 200, 9), ("b", 300, 9)]
    batches = [[row] for row in rows]
    for pattern, wanted in [("A A", [1, 1, None, None]), ("^ A", [1, None, None, None])]:
        given = Matching(text.format(pattern) + " WITHIN '30 seconds' DEFINE A AS amount = 1").streamed(batches, set())
        found = sorted((seconds(row["at"]), row["n"]) for row in given if row["user"] == "a")
        assert [number for _, number in found] == wanted


@pytest.mark.parametrize("cuts", [[4], [1, 3], [2, 2], [3, 1], [1, 1, 1, 1]])
def test_wholly_equal_rows_begin_matches_that_can_be_told_apart_however_the_stream_is_cut(cuts: list[int]) -> None:
    """The first of two equal rows fails at the second, so it is decided earlier."""
    text = """PARTITION BY user ORDER BY at MEASURES COUNT(*) AS n AFTER MATCH SKIP TO NEXT ROW
        PATTERN (A {} B) WITHIN '1 hour' DEFINE A AS A.amount = 1, B AS B.amount = 2"""
    rows: list[Event] = [("a", 1, 1), ("a", 1, 1), ("a", 30, 2), ("a", 90, 0)]
    pieces, start = [], 0
    for size in cuts:
        pieces.append(rows[start : start + size])
        start += size
    apart = Matching(text.format("X*?")).streamed(pieces, {1})
    assert len({(row["match_start"], row["_start_place"]) for row in apart}) == len(apart) == 2
    (strict,) = Matching(text.format("")).streamed(pieces, {1})
    assert (
        strict["_start_place"] == max(apart, key=lambda row: row["_start_place"] != place_of(rows[0]))["_start_place"]
    )


def test_a_row_at_the_very_watermark_waits_for_another_of_that_time() -> None:
    """Both come with the watermark at their time, one batch after the other; the second is the first in order."""
    second, first = sorted([("a", 10, 1), ("a", 10, 2)], key=place_of, reverse=True)
    text = (
        "PARTITION BY user ORDER BY at MEASURES MATCH_NUMBER() AS n, A.amount AS amount PATTERN (A) WITHIN '5 seconds'"
    )
    batches = [[("b", 10 + LATENESS_S, 0)], [second], [first], []]
    found = {row["amount"]: row["n"] for row in Matching(text).streamed(batches, set()) if row["user"] == "a"}
    assert found == {first[2]: 1, second[2]: 2}


def test_a_row_of_an_earlier_match_is_not_given_as_one_without_a_match() -> None:
    """The match is given while its last row may still begin another; that it does not is known later."""
    text = (
        "PARTITION BY user ORDER BY at ALL ROWS PER MATCH WITH UNMATCHED ROWS AFTER MATCH SKIP TO NEXT ROW "
        "PATTERN (A B) WITHIN '40 seconds' DEFINE B AS B.amount > A.amount"
    )
    batches = [[("a", 1, 1), ("a", 2, 2)], [("b", 60, 0)], [("b", 200, 0)], []]
    found = [row["match_start"] for row in Matching(text).streamed(batches, set()) if row["user"] == "a"]
    assert len(found) == 2
    assert None not in found
