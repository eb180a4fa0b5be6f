"""A failed sync is the end, wherever it happens."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.log.disk import OsDisk, replace_file
from headrace.log.store import LogStore
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.testing.disk import SimulatedDisk


def guarded() -> tuple[SimulatedDisk, SyncGuard, list[BaseException]]:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    failures: list[BaseException] = []
    return disk, SyncGuard(disk, failures.append), failures


SYNCS: dict[str, Callable[[SyncGuard], None]] = {
    "datasync": lambda guard: guard.open("/data/file", create=True).datasync(),
    "sync_dir": lambda guard: guard.sync_dir("/data"),
    "syncfs": lambda guard: guard.syncfs("/data"),
}

CHANGES: dict[str, Callable[[SyncGuard], object]] = {
    **SYNCS,
    "create": lambda guard: guard.open("/data/new", create=True),
    "mkdir": lambda guard: guard.mkdir("/data/new"),
    "rename": lambda guard: guard.rename("/data/old", "/data/new"),
    "unlink": lambda guard: guard.unlink("/data/old"),
    "rmdir": lambda guard: guard.rmdir("/data/empty"),
    "write": lambda guard: guard.open("/data/old").write([b"x"], 0),
    "truncate": lambda guard: guard.open("/data/old").truncate(0),
    "replace": lambda guard: replace_file(guard, "/data/old", b"x"),
}


@pytest.mark.parametrize("operation", SYNCS)
def test_a_failed_sync_is_reported_once_with_its_file_and_taken_for_no_other_error(operation: str) -> None:
    disk, guard, failures = guarded()
    disk.fail_next(operation, errno.EIO)
    with pytest.raises(SyncFailed) as caught:
        SYNCS[operation](guard)
    assert not isinstance(caught.value, OSError | HeadraceError)
    assert [(error.errno, error.filename) for error in failures if isinstance(error, OSError)] == [
        (errno.EIO, "/data/file" if operation == "datasync" else "/data")
    ]
    for again in SYNCS.values():
        with pytest.raises(SyncFailed):
            again(guard)
    assert len(failures) == 1


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_changed_after_a_failed_sync(change: str) -> None:
    disk, guard, _ = guarded()
    guard.open("/data/old", create=True).write([b"old"], 0)
    guard.mkdir("/data/empty")
    disk.fail_next("syncfs", errno.EIO)
    with pytest.raises(SyncFailed):
        guard.syncfs("/data")
    with pytest.raises(SyncFailed):
        CHANGES[change](guard)
    assert guard.listdir("/data") == ["empty", "old"]
    assert guard.open("/data/old").pread(10, 0) == b"old"


def test_a_failed_sync_of_another_process_counts_like_ours() -> None:
    _, guard, failures = guarded()
    error = OSError(errno.EIO, "in the child that compacts")
    guard.fail(error)
    assert failures == [error]
    with pytest.raises(SyncFailed, match="in the child that compacts"):
        guard.syncfs("/data")


def test_an_ordinary_error_of_the_disk_is_no_failed_sync() -> None:
    disk, guard, failures = guarded()
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        guard.open("/data/file", create=True).write([b"x"], 0)
    with pytest.raises(FileNotFoundError):
        guard.sync_dir("/data/removed")
    assert failures == []
    guard.syncfs("/data")


def test_a_store_that_is_closed_after_a_failed_sync_writes_no_checkpoint_and_gives_up_its_lock() -> None:
    disk, guard, _ = guarded()
    store = LogStore.open(guard, "/data")
    disk.fail_next("syncfs", errno.EIO)
    with pytest.raises(SyncFailed):
        store.close()
    assert not LogStore.open(disk, "/data").report.clean


def test_a_directory_is_synced_even_when_no_descriptor_is_left(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.syncfs(str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    held: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        disk.sync_dir(str(tmp_path))
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_descriptor_serves_all_directories_of_a_filesystem(tmp_path: Path) -> None:
    disk = OsDisk()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        place = tmp_path / str(number)
        place.mkdir()
        disk.syncfs(str(place))
    assert len(os.listdir("/proc/self/fd")) == before + 1
