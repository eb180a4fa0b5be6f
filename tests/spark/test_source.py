"""The source against real brokers: every record once, with the columns and options of Spark's Kafka source."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.client import Admin, Client, TopicPartition, TransactionalProducer
from tests.servers.process import RunningServer
from tests.spark.topics import create, fill, read, send, values

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]

Name = Callable[[str], str]


def test_a_batch_read_gives_every_record_once_with_the_columns_of_sparks_kafka_source(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    topic = unique("rows")
    create(broker.bootstrap, topic, partitions=2)
    fill(broker.bootstrap, topic, 1000)
    rows = read(spark, broker.bootstrap, topic).orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in rows] == [(p, o) for p in range(2) for o in range(500)]
    assert values(rows) == sorted(b"value-%d" % index for index in range(1000))
    assert bytes(rows[3].key) == b"key-6"
    assert rows[0].topic == topic
    assert rows[0].timestampType == 0
    assert rows[0].__fields__ == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_nulls_headers_and_timestamps_arrive_as_they_were_sent(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    topic = unique("whole")
    create(broker.bootstrap, topic)
    send(broker.bootstrap, topic, [None], key=b"k", timestamp=1_700_000_000_123, headers=[("a", b"1"), ("b", None)])
    send(broker.bootstrap, topic, [b"v"])
    rows = read(spark, broker.bootstrap, topic, includeHeaders=True).orderBy("offset").collect()
    assert rows[0].value is None
    assert bytes(rows[0].key) == b"k"
    assert rows[0].timestamp == datetime.datetime.fromtimestamp(1_700_000_000.123)
    assert [(each.key, each.value and bytes(each.value)) for each in rows[0].headers] == [("a", b"1"), ("b", None)]
    assert rows[1].key is None
    assert rows[1].headers is None


def test_offsets_and_times_bound_a_batch_read(spark: SparkSession, broker: RunningServer, unique: Name) -> None:
    topic = unique("bounds")
    create(broker.bootstrap, topic, partitions=2)
    for index in range(10):
        send(broker.bootstrap, topic, [b"%d" % index], partition=index % 2, timestamp=1000 * (index + 1))
    both = {
        "startingOffsets": json.dumps({topic: {"0": 1, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": 3, "1": -1}}),
    }
    assert values(read(spark, broker.bootstrap, topic, **both).collect()) == [b"1", b"2", b"3", b"4", b"5", b"7", b"9"]
    since = read(spark, broker.bootstrap, topic, startingTimestamp=7000, endingTimestamp=9000)
    assert values(since.collect()) == [b"6", b"7"]
    per_partition = json.dumps({topic: {"0": 9000, "1": 10000}})
    assert values(read(spark, broker.bootstrap, topic, startingOffsetsByTimestamp=per_partition).collect()) == [
        b"8",
        b"9",
    ]
    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy=latest"):
        read(spark, broker.bootstrap, topic, startingTimestamp=99_000).collect()
    late = read(spark, broker.bootstrap, topic, startingTimestamp=99_000, startingOffsetsByTimestampStrategy="latest")
    assert late.collect() == []


def test_topics_are_found_by_name_by_pattern_and_by_partition(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    base = unique("pick")
    for suffix in ("-one", "-two", "-three"):
        create(broker.bootstrap, base + suffix, partitions=2)
        send(broker.bootstrap, base + suffix, [suffix.encode()], partition=1)
    two = read(spark, broker.bootstrap, f"{base}-one, {base}-two")
    assert values(two.collect()) == [b"-one", b"-two"]
    assert values(read(spark, broker.bootstrap, subscribePattern=f"{base}-t.*").collect()) == [b"-three", b"-two"]
    chosen = json.dumps({f"{base}-one": [1], f"{base}-two": [0]})
    assert values(read(spark, broker.bootstrap, assign=chosen).collect()) == [b"-one"]
    with pytest.raises(PySparkException, match="there is no"):
        read(spark, broker.bootstrap, f"{base}-four").collect()


def test_more_tasks_than_partitions_read_each_record_once(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    topic = unique("split")
    create(broker.bootstrap, topic)
    fill(broker.bootstrap, topic, 1000, partitions=1)
    rows = read(spark, broker.bootstrap, topic, minPartitions=7)
    assert rows.rdd.getNumPartitions() == 7
    assert values(rows.collect()) == sorted(b"value-%d" % index for index in range(1000))
    assert read(spark, broker.bootstrap, topic, maxRecordsPerPartition=100).rdd.getNumPartitions() == 10


def test_only_the_columns_of_the_given_schema_are_read(
    spark: SparkSession, headrace_server: RunningServer, unique: Name
) -> None:
    topic = unique("columns")
    create(headrace_server.bootstrap, topic)
    fill(headrace_server.bootstrap, topic, 3, partitions=1)
    reader = spark.read.format("headrace").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", headrace_server.bootstrap)
    rows = reader.schema("offset long, value binary").load().orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(0, b"value-0"), (1, b"value-1"), (2, b"value-2")]
    with pytest.raises(PySparkException, match=r"no column 'valeu'.*valid: key binary"):
        reader.schema("valeu binary").load().collect()
    with pytest.raises(PySparkException, match="'value' is binary, not string"):
        reader.schema("value string").load().collect()


def test_what_was_aborted_or_is_open_is_left_out_unless_asked_for(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    topic = unique("committed")
    create(broker.bootstrap, topic)
    with Client(broker.bootstrap) as client:
        producer = TransactionalProducer(client, unique("id"))
        for value, commit in ((b"kept", True), (b"taken back", False), (b"kept too", True)):
            producer.begin()
            producer.send(topic, value, partition=0)
            producer.flush()
            producer.commit() if commit else producer.abort()
    rows = read(spark, broker.bootstrap, topic).orderBy("offset")
    assert [bytes(row.value) for row in rows.collect()] == [b"kept", b"kept too"]
    assert len(read(spark, broker.bootstrap, topic, kafka__isolation__level="read_uncommitted").collect()) == 3


def test_records_that_retention_took_end_the_read_unless_loss_is_accepted(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    topic = unique("gone")
    create(broker.bootstrap, topic)
    fill(broker.bootstrap, topic, 10, partitions=1)
    with Client(broker.bootstrap) as client:
        Admin(client).delete_records({TopicPartition(topic, 0): 6})
    from_start = json.dumps({topic: {"0": 2}})
    with pytest.raises(PySparkException, match="holds offsets 6 to 10, and 2 was to be read"):
        read(spark, broker.bootstrap, topic, startingOffsets=from_start).collect()
    rows = read(spark, broker.bootstrap, topic, startingOffsets=from_start, failOnDataLoss=False).collect()
    assert sorted(row.offset for row in rows) == [6, 7, 8, 9]


def test_a_wrong_option_is_told_when_the_read_is_described(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"no option 'startingoffset'; did you mean startingOffsets\?"):
        read(spark, "127.0.0.1:1", "t", startingOffset="earliest")
    with pytest.raises(PySparkException, match=r"kafka\.bootstrap\.servers"):
        spark.read.format("headrace").option("subscribe", "t").load()


def test_a_range_larger_than_a_fetch_comes_in_several_batches(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("large")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [b"%06d" % index * 1000 for index in range(500)])
    rows = read(
        spark, headrace_server.bootstrap, topic, bytesPerBatch=100_000, kafka__max__partition__fetch__bytes=70_000
    )
    found = rows.selectExpr("offset", "substring(value, 1, 6) AS head", "length(value) AS size").collect()
    assert sorted((row.offset, bytes(row.head), row.size) for row in found) == [
        (index, b"%06d" % index, 6000) for index in range(500)
    ]
