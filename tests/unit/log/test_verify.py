"""Dump and verify: everything wrong is reported with file and position, and nothing is changed."""

from __future__ import annotations

import pytest

from headrace.log.compaction.cleaner import clean
from headrace.log.compaction.planning import plan
from headrace.log.dump import BadBytes, StoredBatch, walk_directory
from headrace.log.findings import Severity
from headrace.log.log import PartitionLog
from headrace.log.opening import Known
from headrace.log.verify import verify_log
from headrace.testing.disk import SimulatedDisk
from headrace.vocabulary import Offset
from tests.unit.log.builders import DIRECTORY, SMALL, append, fill, marker, new_log, plain, produced, swap_in
from tests.unit.log.test_damage import COMPACT


def healthy() -> tuple[SimulatedDisk, PartitionLog]:
    disk = SimulatedDisk()
    log = PartitionLog.open(disk, DIRECTORY, SMALL)
    fill(log, 12)
    for sequence in range(3):
        append(log, produced(1, sequence, transactional=True))
        append(log, marker(1, commit=sequence == 1))
    fill(log, 12)
    log.close()
    return disk, log


def test_a_healthy_log_has_no_problems() -> None:
    disk, _ = healthy()
    assert verify_log(disk, DIRECTORY) == []


def test_a_dump_walks_every_batch_in_order() -> None:
    disk, log = healthy()
    found = list(walk_directory(disk, DIRECTORY))
    assert all(isinstance(each, StoredBatch) and each.checksum_holds for each in found)
    assert [each.batch.base_offset for each in found if isinstance(each, StoredBatch)] == list(range(log.end_offset))


@pytest.mark.parametrize("position", [3, 10, 16, 18, 25, 70, 150])
def test_a_flipped_bit_is_told_with_its_batchs_position(position: int) -> None:
    disk, log = healthy()
    path = log.segments[1].path
    disk.damage(path, lambda content: content.__setitem__(position, content[position] ^ 0x20))
    [first, *_] = verify_log(disk, DIRECTORY)
    assert first.severity is Severity.ERROR
    assert (first.path, first.position) == (path, 0)


def test_a_torn_end_is_told() -> None:
    disk, log = healthy()
    path = log.segments[-1].path
    disk.damage(path, lambda content: content.__delitem__(slice(-5, None)))
    last = list(walk_directory(disk, DIRECTORY))[-1]
    assert isinstance(last, BadBytes)
    assert any(problem.position == last.position for problem in verify_log(disk, DIRECTORY))


def test_swapped_segments_are_told() -> None:
    disk, log = healthy()
    first, second = log.segments[0].path, log.segments[1].path
    contents = disk.contents(first), disk.contents(second)
    disk.damage(first, lambda content: content.__setitem__(slice(None), contents[1]))
    disk.damage(second, lambda content: content.__setitem__(slice(None), contents[0]))
    assert any("offset" in problem.message for problem in verify_log(disk, DIRECTORY))


def test_a_wrong_index_is_a_warning() -> None:
    disk, log = healthy()
    disk.damage(log.segments[0].index.path, lambda content: content.__setitem__(100, content[100] ^ 1))
    problems = verify_log(disk, DIRECTORY)
    assert problems
    assert all(problem.severity is Severity.WARNING for problem in problems)


def test_a_missing_aborted_transaction_is_told() -> None:
    disk, _ = healthy()
    [name] = [name for name in disk.listdir(DIRECTORY) if name.endswith(".txn")][:1]
    disk.unlink(f"{DIRECTORY}/{name}")
    [problem] = verify_log(disk, DIRECTORY)
    assert (problem.path, problem.severity) == (f"{DIRECTORY}/{name}", Severity.WARNING)
    assert "derived again" in problem.message


def test_a_gap_in_a_producers_sequences_is_told() -> None:
    disk = SimulatedDisk()
    log = PartitionLog.open(disk, DIRECTORY, SMALL)
    append(log, produced(1, 0))
    append(log, produced(1, 5))
    append(log, plain(b"x"))
    [problem] = verify_log(disk, DIRECTORY)
    assert "sequence 5 where 1 was expected" in problem.message


def test_the_sequence_gaps_that_compaction_leaves_are_no_problem() -> None:
    disk = SimulatedDisk()
    log = new_log(disk, COMPACT)
    for sequence in range(30):
        append(log, produced(1, sequence, key=b"a"))
        append(log, plain(b"x" * 60, key=b"%d" % (sequence % 3)))
    log.checkpointed(log.prepare_checkpoint().written())
    log.sync_all()
    job = plan(log, 5000, token="t")
    assert job is not None
    swap_in(log, clean(disk, job))
    log.close()
    assert len(list(log.reader.batches(Offset(0)))) < 50, "something was removed"
    assert verify_log(disk, DIRECTORY) == []


@pytest.mark.parametrize("byte", [5, 14], ids=["offset", "leader epoch"])
def test_a_changed_offset_or_epoch_in_the_last_segment_is_an_error(byte: int) -> None:
    disk, log = healthy()
    last = log.segments[-1]
    disk.damage(last.path, lambda content: content.__setitem__(byte, content[byte] ^ 1))
    known = Known(mark=log.mark, flushed_end=log.end_offset)
    assert Severity.ERROR in {finding.severity for finding in verify_log(disk, DIRECTORY, known)}


def test_a_torn_end_after_what_was_flushed_is_only_told() -> None:
    disk, log = healthy()
    disk.damage(log.segments[-1].path, lambda content: content.extend(b"torn"))
    known = Known(mark=log.mark, flushed_end=log.end_offset)
    assert [finding.severity for finding in verify_log(disk, DIRECTORY, known)] == [Severity.INFO]


def test_verifying_changes_nothing() -> None:
    disk, log = healthy()
    disk.damage(log.segments[0].index.path, lambda content: content.__setitem__(100, content[100] ^ 1))
    before = {name: disk.contents(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)}
    verify_log(disk, DIRECTORY)
    assert {name: disk.contents(f"{DIRECTORY}/{name}") for name in disk.listdir(DIRECTORY)} == before
