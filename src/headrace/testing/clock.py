"""A clock that stands still until a test moves it: an hour of retention or a session timeout passes in no time.

Alone it is plain and synchronous. Attached to a broker that runs on its own thread, ``advance`` may be called from
the test's thread: the timers then fire on the broker's loop, which gets to finish what each of them started before the
next one fires.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

__all__ = ["VirtualClock"]

LOOP_TURNS_PER_TIMER = 5
"""How often the loop goes round between two timers: futures that a timer completes wake others in turn."""

ADVANCE_TIMEOUT_S = 60.0


class VirtualTimer:
    """A timer that has not fired. ``cancel`` is all there is to do with it."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], None]) -> None:
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None


class VirtualClock:
    """``headrace.ports.Clock`` whose time is moved by ``advance``.

    >>> clock = VirtualClock(start_ms=1_000)
    >>> timer = clock.call_later(0.5, lambda: print("half a second later"))
    >>> clock.advance(500)
    half a second later
    >>> clock.wall_ms()
    1500
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(start_ms)
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._sequence = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wall_ms(self) -> int:
        return int(self._now_ms)

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(fn)
        due_ms = self._now_ms + max(delay_s, 0.0) * 1000
        heapq.heappush(self._timers, (due_ms, next(self._sequence), timer))
        return timer

    @property
    def timers(self) -> int:
        """How many timers are set."""
        return sum(timer.fn is not None for _, _, timer in self._timers)

    def attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Fire timers on ``loop`` from here on; None: on the thread that calls ``advance``."""
        self._loop = loop

    def advance(self, ms: float) -> None:
        """Let ``ms`` milliseconds pass, firing what falls due in order, each at its own time."""
        assert ms >= 0, "time does not go back"
        if self._loop is None:
            target_ms = self._now_ms + ms
            while self._fire_next(target_ms):
                pass
            self._now_ms = target_ms
            return
        moving = asyncio.run_coroutine_threadsafe(self.advance_on_loop(ms), self._loop)
        moving.result(ADVANCE_TIMEOUT_S)

    def jump(self, ms: float) -> None:
        """Let ``ms`` milliseconds pass at once, as when a machine slept: what fell due meanwhile fires once, late.

        For days and weeks: a timer that sets itself again every second fires once and not 86,400 times a day.
        """
        self._now_ms += ms
        self.advance(0)

    async def advance_on_loop(self, ms: float) -> None:
        """``advance`` from a coroutine of the loop itself."""
        target_ms = self._now_ms + ms
        while self._fire_next(target_ms):
            for _ in range(LOOP_TURNS_PER_TIMER):
                await asyncio.sleep(0)
        self._now_ms = target_ms

    def _fire_next(self, target_ms: float) -> bool:
        """Fire the first timer that is due by then; False when there is none."""
        while self._timers and self._timers[0][0] <= target_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            if timer.fn is None:
                continue
            self._now_ms = max(self._now_ms, due_ms)
            fn, timer.fn = timer.fn, None
            fn()
            return True
        return False
