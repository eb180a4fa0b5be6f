"""What is opened is used by the process that opened it.

After a fork, parent and child have the same sockets and files: the answer to an append of one may be read by the other,
which then reports the position of an event that it has not appended. So a store, a view or a key store that was opened
before a fork is refused in the child, in words, and closing it there does nothing.
"""

from __future__ import annotations

import os

from headrace.errors import UsageError

__all__ = ["Opener"]


class Opener:
    """The process that has opened something."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._process

    def check(self, shown: object) -> None:
        """Before every use, also before a lock is taken: a thread of the parent may have held it at the fork."""
        if os.getpid() != self._process:
            raise UsageError(
                f"{shown} was opened by process {self._process}, and this is a fork of it",
                "open it again in this process",
            )
