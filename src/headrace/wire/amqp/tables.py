"""Field tables: names and values of many types, as RabbitMQ writes and reads them.

The letters are RabbitMQ's, which differ from the standard's: ``s`` is a signed short and not a short string, ``l`` a
signed long long, ``x`` bytes, ``D`` a decimal.

Every length is checked against the bytes that remain before anything is made of it, and tables lie at most
``DEPTH_MAX`` deep: a table of a few kilobytes can otherwise nest a thousand times.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

__all__ = ["DEPTH_MAX", "BadTable", "Timestamp", "decode_table", "encode_table", "header_of", "type_name"]

DEPTH_MAX = 32

_UINT32 = struct.Struct(">I")
_FIXED: dict[bytes, struct.Struct] = {
    b"b": struct.Struct(">b"),
    b"B": struct.Struct(">B"),
    b"s": struct.Struct(">h"),
    b"u": struct.Struct(">H"),
    b"I": struct.Struct(">i"),
    b"i": struct.Struct(">I"),
    b"l": struct.Struct(">q"),
    b"L": struct.Struct(">q"),
    b"f": struct.Struct(">f"),
    b"d": struct.Struct(">d"),
}


class BadTable(ValueError):
    """The bytes are no field table."""


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """Seconds since the epoch, kept apart from integers so that a table is written as it was read."""

    seconds: int

    def __str__(self) -> str:
        """For people: a time of a clock where there is one, since a client may have written any number."""
        try:
            return f"{datetime.fromtimestamp(self.seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
        except (ValueError, OverflowError, OSError):
            return f"{self.seconds} s"


def decode_table(data: bytes, position: int, end: int, depth: int = 0) -> tuple[dict[str, Any], int]:
    """The table that begins at ``position`` with its length, and the position after it. It must end at ``end`` at the
    latest."""
    if depth >= DEPTH_MAX:
        raise BadTable(f"tables are nested more than {DEPTH_MAX} deep")
    first, last = _sized(data, position, end)
    table: dict[str, Any] = {}
    while first < last:
        name_end = first + 1 + data[first]
        if name_end >= last:
            raise BadTable("a name reaches beyond its table")
        name = data[first + 1 : name_end].decode("utf-8", "surrogateescape")
        table[name], first = _decode_value(data, name_end, last, depth)
    return table, last


def _sized(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Where something with a length of four bytes begins and ends."""
    if end - position < 4:
        raise BadTable("it ends inside a length")
    first = position + 4
    last = first + _UINT32.unpack_from(data, position)[0]
    if last > end:
        raise BadTable(f"{last - first} bytes are announced and {end - first} are there")
    return first, last


def _decode_value(data: bytes, position: int, end: int, depth: int) -> tuple[Any, int]:
    kind = data[position : position + 1]
    position += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        _need(position, fixed.size, end)
        return fixed.unpack_from(data, position)[0], position + fixed.size
    if kind == b"S":
        first, last = _sized(data, position, end)
        return data[first:last].decode("utf-8", "surrogateescape"), last
    if kind == b"t":
        _need(position, 1, end)
        return data[position] != 0, position + 1
    if kind == b"V":
        return None, position
    if kind == b"F":
        return decode_table(data, position, end, depth + 1)
    if kind == b"A":
        return _decode_array(data, position, end, depth + 1)
    if kind == b"T":
        _need(position, 8, end)
        return Timestamp(int.from_bytes(data[position : position + 8], "big")), position + 8
    if kind == b"x":
        first, last = _sized(data, position, end)
        return data[first:last], last
    if kind == b"D":
        _need(position, 5, end)
        unscaled = int.from_bytes(data[position + 1 : position + 5], "big", signed=True)
        return Decimal(unscaled).scaleb(-data[position]), position + 5
    raise BadTable(f"{kind!r} is no type of a value")


def _decode_array(data: bytes, position: int, end: int, depth: int) -> tuple[list[Any], int]:
    if depth >= DEPTH_MAX:
        raise BadTable(f"tables are nested more than {DEPTH_MAX} deep")
    first, last = _sized(data, position, end)
    values = []
    while first < last:
        value, first = _decode_value(data, first, last, depth)
        values.append(value)
    return values, last


def _need(position: int, size: int, end: int) -> None:
    if end - position < size:
        raise BadTable("it ends inside a value")


def encode_table(table: Mapping[str, Any]) -> bytes:
    """The table with its length. Integers take the smallest of RabbitMQ's signed types that holds them."""
    parts = []
    for name, value in table.items():
        raw = name.encode("utf-8", "surrogateescape")
        if len(raw) > 255:
            raise BadTable(f"the name {name[:40]!r}… is longer than 255 bytes")
        parts += [bytes((len(raw),)), raw, _encode_value(value)]
    body = b"".join(parts)
    return _UINT32.pack(len(body)) + body


def _encode_value(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return b"S" + _UINT32.pack(len(raw)) + raw
    if isinstance(value, int):
        return _encode_integer(value)
    if value is None:
        return b"V"
    if isinstance(value, Mapping):
        return b"F" + encode_table(value)
    if isinstance(value, bytes):
        return b"x" + _UINT32.pack(len(value)) + value
    if isinstance(value, Timestamp):
        return b"T" + value.seconds.to_bytes(8, "big")
    if isinstance(value, float):
        return b"d" + _FIXED[b"d"].pack(value)
    if isinstance(value, Decimal):
        return _encode_decimal(value)
    if isinstance(value, Sequence):
        body = b"".join(map(_encode_value, value))
        return b"A" + _UINT32.pack(len(body)) + body
    raise BadTable(f"{type(value).__name__} is no type of a value")


def header_of(name: str, value: Any) -> tuple[str, bytes]:
    """An entry of a table as the header of a record: texts and bytes as they are, so that trace contexts pass through;
    everything else as Python writes it. A name that is not UTF-8 is escaped."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text, value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def type_name(value: Any) -> str:
    """What RabbitMQ calls the type of a value in its messages. Integers have the type that they would be written as."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -(2**31) <= value < 2**31 else "long"
    names = {
        str: "longstr",
        bytes: "binary",
        float: "double",
        Decimal: "decimal",
        Timestamp: "timestamp",
        dict: "table",
    }
    return names.get(type(value), "void" if value is None else "array")


def _encode_integer(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"I" + _FIXED[b"I"].pack(value)
    if -(2**63) <= value < 2**63:
        return b"l" + _FIXED[b"l"].pack(value)
    raise BadTable(f"{value} has more than 64 bits")


def _encode_decimal(value: Decimal) -> bytes:
    exponent = value.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    unscaled = int(value.scaleb(scale))
    if scale > 255 or not -(2**31) <= unscaled < 2**31:
        raise BadTable(f"{value} does not fit into a decimal")
    return b"D" + bytes((scale,)) + unscaled.to_bytes(4, "big", signed=True)
