"""Values as users write them, ``{"revenue": F.sum(F.col("price") * F.col("quantity"))}``, taken apart.

A value is one aggregate function of Spark's on an expression. Spark SQL computes the expression before the operator, as
a column whose name is the expression's text. So it costs no Python, and the description of the operator, which a
checkpoint is compared with, says what was added up. The function itself is ours (``totals``, ``retracting``), because
Spark has none with early results, corrections or retraction.

What is not offered is refused before the query starts, with a list of what is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.errors import UsageError
from headrace.spark.arguments import plain_columns
from headrace.spark.plan import Argument, Call, argument_of, call_of

__all__ = ["Requested", "requested"]

HIDDEN = "_"
"""How the names of computed columns begin."""

Request = tuple[Any, ...]
"""A function, its column, and what else it takes: ("sum", "amount"), ("percentile", "ms", 0.99), ("count",)."""

PLAIN = {"sum": "sum", "avg": "avg", "mean": "avg", "min": "min", "max": "max", "count": "count"}
BY_TIME = {"first": "first", "first_value": "first", "last": "last", "last_value": "last"}
PERCENTILES = ("percentile_approx", "approx_percentile")

OFFERED = (
    "F.count('*'), F.count, F.count_if, F.sum, F.avg, F.min, F.max, F.first and F.last (by event time), "
    "F.count_distinct, F.approx_count_distinct, F.percentile_approx"
)
OFFERED_WITH_RETRACTION = (
    "F.count('*'), F.count, F.count_if, F.sum, F.avg, F.min, F.max, F.count_distinct, "
    "F.max_by(F.struct(…), order, n) and F.min_by(F.struct(…), order, n)"
)


@dataclass(frozen=True, slots=True)
class Requested:
    """Rows with the columns that values need, and for each value what to do with which column."""

    rows: DataFrame
    requests: dict[str, Request]


def requested(rows: DataFrame, values: Mapping[str, Any] | None, *, retraction: bool = False) -> Requested:
    """``values`` taken apart. With ``retraction``, those that can be had of rows that come and go."""
    offered = OFFERED_WITH_RETRACTION if retraction else OFFERED
    found = Requested(rows, {})
    for name, value in (values or {}).items():
        call = call_of(value) if isinstance(value, Column) else None
        if call is None:
            raise UsageError(
                f"{name}: {_shown(value)} is no aggregate function of a column", f'{{"{name}": F.sum("amount")}}, say'
            )
        read = _with_retraction if retraction else _without_retraction
        made = read(found.rows, call)
        if made is None:
            raise UsageError(f"{name}: {call.text} is not offered here", f"there are {offered}")
        found = Requested(made[0], {**found.requests, name: made[1]})
    return found


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Column) else repr(value)


Made = tuple[DataFrame, Request] | None


def _common(rows: DataFrame, call: Call) -> Made:
    """What both kinds of values have."""
    first = call.arguments[0] if call.arguments else None
    if first is None:
        return None
    if call.function == "count" and not call.is_distinct and (first.is_star or first.literal is not None):
        return rows, ("count",)
    if call.function == "count" and call.is_distinct and len(call.arguments) == 1:
        return _on(rows, "distinct", first)
    if call.is_distinct:
        return None
    if call.function == "count_if":
        return _on(rows, "count", argument_of(F.when(first.column, F.lit(1))))
    if call.function in PLAIN and len(call.arguments) == 1:
        return _on(rows, PLAIN[call.function], first)
    return None


def _without_retraction(rows: DataFrame, call: Call) -> Made:
    found = _common(rows, call)
    if found is not None or call.is_distinct or not call.arguments:
        return found
    first, *others = call.arguments
    if call.function in BY_TIME:
        return _on(rows, BY_TIME[call.function], first)
    if call.function == "approx_count_distinct" and not others:
        return _on(rows, "approx_distinct", first)
    if call.function in PERCENTILES and others and others[0].literal is not None:
        return _on(rows, "percentile", first, others[0].literal)
    return None


def _with_retraction(rows: DataFrame, call: Call) -> Made:
    if call.function in ("max_by", "min_by") and len(call.arguments) == 3:
        return _ordered_rows(rows, call)
    return _common(rows, call)


def _ordered_rows(rows: DataFrame, call: Call) -> Made:
    """``F.max_by(F.struct("id", "text"), "at", 10)``: the rows that come first in an order, as structs."""
    shown, order, count = call.arguments
    names = [each.name for each in shown.fields]
    if not names or None in names or not isinstance(count.literal, int):
        return None
    by: list[str] = []
    for each in order.fields or (order,):
        rows, column = _column(rows, each)
        by.append(column)
    return rows, ("top", count.literal, by, call.function == "max_by", names)


def _on(rows: DataFrame, function: str, argument: Argument, *details: Any) -> Made:
    rows, column = _column(rows, argument)
    return rows, (function, column, *details)


def _column(rows: DataFrame, argument: Argument) -> tuple[DataFrame, str]:
    if argument.name is not None:
        return rows, argument.name
    hidden = f"{HIDDEN}{argument.text}"
    if hidden in rows.columns:
        return rows, hidden
    return rows.select(*plain_columns(rows.columns), argument.column.alias(hidden)), hidden
