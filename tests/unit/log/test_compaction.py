"""Compaction: the last of each key stays at its offset, transactions and sequences stay right, memory is bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.batch import build_batch, read_batches
from headrace.log.compaction.cleaner import CleaningResult, OffsetMap, clean
from headrace.log.compaction.planning import plan
from headrace.log.config import LogConfig
from headrace.log.disk import FileCache
from headrace.log.errors import CorruptLog
from headrace.log.findings import Severity
from headrace.log.log import PartitionLog
from headrace.log.opening import Known
from headrace.log.producers import Duplicate
from headrace.log.verify import verify_log
from headrace.record import Codec, Record, decode_records
from headrace.testing.disk import PowerLoss, SimulatedDisk
from tests.unit.log.builders import (
    DIRECTORY,
    append,
    batches_in,
    marker,
    new_log,
    plain,
    produced,
    remove_dead_segments,
    swap_in,
)

COMPACT = LogConfig(
    segment_bytes_max=4000,
    index_interval_bytes=200,
    retention_ms=-1,
    cleanup_delete=False,
    cleanup_compact=True,
    delete_retention_ms=1000,
    min_cleanable_dirty_ratio=0.0,
)
NOW = 100_000


def compacted_log(disk: SimulatedDisk | None = None, config: LogConfig = COMPACT) -> PartitionLog:
    return new_log(disk, config)


def put(log: PartitionLog, key: bytes, value: bytes | None) -> int:
    return append(log, build_batch([Record(key, value, timestamp=1000)]))


def settle(log: PartitionLog) -> None:
    """Make everything so far fit for compaction: sealed, flushed, below the recovery point."""
    log.roll()
    log.checkpointed(log.prepare_checkpoint().written())
    log.sync_all()


def compact(log: PartitionLog, now_ms: int = NOW, **options: int) -> CleaningResult:
    settle(log)
    job = plan(log, now_ms, token="t", **options)
    assert job is not None
    result = clean(log._disk, job)
    swap_in(log, result)
    return result


def records(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    batches = [batch for batch in batches_in(log) if not batch.is_control]
    return [(r.offset, r.key, r.value) for batch in batches for r in decode_records(batch, 1 << 20)]


@pytest.mark.parametrize("codec", list(Codec))
def test_the_last_record_of_each_key_stays_at_its_offset(codec: Codec) -> None:
    log = compacted_log()
    for turn in range(10):
        values = [Record(b"key%d" % n, b"%d" % turn, timestamp=1000) for n in range(7) if (n + turn) % 3]
        append(log, build_batch(values, codec=codec))
    before = records(log)
    last = {key: offset for offset, key, _ in before}
    compact(log)
    assert records(log) == [entry for entry in before if last[entry[1]] == entry[0]]
    assert log.end_offset == before[-1][0] + 1


def test_a_second_pass_takes_what_the_first_left() -> None:
    log = compacted_log()
    for turn in range(40):
        put(log, b"a" if turn % 2 else b"b", b"%d" % turn)
    compact(log)
    put(log, b"a", b"new")
    compact(log)
    assert [(key, value) for _, key, value in records(log)] == [(b"b", b"38"), (b"a", b"new")]


def test_small_segments_are_joined() -> None:
    log = compacted_log()
    for turn in range(200):
        put(log, b"k%d" % (turn % 3), b"x" * 50)
    assert len(log.segments) > 4
    compact(log)
    assert len(log.segments) == 2
    assert [offset for offset, _, _ in records(log)] == [197, 198, 199]


def test_a_reader_in_the_removed_part_is_led_to_what_follows() -> None:
    log = compacted_log()
    for turn in range(100):
        put(log, b"k%d" % (turn % 2), b"x" * 50)
    compact(log)
    for offset in (0, 17, 97):
        [piece] = log.reader.read(offset, bytes_max=1, offset_max=log.end_offset)
        [batch] = read_batches(piece.read(), batch_bytes_max=1000, from_client=False)
        assert batch.base_offset == 98


def test_a_tombstone_stays_for_its_time_after_it_was_first_cleaned() -> None:
    log = compacted_log()
    put(log, b"a", b"1")
    put(log, b"a", None)
    put(log, b"b", b"2")
    compact(log, NOW)
    assert records(log) == [(1, b"a", None), (2, b"b", b"2")]
    put(log, b"c", b"3")
    compact(log, NOW + 999)
    assert (1, b"a", None) in records(log)
    put(log, b"c", b"4")
    compact(log, NOW + 1000)
    assert [key for _, key, _ in records(log)] == [b"b", b"c"]


def test_a_tombstones_own_timestamp_survives_the_delete_horizon() -> None:
    log = compacted_log()
    put(log, b"a", None)
    compact(log, NOW)
    [batch] = batches_in(log)
    assert batch.delete_horizon_ms == NOW + 1000
    assert [record.timestamp for record in decode_records(batch, 1000)] == [1000]


def test_aborted_records_go_and_do_not_hide_committed_ones() -> None:
    log = compacted_log()
    put(log, b"a", b"committed")
    append(log, produced(1, 0, transactional=True, key=b"a"))
    append(log, marker(1, commit=False))
    put(log, b"z", b"end")
    compact(log)
    assert [(key, value) for _, key, value in records(log)] == [(b"a", b"committed"), (b"z", b"end")]


def test_an_abort_marker_behind_the_job_still_counts() -> None:
    log = compacted_log()
    put(log, b"a", b"committed")
    append(log, produced(1, 0, transactional=True, key=b"a"))
    log.roll()
    append(log, marker(1, commit=False))
    log.checkpointed(log.prepare_checkpoint().written())
    log.sync_all()
    job = plan(log, NOW, token="t")
    assert job is not None
    assert job.end_offset == 2
    result = clean(log._disk, job)
    swap_in(log, result)
    assert records(log) == [(0, b"a", b"committed")]


def test_an_open_transaction_is_not_touched() -> None:
    log = compacted_log()
    put(log, b"a", b"1")
    log.roll()
    append(log, produced(1, 0, transactional=True, key=b"a"))
    settle(log)
    job = plan(log, NOW, token="t")
    assert job is not None
    assert job.end_offset == 1


def test_markers_go_after_their_records_and_their_time() -> None:
    log = compacted_log()
    append(log, produced(1, 0, transactional=True, key=b"a"))
    append(log, marker(1, commit=True))
    append(log, produced(1, 1, transactional=True, key=b"a"))
    append(log, marker(1, commit=True))
    compact(log, NOW)
    markers = [batch.base_offset for batch in batches_in(log) if batch.is_control]
    assert markers == [1, 3], "the first has lost its records and waits for its horizon"
    put(log, b"b", b"x")
    compact(log, NOW + 999)
    assert [batch.base_offset for batch in batches_in(log) if batch.is_control] == [1, 3]
    put(log, b"b", b"y")
    compact(log, NOW + 1000)
    assert [batch.base_offset for batch in batches_in(log) if batch.is_control] == [3]
    assert [offset for offset, _, _ in records(log)] == [2, 5]


def test_a_marker_goes_though_an_earlier_transaction_of_its_producer_has_kept_its_records() -> None:
    log = compacted_log()
    for key in (b"a", b"b"):
        append(log, produced(1, log.end_offset // 2, transactional=True, key=key))
        append(log, marker(1, commit=True))
    put(log, b"b", b"later")
    for now_ms in (NOW, NOW + 1000):
        compact(log, now_ms)
        put(log, b"c", b"x")
    assert [batch.base_offset for batch in batches_in(log) if batch.is_control] == [1]
    assert [offset for offset, key, _ in records(log) if key != b"c"] == [0, 4]


def test_the_last_batch_of_a_producer_stays_without_records_so_that_its_retry_is_known() -> None:
    disk = SimulatedDisk()
    log = compacted_log(disk)
    append(log, produced(1, 0, key=b"a"))
    append(log, produced(1, 1, key=b"a"))
    put(log, b"a", b"last")
    compact(log)
    assert [(batch.base_offset, batch.record_count) for batch in batches_in(log)] == [(1, 0), (2, 1)]
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".producers"):
            disk.unlink(f"{DIRECTORY}/{name}")
    disk.syncfs("/")
    disk.crash(0)
    again = PartitionLog.open(disk, DIRECTORY, COMPACT, known=Known(mark_lost=True))
    assert again.producers.check(produced(1, 1, key=b"a")) == Duplicate(1, 1, 1000)


def test_more_keys_than_fit_are_cleaned_in_several_passes_to_the_same_end() -> None:
    log = compacted_log()
    for turn in range(3):
        for number in range(100):
            put(log, b"key%d" % number, b"%d" % turn)
    passes = 0
    fitted = False
    while not fitted:
        result = compact(log, map_bytes_max=24 * 60)
        assert result.keys <= 45
        fitted = result.all_keys_fitted
        passes += 1
    assert passes > 3
    assert [value for _, _, value in records(log)] == [b"2"] * 100


def test_a_batch_of_more_keys_than_fit_does_not_stop_compaction_for_ever() -> None:
    log = compacted_log()
    put(log, b"key0", b"first")
    append(log, build_batch([Record(b"key%d" % (number % 80), b"%d" % number, 1000) for number in range(100)]))
    put(log, b"key1", b"last")
    fitted = [compact(log, map_bytes_max=24 * 60).all_keys_fitted for _ in range(2)]
    assert fitted == [False, True]
    expected = [b"%d" % number for number in range(20, 100) if number % 80 != 1]
    assert [value for _, _, value in records(log)] == [*expected, b"last"]


def test_nothing_is_due_below_the_dirty_ratio_unless_a_record_is_too_old() -> None:
    log = compacted_log(config=replace(COMPACT, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=5000))
    for turn in range(200):
        put(log, b"key%d" % turn, b"x" * 50)
    settle(log)
    assert plan(log, 2000, token="t") is not None
    compact(log)
    put(log, b"new", b"x")
    settle(log)
    assert plan(log, 2000, token="t") is None
    assert plan(log, 1000 + 5001, token="t") is not None


def test_young_records_wait() -> None:
    log = compacted_log(config=replace(COMPACT, min_compaction_lag_ms=500))
    put(log, b"a", b"1")
    settle(log)
    assert plan(log, 1499, token="t") is None
    assert plan(log, 1500, token="t") is not None


def test_what_a_crash_could_still_cut_is_not_compacted() -> None:
    log = compacted_log()
    put(log, b"a", b"1")
    log.roll()
    log.sync_all()
    assert plan(log, NOW, token="t") is None


def test_a_group_that_retention_has_touched_is_thrown_away() -> None:
    log = compacted_log()
    for turn in range(200):
        put(log, b"k%d" % turn, b"x" * 50)
    settle(log)
    job = plan(log, NOW, token="t")
    assert job is not None
    result = clean(log._disk, job)
    log.delete_records(120)
    log.checkpointed(log.prepare_checkpoint().written())
    remove_dead_segments(log)
    swap_in(log, result)
    assert [offset for offset, _, _ in records(log) if offset >= 120] == list(range(120, 200))
    assert not [name for name in log._disk.listdir(DIRECTORY) if ".cleaned" in name]


def test_slices_of_replaced_files_stay_readable() -> None:
    log = compacted_log()
    for turn in range(20):
        put(log, b"k", b"%d" % turn)
    log.sync_all()
    [held] = log.reader.read(0, bytes_max=1 << 20, offset_max=20)
    before = held.read()
    compact(log)
    assert held.read() == before


def test_until_a_swap_is_finished_readers_get_the_old_files_although_few_are_kept_open() -> None:
    disk = SimulatedDisk()
    log = PartitionLog.open(disk, DIRECTORY, COMPACT, cache=FileCache(disk, files_max=1))
    for number in range(60):
        put(log, b"k%d" % (number % 3), b"v" * 200)
    settle(log)
    job = plan(log, NOW, token="t")
    assert job is not None
    swap = log.begin_swap(clean(disk, job))
    swap.run()
    assert [offset for offset, _, _ in records(log)] == list(range(60))
    log.finish_swap(swap)
    assert [offset for offset, _, _ in records(log)] == [57, 58, 59]


def test_corruption_is_told_with_its_place_and_nothing_is_swapped() -> None:
    disk = SimulatedDisk()
    log = compacted_log(disk)
    for turn in range(20):
        put(log, b"k", b"%d" % turn)
    settle(log)
    disk.damage(log.segments[0].path, lambda content: content.__setitem__(75, content[75] ^ 1))
    job = plan(log, NOW, token="t")
    assert job is not None
    with pytest.raises(CorruptLog):
        clean(disk, job)
    assert len(batches_in(log)) == 20


def test_compact_and_delete_work_together() -> None:
    log = compacted_log(config=replace(COMPACT, cleanup_delete=True, retention_ms=10_000))
    for turn in range(50):
        put(log, b"k%d" % (turn % 5), b"x")
    compact(log)
    assert len(records(log)) == 5
    from headrace.log.retention import advance_by_retention

    assert advance_by_retention(log, 20_000)
    assert log.start_offset == log.end_offset


def test_the_key_table_keeps_its_size() -> None:
    table = OffsetMap(24 * 1000)
    for number in range(700):
        table.put(b"%d" % number, number)
    for number in range(700):
        table.put(b"%d" % number, number + 1)
    assert len(table) == 700
    assert len(table._table) == 24 * 1000
    assert not table.has_room_for(100)
    assert all(table.last_offset(b"%d" % number) == number + 1 for number in range(700))
    assert table.last_offset(b"absent") == -1


def test_an_empty_segment_after_compaction_still_joins_its_neighbours() -> None:
    log = compacted_log()
    append(log, plain(b"x", key=b"a"))
    log.roll()
    append(log, plain(b"y", key=b"a"))
    compact(log)
    assert records(log) == [(1, b"a", b"y")]
    assert append(log, plain(b"z", key=b"a")) == 2


def ready_to_swap() -> tuple[SimulatedDisk, PartitionLog, CleaningResult]:
    disk = SimulatedDisk()
    log = compacted_log(disk, SMALL_COMPACT)
    put(log, b"first", b"short")
    log.roll()  # what replaces this segment and others is longer than it was
    for number in range(12):
        put(log, b"k%d" % (number % 3), b"%d" % number * 40)
    append(log, produced(1, 0, transactional=True), marker(1, commit=False))
    settle(log)
    job = plan(log, NOW, token="t")
    assert job is not None
    return disk, log, clean(disk, job)


SMALL_COMPACT = replace(COMPACT, segment_bytes_max=700)


@pytest.mark.slow
def test_wherever_the_power_fails_during_a_swap_the_log_is_the_old_one_or_the_new_one() -> None:
    """Changes of a directory that was not synced since reach the disk in any order, or not at all."""
    disk, log, result = ready_to_swap()
    old, before = records(log), disk.operations
    swap_in(log, result)
    steps, new = disk.operations - before, records(log)
    assert len(new) < len(old)
    outcomes = set()
    for step in range(steps):
        for seed in range(8):
            disk, log, result = ready_to_swap()
            known = Known(mark=log.mark, flushed_end=log.end_offset)
            disk.crash_after = disk.operations + step
            with pytest.raises(PowerLoss):
                swap_in(log, result)
            disk.crash(step * 8 + seed)
            again = PartitionLog.open(disk, DIRECTORY, SMALL_COMPACT, known=known)
            assert records(again) in (old, new), f"step {step}, seed {seed}"
            assert [each for each in disk.listdir(DIRECTORY) if "swap" in each or "cleaned" in each] == []
            problems = [each for each in verify_log(disk, DIRECTORY, known) if each.severity is Severity.ERROR]
            assert problems == [], f"step {step}, seed {seed}"
            outcomes.add(records(again) == old)
    assert outcomes == {True, False}
