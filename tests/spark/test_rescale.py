"""The state of a stopped pipeline for another number of tasks, and with another number of buckets."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.run.checkpoints import Checkpoint
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.rebuild import rebuild
from headrace.spark.run.runner import Choices, run
from headrace.spark.state.inspection import state_totals
from headrace.spark.state.kernel import BUCKETS_CONF
from tests.servers.process import RunningServer
from tests.spark.topics import create, send
from tests.spark.watching import Told

pytestmark = [pytest.mark.spark, pytest.mark.servers]

Name = Callable[[str], str]
USERS = 50


def events(first_minute: int, minutes: int) -> list[bytes]:
    """Each user once a minute."""
    return [
        json.dumps({"user": f"user {user}", "at": f"2026-11-18T10:{minute:02d}:{user:02d}Z"}).encode()
        for minute in range(first_minute, first_minute + minutes)
        for user in range(USERS)
    ]


class World:
    """A pipeline of our windows by key into a table, run to the end of its topic again and again."""

    def __init__(self, spark: SparkSession, bootstrap: str, unique: Name, folder: Path) -> None:
        self.spark, self.bootstrap, self.folder = spark, bootstrap, folder
        self.topic, self.name = unique("clicks"), unique("per-user")
        create(bootstrap, self.topic, partitions=2)
        table = hr.sinks.sql(
            f"sqlite:///{folder}/derived.db", table="sessions", key=["user", "session_start"], create=True
        )
        self.pipeline = Pipeline(self.name, self.build, table)
        self.checkpoint = Checkpoint(spark, str(folder / "checkpoints"), self.name)

    def build(self, spark: SparkSession) -> DataFrame:
        clicks = hr.stream(spark, self.topic, "user string, at timestamp", bootstrap=self.bootstrap)
        clicks = hr.watermark(clicks, "at", "1 second")
        window = hr.session_window("90 seconds")
        return hr.windows(clicks, "user", event_time="at", window=window, emit="early", values={"n": F.count("*")})

    def send(self, first_minute: int, minutes: int) -> None:
        send(self.bootstrap, self.topic, events(first_minute, minutes))

    def choices(self, **chosen: object) -> Choices:
        return Choices(
            command="headrace run FILE.py",
            checkpoints=str(self.folder / "checkpoints"),
            available_now=True,
            restarts_max=0,
            **chosen,  # type: ignore[arg-type]
        )

    def run(self, **chosen: object) -> list[str]:
        told = Told()
        assert run(self.spark, [self.pipeline], self.choices(**chosen), told, threading.Event()), told.lines
        return told.lines

    def counts(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.folder / "derived.db")) as look:
            rows = look.execute("SELECT user, sum(n), count(*) FROM sessions GROUP BY user").fetchall()
        assert all(sessions == 1 for _, _, sessions in rows), "a session that goes on is one, so its state was found"
        return {user: n for user, n, _ in rows}


@pytest.fixture
def world(spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path) -> World:
    return World(spark, headrace_server.bootstrap, unique, tmp_path)


def test_a_stopped_pipeline_goes_on_with_more_and_with_fewer_tasks_and_finds_the_state_of_every_key(
    world: World,
) -> None:
    world.send(0, 2)
    assert world.run(tasks=2) == []
    assert world.checkpoint.state_tasks() == 2
    world.send(2, 1)
    assert world.run(tasks=5) == [f"{world.name}: its state was shared by 2 tasks, and is by 5 now"]
    assert world.checkpoint.state_tasks() == 5
    assert world.run(tasks=5) == [], "there is nothing to do a second time"
    world.send(3, 1)
    assert world.run() == [], "what a checkpoint has is kept without being asked for"
    world.send(4, 1)
    world.run(tasks=1)
    assert world.counts() == {f"user {user}": 5 for user in range(USERS)}


@pytest.mark.slow
def test_a_pipeline_whose_last_micro_batch_is_not_finished_says_what_to_do_first(world: World) -> None:
    world.send(0, 1)
    world.run(tasks=2)
    commits = world.folder / "checkpoints" / world.name / "spark" / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    with pytest.raises(UsageError, match=r"not finished.*--available-now finishes it; then give --tasks 3 again"):
        world.run(tasks=3)
    world.run()
    world.run(tasks=3)
    assert world.counts() == {f"user {user}": 1 for user in range(USERS)}


@pytest.mark.slow
def test_another_number_of_buckets_is_refused_and_a_rebuild_with_it_gives_the_same_rows_and_goes_on(
    world: World,
) -> None:
    world.send(0, 2)
    world.run(tasks=2)
    before = world.counts()
    assert state_totals(world.spark, world.checkpoint.location).buckets == 8
    world.spark.conf.set(BUCKETS_CONF, "3")
    try:
        with pytest.raises(UsageError, match="3 buckets"):
            world.run()
        assert rebuild(world.spark, world.pipeline, world.choices(), Told(), threading.Event())
        assert world.counts() == before
        assert state_totals(world.spark, world.checkpoint.location).buckets == 3
        world.send(2, 1)
        world.run()
        assert world.counts() == {f"user {user}": 3 for user in range(USERS)}
    finally:
        world.spark.conf.unset(BUCKETS_CONF)
