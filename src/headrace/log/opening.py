"""Opening a log: from the files in its directory to segments that can be read and appended to.

What must be there is checked first: the directory, the first segment, every segment that left a companion file. If
records are missing that were acknowledged, the log is refused. Then ``recovery.py`` believes what the checkpoint
vouches for and scans the rest.

Everything that is not as it should be becomes a finding of the report.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from headrace.log.checkpoint import LogMark
from headrace.log.compaction.swap import complete_swaps
from headrace.log.config import LogConfig
from headrace.log.disk import FileCache
from headrace.log.epochs import EpochHistory
from headrace.log.errors import CorruptLog, LogError
from headrace.log.findings import Finding, Severity
from headrace.log.producer_snapshots import producers_at, snapshot_offsets, snapshot_path
from headrace.log.producers import ProducerStates
from headrace.log.recovery import Recovery, RecoveryReport
from headrace.log.segment import Segment, orphans, segment_bases, segment_name
from headrace.log.start import marked_start
from headrace.ports import Disk
from headrace.vocabulary import FIRST_OFFSET, Offset

__all__ = ["NOTHING_KNOWN", "Known", "OpenedLog", "new_log", "open_segments", "segment_in"]

_OWN_FILE = re.compile(r"[0-9]{20}\.(log|index|txn|producers|start)(\.tmp|\.cut-[0-9]+(\.[0-9]+)?)?")
_TEMPORARY_FILE = re.compile(r"[0-9]{20}\.(log|index|txn|producers|start)\.tmp")


SNAPSHOT_BYTES_LATER_MAX = 128 << 10
"""A producer snapshot up to this size, of some 700 producers, is decoded in a few ms. One of 50,000 takes a quarter of
a second, in which the broker would serve nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a log before its directory is looked at."""

    mark: LogMark | None = None
    """The log's line of the checkpoint; None for a log that is younger than the checkpoint, or when that was lost."""
    mark_lost: bool = False
    """There was a checkpoint and it is gone."""
    flushed_end: Offset = FIRST_OFFSET
    """Everything below was flushed, by the ``flushed`` file."""


NOTHING_KNOWN = Known()


@dataclass(slots=True)
class OpenedLog:
    """What was found in a log's directory."""

    segments: list[Segment]
    """None: the log begins with an empty segment at ``end_offset``."""
    start_offset: Offset
    marked_start: Offset
    """What the start marker says."""
    end_offset: Offset
    mark: LogMark
    epochs: EpochHistory
    report: RecoveryReport
    producers: ProducerStates | None = None
    """None when nobody has needed them yet."""
    unsynced: bool = False
    """Whether the directory holds something that no sync has covered."""


def segment_in(
    directory: str, cache: FileCache, config: LogConfig, base: Offset, size: int, *, gaps_allowed: bool = False
) -> Segment:
    stem = f"{directory}/{segment_name(base)}"
    return Segment(cache, stem, base, size, config.index_interval_bytes, gaps_allowed=gaps_allowed)


def new_log(directory: str, config: LogConfig, cache: FileCache) -> OpenedLog:
    """A log that has just been made: one empty segment."""
    segment = segment_in(directory, cache, config, FIRST_OFFSET, 0)
    segment.begin()
    return OpenedLog(
        [segment],
        FIRST_OFFSET,
        FIRST_OFFSET,
        FIRST_OFFSET,
        LogMark(),
        EpochHistory(),
        RecoveryReport(),
        ProducerStates(),
    )


def open_segments(
    disk: Disk, directory: str, config: LogConfig, cache: FileCache, known: Known, report: RecoveryReport
) -> OpenedLog:
    """Load what is in ``directory``. Raises CorruptLog when acknowledged records are missing."""
    return _Opening(disk, directory, known, report).run(config, cache)


class _Opening:
    def __init__(self, disk: Disk, directory: str, known: Known, report: RecoveryReport) -> None:
        self.disk = disk
        self.directory = directory
        self.known = known
        self.mark = known.mark or LogMark(gaps=known.mark_lost)
        self.flushed_end = max(self.mark.recovery_offset, known.flushed_end)
        self.start = self.mark.start_offset
        self.report = report
        self.unsynced = known.mark is None

    def run(self, config: LogConfig, cache: FileCache) -> OpenedLog:
        files = self._files()
        marked = marked_start(files)
        self.start = max(self.start, marked)
        segments = self._segments(config, cache, files)
        self._note_strangers(files)
        if not segments:
            self._check_nothing_was_here()
            self._drop_snapshots_after(self.flushed_end, files)
            self._drop_leftovers(files)
            epochs = EpochHistory(self.mark.epochs)
            return OpenedLog([], self.start, marked, self.flushed_end, self.mark, epochs, self.report, None, True)
        self._check_beginning(segments[0], files)
        recovery = Recovery(
            self.disk,
            self.directory,
            segments,
            self.report,
            mark=self.mark,
            mark_lost=self.known.mark_lost,
            # What lies below the start offset may be missing.
            flushed_end=self.flushed_end if self.flushed_end > self.start else FIRST_OFFSET,
        )
        recovery.run()
        end = segments[-1].next_offset
        if end < self.start:
            self._begin_at_start(segments, end)
            end = self.start
        self._drop_snapshots_after(end, files)
        self._drop_leftovers(files)
        producers = recovery.producers
        if producers is None:
            producers = self._many_producers(segments, end, files)
        unsynced = self.unsynced or recovery.unsynced
        return OpenedLog(
            segments, self.start, marked, end, self.mark, recovery.epochs, self.report, producers, unsynced
        )

    def _many_producers(self, segments: list[Segment], end: Offset, files: dict[str, int]) -> ProducerStates | None:
        """Producers are read when somebody asks for them, which is on the event loop. Many are read now."""
        if not any(files[f"{segment_name(at)}.producers"] > SNAPSHOT_BYTES_LATER_MAX for at in snapshot_offsets(files)):
            return None
        with suppress(OSError, LogError):  # what is wrong is reported when somebody asks
            return producers_at(self.disk, self.directory, segments, end, self.mark, self.report.add)
        return None

    # What is there.

    def _files(self) -> dict[str, int]:
        if not self.disk.exists(self.directory):
            if self.known.mark is not None and self.flushed_end == self.start:
                self.report.add(Finding(Severity.WARNING, self.directory, "was missing; no records were in it"))
            return {}
        files = self.disk.list_files(self.directory)
        if complete_swaps(self.disk, self.directory, files):
            self.unsynced = True
            files = self.disk.list_files(self.directory)
        return files

    def _segments(self, config: LogConfig, cache: FileCache, files: dict[str, int]) -> list[Segment]:
        gaps_allowed = config.cleanup_compact or self.mark.gaps
        found = [
            segment_in(
                self.directory, cache, config, base, files[f"{segment_name(base)}.log"], gaps_allowed=gaps_allowed
            )
            for base in segment_bases(files)
        ]
        for segment, following in pairwise(found):
            segment.following_offset = following.base_offset
        return found

    def _note_strangers(self, files: dict[str, int]) -> None:
        for name in files:
            if not _OWN_FILE.fullmatch(name):
                path = f"{self.directory}/{name}"
                self.report.add(Finding(Severity.INFO, path, "not headrace's; it is not changed"))

    # What must be there.

    def _check_nothing_was_here(self) -> None:
        if self.flushed_end > self.start:
            reason = f"offsets {self.start} to {self.flushed_end - 1} were here and are gone"
            raise CorruptLog(self.directory, 0, reason)

    def _check_beginning(self, first: Segment, files: dict[str, int]) -> None:
        """Segments are removed oldest first, and only when the start offset that allows it is durable."""
        if self.start < first.base_offset:
            if not self.known.mark_lost or self.start > 0:
                reason = f"offsets {self.start} to {first.base_offset - 1} were before it and are gone"
                raise CorruptLog(first.path, 0, reason)
            self.start = first.base_offset
        for base in orphans(files).values():
            if self.start <= base < self.mark.recovery_offset:
                raise CorruptLog(f"{self.directory}/{segment_name(base)}.log", 0, "the segment was here and is gone")

    # What must not be there.

    def _drop_leftovers(self, files: dict[str, int]) -> None:
        """Remove files that a crash has left without a meaning: temporary ones, and companions without a log.

        The log has just been found whole, so such a companion is no evidence of a loss: its log never reached the disk,
        or was removed. Later, when the recovery point has passed its base offset, it would look like one.
        """
        for name in [*orphans(files), *filter(_TEMPORARY_FILE.fullmatch, files)]:
            with suppress(FileNotFoundError):
                self.disk.unlink(f"{self.directory}/{name}")
            self.unsynced = True

    def _begin_at_start(self, segments: list[Segment], end: Offset) -> None:
        """The log ends before its start offset: records were deleted and never reached the disk. Nothing that is left
        is served, and the next offset is the start."""
        message = f"offsets {end} to {self.start - 1} were deleted before they were flushed; the log begins after them"
        self.report.add(Finding(Severity.WARNING, self.directory, message))
        self.disk.sync_dir(self.directory)  # files go only below a durable start marker
        for segment in segments:
            segment.remove(self.disk)
        segments.clear()
        self.unsynced = True

    def _drop_snapshots_after(self, end_offset: Offset, files: dict[str, int]) -> None:
        """Snapshots of what recovery cut off are wrong, not merely old."""
        for at in snapshot_offsets(files):
            if at > end_offset:
                self.disk.unlink(snapshot_path(self.directory, at))
                self.unsynced = True
