"""A child process that must not outlive its owner."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from headrace.linux import HAS_LINUX_CALLS

__all__ = ["EXIT_NOT_WANTED", "die_with"]

EXIT_NOT_WANTED = 2

_PR_SET_PDEATHSIG = 1


def die_with(owner_pid: int) -> None:
    """Let the kernel end this process with its owner. An owner that died before we asked is no longer our parent.

    Elsewhere than on Linux the child has to watch its input.
    """
    if HAS_LINUX_CALLS:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner_pid:
        sys.exit(EXIT_NOT_WANTED)
