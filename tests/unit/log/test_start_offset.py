"""The start offset: what is durable before files go, also on a full disk, and what a crash can leave of it."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from uuid import UUID

import pytest

from headrace.log.config import FlushMode, LogConfig
from headrace.log.findings import Severity
from headrace.log.log import PartitionLog
from headrace.log.producers import Duplicate
from headrace.log.start import marked_start, write_start
from headrace.log.store import LogStore, exhaust
from headrace.testing.disk import PowerLoss, SimulatedDisk
from headrace.vocabulary import Offset
from tests.unit.log.builders import append, begun_checkpoint, fill, offsets_in, open_log, produced, remove_dead_segments
from tests.unit.log.test_maintenance import World

ID = UUID(int=0xABC)
SMALL = LogConfig(segment_bytes_max=1000, index_interval_bytes=200, retention_ms=-1)
WIDE = LogConfig(segment_bytes_max=100_000, index_interval_bytes=200, retention_ms=-1)


def opened(disk: SimulatedDisk, config: LogConfig = SMALL) -> tuple[LogStore, PartitionLog]:
    store = LogStore.open(disk, "/data")
    return store, open_log(store, "t", ID, 0, config)


@pytest.mark.parametrize("mode", [FlushMode.OS, FlushMode.INTERVAL])
def test_a_log_that_lost_everything_below_its_start_begins_there(mode: FlushMode) -> None:
    config = replace(WIDE, flush=mode)
    begun_after_its_end = 0
    for seed in range(60):
        disk = SimulatedDisk()
        _, log = opened(disk, config)
        fill(log, 30)
        write_start(disk, log.directory, Offset(0), Offset(30))
        disk.crash(seed)
        marked = marked_start(disk.listdir(log.directory)) if disk.exists(log.directory) else 0
        store, log = opened(disk, config)
        assert marked <= log.start_offset <= log.end_offset
        begun_after_its_end += any(
            finding.severity is Severity.WARNING and "deleted before they were flushed" in finding.message
            for finding in store.report.findings
        )
        first = log.end_offset
        fill(log, 3)
        assert offsets_in(log)[-3:] == [first, first + 1, first + 2]
        store.close()
        _, log = opened(disk, config)
        assert offsets_in(log)[-3:] == [first, first + 1, first + 2]
    assert begun_after_its_end


def test_segments_stay_while_nothing_else_knows_their_producers() -> None:
    """The disk took the start marker and had no room for the snapshot of producers."""
    disk = SimulatedDisk()
    store, log = opened(disk)
    append(log, produced(1, 0))
    log.roll()
    fill(log, 3)
    log.sync_all()
    log.delete_records(log.segments[1].base_offset)
    disk.fail_next("write", errno.ENOSPC, ".producers")
    store.checkpoint()
    assert (log.durable_start_offset, log.mark.recovery_offset) == (1, 0)
    assert remove_dead_segments(log) == 0
    disk.crash(1)
    store, log = opened(disk)
    assert isinstance(log.producers.check(produced(1, 0)), Duplicate)
    store.checkpoint(everything=True)
    assert remove_dead_segments(log) > 0
    disk.crash(2)
    assert isinstance(opened(disk)[1].producers.check(produced(1, 0)), Duplicate)


def test_wherever_a_checkpoint_is_interrupted_the_start_marker_is_not_durable_before_the_records_below_it() -> None:
    config = replace(WIDE, flush=FlushMode.OS)
    for operations in range(1, 20):
        for seed in range(30):
            disk = SimulatedDisk()
            store, log = opened(disk, config)
            fill(log, 30)
            log.delete_records(Offset(-1))
            disk.crash_after = disk.operations + operations
            try:
                store.checkpoint()
            except PowerLoss:
                pass
            disk.crash_after = None
            disk.crash(seed)
            store, log = opened(disk, config)
            assert not [f for f in store.report.findings if "deleted before they were flushed" in f.message]


def test_when_a_checkpoint_is_done_deleted_records_stay_deleted_whatever_a_crash_undoes() -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        store, log = opened(disk)
        fill(log, 30)
        log.sync_all()
        log.delete_records(Offset(13))
        store.checkpoint(everything=True)
        disk.crash(seed)
        disk.unlink("/data/checkpoint")
        _, log = opened(disk)
        assert log.start_offset == 13


def test_a_segment_of_which_nothing_but_the_log_is_there_becomes_the_marker_on_a_full_disk() -> None:
    disk = SimulatedDisk()
    _, log = opened(disk)
    for _ in range(8):
        disk.fail_next("open", errno.ENOSPC, ".index")
    fill(log, 30)
    log.sync_all()
    log.delete_records(Offset(20))
    assert remove_dead_segments(log, regardless=True) > 0
    assert [segment.base_offset for segment in log.segments] == [20, 25]
    assert disk.file_size(f"{log.directory}/00000000000000000020.start") == 0
    for seed in range(10):
        disk.crash(seed)
        _, log = opened(disk)
        assert (log.start_offset, log.end_offset) == (20, 30)


def test_a_start_that_moves_while_a_checkpoint_fails_is_made_durable_before_files_go() -> None:
    disk = SimulatedDisk()
    store, log = opened(disk)
    fill(log, 60)
    log.sync_all()
    log.delete_records(Offset(10))
    store.checkpoint()
    log.delete_records(Offset(20))
    job = begun_checkpoint(store)
    job.sync()
    log.delete_records(Offset(40))
    disk.fail_next("write", errno.ENOSPC, "checkpoint.tmp")
    with pytest.raises(OSError, match="space"):
        job.write()
    exhaust(store.synced(job))
    remove_dead_segments(log, regardless=True)
    disk.crash(1)
    _, log = opened(disk)
    assert (log.start_offset, log.end_offset) == (40, 60)


def test_files_stay_when_not_even_a_marker_can_be_renamed() -> None:
    disk = SimulatedDisk()
    _, log = opened(disk)
    fill(log, 30)
    log.sync_all()
    log.delete_records(Offset(20))
    disk.fail_next("rename", errno.ENOSPC, ".index")
    with pytest.raises(OSError, match="space"):
        remove_dead_segments(log, regardless=True)
    assert log.segments[0].base_offset == 0
    disk.crash(1)
    _, log = opened(disk)
    assert (log.start_offset, log.end_offset) == (0, 30)


def test_wanting_space_for_every_batch_while_checkpoints_fail_is_remembered_once() -> None:
    async def scenario() -> None:
        world = World()
        fill(world.log("t", SMALL), 5)
        for _ in range(3):
            world.disk.fail_next("write", errno.ENOSPC, "checkpoint.tmp")
        for _ in range(1000):
            for _ in range(50):
                world.maintenance.space_wanted()
            await world.moves(0.5)
            assert len(world.maintenance._checkpoint_waiters) == 0
            if world.maintenance.checkpoints:
                break
            await asyncio.sleep(0.005)
        assert world.maintenance.checkpoints
        await world.maintenance.stop()

    asyncio.run(scenario())
