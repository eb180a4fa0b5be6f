"""Repairing a data directory while no broker runs: for ``headrace log repair``.

``plan`` checks everything and surveys the logs that have errors. ``carry_out`` repairs them and writes the checkpoint.
Logs without errors are not touched. What the broker derives again by itself needs no repair. ``adopt`` is for a journal
that has lost topics: their directories tell name, id and number of partitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.batch import build_batch
from headrace.broker.verify import JOURNAL_LOG, DataVerifier
from headrace.log.checkpoint import LogMark, read_checkpoint, write_checkpoint
from headrace.log.config import LogConfig
from headrace.log.errors import DataDirectoryInUse
from headrace.log.findings import Finding, Severity
from headrace.log.log import PartitionLog
from headrace.log.repair import Repair, apply, survey
from headrace.log.space import GROUP_CHARACTERS_MAX, TOPICS
from headrace.ports import Disk
from headrace.record import Record
from headrace.vocabulary import Epoch

__all__ = ["DamagedLog", "adopt", "carry_out", "owned", "plan"]


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
        raise DataDirectoryInUse(directory, file.pread(20, 0).decode().strip()) from None
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
    """Repair these logs. If it is interrupted, it can be repeated."""
    for log in damaged:
        _set_mark(disk, directory, log.name, apply(disk, log.repair))
    disk.syncfs(directory)


def _set_mark(disk: Disk, directory: str, name: str, mark: LogMark) -> None:
    """Without a checkpoint every log is scanned from its first byte. One with a single log in it would be wrong."""
    path = f"{directory}/checkpoint"
    checkpoint = read_checkpoint(disk, path)
    if disk.exists(path) and checkpoint.problem is None:
        checkpoint.logs[name] = mark
        write_checkpoint(disk, path, checkpoint)


def adopt(disk: Disk, directory: str, now_ms: int) -> list[str]:
    """Make topics of the directories that no row of the journal names; their names. Their settings are lost."""
    verifier = DataVerifier(disk, directory)
    for _ in verifier.run():
        pass
    topics = [name.split("/")[1] for name in verifier.unclaimed if name.startswith(f"{TOPICS}/")]
    records = []
    for group in dict.fromkeys(topics):
        topic, _, topic_id = group.rpartition("~")
        if len(topic) < GROUP_CHARACTERS_MAX and topic not in verifier.rows.get("topics", {}):
            prefix = f"{TOPICS}/{group}/"
            partitions = 1 + max(int(name.removeprefix(prefix)) for name in verifier.on_disk if name.startswith(prefix))
            row = {"id": topic_id, "partitions": partitions, "config": {}}
            records.append(Record(f"topics/{topic}".encode(), json.dumps(row).encode(), timestamp=now_ms))
    if records:
        path = f"{directory}/{JOURNAL_LOG}"
        log = PartitionLog.open(disk, path, LogConfig(), known=verifier.known(JOURNAL_LOG))
        log.append([build_batch(records)], leader_epoch=Epoch(0), now_ms=now_ms)
        _set_mark(disk, directory, JOURNAL_LOG, log.close())
    return [record.key.decode().removeprefix("topics/") for record in records if record.key is not None]
