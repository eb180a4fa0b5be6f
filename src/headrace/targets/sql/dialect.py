"""What differs between databases: quoting, types, how rows are loaded in bulk, and what an error means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError, UsageError
from headrace.targets.changes import Changes

__all__ = [
    "BACKOFF_LOADS_MAX",
    "MARK",
    "Dialect",
    "InsertBackoff",
    "Place",
    "TableName",
    "moment_texts",
    "python_columns",
]

MARK = "\0"
"""Where a parameter goes in our statements; no name can contain it, and each driver has its own mark."""
BACKOFF_LOADS_MAX = 1024


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, in a schema or in the one that the database looks in first."""

    name: str
    schema: str | None = None

    @classmethod
    def of(cls, given: str | Sequence[str]) -> TableName:
        """``"orders"``, ``"sales.orders"``, or ``("sales", "name.with.dots")``."""
        parts = given.split(".", 1) if isinstance(given, str) else list(given)
        if not 1 <= len(parts) <= 2 or not all(parts) or any(MARK in part for part in parts):
            raise UsageError(f"{given!r} is no name of a table", "use 'TABLE', 'SCHEMA.TABLE' or ('SCHEMA', 'TABLE')")
        return cls(parts[-1], parts[0] if len(parts) == 2 else None)

    def beside(self, name: str) -> TableName:
        return replace(self, name=name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(slots=True)
class InsertBackoff:
    """When to try again whether all rows of a load are new: such rows are added faster than others are merged.

    A try that failed costs time and leaves dead rows, so the next one is put off twice as long as the last; one that
    went well halves that. So a stream of updates tries once in a thousand loads.
    """

    put_off_loads: int = 0
    loads_left: int = 0

    def is_worth_a_try(self) -> bool:
        """To be asked once for every load that could try."""
        self.loads_left = max(0, self.loads_left - 1)
        return self.loads_left == 0

    def failed(self) -> None:
        self.put_off_loads = min(BACKOFF_LOADS_MAX, max(2, 2 * self.put_off_loads))
        self.loads_left = self.put_off_loads

    def went_well(self) -> None:
        self.put_off_loads //= 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows go, what they are known by, and the column that tells the older of two."""

    table: TableName
    key: tuple[str, ...] = ()
    version: str | None = None
    insert_backoff: InsertBackoff = field(default_factory=InsertBackoff, compare=False)


class Dialect(ABC):
    """A connection, and how its database wants to be spoken to. The driver's errors go through ``meaning``."""

    name_bytes_max: int
    begin_statement = "BEGIN"
    savepoint, release = "SAVEPOINT headrace_chunk", "RELEASE SAVEPOINT headrace_chunk"
    back_to_savepoint = "ROLLBACK TO SAVEPOINT headrace_chunk"
    lock_suffix = " FOR UPDATE"
    moments = pa.timestamp("us")
    """How moments are handed to the driver: without a zone, or as text with one."""
    text_key_type = "text"

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement whose parameters are MARKs, and give its rows."""

    @abstractmethod
    def close(self) -> None: ...

    def bound_lock_waits(self, seconds: int | None) -> None:  # noqa: B027 SQLite has one bound for all waits
        """How long the statements that follow wait for another session's lock; None is as the database is set up."""

    def is_lock_timeout(self, error: BaseException) -> bool:
        """Whether a statement waited for a lock for as long as it may."""
        return False

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def type_of(self, column: pa.Field, *, in_key: bool) -> str:
        """The type for a column of a table that is made."""

    @abstractmethod
    def columns(self, table: TableName) -> dict[str, str]:
        """The columns that exist, with their types; none: there is no such table."""

    @abstractmethod
    def wider(self, existing: str, column: pa.Field) -> str | None:
        """The type that an existing column needs for these values; None where it holds them already."""

    @abstractmethod
    def change_type(self, table: TableName, column: str, existing: str, kind: str) -> None:
        """Give a column another type; what else is said of the column stays."""

    def prepare(self, place: Place, names: Sequence[str]) -> None:
        """What a load needs besides, made before the savepoint that a refusal goes back to."""
        for name in names:
            self.check(name)

    @abstractmethod
    def load(self, place: Place, changes: Changes) -> None:
        """Delete and upsert by key, or add; every key comes once, and a row with a newer version stays as it is.

        Runs after ``savepoint``, and may go back to it to try another way.
        """

    def update(self, place: Place, rows: pa.Table) -> None:
        """Set some columns of rows that are there, by key, unless the row is newer."""
        names = [each for each in rows.column_names if each not in place.key]
        if not names:
            return
        order = [*names, *place.key, *([place.version] if place.version else ())]
        columns = python_columns(rows.select(order), moments=self.moments)
        for values in zip(*columns, strict=True):
            self.run(self._update_statement(place, names), values)

    def _update_statement(self, place: Place, names: Sequence[str]) -> str:
        updates = ", ".join(f"{self.quote(each)} = {MARK}" for each in names)
        tests = [f"{self.quote(each)} = {MARK}" for each in place.key]
        if place.version is not None:
            version = self.quote(place.version)
            tests.append(f"coalesce({version} <= {MARK}, {version} IS NULL)")
        return f"UPDATE {self.table(place.table)} SET {updates} WHERE {' AND '.join(tests)}"

    def empty(self, place: Place) -> None:
        """Remove all rows."""
        self.run(f"DELETE FROM {self.table(place.table)}")

    def purge(self, table: TableName) -> bool:
        """Remove from the files what was deleted from a table; False where only the database's owner can."""
        return False

    @staticmethod
    @abstractmethod
    def refuses_login(error: Exception) -> bool:
        """Whether a connection failed because of who asks, and not because of where the server is."""

    @abstractmethod
    def meaning(self, error: Exception) -> type[HeadraceError] | None:
        """RowRefused, Unavailable, UsageError, or None for an error that is not the database's."""

    def table(self, table: TableName) -> str:
        for name in (table.name, table.schema or ""):
            self.check(name)
        named = self.quote(table.name)
        return f"{self.quote(table.schema)}.{named}" if table.schema else named

    def names(self, names: Sequence[str], prefix: str = "") -> str:
        return ", ".join(f"{prefix}{self.quote(each)}" for each in names)

    def check(self, name: str) -> str:
        """PostgreSQL would silently cut a long name, and two columns might become one."""
        if len(name.encode()) > self.name_bytes_max or MARK in name:
            raise UsageError(f"{name[:80]!r} cannot be a name here", f"up to {self.name_bytes_max} bytes, no NUL")
        return name

    def create_table(self, table: TableName, schema: pa.Schema, key: Sequence[str]) -> None:
        lines = [
            f"{self.quote(self.check(each.name))} {self.type_of(each, in_key=each.name in key)}"
            + (" NOT NULL" if each.name in key else "")
            for each in schema
        ]
        if key:
            lines.append(f"PRIMARY KEY ({self.names(key)})")
        self.run(f"CREATE TABLE IF NOT EXISTS {self.table(table)} ({', '.join(lines)}){self.table_suffix()}")

    def table_suffix(self) -> str:
        return ""

    @contextmanager
    def changing_tables(self) -> Iterator[None]:
        """Around statements that make or alter tables: pipelines that start together do so one after the other."""
        self.run(self.begin_statement)
        try:
            self.lock_tables()
            yield
            self.run("COMMIT")
        except BaseException:
            self.run("ROLLBACK")
            raise

    def lock_tables(self) -> None:  # noqa: B027 most need none
        """Wait for other pipelines that make or alter tables. By default the transaction itself is the lock."""

    def add_if_new(self, table: TableName, names: Sequence[str], values: Sequence[Any]) -> None:
        """Add a row unless its key is there, also when somebody else adds it at the same moment."""
        self.run(
            f"INSERT INTO {self.table(table)} ({self.names(names)}) VALUES ({', '.join([MARK] * len(names))}) "
            "ON CONFLICT DO NOTHING",
            values,
        )

    def create_like(self, new: TableName, old: TableName) -> None:
        """An empty table with the columns, keys and indexes of another."""
        self.run(f"CREATE TABLE {self.table(new)} (LIKE {self.table(old)} INCLUDING ALL)")

    def why_not_rebuilt(self, place: Place) -> str:
        """Why the rows of a table cannot be replaced; empty where they can."""
        return ""

    def replace_rows(self, place: Place, new: TableName, schema: pa.Schema | None) -> None:
        """Let a table have the rows of another, in the columns of ``schema``; none without one.

        By key, rows that are the same in both are not touched.
        """
        if schema is None or not place.key:
            self.run(f"DELETE FROM {self.table(place.table)}")
        else:
            self._delete_missing(place, new)
        if schema is not None:
            self.run(self._insert_from(place, new, schema.names))

    def _delete_missing(self, place: Place, new: TableName) -> None:
        self.run(
            f"DELETE FROM {self.table(place.table)} AS t WHERE NOT EXISTS "
            f"(SELECT 1 FROM {self.table(new)} AS n WHERE {self._same_key(place)})"
        )

    def _insert_from(self, place: Place, new: TableName, names: Sequence[str]) -> str:
        columns = self.names(names)
        start = f"INSERT INTO {self.table(place.table)} ({columns}) SELECT {self.names(names, 'n.')} "
        if not place.key:
            return f"{start}FROM {self.table(new)} AS n"
        others = [each for each in names if each not in place.key]
        kinds = self.columns(place.table)
        tests = " AND ".join([self._same_key(place), *(self.is_same(each, kinds[each]) for each in others)])
        return (
            f"{start}FROM {self.table(new)} AS n WHERE NOT EXISTS "
            f"(SELECT 1 FROM {self.table(place.table)} AS t WHERE {tests}){self.on_same_key(place, others)}"
        )

    def _same_key(self, place: Place) -> str:
        return " AND ".join(f"t.{self.quote(each)} = n.{self.quote(each)}" for each in place.key)

    @abstractmethod
    def is_same(self, column: str, kind: str) -> str:
        """The test that a column has the same value in ``t`` and ``n``, nulls included."""

    def on_same_key(self, place: Place, others: Sequence[str]) -> str:
        updates = ", ".join(f"{each} = excluded.{each}" for each in map(self.quote, others))
        return f" ON CONFLICT ({self.names(place.key)}) DO {f'UPDATE SET {updates}' if updates else 'NOTHING'}"


def moment_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Moments in UTC as ``2026-01-31 10:00:05.123456Z``.

    Arrow writes the same text itself, but looks for the time zone at every value, which takes fifteen times as long.
    """
    plain = column.cast(pa.timestamp(column.type.unit)).cast(pa.string())
    return pc.binary_join_element_wise(plain, "Z", "")


def python_columns(table: pa.Table, *, moments: pa.DataType) -> list[list[Any]]:
    """Columns as Python values that every driver takes: decimals, dates and moments as text, all converted in bulk."""
    columns = []
    for column in table.columns:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.tz:
            column = column.cast(pa.timestamp("us", tz="UTC"))
            column = moment_texts(column) if moments.tz else column.cast(moments)
        if pa.types.is_duration(kind):
            column = column.cast(pa.int64())
        elif pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
            column = column.cast(pa.string())
        columns.append(column.to_pylist())
    return columns
