"""Conditions on matched rows: what SQL says, for every type and with nulls."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.spark.patterns.clauses import Piece
from headrace.spark.patterns.conditions import (
    FUNCTIONS,
    ArithmeticOverflow,
    Call,
    Constant,
    Expression,
    Lookup,
    RowColumn,
    holds,
    registers_of,
)
from headrace.spark.patterns.expressions import Columns, Reader
from headrace.spark.patterns.syntax import PatternSyntaxError
from tests.unit.spark.patterns.world import Matching

PAIRS = "PARTITION BY user ORDER BY at MEASURES A.amount AS a, B.amount AS b PATTERN (A B) DEFINE B AS {}"
ROWS = [("u", 1, 1), ("u", 2, 2), ("u", 3, 3), ("u", 4, 1), ("u", 60, None), ("u", 61, 5)]


def pairs(condition: str) -> list[tuple[Any, Any]]:
    text = PAIRS.format(condition).replace("PATTERN", "AFTER MATCH SKIP TO NEXT ROW PATTERN")
    return [(row["a"], row["b"]) for row in Matching(text).bounded(ROWS)]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("CASE WHEN A.amount = 1 THEN true WHEN A.amount = 2 THEN false END", [(1, 2), (1, None)]),
        ("CASE A.amount WHEN 1 THEN true WHEN 3 THEN B.amount = 1 ELSE false END", [(1, 2), (3, 1), (1, None)]),
        ("CASE A.amount WHEN 1 THEN false ELSE true END", [(2, 3), (3, 1), (None, 5)]),
        ("COALESCE(IF(A.amount > 2, NULL, A.amount), 9) = 9", [(3, 1), (None, 5)]),
        ("B.at - A.at < INTERVAL 5 SECONDS AND A.amount <> B.amount", [(1, 2), (2, 3), (3, 1)]),
        ("B.at > A.at + INTERVAL '5' SECOND", [(1, None)]),
        ("A.amount NOT IN (2, 3)", [(1, 2), (1, None)]),
        ("A.amount IN (2, NULL)", [(2, 3)]),
        ("A.amount NOT IN (2, NULL)", []),
        ("LAST(amount, 1) = 3", [(3, 1)]),
        ("FIRST(amount, 1) > FIRST(amount)", [(1, 2), (2, 3)]),
        ("LAST(A.amount, 1) IS NULL AND FIRST(B.amount, 1) IS NULL AND B.amount = 1", [(3, 1)]),
        ("PREV(LAST(amount, 1)) = 2", [(3, 1)]),
        ("RUNNING SUM(amount) = 4 AND RUNNING LAST(A.amount) = 3", [(3, 1)]),
    ],
)
def test_a_condition_means_what_sql_says(condition: str, wanted: list[tuple[Any, Any]]) -> None:
    assert pairs(condition) == wanted


@pytest.mark.parametrize("text", ["COUNT(X.*) > 1", "SUM(*) > 1"])
def test_a_star_is_refused_where_it_means_nothing(text: str) -> None:
    with pytest.raises(PatternSyntaxError, match="is for COUNT"):
        Matching(PAIRS.format(text))


def test_a_classifier_of_an_unknown_variable_is_refused() -> None:
    with pytest.raises(PatternSyntaxError, match="X is not in the pattern"):
        Matching(PAIRS.format("B.amount > 1").replace("B.amount AS b", "CLASSIFIER(X) AS b"))


@pytest.mark.parametrize("function", ["add", "sub", "mul", "greatest", "least"])
@pytest.mark.parametrize("other", [RowColumn("price"), Constant(2, pa.int64()), Constant(2.5, pa.float64())])
def test_decimals_of_all_digits_can_be_computed_with(function: str, other: Expression) -> None:
    """decimal(38, 18) is what Spark makes of Python's decimals."""
    prices = pa.array([Decimal("1.5"), None, Decimal("3")], pa.decimal128(38, 18))
    lookup = Lookup(
        columns={"price": prices},
        rows=np.arange(3),
        first=np.zeros(3, np.int64),
        end=np.full(3, 3),
        registers={},
    )
    computed = Call(function, (RowColumn("price"), other))
    assert holds(Call("gt", (computed, Constant(-2, pa.int64()))), lookup).tolist()[0::2] == [True, True]


@pytest.mark.parametrize(
    "condition",
    ["A.amount + B.amount > 0", "A.amount * B.amount > 0", "-A.amount - B.amount - 2 < 0", "ABS(A.amount - 1) > 0"],
)
def test_an_integer_that_is_too_large_ends_the_query_and_does_not_wrap(condition: str) -> None:
    large = -(2**63) if "ABS" in condition else 2**63 - 1
    text = PAIRS.format(condition)
    with pytest.raises(ArithmeticOverflow, match="does not fit into int64: compute with doubles"):
        Matching(text).bounded([("u", 1, large), ("u", 2, large)])


def test_doubles_compute_what_integers_cannot_hold() -> None:
    text = PAIRS.format("A.amount / 1 + B.amount / 1 > 0")
    assert len(Matching(text).bounded([("u", 1, 2**63 - 1), ("u", 2, 2**63 - 1)])) == 1


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("B.amount < LAST(B.amount, 1)", []),
        ("COALESCE(LAST(B.amount, 1) < B.amount, true)", [4]),
        ("COALESCE(LAST(B.amount, 2) + 1 < B.amount, true)", [4]),
        ("COALESCE(FIRST(B.amount, 1) + 1 < B.amount, true)", [2]),
        ("COALESCE(FIRST(B.amount, 2) <= B.amount, B.amount < 9)", [4]),
        ("COALESCE(LAST(U.amount, 2) < 6, true)", [5]),
    ],
)
def test_a_condition_looks_at_rows_further_from_the_ends_of_a_variable(condition: str, wanted: list[int]) -> None:
    text = (
        "PARTITION BY user ORDER BY at MEASURES COUNT(*) AS n PATTERN (A B+) SUBSET U = (A, B) DEFINE A AS amount = 0, "
    )
    rows = [("u", second, amount) for second, amount in enumerate([0, 2, 5, 7, 6, 9])]
    found = Matching(f"{text} B AS {condition}").bounded(rows)
    assert [row["n"] for row in found] == wanted


def test_a_condition_looks_only_so_far_back() -> None:
    with pytest.raises(PatternSyntaxError, match="at most 100 rows"):
        Matching(PAIRS.format("LAST(A.amount, 101) = 1"))


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        ("eq", [True, False, False, None]),
        ("neq", [False, True, True, None]),
        ("lt", [False, False, True, None]),
        ("lte", [True, False, True, None]),
        ("gt", [False, True, False, None]),
        ("gte", [True, True, False, None]),
    ],
)
def test_nan_is_greater_than_all_numbers_and_equal_to_itself_as_in_spark(
    function: str, wanted: list[bool | None]
) -> None:
    nan = math.nan
    left, right = pa.array([nan, nan, 1.0, None]), pa.array([nan, 1.0, nan, nan])
    assert FUNCTIONS[function](left, right).to_pylist() == wanted
    assert FUNCTIONS["in"](left, pa.scalar(1.0), pa.scalar(nan)).to_pylist() == [True, True, True, None]
    assert FUNCTIONS["between"](left, pa.scalar(0.0), right).to_pylist() == [True, False, True, None]


def test_the_least_number_leaves_nan_out() -> None:
    text = PAIRS.format("MIN(CASE WHEN A.amount = 0 THEN CAST('NaN' AS DOUBLE) ELSE A.amount END) = 2")
    rows = [("u", 1, 0), ("u", 2, 2), ("u", 3, 9)]
    assert len(Matching(text.replace("(A B)", "(A{2} B)")).bounded(rows)) == 1


BIG = 2**60


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("B.amount > MAX(A.amount)", [(BIG, BIG + 1)]),
        ("B.amount < MIN(A.amount)", [(BIG + 1, BIG)]),
        ("B.amount = MAX(amount)", [(BIG, BIG + 1)]),
        ("(A.amount + B.amount) % 2 = 1 AND A.amount % 10 = 7", [(BIG + 1, BIG)]),
        ("A.amount % (B.amount - A.amount - 1) IS NULL", [(BIG, BIG + 1)]),
    ],
)
def test_integers_are_exact_beyond_the_digits_of_a_double(condition: str, wanted: list[tuple[int, int]]) -> None:
    text = PAIRS.format(condition).replace("PATTERN", "AFTER MATCH SKIP TO NEXT ROW PATTERN")
    rows = Matching(text).bounded([("u", 1, BIG), ("u", 2, BIG + 1), ("u", 3, BIG)])
    assert [(row["a"], row["b"]) for row in rows] == wanted


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("B.amount > AVG(A.amount) / 2 AND A.amount < B.amount", [(BIG, BIG + 1)]),
        ("B.amount >= SUM(A.amount)", [(BIG, BIG + 1), (BIG + 1, BIG)]),
        ("B.amount + A.amount / 2 > 1.5e18 AND SQRT(A.amount) > 2", [(BIG, BIG + 1), (BIG + 1, BIG)]),
        ("B.amount * 0.5 > 0 AND B.amount > A.amount + 0.5", [(BIG, BIG + 1)]),
        ("FLOOR(A.amount) < B.amount", [(BIG, BIG + 1)]),
        (
            "COALESCE(A.amount, 0.5) = CASE WHEN A.amount > 0 THEN A.amount ELSE AVG(A.amount) END",
            [(BIG, BIG + 1), (BIG + 1, BIG)],
        ),
    ],
)
def test_integers_beyond_the_digits_of_a_double_can_be_computed_with_doubles(
    condition: str, wanted: list[tuple[int, int]]
) -> None:
    text = PAIRS.format(condition).replace("PATTERN", "AFTER MATCH SKIP TO NEXT ROW PATTERN")
    rows = Matching(text).bounded([("u", 1, BIG), ("u", 2, BIG + 1), ("u", 3, BIG)])
    assert [(row["a"], row["b"]) for row in rows] == wanted


def computed(text: str, **columns: pa.Array) -> list[Any]:
    """A condition of B over the columns, all of them of the row of A as well."""
    reader = Reader(text, {"A": frozenset({"A"}), "B": frozenset({"B"})}, Columns(coming=frozenset(columns)))
    _, tree = reader.split("B", Piece(text, 0))
    assert tree is not None
    rows = np.arange(len(next(iter(columns.values()))))
    registers = dict.fromkeys(registers_of(tree), rows)
    lookup = Lookup(columns=columns, rows=rows, first=0 * rows, end=0 * rows + len(rows), registers=registers)
    return tree.compute(lookup).to_pylist()  # type: ignore[no-any-return]


PRICES = pa.array([Decimal("1.10"), Decimal("3.00"), None], pa.decimal128(10, 2))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A.price * 1.1 = 1.21", [True, False, None]),
        ("A.price * 3 = 3.30", [True, False, None]),
        ("A.price * 1.1 - 0.01 = 1.2", [True, False, None]),
        ("A.price / 2 < 1.0", [True, False, None]),
        ("A.price * 1e0 > 2.5", [False, True, None]),
        ("A.whole * 0.1 = 0.3", [True, False, None]),
        ("A.whole > 99999999999999999999", [False, False, None]),
        ("A.huge > 1.5", [True, False, None]),
        ("A.single * 2.5 > 1.2", [True, False, None]),
    ],
)
def test_numbers_with_a_point_are_decimals_as_in_spark(text: str, wanted: list[bool | None]) -> None:
    found = computed(
        text,
        price=PRICES,
        whole=pa.array([3, 4, None]),
        huge=pa.array([Decimal(2), Decimal(1), None], pa.decimal128(38, 0)),
        single=pa.array([0.5, 0.25, None], pa.float32()),
    )
    assert found == wanted


def test_there_is_no_logarithm_of_zero_and_nan_is_the_greatest_as_in_spark() -> None:
    values = pa.array([1.0, 0.0, -1.0, math.nan, None])
    assert computed("LN(A.x) < 5", x=values) == [True, None, None, False, None]
    assert computed("GREATEST(A.x, 2) > 3", x=values) == [False, False, False, True, False]
    assert computed("LEAST(A.x, 2) = 2", x=values) == [False, False, False, True, True]


def test_the_least_of_nothing_but_nan_is_nan() -> None:
    text = PAIRS.format("MIN(CAST('NaN' AS DOUBLE) + A.amount) = CAST('NaN' AS DOUBLE) + B.amount")
    assert len(Matching(text).bounded([("u", 1, 1), ("u", 2, 2)])) == 1
