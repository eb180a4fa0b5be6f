"""When publishers are held: while the disk refuses messages, and while it has less room than the reserve.

Consumers go on in both cases. Their acknowledgements are written to the queues' journals, and that is what the reserve
(``amqp.disk.free.limit.bytes``, RabbitMQ's disk_free_limit) is for: without it a kill on a full disk would bring
acknowledged messages back.

Free space is looked at more often the closer it is to the limit, so that a publisher cannot use up the reserve between
two looks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from headrace.ports import TimerHandle

__all__ = ["Blocking", "DiskReserve"]

LOG = logging.getLogger("headrace.queues")

FILLED_BYTES_PER_S: Final = 250 << 20
"""The fastest rate at which messages are assumed to fill the disk."""
LOOK_S_MIN: Final = 0.1
LOOK_S_MAX: Final = 10.0
REASON: Final = "low on disk"
"""In RabbitMQ's words; clients see it in ``connection.blocked``."""


class Blocking:
    """Why publishers are held. ``on_change`` is called with the reason when that begins, and with None when it ends."""

    def __init__(self) -> None:
        self.on_change: Callable[[str | None], None] = lambda reason: None
        self._reasons: dict[str, str] = {}

    @property
    def reason(self) -> str | None:
        return next(iter(self._reasons.values()), None)

    def set(self, cause: str, reason: str | None) -> None:
        """One cause holds publishers, or (None) no longer does."""
        before = self.reason
        if reason is None:
            self._reasons.pop(cause, None)
        else:
            self._reasons[cause] = reason
        if (self.reason is None) is not (before is None):
            self.on_change(self.reason)


class DiskReserve:
    """Holds publishers while less than ``bytes_min`` are free; 0 turns it off."""

    def __init__(
        self,
        bytes_min: int,
        *,
        free_bytes: Callable[[], int],
        blocking: Blocking,
        later: Callable[[float, Callable[[], None]], TimerHandle],
    ) -> None:
        self.bytes_min = bytes_min
        self._free_bytes = free_bytes
        self._blocking = blocking
        self._later = later
        self.is_low = False

    def start(self) -> None:
        if self.bytes_min:
            self.look()

    def look(self) -> None:
        """Compare, and do it again later."""
        distance = 0
        try:
            free = self._free_bytes()
        except OSError as error:
            LOG.warning("the free space of the disk cannot be read: %s", error.strerror or error)
        else:
            distance = free - self.bytes_min
            if (distance < 0) is not self.is_low:
                self._changed(free)
        self._later(min(max(abs(distance) / FILLED_BYTES_PER_S, LOOK_S_MIN), LOOK_S_MAX), self.look)

    def _changed(self, free: int) -> None:
        self.is_low = not self.is_low
        state = "publishers of queues are held" if self.is_low else "publishers of queues go on"
        log = LOG.warning if self.is_low else LOG.info
        log("the disk has %d bytes free, and amqp.disk.free.limit.bytes is %d: %s", free, self.bytes_min, state)
        self._blocking.set("disk", REASON if self.is_low else None)
