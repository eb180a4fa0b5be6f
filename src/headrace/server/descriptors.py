"""File descriptors: how many there are, and who may use them.

Connections, segment files and what the process needs besides share one limit (``ulimit -n``). The broker takes as many
as the system allows, keeps a quarter for segment files and a fixed number for everything else, and limits connections
to the rest. So connections alone never take what the log needs.

The kernel always gives the lowest free number. The number of a new descriptor therefore says how many are in use, and
``is_scarce`` costs no look at /proc.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass

from headrace.errors import UsageError

__all__ = ["DESCRIPTORS_MIN", "DescriptorPlan", "descriptor_limit", "is_scarce", "raise_descriptor_limit"]

DESCRIPTORS_MIN = 128
"""Below this a broker cannot serve a handful of clients and topics."""

DESCRIPTORS_MAX = 1 << 20
SEGMENT_FILES_MAX = 4096

DESCRIPTORS_BY_MACOS = 10_240
"""macOS says that there is no limit and then gives no more than this."""

OTHERS = 64
"""The loop, the lock, listeners, directories being synced, a checkpoint, a compaction's files, the log of messages."""

RESERVED = 32
"""Of these, the last ones: no new connection may take them, whatever else uses descriptors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorPlan:
    """What each kind of user may take."""

    limit: int
    segment_files_max: int
    connections_max: int

    @classmethod
    def of(cls, limit: int, connections_wanted: int) -> DescriptorPlan:
        """Raises UsageError where there are too few to serve anybody."""
        segment_files_max = min(SEGMENT_FILES_MAX, limit // 4)
        connections_max = min(connections_wanted, limit - segment_files_max - OTHERS)
        if limit < DESCRIPTORS_MIN:
            raise UsageError(
                f"this process may open {limit} files, and the broker needs at least {DESCRIPTORS_MIN}",
                f"run: ulimit -n {descriptors_for(connections_wanted)} (a service: LimitNOFILE= in its unit)",
            )
        return cls(limit=limit, segment_files_max=segment_files_max, connections_max=connections_max)


def descriptors_for(connections: int) -> int:
    """The smallest limit, rounded up to a power of two, that has room for so many connections."""
    wanted = DESCRIPTORS_MIN
    while wanted < DESCRIPTORS_MAX and wanted - min(SEGMENT_FILES_MAX, wanted // 4) - OTHERS < connections:
        wanted *= 2
    return wanted


def raise_descriptor_limit() -> int:
    """Take what the system allows anyway, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, DESCRIPTORS_BY_MACOS):
        if soft == resource.RLIM_INFINITY or 0 <= wanted <= soft:
            break
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return descriptor_limit()


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)


def is_scarce(descriptor: int, share: float = 1.0) -> bool:
    """Whether the descriptor that was just opened is one of the last, or above a share of all."""
    return descriptor >= descriptor_limit() * share - RESERVED
