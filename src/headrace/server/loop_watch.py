"""Notices when the event loop was held up, and by whom.

A timer that fires late shows that something else ran: a request, maintenance, or another program that took the
processor. Requests that take long are remembered by ``KafkaService``, so a stall usually has a name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from headrace.measures import LOOP_SECONDS, Histogram
from headrace.server.kafka_service import KafkaService

__all__ = ["LoopWatch"]

log = logging.getLogger("headrace.server")

INTERVAL_S = 0.1


class LoopWatch:
    """Measures from ``start`` to ``stop``; a delay above ``stall_s`` is logged."""

    def __init__(
        self,
        kafka: KafkaService,
        *,
        stall_s: float,
        now: Callable[[], float] = monotonic,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.delay = Histogram(LOOP_SECONDS)
        self._kafka = kafka
        self._stall_s = stall_s
        self._now = now
        self._interval_s = interval_s
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due = self._now() + self._interval_s
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._fired)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fired(self) -> None:
        late_s = max(0.0, self._now() - self._due)
        self.delay.observe(late_s)
        hold, self._kafka.longest_hold = self._kafka.longest_hold, None
        if late_s >= self._stall_s:
            if hold is not None and hold.seconds >= late_s / 2:
                log.warning(
                    "all requests waited for %.0f ms: %s from %s took %.0f ms in one piece",
                    late_s * 1000,
                    hold.api,
                    hold.address,
                    hold.seconds * 1000,
                )
            else:
                log.warning("all requests waited for %.0f ms, not because of one request", late_s * 1000)
        self.start()
