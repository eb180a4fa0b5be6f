"""Repairing a damaged log: everything whole stays, what goes is kept beside it, and offsets are not given out again."""

from __future__ import annotations

import random

import pytest

from headrace.batch import Batch
from headrace.log.checkpoint import LogMark
from headrace.log.config import LogConfig
from headrace.log.errors import CorruptLog
from headrace.log.findings import Severity
from headrace.log.log import PartitionLog
from headrace.log.opening import Known
from headrace.log.repair import apply, survey
from headrace.log.verify import verify_log
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
from tests.unit.log.builders import DIRECTORY, SMALL, append, fill, marker, new_log, offsets_in, plain, produced
from tests.unit.log.test_damage import cut_at, flip, starts_in


def stopped(count: int = 20) -> tuple[SimulatedDisk, PartitionLog, Known]:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    fill(log, count)
    known = Known(mark=log.close(), flushed_end=log.end_offset)
    disk.kill()
    return disk, log, known


def repaired(disk: SimulatedDisk, known: Known) -> PartitionLog:
    """The log after its repair, opened as the broker opens it."""
    mark = apply(disk, survey(disk, DIRECTORY, known))
    disk.crash(1)
    known = Known(mark=mark, flushed_end=known.flushed_end)
    assert [each for each in verify_log(disk, DIRECTORY, known) if each.severity is Severity.ERROR] == []
    return PartitionLog.open(disk, DIRECTORY, SMALL, known=known)


def test_a_damaged_batch_is_cut_out_and_everything_around_it_stays() -> None:
    disk, log, known = stopped()
    path = log.segments[1].path
    position = starts_in(disk, path)[2]
    lost = log.segments[1].base_offset + 2
    disk.damage(path, flip(position + 80))
    [hole] = survey(disk, DIRECTORY, known).holes
    assert (hole.path, hole.position, hole.first_offset, hole.next_offset) == (path, position, lost, lost + 1)
    assert (hole.batches, hole.records) == (1, 1)
    again = repaired(disk, known)
    assert offsets_in(again) == [offset for offset in range(20) if offset != lost]
    assert disk.file_size(f"{path}.cut-{position}") == hole.size
    assert append(again, plain(b"next")) == 20


def test_a_log_that_lost_its_end_goes_on_where_it_was_flushed_to() -> None:
    disk, log, known = stopped()
    last = log.segments[-1]
    disk.damage(last.path, cut_at(starts_in(disk, last.path)[2] + 9))
    repair = survey(disk, DIRECTORY, known)
    assert (repair.end_offset, repair.offsets_lost, repair.cut_bytes) == (20, 20 - last.base_offset - 2, 9)
    again = repaired(disk, known)
    assert offsets_in(again) == list(range(last.base_offset + 2))
    assert append(again, plain(b"next")) == 20


@pytest.mark.parametrize("bit", [0x01, 0x40])
@pytest.mark.parametrize("byte", [0, 3, 7, 14])
def test_a_changed_offset_or_epoch_is_put_right_and_nothing_is_lost(byte: int, bit: int) -> None:
    disk, log, known = stopped()
    path = log.segments[1].path
    before = disk.contents(path)
    disk.damage(path, flip(starts_in(disk, path)[2] + byte, bit))
    repair = survey(disk, DIRECTORY, known)
    assert (repair.restored, repair.holes) == (1, [])
    assert offsets_in(repaired(disk, known)) == list(range(20))
    assert disk.contents(path) == before


def test_a_lost_segment_leaves_a_gap() -> None:
    disk, log, known = stopped()
    victim, following = log.segments[1], log.segments[2]
    disk.unlink(victim.path)
    missing = range(victim.base_offset, following.base_offset)
    assert survey(disk, DIRECTORY, known).offsets_lost == len(missing)
    assert offsets_in(repaired(disk, known)) == [offset for offset in range(20) if offset not in missing]


def test_a_lost_beginning_moves_the_start() -> None:
    disk, log, known = stopped()
    disk.unlink(log.segments[0].path)
    second = log.segments[1].base_offset
    again = repaired(disk, known)
    assert again.start_offset == second
    assert offsets_in(again) == list(range(second, 20))


def test_a_log_without_files_begins_where_it_was_flushed_to() -> None:
    disk, _, known = stopped()
    disk.rename(DIRECTORY, "/elsewhere")
    again = repaired(disk, known)
    assert (again.start_offset, again.end_offset) == (20, 20)
    assert append(again, plain(b"next")) == 20


def test_a_survey_changes_nothing() -> None:
    disk, log, known = stopped()
    disk.damage(log.segments[1].path, flip(200))
    before = {name: disk.contents(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)}
    survey(disk, DIRECTORY, known)
    assert {name: disk.contents(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)} == before


@pytest.mark.parametrize("lost", ["the marker", "the marker and what is beside it", "the end of the log"])
def test_a_transaction_whose_end_is_lost_is_taken_for_aborted(lost: str) -> None:
    disk = SimulatedDisk()
    log = new_log(disk, LogConfig(retention_ms=-1))
    append(log, plain(b"before"))
    append(log, produced(1, 0, transactional=True))
    append(log, produced(2, 0, transactional=True))
    append(log, marker(1, commit=False))
    append(log, plain(b"beside"))
    append(log, marker(2, commit=True))
    if lost != "the end of the log":
        append(log, produced(1, 1, transactional=True), marker(1, commit=True))
    known = Known(mark=log.close(), flushed_end=log.end_offset)
    path = log.segments[0].path
    disk.kill()
    starts = starts_in(disk, path)
    if lost == "the marker":
        disk.damage(path, flip(starts[3] + 70))
    elif lost == "the end of the log":
        disk.damage(path, cut_at(starts[3]))
    else:
        disk.damage(
            path, lambda content: content.__setitem__(slice(starts[3], starts[6]), bytes(starts[6] - starts[3]))
        )
    assert survey(disk, DIRECTORY, known).undecided == (1 if lost == "the marker" else 2)
    again = repaired(disk, known)
    aborted = {each.producer_id for each in again.reader.aborted_transactions(Offset(0), again.end_offset)}
    assert aborted == ({1} if lost == "the marker" else {1, 2})
    assert again.last_stable_offset == again.end_offset


def test_a_lost_batch_of_records_decides_no_transaction() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, LogConfig(retention_ms=-1))
    for sequence in range(3):
        append(log, produced(1, sequence, transactional=True))
    append(log, marker(1, commit=True))
    known = Known(mark=log.close(), flushed_end=log.end_offset)
    path = log.segments[0].path
    disk.kill()
    disk.damage(path, flip(starts_in(disk, path)[1] + 70))
    assert survey(disk, DIRECTORY, known).undecided == 0
    assert repaired(disk, known).reader.aborted_transactions(Offset(0), Offset(9)) == []


def test_deleted_records_stay_deleted_through_a_repair() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    fill(log, 20)
    log.sync_all()
    log.delete_records(Offset(7))
    known = Known(mark=log.close(), flushed_end=log.end_offset)
    disk.kill()
    path = log.segments[2].path
    disk.damage(path, flip(starts_in(disk, path)[1] + 90))
    assert repaired(disk, known).start_offset == 7


@pytest.mark.slow
def test_whatever_was_damaged_a_repaired_log_opens_and_holds_what_was_written_and_nothing_else() -> None:
    for seed in range(150):
        chance = random.Random(seed)
        disk, original, known = written(checkpointed=chance.random() < 0.5)
        harm(disk, chance)
        try:
            found = repaired(disk, known)
        except CorruptLog as error:
            raise AssertionError(f"seed {seed}") from error
        for batch in found.reader.batches(found.start_offset):
            assert batch.is_control or original[batch.base_offset].body == batch.body, f"seed {seed}"
        assert found.end_offset == known.flushed_end, f"seed {seed}"


def written(*, checkpointed: bool) -> tuple[SimulatedDisk, dict[int, Batch], Known]:
    disk = SimulatedDisk()
    log = new_log(disk, SMALL)
    for number in range(6):
        fill(log, 4)
        append(log, produced(1, number, transactional=True), marker(1, commit=number % 2 == 0))
    original = {batch.base_offset: batch for batch in log.reader.batches(Offset(0))}
    mark = log.close() if checkpointed else LogMark()
    if not checkpointed:
        log.sync_all()
    disk.kill()
    return disk, original, Known(mark=mark, flushed_end=log.end_offset)


def harm(disk: SimulatedDisk, chance: random.Random) -> None:
    path = f"{DIRECTORY}/{chance.choice(disk.listdir(DIRECTORY))}"
    size = disk.file_size(path)
    kind = chance.choice(["flip", "cut", "delete", "zero", "extend"])
    position = chance.randrange(size) if size else 0
    if kind == "delete":
        disk.unlink(path)
    elif kind == "cut":
        disk.damage(path, cut_at(position))
    elif kind == "extend":
        disk.damage(path, lambda content: content.extend(chance.randbytes(100)))
    elif kind == "zero":
        end = min(size, position + 300)
        disk.damage(path, lambda content: content.__setitem__(slice(position, end), bytes(end - position)))
    elif size:
        disk.damage(path, flip(position, 1 << chance.randrange(8)))
