"""Direct reply-to: answers go straight to the channel that asked, without a queue.

A client consumes from the queue ``amq.rabbitmq.reply-to``, which does not exist, and publishes its request with that
name as ``reply_to``. The request leaves with a name that only this channel has. Who publishes to that name through the
default exchange reaches the channel, as long as it is open. An answer is delivered at most once: one for a channel that
is gone, or that does not read, is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.broker.queues.message import Message
from headrace.wire.amqp.errors import AmqpError, ReplyCode

__all__ = ["REPLY_TO", "Replies", "ReplyConsumer"]

REPLY_TO = "amq.rabbitmq.reply-to"
_PREFIX = REPLY_TO.encode() + b"."


class Replies:
    """The channels of one virtual host that wait for answers."""

    def __init__(self) -> None:
        self._takers: dict[bytes, Callable[[Message], None]] = {}

    def add(self, take: Callable[[Message], None]) -> bytes:
        """The name under which ``take`` gets answers."""
        name = _PREFIX + os.urandom(16).hex().encode()
        self._takers[name] = take
        return name

    def discard(self, name: bytes) -> None:
        self._takers.pop(name, None)

    def deliver(self, message: Message) -> bool:
        """Whether it was an answer, and somebody waits for it."""
        if message.exchange or not message.routing_key.startswith(_PREFIX):
            return False
        take = self._takers.get(message.routing_key)
        if take is None:
            return False
        take(message)
        return True

    def counts(self, name: str, host: str) -> dict[str, int]:
        """What a declaration of such a name answers: whether somebody waits there. Raises AmqpError."""
        if name != REPLY_TO and name.encode("utf-8", "surrogateescape") not in self._takers:
            raise AmqpError(ReplyCode.NOT_FOUND, f"no queue '{name}' in vhost '{host}'")
        return {"message_count": 0, "consumer_count": 1}


class ReplyConsumer:
    """A channel that waits for answers, from its ``basic.consume`` until ``stop``."""

    def __init__(self, replies: Replies, tag: str, take: Callable[[Message], None]) -> None:
        self.tag = tag
        self.name = replies.add(take)
        self._replies = replies

    def stop(self) -> None:
        self._replies.discard(self.name)
