"""Typed reading through Spark: columns by schema, and the three fates of a value that does not fit."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headrace.spark as hr
from headrace.client import Client, Consumer, TopicPartition, start_offsets
from headrace.record import Record
from tests.servers.process import RunningServer
from tests.spark.topics import create, drain, read, read_stream, send

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]

Name = Callable[[str], str]

SCHEMA = "id long, amount decimal(12,2), placed_at timestamp, tags array<string>, item struct<sku: string, n: int>"


def order(number: int) -> bytes:
    made = {
        "id": number,
        "amount": f"{number}.50",
        "placed_at": "2026-03-01T10:00:00Z",
        "tags": ["a", "b"],
        "item": {"sku": f"s{number}", "n": number},
        "ignored": [{}],
    }
    return json.dumps(made).encode()


def letters(bootstrap: str, topic: str) -> list[Record]:
    with Client(bootstrap) as client:
        consumer = Consumer(client)
        consumer.assign(start_offsets(client, [TopicPartition(topic, 0)]))
        found: list[Record] = []
        while not consumer.at_end():
            found += consumer.poll(timeout_ms=1000).get(TopicPartition(topic, 0), [])
        return found


def test_json_values_become_the_columns_of_the_schema_in_batch_and_stream(
    spark: SparkSession, broker: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("orders")
    create(broker.bootstrap, topic)
    send(broker.bootstrap, topic, [order(number) for number in range(50)])
    options = {"valueFormat": "json", "valueSchema": SCHEMA}
    rows = read(spark, broker.bootstrap, topic, **options).orderBy("id").collect()
    assert rows[7].amount == Decimal("7.50")
    assert rows[7].item.sku == "s7"
    assert rows[7].tags == ["a", "b"]
    assert rows[7].placed_at.astimezone(datetime.UTC) == datetime.datetime(2026, 3, 1, 10, tzinfo=datetime.UTC)
    assert rows[7]._offset == 7
    streamed, _ = drain(
        read_stream(spark, broker.bootstrap, topic, startingOffsets="earliest", **options), tmp_path / "c"
    )
    assert sorted(streamed, key=lambda row: int(row.id)) == rows


def test_the_schema_may_be_given_to_the_reader_with_only_the_columns_that_are_wanted(
    spark: SparkSession, headrace_server: RunningServer, unique: Name
) -> None:
    topic = unique("orders")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [order(3)])
    reader = spark.read.format("headrace").option("subscribe", topic).option("valueFormat", "json")
    reader = reader.option("kafka.bootstrap.servers", headrace_server.bootstrap)
    rows = reader.schema("_offset long, item struct<n: int>").load().collect()
    assert [row.asDict(recursive=True) for row in rows] == [{"_offset": 0, "item": {"n": 3}}]


def test_a_bad_value_fails_with_its_place_or_is_kept_beside_nulls(
    spark: SparkSession, headrace_server: RunningServer, unique: Name
) -> None:
    topic = unique("bad")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [order(0), b"junk", None, order(3)])
    options = {"valueFormat": "json", "valueSchema": SCHEMA}
    with pytest.raises(PySparkException, match=rf"{topic}\[0\] offset 1 does not fit the schema: it is not JSON"):
        read(spark, headrace_server.bootstrap, topic, **options).collect()
    rows = read(spark, headrace_server.bootstrap, topic, onBadRecord="null", **options).orderBy("_offset").collect()
    assert [row.id for row in rows] == [0, None, None, 3]
    assert [row._raw and bytes(row._raw) for row in rows] == [None, b"junk", None, None]
    assert rows[1]._error.startswith("it is not JSON")


def test_bad_values_go_to_the_dead_letters_with_place_and_reason(
    spark: SparkSession, broker: RunningServer, unique: Name
) -> None:
    topic, dead = unique("bad"), unique("dead")
    create(broker.bootstrap, topic)
    create(broker.bootstrap, dead)
    send(broker.bootstrap, topic, [order(0)])
    send(broker.bootstrap, topic, [b"junk"], key=b"k", headers=[("trace", b"7")])
    send(broker.bootstrap, topic, [order(2)])
    chosen = {"valueFormat": "json", "valueSchema": SCHEMA, "onBadRecord": "deadletter", "deadLetterTopic": dead}
    assert sorted(row.id for row in read(spark, broker.bootstrap, topic, **chosen).collect()) == [0, 2]
    (letter,) = letters(broker.bootstrap, dead)
    headers = dict(letter.headers)
    assert (letter.key, letter.value, headers["trace"]) == (b"k", b"junk", b"7")
    assert headers["headrace.topic"] == topic.encode()
    assert (headers["headrace.partition"], headers["headrace.offset"]) == (b"0", b"1")
    assert (headers["headrace.error"] or b"").startswith(b"it is not JSON")


def test_the_latest_row_per_key_is_a_table_and_a_null_value_removes_its_key(
    spark: SparkSession, headrace_server: RunningServer, unique: Name
) -> None:
    topic = unique("accounts")
    create(headrace_server.bootstrap, topic)
    for key, value in ((b"a", b'{"n":1}'), (b"b", b'{"n":2}'), (b"a", b'{"n":3}'), (b"b", None), (b"c", b'{"n":4}')):
        send(headrace_server.bootstrap, topic, [value], key=key)
    rows = hr.table(spark, topic, "n long", bootstrap=headrace_server.bootstrap).collect()
    assert sorted((bytes(row._key), row.n) for row in rows) == [(b"a", 3), (b"c", 4)]
    plain = hr.table(spark, topic, bootstrap=headrace_server.bootstrap).collect()
    assert sorted((bytes(row.key), bytes(row.value)) for row in plain) == [(b"a", b'{"n":3}'), (b"c", b'{"n":4}')]


@pytest.mark.parametrize("schema", ["n long", None])
def test_a_table_of_records_without_a_key_is_refused_instead_of_keeping_one_of_them(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, schema: str | None
) -> None:
    topic = unique("keyless")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, [b'{"n":1}', b'{"n":2}'])
    with pytest.raises(Exception, match=f"a record of {topic} has no key, so hr.table cannot say which row"):
        hr.table(spark, topic, schema, bootstrap=headrace_server.bootstrap).count()
