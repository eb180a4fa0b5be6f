"""Aggregates from requests, which ``expressions`` has made of the Columns that a user wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import UsageError
from headrace.spark.aggregates.totals import (
    HASH,
    Aggregate,
    ApproximateDistinctCount,
    Average,
    Count,
    DistinctCount,
    Extreme,
    Percentiles,
    Total,
    wide,
)

__all__ = ["aggregate_of"]

FUNCTIONS = ("count", "sum", "min", "max", "avg", "first", "last", "distinct", "approx_distinct", "percentile")
NUMBERS = ("sum", "avg", "percentile")


def aggregate_of(name: str, given: Sequence[Any], columns: pa.Schema) -> Aggregate:
    """The aggregate of a request, which is a function, its column, and details."""
    function, column, *details = (*given, None) if len(given) == 1 else given
    assert function in FUNCTIONS, f"{name}: there is no function {function!r}"
    assert bool(details) == (function == "percentile"), f"{name}: {given!r} does not have what {function} needs"
    if function == "count" and column in (None, "*"):
        return Count(name)
    if column not in columns.names:
        raise UsageError(f"{name}: there is no column {column!r}", f"the columns are {', '.join(columns.names)}")
    return _one(name, function, column, columns.field(column).type, details)


def _one(name: str, function: Any, column: str, kind: pa.DataType, details: Sequence[Any]) -> Aggregate:
    if function == "count":
        return Count(name, column)
    if function == "approx_distinct":
        return ApproximateDistinctCount(name, HASH + column)
    _check_type(name, function, column, kind)
    if function in ("sum", "min", "max"):
        return Total(name, function, column, wide(kind))
    if function in ("first", "last"):
        return Extreme(name, function, column, kind)
    if function == "distinct":
        return DistinctCount(name, column, kind)
    if function == "avg":
        return Average(name, column)
    single = isinstance(details[0], int | float)
    wanted = tuple(float(each) for each in ([details[0]] if single else details[0]))
    if not wanted or not all(0 <= each <= 1 for each in wanted):
        raise UsageError(f"{name}: {details[0]!r} is not between 0 and 1", "0.99 is the 99th percentile")
    return Percentiles(name, column, wanted, single)


def _check_type(name: str, function: str, column: str, kind: pa.DataType) -> None:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    plain = number or pa.types.is_temporal(kind) or pa.types.is_string(kind)
    plain = plain or pa.types.is_boolean(kind) or pa.types.is_binary(kind)
    if not (number if function in NUMBERS else plain):
        raise UsageError(f"{name}: {function} of {column!r}, which is {kind}, is not offered", "cast it")
