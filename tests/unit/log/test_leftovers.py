"""Files in a log's directory that a crash has left, and files that are not ours."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest

from headrace.log.config import LogConfig
from headrace.log.log import PartitionLog
from headrace.log.store import LogStore
from headrace.testing.disk import SimulatedDisk, SimulatedFile
from tests.unit.log.builders import append, fill, offsets_in, open_log, produced

ID = UUID(int=0xABC)
SMALL = LogConfig(segment_bytes_max=1000, index_interval_bytes=200, retention_ms=-1)


def opened(disk: SimulatedDisk) -> tuple[LogStore, PartitionLog]:
    store = LogStore.open(disk, "/data")
    return store, open_log(store, "t", ID, 0, SMALL)


def test_an_index_that_outlives_its_log_in_a_power_loss_refuses_no_later_start() -> None:
    for seed in range(100):
        disk = SimulatedDisk()
        _, log = opened(disk)
        fill(log, 3)
        log.sync_all()
        fill(log, 9)  # rolls twice, and no sync follows
        disk.crash(seed)
        store, log = opened(disk)
        fill(log, 20, size=37)
        log.sync_all()
        store.close()
        _, log = opened(disk)
        assert offsets_in(log)[-1] == log.end_offset - 1


def test_a_companion_whose_log_was_unlinked_before_a_crash_is_removed_at_the_next_opening() -> None:
    disk = SimulatedDisk()
    _, log = opened(disk)
    fill(log, 12)
    disk.kill()
    disk.unlink(f"{log.directory}/00000000000000000010.log")
    disk.open(f"{log.directory}/00000000000000000010.index", create=True)
    disk.open(f"{log.directory}/00000000000000000010.txn", create=True)
    _, log = opened(disk)
    assert not [name for name in disk.listdir(log.directory) if name.startswith("00000000000000000010.")]


@pytest.mark.parametrize(
    "name",
    [
        "notes.index",
        "old.swap",
        "this-is-a-backup-of-.producers",
        "backup.cleaned-by-me",
        "00000000000000000000.log.cleaned-by-me!",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log",
        "notes.txn",
    ],
)
def test_a_file_of_somebody_else_is_reported_and_kept(name: str) -> None:
    disk = SimulatedDisk()
    store, log = opened(disk)
    fill(log, 12)
    store.close()
    path = f"{log.directory}/{name}"
    disk.open(path, create=True).write([b"mine"], 0)
    store, log = opened(disk)
    assert offsets_in(log) == list(range(12))
    assert disk.contents(path) == b"mine"
    assert [finding.path for finding in store.report.findings] == [path]


def test_what_a_failed_write_of_a_snapshot_leaves_is_removed() -> None:
    disk = SimulatedDisk()
    store, log = opened(disk)
    append(log, produced(1, 0))
    for _ in range(5):
        fill(log, 7)
        disk.fail_next("write", errno.ENOSPC, ".producers")
        store.checkpoint(everything=True)
    assert not [name for name in disk.listdir(log.directory) if name.endswith(".tmp")]


def test_the_temporary_file_of_a_killed_process_is_removed_at_the_next_opening() -> None:
    disk = SimulatedDisk()
    store, log = opened(disk)
    fill(log, 3)
    store.close()
    disk.open(f"{log.directory}/00000000000000000003.producers.tmp", create=True)
    _, log = opened(disk)
    assert not [name for name in disk.listdir(log.directory) if name.endswith(".tmp")]


def test_a_long_torn_end_is_counted_and_kept_without_reading_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    config = LogConfig(retention_ms=-1)
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, config)
    fill(log, 60, size=100_000)
    path = log.segments[0].path
    disk.kill()
    disk.damage(path, lambda content: content.__setitem__(100, content[100] ^ 1))
    before = disk.contents(path)
    sizes: list[int] = []
    pread = SimulatedFile.pread

    def recorded(file: SimulatedFile, size: int, position: int) -> bytes:
        sizes.append(size)
        return pread(file, size, position)

    monkeypatch.setattr(SimulatedFile, "pread", recorded)
    log = open_log(LogStore.open(disk, "/data"), "t", ID, 0, config)
    assert max(sizes) <= 1 << 20
    assert [(cut.batches, cut.records) for cut in log.recovery.cuts] == [(60, 60)]
    assert disk.contents(f"{path}.cut-0") == before
