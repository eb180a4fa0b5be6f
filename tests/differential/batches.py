"""Record batches by hand, right or wrong on purpose.

Independent of headrace's own code, so that it can contradict it.
"""

from __future__ import annotations

import gzip
import struct
import time
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
assert HEADER.size == 61

NOW_MS = int(time.time() * 1000) - 60_000
"""Records are dated today: a batch from long ago beside a marker of today would make Apache Kafka roll its segment.
A minute ago, so that a time that the test sent is not taken for the broker's own."""

Key = bytes | None
Value = bytes | None


def varint(value: int) -> bytes:
    encoded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while encoded >= 0x80:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(delta: int, key: Key, value: Value, timestamp_delta: int = 0) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(delta) + sized(key) + sized(value) + varint(0)
    return varint(len(body)) + body


@dataclass(kw_only=True)
class BatchSpec:
    """What a batch says about itself; tests set a field wrong and leave the rest right."""

    records: list[tuple[Key, Value]] = field(default_factory=lambda: [(b"key", b"value")])
    timestamps: list[int] | None = None
    base_offset: int = 0
    magic: int = 2
    attributes: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int | None = None
    last_offset_delta: int | None = None
    length_error: int = 0
    crc_error: int = 0
    payload: bytes | None = None


def batch(**values: Any) -> bytes:
    spec = BatchSpec(**values)
    timestamps = spec.timestamps or [NOW_MS + n for n in range(len(spec.records))]
    payload = spec.payload
    if payload is None:
        payload = b"".join(
            record(n, key, value, timestamps[n] - timestamps[0]) for n, (key, value) in enumerate(spec.records)
        )
        if spec.attributes & 7 == 1:
            payload = gzip.compress(payload, mtime=0)
    count = len(spec.records) if spec.count is None else spec.count
    after_crc = struct.pack(
        ">hiqqqhii",
        spec.attributes,
        len(spec.records) - 1 if spec.last_offset_delta is None else spec.last_offset_delta,
        timestamps[0],
        max(timestamps),
        spec.producer_id,
        spec.producer_epoch,
        spec.base_sequence,
        count,
    )
    crc = google_crc32c.value(after_crc + payload) ^ spec.crc_error
    length = 4 + 1 + 4 + len(after_crc) + len(payload) + spec.length_error
    return struct.pack(">qiibI", spec.base_offset, length, 0, spec.magic, crc) + after_crc + payload


def values(*texts: str) -> list[tuple[Key, Value]]:
    return [(None, text.encode()) for text in texts]


def read_batches(data: bytes) -> list[dict[str, Any]]:
    """What a fetched buffer holds, whole batches only; the last one may be cut and is left out."""
    found = []
    position = 0
    while position + HEADER.size <= len(data):
        size = 12 + struct.unpack_from(">i", data, position + 8)[0]
        if position + size > len(data):
            break
        found.append(read_batch(data[position : position + size]))
        position += size
    return found


def read_batch(data: bytes) -> dict[str, Any]:
    head = HEADER.unpack_from(data)
    (
        base_offset,
        _,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_delta,
        base_time,
        max_time,
        pid,
        epoch,
        sequence,
        count,
    ) = head
    assert google_crc32c.value(data[21:]) == crc, "a batch in an answer fails its own checksum"
    payload = data[61:]
    return {
        "base_offset": base_offset,
        "leader_epoch": leader_epoch,
        "magic": magic,
        "attributes": attributes,
        "last_offset_delta": last_delta,
        "base_timestamp": base_time,
        "max_timestamp": max_time,
        "producer_id": pid,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "count": count,
        "payload_crc": google_crc32c.value(payload),
        "records": read_records(payload, count) if attributes & 7 == 0 else f"{attributes & 7}: compressed",
    }


def read_records(payload: bytes, count: int) -> list[list[str | None]]:
    """Keys and values, hexadecimal where they are not text (control records)."""
    position = 0
    found = []
    for _ in range(count):
        _, position = read_varint(payload, position)
        position += 1
        _, position = read_varint(payload, position)
        _, position = read_varint(payload, position)
        key, position = read_sized(payload, position)
        value, position = read_sized(payload, position)
        headers, position = read_varint(payload, position)
        assert headers == 0, "differential tests send no headers"
        found.append([readable(key), readable(value)])
    return found


def read_sized(payload: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(payload, position)
    return (None, position) if size < 0 else (payload[position : position + size], position + size)


def readable(data: bytes | None) -> str | None:
    if data is None:
        return None
    return data.decode() if data.isascii() and data.decode().isprintable() else data.hex()
