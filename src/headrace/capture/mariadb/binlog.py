"""The binlog, read ahead by a thread: decoding rows is most of the work, and waiting must not hold up commits.

The thread puts what it reads into a bounded queue; a failure is put there too, and raised where events are taken. Rows
are decoded for captured tables only: what stands in others is never looked at.

A ``Mark`` is a place in the binlog and what stood there. A server whose binlog was reset, or that was restored from a
backup, may have the same numbers of transactions for others: it has another event at that place, or none.
"""

from __future__ import annotations

import queue
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pymysql

from headrace.capture.mariadb.charsets import Charsets
from headrace.capture.mariadb.events import (
    BinlogParser,
    Event,
    FormatDescription,
    MalformedBinlog,
    Rotate,
    Rows,
    TableMap,
)
from headrace.capture.mariadb.rows import BinlogColumn, RowDecoder, columns_of
from headrace.capture.source import DatabaseGone, PositionLost

__all__ = ["BinlogReader", "Change", "Mark", "Shape", "check_mark", "mark_at"]

COM_BINLOG_DUMP = 0x12
NON_BLOCKING = 1
FIRST_POSITION = 4
QUEUE_BYTES_MAX = 8 * 1024 * 1024
"""Of the binlog; decoded values take several times as much."""
EVENT_BYTES = 4 * 1024
"""Added to what an event takes in the binlog: small events are mostly Python's objects around them."""
HEARTBEAT_S = 1
SILENCE_S = 60
"""A server that sends not even heartbeats for so long is gone."""
LOST_BINLOG = 1236


class Mark(NamedTuple):
    """Where an event begins, and its fingerprint."""

    file: str
    position: int
    fingerprint: int


class Shape(NamedTuple):
    """A table as it was when rows of it were written."""

    schema: str
    table: str
    columns: tuple[BinlogColumn, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Decoded rows of a captured table; of an update, each row before and after by turns."""

    event: Rows
    shape: Shape
    rows: list[list[Any]]


class Item(NamedTuple):
    what: Event | Change
    event: Event
    file: str

    @property
    def mark(self) -> Mark:
        header = self.event.header
        return Mark(self.file, header.end - header.size, self.event.fingerprint)


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
    return EVENT_BYTES + (item.event.header.size if isinstance(item, Item) else 0)


class BinlogDump:
    """A connection that a server sends its binlog to, from a position of GTIDs or from a place in a file."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._connection = pymysql.connect(**settings, autocommit=True, read_timeout=SILENCE_S)
        with self._connection.cursor() as cursor:
            cursor.execute("select @@global.binlog_checksum")
            ((checksum,),) = cursor.fetchall()
            cursor.execute("set @master_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("set @mariadb_slave_capability = 4")
            cursor.execute("set @master_heartbeat_period = %s", (HEARTBEAT_S * 1_000_000_000,))
        self._parser = BinlogParser(has_checksums=checksum.upper() != "NONE")
        self._closed = False

    def begin_at_gtids(self, gtids: str, server_id: int) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("set @slave_connect_state = %s", (gtids,))
            cursor.execute("set @slave_gtid_strict_mode = 1")
            cursor.execute("set @slave_gtid_ignore_duplicates = 0")
        self._begin("", FIRST_POSITION, 0, server_id)

    def begin_at_place(self, file: str, position: int, server_id: int) -> None:
        self._begin(file, position, NON_BLOCKING, server_id)

    def _begin(self, file: str, position: int, flags: int, server_id: int) -> None:
        arguments = struct.pack("<IHI", position, flags, server_id) + file.encode()
        self._connection._execute_command(COM_BINLOG_DUMP, arguments)

    def next(self) -> Event | None:
        """None: the server has ended the stream."""
        packet = self._connection._read_packet()
        if packet.is_eof_packet():
            return None
        return self._parser.parse(packet.get_all_data()[1:])

    def wake(self) -> None:
        """A thread that waits in ``next`` returns with an error."""
        sock = getattr(self._connection, "_sock", None)
        if sock is not None:
            try:
                sock.shutdown(2)
            except OSError:
                pass

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._connection._force_close()  # no farewell into a dump


def check_mark(settings: Mapping[str, Any], mark: Mark, server_id: int, shown: str) -> None:
    """Whether the binlog is still the one that was read."""
    if mark_at(settings, mark.file, mark.position, server_id) != mark:
        raise PositionLost(
            f"{shown}: the binlog is not the one that capture has read: at {mark.position} of {mark.file} stands "
            "something else, or nothing any more; it was reset, purged, restored from a backup, or this is another "
            "server; run once with --resnapshot to begin again"
        )


def mark_at(settings: Mapping[str, Any], file: str, position: int, server_id: int) -> Mark | None:
    """The event that begins at a place; None: there is no such place, or no event in it."""
    dump = BinlogDump(settings)
    try:
        dump.begin_at_place(file, position, server_id)
        while (event := dump.next()) is not None:
            header = event.header
            if not header.is_artificial and header.end - header.size == position:
                return Mark(file, position, event.fingerprint)
            if header.end > position:
                return None
        return None
    except MalformedBinlog:
        return None
    except pymysql.Error as error:
        if error.args and error.args[0] == LOST_BINLOG:
            return None
        raise
    finally:
        dump.close()


class BinlogReader:
    """Events after a position of GTIDs, in order."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        server_id: int,
        gtids: str,
        charsets: Charsets,
        is_captured: Callable[[str, str], bool],
    ) -> None:
        self._charsets = charsets
        self._is_captured = is_captured
        self._events = ByteQueue(QUEUE_BYTES_MAX)
        self._closing = threading.Event()
        self._tables: dict[int, tuple[Shape, RowDecoder] | None] = {}
        self._known: dict[tuple[str, str, bytes], tuple[Shape, RowDecoder]] = {}
        self._file = ""
        self._dump = BinlogDump(settings)
        self._dump.begin_at_gtids(gtids, server_id)
        self._thread = threading.Thread(target=self._work, name="headrace-binlog", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                event = self._dump.next()
                if event is None:
                    raise pymysql.OperationalError(2013, "the server ended the stream")
                item = self._item(event)
                if item is not None:
                    self._put(item)
        except BaseException as error:  # raised where events are taken, whatever it is
            self._put(error)

    def _item(self, event: Event) -> Item | None:
        if isinstance(event, Rotate):
            self._file = event.file
        elif isinstance(event, FormatDescription):
            self._tables.clear()  # the numbers of tables are valid until the server starts again, with another file
        elif isinstance(event, TableMap):
            self._tables[event.table_id] = self._described(event)
            return None
        elif isinstance(event, Rows):
            return self._rows(event)
        return Item(event, event, self._file)

    def _described(self, event: TableMap) -> tuple[Shape, RowDecoder] | None:
        """A table is described before every statement that changes it; only a new description is read."""
        if not self._is_captured(event.schema, event.name):
            return None
        place = event.schema, event.name, event.details
        if place not in self._known:
            shape = Shape(event.schema, event.name, columns_of(event.details))
            self._known[place] = shape, RowDecoder(shape.columns, self._charsets)
        return self._known[place]

    def _rows(self, event: Rows) -> Item | None:
        if event.table_id not in self._tables:
            raise MalformedBinlog(f"rows of table number {event.table_id}, which the binlog has not described")
        described = self._tables[event.table_id]
        if described is None:
            return None
        shape, decoder = described
        return Item(Change(event, shape, decoder.rows(event)), event, self._file)

    def _put(self, item: Item | BaseException) -> None:
        while not self._closing.is_set():
            try:
                self._events.put(item, timeout=0.2)
                return
            except queue.Full:
                continue

    def take(self, wait_s: float) -> Item | None:
        """The next event; None when there is none within ``wait_s``."""
        try:
            item = self._events.get(timeout=wait_s) if wait_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, Item):
            return item
        if isinstance(item, pymysql.Error) and item.args and item.args[0] == LOST_BINLOG:
            raise PositionLost(
                f"the server no longer has the binlog after the position in the log: {item.args[1]}; "
                "run once with --resnapshot to begin again"
            )
        if isinstance(item, pymysql.Error | OSError):
            raise DatabaseGone(f"the binlog connection ended: {item}") from item
        raise item

    def close(self) -> None:
        self._closing.set()
        self._dump.wake()
        self._thread.join()
        self._dump.close()
