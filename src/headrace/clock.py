"""The real clock. What measures time in the broker is handed a ``Clock``, so that tests can hand it another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from headrace.ports import TimerHandle

__all__ = ["SystemClock"]


class SystemClock:
    """``headrace.ports.Clock`` on the running loop."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, fn)
