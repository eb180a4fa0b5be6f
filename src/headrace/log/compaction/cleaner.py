"""What compaction keeps of a batch, and the two passes that decide it.

Pass one reads the *dirty* range, what was appended since the last time, and notes the last offset of every key in a
table of fixed size. When the table is full the range ends there; the rest is for the next time. One batch always fits:
for a larger one the table grows. Pass two goes over all segments from the first to the end of that range and rewrites
them. A record stays when no later record has its key. In addition:

* Records of aborted transactions go, and do not count as the last of their key.
* A tombstone (null value) stays for ``delete.retention.ms`` after it was first cleaned, so that readers on their way
  see it. The moment it may go is the *delete horizon*: written into its batch in place of the base timestamp, marked
  by attribute bit 6.
* A transaction's marker stays as long as any of its records does, and then until a separate delete horizon.
* The last batch of each producer stays, if need be without records: its sequence numbers tell duplicates from gaps.
* Offsets never change: a batch keeps its base and last offset whatever it loses, and order is as it was.

A batch that loses nothing is copied byte for byte. Memory: the table, and one batch at a time.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from headrace.batch import DELETE_HORIZON, Batch, control_type, reseal
from headrace.log.aborted import AbortedDamaged
from headrace.log.compaction.swap import SwapGroup, cleaned_suffix, discard_cleaned
from headrace.log.disk import FileCache
from headrace.log.errors import CorruptLog
from headrace.log.segment import OFFSET_DELTA_MAX, Segment, segment_name
from headrace.log.sync_guard import SyncFailed
from headrace.ports import Disk
from headrace.record import CorruptRecords, Record, compress, decode_records, encode_records, record_keys
from headrace.vocabulary import FILE_START, FIRST_OFFSET, Offset, Position

__all__ = ["CleaningCancelled", "CleaningJob", "CleaningResult", "OffsetMap", "clean"]

_DIGEST_BYTES: Final = 16
_SLOT_BYTES: Final = _DIGEST_BYTES + 8
_LOAD_MAX: Final = 0.75


class OffsetMap:
    """Key digest → last offset in a table of a fixed number of bytes: open addressing, 24 bytes a slot.

    Digests stand for keys. With 128 bits, two of a billion keys collide with a chance of about 10^-21.
    """

    def __init__(self, bytes_max: int) -> None:
        self._slots = max(16, bytes_max // _SLOT_BYTES)
        self._table = bytearray(self._slots * _SLOT_BYTES)
        self._room = int(self._slots * _LOAD_MAX)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has_room_for(self, keys: int) -> bool:
        return self._count + keys <= self._room

    def _find(self, key: bytes) -> tuple[int, bytes, int]:
        """(position of the key's slot or of the free one it would take, its digest, offset + 1 or 0)."""
        digest = hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
        table = self._table
        slot = int.from_bytes(digest[:8], "big") % self._slots
        while True:
            position = slot * _SLOT_BYTES
            stored = int.from_bytes(table[position + _DIGEST_BYTES : position + _SLOT_BYTES], "big")
            if not stored or table[position : position + _DIGEST_BYTES] == digest:
                return position, digest, stored
            slot = (slot + 1) % self._slots

    def put(self, key: bytes, offset: int) -> None:
        position, digest, stored = self._find(key)
        if not stored:
            self._count += 1
        self._table[position : position + _SLOT_BYTES] = digest + (offset + 1).to_bytes(8, "big")

    def last_offset(self, key: bytes) -> int:
        """The last offset noted for the key, or -1."""
        return self._find(key)[2] - 1


@dataclass(slots=True, kw_only=True)
class CleaningJob:
    """All that a child process needs to know; plain values, so that it can be sent as JSON."""

    directory: str
    token: str
    """Names the files of this attempt."""
    segments: list[tuple[Offset, int, int]]
    """(base offset, size, number of aborted transactions) of the segments to go over, oldest first."""
    end_offset: Offset
    """Where the last of them ends: the base offset of the segment after it."""
    first_dirty_offset: Offset
    now_ms: int
    delete_retention_ms: int
    segment_bytes_max: int
    index_interval_bytes: int
    map_bytes_max: int
    decompressed_bytes_max: int
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, marker's offset): also those whose marker comes after the end of the job."""
    last_batches: list[tuple[int, int]] = field(default_factory=list)
    """(producer id, base offset of its last batch)."""


@dataclass(slots=True, kw_only=True)
class CleaningResult:
    token: str
    groups: list[SwapGroup] = field(default_factory=list)
    cleaned_offset: Offset = FIRST_OFFSET
    bytes_read: int = 0
    bytes_written: int = 0
    keys: int = 0
    all_keys_fitted: bool = True

    def to_json(self) -> dict[str, Any]:
        groups = [[group.base, group.end_offset, list(group.replaces), group.size] for group in self.groups]
        return {
            "token": self.token,
            "groups": groups,
            "cleaned_offset": self.cleaned_offset,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "keys": self.keys,
            "all_keys_fitted": self.all_keys_fitted,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> CleaningResult:
        groups = [SwapGroup(base, end, tuple(replaces), size) for base, end, replaces, size in content["groups"]]
        return cls(**{**content, "groups": groups})


class CleaningCancelled(Exception):
    """Nobody waits for the result any more."""


def clean(disk: Disk, job: CleaningJob, *, check_wanted: Callable[[], None] = lambda: None) -> CleaningResult:
    """Run both passes; the result's files are synced and wait to be swapped in.

    ``check_wanted`` is called before every batch and may raise CleaningCancelled. After any error no file is left.
    """
    try:
        cleaner = _Cleaner(disk, job, check_wanted)
        cleaner.read_keys()
        cleaner.rewrite()
    except BaseException:
        with suppress(OSError, SyncFailed):
            discard_cleaned(disk, job.directory, job.token)
        raise
    return cleaner.result


class _Cleaner:
    def __init__(self, disk: Disk, job: CleaningJob, check_wanted: Callable[[], None]) -> None:
        self.job = job
        self.disk = disk
        self.check_wanted = check_wanted
        self.cache = FileCache(disk, 16)
        self.map = OffsetMap(job.map_bytes_max)
        self.result = CleaningResult(token=job.token, cleaned_offset=job.end_offset)
        self.segments = [self._source(*entry) for entry in job.segments]
        self.last_batches = dict(job.last_batches)
        self.aborted: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, last in sorted(job.aborted):
            self.aborted.setdefault(producer_id, []).append((first, last))
        self.producers_with_records: set[int] = set()
        """Producers of which a record was kept since their last marker: that marker must stay too."""

    def _source(self, base: Offset, size: int, aborted_count: int) -> Segment:
        segment = self._segment(base, size)
        segment.check_whole()
        try:
            segment.aborted.load(aborted_count, first=base, end=self.job.end_offset)
        except AbortedDamaged as damage:
            raise CorruptLog(damage.path, damage.position, damage.reason) from damage
        return segment

    def _segment(self, base: Offset, size: int, suffix: str = "") -> Segment:
        stem = f"{self.job.directory}/{segment_name(base)}"
        interval = self.job.index_interval_bytes
        return Segment(self.cache, stem, base, size, interval, gaps_allowed=True, suffix=suffix)

    def batches(self, segment: Segment) -> Iterator[tuple[Position, Batch]]:
        for position, _ in segment.headers(FILE_START, segment.size):
            self.check_wanted()
            yield position, segment.read_batch(position)

    def is_aborted(self, batch: Batch) -> bool:
        ranges = self.aborted.get(batch.producer_id) if batch.is_transactional else None
        if not ranges:
            return False
        number = bisect_right(ranges, batch.base_offset, key=itemgetter(0)) - 1
        return number >= 0 and batch.base_offset <= ranges[number][1]

    # Pass one.

    def read_keys(self) -> None:
        for number, segment in enumerate(self.segments):
            following = (
                self.segments[number + 1].base_offset if number + 1 < len(self.segments) else self.job.end_offset
            )
            if following <= self.job.first_dirty_offset:
                continue
            for position, batch in self.batches(segment):
                if batch.last_offset < self.job.first_dirty_offset or batch.is_control or self.is_aborted(batch):
                    continue
                if not len(self.map):
                    self._make_room_for(batch.record_count)
                if not self.map.has_room_for(batch.record_count):
                    self.result.cleaned_offset = batch.base_offset
                    self.result.all_keys_fitted = False
                    self.result.keys = len(self.map)
                    return
                self._note_keys(segment, position, batch)
        self.result.keys = len(self.map)

    def _make_room_for(self, keys: int) -> None:
        """The keys of one batch always fit, or no later time could go on after it."""
        if not self.map.has_room_for(keys):
            self.map = OffsetMap(int(keys / _LOAD_MAX + 1) * _SLOT_BYTES)

    def _note_keys(self, segment: Segment, position: Position, batch: Batch) -> None:
        try:
            for offset, key, _ in record_keys(batch, self.job.decompressed_bytes_max):
                if key is not None:
                    self.map.put(key, offset)
        except CorruptRecords as error:
            raise CorruptLog(segment.path, position, error.message) from error

    # Pass two.

    def rewrite(self) -> None:
        if self.result.cleaned_offset <= self.job.first_dirty_offset:
            return
        group: list[Segment] = []
        target: Segment | None = None
        for segment in self.segments:
            if segment.base_offset >= self.result.cleaned_offset:
                break
            if target is None or not self._fits(target, segment):
                self._finish(target, group)
                target, group = self._new_target(segment.base_offset), []
            self._rewrite(segment, target)
            group.append(segment)
        self._finish(target, group)

    def _fits(self, target: Segment, segment: Segment) -> bool:
        """Neighbours are written into one segment while they fit, so that what shrinks does not stay in crumbs."""
        too_wide = self._end_of(segment) - target.base_offset > OFFSET_DELTA_MAX
        return target.size + segment.size <= self.job.segment_bytes_max and not too_wide

    def _end_of(self, segment: Segment) -> Offset:
        later = [other.base_offset for other in self.segments if other.base_offset > segment.base_offset]
        return min(later, default=self.job.end_offset)

    def _new_target(self, base: Offset) -> Segment:
        target = self._segment(base, Offset(0), suffix=cleaned_suffix(self.job.token))
        target.begin()
        target.remove(self.disk)
        self.cache.open(target.path, create=True)
        self.cache.open(target.aborted.path, create=True)
        return target

    def _rewrite(self, segment: Segment, target: Segment) -> None:
        dropped = set()
        for position, batch in self.batches(segment):
            self.result.bytes_read += batch.size
            kept = self._keep(segment, position, batch)
            if kept is None:
                dropped.add(batch.base_offset)
                continue
            target.write([kept.prefix(), kept.body])
            target.admit(kept.prefix(), kept.base_offset, kept.size, kept.next_offset, kept.max_timestamp)
        for entry in segment.aborted.entries:
            if entry.last_offset not in dropped:
                target.aborted.add(entry)

    def _finish(self, target: Segment | None, group: Sequence[Segment]) -> None:
        if target is None:
            return
        target.aborted.write()
        target.seal(self._end_of(group[-1]))
        for path in (target.path, target.index.path, target.aborted.path):
            self.cache.open(path).datasync()
        target.forget()
        replaces = tuple(segment.base_offset for segment in group)
        self.result.groups.append(SwapGroup(target.base_offset, self._end_of(group[-1]), replaces, target.size))
        self.result.bytes_written += target.size

    def _keep(self, segment: Segment, position: Position, batch: Batch) -> Batch | None:
        """The batch as it goes on, or None."""
        if batch.base_offset >= self.result.cleaned_offset:
            return batch
        if batch.is_control:
            return self._keep_marker(batch)
        if batch.record_count == 0:
            return batch if self._is_last_of_producer(batch) else None
        try:
            return self._keep_records(batch)
        except CorruptRecords as error:
            raise CorruptLog(segment.path, position, error.message) from error

    def _is_last_of_producer(self, batch: Batch) -> bool:
        return self.last_batches.get(batch.producer_id) == batch.base_offset

    def _keep_marker(self, batch: Batch) -> Batch | None:
        if control_type(batch) is None:
            return None
        if batch.producer_id in self.producers_with_records:
            self.producers_with_records.discard(batch.producer_id)
            return batch
        horizon = batch.delete_horizon_ms
        if horizon is None:
            records = decode_records(batch, self.job.decompressed_bytes_max)
            return _rebuild(batch, records, self.job.now_ms + self.job.delete_retention_ms)
        return batch if horizon > self.job.now_ms else None

    def _keep_records(self, batch: Batch) -> Batch | None:
        records = decode_records(batch, self.job.decompressed_bytes_max)
        kept = [] if self.is_aborted(batch) else [record for record in records if self._is_latest(record)]
        horizon = batch.delete_horizon_ms
        if horizon is not None and horizon <= self.job.now_ms:
            kept = [record for record in kept if record.value is not None]
        elif horizon is None and any(record.value is None for record in kept):
            horizon = self.job.now_ms + self.job.delete_retention_ms
        if not kept:
            return _rebuild(batch, [], horizon) if self._is_last_of_producer(batch) else None
        if batch.is_transactional:
            self.producers_with_records.add(batch.producer_id)
        if len(kept) == len(records) and horizon == batch.delete_horizon_ms:
            return batch
        return _rebuild(batch, kept, horizon)

    def _is_latest(self, record: Record) -> bool:
        return record.key is not None and self.map.last_offset(record.key) <= record.offset


def _rebuild(batch: Batch, records: Sequence[Record], horizon_ms: int | None) -> Batch:
    """The same batch with fewer records, or with its delete horizon set. Offsets and producer fields stay."""
    if horizon_ms is not None:
        batch.attributes |= DELETE_HORIZON
        batch.base_timestamp = horizon_ms
    if records and not batch.is_log_append_time:
        batch.max_timestamp = max(record.timestamp for record in records)
    batch.record_count = len(records)
    data = encode_records(records, base_timestamp=batch.base_timestamp, base_offset=batch.base_offset)
    reseal(batch, compress(batch.codec, data) if records else b"")
    return batch
