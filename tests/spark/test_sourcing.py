"""A projection on Spark: the events of a store, published to a topic, become a table that equals them folded."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.sourcing import Event, open_store
from headrace.sourcing.publishing import publish
from headrace.spark import sinks
from headrace.spark.source.reading import stream
from tests.servers.process import RunningServer
from tests.spark.test_sinks import run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow]


def test_a_table_that_spark_keeps_from_events_equals_them_folded(
    spark: SparkSession, headrace_server: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, views = unique("events"), tmp_path / "views.db"
    with closing(sqlite3.connect(views)) as made:
        made.execute("create table turnover (type text primary key, cents integer, number integer)")
    rows = stream(
        spark,
        topic,
        "position long, type string, data struct<cents: long>",
        bootstrap=headrace_server.bootstrap,
    )
    sums = rows.groupBy("type").agg(F.sum("data.cents").alias("cents"), F.count("*").alias("number"))
    with open_store(tmp_path / "bank.db") as store:
        for turn in range(2):
            for number in range(50):
                kind = "Deposited" if number % 3 else "Withdrawn"
                store.append(f"account-{number % 7}", Event(kind, {"cents": number + turn}))
            publish(store, headrace_server.bootstrap, topic, until_current=True)
            run_to_end(sinks.sql(f"sqlite:///{views}", table="turnover", key="type"), sums, tmp_path / "c", "update")
        folded: dict[str, tuple[int, int]] = {}
        for event in store.read_all():
            cents, count = folded.get(event.type, (0, 0))
            folded[event.type] = (cents + event.data["cents"], count + 1)
    with closing(sqlite3.connect(views)) as look:
        assert {kind: (cents, count) for kind, cents, count in look.execute("select * from turnover")} == folded
