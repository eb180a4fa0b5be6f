"""Group commit: what is reported as flushed was written before the sync began, and a failed sync is the end."""

from __future__ import annotations

import errno
import itertools
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.log.config import FlushMode, LogConfig
from headrace.log.disk import OsDisk
from headrace.log.flush import COMPLETED_PER_TURN, TAKEN_PER_TURN, Flusher
from headrace.log.log import PartitionLog
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
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


def test_the_first_record_written_during_a_sync_is_acknowledged_by_the_next_one() -> None:
    disk = SlowDisk()
    loop, _, flusher, [log] = make(disk)
    acknowledged: list[int] = []
    flusher.start()
    fill(log, 2)
    log.when_acknowledged(Offset(1), lambda: acknowledged.append(1))
    flusher.mark(log)
    assert disk.entered.wait(PATIENCE_S)
    fill(log, 1)
    log.when_acknowledged(Offset(2), lambda: acknowledged.append(2))
    flusher.mark(log)
    disk.go_on.set()
    loop.run_one()
    assert acknowledged == [1]
    loop.run_one()
    assert acknowledged == [1, 2]
    flusher.stop()


def test_what_a_sync_covered_is_noted_before_it_is_acknowledged() -> None:
    """A process that is killed between the two has noted all that it acknowledged."""
    steps: list[str] = []
    posted = threading.Event()

    def post(_: Callable[[], None]) -> None:
        steps.append("posted")
        posted.set()

    guard = SyncGuard(SimulatedDisk(), pytest.fail)
    log = PartitionLog.open(guard, "/data/0", LogConfig())
    flusher = Flusher(
        guard, "/data", post=post, monotonic=time.monotonic, note=lambda marks: steps.append(f"noted {len(marks)}")
    )
    flusher.start()
    fill(log, 1)
    flusher.mark(log)
    assert posted.wait(PATIENCE_S)
    flusher.stop()
    assert steps == ["noted 1", "posted"]


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


@pytest.mark.parametrize("alone", [True, False])
def test_a_new_segments_directory_entry_is_synced_with_it(alone: bool) -> None:
    """Beside the segment before it the flusher syncs the filesystem; alone, the file and its directory."""
    for seed in range(10):
        disk = CountingDisk()
        _, _, _, [log] = make(disk)
        flusher = FlusherByHand(disk, "/data")
        fill(log, 1)
        if alone:
            flusher.flush([log])
        log.roll()
        fill(log, 1)
        disk.syncs.clear()
        flusher.flush([log])
        assert disk.syncs == (["datasync", "sync_dir"] if alone else ["syncfs"])
        disk.crash(seed)
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


class CountingDisk(SimulatedDisk):
    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[str] = []

    def maybe_fail(self, operation: str, path: str) -> None:
        if "sync" in operation:
            self.syncs.append(operation)
        super().maybe_fail(operation, path)


@pytest.mark.parametrize(("count", "expected"), [(1, ["datasync"]), (2, ["datasync"] * 2), (3, ["syncfs"])])
def test_few_files_are_synced_one_by_one_and_more_at_once(count: int, expected: list[str]) -> None:
    disk = CountingDisk()
    flusher = FlusherByHand(disk, "/data")
    logs = [PartitionLog.open(flusher.disk, f"/data/{number}", LogConfig()) for number in range(count)]
    for log in logs:
        fill(log, 1)
    disk.syncs.clear()
    flusher.flush(logs)
    assert disk.syncs == expected
    assert [log.flushed_offset for log in logs] == [1] * count


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


def test_thousands_of_logs_are_taken_and_reported_in_several_turns_of_the_loop() -> None:
    loop = Loop()
    disk = SimulatedDisk()
    guard = SyncGuard(disk, lambda _: None)
    flusher = Flusher(guard, "/data", post=loop.posted.put, monotonic=lambda: 0.0, defer=loop.posted.put)
    logs = [PartitionLog.open(disk, f"/data/{number}", LogConfig(), sync=False) for number in range(2 * TAKEN_PER_TURN)]
    for log in logs:
        fill(log, 1)
        flusher.mark(log)
    flusher.start()
    flushed = []
    while flushed[-1:] != [len(logs)]:
        loop.run_one()
        flushed.append(sum(log.flushed_offset for log in logs))
    flusher.stop()
    steps = [after - before for before, after in itertools.pairwise(flushed)]
    assert max(steps) == COMPLETED_PER_TURN
