"""The databases that ``kills.py`` kills: how each is started, written to without pause, killed, and asked for its rows.

All have the same tables: two with keys, one without, one that is emptied and gets columns, and a ledger in which every
writer adds one to its row at the begin and at the end of each transaction. Every change of a row with a key adds one to
its ``n``. What is written is the same too, as far as the databases' languages allow it.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pymysql

from headrace.capture import CaptureOptions
from headrace.errors import HeadraceError
from tests.servers.mariadb import MariadbServer, mariadb_server
from tests.servers.postgres import PostgresServer, postgres_server

__all__ = ["NAME", "SUBJECTS", "Subject", "restarted"]

NAME = "kills"
RECOVERY_TIMEOUT_S = 120.0
WRITERS = 2
PAUSE_S = 0.02
"""Behind a transaction: one in a hundred statements changes thousands of rows, and capture must keep up in the end."""


class Subject(Protocol):
    """A database under test."""

    schema: str
    options: CaptureOptions
    arguments: Sequence[str]

    def start_writing(self, seed: int) -> None: ...

    def stop_writing(self) -> None: ...

    def kill(self) -> None:
        """kill -9, and start again."""

    def rows(self, table: str) -> list[dict[str, Any]]: ...

    has_transactions: bool
    """Whether events of one transaction have one id; SQLite's changes are a transaction each."""

    def place(self, transaction: str) -> int:
        """Where a transaction stands among the others, from its id."""


class Statements:
    """What writers do, chosen at random; ``large`` is a value that a database keeps outside its row, if it does."""

    def __init__(self, seed: int, upsert: str, truncate: str, large: str, add_column: str) -> None:
        self.choose = random.Random(seed)
        self.tick = f"update ledger set n = n + 1 where id = {seed % 100}"
        self._upsert, self._truncate, self._large, self._add_column = upsert, truncate, large, add_column

    def one(self) -> str:
        choose = self.choose
        key = choose.randrange(1, 4000)
        body = self._large if choose.random() < 0.05 else f"'text {choose.randrange(1000)}'"
        statements: list[tuple[int, Callable[[], str]]] = [
            (20, lambda: f"insert into keyed values ({key}, 0, {body}) {self._upsert} n = keyed.n + 1"),
            (20, lambda: f"update keyed set n = n + 1 where id between {key} and {key + choose.randrange(5)}"),
            (5, lambda: f"update keyed set body = {body}, n = n + 1 where id = {key}"),
            (8, lambda: f"delete from keyed where id = {key}"),
            (5, lambda: f"update keyed set id = {choose.randrange(4001, 6000)}, n = n + 1 where id = {key}"),
            (8, lambda: f"update pairs set n = n + 1 where a = {key % 40} and n % 7 = {choose.randrange(7)}"),
            (4, lambda: f"update pairs set a = a + 1, n = n + 1 where b = 'k{key}'"),
            (6, lambda: f"insert into bag values ({key % 10}, {body})"),
            (3, lambda: f"update bag set b = {body} where a = {key % 10} and b < 'text 5'"),
            (3, lambda: f"delete from bag where a = {key % 10} and b > 'text 5'"),
            (6, lambda: f"insert into emptied (id, n) values ({key}, 0) {self._upsert} n = emptied.n + 1"),
            (1, lambda: "update keyed set n = n + 1"),
        ]
        return self._chosen(statements)

    def of_tables(self) -> str:
        return self._chosen(
            [(1, lambda: self._truncate), (1, lambda: f"{self._add_column} c{self.choose.randrange(4)} int")]
        )

    def _chosen(self, statements: list[tuple[int, Callable[[], str]]]) -> str:
        weights = [weight for weight, _ in statements]
        return self.choose.choices([make for _, make in statements], weights)[0]()


TABLES = (
    "create table keyed (id int primary key, n int, body text)",
    "create table pairs (a int, b varchar(20), n int, primary key (a, b))",
    "create table bag (a int, b text)",
    "create table emptied (id int primary key, n int)",
    "create table ledger (id int primary key, n int)",
)
ROWS = (
    "insert into keyed select i, i, case when i % 50 = 0 then {large} else 'small' end from {upto:3000}",
    "insert into pairs select i % 40, {pair}, i from {upto:1500}",
    "insert into bag select i % 10, 'row' from {upto:300}",
    "insert into ledger select i - 1, 0 from {upto:100}",
)


class Writer(threading.Thread):
    """Does transactions until told to stop; a database that dies under it is waited for."""

    ddl_commits = False
    """Whether a change of a table ends the transaction around it; such a change is then done outside of one."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(name="writer", daemon=True)
        self.statements = statements
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            self.session()
            time.sleep(0.05)

    def session(self) -> None:
        raise NotImplementedError

    def transaction(self, execute: Callable[[str], Any]) -> None:
        choose, statements = self.statements.choose, self.statements
        of_tables = choose.random() < 0.03
        if of_tables and self.ddl_commits:
            execute("rollback")
            execute(statements.of_tables())
            return
        execute(statements.tick)
        for _ in range(choose.choice([1, 1, 2, 5])):
            execute(statements.one())
            if choose.random() < 0.1:
                execute("savepoint s")
                execute(statements.one())
                execute("rollback to s")
        if of_tables:
            execute(statements.of_tables())
        execute(statements.tick)
        execute("rollback" if choose.random() < 0.1 else "commit")
        time.sleep(PAUSE_S)


class _Threads:
    """Writers that are threads of this process."""

    def __init__(self, make: Callable[[int], Writer]) -> None:
        self._make = make
        self._writers: list[Writer] = []

    def start(self, seed: int) -> None:
        self._writers = [self._make(seed * 100 + number) for number in range(WRITERS)]
        for each in self._writers:
            each.start()

    def stop(self) -> None:
        for each in self._writers:
            each.stop.set()
        for each in self._writers:
            each.join()


def _dicts(cursor: Any) -> list[dict[str, Any]]:
    names = [each[0] for each in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


# ---- PostgreSQL -----------------------------------------------------------------------------------------------------


class _PostgresWriter(Writer):
    def __init__(self, url: str, seed: int) -> None:
        upsert = "on conflict (id) do update set"
        add = "alter table emptied add column if not exists"
        super().__init__(Statements(seed, upsert, "truncate emptied", "repeat('y', 6000)", add))
        self._url = url

    def session(self) -> None:
        try:
            with psycopg.connect(self._url, connect_timeout=10, autocommit=True) as session:
                while not self.stop.is_set():
                    self._transaction(session)
        except psycopg.OperationalError:
            return

    def _transaction(self, session: psycopg.Connection[Any]) -> None:
        session.execute("begin")
        try:
            self.transaction(session.execute)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected, psycopg.errors.DuplicateColumn):
            session.execute("rollback")


def restarted(server: PostgresServer) -> None:
    """Start a server that was killed; its children may still hold its memory for a moment."""
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    while True:
        try:
            return server.start()
        except HeadraceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Postgres:
    """Followed through its log, with large transactions streamed or not, or by triggers."""

    schema = "public"
    has_transactions = True

    def __init__(self, stack: ExitStack, home: Path, seed: int, *, triggers: bool) -> None:
        self._server: PostgresServer = stack.enter_context(postgres_server())
        streaming = seed % 2 == 0 and not triggers
        self.arguments = ["--triggers"] if triggers else ["--streaming"] if streaming else []
        self.options = CaptureOptions(
            name=NAME, url=self._server.url(), chunk_rows=200, streaming=streaming, triggers=triggers
        )
        parts = {"large": "repeat('x', 5000)", "pair": "'k' || i"}
        with psycopg.connect(self._server.url(), autocommit=True) as session:
            for each in (*TABLES, "alter table bag replica identity full", *_filled("generate_series(1, {}) i", parts)):
                session.execute(each)
        self._threads = _Threads(lambda number: _PostgresWriter(self._server.url(), number))
        self.start_writing, self.stop_writing = self._threads.start, self._threads.stop

    def kill(self) -> None:
        self._server.kill()
        restarted(self._server)

    def rows(self, table: str) -> list[dict[str, Any]]:
        with psycopg.connect(self._server.url()) as session:
            return _dicts(session.execute(f"select * from {table}"))

    def place(self, transaction: str) -> int:
        return int(transaction.partition(":")[2])


def _filled(series: str, parts: dict[str, str]) -> list[str]:
    class Series:
        def __format__(self, count: str) -> str:
            return series.format(count)

    return [each.format(upto=Series(), **parts) for each in ROWS]


# ---- MariaDB --------------------------------------------------------------------------------------------------------

CHANGED, DUPLICATE_COLUMN, DUPLICATE_KEY, LOCK_TIMEOUT, DEADLOCK = 1020, 1060, 1062, 1205, 1213


class _MariadbWriter(Writer):
    ddl_commits = True

    def __init__(self, server: MariadbServer, seed: int) -> None:
        add = "alter table emptied add column if not exists"
        super().__init__(
            Statements(seed, "on duplicate key update", "truncate table emptied", "repeat('y', 6000)", add)
        )
        self._server = server

    def session(self) -> None:
        try:
            with closing(self._server.connect(NAME)) as session, session.cursor() as cursor:
                while not self.stop.is_set():
                    self._transaction(cursor)
        except (pymysql.Error, OSError):
            return

    def _transaction(self, cursor: Any) -> None:
        cursor.execute("begin")
        try:
            self.transaction(cursor.execute)
        except pymysql.Error as error:
            if error.args[0] not in (CHANGED, DUPLICATE_COLUMN, DUPLICATE_KEY, LOCK_TIMEOUT, DEADLOCK):
                raise
            cursor.execute("rollback")


class Mariadb:
    schema = NAME
    has_transactions = True
    arguments: Sequence[str] = ()

    def __init__(self, stack: ExitStack, home: Path, seed: int) -> None:
        self._server = stack.enter_context(mariadb_server())
        self.options = CaptureOptions(name=NAME, url=self._server.url(NAME), chunk_rows=200)
        parts = {"large": "repeat('x', 5000)", "pair": "concat('k', i)"}
        series = "(select seq as i from seq_1_to_{}) s"
        with closing(self._server.connect()) as session, session.cursor() as cursor:
            for each in (f"create database {NAME}", f"use {NAME}", *TABLES, *_filled(series, parts)):
                cursor.execute(each)
        self._threads = _Threads(lambda number: _MariadbWriter(self._server, number))
        self.start_writing, self.stop_writing = self._threads.start, self._threads.stop

    def kill(self) -> None:
        self._server.kill()
        self._server.start()

    def rows(self, table: str) -> list[dict[str, Any]]:
        with closing(self._server.connect(NAME)) as session, session.cursor() as cursor:
            cursor.execute(f"select * from {table}")
            return _dicts(cursor)

    def place(self, transaction: str) -> int:
        """A truncation that no statement in the binlog made stands between transactions: ``0-1-264/6``."""
        number, _, later = transaction.rpartition("-")[2].partition("/")
        return 2 * int(number) + bool(later)


# ---- SQLite ---------------------------------------------------------------------------------------------------------


class _SqliteWriter(Writer):
    def __init__(self, path: str, seed: int) -> None:
        large = f"'{'y' * 6000}'"
        upsert = "on conflict (id) do update set"
        super().__init__(Statements(seed, upsert, "delete from emptied", large, "alter table emptied add column"))
        self._path = path

    def session(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=60)) as session:
            while not self.stop.is_set():
                try:
                    session.execute("begin immediate")
                    self.transaction(session.execute)
                except (sqlite3.IntegrityError, sqlite3.OperationalError):  # a key, a column, a lock
                    if session.in_transaction:
                        session.execute("rollback")


class Sqlite:
    """It has no server: what is killed instead is the process that writes, in the middle of its transactions."""

    schema = "main"
    has_transactions = False
    arguments: Sequence[str] = ()

    def __init__(self, stack: ExitStack, home: Path, seed: int) -> None:
        self._path = home / "kills.db"
        self._writer: subprocess.Popen[bytes] | None = None
        self._seed = seed
        self.options = CaptureOptions(name=NAME, url=f"sqlite:///{self._path}", chunk_rows=200)
        parts = {"large": f"'{'x' * 5000}'", "pair": "'k' || i"}
        numbers = "with recursive s (i) as (values (1) union all select i + 1 from s limit {}) select i from s"
        with closing(sqlite3.connect(self._path, isolation_level=None)) as session:
            session.execute(f"pragma journal_mode = {'wal' if seed % 2 else 'delete'}")
            for each in (*TABLES, *_filled(f"({numbers})", parts)):
                session.execute(each)
        stack.callback(self.stop_writing)

    def start_writing(self, seed: int) -> None:
        script = f"from tests.capture.kills_subjects import write_sqlite; write_sqlite({str(self._path)!r}, {seed})"
        self._writer = subprocess.Popen([sys.executable, "-c", script])

    def stop_writing(self) -> None:
        if self._writer is not None:
            self._writer.send_signal(signal.SIGKILL)
            self._writer.wait()
            self._writer = None

    def kill(self) -> None:
        self.stop_writing()
        self._seed += 1000
        self.start_writing(self._seed)

    def rows(self, table: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self._path)) as session:
            return _dicts(session.execute(f"select * from {table}"))

    def place(self, transaction: str) -> int:
        return int(transaction)


def write_sqlite(path: str, seed: int) -> None:
    """The process that writes; it ends only by being killed."""
    _SqliteWriter(path, seed).run()


SUBJECTS: dict[str, Callable[[ExitStack, Path, int], Subject]] = {
    "postgresql": lambda stack, home, seed: Postgres(stack, home, seed, triggers=False),
    "triggers": lambda stack, home, seed: Postgres(stack, home, seed, triggers=True),
    "mariadb": Mariadb,
    "sqlite": Sqlite,
}
