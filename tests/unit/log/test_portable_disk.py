"""The disk without Linux's own calls: what must be synced is remembered, and synced."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from pathlib import Path

import pytest

from headrace.log import disk as disk_module
from headrace.log.disk import OsDisk, replace_file
from headrace.log.unsynced_paths import UnsyncedPaths


class Syncs:
    """The paths that were synced, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._folder = folder
        self.done: list[str] = []
        self.failing = ""
        monkeypatch.setattr(disk_module, "HAS_LINUX_CALLS", False)
        monkeypatch.setattr(disk_module, "sync_data", self._sync)
        monkeypatch.setattr(disk_module, "_sync_entries", self._sync)
        monkeypatch.setattr(disk_module, "_writev", disk_module._portable_writev)

    def _sync(self, fd: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), self._folder)
        if path == self.failing:
            raise OSError(errno.EIO, "Input/output error")
        self.done.append(path)

    def taken(self) -> list[str]:
        taken, self.done = self.done, []
        return taken


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Syncs:
    return Syncs(monkeypatch, tmp_path)


def test_a_sync_of_the_filesystem_is_one_of_every_file_and_directory_that_was_changed(
    syncs: Syncs, tmp_path: Path
) -> None:
    disk = OsDisk()
    disk.mkdir(f"{tmp_path}/a/b")
    file = disk.open(f"{tmp_path}/a/b/one", create=True)
    assert file.write([b"x", b"y"], 0) == 2
    disk.syncfs(str(tmp_path))
    assert sorted(syncs.taken()) == [".", "a", "a/b", "a/b/one"]
    disk.syncfs(str(tmp_path))
    assert syncs.taken() == [], "nothing was changed since"
    file.write([b"z"], 2)
    disk.syncfs(str(tmp_path))
    assert syncs.taken() == ["a/b/one"]
    assert (tmp_path / "a/b/one").read_bytes() == b"xyz"


def test_what_was_synced_by_itself_is_not_synced_again(syncs: Syncs, tmp_path: Path) -> None:
    disk = OsDisk()
    file = disk.open(f"{tmp_path}/one", create=True)
    file.write([b"x"], 0)
    file.datasync()
    disk.sync_dir(str(tmp_path))
    assert syncs.taken() == ["one", "."]
    disk.syncfs(str(tmp_path))
    assert syncs.taken() == []


def test_a_renamed_file_is_synced_under_its_new_name_and_a_removed_one_is_not(syncs: Syncs, tmp_path: Path) -> None:
    disk = OsDisk()
    for name in ("old", "gone"):
        disk.open(f"{tmp_path}/{name}", create=True).write([b"x"], 0)
    disk.rename(f"{tmp_path}/old", f"{tmp_path}/new")
    disk.unlink(f"{tmp_path}/gone")
    disk.link(f"{tmp_path}/new", f"{tmp_path}/second")
    disk.syncfs(str(tmp_path))
    assert sorted(syncs.taken()) == [".", "new"]


def test_a_failed_sync_is_raised_and_what_it_was_about_stays_unsynced(syncs: Syncs, tmp_path: Path) -> None:
    disk = OsDisk()
    disk.open(f"{tmp_path}/one", create=True).write([b"x"], 0)
    syncs.failing = "one"
    with pytest.raises(OSError, match="Input/output"):
        disk.syncfs(str(tmp_path))
    syncs.failing = ""
    disk.syncfs(str(tmp_path))
    assert sorted(syncs.taken()) == [".", "one"]


def test_what_is_written_during_a_sync_is_synced_by_the_next() -> None:
    paths = UnsyncedPaths()
    paths.wrote("/a/one")
    with paths.syncing_file("/a/one"):
        paths.wrote("/a/one")
    synced: list[str] = []
    paths.sync_noted(synced.append, synced.append)
    assert synced == ["/a/one"]


def test_a_file_that_another_process_removed_is_no_failure(syncs: Syncs, tmp_path: Path) -> None:
    disk = OsDisk()
    disk.mkdir(f"{tmp_path}/a")
    disk.open(f"{tmp_path}/a/one", create=True).write([b"x"], 0)
    (tmp_path / "a/one").unlink()
    (tmp_path / "a").rmdir()
    disk.syncfs(str(tmp_path))
    assert syncs.taken() == ["."]


def test_a_sync_needs_no_descriptor_that_is_not_there(syncs: Syncs, tmp_path: Path) -> None:
    disk = OsDisk()
    replace_file(disk, f"{tmp_path}/small", b"x", sync=False)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        disk.syncfs(str(tmp_path))
        disk.sync_dir(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    assert sorted(set(syncs.taken())) == [".", "small"]


def test_a_full_sync_is_asked_for_where_it_exists_and_a_plain_one_where_the_filesystem_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def answer(fd: int, command: int) -> int:
        asked.append(command)
        if len(asked) > 1:
            raise OSError(errno.ENOTSUP, "not supported")
        return 0

    plain: list[int] = []
    monkeypatch.setattr(disk_module, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", answer)
    monkeypatch.setattr(os, "fsync", plain.append)
    disk_module._portable_sync(7)
    assert (asked, plain) == ([51], [])
    disk_module._portable_sync(7)
    assert (asked, plain) == ([51, 51], [7])
