"""A table in PostgreSQL, MariaDB, MySQL or SQLite that follows: rows upserted and deleted by key, or added without one.

The order of a batch is the same in all of them::

    fit the table            made, or widened, where the user asked for it; before, since MariaDB commits by it
    BEGIN
      look at the fence      and lock it, so that two drivers take turns
      for every chunk        SAVEPOINT, load, RELEASE; a refusal goes back to the savepoint and halves the chunk
      dead letters           sent, at least once
      move the fence
    COMMIT                   an answer that is lost is no matter: the fence tells when the batch comes again

What differs between databases is a ``Dialect``: quoting, types, how rows are loaded in bulk, and what an error means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError, UsageError
from headrace.spark.sinks.address import Address
from headrace.spark.sinks.target import (
    REBUILT,
    Changes,
    Delivery,
    Fence,
    Letters,
    Outcome,
    RowRefused,
    Session,
    Target,
    Unavailable,
    Version,
    must_write,
    split_refused,
    usable,
    utc,
)

__all__ = [
    "FENCES",
    "MARK",
    "Dialect",
    "Hope",
    "Place",
    "SqlSession",
    "SqlTarget",
    "TableName",
    "moment_texts",
    "python_columns",
]

FENCES = "headrace_fences"
MARK = "\0"
"""Where a parameter goes in our statements; no name can contain it, and each driver has its own mark."""
NEW, OLD = "__headrace_new", "__headrace_old"
HOPELESS_LOADS_MAX = 1024


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
class Hope:
    """Whether the next rows may all be new ones, for databases that add those faster than they look for old ones.

    A try that failed costs time and leaves dead rows behind, so the next one is put off twice as long as the last; one
    that went well halves that. So a stream of updates tries once in a thousand loads.
    """

    put_off_loads: int = 0
    loads_left: int = 0

    def is_worth_a_try(self) -> bool:
        """To be asked once for every load that could try."""
        self.loads_left = max(0, self.loads_left - 1)
        return self.loads_left == 0

    def failed(self) -> None:
        self.put_off_loads = min(HOPELESS_LOADS_MAX, max(2, 2 * self.put_off_loads))
        self.loads_left = self.put_off_loads

    def went_well(self) -> None:
        self.put_off_loads //= 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows go, what they are known by, and the column that tells the older of two."""

    table: TableName
    key: tuple[str, ...] = ()
    version: str | None = None
    hope: Hope = field(default_factory=Hope, compare=False)


class Dialect(ABC):
    """A connection, and how its database wants to be spoken to. The driver's errors go through ``meaning``."""

    name_bytes_max: int
    begin_statement = "BEGIN"
    savepoint, release = "SAVEPOINT headrace_chunk", "RELEASE SAVEPOINT headrace_chunk"
    back_to_savepoint = "ROLLBACK TO SAVEPOINT headrace_chunk"
    lock_suffix = " FOR UPDATE"
    text_key_type = "text"

    @abstractmethod
    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement whose parameters are MARKs, and give its rows."""

    @abstractmethod
    def close(self) -> None: ...

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
    def alter_type(self, column: str, kind: str) -> str: ...

    def prepare(self, place: Place, names: Sequence[str]) -> None:
        """What a load needs besides, made before the savepoint that a refusal goes back to."""
        for name in names:
            self.check(name)

    @abstractmethod
    def load(self, place: Place, changes: Changes) -> None:
        """Delete and upsert by key, or add; every key comes once, and a row with a newer version stays as it is.

        Runs behind ``savepoint``, and may go back to it to try another way.
        """

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
        """PostgreSQL would cut a long name without a word, and two columns might become one."""
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

    def create_like(self, new: TableName, old: TableName) -> None:
        """An empty table with the columns, keys and indexes of another."""
        self.run(f"CREATE TABLE {self.table(new)} (LIKE {self.table(old)} INCLUDING ALL)")

    def rename(self, old: TableName, new: TableName) -> None:
        self.run(f"ALTER TABLE {self.table(old)} RENAME TO {self.quote(self.check(new.name))}")

    def swap(self, table: TableName, new: TableName, old: TableName) -> None:
        """Put ``new`` in the place of ``table``, and drop what was there."""
        if self.columns(table):
            self.rename(table, old)
        self.rename(new, table)
        self.run(f"DROP TABLE IF EXISTS {self.table(old)}")


@dataclass(frozen=True, slots=True)
class SqlTarget(Target):
    address: Address
    name: TableName
    key: tuple[str, ...] = ()
    version_column: str | None = None
    create: bool = False
    widen: bool = False
    hope: Hope = field(default_factory=Hope, compare=False, repr=False)

    @property
    def shown(self) -> str:
        return f"table {self.name} at {self.address.shown}"

    def open(self) -> SqlSession:
        return SqlSession(self, connect(self.address, self.shown))

    def version(self) -> Version:
        beside = replace(self, name=self.name.beside(self.name.name + NEW), create=True, hope=Hope())
        return Version(beside, lambda: self._with(SqlSession.begin_version), lambda: self._with(SqlSession.switch))

    def _with(self, action: Any) -> None:
        session = self.open()
        try:
            action(session)
        finally:
            session.close()


def connect(address: Address, shown: str) -> Dialect:
    scheme = address.scheme
    if scheme in ("postgresql", "postgres"):
        from headrace.spark.sinks.sql_postgres import Postgres as Chosen
    elif scheme in ("mysql", "mariadb"):
        from headrace.spark.sinks.sql_mariadb import Mariadb as Chosen  # type: ignore[assignment]
    elif scheme == "sqlite":
        from headrace.spark.sinks.sql_sqlite import Sqlite as Chosen  # type: ignore[assignment]
    else:
        raise UsageError(
            f"{address.shown} is no database that this sink knows", "postgresql://…, mysql://…, sqlite:///FILE"
        )
    try:
        return Chosen(address)
    except HeadraceError:
        raise
    except Exception as error:
        raise Unavailable(f"{shown} cannot be reached: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class SqlSession(Session):
    def __init__(self, target: SqlTarget, dialect: Dialect) -> None:
        self.target = target
        self.dialect = dialect
        self._fitted: pa.Schema | None = None
        self._has_fences = False
        self._place = Place(target.name, target.key, target.version_column, target.hope)

    def close(self) -> None:
        self.dialect.close()

    def write(self, delivery: Delivery) -> Outcome:
        with self._told():
            self.fit(delivery.schema)
            if delivery.fence is not None:
                self._make_fences()
            self.dialect.run(self.dialect.begin_statement)
            try:
                self._write(delivery)
                self.dialect.run("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        return delivery.done

    def _write(self, delivery: Delivery) -> None:
        fence, target = delivery.fence, self.target
        if fence is not None:
            last = self._last(fence.query)
            if not must_write(fence, last, keyed=bool(target.key), where=target.shown):
                delivery.done.replayed = True
                self._move(fence)
                return
        for chunk in delivery.counted():
            self._apply(Changes(utc(chunk.rows), chunk.deleted), delivery.letters)
        delivery.done.refused = delivery.letters.deliver()
        if fence is not None:
            self._move(fence)

    def _apply(self, changes: Changes, letters: Letters) -> None:
        self.dialect.prepare(self._place, changes.rows.column_names)
        if self.target.key:
            changes = usable(changes, self.target.key, letters, self.target.version_column)
        split_refused(changes, self._attempt, letters)

    def _attempt(self, changes: Changes) -> None:
        self.dialect.run(self.dialect.savepoint)
        try:
            self.load(changes)
        except Exception as error:
            if self.dialect.meaning(error) is not RowRefused:
                raise
            self.dialect.run(self.dialect.back_to_savepoint)
            self.dialect.run(self.dialect.release)
            raise RowRefused(_line(error)) from error
        self.dialect.run(self.dialect.release)

    def load(self, changes: Changes) -> None:
        self.dialect.load(self._place, changes)

    def _roll_back(self) -> None:
        """Where the connection is gone, the database has done it."""
        try:
            self.dialect.run("ROLLBACK")
        except Exception as error:
            if self.dialect.meaning(error) is None:
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """The driver's errors in our words."""
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:
            meaning = self.dialect.meaning(error)
            if meaning is None:
                raise
            if meaning is Unavailable:
                raise Unavailable(f"{self.target.shown} is away: {_line(error)}") from error
            raise UsageError(f"{self.target.shown}: {_line(error)}") from error

    # ---- the table --------------------------------------------------------------------------------------------------

    def fit(self, schema: pa.Schema) -> None:
        """Make or widen the table where asked to, and say what is missing otherwise."""
        if self._fitted is not None and self._fitted.equals(schema, check_metadata=True):
            return
        target, dialect = self.target, self.dialect
        self._check_key(schema)
        found = dialect.columns(target.name)
        if not found:
            if not target.create:
                raise UsageError(f"there is no {target.shown}", "make it, or let the sink: create=True")
            dialect.create_table(target.name, schema, target.key)
            found = dialect.columns(target.name)
        self._add_columns(schema, found)
        self._widen_columns(schema, found)
        self._fitted = schema

    def _check_key(self, schema: pa.Schema) -> None:
        version = [self.target.version_column] if self.target.version_column else []
        missing = [name for name in [*self.target.key, *version] if name not in schema.names]
        if missing:
            names = ", ".join(schema.names)
            raise UsageError(
                f"there is no column {missing[0]!r} in the rows for {self.target.shown}", f"there are: {names}"
            )

    def _add_columns(self, schema: pa.Schema, found: Mapping[str, str]) -> None:
        new = [column for column in schema if column.name not in found]
        if new and not self.target.widen:
            names = ", ".join(repr(column.name) for column in new)
            raise UsageError(f"{self.target.shown} has no column {names}", "add it, or let the sink: widen=True")
        for column in new:
            named = self.dialect.quote(self.dialect.check(column.name))
            kind = self.dialect.type_of(column, in_key=False)
            self.dialect.run(f"ALTER TABLE {self.dialect.table(self.target.name)} ADD COLUMN {named} {kind}")

    def _widen_columns(self, schema: pa.Schema, found: Mapping[str, str]) -> None:
        """Numbers only: whoever chose another type for a column knows why, and the database converts or refuses."""
        for column in schema if self.target.widen else ():
            kind = self.dialect.wider(found[column.name], column) if column.name in found else None
            if kind is not None:
                change = self.dialect.alter_type(self.dialect.quote(column.name), kind)
                self.dialect.run(f"ALTER TABLE {self.dialect.table(self.target.name)} {change}")

    # ---- the fence --------------------------------------------------------------------------------------------------

    @property
    def _fences(self) -> TableName:
        return self.target.name.beside(FENCES)

    def _make_fences(self) -> None:
        if self._has_fences:
            return
        if not self.dialect.columns(self._fences):
            kind = self.dialect.text_key_type
            self.dialect.run(
                f"CREATE TABLE IF NOT EXISTS {self.dialect.table(self._fences)} (target {kind} NOT NULL, "
                f"query {kind} NOT NULL, owner {kind} NOT NULL, batch_id bigint NOT NULL, ends text, "
                f"written_at {kind} NOT NULL, PRIMARY KEY (target, query)){self.dialect.table_suffix()}"
            )
        self._has_fences = True

    def _last(self, query: str) -> Fence | None:
        rows = self.dialect.run(
            f"SELECT batch_id, ends, owner FROM {self.dialect.table(self._fences)} WHERE target = {MARK} "
            f"AND query = {MARK}{self.dialect.lock_suffix}",
            (self.target.name.name, query),
        )
        return Fence(query, int(rows[0][0]), rows[0][1], str(rows[0][2])) if rows else None

    def _move(self, fence: Fence) -> None:
        place, where = self.dialect.table(self._fences), (self.target.name.name, fence.query)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        # Two statements that every database knows; the row is locked, or nobody else can insert its key.
        self.dialect.run(f"DELETE FROM {place} WHERE target = {MARK} AND query = {MARK}", where)
        self.dialect.run(
            f"INSERT INTO {place} (target, query, owner, batch_id, ends, written_at) VALUES ({', '.join([MARK] * 6)})",
            (*where, fence.owner, fence.batch_id, fence.ends, now),
        )

    # ---- versions ---------------------------------------------------------------------------------------------------

    def begin_version(self) -> None:
        """An empty table beside the one in use, with its columns and indexes where there is one."""
        dialect, table = self.dialect, self.target.name
        new = table.beside(table.name + NEW)
        with self._told():
            self._make_fences()
            dialect.run(f"DROP TABLE IF EXISTS {dialect.table(new)}")
            dialect.run(f"DELETE FROM {dialect.table(self._fences)} WHERE target = {MARK}", (new.name,))
            if dialect.columns(table):
                dialect.create_like(new, table)

    def switch(self) -> None:
        """In one transaction where the database has them for tables; MariaDB renames both at one moment."""
        dialect, table = self.dialect, self.target.name
        new, old = table.beside(table.name + NEW), table.beside(table.name + OLD)
        with self._told():
            if not dialect.columns(new):
                return  # an earlier attempt got this far
            dialect.run(dialect.begin_statement)
            try:
                fences = dialect.table(self._fences)
                dialect.run(f"UPDATE {fences} SET owner = {MARK} WHERE target = {MARK}", (REBUILT, table.name))
                dialect.run(f"UPDATE {fences} SET target = {MARK} WHERE target = {MARK}", (table.name, new.name))
                dialect.swap(table, new, old)
                dialect.run("COMMIT")
            except BaseException:
                self._roll_back()
                raise


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
