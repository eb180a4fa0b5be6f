"""Cases by idea from Trino's public tests of row patterns: four prices, and what the standard makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import UsageError
from tests.unit.spark.patterns.world import Matching

PRICES = [90, 80, 70, 70]
FALL = "DEFINE B AS B.amount < PREV(B.amount)"
MEASURES = "MEASURES MATCH_NUMBER() AS number, RUNNING LAST(amount) AS last, CLASSIFIER() AS label"
Row = tuple[Any, ...]


def found(rest: str, prices: list[int] = PRICES, measures: str = MEASURES, *names: str) -> list[Row]:
    """By row of the result the second and the measures; ``rest`` follows the measures."""
    names = names or ("number", "last", "label")
    text = f"PARTITION BY user ORDER BY at {measures} {rest}"
    rows = Matching(text).bounded([("u", second + 1, price) for second, price in enumerate(prices)])
    shown = [
        (int(row["at"].timestamp()) if "at" in row else None, *(row[name] for name in names))
        for row in rows
        if row["user"] is not None
    ]
    return sorted(shown, key=lambda row: (row[0] or 0, row[1] or 0))


ALL = "ALL ROWS PER MATCH"
PAST, NEXT = "AFTER MATCH SKIP PAST LAST ROW", "AFTER MATCH SKIP TO NEXT ROW"


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        (f"{ALL} {PAST} PATTERN (A B+) {FALL}", [(1, 1, 90, "A"), (2, 1, 80, "B"), (3, 1, 70, "B")]),
        (
            f"{ALL} {NEXT} PATTERN (A B+) {FALL}",
            [(1, 1, 90, "A"), (2, 1, 80, "B"), (2, 2, 80, "A"), (3, 1, 70, "B"), (3, 2, 70, "B")],
        ),
        (
            f"{ALL} AFTER MATCH SKIP TO LAST B PATTERN (A B) {FALL}",
            [(1, 1, 90, "A"), (2, 1, 80, "B"), (2, 2, 80, "A"), (3, 2, 70, "B")],
        ),
        (
            f"{ALL} WITH UNMATCHED ROWS {PAST} PATTERN (A B+) {FALL}",
            [(1, 1, 90, "A"), (2, 1, 80, "B"), (3, 1, 70, "B"), (4, None, None, None)],
        ),
        (
            f"{ALL} SHOW EMPTY MATCHES {PAST} PATTERN (B*) {FALL}",
            [(1, 1, None, None), (2, 2, 80, "B"), (3, 2, 70, "B"), (4, 3, None, None)],
        ),
        (f"{ALL} OMIT EMPTY MATCHES {PAST} PATTERN (B*) {FALL}", [(2, 2, 80, "B"), (3, 2, 70, "B")]),
        (f"{ALL} {PAST} PATTERN (A B*?) {FALL}", [(1, 1, 90, "A"), (2, 2, 80, "A"), (3, 3, 70, "A"), (4, 4, 70, "A")]),
        (f"{ALL} {PAST} PATTERN (A {{- B -}} B) {FALL}", [(1, 1, 90, "A"), (3, 1, 70, "B")]),
        (f"{ALL} {PAST} PATTERN (^ A B) {FALL}", [(1, 1, 90, "A"), (2, 1, 80, "B")]),
        (f"{ALL} {PAST} PATTERN (A $)", [(4, 1, 70, "A")]),
        (f"{ALL} {PAST} PATTERN (C | B) {FALL}, C AS amount = 80", [(2, 1, 80, "C"), (3, 2, 70, "B")]),
        (f"{ALL} {PAST} PATTERN (B | C) {FALL}, C AS amount = 80", [(2, 1, 80, "B"), (3, 2, 70, "B")]),
        (
            f"{ALL} {PAST} PATTERN (PERMUTE(B, C)) DEFINE B AS amount = 90, C AS amount = 80",
            [(1, 1, 90, "B"), (2, 1, 80, "C")],
        ),
        (f"{ALL} {PAST} PATTERN (A{{2}})", [(1, 1, 90, "A"), (2, 1, 80, "A"), (3, 2, 70, "A"), (4, 2, 70, "A")]),
        (f"{ALL} {PAST} PATTERN (A{{,3}}?) ", [(n, n, None, None) for n in (1, 2, 3, 4)]),
    ],
)
def test_all_rows_are_those_that_the_standard_says(rest: str, wanted: list[Row]) -> None:
    assert found(rest) == wanted


@pytest.mark.parametrize(
    ("measure", "wanted"),
    [
        ("FIRST(amount)", 90),
        ("LAST(amount)", 70),
        ("FIRST(amount, 1)", 80),
        ("LAST(amount, 2)", 90),
        ("LAST(amount, 3)", None),
        ("PREV(FIRST(B.amount))", 90),
        ("NEXT(LAST(B.amount))", 70),
        ("NEXT(LAST(B.amount), 2)", None),
        ("COUNT(B.amount)", 2),
        ("SUM(U.amount)", 240),
        ("MIN(B.amount)", 70),
        ("CLASSIFIER()", "B"),
    ],
)
def test_a_measure_looks_at_the_rows_of_the_match_and_around_it(measure: str, wanted: object) -> None:
    rest = f"ONE ROW PER MATCH {PAST} PATTERN (A B+) SUBSET U = (A, B) {FALL}"
    assert found(rest, PRICES, f"MEASURES {measure} AS asked", "asked") == [(None, wanted)]


def test_one_row_comes_for_an_empty_match_too() -> None:
    counted = "MEASURES COUNT(*) AS n, MATCH_NUMBER() AS number"
    rows = found(f"ONE ROW PER MATCH {PAST} PATTERN (B*) {FALL}", PRICES, counted, "number", "n")
    assert rows == [(None, 1, 0), (None, 2, 2), (None, 3, 0)]


def test_a_variable_to_skip_to_is_one_of_the_pattern() -> None:
    with pytest.raises(UsageError, match="SKIP"):
        found(f"{ALL} AFTER MATCH SKIP TO X PATTERN (A B+) {FALL}")
