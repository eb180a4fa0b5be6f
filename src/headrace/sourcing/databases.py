"""The database that views are kept in: SQLite or PostgreSQL, with one small interface for both.

Statements are written with ``?``. What runs in one ``writing()`` is one transaction.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from headrace.address import Address
from headrace.errors import UsageError
from headrace.sourcing.errors import SourcingError, StoreUnavailable
from headrace.sourcing.forks import Opener
from headrace.sourcing.opening import sqlite_path
from headrace.sourcing.sqlite import LOCK_TIMEOUT_S, explained, purge_file, use_wal

__all__ = ["Database", "Transaction", "open_database"]

Row = tuple[Any, ...]
MAKING_VIEWS = 0x76696577
"""The advisory lock of those who make tables of views: two at once would fail, also with "if not exists"."""


class Transaction(ABC):
    """Runs statements; what they change counts when the transaction ends."""

    @abstractmethod
    def execute(self, statement: str, *values: Any) -> list[Row]:
        """Run a statement with ``?`` for each value; gives the rows of a query."""

    @abstractmethod
    def alone(self) -> None:
        """Wait for others who make tables, and let them wait until the end of this transaction."""


class Database(ABC):
    shown: str

    @abstractmethod
    def writing(self) -> Any:
        """A context manager: a ``Transaction`` that is committed at the end, or rolled back when it raises."""

    @abstractmethod
    def ask(self, statement: str, *values: Any) -> list[Row]:
        """Run one query."""

    @abstractmethod
    def purge(self) -> None:
        """Remove from the files what was deleted from the tables."""

    @abstractmethod
    def close(self) -> None: ...


class _SqliteTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: Any) -> list[Row]:
        return self._connection.execute(statement, values).fetchall()

    def alone(self) -> None:
        """It is: a file has one writer."""


class SqliteDatabase(Database):
    """Deleted rows are overwritten (secure_delete); one writer at a time, so each transaction is short."""

    def __init__(self, path: Path) -> None:
        self.shown = f"sqlite:///{path}"
        self._path = path
        self._opener = Opener()
        self._lock = threading.Lock()
        if not path.parent.is_dir():
            raise UsageError(f"there is no folder {path.parent}", f"mkdir -p {path.parent}")
        with self._explained():
            self._connection = self._connected()

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=LOCK_TIMEOUT_S, check_same_thread=False)
        use_wal(connection)
        connection.execute("pragma synchronous = full")
        connection.execute("pragma secure_delete = on")
        return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explained(self.shown, error) from error

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        self._opener.check(self.shown)
        with self._lock, self._explained():
            try:
                self._connection.execute("begin immediate")
                yield _SqliteTransaction(self._connection)
                self._connection.execute("commit")
            except BaseException:
                self._connection.rollback()
                raise

    def ask(self, statement: str, *values: Any) -> list[Row]:
        self._opener.check(self.shown)
        with self._explained(), closing(self._connected()) as connection:
            return connection.execute(statement, values).fetchall()

    def purge(self) -> None:
        with self._explained():
            purge_file(self._path)

    def close(self) -> None:
        if self._opener.is_here:
            self._connection.close()


class _PostgresTransaction(Transaction):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, *values: Any) -> list[Row]:
        if values:  # then the driver looks for %s, and a % of the statement is written twice
            statement = statement.replace("%", "%%").replace("?", "%s")
        cursor = self._connection.execute(statement.encode(), values or None)
        rows: list[Row] = cursor.fetchall() if cursor.description else []
        return rows

    def alone(self) -> None:
        self.execute("select pg_advisory_xact_lock(?)", MAKING_VIEWS)


class PostgresDatabase(Database):
    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ModuleNotFoundError as error:
            raise UsageError(
                "views in PostgreSQL need the package psycopg", "pip install 'headrace[sourcing]'"
            ) from error
        self._psycopg = psycopg
        self._address = Address(url)
        self.shown = self._address.shown
        self._opener = Opener()
        self._lock = threading.Lock()
        self._connection: Any = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            self._drop()
            text = self._address.hidden_in(f"{self.shown}: {str(error).strip()}")
            passing = isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError)
            raise (StoreUnavailable(text) if passing else SourcingError(text)) from error

    def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._psycopg.connect(self._address.resolved(), autocommit=True)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        self._opener.check(self.shown)
        with self._lock, self._explained(), self._connected().transaction():
            yield _PostgresTransaction(self._connection)

    def ask(self, statement: str, *values: Any) -> list[Row]:
        self._opener.check(self.shown)
        with self._lock, self._explained():
            return _PostgresTransaction(self._connected()).execute(statement, *values)

    def purge(self) -> None:
        """VACUUM FULL writes every table of the views again."""
        names: Sequence[Row] = self.ask(
            "select quote_ident(tablename) from pg_tables where schemaname = current_schema() "
            "and (tablename = 'headrace_projections' or tablename ~ '__g[0-9]+$')"
        )
        from headrace.sourcing.postgres import purge_tables

        with self._lock, self._explained():
            purge_tables(self._connected(), [name for (name,) in names], self.shown)

    def close(self) -> None:
        if self._opener.is_here:
            with self._lock:
                self._drop()


def open_database(url: str | Path) -> Database:
    """sqlite:///FILE, the path of a file, or postgresql://…"""
    if isinstance(url, Path) or "://" not in url:
        url = f"sqlite:///{url}"
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        return SqliteDatabase(sqlite_path(url))
    if scheme in ("postgresql", "postgres"):
        return PostgresDatabase(url)
    raise UsageError(f"{Address(url).shown} cannot keep views", "use sqlite:///FILE or postgresql://USER@HOST/DATABASE")
