"""Spark reads a topic: through this package's source, and through Spark's own Kafka connector on the JVM.

Both read the same topic of the same broker in the same session, in turn, into a sink that throws rows away:

- raw     all columns of the source, values of 100 bytes
- json    values of about 150 bytes as typed columns; the JVM's way is ``from_json``
- ceiling the same rows from a Python source whose batches lie ready (``spark_prepared``): what Spark itself takes for
          reading any Python source, beside its own source
- floor   how long a record takes from its timestamp to a stateless pipeline's sink, one record at a time; both sources
          with the checkpoint files of a plain session and with those of ``headrace run``
- memory  of the Python workers, after the first rounds and after the last

Rows a second suffer from whatever else runs on the machine; the processor time of driver, workers and broker together,
which stands below each rate, suffers less.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import psutil
import pyspark
from confluent_kafka import Producer  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from benchmarks.figures import Figure, table
from benchmarks.meters import cpu_seconds
from benchmarks.spark_kafka_jars import connector_jars
from benchmarks.spark_prepared import PreparedSource
from headrace.client import Admin, Client
from headrace.spark.run.session import session, state_in
from tests.servers.headrace import headrace_server
from tests.servers.process import CannotRun

PARTITIONS = 4
RECORDS = 8_000_000
"""Starting a query takes both sides some tenths of a second, which are not what a rate is about."""
SCHEMA = "id long, customer string, amount double, placed_at timestamp, paid boolean, item struct<sku: string, n: int>"
JVM = "Spark's Kafka source"


@contextlib.contextmanager
def spark_session(jars: list[str], *, memory: str = "2g") -> Iterator[SparkSession]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        conf = {"spark.sql.warehouse.dir": folder, "spark.log.level": "ERROR", "spark.driver.memory": memory}
        if jars:
            conf["spark.jars"] = ",".join(jars)
        spark = session(app_name="headrace-bench", master="local[2]", conf=conf)
        spark.dataSource.register(PreparedSource)
        try:
            yield spark
        finally:
            spark.stop()


def produce(bootstrap: str, topic: str, values: Iterator[bytes]) -> None:
    with Client(bootstrap) as client:
        Admin(client).create_topic(topic, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for index, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, key=b"%d" % (index % 5000), partition=index % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def raw_values(count: int) -> Iterator[bytes]:
    source = random.Random(1)
    block = source.randbytes(4096)
    return (block[at : at + 100] for at in itertools.islice(itertools.cycle(range(3900)), count))


def json_values(count: int) -> Iterator[bytes]:
    source = random.Random(2)
    made = [
        {
            "id": index,
            "customer": f"customer-{source.randrange(10_000)}",
            "amount": round(source.uniform(1, 500), 2),
            "placed_at": f"2026-03-{1 + index % 28:02}T10:{index % 60:02}:{index % 59:02}.123Z",
            "paid": index % 3 == 0,
            "item": {"sku": f"sku-{source.randrange(500)}", "n": index % 9},
        }
        for index in range(20_000)
    ]
    texts = [json.dumps(each).encode() for each in made]
    return itertools.islice(itertools.cycle(texts), count)


def ours(spark: SparkSession, bootstrap: str, topic: str, source: str = "headrace", **options: str) -> DataFrame:
    reader = spark.read.format(source).option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def jvm(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).load()


def jvm_json(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    parsed = F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")
    kept = ("key", "topic", "partition", "offset", "timestamp", "timestampType")
    return jvm(spark, bootstrap, topic).select(parsed, *kept).select("row.*", *kept)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    ours: Callable[[], DataFrame]
    ceiling: Callable[[], DataFrame]
    jvm: Callable[[], DataFrame] | None
    rows: int
    goal: float


def throw_away(read: Callable[[], DataFrame]) -> None:
    read().write.format("noop").mode("overwrite").save()


def spend(read: Callable[[], DataFrame], broker_pid: int) -> tuple[float, float]:
    """(seconds, processor seconds of driver, workers and broker) of reading everything."""
    start, used = time.monotonic(), cpu_seconds(os.getpid()) + cpu_seconds(broker_pid)
    throw_away(read)
    return time.monotonic() - start, cpu_seconds(os.getpid()) + cpu_seconds(broker_pid) - used


def compare(case: Case, broker_pid: int, *, warm_ups: int, rounds: int) -> list[Figure]:
    """In turn. The JVM compiles what runs often, so several rounds come first that do not count."""
    sides = {"ours": case.ours, "ceiling": case.ceiling, "jvm": case.jvm}
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for index in range(warm_ups + rounds):
        for side, read in sides.items():
            if read is not None:
                spent = spend(read, broker_pid)
                if index >= warm_ups:
                    found[side].append(spent)
    return [
        *_figures(case.name, found["ours"], found["jvm"], case),
        *_figures(f"{case.name}, the ceiling: prepared batches", found["ceiling"], found["jvm"], case),
    ]


def _figures(name: str, mine: list[tuple[float, float]], theirs: list[tuple[float, float]], case: Case) -> list[Figure]:
    common = {"hop": "spark source", "peer": JVM, "case": name}
    return [
        Figure(
            **common,  # type: ignore[arg-type]
            unit="M rows/s",
            ours=[case.rows / seconds / 1e6 for seconds, _ in mine],
            peers=[case.rows / seconds / 1e6 for seconds, _ in theirs],
            goal=case.goal if name == case.name else None,
        ),
        Figure(
            **common,  # type: ignore[arg-type]
            unit="CPU s per million rows",
            ours=[used / case.rows * 1e6 for _, used in mine],
            peers=[used / case.rows * 1e6 for _, used in theirs],
            higher_is_better=False,
        ),
    ]


def floor_ms(spark: SparkSession, bootstrap: str, source: str, count: int, as_run: bool) -> list[float]:
    """From a record's timestamp to the function that gets its micro-batch, one record after the other."""
    topic = f"floor-{source}-{as_run}"
    with Client(bootstrap) as client:
        Admin(client).create_topic(topic, partitions=1)
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    delays: list[float] = []
    arrived = threading.Event()

    def take(rows: DataFrame, batch_id: int) -> None:
        for row in rows.collect():
            delays.append(time.time() * 1000 - float(bytes(row.value)))
            arrived.set()

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        stream = reader.option("startingOffsets", "earliest").load().select("value").writeStream
        with state_in(spark, None, named_once=as_run):
            query = stream.foreachBatch(take).option("checkpointLocation", folder).start()
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        for _ in range(count + 5):
            arrived.clear()
            producer.produce(topic, str(time.time() * 1000).encode())
            producer.flush()
            assert arrived.wait(60), f"nothing arrived; {query.exception()}"
            time.sleep(random.uniform(0.02, 0.2))
        query.stop()
    return delays[5:]


def worker_bytes() -> int:
    """Memory of the Python workers, the daemon that they came from included."""
    found = 0
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # workers come and go
            if "worker_daemon" in " ".join(each.cmdline()):
                found += each.memory_info().rss
    return found


def run(*, quick: bool) -> list[Figure]:
    count = 200_000 if quick else RECORDS
    jars: list[str] = []
    note = ""
    try:
        version, found = connector_jars()
        jars = [str(jar) for jar in found]
        note = f"connector {version} on Spark {pyspark.__version__}"
    except CannotRun as reason:
        print(f"without {JVM}: {reason}", file=sys.stderr)
    with headrace_server() as server, spark_session(jars) as spark:
        produce(server.bootstrap, "raw", raw_values(count))
        produce(server.bootstrap, "json", json_values(count // 2))
        figures = []
        for case in cases(spark, server.bootstrap, count, bool(jars)):
            figures += compare(case, server.pid, warm_ups=1 if quick else 3, rounds=1 if quick else 3)
        figures += [memory(spark, server.bootstrap, rounds=4 if quick else 10)]
        figures += [floor(spark, server.bootstrap, bool(jars), 5 if quick else 50, as_run) for as_run in (False, True)]
    for figure in figures:
        figure.note = figure.note or note
    return figures


def cases(spark: SparkSession, bootstrap: str, count: int, with_jvm: bool) -> list[Case]:
    typed = {"valueFormat": "json", "valueSchema": SCHEMA}
    return [
        Case(
            "raw, 100 B values",
            lambda: ours(spark, bootstrap, "raw"),
            lambda: ours(spark, bootstrap, "raw", "prepared"),
            (lambda: jvm(spark, bootstrap, "raw")) if with_jvm else None,
            count,
            4.0,
        ),
        Case(
            "JSON to typed columns",
            lambda: ours(spark, bootstrap, "json", **typed),
            lambda: ours(spark, bootstrap, "json", "prepared", **typed),
            (lambda: jvm_json(spark, bootstrap, "json")) if with_jvm else None,
            count // 2,
            5.0,
        ),
    ]


def memory(spark: SparkSession, bootstrap: str, rounds: int) -> Figure:
    """The ratio of the workers' memory after the last round to that after the second."""
    sizes = []
    for _ in range(rounds):
        throw_away(lambda: ours(spark, bootstrap, "raw"))
        sizes.append(worker_bytes() / 1e6)
    return Figure(
        hop="spark source",
        case=f"memory of the workers, round {rounds} against round 2",
        unit="MB",
        ours=[sizes[-1]],
        peers=[sizes[1]],
        peer="round 2",
        higher_is_better=False,
        goal=1.2,
    )


def floor(spark: SparkSession, bootstrap: str, with_jvm: bool, count: int, as_run: bool) -> Figure:
    mine = floor_ms(spark, bootstrap, "headrace", count, as_run)
    theirs = floor_ms(spark, bootstrap, "kafka", count, as_run) if with_jvm else []
    return Figure(
        hop="spark source",
        case="record to sink, p50, as headrace run starts it" if as_run else "record to sink, p50, a plain session",
        unit="ms",
        ours=[median(mine)],
        peers=[median(theirs)] if theirs else [],
        peer=JVM,
        higher_is_better=False,
        goal=100.0,
        absolute=True,
    )


if __name__ == "__main__":
    print(table(run(quick="--quick" in sys.argv)))
