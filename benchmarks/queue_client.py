"""An AMQP client of prepared bytes, so that the client costs next to nothing.

Messages are all alike: what comes is counted by its length, and acknowledgements are made for whole ranges of tags.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from typing import Any

from headrace.wire.amqp.connection import AckReceived, AmqpConnection, MethodReceived
from headrace.wire.amqp.methods import encode_method
from headrace.wire.amqp.properties import encode_properties

__all__ = ["PreparedClient", "publication"]

CHANNEL = 1
PERSISTENT = {"delivery_mode": 2}
_FRAME = struct.Struct(">BHI")
_ACK = struct.Struct(">BHIIQBB")
READ_BYTES = 1 << 20


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, CHANNEL, len(payload)) + payload + b"\xce"


def publication(queue: str, size: int, **properties: Any) -> bytes:
    """The three frames of one message to a queue."""
    method = encode_method("basic.publish", {"routing_key": queue})
    header = struct.pack(">HHQ", 60, 0, size) + encode_properties({**PERSISTENT, **properties})
    return _frame(1, method) + _frame(2, header) + _frame(3, b"x" * size)


def acks(tags: Iterable[int]) -> bytes:
    """One ``basic.ack`` for each tag."""
    return b"".join([_ACK.pack(1, CHANNEL, 13, 60 << 16 | 80, tag, 0, 0xCE) for tag in tags])


class PreparedClient:
    """One connection with one channel; every call waits for its answer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(120)
        self._wire = AmqpConnection()
        self._wire.receive_data(b"AMQP\x00\x00\x09\x01")
        self._events: list[Any] = []
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._await("connection.start")
        self._send(0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US")
        self._await("connection.tune")
        self._send(0, "connection.tune-ok", channel_max=10, frame_max=131072, heartbeat=0)
        self._send(0, "connection.open", virtual_host="/")
        self._await("connection.open-ok")
        self.call("channel.open")

    def close(self) -> None:
        self.socket.close()

    def _send(self, channel: int, name: str, **arguments: Any) -> None:
        self._wire.send(channel, name, arguments)
        self.socket.sendall(self._wire.data_to_send())

    def _next(self) -> Any:
        while not self._events:
            data = self.socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            self._events += self._wire.receive_data(data)
        return self._events.pop(0)

    def _await(self, name: str) -> dict[str, Any]:
        while True:
            event = self._next()
            if isinstance(event, MethodReceived) and event.name == name:
                return event.arguments
            if isinstance(event, MethodReceived) and event.name.endswith(".close"):
                raise ConnectionError(event.arguments["reply_text"])

    def send_method(self, name: str, **arguments: Any) -> None:
        """Nobody waits for its answer."""
        self._send(CHANNEL, name, **arguments)

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        self._send(CHANNEL, name, **arguments)
        return self._await(f"{name}-ok")

    @property
    def has_events(self) -> bool:
        """Whether something was received and not looked at."""
        return bool(self._events)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next_confirm(self) -> tuple[list[int], bool]:
        """The next confirm: the numbers of messages, and whether it is for all up to the last of them."""
        while True:
            event = self._next()
            if isinstance(event, AckReceived):
                return event.delivery_tags, event.is_multiple

    def publish(self, messages: bytes, count: int, *, times: int, in_flight: int = 4) -> None:
        """Send ``count`` messages so many times, with some of these groups in flight; returns when all are confirmed.
        The channel must be in confirm mode and have published nothing before."""
        confirmed = sent = 0
        while confirmed < count * times:
            while sent < times and sent * count - confirmed < in_flight * count:
                self.socket.sendall(messages)
                sent += 1
            event = self._next()
            if isinstance(event, AckReceived):
                confirmed = max(confirmed, event.delivery_tags[-1])  # RabbitMQ may confirm out of order

    def consume(self, queue: str, count: int, size: int, *, prefetch: int, every: int = 1) -> None:
        """Take so many messages, each ``size`` bytes with its frames, and acknowledge every ``every``-th of them."""
        self.call("basic.qos", prefetch_count=prefetch)
        self.send_method("basic.consume", queue=queue, consumer_tag="c")
        started = len(_frame(1, encode_method("basic.consume-ok", {"consumer_tag": "c"})))
        received, done = -started, 0
        while done < count:
            received += len(self.socket.recv(READ_BYTES))
            whole = received // size
            if whole > done:
                self.socket.sendall(acks(tag for tag in range(done + 1, whole + 1) if tag % every == 0))
                done = whole


def delivery_size(queue: str, size: int, **properties: Any) -> int:
    """What a message of ``publication`` takes on its way to a consumer."""
    method = encode_method("basic.deliver", {"consumer_tag": "c", "routing_key": queue})
    return (
        len(publication(queue, size, **properties))
        + len(method)
        - len(encode_method("basic.publish", {"routing_key": queue}))
    )
