"""Recovering a log: what was safely on disk is believed, what follows it is scanned, and the torn end is cut.

The *recovery point* (see ``checkpoint.py``) divides a log. Segments before it are believed and not even opened. From
it on every batch is read and its checksum checked, in order. The first bytes that are not the next batch end the log.

What comes after that end may be cut only if nobody was promised it. The *flushed end* (see ``flushed.py``) decides:

* The log reaches the flushed end: what follows is a write that a crash has torn. It is cut. If it holds a whole batch
  all the same (valid, or complete but with a wrong checksum), it is first copied to ``<segment>.log.cut-<position>``,
  and later segments are renamed to ``….log.cut-0``.
* The log does not reach it: acknowledged records are missing or damaged. Nothing is cut, and CorruptLog says which
  file, which byte and which offsets. ``headrace log repair`` is the way out.

Files that can be derived from the log (indexes, aborted transactions, producer snapshots) are derived again when they
are damaged or missing.

When the checkpoint was lost there is no recovery point: every log is scanned from its first byte. That takes time and
loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.batch import Batch
from headrace.log.aborted import AbortedDamaged
from headrace.log.checkpoint import LogMark
from headrace.log.epochs import EpochHistory
from headrace.log.errors import CorruptLog
from headrace.log.findings import Finding, OnFinding, Severity
from headrace.log.index import BlockSummary
from headrace.log.producer_snapshots import derive_aborted, producers_at
from headrace.log.producers import ProducerStates
from headrace.log.scanning import count_batches, scan_batches
from headrace.log.segment import NO_TIMESTAMP, Segment
from headrace.ports import Disk, File
from headrace.vocabulary import Offset, Position

__all__ = ["Cut", "Recovery", "RecoveryReport", "unused_path"]

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes removed from the end of a log."""

    path: str
    position: int
    size: int
    batches: int
    records: int
    saved_as: str | None

    def finding(self) -> Finding:
        if self.saved_as is None:
            return Finding(Severity.INFO, self.path, f"cut a torn write of {self.size} bytes", self.position)
        held = f"cut {self.size} unflushed bytes with {self.batches} batches and {self.records} records in them"
        return Finding(Severity.WARNING, self.path, f"{held}; kept as {self.saved_as}", self.position)


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found and did. Findings are handed on to ``on_finding`` as they come."""

    scanned_bytes: int = 0
    cuts: list[Cut] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    on_finding: OnFinding = lambda _: None

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.on_finding(finding)

    def add_cut(self, cut: Cut) -> None:
        self.cuts.append(cut)
        self.add(cut.finding())


class Recovery:
    """One recovery of one log. ``segments`` are those in its directory, at least one; cutting removes some of them."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: list[Segment],
        report: RecoveryReport,
        *,
        mark: LogMark,
        mark_lost: bool,
        flushed_end: Offset,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.segments = segments
        self.report = report
        self.mark = mark
        self.mark_lost = mark_lost
        self.flushed_end = flushed_end
        self.epochs = EpochHistory(mark.epochs)
        self.producers: ProducerStates | None = None
        """None when nothing was scanned: they are loaded when somebody asks."""
        self.unsynced = False
        """Whether files hold something now that no sync has covered."""

    def run(self) -> None:
        """Leave the last segment ready to append. Raises CorruptLog when acknowledged records are missing; nothing was
        changed then but files that can be derived from the log."""
        self._seal_at_recovery_point()
        last = self.segments[-1]
        if last.base_offset <= self.mark.recovery_offset and last.size == self._believed_bytes(last):
            self._load_believed(last)
            self._check_end(last, last.next_offset)
            self._write_aborted(last)
        else:
            self._scan()

    def _check_end(self, segment: Segment, end_offset: Offset) -> None:
        if end_offset < self.flushed_end:
            reason = f"offsets {end_offset} to {self.flushed_end - 1} were flushed and are not here"
            raise CorruptLog(segment.path, segment.size, reason)

    # Believing.

    def _believed_bytes(self, segment: Segment) -> int:
        return self.mark.recovery_position if segment.base_offset < self.mark.recovery_offset else 0

    def _load_believed(self, segment: Segment) -> None:
        """Make the segment of the recovery point ready to append there, believing its bytes: from the index, and from
        the headers where the index is short."""
        end = self._believed_bytes(segment)
        segment.gaps_allowed = self.mark_lost
        if segment.size < end:
            raise CorruptLog(segment.path, segment.size, f"{end - segment.size} flushed bytes are missing")
        self._load_to(segment, end)
        is_believed = segment.base_offset < self.mark.recovery_offset
        if is_believed and segment.next_offset != self.mark.recovery_offset:
            reason = f"the log reaches offset {segment.next_offset} here where {self.mark.recovery_offset} was flushed"
            raise CorruptLog(segment.path, end, reason)
        self._load_believed_aborted(segment, self.mark.aborted_count if is_believed else 0)

    def _seal_at_recovery_point(self) -> None:
        """If the recovery point lay at the end of a segment, that segment was sealed since. A crash may have undone the
        seal in its index; the checkpoint knows what was sealed."""
        bases = [segment.base_offset for segment in self.segments]
        if self.mark.recovery_position == 0 or self.mark.recovery_offset not in bases[1:]:
            return
        segment = self.segments[bases.index(self.mark.recovery_offset) - 1]
        known = segment.index.load_summary()
        if known is not None and known.is_sealed:
            return
        size, gaps_allowed = segment.size, segment.gaps_allowed
        try:
            self._load_believed(segment)
            self._write_aborted(segment)
            segment.seal(self.mark.recovery_offset)
        except CorruptLog:
            if not gaps_allowed:
                raise
            self._rebuild_compacted(segment, size)
        self.unsynced = True

    def _rebuild_compacted(self, segment: Segment, size: int) -> None:
        """Compaction may have rewritten the segment after the checkpoint. Only the index knew its length, and it is
        lost: the headers must lead to the end of the file. Raises CorruptLog."""
        segment.size, segment.gaps_allowed = size, True
        segment.rebuild_index()
        self.report.add(
            Finding(Severity.WARNING, segment.index.path, "lost; rebuilt from a segment that was compacted")
        )

    @staticmethod
    def _load_to(segment: Segment, end: int) -> None:
        known = segment.index.load_tail(end)
        if known is not None:
            try:
                segment.load_from(known, end)
                return
            except CorruptLog:
                # The index leads nowhere, perhaps because it was copied here from another log. The log itself decides.
                segment.index.reset()
        segment.load_from(BlockSummary(0, segment.base_offset, NO_TIMESTAMP), end)

    def _load_believed_aborted(self, segment: Segment, count: int) -> None:
        try:
            segment.aborted.load_below(self.mark.recovery_offset, count)
        except AbortedDamaged as damage:
            before = [other for other in self.segments if other.base_offset <= segment.base_offset]
            segment.aborted.replace(derive_aborted(self.disk, self.directory, before, segment))
            message = f"{damage.reason}; derived again from the log"
            self.report.add(Finding(Severity.WARNING, damage.path, message, damage.position))

    def _write_aborted(self, segment: Segment) -> None:
        if segment.aborted.unwritten:
            segment.aborted.write()
            self.unsynced = True

    # Scanning.

    def _scan(self) -> None:
        """Scan from the recovery point to the first bytes that are not the next batch, and drop what follows them.

        A gap between segments there is a lost end of the first of them: compaction keeps away from what is not flushed.
        Only when the checkpoint was lost are gaps taken for compaction's.
        """
        self.unsynced = True
        ends = [segment.size for segment in self.segments]
        first = self._segment_of_recovery_point()
        self._load_believed(self.segments[first])
        self.producers = producers_at(
            self.disk, self.directory, self.segments[: first + 1], self.mark.recovery_offset, self.mark, self.report.add
        )
        stopped_at = len(self.segments) - 1
        next_offset = max(self.mark.recovery_offset, self.segments[first].base_offset)
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if number > first:
                segment.gaps_allowed = self.mark_lost
                segment.index.reset()
                segment.load_from(BlockSummary(0, segment.base_offset, NO_TIMESTAMP), 0)
                segment.aborted.replace([])
                next_offset = max(next_offset, segment.base_offset)  # after a gap that compaction has left
            next_offset = self._scan_segment(segment, ends[number], next_offset)
            if number + 1 < len(self.segments) and not self._joins(segment, ends[number], next_offset):
                stopped_at = number
                break
        self._check_end(self.segments[stopped_at], next_offset)
        if self.mark_lost:
            # The scan knows only those producers of which something is left. A snapshot remembers the others.
            segments = self.segments[: stopped_at + 1]
            self.producers = producers_at(self.disk, self.directory, segments, next_offset, self.mark)
        for segment in self.segments[first : stopped_at + 1]:
            self._write_aborted(segment)
        for number in range(first, stopped_at + 1):
            self._cut(self.segments[number], ends[number])
        for segment, following in zip(self.segments[first:stopped_at], self.segments[first + 1 :], strict=False):
            segment.seal(following.base_offset)
        self._set_aside(stopped_at + 1, ends)

    def _segment_of_recovery_point(self) -> int:
        number = len(self.segments) - 1
        while number > 0 and self.segments[number].base_offset > self.mark.recovery_offset:
            number -= 1
        return number

    def _joins(self, segment: Segment, end: int, next_offset: Offset) -> bool:
        """Whether the next segment goes on where this one ends. If it does, bytes that follow in this one are not
        ours."""
        if segment.following_offset == next_offset:
            return True
        return self.mark_lost and segment.following_offset > next_offset and segment.size == end

    def _scan_segment(self, segment: Segment, end: int, next_offset: Offset) -> Offset:
        assert self.producers is not None
        limit = segment.following_offset if segment.following_offset >= 0 else None
        batches = scan_batches(
            segment.file(), Position(segment.size), end, next_offset, limit=limit, gaps_allowed=self.mark_lost
        )
        for _, batch in batches:
            segment.admit(batch.prefix(), batch.base_offset, batch.size, batch.next_offset, batch.max_timestamp)
            self.report.scanned_bytes += batch.size
            self._replay(segment, batch)
            next_offset = batch.next_offset
        return next_offset

    def _replay(self, segment: Segment, batch: Batch) -> None:
        assert self.producers is not None
        self.epochs.note(batch.leader_epoch, batch.base_offset)
        aborted = self.producers.apply(batch)
        if aborted is not None:
            segment.aborted.add(aborted)

    # Cutting what nobody was promised.

    def _cut(self, segment: Segment, end: int) -> None:
        if end == segment.size:
            return
        file = segment.file()
        saved_as = None
        batches, records = count_batches(file, segment.size, end, segment.next_offset)
        if batches:
            saved_as = unused_path(self.disk, f"{segment.path}.cut-{segment.size}")
            self._copy(file, segment.size, end, saved_as)
        self.report.add_cut(Cut(segment.path, segment.size, end - segment.size, batches, records, saved_as))
        file.truncate(segment.size)

    def _copy(self, file: File, start: int, end: int, path: str) -> None:
        """Copy [start, end) of a file to a new one, in pieces: a segment may have a GiB."""
        copy = self.disk.open(path, create=True)
        for position in range(start, end, _COPY_BYTES):
            copy.write([file.pread(min(_COPY_BYTES, end - position), position)], position - start)
        copy.datasync()
        copy.close()

    def _set_aside(self, first: int, ends: Sequence[int]) -> None:
        """Segments after a cut cannot be joined to the log; bytes with a batch in them are kept beside it."""
        for segment, size in zip(self.segments[first:], ends[first:], strict=True):
            saved_as = None
            batches, records = count_batches(segment.file(), 0, size, segment.base_offset)
            if batches:
                saved_as = unused_path(self.disk, f"{segment.path}.cut-0")
                self.disk.rename(segment.path, saved_as)
            if size:
                self.report.add_cut(Cut(segment.path, 0, size, batches, records, saved_as))
            segment.remove(self.disk)
        del self.segments[first:]


def unused_path(disk: Disk, path: str) -> str:
    """A name that overwrites nothing an earlier recovery kept."""
    number = 0
    candidate = path
    while disk.exists(candidate):
        number += 1
        candidate = f"{path}.{number}"
    return candidate
