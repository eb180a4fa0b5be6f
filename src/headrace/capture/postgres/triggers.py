"""PostgreSQL as a source where there is no right to replicate: triggers write changes into a table, capture reads that.

``change_table.py`` has the table and the triggers; this is how it is followed.

**Positions.** A sequence's numbers are not in the order of commits: a transaction that commits late has low numbers,
and a reader that goes by numbers would never see them. So a position is a *snapshot* of PostgreSQL, which transactions
have been seen. What one reading gives is what its own snapshot sees and the last one did not, whole transactions in the
order of their last changes. No transaction that stays open holds the others back, and none is missed.

    seen            everything that this snapshot sees is in the log
    through, after  besides, of what this later one sees, transactions up to the one whose last change is ``after``
    xid, index      besides, of this transaction the first ``index`` events
    flushed         how often the change table was made durable: an older copy of the database has fewer
    number          transactions so far: a transaction's id is its own and this, which only grows
    table           which change table it was: another one does not have what lies after the position

**Snapshots of tables** are exact: a chunk is read in the snapshot of a reading, after its last change.

**Tables** are known as by the log (``identity``), with their triggers in the place of a publication. What has become of
a table is found in the catalogue and noted as a gap in the change table, and handled in its order.

**Order.** Changes of a row are noted when its triggers are called, which is at the end of a statement, and a trigger of
the application may by then have changed the row again: the later change is noted first. It was noted by a trigger
within a trigger, and began with the row that the earlier one, noted after it, ends with. Then the table is read again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from headrace.capture.options import CaptureOptions, counted
from headrace.capture.postgres.catalogue import GONE
from headrace.capture.postgres.change_table import Change, ChangeTable, record_fields, shape_of
from headrace.capture.postgres.events import FollowedRelation, PostgresEvents
from headrace.capture.postgres.identity import Known, known, partitions_emptied, remembering, what_happened
from headrace.capture.postgres.pgoutput import RelationColumn
from headrace.capture.postgres.setup import Connection, PostgresSetup, TableInfo, connect, untranslatable
from headrace.capture.postgres.snapshot import (
    CHUNK_BYTES_MAX,
    READ_ONLY,
    ChunkSize,
    begin_reading,
    copied_fields,
    copied_rows,
    described_key,
    key_text,
)
from headrace.capture.source import DatabaseGone, PositionLost, Progress, SourceStatus, TableReplaced
from headrace.capture.writer import Writer
from headrace.errors import UsageError

__all__ = ["TriggerSource"]

T = TypeVar("T")

POLL_S = 0.05
READ_BYTES = 4 * 1024 * 1024
READ_BYTES_MAX = 8 * READ_BYTES
NO_CHANGE_TABLE = "no change table"
_SOURCE = (
    b'{"version":%b,"connector":"postgresql","name":%b,"ts_ms":%%d,"snapshot":"%%b","db":%b,'
    b'"sequence":"[%%b,\\"%%%%d\\"]","ts_us":%%d,"ts_ns":%%d,"schema":%b,"table":%b,"txId":%%b,"lsn":null,'
    b'"xmin":null,"origin":%%b,"origin_lsn":null,"change_id":%%%%d}'
)


class _Shape:
    """What a change of one table in one shape needs: its encoder, and which fields of a row are its columns."""

    __slots__ = ("followed", "places", "table")

    def __init__(self, followed: FollowedRelation, places: list[int], table: TableInfo) -> None:
        self.followed = followed
        self.places = places
        self.table = table

    def row(self, text: bytes | None) -> list[bytes | None] | None:
        if text is None:
            return None
        values = record_fields(text)
        return [values[place] for place in self.places]


class TriggerSource:
    """``headrace.capture.source.Source`` for PostgreSQL without its log; see the module."""

    def __init__(
        self, options: CaptureOptions, writer: Writer | None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._options = options.qualified("public")
        self._writer = writer
        self._say = say
        self._connection = connect(options)
        self._setup = PostgresSetup(self._connection, self._options)
        self._table = ChangeTable(self._setup, options.name)
        self._reader: Connection | None = None
        self._events: PostgresEvents
        self._tables: dict[str, TableInfo] = {}
        self._shapes: dict[tuple[bytes, bytes], _Shape | None] = {}
        self._progress: dict[str, Progress] = {}
        self._place: dict[str, Any] = {}
        self._batch: Generator[Change, None, None] | None = None
        self._now = ""
        self._locked: TableInfo | None = None
        self._size = ChunkSize(options.chunk_rows)
        self._last = 0
        self._partial: tuple[int, int] = (0, 0)
        self._forgotten = ""
        self._known: dict[str, Known] = {}
        self._seen: tuple[str, dict[int, int]] | None = None
        self._truncated: dict[str, int] = {}
        """By table the transaction that truncated it last, among the changes read since the last look."""
        self._nested: dict[int, int] = {}
        self._batches_read = 0

    # ---- starting ---------------------------------------------------------------------------------------------------

    @property
    def options(self) -> CaptureOptions:
        return self._options

    def columns(self) -> dict[str, list[str]]:
        return self._guarded(self._setup.column_names)

    def check(self) -> list[str]:
        tables = self._guarded(self._setup.tables)
        self._guarded(lambda: self._check(tables))
        return [f"{counted(len(tables), 'table')}, followed by triggers"]

    def _check(self, tables: Mapping[str, TableInfo]) -> None:
        self._table.check(tables.values())
        self._setup.check_readable(tables.values())

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        self._guarded(lambda: self._start(state, resnapshot))

    def _start(self, state: Mapping[str, Any], resnapshot: bool) -> None:
        assert self._writer is not None, "a source that reads has a writer"
        self._check(self._setup.tables())
        self._connection.execute("set synchronous_commit = local")  # what is forgotten and kept must be on the disk
        position = {} if resnapshot else state.get("position", {})
        self._check_position(position)
        self._table.make()
        recorded = {} if resnapshot else state.get("snapshots", {})
        self._progress = {name: Progress.from_json(each) for name, each in recorded.items()}
        before = {name: Known.from_json(each) for name, each in state.get("tables", {}).items()}
        self._known = {name: each for name, each in before.items() if name in self._progress}
        self._events = PostgresEvents(self._options, self._connection.info.dbname, self._writer, source=_SOURCE)
        self._events.shapes = dict(state.get("shapes", {}))
        self._look()
        self._place = dict(position) or self._first_place(state.get("position", {}).get("number", 0))
        self._partial = (self._place.pop("xid", 0), self._place.pop("index", 0))
        for each in {**before, **self._known}.values() if resnapshot else ():
            self._table.note_gap(each.schema, each.name)
        for name in before.keys() - self._known.keys() if resnapshot else ():
            self._say(f"{name} is gone, or no longer chosen: its topic gets a truncation")
        self._reader = connect(self._options)

    # ---- the catalogue ----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        self._guarded(self._look)

    def resnapshot(self, tables: Sequence[str]) -> None:
        unknown = sorted(set(tables) - self._known.keys())
        if unknown:
            raise UsageError(f"{', '.join(unknown)} is not captured", f"captured: {', '.join(self._known)}")
        for name in tables:
            self._guarded(partial(self._table.note_gap, self._known[name].schema, self._known[name].name))

    def _look(self) -> None:
        """Compare the catalogue with what topics stand for, and note a gap where they stand for something else."""
        seen = self._setup.fingerprint(), self._table.members()
        if seen == self._seen:
            return
        tables = self._setup.selected(self._setup.all_tables())
        self._table.watch(tables.values())
        members = self._table.members()
        now = {name: known(each, members.get(each.oid, 0)) for name, each in tables.items()}
        for name, before in list(self._known.items()):
            why = (
                "is gone, or no longer chosen"
                if name not in now
                else self._what_happened(before, now[name], tables[name])
            )
            if why is not None:
                if self._options.on_replaced == "stop":
                    raise TableReplaced(self._options.name, name, why)
                then = "its topic gets a truncation" + (", and its rows again" if name in now else "")
                self._say(f"{name} {why}: {then}")
                self._table.note_gap(before.schema, before.name)
            elif name in now:
                now[name] = remembering(before, now[name])
        self._known, self._tables = now, tables
        for name, table in tables.items():
            if name not in self._progress:
                self._progress[name] = self._unread(table)
        self._shapes.clear()
        self._truncated.clear()
        self._events.types = self._setup.types()
        self._seen = seen[0], members

    def _what_happened(self, before: Known, now: Known, table: TableInfo) -> str | None:
        if before.oid == now.oid and before.member != now.member:
            return "was without its triggers for a time"
        why = what_happened(before, now)
        if why is not None and partitions_emptied(before, now):
            is_told = table.was_emptied_by(self._truncated.get(table.full_name), before.leaves)
            why = None if is_told else why
        new = [each.oid for each in table.leaves if each.oid not in before.leaves]
        return why or ("has a new partition with rows" if self._setup.came_with_rows(new) else None)

    def _first_place(self, number: int) -> dict[str, Any]:
        seen = self._setup.one("select pg_current_snapshot()::text")
        return {"format": 1, "table": self._table.number(), "seen": seen, "number": number}

    def _check_position(self, position: Mapping[str, Any]) -> None:
        """What lies after the position must still be there."""
        if not position:
            return
        if "seen" not in position:
            self._lost("so far this capture has followed the server's log, and triggers know nothing of that time")
        if position["table"] != self._table.number():
            self._lost(f"the change table in {self._table.schema} is gone")
        xmax = int(position["seen"].split(":")[1])
        is_older = self._setup.one("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint") < xmax
        if is_older or self._table.flushed() < position.get("flushed", 0):
            self._lost("its transactions are fewer than the log knows of: it is an older copy")

    def _lost(self, why: str) -> None:
        again = f"take a new snapshot: headrace capture run {self._options.name} --triggers --resnapshot"
        raise PositionLost(f"{self._options.database.shown}: {why}; {again}")

    def _is_snapshotted(self, table: TableInfo) -> bool:
        return self._options.snapshot and table.full_name != self._options.outbox

    def _unread(self, table: TableInfo) -> Progress:
        if not self._is_snapshotted(table):
            return Progress(done=True)
        return Progress(rows_expected=self._setup.rows_expected([table])[table.oid])

    # ---- reading ----------------------------------------------------------------------------------------------------

    @property
    def at_boundary(self) -> bool:
        return self._last == 0

    def read(self, wait_s: float) -> bool:
        return self._guarded(lambda: self._read(wait_s))

    def _read(self, wait_s: float) -> bool:
        writer = self._writer
        assert writer is not None
        if self._batch is None:
            if not self._pending() and "through" not in self._place and not self._table.has_news(self._place["seen"]):
                time.sleep(min(wait_s, POLL_S))
                self._batches_read += 1
                return False
            self._batch = self._open_batch()
        enough, most = writer.bytes_pending + READ_BYTES, writer.bytes_pending + READ_BYTES_MAX
        for change in self._batch:
            self._take(change)
            if writer.bytes_pending >= enough and (self.at_boundary or writer.bytes_pending >= most):
                return True
        self._close_batch()
        return bool(self._pending())

    def _pending(self) -> list[str]:
        return [name for name, each in self._progress.items() if not each.done]

    def _open_batch(self) -> Generator[Change, None, None]:
        """From here to ``_close_batch`` one snapshot of the database is read."""
        reader = self._reader
        assert reader is not None
        self._locked = next((self._lock(name) for name in self._pending()[:1]), None)
        if self._locked is None:
            reader.execute("ROLLBACK")  # of what could not be locked, if that was tried
            reader.execute(READ_ONLY)
        (self._now,) = reader.execute("select pg_current_snapshot()::text").fetchone() or ("",)
        self._place["flushed"] = self._table.make_durable()
        self._place.setdefault("through", self._now)
        seen, through, after = (self._place.get(each, 0) for each in ("seen", "through", "after"))
        return self._table.changes(reader, seen=seen, through=through, after=after)

    def _lock(self, name: str) -> TableInfo | None:
        """The table of which a chunk will be read after the changes, unless it is gone or about to be changed."""
        assert self._reader is not None
        try:
            if name in self._tables:
                return self._tables[name] if begin_reading(self._reader, self._tables[name]) else None
        except GONE:
            pass
        if name not in self._known:  # otherwise the catalogue will be looked at, and a gap noted
            del self._progress[name]
        return None

    def _close_batch(self) -> None:
        assert self._reader is not None
        is_newest = self._place["through"] == self._now
        if self._locked is not None and is_newest:
            with suppress(errors.InvalidTextRepresentation):  # a value of its key was renamed: it is read again
                self._take_chunk(self._locked)
        self._reader.execute("COMMIT")
        self._place["seen"] = self._place.pop("through")
        self._place.pop("after", None)
        self._batch = self._locked = None
        self._batches_read += is_newest

    # ---- changes ----------------------------------------------------------------------------------------------------

    def _take(self, change: Change) -> None:
        if self._last == 0:
            self._begin(change)
        if change.operation == b"g":
            self._take_gap(change)
        else:
            self._take_change(change)
        if change.seq == change.last:
            self._events.end(self._place["number"])
            self._place["after"] = change.last
            self._last = 0
            self._partial = (0, 0)

    def _begin(self, change: Change) -> None:
        self._last = change.last
        self._nested = {}
        self._place["number"] += 1
        xid, index = self._partial
        self._events.begin(self._place["number"], change.committed_us, change.xid, index if xid == change.xid else 0)

    def _take_gap(self, change: Change) -> None:
        """Changes of the table are missing: it is read again, unless it is gone or not to be read."""
        schema, name = json.loads(change.columns or b"null") or ("", "")
        full_name = f"{schema}.{name}"
        table = self._tables.get(full_name)
        if table is not None and not self._is_snapshotted(table):
            self._say(f"{full_name}: changes may be missing, and it is not read again")
            return
        self._events.emptied_unlogged(schema, name, change.seq, rows_follow=table is not None)
        if table is not None:
            self._progress[full_name] = self._unread(table)
        else:
            self._progress.pop(full_name, None)

    def _watch_order(self, change: Change, table: TableInfo) -> None:
        """Whether a trigger of the application has changed the row again before this was noted; see the module."""
        began_with = hash((change.relation, change.new_row))
        if change.new_row is not None and change.depth < self._nested.get(began_with, 0):
            self._nested = {}
            self._say(
                f"{table.full_name}: triggers changed a row again before its change was noted: its rows are read again"
            )
            if self._is_snapshotted(table):
                self._events.emptied_unlogged(table.schema, table.name, change.seq, rows_follow=True)
                self._progress[table.full_name] = self._unread(table)
        if change.depth > 1 and change.old_row is not None:
            self._nested[hash((change.relation, change.old_row))] = change.depth

    def _named(self, relation: bytes) -> TableInfo | None:
        text = relation.decode()
        return next((each for each in self._tables.values() if each.quoted == text), None)

    def _shape(self, change: Change) -> _Shape | None:
        """Compiled once per table and shape; None: the table was not asked for."""
        assert change.columns is not None
        which = change.relation, change.columns
        if which not in self._shapes:
            self._shapes[which] = self._compiled(change.relation, change.columns)
        return self._shapes[which]

    def _compiled(self, relation: bytes, columns: bytes) -> _Shape | None:
        table = self._named(relation)
        described, places = shape_of(columns)
        if table is None or not {each.name for each in described}.issuperset(table.key):
            return None  # of a table that was not asked for, or with another key, and then a gap follows
        return _Shape(self._followed(table, described), places, table)

    def _followed(self, table: TableInfo, columns: list[RelationColumn]) -> FollowedRelation:
        """A type may have been made since the catalogue was looked at."""
        self._events.types = self._setup.types_of(columns, self._events.types)
        return self._events.follow(table.schema, table.name, columns, table.key)

    def _source(self, followed: FollowedRelation, change: Change) -> bytes:
        sources = self._events.transaction.sources
        template = sources.get(followed)
        if template is None:
            template = sources[followed] = followed.block.of_transaction(change.committed_us, change.xid, None)
        return template % (change.seq, change.seq)

    def _take_change(self, change: Change) -> None:
        assert self._writer is not None
        shape = self._shape(change)
        if shape is None or self._shown_by_snapshot(shape.table):
            return
        followed, out, transaction = shape.followed, self._writer, self._events.transaction
        encoder, source = followed.encoder, self._source(followed, change)
        old, new = shape.row(change.old_row), shape.row(change.new_row)
        if followed.outbox is not None:
            if change.operation == b"c" and new is not None:
                followed.outbox.created(out, transaction, new)
        elif change.operation == b"t":
            self._truncated[followed.table.full_name] = change.xid & 0xFFFFFFFF
            encoder.truncated(out, transaction, source)
        elif new is None:
            encoder.deleted(out, transaction, source, old or [])
        elif old is None:
            encoder.created(out, transaction, source, new)
        elif not encoder.has_same_key(old, new):
            encoder.moved(out, transaction, source, old, new)
        else:
            encoder.updated(out, transaction, source, old, new)
        if self._truncated and change.operation != b"t":
            # What comes after it in its transaction may go with a partition, and the catalogue has no trace of that.
            if self._truncated.get(followed.table.full_name) == change.xid & 0xFFFFFFFF:
                del self._truncated[followed.table.full_name]
        self._watch_order(change, shape.table)

    def _shown_by_snapshot(self, table: TableInfo) -> bool:
        """Whether the table has no key and its snapshot is still to come, which shows this change too."""
        progress = self._progress.get(table.full_name)
        return progress is not None and not progress.done and not table.key

    # ---- snapshots --------------------------------------------------------------------------------------------------

    def _take_chunk(self, table: TableInfo) -> None:
        """Rows after those read so far, as events of a separate transaction."""
        assert self._reader is not None
        assert self._writer is not None
        progress = self._progress[table.full_name]
        columns = self._setup.columns(table)
        if not {each.name for each in columns}.issuperset(table.key):
            return  # the next look at the catalogue finds another key
        after = progress.go_on_by(described_key(table, columns))
        now_us = time.time_ns() // 1000
        self._place["number"] += 1
        self._events.begin(self._place["number"], now_us, int(self._now.split(":")[1]))
        followed = self._followed(table, columns)
        source = followed.block.of_transaction(now_us, None, None, b"incremental") % (0, 0)
        limit = self._size.rows if table.key else None
        before_bytes, size_bytes = self._writer.bytes_pending, 0
        last: list[bytes | None] = []
        passed_over = False
        with closing(copied_rows(self._reader, table, columns, after, limit)) as blocks:
            for lines in blocks:
                if table.key and size_bytes >= CHUNK_BYTES_MAX:
                    passed_over = True  # read again later: a COPY ends early only by a cancellation
                    continue
                values, plain = lines.columns(len(columns)), lines.is_plain(len(columns))
                followed.encoder.read_columns(
                    self._writer, self._events.transaction, source, values, lines.count, plain=plain
                )
                size_bytes = self._writer.bytes_pending - before_bytes
                last = copied_fields(lines.last)
        taken = self._events.transaction.index
        self._events.end(self._place["number"])
        self._size.took(taken, size_bytes)
        places = [[each.name for each in columns].index(name) for name in table.key]
        progress.rows += taken
        progress.done = limit is None or (taken < limit and not passed_over)
        progress.after = None if progress.done else [key_text(last[place]) for place in places]
        if progress.done:
            self._size.begin()

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        place = dict(self._place)
        if self._last:
            xid = int(self._events.transaction.id.partition(":")[0])
            index = max(self._events.transaction.index, self._events.transaction.written_up_to)
            place |= {"xid": xid, "index": index, "number": place["number"] - 1}
        elif self._partial[1]:
            place |= dict(zip(("xid", "index"), self._partial, strict=True))
        snapshots = {name: each.as_json() for name, each in self._progress.items()}
        tables = {name: each.as_json() for name, each in self._known.items()}
        return {"position": place, "snapshots": snapshots, "shapes": self._events.shapes, "tables": tables}

    def committed(self, state: Mapping[str, Any]) -> None:
        """The log has these changes, so the database need not."""
        seen = state["position"]["seen"]
        if seen != self._forgotten:
            self._guarded(lambda: self._table.forget(seen))
            self._forgotten = seen

    def caught_up(self) -> bool:
        return self._batches_read > 0 and self._batch is None and not self._pending()

    def snapshots(self) -> dict[str, Progress]:
        return dict(self._progress)

    # ---- besides ----------------------------------------------------------------------------------------------------

    def status(self) -> SourceStatus:
        return self._guarded(self._status)

    def _status(self) -> SourceStatus:
        if self._table.number() is None:
            return SourceStatus(health=NO_CHANGE_TABLE)
        waiting = self._table.size_bytes()
        alarm = self._options.lag_alarm_bytes
        health = "ok" if waiting <= alarm else f"the change table holds more than {alarm} bytes"
        position = self._setup.one("select pg_current_snapshot()::text")
        return SourceStatus(str(position), None, waiting, health)

    def remove(self) -> list[str]:
        return self._guarded(self._table.drop)

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except errors.UntranslatableCharacter as error:
            raise untranslatable(str(error), self._options.name) from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise DatabaseGone(f"{self._options.database.shown}: {' '.join(str(error).split())}") from error

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._batch is not None:
            with suppress(psycopg.Error):
                self._batch.close()
        self._connection.close()
