"""Rows of a table by COPY: the fastest way out of PostgreSQL, as the texts that ``values.py`` reads.

A database in SQL_ASCII has no character set. Asked for UTF-8, its server fails at the first value that is none. There
the bytes are read as they are stored (``as_stored``), and a value that is no text concerns one row.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
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
    names = sql.SQL(", ").join(sql.Identifier(each.name) for each in columns)
    query = sql.SQL("SELECT {} FROM {}").format(names, table.rows_of)
    key = sql.SQL(", ").join(map(sql.Identifier, table.key))
    if after:
        kinds = {each.name: (each.type_oid, each.type_modifier) for each in columns}
        values = sql.SQL(", ").join(
            sql.SQL("{}::{}").format(_literal(value), sql.SQL(_type_name(connection, *kinds[name])))
            for value, name in zip(after, table.key, strict=True)
        )
        query += sql.SQL(" WHERE ({}) > ({})").format(key, values)
    if limit is not None:
        query += sql.SQL(" ORDER BY {} LIMIT {}").format(key, sql.Literal(limit))
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


def _type_name(connection: Connection, oid: int, modifier: int) -> LiteralString:
    """As the server writes it; a composite type must be named, or its text is not understood."""
    row = connection.execute("select format_type(%s, %s)", (oid, modifier)).fetchone()
    assert row is not None, "a function gives one row"
    return cast(LiteralString, row[0])


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
