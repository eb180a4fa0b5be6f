"""Request bytes held at once, by all connections together.

A connection that is in the middle of a large frame when the budget is spent stops being read. That alone could stop
everybody for good: a few peers that send most of a frame and then nothing would hold the whole budget. So one of the
waiting connections at a time is *favoured*, the one that lacks least: it may finish its frame although the budget is
spent, and if it has not after ``favour_s`` while others wait, it is dropped, which frees what it held. Small frames are
always read: what they can hold is bounded by the number of connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.ports import TimerHandle

__all__ = ["RequestBudget"]


class Waiter(Protocol):
    @property
    def missing_bytes(self) -> int:
        """What its frame lacks."""

    def budget_granted(self) -> None:
        """Read on."""

    def budget_refused(self) -> None:
        """The favour was not used in time: give up what is held."""


class RequestBudget:
    def __init__(
        self, bytes_max: int, *, favour_s: float, call_later: Callable[[float, Callable[[], None]], TimerHandle]
    ) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._favour_s = favour_s
        self._call_later = call_later
        self._favoured: Waiter | None = None
        self._timer: TimerHandle | None = None
        self._waiting: dict[Waiter, None] = {}  # in order of arrival, which decides between equals

    @property
    def spent(self) -> bool:
        return self.held_bytes > self.bytes_max

    def change(self, delta: int) -> None:
        """Some bytes more, or fewer, are held."""
        self.held_bytes += delta
        assert self.held_bytes >= 0, "more bytes were given back than were taken"
        if delta < 0 and not self.spent:
            self._end_favour()
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                waiter.budget_granted()

    def may_read(self, waiter: Waiter) -> bool:
        """Whether a connection in the middle of a large frame may go on; if not, ``budget_granted`` comes later."""
        if not self.spent or waiter is self._favoured:
            return True
        if self._favoured is None:
            self._favour(waiter)
            return True
        self._waiting[waiter] = None
        return False

    def leave(self, waiter: Waiter) -> None:
        """The frame is whole, or the connection gone."""
        self._waiting.pop(waiter, None)
        if waiter is not self._favoured:
            return
        self._end_favour()
        if self._waiting:
            following = min(self._waiting, key=lambda each: each.missing_bytes)
            del self._waiting[following]
            self._favour(following)
            following.budget_granted()

    def _favour(self, waiter: Waiter) -> None:
        self._favoured = waiter
        self._timer = self._call_later(self._favour_s, self._time_is_up)

    def _end_favour(self) -> None:
        self._favoured = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_up(self) -> None:
        waiter = self._favoured
        assert waiter is not None, "the timer is cancelled when the favour ends"
        if self._waiting:
            self._timer = None
            waiter.budget_refused()
        else:
            self._favour(waiter)
