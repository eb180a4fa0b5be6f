"""The source against real brokers: every row of a topic, once, with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.client import Admin, Client, Producer
from tests.servers.process import RunningServer

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(300)]

Name = Callable[[str], str]


def fill(broker: RunningServer, topic: str, count: int, *, partitions: int = 2, first: int = 0) -> None:
    with Client(broker.bootstrap) as client:
        if first == 0:
            Admin(client).create_topic(topic, partitions=partitions)
        with Producer(client) as producer:
            for index in range(first, first + count):
                producer.send(topic, b"value-%d" % index, key=b"key-%d" % index, partition=index % partitions)


def batch(spark: SparkSession, broker: RunningServer, topic: str, **options: object) -> DataFrame:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(subscribe=topic, **options).load()  # type: ignore[arg-type]


def test_a_batch_read_gives_every_record_once_with_the_columns_of_sparks_kafka_source(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    topic = unique("rows")
    fill(broker, topic, 1000)
    rows = batch(spark, broker, topic).orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in rows] == [(p, o) for p in range(2) for o in range(500)]
    assert {bytes(row.value) for row in rows} == {b"value-%d" % index for index in range(1000)}
    assert bytes(rows[3].key) == b"key-6"
    assert rows[0].topic == topic
    assert rows[0].timestampType == 0
    assert rows[0].__fields__ == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
