"""Announcing shapes of tables: seen for the first time, or changed, in the form of Debezium's schema changes.

Which shape of a table was announced last is part of a capture's state, so each is announced once.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from typing import Any

from headrace.capture.envelope import EventOutput, Table, json_text

__all__ = ["announce", "table_topic", "topic_name"]

TOPIC_NAME_MAX = 249


def topic_name(text: str) -> str:
    """A topic's name: what Kafka does not allow in one becomes an underscore, as in Debezium.

    Different texts never share a name: one that had to be changed ends with eight digits of its hash. So a
    name depends on its text alone, and not on which others there are.
    """
    name = "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in text)
    if name == text and len(name) <= TOPIC_NAME_MAX:
        return name
    suffix = f"-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return name[: TOPIC_NAME_MAX - len(suffix)] + suffix


def table_topic(prefix: str, schema: str, table: str) -> str:
    """Where the events of a table go. A point inside a name could also stand between two of them."""
    # Zero bytes are in no name; they become underscores, and so such a topic has its hash.
    between = "\0" if "." in schema + table else "."
    return topic_name(f"{prefix}.{schema}{between}{table}")


def announce(
    out: EventOutput,
    prefix: str,
    shapes: dict[str, int],
    table: Table,
    *,
    database: str,
    source: bytes = b"null",
    lengths: list[int | None] | None = None,
) -> None:
    """Announce a shape in the topic named by the prefix, unless it is the one in ``shapes``; and note it there."""
    out.begin_shape(table)
    columns: list[dict[str, Any]] = [
        {"name": each.name, "typeName": each.type_name, "typeExpression": each.type_name, "position": place}
        for place, each in enumerate(table.columns, 1)
    ]
    for each, length in zip(columns, lengths or [None] * len(columns), strict=True):
        each["length"] = length
    keys = [table.columns[index].name for index in table.key]
    shape = zlib.crc32(json.dumps([keys, columns]).encode())
    before = shapes.get(table.full_name)
    if before == shape:
        return
    shapes[table.full_name] = shape
    change = {
        "type": "CREATE" if before is None else "ALTER",
        "id": ".".join(f'"{each}"' for each in (database, table.schema, table.name)),
        "table": {"primaryKeyColumnNames": keys, "columns": columns},
    }
    value = b'{"source":%b,"ts_ms":%d,"databaseName":%b,"schemaName":%b,"ddl":null,"tableChanges":%b}' % (
        source,
        time.time_ns() // 1_000_000,
        json_text(database),
        json_text(table.schema),
        json.dumps([change], separators=(",", ":"), ensure_ascii=False).encode(),
    )
    out.add(topic_name(prefix), b'{"databaseName":%b}' % json_text(database), value)
