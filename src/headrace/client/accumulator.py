"""Records on their way into a batch: encoded as they come, sealed once.

A record is encoded when it is added (``headrace.record`` describes the bytes), so the size of a batch is always known
and sealing costs one compression and one checksum however many records there are.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from headrace.batch import NO_PRODUCER_ID, TRANSACTIONAL, batch_without_records, reseal
from headrace.client.byte_column import ByteColumn, Part, interleaved
from headrace.client.client import TopicPartition
from headrace.record import Codec, Record, compress, encode_records

__all__ = ["OpenBatch", "PreparedRecords"]

Headers = Sequence[tuple[str, bytes | None]]


def _varint(value: int) -> bytes:
    """Zig-zag, least significant group first."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [_varint(value) for value in range(8192)]
_NULL = _varint(-1)
_NO_HEADERS = b"\x00"
_COUNTED_SIZES = [size + len(_SMALL[size]) for size in range(8192)]
"""The bytes of something with its length before it."""
_BLOCK_RECORDS = 1024
_RECORD_OVERHEAD_MAX = 26
"""The bytes of a record without headers besides its key and value."""


def _counted(value: bytes | None) -> bytes:
    if value is None:
        return _NULL
    size = len(value)
    return (_SMALL[size] if size < 8192 else _varint(size)) + value


def _encode_headers(headers: Headers) -> bytes:
    if not headers:
        return _NO_HEADERS
    parts = [_varint(len(headers))]
    for name, value in headers:
        parts.append(_counted(name.encode()))
        parts.append(_counted(value))
    return b"".join(parts)


def _small_varints(numbers: Sequence[int]) -> list[bytes]:
    return [_SMALL[each] for each in numbers]


def _joined_constants(parts: Sequence[Part]) -> list[Part]:
    """The same strings of fewer parts."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += part
        else:
            found.append(part)
    return found


@dataclass(frozen=True, slots=True)
class PreparedRecords:
    """Records that somebody else has encoded (``headrace.record`` has the bytes), uncompressed, for one batch.

    Offset deltas must count 0, 1, 2 … and timestamps be relative to ``base_timestamp``.
    """

    data: bytes | bytearray | memoryview
    count: int
    base_timestamp: int
    max_timestamp: int
    compressed: bytes | None = None
    """The same bytes as the producer's codec makes them, where somebody has compressed them already."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> PreparedRecords:
        assert records, "a batch has at least one record"
        base_timestamp = records[0].timestamp
        data = encode_records(records, base_timestamp=base_timestamp)
        return cls(data, len(records), base_timestamp, max(record.timestamp for record in records))


class OpenBatch:
    """Records for one partition. Once it has an ``identity`` it keeps it, however often it is sent again."""

    __slots__ = (
        "base_timestamp",
        "codec",
        "compressed",
        "count",
        "created",
        "data",
        "identity",
        "max_timestamp",
        "partition",
        "pause_ms",
        "prepared",
        "size",
        "transactional",
    )

    def __init__(
        self,
        partition: TopicPartition,
        codec: Codec,
        retry_pause_ms: int,
        *,
        transactional: bool = False,
        room: bytearray | None = None,
    ) -> None:
        """``room``: memory of an earlier batch, whose content is not needed any more."""
        self.partition = partition
        self.codec = codec
        self.created = time.monotonic()
        self.transactional = transactional
        self.data = bytearray() if room is None else room
        self.size = 0
        """How much of ``data`` is records."""
        self.prepared: bytes | bytearray | memoryview | None = None
        self.compressed: bytes | None = None
        self.count = 0
        self.base_timestamp = 0
        self.max_timestamp = 0
        self.pause_ms = retry_pause_ms
        self.identity: tuple[int, int, int] | None = None  # producer id, epoch, base sequence

    def __len__(self) -> int:
        return self.size

    @property
    def records(self) -> memoryview:
        return memoryview(self.data)[: self.size]

    def _append(self, encoded: bytes) -> None:
        end = self.size + len(encoded)
        self.data[self.size : end] = encoded
        self.size = end

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int) -> None:
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        after = timestamp - self.base_timestamp
        count = self.count
        body = b"".join(
            (
                b"\x00",
                _SMALL[after] if 0 <= after < 8192 else _varint(after),
                _SMALL[count] if count < 8192 else _varint(count),
                _counted(key),
                _counted(value),
                _encode_headers(headers) if headers else _NO_HEADERS,
            )
        )
        size = len(body)
        self._append((_SMALL[size] if size < 8192 else _varint(size)) + body)
        self.count = count + 1

    def add_many(self, keys: ByteColumn | None, values: ByteColumn, first: int, timestamp: int, bytes_max: int) -> int:
        """Take records from ``first`` on while they fit into ``bytes_max``, at least one; gives where it stopped."""
        if self.count == 0:
            self.base_timestamp = timestamp
        self.max_timestamp = max(self.max_timestamp, timestamp)
        place, taken = first, _BLOCK_RECORDS
        while taken == _BLOCK_RECORDS and place < values.count:
            end = place + _BLOCK_RECORDS
            of_keys = None if keys is None else keys.slice(place, end)
            taken = self._add_block(of_keys, values.slice(place, end), timestamp, bytes_max)
            place += taken
        if place == first:
            self.add(None if keys is None else keys[first], values[first], (), timestamp)
            place += 1
        return place

    def _add_block(self, keys: ByteColumn | None, values: ByteColumn, timestamp: int, bytes_max: int) -> int:
        """Take those of a few records that fit; gives their number. Whole columns at a time, which is faster."""
        head = b"\x00" + _varint(timestamp - self.base_timestamp)
        deltas = _SMALL[self.count : self.count + values.count]
        longest_key = 0 if keys is None else max(keys.lengths)
        if longest_key + max(values.lengths) + _RECORD_OVERHEAD_MAX >= len(_SMALL) or len(deltas) < values.count:
            return self._add_singly(keys, values, timestamp, bytes_max)
        counted_keys = [len(_NULL)] * values.count if keys is None else [_COUNTED_SIZES[each] for each in keys.lengths]
        fixed = len(head) + len(_NO_HEADERS)
        sizes = [
            fixed + len(delta) + key + _COUNTED_SIZES[value]
            for delta, key, value in zip(deltas, counted_keys, values.lengths, strict=True)
        ]
        ends = accumulate(map(_COUNTED_SIZES.__getitem__, sizes), initial=self.size)
        taken = bisect_right(list(ends), bytes_max) - 1
        if taken <= 0:
            return 0
        if taken < values.count:
            keys, values = None if keys is None else keys.slice(0, taken), values.slice(0, taken)
            sizes, deltas = sizes[:taken], deltas[:taken]
        parts: list[Part] = [
            _small_varints(sizes),
            head,
            deltas,
            *([_NULL] if keys is None else [_small_varints(keys.lengths), *keys.parts]),
            _small_varints(values.lengths),
            *values.parts,
            _NO_HEADERS,
        ]
        self._append(interleaved(_joined_constants(parts), taken))
        self.count += taken
        return taken

    def _add_singly(self, keys: ByteColumn | None, values: ByteColumn, timestamp: int, bytes_max: int) -> int:
        for taken in range(values.count):
            key, value = None if keys is None else keys[taken], values[taken]
            if self.size + len(key or b"") + len(value) + _RECORD_OVERHEAD_MAX > bytes_max:
                return taken
            self.add(key, value, (), timestamp)
        return values.count

    def fill(self, prepared: PreparedRecords) -> None:
        """Take a whole batch's records as they are."""
        assert self.count == 0, "prepared records are a batch of their own"
        self.prepared = prepared.data
        self.compressed = prepared.compressed
        self.count = prepared.count
        self.base_timestamp = prepared.base_timestamp
        self.max_timestamp = prepared.max_timestamp

    def seal(self) -> bytes:
        """The batch as it goes onto the wire."""
        producer_id, epoch, sequence = self.identity or (NO_PRODUCER_ID, -1, -1)
        attributes = int(self.codec) | (TRANSACTIONAL if self.transactional else 0)
        batch = batch_without_records(
            attributes=attributes,
            record_count=self.count,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        records = self.compressed
        if records is None:
            records = compress(self.codec, self.records if self.prepared is None else memoryview(self.prepared))
        reseal(batch, records)
        return batch.data
