"""Kill -9 of capture, broker and database: ``python -m tests.capture.kills --kills 200 --seed 7``.

A PostgreSQL, a broker and ``headrace capture run`` are children of this process. Writers change tables at random,
without pause: insertions, updates, deletions, changed keys, large values, savepoints, truncations, new columns,
transactions of one row and of thousands. All the while one of the three is killed and started again, from the very
beginning on, so that snapshots are hit too. In the end writers stop, capture catches up, and then folding the topics
must give the tables exactly, every event must be there once, and in the order of commits.

The seed decides what is done and killed; threads and processes add what no seed decides.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg

from headrace.capture import CaptureOptions
from headrace.testing import broker
from headrace.testing.broker import ChildBroker
from tests.capture.world import catch_up, check_numbering, check_order, events, fold, fold_bag
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.process import CannotRun, log_tail

COMMAND = Path(sys.executable).with_name("headrace")
NAME = "kills"
SCHEMA = (
    "create table keyed (id int primary key, n int, body text)",
    "create table pairs (a int, b text, n int, primary key (a, b))",
    "create table bag (a int, b text)",
    "alter table bag replica identity full",
    "create table emptied (id int primary key, n int)",
    "insert into keyed select i, i, case when i % 50 = 0 then repeat('x', 5000) else 'small' end"
    " from generate_series(1, 3000) i",
    "insert into pairs select i % 40, 'k' || i, i from generate_series(1, 1500) i",
    "insert into bag select i % 10, 'row' from generate_series(1, 300) i",
)
RECOVERY_TIMEOUT_S = 120.0


class WriterThread(threading.Thread):
    """Changes tables at random until told to stop; a database that dies under it is waited for."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(name=f"writer-{seed}", daemon=True)
        self._url = url
        self._random = random.Random(seed)
        self.stop = threading.Event()
        self.committed = 0

    def run(self) -> None:
        while not self.stop.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(self._url, connect_timeout=10) as session:
                while not self.stop.is_set():
                    self._transaction(session)
            time.sleep(0.05)

    def _transaction(self, session: psycopg.Connection[Any]) -> None:
        choose = self._random
        try:
            for _ in range(choose.choice([1, 1, 2, 5])):
                session.execute(self._statement())
                if choose.random() < 0.1:
                    session.execute("savepoint s")
                    session.execute(self._statement())
                    session.execute("rollback to s")
            if choose.random() < 0.1:
                session.rollback()
            else:
                session.commit()
                self.committed += 1
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected, psycopg.errors.DuplicateColumn):
            session.rollback()

    def _statement(self) -> str:
        choose = self._random
        key = choose.randrange(1, 4000)
        body = "repeat('y', 6000)" if choose.random() < 0.05 else f"'text {choose.randrange(1000)}'"
        statements: list[tuple[int, Callable[[], str]]] = [
            (20, lambda: f"insert into keyed values ({key}, 0, {body}) on conflict (id) do update set n = keyed.n + 1"),
            (20, lambda: f"update keyed set n = n + 1 where id between {key} and {key + choose.randrange(5)}"),
            (5, lambda: f"update keyed set body = {body} where id = {key}"),
            (8, lambda: f"delete from keyed where id = {key}"),
            (5, lambda: f"update keyed set id = {choose.randrange(1, 6000)} where id = {key}"),
            (8, lambda: f"update pairs set n = n + 1 where a = {key % 40} and n % 7 = {choose.randrange(7)}"),
            (4, lambda: f"update pairs set a = a + 1 where b = 'k{key}'"),
            (6, lambda: f"insert into bag values ({key % 10}, {body})"),
            (3, lambda: f"update bag set b = {body} where a = {key % 10} and b < 'text 5'"),
            (3, lambda: f"delete from bag where a = {key % 10} and b > 'text 5'"),
            (6, lambda: f"insert into emptied values ({key}, 1) on conflict do nothing"),
            (1, lambda: "truncate emptied"),
            (1, lambda: "update keyed set n = n + 1"),
            (1, lambda: f"alter table emptied add column if not exists c{choose.randrange(4)} int"),
        ]
        weights = [weight for weight, _ in statements]
        return choose.choices([make for _, make in statements], weights)[0]()


class Rig:
    """The three that are killed."""

    def __init__(self, database: PostgresServer, log: ChildBroker, home: Path, streaming: bool) -> None:
        self.database = database
        self.log = log
        self._output = home / "capture.log"
        self._arguments = ["--chunk-rows", "200", "--heartbeat", "0.5", *(["--streaming"] if streaming else [])]
        self._capture: subprocess.Popen[bytes] | None = None
        self.options = CaptureOptions(name=NAME, url=database.url(), chunk_rows=200, streaming=streaming)

    def start_capture(self) -> None:
        command = [str(COMMAND), "capture", "run", NAME, self.database.url(), *self._arguments]
        command += ["--bootstrap", self.log.bootstrap]
        with self._output.open("ab") as output:
            self._capture = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def kill_capture(self) -> None:
        if self._capture is not None:
            self._capture.kill()
            self._capture.wait()
            self._capture = None

    def kill(self, which: str) -> None:
        if which == "capture":
            self.kill_capture()
        elif which == "broker":
            self.log.kill()
            self.log.start()
        else:
            self.database.kill()
            restarted(self.database)
        if self._capture is None or self._capture.poll() is not None:
            self.kill_capture()
            self.start_capture()

    def tail(self) -> str:
        return log_tail(self._output, 60)


def restarted(database: PostgresServer) -> None:
    """Start again; children of the killed server may still hold its memory for a moment."""
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    while True:
        try:
            database.start()
            return
        except CannotRun:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def rows_of(session: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
    cursor = session.execute(f"select * from {table}")
    names = [each.name for each in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """A column added after an event is missing in it, and null in the table."""
    return {name: value for name, value in row.items() if value is not None}


def check(rig: Rig) -> dict[str, int]:
    """Compare topics and tables; gives the number of events of each."""
    counts = {}
    everything = []
    with psycopg.connect(rig.database.url()) as session:
        for table, key in (("keyed", ["id"]), ("pairs", ["a", "b"]), ("emptied", ["id"])):
            found = events(rig.log.bootstrap, f"{NAME}.public.{table}")
            expected = {
                json.dumps({name: row[name] for name in key}): without_nulls(row) for row in rows_of(session, table)
            }
            folded = {name: without_nulls(row) for name, row in fold(found).items()}
            wrong = {each for each in folded.keys() | expected.keys() if folded.get(each) != expected.get(each)}
            assert not wrong, [(each, folded.get(each), expected.get(each)) for each in sorted(wrong)[:3]]
            check_order([each for each in found if each.op != "r"])
            counts[table] = len(found)
            everything += found
        found = events(rig.log.bootstrap, f"{NAME}.public.bag")
        assert fold_bag(found) == sorted(json.dumps(row) for row in rows_of(session, "bag"))
        counts["bag"] = len(found)
    check_numbering([*everything, *found])
    return counts


def run(kills: int, seed: int, *, least_s: float, most_s: float) -> str:
    choose = random.Random(seed)
    home = Path(tempfile.mkdtemp(prefix="headrace-kills-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        database = stack.enter_context(postgres_server())
        log = stack.enter_context(broker(in_process=False))
        with psycopg.connect(database.url(), autocommit=True) as session:
            for statement in SCHEMA:
                session.execute(statement)
        rig = Rig(database, log, home, streaming=seed % 2 == 0)
        stack.callback(rig.kill_capture)
        writers = [WriterThread(database.url(), seed * 100 + number) for number in range(2)]
        for writer in writers:
            writer.start()
        rig.start_capture()
        try:
            for _ in range(kills):
                time.sleep(choose.uniform(least_s, most_s))
                rig.kill(choose.choices(["capture", "broker", "database"], [3, 1, 1])[0])
        finally:
            for writer in writers:
                writer.stop.set()
            for writer in writers:
                writer.join()
        rig.kill_capture()
        try:
            catch_up(log.bootstrap, rig.options)
            counts = check(rig)
        except BaseException:
            print(rig.tail())
            raise
        written = sum(writer.committed for writer in writers)
        return f"sound: {kills} kills, seed {seed}, {written} transactions, events {counts}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.capture.kills")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1, help="each with fresh servers and the next seed")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--least-s", type=float, default=0.1)
    parser.add_argument("--most-s", type=float, default=2.0)
    arguments = parser.parse_args()
    for number in range(arguments.rounds):
        seed = arguments.seed + number
        print(run(arguments.kills, seed, least_s=arguments.least_s, most_s=arguments.most_s), flush=True)


if __name__ == "__main__":
    main()
