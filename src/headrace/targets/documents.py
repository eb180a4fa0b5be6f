"""Rows as JSON documents, and keys as text: for targets that hold documents under names.

Decimals are strings, so that no digit is lost; moments are ISO 8601 in UTC; bytes are base64; columns with JSON in them
are part of the document and not text in it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.targets.changes import is_json

__all__ = ["dumps", "identifiers", "objects"]


def objects(table: pa.Table) -> list[dict[str, Any]]:
    """Converted column by column; what JSON has no form for is text by then."""
    names = table.column_names
    columns = [_values(column, each) for column, each in zip(table.columns, table.schema, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _values(column: pa.ChunkedArray, described: pa.Field) -> list[Any]:
    kind = column.type
    if is_json(described):
        return [None if each is None else json.loads(each) for each in column.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if each is None else base64.b64encode(each).decode() for each in column.to_pylist()]
    if pa.types.is_floating(kind):
        return [None if each is None else each if each - each == 0 else str(each) for each in column.to_pylist()]
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz="UTC") if kind.tz else pa.timestamp("us"))
        texts = column.cast(pa.string()).to_pylist()
        return [None if each is None else each.replace(" ", "T", 1) for each in texts]
    if pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        column = column.cast(pa.string())
    return list(column.to_pylist())


def identifiers(table: pa.Table, key: Sequence[str]) -> list[str]:
    """One text per row: a single column's own text, or a JSON array of several, which no two keys share."""
    columns = [_values(table.column(name), table.schema.field(name)) for name in key]
    if len(columns) == 1:
        return [each if isinstance(each, str) else dumps(each) for each in columns[0]]
    return [dumps(list(row)) for row in zip(*columns, strict=True)]
