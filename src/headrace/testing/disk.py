"""A disk in memory that crashes, tears, reorders, fills up and fails on demand.

It keeps what a real disk keeps apart: for every file the bytes that are *flushed* and the writes since; for every
directory the entries that are durable and the creates, renames and unlinks since. ``crash(seed)`` throws a fair die
over everything that is not durable: a write survives whole, not at all, up to some byte, or in some of its 512- or
4,096-byte blocks (the others read as zeros or as before); a rename or create survives or not, independently of the
bytes. The same seed and history give the same disk.

It is stricter than most filesystems: a synced file whose directory was not synced is gone after the crash.
"""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["SimulatedDisk", "SimulatedFile"]

_BLOCKS = (512, 4096)


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes


@dataclass(slots=True)
class _Truncate:
    size: int


@dataclass(slots=True, eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""
    unsynced: list[_Write | _Truncate] = field(default_factory=list)

    def apply(self, change: _Write | _Truncate) -> None:
        _apply(self.content, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        if self.unsynced:
            self.flushed = bytes(self.content)
            self.unsynced.clear()


def _apply(content: bytearray, change: _Write | _Truncate) -> None:
    if isinstance(change, _Truncate):
        content.extend(bytes(max(0, change.size - len(content))))
        del content[change.size :]
        return
    end = change.position + len(change.data)
    content.extend(bytes(max(0, end - len(content))))
    content[change.position : end] = change.data


@dataclass(slots=True)
class _EntryChange:
    """A directory entry set (``inode``) or removed (None); the parts of a rename share a number and stay together."""

    path: str
    inode: _Inode | None
    number: int


class SimulatedFile:
    """An open file of a SimulatedDisk; useless after a crash, as the process that held it would be."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._life = disk.life

    def _check(self, operation: str) -> None:
        assert self._life == self._disk.life, f"{self.path} was used across a crash"
        self._disk.maybe_fail(operation, self.path)

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a simulated file has no descriptor; use pread")

    def size(self) -> int:
        return len(self._inode.content)

    def write(self, chunks: Sequence[bytes], position: int) -> int:
        self._check("write")
        data = b"".join(chunks)
        room = self._disk.room_for(self._inode, position, len(data))
        if room < len(data):
            if room > 0:
                self._inode.apply(_Write(position, data[:room]))
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        self._inode.apply(_Write(position, data))
        return len(data)

    def pread(self, size: int, position: int) -> bytes:
        self._check("pread")
        return bytes(self._inode.content[position : position + size])

    def truncate(self, size: int) -> None:
        self._check("truncate")
        if size != len(self._inode.content):
            self._inode.apply(_Truncate(size))

    def datasync(self) -> None:
        self._check("datasync")
        self._inode.sync()

    def close(self) -> None:
        """Nothing to give back."""


class SimulatedLock:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class SimulatedDisk:
    """``headrace.ports.Disk`` in memory."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.life = 0
        """Counts crashes."""
        self.locks: set[str] = set()
        self.operations = 0
        self.crash_after: int | None = None
        """Raise PowerLoss before the operation with this number: every point of a run can be a crash point."""
        self._names: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._directories: set[str] = {"/"}
        self._changes: dict[str, list[_EntryChange]] = {}
        self._change_number = 0
        self._faults: list[tuple[str, str, int]] = []

    # Faults.

    def fail_next(self, operation: str, error_number: int, path_part: str = "") -> None:
        """Make the next such operation on a path with ``path_part`` in it fail with this errno."""
        self._faults.append((operation, path_part, error_number))

    def maybe_fail(self, operation: str, path: str) -> None:
        self.operations += 1
        if self.crash_after is not None and self.operations > self.crash_after and operation != "pread":
            raise PowerLoss(operation, path)
        for number, (wanted, part, error_number) in enumerate(self._faults):
            if wanted == operation and part in path:
                del self._faults[number]
                raise OSError(error_number, os.strerror(error_number), path)

    def room_for(self, inode: _Inode, position: int, size: int) -> int:
        if self.capacity_bytes is None:
            return size
        growth_max = self.capacity_bytes - self.used_bytes()
        return min(size, max(0, len(inode.content) + growth_max - position))

    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self._names.values())

    def crash(self, seed: int) -> None:
        """Lose power: what was not synced survives by chance, decided by ``seed``. Locks are free again."""
        chance = random.Random(seed)
        style = chance.choice(("nothing", "everything", "some", "some", "some"))
        for changes in self._changes.values():
            _settle_entries(self._durable, changes, chance, style)
        self._changes.clear()
        survivors: dict[_Inode, _Inode] = {}
        for path, inode in self._durable.items():
            if inode not in survivors:
                survivors[inode] = _settle_file(inode, chance, style)
            self._durable[path] = survivors[inode]
        self._names = dict(self._durable)
        self.locks.clear()
        self._faults.clear()
        self.crash_after = None
        self.life += 1

    # The port.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        self.maybe_fail("open", path)
        inode = self._names.get(path)
        if inode is None:
            if not create or self._parent(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            inode = _Inode()
            self._set(path, inode, self._next_number())
        return SimulatedFile(self, path, inode)

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def file_size(self, path: str) -> int:
        return len(self._lookup(path).content)

    def listdir(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        within = path.rstrip("/") + "/"
        found = [name for name in (*self._names, *self._directories) if name.startswith(within)]
        return sorted({name[len(within) :].split("/")[0] for name in found if name != within})

    def list_files(self, path: str) -> dict[str, int]:
        names = [name for name in self.listdir(path) if f"{path}/{name}" in self._names]
        return {name: self.file_size(f"{path}/{name}") for name in names}

    def mkdir(self, path: str) -> None:
        """Directories are durable at once; the log syncs them anyway and files in them are what can be lost."""
        self.maybe_fail("mkdir", path)
        while path not in self._directories:
            self._directories.add(path)
            path = self._parent(path)

    def rename(self, source: str, target: str) -> None:
        self.maybe_fail("rename", source)
        number = self._next_number()
        if source in self._directories:
            self._rename_directory(source, target)
            return
        inode = self._lookup(source)
        self._set(target, inode, number)
        self._set(source, None, number)

    def _rename_directory(self, source: str, target: str) -> None:
        """Atomic and durable at once: a simplification, since only topic deletion renames directories."""
        for names in (self._names, self._durable):
            for path in [path for path in names if path.startswith(source + "/")]:
                names[target + path[len(source) :]] = names.pop(path)
        moved = {path for path in self._directories if path == source or path.startswith(source + "/")}
        self._directories -= moved
        self._directories |= {target + path[len(source) :] for path in moved}
        for directory in moved:
            for change in self._changes.pop(directory, []):
                change.path = target + change.path[len(source) :]
                self._changes.setdefault(target + directory[len(source) :], []).append(change)

    def unlink(self, path: str) -> None:
        self.maybe_fail("unlink", path)
        self._lookup(path)
        self._set(path, None, self._next_number())

    def rmdir(self, path: str) -> None:
        self.maybe_fail("rmdir", path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self._directories.discard(path)

    def sync_dir(self, path: str) -> None:
        self.maybe_fail("sync_dir", path)
        for change in self._changes.pop(path, []):
            _settle_entry(self._durable, change)

    def syncfs(self, path: str) -> None:
        self.maybe_fail("syncfs", path)
        for directory in list(self._changes):
            for change in self._changes.pop(directory):
                _settle_entry(self._durable, change)
        for inode in set(self._names.values()):
            inode.sync()

    def lock(self, path: str) -> SimulatedLock:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable", path)
        self.open(path, create=True).write([b"%d\n" % os.getpid()], 0)
        self.locks.add(path)
        return SimulatedLock(self, path)

    def free_bytes(self, path: str) -> int:
        return 1 << 40 if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes())

    def total_bytes(self, path: str) -> int:
        return 1 << 40 if self.capacity_bytes is None else self.capacity_bytes

    # For tests that damage things on purpose.

    def contents(self, path: str) -> bytes:
        return bytes(self._lookup(path).content)

    def damage(self, path: str, change: Callable[[bytearray], None]) -> None:
        """Alter a file behind everybody's back, durably: what decay does."""
        inode = self._lookup(path)
        change(inode.content)
        inode.flushed = bytes(inode.content)
        inode.unsynced.clear()

    def _lookup(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return inode

    def _set(self, path: str, inode: _Inode | None, number: int) -> None:
        if inode is None:
            self._names.pop(path, None)
        else:
            self._names[path] = inode
        self._changes.setdefault(self._parent(path), []).append(_EntryChange(path, inode, number))

    def _next_number(self) -> int:
        self._change_number += 1
        return self._change_number

    @staticmethod
    def _parent(path: str) -> str:
        return path.rsplit("/", 1)[0] or "/"


class PowerLoss(BaseException):
    """The moment chosen by ``crash_after``: nothing may catch this but the test."""

    def __init__(self, operation: str, path: str) -> None:
        super().__init__(f"power loss at {operation} {path}")


def _settle_entry(names: dict[str, _Inode], change: _EntryChange) -> None:
    if change.inode is None:
        names.pop(change.path, None)
    else:
        names[change.path] = change.inode


def _settle_entries(names: dict[str, _Inode], changes: list[_EntryChange], chance: random.Random, style: str) -> None:
    survives: dict[int, bool] = {}
    for change in changes:
        if change.number not in survives:
            survives[change.number] = style == "everything" or (style == "some" and chance.random() < 0.5)
        if survives[change.number]:
            _settle_entry(names, change)


def _settle_file(inode: _Inode, chance: random.Random, style: str) -> _Inode:
    content = bytearray(inode.flushed)
    if style == "everything":
        content = bytearray(inode.content)
    elif style == "some":
        fate = chance.choice(("prefix", "blocks", "mixed"))
        for change in inode.unsynced:
            if not _settle_change(content, change, chance, fate):
                break
    return _Inode(content=content, flushed=bytes(content))


def _settle_change(content: bytearray, change: _Write | _Truncate, chance: random.Random, fate: str) -> bool:
    """Apply what survives of one write; False when, in a prefix, nothing after it does."""
    die = chance.random()
    if isinstance(change, _Truncate):
        if die < 0.7:
            _apply(content, change)
        return fate != "prefix" or die < 0.7
    if die < 0.4:
        _apply(content, change)
        return True
    if fate == "prefix":
        _apply(content, _Write(change.position, change.data[: chance.randint(0, len(change.data))]))
        return False
    if die < 0.9:
        _tear_blocks(content, change, chance)
    return True


def _tear_blocks(content: bytearray, change: _Write, chance: random.Random) -> None:
    """Some blocks of the write arrive and some do not; those behind the old end that do not read as zeros."""
    block = chance.choice(_BLOCKS)
    position = change.position
    end = position + len(change.data)
    while position < end:
        stop = min(end, (position // block + 1) * block)
        if chance.random() < 0.5:
            _apply(content, _Write(position, change.data[position - change.position : stop - change.position]))
        position = stop
