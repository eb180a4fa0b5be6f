"""What conditions on matched rows may compute, checked against the columns before a query starts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.errors import UsageError
from headrace.spark.patterns.conditions import Expression, Lookup, registers_of
from headrace.spark.patterns.pattern_plan import PatternPlan

__all__ = ["check_conditions"]


def check_conditions(plan: PatternPlan, schema: pa.Schema) -> None:
    """Refuse a condition that cannot be computed over these columns, or that is neither true nor false."""
    for name, condition in (*plan.tested.items(), *plan.conditions.items()):
        said = plan.labels.get(name, name)
        _check_totals(condition, schema, said)
        try:
            kind = _type_of(condition, schema)
        except pa.ArrowException as error:
            raise UsageError(f"the condition of {said} cannot be computed over these columns: {error}") from None
        if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
            raise UsageError(f"the condition of {said} is {kind} and not true or false")


def _check_totals(condition: Expression, schema: pa.Schema, said: str) -> None:
    """Conditions compute totals as doubles, so what they add up or compare has to be numbers."""
    for register in registers_of(condition):
        if register.column is None or register.kind in ("first", "last", "count"):
            continue
        kind = schema.field(register.column).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise UsageError(
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
