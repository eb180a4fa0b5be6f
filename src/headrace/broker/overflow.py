"""When producers outrun consumers: buffer, drop or hold back, by the topic owner's choice (``headrace.overflow``).

``buffer``         the log itself, bounded by retention: nothing to do here.
``drop-newest``    a batch that would take the partition over ``headrace.overflow.bytes`` is refused with an error.
``drop-oldest``    it is taken, and the oldest records leave until the partition fits again; they are counted.
``backpressure``   it is taken, and the producer's connection is not read while a group named in
                   ``headrace.overflow.groups`` is further behind than the bound. A group that is named but has no
                   member raises an alarm and, after ``headrace.overflow.group.timeout.ms``, no longer counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from headrace.batch import Batch
from headrace.broker.partition import Partition
from headrace.broker.request import Peer
from headrace.broker.topics import Topic, Topics
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.backlog import bytes_from, offset_keeping_bytes
from headrace.log.maintenance import Maintenance
from headrace.ports import Clock
from headrace.vocabulary import Offset

__all__ = ["Overflow", "TopicFull"]

LOG = logging.getLogger("headrace.overflow")
RECHECK_S = 0.05
"""How often it is checked whether held producers may go on."""


class TopicFull(KafkaError):
    """``headrace.overflow=drop-newest``: the batch is refused, and what was acknowledged is kept."""

    def __init__(self, partition: Partition, bound: int) -> None:
        super().__init__(
            ErrorCode.POLICY_VIOLATION,
            f"{partition.topic}-{partition.index} holds its headrace.overflow.bytes={bound} and drops the newest; "
            "raise the bound, shorten retention.ms, or choose another headrace.overflow",
        )


class CommittedOffsets(Protocol):
    def committed_offset(self, group_id: str, topic: str, partition: int) -> int | None: ...


class GroupMembers(Protocol):
    def has_members(self, group_id: str) -> bool: ...


class Overflow:
    """Applies each topic's ``headrace.overflow`` before an append."""

    def __init__(
        self, *, topics: Topics, groups: GroupMembers, offsets: CommittedOffsets, maintenance: Maintenance, clock: Clock
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._maintenance = maintenance
        self._clock = clock
        self._held: dict[Peer, set[tuple[str, int]]] = {}
        self._gone_since: dict[str, float] = {}
        self._checking = False

    def admit(self, topic: Topic, partition: Partition, batch: Batch, peer: Peer) -> None:
        """Called before an append: refuse it, make room for it, or hold the producer after it."""
        choice = topic.config.get("headrace.overflow")
        if choice == "buffer":
            return
        bound = topic.config.get("headrace.overflow.bytes")
        if choice == "drop-newest":
            if partition.log.size_bytes + batch.size > bound:
                if not partition.refused_batches:
                    LOG.warning("%s-%d is full and refuses the newest records", partition.topic, partition.index)
                partition.refused_batches += 1
                raise TopicFull(partition, bound)
        elif choice == "drop-oldest":
            self._make_room(partition, bound - batch.size)
        elif self._behind(topic, partition, bound):
            self._hold(peer, partition)

    def _make_room(self, partition: Partition, keep_bytes: int) -> None:
        log = partition.log
        if log.size_bytes > keep_bytes:
            before = log.start_offset
            # What producers have in flight is not acknowledged yet and cannot be given up. Until it is, the partition
            # may exceed its bound by that much.
            log.delete_records(min(offset_keeping_bytes(log, max(0, keep_bytes)), log.high_watermark))
            self._maintenance.space_wanted()
            dropped = log.start_offset - before
            if dropped and not partition.dropped_records:
                LOG.warning("%s-%d is full and drops its oldest records", partition.topic, partition.index)
            partition.dropped_records += dropped

    # ---- backpressure ----

    def held_connections(self) -> Counter[str]:
        """How many producers each topic holds back."""
        return Counter(topic for places in self._held.values() for topic in {name for name, _ in places})

    def _behind(self, topic: Topic, partition: Partition, bound: int) -> list[str]:
        """The groups that are further behind than the bound and still count."""
        slow = []
        for group in topic.config.get("headrace.overflow.groups"):
            committed = self._offsets.committed_offset(group, topic.name, partition.index)
            position = partition.log.start_offset if committed is None else committed
            if bytes_from(partition.log, Offset(position)) > bound and not self._given_up(topic, group):
                slow.append(group)
        return slow

    def _given_up(self, topic: Topic, group: str) -> bool:
        if self._groups.has_members(group):
            self._gone_since.pop(group, None)
            return False
        now = self._clock.monotonic()
        since = self._gone_since.get(group)
        if since is None:
            self._gone_since[group] = now
            LOG.warning("group %r holds back producers of %r but has no member", group, topic.name)
            return False
        return bool((now - since) * 1000 >= topic.config.get("headrace.overflow.group.timeout.ms"))

    def _hold(self, peer: Peer, partition: Partition) -> None:
        if peer not in self._held:
            self._held[peer] = set()
            peer.hold(True)
        self._held[peer].add((partition.topic, partition.index))
        if not self._checking:
            self._checking = True
            self._clock.call_later(RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        """Release the connections whose partitions have been drained, deleted, or given another policy."""
        try:
            self._release_drained()
        finally:
            self._checking = bool(self._held)
            if self._checking:
                self._clock.call_later(RECHECK_S, self._recheck)

    def _release_drained(self) -> None:
        places = {place for held_by in self._held.values() for place in held_by}
        behind = {place for place in places if self._still_behind(*place)}
        for peer, held_by in list(self._held.items()):
            held_by &= behind
            if not held_by or peer.closed:
                del self._held[peer]
                peer.hold(False)

    def _still_behind(self, name: str, index: int) -> bool:
        topic = self._topics.get(name)
        partition = topic.partition(index) if topic is not None else None
        if topic is None or partition is None or topic.config.get("headrace.overflow") != "backpressure":
            return False
        if partition.fault is not None:
            return False  # its producers learn of the damage from their next request
        try:
            return bool(self._behind(topic, partition, topic.config.get("headrace.overflow.bytes")))
        except HeadraceError as error:
            LOG.warning("producers of %s-%d are no longer held back: %s", name, index, error)
        except Exception:
            LOG.exception("producers of %s-%d are no longer held back", name, index)
        return False
