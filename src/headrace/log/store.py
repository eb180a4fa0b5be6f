"""The data directory: one owner, all partition logs, and the checkpoint that speaks for them.

::

    <data>/lock                                   flock, with the owner's pid inside
    <data>/format                                 see format.py
    <data>/checkpoint                             see checkpoint.py
    <data>/flushed                                see flushed.py
    <data>/topics/<name>~<topic id>/<partition>/  one PartitionLog each
    <data>/state/journal/0/                       what the broker remembers besides records
    <data>/deleted/…                              topics on their way out
    <data>/snapshots/…                            see snapshot.py
    <data>/restored                               a backup was restored here, and no broker has started since

``topics`` and ``state`` are spaces (``space.py``). Checkpoints and everything else here treats the logs of all spaces
alike. A topic's directory carries its id, so a topic that is deleted and created again under its name never meets its
old files. Deleting renames first and removes later: after a crash a topic is either there or not. Whatever else lies in
the data directory is reported and not changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from headrace.log.checkpoint import Checkpoint, LogMark, read_checkpoint, write_checkpoint
from headrace.log.config import LogConfig
from headrace.log.disk import FileCache
from headrace.log.errors import CorruptLog, DataDirectoryInUse
from headrace.log.findings import Finding, Severity, StoreReport
from headrace.log.flushed import FlushedEnds
from headrace.log.format import NAME as FORMAT
from headrace.log.format import check_format, write_format
from headrace.log.log import PartitionLog, PreparedMark
from headrace.log.opening import Known
from headrace.log.space import SPACES, LogSpace
from headrace.log.start import write_start
from headrace.log.unsynced import FlushMark
from headrace.ports import Disk
from headrace.vocabulary import Offset

__all__ = ["RESTORED", "CheckpointJob", "LogStore", "epoch_of_time", "exhaust", "in_chunks"]

LOGS_PER_STEP = 100
EPOCH_MS = 2_000
EPOCH_MAX = 2**31 - 1_000_000
"""There must be room for starts after it."""
RESTORED: Final = "restored"
_OWN_NAMES: Final = frozenset(
    {"lock", "format", "checkpoint", "checkpoint.tmp", "flushed", "deleted", "snapshots", RESTORED, *SPACES}
)

T = TypeVar("T")


def epoch_of_time(now_ms: int) -> int:
    """A leader epoch for a broker that does not know its last one: the time in units of two seconds, which is greater
    than all before unless the broker restarts faster than that. It has 31 bits, which last until 2106."""
    return min(now_ms // EPOCH_MS, EPOCH_MAX)


def in_chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def exhaust(steps: Iterator[None]) -> None:
    """Take all steps at once."""
    for _ in steps:
        pass


@dataclass(slots=True)
class CheckpointJob:
    """A checkpoint under way: ``sync`` and then ``write`` may be called on another thread. The owner's thread calls
    ``LogStore.synced`` after that, and ``LogStore.written`` if the write did not fail."""

    disk: Disk
    directory: str
    flushed: FlushedEnds
    before: dict[str, LogMark]
    prepared: list[tuple[str, PartitionLog, PreparedMark]] = field(default_factory=list)
    """Logs whose recovery point is to move."""
    ends: list[tuple[PartitionLog, Offset]] = field(default_factory=list)
    starts: list[tuple[PartitionLog, Offset, Offset]] = field(default_factory=list)
    """(log, what its start marker says, what it must say)."""
    shrunk: list[PartitionLog] = field(default_factory=list)
    """Logs that have segments to remove."""
    moved: dict[str, LogMark] = field(default_factory=dict)
    """Recovery points that have moved."""
    points: list[tuple[PartitionLog, LogMark]] = field(default_factory=list)
    marked: list[tuple[PartitionLog, Offset]] = field(default_factory=list)
    """Logs whose start marker was moved, and where to."""
    refused: list[tuple[PartitionLog, OSError]] = field(default_factory=list)
    """Logs whose start marker could not be moved. It concerns nobody else."""

    def add(self, name: str, log: PartitionLog, *, everything: bool) -> None:
        written, mark = self.before.get(name), log.mark
        is_compacted = written is not None and (written.cleaned_offset, written.gaps) != (
            mark.cleaned_offset,
            mark.gaps,
        )
        self.before[name] = mark
        self.ends.append((log, log.end_offset))
        start = log.start_to_mark()
        if start is not None:
            self.starts.append((log, *start))
        if log.has_dead_segments:
            self.shrunk.append(log)
        if everything or is_compacted or log.wants_checkpoint:
            with suppress(OSError):
                self.prepared.append((name, log, log.prepare_checkpoint()))

    def sync(self) -> None:
        """Save the producers, flush everything, then move the start markers and make them durable.

        In this order: a marker that reaches the disk before the records below it would leave a log whose start offset
        lies after its end.
        """
        for name, log, prepared in self.prepared:
            with suppress(OSError):  # a full disk: its recovery point stays
                self.moved[name] = prepared.written()
                self.points.append((log, prepared.mark))
        self.disk.syncfs(self.directory)
        self.flushed.note((log.flushed_end, end) for log, end in self.ends if log.flushed_end)
        self.flushed.sync()
        moved = []
        for log, before, start in self.starts:
            try:
                write_start(self.disk, log.directory, before, start)
                moved.append((log, start))
            except FileNotFoundError:
                pass  # the topic was deleted meanwhile
            except OSError as error:
                self.refused.append((log, error))
        if moved:
            self.disk.syncfs(self.directory)
            self.marked = moved

    def write(self) -> None:
        """Replace the checkpoint. Raises OSError; then the old one stands, and recovery scans a little more."""
        write_checkpoint(self.disk, f"{self.directory}/checkpoint", Checkpoint(logs={**self.before, **self.moved}))


class LogStore:
    """Owns ``<data>``. Open with ``LogStore.open``, end with ``close``."""

    def __init__(self, disk: Disk, directory: str, *, files_max: int, monotonic: Callable[[], float]) -> None:
        self.disk = disk
        self.directory = directory
        self._monotonic = monotonic
        self._opened_at = monotonic()
        self.cache = FileCache(disk, files_max)
        self.report = StoreReport()
        self.logs: dict[str, PartitionLog] = {}
        """Every open log by its name, which is its path below the data directory."""
        self._spaces = {name: LogSpace(self, name) for name in SPACES}
        self._marks: dict[str, LogMark] = {}
        self._names: dict[str, set[str]] = {}
        """Of the logs and marks there are, by the directory of their group."""
        self._checkpoint_lost = False
        self._flushed: FlushedEnds

    @classmethod
    def open(
        cls, disk: Disk, directory: str, *, files_max: int = 512, monotonic: Callable[[], float] = lambda: 0.0
    ) -> LogStore:
        """Take the directory, or raise DataDirectoryInUse naming the process that has it."""
        store = cls(disk, directory, files_max=files_max, monotonic=monotonic)
        for name in (*SPACES, "deleted"):
            disk.mkdir(f"{directory}/{name}")
        store._take_lock()
        try:
            store._check_format()
        except BaseException:
            store.abandon()
            raise
        store._read_checkpoint()
        store._check_flushed()
        store._note_strangers()
        return store

    def _check_format(self) -> None:
        problem = check_format(self.disk, self.directory)
        if problem:
            self._add_warning(f"{self.directory}/{FORMAT}", problem)
        if problem is not None:
            write_format(self.disk, self.directory)

    def _read_checkpoint(self) -> None:
        path = f"{self.directory}/checkpoint"
        checkpoint = read_checkpoint(self.disk, path)
        is_missing = not self.disk.exists(path)
        if is_missing and any(space.groups_on_disk() for space in self._spaces.values()):
            checkpoint.problem = "there is none, though there are logs: every log is scanned from its first byte"
        self.report.clean = checkpoint.clean
        self._marks = checkpoint.logs
        for name in self._marks:
            self._add_name(name)
        if checkpoint.problem:
            self._checkpoint_lost = True
            self._add_warning(path, checkpoint.problem)
        elif is_missing:
            write_checkpoint(self.disk, path, Checkpoint())  # from here on a missing checkpoint is a lost one
        elif checkpoint.clean:
            # From here on a stop is unclean until we say otherwise. A disk that is too full to say so is one more
            # reason to start: only a broker that runs can delete topics.
            with suppress(OSError):
                write_checkpoint(self.disk, path, Checkpoint(logs=checkpoint.logs))

    def _check_flushed(self) -> None:
        """How far logs were flushed. Without it, a lost end looks like a torn write."""
        self._flushed = FlushedEnds(self.disk, f"{self.directory}/flushed")
        if self._flushed.is_new and self._marks:
            self._add_warning(self._flushed.path, "there was none: what a log has lost at its end may go unnoticed")
        if self._flushed.damaged:
            message = f"{self._flushed.damaged} entries are damaged: what a log has lost at its end may go unnoticed"
            self._add_warning(self._flushed.path, message)

    def _add_warning(self, path: str, message: str) -> None:
        self.report.add(Finding(Severity.WARNING, path, message))

    def _take_lock(self) -> None:
        path = f"{self.directory}/lock"
        try:
            self._lock = self.disk.lock(path)
        except BlockingIOError:
            file = self.disk.open(path, writable=False)
            raise DataDirectoryInUse(self.directory, file.pread(20, 0).decode().strip()) from None

    def _note_strangers(self) -> None:
        for name in self.disk.listdir(self.directory):
            if name not in _OWN_NAMES:
                self._note_stranger(f"{self.directory}/{name}", "not headrace's; it is not changed")
        for space in self._spaces.values():
            for path in space.strangers():
                self._note_stranger(path, f"not a name for the space '{space.name}'; it is not changed")

    def _note_stranger(self, path: str, message: str) -> None:
        self.report.add(Finding(Severity.INFO, path, message))

    # Logs.

    def space(self, name: str) -> LogSpace:
        return self._spaces[name]

    def _add_name(self, name: str) -> None:
        self._names.setdefault(name.rpartition("/")[0], set()).add(name)

    def open_log(self, name: str, config: LogConfig, *, sync: bool) -> PartitionLog:
        """For the spaces: ``LogSpace.open_log``."""
        path = f"{self.directory}/{name}"
        self._add_name(name)
        flushed_end = self._flushed.claim(name)
        mark = self._marks.get(name)
        if mark is not None and flushed_end.end_offset < mark.recovery_offset and not self._flushed.is_lost:
            # A checkpoint is written after the table was synced, so the table has lost this.
            self._add_warning(self._flushed.path, f"the entry of {name} is lost")
        known = Known(mark=mark, mark_lost=self._checkpoint_lost, flushed_end=flushed_end.end_offset)
        try:
            log = PartitionLog.open(
                self.disk, path, config, cache=self.cache, known=known, sync=sync, on_finding=self.report.add
            )
        except CorruptLog as error:
            self.report.logs_damaged += 1
            self.report.add(Finding(Severity.ERROR, error.path, error.reason, error.position))
            raise
        self.logs[name] = log
        log.flushed_end = flushed_end
        self._flushed.note([(flushed_end, log.flushed_offset)])
        self.report.logs += 1
        self.report.scanned_bytes += log.recovery.scanned_bytes
        self.report.cuts += len(log.recovery.cuts)
        self.report.cut_bytes += sum(cut.size for cut in log.recovery.cuts)
        return log

    def add_made(self, name: str, config: LogConfig) -> PartitionLog:
        """For the spaces: a log whose directory and first segment have been made."""
        log = PartitionLog.of_new(self.disk, f"{self.directory}/{name}", config, self.cache)
        log.flushed_end = self._flushed.claim(name)
        self.logs[name] = log
        self._add_name(name)
        return log

    def set_aside(self, log: PartitionLog) -> None:
        """The log can no longer be served. Its mark stays, for the next start."""
        for name in [name for name, other in self.logs.items() if other is log]:
            self._marks[name] = log.mark
            del self.logs[name]

    def unserved(self) -> dict[str, tuple[LogMark, Offset]]:
        """The logs that could not be opened: what is known of each, and how far it was flushed."""
        names = self._marks.keys() - self.logs.keys()
        return {name: (self._marks[name], self._flushed.claim(name).end_offset) for name in sorted(names)}

    @property
    def is_restored(self) -> bool:
        """Whether this is a backup, restored: what was done after the backup was made is missing."""
        return self.disk.exists(f"{self.directory}/{RESTORED}")

    def restored_epoch(self) -> int:
        """The leader epoch to begin with that a restore has chosen; 0 where there is none."""
        if not self.is_restored:
            return 0
        file = self.disk.open(f"{self.directory}/{RESTORED}", writable=False)
        return int(json.loads(file.pread(file.size(), 0)).get("leader_epoch", 0))

    def forget_restored(self) -> None:
        """What follows from a restored backup is durable."""
        self.disk.unlink(f"{self.directory}/{RESTORED}")

    def sync_recovered(self) -> None:
        """One sync for all that recovery accepted, before any of it is served. The report is complete after the
        first."""
        for log in self.logs.values():
            log.take_unsynced()
        self.disk.syncfs(self.directory)
        for log in self.logs.values():
            log.flushed_to_end()
        self._flushed.note((log.flushed_end, log.flushed_offset) for log in self.logs.values() if log.flushed_end)
        self._flushed.settle()
        self._drop_marks_of_deleted()
        self.report.seconds = self.report.seconds or self._monotonic() - self._opened_at

    def _drop_marks_of_deleted(self) -> None:
        """Every log there is has been opened. What a killed owner had deleted after its last checkpoint is still in it:
        neither a log that was opened or refused, nor a directory."""
        for name in [name for name in self._marks if not self._flushed.has_claimed(name)]:
            if not self.disk.exists(f"{self.directory}/{name}"):
                del self._marks[name]

    def note_flushed(self, marks: Sequence[FlushMark]) -> None:
        """A sync has returned that covers these; called on the flusher's thread."""
        self._flushed.note((mark.log.flushed_end, mark.end_offset) for mark in marks if mark.log.flushed_end)

    # Checkpoints.

    def new_checkpoint(self) -> CheckpointJob:
        # A log that could not be opened keeps its mark: without one, the next start would scan it from its first byte
        # and cut it at the very damage for which it was refused.
        return CheckpointJob(self.disk, self.directory, self._flushed, dict(self._marks))

    def collect(self, job: CheckpointJob, *, everything: bool = False) -> Iterator[None]:
        """Collect what a checkpoint will say, in steps; logs with little to recover keep their old recovery point.

        Between steps logs go on. What is said of each is true when it is collected, and stays true.
        """
        for some in in_chunks(list(self.logs.items()), LOGS_PER_STEP):
            for name, log in some:
                if self.logs.get(name) is log:  # it may have been deleted since
                    job.add(name, log, everything=everything)
            yield

    def synced(self, job: CheckpointJob) -> Iterator[None]:
        """The job's ``sync`` has returned: tell the logs, in steps. It holds even if the checkpoint cannot be
        written."""
        for marked in in_chunks(job.marked, LOGS_PER_STEP):
            for log, start in marked:
                log.start_marked(start)
            yield
        for some in in_chunks(job.ends, LOGS_PER_STEP):
            for log, end_offset in some:
                log.on_flushed(end_offset)
            yield

    def written(self, job: CheckpointJob) -> Iterator[None]:
        """The job's ``write`` has returned: tell the logs, in steps."""
        for some in in_chunks(job.points, LOGS_PER_STEP):
            for log, mark in some:
                log.checkpointed(mark)
            yield
        live = self.logs.keys() | self._marks.keys()
        self._marks = {name: mark for name, mark in {**job.before, **job.moved}.items() if name in live}

    def checkpoint(self, *, everything: bool = False) -> None:
        """All three steps at once, on this thread."""
        job = self.new_checkpoint()
        exhaust(self.collect(job, everything=everything))
        job.sync()
        job.write()
        exhaust(self.synced(job))
        exhaust(self.written(job))

    # Removing.

    def forget_group(self, group: str) -> Iterator[None]:
        """For the spaces: the logs of ``<space>/<group>`` are being deleted. Forget them, in steps. The cost depends on
        them and not on how many others there are: thousands of groups may be deleted at once."""
        for names in in_chunks(list(self._names.pop(group, ())), LOGS_PER_STEP):
            for name in names:
                log = self.logs.pop(name, None)
                if log is not None:
                    log.forget_files()
                self._marks.pop(name, None)
                self._flushed.forget(name)
            yield

    def remove_deleted(self, files_max: int = 100) -> bool:
        """Remove some files of deleted groups; False when nothing is left. Small steps keep the event loop free.

        Raises OSError when nothing is left but what the disk refuses to remove.
        """
        refused: OSError | None = None
        for group in self.disk.listdir(f"{self.directory}/deleted"):
            try:
                files_max = self._remove_some(f"{self.directory}/deleted/{group}", files_max)
            except OSError as error:
                refused = error
            if files_max == 0:
                return True
        if refused is not None:
            raise refused
        return False

    def _remove_some(self, home: str, files_max: int) -> int:
        """Remove at most so many files of a deleted group, and its directories with the last of them; how many more may
        go, which is 0 when some are left."""
        for number in self.disk.listdir(home):
            directory = f"{home}/{number}"
            if not self.disk.is_directory(directory):
                self.disk.unlink(directory)  # a group that was never confirmed has the file ``new``
                continue
            for file in self.disk.listdir(directory):
                if files_max == 0:
                    return 0
                self.disk.unlink(f"{directory}/{file}")
                files_max -= 1
            self.disk.rmdir(directory)
        self.disk.rmdir(home)
        return files_max

    def abandon(self) -> None:
        """Give up the directory without recording its state: after a failure, the next owner recovers it."""
        self._lock.release()

    def close(self) -> None:
        """An orderly stop: everything durable, nothing to scan at the next start. On a full disk what could not be
        written beside a log is left out, and the next start scans that log's end."""
        try:
            self._close_logs()
        finally:
            self._lock.release()

    def _close_logs(self) -> None:
        marks = dict(self._marks)
        clean = True
        starts = []
        for name, log in self.logs.items():
            marks[name] = log.mark
            try:
                marks[name] = log.close(sync=False)
            except OSError:
                clean = False
            start = log.start_to_mark()
            if start is not None:
                starts.append((log, *start))
        ends = [(log, log.end_offset) for log in self.logs.values()]
        job = CheckpointJob(self.disk, self.directory, self._flushed, {}, ends=ends, starts=starts)
        job.sync()
        clean = clean and not job.refused
        write_checkpoint(self.disk, f"{self.directory}/checkpoint", Checkpoint(clean=clean, logs=marks))
