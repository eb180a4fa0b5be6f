"""Derived systems: rows per second into each, next to what its own library does with the same rows.

- PostgreSQL   upserts through the sink, from a frame of Spark to the commit, next to psycopg: COPY into a staging table
               and INSERT … ON CONFLICT of rows that lie ready in Python. Rows that are all new, and rows that are all
               there already; the new ones next to Spark's JDBC writer too, which only appends (its driver comes from
               Maven Central, for this benchmark alone)
- Redis        documents through the target, without Spark, next to redis-py's pipelines of the same documents
- FTS5         rows through the target, which keeps the rows and their index, next to sqlite3 filling a bare index
- rebuild      a million rows from a compacted topic into a new version of a table, to the switch

Every round has a new target. ``python -m benchmarks.sinks [--quick]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import redis
from pyspark.sql import DataFrame, SparkSession

from benchmarks.figures import Figure, table
from benchmarks.spark_source import produce, spark_session
from headrace.address import Address
from headrace.spark import sinks
from headrace.spark.progress import Snapshot
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.rebuild import rebuild
from headrace.spark.run.runner import Choices
from headrace.spark.source.reading import stream
from headrace.targets.changes import Changes
from headrace.targets.redis import RedisTarget
from headrace.targets.search import SearchTarget
from headrace.targets.sql.dialect import TableName
from headrace.targets.target import Delivery, Fence, RefusedRows, Target
from tests.servers.headrace import headrace_server
from tests.servers.postgres import postgres_server
from tests.servers.process import CACHE, CannotRun
from tests.servers.redis import redis_server

__all__ = ["run"]

SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
DRIVER = "org.postgresql:postgresql:42.7.8"
COLUMNS = "id bigint primary key, customer text, email text, amount numeric(12,2), quantity int, placed_at timestamptz"
ROW = (
    "id",
    "concat('customer ', id % 1000) AS customer",
    "concat('user', id, '@example.com') AS email",
    "cast(id * 0.25 AS decimal(12,2)) AS amount",
    "cast(id % 100 AS int) AS quantity",
    "timestamp_seconds(1767225600 + id) AS placed_at",
)
NAMES = "id, customer, email, amount, quantity, placed_at"
UPDATES = ", ".join(f"{name} = excluded.{name}" for name in NAMES.split(", ")[1:])
CHUNK_ROWS = 50_000
numbers = itertools.count(1)


def orders(spark: SparkSession, count: int) -> DataFrame:
    """Held in memory, so that making them is in nobody's figure."""
    frame = spark.range(0, count, 1, 2).selectExpr(*ROW).cache()
    frame.count()
    return frame


def timed(count: int, action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return count / (time.monotonic() - began)


def in_turn(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """One round of each to warm up, then rounds in turn."""
    found: list[list[float]] = [[] for _ in measures]
    for index in range(rounds + 1):
        for values, measure in zip(found, measures, strict=True):
            value = measure()
            if index:
                values.append(value)
    return found


# ---- PostgreSQL ----------------------------------------------------------------------------------------------------


def driver_jar() -> Path:
    """The JDBC driver, from Maven Central, once."""
    if shutil.which("mvn") is None:
        raise CannotRun("the JDBC driver needs mvn, which is not installed")
    folder = CACHE / "postgresql-jdbc"
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={DRIVER}", f"-DoutputDirectory={folder}"]
    if not list(folder.glob("*.jar")):
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder)
        if done.returncode != 0:
            raise CannotRun(f"Maven could not fetch {DRIVER}: {done.stdout[-300:]}")
    return next(folder.glob("*.jar"))


def new_table(url: str, filled_from: str = "") -> str:
    name = f"orders{next(numbers)}"
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(f"create table {name} ({COLUMNS})")
        if filled_from:
            session.execute(f"insert into {name} select * from {filled_from}")
            session.execute(f"vacuum analyze {name}")
            session.execute("checkpoint")
    return name


def dropped(url: str, name: str) -> None:
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(f"drop table {name}")


def through_sink(frame: DataFrame, url: str, count: int, name: str) -> float:
    sink = sinks.sql(url, table=name, key="id")
    return timed(count, lambda: sink.write(frame))


def through_psycopg(rows: list[tuple[Any, ...]], url: str, name: str) -> float:
    def write() -> None:
        with psycopg.connect(url) as session:
            session.execute(f"create temporary table staging (like {name}) on commit drop")
            with session.cursor().copy(f"copy staging ({NAMES}) from stdin") as copy:
                for row in rows:
                    copy.write_row(row)
            session.execute(
                f"insert into {name} ({NAMES}) select {NAMES} from staging on conflict (id) do update set {UPDATES}"
            )

    return timed(len(rows), write)


def through_jdbc(frame: DataFrame, url: str, count: int, *, tuned: bool) -> float:
    """As Spark documents it, or with the one option of the driver that everybody is advised to set."""
    jdbc = "jdbc:" + url.replace("postgres@", "")
    name = new_table(url)
    options = {"user": "postgres", "driver": "org.postgresql.Driver"}
    options |= {"reWriteBatchedInserts": "true"} if tuned else {}
    return timed(count, lambda: frame.write.jdbc(jdbc, name, mode="append", properties=options))


def postgres_figures(spark: SparkSession, url: str, count: int, rounds: int, *, with_jdbc: bool) -> list[Figure]:
    frame = orders(spark, count)
    rows = [tuple(row) for row in frame.collect()]
    measures = [
        lambda: through_sink(frame, url, count, new_table(url)),
        lambda: through_psycopg(rows, url, new_table(url)),
    ]
    if with_jdbc:
        measures.append(lambda: through_jdbc(frame, url, count, tuned=False))
        measures.append(lambda: through_jdbc(frame, url, count, tuned=True))
    ours, psycopg_rates, *jdbc = in_turn(rounds, *measures)
    case = "new rows into PostgreSQL"
    figures = [Figure(hop="sinks", case=case, unit="rows/s", ours=ours, peers=psycopg_rates, peer="psycopg", goal=0.5)]
    notes = ("it only appends", "it only appends; reWriteBatchedInserts")
    for peers, note in zip(jdbc, notes, strict=False):
        peer = "Spark's JDBC writer, two connections"
        figures.append(
            Figure(hop="sinks", case=case, unit="rows/s", ours=ours, peers=peers, peer=peer, goal=1.0, note=note)
        )
    half = count // 2
    figures.append(updates_figure(frame.where(f"id < {half}"), rows[:half], url, rounds))
    frame.unpersist()
    return figures


def updates_figure(frame: DataFrame, rows: list[tuple[Any, ...]], url: str, rounds: int) -> Figure:
    """Every row is there already. Each round has its own table, so that none finds another's dead rows."""
    full = new_table(url)
    through_psycopg(rows, url, full)

    def in_full_table(measure: Callable[[str], float]) -> float:
        name = new_table(url, filled_from=full)
        try:
            return measure(name)
        finally:
            dropped(url, name)

    ours, peers = in_turn(
        rounds,
        lambda: in_full_table(lambda name: through_sink(frame, url, len(rows), name)),
        lambda: in_full_table(lambda name: through_psycopg(rows, url, name)),
    )
    case = "updates of rows in PostgreSQL"
    return Figure(hop="sinks", case=case, unit="rows/s", ours=ours, peers=peers, peer="psycopg", goal=0.5)


# ---- without Spark -------------------------------------------------------------------------------------------------


def documents(count: int) -> pa.Table:
    ids = pa.array(range(count), pa.int64())
    texts = pa.array([f"product {index} of maker {index % 97} in colour {index % 13}" for index in range(count)])
    return pa.table({"id": ids, "name": texts, "price": ids})


def deliver(target: Target, rows: pa.Table) -> None:
    chunks: Iterator[Changes] = (
        Changes(rows.slice(start, CHUNK_ROWS)) for start in range(0, rows.num_rows, CHUNK_ROWS)
    )
    session = target.open()
    try:
        session.write(Delivery(rows.schema, chunks, RefusedRows(target.shown), Fence("bench", 0, "end", "me")))
    finally:
        session.close()


def redis_figure(count: int, rounds: int) -> Figure:
    rows = documents(count)
    plain = rows.to_pylist()
    with redis_server() as server, redis.Redis.from_url(server.url()) as client:

        def ours() -> float:
            client.flushall()
            return timed(count, lambda: deliver(RedisTarget(Address(server.url()), "p:", ("id",)), rows))

        def theirs() -> float:
            client.flushall()
            return timed(count, pipelined)

        def pipelined() -> None:
            for start in range(0, count, 1000):
                with client.pipeline(transaction=False) as pipe:
                    for row in plain[start : start + 1000]:
                        pipe.set(f"p:{row['id']}", json.dumps(row))
                    pipe.execute()

        mine, peers = in_turn(rounds, ours, theirs)
    return Figure(
        hop="sinks", case="documents into Redis", unit="rows/s", ours=mine, peers=peers, peer="redis-py", goal=0.5
    )


def search_figure(count: int, rounds: int, folder: Path) -> Figure:
    rows = documents(count)
    plain = [(row["id"], row["name"]) for row in rows.to_pylist()]

    def ours() -> float:
        target = SearchTarget(
            Address(f"sqlite:///{folder}/ours{next(numbers)}.db"), TableName("products"), ("id",), None, create=True
        )
        return timed(count, lambda: deliver(target, rows))

    def theirs() -> float:
        with closing(sqlite3.connect(folder / f"bare{next(numbers)}.db")) as database:
            database.execute("create virtual table products using fts5(name)")
            return timed(count, lambda: fill(database))

    def fill(database: sqlite3.Connection) -> None:
        with database:
            database.executemany("insert into products (rowid, name) values (?, ?)", plain)

    mine, peers = in_turn(rounds, ours, theirs)
    return Figure(
        hop="sinks",
        case="entries into FTS5",
        unit="rows/s",
        ours=mine,
        peers=peers,
        peer="bare sqlite3",
        note="ours keeps the rows, their key and a fence besides the index",
    )


# ---- rebuild -------------------------------------------------------------------------------------------------------


class Progress:
    """Says how far the rebuild is."""

    def say(self, line: str) -> None:
        print(line, file=sys.stderr)

    def progressed(self, snapshot: Snapshot) -> None:
        """``show`` is called often enough."""

    def show(self, snapshots: Any) -> None:
        """The command shows this as a live line; here the end is what counts."""


def rebuild_figure(spark: SparkSession, url: str, count: int, folder: Path) -> Figure:
    with headrace_server() as server:
        values = (b'{"id":%d,"name":"product %d","price":%d}' % (index, index, index % 1000) for index in range(count))
        produce(server.bootstrap, "products", values)

        def build(session: SparkSession) -> DataFrame:
            options = {"maxOffsetsPerTrigger": 250_000}
            schema = "id long, name string, price long"
            return stream(session, "products", schema, bootstrap=server.bootstrap, **options)

        sink = sinks.sql(url, table="products", key="id", create=True)
        pipeline = Pipeline("products", build, sink)
        choices = Choices(command="bench", checkpoints=str(folder / "checkpoints"))
        began = time.monotonic()
        assert rebuild(spark, pipeline, choices, Progress(), threading.Event()), "the rebuild did not come to its end"
        took_s = time.monotonic() - began
    with psycopg.connect(url) as session:
        assert session.execute("select count(*), sum(id) from products").fetchone() == (count, count * (count - 1) // 2)
    return Figure(
        hop="sinks",
        case=f"rebuild of {count:,} rows into PostgreSQL",
        unit="rows/s",
        ours=[count / took_s],
        note=f"{took_s:.1f} s from the first read to the switch",
    )


def run(*, quick: bool = False) -> list[Figure]:
    count, rounds = (50_000, 1) if quick else (500_000, 3)
    jars: list[str] = []
    try:
        jars = [str(driver_jar())]
    except CannotRun as reason:
        print(f"without Spark's JDBC writer: {reason}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
        folder = Path(home)
        figures = [redis_figure(count // 2, rounds), search_figure(count // 2, rounds, folder)]
        with postgres_server(SETTINGS) as postgres, spark_session(jars) as spark:
            figures += postgres_figures(spark, postgres.url(), count, rounds, with_jdbc=bool(jars))
            figures.append(rebuild_figure(spark, postgres.url(), count if quick else 1_000_000, folder))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sinks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, proves little")
    print(table(run(quick=parser.parse_args().quick)))


if __name__ == "__main__":
    main()
