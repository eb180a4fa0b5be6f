"""A queue through Spark over restarts: every message once, acknowledged when it is committed."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

import headrace.spark as hr
from headrace import testing
from headrace.client import Client, Queues
from headrace.testing import TestBroker
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def publish(broker: TestBroker, numbers: range) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
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
