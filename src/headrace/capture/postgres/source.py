"""PostgreSQL as a source: its own log through a replication slot, with snapshots in between.

The stream comes over a replication connection, everything else over an ordinary one. The slot moves on only
to a position that the log has committed, also when nothing of interest happens: the position then moves with the
server's keep-alives, once per heartbeat, so the slot does not hold back the server's log for quiet tables.

A position says: everything whose commit stands before ``lsn`` is in the log; and of the transaction that commits at
``commit``, the first ``index`` events are too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import psycopg

from headrace.capture.envelope import Rendered, TableEncoder
from headrace.capture.options import CaptureOptions, counted
from headrace.capture.postgres import pgoutput
from headrace.capture.postgres.events import LARGE_MESSAGE_BYTES, FollowedRelation, PostgresEvents
from headrace.capture.postgres.health import slot_health
from headrace.capture.postgres.identity import Known
from headrace.capture.postgres.pgoutput import RelationColumn
from headrace.capture.postgres.publications import Publications
from headrace.capture.postgres.replication import Keepalive, LogData, ReplicationStream, ServerIdentity
from headrace.capture.postgres.setup import PostgresSetup, TableInfo, connect, lsn_number, lsn_text, untranslatable
from headrace.capture.postgres.snapshot import Chunk, Lines, Snapshots, Values
from headrace.capture.postgres.streams import StreamedTransactions
from headrace.capture.postgres.watch import Change, TableWatch
from headrace.capture.source import DatabaseGone, PositionLost, Progress, SourceStatus, TableReplaced
from headrace.capture.writer import Writer
from headrace.errors import UsageError

__all__ = ["PostgresSource"]

T = TypeVar("T")

_MARK = re.compile(r"headrace_[a-z0-9_]+\.(watermark|change)")
"""What captures write into the server's log for themselves."""
CONNECTION_ERRORS = (psycopg.OperationalError, psycopg.InterfaceError)
READ_BYTES = 4 * 1024 * 1024
"""``read`` returns at the end of the transaction with which it has taken this much, or far beyond it inside one."""
READ_BYTES_MAX = 8 * READ_BYTES


class PostgresSource:
    """``headrace.capture.source.Source`` for PostgreSQL."""

    def __init__(
        self, options: CaptureOptions, writer: Writer | None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._options = options.qualified("public")
        self._writer = writer
        self._say = say
        self._connection = connect(options)
        self._setup = PostgresSetup(self._connection, self._options)
        self._setup.by_log = True
        self._publications = Publications(self._setup, options.name)
        run = os.urandom(6).hex()
        self._watch = TableWatch(self._setup, self._publications, self._setup.slot, run, say)
        self._snapshots = Snapshots(
            self._setup, run, options.chunk_rows, self._identities_of, self._renders, self._stay_in_touch
        )
        self._replication: ReplicationStream | None = None
        self._server = ServerIdentity("", 0)
        self._streams = StreamedTransactions()
        self._events: PostgresEvents
        self._lsn = 0
        self._target_lsn = 0
        self._begun: pgoutput.Begin | None = None
        self._skipping = False
        self._partial: tuple[int, int] = (0, 0)
        self._emptied_at: dict[int, int] = {}
        """How many events of a table its transaction had when it was truncated."""
        self._last: list[int] = []
        """Position, time and id of the last transaction: by these the server's history is recognised."""
        self._unproven = False
        """Whether the server has yet to send the last transaction again."""
        self._sent_again = False
        """Whether it sends again what it does not know to be ours. Of a server that crashed that is nothing new."""
        self._unread = False
        self._version_given = self._version_committed = 0

    # ---- starting ---------------------------------------------------------------------------------------------------

    @property
    def options(self) -> CaptureOptions:
        return self._options

    def columns(self) -> dict[str, list[str]]:
        return self._guarded(self._setup.column_names)

    def check(self) -> list[str]:
        self._setup.check_server()
        found = self._setup.all_tables()
        notes = self._setup.check_tables(found)
        tables = self._setup.selected(found)
        self._setup.check_readable(tables.values())
        self._publications.check(tables.values())
        notes += [self._watch.note(each) for each in tables.values() if not each.changes_identifiable]
        return [counted(len(tables), "table"), *notes, *self._setup.advice()]

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        self._guarded(lambda: self._start(state, resnapshot))

    def _start(self, state: Mapping[str, Any], resnapshot: bool) -> None:
        assert self._writer is not None, "a source that reads has a writer"
        self._setup.check_server()
        seen = self._setup.fingerprint()  # before the tables: what changes from here on is found by the next look
        tables = self._setup.tables()
        self._setup.check_readable(tables.values())
        position = {} if resnapshot else state.get("position", {})
        if position and "lsn" not in position:
            raise PositionLost(
                f"so far capture {self._options.name} was run with --triggers, and the server's log is not known from "
                f"there; take a new snapshot: headrace capture run {self._options.name} --resnapshot"
            )
        self._replication = ReplicationStream(self._options)
        self._check_history(position)
        self._events = PostgresEvents(self._options, self._connection.info.dbname, self._writer)
        self._events.types = self._setup.types()
        self._events.unidentified = lambda name: self._guarded(
            lambda: self._watch.ask([name], "has changes whose key is not known")
        )
        self._events.last_commit = position.get("last_commit")
        self._events.shapes = dict(state.get("shapes", {}))
        recorded = {} if resnapshot else state.get("snapshots", {})
        self._watch.begin(seen, tables, self._recorded(position, state, tables))
        self._open_slot(position, resnapshot)
        self._stand_for()
        self._start_snapshots(recorded, is_resumed=bool(position))
        if resnapshot:
            self._announce_gap(state.get("tables", {}))
        self._watch.proceed()
        self._target_lsn = self._setup.current_lsn()
        start = 0 if self._sent_again else self._lsn
        names = self._publications.names
        self._replication.start(self._setup.slot, start, names, streaming=self._options.streaming)

    def _check_history(self, position: Mapping[str, Any]) -> None:
        """The server must be the one whose changes the log has, and must not have gone back before them."""
        assert self._replication is not None
        self._server = self._replication.identify()
        server = position.get("server")
        if not position or server is None:
            return
        system, timeline = server
        if system != self._server.system:
            self._lost("it is another server than the one whose changes the log has")
        if timeline != self._server.timeline:
            left = self._replication.left_timeline_at(self._server.timeline, timeline)
            if left is None or left < lsn_number(position["lsn"]):
                self._lost("its history left the one that the log knows before the position in the log")
        if self._setup.current_lsn() < lsn_number(position["lsn"]):
            self._lost("its log ends before the position in ours: it is an older copy")

    def _lost(self, why: str) -> None:
        raise PositionLost(
            f"{self._options.database.shown}: {why}; "
            f"take a new snapshot: headrace capture run {self._options.name} --resnapshot"
        )

    def _recorded(
        self, position: Mapping[str, Any], state: Mapping[str, Any], tables: Mapping[str, TableInfo]
    ) -> dict[str, Known] | None:
        """What topics stand for. Nothing is recorded before the first run, nor was by versions before this was kept."""
        if not position or "tables" not in state:
            return None
        return {name: Known.from_json(each) for name, each in state["tables"].items()}

    def _open_slot(self, position: Mapping[str, Any], resnapshot: bool) -> None:
        """Go on where the log stands, or begin with a new slot when nothing is in the log yet."""
        assert self._replication is not None
        if resnapshot:
            self._setup.drop_slot()
        slot = self._setup.slot_state()
        if position:
            self._lsn = lsn_number(position["lsn"])
            self._setup.check_slot(slot, self._lsn)
            self._partial = (position.get("commit", 0), position.get("index", 0))
            self._last = list(position.get("last", []))
            self._sent_again = slot is not None and slot["confirmed"] < self._lsn
            self._unproven = slot is not None and bool(self._last) and slot["confirmed"] <= self._last[0]
        elif slot is None or slot["wal_status"] == "lost":
            self._setup.drop_slot()
            self._lsn = self._setup.create_slot()
        else:
            self._lsn = slot["confirmed"]
        self._setup.release_slot()
        self._replication.confirmed = self._lsn

    def _start_snapshots(self, recorded: Mapping[str, Any], *, is_resumed: bool) -> None:
        progress = {name: Progress.from_json(each) for name, each in recorded.items() if name in self._watch.tables}
        for name in self._watch.tables:
            if not self._is_read(name):
                progress.setdefault(name, Progress(done=True))
        # By the key that its topic has, until it changes over to the one that the table has.
        tables = {
            name: replace(each, key=list(self._watch.known[name].key)) for name, each in self._watch.tables.items()
        }
        self._snapshots.start(progress, tables, is_resumed=is_resumed)
        self._watch_changes()

    def _is_read(self, name: str) -> bool:
        return self._options.snapshot and name != self._options.outbox

    def _announce_gap(self, recorded: Mapping[str, Any]) -> None:
        """What was deleted meanwhile is not known; with a truncation a consumer that folds the topic begins again.

        Also of tables that had topics and are not there any more: an older copy of the database may lack them.
        """
        self._events.begin(self._lsn, time.time_ns() // 1000, 0)
        named = {name: (each["schema"], each["name"]) for name, each in recorded.items()}
        named |= {name: (each.schema, each.name) for name, each in self._watch.tables.items()}
        for name, (schema, table) in named.items():
            if name != self._options.outbox:
                rows_follow = name in self._watch.tables and self._options.snapshot
                self._events.emptied_unlogged(schema, table, self._lsn, rows_follow=rows_follow)
            if name not in self._watch.tables:
                self._say(f"{name} is gone, or no longer chosen: its topic gets a truncation")

    # ---- reading ----------------------------------------------------------------------------------------------------

    @property
    def at_boundary(self) -> bool:
        return self._begun is None

    def read(self, wait_s: float) -> bool:
        writer, stream = self._writer, self._replication
        assert writer is not None
        assert stream is not None
        if self._begun is None and not self._snapshots.done:
            self._guarded(lambda: self._snapshots.step(self._emit_whole))
            self._watch_changes()
        enough = writer.bytes_pending + READ_BYTES
        most = writer.bytes_pending + READ_BYTES_MAX
        while (data := stream.next(0 if writer.events_pending else wait_s)) is not None:
            self._received(data)
            if writer.bytes_pending >= enough and (self._begun is None or writer.bytes_pending >= most):
                break
            if self._begun is None and self._snapshots.wants_to_read:
                break
        stream.maybe_send_status()
        self._unread = data is not None
        return data is not None

    def _received(self, data: LogData | Keepalive) -> None:
        assert self._replication is not None
        if isinstance(data, LogData):
            lsn, payload = data
            if not self._streams.take(payload, lsn):
                self._message(pgoutput.decode(payload), lsn, len(payload))
            elif self._streams.ended is not None:
                self._replay()
            return
        if self._begun is None:
            self._check_proven(data.end_lsn)
            self._lsn = max(self._lsn, data.end_lsn)
        if data.wants_reply:
            self._replication.send_status()

    def _check_proven(self, lsn: int) -> None:
        """The server sends again what it does not know to be ours. In its history must be the last that we have."""
        if self._unproven and lsn > self._lsn:
            self._lost("the last transaction in the log is not in its history: it is an older copy, written to since")

    def _replay(self) -> None:
        """A streamed transaction has committed: now its changes count, as if they had come at once."""
        commit, messages = self._streams.take_ended()
        self._message(pgoutput.Begin(commit.commit_lsn, commit.commit_us, commit.xid), commit.commit_lsn, 0)
        assert self._replication is not None
        for message, lsn, size in self._replication.in_touch(messages):
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
            self._emptied_at |= {each: events.told(each) for each in message.relations}
        elif isinstance(message, pgoutput.LogicalMessage):
            self._logical_message(message, lsn)
        elif isinstance(message, pgoutput.Origin):
            events.origin(message.name)

    def _relation(self, message: pgoutput.Relation) -> None:
        self._know_types(message.columns)
        self._events.relation(message)

    def _know_types(self, columns: Sequence[RelationColumn]) -> None:
        """A type may have been made while capture runs."""
        self._events.types = self._guarded(lambda: self._setup.types_of(columns, self._events.types))

    def _begin(self, message: pgoutput.Begin) -> None:
        """A transaction whose commit lies before our position is in the log: the server may send it again."""
        self._begun = message
        self._skipping = message.commit_lsn < self._lsn
        if self._skipping and self._last and message.commit_lsn > self._last[0]:
            self._lost("a transaction stands before the position that was not there before: it is an older copy")
        if list(message) == self._last:
            self._unproven = False
        commit, index = self._partial
        written = index if commit == message.commit_lsn else 0
        if not self._skipping:
            self._check_proven(message.commit_lsn + 1)
            self._events.begin(message.commit_lsn, message.commit_us, message.xid, written)

    def _commit(self, message: pgoutput.Commit) -> None:
        if not self._skipping:
            self._events.end(message.end_lsn)
            assert self._begun is not None, "a transaction ends that has begun"
            for relation, index in self._emptied_at.items():
                # Rows that came after it may have gone with a partition, of which the catalogue has no trace then.
                if index == self._events.told(relation):
                    self._watch.truncated(relation, self._begun.xid)
            self._emptied_at.clear()
            self._last = list(self._begun)
            self._partial = (0, 0)
        self._lsn = max(self._lsn, message.end_lsn)
        self._begun = None
        self._skipping = False

    def _logical_message(self, message: pgoutput.LogicalMessage, lsn: int) -> None:
        if message.prefix == self._snapshots.prefix:
            self._emit_chunks(self._snapshots.passed(message.content), lsn)
            return
        if message.prefix == self._watch.prefix:
            for change in self._watch.passed(message.content):
                self._guarded(lambda change=change: self._change_over(change, lsn))  # type: ignore[misc]
            return
        if _MARK.fullmatch(message.prefix):
            return  # of another capture of this database
        if not message.transactional:
            if message.lsn < self._lsn:
                return
            self._lsn = message.lsn + 1
        self._events.message(message, lsn)

    # ---- snapshots --------------------------------------------------------------------------------------------------

    def _watch_changes(self) -> None:
        """Changes are passed to the snapshots exactly as long as these ask for it."""
        watching = self._snapshots.watching
        self._events.touched = self._touched if watching else None
        self._events.emptied = self._emptied if watching else None
        self._events.waiting = self._waiting if watching else None
        self._events.lacks = self._snapshots.lacks if watching else None

    def _touched(self, table: str, key: bytes | None) -> bool:
        assert self._begun is not None, "changes come in transactions"
        try:
            return self._snapshots.changed(table, key, self._begun.xid, self._begun.commit_lsn)
        except CONNECTION_ERRORS as error:
            raise self._gone(error) from error

    def _waiting(self, table: str, key: bytes, names: list[str]) -> list[bytes | None] | None:
        assert self._begun is not None, "changes come in transactions"
        return self._snapshots.row(table, key, names, self._begun.xid)

    def _emptied(self, table: str) -> bool:
        assert self._begun is not None, "truncations come in transactions"
        begun = self._begun
        return self._guarded(lambda: self._snapshots.truncated(table, begun.xid, begun.commit_lsn))

    def _identities_of(
        self, table: TableInfo, columns: list[RelationColumn], values: Values, count: int
    ) -> list[bytes | None]:
        return self._encoder(table, columns).identities(values, count)

    def _renders(self, table: TableInfo, columns: list[RelationColumn]) -> Callable[[Lines], Rendered | None]:
        """Most of the work for a chunk's rows is done as they come: the server goes on meanwhile."""
        encoder, width = self._encoder(table, columns), len(columns)
        return lambda lines: encoder.rendered(lines.columns(width), lines.count, plain=lines.is_plain(width))

    def _encoder(self, table: TableInfo, columns: list[RelationColumn]) -> TableEncoder:
        """Of a new table it may be the first that the types of columns are met."""
        self._know_types(columns)
        return self._events.encoder_of(table.schema, table.name, columns, table.key)

    def _followed(self, table: TableInfo, columns: list[RelationColumn]) -> FollowedRelation:
        """What rows of a snapshot need."""
        self._know_types(columns)
        return self._events.follow(table.schema, table.name, columns, table.key)

    def _emit_chunks(self, chunks: Sequence[Chunk], lsn: int) -> None:
        assert self._writer is not None
        tables = [each.table for each in chunks if each.lines]
        self._writer.prepare([self._events.topic_of(each.schema, each.name) for each in tables])
        for chunk in chunks:
            self._emit_chunk(chunk, lsn)

    def _emit_chunk(self, chunk: Chunk, lsn: int) -> None:
        """The chunk's rows are events of its watermark's transaction."""
        assert self._begun is not None, "a watermark is a transaction"
        table = chunk.table
        followed = self._followed(table, chunk.columns)
        begun = self._begun
        block = followed.block.of_transaction(begun.commit_us, begun.xid, self._events.last_commit, b"incremental")
        source = block % (lsn, lsn)
        out, transaction = self._events.out, self._events.transaction
        for lines, rendered in chunk.intact():
            if rendered is None or not followed.encoder.read_rendered(out, transaction, source, rendered):
                values, plain = lines.columns(len(chunk.columns)), lines.is_plain(len(chunk.columns))
                followed.encoder.read_columns(out, transaction, source, values, lines.count, plain=plain)
        followed.encoder.read_columns(out, transaction, source, *chunk.left())
        if chunk.line_bytes_max >= LARGE_MESSAGE_BYTES:
            rows = {identity: chunk.row(place) for identity, place in chunk.rows.items()}
            self._events.remember_read(table.full_name, tuple(each.name for each in chunk.columns), rows)
        self._watch_changes()

    def _emit_whole(self, table: TableInfo, columns: list[RelationColumn], lsn: int, blocks: Iterator[Lines]) -> int:
        """A table without a key, between two transactions of the stream."""
        now_us = time.time_ns() // 1000
        followed = self._followed(table, columns)
        source = followed.block.of_transaction(now_us, None, self._events.last_commit, b"incremental") % (lsn, lsn)
        self._events.begin(lsn, now_us, 0)
        out, transaction, width = self._events.out, self._events.transaction, len(columns)
        for lines in blocks:
            values, plain = lines.columns(width), lines.is_plain(width)
            followed.encoder.read_columns(out, transaction, source, values, lines.count, plain=plain)
        return self._events.transaction.index

    def _stay_in_touch(self) -> None:
        assert self._replication is not None, "rows are read once the stream has begun"
        self._replication.maybe_send_status()

    def _guarded(self, work: Callable[[], T]) -> T:
        """Failures of the ordinary connection, reported as those of the stream are."""
        try:
            return work()
        except psycopg.errors.UntranslatableCharacter as error:
            raise untranslatable(str(error), self._options.name) from error
        except CONNECTION_ERRORS as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> DatabaseGone:
        return DatabaseGone(f"{self._options.database.shown}: {' '.join(str(error).split())}")

    # ---- tables that come, go and change ----------------------------------------------------------------------------

    def refresh(self) -> None:
        self._guarded(self._watch.look)

    def resnapshot(self, tables: Sequence[str]) -> None:
        missing = [name for name in tables if name not in self._watch.tables]
        if missing:
            raise UsageError(f"{', '.join(missing)} is not captured by {self._options.name}", "see its --tables")
        self._watch.ask(tables, "is to be read again")
        self._guarded(self._watch.proceed)

    def _change_over(self, change: Change, lsn: int) -> None:
        """From here on the topic stands for another table, or for the same one from its beginning."""
        if change.is_new:
            self._say(f"{change.name} {change.why}: it is captured from here on, with its rows")
        elif self._watch.is_told(change):
            self._watch.done(change)
            return
        elif change.name != self._options.outbox:
            if self._options.on_replaced == "stop" and not change.is_asked:
                raise TableReplaced(self._options.name, change.name, change.why)
            then = "its topic gets a truncation" + ("" if change.table is None else ", and its rows again")
            self._say(f"{change.name} {change.why}: {then}")
            before = self._watch.known[change.name]
            rows_follow = change.table is not None and self._options.snapshot
            self._events.emptied_unlogged(before.schema, before.name, lsn, rows_follow=rows_follow)
        self._watch.done(change)
        self._stand_for()
        if change.table is None:
            self._snapshots.forget(change.name)
        elif self._is_read(change.name):
            self._snapshots.add(change.table)
        else:
            self._snapshots.forget(change.name)
            self._snapshots.progress[change.name] = Progress(done=True)
        self._watch_changes()

    def _stand_for(self) -> None:
        self._events.stand_for({name: (each.oid, list(each.key)) for name, each in self._watch.known.items()})

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        place: dict[str, Any] = {"format": 1, "lsn": lsn_text(self._lsn), "last_commit": self._events.last_commit}
        place |= {"server": list(self._server), "last": self._last}
        commit, index = self._written_in_part()
        if index:
            place |= {"commit": commit, "index": index}
        snapshots = {name: each.as_json() for name, each in self._snapshots.progress.items()}
        state = {"position": place, "snapshots": snapshots, "shapes": self._events.shapes}
        if self._watch.version != self._version_committed:  # rarely, and there may be thousands
            self._version_given = self._watch.version
            state["tables"] = {name: each.as_json() for name, each in self._watch.known.items()}
        return state

    def _written_in_part(self) -> tuple[int, int]:
        """The transaction that the log has in part, and how many of its events. What an earlier session wrote of it
        counts until the stream has passed it."""
        if self._begun is None or self._skipping:
            return self._partial
        transaction = self._events.transaction
        return self._begun.commit_lsn, max(transaction.index, transaction.written_up_to)

    def committed(self, state: Mapping[str, Any]) -> None:
        assert self._replication is not None
        self._replication.confirmed = lsn_number(state["position"]["lsn"])
        if "tables" in state:
            self._version_committed = self._version_given
        self._replication.send_status()

    def caught_up(self) -> bool:
        return self._snapshots.done and self._watch.settled and self._lsn >= self._target_lsn

    # ---- besides ----------------------------------------------------------------------------------------------------

    def snapshots(self) -> dict[str, Progress]:
        return dict(self._snapshots.progress)

    def status(self) -> SourceStatus:
        slot = self._guarded(self._setup.slot_state)
        if slot is None:
            return SourceStatus(health="no slot", advice=f"headrace capture run {self._options.name} --resnapshot")
        health, advice = slot_health(slot, self._options.lag_alarm_bytes, self._options.name)
        return SourceStatus(
            lsn_text(slot["confirmed"]), slot["lag_bytes"], slot["retained_bytes"], health, self._lag_ms(), advice
        )

    def _lag_ms(self) -> int | None:
        """Of a source that reads: how old what it has read last is, unless there was nothing more."""
        if self._replication is None:
            return None
        commit_us = self._last[1] if self._last and self._unread else time.time_ns() // 1000
        return max(0, time.time_ns() // 1000 - commit_us) // 1000

    def remove(self) -> list[str]:
        removed = [f"slot {self._setup.slot}"] if self._setup.drop_slot() else []
        return removed + [f"publication {name}" for name in self._publications.drop()]

    def close(self) -> None:
        self._streams.close()
        if self._replication is not None:
            self._replication.close()
        self._connection.close()
