"""The start marker: ``<start offset, 20 digits>.start``, an empty file in a log's directory.

Nothing below the start offset is served, whatever files are still there. The checkpoint says so too; the marker is what
remains when the checkpoint is lost, so that deleted records stay deleted. All it says is in its name: there are no
bytes that could decay, and moving it is one rename. A log that begins at offset 0 has none.

A checkpoint moves it after everything below the new start was synced, and makes it durable before the checkpoint
itself is written. Files go only below a durable marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.ports import Disk
from headrace.vocabulary import Offset

__all__ = ["marked_start", "start_path", "write_start"]

_SUFFIX = ".start"
_NAME = re.compile(r"([0-9]{20})\.start")


def start_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}{_SUFFIX}"


def marked_start(names: Iterable[str]) -> Offset:
    """The start offset that these files tell; 0 without a marker."""
    return max((Offset(int(match[1])) for match in map(_NAME.fullmatch, names) if match), default=Offset(0))


def write_start(disk: Disk, directory: str, before: Offset, offset: Offset) -> None:
    """Move the marker from ``before`` to ``offset``, unsynced. Raises OSError with the old one in its place;
    FileNotFoundError when the directory is gone."""
    if before > 0 and disk.exists(start_path(directory, before)):
        disk.rename(start_path(directory, before), start_path(directory, offset))
    else:
        disk.open(start_path(directory, offset), create=True).close()
