"""Duplicates, gaps, zombies and transactions, by Kafka's rules."""

from __future__ import annotations

import pytest

from headrace.batch import SEQUENCE_MAX, Batch
from headrace.log.errors import InvalidProducerEpoch, InvalidTransactionState, OutOfOrderSequence
from headrace.log.producer_snapshots import decode_snapshot, encode_snapshot
from headrace.log.producers import NEW_BATCH, AbortedTransaction, Duplicate, ProducerStates
from tests.unit.log.builders import marker, plain, produced, summaries


class Partition:
    """A log without a disk: checks, stamps, applies."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0

    def write(self, batch: Batch) -> AbortedTransaction | None:
        if not batch.is_control:
            assert self.states.check(batch) is NEW_BATCH
        batch.base_offset = self.end
        self.end = batch.next_offset
        return self.states.apply(batch)


def test_any_of_the_last_five_batches_is_answered_with_its_first_offset() -> None:
    partition = Partition()
    for sequence in range(0, 14, 2):
        partition.write(produced(1, sequence, count=2))
    for sequence in range(4, 14, 2):
        answer = partition.states.check(produced(1, sequence, count=2))
        assert answer == Duplicate(sequence, sequence + 1, 1000)


def test_a_retry_older_than_five_batches_is_out_of_order() -> None:
    partition = Partition()
    for sequence in range(6):
        partition.write(produced(1, sequence))
    with pytest.raises(OutOfOrderSequence):
        partition.states.check(produced(1, 0))


def test_a_gap_names_the_sequence_that_was_expected() -> None:
    partition = Partition()
    partition.write(produced(1, 0, count=3))
    with pytest.raises(OutOfOrderSequence) as caught:
        partition.states.check(produced(1, 4))
    assert (caught.value.sequence, caught.value.expected) == (4, 3)


def test_half_of_a_batch_is_no_duplicate() -> None:
    partition = Partition()
    partition.write(produced(1, 0, count=2))
    with pytest.raises(OutOfOrderSequence):
        partition.states.check(produced(1, 0, count=1))


def test_sequences_wrap_behind_the_largest() -> None:
    partition = Partition()
    partition.write(produced(1, SEQUENCE_MAX - 1, count=2))
    partition.write(produced(1, 0))
    with pytest.raises(OutOfOrderSequence):
        partition.states.check(produced(1, 2))


def test_a_producer_nobody_remembers_may_start_anywhere() -> None:
    assert ProducerStates().check(produced(1, 17)) is NEW_BATCH


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    partition = Partition()
    partition.write(produced(1, 0, epoch=3))
    with pytest.raises(InvalidProducerEpoch):
        partition.states.check(produced(1, 1, epoch=2))
    with pytest.raises(OutOfOrderSequence):
        partition.states.check(produced(1, 1, epoch=4))
    partition.write(produced(1, 0, epoch=4))
    with pytest.raises(InvalidProducerEpoch):
        partition.states.check(produced(1, 0, epoch=3))


def test_a_batch_of_a_new_epoch_is_no_retry_of_one_with_its_sequences_from_before() -> None:
    partition = Partition()
    for sequence in (0, 2):
        partition.write(produced(1, sequence, count=2))
    partition.write(produced(1, 0, epoch=1, count=2))
    assert partition.states.check(produced(1, 2, epoch=1, count=2)) is NEW_BATCH
    assert partition.states.check(produced(1, 0, epoch=1, count=2)) == Duplicate(4, 5, 1000)


def test_batches_without_a_producer_are_always_fresh() -> None:
    assert ProducerStates().check(plain(b"a")) is NEW_BATCH


def test_a_plain_batch_may_not_join_its_producers_open_transaction() -> None:
    partition = Partition()
    partition.write(produced(1, 0, transactional=True))
    with pytest.raises(InvalidTransactionState):
        partition.states.check(produced(1, 1))


def test_an_abort_tells_where_the_transaction_was_and_how_far_is_stable() -> None:
    partition = Partition()
    partition.write(produced(1, 0, transactional=True))
    partition.write(produced(2, 0, transactional=True))
    assert partition.write(marker(2, commit=False)) == AbortedTransaction(2, 1, 2, 0)
    assert partition.write(marker(1, commit=False)) == AbortedTransaction(1, 0, 3, 4)
    assert partition.states.open_transactions() == {}


@pytest.mark.parametrize("commit", [True, False])
def test_a_batch_with_the_sequences_of_an_ended_transaction_is_no_retry(commit: bool) -> None:
    """librdkafka gives up a batch when the connection breaks, and gives its sequences to the next transaction."""
    partition = Partition()
    partition.write(produced(1, 0, count=2, transactional=True))
    given_up = produced(1, 2, count=2, transactional=True)
    partition.write(given_up)
    assert isinstance(partition.states.check(given_up), Duplicate)
    partition.write(marker(1, commit=commit))
    restored = decode_snapshot(encode_snapshot(partition.states.freeze(), partition.end))
    assert restored is not None
    for states in (partition.states, restored[0]):
        for sequence in (0, 2):
            with pytest.raises(OutOfOrderSequence):
                states.check(produced(1, sequence, count=2, transactional=True))
        assert states.check(produced(1, 4, transactional=True)) is NEW_BATCH
        assert states.last_batch_offsets() == {1: 2}


def test_a_commit_aborts_nothing() -> None:
    partition = Partition()
    partition.write(produced(1, 0, transactional=True))
    assert partition.write(marker(1, commit=True)) is None


def test_a_marker_with_a_bumped_epoch_makes_the_producer_begin_at_zero() -> None:
    partition = Partition()
    partition.write(produced(1, 0, count=3, transactional=True))
    partition.write(marker(1, commit=True, epoch=1))
    with pytest.raises(InvalidProducerEpoch):
        partition.states.check(produced(1, 3, transactional=True))
    with pytest.raises(OutOfOrderSequence):
        partition.states.check(produced(1, 3, epoch=1, transactional=True))
    assert partition.states.check(produced(1, 0, epoch=1, transactional=True)) is NEW_BATCH


def test_idle_producers_are_forgotten_unless_a_transaction_is_open() -> None:
    partition = Partition()
    partition.write(produced(1, 0))
    partition.write(produced(2, 0, transactional=True))
    assert partition.states.expire(1000 + 999, 1000) == 0
    assert partition.states.expire(1000 + 1000, 1000) == 1
    assert 1 not in partition.states
    assert 2 in partition.states


def test_a_snapshot_brings_everything_back() -> None:
    partition = Partition()
    for sequence in range(7):
        partition.write(produced(1, sequence))
    partition.write(produced(2, 0, transactional=True))
    partition.write(produced(3, 0, transactional=True))
    partition.write(marker(3, commit=True, coordinator_epoch=2))
    restored = decode_snapshot(encode_snapshot(partition.states.freeze(), partition.end))
    assert restored is not None
    states, offset = restored
    assert offset == partition.end
    assert summaries(states) == summaries(partition.states)
    assert states.open_transactions() == partition.states.open_transactions()
    assert isinstance(states.check(produced(1, 3)), Duplicate)


def test_a_snapshot_with_any_byte_changed_is_not_believed() -> None:
    partition = Partition()
    partition.write(produced(1, 0))
    data = encode_snapshot(partition.states.freeze(), 1)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert decode_snapshot(bytes(damaged)) is None


def test_a_snapshot_has_exactly_these_bytes() -> None:
    partition = Partition()
    partition.write(produced(9, 0, transactional=True))
    assert encode_snapshot(partition.states.freeze(), 0x0102) == b"headrace-producers 2 0879874d\n" + bytes.fromhex(
        "0201000000000000 01000000"
        "0900000000000000 0000 ffffffff e803000000000000 0000000000000000 01"
        "00000000 00000000 0000000000000000 0000000000000000 e803000000000000"
    )


def test_what_is_frozen_stays_as_it_was_while_producers_go_on() -> None:
    partition = Partition()
    for producer_id in range(3):
        partition.write(produced(producer_id, 0, transactional=True))
    frozen = partition.states.freeze()
    before = encode_snapshot(frozen, partition.end)
    partition.write(produced(0, 1, transactional=True))
    partition.write(marker(1, commit=True, coordinator_epoch=3))
    partition.write(produced(7, 0))
    partition.states.expire(10**15, 1)
    assert encode_snapshot(frozen, 3) == before
    assert partition.states.open_transactions().keys() == {0, 2}
    assert encode_snapshot(partition.states.freeze(), partition.end) != before


def test_freezing_many_producers_copies_none_of_them() -> None:
    partition = Partition()
    for producer_id in range(100):
        partition.write(produced(producer_id, 0))
    frozen = partition.states.freeze()
    partition.write(produced(5, 1))
    changed = [number for number, each in partition.states._producers.items() if frozen._producers[number] is not each]
    assert changed == [5]
