"""SQLite as a source: triggers write every change into a table of the file, and capture reads that.

``change_table`` has the table, ``triggers`` what is written into it, ``snapshot`` the reading of tables. Here they are
put together: whether the file and its tables are those that the log knows, and how changes become events.

**Snapshots** are exact: in one read transaction, changes up to the newest are taken first and then a chunk of rows.

**Schemas.** Every change names the shape of its table, so it can be read whatever became of the table. Changes are read
only in a state of the database whose schema is the one that the triggers were made for: what is read there was written
by the right triggers, or a gap is noted after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import headrace
from headrace.capture.envelope import Column, Table, TableEncoder, Transaction, json_text
from headrace.capture.options import CaptureOptions, counted
from headrace.capture.outbox import OutboxRouter
from headrace.capture.shapes import announce, table_topic
from headrace.capture.source import PositionLost, Progress, SourceStatus, TableReplaced
from headrace.capture.sqlite.change_table import READ_CHANGES_MAX, Change, ChangeTable, Comparison, Shape
from headrace.capture.sqlite.file import SqliteFile, TableInfo, quoted
from headrace.capture.sqlite.snapshot import ChunkReader
from headrace.capture.sqlite.triggers import GONE
from headrace.capture.sqlite.values import NULL_IN_KEY, Unreadable, json_value, key_renderer, stored_row
from headrace.capture.writer import Writer
from headrace.errors import UsageError

__all__ = ["SqliteSource"]

SCHEMA = "main"
READ_BYTES_MAX = 16 * 1024 * 1024
"""Of events that one reading makes, of changes and of a chunk each; a single row may be more."""
POLL_S = 0.05
_SOURCE = (
    b'{"version":%b,"connector":"sqlite","name":%b,"ts_ms":%%d,"snapshot":"%%b","db":%b,"sequence":null,"ts_us":%%d,'
    b'"ts_ns":%%d,"table":%b,"change_id":%%d}'
)


class _Followed:
    """What the changes of a table in one shape need."""

    __slots__ = ("block", "encoder", "outbox", "refuses_null")

    def __init__(self, encoder: TableEncoder, block: bytes, outbox: OutboxRouter | None, refuses_null: bool) -> None:
        self.encoder = encoder
        self.block = block
        self.outbox = outbox
        self.refuses_null = refuses_null

    def row(self, values: Sequence[Any]) -> Sequence[Any]:
        """With a NULL in the key marked: rows that have one cannot be distinguished."""
        key = self.encoder.table.key
        if not self.refuses_null or all(values[place] is not None for place in key):
            return values
        return [NULL_IN_KEY if value is None and place in key else value for place, value in enumerate(values)]


class SqliteSource:
    """``headrace.capture.source.Source`` for SQLite."""

    at_boundary = True

    def __init__(
        self, options: CaptureOptions, writer: Writer | None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._options = options.qualified(SCHEMA)
        self._writer = writer
        self._say = say
        self._path = Path(options.database.resolved().partition("://")[2].removeprefix("/"))
        self._file = SqliteFile(self._path)
        self._table = ChangeTable(self._file, options.name)
        self._tables: dict[str, TableInfo] = {}
        self._compared = Comparison()
        self._last_gaps: dict[str, int] = {}
        self._followed: dict[int, _Followed] = {}
        self._shapes: dict[str, int] = {}
        self._progress: dict[str, Progress] = {}
        self._change = 0
        self._token = 0
        self._target = 0
        self._data_version = -1
        self._schema_version = -1
        self._encoding = ""

    # ---- the catalogue ----------------------------------------------------------------------------------------------

    @property
    def options(self) -> CaptureOptions:
        return self._options

    def columns(self) -> dict[str, list[str]]:
        tables = self._file.tables(self._chosen(self._file.table_kinds()))
        return {f"{SCHEMA}.{name}": list(table.columns) for name, table in tables.items()}

    def _selects(self, name: str) -> bool:
        return self._options.selects(f"{SCHEMA}.{name}")

    def _chosen(self, kinds: Mapping[str, str]) -> list[str]:
        return [name for name, kind in kinds.items() if kind == "table" and self._selects(name)]

    def check(self) -> list[str]:
        kinds = self._file.table_kinds()
        tables = self._chosen(kinds)
        notes = self._options.check_tables(f"{SCHEMA}.{name}" for name in tables)
        skipped = [name for name, kind in kinds.items() if kind == "virtual" and self._selects(name)]
        if skipped:
            notes.append(f"virtual tables have no triggers and are left out: {', '.join(skipped)}")
        return [counted(len(tables), "table"), *notes]

    def _prepare(self) -> None:
        """Look at the tables and their triggers. Only where something must be made, others have to wait for it."""
        self._file.check_same()
        with self._file.transaction():
            is_right = self._table.exists and self._compare().is_right and not self._gaps()
            schema_version = self._file.schema_version
        if not is_right:
            # In one transaction, so that no writer finds a trigger missing on the way.
            with self._file.transaction("begin immediate"):
                self._table.make()
                compared = self._compare()
                gaps = self._gaps()
                self._table.repair(compared)
                for name, why in gaps.items():
                    self._table.note_gap(name)
                    then = ", and its rows again" if name in self._tables else ""
                    self._say(f"{self._path}: {name} {why}: its topic gets a truncation{then}")
                schema_version = self._file.schema_version
        if self._schema_version != schema_version:
            self._begin_again_by_rowid()
        self._schema_version = schema_version
        self._data_version = -1
        for name in self._tables:
            if name not in self._progress:
                self._progress[name] = self._unread(name)
        for name in [each for each in self._progress if not self._selects(each)]:
            del self._progress[name]

    def _compare(self) -> Comparison:
        self._tables = self._file.tables(self._chosen(self._file.table_kinds()))
        self._compared = self._table.compare(self._tables)
        return self._compared

    def _gaps(self) -> dict[str, str]:
        """The tables whose changes are not known, or not wholly, and why."""
        gaps: dict[str, str] = {}
        for name in self._progress:
            each = self._compared.triggers.get(name)
            if not self._selects(name):
                continue
            if each is None:
                gaps[name] = "is gone"
            elif each.are_lost:
                gaps[name] = "was made again, or its triggers were"
            elif each.are_other and self._table.has_unread(name, self._change):
                gaps[name] = "has other columns or unique values than its triggers knew"
                continue
            elif self._table.has_lacked_column(name, self._change):
                gaps[name] = "was without a column for a time"
                continue
            elif each.columns_changed and f"{SCHEMA}.{name}" != self._options.outbox:
                gaps[name] = each.columns_changed
                continue
            if name in gaps and self._options.on_replaced == "stop":
                raise TableReplaced(self._options.name, f"{self._path}: {name}", gaps[name])
        return gaps

    def _begin_again_by_rowid(self) -> None:
        """The schema may have changed by a VACUUM, which gives other rowids to tables whose key they are not."""
        for name, each in self._progress.items():
            table = self._tables.get(name)
            if not each.done and table is not None and table.rowid is not None and not table.key_is_rowid:
                each.after = None

    # ---- starting ---------------------------------------------------------------------------------------------------

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        for note in self.check()[1:]:
            self._say(f"{self._path}: {note}")
        self._encoding = self._file.encoding
        recorded = state.get("position", {})
        position = {} if resnapshot else recorded
        if position:
            self._check_position(position)
        recorded_tables = state.get("snapshots", {})
        snapshots = {} if resnapshot else recorded_tables
        self._progress = {name: Progress.from_json(each) for name, each in snapshots.items()}
        self._change, self._token = position.get("change", 0), position.get("token", 0)
        self._schema_version = position.get("schema", -1)
        self._shapes = dict(state.get("shapes", {}))
        self._prepare()
        if not position:
            with self._file.transaction("begin immediate"):
                # An older copy of the file has given out fewer numbers than the log knows; none of them comes again.
                self._change, self._token = self._table.note_witness(above=recorded.get("change", 0))
                gone = [each for each in recorded_tables if each not in self._tables and self._selects(each)]
                for name in [*self._tables, *gone] if resnapshot else ():
                    self._progress.setdefault(name, Progress(done=True))
                    self._table.note_gap(name)
                for name in gone if resnapshot else ():
                    self._say(f"{self._path}: {name} is gone: its topic gets a truncation")
        self._target = self._table.newest()

    def _check_position(self, position: Mapping[str, Any]) -> None:
        if "token" not in position:
            self._lost("its changes were noted by an earlier version of headrace")
        if not self._table.exists:
            self._lost("its change table is gone")
        if self._table.witness(position["change"]) != position["token"]:
            self._lost(
                f"it does not have change {position['change']}, which the log has: it is an older copy, or another file"
            )

    def _lost(self, why: str) -> None:
        name = self._options.name
        raise PositionLost(f"{self._path}: {why}; take a new snapshot: headrace capture run {name} --resnapshot")

    def _is_snapshotted(self, name: str) -> bool:
        return self._options.snapshot and f"{SCHEMA}.{name}" != self._options.outbox

    def _unread(self, name: str) -> Progress:
        if not self._is_snapshotted(name):
            return Progress(done=True)
        return Progress(rows_expected=int(self._file.one(f"select count(*) from {quoted(name)}")))

    def _follow(self, shape: Shape) -> _Followed:
        columns = tuple(
            Column(name, key_renderer(kind) if name in shape.key else json_value, kind or "ANY")
            for name, kind in zip(shape.columns, shape.types, strict=True)
        )
        table = Table(SCHEMA, shape.table, columns, tuple(shape.columns.index(name) for name in shape.key))
        prefix = self._options.topic_prefix
        version = f"headrace-{headrace.__version__}"
        shown = [json_text(each).replace(b"%", b"%%") for each in (version, prefix, self._path.name, shape.table)]
        if self._writer is not None and columns:
            announce(self._writer, prefix, self._shapes, table, database=self._path.name)
        outbox = OutboxRouter(table) if table.full_name == self._options.outbox else None
        encoder = TableEncoder(table, table_topic(prefix, SCHEMA, shape.table), self._options)
        refuses_null = table.full_name not in self._options.key_columns
        return _Followed(encoder, _SOURCE % tuple(shown), outbox, refuses_null)

    def _of(self, number: int) -> _Followed:
        followed = self._followed.get(number)
        if followed is None:
            followed = self._followed[number] = self._follow(self._table.shape(number))
        return followed

    def _source(self, followed: _Followed, snapshot: bytes, at_ms: int) -> bytes:
        return followed.block % (at_ms, snapshot, at_ms * 1000, at_ms * 1_000_000, self._change)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(self, wait_s: float) -> bool:
        """Changes, and then a chunk of a table still to be read, from one state of the database."""
        data_version = self._file.one("pragma data_version")
        if data_version == self._data_version and not self._pending():
            time.sleep(min(wait_s, POLL_S))
            return False
        assert self._writer is not None
        self._writer.prepare_ahead(
            table_topic(self._options.topic_prefix, SCHEMA, name)
            for name, each in self._progress.items()
            if not each.done and each.rows_expected
        )
        with self._writer.holding(), self._file.transaction():
            # Asked inside: a schema that changes from here on is not the one that is read.
            known = self._file.schema_version == self._schema_version
            more = self._take() if known else True
        if not known:
            self._prepare()
        elif not more:
            self._data_version = data_version
        return more

    def _take(self) -> bool:
        """True: more is there."""
        if self._take_changes():
            return True
        pending = self._pending()
        if pending:
            self._take_chunk(pending[0])
        return bool(pending)

    def _pending(self) -> list[str]:
        return [name for name, each in self._progress.items() if not each.done]

    def _take_changes(self) -> bool:
        """True: more of them may be there."""
        assert self._writer is not None
        now_ns = time.time_ns()
        bytes_max = self._writer.bytes_pending + READ_BYTES_MAX
        taken = 0
        self._last_gaps = self._table.last_gaps()
        with closing(self._table.changes(self._change)) as changes:
            for change in changes:
                self._change, self._token = change.number, change.token
                taken += 1
                if change.table in self._progress:
                    self._take_noted(change, now_ns)
                if self._writer.bytes_pending >= bytes_max:
                    return True
        return taken == READ_CHANGES_MAX

    def _take_noted(self, change: Change, now_ns: int) -> None:
        if change.operation == "t":
            self._take_gap(change, now_ns)
        elif change.operation != "w" and not self._shown_by_snapshot(change):
            old, new = (each and stored_row(each, self._encoding) for each in (change.old_row, change.new_row))
            if GONE in (old or ()) or GONE in (new or ()):
                return  # a column was dropped before the triggers knew, and a gap is noted after this
            if change.operation != "m":
                self._take_change(change, old or None, new or None, now_ns)
            elif self._was_displaced(change, old or []):
                self._take_change(change, old or None, None, now_ns)

    def _was_displaced(self, change: Change, row: list[Any]) -> bool:
        """Whether no row has this key any more; without a key, the triggers themselves have found that out."""
        table, then = self._tables.get(change.table), self._of(change.shape).encoder.table
        key = tuple(then.columns[place].name for place in then.key)
        values = [row[place] for place in then.key]
        if table is None or key != table.key or any(each is None or isinstance(each, Unreadable) for each in values):
            return False
        exact = " and ".join(f"{name} is ? and {name} is ? collate binary" for name in map(quoted, key))
        same = [value for value in values for _ in range(2)]
        return bool(key) and not self._file.run(f"select 1 from {quoted(table.name)} where {exact} limit 1", *same)

    def _take_gap(self, change: Change, now_ns: int) -> None:
        """Changes of the table are not known: it is read again, unless it is gone or no snapshot is wanted."""
        assert self._writer is not None
        name = change.table
        if not self._is_snapshotted(name):
            self._say(f"{self._path}: changes of {name} may be missing: its triggers were not there, or were old")
            if name not in self._tables:
                del self._progress[name]
            return
        is_there = name in self._tables
        number = self._compared.triggers[name].shape if is_there else self._table.latest_shape(name)
        # A restored file may never have had the table; its topic is only emptied.
        followed = self._follow(Shape(0, name, (), (), ())) if number is None else self._of(number)
        source = self._source(followed, b"incremental", change.committed_ms)
        followed.encoder.truncated(self._writer, Transaction(str(self._change), now_ns), source)
        if is_there:
            self._progress[name] = self._unread(name)
        else:
            del self._progress[name]

    def _shown_by_snapshot(self, change: Change) -> bool:
        """Of a table without a key, changes before its snapshot are not written: the snapshot shows them.

        Nor could they be: where triggers ran in another order, the row that a change began with was never written.
        """
        if self._of(change.shape).encoder.table.key:
            return False
        return not self._progress[change.table].done or change.number < self._last_gaps.get(change.table, 0)

    def _take_change(self, change: Change, old: list[Any] | None, new: list[Any] | None, now_ns: int) -> None:
        assert self._writer is not None
        followed = self._of(change.shape)
        source = self._source(followed, b"false", change.committed_ms)
        transaction = Transaction(str(self._change), now_ns)
        before, after = (each and followed.row(each) for each in (old, new))
        encoder = followed.encoder
        if followed.outbox is not None:
            if change.operation == "c" and after:
                followed.outbox.created(self._writer, transaction, after)
        elif before and after and encoder.has_same_key(before, after):
            encoder.updated(self._writer, transaction, source, before, after)
        elif before and after:
            encoder.moved(self._writer, transaction, source, before, after)
        elif after:
            encoder.created(self._writer, transaction, source, after)
        elif before:
            encoder.deleted(self._writer, transaction, source, before)

    def _take_chunk(self, name: str) -> None:
        assert self._writer is not None
        table, progress = self._tables[name], self._progress[name]
        followed = self._of(self._compared.triggers[name].shape)
        transaction = Transaction(f"{self._change}/{name}/{progress.rows}", time.time_ns())
        source = self._source(followed, b"incremental", time.time_ns() // 1_000_000)
        bytes_max = self._writer.bytes_pending + READ_BYTES_MAX
        chunk = ChunkReader(self._file, table, progress, self._options.chunk_rows)
        with closing(chunk.rows()) as rows:
            for row in rows:
                followed.encoder.read(self._writer, transaction, source, followed.row(row))
                if self._writer.bytes_pending >= bytes_max and chunk.may_end:
                    break
        chunk.end()

    def refresh(self) -> None:
        """The schema is looked at with every reading, so new and replaced tables are found there."""
        self._file.check_same()

    def resnapshot(self, tables: Sequence[str]) -> None:
        """A gap is noted, as where triggers were missing: the truncation comes when it is read."""
        names = [each.removeprefix(f"{SCHEMA}.") for each in tables]
        unknown = sorted(set(names) - self._tables.keys())
        if unknown:
            raise UsageError(f"{', '.join(unknown)} is not captured", f"captured: {', '.join(self._tables)}")
        for name in names:
            self._table.note_gap(name)
        self._data_version = -1  # a connection does not see the version move by what it writes itself

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        snapshots = {name: each.as_json() for name, each in self._progress.items()}
        place = {"format": 1, "change": self._change, "token": self._token, "schema": self._schema_version}
        return {"position": place, "snapshots": snapshots, "shapes": self._shapes}

    def committed(self, state: Mapping[str, Any]) -> None:
        """The log has these changes, so the file need not, but for the last one."""
        self._table.forget(state["position"]["change"])

    def caught_up(self) -> bool:
        return self._change >= self._target and all(each.done for each in self._progress.values())

    def snapshots(self) -> dict[str, Progress]:
        return dict(self._progress)

    def status(self) -> SourceStatus:
        if not self._table.exists:
            return SourceStatus()
        position, oldest_ms = self._table.waiting()
        lag_ms = 0 if oldest_ms is None else max(0, time.time_ns() // 1_000_000 - oldest_ms)
        return SourceStatus(position=str(position), lag_ms=lag_ms)

    def remove(self) -> list[str]:
        return self._table.drop()

    def close(self) -> None:
        self._file.connection.close()
