"""The directory that backups are kept in.

::

    <backups>/headrace-backups          one line: headrace-backups 1
    <backups>/epoch                     the last leader epoch that a restore has begun with
    <backups>/lock                      flock of the command that writes here
    <backups>/manifests/<name>          one for each backup; see manifest.py
    <backups>/objects/ab/<checksum>     up to 8 MiB of a file, called by the BLAKE2b of its bytes

An object is written under another name, renamed, and never changed. A manifest is written when all its objects are on
disk, and replaced by nobody. So a command that is killed leaves every earlier backup whole, and what it had copied by
then is found by the next one. Objects that no manifest names may be torn, if the power failed: they are written again.

What two backups have in common, such as sealed segments and the beginning of active ones, is there once.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from headrace.backup.manifest import BackupDamaged, Manifest, decode_manifest, encode_manifest
from headrace.errors import UsageError
from headrace.log.disk import OsDisk, replace_file
from headrace.ports import Lock

__all__ = ["OBJECT_BYTES", "Repository"]

OBJECT_BYTES: Final = 8 << 20
_MARK: Final = "headrace-backups"
_EPOCH: Final = "epoch"
_STARTS_MAX: Final = 1_000
"""Of a restored broker, before the time has passed it by."""
_LINE: Final = b"headrace-backups 1\n"
_FIRST: Final = frozenset({"manifests", "objects", f"{_MARK}.tmp"})
"""What a first command that was killed has left."""
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{0,99}")


class Repository:
    """Reading needs no lock; ``locked`` is for what changes it."""

    def __init__(self, path: str) -> None:
        """Open what is there. Raises UsageError."""
        self.path = os.path.abspath(path)
        self.disk = OsDisk()
        self._vouched: set[str] | None = None
        mark = f"{self.path}/{_MARK}"
        if not self.disk.exists(mark):
            raise UsageError(f"{self.path} holds no backups of headrace", "make one: headrace backup create DIR")
        if self._read(mark) != _LINE:
            raise UsageError(f"{self.path} was written by a newer headrace", "use that version")

    @classmethod
    def create(cls, path: str) -> Repository:
        """Open what is there, or make it in a directory that is empty or missing."""
        path = os.path.abspath(path)
        disk = OsDisk()
        if not disk.exists(f"{path}/{_MARK}"):
            if disk.exists(path) and (not disk.is_directory(path) or not set(disk.listdir(path)) <= _FIRST):
                raise UsageError(f"{path} is not empty and holds no backups", "give an empty or a new directory")
            for name in ("manifests", "objects"):
                disk.mkdir(f"{path}/{name}")
            replace_file(disk, f"{path}/{_MARK}", _LINE)
        return cls(path)

    def locked(self) -> Lock:
        """Raises UsageError while another command writes here."""
        try:
            return self.disk.lock(f"{self.path}/lock")
        except BlockingIOError:
            raise UsageError(f"another command writes to {self.path}", "wait until it has ended") from None

    # Manifests.

    def names(self) -> list[str]:
        """The backups there are, oldest first."""
        return sorted(name for name in self.disk.listdir(f"{self.path}/manifests") if not name.endswith(".tmp"))

    def manifest(self, name: str) -> Manifest:
        """Raises UsageError if there is none, BackupDamaged if it cannot be read."""
        path = f"{self.path}/manifests/{name}"
        if not _NAME.fullmatch(name) or not self.disk.exists(path):
            known = ", ".join(self.names()[-3:]) or "none"
            raise UsageError(f"{self.path} has no backup {name!r}", f"the newest are {known}")
        return decode_manifest(name, path, self._read(path))

    def newest(self) -> Manifest | None:
        """The newest backup that can be read."""
        for name in reversed(self.names()):
            with suppress(BackupDamaged):
                return self.manifest(name)
        return None

    def add(self, manifest: Manifest) -> None:
        """All objects of the manifest have been put. It is durable when this returns."""
        self.disk.syncfs(self.path)
        replace_file(self.disk, f"{self.path}/manifests/{manifest.name}", encode_manifest(manifest))

    def check_cluster(self, cluster_id: str) -> None:
        """Raises UsageError if the backups here are of another cluster: the newest, and what pruning keeps, would be
        that of one or the other by chance."""
        newest = self.newest()
        if newest is not None and newest.cluster_id and cluster_id and newest.cluster_id != cluster_id:
            raise UsageError(
                f"{self.path} has backups of the cluster {newest.cluster_id}, and this is {cluster_id}",
                "give each cluster its own directory",
            )

    def next_epoch(self, least: int) -> int:
        """A leader epoch for a restore, so far after the one of the last restore that the broker there may have been
        started some times."""
        path = f"{self.path}/{_EPOCH}"
        if self.disk.exists(path):
            with suppress(ValueError):
                least = max(least, int(self._read(path)) + _STARTS_MAX)
        with suppress(OSError):  # backups that may only be read are restored too
            replace_file(self.disk, path, b"%d\n" % least)
        return least

    # Objects.

    def put(self, data: bytes) -> tuple[str, bool]:
        """(the object's name, whether it had to be written)."""
        name = _checksum(data)
        if self.has(name):
            return name, False
        path = self._object(name)
        self.disk.mkdir(os.path.dirname(path))
        temporary = f"{self.path}/objects/{name}.tmp"
        file = self.disk.open(temporary, create=True)
        file.truncate(0)
        file.write([data], 0)
        file.close()
        self.disk.rename(temporary, path)
        self._names_vouched().add(name)
        return name, True

    def has(self, name: str) -> bool:
        """Whether the object is there, and a manifest or this process vouches for it."""
        return name in self._names_vouched() and self.disk.exists(self._object(name))

    def read(self, name: str) -> bytes:
        """The bytes of an object. Raises BackupDamaged."""
        path = self._object(name)
        try:
            data = self._read(path)
        except OSError as error:
            raise BackupDamaged(f"{path}: {error.strerror}") from error
        if _checksum(data) != name:
            raise BackupDamaged(f"{path}: its checksum is wrong")
        return data

    def set_aside(self, name: str) -> None:
        """Take a damaged object out of use: the next backup writes it again if the broker still has those bytes."""
        path = self._object(name)
        with suppress(FileNotFoundError):
            self.disk.rename(path, f"{path}.damaged")

    def _names_vouched(self) -> set[str]:
        if self._vouched is None:
            self._vouched = set()
            for name in self.names():
                with suppress(BackupDamaged):
                    self._vouched |= self.manifest(name).objects()
        return self._vouched

    def _object(self, name: str) -> str:
        return f"{self.path}/objects/{name[:2]}/{name[2:]}"

    def _read(self, path: str) -> bytes:
        file = self.disk.open(path, writable=False)
        return file.pread(file.size(), 0)

    # Removing.

    def prune(self, keep: int) -> tuple[list[str], int]:
        """Remove all backups but the newest ``keep``, and the objects that only they had: (names, bytes freed)."""
        assert keep > 0
        doomed = self.names()[:-keep]
        kept: set[str] = set()
        for name in self.names()[-keep:]:
            kept |= self.manifest(name).objects()  # BackupDamaged: what it needs is not known, so nothing goes
        for name in doomed:
            self.disk.unlink(f"{self.path}/manifests/{name}")
        self.disk.sync_dir(f"{self.path}/manifests")
        freed = 0
        for path, name in self._stored():
            if name not in kept:
                freed += self.disk.file_size(path)
                self.disk.unlink(path)
        return doomed, freed

    def _stored(self) -> Iterator[tuple[str, str]]:
        """(path, object's name) of every file below ``objects``; of what is no object, the name is that of no other."""
        home = f"{self.path}/objects"
        for folder in self.disk.listdir(home):
            if not self.disk.is_directory(f"{home}/{folder}"):
                yield f"{home}/{folder}", folder
                continue
            for name in self.disk.listdir(f"{home}/{folder}"):
                yield f"{home}/{folder}/{name}", folder + name


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()
