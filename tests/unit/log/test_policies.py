"""What a log makes of its flush mode, of its retention, of records without a timestamp, and of gaps that compaction
leaves."""

from __future__ import annotations

import copy
from dataclasses import replace
from uuid import UUID

from headrace.batch import build_batch
from headrace.log.compaction.cleaner import clean
from headrace.log.compaction.planning import plan
from headrace.log.config import FlushMode, LogConfig
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.retention import expired_start
from headrace.log.store import LogStore
from headrace.log.sync_guard import SyncGuard
from headrace.record import Record
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
from tests.unit.log.builders import append, fill, marker, new_log, open_log, plain, produced
from tests.unit.log.by_time import latest

ID = UUID(int=0xABC)
SMALL = LogConfig(segment_bytes_max=1000, index_interval_bytes=200, retention_ms=-1)
OS = replace(SMALL, flush=FlushMode.OS)
COMPACT = replace(
    SMALL, cleanup_compact=True, cleanup_delete=False, min_cleanable_dirty_ratio=0.0, delete_retention_ms=0
)


def compact(log: PartitionLog, disk: SimulatedDisk) -> None:
    job = plan(log, 2000, token="t")
    assert job is not None
    swap = log.begin_swap(clean(disk, job))
    swap.run()
    log.finish_swap(swap)


# ---- flush modes ----


def test_a_sync_that_was_due_before_the_flush_mode_became_os_covers_nothing_written_later() -> None:
    now = 0.0
    disk = SimulatedDisk()
    guard = SyncGuard(disk, lambda _: None)
    store = LogStore.open(guard, "/data")
    flusher = Flusher(guard, "/data", post=lambda done: done(), monotonic=lambda: now, note=store.note_flushed)
    log = open_log(store, "t", ID, 0, replace(SMALL, flush=FlushMode.INTERVAL))
    fill(log, 5)
    flusher.mark(log)
    log.config = OS
    flusher.mark(log)
    fill(log, 10)
    now = 2.0
    flusher.tick()
    flusher.start()
    flusher.stop()
    assert log.flushed_offset == 5
    for seed in range(10):
        crashed = copy.deepcopy(disk)
        crashed.crash(seed)
        assert open_log(LogStore.open(crashed, "/data"), "t", ID, 0, OS).end_offset >= 5


def test_what_was_left_to_the_operating_system_is_synced_after_the_flush_mode_became_ack() -> None:
    for seed in range(10):
        disk = SimulatedDisk()
        log = open_log(LogStore.open(disk, "/data"), "t", ID, 0, OS)
        append(log, produced(7, 0, transactional=True, count=3))
        append(log, marker(7, commit=False))
        fill(log, 10)
        log.config = SMALL
        log.sync_all()
        assert log.flushed_offset == log.end_offset == 14
        disk.crash(seed)
        log = open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL)
        assert log.end_offset == 14
        assert [entry.producer_id for entry in log.reader.aborted_transactions(Offset(0), Offset(14))] == [7]


def test_a_log_that_is_left_to_the_operating_system_holds_no_files_open() -> None:
    log = open_log(LogStore.open(SimulatedDisk(), "/data"), "t", ID, 0, OS)
    for turn in range(10):
        append(log, produced(7, 3 * turn, transactional=True, count=3))
        append(log, marker(7, commit=False))
        fill(log, 6)
    assert len(log.segments) > 5
    mark = log.take_unsynced()
    assert mark is None or not mark.files


# ---- retention ----


def test_a_segment_goes_by_size_when_the_others_have_all_that_must_stay_and_not_a_byte_before() -> None:
    log = new_log()
    fill(log, 30)
    log.sync_all()
    others = log.size_bytes - log.segments[0].size
    following = log.segments[1].base_offset
    log.config = replace(SMALL, retention_bytes=others)
    assert expired_start(log, 0) == following
    log.config = replace(SMALL, retention_bytes=others + 1)
    assert expired_start(log, 0) == 0


def test_a_segment_goes_by_age_a_millisecond_after_its_latest_record_reached_it() -> None:
    log = new_log(config=replace(SMALL, retention_ms=500))
    fill(log, 30)
    log.sync_all()
    latest_ms = log.segments[0].max_timestamp
    assert expired_start(log, latest_ms + 500) == 0
    assert expired_start(log, latest_ms + 501) == log.segments[1].base_offset


# ---- records without a timestamp ----


def test_records_without_a_timestamp_roll_a_segment_by_the_time_of_their_append() -> None:
    log = new_log(config=LogConfig(segment_ms_max=1000))
    begun_ms = 1_700_000_000_000
    for turn in range(50):
        log.append(plain(b"x", timestamp=-1), leader_epoch=0, now_ms=begun_ms + turn)
    assert len(log.segments) == 1
    log.append(plain(b"x", timestamp=-1), leader_epoch=0, now_ms=begun_ms + 2000)
    assert len(log.segments) == 2


# ---- gaps ----


def test_a_compacted_log_with_an_empty_active_segment_opens_without_its_checkpoint() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, COMPACT)
    fill(log, 12)
    for _ in range(3):
        append(log, build_batch([Record(None, b"no key", timestamp=1000)]))
    log.sync_all()
    log.roll()
    store.checkpoint(everything=True)
    compact(log, disk)
    assert [(segment.base_offset, segment.size > 0) for segment in log.segments] == [(0, True), (15, False)]
    store.close()
    disk.unlink("/data/checkpoint")
    assert open_log(LogStore.open(disk, "/data"), "t", ID, 0, COMPACT).end_offset == 15


def test_one_lost_index_of_a_segment_that_was_compacted_after_the_checkpoint_is_rebuilt() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, COMPACT)
    fill(log, 5)
    log.sync_all()
    store.checkpoint(everything=True)
    fill(log, 2)
    log.sync_all()
    compact(log, disk)
    disk.kill()
    disk.unlink(f"{log.directory}/00000000000000000000.index")
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, COMPACT)
    assert [batch.base_offset for batch in log.reader.batches(Offset(0))] == [4, 5, 6]
    assert [finding.message for finding in store.report.findings] == ["lost; rebuilt from a segment that was compacted"]


def test_looking_for_the_latest_time_ends_at_a_gap_after_the_last_batch_of_a_segment() -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, replace(COMPACT, cleanup_delete=True))
    append(log, plain(b"first", key=b"a", timestamp=700))
    append(log, plain(b"second", key=b"b", timestamp=300))
    append(log, build_batch([Record(None, b"no key", timestamp=100)]))
    log.roll()
    append(log, plain(b"last", key=b"c", timestamp=200))
    log.sync_all()
    store.checkpoint(everything=True)
    compact(log, disk)
    log.delete_records(Offset(1))
    offset: Offset | None = log.start_offset
    for _ in range(10):
        assert offset is not None
        _, offset = log.reader.latest_timestamp(offset)
        if offset is None:
            break
    assert offset is None
    assert latest(log) == 300
