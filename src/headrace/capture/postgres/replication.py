"""A replication connection: the server's log from a position on, and our status reports to the server.

Knows nothing of what the messages mean (``pgoutput.py``) or become (``events.py``).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from headrace.capture.options import CaptureOptions
from headrace.capture.postgres import pgoutput
from headrace.capture.postgres.copying import WITHOUT_CHARACTERS, has_data
from headrace.capture.postgres.setup import connect, lsn_number, lsn_text, untranslatable
from headrace.capture.source import DatabaseGone, PositionLost

__all__ = ["Keepalive", "LogData", "ReplicationStream", "ServerIdentity"]

T = TypeVar("T")

STATUS_INTERVAL_S = 10.0
STATUS_ROWS = 256
"""In work of any length the clock is asked after so many rows."""
_WAL, _KEEPALIVE = b"wk"
_WAL_HEADER = struct.Struct(">xQQq")
_KEEPALIVE_BODY = struct.Struct(">xQqB")
UNTRANSLATABLE = b"22P05"
"""The server's code for a character that another character set does not have."""
_STATUS = struct.Struct(">cQQQqB")


class ServerIdentity(NamedTuple):
    """Which history of which server: a restored or promoted one has another timeline."""

    system: str
    timeline: int


class LogData(NamedTuple):
    lsn: int
    payload: bytes


class Keepalive(NamedTuple):
    end_lsn: int
    wants_reply: bool


class ReplicationStream:
    """One session of the server's walsender; see the module."""

    def __init__(self, options: CaptureOptions) -> None:
        self._name = options.name
        self._connection = connect(options, replication=True)
        if self._connection.info.parameter_status("server_encoding") == WITHOUT_CHARACTERS:
            self._connection.pgconn.exec_(f"SET client_encoding = {WITHOUT_CHARACTERS}".encode())
        self._status_s = time.monotonic()
        self.confirmed = 0
        """The position that is reported to the server: it may forget what comes before."""

    def close(self) -> None:
        self._connection.close()

    def _asked(self, command: str) -> list[Any]:
        result = self._connection.pgconn.exec_(command.encode())
        if result.status != ExecStatus.TUPLES_OK:
            raise DatabaseGone(f"{command}: {result.error_message.decode(errors='replace').strip()}")
        return [result.get_value(0, place) for place in range(result.nfields)]

    def identify(self) -> ServerIdentity:
        system, timeline, *_ = self._asked("IDENTIFY_SYSTEM")
        return ServerIdentity(system.decode(), int(timeline))

    def left_timeline_at(self, now: int, timeline: int) -> int | None:
        """Where the server's history left ``timeline``; None: it never had it."""
        _, content = self._asked(f"TIMELINE_HISTORY {now}")
        for line in content.decode().splitlines():
            words = line.split()
            if len(words) >= 2 and words[0] == str(timeline):
                return lsn_number(words[1])
        return None

    def start(self, slot: str, lsn: int, publications: tuple[str, ...], *, streaming: bool) -> None:
        names = ",".join(f'"{each}"' for each in publications)
        version = "'2', streaming 'on'" if streaming else "'1'"
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)} '
            f"(proto_version {version}, publication_names '{names}', messages 'true')"
        )
        result = self._connection.pgconn.exec_(command.encode())
        if result.status != ExecStatus.COPY_BOTH:
            raise DatabaseGone(f"the server does not stream: {result.error_message.decode(errors='replace').strip()}")
        self._status_s = time.monotonic()

    def next(self, wait_s: float) -> LogData | Keepalive | None:
        """The next message, waiting for it if need be; None: none has come."""
        connection = self._connection.pgconn
        try:
            size, data = connection.get_copy_data(1)
            while size == 0:
                if not has_data(connection.socket, wait_s):
                    return None
                connection.consume_input()
                size, data = connection.get_copy_data(1)
        except psycopg.OperationalError as error:
            raise DatabaseGone(f"the replication connection ended: {' '.join(str(error).split())}") from error
        if size < 0:
            raise self._ended()
        if data[0] == _WAL:
            return LogData(_WAL_HEADER.unpack_from(data)[0], bytes(data[_WAL_HEADER.size :]))
        end, _, reply = _KEEPALIVE_BODY.unpack_from(data)
        return Keepalive(end, bool(reply))

    def _ended(self) -> Exception:
        result = self._connection.pgconn.get_result()
        why = "" if result is None else result.error_message.decode(errors="replace").strip()
        if "publication" in why and "does not exist" in why:
            return PositionLost(
                f"the server's log passes a time without capture's publication, which somebody has dropped ({why}): "
                f"changes are missing; take a new snapshot: headrace capture run {self._name} --resnapshot"
            )
        if result is not None and result.error_field(DiagnosticField.SQLSTATE) == UNTRANSLATABLE:
            return untranslatable(why, self._name)
        return DatabaseGone(f"the server ended the stream: {why or 'it gave no reason'}")

    def in_touch(self, items: Iterator[T]) -> Iterator[T]:
        """The items, however long they take: a server that hears nothing from us meanwhile ends the stream."""
        for number, item in enumerate(items, 1):
            if number % STATUS_ROWS == 0:
                self.maybe_send_status()
            yield item

    def maybe_send_status(self) -> None:
        if time.monotonic() - self._status_s >= STATUS_INTERVAL_S:
            self.send_status()

    def send_status(self) -> None:
        since_2000_us = time.time_ns() // 1000 - pgoutput.POSTGRES_EPOCH_US
        lsn = self.confirmed
        try:
            self._connection.pgconn.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, since_2000_us, 0))
            self._connection.pgconn.flush()
        except psycopg.OperationalError as error:
            raise DatabaseGone(f"the replication connection ended: {' '.join(str(error).split())}") from error
        self._status_s = time.monotonic()
