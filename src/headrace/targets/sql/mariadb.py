"""MariaDB and MySQL: statements of many rows. Moments are kept in UTC, since ``datetime`` knows no time zone.

``INSERT … ON DUPLICATE KEY UPDATE`` looks at every unique index of a table and not at the key alone: a table with
further ones may see another row updated than the key names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa
import pymysql

from headrace.address import Address
from headrace.errors import HeadraceError, UsageError
from headrace.targets.changes import Changes
from headrace.targets.sql.dialect import MARK, Dialect, Place, TableName, python_columns
from headrace.targets.sql.types import kind_of, number_of
from headrace.targets.target import RowRefused, Unavailable

__all__ = ["Mariadb"]

TYPES = {
    "boolean": "boolean",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "decimal": "decimal({precision},{scale})",
    "text": "longtext",
    "bytes": "longblob",
    "date": "date",
    "time": "time(6)",
    "moment": "datetime(6)",
    "datetime": "datetime(6)",
    "json": "json",
}
KEY_TYPES = {"text": "varchar(255)", "bytes": "varbinary(255)", "json": "varchar(255)"}
SQL_MODE = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
"""A value that does not fit is an error, and never cut to fit."""
STATEMENT_ROWS_MAX = 1000
STATEMENT_BYTES = 1024 * 1024
"""Far below the packet that any server takes; a single larger row is a separate statement."""
TABLES_LOCK = "headrace: tables of sinks"
TABLES_LOCK_S_MAX = 60
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 300
REFUSALS = frozenset(
    {1048, 1062, 1153, 1216, 1217, 1263, 1264, 1265, 1292, 1300, 1364, 1366, 1367, 1406, 1411, 1441, 1451, 1452, 1644}
    | {1690, 3140, 3819, 4025, 4078}
)
AWAY = frozenset(
    {
        1020,
        1021,
        1030,
        1037,
        1038,
        1040,
        1041,
        1047,
        1053,
        1077,
        1114,
        1129,
        1135,
        1158,
        1159,
        1160,
        1161,
        1180,
        1203,
        1205,
    }
    | {1213, 1226, 1290, 1317, 1412, 1615, 1637, 1836, 1927, 1969, 3024}
)
"""Connection, shutdown, locks, deadlocks, limits of a user, read-only, timeouts; and disks and memory that are full."""
LOCK_TIMEOUT = 1205
LOGIN_REFUSED = frozenset({1044, 1045, 1049, 1251, 1698, 1820, 1862})
"""A password, a right or a database that is not there, and an account that is locked or expired."""
CLIENT_ERRORS = range(2000, 3000)
FOREIGN_KEY = re.compile(r"^\s*CONSTRAINT `(?:[^`]|``)+` (FOREIGN KEY .*?),?$", re.MULTILINE)
"""As SHOW CREATE TABLE writes it, one a line."""


class Mariadb(Dialect):
    name_bytes_max = 64
    begin_statement = "START TRANSACTION"
    text_key_type = "varchar(255)"

    def __init__(self, address: Address) -> None:
        parts = address.parts()
        self._connection = pymysql.connect(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 3306,
            user=address.user(),
            password=address.password() or "",
            database=parts.path.lstrip("/") or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            write_timeout=READ_TIMEOUT_S,
        )
        self.run(f"SET SESSION sql_mode = {MARK}, time_zone = '+00:00'", (SQL_MODE,))
        self._is_mariadb = "mariadb" in str(self._connection.get_server_info()).lower()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if values:
            statement = statement.replace("%", "%%").replace(MARK, "%s")
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    def bound_lock_waits(self, seconds: int | None) -> None:
        self.run(f"SET SESSION innodb_lock_wait_timeout = {'DEFAULT' if seconds is None else seconds}")

    def is_lock_timeout(self, error: BaseException) -> bool:
        return isinstance(error, pymysql.MySQLError) and error.args[:1] == (LOCK_TIMEOUT,)

    @contextmanager
    def changing_tables(self) -> Iterator[None]:
        """By name, since DDL ends a transaction and the locks that it holds."""
        ((got,),) = self.run(f"SELECT GET_LOCK({MARK}, {MARK})", (TABLES_LOCK, TABLES_LOCK_S_MAX))
        if got != 1:
            raise Unavailable(f"another pipeline has changed tables for {TABLES_LOCK_S_MAX} s")
        try:
            yield
        finally:
            self.run(f"SELECT RELEASE_LOCK({MARK})", (TABLES_LOCK,))

    def add_if_new(self, table: TableName, names: Sequence[str], values: Sequence[Any]) -> None:
        marks = ", ".join([MARK] * len(names))
        # IGNORE would also cut values that do not fit; this sets a column to what it is.
        same = f"{self.quote(names[0])} = {self.quote(names[0])}"
        self.run(
            f"INSERT INTO {self.table(table)} ({self.names(names)}) VALUES ({marks}) ON DUPLICATE KEY UPDATE {same}",
            values,
        )

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def type_of(self, column: pa.Field, *, in_key: bool) -> str:
        kind, precision, scale = kind_of(column)
        types = {**TYPES, **KEY_TYPES} if in_key else TYPES
        return types[kind].format(precision=precision, scale=scale)

    def table_suffix(self) -> str:
        """Text is equal when its bytes are, as everywhere else; by default 'a' would be 'A' and 'a '."""
        collation = "utf8mb4_nopad_bin" if self._is_mariadb else "utf8mb4_0900_bin"
        return f" ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE {collation}"

    def columns(self, table: TableName) -> dict[str, str]:
        rows = self.run(
            "SELECT column_name, column_type FROM information_schema.columns "
            f"WHERE table_schema = coalesce({MARK}, database()) AND table_name = {MARK} ORDER BY ordinal_position",
            (table.schema, table.name),
        )
        return {str(name): str(kind) for name, kind in rows}

    def wider(self, existing: str, column: pa.Field) -> str | None:
        return number_of(existing, column, TYPES)

    def change_type(self, table: TableName, column: str, existing: str, kind: str) -> None:
        """What MODIFY does not say a column loses: NOT NULL, its default, its comment."""
        named = self.quote(column)
        ((_, definition, *_),) = self.run(f"SHOW CREATE TABLE {self.table(table)}")
        found = re.search(rf"^\s*{re.escape(named)} {re.escape(existing)}(.*?),?$", str(definition), re.MULTILINE)
        assert found is not None, f"MariaDB shows {column!r} as {existing}, and not so in {definition}"
        self.run(f"ALTER TABLE {self.table(table)} MODIFY COLUMN {named} {kind}{found[1]}")

    def create_like(self, new: TableName, old: TableName) -> None:
        """With the foreign keys, so that a row that breaks one is refused while the table is filled."""
        self.run(f"CREATE TABLE {self.table(new)} LIKE {self.table(old)}")
        ((_, definition, *_),) = self.run(f"SHOW CREATE TABLE {self.table(old)}")
        for key in FOREIGN_KEY.findall(str(definition)):
            self.run(f"ALTER TABLE {self.table(new)} ADD {key}")

    def why_not_rebuilt(self, place: Place) -> str:
        kind = self.run(
            "SELECT table_type FROM information_schema.tables "
            f"WHERE table_schema = coalesce({MARK}, database()) AND table_name = {MARK}",
            (place.table.schema, place.table.name),
        )
        if kind and "VIEW" in str(kind[0][0]):
            return "it is no table"
        found = self.run(
            "SELECT table_name FROM information_schema.referential_constraints WHERE unique_constraint_schema = "
            f"coalesce({MARK}, database()) AND referenced_table_name = {MARK} AND table_name <> referenced_table_name",
            (place.table.schema, place.table.name),
        )
        if found and not place.key:
            return f"it has no key, and {found[0][0]} refers to its rows by a foreign key; give the sink a key=…"
        return ""

    def _delete_missing(self, place: Place, new: TableName) -> None:
        self.run(
            f"DELETE t FROM {self.table(place.table)} AS t LEFT JOIN {self.table(new)} AS n "
            f"ON {self._same_key(place)} WHERE n.{self.quote(place.key[0])} IS NULL"
        )

    def is_same(self, column: str, kind: str) -> str:
        """By bytes: a collation may ignore case."""
        return f"CAST(t.{self.quote(column)} AS BINARY) <=> CAST(n.{self.quote(column)} AS BINARY)"

    def on_same_key(self, place: Place, others: Sequence[str]) -> str:
        updates = [f"{each} = VALUES({each})" for each in map(self.quote, others or place.key[:1])]
        return " ON DUPLICATE KEY UPDATE " + ", ".join(updates)

    def load(self, place: Place, changes: Changes) -> None:
        deletes, upserts = changes.deletes(), changes.upserts()
        if deletes.num_rows:
            self._delete(place, deletes)
        if upserts.num_rows:
            names = upserts.column_names
            head = f"INSERT INTO {self.table(place.table)} ({self.names(names)}) VALUES "
            one = "(" + ", ".join([MARK] * len(names)) + ")"
            self._in_groups(head, one, ", ", self._on_duplicate(place, names), upserts)

    def _delete(self, place: Place, rows: pa.Table) -> None:
        tests = [f"{self.quote(each)} = {MARK}" for each in place.key]
        names = list(place.key)
        if place.version is not None:
            version = self.quote(place.version)
            tests.append(f"coalesce({version} <= {MARK}, true)")
            names.append(place.version)
        head = f"DELETE FROM {self.table(place.table)} WHERE "
        self._in_groups(head, "(" + " AND ".join(tests) + ")", " OR ", "", rows.select(names))

    def _on_duplicate(self, place: Place, names: Sequence[str]) -> str:
        """Assignments take effect from left to right, so the version, which all of them look at, comes last."""
        if not place.key:
            return ""
        others = [each for each in names if each not in (*place.key, place.version)]
        if place.version is None:
            updates = [f"{each} = VALUES({each})" for each in map(self.quote, others or place.key[:1])]
        else:
            version = self.quote(place.version)
            newer = f"coalesce(VALUES({version}) >= {version}, {version} IS NULL)"
            updates = [f"{each} = IF({newer}, VALUES({each}), {each})" for each in map(self.quote, others)]
            updates.append(f"{version} = IF({newer}, VALUES({version}), {version})")
        return " ON DUPLICATE KEY UPDATE " + ", ".join(updates)

    def _in_groups(self, head: str, one: str, between: str, tail: str, table: pa.Table) -> None:
        """Statements of many rows, whose values follow one another."""
        for group in _groups(table):
            rows = list(zip(*python_columns(group, moments=pa.timestamp("us")), strict=True))
            self.run(head + between.join([one] * len(rows)) + tail, list(chain.from_iterable(rows)))

    @staticmethod
    def refuses_login(error: Exception) -> bool:
        return isinstance(error, pymysql.Error) and bool(error.args) and error.args[0] in LOGIN_REFUSED

    def meaning(self, error: Exception) -> type[HeadraceError] | None:
        if not isinstance(error, pymysql.Error):
            return None
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if code in REFUSALS or "can not be used with MySQL" in str(error):
            return RowRefused
        if code in AWAY or code in CLIENT_ERRORS or isinstance(error, pymysql.InterfaceError):
            return Unavailable
        return UsageError


def _groups(table: pa.Table) -> Iterator[pa.Table]:
    size = max(1, table.nbytes // max(1, table.num_rows))
    rows = max(1, min(STATEMENT_ROWS_MAX, STATEMENT_BYTES // size))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)
