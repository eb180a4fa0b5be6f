"""Record batches become Arrow columns without a Python step per field.

Where records start is found first (``starts.py``); everything else is read for all records at once, field after field,
with numpy::

    starts   ─▶ timestamp delta ─▶ offset delta ─▶ key length ─▶ value length ─▶ header count
               (varints of all records, read in lockstep: first bytes, then the second bytes of those that have one)

Keys and values are then pieces of the buffer that the records came in (``pieces.py``), which become the contiguous
column that Spark takes when it is asked for.

Several batches are decoded together: producers that send small batches would otherwise pay numpy's fixed costs for
every one of them. Every length is checked against the end of its record before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.batch import CODEC_MASK, CONTROL, HEADER_BYTES, LOG_APPEND_TIME
from headrace.client import RawBatch
from headrace.record import RECORD_BYTES_MIN, CorruptRecords, decompress
from headrace.spark.source.pieces import EMPTY, PADDING, Pieces, binary_column, words_of
from headrace.spark.source.starts import record_starts

__all__ = ["DECOMPRESSED_BYTES_MAX", "HEADERS_TYPE", "Decoded", "decode", "grouped"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""No batch may unfold into more: brokers take 1 MiB by default, and even highly compressible data stays below."""
BUFFER_BYTES_MAX = 2**31 - 64
"""Arrow's views count positions in 32 bits."""

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""As Spark's Kafka source declares it: ``array<struct<key:string,value:binary>>``."""

_VARINT_BYTES_MAX = 10
_SHORT_MASK = np.array([0xFF, 0xFFFF, 0xFFFFFF], np.int64)


@dataclass(slots=True)
class Decoded:
    """The records of some batches of one partition, in order, as columns."""

    offsets: Ints
    timestamps_ms: Ints
    timestamp_types: npt.NDArray[np.int32]  # 0 the producer's clock, 1 the broker's
    keys: pa.BinaryArray
    value_pieces: Pieces
    has_key: npt.NDArray[np.bool_]
    """Known also where the keys themselves were not asked for."""
    headers: pa.ListArray | None = None

    @property
    def row_count(self) -> int:
        return len(self.offsets)

    @property
    def values(self) -> pa.BinaryArray:
        """As a column, which is made when it is asked for first."""
        return self.value_pieces.column()


@dataclass(slots=True)
class _Fields:
    """Where the fields of each record lie in the joined buffer. A length of -1 is a null."""

    ends: Ints
    timestamp_deltas: Ints
    offset_deltas: Ints
    key_starts: Ints
    key_sizes: Ints
    value_starts: Ints
    value_sizes: Ints
    header_starts: Ints


def grouped(batches: Iterable[RawBatch], *, bytes_max: int) -> Iterator[list[RawBatch]]:
    """Batches in groups worth decoding together, so that memory follows ``bytes_max`` and not the range read."""
    group: list[RawBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        # Compressed batches grow; what they grow to is not known before, so they count for more than they are.
        size += len(batch.data) * (4 if batch.attributes & CODEC_MASK else 1)
        if size >= bytes_max:
            yield group
            group, size = [], 0
    if group:
        yield group


def decode(
    batches: Sequence[RawBatch],
    *,
    start: int = 0,
    end: int = 2**63 - 1,
    keys: bool = True,
    headers: bool = False,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Decoded:
    """All records with ``start <= offset < end``; markers of transactions are no records.

    Keys and headers that nobody asked for are left empty, and values are copied when they are used.
    """
    readable = [batch for batch in batches if batch.record_count > 0 and not batch.attributes & CONTROL]
    if not readable:
        return _nothing(headers)
    payloads = [_payload(batch, decompressed_bytes_max) for batch in readable]
    data = b"".join([*payloads, PADDING])
    if len(data) > BUFFER_BYTES_MAX:
        raise CorruptRecords(f"batches of {len(data)} bytes cannot be decoded together; read fewer at a time")
    counts = np.array([batch.record_count for batch in readable], np.int64)
    bases = np.array([batch.base_offset for batch in readable], np.int64)
    bounds = np.zeros(len(readable) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)), out=bounds[1:])
    starts, inner = record_starts(data, bounds, counts, bases)
    raw = np.frombuffer(data, np.uint8)
    fields = _read_fields(raw, starts, inner, int(bounds[-1]))
    offsets = _offsets(readable, bases, counts, fields.offset_deltas)
    stamped = np.array([batch.attributes for batch in readable], np.int32) & LOG_APPEND_TIME != 0
    types = np.repeat(stamped.astype(np.int32), counts)
    times = _timestamps(readable, stamped, counts, fields.timestamp_deltas)
    chosen = _chosen(offsets, start, end)
    if chosen is not None:
        offsets, times, types = offsets[chosen], times[chosen], types[chosen]
        fields = _Fields(*(getattr(fields, name)[chosen] for name in _Fields.__slots__))
    return Decoded(
        offsets=offsets,
        timestamps_ms=times,
        timestamp_types=types,
        keys=binary_column(data, fields.key_starts, fields.key_sizes) if keys else EMPTY,
        value_pieces=Pieces(data, fields.value_starts, fields.value_sizes),
        has_key=fields.key_sizes >= 0,
        headers=_read_headers(data, raw, fields) if headers else None,
    )


def _nothing(headers: bool) -> Decoded:
    none = np.zeros(0, np.int64)
    no_headers = pa.array([], HEADERS_TYPE) if headers else None
    return Decoded(
        none, none, none.astype(np.int32), EMPTY, Pieces(PADDING, none, none), none.astype(np.bool_), no_headers
    )


def _payload(batch: RawBatch, decompressed_bytes_max: int) -> bytes | memoryview:
    data: bytes | memoryview = batch.data[HEADER_BYTES:]
    if batch.attributes & CODEC_MASK:
        data = decompress(batch.codec, bytes(data), decompressed_bytes_max)
    if batch.record_count * RECORD_BYTES_MIN > len(data):
        raise CorruptRecords(f"a batch of {len(data)} bytes claims {batch.record_count} records")
    return data


def _offsets(batches: Sequence[RawBatch], bases: Ints, counts: Ints, deltas: Ints) -> Ints:
    """Offsets grow and stay within their batches: a record elsewhere would be lost or doubled without an error."""
    lasts = np.array([batch.last_offset for batch in batches], np.int64)
    if (deltas < 0).any() or (deltas > np.repeat(lasts - bases, counts)).any():
        raise CorruptRecords(f"a record of the batches from offset {bases[0]} on lies outside its batch")
    offsets = np.repeat(bases, counts) + deltas
    if (offsets[1:] <= offsets[:-1]).any():
        raise CorruptRecords(f"offsets of the batches from {bases[0]} on do not grow")
    return offsets


def _timestamps(batches: Sequence[RawBatch], stamped: npt.NDArray[np.bool_], counts: Ints, deltas: Ints) -> Ints:
    """The producer's time of each record, or for batches that the broker stamped that one time for all of them."""
    bases = np.array([batch.base_timestamp for batch in batches], np.int64)
    if not stamped.any():
        return np.repeat(bases, counts) + deltas
    latest = np.array([batch.max_timestamp for batch in batches], np.int64)
    return np.repeat(np.where(stamped, latest, bases), counts) + np.where(np.repeat(stamped, counts), 0, deltas)


def _chosen(offsets: Ints, start: int, end: int) -> npt.NDArray[np.bool_] | None:
    """None when all records lie in the range, as they do but for the first and the last batch of it."""
    inside = (offsets >= start) & (offsets < end)
    return None if inside.all() else inside


def _read_fields(raw: Bytes, starts: Ints, position: Ints, end: int) -> _Fields:
    """``position`` is after the lengths and the attributes, which nobody uses."""
    ends = np.append(starts[1:], end)
    timestamp_deltas, position = _read_varints(raw, position)
    offset_deltas, position = _read_varints(raw, position)
    key_sizes, key_starts = _read_sizes(raw, position, ends, "key")
    value_sizes, value_starts = _read_sizes(raw, key_starts + np.maximum(key_sizes, 0), ends, "value")
    header_starts = value_starts + np.maximum(value_sizes, 0)
    if (header_starts >= ends).any():
        raise CorruptRecords("a record ends before its headers")
    return _Fields(
        ends, timestamp_deltas, offset_deltas, key_starts, key_sizes, value_starts, value_sizes, header_starts
    )


def _read_sizes(raw: Bytes, position: Ints, ends: Ints, what: str) -> tuple[Ints, Ints]:
    """Lengths of keys or values, and where they begin; all within their records."""
    if (position >= ends).any():
        raise CorruptRecords(f"a record ends before its {what}")
    sizes, position = _read_varints(raw, position)
    if (sizes < -1).any() or (sizes > ends - position).any():
        raise CorruptRecords(f"a {what} is longer than the record around it")
    return sizes, position


def _read_varints(raw: Bytes, position: Ints) -> tuple[Ints, Ints]:
    """One varint per position, and what follows it. Those of up to three bytes are read from one word each."""
    words = words_of(raw)[position]
    second = words >> 7 & 1
    if not second.any():
        encoded = words & 0x7F
        return encoded >> 1 ^ -(encoded & 1), position + 1
    third = second & words >> 15
    words &= _SHORT_MASK[second + third]
    encoded = words & 0x7F | words >> 1 & 0x7F << 7 | words >> 2 & 0x7F << 14
    values = encoded >> 1 ^ -(encoded & 1)
    following = position + 1 + second + third
    longer = np.flatnonzero(third & words >> 23)
    if longer.size:
        values[longer], following[longer] = _read_long_varints(raw, raw[position[longer]], position[longer] + 1)
    return values, following


def _read_long_varints(raw: Bytes, first: Bytes, following: Ints) -> tuple[Ints, Ints]:
    """Those of more than one byte, of which the first was read."""
    values = (first & 0x7F).astype(np.uint64)
    more = np.arange(len(values))
    shift = 7
    while more.size:
        if shift > 7 * (_VARINT_BYTES_MAX - 1):
            raise CorruptRecords(f"a varint is longer than {_VARINT_BYTES_MAX} bytes")
        at = following[more]
        if at[-1] >= len(raw):
            raise CorruptRecords("the records end inside a varint")
        byte = raw[at]
        values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        following[more] = at + 1
        more = more[byte >= 0x80]
        shift += 7
    signs = (values & np.uint64(1)).astype(np.int64)
    return (values >> np.uint64(1)).astype(np.int64) ^ -signs, following


def _read_headers(data: bytes, raw: Bytes, fields: _Fields) -> pa.ListArray:
    """Headers of all records, the first of each record, then the second of those that have two, and so on.

    A record without headers has null and not an empty list, as in Spark's Kafka source.
    """
    counts, position = _read_varints(raw, fields.header_starts)
    if (counts < 0).any() or (counts > (fields.ends - position) // 2).any():
        raise CorruptRecords("a record claims more headers than fit into it")
    list_offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=list_offsets[1:])
    total = int(list_offsets[-1])
    places = [np.zeros(total, np.int64) for _ in range(4)]
    rows = np.nonzero(counts)[0]
    ordinal = 0
    while rows.size:
        ends = fields.ends[rows]
        name_sizes, name_starts = _read_sizes(raw, position[rows], ends, "header's name")
        value_sizes, value_starts = _read_sizes(raw, name_starts + np.maximum(name_sizes, 0), ends, "header's value")
        if (name_sizes < 0).any():
            raise CorruptRecords("a header without a name")
        into = list_offsets[rows] + ordinal
        for place, found in zip(places, (name_starts, name_sizes, value_starts, value_sizes), strict=True):
            place[into] = found
        position[rows] = value_starts + np.maximum(value_sizes, 0)
        ordinal += 1
        rows = rows[counts[rows] > ordinal]
    if (position != fields.ends).any():
        raise CorruptRecords("a record is longer than its fields")
    return _header_lists(data, list_offsets, counts, places)


def _header_lists(data: bytes, list_offsets: Ints, counts: Ints, places: Sequence[Ints]) -> pa.ListArray:
    try:
        names = binary_column(data, places[0], places[1]).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptRecords("a header name that is not UTF-8") from error
    values = binary_column(data, places[2], places[3])
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    return pa.ListArray.from_arrays(
        pa.array(list_offsets.astype(np.int32)), entries, type=HEADERS_TYPE, mask=pa.array(counts == 0)
    )
