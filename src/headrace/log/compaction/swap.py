"""Replacing segments by their cleaned form so that a crash at any point leaves either the old ones or the new one.

Compaction writes ``<base>.log.cleaned-<token>``, ``.index.cleaned-<token>`` and ``.txn.cleaned-<token>`` and syncs
them. The token is that of the attempt: no two attempts share a file. The swap is then four steps with a sync of the
directory after each, because a directory's changes may reach the disk in any order:

1. ``.txn.cleaned-<token>`` → ``.txn.swap`` and ``.index.cleaned-<token>`` → ``.index.swap``.
2. ``.log.cleaned-<token>`` → ``.log.swap-<end offset>``. *From here on the swap is decided*: until now recovery removes
   what compaction wrote, from now on it completes the swap. The name carries where the replaced range ends, so that
   recovery knows what is replaced.
3. The replaced segments except the first are unlinked, ``.txn.swap`` and ``.index.swap`` take the first one's places.
4. ``.log.swap-<end offset>`` → ``.log``, replacing the first.

Were 4 to reach the disk before 3, a cleaned segment would stand beside segments that it contains, and records would
appear twice.

An error in one of these steps is dealt with as a crash would be, at once: an undecided swap is undone, a decided one is
tried once more.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.log.errors import SwapUnfinished
from headrace.log.segment import segment_name
from headrace.ports import Disk
from headrace.vocabulary import Offset

__all__ = [
    "SwapGroup",
    "SwapJob",
    "cleaned_suffix",
    "complete_swaps",
    "discard_cleaned",
]

LOG = logging.getLogger("headrace.compaction")

_KINDS = ("log", "index", "txn")
_DECIDED = re.compile(r"([0-9]{20})\.log\.swap-([0-9]{20})")
_UNDECIDED = re.compile(r"([0-9]{20})\.(index|txn)\.swap")
_CLEANED = re.compile(r"[0-9]{20}\.(log|index|txn)\.cleaned-[0-9A-Za-z]+")
_SEGMENT_FILE = re.compile(r"([0-9]{20})\.(log|index|txn)")


@dataclass(frozen=True, slots=True)
class SwapGroup:
    """One cleaned segment and the base offsets of those it replaces, which end before ``end_offset``."""

    base: Offset
    end_offset: Offset
    replaces: tuple[Offset, ...]
    size: int


@dataclass(slots=True)
class SwapJob:
    """A swap under way: ``run`` on another thread, between the log's ``begin_swap`` and ``finish_swap``."""

    disk: Disk
    directory: str
    token: str
    groups: Sequence[SwapGroup]
    cleaned_offset: Offset
    """How far the log is clean once all groups are swapped in."""
    whole: bool
    """Whether these are all groups of the result."""
    swapped: Sequence[SwapGroup] = ()

    def run(self) -> None:
        """Raises OSError when nothing was replaced, and SwapUnfinished when files and segments no longer fit."""
        self.swapped = swap_files(self.disk, self.directory, self.groups, self.token)
        if not self.whole or len(self.swapped) < len(self.groups):
            with suppress(OSError):  # what stays goes at the next start
                discard_cleaned(self.disk, self.directory, self.token)


def cleaned_suffix(token: str) -> str:
    return f".cleaned-{token}"


def discard_cleaned(disk: Disk, directory: str, token: str) -> None:
    """Remove what an attempt has written and nobody will swap in."""
    for name in disk.listdir(directory):
        if name.endswith(cleaned_suffix(token)):
            disk.unlink(f"{directory}/{name}")


def swap_files(disk: Disk, directory: str, groups: Sequence[SwapGroup], token: str) -> list[SwapGroup]:
    """Replace segments; returns the groups that were swapped in, which are all of them unless the disk refused.

    Raises OSError when none was, and SwapUnfinished when files and segments no longer fit together.
    """
    decided: list[SwapGroup] = []
    try:
        _decide(disk, directory, groups, cleaned_suffix(token), decided)
        _complete(disk, directory, decided)
        return decided
    except OSError as error:
        _undo(disk, directory, [group for group in groups if group not in decided], cleaned_suffix(token))
        if not decided:
            raise
        LOG.warning("%s: an error while compacted segments were put in place: %s", directory, error)
    try:
        _complete(disk, directory, decided)
    except OSError as error:
        raise SwapUnfinished(directory, error) from error
    return decided


def _decide(disk: Disk, directory: str, groups: Sequence[SwapGroup], suffix: str, decided: list[SwapGroup]) -> None:
    for group in groups:
        stem = f"{directory}/{segment_name(group.base)}"
        for kind in ("txn", "index"):
            disk.rename(f"{stem}.{kind}{suffix}", f"{stem}.{kind}.swap")
    disk.sync_dir(directory)
    for group in groups:
        stem = f"{directory}/{segment_name(group.base)}"
        disk.rename(f"{stem}.log{suffix}", f"{stem}.log.swap-{segment_name(group.end_offset)}")
        decided.append(group)
    disk.sync_dir(directory)


def _undo(disk: Disk, directory: str, groups: Sequence[SwapGroup], suffix: str) -> None:
    """Remove what was written for groups that were not decided. What cannot be removed now goes at the next start."""
    for group in groups:
        for kind in _KINDS:
            for name in (f"{kind}{suffix}", f"{kind}.swap"):
                with suppress(OSError):
                    disk.unlink(f"{directory}/{segment_name(group.base)}.{name}")


def _complete(disk: Disk, directory: str, groups: Sequence[SwapGroup]) -> None:
    """The steps after the decision. They may be repeated."""
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
    swap = f"{stem}.log.swap-{segment_name(end_offset)}"
    if disk.exists(swap):
        disk.rename(swap, f"{stem}.log")


def complete_swaps(disk: Disk, directory: str, files: dict[str, int]) -> bool:
    """After a crash: complete the swaps that were decided and remove what was written for others. True if it did
    any."""
    decided = {int(match[1]): int(match[2]) for match in map(_DECIDED.fullmatch, files) if match}
    leftovers = [name for name in files if _CLEANED.fullmatch(name)]
    leftovers += [match[0] for match in map(_UNDECIDED.fullmatch, files) if match and int(match[1]) not in decided]
    if not decided and not leftovers:
        return False
    for name in leftovers:
        disk.unlink(f"{directory}/{name}")
    present = {int(match[1]) for match in map(_SEGMENT_FILE.fullmatch, files) if match}
    for base, end_offset in decided.items():
        _replace_companions(disk, directory, base, sorted(other for other in present if base < other < end_offset))
    disk.sync_dir(directory)
    for base, end_offset in decided.items():
        _replace_log(disk, directory, base, end_offset)
    disk.sync_dir(directory)
    return True
