"""The consumers of a queue, and which of them gets the next message.

Consumers take turns. Those with a higher priority go first while they have credit. With a single active consumer the
others wait for its end, and then the first of those with the highest priority follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.queues.message import Message

if TYPE_CHECKING:
    from headrace.broker.queues.queue import Queue

__all__ = ["Consumer", "Delivery", "Rotation"]


class Delivery(NamedTuple):
    """A message that was handed out: where it stands, and what it counts for."""

    queue: Queue
    lane: int
    offset: int
    size: int


class Consumer(Protocol):
    """Somebody who takes messages."""

    tag: str
    no_ack: bool
    priority: int

    @property
    def outlet(self) -> object:
        """What its messages are sent through, in order: consumers of one channel share it."""

    def has_credit(self) -> bool: ...

    def credit(self) -> int:
        """How many messages it takes at once; 0 if others share its limit, so that it has to be asked for each."""

    def room(self) -> int:
        """How many messages it would take now, one by one, if nobody else took any."""

    def deliver(self, delivery: Delivery, message: Message, *, is_redelivered: bool) -> None: ...

    def deliver_run(
        self, queue: Queue, lane: int, offsets: Sequence[int], messages: Sequence[Message], *, is_redelivered: bool
    ) -> None:
        """The same, for messages of one lane, in this order."""

    def cancelled(self) -> None:
        """The queue is gone."""


class Rotation:
    """See the module."""

    def __init__(self, *, has_single_active: bool) -> None:
        self.consumers: list[Consumer] = []
        """In the order in which they came."""
        self._turns: deque[Consumer] = deque()
        """The consumer whose last message is longest ago comes first."""
        self._has_single_active = has_single_active
        self._active: Consumer | None = None
        """The single active consumer, if the queue has one."""

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self._turns.append(consumer)
        if self._active is None and self._has_single_active:
            self._active = consumer

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._turns.remove(consumer)
        if consumer is self._active:
            self._active = max(self.consumers, key=lambda each: each.priority, default=None)

    def clear(self) -> None:
        self.consumers.clear()
        self._turns.clear()
        self._active = None

    def takers(self) -> list[Consumer]:
        """Those who get the next messages in turn: of the highest priority that has credit."""
        if self._has_single_active:
            first = self.take_next()
            return [] if first is None else [first]
        able = [consumer for consumer in self._turns if consumer.has_credit()]
        if len(able) < 2:
            return able
        highest = max(consumer.priority for consumer in able)
        return [consumer for consumer in able if consumer.priority == highest]

    def room(self) -> int:
        """How many messages consumers would take now."""
        return sum(each.room() for each in (self.consumers if self._active is None else (self._active,)))

    def gave(self, takers: list[Consumer], count: int) -> None:
        """Takers got this many messages in turn: the one that got the last message is now last in the rotation."""
        if len(self._turns) < 2:
            return
        for place in range(max(0, count - len(takers)), count):
            taker = takers[place % len(takers)]
            self._turns.remove(taker)
            self._turns.append(taker)

    def take_next(self) -> Consumer | None:
        """Who gets one message."""
        if self._has_single_active:
            return self._active if self._active is not None and self._active.has_credit() else None
        best: Consumer | None = None
        for consumer in self._turns:
            if (best is None or consumer.priority > best.priority) and consumer.has_credit():
                best = consumer
        if best is not None:
            self._turns.remove(best)
            self._turns.append(best)
        return best
