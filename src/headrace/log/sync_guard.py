"""A failed sync is the end, wherever it happens.

When a sync fails the kernel may have dropped the pages it could not write, and it would report success next time. So
nothing that was not flushed before may be acknowledged any more, nothing may be written that claims otherwise, and no
sync may be tried again. ``SyncGuard`` is the disk that everything in a node uses. The first failed sync

* is reported to ``on_failure`` at once, on the thread that met it; a node on its own ends its process there;
* raises ``SyncFailed``, which nobody takes for an ordinary error of the disk;
* makes every later sync and every later change of a file raise ``SyncFailed`` too. Reading goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from headrace.log.disk_trouble import DiskTrouble
from headrace.ports import Disk, File, Lock

__all__ = ["SyncFailed", "SyncGuard"]


class SyncFailed(Exception):
    """A sync has failed. Not an OSError and not one of headrace's errors: what handles those must not handle this."""


class SyncGuard:
    """``headrace.ports.Disk`` around another disk, until a sync fails.

    It also notices when the disk refuses a write or a new file, which is no failure, and says so once.
    """

    def __init__(
        self,
        disk: Disk,
        on_failure: Callable[[BaseException], None],
        *,
        monotonic: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._disk = disk
        self._on_failure = on_failure
        self.writing = DiskTrouble("writing to disk", monotonic, disk.free_bytes)
        self.creating = DiskTrouble("making or opening files", monotonic, disk.free_bytes)
        self.failed: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """A sync has failed, here or in a process that synced for us."""
        if self.failed is None:
            self.failed = error
            self._on_failure(error)

    def check(self) -> None:
        """Refuse to go on after a failed sync."""
        if self.failed is not None:
            raise SyncFailed(f"nothing is written after a failed sync: {self.failed}") from self.failed

    def sync_failed(self, error: OSError, path: str) -> NoReturn:
        if error.filename is None:
            error.filename = path
        self.fail(error)
        raise SyncFailed(f"a sync failed: {error}") from error

    # What can fail for good.

    def sync_dir(self, path: str) -> None:
        """Raises FileNotFoundError when the directory was removed: then there is nothing left to sync."""
        self.check()
        try:
            self._disk.sync_dir(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.sync_failed(error, path)

    def syncfs(self, path: str) -> None:
        self.check()
        try:
            self._disk.syncfs(path)
        except OSError as error:
            self.sync_failed(error, path)

    # What changes the disk.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if create:
            self.check()
        try:
            file = self._disk.open(path, create=create, writable=writable)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.creating.refused(error, path)
            raise
        if self.creating.active:
            self.creating.worked()
        return _GuardedFile(file, self)

    def mkdir(self, path: str) -> None:
        self.check()
        try:
            self._disk.mkdir(path)
        except OSError as error:
            self.creating.refused(error, path)
            raise

    def rename(self, source: str, target: str) -> None:
        self.check()
        self._disk.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.check()
        self._disk.link(source, target)

    def unlink(self, path: str) -> None:
        self.check()
        self._disk.unlink(path)

    def rmdir(self, path: str) -> None:
        self.check()
        self._disk.rmdir(path)

    # What does not.

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._disk.is_directory(path)

    def file_size(self, path: str) -> int:
        return self._disk.file_size(path)

    def listdir(self, path: str) -> list[str]:
        return self._disk.listdir(path)

    def list_files(self, path: str) -> dict[str, int]:
        return self._disk.list_files(path)

    def lock(self, path: str) -> Lock:
        return self._disk.lock(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._disk.total_bytes(path)


class _GuardedFile:
    """An open file of a ``SyncGuard``. What only reads is the file's own method: it costs nothing."""

    __slots__ = ("_file", "_guard", "close", "fileno", "path", "pread", "size")

    def __init__(self, file: File, guard: SyncGuard) -> None:
        self._file = file
        self._guard = guard
        self.path = file.path
        self.fileno = file.fileno
        self.size = file.size
        self.pread = file.pread
        self.close = file.close

    def write(self, chunks: Sequence[bytes], position: int) -> int:
        guard = self._guard
        if guard.failed is not None:
            guard.check()
        try:
            written = self._file.write(chunks, position)
        except OSError as error:
            guard.writing.refused(error, self.path)
            raise
        if guard.writing.active:
            guard.writing.worked()
        return written

    def truncate(self, size: int) -> None:
        self._guard.check()
        self._file.truncate(size)

    def datasync(self) -> None:
        self._guard.check()
        try:
            self._file.datasync()
        except OSError as error:
            self._guard.sync_failed(error, self.path)
