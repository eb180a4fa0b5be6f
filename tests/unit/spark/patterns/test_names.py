"""Names of columns that collide, or are written in another case."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StringType, StructField, StructType

from headrace.errors import UsageError
from headrace.spark.patterns.expressions import Columns
from headrace.spark.patterns.names import hashable, refuse_reserved, refuse_twice, resolved


def test_a_column_is_found_in_any_case_and_exactly_first() -> None:
    assert resolved("USER", ["user", "at"], "to partition by") == "user"
    assert resolved("At", ["at", "At"], "to order by") == "At"
    for name in ("AT", "when"):
        with pytest.raises(UsageError, match=f"no column '{name}' to order by"):
            resolved(name, ["at", "At"], "to order by")


@pytest.mark.parametrize("name", ["_v0", "_A12", "_matches", "_place", "Match_Start"])
def test_a_column_that_would_be_mixed_up_with_ours_is_refused(name: str) -> None:
    refuse_reserved(["user", "_value", "_v"], ["match_start"])
    with pytest.raises(UsageError, match="mixed up"):
        refuse_reserved(["user", name], ["match_start"])


def test_a_measure_called_like_another_column_is_refused() -> None:
    refuse_twice(["user", "price", "match_id"])
    with pytest.raises(UsageError, match="two columns called 'User'"):
        refuse_twice(["user", "User"])


def _struct(kind: DataType) -> StructType:
    return StructType([StructField("inner", kind)])


def test_maps_are_not_hashed_wherever_they_are() -> None:
    counts = MapType(StringType(), IntegerType())
    assert hashable(_struct(ArrayType(IntegerType())))
    assert not any(map(hashable, [counts, ArrayType(counts), _struct(counts), _struct(ArrayType(_struct(counts)))]))


def test_a_column_that_the_rows_have_in_any_case_is_not_sent_a_second_time() -> None:
    columns = Columns(coming=frozenset({"amount", "user.name", "a b"}))
    assert [columns.value(sql) for sql in ("amount", "`amount`")] == ["amount", "amount"]
    others = ("amount + 1", "Amount", "user.name", "`a b`")
    assert [columns.value(sql) for sql in others] == ["_v0", "_v1", "_v2", "_v3"]
    assert list(columns.values) == list(others)
