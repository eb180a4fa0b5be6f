"""The real disk: thin calls into the operating system, with short writes and interruptions dealt with.

Where the calls of Linux are missing (``headrace.linux``), others take their places: chunks are joined and written with
``pwrite``, a sync is ``F_FULLFSYNC`` where that exists and ``fsync`` elsewhere, and instead of a filesystem every file
that was written is synced (``unsynced_paths.py``).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from headrace.linux import HAS_LINUX_CALLS
from headrace.log.unsynced_paths import UnsyncedPaths
from headrace.ports import Disk, File

__all__ = ["FileCache", "OsDisk", "OsFile", "OsLock", "replace_file", "sync_data"]

_IOV_MAX = 1024
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700

_libc = ctypes.CDLL(None, use_errno=True)
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: fsync leaves bytes in the disk's own cache, this does not."""


def _portable_sync(fd: int) -> None:
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(fd)  # filesystems that do not have it


def _portable_writev(fd: int, chunks: Sequence[bytes], position: int) -> int:
    return os.pwrite(fd, b"".join(chunks), position)


sync_data = os.fdatasync if HAS_LINUX_CALLS else _portable_sync
"""Return when the bytes of a descriptor are on the disk."""
_sync_entries = os.fsync if HAS_LINUX_CALLS else _portable_sync
_writev = os.pwritev if HAS_LINUX_CALLS else _portable_writev


class OsFile:
    """A descriptor that closes with its last reference."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write(self, chunks: Sequence[bytes], position: int) -> int:
        total = sum(map(len, chunks))
        if len(chunks) > _IOV_MAX:
            chunks = [b"".join(chunks)]
        written = _writev(self._fd, chunks, position)
        if written < total:
            self._write_rest(b"".join(chunks), written, position)
        return total

    def _write_rest(self, data: bytes, written: int, position: int) -> None:
        """A short write is how a disk announces that it is filling up; the next call carries the error."""
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(self._fd, view[written:], position + written)

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        chunks = [data]
        missing = size - len(data)
        while missing:
            more = os.pread(self._fd, missing, position + size - missing)
            if not more:
                break
            chunks.append(more)
            missing -= len(more)
        return b"".join(chunks)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def datasync(self) -> None:
        sync_data(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _NotedFile(OsFile):
    """A file whose writes are noted, for a disk that cannot sync its filesystem."""

    __slots__ = ("_unsynced",)

    def __init__(self, path: str, fd: int, unsynced: UnsyncedPaths) -> None:
        super().__init__(path, fd)
        self._unsynced = unsynced

    def write(self, chunks: Sequence[bytes], position: int) -> int:
        try:
            return super().write(chunks, position)
        finally:
            self._unsynced.wrote(self.path)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._unsynced.wrote(self.path)

    def datasync(self) -> None:
        with self._unsynced.syncing_file(self.path):
            super().datasync()


class OsLock:
    """An flock held by this process; the kernel releases it however the process ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class OsDisk:
    """``headrace.ports.Disk`` on a POSIX filesystem. Files are private to their owner."""

    def __init__(self) -> None:
        self._syncfs_fds: dict[int, int] = {}
        self._unsynced = None if HAS_LINUX_CALLS else UnsyncedPaths()
        self._spare = None if HAS_LINUX_CALLS else _SpareDescriptor()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
        """Without the kernel's read-ahead: our readers know how much they want and ask for it in one piece.

        Beside a reader of 1 GB that was not in memory, a small sync took 4 to 6 ms (p99 15 to 19) with read-ahead,
        which keeps the disk's queue full, and 0.9 ms (p99 2 to 6) without; in pieces of 1 MiB the reader itself was
        twice as fast without.
        """
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        if self._unsynced is not None:
            return self._open_noted(self._unsynced, path, flags)
        fd = os.open(path, flags, _FILE_MODE)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return OsFile(path, fd)

    @staticmethod
    def _open_noted(unsynced: UnsyncedPaths, path: str, flags: int) -> OsFile:
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        file = _NotedFile(path, os.open(path, flags, _FILE_MODE), unsynced)
        if is_new:
            unsynced.wrote(path)
            unsynced.changed(path)
        return file

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def list_files(self, path: str) -> dict[str, int]:
        with os.scandir(path) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}

    def mkdir(self, path: str) -> None:
        if self._unsynced is not None:
            self._note_levels(self._unsynced, path)
        os.makedirs(path, mode=_DIRECTORY_MODE, exist_ok=True)

    @staticmethod
    def _note_levels(unsynced: UnsyncedPaths, path: str) -> None:
        """Every level that is missing will be an entry of the one above it."""
        while path and not os.path.isdir(path):
            unsynced.changed(path)
            path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        if self._unsynced is not None:
            self._unsynced.renamed(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)
        if self._unsynced is not None:
            self._unsynced.changed(target)

    def unlink(self, path: str) -> None:
        os.unlink(path)
        if self._unsynced is not None:
            self._unsynced.removed(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)
        if self._unsynced is not None:
            self._unsynced.removed(path)

    def sync_dir(self, path: str) -> None:
        if self._unsynced is not None:
            with self._unsynced.syncing_directory(path):
                self._sync_path(path)
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self.syncfs(path)  # the descriptors are used up; the one for the whole filesystem is open
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def syncfs(self, path: str) -> None:
        """The descriptor stays open: the kernel reports errors of write-back to descriptors that were open when they
        happened. There is one per filesystem."""
        if self._unsynced is not None:
            self._unsynced.sync_noted(self._sync_path, self._sync_path)
            return
        device = os.stat(path).st_dev
        fd = self._syncfs_fds.get(device)
        if fd is None:
            fd = self._syncfs_fds[device] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        syncfs_fd(fd)

    def _sync_path(self, path: str) -> None:
        """A sync by any descriptor of a file is one of all that was written to it."""
        assert self._spare is not None
        try:
            _sync_path(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            with self._spare.lent():
                _sync_path(path)

    def __del__(self) -> None:
        for fd in self._syncfs_fds.values():
            os.close(fd)

    def lock(self, path: str) -> OsLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            os.close(fd)
            raise
        return OsLock(fd)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize


class _SpareDescriptor:
    """A reserve for when all descriptors are in use: a sync must not fail for want of one."""

    def __init__(self) -> None:
        self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()

    @contextmanager
    def lent(self) -> Iterator[None]:
        with self._lock:
            os.close(self._fd)
            try:
                yield
            finally:
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._fd)


def _sync_path(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _sync_entries(fd)
    finally:
        os.close(fd)


def syncfs_fd(fd: int) -> None:
    """syncfs(2), which Python does not wrap. Since Linux 5.8 it reports write-back errors seen since ``fd`` was opened.

    ctypes releases the interpreter lock for the duration of the call, so the event loop goes on.
    """
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class FileCache:
    """Open files by path, at most ``files_max`` of them: thousands of segments must not exhaust the descriptors.

    Leaving the cache does not close a file that somebody still holds (a reader's slice, the flusher): the descriptor
    goes with its last reference.
    """

    __slots__ = ("_disk", "_files", "_pinned", "files_max")

    def __init__(self, disk: Disk, files_max: int = 512) -> None:
        self._disk = disk
        self._files: OrderedDict[str, File] = OrderedDict()
        self._pinned: dict[str, File] = {}
        self.files_max = files_max

    def open(self, path: str, *, create: bool = False) -> File:
        file = self._files.get(path)
        if file is None:
            file = self._pinned.get(path) or self._disk.open(path, create=create)
            self._files[path] = file
            if len(self._files) > self.files_max:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(path)
        return file

    def pin(self, path: str) -> None:
        """Until it is forgotten, ``open`` gives the file that is there now, even if the path is replaced meanwhile."""
        self._pinned[path] = self.open(path)

    def forget(self, path: str) -> None:
        """The path will be unlinked, renamed or replaced. A reader that holds the old file keeps it."""
        self._files.pop(path, None)
        self._pinned.pop(path, None)

    def __len__(self) -> int:
        return len(self._files)


def replace_file(disk: Disk, path: str, data: bytes, *, sync: bool = True) -> None:
    """Write a small file so that a crash leaves the old one or the new one, whole."""
    temporary = path + ".tmp"
    with suppress(FileNotFoundError):
        disk.unlink(temporary)
    try:
        file = disk.open(temporary, create=True)
        file.write([data], 0)
        if sync:
            file.datasync()
        file.close()
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.unlink(temporary)
        raise
    if sync:
        disk.sync_dir(os.path.dirname(path))
