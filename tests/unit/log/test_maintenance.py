"""What a store does by itself, and that no error of the disk ends it."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from headrace.log import maintenance
from headrace.log.compaction.cleaner import CleaningJob, CleaningResult, clean
from headrace.log.compaction.planning import plan
from headrace.log.config import LogConfig
from headrace.log.errors import StorageError
from headrace.log.log import PartitionLog
from headrace.log.maintenance import Maintenance, MaintenanceSettings
from headrace.log.store import LOGS_PER_STEP, LogStore
from headrace.log.sync_guard import SyncGuard
from headrace.record import decode_records
from headrace.testing.disk import SimulatedDisk
from tests.flushing import FlusherByHand
from tests.unit.broker.fakes import FakeClock
from tests.unit.log.builders import (
    append,
    batches_in,
    fill,
    group,
    open_log,
    plain,
    remove_dead_segments,
)
from tests.waiting import PATIENCE_S, eventually_on_loop

ID = UUID(int=1)
SMALL = LogConfig(segment_bytes_max=1000, index_interval_bytes=200, retention_ms=10)
FOREVER = LogConfig(segment_bytes_max=1000, index_interval_bytes=200, retention_ms=-1)
COMPACT = LogConfig(
    segment_bytes_max=4000, retention_ms=-1, cleanup_delete=False, cleanup_compact=True, min_cleanable_dirty_ratio=0.0
)
HOUR_S = 3600.0


async def clean_here(job: CleaningJob, guard: SyncGuard) -> CleaningResult:
    return clean(guard, job)


class World:
    """A store under maintenance. Time moves when a test says so."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.failures: list[BaseException] = []
        self.guard = SyncGuard(self.disk, self.failures.append)
        self.store = LogStore.open(self.guard, "/data")
        self.clock = FakeClock()
        self.damaged: list[PartitionLog] = []
        settings = MaintenanceSettings(
            retention_interval_s=60.0,
            compaction_interval_s=HOUR_S,
            compaction_enabled=True,
            compaction_memory_bytes=1 << 20,
        )
        self.maintenance = Maintenance(
            store=self.store,
            flusher=FlusherByHand(self.guard, "/data"),
            clock=self.clock,
            settings=lambda: settings,
            on_damaged=self.set_damaged,
            clean=clean_here,
        )

    def set_damaged(self, log: PartitionLog, fault: StorageError) -> None:
        self.damaged.append(log)

    def log(self, name: str, config: LogConfig) -> PartitionLog:
        return open_log(self.store, name, ID, 0, config)

    def compacted_log(self, name: str = "compacted") -> PartitionLog:
        """200 records of 10 keys."""
        log = self.log(name, COMPACT)
        for turn in range(200):
            append(log, plain(b"%d" % turn, key=b"k%d" % (turn % 10)))
        log.roll()
        log.sync_all()
        return log

    async def moves(self, seconds: float) -> None:
        await self.clock.advance(seconds)


def run(scenario: Callable[[World], Awaitable[None]], disk: SimulatedDisk | None = None) -> World:
    async def main() -> World:
        world = World(disk)
        await scenario(world)
        await world.maintenance.stop()
        return world

    return asyncio.run(main())


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for batch in batches_in(log) for record in decode_records(batch, 1 << 20)]


LAST_OF_EACH_KEY = [b"%d" % number for number in range(190, 200)]


def test_retention_goes_on_at_the_next_interval_after_an_error_of_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        log = world.log("t", SMALL)
        fill(log, 20)
        log.sync_all()
        for segment in log.segments:
            segment.summarised = False
        world.maintenance.start()
        world.disk.fail_next("pread", errno.EIO, ".index")
        await world.moves(60.0)
        assert "retention" in caplog.text
        assert log.start_offset == 0
        await world.moves(60.0)
        await eventually_on_loop(lambda: log.size_bytes == 0)
        assert not world.failures

    caplog.set_level(logging.ERROR)
    run(scenario)


def test_a_log_that_cannot_be_read_keeps_no_other_from_its_retention() -> None:
    async def scenario(world: World) -> None:
        logs = [world.log(name, SMALL) for name in ("a", "b", "c")]
        for log in logs:
            fill(log, 20)
            log.sync_all()
        for segment in logs[1].segments:
            segment.summarised = False
            world.disk.fail_next("pread", errno.EIO, segment.index.path)
        await world.maintenance.apply_retention()
        assert [log.start_offset for log in logs] == [20, 0, 20]

    run(scenario)


def test_the_same_error_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        log = world.log("t", SMALL)
        fill(log, 20)
        log.sync_all()
        for _ in range(3):
            for segment in log.segments:
                segment.summarised = False
            world.disk.fail_next("pread", errno.EIO, ".index")
            await world.maintenance.apply_retention()

    caplog.set_level(logging.ERROR)
    run(scenario)
    assert caplog.text.count("retention") == 1


def test_no_inode_for_a_new_segment_ends_nothing_and_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """All records of a log were deleted, so that its active segment must be rolled before it can go."""

    async def scenario(world: World) -> None:
        log, other = world.log("t", FOREVER), world.log("other", FOREVER)
        for each in (log, other):
            fill(each, 5)
            each.sync_all()
            each.delete_records(5)
        world.disk.fail_next("open", errno.ENOSPC, f"t~{ID.hex}/0/{5:020d}.log")
        await world.maintenance.after_checkpoint()
        assert "removing old segments" in caplog.text
        assert (log.size_bytes > 0, other.size_bytes) == (True, 0)
        await world.maintenance.after_checkpoint()
        assert log.size_bytes == 0
        assert not world.failures

    caplog.set_level(logging.ERROR)
    run(scenario)


def test_those_who_wait_for_a_checkpoint_are_called_when_the_disk_has_refused_it() -> None:
    async def scenario(world: World) -> None:
        log = world.log("t", FOREVER)
        fill(log, 3)
        world.disk.fail_next("write", errno.ENOSPC, "checkpoint.tmp")
        await world.maintenance.after_checkpoint()
        assert world.maintenance.checkpoints == 0
        waiting = world.maintenance.after_checkpoint()
        await world.moves(1.0)
        await waiting
        assert world.maintenance.checkpoints == 1

    run(scenario)


def test_a_start_marker_that_is_refused_holds_up_no_other_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        log, other = world.log("t", FOREVER), world.log("other", FOREVER)
        for each in (log, other):
            fill(each, 5)
            each.sync_all()
            each.delete_records(3)
        world.disk.fail_next("open", errno.ENOSPC, f"t~{ID.hex}/0/{3:020d}.start")
        await world.maintenance.after_checkpoint()
        assert "the start marker" in caplog.text
        assert world.maintenance.checkpoints == 1
        assert (log.durable_start_offset, other.durable_start_offset) == (0, 3)
        await world.maintenance.after_checkpoint()
        assert log.durable_start_offset == 3

    caplog.set_level(logging.ERROR)
    run(scenario)


def test_what_a_checkpoint_says_of_thousands_of_logs_is_collected_in_steps() -> None:
    world = World()
    for number in range(3 * LOGS_PER_STEP):
        world.log(f"t{number}", FOREVER)
    job = world.store.new_checkpoint()
    collected = [len(job.ends) for _ in world.store.collect(job)]
    assert collected == [LOGS_PER_STEP, 2 * LOGS_PER_STEP, 3 * LOGS_PER_STEP]
    job.sync()
    assert len(list(world.store.synced(job))) == 3


@pytest.mark.parametrize(
    ("work", "looks_at"), [("compact", "plan"), ("apply_retention", "advance_by_retention")], ids=["compact", "retain"]
)
def test_thousands_of_logs_are_looked_at_some_per_turn(
    monkeypatch: pytest.MonkeyPatch, work: str, looks_at: str
) -> None:
    """Of 10,000 compacted logs, the look for those that are due held the loop for 85 ms."""
    in_turns = [0]
    look = getattr(maintenance, looks_at)

    def counted(*args: Any, **options: Any) -> Any:
        in_turns[-1] += 1
        return look(*args, **options)

    async def count_turns() -> None:
        while True:
            in_turns.append(0)
            await asyncio.sleep(0)

    async def scenario(world: World) -> None:
        for number in range(350):
            world.log(f"t{number}", COMPACT)
        counting = asyncio.create_task(count_turns())
        await getattr(world.maintenance, work)()
        counting.cancel()

    monkeypatch.setattr(maintenance, looks_at, counted)
    run(scenario)
    assert sum(in_turns) == 350
    assert max(in_turns) <= 100


def test_a_deleted_topic_that_cannot_be_moved_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        fill(world.log("t", FOREVER), 3)
        world.maintenance.start()
        moved: list[bool] = []
        world.disk.fail_next("rename", errno.EIO, "t~")
        world.maintenance.delete_group(world.store.space("topics"), group("t", ID), lambda: moved.append(True))
        await eventually_on_loop(lambda: "removal" in caplog.text)
        assert not moved
        await world.moves(60.0)
        await eventually_on_loop(lambda: world.disk.listdir("/data/deleted") == [] and bool(moved))
        assert world.disk.listdir("/data/topics") == []

    caplog.set_level(logging.ERROR)
    run(scenario)


class DiskWithAFrozenGroup(SimulatedDisk):
    """It moves and removes nothing of one group."""

    frozen = ""

    def maybe_fail(self, operation: str, path: str) -> None:
        if self.frozen and self.frozen in path and operation in ("rename", "unlink", "rmdir"):
            raise OSError(errno.EPERM, "Operation not permitted", path)
        super().maybe_fail(operation, path)


@pytest.mark.parametrize("is_moved", [False, True], ids=["before it was moved", "after it was moved"])
def test_a_deleted_group_that_the_disk_does_not_let_go_keeps_no_other_from_going(
    is_moved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = DiskWithAFrozenGroup()

    async def scenario(world: World) -> None:
        space = world.store.space("topics")
        for name in ("a", "b"):
            fill(world.log(name, SMALL), 20)
        gone: list[str] = []
        if is_moved:
            space.forget(group("a", ID))
            space.move_deleted(group("a", ID))
        disk.frozen = group("a", ID)
        world.maintenance.start()
        for name in ("b",) if is_moved else ("a", "b"):
            world.maintenance.delete_group(space, group(name, ID), lambda name=name: gone.append(name))  # type: ignore[misc]
        await eventually_on_loop(
            lambda: gone == ["b"] and disk.listdir("/data/deleted") == is_moved * [f"topics.{disk.frozen}"]
        )
        await eventually_on_loop(lambda: "it is tried again" in caplog.text)
        disk.frozen = ""
        await world.moves(60.0)
        await eventually_on_loop(lambda: not disk.listdir("/data/deleted") and not disk.listdir("/data/topics"))

    caplog.set_level(logging.ERROR)
    run(scenario, disk)


def test_a_compaction_that_fails_keeps_no_other_log_from_its_own() -> None:
    async def scenario(world: World) -> None:
        logs = [world.compacted_log(name) for name in ("a", "b", "c")]
        world.disk.fail_next("open", errno.EMFILE, f"b~{ID.hex}/0/00000000000000000000.log.cleaned")
        await world.maintenance.compact()
        assert world.maintenance.compactions == 2
        assert [len(values(log)) for log in logs] == [10, 200, 10]
        await world.maintenance.compact()
        assert [len(values(log)) for log in logs] == [10, 10, 10]

    run(scenario)


def test_a_compaction_is_noted_in_the_checkpoint_though_nothing_else_changes() -> None:
    """Without the note that there may be gaps, a damaged index would make a healthy log look as if it had lost
    records, once the topic's policy is no longer to compact."""

    async def scenario(world: World) -> None:
        log = world.compacted_log()
        world.maintenance.start()
        await world.maintenance.compact()
        before = world.maintenance.checkpoints
        await world.moves(5.0)
        await eventually_on_loop(lambda: world.maintenance.checkpoints > before)
        await world.moves(30.0)
        assert world.maintenance.checkpoints == before + 1, "and once is enough"
        world.disk.kill()
        world.disk.damage(log.segments[0].index.path, lambda content: content.clear())
        again = open_log(LogStore.open(world.disk, "/data"), "compacted", ID, 0, FOREVER)
        assert values(again) == LAST_OF_EACH_KEY

    run(scenario)


class DiskThatRefuses(SimulatedDisk):
    """From the ``first``-th rename or unlink of a compacted segment on it refuses ``count`` of them."""

    def __init__(self, first: int, count: int) -> None:
        super().__init__()
        self.first = first
        self.count = count
        self.changes = 0
        self.armed = False

    def maybe_fail(self, operation: str, path: str) -> None:
        if self.armed and operation in ("rename", "unlink") and "/topics/" in path:
            self.changes += 1
            if self.first <= self.changes < self.first + self.count:
                raise OSError(errno.EIO, "Input/output error", path)
        super().maybe_fail(operation, path)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 100])
def test_wherever_a_swap_is_refused_the_log_is_whole_or_no_longer_served_and_whole_after_a_restart(count: int) -> None:
    damaged = 0
    for first in range(1, 100):
        disk = DiskThatRefuses(first, count)

        async def scenario(world: World, disk: DiskThatRefuses = disk) -> None:
            log = world.compacted_log()
            other = world.compacted_log("other")
            disk.armed = True
            await world.maintenance.compact()
            disk.armed = False
            for each in (log, other):
                if each not in world.damaged:
                    assert values(each)[-10:] == LAST_OF_EACH_KEY
                    fill(each, 1)

        world = run(scenario, disk)
        damaged += len(world.damaged)
        disk.kill()
        store = LogStore.open(disk, "/data")
        for name in ("compacted", "other"):
            again = open_log(store, name, ID, 0, COMPACT)
            kept = [value for value in values(again) if value is not None and b"." not in value]
            assert kept[-10:] == LAST_OF_EACH_KEY
            assert not [each for each in disk.listdir(again.directory) if "swap" in each or "cleaned" in each]
        if disk.changes < first:
            break
    else:
        pytest.fail("the swaps did not end")
    assert bool(damaged) == (count > 1), "a disk that refuses once is asked again"


class HeldDisk(SimulatedDisk):
    """The first such operation on such a path stands still until a test lets it go on."""

    def __init__(self, operation: str, path_part: str) -> None:
        super().__init__()
        self.operation = operation
        self.path_part = path_part
        self.armed = True
        self.held = threading.Event()
        self.may_go_on = threading.Event()

    def maybe_fail(self, operation: str, path: str) -> None:
        if self.armed and operation == self.operation and self.path_part in path and not self.held.is_set():
            self.held.set()
            assert self.may_go_on.wait(PATIENCE_S)
        super().maybe_fail(operation, path)


def test_space_that_is_wanted_while_a_checkpoint_is_being_written_is_freed_by_the_next_at_once() -> None:
    disk = HeldDisk("write", "/data/checkpoint.tmp")
    disk.armed = False

    async def scenario(world: World) -> None:
        log = world.log("t", FOREVER)
        fill(log, 20)
        log.sync_all()
        world.maintenance.start()
        disk.armed = True
        under_way = world.maintenance.after_checkpoint()
        await eventually_on_loop(disk.held.is_set)
        log.delete_records(20)
        world.maintenance.space_wanted()
        disk.may_go_on.set()
        await under_way
        await eventually_on_loop(lambda: log.size_bytes == 0)

    run(scenario, disk)


def test_a_stop_waits_for_a_swap_that_is_under_way() -> None:
    disk = HeldDisk("rename", ".log.cleaned-")

    async def scenario(world: World) -> None:
        log = world.compacted_log()
        world.maintenance.start()
        await world.moves(HOUR_S)
        await eventually_on_loop(disk.held.is_set)
        stopping = asyncio.ensure_future(world.maintenance.stop())
        for _ in range(10):
            await asyncio.sleep(0.005)
        assert not stopping.done()
        disk.may_go_on.set()
        await stopping
        assert values(log)[-10:] == LAST_OF_EACH_KEY
        assert len(values(log)) < 200, "what was swapped in is served"

    run(scenario, disk)


def test_what_is_being_swapped_is_served_from_the_old_files_and_not_removed() -> None:
    world = World()
    log = world.compacted_log()
    world.store.checkpoint(everything=True)
    before = values(log)
    job = plan(log, world.clock.wall_ms(), token="t")
    assert job is not None
    result = clean(world.guard, job)
    for segment in log.segments:
        segment.forget()  # nobody has its files open
    swap = log.begin_swap(result)
    swap.run()
    assert values(log) == before, "the old segments and their files still fit together"
    log.delete_records(log.segments[1].base_offset)
    assert not log.has_dead_segments
    assert remove_dead_segments(log, regardless=True) == 0
    log.finish_swap(swap)
    assert values(log) == LAST_OF_EACH_KEY


def test_while_a_snapshot_holds_the_files_nothing_is_removed_replaced_or_moved() -> None:
    async def scenario(world: World) -> None:
        shrinking, compacted, deleted = world.log("a", FOREVER), world.compacted_log(), world.log("gone", FOREVER)
        for log in (shrinking, deleted):
            fill(log, 50)
            log.sync_all()
        store, maintenance = world.store, world.maintenance

        names = list(store.logs)

        def files() -> list[str]:
            return [f"{name}/{each}" for name in names for each in listed(world.disk, f"/data/{name}")]

        store.checkpoint(everything=True)
        moved: list[str] = []
        async with maintenance.files:
            before = files()
            shrinking.delete_records(40)
            maintenance.delete_group(store.space("topics"), group("gone", ID), lambda: moved.append("gone"))
            waiting = maintenance.after_checkpoint()
            compaction = asyncio.create_task(maintenance.compact())
            for _ in range(200):
                await asyncio.sleep(0.001)
            # The child's own files may be there; nobody takes them for the log's.
            assert [name for name in files() if ".cleaned-" not in name] == before
            assert not waiting.done()
            assert moved == []
        await waiting
        await compaction
        await eventually_on_loop(lambda: moved, lambda seen: seen == ["gone"])
        assert len(files()) < len(before)
        assert values(compacted) == LAST_OF_EACH_KEY

    run(scenario)


def listed(disk: SimulatedDisk, path: str) -> list[str]:
    return disk.listdir(path) if disk.exists(path) else []
