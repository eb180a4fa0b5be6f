"""What a backup is made of: a snapshot of a broker that runs, or the data directory of one that is stopped."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from headrace.broker.verify import DataVerifier
from headrace.client import Admin, Client
from headrace.errors import UsageError
from headrace.log.disk import OsDisk
from headrace.log.errors import DataDirectoryInUse
from headrace.log.format import check_format
from headrace.log.snapshot import SNAPSHOTS, remove_tree
from headrace.log.space import SPACES

__all__ = ["Source", "of_running", "of_stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files to be copied: their paths below ``directory``, and how many bytes of each."""

    directory: str
    files: list[tuple[str, int]]
    created_ms: int
    cluster_id: str = ""
    unserved: list[str] = field(default_factory=list)


@contextmanager
def of_running(client: Client) -> Iterator[Source]:
    """A snapshot of the broker's data directory, which must be on this machine. It is removed at the end."""
    path = Admin(client).create_snapshot()
    disk = OsDisk()
    try:
        # Before anything is written or removed here: only a snapshot is, whatever a broker answers.
        if path.split("/")[-2:-1] != [SNAPSHOTS]:
            raise ValueError("it is none")
        file = disk.open(f"{path}/snapshot.json", writable=False)
        described = json.loads(file.pread(file.size(), 0))
        lock = disk.lock(f"{path}/lock")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the broker's snapshot {path} cannot be read here: {getattr(error, 'strerror', None) or error}",
            "run this on the broker's machine and as its user, or stop the broker and give --data",
        ) from None
    try:
        yield Source(
            directory=f"{path}/data",
            files=[(name, size) for name, size in described["files"]],
            created_ms=described["created_ms"],
            cluster_id=described["cluster_id"],
            unserved=described["unserved"],
        )
    finally:
        with suppress(OSError):  # the broker removes what is left
            remove_tree(disk, path)
        lock.release()


@contextmanager
def of_stopped(directory: str) -> Iterator[Source]:
    """The data directory of a broker that does not run: everything in it that is headrace's. No broker can start on it
    meanwhile."""
    disk = OsDisk()
    if not disk.exists(f"{directory}/checkpoint"):
        raise UsageError(f"{directory} is no data directory of headrace", "give the one of 'headrace up --data'")
    try:
        lock = disk.lock(f"{directory}/lock")
    except BlockingIOError:
        file = disk.open(f"{directory}/lock", writable=False)
        owner = file.pread(20, 0).decode().strip()
        raise DataDirectoryInUse(directory, owner, "leave --data out and give the broker's --bootstrap") from None
    try:
        check_format(disk, directory)
        files = [name for name in ("format", "checkpoint", "flushed") if disk.exists(f"{directory}/{name}")]
        for space in SPACES:
            files += _files_below(disk, directory, space)
        yield Source(
            directory=directory,
            files=[(name, disk.file_size(f"{directory}/{name}")) for name in files],
            created_ms=int(time.time() * 1000),
            cluster_id=_cluster_id(disk, directory),
        )
    finally:
        lock.release()


def _cluster_id(disk: OsDisk, directory: str) -> str:
    """As the journal says; nothing where it is damaged."""
    verifier = DataVerifier(disk, os.path.abspath(directory))
    for _ in verifier.read_tables():
        pass
    row = verifier.rows.get("node", {}).get("identity") or {}
    return str(row.get("cluster_id", ""))


def _files_below(disk: OsDisk, directory: str, path: str) -> Iterator[str]:
    for name in disk.listdir(f"{directory}/{path}"):
        if disk.is_directory(f"{directory}/{path}/{name}"):
            yield from _files_below(disk, directory, f"{path}/{name}")
        elif not name.endswith(".tmp") and ".cleaned-" not in name:
            yield f"{path}/{name}"
