"""Producer snapshots in a log's directory: ``<offset>.producers``.

A snapshot is the state of all producers at that offset, so that recovery replays only the batches after it. Its bytes
are one line ``headrace-producers 2 <CRC-32C of the rest, 8 hex digits>`` and then, little-endian::

    offset               int64
    number of producers  uint32
    per producer:
      producer id        int64
      epoch              int16
      coordinator epoch  int32
      last timestamp     int64
      transaction start  int64   -1 for none
      number of batches  uint8   at most 5
      per batch: first and last sequence int32, first and last offset int64, timestamp int64

A snapshot that does not check out is ignored, and an older one, or the log, is used. Snapshots are encoded and written
on a thread of the executor: with 50,000 producers it takes a tenth of a second.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import google_crc32c

from headrace.batch import NO_PRODUCER_ID, Batch
from headrace.log.checkpoint import LogMark
from headrace.log.disk import replace_file
from headrace.log.findings import Finding, OnFinding, Severity
from headrace.log.producers import AbortedTransaction, FrozenProducers, ProducerRow, ProducerStates, SentBatch
from headrace.log.segment import Segment, segment_name
from headrace.ports import Disk
from headrace.vocabulary import FILE_START, Offset

__all__ = [
    "Snapshot",
    "decode_snapshot",
    "derive_aborted",
    "encode_snapshot",
    "producers_at",
    "replay_headers",
    "snapshot_offsets",
    "snapshot_path",
]

_HEAD: Final = b"headrace-producers 2 "
_START = struct.Struct("<qI")
_PRODUCER = struct.Struct("<qhiqqB")
_BATCH = struct.Struct("<iiqqq")
_NO_TRANSACTION: Final = -1
_SUFFIX = ".producers"
_NAME = re.compile(r"([0-9]{20})\.producers")
_KEPT = 2
"""The newest that recovery could use, and the one before it in case the newest has decayed."""


def encode_snapshot(producers: FrozenProducers, offset: Offset) -> bytes:
    pieces = [_START.pack(offset, len(producers))]
    for number, epoch, coordinator_epoch, timestamp, start, batches in producers.rows():
        begun = _NO_TRANSACTION if start is None else start
        pieces.append(_PRODUCER.pack(number, epoch, coordinator_epoch, timestamp, begun, len(batches)))
        pieces += [_BATCH.pack(*batch) for batch in batches]
    body = b"".join(pieces)
    return _HEAD + b"%08x\n" % google_crc32c.value(body) + body


def decode_snapshot(data: bytes) -> tuple[ProducerStates, Offset] | None:
    """The state and its offset, or None when the bytes do not check out."""
    head, _, body = data.partition(b"\n")
    if head != _HEAD + b"%08x" % google_crc32c.value(body):
        return None
    offset, count = _START.unpack_from(body)
    return ProducerStates.of(_rows(body, count)), Offset(offset)


def _rows(body: bytes, count: int) -> Iterator[ProducerRow]:
    position = _START.size
    for _ in range(count):
        number, epoch, coordinator_epoch, timestamp, begun, batch_count = _PRODUCER.unpack_from(body, position)
        position += _PRODUCER.size
        end = position + batch_count * _BATCH.size
        batches = list(map(SentBatch._make, _BATCH.iter_unpack(body[position:end])))
        position = end
        start = None if begun == _NO_TRANSACTION else begun
        yield number, epoch, coordinator_epoch, timestamp, start, batches


def snapshot_path(directory: str, offset: Offset) -> str:
    return f"{directory}/{segment_name(offset)}{_SUFFIX}"


def snapshot_offsets(names: Iterable[str]) -> list[Offset]:
    return sorted(Offset(int(match[1])) for match in map(_NAME.fullmatch, names) if match)


def producers_at(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    offset: Offset,
    mark: LogMark,
    on_finding: OnFinding = lambda _: None,
) -> ProducerStates:
    """The state at ``offset``: the newest usable snapshot at or before it, and the batches between."""
    if mark.producerless and offset >= mark.recovery_offset:
        states = ProducerStates()
        replay_headers(states, segments, mark.recovery_offset, offset)
        return states
    states, reached = _newest_snapshot(disk, directory, offset, on_finding)
    if segments and reached < segments[0].base_offset and mark.recovery_offset > 0:
        first = segments[0].base_offset
        message = f"no producer snapshot after offset {reached}: producers are known from offset {first} on"
        on_finding(Finding(Severity.WARNING, directory, message))
    replay_headers(states, segments, reached, offset)
    return states


def _newest_snapshot(
    disk: Disk, directory: str, offset: Offset, on_finding: OnFinding
) -> tuple[ProducerStates, Offset]:
    """The newest usable snapshot at or before ``offset``, or nothing at offset 0."""
    for at in reversed(snapshot_offsets(disk.listdir(directory))):
        if at <= offset:
            path = snapshot_path(directory, at)
            found = decode_snapshot(_read(disk, path))
            if found is not None:
                return found
            on_finding(Finding(Severity.WARNING, path, "the checksum is wrong; an older one or the log is used"))
    return ProducerStates(), Offset(0)


def derive_aborted(
    disk: Disk, directory: str, segments: Sequence[Segment], segment: Segment
) -> list[AbortedTransaction]:
    """The aborted transactions whose markers stand in ``segment``, from the log; ``segments`` are it and those before
    it."""
    states, reached = _newest_snapshot(disk, directory, segment.base_offset, lambda _: None)
    replay_headers(states, segments, reached, segment.base_offset)
    found = []
    for position, header in segment.headers(FILE_START, segment.size):
        batch = Batch(header, b"")
        if batch.producer_id != NO_PRODUCER_ID:
            aborted = states.apply(segment.read_batch(position) if batch.is_control else batch)
            found += [] if aborted is None else [aborted]
    return found


def _read(disk: Disk, path: str) -> bytes:
    file = disk.open(path, writable=False)
    return file.pread(file.size(), 0)


def replay_headers(states: ProducerStates, segments: Sequence[Segment], from_offset: Offset, to_offset: Offset) -> None:
    """Fold the batches in [from_offset, to_offset) into the state; of markers the body is read, of others the
    header."""
    for number, segment in enumerate(segments):
        is_before = number + 1 < len(segments) and segments[number + 1].base_offset <= from_offset
        if is_before or segment.base_offset >= to_offset or from_offset >= to_offset:
            continue
        start = segment.position_of(from_offset) if from_offset > segment.base_offset else FILE_START
        segment.check(start, segment.size)
        for position, header in segment.headers(start, segment.size):
            if header.base_offset >= to_offset:
                return
            batch = Batch(header, b"")
            if batch.producer_id != NO_PRODUCER_ID:
                states.apply(segment.read_batch(position) if batch.is_control else batch)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that is to be written, on whichever thread."""

    disk: Disk
    directory: str
    producers: FrozenProducers
    offset: Offset
    recovery_offset: Offset

    def write(self) -> None:
        """Save it, unsynced. Raises OSError.

        The newest snapshot that recovery could begin with stays whatever comes after it: later ones may not survive a
        crash, and the batches before it may have been removed by retention.
        """
        existing = snapshot_offsets(self.disk.listdir(self.directory))
        if not len(self.producers) and not existing:
            return
        path = snapshot_path(self.directory, self.offset)
        data = encode_snapshot(self.producers, self.offset)
        if self.offset not in existing:
            replace_file(self.disk, path, data, sync=False)
        elif _read(self.disk, path) != data:
            # Recovery may depend on the one that is there: until the new one is safe, the old one must be.
            replace_file(self.disk, path, data)
        usable = [at for at in existing if at <= self.recovery_offset]
        for old in usable[:-_KEPT]:
            self.disk.unlink(snapshot_path(self.directory, old))
