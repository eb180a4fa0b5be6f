"""Derived systems behind Spark: from a topic into a database, over restarts and replays. The rest needs no Spark."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.client import Client, Consumer, Producer, TopicPartition
from headrace.spark import sinks
from headrace.spark.sinks import Sink
from headrace.spark.source.reading import batch, stream
from headrace.spark.tables.changelog import changes
from tests.servers.postgres import PostgresServer
from tests.servers.process import RunningServer
from tests.spark.topics import create

pytestmark = [pytest.mark.spark, pytest.mark.servers]

Name = Callable[[str], str]
ORDERS = "id long, customer string, amount decimal(12,2), lines array<struct<sku: string, n: int>>"


def send_keyed(bootstrap: str, topic: str, records: dict[int, Any]) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for key, value in records.items():
            producer.send(topic, None if value is None else json.dumps(value).encode(), key=str(key).encode())


def order(number: int, customer: str) -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": "1.50", "lines": [{"sku": "x", "n": number}]}


def run_to_end(sink: Sink, rows: DataFrame, checkpoint: Path, mode: str = "append") -> None:
    writer = sink.stream(rows, mode, str(checkpoint)).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def forget_the_last_commit(checkpoint: Path) -> None:
    """As a driver leaves it that died between the target's commit and its own: the batch comes again."""
    (checkpoint / "commits" / str(max(_numbers(checkpoint / "commits")))).unlink()
    for each in (checkpoint / "commits").glob(".*.crc"):
        each.unlink()


def _numbers(folder: Path) -> list[int]:
    return [int(each.name) for each in folder.iterdir() if each.name.isdecimal()]


def test_a_keyed_topic_with_deletions_becomes_a_table_and_a_replay_changes_nothing(
    spark: SparkSession, headrace_server: RunningServer, postgres: PostgresServer, unique: Name, tmp_path: Path
) -> None:
    topic, table = unique("orders"), unique("orders")
    create(headrace_server.bootstrap, topic, partitions=2)
    send_keyed(headrace_server.bootstrap, topic, {number: order(number, "anna") for number in range(100)})
    rows = stream(spark, topic, ORDERS, bootstrap=headrace_server.bootstrap)
    sink = sinks.sql(postgres.url(), table=(table,), key="id", create=True)
    run_to_end(sink, rows, tmp_path / "c")
    with psycopg.connect(postgres.url(), autocommit=True) as look:

        def seen() -> list[tuple[Any, ...]]:
            return look.execute(f'select id, customer, lines from "{table}" order by id').fetchall()

        assert seen() == [(number, "anna", [{"sku": "x", "n": number}]) for number in range(100)]
        look.execute(f"update \"{table}\" set customer = 'touched' where id = 7")
        forget_the_last_commit(tmp_path / "c")
        run_to_end(sink, rows, tmp_path / "c")
        assert seen()[7][1] == "touched"
        more = {1: None, 2: order(2, "bert"), 200: order(200, "carl")}
        send_keyed(headrace_server.bootstrap, topic, more)
        run_to_end(sink, rows, tmp_path / "c")
        kept = {number: customer for number, customer, _ in seen()}
    assert (1 in kept, kept[2], kept[200], len(kept)) == (False, "bert", "carl", 100)


def envelope(op: str, before: Any, after: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "ts_ms": 1}


def test_captured_changes_that_move_a_key_and_rows_that_are_refused_find_their_way(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic, dead = unique("captured"), unique("dead")
    create(headrace_server.bootstrap, topic)
    create(headrace_server.bootstrap, dead)
    row = {"id": 1, "name": "anna"}
    events = [
        envelope("c", None, row),
        envelope("r", None, {"id": 2, "name": "bert"}),
        envelope("u", row, {"id": 7, "name": "anna"}),
        envelope("c", None, {"id": 3, "name": None}),
        envelope("d", {"id": 2, "name": "bert"}, None),
        None,
    ]
    with Client(headrace_server.bootstrap) as client, Producer(client) as producer:
        for each in events:
            key = json.dumps({"id": 2}).encode()
            producer.send(topic, None if each is None else json.dumps(each).encode(), key=key)
    file = tmp_path / "derived.db"
    with closing(sqlite3.connect(file)) as made:
        made.execute("create table people (id integer primary key, name text not null)")
    sink = sinks.sql(
        f"sqlite:///{file}", table="people", key="id", dead_letters=dead, bootstrap=headrace_server.bootstrap
    )
    rows = stream(spark, topic, "id long, name string", value_format="debezium", bootstrap=headrace_server.bootstrap)
    run_to_end(sink, changes(rows, "id"), tmp_path / "c")
    with closing(sqlite3.connect(file)) as look:
        assert look.execute("select * from people").fetchall() == [(7, "anna")]
    with Client(headrace_server.bootstrap) as client:
        consumer = Consumer(client)
        consumer.assign({TopicPartition(dead, 0): 0})
        (letter,) = consumer.poll(timeout_ms=60_000)[TopicPartition(dead, 0)]
    assert json.loads(letter.value or b"") == {"id": 3, "name": None}
    assert json.loads(letter.key or b"") == {"id": 3}
    headers = {name: (value or b"").decode() for name, value in letter.headers}
    assert "NOT NULL constraint failed" in headers["headrace.reason"]
    assert headers["headrace.batch"] == "0"


@pytest.mark.slow
def test_updates_of_an_aggregation_and_rows_with_an_operation_are_taken_too(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("sales")
    create(headrace_server.bootstrap, topic, partitions=2)
    url = f"sqlite:///{tmp_path}/derived.db"
    sales = stream(spark, topic, "shop string, amount long", bootstrap=headrace_server.bootstrap)
    totals = sales.groupBy("shop").agg(F.sum("amount").alias("total"))
    sink = sinks.sql(url, table="totals", key="shop", create=True)
    for _ in range(2):
        with Client(headrace_server.bootstrap) as client, Producer(client) as producer:
            for number in range(10):
                producer.send(topic, json.dumps({"shop": f"s{number % 3}", "amount": 1}).encode())
        run_to_end(sink, totals, tmp_path / "c", "update")
    ops = spark.createDataFrame([("s0", 0, "delete"), ("s9", 5, "insert")], "shop string, total long, op string")
    sinks.sql(url, table="totals", key="shop", op="op").write(ops)
    with closing(sqlite3.connect(tmp_path / "derived.db")) as look:
        assert look.execute("select shop, total from totals order by 1").fetchall() == [("s1", 6), ("s2", 6), ("s9", 5)]


@pytest.mark.slow
def test_a_table_filled_from_a_batch_read_equals_one_that_followed(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("orders")
    create(headrace_server.bootstrap, topic, partitions=2)
    url = f"sqlite:///{tmp_path}/derived.db"
    followed, filled = (sinks.sql(url, table=each, key="id", create=True) for each in ("followed", "filled"))
    for start in (0, 50):
        records = {number: order(number, f"c{start}") if number % 7 else None for number in range(start, start + 60)}
        send_keyed(headrace_server.bootstrap, topic, records)
        run_to_end(followed, stream(spark, topic, ORDERS, bootstrap=headrace_server.bootstrap), tmp_path / "c")
    filled.write(batch(spark, topic, ORDERS, bootstrap=headrace_server.bootstrap))
    with closing(sqlite3.connect(tmp_path / "derived.db")) as look:
        both = [look.execute(f"select * from {each} order by id").fetchall() for each in ("followed", "filled")]
    assert both[0] == both[1]
    assert len(both[0]) == 110 - 16


@pytest.mark.slow
def test_a_checkpoint_that_is_gone_begins_anew_and_ends_at_the_same_table(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("orders")
    create(headrace_server.bootstrap, topic)
    url = f"sqlite:///{tmp_path}/derived.db"
    send_keyed(headrace_server.bootstrap, topic, {1: order(1, "anna"), 2: order(2, "bert")})
    sink = sinks.sql(url, table="orders", key="id", create=True)
    rows = stream(spark, topic, ORDERS, bootstrap=headrace_server.bootstrap)
    for _ in range(2):
        run_to_end(sink, rows, tmp_path / "c")
        shutil.rmtree(tmp_path / "c")
    with closing(sqlite3.connect(tmp_path / "derived.db")) as look:
        assert look.execute("select id, customer from orders order by 1").fetchall() == [(1, "anna"), (2, "bert")]


def test_every_type_arrives_in_order_whatever_the_session_says_of_arrow_and_time_zones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Three partitions, each in several blocks; of ten rows of a key the last counts."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    wanted = {
        "id % 5 AS id": 2,
        "id AS number": 47,
        "id = 47 AS yes": 1,
        "cast(id AS tinyint) AS tiny": 47,
        "cast(id AS smallint) AS small": 47,
        "cast(id AS int) AS plain": 47,
        "cast(id / 2 AS float) AS single": 23.5,
        "id / 4 AS wide": 11.75,
        "cast(id * 0.25 AS decimal(12,2)) AS exact": "11.75",
        "concat('naïve ', id) AS words": "naïve 47",
        "cast(concat('b', id) AS binary) AS raw": b"b47",
        "date '2026-01-31' AS day": "2026-01-31",
        "timestamp '2026-01-31 10:00:00Z' AS moment": "2026-01-31 10:00:00.000000Z",
        "timestamp_ntz '2026-01-31 10:00:00' AS local": "2026-01-31 10:00:00.000000",
        "array(id, null) AS listed": "[47,null]",
        "cast(null AS string) AS nothing": None,
    }
    rows = session.range(0, 50, 1, 3).selectExpr(*wanted)
    sinks.sql(f"sqlite:///{tmp_path}/derived.db", table="types", key="id", create=True).write(rows)
    with closing(sqlite3.connect(tmp_path / "derived.db")) as look:
        assert look.execute("select count(*), sum(number) from types").fetchall() == [(5, 45 + 46 + 47 + 48 + 49)]
        assert look.execute("select * from types where id = 2").fetchall() == [tuple(wanted.values())]
