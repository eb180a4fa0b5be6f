"""What every disk must do, the real one and the simulated one; and what only the simulated one can."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.log.disk import FileCache, OsDisk, replace_file
from headrace.ports import Disk
from headrace.testing.disk import PowerLoss, SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "real":
        return OsDisk(), str(tmp_path)
    disk = SimulatedDisk()
    disk.mkdir("/place")
    return disk, "/place"


def test_what_is_written_is_read(place: tuple[Disk, str]) -> None:
    disk, root = place
    file = disk.open(f"{root}/file", create=True)
    assert file.write([b"ab", b"", b"cde"], 0) == 5
    assert file.write([b"X"], 1) == 1
    assert file.write([b"far"], 7) == 3
    assert file.pread(100, 0) == b"aXcde\0\0far"
    assert file.pread(3, 9) == b"r"
    assert (file.size(), disk.file_size(f"{root}/file")) == (10, 10)
    file.truncate(2)
    assert file.pread(100, 0) == b"aX"


def test_more_chunks_than_one_call_takes_are_all_written(place: tuple[Disk, str]) -> None:
    disk, root = place
    file = disk.open(f"{root}/file", create=True)
    assert file.write([b"%04d" % n for n in range(3000)], 0) == 12_000
    assert file.pread(8, 2998 * 4) == b"29982999"


def test_a_missing_file_is_not_created_by_accident(place: tuple[Disk, str]) -> None:
    disk, root = place
    for action in (disk.open, disk.file_size, disk.unlink):
        with pytest.raises(FileNotFoundError):
            action(f"{root}/missing")
    assert not disk.exists(f"{root}/missing")


def test_a_rename_replaces_and_open_files_stay(place: tuple[Disk, str]) -> None:
    disk, root = place
    old = disk.open(f"{root}/a", create=True)
    old.write([b"old"], 0)
    disk.open(f"{root}/b", create=True).write([b"new"], 0)
    disk.rename(f"{root}/b", f"{root}/a")
    disk.sync_dir(root)
    assert old.pread(9, 0) == b"old"
    assert disk.open(f"{root}/a").pread(9, 0) == b"new"
    disk.unlink(f"{root}/a")
    assert old.pread(9, 0) == b"old"
    assert disk.listdir(root) == []


def test_directories_list_their_names_in_order(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.mkdir(f"{root}/d/e")
    disk.mkdir(f"{root}/d/e")
    for name in ("z", "a"):
        disk.open(f"{root}/d/{name}", create=True).write([b"123"], 0)
    assert disk.listdir(f"{root}/d") == ["a", "e", "z"]
    assert disk.list_files(f"{root}/d") == {"a": 3, "z": 3}
    assert disk.is_directory(f"{root}/d")
    with pytest.raises(OSError, match="not empty"):
        disk.rmdir(f"{root}/d")
    disk.rmdir(f"{root}/d/e")
    disk.rename(f"{root}/d", f"{root}/moved")
    assert disk.listdir(f"{root}/moved") == ["a", "z"]
    with pytest.raises(FileNotFoundError):
        disk.listdir(f"{root}/d")


def test_a_lock_has_one_owner(place: tuple[Disk, str]) -> None:
    disk, root = place
    lock = disk.lock(f"{root}/lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/lock")
    lock.release()
    disk.lock(f"{root}/lock").release()


def test_syncs_and_free_space_answer(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.open(f"{root}/file", create=True).datasync()
    disk.syncfs(root)
    assert disk.free_bytes(root) > 0


def test_a_sync_of_a_file_reaches_the_kernel_and_its_error_is_raised(tmp_path: Path) -> None:
    file = OsDisk().open(f"{tmp_path}/file", create=True)
    file.datasync()
    ends = os.pipe()
    try:
        os.dup2(ends[1], file.fileno())  # a pipe cannot be synced
        with pytest.raises(OSError, match="Invalid argument"):
            file.datasync()
    finally:
        for end in ends:
            os.close(end)


def test_a_sync_of_the_filesystem_reaches_the_kernel_and_its_error_is_raised(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.syncfs(str(tmp_path))
    [kept] = [fd for fd in map(int, os.listdir("/proc/self/fd")) if _target(fd) == str(tmp_path)]
    only_a_name = os.open(tmp_path, os.O_PATH)
    os.dup2(only_a_name, kept)  # names a place and cannot be synced
    os.close(only_a_name)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.syncfs(str(tmp_path))


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def test_a_replaced_file_is_the_old_or_the_new_one_after_any_crash() -> None:
    seen = set()
    for steps in range(8):
        for seed in range(12):
            disk = SimulatedDisk()
            disk.mkdir("/d")
            disk.sync_dir("/")
            replace_file(disk, "/d/file", b"old" * 500)
            disk.crash_after = disk.operations + steps
            try:
                replace_file(disk, "/d/file", b"new" * 900)
            except PowerLoss:
                pass
            disk.crash(seed)
            seen.add(disk.contents("/d/file"))
    assert seen == {b"old" * 500, b"new" * 900}


def test_the_cache_forgets_the_oldest_and_whoever_holds_it_keeps_it(tmp_path: Path) -> None:
    cache = FileCache(OsDisk(), 2)
    first = cache.open(f"{tmp_path}/0", create=True)
    first.write([b"0"], 0)
    for name in "12":
        cache.open(f"{tmp_path}/{name}", create=True)
    assert len(cache) == 2
    assert first.pread(1, 0) == b"0"


def test_a_crash_keeps_what_was_synced_and_throws_a_die_for_the_rest() -> None:
    outcomes = set()
    for seed in range(200):
        disk = SimulatedDisk()
        disk.mkdir("/d")
        file = disk.open("/d/file", create=True)
        file.write([b"s" * 1000], 0)
        file.datasync()
        disk.sync_dir("/d")
        disk.sync_dir("/")
        file.write([b"u" * 9000], 1000)
        disk.crash(seed)
        after = disk.contents("/d/file")
        assert after[:1000] == b"s" * 1000
        outcomes.add(after[1000:])
    assert b"" in outcomes
    assert b"u" * 9000 in outcomes
    assert any(0 < len(each) < 9000 for each in outcomes), "torn at the end"
    assert any(b"\0" in each for each in outcomes), "torn in the middle"


def test_a_synced_file_without_a_synced_entry_may_be_gone() -> None:
    found = set()
    for seed in range(50):
        disk = SimulatedDisk()
        disk.mkdir("/d")
        disk.sync_dir("/")
        disk.open("/d/file", create=True).datasync()
        disk.crash(seed)
        found.add(disk.exists("/d/file"))
    assert found == {True, False}


def test_a_synced_file_in_a_directory_whose_parent_was_not_synced_may_be_gone() -> None:
    found = set()
    for seed in range(50):
        disk = SimulatedDisk()
        disk.mkdir("/a/b")
        disk.open("/a/b/file", create=True).datasync()
        disk.sync_dir("/a/b")
        disk.sync_dir("/")
        disk.crash(seed)
        assert disk.exists("/a")
        found.add((disk.exists("/a/b"), disk.exists("/a/b/file")))
    assert found == {(True, True), (False, False)}


@pytest.mark.parametrize("sync", ["directory", "filesystem"])
def test_a_directory_is_durable_when_its_parent_or_the_filesystem_was_synced(sync: str) -> None:
    for seed in range(30):
        disk = SimulatedDisk()
        disk.mkdir("/a")
        if sync == "directory":
            disk.sync_dir("/")
        else:
            disk.syncfs("/a")
        disk.crash(seed)
        assert disk.is_directory("/a")


def test_a_renamed_directory_is_in_one_of_its_two_places_after_a_power_loss() -> None:
    found = set()
    for seed in range(50):
        disk = SimulatedDisk()
        disk.mkdir("/from/topic")
        disk.mkdir("/to")
        disk.open("/from/topic/file", create=True).write([b"x"], 0)
        disk.syncfs("/")
        disk.rename("/from/topic", "/to/topic")
        assert disk.contents("/to/topic/file") == b"x"
        disk.crash(seed)
        found.add((disk.exists("/from/topic/file"), disk.exists("/to/topic/file")))
    assert found == {(True, False), (False, True)}


def test_a_killed_process_leaves_what_it_wrote_readable_and_as_little_durable_as_it_was() -> None:
    found = set()
    for seed in range(50):
        disk = SimulatedDisk()
        disk.mkdir("/d")
        disk.sync_dir("/")
        lock = disk.lock("/d/lock")
        file = disk.open("/d/file", create=True)
        file.write([b"written"], 0)
        disk.kill()
        with pytest.raises(AssertionError, match="dead"):
            file.write([b"more"], 7)
        assert disk.lock("/d/lock") is not lock
        assert disk.contents("/d/file") == b"written"
        disk.crash(seed)
        found.add(disk.contents("/d/file") if disk.exists("/d/file") else None)
    assert {None, b"", b"written"} <= found


def test_what_a_killed_process_left_is_durable_after_a_sync_by_the_next_one() -> None:
    for seed in range(30):
        disk = SimulatedDisk()
        disk.mkdir("/d")
        disk.open("/d/file", create=True).write([b"written"], 0)
        disk.kill()
        disk.syncfs("/")
        disk.crash(seed)
        assert disk.contents("/d/file") == b"written"


def test_the_same_seed_gives_the_same_crash() -> None:
    def run() -> bytes:
        disk = SimulatedDisk()
        disk.mkdir("/d")
        file = disk.open("/d/file", create=True)
        disk.sync_dir("/d")
        disk.sync_dir("/")
        for n in range(5):
            file.write([b"%d" % n * 3000], n * 3000)
        disk.crash(7)
        return disk.contents("/d/file")

    assert run() == run()


def test_faults_happen_once_and_where_they_were_asked_for() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    disk.mkdir("/d")
    file = disk.open("/d/file", create=True)
    with pytest.raises(OSError, match="space") as caught:
        file.write([b"x" * 20], 0)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 10
    disk.fail_next("datasync", errno.EIO, "file")
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    file.datasync()
