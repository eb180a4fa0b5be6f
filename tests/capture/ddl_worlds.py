"""The databases that ``ddl.py`` changes: how each takes a step, shows its tables, and is put back to an old copy."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pymysql

from tests.capture.judge import Fault, Row, rendered
from tests.servers.mariadb import MariadbServer, mariadb_server
from tests.servers.postgres import PostgresServer, postgres_server

__all__ = ["WORLDS", "World"]

HARM_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 60.0
STATEMENT_S_MAX = 5.0


class World(Protocol):
    """A database under test, and a session in it."""

    schema: str
    url: str
    arguments: Sequence[str]

    def transaction(self, statements: Sequence[str]) -> bool:
        """Whether the database took it; nothing has happened otherwise, as far as the database can undo it."""

    def alone(self, statement: str) -> bool: ...

    def tables(self) -> dict[str, list[Row]]:
        """Every table that has a topic, with its rows."""

    def unjudged(self) -> set[str]:
        """Tables of which the documentation promises less: see LIMITS."""

    def backup(self) -> None: ...

    def restore(self) -> None: ...

    def crash(self) -> None: ...

    def close(self) -> None: ...


def _dicts(cursor: Any) -> list[Row]:
    names = [each[0] for each in cursor.description]
    return [rendered(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


# ---- PostgreSQL -----------------------------------------------------------------------------------------------------


class PostgresWorld:
    schema = "public"

    def __init__(self, server: PostgresServer, name: str, *, triggers: bool) -> None:
        self._server = server
        self._copy = server.home / "copy"
        self._by_triggers = triggers
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"create database {name}")
        self.url = server.url(name)
        self.arguments = ["--triggers"] if triggers else []
        self._session = self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                return psycopg.connect(self.url, autocommit=True)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def transaction(self, statements: Sequence[str]) -> bool:
        deadline = time.monotonic() + HARM_TIMEOUT_S
        while True:
            try:
                for each in ("begin", *statements):
                    self._session.execute(each)
                return True
            except psycopg.Error as error:
                self._session.execute("rollback")
                if "publishes" not in str(error):
                    return False
                if time.monotonic() > deadline:
                    raise Fault(f"the application is refused its own change: {error}") from error
                time.sleep(0.2)

    def alone(self, statement: str) -> bool:
        try:
            self._session.execute(statement)
        except psycopg.Error:
            return False
        return True

    def tables(self) -> dict[str, list[Row]]:
        found = self._session.execute(
            "select relname, relkind from pg_class where relnamespace = 'public'::regnamespace "
            "and relkind in ('r', 'p') and not relispartition and relpersistence = 'p'"
        ).fetchall()
        only = {"r": "only ", "p": ""}
        return {name: _dicts(self._session.execute(f'select * from {only[kind]}"{name}"')) for name, kind in found}

    def close(self) -> None:
        self._session.close()

    def unjudged(self) -> set[str]:
        partitions = "select relname from pg_class where relispartition"
        without = (
            "select c.relname from pg_class c where c.relkind in ('r', 'p') and c.relreplident <> 'f' and not exists "
            "(select from pg_index i where i.indrelid = c.oid and case when c.relreplident = 'i' then i.indisreplident "
            "else c.relreplident = 'd' and i.indisprimary end)"
        )
        unlogged = "select relname from pg_class where relpersistence = 'u'"
        queries = [partitions, unlogged] if self._by_triggers else [partitions, unlogged, without]
        return {row[0] for query in queries for row in self._session.execute(query)}

    def backup(self) -> None:
        self._session.close()
        self._server.stop()
        shutil.rmtree(self._copy, ignore_errors=True)
        _copy(self._server.home / "data", self._copy)
        self._server.start()
        self._session = self._connect()

    def restore(self) -> None:
        if not self._copy.exists():
            return
        self._session.close()
        self._server.stop()
        shutil.rmtree(self._server.home / "data")
        _copy(self._copy, self._server.home / "data")
        self._server.start()
        self._session = self._connect()

    def crash(self) -> None:
        self._session.close()
        self._server.stop()  # immediate: as after a loss of power
        self._server.start()
        self._session = self._connect()


def _copy(source: Path, target: Path) -> None:
    """With the owner of each file; a restored copy has a server that does not run."""
    shutil.copytree(source, target, symlinks=True)
    for each in (source, *source.rglob("*")):
        place, status = target / each.relative_to(source), each.lstat()
        with suppress(FileNotFoundError):
            os.lchown(place, status.st_uid, status.st_gid)
    (target / "postmaster.pid").unlink(missing_ok=True)


# ---- MariaDB --------------------------------------------------------------------------------------------------------

REFUSED = (pymysql.err.ProgrammingError, pymysql.err.OperationalError, pymysql.err.IntegrityError)


class MariadbWorld:
    arguments: Sequence[str] = ()

    def __init__(self, server: MariadbServer, name: str) -> None:
        self._server = server
        self._copy = server.home / "copy"
        self.schema = name
        with closing(server.connect()) as admin, admin.cursor() as cursor:
            cursor.execute(f"create database {name}")
        self.url = server.url(name)
        self._session = server.connect(name)

    def transaction(self, statements: Sequence[str]) -> bool:
        """DDL commits what is before it, so a refused transaction may have happened in part."""
        with self._session.cursor() as cursor:
            try:
                for each in ("begin", *statements):
                    cursor.execute(each)
            except (pymysql.err.MySQLError, ValueError):
                cursor.execute("rollback")
                return False
        return True

    def alone(self, statement: str) -> bool:
        return self.transaction([statement])

    def tables(self) -> dict[str, list[Row]]:
        with self._session.cursor() as cursor:
            cursor.execute("show full tables where table_type <> 'VIEW'")
            names = [row[0] for row in cursor.fetchall()]
            found = {}
            for each in names:
                cursor.execute(f"select * from `{each}`")
                found[each] = _dicts(cursor)
            return found

    def close(self) -> None:
        self._session.close()

    def unjudged(self) -> set[str]:
        return set()

    def backup(self) -> None:
        self._with_server_stopped(lambda: self._copied(self._server.home / "data", self._copy))

    def restore(self) -> None:
        if self._copy.exists():
            self._with_server_stopped(lambda: self._copied(self._copy, self._server.home / "data"))

    def _copied(self, source: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        _copy(source, target)

    def _with_server_stopped(self, work: Callable[[], None]) -> None:
        self._session.close()
        self._server.stop()
        work()
        self._server.start()
        self._session = self._server.connect(self.schema)

    def crash(self) -> None:
        self._session.close()
        self._server.kill()
        self._server.start()
        self._session = self._server.connect(self.schema)


# ---- SQLite ---------------------------------------------------------------------------------------------------------


class SqliteWorld:
    schema = "main"
    arguments: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"
        self._until_s = math.inf
        self._session = self._connect()

    def _connect(self) -> sqlite3.Connection:
        session = sqlite3.connect(self._path, isolation_level=None, timeout=30)
        session.execute("pragma journal_mode = wal")
        session.execute("pragma foreign_keys = on")
        session.execute("pragma recursive_triggers = on")
        session.set_progress_handler(lambda: time.monotonic() > self._until_s, 10_000)
        return session

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Triggers that were made at random may set each other off without end: then they are refused."""
        self._until_s = time.monotonic() + STATEMENT_S_MAX
        try:
            yield
        finally:
            self._until_s = math.inf

    def transaction(self, statements: Sequence[str]) -> bool:
        try:
            for each in ("begin immediate", *statements):
                with self._in_time():
                    self._session.execute(each)
        except sqlite3.Error:
            if self._session.in_transaction:
                self._session.execute("rollback")
            return False
        return True

    def alone(self, statement: str) -> bool:
        try:
            with self._in_time():
                self._session.execute(statement)
        except sqlite3.Error:
            return False
        return True

    def tables(self) -> dict[str, list[Row]]:
        names = self._session.execute(
            "select name from sqlite_schema where type = 'table' and name not like '\\_headrace%' escape '\\' "
            "and name not like 'sqlite%'"
        ).fetchall()
        return {name: _dicts(self._session.execute(f'select * from "{name}"')) for (name,) in names}

    def close(self) -> None:
        self._session.close()

    def unjudged(self) -> set[str]:
        return set()

    def backup(self) -> None:
        with closing(sqlite3.connect(f"{self._path}.copy")) as copy:
            self._session.backup(copy)

    def restore(self) -> None:
        copy = Path(f"{self._path}.copy")
        if not copy.exists():
            return
        self._session.close()
        fresh = Path(f"{self._path}.fresh")
        shutil.copy(copy, fresh)
        for each in ("-wal", "-shm"):
            Path(f"{self._path}{each}").unlink(missing_ok=True)
        fresh.replace(self._path)
        self._session = self._connect()

    def crash(self) -> None:
        """There is no server; a session that ends without a word is what comes closest."""
        self._session.close()
        self._session = self._connect()


@contextmanager
def _sqlite(home: Path) -> Iterator[Callable[[str], World]]:
    yield lambda name: SqliteWorld(home / f"{name}.db")


@contextmanager
def _mariadb(home: Path) -> Iterator[Callable[[str], World]]:
    with mariadb_server() as server:
        yield lambda name: MariadbWorld(server, name)


@contextmanager
def _postgres(home: Path, *, triggers: bool) -> Iterator[Callable[[str], World]]:
    with postgres_server({"max_replication_slots": "50"}) as server:
        yield lambda name: PostgresWorld(server, name, triggers=triggers)


WORLDS: dict[str, Any] = {
    "postgresql": lambda home: _postgres(home, triggers=False),
    "triggers": lambda home: _postgres(home, triggers=True),
    "mariadb": _mariadb,
    "sqlite": _sqlite,
}
