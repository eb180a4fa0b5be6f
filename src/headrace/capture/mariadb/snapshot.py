"""Rows that are there already, read in chunks at exactly known places of the binlog.

MariaDB tells at which place of the binlog a consistent read stands (``binlog_snapshot_file`` and ``_position``). A
chunk is read there, the stream is followed to that place, and the rows are emitted exactly there: no row can be older
or newer than the stream around it. No row is locked. While a chunk is read, an ALTER TABLE of its table waits.

Values come as the server's text, in the character set of their column, and become JSON column by column
(``values.text_renderer``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pymysql

from headrace.capture.mariadb.catalogue import (
    TRANSACTIONAL,
    Catalogue,
    CatalogueTable,
    Gtids,
    fetched,
    parse_gtids,
)
from headrace.capture.mariadb.keys import quoted
from headrace.capture.options import CaptureOptions
from headrace.capture.source import Progress
from headrace.errors import UsageError

__all__ = ["Chunk", "SnapshotReader", "TableGone"]

CHUNK_BYTES_MAX = 16 * 1024 * 1024
VALUE_BYTES = 16
"""What a value is counted as besides its text."""
PLACE_READINGS = 3
HEAD_EVENTS = 50
"""Of a file of the binlog: enough to have its first transaction, or what is noted before it."""
BLOCK_ROWS = 1000
"""How many rows of a table without a key are held at once."""
GONE = (1146, 1051)
"""What the server says of a table that is not there."""
CHANGED = (1054, 1412)
"""What it says when a table has changed since the read began, or since its columns were asked for."""


class TableGone(Exception):
    """A table is not there any more."""


class Chunk(NamedTuple):
    """Rows that wait for the stream to reach the place where they were read.

    Of a table without a key, which is read in one piece, only the place is here: ``whole`` holds a read transaction
    open there, and the rows are fetched from it when they are emitted, however many they are.
    """

    table: CatalogueTable
    place: dict[int, int]
    rows: Iterable[tuple[Any, ...]]
    after: list[str] | None
    is_last: bool
    whole: pymysql.Connection[Any] | None = None

    def blocks(self) -> Iterable[Sequence[tuple[Any, ...]]]:
        """The rows, as many at once as may be held."""
        if self.whole is None:
            yield list(self.rows)
            return
        rows = iter(self.rows)
        while block := list(islice(rows, BLOCK_ROWS)):
            yield block

    def close(self) -> None:
        if self.whole is not None:
            self.whole.close()


class SnapshotReader:
    """Reads the chunks of all tables, one after the other."""

    def __init__(self, catalogue: Catalogue, options: CaptureOptions) -> None:
        self._catalogue = catalogue
        self._options = options
        self._connection: pymysql.Connection[Any] | None = None
        self._limits: dict[str, int] = {}
        self._found: dict[str, CatalogueTable] = {}
        self._settled = ""
        """A file of the binlog before whose begin every transaction was visible."""

    def expect(self, found: Mapping[str, CatalogueTable]) -> None:
        """Tables as the catalogue shows them, which then need not be asked for one by one."""
        self._found = dict(found)

    def close(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()

    def read(self, name: str, progress: Progress, reached: Gtids) -> Chunk | None:
        """The next chunk of a table; None: not now, its shape is changing or the stream is further than the read."""
        table = self._found.pop(name, None)
        if table is None or not table.key:
            table = self._catalogue.table(name)
        if table is None:
            raise TableGone(name)
        read = self._read_keyed if table.key else self._open_whole
        try:
            return self._catalogue.guarded(lambda: self._translated(lambda: read(table, progress, reached)))
        except _Changed:
            return None

    def _translated(self, work: Callable[[], Chunk | None]) -> Chunk | None:
        try:
            return work()
        except pymysql.Error as error:
            code = error.args[0] if error.args else 0
            if code in GONE:
                raise TableGone from error
            if code in CHANGED:
                raise _Changed from error
            raise

    def _read_keyed(self, table: CatalogueTable, progress: Progress, reached: Gtids) -> Chunk | None:
        by_name = {each.name: each.key_column for each in table.columns}
        key = [by_name[each] for each in table.key]
        count = len(table.columns)
        limit = self._limits.get(table.full_name, self._options.chunk_rows)
        query = _select(table, [*(each.selected for each in table.columns), *(each.shown for each in key)])
        row = progress.go_on_by([f"{each.name} {each.data_type}" for each in key])
        after = [column.bound(text) for column, text in zip(key, row, strict=True)] if row else []
        if after:
            compared = ", ".join(each.compared for each in key)
            query += f" where ({compared}) > ({', '.join(each.marker for each in key)})"
        query += f" order by {', '.join(quoted(each.name) for each in key)} limit {limit}"
        if self._connection is None or not self._connection.open:
            self._connection = self._catalogue.connect_for_rows()
        stands = _begin_reading(self._connection)
        if not self._is_exact(stands):
            return None
        try:
            rows, is_cut = _within(CHUNK_BYTES_MAX, self._connection, query, after)
            # The read transaction keeps the table's shape from its first query on.
            is_same = self._is_same(table)
        finally:
            if self._connection.open:
                self._connection.rollback()
        place = self._place_of(stands, reached)
        if place is None or not is_same:
            return None
        shown = rows[-1][count:] if rows else None
        last = [column.text(value) for column, value in zip(key, shown, strict=True)] if shown else None
        # What lies after a cut was sent for nothing, so the next chunk asks for as much as this one could take.
        self._limits[table.full_name] = len(rows) if is_cut else min(self._options.chunk_rows, limit + limit // 4 + 1)
        is_last = not (is_cut or len(rows) == limit)
        return Chunk(table, place, [row[:count] for row in rows], last, is_last)

    def _open_whole(self, table: CatalogueTable, progress: Progress, reached: Gtids) -> Chunk | None:
        """A separate read transaction, which stays open until the stream has come to where it stands."""
        if table.engine not in TRANSACTIONAL:
            raise UsageError(
                f"{table.full_name} has no primary key and its engine {table.engine} has no consistent reads: "
                "its rows cannot be distinguished while it changes",
                f"ALTER TABLE {quoted(table.schema)}.{quoted(table.name)} ENGINE=InnoDB; or give it a primary key, or "
                "leave it out with --exclude-tables",
            )
        query = _select(table, [each.selected for each in table.columns])
        reader = self._catalogue.connect_for_rows()
        try:
            stands = _begin_reading(reader)
            with reader.cursor() as cursor:
                cursor.execute(f"{query} limit 0", ())  # from here on the table keeps its shape
            is_same = self._is_same(table)
            place = self._place_of(stands, reached) if self._is_exact(stands) else None
        except BaseException:
            reader.close()
            raise
        if place is None or not is_same:
            reader.close()
            return None
        return Chunk(table, place, fetched(reader, query, ()), None, True, reader)

    def _is_same(self, table: CatalogueTable) -> bool:
        return self._catalogue.shape(table.full_name, table.row_end) == (table.columns, table.key)

    def _is_exact(self, stands: tuple[str, int]) -> bool:
        """Whether a reading shows all that the binlog has before its place.

        A file that begins while a transaction is on its way from the binlog to the tables is the exception: until the
        first commit in it, readings stand after that transaction and do not show it. The server notes in a file when
        all transactions of the files before are in the tables; a reading is exact if that was noted before it began.
        """
        file, position = stands
        events = self._catalogue.ask(f"show binlog events in '{file}' limit {HEAD_EVENTS}")
        if self._settled == file or any(kind == "Gtid" and end <= position for _, _, kind, _, end, _ in events):
            return True
        if any(kind == "Binlog_checkpoint" and noted == file for _, _, kind, _, _, noted in events):
            self._settled = file
        return False

    def _place_of(self, stands: tuple[str, int], reached: Gtids) -> dict[int, int] | None:
        """The last transaction of each domain that a reading shows; None: it shows less than the stream has emitted.

        A transaction is in the binlog a moment before others see it.
        """
        gtids = parse_gtids(self._catalogue.ask("select binlog_gtid_pos(%s, %s)", *stands)[0][0] or "")
        numbers = {domain: number for domain, (_, number) in gtids.items()}
        is_behind = any(number > numbers.get(domain, 0) for domain, (_, number) in reached.items())
        return None if is_behind else numbers


class _Changed(Exception):
    """A table was altered since its columns were asked for."""


def _select(table: CatalogueTable, wanted: Sequence[str]) -> str:
    return f"select {', '.join(wanted)} from {quoted(table.schema)}.{quoted(table.name)}"


def _begin_reading(connection: pymysql.Connection[Any]) -> tuple[str, int]:
    """A consistent read, and the place in the binlog at which it stands.

    The server shows it through variables that all sessions share: another one that asks for its status at the same
    moment may put its own place there. So the place is what is shown several times.
    """
    with connection.cursor() as cursor:
        cursor.execute("start transaction with consistent snapshot, read only")
        while len(shown := {_shown_place(cursor) for _ in range(PLACE_READINGS)}) > 1:
            pass
        return shown.pop()


def _shown_place(cursor: Any) -> tuple[str, int]:
    cursor.execute("show status like 'binlog_snapshot_%'")
    stands = {name.decode(): value.decode() for name, value in cursor.fetchall()}
    return stands["Binlog_snapshot_file"], int(stands["Binlog_snapshot_position"])


def _within(
    bytes_max: int, connection: pymysql.Connection[Any], query: str, arguments: Sequence[Any]
) -> tuple[list[tuple[Any, ...]], bool]:
    """Rows until they hold so many bytes, one at least, and whether that cut them off."""
    rows, held = [], 0
    for row in fetched(connection, query, arguments):
        rows.append(row)
        held += VALUE_BYTES * len(row) + sum(map(len, filter(None, row)))
        if held >= bytes_max:
            break
    return rows, held >= bytes_max
