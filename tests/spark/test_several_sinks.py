"""Several sinks of one stream: read once, each exactly once, whatever fails between them."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.runner import Choices
from headrace.spark.run.runner import run as run_pipelines
from headrace.spark.sinks.several import several
from headrace.spark.source.reading import batch
from tests.servers.process import RunningServer
from tests.spark.topics import create, fill, values
from tests.spark.watching import Told

pytestmark = [pytest.mark.spark, pytest.mark.servers]

Name = Callable[[str], str]
PARTITIONS = 2


def counted(rows: DataFrame, notes: Path) -> DataFrame:
    """The same rows; each task that computes some leaves a note."""

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (notes / os.urandom(8).hex()).touch()
        yield from batches

    return rows.mapInArrow(note, rows.schema)


def rows_of(file: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(file)) as look:
        return [row[0] for row in look.execute(f"SELECT value FROM {table} ORDER BY value")]


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> Callable[..., tuple[bool, list[str]]]:
    def run(pipeline: Pipeline, folder: str = "checkpoints") -> tuple[bool, list[str]]:
        choices = Choices(command="test", checkpoints=str(tmp_path / folder), available_now=True, restarts_max=0)
        told = Told()
        return run_pipelines(spark, [pipeline], choices, told, threading.Event()), told.lines

    return run


def test_each_sink_has_each_row_once_though_the_batch_came_three_times_and_is_computed_once_each_time(
    spark: SparkSession,
    headrace_server: RunningServer,
    unique: Name,
    tmp_path: Path,
    runs: Callable[..., tuple[bool, list[str]]],
) -> None:
    """The tables have no key and the topic is added to, so a batch that is written again would show."""
    bootstrap, source, target = headrace_server.bootstrap, unique("read-once"), unique("copied")
    create(bootstrap, source, partitions=PARTITIONS)
    fill(bootstrap, source, 10)
    notes, file = tmp_path / "notes", tmp_path / "derived.db"
    notes.mkdir()
    trouble = ["before anything", "between the sinks"]

    def fails(rows: DataFrame, batch_id: int) -> None:
        if trouble and trouble[0] == "between the sinks":
            raise RuntimeError(trouble.pop(0))

    def fails_first(rows: DataFrame, batch_id: int) -> None:
        if trouble and trouble[0] == "before anything":
            raise RuntimeError(trouble.pop(0))

    def build(spark: SparkSession) -> DataFrame:
        texts = hr.stream(spark, source, bootstrap=bootstrap).select(F.col("value").cast("string").alias("value"))
        return counted(texts, notes)

    sinks = [
        fails_first,
        hr.sinks.sql(f"sqlite:///{file}", table="everything", create=True),
        hr.sinks.topic(target, bootstrap=bootstrap),
        fails,
        hr.sinks.sql(f"sqlite:///{file}", table="some", create=True).transform(
            lambda rows: rows.where("value > 'value-5'")
        ),
    ]
    pipeline = Pipeline(unique("both"), build, several(sinks))
    for computed in (1, 2, 3):
        good, _ = runs(pipeline)
        assert good is (computed == 3)
        assert len(list(notes.iterdir())) == computed * PARTITIONS, "five sinks, and each partition is computed once"
    everything = [f"value-{number}" for number in range(10)]
    assert rows_of(file, "everything") == everything
    assert rows_of(file, "some") == everything[6:]
    assert [each.decode() for each in values(batch(spark, target, bootstrap=bootstrap).collect())] == everything


@pytest.mark.slow
def test_a_pipeline_that_gets_a_second_sink_and_loses_it_again_goes_on_without_a_repetition(
    spark: SparkSession,
    headrace_server: RunningServer,
    unique: Name,
    tmp_path: Path,
    runs: Callable[..., tuple[bool, list[str]]],
) -> None:
    bootstrap, source, target = headrace_server.bootstrap, unique("grows"), unique("grows-out")
    create(bootstrap, source, partitions=PARTITIONS)
    file = tmp_path / "derived.db"

    def build(spark: SparkSession) -> DataFrame:
        rows = hr.stream(spark, source, bootstrap=bootstrap)
        return rows.select(F.col("value").cast("string").alias("value"))

    topic = hr.sinks.topic(target, bootstrap=bootstrap)
    table = hr.sinks.sql(f"sqlite:///{file}", table="everything", create=True)
    name = unique("grows")
    sent = 0
    for sink in (topic, several([table, topic]), topic):
        fill(bootstrap, source, 5)
        sent += 5
        assert runs(Pipeline(name, build, sink))[0]
        forget_the_last_commit(tmp_path / "checkpoints" / name / "spark")  # so its last batch comes to the next sinks
    assert runs(Pipeline(name, build, topic))[0]
    assert len(values(batch(spark, target, bootstrap=bootstrap).collect())) == sent
    assert len(rows_of(file, "everything")) == 10, "from the batch on that came again when the table was there"


def forget_the_last_commit(checkpoint: Path) -> None:
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def test_what_cannot_be_one_of_several_sinks_says_so_before_anything_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load()
    table = hr.sinks.sql(f"sqlite:///{tmp_path}/x.db", table="t", create=True)
    with pytest.raises(UsageError, match=r"parquet .* cannot be one of several sinks"):
        several([table, hr.sinks.parquet(str(tmp_path / "files"))]).stream(rows, "append", "")
    with pytest.raises(UsageError, match="has no key, so rows can only be added"):
        several([table, hr.sinks.console()]).stream(rows, "update", "")
    counts: Any = table.transform(lambda rows: rows.groupBy("value").count())
    for sink in (counts, several([counts, hr.sinks.console()])):
        with pytest.raises(UsageError, match=r"sees one micro-batch at a time.*do that in the pipeline"):
            sink.stream(rows, "update", "")
    with pytest.raises(UsageError, match="returns int and not a DataFrame"):
        table.transform(lambda rows: 7).stream(rows, "append", "")  # type: ignore[arg-type, return-value]


def test_bounded_rows_go_to_all_sinks_and_are_computed_once(spark: SparkSession, tmp_path: Path) -> None:
    notes, file = tmp_path / "notes", tmp_path / "derived.db"
    notes.mkdir()
    rows = counted(spark.range(10, numPartitions=2).selectExpr("cast(id AS string) AS value"), notes)
    one = hr.sinks.sql(f"sqlite:///{file}", table="one", create=True)
    other = hr.sinks.sql(f"sqlite:///{file}", table="other", create=True).transform(
        lambda rows: rows.where("value < 5")
    )
    several([one, other]).write(rows)
    assert (len(rows_of(file, "one")), len(rows_of(file, "other"))) == (10, 5)
    assert len(list(notes.iterdir())) == 2
