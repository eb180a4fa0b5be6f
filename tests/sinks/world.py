"""What tests of derived systems share: databases of each kind, and batches that are delivered to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pymysql

from headrace.address import Address
from headrace.targets.changes import Changes
from headrace.targets.sql.dialect import TableName
from headrace.targets.sql.table import SqlTarget
from headrace.targets.target import Delivery, Fence, Outcome, RefusedRows, Target

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.decimal128(12, 2))])


class Base:
    """A database of some kind, looked at with its own driver."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    def target(self, table: str | Sequence[str] = "orders", key: Sequence[str] = ("id",), **more: Any) -> SqlTarget:
        options = {"create": True, **more}
        return SqlTarget(Address(self.url), TableName.of(table), tuple(key), **options)

    def quote(self, name: str) -> str:
        mark = "`" if self.kind == "mariadb" else '"'
        return mark + name.replace(mark, mark * 2) + mark

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            found = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            cursor.close()
        return found

    def connect(self) -> Any:
        if self.kind == "postgresql":
            return psycopg.connect(self.url, options="-c timezone=UTC")
        if self.kind == "sqlite":
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=60)
        parts = Address(self.url).parts()
        return pymysql.connect(
            host="127.0.0.1", port=parts.port or 0, user="root", database=parts.path[1:], charset="utf8mb4"
        )

    def rows(self, table: str = "orders", columns: str = "id, name", order: str = "1") -> list[tuple[Any, ...]]:
        return self.run(f"SELECT {columns} FROM {self.quote(table)} ORDER BY {order}")


class Refusals:
    """Takes refused rows, as a dead-letter topic would."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, Any], str]] = []

    def send(self, refused: Sequence[tuple[pa.Table, str]]) -> None:
        self.rows += [(row, reason) for table, reason in refused for row in table.to_pylist()]


def fence(
    batch_id: int,
    ends: str | None = None,
    *,
    query: str = "q",
    owner: str = "me",
    first: bool = True,
    pipeline: str = "p",
    starts_over: bool = False,
) -> Fence:
    return Fence(query, batch_id, ends or f'{{"t":{batch_id}}}', owner, first, pipeline, starts_over)


def changes_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> Changes:
    """Rows as tuples in the order of the columns; one that begins with "-" is a deletion."""
    given = list(rows)
    deleted = [bool(row) and row[0] == "-" for row in given]
    plain = [row[1:] if gone else row for row, gone in zip(given, deleted, strict=True)]
    whole = [row + (None,) * (len(schema) - len(row)) for row in plain]
    columns = list(zip(*whole, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
    table = pa.table(arrays, schema=schema)
    return Changes(table, pa.chunked_array([pa.array(deleted, pa.bool_())]) if any(deleted) else None)


def deliver(
    target: Target,
    *chunks: Changes | Iterable[tuple[Any, ...]],
    at: Fence | None = None,
    refusals: Refusals | None = None,
    schema: pa.Schema | None = None,
) -> Outcome:
    """Write one batch of some chunks."""
    made = [each if isinstance(each, Changes) else changes_of(each, schema or SCHEMA) for each in chunks]
    letters = RefusedRows(target.shown, refusals.send if refusals else None)
    columns = schema or (made[0].rows.schema if made else SCHEMA)
    session = target.open()
    try:
        return session.write(Delivery(columns, iter(made), letters, at))
    finally:
        session.close()


def deliver_overtaken(target: Target, schema: pa.Schema = SCHEMA) -> Outcome:
    """Write one batch in whose middle another run of the pipeline takes over, and writes the batch itself."""

    def chunks() -> Iterator[Changes]:
        yield changes_of([(1, "old")], schema)
        deliver(target, [(1, "new")], at=fence(0, owner="second"), schema=schema)
        yield changes_of([(2, "stale")], schema)

    session = target.open()
    try:
        return session.write(Delivery(schema, chunks(), RefusedRows(target.shown), fence(0, owner="first")))
    finally:
        session.close()
