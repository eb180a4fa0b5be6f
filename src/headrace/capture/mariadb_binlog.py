"""The binlog, read ahead by a thread: decoding rows is most of the work, and waiting must not hold up commits.

The thread puts what it reads into a bounded queue; a failure is put there too and raised to whoever takes it. The
library would reconnect by itself, from where it first began, in the middle of a transaction; so it is given a
connection only once.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.constants.BINLOG import APPEND_BLOCK_EVENT, DELETE_FILE_EVENT
from pymysqlreplication.event import (
    HeartbeatLogEvent,
    MariadbGtidEvent,
    NotImplementedEvent,
    QueryEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from headrace.capture.mariadb_rows import MalformedBinlog, RowDecoder
from headrace.capture.mariadb_values import kind_in_binlog
from headrace.capture.source import DatabaseGone, PositionLost
from headrace.errors import UsageError

__all__ = ["BinlogReader"]

EVENTS = (
    MariadbGtidEvent,
    QueryEvent,
    XidEvent,
    XAPrepareEvent,
    WriteRowsEvent,
    UpdateRowsEvent,
    DeleteRowsEvent,
    HeartbeatLogEvent,
    NotImplementedEvent,
)
COMPRESSED_EVENTS = range(165, 172)
"""MariaDB's types of statements and rows that were compressed: of a query, then of rows in two versions."""
EMPTY_EVENTS = (APPEND_BLOCK_EVENT, DELETE_FILE_EVENT)
"""Pieces of a file that a statement loads: the library does not read them, and there are no rows in them."""
IGNORABLE = 0x80
"""A flag of any event: whoever does not know its type may leave it out."""
QUEUE_BYTES_MAX = 8 * 1024 * 1024
"""Of the binlog; decoded values take several times as much."""
EVENT_BYTES = 4 * 1024
"""Added to what an event takes in the binlog: small events are mostly Python's objects around them."""
HEARTBEAT_S = 1.0
LOST_BINLOG = 1236

logging.getLogger("pymysqlreplication").setLevel(logging.ERROR)  # it warns of what is told here as an error


def refuse_unknown(kind: int, flags: int) -> None:
    """An event that cannot be read may hold changes: to pass over it would lose them without a word."""
    if kind in COMPRESSED_EVENTS:
        raise UsageError(
            "the binlog holds compressed events, which capture does not read",
            "SET GLOBAL log_bin_compress = 'OFF', then run once with --resnapshot",
        )
    if kind not in EMPTY_EVENTS and not flags & IGNORABLE:
        raise MalformedBinlog(f"the binlog holds an event of type {kind}, which capture does not know")


class ByteQueue(queue.Queue[Any]):
    """A queue that is full by the bytes of what it holds; one item always has room, however large it is."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._bytes_held = 0

    def _qsize(self) -> int:
        return self._bytes_held

    def _put(self, item: Any) -> None:
        super()._put(item)
        self._bytes_held += _size(item)

    def _get(self) -> Any:
        item = super()._get()
        self._bytes_held -= _size(item)
        return item


def _size(item: Any) -> int:
    return EVENT_BYTES + (item[0].packet.event_size if isinstance(item, tuple) else 0)


class BinlogReader:
    """Events behind a GTID position, each with the file and position where it ends."""

    def __init__(self, settings: Mapping[str, Any], server_id: int, gtid: str) -> None:
        self._settings = dict(settings)
        self._connections: list[pymysql.Connection[Any]] = []
        self._events = ByteQueue(QUEUE_BYTES_MAX)
        self._closing = threading.Event()
        self._decoders: dict[Any, RowDecoder] = {}
        self._stream = BinLogStreamReader(
            connection_settings=self._settings,
            server_id=server_id,
            only_events=EVENTS,
            blocking=True,
            auto_position=gtid,
            is_mariadb=True,
            slave_heartbeat=HEARTBEAT_S,
            filter_non_implemented_events=False,
            pymysql_wrapper=self._connect,
            enable_logging=False,
        )
        self._thread = threading.Thread(target=self._work, name="headrace-binlog", daemon=True)
        self._thread.start()

    def _connect(self, **settings: Any) -> pymysql.Connection[Any]:
        """One connection for the stream and one for the catalogue, and no more."""
        if len(self._connections) >= 2:
            raise pymysql.OperationalError(2013, "the connection was lost")
        connection = pymysql.connect(**settings)
        self._connections.append(connection)
        return connection

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                event = self._stream.fetchone()
                if event is None:
                    raise pymysql.OperationalError(2013, "the server ended the stream")
                if isinstance(event, WriteRowsEvent | UpdateRowsEvent | DeleteRowsEvent):
                    self._decode(event)
                elif isinstance(event, NotImplementedEvent):
                    refuse_unknown(event.packet.event_type, event.packet.flags)
                    continue
                self._put((event, self._stream.log_file, self._stream.log_pos))
        except BaseException as error:  # told to whoever takes events, whatever it is
            self._put(error)

    def _decode(self, event: Any) -> None:
        """Here and not by whoever takes the event: the library's map of tables goes on changing as it reads."""
        columns = event.table_map[event.table_id].columns
        if any(each.name is None for each in columns):
            raise MalformedBinlog("the binlog has no names of columns; SET GLOBAL binlog_row_metadata = 'FULL'")
        present = int.from_bytes(event.columns_present_bitmap, "little")
        if present & (1 << len(columns)) - 1 != (1 << len(columns)) - 1:
            raise MalformedBinlog("a row of the binlog lacks columns; SET GLOBAL binlog_row_image = 'FULL'")
        shape = (event.schema, event.table, *((each.name, kind_in_binlog(each), each.is_primary) for each in columns))
        exact = (shape, *((each.type, each.unsigned, each.character_set_name) for each in columns))
        decoder = self._decoders.get(exact)
        if decoder is None:
            decoder = self._decoders[exact] = RowDecoder(columns)
        event.shape = shape
        event.images = decoder.rows(event.packet.read(event.event_size - event.packet.read_bytes))

    def _put(self, item: tuple[Any, str, int] | BaseException) -> None:
        while not self._closing.is_set():
            try:
                self._events.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def take(self, wait_s: float) -> tuple[Any, str, int] | None:
        """The next event; None when there is none within ``wait_s``."""
        try:
            item = self._events.get(timeout=wait_s) if wait_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, tuple):
            return item
        if isinstance(item, pymysql.Error) and item.args and item.args[0] == LOST_BINLOG:
            raise PositionLost(f"the server no longer has the binlog behind the position in the log: {item.args[1]}")
        if isinstance(item, pymysql.Error | OSError):
            raise DatabaseGone(f"the binlog connection ended: {item}") from item
        raise item

    def close(self) -> None:
        self._closing.set()
        for connection in self._connections:
            sock = getattr(connection, "_sock", None)
            if sock is not None:
                try:
                    sock.shutdown(2)  # wakes the thread, which may be waiting in it
                except OSError:
                    pass
        self._thread.join()
        self._stream.close()
        for connection in self._connections:
            if connection.open:
                connection.close()
