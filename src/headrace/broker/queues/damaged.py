"""A queue whose logs cannot be read, in its place among the bindings.

It takes no message: a publisher that waits for confirms gets ``basic.nack``. Without this object its messages would be
routed to no queue, which is confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from headrace.broker.queues.message import Message
from headrace.broker.queues.policy import QueuePolicy
from headrace.broker.queues.queue import DeadLetters, Published, Queue
from headrace.broker.queues.turn import Turn

__all__ = ["DamagedQueue"]


class DamagedQueue(Queue):
    """See the module. A client that names it gets an error with the reason."""

    def __init__(self, name: str, reason: str, *, turn: Turn, dead_letters: DeadLetters, group: str) -> None:
        super().__init__(
            name,
            arguments={},
            policy=QueuePolicy(),
            lanes=(),
            journal=cast("Any", None),
            turn=turn,
            dead_letters=dead_letters,
            group=group,
            where=f"queue '{name}'",
            is_durable=True,
        )
        self.reason = reason

    @property
    def may_reject(self) -> bool:
        return True

    def rejects(self, message: Message) -> bool:
        return True

    def has_room(self, count: int, body_bytes: int) -> bool:
        return False

    def publish_all(self, messages: Sequence[Message], published: Published | None = None) -> None:
        raise AssertionError(f"{self.name} was asked whether it takes messages, and does not")
