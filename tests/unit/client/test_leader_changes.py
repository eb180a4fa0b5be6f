"""Several brokers: leaders and coordinators that move, brokers that die, answers that never come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.batch import build_batch
from headrace.client import (
    Client,
    ClientOptions,
    Producer,
    ProducerOptions,
    TopicPartition,
    TransactionalProducer,
    end_offsets,
    fetch_range,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.record import Record, decode_records
from tests.unit.client.cluster import TOPIC, ScriptedCluster, scripted_cluster

PARTITION = TopicPartition(TOPIC, 0)
QUICK = ClientOptions(
    connect_timeout_ms=60_000,
    request_timeout_ms=60_000,
    retry_timeout_ms=60_000,
    retry_pause_ms=1,
    retry_pause_ms_max=10,
)
BATCHES = 20


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted_cluster() as cluster:
        yield cluster


@pytest.fixture
def client(cluster: ScriptedCluster) -> Iterator[Client]:
    with Client(cluster.bootstrap, QUICK) as client:
        yield client


def fill(cluster: ScriptedCluster) -> None:
    for number in range(BATCHES):
        cluster.append(build_batch([Record(None, b"%d" % number, timestamp=1)]))


def read(client: Client) -> list[bytes | None]:
    batches = fetch_range(client, PARTITION, 0, BATCHES, bytes_per_fetch=1, timeout_ms=60_000)
    return [record.value for batch in batches for record in decode_records(batch.parsed(), 1 << 20)]


def numbers(count: int = BATCHES) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def every(times: int, request: str, then: str, cluster: ScriptedCluster) -> None:
    """Each ``times``-th such request finds that leader or coordinator has moved to the other node."""
    count = 0

    def move(node: int, name: str) -> None:
        nonlocal count
        count += name == request
        if name == request and count % times == 0:
            setattr(cluster, then, 3 - getattr(cluster, then))

    cluster.on_request = move


def test_a_range_is_read_from_whoever_leads(cluster: ScriptedCluster, client: Client) -> None:
    fill(cluster)
    every(3, "Fetch", "leader", cluster)
    assert read(client) == numbers()
    assert {node for node, name in cluster.asked if name == "Fetch"} == {1, 2}


def test_a_range_is_read_on_when_its_leader_dies(cluster: ScriptedCluster, client: Client) -> None:
    fill(cluster)

    def die(node: int, name: str) -> None:
        if name == "Fetch" and len([each for each in cluster.asked if each == (1, "Fetch")]) == 5:
            cluster.leader = 2
            cluster.take_down(1)

    cluster.on_request = die
    assert read(client) == numbers()
    assert (2, "Fetch") in cluster.asked


def test_a_partition_without_a_leader_is_waited_for(cluster: ScriptedCluster, client: Client) -> None:
    fill(cluster)
    waited = 0

    def elect(node: int, name: str) -> None:
        nonlocal waited
        if name == "Fetch" and cluster.leader == 1:
            cluster.leader = -1
        elif name == "Metadata" and cluster.leader == -1:
            waited += 1
            cluster.leader = 2 if waited == 4 else -1

    cluster.on_request = elect
    assert read(client) == numbers()
    assert waited == 4


def test_a_partition_that_stays_without_a_leader_is_told_by_name(cluster: ScriptedCluster, client: Client) -> None:
    fill(cluster)
    client.topic(TOPIC)
    cluster.leader = -1
    client.learn_from(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    with pytest.raises(KafkaError, match=r"t\[0\] has no leader"):
        list(fetch_range(client, PARTITION, 0, BATCHES, timeout_ms=50))


def test_offsets_are_asked_of_whoever_leads(cluster: ScriptedCluster, client: Client) -> None:
    fill(cluster)
    assert end_offsets(client, [PARTITION]) == {PARTITION: BATCHES}
    cluster.leader = 2
    assert end_offsets(client, [PARTITION]) == {PARTITION: BATCHES}
    cluster.take_down(2)
    cluster.leader = 1
    assert end_offsets(client, [PARTITION]) == {PARTITION: BATCHES}


def produced(cluster: ScriptedCluster) -> list[bytes | None]:
    return [record.value for batch in cluster.log for record in decode_records(batch, 1 << 20)]


def produce(client: Client) -> None:
    with Producer(client, ProducerOptions(batch_bytes=1, linger_ms=60_000)) as producer:
        for number in range(BATCHES):
            producer.send(TOPIC, b"%d" % number)


def test_records_arrive_in_order_while_the_leader_moves(cluster: ScriptedCluster, client: Client) -> None:
    every(3, "Produce", "leader", cluster)
    produce(client)
    assert produced(cluster) == numbers()


def test_a_leader_that_dies_with_the_answer_has_written_once(cluster: ScriptedCluster, client: Client) -> None:
    count = 0

    def lose(node: int, name: str) -> bool:
        nonlocal count
        count += name == "Produce"
        return name == "Produce" and count % 4 == 0

    cluster.on_request = lose
    produce(client)
    assert produced(cluster) == numbers()
    assert count > BATCHES


def test_a_leader_that_dies_for_good_is_followed_by_the_other(cluster: ScriptedCluster, client: Client) -> None:
    def die(node: int, name: str) -> None:
        if name == "Produce" and len(cluster.log) == 5:
            cluster.leader = 2
            cluster.take_down(1)

    cluster.on_request = die
    produce(client)
    assert produced(cluster) == numbers()


@pytest.mark.parametrize("request_name", ["InitProducerId", "AddPartitionsToTxn", "EndTxn"])
def test_a_transaction_follows_its_coordinator(cluster: ScriptedCluster, client: Client, request_name: str) -> None:
    every(2, request_name, "coordinator", cluster)
    producer = TransactionalProducer(client, "id")
    for number in range(4):
        with producer.transaction():
            producer.send(TOPIC, b"%d" % number)
    assert produced(cluster) == numbers(4)
    assert cluster.ended.count(True) >= 4
    assert False not in cluster.ended


def test_a_transaction_goes_on_when_its_coordinator_dies(cluster: ScriptedCluster, client: Client) -> None:
    def die(node: int, name: str) -> None:
        if name == "EndTxn" and node == 1:
            cluster.leader = cluster.coordinator = 2
            cluster.take_down(1)

    cluster.on_request = die
    producer = TransactionalProducer(client, "id")
    with producer.transaction():
        producer.send(TOPIC, b"0")
    assert cluster.ended == [True]


def test_a_client_that_comes_while_nobody_is_there_waits_as_long_as_it_was_told(cluster: ScriptedCluster) -> None:
    fill(cluster)
    cluster.take_down(1)
    cluster.take_down(2)
    patient = ClientOptions(
        first_contact_timeout_ms=60_000, retry_timeout_ms=60_000, retry_pause_ms=1, retry_pause_ms_max=5
    )
    attempts = 0
    with Client(cluster.bootstrap, patient) as client:

        def attempt() -> int:
            nonlocal attempts
            attempts += 1
            if attempts == 3:
                cluster.bring_up(1)
            return client.refresh([]).controller_id

        assert client.retrying(attempt) == 1
    with Client("127.0.0.1:1", QUICK) as hasty, pytest.raises(KafkaError, match="cannot reach"):
        hasty.topics()
