"""MariaDB and MySQL: statements of many rows. Moments are kept in UTC, since ``datetime`` knows no time zone.

``INSERT … ON DUPLICATE KEY UPDATE`` looks at every unique index of a table and not at the key alone: a table with
further ones may see another row updated than the key names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pymysql

from headrace.errors import HeadraceError, UsageError
from headrace.spark.sinks.address import Address
from headrace.spark.sinks.sql_types import kind_of, number_of
from headrace.spark.sinks.target import Changes, RowRefused, Unavailable
from headrace.spark.sinks.to_sql import MARK, Dialect, Place, TableName, python_columns

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
"""Far below the packet that any server takes; a single larger row is a statement of its own."""
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 300
REFUSALS = frozenset(
    {1048, 1062, 1153, 1216, 1217, 1263, 1264, 1265, 1292, 1300, 1364, 1366, 1367, 1406, 1411, 1441, 1451, 1452, 1644}
    | {1690, 3140, 3819, 4025, 4078}
)
AWAY = frozenset(
    {1021, 1030, 1037, 1038, 1040, 1041, 1047, 1053, 1077, 1114, 1129, 1135, 1158, 1159, 1160, 1161, 1180, 1203, 1205}
    | {1213, 1226, 1290, 1317, 1412, 1615, 1637, 1836, 1927, 1969, 3024}
)
"""Connection, shutdown, locks, deadlocks, limits of a user, read-only, timeouts; and disks and memory that are full."""
CLIENT_ERRORS = range(2000, 3000)


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

    def alter_type(self, column: str, kind: str) -> str:
        return f"MODIFY COLUMN {column} {kind}"

    def create_like(self, new: TableName, old: TableName) -> None:
        self.run(f"CREATE TABLE {self.table(new)} LIKE {self.table(old)}")

    def swap(self, table: TableName, new: TableName, old: TableName) -> None:
        """Both names change at one moment; this ends the transaction, so fences that were moved are kept with it."""
        self.run(f"DROP TABLE IF EXISTS {self.table(old)}")
        moves = [(table, old)] if self.columns(table) else []
        moves.append((new, table))
        self.run("RENAME TABLE " + ", ".join(f"{self.table(a)} TO {self.table(b)}" for a, b in moves))
        self.run(f"DROP TABLE IF EXISTS {self.table(old)}")

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
            newer = f"coalesce(VALUES({version}) >= {version}, true)"
            updates = [f"{each} = IF({newer}, VALUES({each}), {each})" for each in map(self.quote, others)]
            updates.append(f"{version} = IF({newer}, VALUES({version}), {version})")
        return " ON DUPLICATE KEY UPDATE " + ", ".join(updates)

    def _in_groups(self, head: str, one: str, between: str, tail: str, table: pa.Table) -> None:
        """Statements of many rows, each with its values behind one another."""
        for group in _groups(table):
            rows = list(zip(*python_columns(group, moments=pa.timestamp("us")), strict=True))
            self.run(head + between.join([one] * len(rows)) + tail, list(chain.from_iterable(rows)))

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
