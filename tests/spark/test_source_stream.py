"""The source as a stream: admission, what is there now, lag, groups, and topics that change under a running query."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace.client import Admin, Client, Groups, TopicPartition
from headrace.testing import broker as start_broker
from tests.servers.process import RunningServer
from tests.spark.topics import create, drain, eventually, fill, read, read_stream, start, values

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]

Name = Callable[[str], str]


def batches_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Progress of the batches that read something."""
    found = [json.loads(each.json) for each in query.recentProgress]
    return [each for each in found if each["numInputRows"] > 0]


def table_values(spark: SparkSession, name: str) -> list[bytes]:
    return values(spark.table(name).collect())


def test_available_now_reads_in_bounded_batches_what_is_there_and_a_second_run_goes_on(
    spark: SparkSession, broker: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic, group = unique("drain"), unique("group")
    create(broker.bootstrap, topic, partitions=2)
    fill(broker.bootstrap, topic, 100)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 40, "kafka__group__id": group}
    rows, query = drain(read_stream(spark, broker.bootstrap, topic, **options), tmp_path / "c")
    assert values(rows) == sorted(b"value-%d" % index for index in range(100))
    assert [each["numInputRows"] for each in batches_of(query)] == [40, 40, 20]
    first = batches_of(query)[0]["sources"][0]
    assert first["endOffset"][topic] == {"0": 20, "1": 20}
    assert first["latestOffset"] == {topic: {"0": 50, "1": 50}}
    expected = {TopicPartition(topic, 0): 50, TopicPartition(topic, 1): 50}
    with Client(broker.bootstrap) as client:
        eventually(lambda: Groups(client).committed(group) == expected)
        assert [each.lag for each in Groups(client).lag(group)] == [0, 0]
    fill(broker.bootstrap, topic, 10, first=100)
    rows, _ = drain(read_stream(spark, broker.bootstrap, topic, **options), tmp_path / "c")
    assert values(rows) == sorted(b"value-%d" % index for index in range(110))


def test_a_running_query_gets_new_records_new_partitions_and_new_topics(
    spark: SparkSession, broker: RunningServer, unique: Name, tmp_path: Path
) -> None:
    base = unique("grow")
    create(broker.bootstrap, f"{base}-a")
    rows = read_stream(spark, broker.bootstrap, subscribePattern=f"{base}-.*", startingOffsets="earliest")
    query = start(rows, tmp_path / "c", "grown")
    try:
        fill(broker.bootstrap, f"{base}-a", 5, partitions=1)
        eventually(lambda: len(table_values(spark, "grown")) == 5)
        with Client(broker.bootstrap) as client:
            Admin(client).create_partitions(f"{base}-a", 2)
        fill(broker.bootstrap, f"{base}-a", 6, partitions=2, first=10)
        create(broker.bootstrap, f"{base}-b")
        fill(broker.bootstrap, f"{base}-b", 4, partitions=1, first=20)
        eventually(lambda: len(table_values(spark, "grown")) >= 15)
    finally:
        query.stop()
    numbers = [*range(5), *range(10, 16), *range(20, 24)]
    assert table_values(spark, "grown") == sorted(b"value-%d" % index for index in numbers)


@pytest.mark.slow
def test_a_query_that_starts_at_the_end_gets_only_what_comes_later(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("latest")
    create(headrace_server.bootstrap, topic)
    fill(headrace_server.bootstrap, topic, 5, partitions=1)
    query = start(read_stream(spark, headrace_server.bootstrap, topic), tmp_path / "c", "late")
    try:
        eventually(lambda: query.lastProgress is not None)
        fill(headrace_server.bootstrap, topic, 3, partitions=1, first=5)
        eventually(lambda: len(table_values(spark, "late")) == 3)
    finally:
        query.stop()
    assert table_values(spark, "late") == [b"value-5", b"value-6", b"value-7"]


@pytest.mark.slow
def test_a_batch_waits_for_the_least_number_of_offsets(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("least")
    create(headrace_server.bootstrap, topic)
    fill(headrace_server.bootstrap, topic, 20, partitions=1)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 10, "maxTriggerDelay": "1h"}
    query = start(read_stream(spark, headrace_server.bootstrap, topic, **options), tmp_path / "c", "least")
    try:
        eventually(lambda: len(table_values(spark, "least")) == 20)
        fill(headrace_server.bootstrap, topic, 9, partitions=1, first=20)
        # Meanwhile the query looks at the topic many times over.
        assert read(spark, headrace_server.bootstrap, topic).count() == 29
        fill(headrace_server.bootstrap, topic, 1, partitions=1, first=29)
        eventually(lambda: len(table_values(spark, "least")) == 30)
        eventually(lambda: [each["numInputRows"] for each in batches_of(query)] == [20, 10])
    finally:
        query.stop()


def test_the_positions_of_the_last_batch_are_shown_although_the_next_one_is_far_away(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic, group = unique("far"), unique("group")
    create(headrace_server.bootstrap, topic)
    fill(headrace_server.bootstrap, topic, 7, partitions=1)
    options = {"startingOffsets": "earliest", "kafka__group__id": group}
    rows = read_stream(spark, headrace_server.bootstrap, topic, **options)
    query = start(rows, tmp_path / "c", "far", processingTime="1 day")
    try:
        with Client(headrace_server.bootstrap) as client:
            eventually(lambda: Groups(client).committed(group) == {TopicPartition(topic, 0): 7})
    finally:
        query.stop()


def test_two_queries_on_one_topic_show_their_positions_apart_by_name_or_by_id(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic, name = unique("shared"), unique("query")
    create(headrace_server.bootstrap, topic)
    fill(headrace_server.bootstrap, topic, 5, partitions=1)
    rows = read_stream(spark, headrace_server.bootstrap, topic, startingOffsets="earliest")
    drain(rows, tmp_path / "named", query_name=name)
    fill(headrace_server.bootstrap, topic, 3, partitions=1, first=5)
    _, other = drain(rows, tmp_path / "other", query_name=None)
    place = TopicPartition(topic, 0)
    with Client(headrace_server.bootstrap) as client:
        eventually(lambda: Groups(client).committed(f"headrace-spark-{other.id}") == {place: 8})
        eventually(lambda: Groups(client).committed(f"headrace-spark-{name}") == {place: 5})


@pytest.mark.slow
@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_deleted_ends_the_query_or_is_left_out(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path, fail: bool
) -> None:
    kept, gone = unique("kept"), unique("gone")
    for topic in (kept, gone):
        create(headrace_server.bootstrap, topic)
        fill(headrace_server.bootstrap, topic, 2, partitions=1)
    options = {"startingOffsets": "earliest", "failOnDataLoss": fail}
    rows = read_stream(spark, headrace_server.bootstrap, f"{kept},{gone}", **options)
    assert len(drain(rows, tmp_path / "c")[0]) == 4
    with Client(headrace_server.bootstrap) as client:
        Admin(client).delete_topic(gone)
    fill(headrace_server.bootstrap, kept, 1, partitions=1, first=2)
    if fail:
        with pytest.raises(PySparkException, match=rf"{gone}\[0\] no longer exists"):
            drain(rows, tmp_path / "c")
    else:
        assert len(drain(rows, tmp_path / "c")[0]) == 5


@pytest.mark.slow
def test_a_topic_that_was_made_anew_is_read_from_its_beginning_when_loss_is_accepted(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("anew")
    create(headrace_server.bootstrap, topic)
    fill(headrace_server.bootstrap, topic, 5, partitions=1)
    rows = read_stream(spark, headrace_server.bootstrap, topic, startingOffsets="earliest", failOnDataLoss=False)
    assert len(drain(rows, tmp_path / "c")[0]) == 5
    with Client(headrace_server.bootstrap) as client:
        Admin(client).delete_topic(topic)
    create(headrace_server.bootstrap, topic)
    fill(headrace_server.bootstrap, topic, 2, partitions=1, first=5)
    assert values(drain(rows, tmp_path / "c")[0]) == [b"value-%d" % index for index in range(7)]
    strict = read_stream(spark, headrace_server.bootstrap, topic, startingOffsets="earliest")
    with Client(headrace_server.bootstrap) as client:
        Admin(client).delete_topic(topic)
    create(headrace_server.bootstrap, topic)
    with pytest.raises(PySparkException, match="deleted and created again"):
        drain(strict, tmp_path / "c")


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_in_mid_batch_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with start_broker(in_process=False) as running:
        create(running.bootstrap, "t", partitions=2)
        fill(running.bootstrap, "t", 20_000)
        options = {"startingOffsets": "earliest", "bytesPerBatch": 2000, "kafka__max__partition__fetch__bytes": 2000}
        slow = read_stream(spark, running.bootstrap, "t", **options).selectExpr("value", "offset")
        query = start(slow, tmp_path / "c", "survived")
        try:
            eventually(lambda: query.status["isDataAvailable"] or bool(query.recentProgress))
            for index in range(3):
                running.kill()
                running.start()
                fill(running.bootstrap, "t", 1000, first=20_000 + 1000 * index)
            eventually(lambda: spark.table("survived").count() >= 23_000)
        finally:
            query.stop()
        assert table_values(spark, "survived") == sorted(b"value-%d" % index for index in range(23_000))
