"""Schemas in messages, as Kafka Connect's JSON converter writes them: ``{"schema": …, "payload": …}``.

A value's type is a dict: ``{"type": "int64"}``, and what Debezium means by it: ``{"type": "int32", "name":
"io.debezium.time.Date", "version": 1}``. The database's part gives the type of each column (``*/schemas.py``); here it
becomes the schema of keys, rows and envelopes. Every column but those of the key is optional: a change may lack it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["STRING", "Type", "before_payload", "envelope_schema", "named", "struct"]

Type = Mapping[str, Any]
STRING: Type = {"type": "string"}
_INT64: Type = {"type": "int64"}
_NEEDED = ("version", "connector", "name", "ts_ms", "db", "table")
_SOURCE_NUMBERS = frozenset(
    ("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "origin_lsn", "server_id", "pos", "row", "thread", "change_id")
)


def named(kind: str, name: str, parameters: Mapping[str, str] | None = None) -> Type:
    """A type with a meaning."""
    return {"type": kind, "name": name, "version": 1, **({"parameters": dict(parameters)} if parameters else {})}


def struct(name: str, fields: Sequence[tuple[str, Type, bool]]) -> Type:
    """Fields are a name, a type, and whether it may be null."""
    described = [{**kind, "optional": optional, "field": field} for field, kind, optional in fields]
    return {"type": "struct", "fields": described, "name": name}


def envelope_schema(topic: str, row: Type, source_fields: Sequence[str]) -> Type:
    """Of a change: what its source tells depends on the database."""
    source = [(each, _INT64 if each in _SOURCE_NUMBERS else STRING, each not in _NEEDED) for each in source_fields]
    places = [("id", STRING, False), ("total_order", _INT64, False), ("data_collection_order", _INT64, False)]
    fields = [
        ("before", row, True),
        ("after", row, True),
        ("source", struct("io.debezium.connector.Source", source), False),
        ("transaction", struct("event.block", places), True),
        ("op", STRING, False),
        *((each, _INT64, True) for each in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return struct(f"{topic}.Envelope", fields)


def before_payload(schema: Type) -> bytes:
    """What stands in a message before its payload; a brace comes after it."""
    text = json.dumps({**schema, "optional": False}, separators=(",", ":"), ensure_ascii=False)
    return b'{"schema":' + text.encode() + b',"payload":'
