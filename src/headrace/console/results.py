"""Results as rows: the newest records of a topic, read as JSON objects.

A change of Debezium's form (``op``, ``before``, ``after``) is the row after it, and a deletion is none. With ``by_key``
the newest record of every key counts, and a null value removes the key: that is a table that is kept up to date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.client import Client
from headrace.client.positioned import topic_exists
from headrace.console.scanning import Found, Selection, newest, select

__all__ = ["Row", "field_of", "read_rows", "time_ms"]

KEYED_RECORDS_MAX = 10_000
"""Records in which the newest of every key are looked for."""


@dataclass(frozen=True, slots=True)
class Row:
    """One result; ``values`` are the fields of its JSON object."""

    key: str | None
    timestamp_ms: int
    values: Mapping[str, Any]


def read_rows(client: Client, topic: str, last: int, *, by_key: bool = False) -> tuple[list[Row], int]:
    """The newest rows, oldest first, and how many records were passed over because they are no JSON objects.

    A topic that is not there yet has none: a pipeline makes it with its first rows.
    """
    if not topic_exists(client, topic):
        return [], 0
    client.forget_topic(topic)
    found = newest(client, _near_the_end(select(client, topic), by_key), _count(last, by_key)).found
    rows: list[Row] = []
    seen: set[bytes | None] = set()
    unreadable = 0
    for each in found:
        key = each.record.key
        if by_key:
            if key in seen:
                continue
            seen.add(key)
        values = _values(each.record.value)
        if values is None:
            unreadable += each.record.value is not None
        elif values:
            rows.append(Row(_key(each), each.record.timestamp, values))
        if len(rows) == last:
            break
    rows.reverse()
    return rows, unreadable


def _count(last: int, by_key: bool) -> int:
    return max(last, KEYED_RECORDS_MAX) if by_key else last


def _near_the_end(selection: Selection, by_key: bool) -> Selection:
    if not by_key:
        return selection
    ranges = {place: (max(low, high - KEYED_RECORDS_MAX), high) for place, (low, high) in selection.ranges.items()}
    return Selection(ranges=ranges, committed=selection.committed)


def _key(found: Found) -> str | None:
    return None if found.record.key is None else found.record.key.decode("utf-8", "replace")


def _values(value: bytes | None) -> Mapping[str, Any] | None:
    """{} for a deletion, None for what is no row."""
    if value is None:
        return {}
    try:
        found = json.loads(value, parse_constant=str)  # NaN is no JSON for a browser
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict) and set(found) == {"schema", "payload"}:
        found = found["payload"]
    if not isinstance(found, dict):
        return None
    if "op" in found and "after" in found:
        found = found["after"] or {}
    return found if isinstance(found, dict) else None


def field_of(values: Mapping[str, Any], path: str) -> Any:
    """``a.b`` looks for the field ``b`` of ``a``; a field whose name has a dot is found too."""
    if path in values:
        return values[path]
    found: Any = values
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def time_ms(value: Any) -> int | None:
    """Milliseconds of a time in ISO 8601; None for anything else. Without a zone it is UTC."""
    if not isinstance(value, str) or len(value) < len("2026-01-31"):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    aware = found.replace(tzinfo=UTC) if found.tzinfo is None else found
    return round(aware.timestamp() * 1000)


def columns_of(rows: list[Row], most: int) -> list[str]:
    """The fields of all rows, in the order in which they first come."""
    return list(dict.fromkeys(_names(rows)))[:most]


def _names(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        yield from row.values
