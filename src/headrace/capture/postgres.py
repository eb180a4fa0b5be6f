"""PostgreSQL as a source: its own log through a replication slot, with snapshots in between.

The stream comes over a replication connection, everything else over an ordinary one. The slot is told to move on only
to where a committed position of the log stands, also when nothing of interest happens: the position then moves with the
server's keep-alives, once per heartbeat, so the slot does not hold back the server's log for quiet tables.

A position says: everything whose commit stands before ``lsn`` is in the log; and of the transaction that commits at
``commit``, the first ``index`` events are too.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.pq import ExecStatus

from headrace.capture import pgoutput
from headrace.capture.options import CaptureOptions
from headrace.capture.pgoutput import RelationColumn
from headrace.capture.postgres_events import PostgresEvents
from headrace.capture.postgres_setup import PostgresSetup, TableInfo, connect, lsn_number, lsn_text
from headrace.capture.postgres_snapshot import Chunk, Snapshots, in_blocks
from headrace.capture.postgres_streams import StreamedTransactions
from headrace.capture.source import DatabaseGone, PositionLost, Progress, SourceStatus
from headrace.capture.writer import Writer

__all__ = ["PostgresSource"]

T = TypeVar("T")

CONNECTION_ERRORS = (psycopg.OperationalError, psycopg.InterfaceError)
STATUS_INTERVAL_S = 10.0
STATUS_ROWS = 256
"""In work of any length the clock is asked after so many rows."""
READ_BYTES = 4 * 1024 * 1024
"""``read`` returns at the end of the transaction with which it has taken this much, or far behind it inside one."""
READ_BYTES_MAX = 8 * READ_BYTES
_WAL, _KEEPALIVE = b"wk"
_WAL_HEADER = struct.Struct(">xQQq")
_KEEPALIVE_BODY = struct.Struct(">xQqB")
_STATUS = struct.Struct(">cQQQqB")


class PostgresSource:
    """``headrace.capture.source.Source`` for PostgreSQL."""

    def __init__(self, options: CaptureOptions, writer: Writer | None) -> None:
        self._options = options.qualified("public")
        self._writer = writer
        self._connection = connect(options)
        self._setup = PostgresSetup(self._connection, self._options)
        self._replication: psycopg.Connection[Any] | None = None
        self._snapshots: Snapshots | None = None
        self._streams = StreamedTransactions()
        self._events: PostgresEvents
        self._lsn = 0
        self._confirmed = 0
        self._status_s = 0.0
        self._target_lsn = 0
        self._begun: pgoutput.Begin | None = None
        self._skipping = False
        self._partial: tuple[int, int] = (0, 0)

    # ---- starting ---------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        self._setup.check_server()
        tables = self._setup.tables()
        notes = [
            f"{each.full_name} has no key that tells its rows apart: only insertions and truncations are captured "
            f"(all of it: ALTER TABLE {each.full_name} REPLICA IDENTITY FULL)"
            for each in tables.values()
            if not each.changes_identifiable
        ]
        return [f"{len(tables)} tables", *notes]

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        self._guarded(lambda: self._start(state, resnapshot))

    def _start(self, state: Mapping[str, Any], resnapshot: bool) -> None:
        assert self._writer is not None, "a source that reads has a writer"
        self._setup.check_server()
        tables = self._setup.tables()
        self._setup.publish(list(tables.values()))
        position = {} if resnapshot else state.get("position", {})
        if position and "lsn" not in position:
            raise PositionLost(
                f"so far capture {self._options.name} was run with --triggers, and the server's log is not known from "
                f"there; take a new snapshot: headrace capture run {self._options.name} --resnapshot"
            )
        self._open_slot(position, resnapshot)
        self._events = PostgresEvents(self._options, self._connection.info.dbname, self._writer)
        self._events.types = self._setup.types()
        self._events.keys = {(each.schema, each.name): each.key for each in tables.values()}
        self._events.last_commit = position.get("last_commit")
        self._events.shapes = dict(state.get("shapes", {}))
        self._start_snapshots({} if resnapshot else state.get("snapshots", {}), tables)
        if resnapshot:
            self._announce_gap(tables)
        self._target_lsn = self._setup.current_lsn()
        self._stream()

    def _open_slot(self, position: Mapping[str, Any], resnapshot: bool) -> None:
        """Go on where the log stands, or begin with a new slot when nothing is in the log yet."""
        if resnapshot:
            self._setup.drop_slot()
        slot = self._setup.slot_state()
        if position:
            self._lsn = lsn_number(position["lsn"])
            self._setup.check_slot(slot, self._lsn)
            self._partial = (position.get("commit", 0), position.get("index", 0))
        elif slot is None or slot["wal_status"] == "lost":
            self._setup.drop_slot()
            self._lsn = self._setup.create_slot()
        else:
            self._lsn = slot["confirmed"]
        self._setup.release_slot()
        self._confirmed = self._lsn

    def _start_snapshots(self, recorded: Mapping[str, Any], tables: dict[str, TableInfo]) -> None:
        run = os.urandom(6).hex()
        self._snapshots = Snapshots(self._setup, run, self._options.chunk_rows, self._keys_of)
        progress = {name: Progress.from_json(each) for name, each in recorded.items()}
        for name in tables:
            if not self._options.snapshot or name == self._options.outbox:
                progress.setdefault(name, Progress(done=True))
        self._snapshots.start(progress, tables)
        self._watch_changes()

    def _announce_gap(self, tables: dict[str, TableInfo]) -> None:
        """What was deleted meanwhile is not known; a truncation tells whoever folds the topic to begin anew."""
        self._events.begin(self._lsn, time.time_ns() // 1000, 0)
        for table in tables.values():
            followed = self._events.follow(table.schema, table.name, self._setup.columns(table), table.key)
            source = followed.block.of_transaction(time.time_ns() // 1000, None, None) % (self._lsn, self._lsn)
            followed.encoder.truncated(self._events.out, self._events.transaction, source)

    def _stream(self) -> None:
        self._replication = connect(self._options, replication=True)
        names = ",".join(f'"{each}"' for each in self._setup.publications)
        version = "'2', streaming 'on'" if self._options.streaming else "'1'"
        command = (
            f'START_REPLICATION SLOT "{self._setup.slot}" LOGICAL {lsn_text(self._lsn)} '
            f"(proto_version {version}, publication_names '{names}', messages 'true')"
        )
        result = self._replication.pgconn.exec_(command.encode())
        if result.status != ExecStatus.COPY_BOTH:
            raise DatabaseGone(f"the server does not stream: {result.error_message.decode(errors='replace').strip()}")
        self._status_s = time.monotonic()

    # ---- reading ----------------------------------------------------------------------------------------------------

    @property
    def at_boundary(self) -> bool:
        return self._begun is None

    def read(self, wait_s: float) -> bool:
        writer, snapshots = self._writer, self._snapshots
        assert writer is not None
        assert snapshots is not None
        if self._begun is None and not snapshots.done:
            self._guarded(lambda: snapshots.step(self._emit_whole))
            self._watch_changes()
        enough = writer.bytes_pending + READ_BYTES
        most = writer.bytes_pending + READ_BYTES_MAX
        while (data := self._next(0 if writer.events_pending else wait_s)) is not None:
            self._received(data)
            if writer.bytes_pending >= enough and (self._begun is None or writer.bytes_pending >= most):
                break
            if self._begun is None and snapshots.wants_to_read:
                break
        self._maybe_status()
        return data is not None

    def _next(self, wait_s: float) -> bytes | None:
        """The next message, waiting for it if need be."""
        assert self._replication is not None
        connection = self._replication.pgconn
        try:
            size, data = connection.get_copy_data(1)
            while size == 0:
                if not select.select([connection.socket], [], [], wait_s)[0]:
                    return None
                connection.consume_input()
                size, data = connection.get_copy_data(1)
        except psycopg.OperationalError as error:
            raise DatabaseGone(f"the replication connection ended: {error}") from error
        if size < 0:
            raise DatabaseGone(f"the server ended the stream: {self._stream_error()}")
        return bytes(data)

    def _stream_error(self) -> str:
        assert self._replication is not None
        result = self._replication.pgconn.get_result()
        return "it gave no reason" if result is None else result.error_message.decode(errors="replace").strip()

    def _received(self, data: bytes) -> None:
        kind = data[0]
        if kind == _WAL:
            lsn = _WAL_HEADER.unpack_from(data)[0]
            payload = data[_WAL_HEADER.size :]
            if not self._streams.take(payload, lsn):
                self._message(pgoutput.decode(payload), lsn, len(payload))
            elif self._streams.ended is not None:
                self._replay()
        elif kind == _KEEPALIVE:
            end, _, reply = _KEEPALIVE_BODY.unpack_from(data)
            if self._begun is None:
                self._lsn = max(self._lsn, end)
            if reply:
                self._send_status()

    def _replay(self) -> None:
        """A streamed transaction has committed: now its changes count, as if they had come at once."""
        commit, messages = self._streams.take_ended()
        self._message(pgoutput.Begin(commit.commit_lsn, commit.commit_us, commit.xid), commit.commit_lsn, 0)
        for message, lsn, size in self._in_touch(messages):
            self._message(message, lsn, size)
        self._message(pgoutput.Commit(commit.commit_lsn, commit.end_lsn, commit.commit_us), commit.end_lsn, 0)

    def _message(self, message: pgoutput.Message, lsn: int, size: int) -> None:
        events = self._events
        if isinstance(message, pgoutput.Relation):
            self._relation(message)
        elif isinstance(message, pgoutput.Begin):
            self._begin(message)
        elif isinstance(message, pgoutput.Commit):
            self._commit(message)
        elif self._skipping:
            return
        elif isinstance(message, pgoutput.Insert):
            events.insert(message, lsn, size)
        elif isinstance(message, pgoutput.Update):
            events.update(message, lsn, size)
        elif isinstance(message, pgoutput.Delete):
            events.delete(message, lsn)
        elif isinstance(message, pgoutput.Truncate):
            events.truncate(message, lsn)
        elif isinstance(message, pgoutput.LogicalMessage):
            self._logical_message(message, lsn)
        elif isinstance(message, pgoutput.Origin):
            events.origin(message.name)

    def _relation(self, message: pgoutput.Relation) -> None:
        if any(column.type_oid not in self._events.types for column in message.columns):
            self._events.types = self._guarded(self._setup.types)
        name = (message.schema, message.name)
        if message.identity != "d" and name not in self._events.keys:
            tables = self._guarded(self._setup.tables)
            self._events.keys.update({(each.schema, each.name): each.key for each in tables.values()})
        self._events.relation(message)

    def _begin(self, message: pgoutput.Begin) -> None:
        """A transaction whose commit lies before our position is in the log: the server may send it again."""
        self._begun = message
        self._skipping = message.commit_lsn < self._lsn
        commit, index = self._partial
        written = index if commit == message.commit_lsn else 0
        if not self._skipping:
            self._events.begin(message.commit_lsn, message.commit_us, message.xid, written)

    def _commit(self, message: pgoutput.Commit) -> None:
        if not self._skipping:
            self._events.end(message.end_lsn)
        self._lsn = max(self._lsn, message.end_lsn)
        self._begun = None
        self._skipping = False

    def _logical_message(self, message: pgoutput.LogicalMessage, lsn: int) -> None:
        assert self._snapshots is not None
        if message.prefix == self._snapshots.prefix:
            chunk = self._snapshots.passed(message.content)
            if chunk is not None:
                self._emit_chunk(chunk, lsn)
            return
        if not message.transactional:
            if message.lsn < self._lsn:
                return
            self._lsn = message.lsn + 1
        self._events.message(message, lsn)

    # ---- snapshots --------------------------------------------------------------------------------------------------

    def _watch_changes(self) -> None:
        """Changes are told to the snapshots as long as these ask for it, and not a moment longer."""
        assert self._snapshots is not None
        watching = self._snapshots.watching
        self._events.touched = self._touched if watching else None
        self._events.emptied = self._emptied if watching else None

    def _touched(self, table: str, key: bytes | None) -> bool:
        assert self._snapshots is not None
        assert self._begun is not None, "changes come in transactions"
        try:
            return self._snapshots.changed(table, key, self._begun.xid, self._begun.commit_lsn)
        except CONNECTION_ERRORS as error:
            raise self._gone(error) from error

    def _emptied(self, table: str) -> bool:
        assert self._snapshots is not None
        assert self._begun is not None, "truncations come in transactions"
        begun, snapshots = self._begun, self._snapshots
        return self._guarded(lambda: snapshots.truncated(table, begun.xid, begun.commit_lsn))

    def _keys_of(
        self, table: TableInfo, columns: list[RelationColumn], rows: list[list[bytes | None]]
    ) -> list[bytes | None]:
        return self._events.follow(table.schema, table.name, columns, table.key).encoder.keys(rows)

    def _emit_chunk(self, chunk: Chunk, lsn: int) -> None:
        """The chunk's rows are events of its watermark's transaction."""
        assert self._begun is not None, "a watermark is a transaction"
        table = chunk.table
        followed = self._events.follow(table.schema, table.name, chunk.columns, table.key)
        begun = self._begun
        block = followed.block.of_transaction(begun.commit_us, begun.xid, self._events.last_commit, b"incremental")
        source = block % (lsn, lsn)
        rows, keys = list(chunk.rows.values()), list(chunk.rows)
        followed.encoder.read_all(self._events.out, self._events.transaction, source, rows, keys)
        self._watch_changes()

    def _emit_whole(
        self, table: TableInfo, columns: list[RelationColumn], lsn: int, rows: Iterator[list[bytes | None]]
    ) -> int:
        """A table without a key, between two transactions of the stream."""
        now_us = time.time_ns() // 1000
        followed = self._events.follow(table.schema, table.name, columns, [])
        source = followed.block.of_transaction(now_us, None, self._events.last_commit, b"incremental") % (lsn, lsn)
        self._events.begin(lsn, now_us, 0)
        for block in in_blocks(self._in_touch(rows)):
            followed.encoder.read_all(self._events.out, self._events.transaction, source, block)
        return self._events.transaction.index

    def _guarded(self, work: Callable[[], T]) -> T:
        """Failures of the ordinary connection, told as those of the stream are."""
        try:
            return work()
        except CONNECTION_ERRORS as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> DatabaseGone:
        return DatabaseGone(f"{self._options.database.shown}: {' '.join(str(error).split())}")

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        assert self._snapshots is not None
        place: dict[str, Any] = {"format": 1, "lsn": lsn_text(self._lsn), "last_commit": self._events.last_commit}
        if self._begun is not None and not self._skipping:
            place |= {"commit": self._begun.commit_lsn, "index": self._events.transaction.index}
        snapshots = {name: each.as_json() for name, each in self._snapshots.progress.items()}
        return {"position": place, "snapshots": snapshots, "shapes": self._events.shapes}

    def committed(self, state: Mapping[str, Any]) -> None:
        self._confirmed = lsn_number(state["position"]["lsn"])
        self._send_status()

    def caught_up(self) -> bool:
        return self._snapshots is not None and self._snapshots.done and self._lsn >= self._target_lsn

    def _in_touch(self, items: Iterator[T]) -> Iterator[T]:
        """The items, however long they take: a server that hears nothing from us meanwhile ends the stream."""
        for number, item in enumerate(items, 1):
            if number % STATUS_ROWS == 0:
                self._maybe_status()
            yield item

    def _maybe_status(self) -> None:
        if time.monotonic() - self._status_s >= STATUS_INTERVAL_S:
            self._send_status()

    def _send_status(self) -> None:
        assert self._replication is not None
        since_2000_us = time.time_ns() // 1000 - pgoutput.POSTGRES_EPOCH_US
        lsn = self._confirmed
        try:
            self._replication.pgconn.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, since_2000_us, 0))
            self._replication.pgconn.flush()
        except psycopg.OperationalError as error:
            raise DatabaseGone(f"the replication connection ended: {error}") from error
        self._status_s = time.monotonic()

    # ---- besides ----------------------------------------------------------------------------------------------------

    def snapshots(self) -> dict[str, Progress]:
        return {} if self._snapshots is None else dict(self._snapshots.progress)

    def status(self) -> SourceStatus:
        slot = self._guarded(self._setup.slot_state)
        if slot is None:
            return SourceStatus(health="no slot")
        lag = slot["lag_bytes"]
        health = "ok" if slot["wal_status"] in ("reserved", "extended") else f"slot is {slot['wal_status']}"
        if health == "ok" and lag is not None and lag > self._options.lag_alarm_bytes:
            health = f"behind by more than {self._options.lag_alarm_bytes} bytes"
        return SourceStatus(lsn_text(slot["confirmed"]), lag, slot["retained_bytes"], health)

    def remove(self) -> list[str]:
        removed = [f"slot {self._setup.slot}"] if self._setup.drop_slot() else []
        return removed + [f"publication {name}" for name in self._setup.drop_publications()]

    def close(self) -> None:
        self._streams.close()
        if self._replication is not None:
            self._replication.close()
        self._connection.close()
