"""Checking a whole data directory without changing it: for ``headrace log verify DATA``.

The checkpoint and the table of flushed ends must be readable. The journal must fold into rows. Every topic among the
rows must have its directories, and every log is checked with all that is known of it (``log/verify.py``). A directory
with records that belongs to no topic is an error (``unclaimed.py``).

Checkpoint and flushed ends are read before the logs: logs only grow, so a running broker causes no false error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headrace.broker.broker import JOURNAL
from headrace.broker.queues.registry import QUEUE_ROWS
from headrace.broker.topics import deleted_group, group_name
from headrace.broker.unclaimed import Unclaimed, find_unclaimed
from headrace.errors import HeadraceError
from headrace.log.checkpoint import Checkpoint, LogMark, read_checkpoint
from headrace.log.findings import Finding, Severity
from headrace.log.flushed import decode_slots, name_digest
from headrace.log.format import check_format
from headrace.log.opening import Known
from headrace.log.repair import survey
from headrace.log.space import QUEUES, SPACES, STATE, TOPICS, log_name
from headrace.log.verify import verify_log
from headrace.ports import Disk
from headrace.record import decode_records
from headrace.vocabulary import FIRST_OFFSET, Offset

__all__ = ["JOURNAL_LOG", "DataVerifier"]

JOURNAL_LOG = log_name(STATE, JOURNAL, 0)
"""The name of the journal's log."""

_DECODED_BYTES_MAX = 256 << 20


class DataVerifier:
    """One check of one data directory."""

    def __init__(self, disk: Disk, directory: str, *, decompressed_bytes_max: int = 128 << 20) -> None:
        check_format(disk, directory)
        self.disk = disk
        self.directory = directory
        self.decompressed_bytes_max = decompressed_bytes_max
        self.checkpoint = Checkpoint()
        self.flushed: dict[bytes, Offset] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.checked: list[str] = []
        """The names of the logs that were checked."""
        self.on_disk = [
            f"{space}/{group}/{number}"
            for space in SPACES
            if disk.is_directory(f"{directory}/{space}")
            for group in disk.listdir(f"{directory}/{space}")
            if disk.is_directory(f"{directory}/{space}/{group}")
            for number in disk.listdir(f"{directory}/{space}/{group}")
            if number.isdecimal()
        ]

    @property
    def partitions(self) -> list[str]:
        """The logs that were checked, without the journal."""
        return [name for name in self.checked if name != JOURNAL_LOG]

    def run(self) -> Iterator[Finding]:
        yield from self.read_tables()
        claimed = self._claimed()
        self.checked = sorted({*self.on_disk, *claimed})
        for name in self.checked:
            path = f"{self.directory}/{name}"
            known = self.known(name)
            yield from verify_log(self.disk, path, known, decompressed_bytes_max=self.decompressed_bytes_max)
            if name not in self.on_disk:
                yield Finding(Severity.WARNING, path, "the directory of this partition is missing")
        for each in self.unclaimed():
            yield each.finding(self.directory)

    def read_tables(self) -> Iterator[Finding]:
        """Read what there is beside the logs of topics: checkpoint, flushed ends, and the rows of the journal."""
        yield from self._checkpoint()
        yield from self._flushed()
        yield from self._journal()

    def unclaimed(self) -> list[Unclaimed]:
        """The directories that belong to no topic. One that was made after ``on_disk`` was listed does not count: a
        running broker may have written its row after the journal was read."""
        groups = {name.split("/")[1] for name in self.on_disk}
        return [each for each in find_unclaimed(self.disk, self.directory, self.rows) if each.group in groups]

    def known(self, name: str) -> Known:
        flushed_end = self.flushed.get(name_digest(name), FIRST_OFFSET)
        if self.checkpoint.problem is not None:
            return Known(mark_lost=True, flushed_end=flushed_end)
        return Known(mark=self.checkpoint.logs.get(name, LogMark()), flushed_end=flushed_end)

    # The files beside the logs.

    def _checkpoint(self) -> Iterator[Finding]:
        path = f"{self.directory}/checkpoint"
        self.checkpoint = read_checkpoint(self.disk, path)
        if not self.disk.exists(path) and self.on_disk:
            self.checkpoint.problem = "it is missing: every log will be scanned from its first byte"
        if self.checkpoint.problem is not None:
            yield Finding(Severity.WARNING, path, self.checkpoint.problem)

    def _flushed(self) -> Iterator[Finding]:
        path = f"{self.directory}/flushed"
        if not self.disk.exists(path):
            if self.on_disk:
                yield Finding(Severity.WARNING, path, "it is missing: a lost end of a log may go unnoticed")
            return
        file = self.disk.open(path, writable=False)
        found, damaged = decode_slots(file.pread(file.size(), 0))
        self.flushed = dict(found.values())
        if damaged:
            message = f"{damaged} entries are damaged: a lost end of a log may go unnoticed"
            yield Finding(Severity.WARNING, path, message)

    # The journal.

    def _journal(self) -> Iterator[Finding]:
        path = f"{self.directory}/{JOURNAL_LOG}"
        if not self.disk.exists(path):
            if self.on_disk:
                yield Finding(Severity.ERROR, path, "the journal is missing: topics and groups are in it")
            return
        # What is damaged is reported by the check of its log. What comes after the damage counts: a repair keeps it.
        for found in survey(self.disk, path, self.known(JOURNAL_LOG)).batches(self.disk):
            try:
                for record in decode_records(found.batch, _DECODED_BYTES_MAX):
                    self._fold(record.key or b"", record.value)
            except (HeadraceError, ValueError) as error:
                yield Finding(Severity.ERROR, found.path, f"no row of the journal: {error}", found.position)

    def _fold(self, key: bytes, value: bytes | None) -> None:
        table, _, row = key.decode().partition("/")
        if value is None:
            self.rows.get(table, {}).pop(row, None)
        else:
            self.rows.setdefault(table, {})[row] = json.loads(value)

    def _claimed(self) -> set[str]:
        """The logs that the rows name."""
        found = {JOURNAL_LOG}
        for name, row in self.rows.get("topics", {}).items():
            group = group_name(name, bytes.fromhex(row["id"]))
            found |= {log_name(TOPICS, group, index) for index in range(row["partitions"])}
        for row in self.rows.get(QUEUE_ROWS, {}).values():
            found |= {log_name(QUEUES, row["group"], number) for number in range(1 + row["lanes"])}
        for key in self.rows.get("deleted", {}):
            prefix = f"{TOPICS}/{deleted_group(key)}/"
            found |= {each for each in self.on_disk if each.startswith(prefix)}
        return found
