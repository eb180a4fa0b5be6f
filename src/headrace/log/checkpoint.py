"""From where each log must be scanned after a crash, in one file per data directory: ``checkpoint``.

The file is one line ``headrace-checkpoint 2 <CRC-32C of the rest, 8 hex digits>`` and then JSON::

    {"clean": false, "logs": {"topics/orders~6f1c…/0":
    [start offset, recovery offset, recovery position, [[epoch, start], …],
    cleaned offset, whether no producer is known there, aborted count, whether there may be gaps]}}

*Start offset*: nothing before it is served, whatever files are still there. *Recovery offset and position*: everything
before was flushed before this file was written, its index and aborted transactions included, so it is never scanned;
what follows is scanned after a crash. *Cleaned offset*: compaction has been through everything before it. Where no
producer is known at the recovery offset there is no snapshot of producers either, and nobody needs to look for them in
the log. *Aborted count*: the entries in the .txn file of the segment that holds the recovery point, before that point.
*Gaps*: compaction or a repair has removed offsets. ``clean`` is written last of all at an orderly stop: then nothing
follows.

The file is replaced atomically. If it is missing or does not check out, every log is scanned from its first byte. That
is slow, but right: what the log's own files do not tell, the start marker in its directory (``start.py``) and
``flushed`` (``flushed.py``) do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import google_crc32c

from headrace.log.disk import replace_file
from headrace.ports import Disk
from headrace.vocabulary import FILE_START, FIRST_OFFSET, Epoch, Offset, Position

__all__ = ["Checkpoint", "LogMark", "read_checkpoint", "write_checkpoint"]

_NAME: Final = b"headrace-checkpoint "
_HEAD: Final = _NAME + b"2 "


@dataclass(frozen=True, slots=True)
class LogMark:
    """One partition's line."""

    start_offset: Offset = FIRST_OFFSET
    recovery_offset: Offset = FIRST_OFFSET
    recovery_position: Position = FILE_START
    epochs: tuple[tuple[Epoch, Offset], ...] = ()
    cleaned_offset: Offset = FIRST_OFFSET
    producerless: bool = False
    """No producer is known at the recovery offset."""
    aborted_count: int = 0
    """Aborted transactions before the recovery point in its segment."""
    gaps: bool = False
    """Compaction or a repair may have removed offsets before the recovery point."""


@dataclass(slots=True)
class Checkpoint:
    clean: bool = False
    logs: dict[str, LogMark] = field(default_factory=dict)
    problem: str | None = None
    """Why the file could not be used; it was then as if there were none."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    # Log by log: one call for thousands of them would keep the interpreter's lock, and so the event loop, all the time.
    logs = ",".join(f"{_dump(name)}:{_dump(_row(mark))}" for name, mark in checkpoint.logs.items())
    body = f'{{"clean":{_dump(checkpoint.clean)},"logs":{{{logs}}}}}'.encode()
    return _HEAD + b"%08x\n" % google_crc32c.value(body) + body


def _row(mark: LogMark) -> list[Any]:
    return [
        mark.start_offset,
        mark.recovery_offset,
        mark.recovery_position,
        mark.epochs,
        mark.cleaned_offset,
        mark.producerless,
        mark.aborted_count,
        mark.gaps,
    ]


_dump = json.JSONEncoder(separators=(",", ":")).encode


def decode_checkpoint(data: bytes) -> Checkpoint:
    head, _, body = data.partition(b"\n")
    if head.startswith(_NAME) and not head.startswith(_HEAD):
        return Checkpoint(problem="another version of headrace wrote it: every log is scanned from its first byte")
    if head != _HEAD + b"%08x" % google_crc32c.value(body):
        return Checkpoint(problem="the checkpoint's checksum is wrong: every log is scanned from its first byte")
    content: dict[str, Any] = json.loads(body)
    logs = {
        name: LogMark(start, offset, position, tuple((epoch, first) for epoch, first in epochs), *rest)
        for name, (start, offset, position, epochs, *rest) in content["logs"].items()
    }
    return Checkpoint(clean=bool(content["clean"]), logs=logs)


def write_checkpoint(disk: Disk, path: str, checkpoint: Checkpoint) -> None:
    replace_file(disk, path, encode_checkpoint(checkpoint))


def read_checkpoint(disk: Disk, path: str) -> Checkpoint:
    if not disk.exists(path):
        return Checkpoint()
    file = disk.open(path, writable=False)
    return decode_checkpoint(file.pread(file.size(), 0))
