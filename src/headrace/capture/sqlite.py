"""SQLite as a source: triggers write every change into a table, and capture reads that.

SQLite has no log that other processes could follow, but one writer at a time; so the numbers that a change table gives
out (``AUTOINCREMENT``) are in the order of commits, and whatever a reader sees has no gap that could still be filled.

    _headrace_<name>   change_id, table_name, operation (c, u, d, t), old_row, new_row, committed_ms

A row is kept as a JSON array of type and value of each column, bytes as hexadecimal digits and reals as text of 20
digits: SQLite's JSON has 15 of them, which is less than a real has, and no infinities. What the log has is deleted.

**Snapshots** are exact: in one read transaction, changes up to the newest are taken first and then a chunk of rows.

Triggers name the columns of their table; when the schema has changed they are made anew, all in one transaction that
keeps writers out. Changes are read only in a state of the database whose schema is the one that the triggers were made
for, so what is read there was written by the right triggers.

**Gaps.** A migration that builds a table anew drops its triggers, and a column added is unknown to them until capture
sees it. What was written meanwhile is not known, or not wholly. So whoever mends the triggers of a table notes a gap
(operation t) in the change table, in the same transaction: no kill can come between. When capture reads the note, it
tells a truncation and reads the table anew.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import time
from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import headrace
from headrace.capture.envelope import Column, Table, TableEncoder, Transaction, json_text
from headrace.capture.options import CaptureOptions
from headrace.capture.outbox import OutboxRouter
from headrace.capture.shapes import announce, topic_name
from headrace.capture.source import DatabaseGone, PositionLost, Progress, SourceStatus
from headrace.capture.writer import Writer
from headrace.errors import UsageError

__all__ = ["SqliteSource"]

SCHEMA = "main"
READ_CHANGES_MAX = 10_000
READ_BYTES_MAX = 16 * 1024 * 1024
"""Of events that one reading makes, of changes and of a chunk each; a single row may be more."""
POLL_S = 0.05
LOCK_TIMEOUT_S = 30.0
_log = logging.getLogger(__name__)
_EVENTS = {"c": "insert", "u": "update", "d": "delete"}
_SOURCE = (
    b'{"version":%b,"connector":"sqlite","name":%b,"ts_ms":%%d,"snapshot":"%%b","db":%b,"sequence":null,"ts_us":%%d,'
    b'"ts_ns":%%d,"table":%b,"change_id":%%d}'
)


def _json_value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b'"' + b64encode(value) + b'"'
    if isinstance(value, str):
        return json_text(value)
    if isinstance(value, float) and math.isinf(value):
        # JSON has no infinities; a text is what readers of Debezium's JSON are used to.
        return b'"Infinity"' if value > 0 else b'"-Infinity"'
    return json.dumps(value).encode()


def _stored(row: str | None) -> list[Any] | None:
    """A row as the triggers wrote it: type, value, type, value …"""
    if row is None:
        return None
    parts = json.loads(row)
    return [
        bytes.fromhex(value) if kind == "blob" else float(value) if kind == "real" else value
        for kind, value in zip(parts[::2], parts[1::2], strict=True)
    ]


class _Followed:
    __slots__ = ("block", "encoder", "names", "outbox")

    def __init__(self, encoder: TableEncoder, block: bytes, outbox: OutboxRouter | None) -> None:
        self.encoder = encoder
        self.block = block
        self.outbox = outbox
        self.names = [each.name for each in encoder.table.columns]


class SqliteSource:
    """``headrace.capture.source.Source`` for SQLite."""

    at_boundary = True

    def __init__(self, options: CaptureOptions, writer: Writer | None) -> None:
        self._options = options.qualified(SCHEMA)
        self._writer = writer
        self._path = Path(options.database.resolved().partition("://")[2].removeprefix("/"))
        if not self._path.exists():
            raise UsageError(
                f"there is no file {self._path}", "use sqlite:///FILE, or sqlite:////FILE for a whole path"
            )
        self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=LOCK_TIMEOUT_S)
        self._changes = f"_headrace_{options.name}"
        self._followed: dict[str, _Followed] = {}
        self._shapes: dict[str, int] = {}
        self._progress: dict[str, Progress] = {}
        self._change = 0
        self._target = 0
        self._data_version = -1
        self._schema_version = -1

    # ---- the database -----------------------------------------------------------------------------------------------

    def _run(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, arguments).fetchall()
        except sqlite3.OperationalError as error:
            raise DatabaseGone(f"{self._path}: {error}") from error

    def _each(self, statement: str, *arguments: Any) -> Generator[tuple[Any, ...], None, None]:
        """Rows one by one, for those that may be large; to be closed by whoever leaves early."""
        try:
            with closing(self._connection.execute(statement, arguments)) as rows:
                yield from rows
        except sqlite3.OperationalError as error:
            raise DatabaseGone(f"{self._path}: {error}") from error

    def _tables(self) -> list[str]:
        query = (
            "select name from sqlite_schema where type = 'table' and name not like 'sqlite\\_%' escape '\\' "
            "and name not like '\\_headrace\\_%' escape '\\' order by name"
        )
        found = [name for (name,) in self._run(query)]
        chosen = self._chosen()
        return [name for name in found if not chosen or name in chosen or f"{SCHEMA}.{name}" == self._options.outbox]

    def _chosen(self) -> set[str]:
        return {each.removeprefix(f"{SCHEMA}.") for each in self._options.tables}

    def check(self) -> list[str]:
        tables = self._tables()
        missing = sorted(self._chosen() - set(tables))
        if missing:
            raise UsageError(f"{self._path} has no table {', '.join(missing)}", "choose others with --tables")
        return [f"{len(tables)} tables"]

    def _prepare(self) -> None:
        """The change table and the triggers, in one transaction: no writer finds a trigger missing on the way."""
        self._run("begin immediate")
        try:
            self._make_triggers()
            self._schema_version = self._run("pragma schema_version")[0][0]
            self._run("commit")
        except BaseException:
            with suppress(DatabaseGone):
                self._run("rollback")
            raise
        self._followed.clear()
        for name in self._progress.keys() - set(self._tables()):
            _log.warning("%s: table %s is gone; what was not read of it before is not told", self._path, name)
            del self._progress[name]

    def _make_triggers(self) -> None:
        """The change table and the triggers, made where they are missing or know other columns."""
        self._run(
            f"create table if not exists {_quoted(self._changes)} (change_id integer primary key autoincrement, "
            "table_name text not null, operation text not null, old_row text, new_row text, "
            "committed_ms integer not null)"
        )
        tables = self._tables()
        wanted_names = {(self._trigger_name(name, each), name) for name in tables for each in _EVENTS}
        existing = {(trigger, table): text for trigger, table, text in self._own_triggers()}
        for trigger, _ in existing.keys() - wanted_names:
            # A table that is renamed takes its triggers along, and they would go on to write under its old name.
            self._run(f"drop trigger {_quoted(trigger)}")
        for name in tables:
            columns = [row[1] for row in self._run(f"pragma table_info({_quoted(name)})")]
            wanted = {each: self._trigger(name, columns, each) for each in _EVENTS}
            found = {each: existing.get((self._trigger_name(name, each), name)) for each in _EVENTS}
            # Its own spelling of the first words is all that SQLite changes in a statement.
            wrong = [each for each in _EVENTS if (found[each] or "").lower() != wanted[each].lower()]
            if wrong and name in self._progress and (None in found.values() or self._has_unread(name)):
                self._note_gap(name)
            for each in wrong:
                self._run(f"drop trigger if exists {_quoted(self._trigger_name(name, each))}")
                self._run(wanted[each])

    def _has_unread(self, table: str) -> bool:
        """Without any, triggers that know other columns have missed nothing: all they wrote was read in their time."""
        query = f"select 1 from {_quoted(self._changes)} where change_id > ? and table_name = ? limit 1"
        return bool(self._run(query, self._change, table))

    def _note_gap(self, table: str, number: int | None = None) -> None:
        columns = "(change_id, table_name, operation, committed_ms)"
        self._run(
            f"insert into {_quoted(self._changes)} {columns} values (?, ?, 't', ?)",
            number,
            table,
            time.time_ns() // 1_000_000,
        )

    def _trigger_name(self, table: str, operation: str) -> str:
        return f"{self._changes}_{table}_{operation}"

    def _own_triggers(self) -> list[tuple[Any, ...]]:
        """Name, table and text; known by what they write to: the name of a capture may begin as another's does."""
        query = "select name, tbl_name, sql from sqlite_schema where type = 'trigger' and instr(sql, ?)"
        return self._run(query, f"insert into {_quoted(self._changes)} (")

    def _trigger(self, table: str, columns: Sequence[str], operation: str) -> str:
        old = _row_as_json("old", columns) if operation in "ud" else "null"
        new = _row_as_json("new", columns) if operation in "cu" else "null"
        return (
            f"create trigger {_quoted(self._trigger_name(table, operation))} "
            f"after {_EVENTS[operation]} on {_quoted(table)} begin "
            f"insert into {_quoted(self._changes)} (table_name, operation, old_row, new_row, committed_ms) "
            f"values ({_literal(table)}, '{operation}', {old}, {new}, "
            "cast((julianday('now') - 2440587.5) * 86400000 as integer)); end"
        )

    # ---- starting ---------------------------------------------------------------------------------------------------

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        self.check()
        position = {} if resnapshot else state.get("position", {})
        known = self._run("select 1 from sqlite_schema where name = ?", self._changes)
        if position and not known:
            self._lost("its change table is gone")
        if position and position["change"] > (newest := self._newest()):
            self._lost(f"its newest change is {newest}, and the log has {position['change']}: it is an older copy")
        recorded = {} if resnapshot else state.get("snapshots", {})
        self._progress = {name: Progress.from_json(each) for name, each in recorded.items()}
        self._change = position.get("change", 0)
        self._prepare()
        self._target = self._newest()
        if not position:
            self._change = self._target
        self._shapes = dict(state.get("shapes", {}))
        # An older copy of the file has given out fewer numbers than the log knows; none of them comes again.
        highest = max(self._target, state.get("position", {}).get("change", 0))
        for number, name in enumerate(self._tables(), highest + 1):
            if name not in self._progress:
                self._progress[name] = self._unread(name)
            if resnapshot:
                self._note_gap(name, number)

    def _lost(self, why: str) -> None:
        name = self._options.name
        raise PositionLost(f"{self._path}: {why}; take a new snapshot: headrace capture run {name} --resnapshot")

    def _newest(self) -> int:
        rows = self._run("select seq from sqlite_sequence where name = ?", self._changes)
        return int(rows[0][0]) if rows else 0

    def _is_snapshotted(self, name: str) -> bool:
        return self._options.snapshot and f"{SCHEMA}.{name}" != self._options.outbox

    def _unread(self, name: str) -> Progress:
        if not self._is_snapshotted(name):
            return Progress(done=True)
        return Progress(rows_expected=int(self._run(f"select count(*) from {_quoted(name)}")[0][0]))

    def _follow(self, name: str) -> _Followed:
        rows = self._run(f"pragma table_info({_quoted(name)})")
        columns = tuple(Column(row[1], _json_value, row[2] or "ANY") for row in rows)
        keyed = sorted((row[5], place) for place, row in enumerate(rows) if row[5])
        table = Table(SCHEMA, name, columns, tuple(place for _, place in keyed))
        prefix = self._options.topic_prefix
        version = f"headrace-{headrace.__version__}"
        shown = [json_text(each).replace(b"%", b"%%") for each in (version, prefix, self._path.name, name)]
        if self._writer is not None:
            announce(self._writer, prefix, self._shapes, table, database=self._path.name)
        outbox = OutboxRouter(table) if table.full_name == self._options.outbox else None
        encoder = TableEncoder(table, topic_name(f"{prefix}.{SCHEMA}.{name}"), self._options)
        return _Followed(encoder, _SOURCE % tuple(shown), outbox)

    def _source(self, followed: _Followed, snapshot: bytes, at_ms: int) -> bytes:
        return followed.block % (at_ms, snapshot, at_ms * 1000, at_ms * 1_000_000, self._change)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(self, wait_s: float) -> bool:
        """Changes, and then a chunk of a table still to be read, from one state of the database."""
        data_version = self._run("pragma data_version")[0][0]
        if data_version == self._data_version and not self._pending():
            time.sleep(min(wait_s, POLL_S))
            return False
        self._run("begin")
        try:
            # Asked inside: a schema that changes from here on is not the one that is read.
            known = self._run("pragma schema_version")[0][0] == self._schema_version
            more = self._take() if known else True
        finally:
            self._run("commit")
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
        query = (
            f"select change_id, table_name, operation, old_row, new_row, committed_ms from {_quoted(self._changes)} "
            f"where change_id > ? order by change_id limit {READ_CHANGES_MAX}"
        )
        now_ns = time.time_ns()
        bytes_max = self._writer.bytes_pending + READ_BYTES_MAX
        taken = 0
        with closing(self._each(query, self._change)) as rows:
            for change, name, operation, old, new, at_ms in rows:
                self._change = change
                taken += 1
                if name not in self._progress:
                    continue
                if operation == "t":
                    self._take_gap(name, at_ms, now_ns)
                elif not self._shown_by_snapshot(name):
                    self._take_change(name, operation, _stored(old), _stored(new), at_ms, now_ns)
                if self._writer.bytes_pending >= bytes_max:
                    return True
        return taken == READ_CHANGES_MAX

    def _take_gap(self, name: str, at_ms: int, now_ns: int) -> None:
        """Triggers have missed changes of the table: it is told anew, unless it is gone or no snapshot is wanted."""
        assert self._writer is not None
        if not self._is_snapshotted(name):
            _log.warning(
                "%s: triggers of table %s were missing or old; changes may not have been told", self._path, name
            )
            return
        if name not in self._tables():
            return
        followed = self._of(name)
        source = self._source(followed, b"incremental", at_ms)
        followed.encoder.truncated(self._writer, Transaction(str(self._change), now_ns), source)
        self._progress[name] = self._unread(name)

    def _shown_by_snapshot(self, name: str) -> bool:
        """A table without a key is told by its snapshot first, which shows this change too."""
        return not self._progress[name].done and not self._of(name).encoder.table.key

    def _of(self, name: str) -> _Followed:
        followed = self._followed.get(name)
        if followed is None:
            followed = self._followed[name] = self._follow(name)
        return followed

    def _take_change(
        self, name: str, operation: str, old: list[Any] | None, new: list[Any] | None, at_ms: int, now_ns: int
    ) -> None:
        assert self._writer is not None
        followed = self._of(name)
        source = self._source(followed, b"false", at_ms)
        transaction = Transaction(str(self._change), now_ns)
        width = len(followed.names)
        # A column added since the change was written is null in it.
        before, after = ([*each, *[None] * (width - len(each))][:width] if each else None for each in (old, new))
        encoder = followed.encoder
        if followed.outbox is not None:
            if operation == "c" and after is not None:
                followed.outbox.created(self._writer, transaction, after)
        elif after is None:
            encoder.deleted(self._writer, transaction, source, before or [])
        elif before is None:
            encoder.created(self._writer, transaction, source, after)
        elif encoder.key(before) != encoder.key(after):
            encoder.moved(self._writer, transaction, source, before, after)
        else:
            encoder.updated(self._writer, transaction, source, before, after)

    def _take_chunk(self, name: str) -> None:
        assert self._writer is not None
        followed, progress = self._of(name), self._progress[name]
        key = [_quoted(followed.names[index]) for index in followed.encoder.table.key]
        rowid = self._rowid(followed) if key else None
        order = [*key, *([rowid] if rowid else [])]
        query = f"select {', '.join([*map(_quoted, followed.names), *([rowid] if rowid else [])])} from {_quoted(name)}"
        after = [json.loads(each) for each in progress.after or ()]
        bounds = [bytes.fromhex(each["hex"]) if isinstance(each, dict) else each for each in after]
        behind, arguments = _behind(order[: len(bounds)], bounds) if bounds else ("true", [])
        if key:
            query += f" where {behind} order by {', '.join(order)} limit {self._options.chunk_rows}"
        transaction = Transaction(f"{self._change}/{name}/{progress.rows}", time.time_ns())
        source = self._source(followed, b"incremental", time.time_ns() // 1_000_000)
        bytes_max = self._writer.bytes_pending + READ_BYTES_MAX
        taken, full = 0, False
        row: tuple[Any, ...] = ()
        width = len(followed.names)
        with closing(self._each(query, *arguments)) as rows:
            for row in rows:
                followed.encoder.read(self._writer, transaction, source, row[:width])
                taken += 1
                full = bool(key) and (taken == self._options.chunk_rows or self._writer.bytes_pending >= bytes_max)
                if full:
                    break
        progress.rows += taken
        progress.done = not full
        progress.after = None
        if full:
            last = [*(row[index] for index in followed.encoder.table.key), *row[width:]]
            progress.after = [json.dumps({"hex": each.hex()} if isinstance(each, bytes) else each) for each in last]

    def _rowid(self, followed: _Followed) -> str | None:
        """What tells rows of one key apart: SQLite allows NULL in a key, any number of times."""
        taken = {each.lower() for each in followed.names}
        name = next((each for each in ("rowid", "oid", "_rowid_") if each not in taken), None)
        try:
            self._connection.execute(f"select {name} from {_quoted(followed.encoder.table.name)} limit 0").close()
        except sqlite3.OperationalError:
            return None  # a table without rowids, whose keys are never null
        return name

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        snapshots = {name: each.as_json() for name, each in self._progress.items()}
        return {"position": {"format": 1, "change": self._change}, "snapshots": snapshots, "shapes": self._shapes}

    def committed(self, state: Mapping[str, Any]) -> None:
        """The log has these changes, so the file need not."""
        change = state["position"]["change"]
        if self._run(f"select 1 from {_quoted(self._changes)} where change_id <= ? limit 1", change):
            self._run(f"delete from {_quoted(self._changes)} where change_id <= ?", change)

    def caught_up(self) -> bool:
        return self._change >= self._target and all(each.done for each in self._progress.values())

    def snapshots(self) -> dict[str, Progress]:
        return dict(self._progress)

    def status(self) -> SourceStatus:
        if not self._run("select 1 from sqlite_schema where name = ?", self._changes):
            return SourceStatus()
        waiting = self._run(f"select count(*) from {_quoted(self._changes)}")[0][0]
        return SourceStatus(position=str(self._newest() - waiting))

    def remove(self) -> list[str]:
        triggers = [name for name, _, _ in self._own_triggers()]
        for name in triggers:
            self._run(f"drop trigger {_quoted(name)}")
        self._run(f"drop table if exists {_quoted(self._changes)}")
        return [f"table {self._changes}", *(f"trigger {name}" for name in triggers)]

    def close(self) -> None:
        self._connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _behind(columns: Sequence[str], bounds: Sequence[Any]) -> tuple[str, list[Any]]:
    """The condition for rows that sort behind these values, with its arguments. NULL sorts before everything else."""
    if None not in bounds:
        return f"({', '.join(columns)}) > ({', '.join('?' * len(columns))})", list(bounds)
    choices: list[str] = []
    arguments: list[Any] = []
    for place, column in enumerate(columns):
        equal = [f"{each} is ?" for each in columns[:place]]
        arguments += bounds[:place]
        if bounds[place] is None:
            equal.append(f"{column} is not null")
        else:
            equal.append(f"{column} > ?")
            arguments.append(bounds[place])
        choices.append(" and ".join(equal))
    return f"({' or '.join(choices)})", arguments


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _row_as_json(which: str, columns: Sequence[str]) -> str:
    parts = []
    for name in columns:
        column = f"{which}.{_quoted(name)}"
        parts.append(
            f"typeof({column}), case typeof({column}) when 'blob' then hex({column}) "
            f"when 'real' then printf('%!.20g', {column}) else {column} end"
        )
    return f"json_array({', '.join(parts)})"
