"""Spark beside a real RabbitMQ: rows to an exchange of it although it dies, and a queue of it that Spark reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace import testing
from headrace.client import Admin, Client, Producer
from headrace.client.positioned import committed_records
from headrace.spark.run.failures import is_permanent, reason
from headrace.testing import TestBroker
from tests.amqp.test_bridge import begin_bridge, bridge_to_the_end
from tests.servers.rabbitmq import RabbitMqServer, rabbitmq_server
from tests.skips import or_skip
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ROWS = 3_000
DEATHS = 2


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitMqServer]:
    with or_skip(), rabbitmq_server() as server:
        yield server


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with testing.broker() as running:
        yield running


def channel_to(rabbitmq: RabbitMqServer) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbitmq.port)).channel()


def url_of(rabbitmq: RabbitMqServer) -> str:
    return f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}/%2F"


def ready(rabbitmq: RabbitMqServer, queue: str) -> int:
    channel = channel_to(rabbitmq)
    count = int(channel.queue_declare(queue, passive=True).method.message_count)
    channel.connection.close()
    return count


def drained(rabbitmq: RabbitMqServer, queue: str) -> list[tuple[str, bytes]]:
    """The id and body of every message of a queue."""
    channel = channel_to(rabbitmq)
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[1].message_id, got[2]))
    channel.connection.close()
    return found


def start(rows: DataFrame, sink: Any, checkpoint: Path) -> Any:
    writer = sink.stream(rows, "append", str(checkpoint)).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def test_rows_reach_a_rabbitmq_that_is_killed_in_the_middle_of_a_batch(
    spark: SparkSession, rabbitmq: RabbitMqServer, broker: TestBroker, tmp_path: Path
) -> None:
    """At least once: the batch comes again as a whole, and what comes twice has the same id."""
    with Client(broker.bootstrap) as client, Producer(client) as producer:
        for number in range(ROWS):
            producer.send("numbers", b"%d" % number)
    channel = channel_to(rabbitmq)
    channel.exchange_declare("killed", "topic", durable=True)
    channel.queue_declare("killed", durable=True)
    channel.queue_bind("killed", "killed", "numbers.#")
    channel.connection.close()
    sink = hr.sinks.exchange(url_of(rabbitmq), "killed", routing_key="numbers.all")
    stream = hr.stream(spark, "numbers", bootstrap=broker.bootstrap)
    rows = stream.select(stream.value.cast("string").alias("body"))
    for _ in range(DEATHS):
        before = ready(rabbitmq, "killed")
        query = start(rows, sink, tmp_path / "killed")
        eventually(lambda before=before: ready(rabbitmq, "killed"), lambda count, n=before: count >= n + ROWS // 5)
        rabbitmq.stop()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination()
        assert not is_permanent(caught.value), "a restart helps, once RabbitMQ is back"
        assert "publishing to exchange 'killed' failed: 127.0.0.1" in reason(caught.value)
        rabbitmq.start()
    start(rows, sink, tmp_path / "killed").awaitTermination()
    found = drained(rabbitmq, "killed")
    assert Counter(int(body) for _, body in set(found)) == Counter(range(ROWS)), "each row has one id, and none is lost"
    assert len(found) > ROWS, "RabbitMQ died in the middle of a batch"


def test_a_queue_of_rabbitmq_is_bridged_into_a_topic_and_read_once_although_the_bridge_is_killed(
    spark: SparkSession, rabbitmq: RabbitMqServer, tmp_path: Path
) -> None:
    name = "payments"
    with testing.broker(in_process=False) as broker:
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic(name, partitions=2)
        declare(rabbitmq, name)
        publishing = threading.Thread(target=publish, args=(rabbitmq, name, range(ROWS)))
        publishing.start()
        for death in range(DEATHS):
            bridge = begin_bridge(rabbitmq, broker, name)
            try:
                eventually(lambda n=death: bridged(broker, name) >= (n + 1) * ROWS // (DEATHS + 2), pause_s=0.001)
            finally:
                bridge.kill()
                bridge.wait()
        publishing.join()
        bridge_to_the_end(rabbitmq, broker, name)
        read_twice(spark, broker.bootstrap, name, tmp_path)
    assert ready(rabbitmq, name) == 0
    found = [row.body for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert Counter(found) == Counter(str(number) for number in range(ROWS))


def declare(rabbitmq: RabbitMqServer, queue: str) -> None:
    channel = channel_to(rabbitmq)
    channel.queue_declare(queue, durable=True)
    channel.connection.close()


def publish(rabbitmq: RabbitMqServer, queue: str, numbers: range) -> None:
    channel = channel_to(rabbitmq)
    for number in numbers:
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"payment-{number}")
        channel.basic_publish("", queue, b"%d" % number, properties)
    channel.connection.close()


def bridged(broker: Any, topic: str) -> int:
    with Client(broker.bootstrap) as client:
        return sum(1 for _ in committed_records(client, topic))


def read_twice(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """By one query that is started again: the second run finds nothing new."""
    for _ in range(2):
        records = hr.stream(spark, topic, bootstrap=bootstrap, includeHeaders=True)
        header = F.filter(records.headers, lambda each: each.key == "message-id")[0]
        rows = records.select(header.value.cast("string").alias("id"), records.value.cast("string").alias("body"))
        once = hr.dedup(rows, "id", within=hr.FOREVER)
        start(once.select("body"), hr.sinks.parquet(str(folder / "out")), folder / "checkpoint").awaitTermination()
