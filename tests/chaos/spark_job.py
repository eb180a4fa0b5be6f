"""The driver that is killed: pipelines from one topic to three others, kept running until standard input is closed.

``python -m tests.chaos.spark_job HOME BOOTSTRAP MASTER fenced|unfenced NAME …``

    transform   row by row, in append mode; a row of the output names the row that it came from
    windows     counts and sums per key and window of event time, in append mode: every window comes once
    updates     counts and sums per key so far, in update mode through foreachBatch
    patterns    matches of stored patterns, which change at certain event times
    searches    events beside the stored searches that they match

Each writes with eight tasks or more. A query that fails is started again on its checkpoint, as ``headrace run`` does. A
refusal is none of that: it means that the sink could not go on, which no kill may lead to, and ends the process.

*Unfenced* is the sink without its memory: nobody asks what was decided. It shows that the checks can fail.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import headrace.spark as hr
from headrace.spark.run.session import session
from headrace.spark.source.data_source import HeadraceDataSource
from headrace.spark.topic_sink.checkpoint import read_end_offsets
from headrace.spark.topic_sink.decisions import Decision, DecisionTopic
from headrace.spark.topic_sink.protocol import Protocol
from headrace.spark.topic_sink.sink import (
    BatchWriter,
    StreamWriter,
    exactly_once_batch,
    make_stream_writer,
    make_writer,
)
from tests.chaos.spark_stored import STORED_PATTERNS, STORED_SEARCHES, words

TASKS = 8
ROWS_PER_BATCH = 160
SOURCE = "in"
WINDOW_S = 100
LATENESS_S = 1000
BUCKETS = 2
REFUSED = 3
"""How the process ends when the sink refused to go on."""
CONF = {
    "spark.log.level": "ERROR",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": str(TASKS),
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.pollingDelay": "100ms",  # three queries that ask a hundred times a second take a core
}


# ---- without the fence ----------------------------------------------------------------------------------------------


class ForgetfulTopic(DecisionTopic):
    def last(self, sink: str) -> Decision | None:
        return None


def forgetful(protocol: Protocol) -> Protocol:
    protocol._topic = ForgetfulTopic(protocol._client, protocol._settings.decision_topic)
    return protocol


class UnfencedStream(StreamWriter):
    def _protocol(self) -> Protocol:
        return forgetful(super()._protocol())


class UnfencedBatch(BatchWriter):
    def _protocol(self) -> Protocol:
        return forgetful(super()._protocol())


class UnfencedSource(HeadraceDataSource):
    @classmethod
    def name(cls) -> str:
        return "unfenced"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        writer = make_stream_writer(schema, self.options, overwrite)
        writer.__class__ = UnfencedStream
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        writer = make_writer(schema, self.options, overwrite)
        writer.__class__ = UnfencedBatch
        return writer


# ---- the pipelines --------------------------------------------------------------------------------------------------


class Job:
    def __init__(self, home: Path, bootstrap: str, master: str, sink: str) -> None:
        self.home = home
        self.options = {"kafka.bootstrap.servers": bootstrap, "retryTimeoutMs": "240000"}
        self.sink = sink
        self.spark = open_session(master)

    def rows(self) -> DataFrame:
        reader = self.spark.readStream.format("headrace").options(**self.options)
        return reader.options(
            subscribe=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_BATCH, minPartitions=TASKS
        ).load()

    def start(self, name: str) -> StreamingQuery:
        starters: dict[str, Callable[[], StreamingQuery]] = {
            "transform": self.transform,
            "windows": self.windows,
            "updates": self.updates,
            "patterns": self.patterns,
            "searches": self.searches,
        }
        return starters[name]()

    def transform(self) -> StreamingQuery:
        origin = "concat_ws(':', partition, offset, cast(value AS string))"
        return self.append("transform", self.rows().selectExpr("key", f"{origin} AS value"))

    def windows(self) -> StreamingQuery:
        at = F.timestamp_seconds(F.col("value").cast("string").cast("long")).alias("at")
        events = self.rows().select(at, F.col("key").cast("string").alias("key"))
        grouped = events.withWatermark("at", f"{LATENESS_S} seconds").groupBy(
            F.window("at", f"{WINDOW_S} seconds"), "key"
        )
        totals = grouped.agg(F.count("*").alias("n"), F.sum(F.unix_timestamp("at")).alias("total"))
        value = F.concat_ws(":", F.unix_timestamp("window.start"), "key", "n", "total").alias("value")
        return self.append("windows", totals.select("key", value))

    def numbers(self) -> DataFrame:
        return self.rows().selectExpr("cast(key AS string) AS key", "cast(cast(value AS string) AS long) AS number")

    def stored(self, topic: str, schema: str) -> DataFrame:
        bootstrap = self.options["kafka.bootstrap.servers"]
        return hr.changes(hr.stream(self.spark, topic, schema=schema, bootstrap=bootstrap), key="id")

    def patterns(self) -> StreamingQuery:
        events = self.numbers().withColumn("at", F.timestamp_seconds("number"))
        found = hr.match_patterns(
            hr.watermark(events, "at", f"{LATENESS_S} seconds"),
            self.stored(STORED_PATTERNS, "id string, pattern string"),
            keys="key",
            event_time="at",
            buckets=BUCKETS,
        )
        numbers = F.array_join(F.transform("events", lambda each: each["number"].cast("string")), "-")
        return self.append("patterns", found.select("key", F.concat_ws(":", "pattern", "key", numbers).alias("value")))

    def searches(self) -> StreamingQuery:
        events = self.numbers().withColumn("text", F.expr(words("number")))
        table = self.stored(STORED_SEARCHES, "id string, query string")
        found = hr.match_searches(events, table, default="text", buckets=BUCKETS)
        return self.append("searches", found.select("key", F.concat_ws(":", "number", "search_id").alias("value")))

    def append(self, name: str, records: DataFrame) -> StreamingQuery:
        writer = records.writeStream.format(self.sink).options(**self.options)
        return writer.options(topic=name, checkpointLocation=self.checkpoint(name)).start()

    def updates(self) -> StreamingQuery:
        events = self.rows().selectExpr("cast(key AS string) AS key", "cast(cast(value AS string) AS long) AS number")
        totals = events.groupBy("key").agg(F.count("*").alias("n"), F.sum("number").alias("total"))
        records = totals.select("key", F.concat_ws(":", "key", "n", "total").alias("value"))
        write = partial(write_update, self.sink, self.checkpoint("updates"), self.options)
        writer = records.writeStream.outputMode("update").foreachBatch(write)
        return writer.option("checkpointLocation", self.checkpoint("updates")).start()

    def checkpoint(self, name: str) -> str:
        return str(self.home / "checkpoints" / name)

    def keep_running(self, names: list[str], stop: threading.Event) -> None:
        queries = {name: self.start(name) for name in names}
        say("running")
        while not stop.wait(0.2):
            for name, query in queries.items():
                if not query.isActive:
                    reason = str(query.exception())
                    say(f"{name} is started again: {reason}")
                    if "errors.Refused" in reason:
                        os._exit(REFUSED)
                    queries[name] = self.start(name)


def write_update(sink: str, checkpoint: str, options: dict[str, str], records: DataFrame, batch_id: int) -> None:
    batch = exactly_once_batch("updates", batch_id, read_end_offsets(checkpoint, batch_id))
    writer = records.write.format(sink).mode("append").options(**options)
    writer.options(topic="updates", **batch.options).save()


def open_session(master: str) -> SparkSession:
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))  # by which Spark finds executors' programs
    spark = session(app_name="headrace-chaos", master=master, conf=CONF)
    spark.dataSource.register(UnfencedSource)
    return spark


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main(home: str, bootstrap: str, master: str, fence: str, *names: str) -> None:
    stop = threading.Event()

    def wait_for_the_end_of_input() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end_of_input, daemon=True).start()
    job = Job(Path(home), bootstrap, master, "headrace" if fence == "fenced" else "unfenced")
    job.keep_running(list(names), stop)
    job.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
