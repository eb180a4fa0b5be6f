"""From a queue of a real RabbitMQ into a topic, and rows to its exchanges: at least once, and the same id each time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pyspark.sql import Row

from headrace import testing
from headrace.client import Admin, Client
from headrace.client.positioned import committed_records
from headrace.errors import HeadraceError
from headrace.spark.sinks.exchange import publish_rows
from headrace.testing import ChildBroker
from tests.servers.headrace import COMMAND
from tests.servers.rabbitmq import RabbitMqServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers

MESSAGES = 3_000
KILLS = 3


@pytest.fixture
def broker() -> Iterator[ChildBroker]:
    with testing.broker(in_process=False) as running:
        yield running


@pytest.fixture
def channel(rabbitmq: RabbitMqServer) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbitmq.port))
    yield connection.channel()
    connection.close()


def url_of(rabbitmq: RabbitMqServer) -> str:
    return f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}/%2F"


def publish(channel: Any, queue: str, numbers: range) -> None:
    channel.queue_declare(queue, durable=True)
    for number in numbers:
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"id-{number}")
        channel.basic_publish("", queue, b"%d" % number, properties)
    eventually(lambda: ready(channel, queue), lambda count: count == len(numbers))


def ready(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, durable=True, passive=True).method.message_count)


def begin_bridge(rabbitmq: RabbitMqServer, broker: ChildBroker, name: str, *more: str) -> subprocess.Popen[bytes]:
    command = [str(COMMAND), "queue", "bridge", url_of(rabbitmq), name, name, "--bootstrap", broker.bootstrap, *more]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def bridge_to_the_end(rabbitmq: RabbitMqServer, broker: ChildBroker, name: str) -> None:
    assert begin_bridge(rabbitmq, broker, name, "--until-idle", "0.5").wait(60) == 0


def bridged(broker: ChildBroker, topic: str) -> list[tuple[bytes, bytes]]:
    """The id and value of every record of the topic."""
    with Client(broker.bootstrap) as client:
        records = committed_records(client, topic)
        return [(dict(record.headers)["message-id"] or b"", record.value or b"") for record in records]


def make_topic(broker: ChildBroker, name: str) -> None:
    with Client(broker.bootstrap) as client:
        Admin(client).create_topic(name, partitions=1)


def test_a_message_is_acknowledged_when_its_record_is_written_and_not_before(
    rabbitmq: RabbitMqServer, broker: ChildBroker, channel: Any
) -> None:
    """The topic's broker stands still while the bridge has the messages, and then the bridge dies."""
    name = "not-before"
    make_topic(broker, name)
    publish(channel, name, range(1))
    bridge = begin_bridge(rabbitmq, broker, name)
    try:
        eventually(lambda: len(bridged(broker, name)) == 1)
        os.kill(broker.pid, signal.SIGSTOP)
        for number in range(1, 101):
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"id-{number}")
            channel.basic_publish("", name, b"%d" % number, properties)
        eventually(lambda: ready(channel, name) == 0)  # the bridge has them all
        time.sleep(0.3)  # in which it could acknowledge what is not written
    finally:
        bridge.kill()
        bridge.wait()
        os.kill(broker.pid, signal.SIGCONT)
    eventually(lambda: ready(channel, name) >= 100)
    bridge_to_the_end(rabbitmq, broker, name)
    assert ready(channel, name) == 0
    assert {value for _, value in bridged(broker, name)} == {b"%d" % number for number in range(101)}


def test_a_bridge_that_is_killed_repeats_and_loses_nothing(
    rabbitmq: RabbitMqServer, broker: ChildBroker, channel: Any
) -> None:
    """A record that is there twice has the same id, so the reader can remove it."""
    name = "killed"
    make_topic(broker, name)
    publish(channel, name, range(MESSAGES))
    for kill in range(KILLS):
        bridge = begin_bridge(rabbitmq, broker, name)
        wanted = (kill + 1) * MESSAGES // (KILLS + 2)
        try:
            eventually(lambda wanted=wanted: len(bridged(broker, name)) >= wanted, pause_s=0.001)
        finally:
            bridge.kill()
            bridge.wait()
    bridge_to_the_end(rabbitmq, broker, name)
    assert ready(channel, name) == 0
    found = bridged(broker, name)
    assert len(dict(found)) == MESSAGES, "every id is there"
    assert Counter(value for _, value in set(found)) == Counter(b"%d" % number for number in range(MESSAGES))


def test_rows_reach_an_exchange_of_rabbitmq_with_the_same_ids_each_time(rabbitmq: RabbitMqServer, channel: Any) -> None:
    channel.exchange_declare("results", "direct", durable=True)
    channel.queue_declare("results", durable=True)
    channel.queue_bind("results", "results", "orders")
    rows = [Row(body="x", headers={"n": "1"}), Row(body=b"y", headers=None)]
    for _ in range(2):
        publish_rows(iter(rows), url=url_of(rabbitmq), exchange="results", routing_key="orders", prefix="query/7")
    found = [channel.basic_get("results", auto_ack=True) for _ in range(4)]
    assert [(got[1].message_id, got[1].delivery_mode, got[2]) for got in found] == [
        ("query/7/0/0", 2, b"x"),
        ("query/7/0/1", 2, b"y"),
    ] * 2
    assert found[0][1].headers == {"n": "1"}
    with pytest.raises(HeadraceError, match="has no queue for routing key 'nowhere'"):
        publish_rows(iter(rows), url=url_of(rabbitmq), exchange="results", routing_key="nowhere", prefix="query/8")


def test_a_batch_that_rabbitmq_refuses_is_an_error(rabbitmq: RabbitMqServer, channel: Any) -> None:
    channel.queue_declare("narrow", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with pytest.raises(HeadraceError, match="publishing to exchange '' failed"):
        publish_rows(
            iter([Row(body="x"), Row(body="y"), Row(body="z")]),
            url=url_of(rabbitmq),
            exchange="",
            routing_key="narrow",
            prefix="query/9",
        )
