"""Consumers of a channel: who takes messages of a queue, and how many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.queues.message import Message
from headrace.broker.queues.queue import Delivery, Queue
from headrace.wire.amqp.methods import short_string

if TYPE_CHECKING:
    from headrace.broker.queues.channel import Channel

__all__ = ["ChannelConsumer", "deliver_method"]


def deliver_method(tag: str) -> bytes:
    """The beginning of ``basic.deliver``, which is the same for all messages of a consumer."""
    return b"\x00\x3c\x00\x3c" + short_string(tag)


class ChannelConsumer:
    """``basic.consume``: takes messages of one queue."""

    def __init__(self, channel: Channel, queue: Queue, tag: str, *, no_ack: bool, priority: int, prefetch: int) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.priority = priority
        self.unacknowledged = 0
        self._channel = channel
        self._prefetch = prefetch
        self._method = deliver_method(tag)

    def has_credit(self) -> bool:
        if self.no_ack:
            return self._channel.is_writable
        return (
            (not self._prefetch or self.unacknowledged < self._prefetch)
            and self._channel.has_credit
            and self._channel.is_writable
        )

    def deliver(self, delivery: Delivery, message: Message, *, is_redelivered: bool) -> None:
        self._channel.deliver(self, self._method, delivery, message, is_redelivered)

    def cancelled(self) -> None:
        self._channel.queue_deleted(self)
