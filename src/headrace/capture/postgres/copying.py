"""Rows of a table by COPY: the fastest way out of PostgreSQL, as the texts that ``values.py`` reads.

A database in SQL_ASCII has no character set. Asked for UTF-8, its server fails at the first value that is none. There
the bytes are read as they are stored (``as_stored``), and a value that is no text concerns one row.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import errors, sql
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from headrace.capture.postgres.catalogue import Connection, TableInfo
from headrace.capture.postgres.key_order import key_order
from headrace.capture.postgres.pgoutput import RelationColumn

__all__ = ["Lines", "as_stored", "copied_columns", "copied_fields", "copied_rows", "has_data"]

BLOCK_BYTES = 64 * 1024
"""Of lines that are handed on together, and the one that makes them as many."""
WAIT_S = 1.0
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


def copied_rows(
    connection: Connection,
    table: TableInfo,
    columns: list[RelationColumn],
    after: list[str] | None = None,
    limit: int | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Generator[Lines, None, None]:
    """Rows as lines of COPY, by key; some at a time. ``waiting`` is called about once per second until the last one.

    Nothing else may be asked of the connection before the last row has come, or the generator is closed.
    """
    query = sql.SQL("SELECT {} FROM {}").format(_names([each.name for each in columns]), table.rows_of)
    # Most tables are read in one chunk, and then this need not be asked of each of them.
    order = key_order(connection, table) if after or not table.key_has_usual_order else None
    if order is not None and after:
        query += sql.SQL(" WHERE ") + order.after(after)
    if limit is not None:
        by = _names(table.key) if order is None else order.order_by
        query += sql.SQL(" ORDER BY {} LIMIT {}").format(by, sql.Literal(limit))
    return _copied(connection, sql.SQL("COPY ({}) TO STDOUT").format(query).as_string(connection), waiting)


def has_data(descriptor: int, wait_s: float | None = None) -> bool:
    """Wait until a socket has something to read, without end or so long."""
    return is_ready(descriptor, select.POLLIN, wait_s)


def is_ready(descriptor: int, event: int, wait_s: float | None = None) -> bool:
    """``select`` refuses descriptors above 1,023, which a program that embeds capture may well have."""
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(None if wait_s is None else wait_s * 1000))


def _copied(connection: Connection, statement: str, waiting: Callable[[], None]) -> Generator[Lines, None, None]:
    with as_stored(connection):
        yield from _blocks(connection, statement, waiting)


def _blocks(connection: Connection, statement: str, waiting: Callable[[], None]) -> Generator[Lines, None, None]:
    """The lines of a COPY, from libpq itself: psycopg's own way costs as much per line as all that becomes of it."""
    pgconn = connection.pgconn
    _begin_copy(pgconn, statement, waiting)
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
                    waiting()
            elif size == 0:
                while not has_data(pgconn.socket, WAIT_S):
                    waiting()
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
        raise _error_of(failed)


def _begin_copy(pgconn: PGconn, statement: str, waiting: Callable[[], None]) -> None:
    """The server answers with its first row, which it may have to look for."""
    pgconn.send_query(statement.encode())
    while pgconn.flush():
        is_ready(pgconn.socket, select.POLLOUT)
    while pgconn.is_busy():
        while not has_data(pgconn.socket, WAIT_S):
            waiting()
        pgconn.consume_input()
    started = pgconn.get_result()
    if started is None or started.status != ExecStatus.COPY_OUT:
        while pgconn.get_result() is not None:
            pass
        assert started is not None, "a statement has a result"
        raise _error_of(started)


def _error_of(result: PGresult) -> psycopg.Error:
    """What has no code is not from the server: the connection to it has ended."""
    if result.error_field(DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(result.error_message.decode(errors="replace"))
    return errors.error_from_result(result)


def _names(columns: Iterable[str]) -> sql.Composable:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


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
