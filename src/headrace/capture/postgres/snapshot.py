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
forgotten once a chunk has seen that transaction. After a restart nothing is noted; so a first watermark is awaited
before the first chunk is read, and what had passed before the restart is visible by then.

A change that takes the place of a row may lack the row's large values, because PostgreSQL does not send what an update
did not touch. They are taken from the row that waits. If the change passed before the row was read, the chunk is read
again once it sees the change.

A table without a key cannot be matched row by row. It is read in one piece and emitted at once. Changes from before are
left out, and so are, until the log has passed the place where it was read, changes by transactions that it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from psycopg import errors, sql

from headrace.capture.postgres.copying import copied_columns, copied_fields, copied_rows, key_text
from headrace.capture.postgres.pgoutput import RelationColumn
from headrace.capture.postgres.setup import Connection, PostgresSetup, TableInfo
from headrace.capture.source import Progress
from headrace.errors import UsageError

__all__ = [
    "CHUNK_BYTES_MAX",
    "READ_ONLY",
    "Chunk",
    "ChunkSize",
    "SeenTransactions",
    "Snapshots",
    "begin_reading",
    "copied_columns",
    "copied_fields",
    "copied_rows",
    "key_text",
]

T = TypeVar("T")
Values: TypeAlias = list[Sequence[bytes | None]]
"""Rows as columns, each with a value for every row."""

CHUNK_BYTES_MAX = 16 * 1024 * 1024
"""A chunk ends with the row with which it holds this much, whatever number of rows was asked for."""
FIRST_ROWS = 500
GROWTH = 4
"""A table begins with few rows, and so many times more are asked for each time: how large they are shows first."""
TOUCHED_MAX = 100_000
"""With more keys or transactions noted for a table, those are looked for that every later chunk has seen anyway."""
LOCK_TIMEOUT = "1s"
"""Whoever changes a table's shape is not waited for any longer: changes of other tables go on meanwhile."""
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


class Chunk(NamedTuple):
    """Rows of one statement that wait for their watermark."""

    number: int
    table: TableInfo
    columns: list[RelationColumn]
    seen: SeenTransactions
    values: Values
    rows: dict[bytes, int]
    """Where in ``values`` each row is that waits, by its identity."""
    after: list[str] | None
    rows_read: int
    is_last: bool
    line_bytes_max: int

    def row(self, place: int) -> list[bytes | None]:
        return [column[place] for column in self.values]

    def waiting(self) -> Values:
        """The values of the rows that still wait."""
        if len(self.rows) == self.rows_read:
            return self.values
        return [[column[place] for place in self.rows.values()] for column in self.values]


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
    """Which tables are still to be read, how far, and the chunk under way."""

    def __init__(
        self,
        setup: PostgresSetup,
        run: str,
        chunk_rows: int,
        keys_of: Callable[[TableInfo, list[RelationColumn], Values, int], list[bytes | None]],
    ) -> None:
        self._setup = setup
        self.prefix = f"{setup.slot}.watermark"
        self._run = run
        self._size = ChunkSize(chunk_rows)
        self._keys_of = keys_of
        self.progress: dict[str, Progress] = {}
        self._tables: dict[str, TableInfo] = {}
        self._pending: list[str] = []
        self._number = 0
        self._awaited: int | None = None
        self.chunk: Chunk | None = None
        self._touched: dict[str, dict[bytes, int]] = {}
        self._lacking: dict[str, set[bytes]] = {}
        """Keys among those touched whose change came without a large value."""
        self._touched_without_key: dict[str, set[int]] = {}
        self._touched_limit = TOUCHED_MAX
        self._filters: dict[str, tuple[SeenTransactions, int]] = {}

    def start(self, progress: dict[str, Progress], tables: dict[str, TableInfo]) -> None:
        """Take up what is recorded, and plan the tables that are not."""
        self.progress = progress
        for name, table in tables.items():
            if name not in progress:
                progress[name] = Progress(rows_expected=self._setup.rows_expected(table))
            if not progress[name].done:
                self._plan(table)
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
        self.progress[table.full_name] = Progress(rows_expected=self._setup.rows_expected(table))
        self._plan(table)
        if self._awaited is None:
            self._awaited = self._watermark()

    def forget(self, name: str) -> None:
        """The table is gone, or another one."""
        if self.chunk is not None and self.chunk.table.full_name == name:
            self.chunk = None
        if name in self._pending:
            self._pending.remove(name)
        for each in (self.progress, self._tables, self._touched, self._touched_without_key, self._filters):
            each.pop(name, None)
        self._lacking.pop(name, None)

    @property
    def done(self) -> bool:
        return not self._pending

    @property
    def wants_to_read(self) -> bool:
        return bool(self._pending) and self._awaited is None

    @property
    def watching(self) -> bool:
        """Whether changes must be told to ``changed``."""
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
            chunk = self.chunk
            if chunk is not None and chunk.table.full_name == table and not chunk.seen.sees(xid):
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
        chunk = self.chunk
        if chunk is None or chunk.table.full_name != table or chunk.seen.sees(xid):
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
        chunk = self.chunk
        if chunk is not None and chunk.table.full_name == table and not chunk.seen.sees(xid):
            chunk.rows.clear()
        return self.changed(table, None, xid, commit_lsn)

    def passed(self, content: bytes) -> Chunk | None:
        """A watermark comes by; gives the chunk that waited for it."""
        run, _, number = content.decode().partition(":")
        if run != self._run or int(number) != self._awaited:
            return None  # of a run that is over: its chunk is read again
        self._awaited = None
        chunk, self.chunk = self.chunk, None
        if chunk is None:
            return None
        progress = self.progress[chunk.table.full_name]
        progress.after = chunk.after or progress.after
        progress.rows += chunk.rows_read
        if chunk.is_last:
            self._finish(chunk.table.full_name)
        return chunk

    def _finish(self, table: str) -> None:
        self.progress[table].done = True
        self.progress[table].after = None
        self._pending.remove(table)
        self._tables.pop(table, None)
        self._size.begin()
        self._touched.pop(table, None)
        self._touched_without_key.pop(table, None)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def step(self, emit_whole: Callable[[TableInfo, list[RelationColumn], int, Iterator[list[bytes]]], int]) -> None:
        """Read the next chunk unless one is under way. A table without a key is emitted whole, at once."""
        if self._awaited is not None or not self._pending:
            return
        name = self._pending[0]
        table = self._tables[name]
        connection = self._setup.connection
        try:
            if not begin_reading(connection, table) or not self._is_the_same(table):
                self._put_off(name)
                return
            seen = SeenTransactions(self._setup.one("select pg_current_snapshot()::text"))
            self._forget_seen(seen)
            columns = self._setup.columns(table)
            if not table.key:
                self._read_whole(table, columns, seen, emit_whole)
                return
            chunk = self._read_chunk(table, columns, seen)
        except errors.UndefinedTable:
            self._put_off(name)
            return
        except errors.InsufficientPrivilege as error:
            raise UsageError(
                f"{name} cannot be read whole: {error.diag.message_primary}",
                f"GRANT SELECT ON {table.quoted} TO the user; ALTER ROLE … BYPASSRLS where row-level security hides "
                f"rows; or leave it out with --exclude-tables {name}",
            ) from error
        finally:
            connection.execute("COMMIT")
        self._awaited = self._watermark()
        if chunk is not None:
            self.chunk = chunk._replace(number=self._awaited)

    def _is_the_same(self, table: TableInfo) -> bool:
        """Whether the name, which is locked now, is still that of the table to be read, with its key."""
        if self._setup.one("select to_regclass(%s)::oid::bigint", table.quoted) != table.oid:
            return False
        return {each.name for each in self._setup.columns(table)}.issuperset(table.key)

    def _put_off(self, name: str) -> None:
        """Somebody is at the table. The others come first; what became of it, the next look at the catalogue tells."""
        self._pending.remove(name)
        self._pending.append(name)

    def _forget_seen(self, seen: SeenTransactions) -> None:
        for name, touched in self._touched.items():
            self._touched[name] = {key: xid for key, xid in touched.items() if not seen.sees(xid)}
        for name, keys in self._lacking.items():
            self._lacking[name] = keys & self._touched.get(name, {}).keys()
        for name, xids in self._touched_without_key.items():
            self._touched_without_key[name] = {xid for xid in xids if not seen.sees(xid)}

    def _read_chunk(self, table: TableInfo, columns: list[RelationColumn], seen: SeenTransactions) -> Chunk | None:
        """None: a row is newer in the stream, but came without a large value. It is read again when it is seen."""
        lines: list[bytes] = []
        size_bytes = 0
        passed_over = False
        asked = self._size.rows
        for block in self._copied(table, columns, self.progress[table.full_name].after, asked):
            if size_bytes >= CHUNK_BYTES_MAX:
                # Read again later: a COPY ends early only by a cancellation that may hit what follows.
                passed_over = True
                continue
            lines += block
            size_bytes += sum(map(len, block))
        count = len(lines)
        values = copied_columns(lines, len(columns))
        by_key = {key or b"": place for place, key in enumerate(self._keys_of(table, columns, values, count))}
        if not by_key.keys().isdisjoint(self._lacking.get(table.full_name, ())):
            return None
        for key in self._touched[table.full_name]:
            by_key.pop(key, None)
        places = [[each.name for each in columns].index(name) for name in table.key]
        after = [key_text(values[place][-1]) for place in places] if lines else None
        self._size.took(count, size_bytes)
        is_last = count < asked and not passed_over
        line_bytes_max = max(map(len, lines), default=0)
        return Chunk(0, table, columns, seen, values, by_key, after, count, is_last, line_bytes_max)

    def _read_whole(
        self,
        table: TableInfo,
        columns: list[RelationColumn],
        seen: SeenTransactions,
        emit_whole: Callable[[TableInfo, list[RelationColumn], int, Iterator[list[bytes]]], int],
    ) -> None:
        name = table.full_name
        if self._touched_without_key[name]:
            return  # a change has been left out that this snapshot does not show yet; the next one will
        until = self._setup.inserted_lsn()
        progress = self.progress[name]
        progress.rows = emit_whole(table, columns, until, self._copied(table, columns, None, None))
        progress.filter = [seen.text, until]
        self._filters[name] = seen, until
        self._finish(name)

    def _copied(
        self, table: TableInfo, columns: list[RelationColumn], after: list[str] | None, limit: int | None
    ) -> Iterator[list[bytes]]:
        return copied_rows(self._setup.connection, table, columns, after, limit)

    def _watermark(self) -> int:
        """Write a mark into the server's log, as a transaction of its own so that it is flushed."""
        self._number += 1
        content = f"{self._run}:{self._number}"
        self._setup.connection.execute("select pg_logical_emit_message(true, %s, %s)", (self.prefix, content))
        return self._number


def begin_reading(connection: Connection, table: TableInfo) -> bool:
    """A transaction in which the table keeps its shape; False: somebody is about to change it, it is too early.

    The lock comes before the snapshot. Taken after it, a table that an ALTER has rewritten in between would be read
    as empty: its rows are younger than the snapshot.
    """
    connection.execute(READ_ONLY)
    try:
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT)))
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(table.rows_of))
    except errors.LockNotAvailable:
        return False
    return True
