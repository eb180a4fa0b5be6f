"""A member of a consumer group whose coordinator divides the partitions (KIP-848).

Everything happens inside ``poll``: a heartbeat when one is due, what its answer asks for, then a fetch. The protocol
from the member's side:

* It joins with epoch 0 and an id that it made itself, and says what it subscribes to.
* An answer may carry an assignment. Partitions that are no longer ours are committed and let go first, and the next
  heartbeat says what we hold; only then does the coordinator give them to others. New ones start at their committed
  offset.
* An answer that fences us (unknown member, old epoch) means that our partitions were given away: we drop them without
  committing, and join again.
* Leaving is a heartbeat with epoch -1, which hands the partitions over at once.

There is no thread: a member that does not call ``poll`` within the session timeout is removed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from headrace.client.client import Client, TopicPartition, check
from headrace.client.consumer import Consumer, ConsumerOptions, Polled
from headrace.client.groups import OFFSETS_VERSION_BY_NAME_MAX, Groups
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

__all__ = ["GroupConsumer", "GroupOptions"]

JOINING = 0
LEAVING = -1

_FENCED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_DELETED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How a member reads, commits and takes part in rebalances."""

    consumer: ConsumerOptions = field(default_factory=lambda: ConsumerOptions(reset="latest"))
    commit_interval_ms: int | None = 5_000  # None: only ``commit`` commits
    rebalance_timeout_ms: int = 300_000
    assignor: str | None = None


class GroupConsumer:
    """Reads the share of some topics that its group gives it."""

    def __init__(self, client: Client, group: str, topics: Sequence[str], options: GroupOptions | None = None) -> None:
        self.group = group
        self.topics = list(topics)
        self.options = options or GroupOptions()
        self.member_id = str(uuid.uuid4())
        self.member_epoch = JOINING
        self._client = client
        self._groups = Groups(client)
        self._consumer = Consumer(client, self.options.consumer)
        self._committed: dict[TopicPartition, int] = {}
        self._heartbeat_at = 0.0
        self._commit_at = time.monotonic()
        self._report_owned = True
        self._target: Assignment | None = None

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._consumer.positions)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        return self._consumer.positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on elsewhere in a partition that is ours."""
        self._consumer.seek(partition, offset)

    def at_end(self) -> bool:
        return self._consumer.at_end()

    def poll(self, timeout_ms: int) -> Polled:
        """Records of our partitions, or {} after ``timeout_ms``; keeps the membership alive."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._heartbeat_if_due()
            self._commit_if_due()
            until = min(deadline, self._heartbeat_at)
            records = self._poll(max(0, int((until - time.monotonic()) * 1000)))
            if records or time.monotonic() >= deadline:
                return records

    def _poll(self, timeout_ms: int) -> Polled:
        """When a topic was deleted, the answer to the next heartbeat takes its partitions from us."""
        try:
            return self._consumer.poll(timeout_ms)
        except KafkaError as error:
            if error.code not in _DELETED:
                raise
            self._heartbeat_at = 0.0
            return {}

    def commit(self) -> None:
        """Commit the current positions: what ``poll`` returned counts as done."""
        changed = {
            partition: offset
            for partition, offset in self._consumer.positions.items()
            if self._committed.get(partition) != offset
        }
        if changed:
            self._committed.update(self._client.retrying(lambda: self._commit(changed)))
        self._commit_at = time.monotonic()

    def close(self) -> None:
        """Commit, unless commits are the caller's, and leave the group."""
        if self.member_epoch <= JOINING:
            return
        try:
            if self.options.commit_interval_ms is not None:
                self.commit()
        finally:
            self.member_epoch = LEAVING
            self._client.retrying(self._heartbeat)
            self._consumer.assign({})

    # ---- membership -------------------------------------------------------------------------------------------------

    def _heartbeat_if_due(self) -> None:
        while time.monotonic() >= self._heartbeat_at or self._report_owned or self._target is not None:
            try:
                if self._target is None:
                    self._client.retrying(self._beat)
                target = self._target
                if target is not None:
                    self._reconcile(target)
                    if self._target is target:  # a commit may have met another one
                        self._target = None
            except KafkaError as error:
                if error.code not in _FENCED or self.member_epoch == JOINING:
                    raise
                self._lose_everything()

    def _beat(self) -> None:
        """One heartbeat and what its answer tells; an assignment comes once, so it is kept until it is reconciled."""
        answer = self._heartbeat()
        self.member_epoch = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        self._heartbeat_at = time.monotonic() + answer.heartbeat_interval_ms / 1000
        self._report_owned = False
        self._target = answer.assignment or self._target

    def _heartbeat(self) -> ConsumerGroupHeartbeatResponse:
        joining = self.member_epoch == JOINING
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.member_epoch
        )
        if joining:
            request.rebalance_timeout_ms = self.options.rebalance_timeout_ms
            request.subscribed_topic_names = self.topics
            request.server_assignor = self.options.assignor
        if joining or self._report_owned:
            request.topic_partitions = self._owned()
        node = self._client.group_coordinator(self.group)
        answer = self._client.call(node, request, ConsumerGroupHeartbeatResponse)
        check(answer.error_code, answer.error_message, f"taking part in group {self.group!r}")
        return answer

    def _owned(self) -> list[TopicPartitions]:
        by_topic: dict[str, list[int]] = {}
        for partition in self._consumer.positions:
            by_topic.setdefault(partition.topic, []).append(partition.partition)
        return [
            TopicPartitions(topic_id=self._client.topic_id(topic), partitions=indexes)
            for topic, indexes in by_topic.items()
        ]

    def _lose_everything(self) -> None:
        """Others own our partitions now: what we would commit is theirs to decide."""
        self.member_epoch = JOINING
        self._consumer.assign({})
        self._committed.clear()
        self._target = None
        self._report_owned = True

    def _reconcile(self, assignment: Assignment) -> None:
        """Let go first, then take over; the next heartbeat says what we hold."""
        wanted = {
            TopicPartition(self._client.topic_name(topic.topic_id), index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        }
        held = self._consumer.positions
        if wanted == set(held):
            return
        if set(held) - wanted and self.options.commit_interval_ms is not None:
            self.commit()
        kept = {partition: offset for partition, offset in held.items() if partition in wanted}
        gained = wanted - set(kept)
        self._consumer.assign(kept | self._first_positions(gained))
        self._committed = {each: offset for each, offset in self._committed.items() if each in wanted}
        self._report_owned = True

    def _first_positions(self, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offset, or where ``reset`` says to begin."""
        if not partitions:
            return {}
        found = self._groups.committed(self.group, partitions)
        self._committed.update(found)
        missing = partitions - set(found)
        if not missing:
            return found
        reset = self.options.consumer.reset
        if reset == "error":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"group {self.group!r} has no committed offset in {min(missing)}"
            )
        where = EARLIEST if reset == "earliest" else LATEST
        begun = list_offsets(self._client, dict.fromkeys(missing, where))
        return found | {partition: at.offset for partition, at in begun.items()}

    # ---- commits ----------------------------------------------------------------------------------------------------

    def _commit_if_due(self) -> None:
        interval_ms = self.options.commit_interval_ms
        if interval_ms is not None and (time.monotonic() - self._commit_at) * 1000 >= interval_ms:
            self.commit()

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets that were committed: all but those of topics that were deleted."""
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for partition, offset in offsets.items():
            each = OffsetCommitRequestPartition(partition_index=partition.partition, committed_offset=offset)
            by_topic.setdefault(partition.topic, []).append(each)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.member_epoch,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=name, partitions=each) for name, each in by_topic.items()],
        )
        node = self._client.group_coordinator(self.group)
        answer = self._client.call(node, request, OffsetCommitResponse, version_max=OFFSETS_VERSION_BY_NAME_MAX)
        committed = {}
        for topic in answer.topics:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                if result.error_code not in _DELETED:
                    self._check_commit(partition, result.error_code)
                    committed[partition] = offsets[partition]
        return committed

    def _check_commit(self, partition: TopicPartition, code: int) -> None:
        """An epoch that moved on since our last heartbeat is learned from the next one, and then the commit holds."""
        if code == ErrorCode.STALE_MEMBER_EPOCH:
            self._beat()
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the epoch of group {self.group!r} moved on")
        check(code, None, f"committing {partition} in group {self.group!r}")
