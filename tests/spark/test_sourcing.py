"""Events of a store as a view that Spark derives: store, topic, stream, table."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace import testing
from headrace.sourcing import Event, open_store
from headrace.sourcing.publishing import publish
from tests.spark.test_sinks import forget_the_last_commit, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = "position long, type string, data struct<cents: long>"


def test_events_of_a_store_become_a_table_over_restarts_and_a_repeated_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    views = tmp_path / "views.db"
    with testing.broker() as broker, open_store(tmp_path / "bank.db") as store:
        sink = hr.sinks.sql(f"sqlite:///{views}", table="turnover", key="type", create=True)

        def derive() -> dict[str, int]:
            publish(store, broker.bootstrap, "bank.events", until_current=True)
            events = hr.stream(spark, "bank.events", SCHEMA, bootstrap=broker.bootstrap)
            turnover = events.groupBy("type").agg(F.sum("data.cents").alias("cents"))
            run_to_end(sink, turnover, tmp_path / "checkpoint", "update")
            with closing(sqlite3.connect(views)) as look:
                return dict(look.execute("select type, cents from turnover").fetchall())

        store.append("account-1", [Event("Deposited", {"cents": cents}) for cents in (100, 20)])
        store.append("account-2", Event("Withdrawn", {"cents": 7}))
        assert derive() == {"Deposited": 120, "Withdrawn": 7}
        forget_the_last_commit(tmp_path / "checkpoint")
        assert derive() == {"Deposited": 120, "Withdrawn": 7}
        store.append("account-2", Event("Deposited", {"cents": 3}))
        assert derive() == {"Deposited": 123, "Withdrawn": 7}
