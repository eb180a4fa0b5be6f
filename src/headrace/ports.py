"""What the core asks of the world: a clock and a disk, as shapes that anything may fill.

The broker and the log never read the time or use files by themselves. The real disk is ``headrace.log.disk.OsDisk``;
the one that crashes, tears and runs full on demand is ``headrace.testing.disk.SimulatedDisk``. Paths are plain strings.

Two words are kept apart everywhere: bytes are *written* when the operating system has them, and *flushed* when a sync
that began after the write has returned. Only flushed bytes survive a power loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["Clock", "Disk", "File", "Lock", "TimerHandle"]


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the epoch; may jump. For timestamps people see."""

    def monotonic(self) -> float:
        """Seconds that never go back. For everything that measures elapsed time."""

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> TimerHandle: ...


class File(Protocol):
    """One open file. The descriptor closes when the last reference goes, so a reader's slice keeps it alive."""

    @property
    def path(self) -> str:
        """Where it was opened; the file may have been renamed or unlinked since."""

    def fileno(self) -> int: ...

    def size(self) -> int: ...

    def write(self, chunks: Sequence[bytes], position: int) -> int:
        """Write all chunks at ``position``, returning the bytes written; after an OSError any part may be there."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""

    def truncate(self, size: int) -> None: ...

    def datasync(self) -> None:
        """Return when what was written before the call is flushed. After a failure nothing may be assumed."""

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """Everything the log does to a filesystem."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File: ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted; an error when it is not there."""

    def list_files(self, path: str) -> dict[str, int]:
        """Names and sizes of the plain files in a directory: one call where opening a log needs both."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents; fine when it exists."""

    def rename(self, source: str, target: str) -> None:
        """Replace ``target`` atomically; durable after ``sync_dir`` of the directories."""

    def link(self, source: str, target: str) -> None:
        """Give the file ``source`` a second name, in the same filesystem. Its bytes stay until both are unlinked."""

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries (creates, renames, unlinks) durable."""

    def syncfs(self, path: str) -> None:
        """Flush everything written to the filesystem that holds ``path``."""

    def lock(self, path: str) -> Lock:
        """Own ``path`` exclusively, or raise BlockingIOError; the lock ends with the process."""

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...
