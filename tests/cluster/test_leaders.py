"""Apache Kafka with three nodes, whose leaders are killed and come back: ``make test-cluster``.

A client, a source and a sink go on meanwhile, and no record is lost or doubled. Kills wait until there is something to
interrupt, and what follows waits for what it needs, for as long as it takes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.client import Admin, Client, ClientOptions, Producer, TopicPartition, TransactionalProducer
from headrace.spark.topic_sink.decisions import DECISION_TOPIC
from tests.chaos.spark import Run
from tests.chaos.spark_job import SOURCE
from tests.chaos.spark_judge import committed
from tests.chaos.spark_life import LOCAL
from tests.servers.kafka_cluster import KafkaCluster, apache_kafka_cluster
from tests.skips import or_skip

# Out of `make test`, by the marks of what takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1800)]

PATIENCE = ClientOptions(retry_timeout_ms=120_000, first_contact_timeout_ms=60_000)
WAIT_S = 180.0
PARTITIONS = 3
ROWS_PER_STEP = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with or_skip(), apache_kafka_cluster() as running:
        yield running


@pytest.fixture
def client(cluster: KafkaCluster) -> Iterator[Client]:
    with Client(cluster.bootstrap, PATIENCE) as client:
        yield client
        wait_until(lambda: all(in_sync(client, topic.name) for topic in client.topics()), "all replicas are in sync")


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.1)


def leader(client: Client, topic: str, partition: int = 0) -> int:
    client.forget_topic(topic)
    return client.retrying(lambda: client.leader(TopicPartition(topic, partition)))


def in_sync(client: Client, topic: str) -> bool:
    client.forget_topic(topic)
    return all(len(each.in_sync) == 3 for each in client.topic(topic).partitions)


def come_back(cluster: KafkaCluster, client: Client, node: int, topic: str) -> None:
    """Only when it has all records again may another one be killed."""
    cluster.start(node)
    wait_until(lambda: in_sync(client, topic), f"node {node} has caught up with {topic}")


def test_a_producer_goes_on_when_a_leader_is_killed_and_every_record_is_there_once_and_in_order(
    cluster: KafkaCluster, client: Client
) -> None:
    Admin(client).create_topic("plain", partitions=PARTITIONS)
    wait_until(lambda: in_sync(client, "plain"), "the topic has its replicas")
    number = 0
    with Producer(client) as producer:
        for partition in range(2):
            victim = leader(client, "plain", partition)
            for step in range(ROWS_PER_STEP):
                producer.send("plain", b"%d" % number, partition=number % PARTITIONS)
                number += 1
                if step == ROWS_PER_STEP // 2:
                    cluster.kill(victim)
            producer.flush()
            assert leader(client, "plain", partition) != victim
            come_back(cluster, client, victim, "plain")
    found = committed(client, "plain")
    for partition in range(PARTITIONS):
        values = [int(record.value or b"") for where, record in found if where == partition]
        assert values == list(range(partition, number, PARTITIONS))


def test_transactions_go_on_when_their_coordinator_and_their_leaders_are_killed(
    cluster: KafkaCluster, client: Client
) -> None:
    Admin(client).create_topic("atomic", partitions=PARTITIONS)
    wait_until(lambda: in_sync(client, "atomic"), "the topic has its replicas")
    producer = TransactionalProducer(client, "three-nodes", timeout_ms=600_000)
    number = 0
    for victim_of in (lambda: client.transaction_coordinator("three-nodes"), lambda: leader(client, "atomic")):
        with producer.transaction():
            for _ in range(ROWS_PER_STEP):
                producer.send("atomic", b"%d" % number, partition=number % PARTITIONS)
                number += 1
            victim = client.retrying(victim_of)
            cluster.kill(victim)
            producer.send("atomic", b"%d" % number, partition=number % PARTITIONS)
            number += 1
        come_back(cluster, client, victim, "atomic")
    wait_until(lambda: len(committed(client, "atomic")) >= number, "what was committed is visible")
    assert Counter(int(record.value or b"") for _, record in committed(client, "atomic")) == Counter(range(number))


def test_source_and_sink_go_on_when_the_leaders_they_use_are_killed(
    cluster: KafkaCluster, client: Client, tmp_path: Path
) -> None:
    """One after the other: the leader of the input, of the output, and of the decisions of the sink."""
    run = Run(tmp_path, cluster, pipelines=["transform", "windows"])
    try:
        run.begin(LOCAL)
        for topic in (SOURCE, "transform", DECISION_TOPIC):
            run.feed(ROWS_PER_STEP)
            run.wait_for_decision()
            victim = leader(client, topic)
            cluster.kill(victim)
            run.feed(ROWS_PER_STEP)
            run.wait_for_decision()
            come_back(cluster, client, victim, topic)
        verdicts = run.finish()
        told = run.life.text()
    finally:
        run.close()
    assert {name: str(verdict) for name, verdict in verdicts.items()} == {
        "transform": "complete",
        "windows": "complete",
    }
    assert "is started again" not in told
