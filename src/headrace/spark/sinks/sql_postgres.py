"""PostgreSQL: a chunk is one COPY into a staging table, one DELETE and one INSERT … ON CONFLICT.

The staging table is temporary and has the columns of the target, so every value is read by the target's own types: text
becomes a uuid, an enum or jsonb where the table has one. Rows travel as CSV that Arrow writes: no value passes through
Python, except bytes, for which Arrow knows no hexadecimal.

A chunk that may be all new rows is tried as one COPY into the table itself, which costs less than half. The first row
that is there already, or that the table does not take, ends it; the chunk goes back to its savepoint and by the staging
table, which decides. So the short way never tells of a refusal and never changes an outcome. It is taken only where
COPY does what INSERT … ON CONFLICT does: an ordinary table with a unique index on the key, without triggers, rules, row
security and columns that are always generated, and for rows without deletions and versions.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import csv

from headrace.errors import HeadraceError, UsageError
from headrace.spark.sinks.address import Address
from headrace.spark.sinks.sql_types import DECIMAL, INTEGERS, kind_of, number_of
from headrace.spark.sinks.target import Changes, RowRefused, Unavailable
from headrace.spark.sinks.to_sql import MARK, Dialect, Place, TableName, moment_texts

__all__ = ["Postgres"]

TYPES = {
    "boolean": "boolean",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float32": "real",
    "float64": "double precision",
    "decimal": "numeric({precision},{scale})",
    "text": "text",
    "bytes": "bytea",
    "date": "date",
    "time": "time",
    "moment": "timestamp with time zone",
    "datetime": "timestamp without time zone",
    "json": "jsonb",
}
REFUSALS = ("21", "22", "23", "44", "54", "P0")
"""Classes of SQLSTATE that tell of a row: cardinality, data, integrity, check option, limits, a trigger's own."""
AWAY = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""… and of a server: connection, transaction state, rollback, resources, locks, shutdown, I/O."""
STAGING = "headrace_staging"
DELETED = "__headrace_deleted"
CSV = csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=8192)
"""Every text in quotes and nulls without, so that an empty text is not a null."""
PIECE_ROWS = 8192
"""So many at a time, so that the server reads while the next ones are made."""
PLAIN_TABLE = f"""
    SELECT relkind = 'r' AND NOT relrowsecurity AND NOT relhasrules
      AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal)
      AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
                      AND (attgenerated <> '' OR attidentity = 'a'))
    FROM pg_class AS c WHERE c.oid = to_regclass({MARK})"""
CONNECT_TIMEOUT_S = 10


class Postgres(Dialect):
    name_bytes_max = 63

    def __init__(self, address: Address) -> None:
        self._connection = psycopg.connect(
            address.resolved(),
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="headrace",
            client_encoding="utf8",
        )
        self._connection.execute("SET timezone = 'UTC'")
        self._staged: tuple[TableName, tuple[str, ...]] | None = None
        self._is_plain = False

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if values:
            statement = statement.replace("%", "%%").replace(MARK, "%s")
        done = self._connection.execute(statement.encode(), values or None)
        return done.fetchall() if done.description else []

    def close(self) -> None:
        self._connection.close()

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def type_of(self, column: pa.Field, *, in_key: bool) -> str:
        kind, precision, scale = kind_of(column)
        return TYPES[kind].format(precision=precision, scale=scale)

    def columns(self, table: TableName) -> dict[str, str]:
        rows = self.run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = to_regclass({MARK}) AND attnum > 0 AND NOT attisdropped",
            (self.table(table),),
        )
        self._staged = None  # whoever asks may be about to change them
        return {str(name): str(kind) for name, kind in rows}

    def wider(self, existing: str, column: pa.Field) -> str | None:
        return number_of(existing, column, TYPES)

    def alter_type(self, column: str, kind: str) -> str:
        return f"ALTER COLUMN {column} TYPE {kind}"

    def prepare(self, place: Place, names: Sequence[str]) -> None:
        if not place.key or self._staged == (place.table, tuple(names)):
            return
        self.run(f"DROP TABLE IF EXISTS pg_temp.{STAGING}")
        self.run(
            f"CREATE TEMPORARY TABLE {STAGING} ON COMMIT DELETE ROWS AS "
            f"SELECT {self.names(names)}, NULL::boolean AS {DELETED} FROM {self.table(place.table)} WITH NO DATA"
        )
        ((self._is_plain,),) = self.run(PLAIN_TABLE, (self.table(place.table),))
        if self._is_plain:  # and the key has its index, and we may do all that an upsert does, or this is an error
            self.run("EXPLAIN " + self._upsert(place, names))
        self._staged = (place.table, tuple(names))

    def load(self, place: Place, changes: Changes) -> None:
        rows, names = changes.rows, changes.rows.column_names
        if not place.key:
            self._copy(self.table(place.table), names, rows)
            return
        may_be_new = self._is_plain and changes.deleted is None and place.version is None
        if may_be_new and place.hope.is_worth_a_try() and self._added(place, rows):
            return
        if changes.deleted is not None:
            rows, names = rows.append_column(DELETED, changes.deleted), [*names, DELETED]
        self._copy(STAGING, names, rows)
        if changes.deleted is not None:
            self._delete(place)
        wanted = " WHERE NOT s." + DELETED if changes.deleted is not None else ""
        self.run(self._upsert(place, changes.rows.column_names, wanted))
        self.run(f"TRUNCATE {STAGING}")

    def _added(self, place: Place, rows: pa.Table) -> bool:
        """Whether all were new rows and are in the table now; if not, nothing has happened."""
        try:
            self._copy(self.table(place.table), rows.column_names, rows)
        except psycopg.Error as error:
            if self.meaning(error) is not RowRefused:
                raise
            self.run(self.back_to_savepoint)
            place.hope.failed()
            return False
        place.hope.went_well()
        return True

    def _copy(self, table: str, names: Sequence[str], rows: pa.Table) -> None:
        statement = f"COPY {table} ({self.names(names)}) FROM STDIN (FORMAT csv)"
        with self._connection.cursor().copy(statement.encode()) as copy:
            for start in range(0, rows.num_rows, PIECE_ROWS):
                piece = io.BytesIO()
                csv.write_csv(_printable(rows.slice(start, PIECE_ROWS)), piece, CSV)
                copy.write(piece.getbuffer())

    def _delete(self, place: Place) -> None:
        same = " AND ".join(f"t.{self.quote(each)} = s.{self.quote(each)}" for each in place.key)
        not_newer = self._not_newer(place, "s")
        self.run(
            f"DELETE FROM {self.table(place.table)} AS t USING {STAGING} AS s WHERE s.{DELETED} AND {same}{not_newer}"
        )

    def _upsert(self, place: Place, names: Sequence[str], wanted: str = "") -> str:
        others = [self.quote(each) for each in names if each not in place.key]
        updates = ", ".join(f"{each} = EXCLUDED.{each}" for each in others)
        then = f"UPDATE SET {updates} WHERE true{self._not_newer(place, 'EXCLUDED')}" if updates else "NOTHING"
        return (
            f"INSERT INTO {self.table(place.table)} AS t ({self.names(names)}) SELECT {self.names(names, 's.')} "
            f"FROM {STAGING} AS s{wanted} ON CONFLICT ({self.names(place.key)}) DO {then}"
        )

    def _not_newer(self, place: Place, other: str) -> str:
        if place.version is None:
            return ""
        version = self.quote(place.version)
        return f" AND (t.{version} IS NULL OR t.{version} <= {other}.{version})"

    def meaning(self, error: Exception) -> type[HeadraceError] | None:
        if not isinstance(error, psycopg.Error):
            return None
        state = error.sqlstate or ""
        if state[:2] in REFUSALS:
            return RowRefused
        if not state or state[:2] in AWAY or self._connection.closed:
            return Unavailable
        return UsageError


def _printable(rows: pa.Table) -> pa.Table:
    """Types that Arrow's CSV does not write as PostgreSQL reads them."""
    for index, column in enumerate(rows.schema):
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            texts = [None if each is None else "\\x" + each.hex() for each in rows.column(index).to_pylist()]
            rows = rows.set_column(index, column.name, pa.array(texts, pa.string()))
        elif pa.types.is_duration(column.type):
            rows = rows.set_column(index, column.name, rows.column(index).cast(pa.int64()))
        elif pa.types.is_timestamp(column.type) and column.type.tz:
            rows = rows.set_column(index, column.name, moment_texts(rows.column(index)))
    return rows


assert set(INTEGERS) | {DECIMAL} <= set(TYPES), "every number has a type here"
