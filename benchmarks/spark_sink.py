"""Spark writes a topic: through this package's sink, and through Spark's own Kafka connector on the JVM.

Both write the same rows to the same broker from the same session, in turn. The promises differ: ours are visible
exactly once whatever dies, the connector's at least once. Rows are made by Spark as they are written, so the time of
making them is in both figures.

- batch   ``df.write``, by the size of the values
- small   one micro-batch after the other with few rows: what the protocol costs when there is little to write

``python -m benchmarks.spark_sink [--quick]``
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import Figure, table
from benchmarks.spark_kafka_jars import connector_jars
from benchmarks.spark_source import spark_session
from headrace.client import Admin, Client, TopicPartition, end_offsets
from tests.servers.headrace import headrace_server
from tests.servers.process import CannotRun

PARTITIONS = 4
KEYS = 5000
JVM = "Spark's Kafka sink"
OURS, THEIRS = "headrace", "kafka"
SMALL_ROWS = 10


def rows(spark: SparkSession, count: int, value_bytes: int) -> DataFrame:
    columns = f"cast(id % {KEYS} AS string) AS key", f"rpad(cast(id AS string), {value_bytes}, 'x') AS value"
    return spark.range(0, count, 1, PARTITIONS).selectExpr(*columns)


def write(frame: DataFrame, sink: str, bootstrap: str, topic: str) -> float:
    """How long it took, in seconds."""
    writer = frame.write.format(sink).mode("append").option("kafka.bootstrap.servers", bootstrap)
    began = time.monotonic()
    writer.option("topic", topic).save()
    return time.monotonic() - began


def written(bootstrap: str, topic: str) -> int:
    """Records and the markers of transactions: at least as many as rows."""
    with Client(bootstrap) as client:
        return sum(end_offsets(client, [TopicPartition(topic, index) for index in range(PARTITIONS)]).values())


def make_topic(bootstrap: str, topic: str) -> str:
    with Client(bootstrap) as client:
        Admin(client).create_topic(topic, partitions=PARTITIONS)
    return topic


def in_turn(sinks: list[str], rounds: int, measure: Callable[[str, int], float]) -> dict[str, list[float]]:
    """One round each to warm up, then rounds in turn."""
    found: dict[str, list[float]] = {sink: [] for sink in (OURS, THEIRS)}
    for index in range(rounds + 1):
        for sink in sinks:
            value = measure(sink, index)
            if index:
                found[sink].append(value)
    return found


def batches(spark: SparkSession, bootstrap: str, sinks: list[str], value_bytes: int, count: int, rounds: int) -> Figure:
    def measure(sink: str, index: int) -> float:
        topic = make_topic(bootstrap, f"batch-{value_bytes}-{sink}-{index}")
        took_s = write(rows(spark, count, value_bytes), sink, bootstrap, topic)
        assert written(bootstrap, topic) >= count, f"{sink} has not written everything"
        return count / took_s / 1e6

    found = in_turn(sinks, rounds, measure)
    case = f"batch, {value_bytes} B values"
    return Figure(hop="spark sink", case=case, unit="M rows/s", ours=found[OURS], peers=found[THEIRS], peer=JVM)


def micro_batches(spark: SparkSession, bootstrap: str, sinks: list[str], count: int) -> Figure:
    """The median time of a micro-batch, from a source of Spark's own that always has rows."""

    def measure(sink: str, index: int) -> float:
        topic = make_topic(bootstrap, f"small-{sink}-{index}")
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", SMALL_ROWS)
        frame = source.option("numPartitions", 2).load().selectExpr("cast(value AS string) AS value")
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            writer = frame.writeStream.format(sink).option("kafka.bootstrap.servers", bootstrap)
            query = writer.options(topic=topic, checkpointLocation=folder).start()
            try:
                return median(durations_ms(query, count)[5:])
            finally:
                query.stop()

    found = in_turn(sinks, 1, measure)
    return Figure(
        hop="spark sink",
        case=f"micro-batch of {SMALL_ROWS} rows, p50",
        unit="ms",
        ours=found[OURS],
        peers=found[THEIRS],
        peer=JVM,
        higher_is_better=False,
    )


def durations_ms(query: object, count: int) -> list[float]:
    """Of so many micro-batches, one after the other; the first few start the workers."""
    seen: dict[int, float] = {}
    while len(seen) < count + 5:
        failed = query.exception()  # type: ignore[attr-defined]
        assert failed is None, f"the query failed: {failed}"
        for progress in query.recentProgress:  # type: ignore[attr-defined]
            if progress["numInputRows"]:
                seen[progress["batchId"]] = float(progress["durationMs"]["triggerExecution"])
        time.sleep(0.2)
    return [seen[batch] for batch in sorted(seen)]


def run(*, quick: bool = False, records: int = 2_000_000) -> list[Figure]:
    count = 100_000 if quick else records
    rounds = 1 if quick else 3
    jars: list[str] = []
    note = ""
    try:
        version, found = connector_jars()
        jars = [str(jar) for jar in found]
        note = f"connector {version} on Spark 4.3; at least once"
    except CannotRun as reason:
        print(f"without {JVM}: {reason}", file=sys.stderr)
    sinks = [OURS, THEIRS] if jars else [OURS]
    with headrace_server() as server, spark_session(jars) as spark:
        figures = [
            batches(spark, server.bootstrap, sinks, 100, count, rounds),
            batches(spark, server.bootstrap, sinks, 1000, count // 4, rounds),
            micro_batches(spark, server.bootstrap, sinks, 5 if quick else 30),
        ]
    for figure in figures:
        figure.note = note
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_sink", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, proves little")
    parser.add_argument("--records", type=int, default=2_000_000, help="how many are written in a round")
    arguments = parser.parse_args()
    print(table(run(quick=arguments.quick, records=arguments.records)))


if __name__ == "__main__":
    main()
