"""AMQP by hand: a client that sends what no client library would, and notes what the broker closes with."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any

import pamqp.base
import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header
import pamqp.heartbeat

Connection = pamqp.commands.Connection
Channel = pamqp.commands.Channel
Basic = pamqp.commands.Basic

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
CAPABILITIES = {"authentication_failure_close": True, "consumer_cancel_notify": True, "connection.blocked": True}
FRAME_MAX = 131_072
WAIT_S = 15.0


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def table(*entries: bytes) -> bytes:
    """A field table of entries that are encoded already."""
    body = b"".join(entries)
    return struct.pack(">I", len(body)) + body


def nested(depth: int) -> bytes:
    """A table in a table in a table: a few bytes for each."""
    inner = table()
    for _ in range(depth):
        inner = table(b"\x01a" + b"F" + inner)
    return inner


class RawPeer:
    """One connection. Methods go out through pamqp, anything else as bytes."""

    def __init__(self, port: int, *, begin: bool = True) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._received = b""
        if begin:
            self.send(PROTOCOL_HEADER)

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):  # what it was closed with is read later
            self._socket.sendall(data)

    def method(self, channel: int, method: pamqp.base.Frame) -> None:
        self.send(pamqp.frame.marshal(method, channel))

    def receive(self) -> tuple[int, Any] | None:
        """The channel and the next frame; None at the end of the connection."""
        while True:
            count, channel, value = pamqp.frame.unmarshal(self._received) if len(self._received) >= 8 else (0, 0, None)
            if value is not None:
                self._received = self._received[count:]
                return channel, value
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received += data

    def expect(self, kind: type) -> Any:
        """The next frame of a type; others are passed over."""
        while (found := self.receive()) is not None:
            if isinstance(found[1], kind):
                return found[1]
        raise AssertionError(f"the connection ended before {kind.__name__}")

    def closed_with(self) -> Any:
        """How the broker ends the channel or the connection: kind, code, text, class, method; or only that it does."""
        while (found := self.receive()) is not None:
            value = found[1]
            if isinstance(value, Connection.Close | Channel.Close):
                kind = "connection" if isinstance(value, Connection.Close) else "channel"
                return [kind, value.reply_code, value.reply_text, value.class_id, value.method_id]
        return "cut off"

    def login(self, user: str = "guest", password: str = "guest", mechanism: str = "PLAIN") -> None:
        self.expect(Connection.Start)
        response = f"\x00{user}\x00{password}"
        self.method(0, Connection.StartOk({"capabilities": CAPABILITIES}, mechanism, response, "en_US"))

    def tune(self, channel_max: int = 2047, frame_max: int = FRAME_MAX, heartbeat: int = 0) -> None:
        self.expect(Connection.Tune)
        self.method(0, Connection.TuneOk(channel_max, frame_max, heartbeat))

    def open(self, virtual_host: str = "/") -> None:
        self.method(0, Connection.Open(virtual_host))

    def opened(self, *channels: int) -> RawPeer:
        """The whole handshake, and these channels."""
        self.login()
        self.tune()
        self.open()
        self.expect(Connection.OpenOk)
        for channel in channels:
            self.method(channel, Channel.Open())
            self.expect(Channel.OpenOk)
        return self

    def close(self) -> None:
        self._socket.close()
