"""One backup: files become objects, and a manifest says which.

A file that is as it was at the last backup, by its size, its time of change and its inode, is not read again. What is
read is cut into objects of 8 MiB from its beginning. So of an active segment that has grown only the end is new.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import headrace
from headrace.backup.manifest import BackupFile, Manifest
from headrace.backup.repository import OBJECT_BYTES, Repository
from headrace.backup.source import Source
from headrace.errors import HeadraceError

__all__ = ["Backup", "create"]


@dataclass(slots=True)
class Backup:
    """A backup that was made, and what it took."""

    manifest: Manifest
    bytes_read: int = 0
    bytes_written: int = 0
    files_unchanged: int = 0


def create(repository: Repository, source: Source, on_file: Callable[[int], None] = lambda size: None) -> Backup:
    """Copy what is new. ``on_file`` is called with the bytes of each file that is done. Raises HeadraceError or
    OSError; then there is no new backup, and the others are as they were. UsageError: they are of another cluster."""
    repository.check_cluster(source.cluster_id)
    manifest = Manifest(
        name=_name(source.created_ms, repository.names()),
        created_ms=source.created_ms,
        cluster_id=source.cluster_id,
        headrace=headrace.__version__,
        unserved=source.unserved,
    )
    backup = Backup(manifest)
    newest = repository.newest()
    before = {} if newest is None else {file.path: file for file in newest.files}
    for path, size in source.files:
        manifest.files.append(_copied(repository, source.directory, path, size, before.get(path), backup))
        on_file(size)
    repository.add(manifest)
    return backup


def _name(created_ms: int, others: list[str]) -> str:
    """After all others, also where the clock was set back: the newest backup is the one that pruning keeps."""
    made = datetime.fromtimestamp(created_ms / 1000, UTC)
    name = f"{made:%Y%m%dT%H%M%S}.{created_ms % 1000:03d}Z"
    number = itertools.count(1)
    while others and name <= others[-1]:
        name = f"{others[-1].partition('-')[0]}-{next(number):03d}"
    return name


def _copied(
    repository: Repository, directory: str, path: str, size: int, before: BackupFile | None, backup: Backup
) -> BackupFile:
    with open(f"{directory}/{path}", "rb", buffering=0) as file:
        stat = os.fstat(file.fileno())
        stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if before is not None and (before.size, before.stamp) == (size, stamp):
            if all(map(repository.has, before.objects)):
                backup.files_unchanged += 1
                return before
        objects = []
        left = size
        while left:
            data = _read(file.fileno(), min(OBJECT_BYTES, left), size - left)
            if not data:
                raise HeadraceError(f"{directory}/{path} has {size - left} bytes where there were {size}")
            name, is_new = repository.put(data)
            objects.append(name)
            left -= len(data)
            backup.bytes_read += len(data)
            backup.bytes_written += len(data) if is_new else 0
    return BackupFile(path, size, stamp, tuple(objects))


def _read(fd: int, size: int, position: int) -> bytes:
    """This many bytes, or those up to the end of the file."""
    chunks = []
    while size and (chunk := os.pread(fd, size, position)):
        chunks.append(chunk)
        size -= len(chunk)
        position += len(chunk)
    return b"".join(chunks)
