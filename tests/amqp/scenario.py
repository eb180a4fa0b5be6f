"""A scenario: what a client does, and notes of what it receives, the same on RabbitMQ and on headrace."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

GENERATED = re.compile(r"amq\.(gen|ctag)-[A-Za-z0-9_.-]+")
NEWER_HEADERS = re.compile(r"x-last-death-.*")
"""Headers of RabbitMQ 3.13 and newer, which the one from Debian does not write."""


UNSAID = (["x-delivery-count", 0], ["headers", {"x-delivery-count": 0}])
"""A message says how often it came back when it has; RabbitMQ 3.10 says it at the first delivery too."""


class AmqpScenario:
    """One connection, channels as needed, and notes."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.notes: list[Any] = []
        self._connections: list[pika.BlockingConnection] = []
        self.connection = self.connect()
        self._channel = self.connection.channel()

    @property
    def channel(self) -> BlockingChannel:
        """The channel in use; a new one where the broker has closed the last."""
        if not self.connection.is_open:
            self.connection = self.connect()
        if not self._channel.is_open:
            self._channel = self.connection.channel()
        return self._channel

    @channel.setter
    def channel(self, channel: BlockingChannel) -> None:
        self._channel = channel

    def connect(self) -> pika.BlockingConnection:
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, blocked_connection_timeout=30)
        connection = pika.BlockingConnection(parameters)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            if connection.is_open:
                connection.close()

    def note(self, what: str, value: Any) -> None:
        self.notes.append([what, plain(value)])

    def try_(self, what: str, call: Callable[[BlockingChannel], Any]) -> None:
        """Note what a call gives, or the error with which the broker closes the channel; then a new one is opened."""
        try:
            self.note(what, call(self.channel))
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as error:
            kind = "channel" if isinstance(error, ChannelClosedByBroker) else "connection"
            self.note(what, [kind, error.reply_code, error.reply_text])

    def get(self, queue: str, *, auto_ack: bool = True, wait_s: float = 5.0) -> Any:
        """The next message, waiting for it; None if none comes."""
        deadline = time.monotonic() + wait_s
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=auto_ack)
            if method is not None or time.monotonic() > deadline:
                return None if method is None else (method, properties, body)
            time.sleep(0.05)

    def note_messages(self, what: str, queue: str, count: int, *, wait_s: float = 5.0) -> None:
        """Note the next messages of a queue, and that there are no more."""
        found = [self.get(queue, wait_s=wait_s) for _ in range(count)]
        self.note(what, found)
        self.note(f"{what}, after them", self.get(queue, wait_s=0.0))

    def counts(self, queue: str) -> tuple[int, int]:
        method = self.channel.queue_declare(queue, passive=True).method
        return method.message_count, method.consumer_count

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}"
            self.connection.process_data_events(0.05)


def plain(value: Any) -> Any:
    """A value as JSON, without what differs from run to run."""
    if isinstance(value, str):
        return GENERATED.sub(r"amq.\1-…", value)
    if isinstance(value, bytes):
        return plain(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, datetime.datetime):
        return "a time"
    if isinstance(value, Mapping):
        return {
            str(name): plain(each)
            for name, each in sorted(value.items())
            if not NEWER_HEADERS.fullmatch(str(name)) and [name, each] not in UNSAID
        }
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "method"):
        return plain(value.method)
    fields = {name: each for name, each in vars(value).items() if each is not None and not name.startswith("_")}
    return {type(value).__name__: plain({name: each for name, each in fields.items() if name != "NAME"})}
