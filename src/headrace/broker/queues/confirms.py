"""Confirms: a publisher learns that its messages are on disk, in the order in which it published them.

What a channel publishes in one turn is one group. A group is complete when every log that got a message of it is
flushed. Groups are answered in order, each with one ``basic.ack`` for all of it; messages that a queue has refused get
a ``basic.nack`` each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["Confirms", "Flushed"]


class _Group:
    """Numbers [first, next) of one turn."""

    __slots__ = ("_done", "_waits", "first", "next", "refused")

    def __init__(self, first: int, done: Callable[[], None]) -> None:
        self.first = first
        self.next = first
        self.refused: list[int] = []
        self._waits = 0
        self._done = done

    @property
    def is_complete(self) -> bool:
        return self._waits == 0

    def add_waits(self, count: int) -> None:
        self._waits += count

    def one_done(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._done()


class Confirms:
    """Of one channel. ``send(number, multiple, is_ack)`` sends an answer."""

    def __init__(self, send: Callable[[int, bool, bool], None]) -> None:
        self._send = send
        self._next = 1
        self._groups: deque[_Group] = deque()
        self._current: _Group | None = None

    def published(self, count: int = 1) -> _Group:
        """So many more messages; what their queues report to."""
        group = self._current
        if group is None:
            group = self._current = _Group(self._next, self._answer)
            self._groups.append(group)
        self._next += count
        group.next = self._next
        return group

    def refuse(self, group: _Group) -> None:
        """The message that was published last was not taken by a queue."""
        group.refused.append(self._next - 1)

    def end_turn(self) -> None:
        """All of this turn was handed to the queues."""
        self._current = None
        self._answer()

    def _answer(self) -> None:
        groups = self._groups
        while groups and groups[0] is not self._current and groups[0].is_complete:
            self._answer_group(groups.popleft())

    def _answer_group(self, group: _Group) -> None:
        first = group.first
        for refused in group.refused:
            if refused > first:
                self._send(refused - 1, refused - first > 1, True)
            self._send(refused, False, False)
            first = refused + 1
        if group.next > first:
            self._send(group.next - 1, group.next - first > 1, True)


class Flushed:
    """Waits until all messages of a transaction are flushed."""

    def __init__(self) -> None:
        self._waits = 1  # until ``wait``: some may be flushed before the last is published
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add_waits(self, count: int) -> None:
        self._waits += count

    def one_done(self) -> None:
        self._waits -= 1
        if self._waits == 0 and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        self.one_done()
        await self._future
