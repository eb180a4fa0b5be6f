"""What conditions on matched rows may compute, checked against the columns before a query starts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UsageError
from headrace.spark.patterns.conditions import Expression, Lookup, registers_of
from headrace.spark.patterns.pattern_plan import PatternPlan

__all__ = ["ConditionProblem", "check_conditions", "check_order"]


class ConditionProblem(UsageError):
    """A condition that cannot be computed, or is neither true nor false."""

    def __init__(self, variable: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.variable = variable


def check_order(names: Sequence[str], schema: pa.Schema) -> None:
    """Refuse columns to order by whose values have no order."""
    for name in names:
        pair = pa.table({"first": [0, 0], name: pa.nulls(2, schema.field(name).type)})
        try:
            pc.sort_indices(pair, sort_keys=[(each, "ascending") for each in pair.column_names])
        except pa.ArrowException:
            raise UsageError(
                f"rows cannot be ordered by {name!r}, which is {schema.field(name).type}",
                "numbers, texts, times and booleans have an order",
            ) from None


def check_conditions(plan: PatternPlan, schema: pa.Schema, *, stored: bool = False) -> None:
    """Refuse a condition that cannot be computed over these columns, or that is neither true nor false. ``stored``:
    Spark computes nothing before."""
    for name, condition in (*plan.tested.items(), *plan.conditions.items()):
        said = plan.labels.get(name, name)
        _check_totals(name, condition, schema, said)
        try:
            kind = _type_of(condition, schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:  # LIKE 5; a constant beyond its type
            raise ConditionProblem(
                name, f"the condition of {said} cannot be computed over these columns: {_in_words(error, stored)}"
            ) from None
        if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
            raise ConditionProblem(name, f"the condition of {said} is {kind} and not true or false")


def _in_words(error: Exception, stored: bool) -> str:
    kinds = re.search(r"has no kernel matching input types \((.*)\)", str(error))
    if kinds is None:
        return str(error)
    cure = "CAST(B.x AS …), LAST(CAST(A.x AS …)) or TIMESTAMP '2026-01-31 10:00:00' make another type"
    if stored:
        cure = "a column of another type is computed before: rows.withColumn(…)"
    return f"it asks for something that is not there for values of type {kinds[1]}; {cure}"


def _check_totals(name: str, condition: Expression, schema: pa.Schema, said: str) -> None:
    """Conditions compute totals as doubles, so what they add up or compare has to be numbers."""
    for register in registers_of(condition):
        if register.column is None or register.kind in ("first", "last", "count"):
            continue
        kind = schema.field(register.column).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise ConditionProblem(
                name,
                f"the condition of {said} has an aggregate of values of type {kind}",
                "SUM, AVG, MIN and MAX in a condition take numbers; UNIX_MICROS(at) makes one of a time",
            )


def _type_of(condition: Expression, schema: pa.Schema) -> pa.DataType:
    """Computed over no rows: what Arrow cannot compute is refused before there are any."""
    nothing = np.zeros(0, np.int64)
    columns = {each.name: pa.array([], each.type) for each in schema}
    registers = {each: each.empty(0, columns) for each in registers_of(condition)}
    lookup = Lookup(columns=columns, rows=nothing, first=nothing, end=nothing, registers=registers)
    return condition.compute(lookup).type
