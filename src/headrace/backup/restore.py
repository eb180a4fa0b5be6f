"""A data directory from a backup.

The directory has the file ``restoring`` until every byte is there and on disk: a restore that was interrupted cannot be
mistaken for a data directory. Every object is compared with its checksum. At the end the file ``restored`` tells the
first broker that starts here that what was done after the backup is missing. That broker goes on with a leader epoch
and producer ids that the old one cannot have used. So clients notice that the log was cut, by OffsetForLeaderEpoch, and
no producer of the old broker is taken for one of the new.

Two restores one after the other must not meet in one epoch either, so the directory of backups remembers the last one
that was given out. Where it may not be written, only the time distinguishes them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator

from headrace.backup.manifest import Manifest
from headrace.backup.repository import Repository
from headrace.broker.verify import DataVerifier
from headrace.errors import UsageError
from headrace.log.disk import OsDisk, replace_file
from headrace.log.findings import Finding
from headrace.log.format import RESTORING
from headrace.log.store import RESTORED, epoch_of_time

__all__ = ["findings_in", "restore"]


def restore(
    repository: Repository, manifest: Manifest, directory: str, on_file: Callable[[int], None] = lambda size: None
) -> None:
    """Make the data directory of a backup. Raises UsageError if something is there, BackupDamaged if the backup is not
    whole."""
    directory = os.path.abspath(directory)
    disk = OsDisk()
    if disk.exists(f"{directory}/{RESTORING}"):
        raise UsageError(f"an earlier restore into {directory} did not end", "remove the directory first")
    if disk.exists(directory) and (not disk.is_directory(directory) or disk.listdir(directory)):
        raise UsageError(f"{directory} is not empty", "give an empty or a new directory with --data")
    disk.mkdir(directory)
    replace_file(disk, f"{directory}/{RESTORING}", b"")
    for file in manifest.files:
        path = f"{directory}/{_checked(file.path)}"
        disk.mkdir(os.path.dirname(path))
        target = disk.open(path, create=True)
        position = 0
        for name in file.objects:
            position += target.write([repository.read(name)], position)
        target.close()
        on_file(file.size)
    note = {
        "backup": manifest.name,
        "created_ms": manifest.created_ms,
        "leader_epoch": repository.next_epoch(epoch_of_time(time.time_ns() // 1_000_000)),
    }
    replace_file(disk, f"{directory}/{RESTORED}", json.dumps(note).encode())
    disk.syncfs(directory)
    disk.unlink(f"{directory}/{RESTORING}")
    disk.sync_dir(directory)


def _checked(path: str) -> str:
    """A manifest may name files below the data directory and no others, even if it was altered."""
    if path.startswith("/") or ".." in path.split("/"):
        raise UsageError(f"the backup names the file {path!r}, which is outside of a data directory", "do not use it")
    return path


def findings_in(directory: str) -> Iterator[Finding]:
    """What ``headrace log verify`` finds in a restored directory."""
    return DataVerifier(OsDisk(), os.path.abspath(directory)).run()
