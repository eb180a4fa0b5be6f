"""What is said of a match: values of every type, up to each row and over the whole."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import UsageError
from headrace.spark.patterns.measures import Atom, AtomKind, MatchedRows, compute, type_of
from tests.unit.spark.patterns.world import Matching

ALL = "PARTITION BY user ORDER BY at {} ALL ROWS PER MATCH {} PATTERN (A+) DEFINE A AS amount > 1"
DAY = datetime.date(2026, 1, 31)


def matched(values: pa.Array) -> MatchedRows:
    """One match that took all rows, those at even places as A."""
    count = len(values)
    return MatchedRows(
        matches=np.zeros(count, np.int64),
        rows=np.arange(count),
        variables=np.arange(count) % 2,
        names=("A", "B"),
        count=1,
        columns={"value": values},
        first=np.zeros(count, np.int64),
        end=np.full(count, count),
        numbers=np.ones(1, np.int64),
    )


def said(kind: AtomKind, values: pa.Array) -> tuple[list[Any], Any]:
    """Of the rows of A: the measure at each row, and that of the whole match."""
    atom = Atom(kind, frozenset({"A"}), "value", running=True)
    final = compute(atom, matched(values), False)
    running = compute(atom, matched(values), True)
    assert running.type == final.type
    return running.to_pylist(), final.to_pylist()[0]


@pytest.mark.parametrize(
    ("values", "least", "greatest"),
    [
        (pa.array(["b", "z", None, "z", "a", "z", "c"]), ["b", "b", "b", "b", "a", "a", "a"], ["b"] * 6 + ["c"]),
        (pa.array([DAY, None, None, None, DAY, None, DAY.replace(day=1)]), [DAY] * 6 + [DAY.replace(day=1)], [DAY] * 7),
        (pa.array([None, 9, None, 9, 2, 9, 3]), [None] * 4 + [2, 2, 2], [None] * 4 + [2, 2, 3]),
        (
            pa.array([Decimal("1.5"), None, Decimal("0.5")]),
            [Decimal("1.5")] * 2 + [Decimal("0.5")],
            [Decimal("1.5")] * 3,
        ),
    ],
)
def test_the_least_and_the_greatest_value_so_far_are_there_for_every_type(
    values: pa.Array, least: list[Any], greatest: list[Any]
) -> None:
    assert said("min", values) == (least, least[-1])
    assert said("max", values) == (greatest, greatest[-1])


def test_an_average_of_decimals_has_four_more_digits() -> None:
    values = pa.array([Decimal("1.00"), None, Decimal("1.01"), None, Decimal("1.01")], pa.decimal128(10, 2))
    running, final = said("avg", values)
    assert final == Decimal("1.006667")
    assert running == [Decimal("1.000000")] * 2 + [Decimal("1.005000")] * 2 + [Decimal("1.006667")]
    assert said("sum", values) == ([Decimal("1.00")] * 2 + [Decimal("2.01")] * 2 + [Decimal("3.02")], Decimal("3.02"))


def test_lists_and_distinct_values_are_those_up_to_the_row() -> None:
    values = pa.array([None, 7, 3, 7, 3, 7, 4])
    assert said("array_agg", values) == ([None, None, [3], [3], [3, 3], [3, 3], [3, 3, 4]], [3, 3, 4])
    assert said("count_distinct", values) == ([0, 0, 1, 1, 1, 1, 2], 2)


def test_a_sum_of_small_integers_does_not_overflow_on_its_way() -> None:
    values = pa.array([100, None, 100, None], pa.int8())
    assert said("sum", values) == ([100, 100, 200, 200], 200)


def test_all_rows_of_a_match_come_without_measures() -> None:
    for options in ("", "WITH UNMATCHED ROWS"):
        rows = Matching(ALL.format("", options)).bounded([("u", 1, 2), ("u", 2, 0), ("u", 3, 2)])
        assert sorted(row["amount"] for row in rows) == ([0, 2, 2] if options else [2, 2])


def test_a_mode_is_said_of_lists_too() -> None:
    text = ALL.format("MEASURES ARRAY_AGG(amount) AS so_far, FINAL ARRAY_AGG(amount) AS all_of_them", "")
    rows = Matching(text).bounded([("u", 1, 2), ("u", 2, 3)])
    assert [(row["so_far"], row["all_of_them"]) for row in rows] == [([2], [2, 3]), ([2, 3], [2, 3])]


def test_nan_is_the_greatest_number_as_in_spark() -> None:
    running, final = said("max", pa.array([1.0, 0.0, math.nan, 0.0, 2.0]))
    assert str(running) == "[1.0, 1.0, nan, nan, nan]"
    assert math.isnan(final)
    assert said("min", pa.array([math.nan, 0.0, 2.0, 0.0, math.nan]))[1] == 2.0


@pytest.mark.parametrize("kind", ["sum", "avg"])
def test_a_measure_that_a_type_does_not_have_is_refused_in_words(kind: AtomKind) -> None:
    with pytest.raises(
        UsageError, match=rf"{kind.upper()} cannot be computed over values of type string .*take numbers"
    ):
        type_of(Atom(kind, frozenset({"A"}), "value"), {"value": pa.string()})
    assert pa.types.is_string(type_of(Atom("max", frozenset({"A"}), "value"), {"value": pa.string()}))
