"""Callbacks that wait for a number to be passed: how anything waits for a flush or a checkpoint.

There is no asyncio here. Code that has a future hands in the function that resolves it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Waiters"]

LOG = logging.getLogger("headrace.log")

N = TypeVar("N", bound=int)


class Waiters(Generic[N]):
    """Calls each callback once, in the order in which they came.

    Numbers almost always come in rising order. One that does not waits for those before it, which is never too early.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[N, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, number: N, callback: Callable[[], None]) -> None:
        self._waiting.append((number, callback))

    def release_below(self, number: N) -> None:
        """Call those that wait for less than ``number``."""
        waiting = self._waiting
        while waiting and waiting[0][0] < number:
            self._release_first()

    def release_all(self) -> None:
        """What they wait for will not happen: they look for themselves."""
        while self._waiting:
            self._release_first()

    def _release_first(self) -> None:
        """A callback that fails is a bug. It is logged, and the ones after it are called."""
        callback = self._waiting.popleft()[1]
        try:
            callback()
        except Exception:
            LOG.exception("a callback that waited for the log failed")
