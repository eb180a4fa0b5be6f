"""The data directory: one owner, checkpoints, retention, deletion, and files that are not ours."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from headrace.log.checkpoint import Checkpoint, LogMark, decode_checkpoint, encode_checkpoint
from headrace.log.config import LogConfig
from headrace.log.disk import OsDisk
from headrace.log.errors import CorruptLog, DataDirectoryInUse, DiskFull
from headrace.log.findings import Severity
from headrace.log.space import TOPICS
from headrace.log.store import LogStore
from headrace.testing.disk import SimulatedDisk
from tests.unit.log.builders import (
    append,
    apply_retention,
    begun_checkpoint,
    fill,
    finish_checkpoint,
    group,
    offsets_in,
    open_log,
    plain,
    produced,
    remove_dead_segments,
)

ID = UUID(int=0xABC)
SMALL = LogConfig(segment_bytes_max=1000, index_interval_bytes=200, retention_ms=-1)


def test_a_second_owner_is_told_who_has_the_directory(tmp_path: Path) -> None:
    store = LogStore.open(OsDisk(), str(tmp_path))
    with pytest.raises(DataDirectoryInUse, match=f"in use by process {os.getpid()}"):
        LogStore.open(OsDisk(), str(tmp_path))
    store.close()
    LogStore.open(OsDisk(), str(tmp_path)).close()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = f"""
import os, signal
from headrace.log.disk import OsDisk
from headrace.log.findings import Severity
from headrace.log.space import TOPICS
from headrace.log.store import LogStore
LogStore.open(OsDisk(), {str(tmp_path)!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert not LogStore.open(OsDisk(), str(tmp_path)).report.clean


def test_after_an_orderly_stop_nothing_is_scanned(tmp_path: Path) -> None:
    disk = OsDisk()
    store = LogStore.open(disk, str(tmp_path))
    for partition in range(3):
        fill(open_log(store, "t", ID, partition, SMALL), 20)
    store.close()
    store = LogStore.open(disk, str(tmp_path))
    assert store.report.clean
    topics = store.space(TOPICS)
    assert topics.groups_on_disk() == [group("t", ID)]
    logs = [topics.open_log(group("t", ID), number, SMALL) for number in range(3)]
    assert [(log.end_offset, log.recovery.scanned_bytes) for log in logs] == [(20, 0)] * 3


@pytest.mark.parametrize("together", [False, True], ids=["each log with its sync", "one sync for all"])
def test_what_recovery_accepted_after_a_kill_survives_a_power_loss(together: bool) -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        store = LogStore.open(disk, "/data")
        for partition in range(2):
            fill(open_log(store, "t", ID, partition, SMALL, sync=False), 12)
        disk.kill()
        store = LogStore.open(disk, "/data")
        for partition in range(2):
            open_log(store, "t", ID, partition, SMALL, sync=not together)
        if together:
            store.sync_recovered()
        assert [log.flushed_offset for log in store.logs.values()] == [12, 12]
        disk.crash(seed)
        store = LogStore.open(disk, "/data")
        for partition in range(2):
            assert offsets_in(open_log(store, "t", ID, partition, SMALL)) == list(range(12))


@pytest.mark.parametrize("killed", [False, True], ids=["by this process", "by one that was killed"])
def test_a_flushed_record_survives_in_a_directory_that_was_just_made(killed: bool) -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        if killed:
            open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL, sync=False)
            disk.kill()
        log = open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL)
        fill(log, 1)
        log.sync_all()
        disk.crash(seed)
        assert open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL).end_offset == 1


def test_a_crash_after_an_orderly_stop_and_start_is_unclean() -> None:
    disk = SimulatedDisk()
    LogStore.open(disk, "/data").close()
    LogStore.open(disk, "/data")
    disk.crash(1)
    assert not LogStore.open(disk, "/data").report.clean


def test_a_corrupt_checkpoint_means_a_full_scan_and_a_note() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "t", ID, 0, SMALL), 20)
    store.close()
    disk.damage("/data/checkpoint", lambda content: content.__setitem__(40, content[40] ^ 1))
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    assert any("checksum is wrong" in finding.message for finding in store.report.findings)
    assert offsets_in(log) == list(range(20))
    assert log.recovery.scanned_bytes == log.size_bytes


def test_a_lost_checkpoint_is_noticed() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "t", ID, 0, SMALL), 2)
    store.close()
    disk.unlink("/data/checkpoint")
    [finding] = LogStore.open(disk, "/data").report.findings
    assert (finding.severity, finding.path) == (Severity.WARNING, "/data/checkpoint")
    assert "there is none" in finding.message


def test_a_checkpoint_has_exactly_these_bytes() -> None:
    mark = LogMark(1, 5, 300, ((0, 1), (2, 4)), 3, producerless=True, aborted_count=7, gaps=True)
    checkpoint = Checkpoint(clean=True, logs={"t~0a/0": mark})
    data = encode_checkpoint(checkpoint)
    assert data == (
        b"headrace-checkpoint 2 c93de01f\n" + b'{"clean":true,"logs":{"t~0a/0":[1,5,300,[[0,1],[2,4]],3,true,7,true]}}'
    )
    assert decode_checkpoint(data) == checkpoint


def test_nobody_walks_through_a_log_without_producers_to_find_them() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    fill(log, 30)
    path = log.segments[0].path
    store.close()
    file = disk.open(path)
    file.write([b"\xff" * file.size()], 0)  # a walk would stumble over this
    again = open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL)
    assert again.last_stable_offset == 30
    fill(again, 30)
    again.sync_all()
    assert again.last_stable_offset == 60


def test_old_segments_go_by_age_and_by_size() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    by_age = open_log(store, "age", ID, 0, LogConfig(segment_bytes_max=1000, retention_ms=10))
    by_size = open_log(store, "size", ID, 0, LogConfig(segment_bytes_max=1000, retention_ms=-1, retention_bytes=2000))
    forever = open_log(store, "forever", ID, 0, SMALL)
    for log in (by_age, by_size, forever):
        fill(log, 30)
        log.sync_all()
    assert apply_retention(store, 1025) > 0
    assert 10 <= by_age.start_offset <= 16
    assert by_age.segments[0].base_offset == by_age.start_offset
    assert 2000 <= by_size.size_bytes < 3000
    assert forever.start_offset == 0


def test_an_idle_topic_empties_and_its_offsets_go_on() -> None:
    store = LogStore.open(SimulatedDisk(), "/data")
    log = open_log(store, "t", ID, 0, LogConfig(retention_ms=10))
    fill(log, 5)
    log.sync_all()
    apply_retention(store, 10_000)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (5, 5, 0)
    assert append(log, plain(b"next", timestamp=20_000)) == 5


def test_what_is_not_flushed_is_not_removed() -> None:
    store = LogStore.open(SimulatedDisk(), "/data")
    log = open_log(store, "t", ID, 0, LogConfig(segment_bytes_max=1000, retention_ms=10))
    fill(log, 20)
    apply_retention(store, 10_000)
    assert log.start_offset == 0


def test_the_start_offset_never_goes_back_whatever_the_crash_undoes() -> None:
    for seed in range(30):
        disk = SimulatedDisk()
        store = LogStore.open(disk, "/data")
        log = open_log(store, "t", ID, 0, SMALL)
        fill(log, 20)
        log.sync_all()
        log.delete_records(13)
        store.checkpoint()
        remove_dead_segments(log)
        disk.crash(seed)
        assert open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL).start_offset == 13


def test_retention_frees_a_disk_too_full_for_a_checkpoint() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, LogConfig(segment_bytes_max=1000, retention_ms=10))
    fill(log, 20)
    append(log, produced(1, 0))
    log.sync_all()
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(DiskFull):
        fill(log, 1)
    assert apply_retention(store, 10_000) > 0
    fill(log, 1)


def test_a_deleted_topic_is_gone_at_once_and_its_name_is_free() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "t", ID, 0, SMALL), 20)
    store.space(TOPICS).forget(group("t", ID))
    store.space(TOPICS).move_deleted(group("t", ID))
    disk.crash(5)
    store = LogStore.open(disk, "/data")
    assert store.space(TOPICS).groups_on_disk() == []
    assert open_log(store, "t", UUID(int=2), 0, SMALL).end_offset == 0
    while store.remove_deleted(2):
        pass
    assert disk.listdir("/data/deleted") == []


def test_strangers_are_reported_and_left_alone() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/data/topics/lost+found")
    disk.mkdir("/data/photos")
    findings = LogStore.open(disk, "/data").report.findings
    assert len(findings) == 2
    assert all("not changed" in finding.message for finding in findings)


def test_many_partitions_are_open_with_few_descriptors(tmp_path: Path) -> None:
    disk = OsDisk()
    before = len(os.listdir("/proc/self/fd"))
    store = LogStore.open(disk, str(tmp_path), files_max=32)
    for partition in range(100):
        fill(open_log(store, "t", ID, partition, SMALL, sync=False), 2)
    store.sync_recovered()
    assert len(os.listdir("/proc/self/fd")) <= before + 32 + 3
    assert all(log.flushed_offset == 2 for log in store.logs.values())


def test_a_real_full_filesystem_refuses_and_recovers(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"only root may mount a small filesystem: {made.stderr.decode().strip()}")
    try:
        store = LogStore.open(OsDisk(), str(mount))
        log = open_log(store, "t", ID, 0, LogConfig())
        with pytest.raises(DiskFull):
            fill(log, 100, size=5000)
        end = log.end_offset
        assert len(offsets_in(log)) == end > 20
        subprocess.run(["mount", "-o", "remount,size=512k", str(mount)], check=True)
        fill(log, 3, size=5000)
        assert offsets_in(log) == list(range(end + 3))
        store.close()
        del log, store
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


def test_errno_names_are_told_apart() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    disk.fail_next("write", errno.EDQUOT)
    with pytest.raises(DiskFull):
        fill(log, 1)


def test_a_log_that_was_refused_is_refused_again_and_never_cut() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    healthy, broken = (open_log(store, "t", ID, partition, SMALL) for partition in range(2))
    fill(healthy, 3)
    fill(broken, 20)
    store.close()
    victim = broken.segments[-1].path
    disk.damage(victim, lambda content: content.__delitem__(slice(50, None)))
    for _ in range(3):
        store = LogStore.open(disk, "/data")
        fill(open_log(store, "t", ID, 0, SMALL), 1)
        with pytest.raises(CorruptLog):
            open_log(store, "t", ID, 1, SMALL)
        store.checkpoint(everything=True)
        store.close()
    assert disk.file_size(victim) == 50
    assert not [name for name in disk.listdir(broken.directory) if ".cut-" in name]


def test_a_deleted_topic_leaves_the_checkpoint() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "gone", ID, 0, SMALL), 1)
    fill(open_log(store, "kept", ID, 0, SMALL), 1)
    store.checkpoint(everything=True)
    job = begun_checkpoint(store, everything=True)
    store.space(TOPICS).forget(group("gone", ID))
    store.space(TOPICS).move_deleted(group("gone", ID))
    finish_checkpoint(store, job)
    store.checkpoint()
    assert b"kept" in disk.contents("/data/checkpoint")
    assert b"gone" not in disk.contents("/data/checkpoint")


def test_what_was_deleted_after_the_last_checkpoint_is_forgotten_at_the_next_start() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    logs = {topic: open_log(store, topic, ID, 0, SMALL) for topic in ("gone", "kept", "damaged", "unclaimed")}
    for log in logs.values():
        fill(log, 20)
    store.checkpoint(everything=True)
    store.space(TOPICS).forget(group("gone", ID))
    store.space(TOPICS).move_deleted(group("gone", ID))
    disk.kill()
    disk.damage(logs["damaged"].segments[-1].path, lambda content: content.clear())
    store = LogStore.open(disk, "/data")
    open_log(store, "kept", ID, 0, SMALL)
    with pytest.raises(CorruptLog):
        open_log(store, "damaged", ID, 0, SMALL)
    store.sync_recovered()
    assert sorted(store.unserved()) == [f"topics/{group(each, ID)}/0" for each in ("damaged", "unclaimed")]
    store.checkpoint(everything=True)
    assert b"gone" not in disk.contents("/data/checkpoint")


def test_a_full_disk_does_not_keep_the_next_owner_out() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "t", ID, 0, SMALL), 20)
    store.close()
    disk.capacity_bytes = disk.used_bytes()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    store.sync_recovered()
    assert offsets_in(log) == list(range(20))
    log.delete_records(20)
    disk.kill()
    disk.capacity_bytes = None
    assert open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL).end_offset == 20


def test_a_full_disk_at_the_stop_loses_nothing() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    append(log, produced(1, 0))
    log.sync_all()
    disk.capacity_bytes = disk.used_bytes()
    with pytest.raises(OSError, match="space"):
        store.close()
    disk.capacity_bytes = None
    store = LogStore.open(disk, "/data")
    assert not store.report.clean
    assert open_log(store, "t", ID, 0, SMALL).end_offset == 1


def test_the_report_has_findings_and_totals_and_every_finding_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    logs = [open_log(store, "t", ID, partition, SMALL) for partition in range(3)]
    fill(logs[0], 5)
    torn, broken = logs[1].segments[-1].path, logs[2].segments[-1].path
    fill(logs[2], 5)
    store.checkpoint(everything=True)
    fill(logs[1], 5)
    logs[1].sync_all()
    disk.kill()
    disk.damage(torn, lambda content: content.extend(b"torn"))
    disk.damage(broken, lambda content: content.__delitem__(slice(50, None)))
    times = iter([10.0, 12.5])
    store = LogStore.open(disk, "/data", monotonic=lambda: next(times))
    for partition in range(2):
        open_log(store, "t", ID, partition, SMALL, sync=False)
    with pytest.raises(CorruptLog):
        open_log(store, "t", ID, 2, SMALL, sync=False)
    store.sync_recovered()
    report = store.report
    assert [(each.severity, each.path, each.position) for each in report.findings] == [
        (Severity.INFO, torn, logs[1].segments[-1].size),
        (Severity.ERROR, broken, 50),
    ]
    assert (report.logs, report.logs_damaged, report.cuts, report.cut_bytes) == (2, 1, 1, 4)
    assert (report.scanned_bytes, report.seconds) == (logs[1].size_bytes, 2.5)
    assert [each.getMessage() for each in caplog.records if each.name == "headrace.recovery"] == [
        str(each) for each in report.findings if each.severity is not Severity.INFO
    ]


def test_a_start_that_moves_while_a_checkpoint_is_written_takes_no_segment_with_it() -> None:
    """The checkpoint speaks of the start of its beginning: what lies after that is still needed to open the log."""
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    fill(log, 60)
    log.sync_all()
    first, second = log.segments[1].base_offset, log.segments[3].base_offset
    log.delete_records(first)
    job = begun_checkpoint(store, everything=True)
    log.delete_records(second)
    finish_checkpoint(store, job)
    remove_dead_segments(log)
    disk.kill()
    reopened = open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL)
    assert (reopened.start_offset, reopened.end_offset) == (first, 60)
