"""Opening a log after a crash and after decay: cut what is torn, keep what could matter, report; no loss in silence."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from headrace.log import opening, producer_snapshots
from headrace.log.checkpoint import LogMark
from headrace.log.config import LogConfig
from headrace.log.errors import CorruptLog, StorageError
from headrace.log.findings import Severity
from headrace.log.log import PartitionLog
from headrace.log.opening import Known
from headrace.log.producers import Duplicate, ProducerStates
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
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
)
from tests.unit.log.by_time import first_at_or_after

ONE_SEGMENT = LogConfig(index_interval_bytes=300, retention_ms=-1)
FIRST = f"{DIRECTORY}/{0:020d}"


def reopen(
    disk: SimulatedDisk, config: LogConfig = ONE_SEGMENT, mark: LogMark | None = None, *, flushed_end: int = 0
) -> PartitionLog:
    disk.crash(0)
    return PartitionLog.open(disk, DIRECTORY, config, known=Known(mark=mark, flushed_end=Offset(flushed_end)))


def synced(count: int, config: LogConfig = ONE_SEGMENT) -> tuple[SimulatedDisk, PartitionLog]:
    disk = SimulatedDisk()
    log = new_log(disk, config)
    fill(log, count)
    log.sync_all()
    return disk, log


def flip(position: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[position] ^= 0x40

    return change


def truncate_to(size: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[size:]

    return change


def test_the_last_append_torn_at_every_byte_leaves_the_ones_before_it() -> None:
    disk, log = synced(3)
    whole = log.segments[0].size
    append(log, produced(5, 0, count=3, transactional=True), marker(5, commit=False), plain(b"last"))
    log.sync_all()
    content = disk.contents(f"{FIRST}.log")
    ends = [0, *(b.size for b in batches_in(log, 3))]
    boundaries = [whole + sum(ends[: n + 1]) for n in range(len(ends))]
    for size in range(whole, len(content) + 1):
        crashed = SimulatedDisk()
        crashed.mkdir(DIRECTORY)
        crashed.open(f"{FIRST}.log", create=True).write([content[:size]], 0)
        crashed.syncfs("/")
        recovered = PartitionLog.open(crashed, DIRECTORY, ONE_SEGMENT)
        survivors = sum(boundary <= size for boundary in boundaries) - 1
        assert len(offsets_in(recovered)) == 3 + survivors
        assert crashed.file_size(f"{FIRST}.log") == boundaries[survivors]
        assert recovered.last_stable_offset == (3 if survivors == 1 else recovered.end_offset)
        assert len(recovered.reader.aborted_transactions(0, 100)) == (survivors >= 2)
        assert append(recovered, plain(b"more")) == recovered.end_offset - 1


def test_zeros_behind_the_end_are_cut() -> None:
    disk, log = synced(3)
    size = log.segments[0].size
    disk.damage(f"{FIRST}.log", lambda content: content.extend(bytes(5000)))
    again = reopen(disk)
    assert again.end_offset == 3
    assert disk.file_size(f"{FIRST}.log") == size
    [cut] = again.recovery.cuts
    assert (cut.position, cut.size, cut.saved_as) == (size, 5000, None)


def test_a_bad_batch_with_good_ones_behind_it_is_kept_beside_the_log() -> None:
    disk, log = synced(6)
    position = [piece.position for n in range(6) for piece in log.reader.read(n, bytes_max=1, offset_max=6)][2]
    before = disk.contents(f"{FIRST}.log")
    disk.damage(f"{FIRST}.log", flip(position + 8))
    again = reopen(disk)
    assert offsets_in(again) == [0, 1]
    [cut] = again.recovery.cuts
    assert cut.saved_as == f"{FIRST}.log.cut-{position}"
    assert disk.contents(cut.saved_as)[-300:] == before[-300:]
    assert (cut.batches, cut.records) == (3, 3)
    assert "kept as" in str(cut.finding())


def test_a_second_cut_at_the_same_place_overwrites_nothing() -> None:
    disk, log = synced(3)
    [third] = log.reader.read(2, bytes_max=1, offset_max=3)
    for _ in range(2):
        disk.damage(f"{FIRST}.log", flip(third.position + 30))
        log = reopen(disk)
        fill(log, 1)
        log.sync_all()
    names = disk.listdir(DIRECTORY)
    assert sum(".cut-" in name for name in names) == 2


def test_segments_behind_a_lost_end_are_set_aside() -> None:
    disk, log = synced(20, SMALL)
    second = log.segments[1]
    bases = [segment.base_offset for segment in log.segments]
    disk.damage(second.path, truncate_to(second.size - 1))
    again = reopen(disk, SMALL)
    assert again.end_offset == bases[2] - 1
    assert [cut.path for cut in again.recovery.cuts if cut.saved_as] == [segment.path for segment in log.segments[2:]]
    assert [segment.base_offset for segment in again.segments] == bases[:2]


def test_what_a_checkpoint_covers_is_not_scanned() -> None:
    disk, log = synced(10)
    mark = log.close()
    again = reopen(disk, mark=mark)
    assert (again.recovery.scanned_bytes, again.end_offset) == (0, 10)
    fill(again, 2)
    again.sync_all()
    third = reopen(disk, mark=mark)
    assert third.end_offset == 12
    assert 0 < third.recovery.scanned_bytes < 500


def test_producers_that_cannot_be_read_for_want_of_descriptors_are_read_the_next_time() -> None:
    disk, log = synced(3)
    append(log, produced(7, 0, count=2))
    log.sync_all()
    again = reopen(disk, mark=log.close())
    disk.fail_next("open", errno.EMFILE, ".producers")
    with pytest.raises(StorageError, match="Too many open files"):
        again.producers.check(produced(7, 2))
    assert isinstance(again.producers.check(produced(7, 0, count=2)), Duplicate)


def test_missing_bytes_before_the_recovery_point_are_refused_with_their_place() -> None:
    disk, log = synced(10)
    mark = log.close()
    disk.damage(f"{FIRST}.log", truncate_to(500))
    with pytest.raises(CorruptLog) as caught:
        reopen(disk, mark=mark)
    assert (caught.value.path, caught.value.position) == (f"{FIRST}.log", 500)
    assert disk.file_size(f"{FIRST}.log") == 500


def test_a_missing_last_segment_before_the_recovery_point_is_refused() -> None:
    disk, log = synced(20, SMALL)
    mark = log.close()
    disk.unlink(log.segments[-1].path)
    disk.syncfs("/")
    with pytest.raises(CorruptLog):
        reopen(disk, SMALL, mark)


def test_a_log_whose_files_are_all_gone_is_refused() -> None:
    disk, log = synced(3)
    mark = log.close()
    disk.unlink(f"{FIRST}.log")
    disk.syncfs("/")
    with pytest.raises(CorruptLog, match="gone"):
        reopen(disk, mark=mark)


def test_a_missing_first_segment_is_refused() -> None:
    disk, log = synced(20, SMALL)
    mark = log.close()
    first, second = log.segments[:2]
    disk.unlink(first.path)
    disk.syncfs("/")
    with pytest.raises(CorruptLog, match=f"offsets 0 to {second.base_offset - 1} were before it and are gone"):
        reopen(disk, SMALL, mark)


def test_a_flipped_bit_before_the_recovery_point_is_told_by_whoever_decodes_it() -> None:
    disk, log = synced(10)
    mark = log.close()
    [third] = log.reader.read(2, bytes_max=1, offset_max=10)
    disk.damage(f"{FIRST}.log", flip(third.position + 70))
    again = reopen(disk, mark=mark)
    with pytest.raises(CorruptLog) as caught:
        first_at_or_after(again, 1002)
    assert caught.value.position == third.position
    assert again.end_offset == 10


@pytest.mark.parametrize("harm", ["delete", "zero", "flip", "stale", "truncate"])
def test_a_harmed_index_is_rebuilt_from_the_log(harm: str) -> None:
    disk, log = synced(400, LogConfig(index_interval_bytes=100, segment_bytes_max=60_000))
    mark = log.close()
    path = log.segments[0].index.path
    if harm == "delete":
        disk.unlink(path)
    elif harm == "stale":
        disk.damage(path, lambda content: content.__setitem__(slice(None), content[:4096]))
    elif harm == "zero":
        disk.damage(path, lambda content: content.__setitem__(slice(0, 4096), bytes(4096)))
    elif harm == "flip":
        disk.damage(path, flip(2000))
    else:
        disk.damage(path, truncate_to(4096 + 17))
    disk.syncfs("/")
    again = reopen(disk, LogConfig(index_interval_bytes=100, segment_bytes_max=60_000), mark)
    for offset in (0, 17, 200, 399):
        [piece] = again.reader.read(offset, bytes_max=1, offset_max=400)
        assert b"%d ." % offset in piece.read()
    assert first_at_or_after(again, 1100) == (1100, 100)


def test_producers_are_remembered_across_a_crash_without_a_snapshot() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for sequence in range(20):
        append(log, produced(1, sequence))
    log.sync_all()
    again = reopen(disk, SMALL)
    assert isinstance(again.producers.check(produced(1, 17)), Duplicate)


def test_producers_are_remembered_when_the_newest_snapshot_has_decayed() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for sequence in range(20):
        append(log, produced(1, sequence))
    mark = log.close()
    newest = max(name for name in disk.listdir(DIRECTORY) if name.endswith(".producers"))
    disk.damage(f"{DIRECTORY}/{newest}", flip(30))
    again = reopen(disk, SMALL, mark)
    assert isinstance(again.producers.check(produced(1, 19)), Duplicate)


def test_a_decayed_aborted_transaction_before_the_recovery_point_is_derived_again_from_the_log() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    append(log, produced(1, 0, transactional=True), marker(1, commit=False))
    log.roll()
    fill(log, 1)
    mark = log.close()
    disk.damage(f"{FIRST}.txn", flip(5))
    again = reopen(disk, SMALL, mark)
    assert again.reader.aborted_transactions(0, 10) == log.reader.aborted_transactions(0, 10) != []
    [finding] = again.recovery.findings
    assert (finding.severity, finding.path) == (Severity.WARNING, f"{FIRST}.txn")


def test_a_duplicated_segment_does_not_make_records_appear_twice() -> None:
    disk, log = synced(20, SMALL)
    copy = disk.contents(log.segments[0].path)
    stranger = f"{DIRECTORY}/{20:020d}.log"
    disk.open(stranger, create=True).write([copy], 0)
    disk.syncfs("/")
    again = reopen(disk, SMALL)
    assert offsets_in(again) == list(range(20))
    assert any(cut.path == stranger for cut in again.recovery.cuts) or disk.exists(stranger)


def test_files_that_are_not_ours_are_reported_and_left_alone() -> None:
    disk, _ = synced(1)
    disk.open(f"{DIRECTORY}/notes.txt", create=True).write([b"mine"], 0)
    disk.syncfs("/")
    again = reopen(disk)
    assert [finding.path for finding in again.recovery.findings] == [f"{DIRECTORY}/notes.txt"]
    assert disk.contents(f"{DIRECTORY}/notes.txt") == b"mine"


def test_a_lost_checkpoint_lets_compacted_gaps_stand() -> None:
    disk, log = synced(3)
    for path in list(disk.list_files(DIRECTORY)):
        if path.endswith(".index"):
            disk.unlink(f"{DIRECTORY}/{path}")
    [second] = log.reader.read(1, bytes_max=1, offset_max=3)
    disk.damage(
        f"{FIRST}.log", lambda content: content.__delitem__(slice(second.position, second.position + second.size))
    )
    disk.crash(0)
    again = PartitionLog.open(disk, DIRECTORY, ONE_SEGMENT, known=Known(mark_lost=True))
    assert offsets_in(again) == [0, 2]


def test_a_valid_index_of_another_log_is_noticed_and_rebuilt() -> None:
    disk, log = synced(400, LogConfig(index_interval_bytes=100))
    mark = log.close()
    other = SimulatedDisk()
    stranger = new_log(other, LogConfig(index_interval_bytes=100))
    fill(stranger, 400, size=40)
    stranger.close()
    foreign = other.contents(f"{FIRST}.index")
    disk.damage(f"{FIRST}.index", lambda content: content.__setitem__(slice(None), foreign))
    again = reopen(disk, LogConfig(index_interval_bytes=100), mark)
    for offset in (0, 100, 399):
        [piece] = again.reader.read(offset, bytes_max=1, offset_max=400)
        assert b"%d ." % offset in piece.read()


def test_a_corrupt_header_is_told_with_its_place_and_what_lies_before_it_is_served() -> None:
    disk, log = synced(60, SMALL)
    mark = log.close()
    second = log.segments[1]
    offset = second.base_offset + 2
    [piece] = log.reader.read(offset, bytes_max=1, offset_max=60)
    disk.damage(second.path, flip(piece.position + 16))
    disk.unlink(second.index.path)
    disk.syncfs("/")
    again = reopen(disk, SMALL, mark)
    for _ in range(2):
        with pytest.raises(CorruptLog) as caught:
            again.reader.read(offset, bytes_max=1, offset_max=60)
        assert (caught.value.path, caught.value.position) == (second.path, piece.position)
    assert again.reader.read(second.base_offset, bytes_max=1, offset_max=60)
    assert again.reader.read(offset + 10, bytes_max=1, offset_max=60)
    assert again.segments[1].size == second.size


def test_a_snapshot_of_producers_whose_records_were_cut_is_not_believed_later() -> None:
    disk, log = synced(1)
    size = log.segments[0].size
    append(log, produced(7, 0))
    log.prepare_checkpoint().written()  # the power fails before the sync, and takes the record but not the snapshot
    disk.kill()
    disk.damage(f"{FIRST}.log", lambda content: content.__delitem__(slice(size, None)))
    log = PartitionLog.open(disk, DIRECTORY, ONE_SEGMENT, known=Known(flushed_end=Offset(1)))
    assert log.end_offset == 1
    fill(log, 2)
    log.sync_all()
    disk.kill()
    again = PartitionLog.open(disk, DIRECTORY, ONE_SEGMENT, known=Known(mark_lost=True))
    assert not isinstance(again.producers.check(produced(7, 0)), Duplicate)


@pytest.mark.parametrize("many", [True, False])
def test_many_producers_are_read_when_the_log_is_opened_and_few_when_somebody_asks(
    many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk()
    log = new_log(disk)
    for number in range(5):
        append(log, produced(number, 0))
    mark = log.close()
    if many:
        monkeypatch.setattr(opening, "SNAPSHOT_BYTES_LATER_MAX", 100)
    decoded: list[int] = []
    decode = producer_snapshots.decode_snapshot

    def counted(data: bytes) -> tuple[ProducerStates, Offset] | None:
        decoded.append(len(data))
        return decode(data)

    monkeypatch.setattr(producer_snapshots, "decode_snapshot", counted)
    log = PartitionLog.open(disk, DIRECTORY, SMALL, known=Known(mark=mark))
    assert len(decoded) == many
    assert sorted(log.producers.ids()) == [0, 1, 2, 3, 4]
    assert len(decoded) == 1


def test_a_snapshot_of_many_producers_that_cannot_be_read_does_not_refuse_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "SNAPSHOT_BYTES_LATER_MAX", 100)
    disk = SimulatedDisk()
    log = new_log(disk)
    append(log, *(produced(number, 0) for number in range(5)))
    mark = log.close()
    disk.fail_next("open", errno.EMFILE, ".producers")
    log = PartitionLog.open(disk, DIRECTORY, SMALL, known=Known(mark=mark))
    assert sorted(log.producers.ids()) == [0, 1, 2, 3, 4]
