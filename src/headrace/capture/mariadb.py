"""MariaDB as a source: its binlog, by GTID.

**Positions** are GTIDs: the last transaction of each domain that is in the log; inside a transaction also the number of
its events that are. A transaction's id is its GTID.

**Snapshots** are exact without watermarks: MariaDB tells at which place of the binlog a consistent read stands
(``binlog_snapshot_file`` and ``_position``). A chunk is read there, the stream is followed to that place, and the rows
are emitted exactly there: no row can be older or newer than the stream around it. It takes no lock, and after a kill
it goes on behind the last chunk.

Names and keys of columns come with the binlog (``binlog_row_metadata=FULL``), so a changed schema needs no history.
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pymysql
from pymysqlreplication.event import HeartbeatLogEvent, MariadbGtidEvent, QueryEvent, XAPrepareEvent, XidEvent
from pymysqlreplication.row_event import UpdateRowsEvent, WriteRowsEvent

import headrace
from headrace.capture.envelope import Column, Table, TableEncoder, Transaction, json_text
from headrace.capture.mariadb_binlog import BinlogReader
from headrace.capture.mariadb_keys import KeyColumn, quoted
from headrace.capture.mariadb_values import Kind, as_catalogued, kind_in_catalogue, renderer
from headrace.capture.options import CaptureOptions
from headrace.capture.outbox import OutboxRouter
from headrace.capture.shapes import announce, topic_name
from headrace.capture.source import DatabaseGone, Progress, SourceStatus
from headrace.capture.writer import Writer
from headrace.errors import UsageError

__all__ = ["MariadbSource"]

_log = logging.getLogger(__name__)

READ_BYTES = 4 * 1024 * 1024
READ_BYTES_MAX = 8 * READ_BYTES
CHUNK_BYTES_MAX = 16 * 1024 * 1024
VALUE_BYTES = 16
"""What a value is counted as besides its text."""
GONE = (1146, 1051)
"""What the server says of a table that is not there."""
TRUNCATE = re.compile(r"\s*truncate\s+(?:table\s+)?([`\w.$]+)", re.IGNORECASE)
STANDALONE = 1
"""A flag of a GTID: the transaction is one statement and has no end of its own."""
PREPARED_XA = 64
"""A flag of a GTID: the transaction ends with XA PREPARE, and another one tells later what became of it."""
NEEDED = {
    "log_bin": "ON",
    "log_bin_compress": "OFF",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}
_SOURCE = (
    b'{"version":%b,"connector":"mariadb","name":%b,"ts_ms":%%d,"snapshot":"%%b","db":%b,"sequence":null,"ts_us":%%d,'
    b'"ts_ns":%%d,"table":%b,"server_id":%%d,"gtid":%%b,"file":"%%b","pos":%%d,"row":%%%%d,"thread":null,"query":null}'
)


class _Followed:
    __slots__ = ("block", "encoder", "outbox")

    def __init__(self, encoder: TableEncoder, block: bytes, outbox: OutboxRouter | None) -> None:
        self.encoder = encoder
        self.block = block
        self.outbox = outbox


class Chunk(NamedTuple):
    """Rows that wait for the stream to reach the place where they were read.

    Of a table without a key, which is read in one piece, only the place is here: ``whole`` holds a read transaction
    open there, and the rows are fetched from it when they are emitted, however many they are.
    """

    table: str
    followed: _Followed
    place: dict[int, int]
    rows: Iterable[tuple[Any, ...]]
    after: list[str] | None
    is_last: bool
    whole: pymysql.Connection[Any] | None = None


def parse_gtids(text: str) -> dict[int, tuple[int, int]]:
    """``domain-server-number,…`` by domain."""
    found = {}
    for each in filter(None, text.split(",")):
        domain, server, number = (int(part) for part in each.strip().split("-"))
        found[domain] = server, number
    return found


def gtid_text(gtids: Mapping[int, tuple[int, int]]) -> str:
    return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(gtids.items()))


class MariadbSource:
    """``headrace.capture.source.Source`` for MariaDB."""

    def __init__(self, options: CaptureOptions, writer: Writer | None) -> None:
        self._settings = connection_settings(options)
        self._options = options.qualified(self._settings["database"])
        self._writer = writer
        self._connection = self._guarded(lambda: pymysql.connect(**self._settings, autocommit=True))
        self._reader: BinlogReader | None = None
        self._gtids: dict[int, tuple[int, int]] = {}
        self._begun: MariadbGtidEvent | None = None
        self._partial: tuple[str, int] = ("", 0)
        self._transaction = Transaction("", 0)
        self._tables: dict[str, list[str]] = {}
        self._followed: dict[Any, _Followed] = {}
        self._shapes: dict[str, int] = {}
        self._progress: dict[str, Progress] = {}
        self._pending: list[str] = []
        self._chunk: Chunk | None = None
        self._limits: dict[str, int] = {}
        self._target: dict[int, tuple[int, int]] = {}
        self._file = ""
        self._round = 0
        """How often everything was read anew: two readings at one place of the binlog have different names."""

    # ---- the database -----------------------------------------------------------------------------------------------

    def _guarded(self, work: Any) -> Any:
        try:
            return work()
        except (pymysql.OperationalError, pymysql.InterfaceError, OSError) as error:
            code = error.args[0] if error.args else 0
            text = f"{self._options.database.shown}: {error.args[-1] if error.args else error}"
            if code in (1044, 1045, 1049):
                raise UsageError(text, "check user, password and database") from error
            raise DatabaseGone(text) from error

    def _ask(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        def work() -> list[tuple[Any, ...]]:
            with self._connection.cursor() as cursor:
                cursor.execute(query, arguments or None)
                return list(cursor.fetchall())

        found: list[tuple[Any, ...]] = self._guarded(work)
        return found

    def _ask_within(self, bytes_max: int, query: str, *arguments: Any) -> tuple[list[tuple[Any, ...]], bool]:
        """Rows until they hold so many bytes, one at least, and whether that cut them off."""
        rows, held = [], 0
        for row in _fetched(self._connection, query, arguments):
            rows.append(row)
            held += VALUE_BYTES * len(row) + sum(len(each) for each in row if isinstance(each, str | bytes))
            if held >= bytes_max:
                break
        return rows, held >= bytes_max

    def _check_server(self) -> None:
        version = self._ask("select version()")[0][0]
        if "mariadb" not in version.lower():
            raise UsageError(
                f"the server is MySQL {version}: its GTIDs, its JSON and its snapshots differ, and capture does not "
                "know them",
                "capture follows MariaDB 10.5 or newer; for MySQL, Debezium writes the same events",
            )
        names = ", ".join(f"'{name}'" for name in NEEDED)
        values = dict(self._ask(f"show global variables where variable_name in ({names})"))
        for name, wanted in NEEDED.items():
            if values.get(name, "").upper() != wanted:
                mend = f"SET GLOBAL {name} = '{wanted}'" if name != "log_bin" else "start the server with --log-bin"
                raise UsageError(f"the server's {name} is {values.get(name)}, and capture needs {wanted}", mend)
        try:
            self._connection.query("show binary logs")
            self._connection.query("select 1")
        except pymysql.OperationalError as error:
            user = self._ask("select current_user()")[0][0]
            grant = f"GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {user}"
            raise UsageError(f"{user} has no right to read the binlog: {error.args[-1]}", grant) from error

    def _all_tables(self) -> dict[str, list[str]]:
        """The tables to capture and the columns of their keys."""
        rows = self._ask(
            "select t.table_schema, t.table_name, k.column_name from information_schema.tables t "
            "left join information_schema.key_column_usage k on k.table_schema = t.table_schema "
            "and k.table_name = t.table_name and k.constraint_name = 'PRIMARY' "
            "where t.table_type = 'BASE TABLE' and t.table_schema = database() order by 1, 2, k.ordinal_position"
        )
        found: dict[str, list[str]] = {}
        for schema, name, column in rows:
            key = found.setdefault(f"{schema}.{name}", [])
            if column is not None:
                key.append(column)
        chosen = set(self._options.tables)
        if self._options.outbox and chosen:
            chosen.add(self._options.outbox)
        missing = sorted(chosen - found.keys())
        if missing:
            raise UsageError(f"there is no table {', '.join(missing)} that the user may read", "choose with --tables")
        return {name: key for name, key in found.items() if not chosen or name in chosen}

    def check(self) -> list[str]:
        self._check_server()
        return [f"{len(self._all_tables())} tables"]

    # ---- starting ---------------------------------------------------------------------------------------------------

    def start(self, state: Mapping[str, Any], *, resnapshot: bool = False) -> None:
        self._check_server()
        self._tables = self._all_tables()
        position = {} if resnapshot else state.get("position", {})
        current = self._ask("select @@gtid_binlog_pos")[0][0]
        self._gtids = parse_gtids(position.get("gtid", current))
        self._partial = (position.get("transaction", ""), position.get("index", 0))
        self._round = state.get("position", {}).get("round", 0) + resnapshot
        self._shapes = dict(state.get("shapes", {}))
        recorded = {} if resnapshot else state.get("snapshots", {})
        self._progress = {name: Progress.from_json(each) for name, each in recorded.items()}
        for name in self._tables:
            done = not self._options.snapshot or name == self._options.outbox
            self._progress.setdefault(name, Progress(done=done, rows_expected=self._rows_expected(name)))
        self._pending = [name for name in self._tables if not self._progress[name].done]
        self._target = parse_gtids(current)
        self._check_prepared()
        if resnapshot:
            self._announce_gap()
        server_id = 0x40000000 | zlib.crc32(f"{self._options.name}{time.time_ns()}".encode()) >> 2
        self._reader = BinlogReader(self._settings, server_id, gtid_text(self._gtids))

    def _check_prepared(self) -> None:
        """What is prepared now has its rows in the binlog already, and no snapshot sees them before its commit."""
        if self._pending and (prepared := self._ask("xa recover")):
            raise UsageError(
                f"{len(prepared)} XA transactions are prepared, and a snapshot would miss what they change",
                "XA COMMIT or XA ROLLBACK what XA RECOVER shows, then run again",
            )

    def _rows_expected(self, name: str) -> int:
        schema, _, table = name.partition(".")
        query = "select table_rows from information_schema.tables where table_schema = %s and table_name = %s"
        return int(self._ask(query, schema, table)[0][0] or 0)

    def _announce_gap(self) -> None:
        """What was deleted meanwhile is not known; a truncation tells whoever folds the topic to begin anew."""
        assert self._writer is not None
        self._transaction = Transaction(f"{gtid_text(self._gtids)}/{self._round}", time.time_ns())
        for name in self._tables:
            followed = self._from_catalogue(name)
            source = self._source(followed, b"incremental", 0) % 0
            followed.encoder.truncated(self._writer, self._transaction, source)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def _follow(self, schema: str, name: str, columns: Sequence[tuple[str, Kind]], key: Sequence[str]) -> _Followed:
        made = tuple(Column(each, renderer(kind, self._options), kind.name) for each, kind in columns)
        names = [each for each, _ in columns]
        table = Table(schema, name, made, tuple(names.index(each) for each in key if each in names))
        topic = topic_name(f"{self._options.topic_prefix}.{schema}.{name}")
        version = f"headrace-{headrace.__version__}"
        shown = [json_text(each).replace(b"%", b"%%%%") for each in (version, self._options.topic_prefix, schema, name)]
        if self._writer is not None:
            announce(self._writer, self._options.topic_prefix, self._shapes, table, database=schema)
        outbox = OutboxRouter(table) if table.full_name == self._options.outbox else None
        return _Followed(TableEncoder(table, topic, self._options), _SOURCE % tuple(shown), outbox)

    def _from_catalogue(self, name: str) -> _Followed:
        schema, _, table = name.partition(".")
        rows = self._ask(
            "select column_name, data_type, column_type, numeric_scale, datetime_precision "
            "from information_schema.columns where table_schema = %s and table_name = %s order by ordinal_position",
            schema,
            table,
        )
        columns = [(row[0], kind_in_catalogue(*row[1:])) for row in rows]
        return self._follow(schema, table, columns, self._tables[name])

    def _from_binlog(self, event: Any) -> _Followed:
        """A table is described before every statement that changes it; only a new shape is compiled anew."""
        followed = self._followed.get(event.shape)
        if followed is None:
            schema, table, *columns = event.shape
            # The binlog tells which columns the key had at that time, the catalogue in which order they stand in it.
            marked = [name for name, _, is_key in columns if is_key]
            known = self._tables.get(f"{schema}.{table}", [])
            key = known if set(known) == set(marked) else marked
            types = {name: each.data_type for name, each in self._columns(f"{schema}.{table}").items()}
            kinds = [(name, as_catalogued(kind, types.get(name, ""))) for name, kind, _ in columns]
            followed = self._follow(schema, table, kinds, key)
            self._followed[event.shape] = followed
        return followed

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
            self._snapshot_step()
        chunk_to_read = self._chunk is None and bool(self._pending)
        waiting = 0.0 if writer.events_pending or chunk_to_read else wait_s
        while (item := reader.take(waiting)) is not None:
            self._event(*item)
            if self._begun is None and self._pending:
                break
            if writer.bytes_pending >= enough and (self._begun is None or writer.bytes_pending >= most):
                break
        return item is not None or chunk_to_read

    def _event(self, event: Any, file: str, place: int) -> None:
        self._file = file
        if isinstance(event, MariadbGtidEvent):
            self._begin(event)
        elif isinstance(event, XidEvent | XAPrepareEvent):
            self._end()
        elif isinstance(event, QueryEvent):
            self._query(event, place)
        elif not isinstance(event, HeartbeatLogEvent):
            self._rows(event, place)

    def _query(self, event: QueryEvent, place: int) -> None:
        """Statements in the binlog are schema changes, truncations and ends of transactions without InnoDB."""
        if self._begun is None:
            return
        query = event.query if isinstance(event.query, str) else event.query.decode(errors="replace")
        schema = event.schema if isinstance(event.schema, str) else event.schema.decode()
        truncated = TRUNCATE.match(query)
        if truncated:
            self._truncate(truncated[1].replace("`", ""), schema, place, event)
        if self._begun.flags & STANDALONE or query.upper() in ("COMMIT", "ROLLBACK"):
            self._end()

    def _truncate(self, name: str, schema: str, place: int, event: QueryEvent) -> None:
        full = name if "." in name else f"{schema}.{name}"
        if full in self._tables and self._writer is not None:
            followed = self._from_catalogue(full)
            source = self._source(followed, b"false", place, event) % 0
            followed.encoder.truncated(self._writer, self._transaction, source)

    def _begin(self, event: MariadbGtidEvent) -> None:
        self._begun = event
        gtid, index = self._partial
        written = index if gtid == event.gtid else 0
        self._transaction = Transaction(event.gtid, time.time_ns(), written)

    def _end(self) -> None:
        begun, self._begun = self._begun, None
        assert begun is not None, "an end follows a begin"
        self._gtids[begun.domain_id] = begun.server_id, begun.gtid_seq_no

    def _source(self, followed: _Followed, snapshot: bytes, place: int, event: Any = None) -> bytes:
        at_us = event.timestamp * 1_000_000 if event is not None else time.time_ns() // 1000
        server = event.packet.server_id if event is not None else 0
        gtid = json_text(self._transaction.id).replace(b"%", b"%%")  # one number is still to be filled in
        times = (at_us // 1000, snapshot, at_us, at_us * 1000)
        return followed.block % (*times, server, gtid, self._file.encode(), place)

    def _rows(self, event: Any, place: int) -> None:
        assert self._writer is not None
        name = f"{event.schema}.{event.table}"
        if name not in self._tables or (not self._tables[name] and name in self._pending):
            return  # a table without a key is told by its snapshot first, which shows this change too
        if self._begun is not None and self._begun.flags & PREPARED_XA:
            raise UsageError(
                f"the XA transaction {self._begun.gtid} changes {name}: XA PREPARE leaves its fate open",
                "change captured tables without XA PREPARE, or leave the table out with --tables; "
                "run once with --resnapshot to go on behind it",
            )
        followed = self._from_binlog(event)
        template = self._source(followed, b"false", place, event)
        encoder, out, transaction = followed.encoder, self._writer, self._transaction
        if isinstance(event, UpdateRowsEvent):
            for number, (before, after) in enumerate(zip(event.images[::2], event.images[1::2], strict=True)):
                if followed.outbox is None:
                    moved = encoder.key(before) != encoder.key(after)
                    tell = encoder.moved if moved else encoder.updated
                    tell(out, transaction, template % number, before, after)
            return
        for number, row in enumerate(event.images):
            if isinstance(event, WriteRowsEvent):
                if followed.outbox is not None:
                    followed.outbox.created(out, transaction, row)
                else:
                    encoder.created(out, transaction, template % number, row)
            elif followed.outbox is None:
                encoder.deleted(out, transaction, template % number, row)

    # ---- snapshots --------------------------------------------------------------------------------------------------

    def _snapshot_step(self) -> None:
        """Emit the chunk whose place the stream has reached, or read the next one."""
        chunk = self._chunk
        if chunk is not None:
            if all(self._number(domain) >= number for domain, number in chunk.place.items()):
                self._guarded(lambda: self._emit(chunk))
                self._chunk = None
        elif self._pending:
            self._chunk = self._read_chunk(self._pending[0])

    def _number(self, domain: int) -> int:
        return self._gtids.get(domain, (0, 0))[1]

    def _read_chunk(self, name: str) -> Chunk | None:
        """The next chunk, unless the table is gone or the stream is further than what can be read of it."""
        try:
            read = self._read_keyed if self._tables[name] else self._open_whole
            chunk: Chunk | None = self._guarded(lambda: read(name))
            return chunk
        except pymysql.ProgrammingError as error:
            if error.args[0] not in GONE:
                raise
        _log.warning("%s: table %s is gone before it was read whole", self._options.database.shown, name)
        self._pending.remove(name)
        del self._progress[name]
        return None

    def _read_keyed(self, name: str) -> Chunk | None:
        columns = self._columns(name)
        key = [columns[each] for each in self._tables[name] if each in columns]
        limit = self._limits.get(name, self._options.chunk_rows)
        query = self._select(name, [*map(quoted, columns), *(each.shown for each in key)])
        followed = self._from_catalogue(name)
        after = [column.bound(text) for column, text in zip(key, self._progress[name].after or (), strict=False)]
        if after:
            compared = ", ".join(each.compared for each in key)
            query += f" where ({compared}) > ({', '.join(each.marker for each in key)})"
        query += f" order by {', '.join(quoted(each.name) for each in key)} limit {limit}"
        stands = _begin_reading(self._connection)
        try:
            rows, is_cut = self._ask_within(CHUNK_BYTES_MAX, query, *after)
        finally:
            self._ask("commit")
        place = self._place_of(stands)
        if place is None or len(columns) != len(followed.encoder.table.columns):
            return None
        shown = rows[-1][len(columns) :] if rows else None
        last = [column.text(value) for column, value in zip(key, shown, strict=True)] if shown else None
        # What lies behind a cut was sent for nothing, so the next chunk asks for as much as this one could take.
        self._limits[name] = len(rows) if is_cut else min(self._options.chunk_rows, limit + limit // 4 + 1)
        is_last = not (is_cut or len(rows) == limit)
        return Chunk(name, followed, place, [row[: len(columns)] for row in rows], last, is_last)

    def _open_whole(self, name: str) -> Chunk | None:
        """A read transaction of its own, which stays open until the stream has come to where it stands."""
        columns = self._columns(name)
        query = self._select(name, list(map(quoted, columns)))
        followed = self._from_catalogue(name)
        reader = pymysql.connect(**self._settings, autocommit=True)
        try:
            stands = _begin_reading(reader)
            with reader.cursor() as cursor:
                cursor.execute(f"{query} limit 0", ())  # from here on the table keeps its shape
            place = self._place_of(stands)
        except BaseException:
            reader.close()
            raise
        if place is None or len(columns) != len(followed.encoder.table.columns):
            reader.close()
            return None
        return Chunk(name, followed, place, _fetched(reader, query, ()), None, True, reader)

    def _select(self, name: str, wanted: Sequence[str]) -> str:
        schema, _, table = name.partition(".")
        if not wanted:
            raise pymysql.ProgrammingError(GONE[0], f"there is no table {name}")
        return f"select {', '.join(wanted)} from {quoted(schema)}.{quoted(table)}"

    def _place_of(self, stands: tuple[str, int]) -> dict[int, int] | None:
        """The last transaction of each domain that a reading shows; None: it shows less than the stream has told.

        A transaction is in the binlog a moment before others see it.
        """
        gtids = parse_gtids(self._ask("select binlog_gtid_pos(%s, %s)", *stands)[0][0] or "")
        numbers = {domain: number for domain, (_, number) in gtids.items()}
        is_behind = any(number > numbers.get(domain, 0) for domain, (_, number) in self._gtids.items())
        return None if is_behind else numbers

    def _columns(self, name: str) -> dict[str, KeyColumn]:
        """Every column by its name, in the order of the table."""
        schema, _, table = name.partition(".")
        rows = self._ask(
            "select column_name, data_type, numeric_scale from information_schema.columns "
            "where table_schema = %s and table_name = %s order by ordinal_position",
            schema,
            table,
        )
        return {row[0]: KeyColumn(*row) for row in rows}

    def _emit(self, chunk: Chunk) -> None:
        assert self._writer is not None
        followed = chunk.followed
        name = f"{gtid_text(self._gtids)}/{self._round}/{chunk.table}/{self._progress[chunk.table].rows}"
        self._transaction = Transaction(name, time.time_ns())
        source = self._source(followed, b"incremental", 0)
        for number, row in enumerate(chunk.rows):
            followed.encoder.read(self._writer, self._transaction, source % number, row)
        if chunk.whole is not None:
            chunk.whole.close()
        progress = self._progress[chunk.table]
        progress.rows += self._transaction.index
        progress.after = None if chunk.is_last else chunk.after
        progress.done = chunk.is_last
        if chunk.is_last:
            self._pending.remove(chunk.table)

    # ---- positions --------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        place: dict[str, Any] = {"format": 1, "gtid": gtid_text(self._gtids), "round": self._round}
        if self._begun is not None:
            place |= {"transaction": self._begun.gtid, "index": self._transaction.index}
        snapshots = {name: each.as_json() for name, each in self._progress.items()}
        return {"position": place, "snapshots": snapshots, "shapes": self._shapes}

    def committed(self, state: Mapping[str, Any]) -> None:
        """The server keeps its binlog by its own settings: there is nothing to tell it."""

    def caught_up(self) -> bool:
        reached = (self._gtids.get(domain, (0, 0))[1] >= number for domain, (_, number) in self._target.items())
        return not self._pending and self._begun is None and all(reached)

    def snapshots(self) -> dict[str, Progress]:
        return dict(self._progress)

    def status(self) -> SourceStatus:
        return SourceStatus(position=self._ask("select @@gtid_binlog_pos")[0][0])

    def remove(self) -> list[str]:
        return []

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._chunk is not None and self._chunk.whole is not None:
            self._chunk.whole.close()
        if self._connection.open:
            self._connection.close()


def _begin_reading(connection: pymysql.Connection[Any]) -> tuple[str, int]:
    """A consistent read, and the place in the binlog at which it stands."""
    with connection.cursor() as cursor:
        cursor.execute("set session transaction isolation level repeatable read")
        cursor.execute("start transaction with consistent snapshot")
        cursor.execute("show status like 'binlog_snapshot_%'")
        stands = dict(cursor.fetchall())
    return stands["Binlog_snapshot_file"], int(stands["Binlog_snapshot_position"])


def _fetched(connection: pymysql.Connection[Any], query: str, arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Rows one by one as they come. A sign for percent is doubled in the query, with arguments or without."""
    with connection.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(query, arguments)
        yield from cursor


def connection_settings(options: CaptureOptions) -> dict[str, Any]:
    parts = urlsplit(options.database.resolved())
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise UsageError(f"{options.database.shown} names no database", "use mysql://USER@HOST:PORT/DATABASE")
    return {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
        "charset": "utf8mb4",
        "connect_timeout": 10,
        "init_command": "set time_zone = '+00:00'",
    }
