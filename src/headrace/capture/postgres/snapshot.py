"""What was in the tables before capture began, read in chunks while changes go on; no locks, and resumable.

A chunk of a table with a key is read in one statement, in a transaction that also tells *which transactions it sees*
(``pg_current_snapshot()``). Then a watermark is written into the server's own log (``pg_logical_emit_message``) and the
stream is followed until it comes by. The chunk's rows are emitted there, except those whose key was changed by a
transaction that the chunk had not seen: such a change is in the stream already, and is newer than the row.

Why this is right, for one row of the chunk:

- A transaction that the chunk has seen had committed before the watermark was written, so its change is in the stream
  before the watermark, and the row, which comes after it, is at least as new.
- A transaction that the chunk has not seen is newer than the row. If its change comes before the watermark, the row
  is dropped. If it comes after the watermark, it comes after the row, as it should.

It is not enough to look at what arrives between reading and watermark. A transaction's commit is in the stream a moment
*before* other sessions see it (for long, where it waits for a synchronous standby), so a change may have passed already
that the chunk does not see. Hence changes of tables still to be read are noted with their transaction as they pass, and
forgotten once a chunk has seen that transaction. After a restart nothing is noted. What had passed before it may still
be invisible, and holds its locks as long; so transactions that have written to a table by then are waited for before
its next chunk is read.

A change that takes the place of a row may lack the row's large values, because PostgreSQL does not send what an update
did not touch. They are taken from the row that waits. If the change passed before the row was read, the chunk is read
again once it sees the change.

A table without a key cannot be matched row by row. It is read in one piece and emitted at once. Changes from before are
left out, and so are, until the log has passed the place where it was read, changes by transactions that it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from psycopg import errors, sql

from headrace.capture.envelope import Rendered
from headrace.capture.postgres.catalogue import GONE
from headrace.capture.postgres.copying import Lines, copied_columns, copied_fields, copied_rows
from headrace.capture.postgres.key_order import key_text
from headrace.capture.postgres.pgoutput import RelationColumn
from headrace.capture.postgres.setup import Connection, PostgresSetup, TableInfo
from headrace.capture.source import Progress
from headrace.errors import UsageError

__all__ = [
    "CHUNK_BYTES_MAX",
    "READ_ONLY",
    "Chunk",
    "ChunkSize",
    "Lines",
    "SeenTransactions",
    "Snapshots",
    "begin_reading",
    "copied_columns",
    "copied_fields",
    "copied_rows",
    "described_key",
    "key_text",
]

T = TypeVar("T")
Values: TypeAlias = list[Sequence[bytes | None]]
"""Rows as columns, each with a value for every row."""
EmitWhole: TypeAlias = Callable[[TableInfo, list[RelationColumn], int, Iterator[Lines]], int]
"""Emits all rows of a table without a key; gives their number."""

CHUNK_BYTES_MAX = 16 * 1024 * 1024
"""A chunk ends with the row with which it holds this much, whatever number of rows was asked for."""
FIRST_ROWS = 500
GROWTH = 4
"""A table begins with few rows, and each chunk asks for up to this many times more, as their size shows."""
TABLES_TOGETHER = 100
"""Up to this many tables that each fit into a chunk are read together, and wait for one watermark."""
TOGETHER_BYTES_MAX = 4 * 1024 * 1024
TOUCHED_MAX = 100_000
"""With more keys or transactions noted for a table, those are looked for that every later chunk has seen anyway."""
LOCK_TIMEOUT = "1s"
"""The longest wait for the lock of a table: changes of other tables must go on."""
READ_ONLY = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class SeenTransactions:
    """PostgreSQL's snapshot, ``xmin:xmax:xip,…``: which transactions a statement has seen."""

    __slots__ = ("_running", "_xmax", "_xmin", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        xmin, xmax, running = text.split(":")
        self._xmin = int(xmin)
        self._xmax = int(xmax)
        self._running = {int(each) for each in running.split(",") if each}

    def sees(self, xid: int) -> bool:
        """``xid`` has 32 bits, as the stream has it; ids here have 64 and are near each other."""
        full = (self._xmax & ~0xFFFFFFFF) | xid
        if full - self._xmax > 2**31:
            full -= 2**32
        elif self._xmax - full > 2**31:
            full += 2**32
        return full < self._xmin or (full < self._xmax and full not in self._running)


@dataclass(slots=True)
class Chunk:
    """Rows of one statement that wait for their watermark.

    They stay the lines that COPY gave until they are emitted. Only when a change passes that may concern them are they
    split into rows, by ``rows``.
    """

    table: TableInfo
    columns: list[RelationColumn]
    seen: SeenTransactions
    lines: list[Lines]
    rendered: list[Rendered | None]
    after: list[str] | None
    is_last: bool
    identities: Callable[[Values, int], list[bytes | None]]
    _values: Values | None = None
    _rows: dict[bytes, int] | None = None

    @property
    def rows_read(self) -> int:
        return sum(each.count for each in self.lines)

    @property
    def size_bytes(self) -> int:
        return sum(len(each.data) for each in self.lines)

    @property
    def line_bytes_max(self) -> int:
        return max((each.longest for each in self.lines), default=0)

    @property
    def values(self) -> Values:
        if self._values is None:
            self._values = copied_columns(b"".join([each.data for each in self.lines]), len(self.columns))
        return self._values

    @property
    def rows(self) -> dict[bytes, int]:
        """Where in ``values`` each row is that waits, by its identity."""
        if self._rows is None:
            found = self.identities(self.values, self.rows_read)
            self._rows = {identity or b"": place for place, identity in enumerate(found)}
        return self._rows

    def row(self, place: int) -> list[bytes | None]:
        return [column[place] for column in self.values]

    @property
    def _is_intact(self) -> bool:
        return self._rows is None or len(self._rows) == self.rows_read

    def intact(self) -> Iterator[tuple[Lines, Rendered | None]]:
        """The lines, if all rows still wait, and what was made of them already."""
        return zip(self.lines, self.rendered, strict=True) if self._is_intact else iter(())

    def left(self) -> tuple[Values, int]:
        """The rows that still wait, if some do not, as columns; and their number."""
        if self._is_intact:
            return [], 0
        places = list(self.rows.values())
        return [[column[place] for place in places] for column in self.values], len(places)


class ChunkSize:
    """How many rows to ask for: a few at first, then as many as have lately fitted into the bytes of a chunk."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self.begin()

    def begin(self) -> None:
        """Another table: nothing is known of its rows."""
        self.rows = min(FIRST_ROWS, self._rows_max)

    def took(self, rows: int, size_bytes: int) -> None:
        fitting = rows * CHUNK_BYTES_MAX // max(size_bytes, 1)
        self.rows = max(1, min(self._rows_max, self.rows * GROWTH, fitting))


class Snapshots:
    """Which tables are still to be read, how far, and the chunks under way: the next of a large table, or several
    small tables whole. They wait for the same watermark."""

    def __init__(
        self,
        setup: PostgresSetup,
        run: str,
        chunk_rows: int,
        keys_of: Callable[[TableInfo, list[RelationColumn], Values, int], list[bytes | None]],
        renders: Callable[[TableInfo, list[RelationColumn]], Callable[[Lines], Rendered | None]],
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """``renders`` is asked for what makes rows of a table's lines. ``waiting`` is called while rows are read, about
        once per second: a server that hears nothing of us meanwhile ends the stream."""
        self._setup = setup
        self.prefix = f"{setup.slot}.watermark"
        self._run = run
        self._size = ChunkSize(chunk_rows)
        self._size_of = ""
        self._keys_of = keys_of
        self._renders = renders
        self._waiting = waiting
        self.progress: dict[str, Progress] = {}
        self._tables: dict[str, TableInfo] = {}
        self._pending: list[str] = []
        self._number = 0
        self._awaited: int | None = None
        self.chunks: dict[str, Chunk] = {}
        self._touched: dict[str, dict[bytes, int]] = {}
        self._lacking: dict[str, set[bytes]] = {}
        """Keys among those touched whose change came without a large value."""
        self._touched_without_key: dict[str, set[int]] = {}
        self._touched_limit = TOUCHED_MAX
        self._filters: dict[str, tuple[SeenTransactions, int]] = {}
        self._writers: dict[str, set[str]] = {}
        """Transactions whose changes may have passed before anything was noted, by table."""

    def start(self, progress: dict[str, Progress], tables: dict[str, TableInfo], *, is_resumed: bool) -> None:
        """Take up what is recorded, and plan the tables that are not."""
        self.progress = progress
        expected = self._setup.rows_expected([table for name, table in tables.items() if name not in progress])
        for name, table in tables.items():
            if name not in progress:
                progress[name] = Progress(rows_expected=expected[table.oid])
            if not progress[name].done:
                self._plan(table)
                if is_resumed:
                    self._writers[name] = self._setup.writers(table.oids)
        for name, each in progress.items():
            if each.filter:
                self._filters[name] = SeenTransactions(each.filter[0]), each.filter[1]
        if self._pending:
            self._awaited = self._watermark()

    def _plan(self, table: TableInfo) -> None:
        name = table.full_name
        self._tables[name] = table
        self._pending.append(name)
        if table.key:
            self._touched[name] = {}
        else:
            self._touched_without_key[name] = set()

    def add(self, table: TableInfo) -> None:
        """Read a table from its beginning, whatever was known of it. Called where the stream changes over to it."""
        self.forget(table.full_name)
        self.progress[table.full_name] = Progress(rows_expected=self._setup.rows_expected([table])[table.oid])
        self._plan(table)
        if self._awaited is None:
            self._awaited = self._watermark()

    def forget(self, name: str) -> None:
        """The table is gone, or another one."""
        if name in self._pending:
            self._pending.remove(name)
        for each in (self.chunks, self.progress, self._tables, self._touched, self._touched_without_key, self._filters):
            each.pop(name, None)
        self._lacking.pop(name, None)
        self._writers.pop(name, None)

    @property
    def done(self) -> bool:
        return not self._pending

    @property
    def wants_to_read(self) -> bool:
        return bool(self._pending) and self._awaited is None

    @property
    def watching(self) -> bool:
        """Whether changes must be passed to ``changed``."""
        return bool(self._pending or self._filters)

    # ---- the stream tells -------------------------------------------------------------------------------------------

    def changed(self, table: str, key: bytes | None, xid: int, commit_lsn: int) -> bool:
        """A change passes; False: it is part of what a snapshot shows, or will show."""
        if table in self._filters:
            seen, until = self._filters[table]
            if commit_lsn >= until:
                self.progress[table].filter = None
                del self._filters[table]
                return True
            return not seen.sees(xid)
        if table in self._touched_without_key:
            self._touched_without_key[table].add(xid)
            if len(self._touched_without_key[table]) > self._touched_limit:
                self._prune()
            return False
        touched = self._touched.get(table)
        if touched is not None and key is not None:
            touched[key] = xid
            chunk = self.chunks.get(table)
            if chunk is not None and not chunk.seen.sees(xid):
                chunk.rows.pop(key, None)
            if len(touched) > self._touched_limit:
                self._prune()
        return True

    def lacks(self, table: str, key: bytes) -> None:
        """The change of a key that passes lacks a large value, and nobody has it but the table."""
        if key in self._touched.get(table, ()):
            self._lacking.setdefault(table, set()).add(key)

    def row(self, table: str, key: bytes, names: list[str], xid: int) -> list[bytes | None] | None:
        """The row that waits for its watermark, as a change finds it that the chunk has not seen.

        The change takes the place of the row. So large values that PostgreSQL did not send with it must come from here.
        """
        chunk = self.chunks.get(table)
        if chunk is None or chunk.seen.sees(xid):
            return None
        if key not in chunk.rows or [each.name for each in chunk.columns] != names:
            return None
        return chunk.row(chunk.rows[key])

    def _prune(self) -> None:
        """Chunks are read later than now, so what is seen now they see too; the chunk under way has lost its rows."""
        self._forget_seen(SeenTransactions(self._setup.one("select pg_current_snapshot()::text")))
        noted = [*map(len, self._touched.values()), *map(len, self._touched_without_key.values())]
        # What cannot be forgotten yet must not be looked through again with every change.
        self._touched_limit = max(TOUCHED_MAX, 2 * max(noted, default=0))

    def truncated(self, table: str, xid: int, commit_lsn: int) -> bool:
        """A truncation passes: a change of every row. The answer is that of ``changed``."""
        chunk = self.chunks.get(table)
        if chunk is not None and not chunk.seen.sees(xid):
            chunk.rows.clear()
        return self.changed(table, None, xid, commit_lsn)

    def passed(self, content: bytes) -> list[Chunk]:
        """A watermark comes by; gives the chunks that waited for it."""
        run, _, number = content.decode().partition(":")
        if run != self._run or int(number) != self._awaited:
            return []  # of a run that is over: its chunks are read again
        self._awaited = None
        chunks, self.chunks = list(self.chunks.values()), {}
        for chunk in chunks:
            progress = self.progress[chunk.table.full_name]
            progress.after = chunk.after or progress.after
            progress.rows += chunk.rows_read
            if chunk.is_last:
                self._finish(chunk.table.full_name)
        return chunks

    def _finish(self, table: str) -> None:
        self.progress[table].done = True
        self.progress[table].after = None
        self._pending.remove(table)
        self._tables.pop(table, None)
        self._touched.pop(table, None)
        self._touched_without_key.pop(table, None)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def step(self, emit_whole: EmitWhole) -> None:
        """Read the next chunks unless some are under way. A table without a key is emitted whole, at once."""
        if self._awaited is not None:
            return
        size_bytes = 0
        is_read = False
        for name in self._pending[:TABLES_TOGETHER]:
            table = self._tables[name]
            if is_read and not table.key:
                break
            if not self._read(table, emit_whole):
                self._put_off(name)
                break
            is_read = bool(table.key)
            chunk = self.chunks.get(name)
            size_bytes += 0 if chunk is None else chunk.size_bytes
            if chunk is None or not chunk.is_last or size_bytes >= TOGETHER_BYTES_MAX:
                break
        if is_read:
            self._awaited = self._watermark()

    def _read(self, table: TableInfo, emit_whole: EmitWhole) -> bool:
        """Read the next chunk of a table, or all of one without a key; False: it is not there, is being altered, or a
        change may have passed that nobody sees yet."""
        connection = self._setup.connection
        if self._has_old_writers(table):
            return False
        try:
            if not begin_reading(connection, table):
                return False
            oid, seen_text = self._setup.row(
                "select to_regclass(%s)::oid::bigint, pg_current_snapshot()::text", table.quoted
            )
            columns = self._setup.columns(table)
            # Whether the name, which is locked now, is still that of the table to be read, with its key.
            if oid != table.oid or not {each.name for each in columns}.issuperset(table.key):
                return False
            seen = SeenTransactions(seen_text)
            self._forget_seen(seen)
            if not table.key:
                self._read_whole(table, columns, seen, emit_whole)
                return True
            chunk = self._read_chunk(table, columns, seen)
            if chunk is not None:
                self.chunks[table.full_name] = chunk
        except (*GONE, errors.InvalidTextRepresentation):
            return False  # or a value of the key that was read last was renamed; the next look at the catalogue tells
        except errors.InsufficientPrivilege as error:
            raise UsageError(
                f"{table.full_name} cannot be read whole: {error.diag.message_primary}",
                f"GRANT SELECT ON {table.quoted} TO the user; ALTER ROLE … BYPASSRLS where row-level security hides "
                f"rows; or leave it out with --exclude-tables {table.full_name}",
            ) from error
        finally:
            connection.execute("COMMIT")
        return True

    def _has_old_writers(self, table: TableInfo) -> bool:
        writers = self._writers.pop(table.full_name, None)
        if writers:
            self._writers[table.full_name] = writers & self._setup.writers(table.oids)
        return bool(self._writers.get(table.full_name))

    def _put_off(self, name: str) -> None:
        """Somebody is at the table. The others come first; what became of it, the next look at the catalogue tells."""
        self._pending.remove(name)
        self._pending.append(name)

    def _forget_seen(self, seen: SeenTransactions) -> None:
        for name, touched in self._touched.items():
            if touched:
                self._touched[name] = {key: xid for key, xid in touched.items() if not seen.sees(xid)}
        for name, keys in self._lacking.items():
            self._lacking[name] = keys & self._touched.get(name, {}).keys()
        for name, xids in self._touched_without_key.items():
            if xids:
                self._touched_without_key[name] = {xid for xid in xids if not seen.sees(xid)}

    def _read_chunk(self, table: TableInfo, columns: list[RelationColumn], seen: SeenTransactions) -> Chunk | None:
        """None: a row is newer in the stream, but came without a large value. It is read again when it is seen."""
        lines: list[Lines] = []
        rendered: list[Rendered | None] = []
        render = self._renders(table, columns)
        count = size_bytes = 0
        passed_over = False
        if self._size_of != table.full_name:
            self._size_of = table.full_name
            self._size.begin()
        asked = self._size.rows
        after = self.progress[table.full_name].go_on_by(described_key(table, columns))
        with closing(self._copied(table, columns, after, asked)) as blocks:
            for each in blocks:
                if size_bytes >= CHUNK_BYTES_MAX:
                    # Read again later: a COPY ends early only by a cancellation that may hit what follows.
                    passed_over = True
                    continue
                lines.append(each)
                rendered.append(render(each))
                count += each.count
                size_bytes += len(each.data)
        after = None
        if lines:
            last = copied_fields(lines[-1].last)
            places = [[each.name for each in columns].index(name) for name in table.key]
            after = [key_text(last[place]) for place in places]
        is_last = count < asked and not passed_over
        identities = partial(self._keys_of, table, columns)
        chunk = Chunk(table, columns, seen, lines, rendered, after, is_last, identities)
        touched, lacking = self._touched[table.full_name], self._lacking.get(table.full_name, ())
        if lacking and not chunk.rows.keys().isdisjoint(lacking):
            return None
        for key in touched:
            chunk.rows.pop(key, None)
        self._size.took(count, size_bytes)
        return chunk

    def _read_whole(
        self,
        table: TableInfo,
        columns: list[RelationColumn],
        seen: SeenTransactions,
        emit_whole: EmitWhole,
    ) -> None:
        name = table.full_name
        if self._touched_without_key[name]:
            return  # a change has been left out that this snapshot does not show yet; the next one will
        until = self._setup.inserted_lsn()
        progress = self.progress[name]
        with closing(self._copied(table, columns, None, None)) as blocks:
            progress.rows = emit_whole(table, columns, until, blocks)
        progress.filter = [seen.text, until]
        self._filters[name] = seen, until
        self._finish(name)

    def _copied(
        self, table: TableInfo, columns: list[RelationColumn], after: list[str] | None, limit: int | None
    ) -> Generator[Lines, None, None]:
        """To be closed before the connection does anything else, whatever becomes of the rows."""
        return copied_rows(self._setup.connection, table, columns, after, limit, self._waiting)

    def _watermark(self) -> int:
        """Write a mark into the server's log, as a separate transaction so that it is flushed."""
        self._number += 1
        content = f"{self._run}:{self._number}"
        self._setup.connection.execute("select pg_logical_emit_message(true, %s, %s)", (self.prefix, content))
        return self._number


def described_key(table: TableInfo, columns: Sequence[RelationColumn]) -> list[str]:
    """The key by which a table is read: the name and type of each column."""
    types = {each.name: each.type_oid for each in columns}
    return [f"{name} {types[name]}" for name in table.key]


def begin_reading(connection: Connection, table: TableInfo) -> bool:
    """A transaction in which the table keeps its shape; False: somebody is about to change it, it is too early.

    The lock comes before the snapshot. Taken after it, a table that an ALTER has rewritten in between would be read
    as empty: its rows are younger than the snapshot.
    """
    begin = sql.SQL("{}; SET LOCAL lock_timeout = {}; LOCK TABLE {} IN ACCESS SHARE MODE")
    try:
        connection.execute(begin.format(sql.SQL(READ_ONLY), sql.Literal(LOCK_TIMEOUT), table.rows_of), prepare=False)
    except errors.LockNotAvailable:
        return False
    return True
