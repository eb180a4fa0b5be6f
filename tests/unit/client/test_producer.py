"""What a producer promises: everything arrives, once, in order; or it says what did not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace import testing
from headrace.client import (
    Client,
    ClientOptions,
    Consumer,
    Delivery,
    DeliveryFailed,
    Producer,
    ProducerOptions,
    TopicPartition,
    partition_for_key,
    start_offsets,
)
from headrace.client.admin import Admin
from headrace.errors import ErrorCode, KafkaError
from headrace.record import Codec, Record
from tests.unit.client.conftest import PATIENCE
from tests.unit.client.scripted import LossyProxy
from tests.waiting import eventually

MakeTopic = Callable[..., list[TopicPartition]]
PRODUCE = 0


def read_all(client: Client, partitions: list[TopicPartition]) -> dict[TopicPartition, list[Record]]:
    consumer = Consumer(client)
    consumer.assign(start_offsets(client, partitions))
    found: dict[TopicPartition, list[Record]] = {each: [] for each in partitions}
    while True:
        for partition, records in consumer.poll(100).items():
            found[partition] += records
        if consumer.at_end():
            return found


def test_records_arrive_with_key_value_headers_and_time(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    with Producer(client) as producer:
        producer.send(partition.topic, b"value", key=b"key", headers=[("h", b"1"), ("n", None)], timestamp=1234)
        producer.send(partition.topic, None, key=b"gone")
    first, second = read_all(client, [partition])[partition]
    assert (first.key, first.value, first.timestamp, list(first.headers)) == (
        b"key",
        b"value",
        1234,
        [("h", b"1"), ("n", None)],
    )
    assert (second.key, second.value) == (b"gone", None)
    assert (first.offset, second.offset) == (0, 1)


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_can_be_read_back(client: Client, make_topic: MakeTopic, codec: Codec) -> None:
    (partition,) = make_topic()
    with Producer(client, ProducerOptions(codec=codec)) as producer:
        for index in range(500):
            producer.send(partition.topic, b"%d" % index)
    assert [each.value for each in read_all(client, [partition])[partition]] == [b"%d" % n for n in range(500)]


def test_keys_choose_partitions_and_order_holds_within_each(client: Client, make_topic: MakeTopic) -> None:
    partitions = make_topic(4)
    with Producer(client, ProducerOptions(batch_bytes=500)) as producer:
        for index in range(2000):
            producer.send(partitions[0].topic, b"%d" % index, key=b"%d" % (index % 37))
    for partition, records in read_all(client, partitions).items():
        assert records, "37 keys reach all four partitions"
        assert all(partition_for_key(each.key or b"", 4) == partition.partition for each in records)
        numbers = [int(each.value or b"") for each in records]
        assert numbers == sorted(numbers)


def test_records_without_a_key_visit_every_partition_batch_by_batch(client: Client, make_topic: MakeTopic) -> None:
    partitions = make_topic(3)
    with Producer(client, ProducerOptions(batch_bytes=1000, linger_ms=60_000)) as producer:
        for _ in range(600):
            producer.send(partitions[0].topic, b"x" * 20)
    counts = [len(records) for records in read_all(client, partitions).values()]
    assert sum(counts) == 600
    assert min(counts) > 100


def test_deliveries_tell_offsets_and_counts(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    told: list[Delivery] = []
    producer = Producer(client, ProducerOptions(batch_bytes=200, linger_ms=60_000), on_delivery=told.append)
    for _ in range(100):
        producer.send(partition.topic, b"x" * 50)
    producer.flush()
    assert sum(each.count for each in told) == 100
    assert [each.base_offset for each in told] == [sum(each.count for each in told[:n]) for n in range(len(told))]
    assert len(told) > 10


def test_a_record_that_is_too_large_is_refused_by_name_and_the_next_ones_arrive(
    client: Client, make_topic: MakeTopic
) -> None:
    (partition,) = make_topic(max_message_bytes="1000")
    producer = Producer(client)
    producer.send(partition.topic, b"before")
    producer.flush()
    producer.send(partition.topic, b"x" * 5000)
    with pytest.raises(DeliveryFailed, match=r"1 records for .*\[0\] were not delivered") as caught:
        producer.flush()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    producer.send(partition.topic, b"after")
    producer.flush()
    assert [each.value for each in read_all(client, [partition])[partition]] == [b"before", b"after"]


def test_a_failed_batch_is_reported_to_the_callback_too(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic(max_message_bytes="100")
    told: list[Delivery] = []
    producer = Producer(client, on_delivery=told.append)
    producer.send(partition.topic, b"x" * 5000)
    with pytest.raises(DeliveryFailed):
        producer.flush()
    assert [(each.count, each.error.code if each.error else None) for each in told] == [
        (1, ErrorCode.MESSAGE_TOO_LARGE)
    ]


def test_a_topic_that_does_not_exist_fails_the_send(client: Client) -> None:
    with pytest.raises(KafkaError, match="never-made"):
        Producer(client, ProducerOptions(create_topics=False)).send("never-made", b"x")


@pytest.mark.parametrize("partition", [None, 0])
def test_a_missing_topic_is_made_where_the_broker_allows_it(partition: int | None) -> None:
    with testing.broker() as broker, Client(broker.bootstrap, PATIENCE) as client:
        with Producer(client) as producer:
            producer.send("new", b"x", partition=partition)
        assert len(read_all(client, [TopicPartition("new", 0)])[TopicPartition("new", 0)]) == 1


def test_with_acks_0_nobody_answers_and_the_records_arrive_all_the_same(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    told: list[Delivery] = []
    producer = Producer(client, ProducerOptions(acks=0, linger_ms=60_000), on_delivery=told.append)
    for index in range(10):
        producer.send(partition.topic, b"%d" % index)
    producer.flush()
    assert [(each.base_offset, each.count) for each in told] == [(-1, 10)]
    # Nobody says when the records are flushed, and before that no reader sees them.
    eventually(lambda: len(read_all(client, [partition])[partition]), lambda count: count == 10)


@pytest.mark.parametrize("lost_every", [2, 3])
def test_answers_that_get_lost_make_no_duplicates_and_no_gaps(lost_every: int) -> None:
    """The broker appended the batch and its answer was lost: the resent batch is recognised by its sequence."""
    produced = 0

    def loses(api_key: int) -> bool:
        nonlocal produced
        produced += api_key == PRODUCE
        return api_key == PRODUCE and produced % lost_every == 0

    with LossyProxy(loses) as proxy, testing.broker(settings={"advertised.kafka": proxy.address}) as broker:
        proxy.upstream = broker.host, broker.port
        options = ClientOptions(retry_pause_ms=1, retry_pause_ms_max=5)
        with Client(proxy.address, options) as client:
            Admin(client).create_topic("lossy", partitions=2)
            with Producer(client, ProducerOptions(batch_bytes=300, linger_ms=60_000)) as producer:
                for index in range(600):
                    producer.send("lossy", b"%06d" % index, partition=index % 2)
        assert proxy.lost > 5
        with Client(broker.bootstrap, PATIENCE) as direct:
            direct._cluster.brokers.clear()
            partitions = [TopicPartition("lossy", 0), TopicPartition("lossy", 1)]
            proxy.loses = lambda _: False
            found = read_all(direct, partitions)
    for partition in partitions:
        assert [int(each.value or b"") for each in found[partition]] == list(range(partition.partition, 600, 2))


def test_a_batch_that_never_gets_through_is_given_up_after_the_delivery_timeout() -> None:
    with testing.broker() as broker:
        with Client(broker.bootstrap, ClientOptions(retry_pause_ms=1, retry_timeout_ms=50)) as client:
            Admin(client).create_topic("t", partitions=1)
            producer = Producer(client, ProducerOptions(delivery_timeout_ms=50))
            producer.send("t", b"x")
            producer.flush()
            broker.stop()
            producer.send("t", b"y")
            with pytest.raises(DeliveryFailed, match=r"1 records for t\[0\]"):
                producer.flush()
            producer.flush()
