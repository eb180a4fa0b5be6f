"""Opening a log: from the files in its directory to segments that can be read and appended to.

What the mark vouches for is believed, what follows is scanned (``recovery.py``), and everything that is not as it
should be is noted in the report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.batch import Batch
from headrace.log.checkpoint import LogMark
from headrace.log.compaction.swap import complete_swaps
from headrace.log.config import LogConfig
from headrace.log.disk import FileCache
from headrace.log.epochs import EpochHistory
from headrace.log.errors import CorruptLog
from headrace.log.findings import Finding, Severity
from headrace.log.producer_snapshots import producers_at, replay_headers, snapshot_offsets, snapshot_path
from headrace.log.producers import ProducerStates
from headrace.log.recovery import RecoveryReport, check_believed, load_believed, scan_unflushed
from headrace.log.segment import Segment, segment_name
from headrace.ports import Disk
from headrace.vocabulary import Offset

__all__ = ["OpenedLog", "open_segments", "producers_of", "segment_in"]

_OWN_FILE = re.compile(r"\d{20}\.(log|index|txn|producers)(\.tmp|\.cut-\d+(\.\d+)?)?")


@dataclass(slots=True)
class OpenedLog:
    """What was found in a log's directory. Without segments, the log is new."""

    segments: list[Segment]
    start_offset: Offset
    epochs: EpochHistory
    report: RecoveryReport
    producers: ProducerStates | None = None
    """None when nobody has needed them yet."""
    files_shortened: bool = False
    """Recovery shortened or removed files beside the log. They must be synced: if a crash undid that, they would
    describe batches that the log no longer has."""

    @property
    def touched(self) -> bool:
        """Whether the directory may now hold something that no sync has covered."""
        return self.report.touched or self.files_shortened


def segment_in(
    directory: str, cache: FileCache, config: LogConfig, base: Offset, size: int, *, has_aborted: bool = False
) -> Segment:
    stem = f"{directory}/{segment_name(base)}"
    return Segment(cache, stem, base, size, config.index_interval_bytes, has_aborted=has_aborted)


def open_segments(
    disk: Disk,
    directory: str,
    config: LogConfig,
    cache: FileCache,
    mark: LogMark,
    report: RecoveryReport,
    *,
    gaps_allowed: bool,
) -> OpenedLog:
    """Load what is in ``directory``, creating it if it is not there."""
    opened = OpenedLog([], mark.start_offset, EpochHistory(mark.epochs), report)
    _Opening(disk, directory, mark, opened).run(config, cache, gaps_allowed=gaps_allowed)
    return opened


def producers_of(
    disk: Disk, directory: str, segments: Sequence[Segment], mark: LogMark, offset: Offset
) -> ProducerStates:
    """The producers' state at ``offset``."""
    if not mark.producerless:
        return producers_at(disk, directory, segments, offset)
    states = ProducerStates()
    replay_headers(states, segments, mark.recovery_offset, offset)
    return states


class _Opening:
    def __init__(self, disk: Disk, directory: str, mark: LogMark, opened: OpenedLog) -> None:
        self.disk = disk
        self.directory = directory
        self.mark = mark
        self.opened = opened

    def run(self, config: LogConfig, cache: FileCache, *, gaps_allowed: bool) -> None:
        opened = self.opened
        files = self._files()
        for base in sorted(Offset(int(name[:20])) for name in files if len(name) == 24 and name.endswith(".log")):
            name = segment_name(base)
            size = files[name + ".log"]
            has_aborted = name + ".txn" in files
            opened.segments.append(segment_in(self.directory, cache, config, base, size, has_aborted=has_aborted))
        self._note_strangers(files)
        if not opened.segments:
            if self.mark.recovery_offset > self.mark.start_offset:
                reason = f"offsets up to {self.mark.recovery_offset} were here and are gone"
                raise CorruptLog(self.directory, 0, reason)
            self._drop_snapshots_after(self.mark.recovery_offset, files)
            return
        self._recover(gaps_allowed)
        if opened.start_offset < opened.segments[0].base_offset:
            self._note_missing_start()
        self._drop_snapshots_after(opened.segments[-1].next_offset, files)

    def _files(self) -> dict[str, int]:
        if not self.disk.exists(self.directory):
            self.disk.mkdir(self.directory)
            return {}
        files = self.disk.list_files(self.directory)
        return self.disk.list_files(self.directory) if complete_swaps(self.disk, self.directory, files) else files

    def _recover(self, gaps_allowed: bool) -> None:
        opened, mark = self.opened, self.mark
        last = opened.segments[-1]
        believed_bytes = mark.recovery_position if last.base_offset < mark.recovery_offset else 0
        if last.base_offset <= mark.recovery_offset and last.size == believed_bytes:
            load_believed(last, last.size)
            check_believed(last, mark)
            opened.files_shortened = last.aborted.keep_below(mark.recovery_offset)
        else:
            scan_unflushed(
                self.disk,
                opened.segments,
                mark,
                opened.report,
                self._replay_believed,
                self._replay,
                gaps_allowed=gaps_allowed,
            )
            opened.files_shortened = True
            for segment in opened.segments:
                if segment.aborted.unwritten:
                    segment.aborted.write()

    def _replay_believed(self, segments: Sequence[Segment]) -> None:
        mark = self.mark
        self.opened.producers = producers_of(self.disk, self.directory, segments, mark, mark.recovery_offset)

    def _replay(self, segment: Segment, batch: Batch) -> None:
        self.opened.epochs.note(batch.leader_epoch, batch.base_offset)
        assert self.opened.producers is not None
        aborted = self.opened.producers.apply(batch)
        if aborted is not None:
            segment.aborted.add(aborted)

    def _note_missing_start(self) -> None:
        opened = self.opened
        base = opened.segments[0].base_offset
        if self.mark != LogMark():
            reason = f"offsets {opened.start_offset} to {base - 1} were here and are gone"
            opened.report.add(Finding(Severity.ERROR, self.directory, reason))
        opened.start_offset = base

    def _note_strangers(self, files: dict[str, int]) -> None:
        report = self.opened.report
        for name in files:
            if not _OWN_FILE.fullmatch(name):
                reason = "not headrace's; it is not changed"
                report.add(Finding(Severity.INFO, f"{self.directory}/{name}", reason))
            elif name.endswith((".index", ".txn")) and f"{name[:20]}.log" not in files:
                # Removal takes the log first, so a companion may be left over; but not of what should still be here.
                if self.mark.start_offset <= int(name[:20]) < self.mark.recovery_offset:
                    path = f"{self.directory}/{name[:20]}.log"
                    report.add(Finding(Severity.ERROR, path, "the segment was here and is gone"))

    def _drop_snapshots_after(self, offset: Offset, files: dict[str, int]) -> None:
        """Snapshots of what recovery cut off are wrong, not merely old."""
        for at in snapshot_offsets(files):
            if at > offset:
                self.disk.unlink(snapshot_path(self.directory, at))
                self.opened.files_shortened = True
