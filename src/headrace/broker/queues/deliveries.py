"""The deliveries of a channel that are neither acknowledged nor given back, by their tags.

Tags ascend. Messages that the peer fetched with ``basic.get`` are counted apart: a prefetch for the whole channel
limits what consumers are sent, and not what is fetched.

**Age.** The time of every single delivery is not kept. It is enough to note the latest tag now and then: what was
delivered before a note and is still here is at least as old as the note.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker.queues.queue import Queue
from headrace.broker.queues.rotation import Delivery
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.methods import IDS

if TYPE_CHECKING:
    from headrace.broker.queues.consumer import ChannelConsumer

__all__ = ["Deliveries", "Held"]

Held = tuple[Delivery, "ChannelConsumer | None"]
"""A message that was delivered and is not settled, and the consumer that has it; None if it was fetched."""


class Deliveries:
    """Of one channel; see the module."""

    def __init__(self) -> None:
        self.last_tag = 0
        self._held: dict[int, Held] = {}
        self._oldest = 1
        """No tag below is held. A dict from which very many were taken is slow to find its first."""
        self._fetched = 0
        self._notes: deque[tuple[int, int]] = deque()
        """(when, the latest tag then)."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def fetched(self) -> int:
        """How many messages were fetched with ``basic.get`` and are not settled. One that a transaction has settled
        counts until its commit."""
        return self._fetched

    # ---- delivering -------------------------------------------------------------------------------------------------

    def next_tag(self) -> int:
        """For a message that needs no acknowledgement."""
        self.last_tag += 1
        return self.last_tag

    def hold(self, delivery: Delivery, consumer: ChannelConsumer | None) -> int:
        """The tag of a message that has to be settled."""
        tag = self.next_tag()
        self._held[tag] = (delivery, consumer)
        if consumer is None:
            self._fetched += 1
        else:
            consumer.unacknowledged += 1
        return tag

    def hold_run(self, run: list[Held] | None, count: int) -> int:
        """The same for ``count`` messages of one consumer, which has counted them; the first of their tags. ``run`` is
        None if they need no acknowledgement."""
        first = self.last_tag + 1
        self.last_tag += count
        if run is not None:
            self._held.update(enumerate(run, first))
        return first

    # ---- settling ---------------------------------------------------------------------------------------------------

    def take(self, tag: int, is_multiple: bool, method: str) -> dict[int, Held]:
        """The deliveries that a tag means. Raises AmqpError."""
        if not is_multiple and tag not in self._held:
            raise _unknown(tag, method)
        return {each: self._held.pop(each) for each in (self.up_to(tag, method) if is_multiple else [tag])}

    def up_to(self, tag: int, method: str) -> list[int]:
        """The tags that are held up to this one, or (0) all; they are taken next. Raises AmqpError."""
        if tag and tag not in self._held:  # also where older ones are held: the peer has lost count
            raise _unknown(tag, method)
        held = list(self._held) if not tag else [each for each in range(self._oldest, tag + 1) if each in self._held]
        self._oldest = (tag or self.last_tag) + 1
        return held

    def take_each(self, tags: list[int], done: dict[tuple[Queue, int], list[int]]) -> None:
        """Take the deliveries of these tags, and add their offsets to ``done``, by lane. Raises AmqpError at an unknown
        tag; those before it are taken."""
        held = self._held
        last: tuple[Queue | None, int] = (None, 0)
        offsets: list[int] = []
        for tag in tags:
            found = held.pop(tag, None)
            if found is None:
                raise _unknown(tag, "basic.ack")
            (queue, lane, offset, _), consumer = found
            if consumer is not None:
                consumer.unacknowledged -= 1
            else:
                self._fetched -= 1
            if queue is not last[0] or lane != last[1]:
                last = (queue, lane)
                offsets = done.setdefault((queue, lane), [])
            offsets.append(offset)

    def settle(self, taken: dict[int, Held], settle: Callable[[Delivery], None]) -> None:
        """Settle deliveries that were taken, in order. If one cannot be settled (LogError), it and those after it are
        held as before."""
        waiting = dict(taken)
        try:
            for tag, (delivery, consumer) in taken.items():
                settle(delivery)
                del waiting[tag]
                if consumer is not None:
                    consumer.unacknowledged -= 1
                else:
                    self._fetched -= 1
        finally:
            if waiting:
                self.put_back(waiting)

    def put_back(self, taken: dict[int, Held]) -> None:
        """They were not settled: they are held again, in the order of their delivery."""
        self._held = dict(sorted({**self._held, **taken}.items()))
        self._oldest = min(self._oldest, *taken) if taken else self._oldest

    def take_all(self) -> Iterable[Delivery]:
        """The channel ends."""
        held, self._held = self._held, {}
        self._fetched = 0
        return [delivery for delivery, _ in held.values()]

    # ---- age --------------------------------------------------------------------------------------------------------

    def has_overdue(self, now_ms: int, timeout_ms: int) -> bool:
        """Note the latest tag; whether a delivery is older than the timeout. Streams have none."""
        overdue = -1
        while self._notes and now_ms - self._notes[0][0] >= timeout_ms:
            overdue = self._notes.popleft()[1]
        self._notes.append((now_ms, self.last_tag))
        for tag, (delivery, _) in self._held.items():
            if tag > overdue:
                return False
            if delivery.queue.policy.queue_type != "stream":
                return True
        return False


def _unknown(tag: int, method: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}", IDS[method])
