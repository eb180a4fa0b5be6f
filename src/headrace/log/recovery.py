"""Opening a log: what was safely on disk is believed, what follows it is scanned, and the torn end is cut.

The *recovery point* (see ``checkpoint.py``) divides a log. Segments before it are believed and not even opened. From
it on every batch is read and its checksum checked, in order. The first bytes that are not the next batch end the log:
a crash tears the end of what was not yet flushed, and flushed means everything before it was flushed too, so nothing
acknowledged can stand behind a torn batch.

Disks also decay, and then something acknowledged *can* stand behind it. So when what would be cut holds a whole batch
(valid, or complete but with a wrong checksum), it is copied to ``<segment>.log.cut-<position>`` before it is cut, and
later segments are renamed to ``….log.cut-0``; the report names them. Only bytes that hold no complete batch are
dropped.

One loss cannot be told from a crash: when somebody deletes a whole last segment that lies behind the recovery point,
the log looks as if it had never been flushed.

What is missing *before* the recovery point is never repaired by cutting: that raises CorruptLog with file and position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace.batch import HEADER_BYTES, MAGIC, PREFIX_BYTES, Batch, parse_header
from headrace.log.checkpoint import LogMark
from headrace.log.errors import CorruptLog
from headrace.log.findings import Finding, OnFinding, Severity
from headrace.log.index import BlockSummary
from headrace.log.segment import NO_TIMESTAMP, Segment
from headrace.ports import Disk, File

__all__ = ["Cut", "RecoveryReport", "check_believed", "load_believed", "scan_batches", "scan_unflushed"]

_READ_BYTES = 1 << 20
_MAGIC_POSITION = 16


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
        held = f"cut {self.size} bytes with {self.batches} batches and {self.records} records in them"
        return Finding(Severity.WARNING, self.path, f"{held}; kept as {self.saved_as}", self.position)


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log found and did. Findings are handed on to ``on_finding`` as they come."""

    scanned_bytes: int = 0
    cuts: list[Cut] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    on_finding: OnFinding = lambda _: None

    @property
    def touched(self) -> bool:
        """Whether the log on disk may now hold something that no sync has covered."""
        return bool(self.scanned_bytes or self.cuts or self.findings)

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.on_finding(finding)

    def add_cut(self, cut: Cut) -> None:
        self.cuts.append(cut)
        self.add(cut.finding())


def scan_batches(
    file: File, position: int, end: int, next_offset: int, *, gaps_allowed: bool = False
) -> Iterator[tuple[int, Batch]]:
    """(position, batch) of every valid batch from ``position`` on; ends at the first bytes that are not the next
    one."""
    chunk = b""
    chunk_start = position
    while True:
        relative = position - chunk_start
        header = parse_header(chunk, relative)
        size = HEADER_BYTES if header is None else header.size
        if relative + size > len(chunk):
            if header is not None and position + size > end:
                return
            chunk = file.pread(min(max(_READ_BYTES, size), end - position), position)
            chunk_start, relative = position, 0
            header = parse_header(chunk)
            size = 0 if header is None else header.size
            if header is not None and len(chunk) < size <= end - position:
                chunk = file.pread(size, position)
        if header is None or relative + size > len(chunk):
            return
        if header.base_offset < next_offset or (header.base_offset > next_offset and not gaps_allowed):
            return
        batch = Batch(header, chunk[relative + PREFIX_BYTES : relative + size])
        if not batch.checksum_holds():
            return
        yield position, batch
        position += size
        next_offset = batch.next_offset


def load_believed(segment: Segment, end: int) -> None:
    """Make ``segment`` ready to append at ``end``, believing its bytes: from the index, and headers where it is
    short."""
    if segment.size < end:
        raise CorruptLog(segment.path, segment.size, f"{end - segment.size} flushed bytes are missing")
    known = segment.index.load_tail(end)
    if known is not None:
        try:
            segment.load_from(known, end)
            return
        except CorruptLog:
            # The index leads nowhere, perhaps because it was copied here from another log. The log itself decides.
            segment.index.reset()
    segment.load_from(BlockSummary(0, segment.base_offset, NO_TIMESTAMP), end)


def check_believed(segment: Segment, mark: LogMark) -> None:
    """The bytes before the recovery point must lead exactly to its offset, or some of them are not ours."""
    if segment.next_offset != mark.recovery_offset:
        reason = f"the log reaches offset {segment.next_offset} here where {mark.recovery_offset} had been flushed"
        raise CorruptLog(segment.path, segment.size, reason)


def scan_unflushed(
    disk: Disk,
    segments: list[Segment],
    mark: LogMark,
    report: RecoveryReport,
    on_believed: Callable[[list[Segment]], None],
    on_batch: Callable[[Segment, Batch], None],
    *,
    gaps_allowed: bool,
) -> None:
    """Scan from the recovery point, drop the torn end, and leave the last segment ready for appending.

    ``on_believed`` is called once with the segments that hold what is believed, each ending where belief ends; then
    ``on_batch`` sees every batch accepted. ``segments`` loses those that lie behind a cut, or behind a gap: compaction
    keeps away from what is not flushed, so a gap there is a lost end of the segment before. Only when the checkpoint
    itself was lost are gaps taken for compaction's.
    """
    first = len(segments) - 1
    while first > 0 and segments[first].base_offset > mark.recovery_offset:
        first -= 1
    ends = [segment.size for segment in segments]
    for number in range(first, len(segments)):
        is_believed = number == first and segments[number].base_offset < mark.recovery_offset
        load_believed(segments[number], mark.recovery_position if is_believed else 0)
        if is_believed:
            check_believed(segments[number], mark)
        segments[number].aborted.keep_below(mark.recovery_offset)
    on_believed(segments[: first + 1])
    next_offset = max(mark.recovery_offset, segments[first].base_offset)
    for number in range(first, len(segments)):
        segment = segments[number]
        for _, batch in scan_batches(
            segment.file(), segment.size, ends[number], next_offset, gaps_allowed=gaps_allowed
        ):
            segment.admit(batch.base_offset, batch.size, batch.next_offset, batch.max_timestamp)
            report.scanned_bytes += batch.size
            next_offset = batch.next_offset
            on_batch(segment, batch)
        if segment.size < ends[number]:
            _cut(disk, segment, ends[number], report)
            _set_aside(disk, segments, ends, number + 1, report)
            return
        if number + 1 < len(segments):
            if segments[number + 1].base_offset != next_offset and not gaps_allowed:
                _set_aside(disk, segments, ends, number + 1, report)
                return
            segment.seal()


def _cut(disk: Disk, segment: Segment, end: int, report: RecoveryReport) -> None:
    file = segment.file()
    tail = file.pread(end - segment.size, segment.size)
    saved_as = None
    batches, records = count_batches(tail, segment.next_offset)
    if batches:
        saved_as = _unused(disk, f"{segment.path}.cut-{segment.size}")
        copy = disk.open(saved_as, create=True)
        copy.write([tail], 0)
        copy.datasync()
        copy.close()
    report.add_cut(Cut(segment.path, segment.size, len(tail), batches, records, saved_as))
    file.truncate(segment.size)


def _unused(disk: Disk, path: str) -> str:
    """A name that overwrites nothing an earlier recovery kept."""
    number = 0
    candidate = path
    while disk.exists(candidate):
        number += 1
        candidate = f"{path}.{number}"
    return candidate


def _set_aside(disk: Disk, segments: list[Segment], ends: list[int], first: int, report: RecoveryReport) -> None:
    """Segments behind a cut cannot be joined to the log; bytes with a batch in them are kept beside it."""
    for segment, size in zip(segments[first:], ends[first:], strict=True):
        data = segment.file().pread(size, 0)
        saved_as = None
        batches, records = count_batches(data, segment.base_offset)
        if batches:
            saved_as = _unused(disk, f"{segment.path}.cut-0")
            disk.rename(segment.path, saved_as)
        if size:
            report.add_cut(Cut(segment.path, 0, size, batches, records, saved_as))
        segment.remove(disk)
    del segments[first:]


def count_batches(tail: bytes, next_offset: int) -> tuple[int, int]:
    """(batches, records) that stand whole in these bytes: at their start with any checksum, or anywhere with the right
    one.

    A candidate must carry an offset that could follow here, which leaves few to check.
    """
    batches = records = 0
    position = 0
    offset_limit = next_offset + len(tail)
    first = parse_header(tail)
    if first is not None and first.base_offset >= next_offset and first.size <= len(tail):
        batches, records, position = 1, first.record_count, first.size
    while (place := tail.find(MAGIC, position + _MAGIC_POSITION)) >= 0:
        start = place - _MAGIC_POSITION
        header = parse_header(tail, start)
        position = start + 1
        if header is None or header.size > len(tail) - start or not next_offset <= header.base_offset <= offset_limit:
            continue
        if Batch(header, tail[start + PREFIX_BYTES : start + header.size]).checksum_holds():
            batches, records, position = batches + 1, records + header.record_count, start + header.size
    return batches, records
