"""Transactions of our client: the same claims on headrace and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    Groups,
    Outcome,
    TopicPartition,
    TransactionalProducer,
    TransactionLost,
    add_partitions,
    end_transaction,
    init_producer_id,
)
from tests.servers.process import RunningServer
from tests.unit.client.reading import left_open, outcome, read_values, wait_until_complete
from tests.waiting import eventually

pytestmark = pytest.mark.servers

Unique = Callable[[str], str]
OPTIONS = ClientOptions(request_timeout_ms=60_000, retry_timeout_ms=60_000, missing_topic_timeout_ms=60_000)


@pytest.fixture
def client(broker: RunningServer) -> Iterator[Client]:
    with Client(broker.bootstrap, OPTIONS) as client:
        yield client


@pytest.fixture
def partitions(client: Client, unique: Unique) -> list[TopicPartition]:
    name = unique("t")
    Admin(client).create_topic(name, partitions=2)
    client.topic(name)
    return [TopicPartition(name, 0), TopicPartition(name, 1)]


@pytest.fixture(params=[True, False], ids=["v2", "before-v2"])
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest requests, and those of brokers before transactions v2, which newer brokers serve as well."""
    if not request.param:
        monkeypatch.setattr("headrace.client.transactions.transactions_v2", lambda connection: False)
        monkeypatch.setattr("headrace.client.transactional.transactions_v2", lambda connection: False)


@pytest.mark.usefixtures("dialect")
def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    client: Client, partitions: list[TopicPartition], unique: Unique
) -> None:
    group = unique("group")
    producer = TransactionalProducer(client, unique("id"))
    for index, ends_well in enumerate([True, False, True, False, True]):
        producer.begin()
        for partition in partitions:
            producer.send(partition.topic, b"%d" % index, partition=partition.partition)
        producer.send_offsets(group, {partitions[0]: index})
        producer.commit() if ends_well else producer.abort()
        wait_until_complete(client, producer.transactional_id)
        if not ends_well:
            assert Groups(client).committed(group) == {partitions[0]: index - 1}
    assert read_values(client, partitions) == {each: [b"0", b"2", b"4"] for each in partitions}


@pytest.mark.usefixtures("dialect")
def test_another_process_ends_it_as_often_as_it_likes(
    broker: RunningServer, client: Client, partitions: list[TopicPartition], unique: Unique
) -> None:
    identity = left_open(broker.bootstrap, partitions[0], unique("id"))
    client.close()  # before transactions v2 headrace wants a connection newer than the writer's
    assert outcome(client, identity) is Outcome.OPEN
    for _ in range(3):
        end_transaction(client, identity, commit=True)
    assert outcome(client, identity) is Outcome.COMMITTED
    with pytest.raises(TransactionLost):
        end_transaction(client, identity, commit=False)
    wait_until_complete(client, identity.transactional_id)
    assert read_values(client, partitions[:1]) == {partitions[0]: [b"x"]}


def test_the_process_that_decides_may_have_connected_before_the_one_that_writes(
    broker: RunningServer, client: Client, partitions: list[TopicPartition], unique: Unique
) -> None:
    early = client.connection()
    identity = left_open(broker.bootstrap, partitions[0], unique("id"))
    end_transaction(client, identity, commit=True)
    assert client.connection() is early
    wait_until_complete(client, identity.transactional_id)
    assert read_values(client, partitions[:1]) == {partitions[0]: [b"x"]}


@pytest.mark.usefixtures("dialect")
def test_whoever_takes_over_an_id_aborts_what_was_open_and_fences_its_writer(
    broker: RunningServer, client: Client, partitions: list[TopicPartition], unique: Unique
) -> None:
    name = unique("id")
    identity = left_open(broker.bootstrap, partitions[0], name)
    heir = init_producer_id(client, name, 60_000)
    assert outcome(client, identity) is Outcome.SUPERSEDED
    assert outcome(client, heir) is Outcome.OPEN
    with pytest.raises(TransactionLost):
        add_partitions(client, identity, partitions)
    with pytest.raises(TransactionLost):
        end_transaction(client, identity, commit=True)
    wait_until_complete(client, identity.transactional_id)
    assert read_values(client, partitions) == {each: [] for each in partitions}
    assert read_values(client, partitions, read_committed=False)[partitions[0]] == [b"x"]


@pytest.mark.usefixtures("dialect")
def test_a_transaction_whose_time_ran_out_is_told_as_aborted(
    broker: RunningServer, client: Client, partitions: list[TopicPartition], unique: Unique
) -> None:
    identity = None
    while identity is None:
        try:
            identity = left_open(broker.bootstrap, partitions[0], unique("id"), timeout_ms=100)
        except TransactionLost:
            continue  # on a busy machine its time may be over before it has written
    client.close()
    eventually(lambda: outcome(client, identity), lambda found: found is not Outcome.OPEN)
    assert outcome(client, identity) is Outcome.ABORTED
    with pytest.raises(TransactionLost):
        end_transaction(client, identity, commit=True)
    wait_until_complete(client, identity.transactional_id)
    assert read_values(client, partitions) == {each: [] for each in partitions}
