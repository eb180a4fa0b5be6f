"""A queue through Spark over restarts: every message once, acknowledged when it is committed. Rows to a RabbitMQ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import SparkSession

import headrace.spark as hr
from headrace import testing
from headrace.client import Client, Producer, Queues
from headrace.testing import TestBroker
from tests.servers.rabbitmq import rabbitmq_server
from tests.skips import or_skip
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def publish(broker: TestBroker, numbers: range, arguments: dict[str, Any] | None = None) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in numbers:
        channel.basic_publish("", "orders", str(number).encode())
    connection.close()


def ready(broker: TestBroker) -> int:
    with Client(broker.bootstrap) as client:
        return Queues(client).describe("orders").ready


def test_a_queue_is_read_once_over_restarts_and_acknowledged_when_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with testing.broker(amqp=True) as broker:
        for run in range(2):
            publish(broker, range(10 * run, 10 * run + 10))
            orders = hr.queue(spark, "orders", bootstrap=broker.bootstrap, acknowledge=True, maxMessagesPerTrigger=4)
            texts = orders.select(orders.body.cast("string").alias("body"))
            writer = hr.sinks.parquet(str(tmp_path / "out")).stream(texts, "append", str(tmp_path / "checkpoint"))
            started = (
                writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            )
            started.awaitTermination()
            eventually(lambda: ready(broker), lambda count: count == 0)
        found = [int(row.body) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(found) == list(range(20))


def test_a_stream_is_read_from_its_beginning_and_keeps_its_messages(spark: SparkSession, tmp_path: Path) -> None:
    """All of its messages counted as gone, so a query began with those that came after its start."""
    with testing.broker(amqp=True) as broker:
        publish(broker, range(5), {"x-queue-type": "stream"})
        orders = hr.queue(spark, "orders", bootstrap=broker.bootstrap, acknowledge=True)
        writer = hr.sinks.parquet(str(tmp_path / "out")).stream(orders, "append", str(tmp_path / "checkpoint"))
        started = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        started.awaitTermination()
        assert ready(broker) == 5
    out = tmp_path / "out"
    assert out.exists(), "nothing was read"
    assert [row.offset for row in spark.read.parquet(str(out)).orderBy("offset").collect()] == [0, 1, 2, 3, 4]


def test_rows_reach_a_real_rabbitmq_and_a_repeated_batch_has_the_same_ids(spark: SparkSession, tmp_path: Path) -> None:
    with or_skip(), rabbitmq_server() as rabbitmq, testing.broker() as broker:
        with Client(broker.bootstrap) as client, Producer(client) as producer:
            for number in range(20):
                producer.send("numbers", b"%d" % number)
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbitmq.port))
        channel = connection.channel()
        channel.exchange_declare("results", "topic", durable=True)
        channel.queue_declare("results", durable=True)
        channel.queue_bind("results", "results", "numbers.#")
        checkpoint = tmp_path / "checkpoint"
        for _ in range(2):
            rows = hr.stream(spark, "numbers", bootstrap=broker.bootstrap)
            texts = rows.select(rows.value.cast("string").alias("body"))
            url = f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}/%2F"
            sink = hr.sinks.exchange(url, "results", routing_key="numbers.all")
            writer = sink.stream(texts, "append", str(checkpoint)).option("checkpointLocation", str(checkpoint))
            writer.trigger(availableNow=True).start().awaitTermination()
            for each in (checkpoint / "commits").iterdir():  # as a driver that died before it committed
                if each.name.lstrip(".").partition(".")[0].isdecimal():
                    each.unlink()
        found = messages_of(channel, "results")
        connection.close()
    assert Counter(int(body) for _, body in found) == Counter(dict.fromkeys(range(20), 2))
    assert len(set(found)) == 20, "a message that comes again has its id again"


def messages_of(channel: Any, queue: str) -> list[tuple[str, bytes]]:
    """The id and body of every message."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[1].message_id, got[2]))
    return found
