"""Damage to one file of a log: what can be derived is derived again, and what cannot is refused; never neither."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from headrace.log.checkpoint import LogMark, read_checkpoint
from headrace.log.compaction.cleaner import clean
from headrace.log.compaction.planning import plan
from headrace.log.config import LogConfig
from headrace.log.errors import CorruptLog
from headrace.log.findings import Severity
from headrace.log.log import PartitionLog
from headrace.log.opening import Known
from headrace.log.producers import Duplicate
from headrace.log.store import LogStore
from headrace.log.verify import verify_log
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
from tests.unit.log.builders import (
    DIRECTORY,
    SMALL,
    append,
    begun_checkpoint,
    fill,
    finish_checkpoint,
    group,
    marker,
    new_log,
    offsets_in,
    open_log,
    plain,
    produced,
    remove_dead_segments,
    swap_in,
)

ID = UUID(int=3)
COMPACT = LogConfig(
    segment_bytes_max=1000,
    index_interval_bytes=200,
    retention_ms=-1,
    cleanup_compact=True,
    min_cleanable_dirty_ratio=0.1,
)


def flip(position: int, bit: int = 0x40) -> Callable[[bytearray], None]:
    return lambda content: content.__setitem__(position, content[position] ^ bit)


def cut_at(position: int) -> Callable[[bytearray], None]:
    return lambda content: content.__delitem__(slice(position, None))


def stopped(count: int = 20, config: LogConfig = SMALL) -> tuple[SimulatedDisk, PartitionLog, LogMark]:
    disk = SimulatedDisk()
    log = new_log(disk, config)
    fill(log, count)
    return disk, log, log.close()


def reopen(disk: SimulatedDisk, mark: LogMark | None, config: LogConfig = SMALL) -> PartitionLog:
    disk.kill()
    return PartitionLog.open(disk, DIRECTORY, config, known=Known(mark=mark, mark_lost=mark is None))


def starts_in(disk: SimulatedDisk, path: str) -> list[int]:
    """Where the batches of a segment begin."""
    content, starts, position = disk.contents(path), [], 0
    while position < len(content):
        starts.append(position)
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    return starts


# ---- segments before the recovery point ----


@pytest.mark.parametrize("whole_batches", [True, False], ids=["between two batches", "within a batch"])
def test_a_sealed_segment_that_was_cut_is_served_up_to_the_cut_and_then_refused(whole_batches: bool) -> None:
    disk, log, mark = stopped()
    second = log.segments[1]
    position = starts_in(disk, second.path)[2] + (0 if whole_batches else 30)
    disk.damage(second.path, cut_at(position))
    again = reopen(disk, mark)
    kept = second.base_offset + 2
    assert offsets_up_to(again, kept) == list(range(kept))
    with pytest.raises(CorruptLog, match="missing at its end") as caught:
        again.reader.read(Offset(kept), bytes_max=1 << 20, offset_max=again.end_offset)
    assert (caught.value.path, caught.value.position) == (second.path, position)


def offsets_up_to(log: PartitionLog, end: int) -> list[int]:
    found: list[int] = []
    for batch in log.reader.batches(log.start_offset):
        found.append(batch.base_offset)
        if batch.next_offset == end:
            break
    return found


def test_bytes_after_the_end_of_a_sealed_segment_are_not_read() -> None:
    disk, log, mark = stopped()
    disk.damage(log.segments[1].path, lambda content: content.extend(bytes(700)))
    assert offsets_in(reopen(disk, mark)) == list(range(20))


def test_bytes_after_the_end_of_a_segment_do_not_end_the_log_when_the_next_one_goes_on() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    fill(log, 20)
    second = log.segments[1]
    disk.kill()
    disk.damage(second.path, lambda content: content.extend(bytes(700)))
    known = Known(mark=LogMark(), flushed_end=Offset(20))
    again = PartitionLog.open(disk, DIRECTORY, SMALL, known=known)
    assert offsets_in(again) == list(range(20))
    [cut] = again.recovery.cuts
    assert (cut.path, cut.position, cut.size) == (second.path, second.size, 700)


@pytest.mark.parametrize("field", [0, 3, 7, 12, 15], ids=lambda position: f"byte {position}")
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first segment", "second segment", "last segment"])
def test_an_offset_or_leader_epoch_that_has_changed_is_noticed_by_whoever_reads_it(field: int, number: int) -> None:
    disk, log, mark = stopped()
    segment = log.segments[number]
    disk.damage(segment.path, flip(starts_in(disk, segment.path)[1] + field, 0x01))
    with pytest.raises(CorruptLog) as caught:
        offsets_in(reopen(disk, mark))
    assert caught.value.path == segment.path


def test_what_was_compared_once_is_not_compared_again() -> None:
    disk, _, mark = stopped(60)
    again = reopen(disk, mark)
    assert offsets_in(again) == list(range(60))
    before = disk.operations
    again.reader.read(Offset(7), bytes_max=1, offset_max=again.end_offset)
    assert disk.operations - before <= 4


def compacted() -> tuple[SimulatedDisk, LogStore, PartitionLog]:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, COMPACT)
    for number in range(40):
        append(log, plain(b"%d" % number + b"." * 120, key=b"k%d" % (number % 7), timestamp=1000))
    store.checkpoint(everything=True)
    job = plan(log, 5000, token="t")
    assert job is not None
    result = clean(disk, job)
    swap_in(log, result)
    return disk, store, log


def test_a_compacted_segment_that_was_cut_between_two_batches_is_noticed() -> None:
    disk, store, log = compacted()
    first = log.segments[0]
    store.close()
    assert len(starts_in(disk, first.path)) > 1, "something is left of it"
    disk.damage(first.path, cut_at(starts_in(disk, first.path)[-1]))
    again = open_log(LogStore.open(disk, "/data"), "t", ID, 0, COMPACT)
    with pytest.raises(CorruptLog, match="missing at its end"):
        list(again.reader.batches(again.start_offset))


def test_a_lost_segment_of_a_compacted_log_is_noticed() -> None:
    disk, store, log = compacted()
    victim = log.segments[-2]
    store.close()
    for path in (victim.path, victim.index.path, victim.aborted.path):
        if disk.exists(path):
            disk.unlink(path)
    disk.syncfs("/")
    again = open_log(LogStore.open(disk, "/data"), "t", ID, 0, COMPACT)
    with pytest.raises(CorruptLog, match="must follow it"):
        list(again.reader.batches(again.start_offset))


def test_a_segment_whose_companions_are_still_there_is_missed_at_once() -> None:
    disk, log, mark = stopped()
    victim = log.segments[1]
    disk.unlink(victim.path)
    disk.syncfs("/")
    with pytest.raises(CorruptLog, match="was here and is gone") as caught:
        reopen(disk, mark)
    assert caught.value.path == victim.path


def test_a_compaction_before_the_last_crash_causes_no_alarm() -> None:
    disk, _, log = compacted()
    expected = [(batch.base_offset, batch.body) for batch in log.reader.batches(log.start_offset)]
    disk.kill()
    store = LogStore.open(disk, "/data")
    again = open_log(store, "t", ID, 0, COMPACT)
    assert [(batch.base_offset, batch.body) for batch in again.reader.batches(again.start_offset)] == expected
    assert store.report.findings == []


# ---- the start of the log ----


def shortened() -> tuple[SimulatedDisk, LogStore, PartitionLog]:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    fill(log, 20)
    log.sync_all()
    log.delete_records(Offset(13))
    store.checkpoint()
    return disk, store, log


@pytest.mark.parametrize("segments_removed", [False, True])
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_deleted_records_stay_deleted_without_the_checkpoint(segments_removed: bool, harm: str) -> None:
    disk, _, log = shortened()
    if segments_removed:
        remove_dead_segments(log)
    disk.kill()
    if harm == "missing":
        disk.unlink("/data/checkpoint")
    else:
        disk.damage("/data/checkpoint", flip(40))
    store = LogStore.open(disk, "/data")
    assert open_log(store, "t", ID, 0, SMALL).start_offset == 13
    assert [(each.severity, each.path) for each in store.report.findings] == [(Severity.WARNING, "/data/checkpoint")]


def test_deleted_records_stay_deleted_without_the_start_marker() -> None:
    disk, _, log = shortened()
    disk.kill()
    disk.unlink(f"{log.directory}/{13:020d}.start")
    assert open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL).start_offset == 13


def test_a_topic_that_is_deleted_during_a_checkpoint_does_not_fail_it() -> None:
    _disk, store, log = shortened()
    log.delete_records(Offset(17))
    job = begun_checkpoint(store)
    store.space("topics").forget(group("t", ID))
    store.space("topics").move_deleted(group("t", ID))
    finish_checkpoint(store, job)


def test_the_start_marker_moves_with_the_start_and_there_is_one() -> None:
    disk, store, log = shortened()
    log.delete_records(Offset(17))
    store.checkpoint()
    assert [name for name in disk.listdir(log.directory) if name.endswith(".start")] == [f"{17:020d}.start"]


def test_a_start_marker_that_cannot_be_written_fails_neither_the_sync_nor_the_checkpoint() -> None:
    disk, store, log = shortened()
    log.delete_records(Offset(17))
    disk.fail_next("rename", 28, ".start")
    store.checkpoint()
    assert log.durable_start_offset == 13
    remove_dead_segments(log)
    assert log.segments[0].base_offset <= 13
    disk.kill()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    assert (log.start_offset, log.durable_start_offset) == (17, 13)
    store.checkpoint()
    assert log.durable_start_offset == 17


def test_on_a_full_disk_the_index_of_a_segment_that_goes_becomes_the_start_marker() -> None:
    for seed in range(20):
        disk = SimulatedDisk()
        store = LogStore.open(disk, "/data")
        log = open_log(store, "t", ID, 0, SMALL)
        fill(log, 20)
        store.checkpoint(everything=True)
        log.delete_records(Offset(13))
        disk.capacity_bytes = disk.used_bytes()
        assert remove_dead_segments(log, regardless=True) > 0
        disk.crash(seed)
        disk.capacity_bytes = None
        assert open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL).start_offset == 13


# ---- aborted transactions ----


def with_aborted(*, roll: bool) -> tuple[SimulatedDisk, PartitionLog, LogMark]:
    """Two aborted transactions and a committed one between them, in a sealed or in the active segment."""
    disk = SimulatedDisk()
    log = new_log(disk, LogConfig(index_interval_bytes=200, retention_ms=-1))
    for round_number in range(3):
        append(log, produced(1, round_number, transactional=True), marker(1, commit=round_number == 1))
    if roll:
        log.roll()
    fill(log, 2)
    return disk, log, log.close()


TXN = f"{DIRECTORY}/{0:020d}.txn"


@pytest.mark.parametrize("harm", ["delete", "flip", "truncate", "cut", "extend"])
@pytest.mark.parametrize("roll", [False, True], ids=["active segment", "sealed segment"])
def test_aborted_transactions_are_derived_again_when_their_file_is_harmed(harm: str, roll: bool) -> None:
    disk, log, mark = with_aborted(roll=roll)
    expected = log.reader.aborted_transactions(Offset(0), Offset(100))
    assert len(expected) == 2
    if harm == "delete":
        disk.unlink(TXN)
    else:
        changes = {
            "flip": flip(5),
            "truncate": cut_at(50),
            "cut": cut_at(40),
            "extend": lambda content: content.extend(bytes(40)),
        }
        disk.damage(TXN, changes[harm])
    again = reopen(disk, mark)
    assert again.reader.aborted_transactions(Offset(0), Offset(100)) == expected
    mark = again.close()
    third = reopen(disk, mark)
    assert third.reader.aborted_transactions(Offset(0), Offset(100)) == expected
    assert third.recovery.findings == []


@pytest.mark.parametrize("roll", [False, True], ids=["active segment", "sealed segment"])
def test_a_lost_file_of_aborted_transactions_is_reported(roll: bool) -> None:
    disk, _, mark = with_aborted(roll=roll)
    disk.unlink(TXN)
    again = reopen(disk, mark)
    again.reader.aborted_transactions(Offset(0), Offset(100))
    [finding] = again.recovery.findings
    assert (finding.severity, finding.path) == (Severity.WARNING, TXN)


def test_aborted_transactions_are_known_when_both_index_and_file_are_lost() -> None:
    disk, log, mark = with_aborted(roll=True)
    expected = log.reader.aborted_transactions(Offset(0), Offset(100))
    disk.unlink(TXN)
    disk.unlink(f"{DIRECTORY}/{0:020d}.index")
    assert reopen(disk, mark).reader.aborted_transactions(Offset(0), Offset(100)) == expected


def test_too_much_to_walk_while_the_log_is_served_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _, mark = with_aborted(roll=True)
    disk.unlink(TXN)
    again = reopen(disk, mark)
    monkeypatch.setattr("headrace.log.log._DERIVE_BYTES_MAX", 10)
    with pytest.raises(CorruptLog, match="log repair") as caught:
        again.reader.aborted_transactions(Offset(0), Offset(100))
    assert caught.value.path == TXN


def test_an_emptied_batch_of_a_decided_transaction_opens_none_after_the_checkpoint_is_lost() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, COMPACT)
    append(log, produced(1, 0, transactional=True, key=b"a"), marker(1, commit=True))
    for round_number in range(1, 4):
        fill(log, 8)
        append(log, plain(b"x", key=b"a"))
        mark = log.prepare_checkpoint().written()
        disk.syncfs("/")
        log.flushed_to_end()
        log.checkpointed(mark)
        job = plan(log, 10**13 * round_number, token="t")
        assert job is not None
        result = clean(disk, job)
        swap_in(log, result)
    assert not any(batch.is_control for batch in log.reader.batches(Offset(0))), "its marker is gone"
    again = reopen(disk, None, COMPACT)
    assert again.producers.open_transactions() == {}
    assert again.last_stable_offset == again.end_offset


# ---- producers ----


def with_a_producer_whose_records_are_gone() -> tuple[SimulatedDisk, str]:
    """A store that was closed in order, and the directory of its log."""
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "t", ID, 0, SMALL)
    append(log, produced(1, 0))
    fill(log, 20)
    store.checkpoint(everything=True)
    log.delete_records(Offset(15))
    store.checkpoint(everything=True)
    remove_dead_segments(log)
    store.close()
    return disk, log.directory


def test_producers_whose_records_are_gone_are_remembered_without_the_checkpoint() -> None:
    disk, _ = with_a_producer_whose_records_are_gone()
    disk.unlink("/data/checkpoint")
    again = open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL)
    assert isinstance(again.producers.check(produced(1, 0)), Duplicate)


def test_producers_that_are_forgotten_because_a_snapshot_is_lost_are_reported() -> None:
    disk, directory = with_a_producer_whose_records_are_gone()
    mark = read_checkpoint(disk, "/data/checkpoint").logs[directory.removeprefix("/data/")]
    assert verify_log(disk, directory, Known(mark=mark)) == []
    for name in disk.listdir(directory):
        if name.endswith(".producers"):
            disk.unlink(f"{directory}/{name}")
    [verified] = verify_log(disk, directory, Known(mark=mark))
    store = LogStore.open(disk, "/data")
    assert len(open_log(store, "t", ID, 0, SMALL).producers) == 0
    [finding] = store.report.findings
    assert (finding.severity, finding.path) == (Severity.WARNING, directory)
    assert "no producer snapshot" in finding.message
    assert verified == finding
