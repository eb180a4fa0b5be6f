"""Record batches become Arrow columns without a Python step per field.

Only one thing about a batch is sequential: a record's length says where the next one begins. So a tight loop walks the
lengths and notes where records start; everything else is read for all records at once, field after field, with numpy::

    starts   ─▶ timestamp delta ─▶ offset delta ─▶ key length ─▶ value length ─▶ header count
               (varints of all records, read in lockstep: first bytes, then the second bytes of those that have one)

Keys and values are then described as views (length, first bytes, position) over the buffer that the records came in,
and Arrow's own cast copies them into the contiguous column that Spark takes.

Several batches are decoded together: producers that send small batches would otherwise pay numpy's fixed costs for
every one of them. Every length is checked against the end of its record before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.client import RawBatch
from headrace.record import RECORD_BYTES_MIN, Codec, CorruptRecords, decompress

__all__ = ["DECOMPRESSED_BYTES_MAX", "HEADERS_TYPE", "Decoded", "binary_column", "decode", "grouped"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""No batch may unfold into more: brokers take 1 MiB by default, and even highly compressible data stays below."""
BUFFER_BYTES_MAX = 2**31 - 64
"""Arrow's views count positions in 32 bits."""

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""As Spark's Kafka source declares it: ``array<struct<key:string,value:binary>>``."""

_EMPTY = pa.nulls(0, pa.binary())  # pa.array would import pandas, two seconds in every process that Spark starts
_PADDING = bytes(64)  # varints and views may be read past the end before their check says that they may not
_VARINT_BYTES_MAX = 10
_VIEW_INLINE_BYTES = 12

# A record's length is zig-zag encoded; what is added to the position is the length and the bytes it takes itself.
_STEP_ONE_BYTE = [(byte >> 1) + 1 if byte < 0x80 else ((byte & 0x7F) >> 1) + 2 for byte in range(256)]
_STEP_SECOND_BYTE = [byte << 6 for byte in range(0x80)] + [-1] * 0x80

_INLINE_MASK = (np.arange(_VIEW_INLINE_BYTES) < np.arange(_VIEW_INLINE_BYTES + 1)[:, None]).astype(np.uint8)


@dataclass(slots=True)
class Decoded:
    """The records of some batches of one partition, in order, as columns."""

    offsets: Ints
    timestamps_ms: Ints
    timestamp_types: npt.NDArray[np.int32]  # 0 the producer's clock, 1 the broker's
    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.ListArray | None = None

    @property
    def row_count(self) -> int:
        return len(self.offsets)


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
        size += len(batch.data) * (4 if batch.codec is not Codec.NONE else 1)
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
    values: bool = True,
    headers: bool = False,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Decoded:
    """All records with ``start <= offset < end``; markers of transactions are no records.

    Columns that nobody asked for are left empty: copying them is most of the work.
    """
    readable = [batch for batch in batches if batch.record_count > 0 and not batch.is_control]
    if not readable:
        return _nothing(headers)
    payloads = [_payload(batch, decompressed_bytes_max) for batch in readable]
    data = b"".join([*payloads, _PADDING])
    if len(data) > BUFFER_BYTES_MAX:
        raise CorruptRecords(f"batches of {len(data)} bytes cannot be decoded together; read fewer at a time")
    starts = _record_starts(data, readable, payloads)
    counts = np.array([batch.record_count for batch in readable])
    raw = np.frombuffer(data, np.uint8)
    fields = _read_fields(raw, starts, len(data) - len(_PADDING))
    offsets = _offsets(readable, counts, fields.offset_deltas)
    types = np.repeat(np.array([int(batch.is_log_append_time) for batch in readable], np.int32), counts)
    times = _timestamps(readable, counts, fields.timestamp_deltas)
    chosen = _chosen(offsets, start, end)
    if chosen is not None:
        offsets, times, types = offsets[chosen], times[chosen], types[chosen]
        fields = _Fields(*(getattr(fields, name)[chosen] for name in _Fields.__slots__))
    return Decoded(
        offsets=offsets,
        timestamps_ms=times,
        timestamp_types=types,
        keys=binary_column(data, fields.key_starts, fields.key_sizes) if keys else _EMPTY,
        values=binary_column(data, fields.value_starts, fields.value_sizes) if values else _EMPTY,
        headers=_read_headers(data, raw, fields) if headers else None,
    )


def _nothing(headers: bool) -> Decoded:
    none = np.zeros(0, np.int64)
    return Decoded(none, none, none.astype(np.int32), _EMPTY, _EMPTY, pa.array([], HEADERS_TYPE) if headers else None)


def _payload(batch: RawBatch, decompressed_bytes_max: int) -> bytes | memoryview:
    compressed = batch.records
    codec = batch.codec
    if codec is Codec.NONE:
        data: bytes | memoryview = compressed
    else:
        data = decompress(codec, bytes(compressed), decompressed_bytes_max)
    if batch.record_count * RECORD_BYTES_MIN > len(data):
        raise CorruptRecords(f"a batch of {len(data)} bytes claims {batch.record_count} records")
    return data


def _offsets(batches: Sequence[RawBatch], counts: Ints, deltas: Ints) -> Ints:
    """Offsets grow and stay within their batches: a record elsewhere would be lost or doubled without a word."""
    bases = np.array([batch.base_offset for batch in batches], np.int64)
    lasts = np.array([batch.last_offset for batch in batches], np.int64)
    if (deltas < 0).any() or (deltas > np.repeat(lasts - bases, counts)).any():
        raise CorruptRecords(f"a record of the batches from offset {bases[0]} on lies outside its batch")
    offsets = np.repeat(bases, counts) + deltas
    if (offsets[1:] <= offsets[:-1]).any():
        raise CorruptRecords(f"offsets of the batches from {bases[0]} on do not grow")
    return offsets


def _timestamps(batches: Sequence[RawBatch], counts: Ints, deltas: Ints) -> Ints:
    """The producer's time of each record, or for batches that the broker stamped that one time for all of them."""
    stamped = np.array([batch.is_log_append_time for batch in batches])
    bases = np.array(
        [batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp for batch in batches], np.int64
    )
    times = np.repeat(bases, counts)
    if not stamped.any():
        return times + deltas
    return times + np.where(np.repeat(stamped, counts), 0, deltas)


def _chosen(offsets: Ints, start: int, end: int) -> npt.NDArray[np.bool_] | None:
    """None when all records lie in the range, as they do but for the first and the last batch of it."""
    inside = (offsets >= start) & (offsets < end)
    return None if inside.all() else inside


def _record_starts(data: bytes, batches: Sequence[RawBatch], payloads: Sequence[bytes | memoryview]) -> Ints:
    starts: list[int] = []
    position = 0
    for batch, payload in zip(batches, payloads, strict=True):
        end = position + len(payload)
        try:
            found = _walk(data, position, batch.record_count, starts)
        except IndexError:
            raise CorruptRecords(f"a record of the batch at offset {batch.base_offset} ends behind its batch") from None
        if found != end:
            raise CorruptRecords(
                f"the records of the batch at offset {batch.base_offset} end at byte {found - position} "
                f"of {len(payload)}"
            )
        position = end
    return np.array(starts, np.int64)


def _walk(data: bytes, position: int, count: int, starts: list[int]) -> int:
    """Note where ``count`` records start; the one loop over records that there is, so it does as little as it can.

    A wrong length leads into the next batch or behind all of them: the caller sees where the walk ended, or an
    IndexError.
    """
    append = starts.append
    step_one = _STEP_ONE_BYTE
    step_second = _STEP_SECOND_BYTE
    for _ in range(count):
        append(position)
        byte = data[position]
        if byte < 0x80:
            position += step_one[byte]
        else:
            second = data[position + 1]
            if second < 0x80:
                position += step_one[byte] + step_second[second]
            else:
                position += _long_step(data, position)
    return position


def _long_step(data: bytes, position: int) -> int:
    """The step over a record of 8 KiB and more, whose length takes three bytes or more."""
    result = shift = 0
    for index in range(5):
        byte = data[position + index]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) + index + 1
        shift += 7
    raise CorruptRecords(f"a record's length at byte {position} of the records is longer than 5 bytes")


def _read_fields(raw: Bytes, starts: Ints, end: int) -> _Fields:
    ends = np.append(starts[1:], end)
    if (raw[starts] & 1).any():
        raise CorruptRecords("a record of negative length")
    position = _behind_varint(raw, starts) + 1  # and the attributes, which nobody uses
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


def _behind_varint(raw: Bytes, position: Ints) -> Ints:
    """The positions behind varints whose values are known already."""
    following = position + 1
    more = np.nonzero(raw[position] & 0x80)[0]
    while more.size:
        at = following[more]
        following[more] = at + 1
        more = more[(raw[at] & 0x80) != 0]
    return following


def _read_varints(raw: Bytes, position: Ints) -> tuple[Ints, Ints]:
    """One varint per position; rounds go on with those that have another byte, which are few for small numbers."""
    first = raw[position]
    values = (first & 0x7F).astype(np.uint64)
    following = position + 1
    more = np.nonzero(first & 0x80)[0]
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
        more = more[(byte & 0x80) != 0]
        shift += 7
    signs = (values & np.uint64(1)).astype(np.int64)
    return (values >> np.uint64(1)).astype(np.int64) ^ -signs, following


def binary_column(data: bytes, starts: Ints, sizes: Ints) -> pa.BinaryArray:
    """Pieces of ``data`` as an Arrow column of their own; a size of -1 is a null.

    Arrow's view of a value is 16 bytes: its length, and then either the value itself (up to 12 bytes, zero behind it)
    or its first four bytes, the number of a buffer and the position there.
    """
    count = len(starts)
    if count == 0:
        return _EMPTY
    null = sizes < 0
    lengths = np.maximum(sizes, 0)
    raw = np.frombuffer(data, np.uint8)
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = lengths
    views[:, 1] = _windows(raw, 4)[starts].view(np.int32)[:, 0]
    views[:, 3] = starts
    short = np.nonzero(lengths <= _VIEW_INLINE_BYTES)[0]
    if short.size:
        inline = _windows(raw, _VIEW_INLINE_BYTES)[starts[short]] * _INLINE_MASK[lengths[short]]
        views[short, 1:] = inline.view(np.int32)
    validity = pa.array(~null).buffers()[1] if null.any() else None
    viewed = pa.Array.from_buffers(
        pa.binary_view(), count, [validity, pa.py_buffer(views), pa.py_buffer(data)], int(null.sum())
    )
    return viewed.cast(pa.binary())


def _windows(raw: Bytes, size: int) -> Any:
    """Row i is the ``size`` bytes from position i on, without a copy."""
    return np.lib.stride_tricks.as_strided(raw, (len(raw) - size + 1, size), (1, 1), writeable=False)


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
