"""The sink in Spark: every row once for readers of committed records, whatever dies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import headrace.spark as hr
from headrace.client import Client, Consumer, ConsumerOptions, FetchOptions, Producer, TopicPartition, start_offsets
from headrace.record import Record
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.runner import Choices
from headrace.spark.run.runner import run as run_pipelines
from headrace.spark.topic_sink.checkpoint import read_end_offsets
from headrace.spark.topic_sink.decisions import DecisionTopic
from headrace.spark.topic_sink.sink import exactly_once_batch
from headrace.testing import broker as start_broker
from tests.chaos.spark_judge import out_of_order
from tests.servers.process import RunningServer
from tests.spark.topics import create, eventually, fill, read_stream
from tests.spark.watching import Told

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]

Name = Callable[[str], str]


def committed(bootstrap: str, topic: str) -> list[tuple[int, Record]]:
    """Every committed record with its partition; what an open transaction hides is not there."""
    options = ConsumerOptions(fetch=FetchOptions(read_committed=True), wait_ms_max=50)
    with Client(bootstrap) as client:
        places = [TopicPartition(topic, each.index) for each in client.topic(topic).partitions]
        consumer = Consumer(client, options)
        consumer.assign(start_offsets(client, places))
        found: list[tuple[int, Record]] = []
        while not consumer.at_end():
            for place, records in consumer.poll(100).items():
                found += [(place.partition, each) for each in records]
    return found


def values(bootstrap: str, topic: str, *, count: int = 0) -> list[bytes]:
    """Sorted. Apache Kafka answers an end before its markers are written, so readers may be a moment late."""
    return eventually(
        lambda: sorted(record.value or b"" for _, record in committed(bootstrap, topic)),
        lambda found: len(found) >= count,
    )


def write(rows: DataFrame, bootstrap: str, **options: Any) -> None:
    writer = rows.write.format("headrace").mode("append").option("kafka.bootstrap.servers", bootstrap)
    writer.options(**options).save()


def drain_to(rows: DataFrame, bootstrap: str, checkpoint: Path, **options: Any) -> None:
    writer = rows.writeStream.format("headrace").option("kafka.bootstrap.servers", bootstrap).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_a_batch_write_puts_every_column_where_it_belongs(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    one, two = unique("one"), unique("two")
    create(broker.bootstrap, one, partitions=3)
    create(broker.bootstrap, two, partitions=2)
    rows = spark.sql(
        f"""SELECT * FROM VALUES
            ('a', X'01', array(named_struct('key', 'h', 'value', X'ff')), '{one}', 2),
            (null, X'02', null, '{two}', 1),
            ('c', null, array(), '{one}', 0) AS t(key, value, headers, topic, partition)"""
    )
    write(rows, broker.bootstrap, **{"kafka.compression.type": "zstd"})
    assert len(values(broker.bootstrap, one, count=2)) == 2
    assert len(values(broker.bootstrap, two, count=1)) == 1
    found = {
        record.key: (where, record.value, list(record.headers)) for where, record in committed(broker.bootstrap, one)
    }
    assert found == {b"a": (2, b"\x01", [("h", b"\xff")]), b"c": (0, None, [])}
    assert [(where, record.value) for where, record in committed(broker.bootstrap, two)] == [(1, b"\x02")]


def test_a_write_that_is_repeated_with_its_id_adds_nothing(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    topic, write_id = unique("out"), unique("write")[-80:]
    create(broker.bootstrap, topic, partitions=2)
    rows = spark.range(0, 1000, 1, 4).selectExpr("cast(id AS string) AS value")
    for _ in range(2):
        write(rows, broker.bootstrap, topic=topic, writeId=write_id)
    expected = sorted(b"%d" % number for number in range(1000))
    assert values(broker.bootstrap, topic, count=1000) == expected
    with pytest.raises(PySparkException, match="not the same input"):
        write(rows.limit(10), broker.bootstrap, topic=topic, writeId=write_id)
    assert values(broker.bootstrap, topic, count=1000) == expected


def test_a_stream_goes_from_topic_to_topic_over_several_runs(
    spark: SparkSession, broker: RunningServer, unique: Name, tmp_path: Path
) -> None:
    source, target = unique("from"), unique("to")
    create(broker.bootstrap, source, partitions=2)
    create(broker.bootstrap, target, partitions=3)
    for run in range(2):
        fill(broker.bootstrap, source, 100, first=run * 100)
        rows = read_stream(spark, broker.bootstrap, source, startingOffsets="earliest", maxOffsetsPerTrigger=60)
        drain_to(rows.select("key", "value"), broker.bootstrap, tmp_path / "c", topic=target)
    assert values(broker.bootstrap, target, count=200) == sorted(b"value-%d" % index for index in range(200))
    query_id = json.loads((tmp_path / "c" / "metadata").read_text())["id"]
    with Client(broker.bootstrap) as client:
        last = DecisionTopic(client, "__headrace_sink").last(query_id)
    assert last is not None
    assert last.batch.ends is not None
    assert json.loads(last.batch.ends)[source] == {"0": 100, "1": 100}
    assert last.batch.query == query_id


def test_records_of_a_key_keep_their_order_also_when_a_batch_is_replayed(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    bootstrap, source, target = headrace_server.bootstrap, unique("ordered"), unique("ordered-out")
    create(bootstrap, source, partitions=2)
    create(bootstrap, target, partitions=3)
    for first in (0, 150):
        with Client(bootstrap) as client, Producer(client) as producer:
            for number in range(first, first + 150):
                producer.send(source, b"%d" % number, key=b"key-%d" % (number % 10), partition=number % 2)
        rows = read_stream(spark, bootstrap, source, startingOffsets="earliest", maxOffsetsPerTrigger=60)
        drain_to(rows.select("key", "value"), bootstrap, tmp_path / "c", topic=target)
        commits = tmp_path / "c" / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink()
    found = [((record.key or b"").decode(), int(record.value or b"")) for _, record in committed(bootstrap, target)]
    assert sorted(number for _, number in found) == list(range(300))
    assert out_of_order(found) == []


@pytest.mark.slow
def test_a_checkpoint_that_lost_its_last_entry_is_noticed(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    bootstrap, source, target = headrace_server.bootstrap, unique("from"), unique("to")
    create(bootstrap, source, partitions=2)
    create(bootstrap, target)
    fill(bootstrap, source, 100)

    def run() -> None:
        rows = read_stream(spark, bootstrap, source, startingOffsets="earliest")
        drain_to(rows.select("value"), bootstrap, tmp_path / "c", topic=target)

    run()
    for lost in [*(tmp_path / "c" / "offsets").glob("*0*"), *(tmp_path / "c" / "commits").glob("*0*")]:
        lost.unlink()
    for lost in (tmp_path / "c").glob("*/.*.crc"):
        lost.unlink()
    fill(bootstrap, source, 10, first=100)
    with pytest.raises(PySparkException, match=r"was written up to .* and now Spark plans it up to"):
        run()
    assert len(values(bootstrap, target)) == 100


def test_a_batch_inside_for_each_batch_is_written_once_when_spark_replays_it(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    bootstrap, source, target, name = headrace_server.bootstrap, unique("from"), unique("to"), unique("q")[-60:]
    create(bootstrap, source, partitions=2)
    create(bootstrap, target)
    fill(bootstrap, source, 100)
    checkpoint = tmp_path / "c"
    calls = []

    def update(frame: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        batch = exactly_once_batch(name, batch_id, read_end_offsets(str(checkpoint), batch_id))
        counts = frame.groupBy("partition").count().selectExpr("cast(count AS string) AS value")
        batch.write(counts, topic=target, **{"kafka.bootstrap.servers": bootstrap})
        if len(calls) == 1:
            raise RuntimeError("after it was written")

    def run() -> None:
        rows = read_stream(spark, bootstrap, source, startingOffsets="earliest")
        writer = rows.writeStream.foreachBatch(update).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(PySparkException, match="after it was written"):
        run()
    run()
    assert calls == [0, 0]
    assert values(bootstrap, target) == [b"50", b"50"]


def test_a_checkpoint_on_a_file_system_of_a_cluster_serves_the_topic_sink(
    spark: SparkSession, broker: RunningServer, unique: Name, tmp_path: Path
) -> None:
    """Only Spark can read it, as with s3a:// and hdfs://. The last commit is lost, so the batch is replayed."""
    folder = tmp_path / "shared"
    folder.mkdir()
    hadoop: Any = spark._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.headrace.link./checkpoints", folder.as_uri())
    source, target = unique("clustered"), unique("clustered-out")
    for topic in (source, target):
        create(broker.bootstrap, topic)
    location = "viewfs://headrace/checkpoints/one"
    sink = hr.sinks.topic(target, bootstrap=broker.bootstrap)

    def drain() -> None:
        rows = hr.stream(spark, source, bootstrap=broker.bootstrap).select("value")
        writer = sink.stream(rows, "append", location).option("checkpointLocation", location)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    fill(broker.bootstrap, source, 5, partitions=1)
    drain()
    for name in ("0", ".0.crc"):
        (folder / "one" / "commits" / name).unlink()
    drain()
    assert values(broker.bootstrap, target, count=5) == [b"value-%d" % index for index in range(5)]


@pytest.mark.parametrize("mode", ["append", "update"])
def test_another_checkpoint_of_a_pipeline_that_writes_to_a_topic_stops_with_one_line_unless_it_starts_over(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path, mode: str
) -> None:
    bootstrap, source, target = headrace_server.bootstrap, unique("once"), unique("once-out")
    create(bootstrap, source)
    fill(bootstrap, source, 5, partitions=1)

    def build(spark: SparkSession) -> DataFrame:
        return hr.stream(spark, source, bootstrap=bootstrap).select("value")

    sink = hr.sinks.topic(target, bootstrap=bootstrap)
    pipeline = Pipeline(unique("copied"), build, sink, output_mode=mode)

    def runs(folder: str, **chosen: bool) -> tuple[bool, list[str]]:
        choices = Choices(command="test", checkpoints=str(tmp_path / folder), available_now=True, **chosen)
        told = Told()
        return run_pipelines(spark, [pipeline], choices, told, threading.Event()), told.lines

    assert runs("here") == (True, [])
    good, (line,) = runs("elsewhere")
    assert not good
    assert f"has rows of pipeline {pipeline.name} from another checkpoint" in line
    assert runs("here") == (True, [])
    assert len(values(bootstrap, target, count=5)) == 5
    good, _ = runs("elsewhere", start_over=True)
    assert good
    assert len(values(bootstrap, target, count=10)) == 10


@pytest.mark.slow
def test_a_stream_that_cannot_tell_its_query_asks_for_a_name(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    bootstrap, source, target = headrace_server.bootstrap, unique("from"), unique("to")
    create(bootstrap, source, partitions=2)
    create(bootstrap, target)
    fill(bootstrap, source, 10)
    rows = read_stream(spark, bootstrap, source, startingOffsets="earliest").select("value")
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "conf"))
    try:
        for options, told in [({}, "cannot tell which query it belongs to"), ({"sinkId": unique("s")[-60:]}, "")]:
            writer = rows.writeStream.format("headrace").option("kafka.bootstrap.servers", bootstrap).queryName("named")
            query = writer.options(topic=target, **options).trigger(availableNow=True).start()
            if told:
                with pytest.raises(PySparkException, match=told):
                    query.awaitTermination()
            else:
                query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert len(values(bootstrap, target)) == 10


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("id AS value", {"topic": "t"}, "column 'value' is bigint"),
        ("'x' AS value, 1L AS price", {"topic": "t"}, "does not know the column 'price'"),
        ("'x' AS key", {"topic": "t"}, "needs a column value"),
        ("'x' AS value", {}, "does not know where to write"),
        ("'x' AS value", {"topic": "t", "writeID": "a b"}, "sinkId 'a b' must be"),
        ("'x' AS value", {"topic": "t", "tpoic": "t"}, "no option 'tpoic'; did you mean topic"),
    ],
)
def test_what_the_sink_cannot_write_is_told_before_anything_is_written(
    spark: SparkSession, columns: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(PySparkException, match=told):
        write(spark.range(1).selectExpr(*columns.split(", ")), "127.0.0.1:1", **options)


def test_a_topic_cannot_be_overwritten(spark: SparkSession) -> None:
    writer = spark.range(1).selectExpr("'x' AS value").write.format("headrace").mode("overwrite")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.option("kafka.bootstrap.servers", "127.0.0.1:1").option("topic", "t").save()


def wait_for_batches(query: StreamingQuery, count: int) -> None:
    eventually(lambda: len(query.recentProgress) >= count or not query.isActive)


@pytest.mark.slow
def test_a_broker_that_is_killed_in_mid_batch_and_comes_back_costs_no_row(
    spark: SparkSession, unique: Name, tmp_path: Path
) -> None:
    source, target = unique("from"), unique("to")
    with start_broker(in_process=False) as broker:
        create(broker.bootstrap, source, partitions=2)
        create(broker.bootstrap, target, partitions=2)
        fill(broker.bootstrap, source, 3000)
        rows = read_stream(spark, broker.bootstrap, source, startingOffsets="earliest", maxOffsetsPerTrigger=500)
        writer = rows.select("key", "value").writeStream.format("headrace").option("topic", target)
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap).option("batchBytes", "200")
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        try:
            for batches in (1, 3):
                wait_for_batches(query, batches)
                broker.kill()
                broker.start()
            query.awaitTermination()
        finally:
            query.stop()
        assert values(broker.bootstrap, target) == sorted(b"value-%d" % index for index in range(3000))
