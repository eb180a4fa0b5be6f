"""Consumers of a channel: who takes messages of a queue, and how many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.queues.message import Message
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.rotation import Delivery
from headrace.wire.amqp.methods import short_string

if TYPE_CHECKING:
    from headrace.broker.queues.channel import Channel
    from headrace.broker.queues.deliveries import Held

__all__ = ["UNLIMITED", "ChannelConsumer", "deliver_method"]

UNLIMITED = 1 << 30


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
        self.outlet = self._channel = channel
        self._prefetch = prefetch
        self._short_tag = short_string(tag)
        self._method = deliver_method(tag)

    def has_credit(self) -> bool:
        if self.no_ack:
            return self._channel.is_writable
        return (
            (not self._prefetch or self.unacknowledged < self._prefetch)
            and self._channel.has_credit
            and self._channel.is_writable
        )

    def credit(self) -> int:
        return 0 if self._channel.limits_together and not self.no_ack else self.room()

    def room(self) -> int:
        if not self.has_credit():
            return 0
        if self.no_ack:
            return UNLIMITED
        mine = self._prefetch - self.unacknowledged if self._prefetch else UNLIMITED
        return min(mine, self._channel.room)

    def deliver(self, delivery: Delivery, message: Message, *, is_redelivered: bool) -> None:
        self._channel.deliver(self, self._method, delivery, message, is_redelivered)

    def deliver_run(
        self, queue: Queue, lane: int, offsets: Sequence[int], messages: Sequence[Message], *, is_redelivered: bool
    ) -> None:
        deliveries: list[Held] | None = None
        if not self.no_ack:
            self.unacknowledged += len(messages)
            deliveries = [
                (Delivery(queue, lane, offset, len(message.body)), self)
                for offset, message in zip(offsets, messages, strict=True)
            ]
        self._channel.deliver_run(self._short_tag, deliveries, messages, is_redelivered=is_redelivered)

    def cancelled(self) -> None:
        self._channel.queue_deleted(self)
