"""Records inside a batch: their bytes, and the five codecs that may wrap them.

A record is, in the batch's (decompressed) body after the 40 bytes of header that the checksum covers::

    length          varint   bytes that follow
    attributes      int8     unused, 0
    timestamp delta varlong  from the batch's base timestamp
    offset delta    varint   from the batch's base offset
    key length      varint   -1 for null, then the key
    value length    varint   -1 for null, then the value
    header count    varint   then per header: key length, key (UTF-8), value length (-1 null), value

Varints are zig-zag encoded, least significant group first. The data path never looks in here; records are decoded
only where a feature needs them (compaction, timestamps, the command line, ``headrace.validate=records``).

Every length is checked against the bytes that remain before it is used, and decompression writes into a buffer with a
known bound: a small batch that would unfold into gigabytes is refused while its output is still small.

Reading is in two parts. ``records_of`` decompresses a batch, which may be done in a thread. The ``iter_…`` functions
then walk the records one at a time, so that a caller on the event loop can stop after some thousands and go on later:
5 KB may hold a million records.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import cramjam

from headrace.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.batch import Batch

__all__ = [
    "Codec",
    "CorruptRecords",
    "DecompressedTooLarge",
    "Record",
    "compress",
    "decode_headers",
    "decode_records",
    "decompress",
    "encode_headers",
    "encode_pairs",
    "encode_records",
    "iter_keyed",
    "iter_keys",
    "iter_records",
    "iter_timestamps",
    "iter_validated",
    "record_keys",
    "records_of",
    "varint",
    "varint_at",
]

BATCH_BODY_HEADER_BYTES = 40
"""The part of the batch header that lies inside ``Batch.body``: attributes to record count."""

RECORD_BYTES_MIN = 7
"""The shortest record: one byte each for length, attributes, two deltas, key and value length, header count."""

SIZE_MIN = 2 * (RECORD_BYTES_MIN - 1)
"""The length of the shortest record, as the zig-zag varint in front of it says it."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_LZ4_SMALL = 64 * 1024, bytes.fromhex("04224d18 60 40 82")
_LZ4_LARGE = 256 * 1024, bytes.fromhex("04224d18 60 50 fb")
"""The bytes of a block at most, and the header of a frame: magic, version and independent blocks, that size, a checksum
of these."""
_LZ4_PLAIN_BLOCK = 0x80000000
"""In the size of a block: it is not compressed."""
_FIRST_OUTPUT_BYTES = 64 * 1024
_MAPPED_BYTES_MIN = 1 << 20
_PIECE_BYTES = 16 * 1024
_PIECE_OUTPUT_BYTES = 256 * 1024

Bytes = bytes | memoryview


class Codec(IntEnum):
    """How a batch's records are compressed: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptRecords(KafkaError):
    """The records of a batch do not parse although its checksum holds: the producer built them wrongly."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class DecompressedTooLarge(KafkaError):
    """A batch unfolds into more bytes than the limit; decompression stopped there."""

    def __init__(self, output_bytes_max: int) -> None:
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch decompresses to more than {output_bytes_max} bytes; send smaller batches or raise the limit",
        )
        self.output_bytes_max = output_bytes_max


@dataclass(slots=True)
class Record:
    """One record as a user sees it; ``offset`` is absolute once it comes from a log."""

    key: bytes | None
    value: bytes | None
    timestamp: int = -1
    offset: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def compress(codec: Codec, data: Bytes) -> bytes:
    """Compress a batch's records the way the Java client does (snappy in xerial's frame, lz4 and zstd framed)."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=6))
    if codec is Codec.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(data))
        return _XERIAL_MAGIC + struct.pack(">iii", 1, 1, len(block)) + block
    if codec is Codec.LZ4:
        return _lz4_frame(data)
    return bytes(cramjam.zstd.compress(data, level=3))


def _lz4_frame(data: Bytes) -> bytes:
    """As Java makes it: blocks that do not refer to each other, which Java would refuse, and no checksums besides the
    batch's own. Made here and not by the library, which takes three times as long and holds the interpreter's lock."""
    view = memoryview(data)
    block_bytes, header = _LZ4_SMALL if len(view) <= _LZ4_SMALL[0] else _LZ4_LARGE
    blocks = -(-len(view) // block_bytes)
    output = _room(len(header) + blocks * (4 + cramjam.lz4.compress_block_bound(view[:block_bytes])) + 4)
    output[: len(header)] = header
    end = len(header)
    for start in range(0, len(view), block_bytes):
        block, begin = view[start : start + block_bytes], end + 4
        size = cramjam.lz4.compress_block_into(block, output[begin:], store_size=False)
        if size < len(block):
            output[end:begin] = size.to_bytes(4, "little")
        else:
            size = len(block)
            output[end:begin] = (size | _LZ4_PLAIN_BLOCK).to_bytes(4, "little")
            output[begin : begin + size] = block
        end = begin + size
    return bytes(output[:end]) + bytes(4)


def decompress(codec: Codec, data: bytes, output_bytes_max: int) -> Bytes:
    """Decompress within ``output_bytes_max``; memory stays within a small multiple of that bound."""
    if codec is Codec.NONE:
        if len(data) > output_bytes_max:
            raise DecompressedTooLarge(output_bytes_max)
        return data
    try:
        if codec is Codec.GZIP:
            return _gunzip(data, output_bytes_max)
        if codec is Codec.SNAPPY:
            return _unsnap(data, output_bytes_max)
        into = cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
        return _decompress_growing(into, data, output_bytes_max)
    except (cramjam.DecompressionError, zlib.error, struct.error) as error:
        raise CorruptRecords(f"the batch's {codec.name.lower()} data does not decompress: {error}") from error


def _room(size: int) -> memoryview:
    """A writable buffer. A large one is mapped: making it costs nothing, and the codec, which runs without the
    interpreter's lock, is the first to touch its pages. A bytearray of 64 MB held the lock for 0.1 s."""
    return memoryview(bytearray(size) if size <= _MAPPED_BYTES_MIN else mmap.mmap(-1, size))


class _Output:
    """A buffer that grows by doubling up to a bound."""

    def __init__(self, output_bytes_max: int) -> None:
        self._bytes_max = output_bytes_max
        self._room = _room(min(_FIRST_OUTPUT_BYTES, output_bytes_max))
        self.size = 0

    @property
    def left(self) -> int:
        return self._bytes_max - self.size

    def add(self, part: Bytes) -> None:
        end = self.size + len(part)
        if end > self._bytes_max:
            raise DecompressedTooLarge(self._bytes_max)
        if end > len(self._room):
            larger = _room(min(self._bytes_max, max(end, 2 * len(self._room))))
            larger[: self.size] = self._room[: self.size]
            self._room = larger
        self._room[self.size : end] = part
        self.size = end

    def view(self) -> memoryview:
        return self._room[: self.size]


def _gunzip(data: bytes, output_bytes_max: int) -> memoryview:
    """The members one after the other, a piece at a time: what a member leaves unread is copied by the library."""
    output = _Output(output_bytes_max)
    member = zlib.decompressobj(wbits=31)
    for start in range(0, len(data), _PIECE_BYTES):
        rest = data[start : start + _PIECE_BYTES]
        while rest:
            if member.eof:
                member = zlib.decompressobj(wbits=31)
            output.add(member.decompress(rest, min(_PIECE_OUTPUT_BYTES, output.left + 1)))
            rest = member.unused_data if member.eof else member.unconsumed_tail
    while not member.eof:
        part = member.decompress(b"", min(_PIECE_OUTPUT_BYTES, output.left + 1))
        if not part:
            raise CorruptRecords("the batch's gzip data ends early")
        output.add(part)
    return output.view()


def _unsnap(data: bytes, output_bytes_max: int) -> Bytes:
    """Snappy states its output size up front, so the bound is checked before anything is allocated."""
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnap_block(data, output_bytes_max)
    output = _Output(output_bytes_max)
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 < size <= len(data) - position:
            raise CorruptRecords(f"a snappy block claims {size} bytes where {len(data) - position} remain")
        output.add(_unsnap_block(data[position : position + size], output.left))
        position += size
    return output.view()


def _unsnap_block(block: bytes, output_bytes_max: int) -> memoryview:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > output_bytes_max:
        raise DecompressedTooLarge(output_bytes_max)
    output = _room(max(size, 1))
    return output[: cramjam.snappy.decompress_raw_into(block, output)]


def _decompress_growing(into: Callable[[bytes, memoryview], int], data: bytes, output_bytes_max: int) -> memoryview:
    """Try with a guessed output buffer, and with one four times as large while the library says that it is full."""
    capacity = min(output_bytes_max, max(_FIRST_OUTPUT_BYTES, 8 * len(data)))
    while True:
        output = _room(capacity)
        try:
            return output[: into(data, output)]
        except cramjam.DecompressionError as error:
            if "failed to write whole buffer" not in str(error):
                raise
            if capacity >= output_bytes_max:
                raise DecompressedTooLarge(output_bytes_max) from None
            capacity = min(output_bytes_max, capacity * 4)


def _made_varint(value: int) -> bytes:
    out = bytearray()
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_VARINTS = tuple(map(_made_varint, range(8192)))
"""Those of one and two bytes that are not negative: nearly every length and delta."""


def varint(value: int) -> bytes:
    """A number as it stands in a record, zig-zag."""
    return _VARINTS[value] if 0 <= value < len(_VARINTS) else _made_varint(value)


def encode_records(records: Iterable[Record], *, base_timestamp: int, base_offset: int | None = None) -> bytes:
    """The uncompressed records section; offset deltas count up from 0, or follow the records' own offsets."""
    out = []
    for index, record in enumerate(records):
        key, value, headers = record.key, record.value, record.headers
        body = b"".join(
            (
                _ATTRIBUTES,
                varint(record.timestamp - base_timestamp),
                varint(index if base_offset is None else record.offset - base_offset),
                _NULL if key is None else varint(len(key)),
                key or b"",
                _NULL if value is None else varint(len(value)),
                value or b"",
                encode_headers(headers) if headers else _NO_HEADERS,
            )
        )
        out.append(varint(len(body)))
        out.append(body)
    return b"".join(out)


def encode_pairs(pairs: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    """The same for records without headers that have one timestamp: half the time where there are thousands."""
    out: list[bytes] = []
    for index, (key, value) in enumerate(pairs):
        delta, key_size = varint(index), varint(len(key))
        size = 3 + len(delta) + len(key_size) + len(key)  # attributes, timestamp and the number of headers
        if value is None:
            out += (varint(size + 1), _AT_BASE, delta, key_size, key, _NULL_AND_NO_HEADERS)
        else:
            value_size = varint(len(value))
            size += len(value_size) + len(value)
            out += (varint(size), _AT_BASE, delta, key_size, key, value_size, value, _NO_HEADERS)
    return b"".join(out)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The end of a record: how many headers there are, and each."""
    parts = [varint(len(headers))]
    for name, value in headers:
        raw = name.encode()
        parts += [varint(len(raw)), raw, _NULL if value is None else varint(len(value)), value or b""]
    return b"".join(parts)


_ATTRIBUTES = b"\x00"
"""No bit of a record's attributes is in use."""
_NULL = _made_varint(-1)
_NO_HEADERS = _made_varint(0)
_AT_BASE = _ATTRIBUTES + _made_varint(0)
"""And the timestamp of the batch."""
_NULL_AND_NO_HEADERS = _NULL + _NO_HEADERS


class _Reader:
    """A cursor over the records section that refuses to pass its end."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)

    def varint(self) -> int:
        data = self.data
        position = self.position
        shift = result = 0
        try:
            while True:
                byte = data[position]
                position += 1
                result |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 63:
                    raise CorruptRecords(f"a varint at byte {self.position} of the records is longer than 10 bytes")
        except IndexError:
            raise _ends_inside(self.position) from None
        self.position = position
        return (result >> 1) ^ -(result & 1)

    def nullable_bytes(self) -> bytes | None:
        size = self.varint()
        if size < 0:
            if size != -1:
                raise CorruptRecords(f"a length of {size} at byte {self.position} of the records")
            return None
        position = self.position
        if size > self.end - position:
            raise CorruptRecords(f"a length of {size} at byte {position} where {self.end - position} bytes remain")
        self.position = position + size
        return bytes(self.data[position : position + size])

    def skip_bytes(self) -> None:
        size = self.varint()
        if size > self.end - self.position or size < -1:
            raise CorruptRecords(f"a length of {size} where {self.end - self.position} bytes remain")
        self.position += max(size, 0)


def records_of(batch: Batch, output_bytes_max: int) -> Bytes:
    """The batch's records, decompressed."""
    data = decompress(batch.codec, batch.body[BATCH_BODY_HEADER_BYTES:], output_bytes_max)
    if batch.record_count < 0 or batch.record_count * RECORD_BYTES_MIN > len(data):
        raise CorruptRecords(f"a batch of {len(data)} bytes claims {batch.record_count} records")
    return data


def decode_records(batch: Batch, output_bytes_max: int) -> list[Record]:
    """All records of a batch with absolute offsets and timestamps."""
    return list(iter_records(batch, records_of(batch, output_bytes_max)))


def record_keys(batch: Batch, output_bytes_max: int) -> Iterator[tuple[int, bytes | None, bool]]:
    """(offset, key, value is null) of each record: what compaction needs, without building the rest."""
    return iter_keys(batch, records_of(batch, output_bytes_max))


def iter_records(batch: Batch, data: Bytes) -> Iterator[Record]:
    """The records of a batch with absolute offsets and timestamps; ``data`` is from ``records_of``."""
    reader = _Reader(data)
    append_time = batch.max_timestamp if batch.is_log_append_time else None
    for _ in range(batch.record_count):
        end = _start(reader)
        timestamp = batch.base_timestamp + reader.varint()
        offset = batch.base_offset + reader.varint()
        key = reader.nullable_bytes()
        value = reader.nullable_bytes()
        headers = _read_headers(reader)
        _finish(reader, end)
        timestamp = timestamp if append_time is None else append_time
        yield Record(key=key, value=value, timestamp=timestamp, offset=offset, headers=headers)
    _check_end(reader)


def iter_keys(batch: Batch, data: Bytes) -> Iterator[tuple[int, bytes | None, bool]]:
    """(offset, key, value is null) of each record."""
    reader = _Reader(data)
    base_offset = batch.base_offset
    for _ in range(batch.record_count):
        end = _start(reader)
        reader.varint()
        offset = base_offset + reader.varint()
        key = reader.nullable_bytes()
        is_null = reader.varint() == -1
        reader.position = end
        yield offset, key, is_null


def iter_keyed(batch: Batch, data: Bytes) -> Iterator[bool]:
    """Whether each record has a key. Most varints here are one byte, so that case is written out."""
    position, last = 0, len(data)
    try:
        for _ in range(batch.record_count):
            size, position = (data[position], position + 1) if data[position] < 0x80 else varint_at(data, position)
            end = position + (size >> 1)
            if size & 1 or size < SIZE_MIN or end > last:
                raise _wrong_size(size, last - position)
            position += 1  # the attributes
            position = position + 1 if data[position] < 0x80 else varint_at(data, position)[1]
            position = position + 1 if data[position] < 0x80 else varint_at(data, position)[1]
            yield not data[position] & 1  # the sign of the key's length
            position = end
    except IndexError:
        raise _ends_inside(position) from None


def iter_timestamps(batch: Batch, data: Bytes) -> Iterator[tuple[int, int]]:
    """(timestamp, offset) of each record; one-byte varints are written out here too."""
    append_time = batch.max_timestamp if batch.is_log_append_time else None
    base_timestamp, base_offset = batch.base_timestamp, batch.base_offset
    position, last = 0, len(data)
    try:
        for _ in range(batch.record_count):
            size, position = (data[position], position + 1) if data[position] < 0x80 else varint_at(data, position)
            end = position + (size >> 1)
            if size & 1 or size < SIZE_MIN or end > last:
                raise _wrong_size(size, last - position)
            position += 1  # the attributes
            delta, position = (data[position], position + 1) if data[position] < 0x80 else varint_at(data, position)
            offset = data[position] if data[position] < 0x80 else varint_at(data, position)[0]
            timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1)) if append_time is None else append_time
            yield timestamp, base_offset + (offset >> 1)
            position = end
    except IndexError:
        raise _ends_inside(position) from None


def _wrong_size(size: int, left: int) -> CorruptRecords:
    return CorruptRecords(f"a record of {(size >> 1) ^ -(size & 1)} bytes where {left} remain")


def _ends_inside(position: int) -> CorruptRecords:
    return CorruptRecords(f"the records end inside a varint at byte {position}")


def varint_at(data: Bytes, position: int) -> tuple[int, int]:
    """A varint as it stands, zig-zag, and the position after it; IndexError where the bytes end."""
    value = shift = 0
    while shift <= 63:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise CorruptRecords(f"a varint at byte {position - 10} of the records is longer than 10 bytes")


def iter_validated(batch: Batch, data: Bytes) -> Iterator[int]:
    """Check every record: exact lengths, offset deltas 0..n-1. Yields the index of each, and more often where a record
    has many headers: every step of the iteration is short."""
    reader = _Reader(data)
    for index in range(batch.record_count):
        end = _start(reader)
        reader.varint()
        delta = reader.varint()
        if delta != index:
            raise CorruptRecords(f"record {index} of the batch has offset delta {delta}")
        reader.skip_bytes()
        reader.skip_bytes()
        for _ in range(_header_count(reader)):
            _read_header(reader)
            yield index
        _finish(reader, end)
        yield index
    _check_end(reader)


def _start(reader: _Reader) -> int:
    """Reads a record's length and attributes; returns where it must end."""
    size = reader.varint()
    end = reader.position + size
    if size < RECORD_BYTES_MIN - 1 or end > reader.end:
        raise CorruptRecords(f"a record of {size} bytes where {reader.end - reader.position} remain")
    reader.position += 1
    return end


def _finish(reader: _Reader, end: int) -> None:
    if reader.position != end:
        raise CorruptRecords(f"a record ends at byte {reader.position} of the records but its length says {end}")


def _check_end(reader: _Reader) -> None:
    if reader.position != reader.end:
        raise CorruptRecords(f"{reader.end - reader.position} bytes follow the last record")


def _header_count(reader: _Reader) -> int:
    count = reader.varint()
    if count < 0 or count * 2 > reader.end - reader.position:
        raise CorruptRecords(f"{count} headers where {reader.end - reader.position} bytes remain")
    return count


def _read_headers(reader: _Reader) -> Sequence[tuple[str, bytes | None]]:
    count = _header_count(reader)
    return [_read_header(reader) for _ in range(count)] if count else ()


def decode_headers(data: Bytes) -> Sequence[tuple[str, bytes | None]]:
    """What ``encode_headers`` gave."""
    return _read_headers(_Reader(data))


def _read_header(reader: _Reader) -> tuple[str, bytes | None]:
    name = reader.nullable_bytes()
    if name is None:
        raise CorruptRecords("a header without a name")
    try:
        return name.decode(), reader.nullable_bytes()
    except UnicodeDecodeError as error:
        raise CorruptRecords("a header name that is not UTF-8") from error
