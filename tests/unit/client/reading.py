"""Transactions as others see them: left open, ended, and read."""

from __future__ import annotations

from headrace.client import (
    Client,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    Outcome,
    ProducerIdentity,
    TopicPartition,
    TransactionalProducer,
    describe_transaction,
    start_offsets,
)
from tests.waiting import eventually

PATIENCE = ClientOptions(request_timeout_ms=60_000, retry_timeout_ms=60_000)


def left_open(bootstrap: str, partition: TopicPartition, name: str, timeout_ms: int = 60_000) -> ProducerIdentity:
    """A task writes one record and ends without a decision on its transaction."""
    with Client(bootstrap, PATIENCE) as task:
        producer = TransactionalProducer(task, name, timeout_ms)
        producer.begin()
        producer.send(partition.topic, b"x", partition=partition.partition)
        producer.flush()
        return producer.identity


def outcome(client: Client, identity: ProducerIdentity) -> Outcome:
    info = describe_transaction(client, identity.transactional_id)
    return Outcome.UNKNOWN if info is None else info.outcome_of(identity)


def wait_until_complete(client: Client, transactional_id: str) -> None:
    """Apache Kafka answers an end when it is decided, and writes the markers that readers wait for after that."""
    eventually(
        lambda: describe_transaction(client, transactional_id),
        lambda info: info is None or not info.state.startswith("Prepare"),
    )


def read_values(
    client: Client, partitions: list[TopicPartition], *, read_committed: bool = True
) -> dict[TopicPartition, list[bytes | None]]:
    """Every value that is there, partition by partition."""
    options = ConsumerOptions(fetch=FetchOptions(read_committed=read_committed), wait_ms_max=50)
    consumer = Consumer(client, options)
    consumer.assign(start_offsets(client, partitions))
    found: dict[TopicPartition, list[bytes | None]] = {each: [] for each in partitions}
    while True:
        for partition, records in consumer.poll(20).items():
            found[partition] += [record.value for record in records]
        if consumer.at_end():
            return found
