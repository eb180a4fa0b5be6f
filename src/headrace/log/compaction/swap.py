"""Replacing segments by their cleaned form so that a crash at any point leaves either the old ones or the new one.

Compaction writes ``<base>.log.cleaned``, ``.index.cleaned`` and ``.txn.cleaned`` and syncs them. The swap is then four
steps with a sync of the directory after each, because a directory's changes may reach the disk in any order:

1. ``.txn.cleaned`` → ``.txn.swap`` and ``.index.cleaned`` → ``.index.swap``.
2. ``.log.cleaned`` → ``.log.swap-<end offset>``. *From here on the swap is decided*: until now recovery removes what
   compaction wrote, from now on it completes the swap. The name carries where the replaced range ends, so that
   recovery knows what is replaced.
3. The replaced segments except the first are unlinked, ``.txn.swap`` and ``.index.swap`` take the first one's places.
4. ``.log.swap-<end offset>`` → ``.log``, replacing the first.

Were 4 to reach the disk before 3, a cleaned segment would stand beside segments that it contains, and records would
appear twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.log.segment import segment_name
from headrace.ports import Disk
from headrace.vocabulary import Offset

__all__ = ["SwapGroup", "complete_swaps", "discard_cleaned", "swap_files"]

_KINDS = ("log", "index", "txn")
_DECIDED = re.compile(r"(\d{20})\.log\.swap-(\d{20})")


@dataclass(frozen=True, slots=True)
class SwapGroup:
    """One cleaned segment and the base offsets of those it replaces, which end before ``end_offset``."""

    base: Offset
    end_offset: Offset
    replaces: tuple[Offset, ...]
    size: int


def discard_cleaned(disk: Disk, directory: str, base: int) -> None:
    """Throw away a cleaned segment that was not swapped in."""
    for kind in _KINDS:
        with suppress(FileNotFoundError):
            disk.unlink(f"{directory}/{segment_name(base)}.{kind}.cleaned")


def swap_files(disk: Disk, directory: str, groups: Sequence[SwapGroup]) -> None:
    if not groups:
        return
    for group in groups:
        stem = f"{directory}/{segment_name(group.base)}"
        for kind in ("txn", "index"):
            disk.rename(f"{stem}.{kind}.cleaned", f"{stem}.{kind}.swap")
    disk.sync_dir(directory)
    for group in groups:
        stem = f"{directory}/{segment_name(group.base)}"
        disk.rename(f"{stem}.log.cleaned", f"{stem}.log.swap-{segment_name(group.end_offset)}")
    disk.sync_dir(directory)
    for group in groups:
        _replace_companions(disk, directory, group.base, group.replaces[1:])
    disk.sync_dir(directory)
    for group in groups:
        _replace_log(disk, directory, group.base, group.end_offset)
    disk.sync_dir(directory)


def _replace_companions(disk: Disk, directory: str, base: int, others: Sequence[int]) -> None:
    for other in others:
        for kind in _KINDS:
            with suppress(FileNotFoundError):
                disk.unlink(f"{directory}/{segment_name(other)}.{kind}")
    stem = f"{directory}/{segment_name(base)}"
    for kind in ("txn", "index"):
        # Missing when a recovery repeats this step: then it has its place already.
        with suppress(FileNotFoundError):
            disk.rename(f"{stem}.{kind}.swap", f"{stem}.{kind}")


def _replace_log(disk: Disk, directory: str, base: int, end_offset: int) -> None:
    stem = f"{directory}/{segment_name(base)}"
    disk.rename(f"{stem}.log.swap-{segment_name(end_offset)}", f"{stem}.log")


def complete_swaps(disk: Disk, directory: str, files: dict[str, int]) -> bool:
    """After a crash: complete the swaps that were decided and remove what was written for others. True if it did
    any."""
    decided = {int(match[1]): int(match[2]) for match in map(_DECIDED.fullmatch, files) if match}
    leftovers = [
        name
        for name in files
        if name.endswith(".cleaned") or (name.endswith(".swap") and int(name[:20]) not in decided)
    ]
    if not decided and not leftovers:
        return False
    for name in leftovers:
        disk.unlink(f"{directory}/{name}")
    for base, end_offset in decided.items():
        present = {int(name[:20]) for name in files if name[20:] in (".log", ".index", ".txn")}
        _replace_companions(disk, directory, base, sorted(other for other in present if base < other < end_offset))
    disk.sync_dir(directory)
    for base, end_offset in decided.items():
        _replace_log(disk, directory, base, end_offset)
    disk.sync_dir(directory)
    return True
