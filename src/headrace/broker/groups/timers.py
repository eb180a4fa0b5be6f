"""Deadlines that are moved far more often than they pass."""

from __future__ import annotations

from collections.abc import Callable

from headrace.ports import Clock, TimerHandle

__all__ = ["Deadline"]


class Deadline:
    """Calls ``expired`` when it is not moved in time.

    Every heartbeat moves a member's deadline. Cancelling and setting a timer each time would fill the loop's heap with
    dead entries. So a running timer is kept; when it fires too early it is set again for the rest.
    """

    __slots__ = ("_clock", "_due", "_expired", "_rings", "_timer")

    def __init__(self, clock: Clock, expired: Callable[[], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._due: float | None = None
        self._rings = 0.0
        self._timer: TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._due is not None

    def move(self, timeout_ms: int) -> None:
        """Expire ``timeout_ms`` from this moment, whatever was set before."""
        self._due = self._clock.monotonic() + timeout_ms / 1000
        if self._timer is not None and self._rings > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._set(self._due)

    def stop(self) -> None:
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, due: float) -> None:
        self._rings = due
        self._timer = self._clock.call_later(max(0.0, due - self._clock.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._due > self._clock.monotonic():
            self._set(self._due)
            return
        self._due = None
        self._expired()
