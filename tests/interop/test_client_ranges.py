"""Ranges of raw batches, on headrace and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    OffsetOutOfRange,
    PreparedRecords,
    Producer,
    ProducerOptions,
    TopicPartition,
    TransactionalProducer,
    end_offsets,
    fetch_range,
)
from headrace.record import Codec, Record, decode_records
from tests.servers.process import RunningServer
from tests.unit.client.reading import wait_until_complete

pytestmark = pytest.mark.servers

Unique = Callable[[str], str]
OPTIONS = ClientOptions(request_timeout_ms=60_000, retry_timeout_ms=60_000, missing_topic_timeout_ms=60_000)


@pytest.fixture
def client(broker: RunningServer) -> Iterator[Client]:
    with Client(broker.bootstrap, OPTIONS) as client:
        yield client


@pytest.fixture
def partition(client: Client, unique: Unique) -> TopicPartition:
    name = unique("t")
    Admin(client).create_topic(name, partitions=1)
    return TopicPartition(name, 0)


def numbered(first: int, count: int) -> PreparedRecords:
    return PreparedRecords.of([Record(None, b"%d" % number, timestamp=1) for number in range(first, first + count)])


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("bytes_per_fetch", [1, 1 << 20])
def test_every_batch_of_a_range_is_given_once(
    client: Client, partition: TopicPartition, codec: Codec, bytes_per_fetch: int
) -> None:
    with Producer(client, ProducerOptions(codec=codec)) as producer:
        for first in range(0, 1000, 50):
            producer.send_prepared(partition, numbered(first, 50))
    found = list(fetch_range(client, partition, 120, 730, bytes_per_fetch=bytes_per_fetch))
    values = [record.value for batch in found for record in decode_records(batch.parsed(), 1 << 20)]
    assert values == [b"%d" % number for number in range(100, 750)]
    assert {batch.codec for batch in found} == {codec}


def test_aborted_batches_are_left_out_also_when_every_answer_has_one_batch(
    client: Client, partition: TopicPartition, unique: Unique
) -> None:
    producer = TransactionalProducer(client, unique("id"))
    for first in range(0, 100, 10):
        producer.begin()
        producer.send_prepared(partition, numbered(first, 5))
        producer.send_prepared(partition, numbered(first + 5, 5))
        producer.commit() if first % 20 == 0 else producer.abort()
    wait_until_complete(client, producer.transactional_id)
    end = end_offsets(client, [partition])[partition]
    for bytes_per_fetch in (1, 1 << 20):
        batches = list(
            fetch_range(
                client, partition, 0, end, read_committed=True, bytes_per_fetch=bytes_per_fetch, timeout_ms=60_000
            )
        )
        values = [
            record.value
            for batch in batches
            if not batch.is_control
            for record in decode_records(batch.parsed(), 1 << 20)
        ]
        assert values == [b"%d" % number for number in range(100) if number // 10 % 2 == 0]
        assert sum(batch.is_control for batch in batches) == 10


def test_an_offset_outside_the_log_is_told_with_both_ends(client: Client, partition: TopicPartition) -> None:
    with Producer(client) as producer:
        for first in range(0, 30, 10):
            producer.send_prepared(partition, numbered(first, 10))
    Admin(client).delete_records({partition: 12})
    for offset in (3, 31):
        with pytest.raises(OffsetOutOfRange) as caught:
            list(fetch_range(client, partition, offset, 40))
        assert (caught.value.earliest, caught.value.latest) == (12, 30)
