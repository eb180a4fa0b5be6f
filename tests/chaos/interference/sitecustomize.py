"""Loaded by the interpreter of a broker under test, before anything else: its clock can be set, and it can be traced.

``HEADRACE_TEST_CLOCK`` names a file of eight bytes: nanoseconds that are added to the wall clock. The monotonic clock
does not change, as it does not when somebody sets the time of a machine.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def let_anybody_trace() -> None:
    """Where only a parent may attach to a process (Yama), strace, a sibling, is let in."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)


def shift_the_clock(path: str) -> None:
    with open(path, "rb") as file:
        shift = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    real_ns = time.time_ns

    def time_ns() -> int:
        return int(real_ns() + struct.unpack_from("<q", shift)[0])

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


let_anybody_trace()
if "HEADRACE_TEST_CLOCK" in os.environ:
    shift_the_clock(os.environ["HEADRACE_TEST_CLOCK"])
