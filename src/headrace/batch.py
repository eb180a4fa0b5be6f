"""The record batch, magic 2: the one format on the wire, in memory and on disk.

::

    byte  field               type    inside the checksum
       0  base offset         int64   no   stamped by us when the batch is appended
       8  batch length        int32   no   bytes after this field: size - 12
      12  leader epoch        int32   no   stamped by us
      16  magic               int8    no   2
      17  checksum            uint32       CRC-32C of everything from byte 21 to the end
      21  attributes          int16   yes  bits 0-2 codec, 3 log append time, 4 transactional, 5 control,
                                           6 delete horizon
      23  last offset delta   int32   yes
      27  base timestamp      int64   yes  (the delete horizon, when bit 6 is set)
      35  max timestamp       int64   yes
      43  producer id         int64   yes  -1 for none
      51  producer epoch      int16   yes
      53  base sequence       int32   yes
      57  record count        int32   yes
      61  records                     yes  compressed as the codec says; see ``headrace.record``

A batch is valid when its length lies within the bytes we have, its magic is 2 and its checksum holds. What we stamp
lies in front of the checksum, so an append never rewrites what the producer sent: a ``Batch`` keeps the checksummed
``body`` as the producer's own immutable bytes, and what is written is the 21 bytes of ``prefix()`` and then that body.
No buffer is shared or reused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from headrace.errors import ErrorCode, KafkaError
from headrace.record import Codec, CorruptRecords, Record, compress, decode_records, encode_pairs, encode_records
from headrace.vocabulary import Epoch, Offset

__all__ = [
    "HEADER_BYTES",
    "NO_PRODUCER_ID",
    "PREFIX_BYTES",
    "Batch",
    "BatchAttributes",
    "BatchHeader",
    "CorruptBatch",
    "InvalidBatch",
    "RecordTooLarge",
    "TooManyRecords",
    "UnreadableBatch",
    "UnsupportedCodec",
    "batch_without_records",
    "build_batch",
    "build_pairs_batch",
    "control_batch",
    "control_type",
    "parse_header",
    "read_batches",
    "stamp",
    "stamp_log_append_time",
]

HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 21
LENGTH_FIELD_END: Final = 12
LENGTH_MIN: Final = 14
"""The shortest message of any format: what claims less is corrupt, whatever its magic says."""
MAGIC: Final = 2
_LENGTH_OF_NO_RECORDS: Final = HEADER_BYTES - LENGTH_FIELD_END
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MAX: Final = 2**31 - 1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qiibI")
_BODY_HEADER = struct.Struct(">hiqqqhii")
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")
assert _HEADER.size == HEADER_BYTES
assert _PREFIX.size == PREFIX_BYTES
assert PREFIX_BYTES + _BODY_HEADER.size == HEADER_BYTES

_crc32c = google_crc32c.value
_CODECS = tuple(Codec)
_new_tuple = tuple.__new__
"""``BatchHeader._make`` without its check of the length, which the struct has settled: it would cost as much again."""


class CorruptBatch(KafkaError):
    """The bytes are not a batch, or not the batch that was sent: wrong length, wrong magic or wrong checksum."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class InvalidBatch(KafkaError):
    """A whole batch that says something a producer may not say."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class UnreadableBatch(InvalidBatch):
    """The bytes do not divide into whole batches of the one format."""


class RecordTooLarge(KafkaError):
    """A batch is larger than the topic's ``max.message.bytes``."""

    def __init__(self, size: int, batch_bytes_max: int) -> None:
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size} bytes exceeds max.message.bytes={batch_bytes_max}; send smaller batches or raise it",
        )
        self.size = size
        self.batch_bytes_max = batch_bytes_max


class TooManyRecords(KafkaError):
    """A batch holds more records than ``max.batch.records``. Producers split a batch that is refused with this code."""

    def __init__(self, count: int, count_max: int) -> None:
        super().__init__(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {count} records exceeds max.batch.records={count_max}; send smaller batches or raise it",
        )
        self.count = count
        self.count_max = count_max


class UnsupportedCodec(KafkaError):
    """The attributes name a codec that does not exist."""

    def __init__(self, codec: int) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec} is not known; use 0 to 4")
        self.codec = codec


class BatchAttributes:
    """What the bits of a batch's ``attributes`` mean."""

    __slots__ = ()

    attributes: int

    @property
    def codec(self) -> Codec:
        try:
            return _CODECS[self.attributes & CODEC_MASK]
        except IndexError:
            raise UnsupportedCodec(self.attributes & CODEC_MASK) from None

    @property
    def is_log_append_time(self) -> bool:
        """All records then have ``max_timestamp``."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """A transaction's end: it takes an offset and holds no records of users."""
        return bool(self.attributes & CONTROL)


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in their order on the wire."""

    base_offset: Offset
    length: int
    leader_epoch: Epoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def prefix(self) -> bytes:
        """The first 21 bytes of the batch, as they are on disk."""
        return _PREFIX.pack(*self[:5])

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_FIELD_END

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)


class Batch(BatchAttributes):
    """One record batch: the header's fields, and the checksummed bytes as they came."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "body",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
    )

    def __init__(self, header: BatchHeader, body: bytes) -> None:
        """``body`` is everything from byte 21 on, or b"" if it was not read."""
        (
            self.base_offset,
            length,
            self.leader_epoch,
            _magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = header
        self.size = length + LENGTH_FIELD_END
        self.body = body

    def __repr__(self) -> str:
        return (
            f"Batch(base_offset={self.base_offset}, last_offset={self.last_offset}, size={self.size}, "
            f"records={self.record_count}, producer_id={self.producer_id}, sequence={self.base_sequence})"
        )

    @property
    def data(self) -> bytes:
        """The whole batch as it stands on the wire and on disk."""
        return self.prefix() + self.body

    def prefix(self) -> bytes:
        """The 21 bytes in front of ``body``, with what has been stamped."""
        return _PREFIX.pack(self.base_offset, self.size - LENGTH_FIELD_END, self.leader_epoch, MAGIC, self.crc)

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def last_sequence(self) -> int:
        """The last record's sequence; sequences wrap from 2^31-1 to 0."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        last = self.base_sequence + self.last_offset_delta
        return last if last <= SEQUENCE_MAX else last - SEQUENCE_MAX - 1

    @property
    def delete_horizon_ms(self) -> int | None:
        """When a cleaned batch's tombstones and markers may go; set by compaction."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def has_producer(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def checksum_holds(self) -> bool:
        return len(self.body) == self.size - PREFIX_BYTES and _crc32c(self.body) == self.crc


def parse_header(data: bytes | memoryview, position: int = 0) -> BatchHeader | None:
    """The header at ``position``, or None when no batch can begin there."""
    if len(data) - position < HEADER_BYTES:
        return None
    header = _new_tuple(BatchHeader, _HEADER.unpack_from(data, position))
    if header.magic != MAGIC or header.length < _LENGTH_OF_NO_RECORDS:
        return None
    return header if header.last_offset_delta >= 0 and header.base_offset >= 0 else None


def read_batches(
    data: bytes | bytearray | memoryview, *, batch_bytes_max: int, from_client: bool = True
) -> list[Batch]:
    """Split a Produce payload into batches and check each by its header: length, magic, checksum and counts."""
    view = memoryview(data)
    remaining = len(view)
    position = 0
    batches = []
    while remaining:
        if remaining < HEADER_BYTES:
            raise _too_short(view, position, remaining)
        header = _new_tuple(BatchHeader, _HEADER.unpack_from(view, position))
        size = header.size
        if header.length < LENGTH_MIN:
            raise CorruptBatch(f"a batch claims a length of {header.length}; the shortest message has {LENGTH_MIN}")
        if header.magic != MAGIC:
            raise _wrong_magic(header.magic)
        if size < HEADER_BYTES:
            raise CorruptBatch(f"a batch claims {size} bytes; the header alone takes {HEADER_BYTES}")
        if size > batch_bytes_max:
            raise RecordTooLarge(size, batch_bytes_max)
        if size > remaining:
            raise UnreadableBatch(f"a batch claims {size} bytes where {remaining} remain")
        batch = Batch(header, bytes(view[position + PREFIX_BYTES : position + size]))
        _check(batch, from_client)
        batches.append(batch)
        position += size
        remaining -= size
    if not batches:
        raise UnreadableBatch("a produce request must hold at least one record batch per partition")
    return batches


def _too_short(view: memoryview, position: int, remaining: int) -> KafkaError:
    if remaining > 16 and view[position + 16] != MAGIC:
        return _wrong_magic(view[position + 16])
    return UnreadableBatch(f"{remaining} bytes are too few for a batch header of {HEADER_BYTES}")


def _wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return UnreadableBatch(f"message format {magic} is not accepted; produce record batches with magic 2")
    return CorruptBatch(f"magic {magic} is not a record batch; expected 2")


def _check(batch: Batch, from_client: bool) -> None:
    if _crc32c(batch.body) != batch.crc:
        found = _crc32c(batch.body)
        raise CorruptBatch(
            f"a batch of {batch.size} bytes has checksum {found:#010x}; its header says {batch.crc:#010x}"
        )
    spanned = batch.last_offset_delta + 1
    # Compaction leaves batches that span more offsets than they have records, even none; a producer may not send such.
    fits = batch.record_count == spanned if from_client else 0 <= batch.record_count <= spanned
    if spanned < 1 or not fits:
        raise InvalidBatch(f"a batch claims {batch.record_count} records but offsets 0 to {batch.last_offset_delta}")
    if batch.attributes & CODEC_MASK > Codec.ZSTD:
        raise UnsupportedCodec(batch.attributes & CODEC_MASK)
    if not from_client:
        return
    if batch.attributes & CONTROL:
        raise InvalidBatch("a producer may not write control records")
    if batch.base_offset != 0:
        raise InvalidBatch(f"a producer's batch must have base offset 0, not {batch.base_offset}")
    if batch.producer_id != NO_PRODUCER_ID and batch.base_sequence < 0:
        raise InvalidBatch(f"producer {batch.producer_id} sent sequence {batch.base_sequence}; it must not be negative")


def stamp(batch: Batch, base_offset: Offset, leader_epoch: Epoch) -> None:
    """Give the batch its place in a log. Both fields stand before what the checksum covers, so nothing else changes."""
    batch.base_offset = base_offset
    batch.leader_epoch = leader_epoch


def stamp_log_append_time(batch: Batch, now_ms: int) -> None:
    """Make ``now_ms`` every record's timestamp (message.timestamp.type=LogAppendTime); this renews the checksum."""
    batch.attributes |= LOG_APPEND_TIME
    batch.max_timestamp = now_ms
    reseal(batch, batch.body[_BODY_HEADER.size :])


def reseal(batch: Batch, records: bytes) -> None:
    """Rebuild ``body``, ``size`` and checksum from the header fields and the (compressed) records."""
    batch.body = (
        _BODY_HEADER.pack(
            batch.attributes,
            batch.last_offset_delta,
            batch.base_timestamp,
            batch.max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.record_count,
        )
        + records
    )
    batch.size = PREFIX_BYTES + len(batch.body)
    batch.crc = _crc32c(batch.body)


def batch_without_records(
    *,
    attributes: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> Batch:
    """A batch whose header is known and whose records ``reseal`` adds."""
    header = BatchHeader(
        base_offset=Offset(base_offset),
        length=0,
        leader_epoch=Epoch(leader_epoch),
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=record_count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )
    return Batch(header, b"")


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> Batch:
    """A batch of these records with offsets counting up from ``base_offset``."""
    if not records:
        raise CorruptRecords("a batch needs at least one record")
    base_timestamp = records[0].timestamp
    payload = compress(codec, encode_records(records, base_timestamp=base_timestamp))
    attributes = int(codec) | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    batch = batch_without_records(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        record_count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    reseal(batch, payload)
    return batch


def build_pairs_batch(pairs: Sequence[tuple[bytes, bytes | None]], timestamp: int) -> Batch:
    """A batch of keys and values, all of one time."""
    batch = batch_without_records(
        attributes=int(Codec.NONE),
        record_count=len(pairs),
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
    )
    reseal(batch, encode_pairs(pairs))
    return batch


def control_batch(
    *, commit: bool, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp: int
) -> Batch:
    """The marker that ends a producer's transaction in one partition."""
    key = _CONTROL_KEY.pack(0, 1 if commit else 0)
    value = _CONTROL_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [Record(key=key, value=value, timestamp=timestamp)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def control_type(batch: Batch) -> tuple[bool, int] | None:
    """(is a commit, coordinator epoch) of a control batch; None when compaction has emptied it."""
    if batch.record_count == 0:
        return None
    record = decode_records(batch, 4096)[0]
    if record.key is None or len(record.key) < 4 or record.value is None or len(record.value) < 6:
        raise CorruptBatch(f"the control record at offset {batch.base_offset} has no usable key or value")
    kind = _CONTROL_KEY.unpack_from(record.key)[1]
    if kind not in (0, 1):
        raise CorruptBatch(f"the control record at offset {batch.base_offset} has unknown type {kind}")
    return kind == 1, int(_CONTROL_VALUE.unpack_from(record.value)[1])
