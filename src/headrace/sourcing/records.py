"""An event as a record of a topic, and back.

    key        the stream; an event without one has its event id
    value      {"position": 1, "stream": "account-1", "version": 1, "type": "Deposited", "data": {…}, "tags": […],
                "event_id": …, "correlation_id": …, "causation_id": …, "actor": …, "command_id": …,
                "schema_version": 1, "recorded_us": microseconds since 1970}
    headers    type, event_id

Data is as it is stored: personal fields stay encrypted, so a topic never has more of a person than the store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.sourcing.events import Row, as_json

__all__ = ["record_of", "row_of"]

_NAMES = (
    "position",
    "stream",
    "version",
    "event_id",
    "type",
    "schema_version",
    "data",
    "tags",
    "correlation_id",
    "causation_id",
    "actor",
    "command_id",
    "recorded_us",
)
_SHOWN = ("position", "stream", "version", "type")


def record_of(row: Row) -> tuple[bytes, bytes, Sequence[tuple[str, bytes | None]]]:
    """Key, value and headers."""
    fields = dict(zip(_NAMES, row, strict=True))
    data, tags = fields.pop("data"), fields.pop("tags")
    first = {name: fields.pop(name) for name in _SHOWN}
    # Data and tags are JSON already: put in as they are, not decoded and encoded again.
    value = f'{as_json(first)[:-1]},"data":{data},"tags":{tags},{as_json(fields)[1:]}'
    headers = [("type", first["type"].encode()), ("event_id", row[3].encode())]
    return (row[1] or row[3]).encode(), value.encode(), headers


def row_of(value: bytes) -> Row:
    fields = json.loads(value)
    fields["data"] = as_json(fields["data"])
    fields["tags"] = as_json(fields["tags"])
    return tuple(fields[name] for name in _NAMES)
