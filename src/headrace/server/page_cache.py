"""What the page cache holds of a file: the loop sends that at once and leaves the rest to a thread.

``cachestat(2)`` counts the cached pages of a range in one call (Linux 6.5). Where the kernel does not have it, or a
sandbox forbids it, single bytes of the range are read with RWF_NOWAIT: the page cache takes in and gives up pages in
long runs, so samples tell. For 8 MiB that is 129 calls. Elsewhere than on Linux nothing tells, and a thread reads
everything.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
from typing import Final

from headrace.linux import HAS_LINUX_CALLS
from headrace.ports import File

__all__ = ["has_descriptor", "is_cached", "read_at_once"]

SAMPLE_BYTES: Final = 64 << 10
"""How far apart single bytes are read where the kernel does not count."""

_CACHESTAT: Final = 451
"""The system call's number, the same on every architecture."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_NOT_NOW: Final = {errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}

_syscall = ctypes.CDLL(None, use_errno=True).syscall


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "just_evicted"))


def has_descriptor(file: File) -> bool:
    """Simulated files have none."""
    try:
        return file.fileno() >= 0
    except io.UnsupportedOperation:
        return False


def read_at_once(file: File, size: int, position: int) -> bytearray | memoryview | None:
    """What the page cache has of it, or None where the disk would have to be asked."""
    piece = bytearray(size)
    count = _read_cached(file, piece, position)
    if count is None or count == size:
        return None if count is None else piece
    return memoryview(piece)[:count]


def is_cached(file: File, size: int, position: int) -> bool:
    """Whether the page cache has this range."""
    cached = _cached_pages(file, size, position)
    if cached is None:
        byte = bytearray(1)
        places = [*range(position, position + size, SAMPLE_BYTES), position + size - 1]
        return all(_read_cached(file, byte, place) is not None for place in places)
    return cached > (position + size - 1) // _PAGE_BYTES - position // _PAGE_BYTES


def _cached_pages(file: File, size: int, position: int) -> int | None:
    """None where the kernel does not say."""
    if not HAS_LINUX_CALLS:
        return None
    counts = _Counts()
    if _syscall(_CACHESTAT, file.fileno(), ctypes.byref(_Range(position, size)), ctypes.byref(counts), 0) != 0:
        return None
    return int(counts.cached)


def _read_cached(file: File, into: bytearray, position: int) -> int | None:
    if not HAS_LINUX_CALLS:
        return None
    try:
        return os.preadv(file.fileno(), [into], position, _NO_WAIT)
    except io.UnsupportedOperation:
        return None
    except OSError as error:
        if error.errno in _NOT_NOW:
            return None
        raise
