"""Repairing a data directory while no broker runs: for ``headrace log repair``.

``plan`` checks everything and surveys the logs that have errors. ``carry_out`` repairs them and writes the checkpoint.
Logs without errors are not touched. What the broker derives again by itself needs no repair. ``adopt`` is for a journal
that has lost topics: their directories tell name, id and number of partitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from headrace.batch import build_batch
from headrace.broker.topics import group_name
from headrace.broker.unclaimed import Unclaimed
from headrace.broker.verify import JOURNAL_LOG, DataVerifier
from headrace.log.checkpoint import LogMark, read_checkpoint, write_checkpoint
from headrace.log.config import LogConfig
from headrace.log.errors import DataDirectoryInUse
from headrace.log.findings import Finding, Severity
from headrace.log.flushed import FlushedEnds
from headrace.log.log import PartitionLog
from headrace.log.repair import Repair, apply, survey
from headrace.log.space import TOPICS, log_name
from headrace.ports import Disk
from headrace.record import Record
from headrace.vocabulary import Epoch, Offset

__all__ = ["DamagedLog", "adopt", "carry_out", "owned", "plan", "unclaimed"]


@dataclass(slots=True)
class DamagedLog:
    """A log with errors, and what a repair of it will do."""

    name: str
    """As in the checkpoint: ``topics/orders~6f1c…/0``."""
    repair: Repair
    errors: list[Finding] = field(default_factory=list)

    @property
    def is_journal(self) -> bool:
        return self.name == JOURNAL_LOG


@contextmanager
def owned(disk: Disk, directory: str) -> Iterator[None]:
    """Own the data directory, or raise DataDirectoryInUse."""
    path = f"{directory}/lock"
    try:
        lock = disk.lock(path)
    except BlockingIOError:
        file = disk.open(path, writable=False)
        owner_pid = file.pread(20, 0).decode().strip()
        raise DataDirectoryInUse(directory, owner_pid, "stop that process, then repeat this") from None
    try:
        yield
    finally:
        lock.release()


def plan(disk: Disk, directory: str) -> list[DamagedLog]:
    """The logs that need a repair. Changes nothing."""
    verifier = DataVerifier(disk, directory)
    errors = [finding for finding in verifier.run() if finding.severity is Severity.ERROR]
    found = []
    for name in verifier.checked:
        path = f"{directory}/{name}"
        own = [finding for finding in errors if finding.path == path or finding.path.startswith(path + "/")]
        if own:
            found.append(DamagedLog(name, survey(disk, path, verifier.known(name)), own))
    return found


def carry_out(disk: Disk, directory: str, damaged: list[DamagedLog]) -> None:
    """Repair these logs. If it is interrupted, it can be repeated: that a log has gaps is known before it gets any."""
    for log in damaged:
        _change_mark(disk, directory, log.name, lambda mark: replace(mark, gaps=True))
        _set_mark(disk, directory, log.name, apply(disk, log.repair))
    disk.syncfs(directory)


def _set_mark(disk: Disk, directory: str, name: str, mark: LogMark) -> None:
    _change_mark(disk, directory, name, lambda _: mark)
    _note_flushed(disk, directory, {name: mark.recovery_offset})


def _change_mark(disk: Disk, directory: str, name: str, change: Callable[[LogMark], LogMark]) -> None:
    """Without a checkpoint every log is scanned from its first byte. One with a single log in it would be wrong."""
    path = f"{directory}/checkpoint"
    checkpoint = read_checkpoint(disk, path)
    if disk.exists(path) and checkpoint.problem is None:
        checkpoint.logs[name] = change(checkpoint.logs.get(name, LogMark()))
        write_checkpoint(disk, path, checkpoint)


def _note_flushed(disk: Disk, directory: str, ends: dict[str, Offset]) -> None:
    """What the checkpoint says must be in the table of flushed ends too, or the next start takes that for damaged."""
    path = f"{directory}/flushed"
    if disk.exists(path):
        table = FlushedEnds(disk, path)
        table.note([(table.claim(name), end) for name, end in ends.items()])
        table.sync()


def unclaimed(disk: Disk, directory: str) -> list[Unclaimed]:
    """The directories that belong to no topic."""
    return _tables(disk, directory).unclaimed()


def adopt(disk: Disk, directory: str, now_ms: int) -> list[Unclaimed]:
    """Make topics of the directories that belong to none; which they were. Their settings are lost."""
    verifier = _tables(disk, directory)
    found = verifier.unclaimed()
    if not found:
        return []
    records = []
    for each in found:
        row = {"id": each.topic_id, "partitions": each.partitions, "config": each.config}
        records.append(Record(f"topics/{each.topic}".encode(), json.dumps(row).encode(), timestamp=now_ms))
        _rename(disk, directory, each)
    log = PartitionLog.open(disk, f"{directory}/{JOURNAL_LOG}", LogConfig(), known=verifier.known(JOURNAL_LOG))
    log.append(build_batch(records), leader_epoch=Epoch(0), now_ms=now_ms)
    _set_mark(disk, directory, JOURNAL_LOG, log.close())
    return found


def _tables(disk: Disk, directory: str) -> DataVerifier:
    verifier = DataVerifier(disk, directory)
    for _ in verifier.read_tables():
        pass
    return verifier


def _rename(disk: Disk, directory: str, adopted: Unclaimed) -> None:
    """A directory is called like its topic. If the run ends before the topic has its row, the next one finds a
    directory of the new name that belongs to no topic."""
    group = group_name(adopted.topic, bytes.fromhex(adopted.topic_id))
    if group == adopted.group:
        return
    path = f"{directory}/checkpoint"
    checkpoint = read_checkpoint(disk, path)
    if disk.exists(path) and checkpoint.problem is None:
        names = {log_name(TOPICS, adopted.group, each): log_name(TOPICS, group, each) for each in adopted.numbers}
        marks = {new: checkpoint.logs[old] for old, new in names.items() if old in checkpoint.logs}
        checkpoint.logs.update(marks)
        write_checkpoint(disk, path, checkpoint)
        _note_flushed(disk, directory, {name: mark.recovery_offset for name, mark in marks.items()})
    disk.rename(adopted.path, f"{directory}/{TOPICS}/{group}")
    disk.sync_dir(f"{directory}/{TOPICS}")
