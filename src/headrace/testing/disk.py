"""A disk in memory that loses power, tears and reorders writes, fills up and fails on demand.

It keeps apart what a real disk keeps apart. For every file: the bytes that are *flushed* and the writes since. For
every directory: the entries that are durable and the changes since (creates, directories made, renames, unlinks).

A process can end in two ways:

* ``kill()`` is ``kill -9``. Open files become unusable and locks are free. Everything written can still be read, but
  what was not synced is still not synced.
* ``crash(seed)`` is a power loss. What was not synced survives by chance: a write whole, not at all, up to some byte,
  or in some of its 512- or 4,096-byte blocks (the others read as zeros or as before); a change of a directory or not,
  independently of the bytes. The same seed and history give the same disk.

It is stricter than most filesystems: a synced file is gone after a power loss if one of the directories on its path
was not durable.
"""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Callable, Iterator, Sequence
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
    """A directory entry set (``node``) or removed (None). The two parts of a rename share a number: a power loss keeps
    both or neither."""

    name: str
    node: _Node | None
    number: int

    def apply(self, entries: dict[str, _Node]) -> None:
        if self.node is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.node


@dataclass(slots=True, eq=False)
class _Directory:
    entries: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    changes: list[_EntryChange] = field(default_factory=list)

    def change(self, change: _EntryChange) -> None:
        change.apply(self.entries)
        self.changes.append(change)

    def sync(self) -> None:
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()


_Node = _Inode | _Directory


class SimulatedFile:
    """An open file of a SimulatedDisk; unusable after the process that opened it has died."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._life = disk.life

    def _check(self, operation: str) -> None:
        assert self._life == self._disk.life, f"{self.path} was used by a process that is dead"
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
        """Counts the deaths of the process, by kill or by power loss."""
        self.locks: set[str] = set()
        self.operations = 0
        self.crash_after: int | None = None
        """Raise PowerLoss before the operation with this number: every point of a run can be a crash point."""
        self._root = _Directory()
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
        return sum(len(node.content) for node in _walk(self._root) if isinstance(node, _Inode))

    def kill(self) -> None:
        """The process dies and the machine goes on: what was written can be read, and is no more durable than it
        was."""
        self.locks.clear()
        self._faults.clear()
        self.crash_after = None
        self.life += 1

    def crash(self, seed: int) -> None:
        """The power fails: what was not synced survives by chance, decided by ``seed``."""
        chance = random.Random(seed)
        style = chance.choice(("nothing", "everything", "some", "some", "some"))
        survives: dict[int, bool] = {}
        # Directories are visited as they were before the loss, so that the order of the throws is that of the names.
        for node in list(_walk(self._root, durable_too=True)):
            if isinstance(node, _Directory):
                _settle_entries(node, survives, chance, style)
        for node in list(_walk(self._root)):
            if isinstance(node, _Inode):
                _settle_file(node, chance, style)
        self.kill()

    # The port.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        self.maybe_fail("open", path)
        node = self._find(path)
        if node is None and create:
            node = _Inode()
            self._set(path, node, self._next_number())
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return SimulatedFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), _Directory)

    def file_size(self, path: str) -> int:
        return len(self._file(path).content)

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def list_files(self, path: str) -> dict[str, int]:
        entries = sorted(self._directory(path).entries.items())
        return {name: len(node.content) for name, node in entries if isinstance(node, _Inode)}

    def mkdir(self, path: str) -> None:
        """Each new level is an entry of its parent, and durable when the parent was synced."""
        self.maybe_fail("mkdir", path)
        built = ""
        for name in _names(path):
            built = f"{built}/{name}"
            if self._find(built) is None:
                self._set(built, _Directory(), self._next_number())

    def rename(self, source: str, target: str) -> None:
        self.maybe_fail("rename", source)
        node = self._lookup(source)
        number = self._next_number()
        self._set(target, node, number)
        self._set(source, None, number)

    def link(self, source: str, target: str) -> None:
        self.maybe_fail("link", source)
        self._set(target, self._file(source), self._next_number())

    def unlink(self, path: str) -> None:
        self.maybe_fail("unlink", path)
        self._file(path)
        self._set(path, None, self._next_number())

    def rmdir(self, path: str) -> None:
        self.maybe_fail("rmdir", path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self._set(path, None, self._next_number())

    def sync_dir(self, path: str) -> None:
        self.maybe_fail("sync_dir", path)
        self._directory(path).sync()

    def syncfs(self, path: str) -> None:
        self.maybe_fail("syncfs", path)
        for node in list(_walk(self._root, durable_too=True)):
            node.sync()

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
        return bytes(self._file(path).content)

    def damage(self, path: str, change: Callable[[bytearray], None]) -> None:
        """Alter a file durably and without any of the operations above, as decay does."""
        inode = self._file(path)
        change(inode.content)
        inode.flushed = bytes(inode.content)
        inode.unsynced.clear()

    # Finding.

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in _names(path):
            node = node.entries.get(name) if isinstance(node, _Directory) else None
        return node

    def _lookup(self, path: str) -> _Node:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _file(self, path: str) -> _Inode:
        node = self._lookup(path)
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._lookup(path)
        if isinstance(node, _Inode):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node

    def _set(self, path: str, node: _Node | None, number: int) -> None:
        parent, _, name = path.rpartition("/")
        self._directory(parent).change(_EntryChange(name, node, number))

    def _next_number(self) -> int:
        self._change_number += 1
        return self._change_number


class PowerLoss(BaseException):
    """The moment chosen by ``crash_after``: nothing may catch this but the test."""

    def __init__(self, operation: str, path: str) -> None:
        super().__init__(f"power loss at {operation} {path}")


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _walk(directory: _Directory, *, durable_too: bool = False) -> Iterator[_Node]:
    """Every node below, and the directory itself, each once. With ``durable_too`` also nodes that were unlinked or
    moved, but not durably."""
    seen: set[_Node] = set()
    found: list[_Node] = [directory]
    while found:
        node = found.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if isinstance(node, _Directory):
            found += [node.entries[name] for name in sorted(node.entries)]
            if durable_too:
                found += [node.durable[name] for name in sorted(node.durable)]


def _settle_entries(directory: _Directory, survives: dict[int, bool], chance: random.Random, style: str) -> None:
    for change in directory.changes:
        if change.number not in survives:
            survives[change.number] = style == "everything" or (style == "some" and chance.random() < 0.5)
        if survives[change.number]:
            change.apply(directory.durable)
    directory.changes.clear()
    directory.entries = dict(directory.durable)


def _settle_file(inode: _Inode, chance: random.Random, style: str) -> None:
    content = bytearray(inode.flushed)
    if style == "everything":
        content = bytearray(inode.content)
    elif style == "some":
        fate = chance.choice(("prefix", "blocks", "mixed"))
        for change in inode.unsynced:
            if not _settle_change(content, change, chance, fate):
                break
    inode.content = content
    inode.flushed = bytes(content)
    inode.unsynced.clear()


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
    """Some blocks of the write arrive and some do not; those past the old end that do not arrive read as zeros."""
    block = chance.choice(_BLOCKS)
    position = change.position
    end = position + len(change.data)
    while position < end:
        stop = min(end, (position // block + 1) * block)
        if chance.random() < 0.5:
            _apply(content, _Write(position, change.data[position - change.position : stop - change.position]))
        position = stop
