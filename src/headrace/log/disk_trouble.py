"""Says once that the disk refuses something, and once that it takes it again.

A disk that is full refuses every append, thousands in a second. An operator wants two lines: when it began, and when it
was over, with the number of refusals in between. A full disk still takes a small write that fits into the last block
of its file. So it counts as over only when nothing was refused for ``CALM_S`` and the disk has room again.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Final

__all__ = ["DiskTrouble"]

LOG = logging.getLogger("headrace.disk")

CALM_S: Final = 1.0
ROOM_BYTES: Final = 1 << 20
"""A disk with less than this is full."""


class DiskTrouble:
    """One kind of operation: ``what`` names it. Called on any thread that works with the disk: without a lock two
    threads that are refused at once may both say so, which costs a line."""

    def __init__(
        self, what: str, monotonic: Callable[[], float], free_bytes: Callable[[str], int] = lambda path: ROOM_BYTES
    ) -> None:
        self.active = False
        self.refused_total = 0
        self._what = what
        self._monotonic = monotonic
        self._free_bytes = free_bytes
        self._full = ""
        """The path that was refused for want of space."""
        self._began = 0.0
        self._last = 0.0
        self._refused_before = 0

    def refused(self, error: OSError, path: str) -> None:
        self._last = self._monotonic()
        self.refused_total += 1
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._full = path
        if self.active:
            return
        self.active = True
        self._began = self._last
        self._refused_before = self.refused_total - 1
        LOG.error("%s fails: %s: %s; requests that need it get an error", self._what, path, error.strerror or error)

    def worked(self) -> None:
        """Call it when the operation succeeded while ``active``."""
        now = self._monotonic()
        if not self.active or now - self._last < CALM_S or not self._has_room():
            return
        self.active = False
        self._full = ""
        seconds, count = now - self._began, self.refused_total - self._refused_before
        LOG.warning("%s works again after %.0f s; it was refused %d times", self._what, seconds, count)

    def _has_room(self) -> bool:
        if not self._full:
            return True
        try:
            return self._free_bytes(self._full) >= ROOM_BYTES
        except OSError:
            return True  # the file was removed with its topic
