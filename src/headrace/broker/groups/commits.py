"""Offset requests: who may commit and fetch, and the answers.

Whether a member may commit is the group's rule: ``membership`` raises the error its protocol gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.access import Access, AccessDenied, Operation, denial_code
from headrace.broker.errors import code_of, coordinator_code_of
from headrace.broker.groups.classic import CONSUMER_PROTOCOL, ClassicGroup, ClassicState
from headrace.broker.groups.consumer import ConsumerGroup
from headrace.broker.groups.offsets import NO_OFFSET, Offsets, Place, Row
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock
from headrace.wire.kafka.api_key import ApiKey
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace.wire.kafka.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from headrace.broker.state import StateStore
    from headrace.broker.topics import Topic

__all__ = ["Commits"]

TOPIC_IDS_SINCE = {ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10, ApiKey.TXN_OFFSET_COMMIT: 6}
"""By API key: the version from which topics are named by their ids."""


GROUP_ERROR_SINCE = 2
"""The version of OffsetFetch from which an error of the whole group has a place in the answer."""

TXN_STALE_SINCE = 6
"""The version of TxnOffsetCommit from which producers know STALE_MEMBER_EPOCH."""


class Commits:
    """Answers OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete."""

    def __init__(
        self,
        *,
        state: StateStore,
        clock: Clock,
        settings: Settings,
        offsets: Offsets,
        found: Callable[[str], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._offsets = offsets
        self._found = found
        """Called when a group without members gets its first offset."""

    # ---- committing ----

    def offset_commit(self, request: Request[OffsetCommitRequest], refused: ErrorCode) -> Reply:
        body = request.body
        denied = denial_code(lambda: request.access.group(body.group_id, Operation.READ))
        expires_ms = self._clock.wall_ms() + body.retention_time_ms if body.retention_time_ms >= 0 else None
        judged, rows = self._judge(request, denied, lambda: refused or self._commit_refusal(request), expires_ms)
        response = OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=index, error_code=code) for index, code in codes
                    ],
                )
                for topic, codes in zip(body.topics, judged, strict=True)
            ]
        )
        return self._write(response, rows, lambda: self._offsets.commit(body.group_id, rows), body.group_id)

    def txn_offset_commit(
        self, request: Request[TxnOffsetCommitRequest], check_producer: Callable[[], ErrorCode]
    ) -> Reply:
        body, access = request.body, request.access
        denied = denial_code(
            lambda: access.check_transactional_id(body.transactional_id, Operation.WRITE),
            lambda: access.group(body.group_id, Operation.READ),
        )
        judged, rows = self._judge(request, denied, lambda: check_producer() or self._txn_refusal(request), None)
        response = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)
                        for index, code in codes
                    ],
                )
                for topic, codes in zip(body.topics, judged, strict=True)
            ]
        )
        return self._write(
            response, rows, lambda: self._offsets.commit_pending(body.producer_id, body.group_id, rows), body.group_id
        )

    def _judge(
        self,
        request: Request[Any],
        denied: ErrorCode,
        refusal: Callable[[], ErrorCode],
        expires_ms: int | None,
    ) -> tuple[list[list[tuple[int, ErrorCode]]], dict[Place, Row]]:
        """(partition, code) per topic of a commit, and the rows to write.

        As in Kafka, a topic that is unknown or denied is refused for that reason, and the group is asked only about
        the others.
        """
        found = [self._topic(request, each.name, each.topic_id) for each in request.body.topics]
        refused = denied
        if not refused and any(topic is not None for topic, _ in found):
            refused = refusal()
        rows: dict[Place, Row] = {}
        judged = [
            [
                (each.partition_index, denied or unknown or refused or self._take(rows, topic, each, expires_ms))
                for each in asked.partitions
            ]
            for asked, (topic, unknown) in zip(request.body.topics, found, strict=True)
        ]
        return judged, rows

    def _write(self, response: Any, rows: dict[Place, Row], put: Callable[[], int], group_id: str) -> Reply:
        """One batch for the whole request; the answer leaves when it is flushed."""
        if not rows:
            return response
        try:
            journal_offset = put()
        except HeadraceError as error:
            for topic in response.topics:
                for partition in topic.partitions:
                    partition.error_code = partition.error_code or coordinator_code_of(error)
            return response
        self._found(group_id)
        return once_flushed(self._state, journal_offset, response)

    def _take(self, rows: dict[Place, Row], topic: Topic | None, partition: Any, expires_ms: int | None) -> ErrorCode:
        """Note one offset to be committed, or why it cannot be."""
        assert topic is not None
        index = partition.partition_index
        if not 0 <= index < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = partition.committed_metadata or ""
        if len(metadata) > self._settings.integer("offset.metadata.max.bytes"):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        rows[topic.name, index] = self._offsets.row(
            partition.committed_offset,
            partition.committed_leader_epoch,
            metadata,
            self._clock.wall_ms(),
            expires_ms,
        )
        return ErrorCode.NONE

    def _topic(self, request: Request[Any], name: str, topic_id: bytes) -> tuple[Topic | None, ErrorCode]:
        operation = Operation.DESCRIBE if request.api_key == ApiKey.OFFSET_FETCH else Operation.READ
        try:
            if request.version >= TOPIC_IDS_SINCE[ApiKey(request.api_key)]:
                topic = request.access.topic_by_id(topic_id, operation)
                return topic, ErrorCode.NONE if topic is not None else ErrorCode.UNKNOWN_TOPIC_ID
            topic = request.access.topic(name, operation)
        except AccessDenied as denied:
            return None, denied.code
        return topic, ErrorCode.NONE if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # ---- who may ----

    def _commit_refusal(self, request: Request[OffsetCommitRequest]) -> ErrorCode:
        body = request.body
        epoch = body.generation_id_or_member_epoch
        group = request.access.group(body.group_id, Operation.READ)
        try:
            if group is None:
                # A member of a group that is gone: from version 9 on it can be told so.
                if epoch >= 0:
                    gone = ErrorCode.GROUP_ID_NOT_FOUND if request.version >= 9 else ErrorCode.ILLEGAL_GENERATION
                    return gone
            elif isinstance(group, ConsumerGroup):
                group.validate_commit(body.member_id, epoch, request.version, self._places(request))
            else:
                self._validate_classic(group, body, transactional=False)
        except HeadraceError as error:
            return code_of(error)
        return ErrorCode.NONE

    def _places(self, request: Request[Any]) -> list[tuple[bytes, int]]:
        """The partitions a request names, by topic id; those of unknown topics are refused elsewhere."""
        places = []
        for asked in request.body.topics:
            topic, _ = self._topic(request, asked.name, asked.topic_id)
            if topic is not None:
                places += [(topic.topic_id, each.partition_index) for each in asked.partitions]
        return places

    def _txn_refusal(self, request: Request[TxnOffsetCommitRequest]) -> ErrorCode:
        body = request.body
        group = request.access.group(body.group_id, Operation.READ)
        try:
            if group is None:
                return ErrorCode.ILLEGAL_GENERATION if body.generation_id_or_member_epoch >= 0 else ErrorCode.NONE
            if isinstance(group, ConsumerGroup):
                group.validate_txn_commit(
                    body.member_id,
                    body.group_instance_id,
                    body.generation_id_or_member_epoch,
                    self._places(request),
                )
            else:
                self._validate_classic(group, body, transactional=True)
        except HeadraceError as error:
            stale = code_of(error) is ErrorCode.STALE_MEMBER_EPOCH and request.version < TXN_STALE_SINCE
            return ErrorCode.ILLEGAL_GENERATION if stale else code_of(error)
        return ErrorCode.NONE

    def _validate_classic(
        self, group: ClassicGroup, body: OffsetCommitRequest | TxnOffsetCommitRequest, *, transactional: bool
    ) -> None:
        """Members commit in their generation; others (tools, consumers that assign themselves) while nobody is in."""
        generation = body.generation_id_or_member_epoch
        if generation < 0 and group.is_empty():
            return
        if generation >= 0 or body.member_id or body.group_instance_id is not None:
            member = group.validate_member(body.member_id, body.group_instance_id)
            if generation != group.generation:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"generation {generation} is not {group.generation}")
            if not transactional and group.state in (ClassicState.STABLE, ClassicState.PREPARING):
                member.session.move(member.session_timeout_ms)
        elif not transactional:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has members; commit as one of them")
        if not transactional and group.state is ClassicState.COMPLETING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} is rebalancing")

    # ---- fetching ----

    def offset_fetch(self, request: Request[OffsetFetchRequest]) -> OffsetFetchResponse:
        body = request.body
        if request.version >= 8:
            groups = [self._fetch_group(request, asked) for asked in body.groups]
            return OffsetFetchResponse(groups=groups)
        asked = OffsetFetchRequestGroup(
            group_id=body.group_id,
            topics=None
            if body.topics is None
            else [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in body.topics
            ],
        )
        found = self._fetch_group(request, asked)
        if found.error_code and request.version < GROUP_ERROR_SINCE:
            found.topics = [_all_failed(topic, found.error_code) for topic in asked.topics or []]
        return _as_single(found)

    def _fetch_group(
        self, request: Request[OffsetFetchRequest], asked: OffsetFetchRequestGroup
    ) -> OffsetFetchResponseGroup:
        response = OffsetFetchResponseGroup(group_id=asked.group_id)
        try:
            group = request.access.group(asked.group_id, Operation.DESCRIBE)
            if isinstance(group, ConsumerGroup):
                group.validate_fetch(asked.member_id, asked.member_epoch)
        except HeadraceError as error:
            response.error_code = code_of(error)
            return response
        with_ids = request.version >= TOPIC_IDS_SINCE[ApiKey.OFFSET_FETCH]
        if asked.topics is None:
            asked_topics = self._all_topics(request.access, asked.group_id, with_ids)
        else:
            asked_topics = asked.topics
        for wanted in asked_topics:
            topic, unknown = self._topic(request, wanted.name, wanted.topic_id)
            if unknown is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                unknown = ErrorCode.NONE  # a name without a topic has no offset, and that is no error
            name = wanted.name if topic is None else topic.name
            partitions = [
                self._fetch_one(asked.group_id, name, index, request.body.require_stable, unknown)
                for index in wanted.partition_indexes
            ]
            response.topics.append(
                OffsetFetchResponseTopics(name=wanted.name, topic_id=wanted.topic_id, partitions=partitions)
            )
        return response

    def _all_topics(self, access: Access, group_id: str, with_ids: bool) -> list[OffsetFetchRequestTopics]:
        found = []
        for name, rows in self._offsets.of_group(group_id).items():
            try:
                topic = access.topic(name, Operation.DESCRIBE)
            except AccessDenied:
                continue
            if topic is not None or not with_ids:
                topic_id = bytes(16) if topic is None else topic.topic_id
                found.append(OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=sorted(rows)))
        return found

    def _fetch_one(
        self, group_id: str, topic: str, index: int, require_stable: bool, unknown: ErrorCode
    ) -> OffsetFetchResponsePartitions:
        nothing = OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, metadata="")
        if unknown:
            nothing.error_code = unknown
        elif require_stable and self._offsets.is_unstable(group_id, topic, index):
            nothing.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        elif (row := self._offsets.get(group_id, topic, index)) is not None:
            offset, leader_epoch, metadata, *_ = row
            return OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=offset, committed_leader_epoch=leader_epoch, metadata=metadata
            )
        return nothing

    # ---- deleting ----

    def offset_delete(self, request: Request[OffsetDeleteRequest]) -> Reply:
        body, access = request.body, request.access
        try:
            group = access.group(body.group_id, Operation.DELETE)
        except AccessDenied as denied:
            return OffsetDeleteResponse(error_code=denied.code)
        if group is None:
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ClassicGroup) and not group.is_empty() and group.protocol_type != CONSUMER_PROTOCOL:
            return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
        response = OffsetDeleteResponse()
        gone: list[Place] = []
        for asked in body.topics:
            try:
                topic, denial = access.topic(asked.name, Operation.READ), ErrorCode.NONE
            except AccessDenied as denied:
                topic, denial = None, denied.code
            partitions = []
            for each in asked.partitions:
                code = denial
                if topic is None or topic.partition(each.partition_index) is None:
                    code = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif group.is_subscribed_to(asked.name):
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._offsets.get(body.group_id, asked.name, each.partition_index) is not None:
                    gone.append((asked.name, each.partition_index))
                partitions.append(OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code))
            response.topics.append(OffsetDeleteResponseTopic(name=asked.name, partitions=partitions))
        if not gone:
            return response
        try:
            journal_offset = self._state.put_many(self._offsets.removal(body.group_id, gone))
        except HeadraceError as error:
            return OffsetDeleteResponse(error_code=coordinator_code_of(error))
        self._offsets.apply_removal(body.group_id, gone)
        return once_flushed(self._state, journal_offset, response)


def _all_failed(asked: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopics:
    partitions = [
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code)
        for index in asked.partition_indexes
    ]
    return OffsetFetchResponseTopics(name=asked.name, partitions=partitions)


def _as_single(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """The form that versions below 8 have: one group, not named."""
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=each.partition_index,
                    committed_offset=each.committed_offset,
                    committed_leader_epoch=each.committed_leader_epoch,
                    metadata=each.metadata,
                    error_code=each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)
