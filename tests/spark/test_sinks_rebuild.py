"""Rebuilding a derived system from its topic, also when that is cut short, and a target that goes away."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from headrace.client import Client, Producer
from headrace.spark import sinks
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.rebuild import rebuild
from headrace.spark.run.runner import Choices, run
from headrace.spark.sinks import Sink
from headrace.spark.source.reading import stream
from tests.capture.kills_subjects import restarted
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.process import RunningServer, log_tail
from tests.sinks.spark_kills import World
from tests.sinks.world import Base
from tests.skips import or_skip
from tests.spark.topics import create, eventually
from tests.spark.watching import Told

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(900)]

Name = Callable[[str], str]
JOB_TIMEOUT_S = 400


def send(bootstrap: str, topic: str, records: dict[int, str | None]) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for key, name in records.items():
            value = None if name is None else json.dumps({"id": key, "name": name}).encode()
            producer.send(topic, value, key=str(key).encode())


def follow(topic: str, bootstrap: str, sink: Sink) -> Pipeline:
    def build(spark: SparkSession) -> Any:
        return stream(spark, topic, "id long, name string", bootstrap=bootstrap)

    return Pipeline("followed", build, sink)


def test_a_search_index_is_rebuilt_beside_itself_equals_its_topic_and_goes_on_from_there(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic, url = unique("products"), f"sqlite:///{tmp_path}/index.db"
    create(headrace_server.bootstrap, topic, partitions=2, cleanup_policy="compact")
    send(headrace_server.bootstrap, topic, {number: f"product {number}" for number in range(50)})
    send(headrace_server.bootstrap, topic, {7: None, 8: "renamed thing"})
    pipeline = follow(topic, headrace_server.bootstrap, sinks.search(url, index="products", key="id"))
    choices = Choices(command="test", checkpoints=str(tmp_path / "checkpoints"), available_now=True)
    stop, told = threading.Event(), Told()
    assert run(spark, [pipeline], choices, told, stop)
    with closing(sqlite3.connect(tmp_path / "index.db")) as hand:
        hand.execute("delete from products where id < 30")
        hand.execute("insert into products values (999, 'by hand')")
        hand.commit()
    assert rebuild(spark, pipeline, choices, told, stop), told.lines
    wanted = {number: f"product {number}" for number in range(50) if number != 7} | {8: "renamed thing"}

    def rows() -> dict[int, str]:
        with closing(sqlite3.connect(tmp_path / "index.db")) as look:
            return dict(look.execute("select id, name from products").fetchall())

    assert rows() == wanted
    assert [row["id"] for row in sinks.find(url, index="products", text="renamed")] == [8]
    assert sinks.find(url, index="products", text="hand") == []
    send(headrace_server.bootstrap, topic, {100: "new since"})
    assert run(spark, [pipeline], choices, told, stop)
    assert rows() == wanted | {100: "new since"}
    assert [row["id"] for row in sinks.find(url, index="products", text="since")] == [100]
    assert not any("go to" in line for line in told.lines), "the checkpoint knows its sink by its own name"


def test_a_sink_that_is_given_some_of_the_rows_is_rebuilt_with_these(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("products")
    create(headrace_server.bootstrap, topic)
    send(headrace_server.bootstrap, topic, {1: "one", 2: "two", 3: "three"})
    table = sinks.sql(f"sqlite:///{tmp_path}/some.db", table="some", key="id", create=True)
    some = table.transform(lambda rows: rows.where("name <> 'two'")).transform(lambda rows: rows.where("id < 9"))
    assert some.can_be_rebuilt
    choices = Choices(command="test", checkpoints=str(tmp_path / "checkpoints"), available_now=True)
    pipeline, told = follow(topic, headrace_server.bootstrap, some), Told()
    assert run(spark, [pipeline], choices, told, threading.Event())
    with closing(sqlite3.connect(tmp_path / "some.db")) as hand:
        hand.execute("update some set name = 'by hand'")
        hand.commit()
    assert rebuild(spark, pipeline, choices, told, threading.Event()), told.lines
    with closing(sqlite3.connect(tmp_path / "some.db")) as look:
        assert look.execute("select id, name from some order by id").fetchall() == [(1, "one"), (3, "three")]


def test_a_target_that_is_killed_is_waited_for_and_the_state_says_why(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic = unique("orders")
    create(headrace_server.bootstrap, topic)
    with postgres_server() as postgres:
        sink = sinks.sql(postgres.url(), table="orders", key="id", create=True)
        pipeline = follow(topic, headrace_server.bootstrap, sink)
        choices = Choices(command="test", checkpoints=str(tmp_path / "checkpoints"))
        stop, told = threading.Event(), Told()
        worker = threading.Thread(target=run, args=(spark, [pipeline], choices, told, stop))
        worker.start()
        try:
            send(headrace_server.bootstrap, topic, {1: "before"})
            eventually(lambda: count(postgres), lambda rows: rows == 1)
            postgres.kill()
            send(headrace_server.bootstrap, topic, {2: "while it is away"})
            eventually(lambda: any("orders at postgresql://" in each for each in told.notes))
            restarted(postgres)
            eventually(lambda: count(postgres), lambda rows: rows == 2)
        finally:
            stop.set()
            worker.join()
    assert any("cannot be reached" in each or "is away" in each for each in told.notes)


def count(postgres: PostgresServer) -> int:
    """-1 while there is no table, or no server."""
    try:
        with psycopg.connect(postgres.url(), autocommit=True) as look:
            found = look.execute("select count(*) from orders").fetchone()
    except psycopg.Error:
        return -1
    assert found is not None
    return int(found[0])


FILE = """
import headrace.spark as hr

@hr.pipeline(sink=hr.sinks.sql("{url}", table="orders", key="id", create=True))
def orders(spark):
    return hr.stream(spark, "{topic}", schema="id long, name string")

@hr.pipeline(sink=hr.sinks.parquet("{folder}"))
def files(spark):
    return hr.stream(spark, "{topic}", schema="id long, name string")
"""


def test_the_command_rebuilds_a_table_and_says_what_cannot_be_rebuilt(
    headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    topic, url = unique("orders"), f"sqlite:///{tmp_path}/derived.db"
    create(headrace_server.bootstrap, topic, cleanup_policy="compact")
    send(headrace_server.bootstrap, topic, {1: "a", 2: "b"})
    (tmp_path / "shop.py").write_text(FILE.format(url=url, topic=topic, folder=tmp_path / "files"))
    command = [str(Path(sys.executable).with_name("headrace")), "rebuild", "shop.py"]

    def run_it(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, name, "--bootstrap", headrace_server.bootstrap],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )

    done = run_it("orders")
    assert done.returncode == 0, done.stderr
    assert "is rebuilt and in place" in done.stderr
    with closing(sqlite3.connect(tmp_path / "derived.db")) as look:
        assert look.execute("select id, name from orders order by 1").fetchall() == [(1, "a"), (2, "b")]
    refused = run_it("files")
    assert refused.returncode == 1
    assert "cannot be rebuilt beside itself" in refused.stderr


def test_a_rebuild_that_is_killed_and_given_again_while_its_topic_grows_ends_at_what_the_topic_comes_to(
    tmp_path: Path,
) -> None:
    """Killed with a part filled, when the old version stays; and behind the switch, with a checkpoint that is older."""
    with ExitStack() as stack:
        with or_skip():
            world = World(stack, tmp_path, seed=2, pipelines=["table"])
        world.feeder.start()
        assert world.rebuild("table") == 0, log_tail(world.life.log)
        before = world.held("table")
        assert before
        assert world.rebuild("table", "filling") == -signal.SIGKILL, log_tail(world.life.log)
        assert world.held("table") == before
        assert world.rebuild("table", "switched") == -signal.SIGKILL, log_tail(world.life.log)
        left = "select tablename from pg_tables where schemaname = 'public' order by 1"
        assert Base("postgresql", world.places["POSTGRES"]).run(left) == [("followed",), ("headrace_fences",)]
        world.begin()
        world.until_all_moved()
        world.finish()
