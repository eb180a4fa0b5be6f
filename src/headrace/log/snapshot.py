"""Snapshots: a data directory as it was at one moment, beside the one that is in use.

::

    <data>/snapshots/<id>/lock            held by the process that reads the snapshot
    <data>/snapshots/<id>/snapshot.json   which files it has, and how many bytes of each
    <data>/snapshots/<id>/data/…          a data directory: hard links, and a checkpoint of the snapshot

**The moment.** Everything that a broker knows is in logs: topics' records, the journal of topics, groups and
transactions, the messages and journals of queues. Logs only grow at their ends, and only the event loop appends. So
``Cut`` notes where every log begins and ends at one moment. That is what a ``kill -9`` at this moment would have left,
and recovery makes of it what it makes of a kill: nothing acknowledged is missing, no transaction is half committed, no
group is ahead of its log. There may be tens of thousands of logs, too many to look at without letting go of the loop.
So they are looked at in steps, and one that is about to change before its step came is looked at first.

**The files.** Sealed segments do not change, but they may be removed or replaced. While links are made, the owner keeps
checkpoints, removals and compactions waiting (``Maintenance.files``); appends go on. After that the links keep the
bytes, whatever happens to the originals. A link to an active segment shows what is appended later, so the snapshot says
how many bytes belong to it. Its index may be sealed later with another size and is left out: recovery rebuilds it.

**The checkpoint** of the snapshot has each log's recovery point and its start at the moment; start markers say the
same. Its table of flushed ends has the ends of the cut: a copy that lacks something at the end of a log is refused, not
cut.

**Its end.** A process that reads a snapshot holds its lock. One that nobody holds is removed: see ``sweep``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.log.checkpoint import Checkpoint, LogMark, encode_checkpoint
from headrace.log.flushed import encode_slots
from headrace.log.format import encode_format
from headrace.log.log import PartitionLog
from headrace.log.segment import segment_name
from headrace.log.start import start_path
from headrace.log.store import LogStore, in_chunks
from headrace.ports import Disk
from headrace.vocabulary import Offset

__all__ = ["SNAPSHOTS", "Cut", "SnapshotJob", "remove_tree", "sweep"]

SNAPSHOTS: Final = "snapshots"
LOGS_PER_STEP = 100
_dump = json.JSONEncoder(separators=(",", ":")).encode
_PRODUCERS = re.compile(r"[0-9]{20}\.producers")


class _Extent(NamedTuple):
    """A log at the moment of the cut."""

    start_offset: Offset
    end_offset: Offset
    segments: int
    active_bytes: int

    @classmethod
    def of(cls, log: PartitionLog) -> _Extent:
        segments = log.segments
        return cls(log.start_offset, log.end_offset, len(segments), segments[-1].size)


@dataclass(frozen=True, slots=True)
class _LogFiles:
    """What is to be linked of one log."""

    name: str
    bases: tuple[int, ...]
    """Of its segments."""
    active_bytes: int | None
    """How much of the last one belongs to the snapshot; None for a log that is not served: whatever is there."""


@dataclass(slots=True)
class SnapshotJob:
    """Makes the links of a snapshot: ``run`` on another thread, while the files of logs stay where they are."""

    disk: Disk
    directory: str
    """The data directory."""
    snapshot_id: str
    created_ms: int
    cluster_id: str
    logs: list[_LogFiles] = field(default_factory=list)
    marks: dict[str, LogMark] = field(default_factory=dict)
    flushed: dict[str, Offset] = field(default_factory=dict)
    unserved: list[str] = field(default_factory=list)
    """Logs that are damaged. They are in the snapshot as they are."""

    @property
    def path(self) -> str:
        return f"{self.directory}/{SNAPSHOTS}/{self.snapshot_id}"

    def run(self) -> None:
        """Raises OSError; then nothing is left."""
        try:
            self._run()
        except OSError:
            remove_tree(self.disk, self.path)
            raise

    def _run(self) -> None:
        target = f"{self.path}/data"
        files: list[tuple[str, int]] = []
        self.disk.mkdir(target)
        for log in self.logs:
            files += self._link(log, target)
        for name, data in (
            ("checkpoint", encode_checkpoint(Checkpoint(logs=self.marks))),
            ("flushed", encode_slots(self.flushed)),
            ("format", encode_format()),
        ):
            self._write(f"{target}/{name}", data)
            files.append((name, len(data)))
        described = {"created_ms": self.created_ms, "cluster_id": self.cluster_id, "unserved": self.unserved}
        # File by file: one call for all of them would keep the interpreter's lock, and so the event loop, all the time.
        listed = ",".join(map(_dump, files))
        self._write(f"{self.path}/snapshot.json", f'{_dump(described)[:-1]},"files":[{listed}]}}'.encode())

    def _link(self, log: _LogFiles, target: str) -> Iterator[tuple[str, int]]:
        source = f"{self.directory}/{log.name}"
        self.disk.mkdir(f"{target}/{log.name}")
        if not self.disk.exists(source):
            return  # the directory of a log that is not served
        sizes = self.disk.list_files(source)
        if log.active_bytes is None:
            wanted = sizes
        else:
            wanted = {name: size for name, size in sizes.items() if _PRODUCERS.fullmatch(name)}
            for base in log.bases:
                is_active = base == log.bases[-1]
                stem = segment_name(base)
                wanted[f"{stem}.log"] = log.active_bytes if is_active else sizes.get(f"{stem}.log", 0)
                companions = (f"{stem}.txn",) if is_active else (f"{stem}.txn", f"{stem}.index")
                wanted |= {name: sizes[name] for name in companions if name in sizes}
        for name, size in wanted.items():
            self.disk.link(f"{source}/{name}", f"{target}/{log.name}/{name}")
            yield f"{log.name}/{name}", size
        if log.active_bytes is not None and (start := self.marks[log.name].start_offset) > 0:
            self._write(start_path(f"{target}/{log.name}", start), b"")
            yield start_path(log.name, start), 0

    def _write(self, path: str, data: bytes) -> None:
        file = self.disk.open(path, create=True)
        file.write([data], 0)
        file.close()


class Cut:
    """Where every log of a store begins and ends at one moment, which is when this is made: on the owner's thread. It
    takes some 0.3 µs for each log."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._logs = list(store.logs.items())
        self._changed: dict[PartitionLog, _Extent] = {}
        """Logs that have changed since: how they were."""
        note = self._note
        for _, log in self._logs:
            log.before_change = note

    def _note(self, log: PartitionLog) -> None:
        log.before_change = None
        self._changed[log] = _Extent.of(log)

    def describe(self, job: SnapshotJob) -> Iterator[None]:
        """Say in steps what is to be linked. Between them logs go on, and no file of theirs is replaced or removed."""
        for some in in_chunks(self._logs, LOGS_PER_STEP):
            for name, log in some:
                self._describe(job, name, log)
            yield
        self._describe_unserved(job)

    def _describe(self, job: SnapshotJob, name: str, log: PartitionLog) -> None:
        log.before_change = None
        extent = self._changed.pop(log, None) or _Extent.of(log)
        bases = tuple(segment.base_offset for segment in log.segments[: extent.segments])
        job.logs.append(_LogFiles(name, bases, extent.active_bytes))
        job.marks[name] = log.mark_from(extent.start_offset)
        job.flushed[name] = extent.end_offset

    def _describe_unserved(self, job: SnapshotJob) -> None:
        for name, (mark, flushed_end) in self._store.unserved().items():
            if name in job.marks:  # it was served at the moment of the cut
                continue
            job.logs.append(_LogFiles(name, (), None))
            job.marks[name] = mark
            job.flushed[name] = flushed_end
            job.unserved.append(name)


def sweep(disk: Disk, directory: str, keep: frozenset[str] = frozenset()) -> frozenset[str]:
    """Remove the snapshots that no process holds, except those to ``keep``; which are left. Raises OSError."""
    home = f"{directory}/{SNAPSHOTS}"
    left = set()
    for name in disk.listdir(home) if disk.exists(home) else []:
        if name in keep or not _removed(disk, f"{home}/{name}"):
            left.add(name)
    return frozenset(left)


def _removed(disk: Disk, path: str) -> bool:
    """Remove a snapshot, unless a process holds it."""
    try:
        lock = disk.lock(f"{path}/lock")
    except FileNotFoundError:
        return True  # its reader has removed it meanwhile
    except BlockingIOError:
        return False
    try:
        remove_tree(disk, path)
    finally:
        lock.release()
    return True


def remove_tree(disk: Disk, path: str) -> None:
    if not disk.is_directory(path):
        if disk.exists(path):
            disk.unlink(path)
        return
    for name in disk.listdir(path):
        remove_tree(disk, f"{path}/{name}")
    disk.rmdir(path)
