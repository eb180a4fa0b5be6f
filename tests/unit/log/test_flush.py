"""Group commit: what is reported as flushed was written before the sync began, and a failed sync is the end."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.log.config import FlushMode, LogConfig
from headrace.log.disk import OsDisk
from headrace.log.flush import Flusher, SyncCosts
from headrace.log.log import PartitionLog
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.testing.disk import SimulatedDisk
from tests.flushing import FlusherByHand
from tests.unit.log.builders import fill
from tests.waiting import PATIENCE_S


class Loop:
    """Stands for the event loop: runs what other threads post, when told to."""

    def __init__(self) -> None:
        self.posted: queue.Queue[Callable[[], None]] = queue.Queue()

    def run_one(self) -> None:
        self.posted.get(timeout=PATIENCE_S)()


class SlowDisk(SimulatedDisk):
    """Lets a test act while a sync is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def maybe_fail(self, operation: str, path: str) -> None:
        if operation == "datasync" and threading.current_thread() is not threading.main_thread():
            self.entered.set()
            assert self.go_on.wait(PATIENCE_S)
        super().maybe_fail(operation, path)


def make(
    disk: SimulatedDisk | OsDisk,
    *,
    count: int = 1,
    directory: str = "/data",
    flush: FlushMode = FlushMode.ACK,
    monotonic: Callable[[], float] = time.monotonic,
):
    loop = Loop()
    failures: list[BaseException] = []
    guard = SyncGuard(disk, failures.append)
    flusher = Flusher(guard, directory, post=loop.posted.put, monotonic=monotonic)
    config = LogConfig(flush=flush, flush_interval_ms=1000)
    logs = [PartitionLog.open(guard, f"{directory}/{number}", config) for number in range(count)]
    return loop, failures, flusher, logs


def test_only_what_was_written_before_the_sync_counts_as_flushed() -> None:
    disk = SlowDisk()
    loop, _, flusher, [log] = make(disk)
    flusher.start()
    fill(log, 2)
    flusher.mark(log)
    assert disk.entered.wait(PATIENCE_S)
    fill(log, 3)
    flusher.mark(log)
    disk.go_on.set()
    loop.run_one()
    assert log.flushed_offset == 2
    loop.run_one()
    assert log.flushed_offset == 5
    flusher.stop()


def test_the_owner_hears_of_every_advance_of_the_high_watermark() -> None:
    loop, _, flusher, [log] = make(SimulatedDisk())
    heard: list[int] = []
    log.on_advanced = lambda: heard.append(log.high_watermark)
    flusher.start()
    fill(log, 1)
    flusher.mark(log)
    loop.run_one()
    flusher.stop()
    assert heard == [1]


def test_a_failed_sync_is_told_once_never_repeated_and_nothing_is_flushed() -> None:
    disk = SimulatedDisk()
    loop, failures, flusher, [log] = make(disk)
    fill(log, 1)
    disk.fail_next("datasync", errno.EIO)
    flusher.start()
    flusher.mark(log)
    flusher.stop()
    assert [failure.errno for failure in failures if isinstance(failure, OSError)] == [errno.EIO]
    assert loop.posted.empty()
    with pytest.raises(SyncFailed):
        fill(log, 1)
    flusher.start()
    flusher.mark(log)
    flusher.stop()
    assert loop.posted.empty()
    assert (log.flushed_offset, len(failures)) == (0, 1)


def test_what_a_sync_completed_before_another_failed_is_not_reported_any_more() -> None:
    loop, _, flusher, [log] = make(SimulatedDisk())
    fill(log, 1)
    flusher.start()
    flusher.mark(log)
    flusher.stop()
    flusher.disk.fail(OSError(errno.EIO, "elsewhere"))
    loop.run_one()
    assert log.high_watermark == 0


def test_a_directory_that_was_removed_needs_no_sync() -> None:
    disk = SimulatedDisk()
    _, failures, flusher, [log] = make(disk)
    flusher.start()
    log.roll()
    fill(log, 1)
    log.roll()
    disk.rename("/data/0", "/data/deleted")
    flusher.mark(log)
    flusher.stop()
    assert failures == []


def test_a_new_segments_directory_entry_is_synced_with_it() -> None:
    disk = SimulatedDisk()
    _, _, _, [log] = make(disk)
    fill(log, 1)
    log.roll()
    fill(log, 1)
    FlusherByHand(disk, "/data").flush([log])
    disk.crash(3)
    assert PartitionLog.open(disk, "/data/0", LogConfig()).end_offset == 2


@pytest.mark.parametrize("count", [1, 40])
def test_flushed_survives_the_worst_crash_by_either_kind_of_sync(count: int) -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        _, _, _, logs = make(disk, count=count)
        for log in logs:
            fill(log, 3)
        FlusherByHand(disk, "/data").flush(logs)
        for log in logs:
            fill(log, 2)
        disk.crash(seed)
        ends = [PartitionLog.open(disk, log.directory, LogConfig()).end_offset for log in logs]
        assert all(3 <= end <= 5 for end in ends)


def test_interval_logs_are_marked_by_the_tick_and_os_logs_never() -> None:
    now = 100.0
    due: list[float] = []
    loop, _, flusher, [interval] = make(SimulatedDisk(), flush=FlushMode.INTERVAL, monotonic=lambda: now)
    _, _, _, [system] = make(SimulatedDisk(), flush=FlushMode.OS)
    flusher.on_waiting = due.append
    flusher.start()
    for log in (interval, system):
        fill(log, 1)
        flusher.mark(log)
    assert due == [1.0]
    now += 0.75
    assert flusher.tick() == 0.25
    assert loop.posted.empty()
    now += 0.25
    assert flusher.tick() is None
    loop.run_one()
    assert (interval.flushed_offset, system.flushed_offset) == (1, 0)
    flusher.stop()


def test_stopping_flushes_what_waits(tmp_path: Path) -> None:
    loop, failures, flusher, logs = make(OsDisk(), count=5, directory=str(tmp_path))
    flusher.start()
    for log in logs:
        fill(log, 4)
        flusher.mark(log)
    flusher.stop()
    while not loop.posted.empty():
        loop.run_one()
    assert [log.flushed_offset for log in logs] == [4] * 5
    assert not failures


def test_many_files_are_synced_at_once_and_few_one_by_one() -> None:
    costs = SyncCosts()
    assert not costs.choose_syncfs(1, 0.0)
    assert not costs.choose_syncfs(2, 0.0)
    assert costs.choose_syncfs(3, 0.0)


def test_a_filesystem_that_others_keep_busy_is_avoided_until_it_may_have_calmed() -> None:
    costs = SyncCosts()
    for _ in range(20):
        costs.measured_filesystem(0.3, now=100.0)
    assert not costs.choose_syncfs(100, 100.0)
    assert costs.choose_syncfs(100, 160.0)
    assert costs.choose_syncfs(5000, 100.0)


def test_a_callback_that_fails_does_not_keep_the_others_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    loop, _, flusher, logs = make(SimulatedDisk(), count=2)
    flusher.start()
    heard: list[str] = []

    def mistake() -> None:
        raise ZeroDivisionError

    for log in logs:
        fill(log, 1)
        log.on_advanced = mistake if log is logs[0] else None
        log.when_acknowledged(log.end_offset - 1, mistake)
        log.when_acknowledged(log.end_offset - 1, lambda log=log: heard.append(log.directory))  # type: ignore[misc]
        flusher.mark(log)
    flusher.stop()
    while not loop.posted.empty():
        loop.run_one()
    assert heard == [log.directory for log in logs]
    assert len([record for record in caplog.records if record.exc_info]) == 3


@pytest.mark.parametrize("then", ["nothing follows", "more follows", "the flusher stops"])
def test_what_was_synced_is_noted_soon_whatever_follows(then: str) -> None:
    disk = SimulatedDisk()
    log = PartitionLog.open(disk, "/data/0", LogConfig())
    noted: queue.Queue[int] = queue.Queue()
    now = iter(float(second) for second in range(1000))
    flusher = Flusher(
        SyncGuard(disk, lambda _: None),
        "/data",
        post=lambda _: None,
        monotonic=(lambda: next(now)) if then == "more follows" else lambda: 0.0,
        note=lambda marks: [noted.put(mark.end_offset) for mark in marks],
    )
    flusher.start()
    fill(log, 2)
    flusher.mark(log)
    if then == "the flusher stops":
        flusher.stop()
    assert noted.get(timeout=PATIENCE_S) == 2
    if then != "the flusher stops":
        flusher.stop()


def test_what_failed_to_sync_is_not_noted() -> None:
    disk = SimulatedDisk()
    log = PartitionLog.open(disk, "/data/0", LogConfig())
    noted: list[int] = []
    flusher = FlusherByHand(disk, "/data", note=lambda marks: noted.extend(mark.end_offset for mark in marks))
    fill(log, 2)
    disk.fail_next("datasync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        flusher.flush([log])
    assert noted == []
