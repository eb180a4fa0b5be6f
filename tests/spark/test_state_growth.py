"""A pipeline that runs for long does not fill the disk: the files of its checkpoint stay as many.

``python -m benchmarks.spark_state growth`` shows the same over 10,000 micro-batches, with Spark's own settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from benchmarks.spark_state import checkpoint_sizes, rows_of
from headrace.spark.run.session import state_in

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BATCHES = 200
SOONER = {
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
}
"""What Spark does every hundred batches and every minute, so that it happens often in a short run."""


@pytest.fixture
def sooner(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name, None) for name in SOONER}
    for name, value in SOONER.items():
        spark.conf.set(name, value)
    begin_maintenance_anew(spark)
    yield spark
    for name, found in before.items():
        spark.conf.unset(name) if found is None else spark.conf.set(name, found)
    begin_maintenance_anew(spark)


def begin_maintenance_anew(spark: SparkSession) -> None:
    """One thread of the JVM looks after the state of all queries, at the interval of whichever query was the first."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


@pytest.mark.parametrize("named_once", [True, False], ids=["headrace run", "hr.session"])
def test_a_checkpoint_has_as_many_files_after_two_hundred_micro_batches_as_after_a_hundred(
    sooner: SparkSession, tmp_path: Path, named_once: bool
) -> None:
    rows = rows_of(sooner, F.col("value"), 20).withWatermark("at", "2 seconds")
    held = hr.dedup(rows, ["key"], within="10 seconds", event_time="at")
    with state_in(sooner, "disk", named_once=named_once):
        (files_then, bytes_then), (files_now, bytes_now) = checkpoint_sizes(held, tmp_path, (BATCHES // 2, BATCHES))
    assert files_now <= 1.5 * files_then, (
        f"{files_then} files after {BATCHES // 2} batches, {files_now} after {BATCHES}"
    )
    assert bytes_now <= 1.5 * bytes_then, (
        f"{bytes_then} bytes after {BATCHES // 2} batches, {bytes_now} after {BATCHES}"
    )
