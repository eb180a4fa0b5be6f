"""The sink while drivers, workers and brokers are killed with SIGKILL; ``tests.chaos.spark`` does it at length."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.client import Client
from headrace.testing import broker as start_broker
from tests.chaos.spark import Kill, Run
from tests.chaos.spark_judge import committed
from tests.chaos.spark_life import CLUSTER, LOCAL
from tests.servers.process import RunningServer
from tests.spark.sink_job import TASKS
from tests.spark.topics import create, fill, read_stream

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

Name = Callable[[str], str]
JOB = Path(__file__).with_name("sink_job.py")
JOB_TIMEOUT_S = 400
ROWS = 1200
ROWS_PER_BATCH = 400


@pytest.mark.slow
def test_a_worker_a_broker_a_driver_and_an_executor_that_are_killed_leave_no_duplicate_and_no_gap(
    tmp_path: Path,
) -> None:
    """Row by row and by windows of event time, with eight tasks each; kills wait for progress and not for a time."""
    chance = random.Random(1)
    with start_broker(in_process=False, data=tmp_path / "data") as broker:
        run = Run(tmp_path, broker, pipelines=["transform", "windows"])
        try:
            run.begin(LOCAL)
            for kill in (Kill("worker", False, 0.3), Kill("broker", False, 0.2), Kill("driver", True, 0.02)):
                run.feed(300)
                run.kill(kill, chance)
            run.begin(CLUSTER)
            run.feed(300)
            run.kill(Kill("executor", False, 0.2), chance)
            verdicts = run.finish()
        finally:
            run.close()
    assert {name: str(verdict) for name, verdict in verdicts.items()} == {
        "transform": "complete",
        "windows": "complete",
    }


@pytest.mark.slow
def test_patterns_and_searches_that_are_stored_in_topics_match_the_same_after_kills(tmp_path: Path) -> None:
    """Patterns change at times that lie between the kills; plain loops say what has to come out."""
    chance = random.Random(3)
    with start_broker(in_process=False, data=tmp_path / "data") as broker:
        run = Run(tmp_path, broker, pipelines=["patterns", "searches"])
        try:
            run.begin(LOCAL)
            for kill in (Kill("worker", False, 0.3), Kill("broker", False, 0.2), Kill("driver", True, 0.02)):
                run.feed(300)
                run.kill(kill, chance)
            run.begin(LOCAL)
            run.feed(300)
            verdicts = run.finish()
        finally:
            run.close()
    assert {name: str(verdict) for name, verdict in verdicts.items()} == {
        "patterns": "complete",
        "searches": "complete",
    }


class Doomed:
    """Runs of one query from topic to topic, each of which may be told when to die."""

    def __init__(self, bootstrap: str, source: str, target: str, home: Path, *, fence: str) -> None:
        self.bootstrap, self.target = bootstrap, target
        self.output = home / "output"
        self.arguments = [bootstrap, source, target, str(home / "c")]
        self.fence = fence
        create(bootstrap, source, partitions=2)
        create(bootstrap, target, partitions=2)
        fill(bootstrap, source, ROWS)

    def run(self, doom: str = "-1,never") -> int:
        """Its output goes into a file: processes that outlive a killed driver would keep a pipe open."""
        with self.output.open("wb") as file:
            command = [sys.executable, str(JOB), *self.arguments, doom, self.fence]
            return subprocess.run(command, stdout=file, stderr=file, timeout=JOB_TIMEOUT_S, check=False).returncode

    def told(self) -> str:
        return self.output.read_text(errors="replace")[-4000:]

    def values(self) -> Counter[bytes]:
        with Client(self.bootstrap) as client:
            return Counter(record.value or b"" for _, record in committed(client, self.target))


def every_row_once() -> Counter[bytes]:
    return Counter(b"value-%d!" % index for index in range(ROWS))


def test_a_driver_that_is_killed_between_two_commits_is_followed_by_one_that_completes_them(
    spark: SparkSession, headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    """With eight tasks; the driver of the tests goes on with the dead one's checkpoint."""
    bootstrap, source, target = headrace_server.bootstrap, unique("from"), unique("to")
    query = Doomed(bootstrap, source, target, tmp_path, fence="on")
    assert query.run("1,one-committed") == -9, query.told()
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": ROWS_PER_BATCH, "minPartitions": TASKS}
    rows = read_stream(spark, bootstrap, source, **options)
    writer = rows.selectExpr("key", "concat(cast(value AS string), '!') AS value").writeStream.format("headrace")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert query.values() == every_row_once()


@pytest.mark.slow
def test_a_driver_that_is_killed_at_the_worst_moments_leaves_no_duplicate_and_no_gap(
    headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    """With eight tasks. Every other moment is in the tests of the protocol, which need no Spark."""
    query = Doomed(headrace_server.bootstrap, unique("from"), unique("to"), tmp_path, fence="on")
    for batch_id, moment in enumerate(["written", "one-committed", "committed"]):
        assert query.run(f"{batch_id},{moment}") == -9, query.told()
    assert query.run() == 0, query.told()
    assert query.values() == every_row_once()


@pytest.mark.slow
def test_without_the_fence_a_killed_driver_doubles_its_batch(
    headrace_server: RunningServer, unique: Name, tmp_path: Path
) -> None:
    """So the tests above can fail: the same death, and a sink that does not ask what was decided."""
    query = Doomed(headrace_server.bootstrap, unique("from"), unique("to"), tmp_path, fence="off")
    assert query.run("0,committed") == -9, query.told()
    assert query.run() == 0, query.told()
    doubled = query.values() - every_row_once()
    assert sum(doubled.values()) == ROWS_PER_BATCH
