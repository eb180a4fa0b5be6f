"""The properties of a message: fourteen optional fields, announced by flags.

A broker hands most of them on without a look, so they stay the bytes that they came as. ``PropertySummary`` has the few
that decide what happens to the message. Publishers send the same properties again and again, so summaries are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.methods import short_string
from headrace.wire.amqp.tables import BadTable, Timestamp, decode_table, encode_table

__all__ = ["NO_PROPERTIES", "PropertySummary", "decode_properties", "encode_properties", "summary_of"]

_FLAGS = struct.Struct(">H")
_FIELDS: Final = (
    ("content_type", "shortstr"),
    ("content_encoding", "shortstr"),
    ("headers", "table"),
    ("delivery_mode", "octet"),
    ("priority", "octet"),
    ("correlation_id", "shortstr"),
    ("reply_to", "shortstr"),
    ("expiration", "shortstr"),
    ("message_id", "shortstr"),
    ("timestamp", "timestamp"),
    ("type", "shortstr"),
    ("user_id", "shortstr"),
    ("app_id", "shortstr"),
    ("cluster_id", "shortstr"),
)
"""In the order of their flags, from the highest bit down."""

_PERSISTENT = 2
_SUMMARIES_MAX = 1_000
_SUMMARY_BYTES_MAX = 1_024
"""Longer ones are decoded each time. Properties with ids differ from message to message, and each is asked for several
times."""

NO_PROPERTIES: Final = b"\x00\x00"


class PropertySummary(NamedTuple):
    """What a broker looks at."""

    is_persistent: bool = False
    priority: int = 0
    expiration: str | None = None
    has_headers: bool = False
    reply_to: str | None = None
    user_id: str | None = None


def decode_properties(raw: bytes) -> dict[str, Any]:
    """The fields that are there. Raises AmqpError."""
    try:
        return _decoded(raw)
    except (BadTable, struct.error, IndexError) as error:
        raise AmqpError(ReplyCode.SYNTAX_ERROR, f"the properties of a message cannot be read: {error}") from error


def _decoded(raw: bytes) -> dict[str, Any]:
    (flags,) = _FLAGS.unpack_from(raw)
    if flags & 1:
        raise BadTable("there are more flags than AMQP 0-9-1 has properties")
    found: dict[str, Any] = {}
    position = 2
    end = len(raw)
    for place, (name, kind) in enumerate(_FIELDS):
        if not flags & (0x8000 >> place):
            continue
        if kind == "shortstr":
            first = position + 1
            position = first + raw[position]
            if position > end:
                raise BadTable(f"{name} reaches beyond its frame")
            found[name] = raw[first:position].decode("utf-8", "surrogateescape")
        elif kind == "table":
            found[name], position = decode_table(raw, position, end)
        elif kind == "octet":
            found[name] = raw[position]
            position += 1
        else:
            if position + 8 > end:
                raise BadTable(f"{name} reaches beyond its frame")
            found[name] = Timestamp(int.from_bytes(raw[position : position + 8], "big"))
            position += 8
    return found


def encode_properties(fields: Mapping[str, Any]) -> bytes:
    """The bytes for these fields; those that are None are left out."""
    flags = 0
    parts = []
    for place, (name, kind) in enumerate(_FIELDS):
        value = fields.get(name)
        if value is None:
            continue
        flags |= 0x8000 >> place
        if kind == "shortstr":
            parts.append(short_string(value))
        elif kind == "table":
            parts.append(encode_table(value))
        elif kind == "octet":
            parts.append(bytes((value,)))
        else:
            parts.append(value.seconds.to_bytes(8, "big"))
    return _FLAGS.pack(flags) + b"".join(parts)


_summaries: dict[bytes, PropertySummary] = {NO_PROPERTIES: PropertySummary()}


def summary_of(raw: bytes) -> PropertySummary:
    """What the broker must know of these properties. Raises AmqpError."""
    known = _summaries.get(raw)
    if known is not None:
        return known
    fields = decode_properties(raw)
    summary = PropertySummary(
        is_persistent=fields.get("delivery_mode") == _PERSISTENT,
        priority=fields.get("priority", 0),
        expiration=fields.get("expiration"),
        has_headers="headers" in fields,
        reply_to=fields.get("reply_to"),
        user_id=fields.get("user_id"),
    )
    if len(raw) <= _SUMMARY_BYTES_MAX:
        if len(_summaries) >= _SUMMARIES_MAX:
            _summaries.clear()
        _summaries[raw] = summary
    return summary
