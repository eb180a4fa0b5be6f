"""A store in one SQLite file: the default, for one machine and any number of processes on it.

The file is in WAL mode and every commit is synced. SQLite has one writer at a time: an append begins with
``BEGIN IMMEDIATE``, so its position is the greatest one plus one, and commits happen in the order of positions. Appends
of one process share transactions (``appends.py``); those of several processes take turns.

What an append costs beside the sync depends on the pages that it changes: each is written to the WAL. An id that the
store makes begins with the position of its event. Such an event is found by its position, so its id is in no index, and
an append changes two pages and not three. The index has the ids that applications give.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.sourcing.appends import Appended, Part, Request, check_expected, repeated_by_ids, repeated_of
from headrace.sourcing.errors import AppendConflict, SourcingError, StoreUnavailable
from headrace.sourcing.events import ANY, Query, Row
from headrace.sourcing.privacy import FORGOTTEN_STREAM
from headrace.sourcing.sql import SqlReads, condition_of, tables
from headrace.sourcing.store import Choices, EventStore, Snapshot, StreamInfo, no_store

__all__ = ["INSERT", "SqliteStore"]

LOCK_TIMEOUT_S = 60.0
TURN_PAUSE_S = 0.0005
"""Between two attempts to become the writer; SQLite's own pauses grow to 100 ms, while a commit takes one or two."""
IDLE_CONNECTIONS_MAX = 8
_POSITION_IN_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})")
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
_INDEXED_IDS = "substr(event_id, 1, 13) <> printf('%08x-%04x', position >> 16, position & 65535)"
"""Not the ids that ``id_at`` makes, which begin with their position."""
INSERT = (
    "insert into headrace_events values (?, ?, ?, ?, ?, ?, ?, ?, "
    "nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''), ?)"
)
"""Most events have none of these four. Each None that Python's sqlite3 binds costs half a microsecond, '' nothing."""
_LAST = (
    "select position, recorded_us, (select max(version) from headrace_events where stream = ?) from headrace_events "
    "order by position desc limit 1"
)
"""The last event of the store, and the version of a stream."""
_NOTHING = Part(None, ANY, (), ())
"""Stands for the parts of an append that has none."""


class SqliteStore(EventStore):
    """See the module. ``synced=False`` is for a file that can be made again from something else."""

    _makes_ids = False

    def __init__(self, path: str | Path, choices: Choices | None = None, *, synced: bool = True) -> None:
        super().__init__(f"sqlite:///{path}", choices or Choices())
        self.path = Path(path)
        self._synced = synced
        self._idle: list[sqlite3.Connection] = []
        self._idle_lock = threading.Lock()
        self._closed = threading.Event()
        self._may_create = choices is None or choices.create
        if not self._may_create and not self.path.exists():
            raise no_store(self.shown)
        if not self.path.parent.is_dir():
            raise UsageError(f"there is no folder {self.path.parent}", f"mkdir -p {self.path.parent}")
        if self.path.is_dir():
            raise UsageError(f"{self.path} is a folder", "name a file in it")
        with self._explained():
            self._writer = self._connected()
            self._writer.execute("pragma busy_timeout = 0")
            self._cursor = self._writer.cursor()
            try:
                self._make_tables()
            except BaseException:
                self._writer.close()
                raise
        self._reads = SqlReads(self._ask)
        self._finish_forgetting()

    # ---- connections ------------------------------------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=LOCK_TIMEOUT_S, check_same_thread=False)
        use_wal(connection)
        connection.execute(f"pragma synchronous = {'full' if self._synced else 'normal'}")
        connection.execute("pragma secure_delete = on")
        return connection

    def _make_tables(self) -> None:
        found = self._writer.execute("select 1 from sqlite_master where name = 'headrace_snapshots'").fetchone()
        if found:
            return
        if not self._may_create:
            raise no_store(self.shown)
        if self._writer.execute("select 1 from sqlite_master where name = 'subject_keys'").fetchone():
            raise UsageError(f"{self.path} has keys of subjects, which are kept apart from events", "name another file")
        self._begin()
        for statement in tables(no_rowid=" without rowid", indexed_ids=_INDEXED_IDS):
            self._writer.execute(statement)
        self._writer.execute("commit")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        self._opener.check(self.shown)
        with self._idle_lock:
            if self._closed.is_set():
                raise SourcingError(f"the store {self.shown} is closed")
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connected()
        try:
            with self._explained():
                yield connection
        finally:
            with self._idle_lock:
                if not self._closed.is_set() and len(self._idle) < IDLE_CONNECTIONS_MAX:
                    self._idle.append(connection)
                    connection = None
            if connection is not None:
                connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explained(str(self.path), error) from error

    def _ask(self, statement: str, values: Sequence[Any]) -> list[Row]:
        with self._reading() as connection:
            return connection.execute(statement, values).fetchall()

    def _close(self) -> None:
        with self._idle_lock:
            self._closed.set()
            connections, self._idle = self._idle, []
        for connection in (*connections, self._writer):
            connection.close()

    # ---- append -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Become the file's only writer. Attempts are our own: many processes take turns of a millisecond."""
        deadline = None
        while True:
            try:
                self._cursor.execute("begin immediate")
                return
            except sqlite3.OperationalError as error:
                deadline = deadline or time.monotonic() + LOCK_TIMEOUT_S
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(TURN_PAUSE_S * random.uniform(0.5, 1.5))

    def _write(self, batch: Sequence[Request]) -> None:
        if self._write_together(batch):
            return
        # One of them is not taken by the database: alone, it gets its own error, and the others are written.
        for request in batch:
            try:
                self._write_together([request])
            except Exception as own:
                request.outcome = own

    def _write_together(self, batch: Sequence[Request]) -> bool:
        """In one transaction. False: nothing was written, since one of several failed with more than a conflict."""
        try:
            try:
                self._begin()  # an interrupt that comes while it runs finds the transaction begun
                try:
                    self._write_all(batch)
                except Exception:
                    if len(batch) == 1:
                        raise
                    self._writer.rollback()
                    return False
                self._commit(batch)
            except BaseException:
                self._writer.rollback()
                raise
        except sqlite3.Error as error:
            raise explained(str(self.path), error) from error
        return True

    def _commit(self, batch: Sequence[Request]) -> None:
        self._cursor.execute("commit")

    def _write_all(self, batch: Sequence[Request]) -> None:
        for request in batch:
            try:
                request.outcome = self._repeated(request) or self._written(request)
            except SourcingError as error:
                request.outcome = error

    def _repeated(self, request: Request) -> Appended | None:
        """What an earlier append with the same command or the same event ids has done."""
        ask = self._writer.execute
        if request.command_id is not None:
            rows = ask(
                "select position, stream, version from headrace_events where command_id = ? order by position",
                (request.command_id,),
            ).fetchall()
            if rows:
                return repeated_of(rows)
        return (
            repeated_by_ids(request.event_streams, self._with_ids(request.event_ids, ask))
            if request.checks_ids
            else None
        )

    def _rows_with_ids(self, ids: Sequence[str]) -> list[Row]:
        with self._reading() as connection:
            return self._with_ids(ids, connection.execute)

    @staticmethod
    def _with_ids(ids: Sequence[str], ask: Callable[[str, Sequence[Any]], sqlite3.Cursor]) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(ids), 500):
            part = ids[start : start + 500]
            marks = ", ".join("?" * len(part))
            rows += ask(
                f"select position, stream, version from headrace_events where event_id in ({marks}) and {_INDEXED_IDS}",
                part,
            ).fetchall()
        for event_id, position in _positions_in(ids):
            rows += ask(
                "select position, stream, version from headrace_events where position = ? and event_id = ? "
                f"and not ({_INDEXED_IDS})",
                (position, event_id),
            ).fetchall()
        return rows

    def _written(self, request: Request) -> Appended:
        versions: dict[str, int] = {}
        position, recorded_us = 0, 0
        for part in request.parts or (_NOTHING,):
            position, recorded_us, version = self._cursor.execute(_LAST, (part.stream,)).fetchone() or (0, 0, None)
            if part.stream is not None:
                versions[part.stream] = version or 0
                check_expected(part.stream, part.expected, versions[part.stream])
        self._check_condition(request)
        self._advance(request)
        first = position + 1
        recorded_us = max(recorded_us, time.time_ns() // 1000)
        rows: list[Row] = []
        tags: list[tuple[str, int]] = []
        for part in request.parts:
            for event, names in zip(part.rows, part.tags, strict=True):
                position += 1
                version = None
                if part.stream is not None:
                    version = versions[part.stream] = versions[part.stream] + 1
                event_id, kind, schema, data, named, correlation, causation, actor = event
                about = correlation or "", causation or "", actor or "", request.command_id or "", recorded_us
                event_id = event_id or id_at(position)
                rows.append((position, part.stream, version, event_id, kind, schema, data, named, *about))
                tags += [(tag, position) for tag in set(names)]
        self._cursor.executemany(INSERT, rows)
        if tags:
            self._cursor.executemany("insert into headrace_tags values (?, ?)", tags)
        return Appended(position, first, versions)

    def _check_condition(self, request: Request) -> None:
        if request.condition is None:
            return
        query, after = request.condition.fail_if_events_match, request.condition.after
        terms, values = condition_of(query, after)
        found = self._writer.execute(
            f"select position from headrace_events where position > ? and {terms} limit 1", (after, *values)
        ).fetchone()
        if found:
            raise condition_failed(found[0], after)

    def _advance(self, request: Request) -> None:
        progress = request.progress
        if progress is None:
            return
        done = self._writer.execute(
            "insert into headrace_progress values (?, ?) on conflict (name) do update set position = excluded.position "
            "where position < excluded.position returning position",
            (progress.name, progress.position),
        ).fetchall()
        if not done:
            raise progress_conflict(progress.name, progress.position)

    # ---- read -------------------------------------------------------------------------------------------------------

    def _select(self, query: Query, after: int, until: int | None, limit: int, *, backwards: bool = False) -> list[Row]:
        return self._reads.events(query, after, until, limit, backwards)

    def _select_stream(
        self, stream: str, after: int, until: int | None, limit: int, *, backwards: bool = False
    ) -> list[Row]:
        return self._reads.stream(stream, after, until, limit, backwards)

    def head(self) -> int:
        return self._reads.head()

    def version(self, stream: str) -> int:
        return self._reads.version(stream)

    def streams(self, category: str | None = None, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        return self._reads.streams(category, after, limit)

    def progress(self, name: str) -> int:
        return self._reads.progress(name)

    def command_result(self, command_id: str) -> Appended | None:
        rows = self._reads.command(command_id)
        return repeated_of(rows) if rows else None

    # ---- snapshots, purging -----------------------------------------------------------------------------------------

    def load_snapshot(self, stream: str, kind: str) -> Snapshot | None:
        return self._reads.snapshot(stream, kind)

    def save_snapshot(self, stream: str, kind: str, snapshot: Snapshot, *, forgotten: int) -> None:
        self._ask(
            "insert or replace into headrace_snapshots select ?, ?, ?, ?, ? where "
            "(select coalesce(max(version), 0) from headrace_events where stream = ?) = ?",
            (stream, kind, snapshot.version, snapshot.schema, snapshot.state, FORGOTTEN_STREAM, forgotten),
        )

    def delete_snapshots(self, streams: Iterable[str] | None = None) -> int:
        count = 0
        with self._reading() as connection:
            if streams is None:
                return connection.execute("delete from headrace_snapshots").rowcount
            for stream in streams:
                count += connection.execute("delete from headrace_snapshots where stream = ?", (stream,)).rowcount
        return count

    def purge(self) -> None:
        """VACUUM writes the file again without what was deleted; then the WAL is emptied."""
        with self._explained():
            purge_file(self.path)


def explained(shown: str, error: sqlite3.Error) -> SourcingError:
    """What SQLite does not take is an error; what it cannot do at the moment may be tried again."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    hint = " (SQLite makes files beside it also to read: may this user write to the folder?)"
    text = f"{shown}: {error}{hint if code == sqlite3.SQLITE_CANTOPEN else ''}"
    return StoreUnavailable(text) if code in _PASSING else SourcingError(text)


def use_wal(connection: sqlite3.Connection) -> None:
    """WAL mode. The change of mode does not wait for others who open the file at the same moment, so this does."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(TURN_PAUSE_S)


def purge_file(path: Path) -> None:
    """Leave nothing in a SQLite file and its WAL but what its tables have."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=LOCK_TIMEOUT_S)) as connection:
        # An index of texts only marks the words of deleted rows, and VACUUM copies them with the marks.
        of_texts = "select name from sqlite_schema where sql like 'create virtual table % using fts_%'"
        for (name,) in connection.execute(of_texts).fetchall():
            connection.execute(f'insert into "{name}" ("{name}") values (\'optimize\')')
        connection.execute("vacuum")
        busy, _, _ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
    if busy:
        raise StoreUnavailable(
            "the WAL could not be emptied while others read: end their transactions, and purge again"
        )


def id_at(position: int) -> str:
    """The id of an event that got none from the application: its position in 48 bits, then random ones (UUID 8)."""
    digits = os.urandom(10).hex()
    place = f"{position:012x}"
    return f"{place[:8]}-{place[8:]}-8{digits[:3]}-a{digits[3:6]}-{digits[6:18]}"


def _positions_in(ids: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Those of the ids that ``id_at`` may have made, with the position in each."""
    for event_id in ids:
        match = _POSITION_IN_ID.match(event_id)
        if match:
            yield event_id, int(match[1] + match[2], 16)


def condition_failed(position: int, after: int) -> AppendConflict:
    return AppendConflict(
        f"the append was to fail if certain events come after position {after}, and there is one at position "
        f"{position}: read again and decide again"
    )


def progress_conflict(name: str, position: int) -> AppendConflict:
    return AppendConflict(f"{name} has been at position {position} or after it already: another process works under it")
