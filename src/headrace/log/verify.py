"""Checking a log from end to end without changing it: for ``headrace log verify``.

Every batch's checksum and records, the order of offsets, the joints between segments, the producers' sequences, what
the indexes have noted, the aborted transactions, the start of the log and its end. What makes recovery refuse the log,
or would reach a reader wrong, is an error. What the broker derives again by itself is a warning. A torn write at the
end, which recovery cuts, is reported as information.

A broker may be running. Batches that arrive meanwhile are checked or not; a log whose old segments change under the
check (compaction, retention) is checked once more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import google_crc32c

from headrace.batch import Batch
from headrace.errors import HeadraceError
from headrace.log.aborted import AbortedDamaged, decode_entries
from headrace.log.checkpoint import LogMark
from headrace.log.disk import FileCache
from headrace.log.dump import BadBytes, walk_file
from headrace.log.errors import OutOfOrderSequence
from headrace.log.findings import Finding, Severity
from headrace.log.index import NOT_COUNTED, BlockSummary, Index, IndexDamaged
from headrace.log.opening import NOTHING_KNOWN, Known
from headrace.log.producer_snapshots import decode_snapshot, snapshot_offsets, snapshot_path
from headrace.log.producers import AbortedTransaction, ProducerStates
from headrace.log.segment import OFFSET_DELTA_MAX, orphans, segment_bases, segment_name
from headrace.log.start import marked_start
from headrace.ports import Disk
from headrace.record import CorruptRecords, decode_records
from headrace.vocabulary import FIRST_OFFSET, Offset

__all__ = ["verify_log"]

_ATTEMPTS = 3
_CUT = re.compile(r"[0-9]{20}\.log\.cut-[0-9]+(\.[0-9]+)?")


def verify_log(
    disk: Disk, directory: str, known: Known = NOTHING_KNOWN, *, decompressed_bytes_max: int = 128 << 20
) -> list[Finding]:
    """All findings of one log, in the order of its bytes. With ``decompressed_bytes_max=0`` records are not decoded."""
    findings: list[Finding] = []
    for _ in range(_ATTEMPTS):
        before = _sealed_files(disk, directory)
        try:
            findings = list(_Verifier(disk, directory, known, decompressed_bytes_max).run())
        except FileNotFoundError as error:
            findings = [Finding(Severity.ERROR, str(error.filename), "it went away while it was checked")]
        if not findings or _sealed_files(disk, directory) == before:
            break
    return findings


def _sealed_files(disk: Disk, directory: str) -> dict[str, int]:
    """The files that only compaction and retention change."""
    files = disk.list_files(directory) if disk.exists(directory) else {}
    last = max((segment_name(base) for base in segment_bases(files)), default="")
    return {name: size for name, size in files.items() if name[:20] < last}


@dataclass(slots=True)
class _Walked:
    """What the walk through one segment's file has seen."""

    base_offset: Offset
    following: Offset | None
    path: str
    size: int
    """Bytes of the file that belong to the segment."""
    starts: dict[int, int] = field(default_factory=dict)
    """Base offset of the batch at each position."""
    prefixes_at: dict[int, int] = field(default_factory=dict)
    """The checksum of all prefixes before each position."""
    end: int = 0
    """Where the last whole batch ends."""
    prefixes: int = 0
    next_offset: int = 0
    bad: BadBytes | None = None
    aborted: list[AbortedTransaction] = field(default_factory=list)


class _Verifier:
    def __init__(self, disk: Disk, directory: str, known: Known, decompressed_bytes_max: int) -> None:
        self.disk = disk
        self.directory = directory
        self.known = known
        self.mark = known.mark or LogMark()
        self.flushed_end = max(self.mark.recovery_offset, known.flushed_end)
        self.decompressed_bytes_max = decompressed_bytes_max
        self.files = disk.list_files(directory) if disk.exists(directory) else {}
        self.start = max(self.mark.start_offset, marked_start(self.files))
        self.next_offset = FIRST_OFFSET
        self.missing_offsets = 0
        """How many offsets were skipped so far: compaction removes them."""
        self.states = ProducerStates()
        self.missing_at: dict[int, int] = {}
        """``missing_offsets`` at the last batch of each producer."""

    def run(self) -> Iterator[Finding]:
        bases = segment_bases(self.files)
        yield from self._beginning(bases)
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            yield from self._segment(base, following)
        yield from self._end(bases)
        yield from self._other_files()
        yield from self._producers(bases)

    def _error(self, path: str, position: int, message: str) -> Finding:
        return Finding(Severity.ERROR, path, message, position)

    def _warning(self, path: str, position: int, message: str) -> Finding:
        return Finding(Severity.WARNING, path, message, position)

    # The log's two ends.

    def _beginning(self, bases: list[Offset]) -> Iterator[Finding]:
        is_known = self.known.mark is not None or self.start > 0
        if bases and bases[0] > self.start and is_known:
            path = f"{self.directory}/{segment_name(bases[0])}.log"
            yield self._error(path, 0, f"offsets {self.start} to {bases[0] - 1} were before it and are gone")
        if self.mark.start_offset > marked_start(self.files):
            message = f"there is no start marker for offset {self.mark.start_offset}; the next checkpoint writes it"
            yield Finding(Severity.WARNING, self.directory, message)
        for base in sorted(set(orphans(self.files).values())):
            if self.start <= base < self.mark.recovery_offset:
                yield self._error(f"{self.directory}/{segment_name(base)}.log", 0, "the segment was here and is gone")

    def _end(self, bases: list[Offset]) -> Iterator[Finding]:
        reached = max(self.next_offset, self.start) if bases else self.start
        if reached < self.flushed_end:
            path = f"{self.directory}/{segment_name(bases[-1])}.log" if bases else self.directory
            message = f"offsets {reached} to {self.flushed_end - 1} were flushed and are not here"
            yield Finding(Severity.ERROR, path, message)

    def _other_files(self) -> Iterator[Finding]:
        for name in sorted(self.files):
            if _CUT.fullmatch(name):
                message = (
                    "bytes that recovery or a repair took out of the log; nothing reads them: remove it if you like"
                )
                yield Finding(Severity.INFO, f"{self.directory}/{name}", message)

    def _producers(self, bases: list[Offset]) -> Iterator[Finding]:
        """Producers whose records were removed are known by a snapshot only."""
        reached = FIRST_OFFSET
        for offset in snapshot_offsets(self.files):
            path = snapshot_path(self.directory, offset)
            if decode_snapshot(self._read(path)) is None:
                yield self._warning(path, 0, "the checksum is wrong; an older one or the log is used")
            else:
                reached = offset
        is_needed = self.mark.recovery_offset > 0 and not self.mark.producerless
        if is_needed and bases and reached < bases[0]:
            message = f"no producer snapshot after offset {reached}: producers are known from offset {bases[0]} on"
            yield Finding(Severity.WARNING, self.directory, message)

    def _read(self, path: str) -> bytes:
        file = self.disk.open(path, writable=False)
        return file.pread(file.size(), 0)

    # One segment.

    def _segment(self, base: Offset, following: Offset | None) -> Iterator[Finding]:
        stem = f"{self.directory}/{segment_name(base)}"
        sealed = self._seal_of(stem, base) if following is not None else None
        size = self.files[f"{segment_name(base)}.log"]
        if sealed is not None and sealed.covered_bytes < size:
            yield self._warning(
                f"{stem}.log", sealed.covered_bytes, f"{size - sealed.covered_bytes} bytes are not ours"
            )
            size = sealed.covered_bytes
        if base < self.next_offset:
            yield self._error(
                f"{stem}.log", 0, f"it begins at offset {base}, but the one before reaches {self.next_offset}"
            )
        self._skip_to(base)
        walked = _Walked(base, following, f"{stem}.log", size)
        yield from self._walk(walked)
        yield from self._bad_bytes(walked)
        yield from self._recovery_point(walked)
        yield from self._seal(walked, sealed)
        yield from self._index(stem, walked)
        yield from self._aborted(stem, walked, sealed)

    def _seal_of(self, stem: str, base: Offset) -> BlockSummary | None:
        if not self.disk.exists(f"{stem}.index"):
            return None
        summary = Index(FileCache(self.disk, 2), f"{stem}.index", base).load_summary()
        return summary if summary is not None and summary.is_sealed else None

    def _skip_to(self, offset: int) -> None:
        self.missing_offsets += max(0, offset - max(self.next_offset, self.start))
        self.next_offset = Offset(max(self.next_offset, offset))

    def _walk(self, walked: _Walked) -> Iterator[Finding]:
        limit = walked.base_offset + OFFSET_DELTA_MAX if walked.following is None else walked.following
        for found in walk_file(self.disk, walked.path, walked.size if walked.following is not None else None):
            if isinstance(found, BadBytes):
                walked.bad = found
                return
            batch = found.batch
            if not found.checksum_holds and walked.following is None and self._nothing_more_was_promised():
                walked.bad = BadBytes(found.path, found.position, walked.size - found.position, "a wrong checksum")
                return
            walked.starts[found.position] = batch.base_offset
            walked.end = found.position + batch.size
            walked.prefixes = google_crc32c.extend(walked.prefixes, batch.prefix())
            walked.prefixes_at[walked.end] = walked.prefixes
            walked.next_offset = batch.next_offset
            if not found.checksum_holds:
                message = f"the checksum of the batch at offset {batch.base_offset} is wrong"
                yield self._error(found.path, found.position, message)
            elif batch.next_offset > limit:
                message = f"offsets {batch.base_offset} to {batch.last_offset} do not belong here"
                yield self._error(found.path, found.position, message)
            else:
                for message in self._batch(batch, walked):
                    yield self._error(found.path, found.position, message)

    def _batch(self, batch: Batch, walked: _Walked) -> Iterator[str]:
        is_unflushed = self.known.mark is not None and batch.base_offset >= self.mark.recovery_offset
        no_gap_allowed = walked.following is None or is_unflushed
        if batch.base_offset < self.next_offset or (batch.base_offset > self.next_offset and no_gap_allowed):
            yield f"offset {batch.base_offset} stands where {self.next_offset} must"
        self._skip_to(batch.base_offset)
        self.next_offset = max(self.next_offset, batch.next_offset)
        try:
            if not batch.is_control and batch.record_count:
                self._sequence(batch)
            entry = self.states.apply(batch)
            if not batch.is_control:
                self.missing_at[batch.producer_id] = self.missing_offsets
            if entry is not None:
                walked.aborted.append(entry)
            if self.decompressed_bytes_max:
                self._records(batch)
        except HeadraceError as error:
            yield str(error)

    def _sequence(self, batch: Batch) -> None:
        """Compaction removes whole batches, and their sequence numbers with them."""
        try:
            self.states.check(batch)
        except OutOfOrderSequence:
            if self.missing_at.get(batch.producer_id) == self.missing_offsets:
                raise

    def _records(self, batch: Batch) -> None:
        if batch.record_count == 0:
            return
        previous = batch.base_offset - 1
        for record in decode_records(batch, self.decompressed_bytes_max):
            if not previous < record.offset <= batch.last_offset:
                raise CorruptRecords(f"record offset {record.offset} is out of order")
            previous = Offset(record.offset)

    def _nothing_more_was_promised(self) -> bool:
        is_known = self.known.mark is not None or self.known.flushed_end > 0
        return is_known and max(self.next_offset, self.start) >= self.flushed_end

    def _bad_bytes(self, walked: _Walked) -> Iterator[Finding]:
        """The end of the last segment may be torn, after what was flushed. Elsewhere it is damage."""
        if walked.bad is None:
            return
        if walked.following == max(walked.next_offset, walked.base_offset):
            message = f"{walked.bad.size} bytes are not ours; they are not read"
            yield self._warning(walked.path, walked.bad.position, message)
        elif walked.following is None and self._nothing_more_was_promised():
            message = f"a torn write of {walked.bad.size} bytes; a start of the broker cuts it"
            yield Finding(Severity.INFO, walked.path, message, walked.bad.position)
        else:
            message = f"{walked.bad.reason}; {walked.bad.size} bytes cannot be read"
            yield self._error(walked.path, walked.bad.position, message)

    def _recovery_point(self, walked: _Walked) -> Iterator[Finding]:
        """The checkpoint must point between two batches. In a segment that was sealed there, compaction may have been
        since."""
        offset, position = self.mark.recovery_offset, self.mark.recovery_position
        is_here = walked.base_offset < offset and (walked.following is None or offset < walked.following)
        if not is_here or position == 0 or walked.bad is not None:
            return
        found = walked.starts.get(position, walked.next_offset if position == walked.end else -1)
        if found != offset:
            yield self._error(walked.path, position, f"the checkpoint has offset {offset} here, the log has not")

    def _seal(self, walked: _Walked, sealed: BlockSummary | None) -> Iterator[Finding]:
        if walked.following is None:
            return
        if self.known.mark is not None and walked.following > self.mark.recovery_offset:
            yield from self._unflushed_joint(walked)
            return
        if sealed is None:
            if walked.next_offset < walked.following and walked.bad is None and walked.end:
                message = f"offsets {walked.next_offset} to {walked.following - 1} are missing after it, or compacted"
                yield self._warning(walked.path, walked.end, message)
            return
        if sealed.covered_bytes > walked.size:
            yield self._error(
                walked.path, walked.size, f"{sealed.covered_bytes - walked.size} bytes are missing at its end"
            )
        elif walked.bad is None and sealed.prefixes != walked.prefixes:
            yield self._error(walked.path, 0, "an offset, length or epoch in it is not what was written")
        if sealed.end_offset != walked.following:
            message = f"offset {sealed.end_offset} must follow it, and {walked.following} does"
            yield self._error(walked.path, walked.size, message)

    def _unflushed_joint(self, walked: _Walked) -> Iterator[Finding]:
        """After the recovery point nothing is compacted, and a crash may have undone what the index says."""
        reached = max(walked.next_offset, walked.base_offset)
        if reached != walked.following and walked.bad is None:
            message = f"offset {reached} must follow it, and {walked.following} does"
            severity = Severity.ERROR if reached < self.flushed_end else Severity.WARNING
            yield Finding(severity, walked.path, message, walked.end)

    def _index(self, stem: str, walked: _Walked) -> Iterator[Finding]:
        path = f"{stem}.index"
        if not self.disk.exists(path):
            if walked.following is not None:
                yield Finding(Severity.WARNING, path, "it is missing; it will be rebuilt")
            return
        index = Index(FileCache(self.disk, 2), path, walked.base_offset)
        try:
            summary = index.load_summary()
            if (summary is None or not summary.is_sealed) and walked.following is not None:
                yield self._warning(path, 0, "its last block is not valid; it will be rebuilt")
            if summary is not None and walked.following is None:
                yield from self._believed_part(walked, summary)
            for number, (offset, position, _) in enumerate(index.entries()):
                if position < walked.end and walked.starts.get(position) != offset:
                    message = f"offset {offset} is not at byte {position}; it will be rebuilt"
                    yield self._warning(path, number, message)
        except IndexDamaged as error:
            yield self._warning(path, 0, f"{error}; it will be rebuilt")

    def _believed_part(self, walked: _Walked, known: BlockSummary) -> Iterator[Finding]:
        """Of the last segment: what the index has noted of the part that recovery believes."""
        is_believed = self.known.mark is None or known.covered_bytes <= self.mark.recovery_position
        if is_believed and walked.prefixes_at.get(known.covered_bytes, known.prefixes) != known.prefixes:
            yield self._error(walked.path, 0, "an offset, length or epoch in it is not what was written")

    def _aborted(self, stem: str, walked: _Walked, sealed: BlockSummary | None) -> Iterator[Finding]:
        path = f"{stem}.txn"
        data = self._read(path) if self.disk.exists(path) else b""
        try:
            found = decode_entries(path, data)
        except AbortedDamaged as damage:
            yield self._warning(damage.path, damage.position, f"{damage.reason}; it will be derived again")
            return
        if sealed is not None and sealed.aborted_count not in (NOT_COUNTED, len(found)):
            message = f"{len(found)} entries where {sealed.aborted_count} were; they will be derived again"
            yield self._warning(path, 0, message)
            return
        markers = {entry.last_offset for entry in found}
        for entry in walked.aborted:
            is_derived_anyway = self.known.mark is not None and entry.last_offset >= self.mark.recovery_offset
            if entry.last_offset not in markers and not is_derived_anyway:
                who = f"the aborted transaction of producer {entry.producer_id} ending at {entry.last_offset}"
                yield self._warning(path, 0, f"{who} is missing; it will be derived again")
