"""The parts that messages are made of: varints, strings, bytes, counts, tagged fields; and the codec's errors.

The functions here are called by the source that ``codec`` compiles. ``position`` is where to read, and comes back moved
on. ``flexible`` versions have compact lengths, ``nullable`` fields may be null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence, Sized
from typing import Any

from headrace.errors import ErrorCode, KafkaError

__all__ = [
    "FIXED",
    "I32",
    "MalformedMessage",
    "TooManyElements",
    "UnwritableMessage",
    "ValueReader",
    "read_bytes",
    "read_count",
    "read_records",
    "read_string",
    "read_tags",
    "read_uvarint",
    "records_chunks",
    "span",
    "string_bytes",
    "uvarint",
]

ValueReader = Callable[[memoryview, int, list[int]], tuple[Any, int]]

SHORT_STRING_BYTES_MAX = 2**15 - 1
"""The longest string of a version that is not flexible."""

LENGTH_MAX = 2**31 - 1


class MalformedMessage(KafkaError):
    """The peer's bytes are not the message they claim to be."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, f"malformed message: {reason}")


class TooManyElements(MalformedMessage):
    """More array elements and tagged fields than the reader may read. ``found`` is how many were announced so far."""

    def __init__(self, elements_max: int, found: int) -> None:
        super().__init__(f"more than {elements_max} array elements and tagged fields")
        self.found = found


class UnwritableMessage(KafkaError):
    """An answer that the peer's version of the protocol cannot carry, or that is larger than answers may be."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, f"unwritable message: {reason}")


FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes([n]) for n in range(0x80)]


def read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    byte = view[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedMessage("a varint of more than 5 bytes")


I16 = struct.Struct(">h")
I32 = struct.Struct(">i")


def span(view: memoryview, position: int, length: int) -> int:
    """The position after ``length`` bytes, if there are as many."""
    end = position + length
    if length < 0 or end > len(view):
        raise too_long(length, position, view)
    return end


def too_long(length: int, position: int, view: memoryview) -> MalformedMessage:
    return MalformedMessage(f"a length of {length} at byte {position} of {len(view)}")


def read_size(view: memoryview, position: int, flexible: bool, wide: bool) -> tuple[int, int]:
    """A length prefix; -1 is null."""
    if flexible:
        length = view[position]
        if length < 0x80:
            return length - 1, position + 1
        length, position = read_uvarint(view, position)
        return length - 1, position
    if wide:
        return I32.unpack_from(view, position)[0], position + 4
    return I16.unpack_from(view, position)[0], position + 2


def read_string(view: memoryview, position: int, flexible: bool, nullable: bool) -> tuple[str | None, int]:
    length, position = read_size(view, position, flexible, wide=False)
    if length < 0:
        null("string", nullable, length)
        return None, position
    end = position + length
    if end > len(view):
        raise too_long(length, position, view)
    return str(view[position:end], "utf-8"), end


def read_bytes(view: memoryview, position: int, flexible: bool, nullable: bool) -> tuple[bytes | None, int]:
    length, position = read_size(view, position, flexible, wide=True)
    if length < 0:
        null("bytes", nullable, length)
        return None, position
    end = position + length
    if end > len(view):
        raise too_long(length, position, view)
    return bytes(view[position:end]), end


def read_records(view: memoryview, position: int, flexible: bool, nullable: bool) -> tuple[memoryview | None, int]:
    """Records stay where they are: the view keeps the frame alive."""
    if flexible:
        length, position = read_uvarint(view, position)
        length -= 1
    else:
        length, position = I32.unpack_from(view, position)[0], position + 4
    if length < 0:
        return None, position
    end = position + length
    if end > len(view):
        raise too_long(length, position, view)
    return view[position:end], end


def null(kind: str, nullable: bool, length: int) -> None:
    if not nullable or length != -1:
        raise MalformedMessage(f"{kind} of length {length}")


def read_count(
    view: memoryview, position: int, flexible: bool, nullable: bool, item_bytes_min: int, budget: list[int]
) -> tuple[int, int]:
    """An array's count, or -1 for null; never more than the bytes that remain could hold."""
    count, position = read_size(view, position, flexible, wide=True)
    if count < 0:
        null("array", nullable, count)
        return -1, position
    if count * item_bytes_min > len(view) - position:
        raise MalformedMessage(f"an array of {count} at byte {position} of {len(view)}")
    spend(budget, count)
    return count, position


def spend(budget: list[int], count: int) -> None:
    """``budget`` is [what is left, what there was]: one list for all parts of a message. A reader in steps counts in a
    third place what it has read since its last yield."""
    budget[0] -= count
    if budget[0] < 0:
        raise TooManyElements(budget[1], budget[1] - budget[0])


def read_tags(
    view: memoryview,
    position: int,
    known: dict[int, tuple[str, ValueReader]],
    into: dict[str, Any],
    budget: list[int],
) -> int:
    count, position = read_uvarint(view, position)
    spend(budget, count)
    for _ in range(count):
        tag, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        end = span(view, position, size)
        if tag in known:
            name, read = known[tag]
            into[name], reached = read(view[:end], position, budget)
            if reached != end:
                raise MalformedMessage(f"tagged field {name} of {size} bytes ends after {reached - position}")
        position = end
    return position


def string_bytes(text: str, flexible: bool) -> bytes:
    raw = text.encode()
    if len(raw) > SHORT_STRING_BYTES_MAX and not flexible:
        raise UnwritableMessage(f"a string of {len(raw)} bytes; this version carries {SHORT_STRING_BYTES_MAX}")
    return (uvarint(len(raw) + 1) if flexible else I16.pack(len(raw))) + raw


def records_chunks(value: Sized | Sequence[Sized] | None, flexible: bool, emit: Callable[[Any], None]) -> None:
    """A records field is null, one chunk, or a list of chunks that follow each other."""
    if value is None:
        emit(b"\x00" if flexible else b"\xff\xff\xff\xff")
        return
    chunks = value if isinstance(value, list) else [value]
    length = sum(map(len, chunks))
    if length > LENGTH_MAX:
        raise UnwritableMessage(f"{length} bytes of records; a field carries {LENGTH_MAX}")
    emit(uvarint(length + 1) if flexible else I32.pack(length))
    for chunk in chunks:
        emit(chunk)
