"""The version of the data directory: ``<data>/format``, one line ``headrace-data <version> <CRC-32C, 8 hex digits>``.

The version is that of the directory as a whole: which files there are, and what they mean. It rises when a headrace
that does not know of a change would misread the directory, or lose something in it. The rules of an upgrade are in
docs/operations.md:

* An older version is opened, and what must change is changed before anything is served. Then the file is replaced.
* A newer version is refused, with nothing changed.
* A directory without this file is of version 1: the file is younger than the format.

A file that does not check out says nothing. It is reported and written again.
"""

from __future__ import annotations

import re
from typing import Final

import google_crc32c

from headrace.errors import UsageError
from headrace.log.disk import replace_file
from headrace.ports import Disk

__all__ = ["FORMAT_VERSION", "RESTORING", "check_format", "encode_format", "write_format"]

FORMAT_VERSION: Final = 1
NAME: Final = "format"
RESTORING: Final = "restoring"
"""A file that is there while a backup is restored into the directory."""
_LINE = re.compile(rb"(headrace-data ([0-9]{1,9})) ([0-9a-f]{8})\n")


def encode_format(version: int = FORMAT_VERSION) -> bytes:
    text = b"headrace-data %d" % version
    return text + b" %08x\n" % google_crc32c.value(text)


def write_format(disk: Disk, directory: str) -> None:
    replace_file(disk, f"{directory}/{NAME}", encode_format())


def check_format(disk: Disk, directory: str) -> str | None:
    """Refuse a directory that must not be opened. Returns why the file must be written again, "" if there is none, and
    None if all is well."""
    if disk.exists(f"{directory}/{RESTORING}"):
        raise UsageError(
            f"a backup was being restored into {directory} and that did not end",
            "remove the directory and restore again: headrace restore",
        )
    path = f"{directory}/{NAME}"
    if not disk.exists(path):
        return ""
    file = disk.open(path, writable=False)
    match = _LINE.fullmatch(file.pread(file.size(), 0))
    if match is None or b"%08x" % google_crc32c.value(match[1]) != match[3]:
        return f"the file does not check out; the directory is taken for version {FORMAT_VERSION}"
    version = int(match[2])
    if version > FORMAT_VERSION:
        raise UsageError(
            f"the data directory {directory} has format {version}, and this headrace knows formats up to "
            f"{FORMAT_VERSION}: a newer headrace wrote it",
            "run that version, or restore a backup that was made before the upgrade",
        )
    return None
