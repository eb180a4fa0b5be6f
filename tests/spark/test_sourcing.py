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
from headrace.sourcing import Event, PersonalData, open_store
from headrace.sourcing.keys import KeyStore
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


def test_state_and_tables_of_spark_never_have_a_person_in_plain(spark: SparkSession, tmp_path: Path) -> None:
    """A pipeline reads the topic, which has the ciphertext; so nothing is left of a person who was forgotten."""
    secret, rules = "Ada Lovelace of Marylebone", {"Opened": PersonalData("owner", ("name",))}
    folder = tmp_path / "spark"
    folder.mkdir()
    sink = hr.sinks.sql(f"sqlite:///{folder}/views.db", table="names", key="name", create=True)
    keys = KeyStore(tmp_path / "customers.keys")
    with testing.broker() as broker, open_store(tmp_path / "bank.db", keys=keys, personal=rules) as store:
        store.append("account-1", Event("Opened", {"owner": "c-1", "name": secret}))
        assert next(store.read("account-1")).data["name"] == secret

        def derive() -> dict[str, int]:
            publish(store, broker.bootstrap, "bank.events", until_current=True)
            events = hr.stream(spark, "bank.events", "type string, data string", bootstrap=broker.bootstrap)
            named = events.groupBy(F.col("data").alias("name")).count()
            run_to_end(sink, named, folder / "checkpoint", "update")
            with closing(sqlite3.connect(folder / "views.db")) as look:
                return dict(look.execute("select name, count from names").fetchall())

        before = derive()
        assert [("$sealed" in name, secret in name) for name in before] == [(True, False)]
        store.forget("c-1")
        after = derive()
        assert {name: after[name] for name in before} == before
        assert len(after) == 2  # and SubjectForgotten
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
