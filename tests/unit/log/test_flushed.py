"""How far logs were flushed: a lost end is refused, a torn write is cut, and nothing is claimed early."""

from __future__ import annotations

import errno
from collections.abc import Callable
from uuid import UUID

import pytest

from headrace.log.errors import CorruptLog
from headrace.log.findings import Severity
from headrace.log.flushed import SLOT_BYTES, FlushedEnds, decode_slots, name_digest
from headrace.log.log import PartitionLog
from headrace.log.store import LogStore
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
from tests.flushing import FlusherByHand
from tests.unit.log.builders import SMALL, fill, group, offsets_in, open_log

ID = UUID(int=5)
PATH = "/data/flushed"


def opened(disk: SimulatedDisk) -> tuple[LogStore, PartitionLog, FlusherByHand]:
    store = LogStore.open(disk, "/data")
    return store, open_log(store, "t", ID, 0, SMALL), FlusherByHand(disk, "/data", note=store.note_flushed)


def acknowledged(count: int) -> tuple[SimulatedDisk, str, list[int]]:
    """A log with so many flushed records, whose broker was killed: its file, and where each batch begins in it."""
    disk = SimulatedDisk()
    _, log, flusher = opened(disk)
    fill(log, count)
    flusher.flush([log])
    end = log.end_offset
    pieces = [log.reader.read(Offset(offset), bytes_max=1, offset_max=end)[0] for offset in range(count)]
    disk.kill()
    return disk, log.segments[-1].path, [piece.position for piece in pieces]


def cut_at(position: int) -> Callable[[bytearray], None]:
    return lambda content: content.__delitem__(slice(position, None))


def test_a_log_cut_between_two_batches_is_refused_with_the_offsets_that_are_missing() -> None:
    disk, path, starts = acknowledged(3)
    for number, position in reversed(list(enumerate(starts))):
        disk.damage(path, cut_at(position))
        store = LogStore.open(disk, "/data")
        with pytest.raises(CorruptLog, match=f"offsets {number} to 2 were flushed and are not here") as caught:
            open_log(store, "t", ID, 0, SMALL)
        assert (caught.value.path, caught.value.position) == (path, position)
        assert [finding.severity for finding in store.report.findings] == [Severity.ERROR]
        disk.kill()


def test_a_flipped_bit_in_a_flushed_batch_is_refused_and_nothing_is_cut() -> None:
    disk, path, starts = acknowledged(3)
    position = starts[1] + 70
    disk.damage(path, lambda content: content.__setitem__(position, content[position] ^ 1))
    before = disk.contents(path)
    with pytest.raises(CorruptLog, match="offsets 1 to 2 were flushed"):
        open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL)
    assert disk.contents(path) == before
    assert not [name for name in disk.listdir(path.rpartition("/")[0]) if ".cut-" in name]


def test_a_directory_that_is_gone_is_refused() -> None:
    disk, path, _ = acknowledged(3)
    disk.rename("/data/topics", "/elsewhere")
    with pytest.raises(CorruptLog, match="offsets 0 to 2 were here and are gone") as caught:
        open_log(LogStore.open(disk, "/data"), "t", ID, 0, SMALL)
    assert caught.value.path == path.rpartition("/")[0]


def test_a_torn_write_after_the_flushed_end_is_cut() -> None:
    disk = SimulatedDisk()
    _, log, flusher = opened(disk)
    fill(log, 3)
    flusher.flush([log])
    fill(log, 1)
    disk.kill()
    disk.damage(log.segments[-1].path, cut_at(log.segments[-1].size - 1))
    store, again, _ = opened(disk)
    assert offsets_in(again) == [0, 1, 2]
    assert [finding.severity for finding in store.report.findings] == [Severity.INFO]


def test_the_end_is_noted_after_the_sync_and_never_before() -> None:
    disk = SimulatedDisk()
    _, log, flusher = opened(disk)
    fill(log, 2)
    assert known_end(disk) is None
    disk.fail_next("datasync", errno.EIO, log.directory)
    with pytest.raises(OSError, match="Input/output error"):
        flusher.flush([log])
    assert known_end(disk) is None


def known_end(disk: SimulatedDisk) -> int | None:
    data = disk.contents(PATH)
    digest = name_digest(f"topics/t~{ID.hex}/0")
    for start in range(0, len(data), SLOT_BYTES):
        if data[start + 8 : start + 24] == digest:
            return int.from_bytes(data[start + 24 : start + 32], "little")
    return None


def test_what_recovery_and_checkpoints_have_synced_is_noted_too() -> None:
    disk = SimulatedDisk()
    store, log, _ = opened(disk)
    fill(log, 2)
    store.checkpoint()
    assert known_end(disk) == 2
    fill(log, 2)
    disk.kill()
    opened(disk)
    assert known_end(disk) == 4
    disk.kill()
    store, log, _ = opened(disk)
    fill(log, 1)
    store.close()
    assert known_end(disk) == 5


def test_a_full_disk_costs_the_note_and_not_the_sync() -> None:
    disk = SimulatedDisk()
    _, log, flusher = opened(disk)
    fill(log, 1)
    disk.fail_next("write", errno.ENOSPC, "flushed")
    flusher.flush([log])
    assert log.flushed_offset == 1
    fill(log, 1)
    flusher.flush([log])
    assert known_end(disk) == 2


def test_a_lost_table_is_reported() -> None:
    disk = SimulatedDisk()
    store, log, _ = opened(disk)
    fill(log, 1)
    store.close()
    disk.unlink(PATH)
    store, _, _ = opened(disk)
    assert [(finding.severity, finding.path) for finding in store.report.findings] == [(Severity.WARNING, PATH)]


@pytest.mark.parametrize("position", [0, 9, 24, 31])
def test_a_damaged_entry_is_reported_and_says_nothing(position: int) -> None:
    disk, _, _ = acknowledged(3)
    disk.damage(PATH, lambda content: content.__setitem__(position, content[position] ^ 0x10))
    store, log, _ = opened(disk)
    assert log.end_offset == 3
    assert [(finding.severity, finding.path) for finding in store.report.findings] == [(Severity.WARNING, PATH)]


def test_an_entry_that_knows_less_than_the_checkpoint_is_reported() -> None:
    disk = SimulatedDisk()
    store, log, _ = opened(disk)
    fill(log, 3)
    store.close()
    disk.damage(PATH, lambda content: content.__setitem__(slice(None), bytes(len(content))))
    store, _, _ = opened(disk)
    assert [(finding.severity, finding.path) for finding in store.report.findings] == [(Severity.WARNING, PATH)]


def test_the_slot_of_a_deleted_topic_is_used_again_and_its_end_is_forgotten() -> None:
    disk = SimulatedDisk()
    store, log, flusher = opened(disk)
    fill(log, 3)
    flusher.flush([log])
    fill(log, 1)
    late = log.take_unsynced()
    assert late is not None
    store.space("topics").forget(group("t", ID))
    store.space("topics").move_deleted(group("t", ID))
    other = open_log(store, "t", UUID(int=6), 0, SMALL)
    fill(other, 1)
    flusher.flush([other])
    store.note_flushed([late])  # its sync was under way when the topic went
    name = f"topics/{group('t', UUID(int=6))}/0"
    assert decode_slots(disk.contents(PATH)) == ({0: (name_digest(name), 1)}, 0)
    disk.kill()
    assert open_log(LogStore.open(disk, "/data"), "t", UUID(int=6), 0, SMALL).end_offset == 1


def test_an_entry_has_exactly_these_bytes() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    ends = FlushedEnds(disk, PATH)
    ends.note([(ends.claim("t~0a/0"), Offset(0x0102030405))])
    assert disk.contents(PATH).hex() == "81ebf0cf0000000073eec1468050167b1b43eb14da8172af0504030201000000"
