"""A manifest: which files a backup has, and of which objects each is made.

One line ``headrace-backup-manifest 1 <CRC-32C of the rest, 8 hex digits>`` and then JSON::

    {"created_ms": …, "cluster_id": "…", "headrace": "0.1.0", "unserved": ["topics/orders~6f1c…/0", …],
     "files": [["topics/orders~6f1c…/0/00000000000000000000.log", 8400000, [size, mtime ns, inode], ["9f…", "02…"]], …]}

A file is the bytes of its objects, one after the other. The three numbers are those of the file that was read; if they
are the same at the next backup, it is not read again. *Unserved* logs were damaged when the backup was made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

import google_crc32c

from headrace.errors import HeadraceError

__all__ = ["BackupDamaged", "BackupFile", "Manifest", "Stamp", "decode_manifest", "encode_manifest"]

_HEAD: Final = b"headrace-backup-manifest 1 "

Stamp = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, and inode."""


class BackupDamaged(HeadraceError):
    """A file of the backup is missing or is not what was written."""


@dataclass(frozen=True, slots=True)
class BackupFile:
    path: str
    size: int
    stamp: Stamp
    objects: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Manifest:
    name: str
    created_ms: int
    cluster_id: str
    headrace: str
    unserved: list[str] = field(default_factory=list)
    files: list[BackupFile] = field(default_factory=list)

    @property
    def bytes_total(self) -> int:
        return sum(file.size for file in self.files)

    def objects(self) -> set[str]:
        return {each for file in self.files for each in file.objects}


def encode_manifest(manifest: Manifest) -> bytes:
    body = json.dumps(
        {
            "created_ms": manifest.created_ms,
            "cluster_id": manifest.cluster_id,
            "headrace": manifest.headrace,
            "unserved": manifest.unserved,
            "files": [[file.path, file.size, file.stamp, file.objects] for file in manifest.files],
        },
        separators=(",", ":"),
    ).encode()
    return _HEAD + b"%08x\n" % google_crc32c.value(body) + body


def decode_manifest(name: str, path: str, data: bytes) -> Manifest:
    """Raises BackupDamaged."""
    head, _, body = data.partition(b"\n")
    if head != _HEAD + b"%08x" % google_crc32c.value(body):
        raise BackupDamaged(f"{path} does not check out: it is damaged, or a newer headrace wrote it")
    content = json.loads(body)
    return Manifest(
        name=name,
        created_ms=content["created_ms"],
        cluster_id=content["cluster_id"],
        headrace=content["headrace"],
        unserved=content["unserved"],
        files=[
            BackupFile(path, size, (stamp[0], stamp[1], stamp[2]), tuple(objects))
            for path, size, stamp, objects in content["files"]
        ],
    )
