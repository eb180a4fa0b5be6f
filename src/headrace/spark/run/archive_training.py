"""One JVM that does what pipelines do, and keeps the classes that it loaded when it ends (see ``class_archive``)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.client import Client, Producer
from headrace.errors import HeadraceError
from headrace.spark.plan import end_process
from headrace.spark.run.class_archive import JAVA_OPTIONS, archive_path
from headrace.spark.run.launch import LogFile, open_session

__all__ = ["make_archive"]

PATIENCE_S = 300.0
RECORDS = 2_000
SCHEMA = "id long, customer string, amount decimal(12,2), at timestamp"


def make_archive(bootstrap: str, log: Path, report: Callable[[str], None]) -> Path:
    """Make the archive for this Java and this Spark. ``bootstrap``: a broker whose topics may be written.

    The file appears when it is whole. Spark's messages go to ``log``.
    """
    target = archive_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    settings = {JAVA_OPTIONS: f'"-XX:ArchiveClassesAtExit={unfinished}" -Xlog:cds*=off'}
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            report("starting Spark")
            spark = open_session(
                LogFile(log), master="local[2]", bootstrap=bootstrap, folder=Path(folder), settings=settings
            )
            report("running two pipelines")
            _send_orders(bootstrap)
            _run_pipelines(spark, bootstrap, folder)
            report("writing Spark's classes")
            end_process(spark, PATIENCE_S)
        if not unfinished.is_file():
            raise HeadraceError(f"Java wrote no archive of Spark's classes; see {log}")
        unfinished.replace(target)
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()
    return target


def _send_orders(bootstrap: str) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for number in range(RECORDS):
            at = f"2026-01-31T10:{number // 60:02d}:{number % 60:02d}Z"
            value = f'{{"id":{number},"customer":"c{number % 7}","amount":"{number}.50","at":"{at}"}}'
            producer.send("orders", value.encode(), key=b"%d" % number)


def _run_pipelines(spark: SparkSession, bootstrap: str, folder: str) -> None:
    """A window and a view, each from a topic: source, state, the topic sink and foreachBatch."""
    orders = hr.watermark(hr.stream(spark, "orders", schema=SCHEMA), "at", "5 seconds")
    minutes = hr.windows(orders, event_time="at", window=hr.tumbling("1 minute"), values={"total": F.sum("amount")})
    records = minutes.select(F.to_json(F.struct("*")).alias("value"))
    to_topic = records.writeStream.format("headrace").option("kafka.bootstrap.servers", bootstrap)
    totals = hr.view(hr.changes(orders, key="id"), "customer", {"total": F.sum("amount")})
    for name, writer in (
        ("minutes", to_topic.option("topic", "minutes").option("sinkId", "minutes")),
        ("totals", totals.writeStream.foreachBatch(_collect)),
    ):
        writer = writer.option("checkpointLocation", f"{folder}/{name}")
        writer.trigger(availableNow=True).start().awaitTermination()


def _collect(rows: DataFrame, number: int) -> None:
    rows.persist().toArrow()
    rows.unpersist()
