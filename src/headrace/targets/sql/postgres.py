"""PostgreSQL: a chunk is one COPY into a staging table, one DELETE and one INSERT … ON CONFLICT.

The staging table is temporary and has the columns of the target, so every value is read by the target's own types: text
becomes a uuid, an enum or jsonb where the table has one. Rows travel as CSV that Arrow writes: no value passes through
Python, except bytes, for which Arrow knows no hexadecimal.

A chunk that may be all new rows is tried as one COPY into the table itself, which costs less than half. The first row
that is there already, or that the table does not take, ends it; the chunk goes back to its savepoint and by the staging
table, which decides. So the short way never reports a refusal and never changes an outcome. It is taken only where
COPY does what INSERT … ON CONFLICT does: an ordinary table with a unique index on the key, without triggers, rules, row
security and columns that are always generated, and for rows without deletions and versions.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import csv

from headrace.address import Address
from headrace.errors import HeadraceError, UsageError
from headrace.targets.changes import Changes
from headrace.targets.sql.dialect import MARK, Dialect, Place, TableName, moment_texts
from headrace.targets.sql.types import DECIMAL, INTEGERS, kind_of, number_of
from headrace.targets.target import RowRefused, Unavailable

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
"""Classes of SQLSTATE that are about a row: cardinality, data, integrity, check option, limits, a trigger's own."""
AWAY = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""… and of a server: connection, transaction state, rollback, resources, locks, shutdown, I/O."""
STAGING = "headrace_staging"
DELETED = "__headrace_deleted"
CSV = csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=8192)
"""Every text in quotes and nulls without, so that an empty text is not a null."""
PIECE_ROWS = 8192
"""Rows sent at a time, so that the server reads while the next ones are made."""
PLAIN_TABLE = f"""
    SELECT relkind = 'r' AND NOT relrowsecurity AND NOT relhasrules
      AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal)
      AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
                      AND (attgenerated <> '' OR attidentity = 'a'))
    FROM pg_class AS c WHERE c.oid = to_regclass({MARK})"""
CONNECT_TIMEOUT_S = 10
KEEPALIVES = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"
"""The server notices within a minute that the machine of a driver is gone, and ends its transaction. Its default is two
hours, in which the fence stays locked."""
LOCK_TIMEOUT = "55P03"
TABLE_KINDS = ("r", "p")
LOGIN_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|not permitted to log in|"
    r"(role|database) \".*\" does not exist|permission denied for database"
)
FOREIGN_KEYS = f"""
    SELECT pg_get_constraintdef(oid) FROM pg_constraint
    WHERE conrelid = to_regclass({MARK}) AND contype = 'f' AND confrelid <> conrelid"""
REFERENCES = f"""
    SELECT DISTINCT conrelid::regclass::text FROM pg_constraint
    WHERE confrelid = to_regclass({MARK}) AND contype = 'f' AND confrelid <> conrelid AND conparentid = 0"""
EXACT_TYPES = (
    "bigint",
    "integer",
    "smallint",
    "numeric",
    "text",
    "boolean",
    "timestamp",
    "date",
    "double",
    "real",
    "uuid",
)


TABLES_LOCK = int.from_bytes(hashlib.sha256(b"headrace: tables of sinks").digest()[:8], "big", signed=True)
"""An advisory lock. CREATE TABLE IF NOT EXISTS fails when two sessions make the same table at the same moment."""


class Postgres(Dialect):
    name_bytes_max = 63
    begin_statement = "BEGIN ISOLATION LEVEL READ COMMITTED"
    """A stricter default would fail where a run waits for the fence of another; this sees what the other wrote."""

    def __init__(self, address: Address) -> None:
        self._connection = psycopg.connect(
            address.resolved(),
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="headrace",
            client_encoding="utf8",
        )
        self._connection.execute("SET timezone = 'UTC'")
        self._connection.execute(KEEPALIVES)
        self._staged: tuple[TableName, tuple[str, ...]] | None = None
        self._is_plain = False

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if values:
            statement = statement.replace("%", "%%").replace(MARK, "%s")
        done = self._connection.execute(statement.encode(), values or None)
        return done.fetchall() if done.description else []

    def close(self) -> None:
        self._connection.close()

    def bound_lock_waits(self, seconds: int | None) -> None:
        self.run("RESET lock_timeout" if seconds is None else f"SET lock_timeout = '{seconds}s'")

    def is_lock_timeout(self, error: BaseException) -> bool:
        return isinstance(error, psycopg.Error) and error.sqlstate == LOCK_TIMEOUT

    def lock_tables(self) -> None:
        self.run(f"SELECT pg_advisory_xact_lock({MARK})", (TABLES_LOCK,))

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
        self._staged = None  # the caller may be about to change them
        return {str(name): str(kind) for name, kind in rows}

    def wider(self, existing: str, column: pa.Field) -> str | None:
        return number_of(existing, column, TYPES)

    def change_type(self, table: TableName, column: str, existing: str, kind: str) -> None:
        self.run(f"ALTER TABLE {self.table(table)} ALTER COLUMN {self.quote(column)} TYPE {kind}")

    def create_like(self, new: TableName, old: TableName) -> None:
        """With the foreign keys, so that a row that breaks one is refused while the table is filled.

        A table with row security gets a copy that only its owner reads.
        """
        super().create_like(new, old)
        ((has_policies,),) = self.run(
            f"SELECT relrowsecurity FROM pg_class WHERE oid = to_regclass({MARK})", (self.table(old),)
        )
        if has_policies:
            self.run(f"ALTER TABLE {self.table(new)} ENABLE ROW LEVEL SECURITY")
        for (definition,) in self.run(FOREIGN_KEYS, (self.table(old),)):
            try:
                self.run(f"ALTER TABLE {self.table(new)} ADD {definition}")
            except psycopg.errors.InsufficientPrivilege:
                continue  # it holds when the rows are put in place

    def why_not_rebuilt(self, place: Place) -> str:
        table = self.table(place.table)
        ((kind,),) = self.run(f"SELECT relkind::text FROM pg_class WHERE oid = to_regclass({MARK})", (table,))
        if kind not in TABLE_KINDS:
            return "it is no table"
        if place.key:
            return ""
        found = self.run(REFERENCES, (table,))
        return (
            ""
            if not found
            else f"it has no key, and {found[0][0]} refers to its rows by a foreign key; give the sink a key=…"
        )

    def is_same(self, column: str, kind: str) -> str:
        """As text where a type has no equality, or one that ignores case."""
        cast = "" if kind.startswith(EXACT_TYPES) else "::text"
        return f"t.{self.quote(column)}{cast} IS NOT DISTINCT FROM n.{self.quote(column)}{cast}"

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
        if may_be_new and place.insert_backoff.is_worth_a_try() and self._added(place, rows):
            return
        if changes.deleted is not None:
            rows, names = rows.append_column(DELETED, changes.deleted), [*names, DELETED]
        self._copy(STAGING, names, rows)
        if changes.deleted is not None:
            self._delete(place)
        wanted = " WHERE NOT s." + DELETED if changes.deleted is not None else ""
        self.run(self._upsert(place, changes.rows.column_names, wanted))
        self.run(f"TRUNCATE {STAGING}")

    def update(self, place: Place, rows: pa.Table) -> None:
        names = [each for each in rows.column_names if each not in place.key]
        if not names:
            return
        self._copy(STAGING, rows.column_names, rows)
        updates = ", ".join(f"{self.quote(each)} = s.{self.quote(each)}" for each in names)
        same = " AND ".join(f"t.{self.quote(each)} = s.{self.quote(each)}" for each in place.key)
        self.run(
            f"UPDATE {self.table(place.table)} AS t SET {updates} FROM {STAGING} AS s "
            f"WHERE {same}{self._not_newer(place, 's')}"
        )
        self.run(f"TRUNCATE {STAGING}")

    def _added(self, place: Place, rows: pa.Table) -> bool:
        """Whether all were new rows and are in the table now; if not, nothing has happened."""
        try:
            self._copy(self.table(place.table), rows.column_names, rows)
        except psycopg.Error as error:
            if self.meaning(error) is not RowRefused:
                raise
            self.run(self.back_to_savepoint)
            place.insert_backoff.failed()
            return False
        place.insert_backoff.went_well()
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
        if place.version is not None:
            version = self.quote(place.version)
            same += f" AND coalesce(t.{version} <= s.{version}, true)"  # without one it counts where it stands
        self.run(f"DELETE FROM {self.table(place.table)} AS t USING {STAGING} AS s WHERE s.{DELETED} AND {same}")

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

    @staticmethod
    def refuses_login(error: Exception) -> bool:
        """By the words: libpq gives no SQLSTATE for a connection that was never made."""
        return bool(LOGIN_REFUSED.search(str(error)))

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
