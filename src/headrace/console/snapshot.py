"""What the sampler last saw of the cluster, as immutable values that any thread may read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.client import TopicPartition

__all__ = ["ClusterSnapshot", "DiskFigures", "GroupFigures", "TopicFigures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFigures:
    """``messages`` counts offsets from the start to the end: what compaction and transactions took away is in it."""

    name: str
    internal: bool
    partitions: int
    replicas: int
    leaderless: int
    behind: int
    """Partitions with fewer replicas in sync than they have."""
    messages: int | None = None
    size: int | None = None
    """Bytes on disk."""
    rate: float = 0.0
    """Messages per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    name: str
    state: str
    kind: str
    lag: int | None = None
    topics: tuple[str, ...] = ()
    rate: float = 0.0
    """Messages per second by which its committed offsets move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFigures:
    """All disks of all brokers together."""

    total: int
    usable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    taken_s: float = 0.0
    cluster_id: str | None = None
    controller: int = -1
    brokers: Mapping[int, str] = field(default_factory=dict)
    topics: Mapping[str, TopicFigures] = field(default_factory=dict)
    groups: Mapping[str, GroupFigures] = field(default_factory=dict)
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Bytes on disk per partition, the largest replica where there are several."""
    disk: DiskFigures | None = None
    problem: str = ""
    """Why the last sample failed; empty while the broker answers."""
