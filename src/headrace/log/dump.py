"""Reading a partition's directory without owning it: for ``headrace log dump`` and for people with a broken disk.

Nothing here writes. A log that is being appended to can be dumped; its last batch may then look torn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.batch import HEADER_BYTES, PREFIX_BYTES, Batch, parse_header
from headrace.log.segment import segment_bases, segment_name
from headrace.ports import Disk, File
from headrace.vocabulary import Offset

__all__ = ["BadBytes", "StoredBatch", "log_files", "walk_directory", "walk_file"]


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch and where it stands."""

    path: str
    position: int
    batch: Batch
    checksum_holds: bool


@dataclass(frozen=True, slots=True)
class BadBytes:
    """Bytes that are no batch; the walk of this file ends with them."""

    path: str
    position: int
    size: int
    reason: str


def log_files(disk: Disk, directory: str) -> list[Offset]:
    """Base offsets of the segments in a directory, oldest first."""
    return segment_bases(disk.listdir(directory))


def walk_directory(disk: Disk, directory: str) -> Iterator[StoredBatch | BadBytes]:
    """Every batch of every segment in order."""
    for base_offset in log_files(disk, directory):
        yield from walk_file(disk, f"{directory}/{segment_name(base_offset)}.log")


def walk_file(disk: Disk, path: str, size: int | None = None) -> Iterator[StoredBatch | BadBytes]:
    """Every batch of one file, or of its first ``size`` bytes."""
    file = disk.open(path, writable=False)
    end = file.size() if size is None else size
    position = 0
    while position < end:
        found = _read(file, path, position, end)
        yield found
        if isinstance(found, BadBytes):
            return
        position += found.batch.size


def _read(file: File, path: str, position: int, end: int) -> StoredBatch | BadBytes:
    header = parse_header(file.pread(HEADER_BYTES, position))
    if header is None:
        return BadBytes(path, position, end - position, "no batch begins here")
    size = header.size
    if size > end - position:
        reason = f"a batch of {size} bytes begins here, but the file has {end - position} more"
        return BadBytes(path, position, end - position, reason)
    batch = Batch(header, file.pread(size - PREFIX_BYTES, position + PREFIX_BYTES))
    return StoredBatch(path, position, batch, batch.checksum_holds())
