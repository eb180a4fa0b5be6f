"""Rows of a table by COPY: the fastest way out of PostgreSQL, as the texts that ``values.py`` reads.

A database in SQL_ASCII has no character set. Asked for UTF-8, its server fails at the first value that is none. There
the bytes are read as they are stored (``as_stored``), and a value that is no text concerns one row.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString, cast

from psycopg import errors, sql
from psycopg.pq import ExecStatus

from headrace.capture.postgres.catalogue import Connection, TableInfo
from headrace.capture.postgres.pgoutput import RelationColumn

__all__ = ["Lines", "as_stored", "copied_columns", "copied_fields", "copied_rows", "has_data", "key_text"]

BLOCK_BYTES = 64 * 1024
"""Of lines that are handed on together, and the one that makes them as many."""
WITHOUT_CHARACTERS = "SQL_ASCII"
_CONTROL = bytes(range(32))


@dataclass(frozen=True, slots=True)
class Lines:
    """Rows as lines of COPY's text format, one after the other."""

    data: bytes
    count: int
    longest: int
    """Bytes of the longest line."""

    def columns(self, count: int) -> list[Sequence[bytes | None]]:
        return copied_columns(self.data, count)

    def is_plain(self, columns: int) -> bool:
        """Whether no value is null, and none has a byte that COPY or JSON escapes or that is not UTF-8: each is as it
        stands in a JSON string."""
        data = self.data
        if b"\\" in data or b'"' in data or not columns:
            return False
        # Tabs and line ends stand between values; values have theirs escaped.
        if len(data) - len(data.translate(None, _CONTROL)) != columns * self.count:
            return False
        return data.isascii() or _is_utf8(data)

    @property
    def last(self) -> bytes:
        return self.data[self.data.rfind(b"\n", 0, -1) + 1 :]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def as_stored(connection: Connection) -> Iterator[None]:
    """A COPY in here gives bytes as they are stored, whatever they are; nothing else may be asked meanwhile."""
    if connection.info.parameter_status("server_encoding") != WITHOUT_CHARACTERS:
        yield
        return
    connection.pgconn.exec_(f"SET client_encoding = {WITHOUT_CHARACTERS}".encode())
    try:
        yield
    finally:
        # A transaction that has failed refuses this, and goes back to UTF-8 with its end.
        connection.pgconn.exec_(b"SET client_encoding = UTF8")


def key_text(value: bytes | None) -> str:
    """A value of a key as a place to go on from, also one that is no text."""
    return (value or b"").decode(errors="surrogateescape")


def _literal(text: str) -> sql.Composable:
    """What ``key_text`` gave, for a statement."""
    try:
        text.encode()
    except UnicodeEncodeError:
        stored = text.encode(errors="surrogateescape")
        return sql.SQL("E'" + "".join(f"\\x{each:02x}" for each in stored) + "'")
    return sql.Literal(text)


def copied_rows(
    connection: Connection,
    table: TableInfo,
    columns: list[RelationColumn],
    after: list[str] | None = None,
    limit: int | None = None,
) -> Iterator[Lines]:
    """Rows as lines of COPY, by key; some at a time."""
    query = sql.SQL("SELECT {} FROM {}").format(_names([each.name for each in columns]), table.rows_of)
    if after:
        query += sql.SQL(" WHERE ") + _after(connection, table, columns, after)
    if limit is not None:
        query += sql.SQL(" ORDER BY {} LIMIT {}").format(_names(table.key), sql.Literal(limit))
    return _copied(connection, sql.SQL("COPY ({}) TO STDOUT").format(query).as_string(connection))


def has_data(descriptor: int, wait_s: float | None = None) -> bool:
    """Wait until a socket has something to read, without end or so long. ``select`` refuses descriptors above 1,023,
    which a program that embeds capture may well have."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if wait_s is None else wait_s * 1000))


def _copied(connection: Connection, statement: str) -> Iterator[Lines]:
    with as_stored(connection):
        yield from _blocks(connection, statement)


def _blocks(connection: Connection, statement: str) -> Iterator[Lines]:
    """The lines of a COPY, from libpq itself: psycopg's own way costs as much per line as all that becomes of it."""
    pgconn = connection.pgconn
    started = pgconn.exec_(statement.encode())
    if started.status != ExecStatus.COPY_OUT:
        raise errors.error_from_result(started)
    size, next_line = 0, pgconn.get_copy_data
    lines = bytearray()
    held = longest = 0
    try:
        while size >= 0:
            size, line = next_line(1)
            if size > 0:
                lines += line
                held += size
                if size > longest:
                    longest = size
                if held >= BLOCK_BYTES:
                    yield Lines(bytes(lines), lines.count(b"\n"), longest)
                    lines.clear()
                    held = longest = 0
            elif size == 0:
                has_data(pgconn.socket)
                pgconn.consume_input()
        if lines:
            yield Lines(bytes(lines), lines.count(b"\n"), longest)
    finally:
        if size >= 0:  # the reader has had enough: the rest must go before the connection can do anything else
            connection.cancel_safe()
            while pgconn.get_copy_data(0)[0] >= 0:
                pass
        failed = None
        while (result := pgconn.get_result()) is not None:
            failed = result if result.status != ExecStatus.COMMAND_OK else failed
    if failed is not None:
        raise errors.error_from_result(failed)


def _names(columns: Iterable[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


_OF_KEY = """
with recursive step(type, modifier) as (
  select %s::oid, %s::int
  union all select typbasetype, typtypmod from step join pg_type on oid = type where typtype = 'd'
)
select format_type(step.type, modifier), (
  select array_agg(format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) order by m.amopstrategy)
  from pg_opclass c join pg_am a on a.oid = c.opcmethod and a.amname = 'btree'
       join pg_amop m on m.amopfamily = c.opcfamily and m.amopstrategy in (4, 5)
                         and m.amoplefttype = c.opcintype and m.amoprighttype = c.opcintype
       join pg_operator o on o.oid = m.amopopr join pg_namespace n on n.oid = o.oprnamespace
  where c.opcdefault and c.opcintype = step.type and n.nspname <> 'pg_catalog')
from step join pg_type t on t.oid = step.type and t.typtype <> 'd'
"""
"""The type of a column, of a domain its base type; and what compares two of its values in the order of an index, where
that is no operator of the server itself: at least, and more than."""


def _after(
    connection: Connection, table: TableInfo, columns: Sequence[RelationColumn], after: Sequence[str]
) -> sql.Composable:
    """The condition that a row comes after the one with this key.

    A value is no value of its domain here, whose conditions may call whatever they like. Types of extensions have
    operators of their own: with those that happen to be found by their names, texts without case (of citext) would be
    compared with their case, and rows passed over.
    """
    kinds = {each.name: (each.type_oid, each.type_modifier) for each in columns}
    found = [connection.execute(_OF_KEY, kinds[name]).fetchone() or () for name in table.key]
    values = [
        sql.SQL("{}::{}").format(_literal(value), sql.SQL(cast(LiteralString, kind)))
        for value, (kind, _) in zip(after, found, strict=True)
    ]
    if not any(operators for _, operators in found):
        return sql.SQL("({}) > ({})").format(_names(table.key), sql.SQL(", ").join(values))
    condition: sql.Composable = sql.SQL("false")
    for name, value, (_, operators) in reversed(list(zip(table.key, values, found, strict=True))):
        parts = {"name": sql.Identifier(name), "value": value, "rest": condition}
        parts |= dict(zip(("at_least", "more"), map(sql.SQL, operators or (">=", ">")), strict=True))
        condition = sql.SQL("{name} {at_least} {value} AND ({name} {more} {value} OR {rest})").format(**parts)
    return condition


_ESCAPES = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"\\": b"\\",
}


def copied_fields(line: bytes) -> list[bytes | None]:
    """One line of COPY's text format."""
    values = line[:-1].split(b"\t")
    if b"\\" not in line:
        return values  # type: ignore[return-value]
    return [None if value == b"\\N" else _unescaped(value) if b"\\" in value else value for value in values]


def copied_columns(lines: bytes, count: int) -> list[Sequence[bytes | None]]:
    """Lines of COPY's text format as so many columns. Tabs and line ends inside of values are always escaped."""
    values = lines.replace(b"\n", b"\t").split(b"\t")
    columns = [values[place:-1:count] for place in range(count)]
    return list(map(_unescaped_column, columns)) if b"\\" in lines else list(columns)


def _unescaped_column(values: Sequence[bytes]) -> Sequence[bytes | None]:
    if b"\\" not in b"".join(values):
        return values
    return [None if value == b"\\N" else _unescaped(value) if b"\\" in value else value for value in values]


def _unescaped(value: bytes) -> bytes:
    first, *rest = value.split(b"\\")
    out = [first]
    escaped_backslash = False
    for part in rest:
        if escaped_backslash:
            out.append(part)
            escaped_backslash = False
        elif not part:
            out.append(b"\\")
            escaped_backslash = True
        else:
            out.append(_ESCAPES.get(part[:1], part[:1]) + part[1:])
    return b"".join(out)
