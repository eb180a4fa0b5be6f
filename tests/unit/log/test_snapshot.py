"""Snapshots: what a log was at the moment of the cut, whatever happens to it afterwards."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from headrace.log.log import PartitionLog
from headrace.log.snapshot import LOGS_PER_STEP, Cut, SnapshotJob, sweep
from headrace.log.store import LogStore, exhaust
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
from tests.unit.log.builders import SMALL, append, batches_in, fill, marker, open_log, produced

ID = UUID(int=7)
OTHER = UUID(int=8)


def job_of(store: LogStore, name: str = "s") -> SnapshotJob:
    return SnapshotJob(store.disk, store.directory, name, 1000, "cluster")


def copied(disk: SimulatedDisk, path: str = "/data/snapshots/s") -> SimulatedDisk:
    """What a backup takes of a snapshot, on another disk."""
    target = SimulatedDisk()
    described = json.loads(disk.contents(f"{path}/snapshot.json"))
    for name, size in described["files"]:
        target.mkdir(f"/data/{name}".rpartition("/")[0])
        data = disk.contents(f"{path}/data/{name}")
        assert len(data) >= size, f"{name} has lost bytes"
        target.open(f"/data/{name}", create=True).write([data[:size]], 0)
    return target


def values(log: PartitionLog) -> list[int]:
    return [batch.base_offset for batch in batches_in(log)]


def test_a_snapshot_has_what_was_written_when_it_was_cut_and_nothing_that_came_later() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    first, second = open_log(store, "a", ID, 0, SMALL), open_log(store, "b", OTHER, 0, SMALL)
    fill(first, 30)
    fill(second, 3)
    cut, job = Cut(store), job_of(store)
    fill(first, 30)  # which rolls segments and seals the one that was active
    fill(second, 1)
    exhaust(cut.describe(job))
    job.run()
    fill(second, 20)
    again = LogStore.open(copied(disk), "/data")
    assert values(open_log(again, "a", ID, 0, SMALL)) == list(range(30))
    assert values(open_log(again, "b", OTHER, 0, SMALL)) == list(range(3))
    assert again.report.findings == []


def test_what_is_removed_and_deleted_after_the_links_were_made_stays_in_the_snapshot() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "a", ID, 0, SMALL)
    fill(log, 40)
    log.sync_all()
    log.delete_records(15)
    store.checkpoint()
    job = job_of(store)
    exhaust(Cut(store).describe(job))
    job.run()
    log.delete_records(39)
    store.checkpoint(everything=True)
    removal = log.begin_removal()
    assert removal is not None
    removal.run()
    assert log.finish_removal(removal) > 0
    restored = open_log(LogStore.open(copied(disk), "/data"), "a", ID, 0, SMALL)
    assert values(restored) == list(range(15, 40))
    assert restored.recovery.findings == []


def test_a_start_that_moves_after_the_cut_does_not_count() -> None:
    """A queue's journal moves its start to records that the cut does not have."""
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "a", ID, 0, SMALL)
    fill(log, 5)
    cut, job = Cut(store), job_of(store)
    fill(log, 5)
    log.advance_start(log.end_offset)
    exhaust(cut.describe(job))
    job.run()
    assert values(open_log(LogStore.open(copied(disk), "/data"), "a", ID, 0, SMALL)) == list(range(5))


def test_logs_that_change_while_they_are_described_are_as_they_were_at_the_cut() -> None:
    """There are more logs than one step describes, and each changes in another way and at another time."""
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    names = [f"t{number}" for number in range(3 * LOGS_PER_STEP)]
    logs = [open_log(store, name, UUID(int=number), 0, SMALL) for number, name in enumerate(names)]
    for log in logs:
        fill(log, 3)
    changes: list[Callable[[PartitionLog], Any]] = [
        lambda log: fill(log, 1),
        lambda log: fill(log, 30),  # rolls segments
        lambda log: (fill(log, 3), log.advance_start(log.end_offset)),
        lambda log: log.advance_start(Offset(2)),
        lambda log: (log.roll(), fill(log, 2)),
        lambda log: None,
    ]
    cut, job = Cut(store), job_of(store)
    steps = 0
    for _ in cut.describe(job):
        for number in range(steps, len(logs), 4):
            changes[number % len(changes)](logs[number])
        open_log(store, f"new{steps}", UUID(int=1000 + steps), 0, SMALL)
        steps += 1
    assert steps == 3, "a hundred logs at a time"
    job.run()
    for log in logs:
        fill(log, 1)
        assert log.before_change is None
    again = LogStore.open(copied(disk), "/data")
    assert len(job.logs) == len(logs), "those that were made later are not part of it"
    for number, name in enumerate(names):
        copy = open_log(again, name, UUID(int=number), 0, SMALL)
        assert (values(copy), copy.start_offset) == ([0, 1, 2], 0), f"{name}: {changes[number % len(changes)]}"
    assert again.report.findings == []


def test_a_cut_looks_at_no_log_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 30,000 logs it held the loop for 60 ms."""
    store = LogStore.open(SimulatedDisk(), "/data")
    for number in range(250):
        fill(open_log(store, f"t{number}", UUID(int=number), 0, SMALL), 1)
    looked_at: list[PartitionLog] = []
    segments = PartitionLog.segments.fget
    assert segments is not None

    def counted(log: PartitionLog) -> Any:
        looked_at.append(log)
        return segments(log)

    monkeypatch.setattr(PartitionLog, "segments", property(counted))
    cut = Cut(store)
    assert looked_at == []
    counts = [len(set(looked_at)) for _ in cut.describe(job_of(store))]
    assert counts == [100, 200, 250]


def test_open_and_aborted_transactions_are_those_of_the_cut() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "a", ID, 0, SMALL)
    append(log, produced(1, 0, transactional=True), marker(1, commit=False), produced(2, 0, transactional=True))
    store.checkpoint(everything=True)
    append(log, produced(1, 1, transactional=True))
    cut, job = Cut(store), job_of(store)
    append(log, marker(2, commit=False), marker(1, commit=True))
    exhaust(cut.describe(job))
    job.run()
    again = open_log(LogStore.open(copied(disk), "/data"), "a", ID, 0, SMALL)
    again.load_aborted(again.segments[0])
    assert [each.producer_id for each in again.segments[0].aborted.entries] == [1]
    assert again.last_stable_offset == 2, "the transaction of producer 2 is open in the snapshot"
    assert again.recovery.findings == []


def test_an_end_that_is_missing_in_a_copy_is_noticed() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "a", ID, 0, SMALL), 5)
    job = job_of(store)
    exhaust(Cut(store).describe(job))
    job.run()
    copy = copied(disk)
    (path,) = [
        f"/data/{name}"
        for name, _ in json.loads(disk.contents("/data/snapshots/s/snapshot.json"))["files"]
        if name.endswith(".log")
    ]
    copy.damage(path, lambda data: data.__delitem__(slice(len(data) // 5 * 4, None)))
    again = LogStore.open(copy, "/data")
    with pytest.raises(Exception, match="were flushed and are not here"):
        open_log(again, "a", ID, 0, SMALL)


def test_a_log_that_cannot_be_served_is_in_the_snapshot_as_it_is() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "a", ID, 0, SMALL)
    fill(log, 5)
    log.sync_all()
    store.close()
    (name,) = store.logs
    path = f"/data/{name}/{'0' * 20}.log"
    disk.damage(path, lambda data: data.__delitem__(slice(300, None)))
    store = LogStore.open(disk, "/data")
    with pytest.raises(Exception, match="missing"):
        open_log(store, "a", ID, 0, SMALL)
    job = job_of(store)
    exhaust(Cut(store).describe(job))
    job.run()
    assert job.unserved == [name]
    copy = copied(disk)
    assert copy.contents(path) == disk.contents(path)
    with pytest.raises(Exception, match="missing"):
        open_log(LogStore.open(copy, "/data"), "a", ID, 0, SMALL)


def test_nothing_is_left_of_a_snapshot_that_the_disk_refuses() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "a", ID, 0, SMALL), 25)
    job = job_of(store)
    exhaust(Cut(store).describe(job))
    disk.fail_next("link", errno.EMLINK, "00000000000000000000.index")
    with pytest.raises(OSError):
        job.run()
    assert disk.listdir("/data/snapshots") == []


def test_a_sweep_leaves_snapshots_that_are_held_or_young() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    fill(open_log(store, "a", ID, 0, SMALL), 5)
    for name in ("abandoned", "held", "young"):
        job = job_of(store, name)
        exhaust(Cut(store).describe(job))
        job.run()
    lock = disk.lock("/data/snapshots/held/lock")
    assert sweep(disk, "/data", frozenset({"young"})) == {"held", "young"}
    assert disk.listdir("/data/snapshots") == ["held", "young"]
    lock.release()
    assert sweep(disk, "/data") == frozenset()
    assert disk.listdir("/data/snapshots") == []
    assert values(store.logs.popitem()[1]) == list(range(5))
