"""The kinds of columns that all databases share, derived from Arrow's types; and which kind of number holds another."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from headrace.errors import UsageError
from headrace.targets.changes import is_json

__all__ = ["DECIMAL", "INTEGERS", "kind_of", "number_of"]

INTEGERS = ("int16", "int32", "int64")
FLOATS = ("float32", "float64")
DECIMAL = "decimal"
WHOLE_DIGITS = {"int16": 5, "int32": 10, "int64": 19}
PRECISION = re.compile(r"\((\d+)(?:,(\d+))?\)")


def kind_of(column: pa.Field) -> tuple[str, int, int]:
    """The kind, and for decimals precision and scale."""
    kind = column.type
    if is_json(column):
        return "json", 0, 0
    if pa.types.is_decimal(kind):
        return DECIMAL, kind.precision, kind.scale
    if pa.types.is_timestamp(kind):
        return ("moment" if kind.tz else "datetime"), 0, 0
    for name, fits in CHECKS.items():
        if fits(kind):
            return name, 0, 0
    raise UsageError(f"column {column.name!r} is {kind}, which has no type in a table", "cast it in the pipeline")


CHECKS = {
    "boolean": pa.types.is_boolean,
    "int16": lambda kind: kind in (pa.int8(), pa.int16(), pa.uint8()),
    "int32": lambda kind: kind in (pa.int32(), pa.uint16()),
    "int64": lambda kind: kind in (pa.int64(), pa.uint32()) or pa.types.is_duration(kind),
    "float32": lambda kind: kind in (pa.float16(), pa.float32()),
    "float64": pa.types.is_float64,
    "text": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind),
    "bytes": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    "date": pa.types.is_date,
    "time": pa.types.is_time,
}


def number_of(existing: str, column: pa.Field, types: Mapping[str, str]) -> str | None:
    """The type that a column of numbers needs to hold these too; None where it does, or is no number."""
    wanted, precision, scale = kind_of(column)
    known = {re.sub(r"\(.*", "", name).strip().lower(): kind for kind, name in types.items()}
    found = known.get(re.sub(r"\(.*", "", existing).strip().lower())
    if found in INTEGERS and wanted in INTEGERS:
        return types[wanted] if INTEGERS.index(wanted) > INTEGERS.index(found) else None
    if found in FLOATS and wanted in FLOATS:
        return types[wanted] if FLOATS.index(wanted) > FLOATS.index(found) else None
    if found in INTEGERS and wanted == DECIMAL:
        whole = max(WHOLE_DIGITS[found], precision - scale)
        return types[DECIMAL].format(precision=whole + scale, scale=scale)
    bounds = PRECISION.search(existing)
    if found == DECIMAL and wanted == DECIMAL and bounds:
        had, had_scale = int(bounds[1]), int(bounds[2] or 0)
        whole, wide_scale = max(had - had_scale, precision - scale), max(had_scale, scale)
        if (whole, wide_scale) != (had - had_scale, had_scale):
            return types[DECIMAL].format(precision=whole + wide_scale, scale=wide_scale)
    return None
