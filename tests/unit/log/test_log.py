"""Appending and reading: what goes in comes out, whole batches, in order, from any offset."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.batch import read_batches
from headrace.log.config import FlushMode, LogConfig
from headrace.log.disk import FileCache, OsDisk
from headrace.log.errors import DiskFull, OffsetOutOfRange, RecordListTooLarge, StorageError
from headrace.log.log import PartitionLog
from headrace.log.opening import Known
from headrace.testing.disk import SimulatedDisk
from tests.unit.log.builders import (
    DIRECTORY,
    SMALL,
    append,
    batches_in,
    fill,
    marker,
    new_log,
    offsets_in,
    plain,
    produced,
    remove_dead_segments,
)
from tests.unit.log.by_time import first_at_or_after, latest


def read_offsets(log: PartitionLog, offset: int, **options: int) -> list[int]:
    options = {"bytes_max": 1 << 20, "offset_max": log.end_offset, **options}
    data = b"".join(piece.read() for piece in log.reader.read(offset, **options))
    return (
        [batch.base_offset for batch in read_batches(data, batch_bytes_max=1 << 20, from_client=False)] if data else []
    )


def test_offsets_count_records_and_begin_at_zero() -> None:
    log = new_log()
    assert log.append(plain(b"a", b"b"), leader_epoch=4, now_ms=1) == 0
    assert log.append(plain(b"c"), leader_epoch=4, now_ms=1) == 2
    assert log.end_offset == 3
    assert [(batch.base_offset, batch.leader_epoch) for batch in batches_in(log)] == [(0, 4), (2, 4)]


def test_a_read_inside_a_batch_gives_the_whole_batch() -> None:
    log = new_log()
    append(log, plain(b"a", b"b", b"c"))
    append(log, plain(b"d"))
    assert read_offsets(log, 1) == [0, 3]


@pytest.mark.parametrize("bytes_max", [1, 150, 200, 400, 1 << 20])
def test_every_offset_can_be_read_from_whatever_the_size_of_the_answer(bytes_max: int) -> None:
    log = new_log()
    fill(log, 40)
    assert len(log.segments) > 3
    for offset in range(40):
        found = read_offsets(log, offset, bytes_max=bytes_max)
        assert found[0] == offset
        assert found == list(range(offset, offset + len(found)))
    assert offsets_in(log, bytes_max=bytes_max) == list(range(40))


@pytest.mark.parametrize("offset_max", range(1, 12))
def test_no_record_at_or_above_the_bound_is_given(offset_max: int) -> None:
    log = new_log(config=LogConfig(index_interval_bytes=150))
    for _ in range(6):
        append(log, plain(b"a" * 30, b"b" * 30))
    assert read_offsets(log, 0, offset_max=offset_max) == [base for base in range(0, 12, 2) if base + 2 <= offset_max]


def test_a_large_first_batch_is_given_only_when_one_is_asked_for() -> None:
    log = new_log()
    append(log, plain(b"x" * 500))
    assert len(log.reader.read(0, bytes_max=10, offset_max=1)) == 1
    assert log.reader.read(0, bytes_max=10, offset_max=1, min_one_batch=False) == []


def test_reading_at_the_end_gives_nothing_and_beyond_it_is_refused() -> None:
    log = new_log()
    fill(log, 3)
    assert log.reader.read(3, bytes_max=100, offset_max=3) == []
    with pytest.raises(OffsetOutOfRange, match=r"offset 4 is outside \[0, 3\]"):
        log.reader.read(4, bytes_max=100, offset_max=4)


def test_a_flushed_bound_in_the_middle_of_what_is_written_is_exact() -> None:
    log = new_log(config=LogConfig())
    fill(log, 3)
    log.sync_all()
    fill(log, 3)
    assert (log.flushed_offset, log.high_watermark, log.end_offset) == (3, 3, 6)
    assert read_offsets(log, 0, offset_max=3) == [0, 1, 2]
    assert read_offsets(log, 2, offset_max=3) == [2]


def test_written_is_visible_at_once_where_nobody_waits_for_a_sync() -> None:
    log = new_log(config=LogConfig(flush=FlushMode.OS))
    fill(log, 2)
    assert (log.flushed_offset, log.high_watermark) == (0, 2)


def test_the_high_watermark_never_goes_back_when_the_flush_mode_changes() -> None:
    log = new_log(config=LogConfig(flush=FlushMode.OS))
    fill(log, 2)
    log.config = LogConfig(flush=FlushMode.ACK)
    assert (log.flushed_offset, log.high_watermark) == (0, 2)
    fill(log, 1)
    assert log.high_watermark == 2
    log.sync_all()
    assert log.high_watermark == 3
    fill(log, 1)
    log.config = LogConfig(flush=FlushMode.INTERVAL)
    assert log.high_watermark == 4


@pytest.mark.parametrize(("flush", "heard_before_the_sync"), [(FlushMode.ACK, False), (FlushMode.OS, True)])
def test_a_waiter_is_called_once_when_its_offset_is_acknowledged(flush: FlushMode, heard_before_the_sync: bool) -> None:
    log = new_log(config=LogConfig(flush=flush))
    heard: list[str] = []
    log.on_advanced = lambda: heard.append("owner")
    log.when_acknowledged(0, lambda: heard.append("waiter"))
    fill(log, 1)
    assert heard == (["owner", "waiter"] if heard_before_the_sync else [])
    log.sync_all()
    assert heard == ["owner", "waiter"]
    log.when_acknowledged(0, lambda: heard.append("late"))
    assert heard[2:] == ["late"]


def test_waiters_of_a_log_that_is_removed_are_released() -> None:
    log = new_log()
    heard: list[int] = []
    log.when_acknowledged(7, lambda: heard.append(7))
    log.release_waiters()
    assert heard == [7]


def test_leaving_syncs_to_the_system_ends_with_everything_taken_over() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, LogConfig(flush=FlushMode.OS, segment_bytes_max=1000))
    fill(log, 20)
    log.config = LogConfig(segment_bytes_max=1000)
    assert log.take_unsynced() is not None
    log.config = LogConfig(flush=FlushMode.OS, segment_bytes_max=1000)
    log.config = LogConfig(segment_bytes_max=1000)
    log.sync_all()
    disk.crash(2)
    assert new_log(disk).end_offset == 20


def test_a_segment_rolls_by_size_and_by_the_records_time() -> None:
    by_size = new_log()
    fill(by_size, 12)
    assert all(segment.size <= 1000 for segment in by_size.segments)
    by_time = new_log(config=LogConfig(segment_ms_max=100))
    append(by_time, plain(b"a", timestamp=1000))
    append(by_time, plain(b"a", timestamp=1100))
    append(by_time, plain(b"a", timestamp=1101))
    assert [segment.base_offset for segment in by_time.segments] == [0, 2]


def test_an_append_larger_than_a_segment_is_refused() -> None:
    log = new_log()
    with pytest.raises(RecordListTooLarge):
        append(log, plain(b"x" * 2000))
    assert log.end_offset == 0


def test_a_full_disk_refuses_the_append_and_changes_nothing_until_there_is_room() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, LogConfig())
    fill(log, 3)
    before = disk.contents(log.segments[0].path)
    disk.capacity_bytes = disk.used_bytes() + 50
    with pytest.raises(DiskFull) as caught:
        append(log, produced(1, 0))
    assert caught.value.retriable
    assert disk.contents(log.segments[0].path) == before
    assert log.end_offset == 3
    assert 1 not in log.producers
    disk.capacity_bytes = None
    assert append(log, produced(1, 0)) == 3
    assert offsets_in(log) == [0, 1, 2, 3]


def test_an_io_error_leaves_the_log_as_it_was_even_if_cutting_back_fails() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, LogConfig())
    fill(log, 1)
    disk.capacity_bytes = disk.used_bytes() + 70
    disk.fail_next("truncate", errno.EIO)
    with pytest.raises(StorageError):
        append(log, plain(b"lost" * 30))
    disk.capacity_bytes = None
    append(log, plain(b"x"))
    log.sync_all()
    disk.crash(1)
    assert new_log(disk, LogConfig()).end_offset == 2


def test_a_full_disk_while_rolling_keeps_the_old_segment_in_use() -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    fill(log, 5)
    disk.fail_next("open", errno.ENOSPC, "00000005.log")
    with pytest.raises(DiskFull):
        fill(log, 1)
    fill(log, 1)
    assert offsets_in(log) == list(range(6))


def test_a_slice_stays_readable_after_its_segment_was_removed(tmp_path: Path) -> None:
    log = PartitionLog.open(OsDisk(), str(tmp_path / "log"), SMALL)
    fill(log, 20)
    log.sync_all()
    [held] = log.reader.read(0, bytes_max=1 << 20, offset_max=20)
    before = held.read()
    log.delete_records(20)
    log.checkpointed(log.prepare_checkpoint().written())
    log.start_marked(log.start_offset)
    assert remove_dead_segments(log) > 0
    assert held.read() == before


def test_open_files_stay_within_the_bound(tmp_path: Path) -> None:
    disk = OsDisk()
    cache = FileCache(disk, 8)
    log = PartitionLog.open(disk, str(tmp_path / "log"), SMALL, cache=cache)
    fill(log, 100)
    log.sync_all()
    assert offsets_in(log) == list(range(100))
    assert len(log.segments) > 10
    assert len(cache) <= 8


def test_the_first_record_at_or_after_a_time_is_found_exactly() -> None:
    log = new_log()
    for offset in range(30):
        append(log, plain(b"x" * 50, timestamp=1000 + 10 * offset))
    for timestamp in range(995, 1300, 5):
        expected = max(0, -(-(timestamp - 1000) // 10))
        found = (1000 + 10 * expected, expected) if expected < 30 else None
        assert first_at_or_after(log, timestamp) == found


def test_times_that_go_back_are_found_too() -> None:
    log = new_log()
    for timestamp in (50, 10, 90, 20, 80, 30):
        append(log, plain(b"x" * 300, timestamp=timestamp))
    assert first_at_or_after(log, 60) == (90, 2)
    assert first_at_or_after(log, 15) == (50, 0)
    assert latest(log) == 90
    assert first_at_or_after(log, 91) is None


def test_the_latest_time_of_an_empty_log_is_none() -> None:
    assert latest(new_log()) == -1


def test_a_deleted_range_is_not_found_by_time() -> None:
    log = new_log()
    append(log, plain(b"a", b"b", b"c", timestamp=10))
    log.sync_all()
    log.delete_records(2)
    assert first_at_or_after(log, 5) == (10, 2)


def test_delete_records_moves_the_start_and_refuses_what_is_not_visible() -> None:
    log = new_log()
    fill(log, 10)
    log.sync_all()
    fill(log, 1)
    assert log.delete_records(4) == 4
    assert log.delete_records(2) == 4
    with pytest.raises(OffsetOutOfRange):
        log.reader.read(3, bytes_max=10, offset_max=10)
    with pytest.raises(OffsetOutOfRange):
        log.delete_records(11)
    assert log.delete_records(-1) == 10


def test_an_epoch_ends_where_the_next_begins() -> None:
    log = new_log()
    for epoch in (2, 2, 5):
        log.append(plain(b"x"), leader_epoch=epoch, now_ms=1)
    assert log.epoch_end_offset(1) is None
    assert log.epoch_end_offset(2) == (2, 2)
    assert log.epoch_end_offset(4) == (2, 2)
    assert log.epoch_end_offset(9) == (5, 3)
    again = PartitionLog.open(log._disk, DIRECTORY, SMALL, known=Known(mark=log.close()))
    assert again.epoch_end_offset(2) == (2, 2)


def test_readers_of_committed_data_stop_at_the_first_open_transaction() -> None:
    log = new_log()
    append(log, plain(b"x"))
    append(log, produced(1, 0, transactional=True))
    append(log, produced(2, 0, transactional=True))
    log.sync_all()
    assert log.last_stable_offset == 1
    append(log, marker(1, commit=True))
    assert log.last_stable_offset == 1, "the marker is not visible yet"
    log.sync_all()
    assert log.last_stable_offset == 2
    append(log, marker(2, commit=False))
    log.sync_all()
    assert log.last_stable_offset == 5


def test_aborted_transactions_are_found_by_the_range_they_touch() -> None:
    log = new_log()
    for start in range(0, 60, 3):
        append(log, produced(7, start // 3, transactional=True))
        append(log, plain(b"between" * 9))
        append(log, marker(7, commit=start % 2 == 0))
    aborted = log.reader.aborted_transactions(0, 60)
    assert [(entry.first_offset, entry.last_offset) for entry in aborted] == [(s, s + 2) for s in range(3, 60, 6)]
    assert [entry.first_offset for entry in log.reader.aborted_transactions(10, 16)] == [9, 15]


def test_sequential_reads_need_no_search() -> None:
    log = new_log(config=LogConfig())
    fill(log, 50)
    log.reader.read(0, bytes_max=500, offset_max=50)
    [after_first] = log.reader._places
    log.reader._locate = None  # type: ignore[assignment, method-assign]
    assert read_offsets(log, after_first)[0] == after_first
