"""MariaDB as a source: its binlog, by GTID.

**Positions** are GTIDs: the last transaction of each domain that is in the log; inside a transaction also the number of
its events that are. A transaction's id is its GTID. With them goes the place of the last event in the binlog and its
fingerprint: where another event stands there now, the binlog is another one.

**Rows** come from the binlog with the names and keys of columns (``binlog_row_metadata=FULL``), so a changed schema
needs no history. **Statements** in it tell what happens to tables as a whole (``statements``, ``tables``). A statement
that changes rows of a captured table stops capture: which rows, nobody can know.

**Snapshots** are emitted exactly where they were read (``snapshot``).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.capture.boundaries import begun, ended
from headrace.capture.envelope import Transaction
from headrace.capture.mariadb.binlog import FIRST_POSITION, BinlogReader, Change, Item, Mark, check_mark, mark_at
from headrace.capture.mariadb.catalogue import Catalogue, Gtids, gtid_text, parse_gtids
from headrace.capture.mariadb.events import (
    PREPARED_XA,
    STANDALONE,
    FormatDescription,
    Gtid,
    Heartbeat,
    Query,
    XaPrepare,
    Xid,
)
from headrace.capture.mariadb.followed import Encoders
from headrace.capture.mariadb.references import References
from headrace.capture.mariadb.snapshot import Chunk, SnapshotReader, TableGone
from headrace.capture.mariadb.statements import (
    Altered,
    Created,
    DatabaseDropped,
    Dropped,
    Effect,
    Renamed,
    TransactionEnd,
    Truncated,
    Written,
    effects,
)
from headrace.capture.mariadb.tables import KnownTables, is_reached
from headrace.capture.options import CaptureOptions, counted
from headrace.capture.shapes import table_topic
from headrace.capture.source import Progress, SourceStatus, TableReplaced
from headrace.capture.writer import Writer
from headrace.errors import UsageError

__all__ = ["MariadbSource"]

READ_BYTES = 4 * 1024 * 1024
READ_BYTES_MAX = 8 * READ_BYTES
LOOK_S = 5.0
"""How often identities of tables are compared; the binlog tells most changes of them at once."""


class MariadbSource:
    """``headrace.capture.source.Source`` for MariaDB."""

    def __init__(
        self, options: CaptureOptions, writer: Writer | None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._catalogue = Catalogue(options)
        self._schema: str = self._catalogue.settings["database"]
        self._options = options.qualified(self._schema)
        self._writer = writer
        self._say = say
        self._server_id = 0x40000000 | zlib.crc32(f"{options.name}{time.time_ns()}".encode()) >> 2
        self._shapes: dict[str, int] = {}
        self._encoders = Encoders(self._options, writer, self._catalogue, self._shapes)
        self._snapshots = SnapshotReader(self._catalogue, self._options)
        self._tables = KnownTables(self._catalogue)
        self._references = References(self._catalogue)
        self._reader: BinlogReader | None = None
        self._gtids: Gtids = {}
        self._mark: Mark | None = None
        self._begun: Gtid | None = None
        self._partial: tuple[str, int] = ("", 0)
        self._transaction = Transaction("", 0)
        self._is_begin_told = False
        self._progress: dict[str, Progress] = {}
        self._pending: list[str] = []
        self._untold: set[str] = set()
        """Tables still to be read, with no row in the topic after its last truncation."""
        self._chunk: Chunk | None = None
        self._target: dict[int, int] = {}
        self._looked_s = 0.0
        self._event_s = 0
        self._round = 0
        """How often a table was read again: two readings at one place of the binlog have different names."""

    @property
    def options(self) -> CaptureOptions:
        return self._options

    def columns(self) -> dict[str, list[str]]:
        return {name: [each.name for each in table.columns] for name, table in self._catalogue.tables().items()}

    def check(self) -> list[str]:
        self._catalogue.check_server()
        found = self._catalogue.tables()
        return [counted(len(found), "table"), *self._options.check_tables(found)]

    # ---- starting ---------------------------------------------------------------------------------------------------

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        self._catalogue.check_server()
        found = self._catalogue.tables()
        for note in self._options.check_tables(found):
            self._say(note)
        position = state.get("position", {})
        self._round = position.get("round", 0) + resnapshot
        self._shapes.update(state.get("shapes", {}))
        known = {*found, *state.get("snapshots", {}), *state.get("tables", {})}
        if resnapshot:
            position, state = {}, {}
        self._begin_at(position)
        self._tables.restore(state)
        recorded = state.get("snapshots", {})
        self._progress = {name: Progress.from_json(each) for name, each in recorded.items()}
        for name, table in found.items():
            if name not in self._tables:
                self._tables.add(name, table.identity)
            if name not in self._progress:
                done = not self._options.snapshot or name == self._options.outbox
                self._progress[name] = Progress(done=done, rows_expected=table.rows_expected)
        self._pending = [name for name in self._progress if not self._progress[name].done]
        self._untold = set() if position else set(self._pending)
        self._snapshots.expect(found)
        self._references.look()
        self._target = self._tables.look()
        self._looked_s = time.monotonic()
        if self._pending:
            self._catalogue.check_prepared()
        if resnapshot:
            self._announce(sorted(known))
            for name in sorted(known - found.keys()):
                self._say(f"{self._options.name}: table {name} is gone, or no longer chosen; a truncation is written")
        self._reader = self._catalogue.guarded(self._open_reader)

    def _open_reader(self) -> BinlogReader:
        return BinlogReader(
            self._catalogue.settings,
            self._server_id,
            gtid_text(self._gtids),
            self._catalogue.charsets,
            lambda schema, table: (
                self._is_captured(schema, f"{schema}.{table}") or self._references.is_parent(f"{schema}.{table}")
            ),
        )

    def _begin_at(self, position: Mapping[str, Any]) -> None:
        """Where the log stands, if the binlog is still the one that it was read from; otherwise here and now."""
        self._partial = (position.get("transaction", ""), position.get("index", 0))
        settings, server_id = self._catalogue.settings, self._server_id
        if "gtid" not in position:
            ((file, _, _, _),) = self._catalogue.ask("show master status")
            self._gtids = self._catalogue.gtids()
            self._mark = self._catalogue.guarded(lambda: mark_at(settings, file, FIRST_POSITION, server_id))
            return
        self._gtids = parse_gtids(position["gtid"])
        if "mark" in position:
            mark = self._mark = Mark(*position["mark"])
            shown = self._options.database.shown
            self._catalogue.guarded(lambda: check_mark(settings, mark, server_id, shown))

    # ---- reading ----------------------------------------------------------------------------------------------------

    @property
    def at_boundary(self) -> bool:
        return self._begun is None

    def read(self, wait_s: float) -> bool:
        writer, reader = self._writer, self._reader
        assert writer is not None
        assert reader is not None
        enough, most = writer.bytes_pending + READ_BYTES, writer.bytes_pending + READ_BYTES_MAX
        if self._begun is None:
            self._compare()
            self._snapshot_step()
        chunk_to_read = self._chunk is None and bool(self._pending)
        if self._begun is None and self._chunk is not None and is_reached(self._gtids, self._chunk.place):
            return True  # its rows come before anything that the stream has next: they do not show it
        waiting = 0.0 if writer.events_pending or chunk_to_read else wait_s
        while (item := reader.take(waiting)) is not None:
            self._take(item)
            if self._begun is None and (self._pending or self._tables.is_looking):
                break
            if writer.bytes_pending >= enough and (self._begun is None or writer.bytes_pending >= most):
                break
        return item is not None or chunk_to_read

    def _take(self, item: Item) -> None:
        what = item.what
        if isinstance(what, Change):
            self._rows(what, item)
        elif isinstance(what, Gtid):
            self._begin(what)
        elif isinstance(what, Xid | XaPrepare):
            self._end(item)
        elif isinstance(what, Query):
            self._statement(what, item)
        elif isinstance(what, FormatDescription) and self._begun is None and not what.header.is_artificial:
            self._mark = item.mark  # the file before may be purged while nothing happens in this one
        elif isinstance(what, Heartbeat):
            self._event_s = int(time.time())  # it comes at the end of the binlog, when nothing has happened for a while

    def _begin(self, event: Gtid) -> None:
        self._begun = event
        self._event_s = event.header.timestamp
        gtid, index = self._partial
        written = index if gtid == event.text else 0
        self._transaction = Transaction(event.text, time.time_ns(), written)
        self._is_begin_told = written > 0

    def _tell_begin(self) -> None:
        """Write BEGIN before the first event of a transaction; none for a transaction without events."""
        if self._options.transactions and self._writer is not None and not self._is_begin_told:
            begun(self._writer, self._options.topic_prefix, self._transaction, self._event_s * 1000)
            self._is_begin_told = True

    def _end(self, item: Item) -> None:
        event, self._begun = self._begun, None
        assert event is not None, "an end follows a begin"
        if self._options.transactions and self._is_begin_told and self._writer is not None:
            ended(self._writer, self._options.topic_prefix, self._transaction, self._event_s * 1000)
        self._gtids[event.domain] = event.header.server_id, event.number
        self._mark = item.mark

    # ---- rows -------------------------------------------------------------------------------------------------------

    def _rows(self, change: Change, item: Item) -> None:
        assert self._writer is not None
        name = f"{change.shape.schema}.{change.shape.table}"
        for child in sorted(self._references.changed_by(change)):
            self._changed_unseen(child, name, item)
        if name not in self._tables:
            return  # a sequence, or a table that the next look at the catalogue will find
        if self._begun is not None and self._begun.flags & PREPARED_XA:
            raise UsageError(
                f"the XA transaction {self._begun.text} changes {name}: XA PREPARE leaves its fate open",
                "change captured tables without XA PREPARE, or leave the table out with --tables; "
                "run once with --resnapshot to go on after it",
            )
        followed = self._encoders.of_binlog(change.shape)
        table = followed.encoder.table
        key = tuple(table.columns[place].name for place in table.key)
        if self._tables.is_rekeyed(name, key):
            self._replaced(name, "has another primary key", item)
        if not key and name in self._pending:
            return  # a table without a key comes by its snapshot first, which shows this change too
        self._tell_begin()
        self._untold.discard(name)
        template = followed.source(self._transaction.id, b"false", change.event, item.file)
        if followed.outbox is not None:
            if change.event.operation == "insert":
                for row in change.rows:
                    followed.outbox.created(self._writer, self._transaction, row)
            return
        followed.emit(self._writer, self._transaction, template, change)

    # ---- statements -------------------------------------------------------------------------------------------------

    def _statement(self, event: Query, item: Item) -> None:
        if self._begun is None:
            return
        decode = self._catalogue.charsets.decoder(event.charset)
        text = decode(event.text) if decode is not None else None
        if not isinstance(text, str):
            text = event.text.decode(errors="replace")
        done = effects(text, event.schema, event.sql_mode)
        for each in done:
            self._apply(each, event, item)
        if self._begun.flags & STANDALONE or any(isinstance(each, TransactionEnd) for each in done):
            self._end(item)

    def _apply(self, effect: Effect, event: Query, item: Item) -> None:
        if isinstance(effect, Truncated):
            if effect.table.full in self._tables and not event.uses_temporary_table:
                self._note(effect.table.full)
                self._truncate(effect.table.full, item)
        elif isinstance(effect, Created):
            self._created(effect, item)
        elif isinstance(effect, Dropped):
            self._dropped(effect.table.full, "was dropped", item)
        elif isinstance(effect, DatabaseDropped):
            for name in self._tables if effect.schema == self._schema else ():
                self._dropped(name, "was dropped with its database", item)
        elif isinstance(effect, Renamed):
            self._dropped(effect.old.full, f"is called {effect.new.full} now", item)
            if self._is_captured(effect.new.schema, effect.new.full):
                self._replaced(effect.new.full, f"is what {effect.old.full} was", item)
        elif isinstance(effect, Altered):
            self._altered(effect, item)
        elif isinstance(effect, Written):
            self._written(effect, event)

    def _is_captured(self, schema: str, name: str) -> bool:
        return schema == self._schema and self._options.selects(name)

    def _note(self, name: str) -> None:
        """A statement about a table: from its end on, the catalogue may show another identity."""
        self._encoders.forget(name)
        self._references.look()
        place = dict(self._gtids)
        if self._begun is not None:
            place[self._begun.domain] = self._begun.header.server_id, self._begun.number
        self._tables.note_statement(name, place)

    def _created(self, effect: Created, item: Item) -> None:
        name = effect.table.full
        if not self._is_captured(effect.table.schema, name) or (effect.if_absent and name in self._tables):
            return
        if effect.filled:
            self._replaced(name, "was created with rows that the binlog does not show", item)
            return
        self._note(name)
        progress = self._progress.get(name)
        if name in self._tables and progress is not None and (progress.done or progress.rows):
            self._truncate(name, item)
        self._forget_snapshot(name)
        self._tables.add(name)
        self._progress[name] = Progress(done=True)
        self._say(f"{self._options.name}: table {name} was created and is followed")

    def _dropped(self, name: str, what: str, item: Item | None) -> None:
        if name not in self._tables:
            return
        if self._options.on_replaced == "stop":
            raise TableReplaced(self._options.name, name, what)
        self._note(name)
        self._truncate(name, item)
        self._forget_snapshot(name)
        self._progress.pop(name, None)
        self._tables.remove(name)
        self._say(f"{self._options.name}: table {name} {what}; a truncation is written")

    def _altered(self, effect: Altered, item: Item) -> None:
        name = effect.table.full
        if name not in self._tables:
            return
        self._note(name)
        returned = self._tables.come_back(name, effect.dropped, effect.added)
        if effect.change == "rows":
            self._replaced(name, "was altered: rows of it have come, gone or have another key", item)
        elif effect.change == "values":
            self._replaced(name, "was altered: old rows have other values or names of columns", item)
        elif returned:
            self._replaced(name, f"has a new column {returned[0]}, and another one of that name was dropped", item)

    def _written(self, effect: Written, event: Query) -> None:
        """Refused unless it cannot concern a captured table, also not through a view, a trigger or a reference."""
        names = {name.partition(".")[2] for name in self._tables}
        is_near = event.schema == self._schema or self._schema in effect.names
        if (is_near and names & effect.names) or self._catalogue.may_be_changed_through(effect.names):
            raise UsageError(
                f"the binlog holds an {effect.kind} as a statement that may change captured tables of {self._schema}: "
                "a session has another binlog_format than ROW, or a table is versioned by transactions (BIGINT), and "
                "which rows it changed is not recorded",
                "find the session that sets binlog_format (SET GLOBAL binlog_format = 'ROW' is for new ones), or leave "
                "the table out with --exclude-tables; then run once with --resnapshot",
            )

    # ---- replaced tables --------------------------------------------------------------------------------------------

    def _replaced(self, name: str, what: str, item: Item | None) -> None:
        """A truncation, and all rows again; or a stop, if the user wants to decide."""
        if self._options.on_replaced == "stop":
            raise TableReplaced(self._options.name, name, what)
        self._say(f"{self._options.name}: table {name} {what}; it is truncated and read again")
        self._note(name)
        self._read_again(name, item)

    def _changed_unseen(self, name: str, parent: str, item: Item) -> None:
        """Unless the topic has none of its rows, and all are still to be read at a place after this one."""
        if name not in self._tables or not self._options.snapshot or name == self._options.outbox:
            return
        begun, chunk = self._begun, self._chunk
        assert begun is not None, "rows are part of a transaction"
        seen = chunk.place if chunk is not None and chunk.table.full_name == name else {begun.domain: begun.number}
        if name in self._untold and seen.get(begun.domain, 0) >= begun.number:
            return
        self._replaced(name, f"may have other rows through a foreign key to {parent}, which the binlog hides", item)

    def _read_again(self, name: str, item: Item | None = None) -> None:
        self._round += 1
        if name not in self._tables:
            self._tables.add(name)
        done = not self._options.snapshot or name == self._options.outbox
        self._truncate(name, item, rows_follow=not done)
        self._forget_snapshot(name)
        self._progress[name] = Progress(done=done)
        if not done:
            self._pending.append(name)
            self._untold.add(name)

    def _forget_snapshot(self, name: str) -> None:
        self._untold.discard(name)
        if name in self._pending:
            self._pending.remove(name)
        if self._chunk is not None and self._chunk.table.full_name == name:
            self._chunk.close()
            self._chunk = None

    def _truncate(self, name: str, item: Item | None, *, rows_follow: bool = False) -> None:
        """In the transaction under way, or between transactions as one with a name of this place."""
        if self._writer is None or name == self._options.outbox:
            return
        self._tables.begin_topic(name)
        if self._begun is not None:
            self._tell_begin()
        else:
            self._round += 1
            self._transaction = Transaction(f"{gtid_text(self._gtids)}/{self._round}", time.time_ns())
        followed = self._encoders.without_columns(name)
        if item is None:
            source = followed.source(self._transaction.id, b"incremental") % 0
        else:
            snapshot = b"incremental" if rows_follow else b"false"
            source = followed.source(self._transaction.id, snapshot, item.event, item.file) % 0
        followed.encoder.truncated(self._writer, self._transaction, source)

    def _announce(self, names: Sequence[str]) -> None:
        """What was deleted meanwhile is not known, so truncations are written, of lost tables too."""
        for name in names:
            self._truncate(name, None)

    def refresh(self) -> None:
        if not self._tables.is_looking and time.monotonic() - self._looked_s >= LOOK_S:
            self._tables.look()
            self._looked_s = time.monotonic()

    def _compare(self) -> None:
        for name, what, is_there in self._tables.differences(self._gtids):
            if not is_there:
                self._dropped(name, what, None)
            elif name in self._tables:
                self._replaced(name, what, None)
            else:
                self._say(f"{self._options.name}: table {name} {what} and is followed")
                self._read_again(name)

    def resnapshot(self, tables: Sequence[str]) -> None:
        unknown = sorted(set(tables) - set(self._tables))
        if unknown:
            raise UsageError(f"{', '.join(unknown)} is not captured", f"captured: {', '.join(sorted(self._tables))}")
        for name in tables:
            self._read_again(name)

    # ---- snapshots --------------------------------------------------------------------------------------------------

    def _snapshot_step(self) -> None:
        """Emit the chunk whose place the stream has reached, or read the next one."""
        chunk = self._chunk
        if chunk is not None:
            if is_reached(self._gtids, chunk.place):
                self._catalogue.guarded(lambda: self._emit(chunk))
                self._chunk = None
        elif self._pending and not self._is_partly_written():
            name = self._pending[0]
            try:
                self._chunk = self._snapshots.read(name, self._progress[name], self._gtids)
            except TableGone:
                self._pending.remove(name)  # its end is in the binlog, or the next look at the catalogue finds it
                self._progress.pop(name)

    def _is_partly_written(self) -> bool:
        """Whether the next transaction is in the log in part. Its first events are not written again, so a chunk that
        does not show it yet would be older than they are."""
        gtid, index = self._partial
        if not index:
            return False
        domain, _, number = map(int, gtid.split("-"))
        return not is_reached(self._gtids, {domain: number})

    def _emit(self, chunk: Chunk) -> None:
        assert self._writer is not None
        table = chunk.table.full_name
        progress = self._progress[table]
        self._untold.discard(table)
        followed = self._encoders.of_catalogue(chunk.table)
        name = f"{gtid_text(self._gtids)}/{self._round}/{table}/{progress.rows}"
        self._transaction = Transaction(name, time.time_ns())
        source = followed.source(self._transaction.id, b"incremental") % 0
        self._writer.prepare_ahead(
            table_topic(self._options.topic_prefix, self._schema, name.removeprefix(f"{self._schema}."))
            for name in self._pending
            if self._progress[name].rows_expected and name.startswith(f"{self._schema}.")
        )
        for rows in chunk.blocks():
            followed.encoder.read_all(self._writer, self._transaction, source, rows)
        chunk.close()
        self._tables.is_rekeyed(table, chunk.table.key)
        progress.rows += self._transaction.index
        progress.after = None if chunk.is_last else chunk.after
        progress.done = chunk.is_last
        if chunk.is_last:
            self._pending.remove(table)

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        place: dict[str, Any] = {"format": 1, "gtid": gtid_text(self._gtids), "round": self._round}
        if self._mark is not None:
            place["mark"] = list(self._mark)
        if self._begun is not None:
            index = max(self._transaction.index, self._transaction.written_up_to)
            place |= {"transaction": self._begun.text, "index": index}
        elif self._is_partly_written():
            place |= dict(zip(("transaction", "index"), self._partial, strict=True))
        snapshots = {name: each.as_json() for name, each in self._progress.items()}
        return {"position": place, "snapshots": snapshots, "shapes": self._shapes, "tables": self._tables.as_json()}

    def committed(self, state: Mapping[str, Any]) -> None:
        """The server keeps its binlog by its own settings: there is nothing to tell it."""

    def caught_up(self) -> bool:
        at_end = self._begun is None and is_reached(self._gtids, self._target)
        return at_end and not self._pending and not self._tables.is_looking

    def snapshots(self) -> dict[str, Progress]:
        return dict(self._progress)

    def status(self) -> SourceStatus:
        now = self._catalogue.gtids()
        return SourceStatus(position=gtid_text(now), lag_ms=self._lag_ms(now))

    def _lag_ms(self, now: Gtids) -> int | None:
        """Events have whole seconds, so this is rounded up."""
        if self._reader is None:
            return None
        if is_reached(self._gtids, {domain: number for domain, (_, number) in now.items()}):
            return 0
        return max(0, time.time_ns() // 1_000_000 - self._event_s * 1000) if self._event_s else None

    def remove(self) -> list[str]:
        return []

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._chunk is not None:
            self._chunk.close()
        self._snapshots.close()
        self._catalogue.close()
