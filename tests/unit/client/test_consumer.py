"""Reading: positions, what happens when they are gone, transactions, and answers that end inside a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import Batch, CorruptBatch, build_batch, control_batch, stamp
from headrace.client import (
    Admin,
    Client,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    Producer,
    ProducerOptions,
    TopicPartition,
    fetch_batches,
)
from headrace.client import offsets as offsets_module
from headrace.client.consumer import committed_batches
from headrace.client.fetch import Fetched, split_batches
from headrace.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAt, list_offsets
from headrace.errors import ErrorCode, KafkaError
from headrace.record import Codec, Record
from tests.waiting import eventually

MakeTopic = Callable[..., list[TopicPartition]]
HERE = TopicPartition("t", 0)


def produce(client: Client, partition: TopicPartition, count: int) -> None:
    with Producer(client, ProducerOptions(linger_ms=60_000)) as producer:
        for index in range(count):
            producer.send(partition.topic, b"%d" % index, partition=partition.partition, timestamp=1000 + index)


def batch_at(offset: int, count: int = 2, *, producer_id: int = -1, transactional: bool = False) -> Batch:
    records = [Record(key=None, value=b"v%d" % (offset + n), timestamp=1) for n in range(count)]
    batch = build_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=transactional
    )
    stamp(batch, offset, 0)
    return batch


def marker_at(offset: int, *, commit: bool, producer_id: int) -> Batch:
    batch = control_batch(commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1)
    stamp(batch, offset, 0)
    return batch


def test_a_position_inside_a_batch_gives_the_records_from_there_on(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    produce(client, partition, 10)
    consumer = Consumer(client)
    consumer.assign({partition: 7})
    polled = consumer.poll(60_000)
    assert [each.offset for each in polled[partition]] == [7, 8, 9]
    assert consumer.positions == {partition: 10}
    assert consumer.at_end()


def test_polling_at_the_end_returns_nothing_in_the_given_time(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    consumer = Consumer(client)
    consumer.assign({partition: 0})
    assert consumer.poll(20) == {}
    assert consumer.at_end()
    consumer.assign({})
    assert consumer.poll(1) == {}


def test_every_partition_gets_its_turn_although_one_could_fill_every_answer(
    client: Client, make_topic: MakeTopic
) -> None:
    partitions = make_topic(3)
    for partition in partitions:
        produce(client, partition, 200)
    consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(bytes_max=1, partition_bytes_max=1)))
    consumer.assign(dict.fromkeys(partitions, 0))
    seen = set()
    for _ in range(3):
        seen.update(consumer.poll(60_000))
    assert seen == set(partitions)


def test_a_partition_that_fails_is_looked_for_again_while_others_have_records(
    client: Client, bootstrap: str, make_topic: MakeTopic
) -> None:
    (replaced,), (busy,) = make_topic(), make_topic()
    for index in range(20):
        produce(client, busy, index + 1)
    client.topic_id(replaced.topic)
    with Client(bootstrap) as other:
        Admin(other).delete_topic(replaced.topic)
        Admin(other).create_topic(replaced.topic, partitions=1)
        produce(other, replaced, 1)
    consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(partition_bytes_max=1)))
    consumer.assign({replaced: 0, busy: 0})
    polls = [consumer.poll(60_000) for _ in range(5)]
    assert busy in polls[0]
    assert any(replaced in polled for polled in polls)
    assert all(polls), "there was always something to give"


def test_a_lost_position_is_an_error_with_the_numbers(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    produce(client, partition, 10)
    Admin(client).delete_records({partition: 5})
    consumer = Consumer(client)
    consumer.assign({partition: 2})
    with pytest.raises(KafkaError, match=r"offset 2 of .* is outside the log") as caught:
        consumer.poll(60_000)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_batch_that_cannot_be_decoded_takes_nothing_from_what_came_with_it(
    client: Client, make_topic: MakeTopic
) -> None:
    partitions = make_topic(3)
    for partition in partitions:
        produce(client, partition, 10)
    bomb = partitions[1]
    with Producer(client, ProducerOptions(codec=Codec.GZIP)) as producer:
        producer.send(bomb.topic, bytes(100_000), partition=bomb.partition, timestamp=1010)
    produce(client, bomb, 1)
    consumer = Consumer(client, ConsumerOptions(decompressed_bytes_max=10_000))
    consumer.assign(dict.fromkeys(partitions, 0))
    seen: dict[TopicPartition, list[int]] = {partition: [] for partition in partitions}
    with pytest.raises(KafkaError, match="10000 bytes"):
        for _ in range(10):
            for partition, records in consumer.poll(60_000).items():
                seen[partition] += [each.offset for each in records]
    assert seen == {partition: list(range(10)) for partition in partitions}
    assert consumer.positions == dict.fromkeys(partitions, 10)


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [5, 6, 7, 8, 9]), ("latest", [])])
def test_a_lost_position_moves_as_reset_says(
    client: Client, make_topic: MakeTopic, reset: str, expected: list[int]
) -> None:
    (partition,) = make_topic()
    produce(client, partition, 10)
    Admin(client).delete_records({partition: 5})
    consumer = Consumer(client, ConsumerOptions(reset=reset))  # type: ignore[arg-type]
    consumer.assign({partition: 2})
    found: list[int] = []

    def polled() -> int:
        found.extend(each.offset for each in consumer.poll(20).get(partition, []))
        return consumer.positions[partition]

    eventually(polled, lambda position: position == 10)
    assert found == expected


def test_offsets_are_found_by_time(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    produce(client, partition, 10)
    asked = {EARLIEST: OffsetAt(0), LATEST: OffsetAt(10), MAX_TIMESTAMP: OffsetAt(9, 1009), 1004: OffsetAt(4, 1004)}
    for timestamp, expected in asked.items():
        assert list_offsets(client, {partition: timestamp}) == {partition: expected}
    assert list_offsets(client, {partition: 99_999})[partition].offset == -1


def test_more_partitions_than_a_broker_takes_in_one_request_are_asked_for_in_several(
    client: Client, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = make_topic(5)
    for partition in partitions:
        produce(client, partition, 1 + partition.partition)
    sizes: list[int] = []
    send = client.send

    def counted(node: int, request: Any, answer: Any) -> Any:
        sizes.append(sum(len(topic.partitions) for topic in request.topics))
        return send(node, request, answer)

    monkeypatch.setattr(client, "send", counted)
    monkeypatch.setattr(offsets_module, "PARTITIONS_PER_REQUEST", 2)
    found = list_offsets(client, dict.fromkeys(partitions, LATEST))
    assert {place.partition: at.offset for place, at in found.items()} == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5}
    assert sizes == [2, 2, 1]


def test_raw_batches_come_as_they_were_sent(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    produce(client, partition, 10)
    (found,) = fetch_batches(client, {partition: 0}, wait_ms=1000, options=FetchOptions())
    assert found.error is None
    assert [(each.base_offset, each.record_count) for each in found.batches] == [(0, 10)]
    assert (found.log_start_offset, found.high_watermark) == (0, 10)


# ---- transactions, on batches made here -----------------------------------------------------------------------------


def kept_offsets(batches: list[Batch], aborted: list[tuple[int, int]]) -> list[int]:
    return [each.base_offset for each in committed_batches(Fetched(partition=HERE, batches=batches, aborted=aborted))]


def test_an_aborted_transaction_is_left_out_up_to_its_marker() -> None:
    batches = [
        batch_at(0, producer_id=7, transactional=True),
        batch_at(2),
        batch_at(4, producer_id=8, transactional=True),
        marker_at(6, commit=False, producer_id=7),
        batch_at(7, producer_id=7, transactional=True),
        marker_at(9, commit=True, producer_id=7),
        marker_at(10, commit=True, producer_id=8),
    ]
    assert kept_offsets(batches, [(7, 0)]) == [2, 4, 7]


def test_two_aborted_transactions_of_one_producer_are_both_left_out() -> None:
    batches = [
        batch_at(0, producer_id=7, transactional=True),
        marker_at(2, commit=False, producer_id=7),
        batch_at(3, producer_id=7, transactional=True),
        marker_at(5, commit=False, producer_id=7),
        batch_at(6, producer_id=7, transactional=True),
    ]
    assert kept_offsets(batches, [(7, 0), (7, 3)]) == [6]


def test_an_aborted_transaction_that_began_before_the_fetch_is_left_out_from_the_start() -> None:
    batches = [batch_at(50, producer_id=7, transactional=True), marker_at(52, commit=False, producer_id=7)]
    assert kept_offsets(batches, [(7, 3)]) == []


def test_a_batch_that_is_not_transactional_is_kept_although_its_producer_aborts() -> None:
    assert kept_offsets([batch_at(0, producer_id=7)], [(7, 0)]) == [0]


# ---- answers that end anywhere --------------------------------------------------------------------------------------

WHOLE = batch_at(0, 3).data + batch_at(3, 1).data


@given(st.integers(0, len(WHOLE)))
def test_however_an_answer_is_cut_the_whole_batches_in_front_are_found(size: int) -> None:
    first = len(batch_at(0, 3).data)
    expected = [] if size < first else [0] if size < len(WHOLE) else [0, 3]
    assert [each.base_offset for each in split_batches(WHOLE[:size])] == expected


def test_a_batch_that_was_changed_on_the_way_is_refused() -> None:
    data = bytearray(WHOLE)
    data[-1] ^= 1
    whole = split_batches(data)
    assert [each.base_offset for each in whole] == [0], "what comes before it is whole"
    with pytest.raises(CorruptBatch, match="offset 3 arrived with a wrong checksum"):
        split_batches(data[len(whole[0].data) :])
    assert len(split_batches(data, check_crc=False)) == 2


def test_an_old_message_format_is_refused_and_not_skipped() -> None:
    data = bytearray(WHOLE)
    data[16] = 1
    with pytest.raises(CorruptBatch, match="not a record batch of format 2"):
        split_batches(data)
