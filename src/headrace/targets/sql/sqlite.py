"""SQLite: a file. Decimals, dates and moments are text, moments in UTC with a Z after them; NaN is a null there."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from headrace.address import Address
from headrace.errors import HeadraceError, UsageError
from headrace.targets.changes import Changes
from headrace.targets.sql.dialect import MARK, Dialect, Place, TableName, python_columns
from headrace.targets.sql.types import kind_of
from headrace.targets.target import RowRefused, Unavailable

__all__ = ["Sqlite", "sqlite_file", "tuples"]

TYPES = {
    "boolean": "INTEGER",
    "int16": "INTEGER",
    "int32": "INTEGER",
    "int64": "INTEGER",
    "float32": "REAL",
    "float64": "REAL",
    "bytes": "BLOB",
}
BUSY_TIMEOUT_S = 30.0
AWAY = (
    "SQLITE_BUSY",
    "SQLITE_CANTOPEN",
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_LOCKED",
    "SQLITE_NOMEM",
    "SQLITE_PROTOCOL",
    "SQLITE_READONLY",
)


def sqlite_file(address: Address) -> str:
    """``sqlite:///relative.db``, ``sqlite:////absolute.db``."""
    parts = address.parts()
    path = unquote(parts.path)[1:]
    if not path or parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"{address.shown} names no file, or more than a file",
            "sqlite:///FILE, or sqlite:////ABSOLUTE/FILE; in a name %3F is a ? and %23 a #",
        )
    return path


class Sqlite(Dialect):
    name_bytes_max = 1000
    begin_statement = "BEGIN IMMEDIATE"
    moments = pa.timestamp("us", tz="UTC")
    lock_suffix = ""  # the transaction is the only one that writes

    def __init__(self, address: Address) -> None:
        self._connection = sqlite3.connect(sqlite_file(address), timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            self._connection.close()
            raise

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.replace(MARK, "?"), values).fetchall()

    def many(self, statement: str, rows: Any) -> None:
        self._connection.executemany(statement.replace(MARK, "?"), rows)

    def close(self) -> None:
        self._connection.close()

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def type_of(self, column: pa.Field, *, in_key: bool) -> str:
        return TYPES.get(kind_of(column)[0], "TEXT")

    def columns(self, table: TableName) -> dict[str, str]:
        rows = self.run(f"SELECT name, type FROM pragma_table_info({MARK}, {MARK})", (table.name, table.schema))
        return {str(name): str(kind) for name, kind in rows}

    def wider(self, existing: str, column: pa.Field) -> str | None:
        return None  # every column holds every value

    def change_type(self, table: TableName, column: str, existing: str, kind: str) -> None:
        raise AssertionError("no column of SQLite is ever too narrow")

    def create_like(self, new: TableName, old: TableName) -> None:
        """From the statement that made the other, and with its unique indexes."""
        self.check(new.name)
        (made,) = self.run(f"SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = {MARK}", (old.name,))
        definition = str(made[0])
        self.run(f"CREATE TABLE {self.table(new)} {definition[_end_of_name(definition) :]}")
        unique = f"SELECT name, partial FROM pragma_index_list({MARK}) WHERE [unique] AND origin = 'c'"
        for number, (name, is_partial) in enumerate(self.run(unique, (old.name,))):
            columns = self.run(f"SELECT name FROM pragma_index_info({MARK})", (name,))
            if is_partial or any(column is None for (column,) in columns):
                continue  # a condition or an expression; it holds when the rows are put in place
            named = self.quote(f"{new.name}_{number}")
            on = self.names([str(column) for (column,) in columns])
            self.run(f"CREATE UNIQUE INDEX {named} ON {self.quote(new.name)} ({on})")

    def why_not_rebuilt(self, place: Place) -> str:
        kinds = self.run(f"SELECT type FROM sqlite_schema WHERE name = {MARK}", (place.table.name,))
        return "" if not kinds or kinds[0][0] == "table" else "it is no table"

    def is_same(self, column: str, kind: str) -> str:
        """By bytes: a collation may ignore case."""
        return f"t.{self.quote(column)} IS n.{self.quote(column)} COLLATE BINARY"

    def load(self, place: Place, changes: Changes) -> None:
        deletes, upserts = changes.deletes(), changes.upserts()
        if deletes.num_rows:
            names = [*place.key, place.version] if place.version else list(place.key)
            self.many(self._delete(place), tuples(deletes.select(names)))
        if upserts.num_rows:
            self.many(self.upsert(place, upserts.column_names), tuples(upserts))

    def _delete(self, place: Place) -> str:
        same = " AND ".join(f"{self.quote(each)} = {MARK}" for each in place.key)
        if place.version is not None:
            same += f" AND coalesce({self.quote(place.version)} <= {MARK}, true)"  # without one it counts as it stands
        return f"DELETE FROM {self.table(place.table)} WHERE {same}"

    def upsert(self, place: Place, names: Sequence[str]) -> str:
        marks = ", ".join([MARK] * len(names))
        statement = f"INSERT INTO {self.table(place.table)} AS t ({self.names(names)}) VALUES ({marks})"
        if not place.key:
            return statement
        others = [self.quote(each) for each in names if each not in place.key]
        updates = ", ".join(f"{each} = excluded.{each}" for each in others)
        not_newer = ""
        if place.version is not None:
            version = self.quote(place.version)
            not_newer = f" AND (t.{version} IS NULL OR t.{version} <= excluded.{version})"
        then = f"UPDATE SET {updates} WHERE true{not_newer}" if updates else "NOTHING"
        return f"{statement} ON CONFLICT ({self.names(place.key)}) DO {then}"

    def purge(self, table: TableName) -> bool:
        """VACUUM writes the whole file again; then the WAL is emptied."""
        self.run("VACUUM")
        ((busy, *_),) = self.run("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise Unavailable("the WAL could not be emptied while others read: end their transactions, and purge again")
        return True

    @staticmethod
    def refuses_login(error: Exception) -> bool:
        return False  # a file asks nobody's name

    def meaning(self, error: Exception) -> type[HeadraceError] | None:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError):
            return RowRefused
        if not isinstance(error, sqlite3.Error):
            return None
        name = getattr(error, "sqlite_errorname", "") or ""
        return Unavailable if name.startswith(AWAY) else UsageError


def tuples(table: pa.Table) -> Any:
    return zip(*python_columns(table, moments=pa.timestamp("us", tz="UTC")), strict=True)


def _end_of_name(definition: str) -> int:
    """Where the columns begin in ``CREATE TABLE name (…``: the first parenthesis outside of quotes."""
    closing = {'"': '"', "`": "`", "[": "]", "'": "'"}
    until = ""
    for index, letter in enumerate(definition):
        if until:
            until = "" if letter == until else until
        elif letter in closing:
            until = closing[letter]
        elif letter == "(":
            return index
    raise AssertionError(f"SQLite keeps a table as {definition!r}")
