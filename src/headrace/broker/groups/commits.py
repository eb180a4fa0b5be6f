"""Requests about the offsets of groups, and what transactions ask of them.

Whether a member may commit, fetch or delete is the group's rule: ``Group.check_commit`` and its siblings raise the
error that the group's protocol has for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.access import Access, AccessDenied, Operation, denial_code
from headrace.broker.errors import code_of, coordinator_code_of
from headrace.broker.groups.group import Committer, TopicIdPartition
from headrace.broker.groups.offsets import NO_OFFSET, Offsets, Row, TopicPartition
from headrace.broker.groups.registry import Groups
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.state import Change, StateStore
from headrace.broker.topics import Topic, Topics
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

__all__ = ["CheckProducer", "OffsetHandler"]

CheckProducer = Callable[[Request[TxnOffsetCommitRequest]], ErrorCode]

TOPIC_IDS_SINCE = {ApiKey.OFFSET_COMMIT: 10, ApiKey.OFFSET_FETCH: 10, ApiKey.TXN_OFFSET_COMMIT: 6}
"""By API key: the version from which topics are named by their ids."""


GROUP_ERROR_SINCE = 2
"""The version of OffsetFetch from which an error of the whole group has a place in the answer."""

TXN_STALE_SINCE = 6
"""The version of TxnOffsetCommit from which producers know STALE_MEMBER_EPOCH."""


class OffsetHandler:
    """Answers OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete."""

    def __init__(
        self,
        *,
        state: StateStore,
        clock: Clock,
        settings: Settings,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        ensure_group: Callable[[str], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._ensure_group = ensure_group
        """Makes a group for an id that only has offsets."""

    def committed_offset(self, group_id: str, topic: str, partition: int) -> int | None:
        row = self._offsets.get(group_id, topic, partition)
        return None if row is None else int(row[0])

    def committed_offsets(self, group_id: str) -> dict[str, dict[int, int]]:
        """By topic and partition."""
        return {
            topic: {partition: int(row[0]) for partition, row in rows.items()}
            for topic, rows in self._offsets.of_group(group_id).items()
        }

    # ---- committing ----

    def offset_commit(self, request: Request[OffsetCommitRequest]) -> Reply:
        body = request.body
        denied = denial_code(lambda: request.access.group(body.group_id, Operation.READ))
        expires_ms = self._clock.wall_ms() + body.retention_time_ms if body.retention_time_ms >= 0 else None
        judged, rows = self._judge(request, denied, lambda: self._commit_refusal(request), expires_ms)
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

    def txn_offset_commit(self, request: Request[TxnOffsetCommitRequest], check_producer: CheckProducer) -> Reply:
        """Keep offsets until their transaction ends. ``check_producer`` says whether the producer may add them."""
        body, access = request.body, request.access
        denied = denial_code(
            lambda: access.transaction(body.transactional_id, Operation.WRITE),
            lambda: access.group(body.group_id, Operation.READ),
        )
        judged, rows = self._judge(request, denied, lambda: self._txn_refusal(request, check_producer), None)
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
    ) -> tuple[list[list[tuple[int, ErrorCode]]], dict[TopicPartition, Row]]:
        """(partition, code) per topic of a commit, and the rows to write.

        As in Kafka, a topic that is unknown or denied is refused for that reason, and the group is asked only about
        the others.
        """
        found = [self._topic(request, each.name, each.topic_id) for each in request.body.topics]
        refused = denied
        if not refused and any(topic is not None for topic, _ in found):
            refused = refusal()
        rows: dict[TopicPartition, Row] = {}
        judged = [
            [
                (each.partition_index, denied or unknown or refused or self._take(rows, topic, each, expires_ms))
                for each in asked.partitions
            ]
            for asked, (topic, unknown) in zip(request.body.topics, found, strict=True)
        ]
        return judged, rows

    def _write(self, response: Any, rows: dict[TopicPartition, Row], put: Callable[[], int], group_id: str) -> Reply:
        """Write one batch for the whole request. The answer waits until it is flushed."""
        if not rows:
            return response
        try:
            journal_offset = put()
        except HeadraceError as error:
            for topic in response.topics:
                for partition in topic.partitions:
                    partition.error_code = partition.error_code or coordinator_code_of(error)
            return response
        self._ensure_group(group_id)
        return once_flushed(self._state, journal_offset, response)

    def _take(
        self, rows: dict[TopicPartition, Row], topic: Topic | None, partition: Any, expires_ms: int | None
    ) -> ErrorCode:
        """Add one offset to the rows to be written, or return why it cannot be committed."""
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
        if refused := self._groups.growth_refusal(body.group_id):
            return refused
        # Version 9 and later can say that the group of a member is gone.
        gone = ErrorCode.GROUP_ID_NOT_FOUND if request.version >= 9 else ErrorCode.ILLEGAL_GENERATION
        try:
            self._check_committer(request, gone, transactional=False)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def _txn_refusal(self, request: Request[TxnOffsetCommitRequest], check_producer: CheckProducer) -> ErrorCode:
        group_id = request.body.group_id
        refused = self._groups.growth_refusal(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        if refused := refused or check_producer(request):
            return refused
        try:
            self._check_committer(request, ErrorCode.ILLEGAL_GENERATION, transactional=True)
        except KafkaError as error:
            stale = error.code is ErrorCode.STALE_MEMBER_EPOCH and request.version < TXN_STALE_SINCE
            return ErrorCode.ILLEGAL_GENERATION if stale else error.code
        return ErrorCode.NONE

    def _check_committer(self, request: Request[Any], gone: ErrorCode, *, transactional: bool) -> None:
        body = request.body
        group = request.access.group(body.group_id, Operation.READ)
        if group is not None:
            group.check_commit(
                Committer(
                    member_id=body.member_id,
                    instance_id=body.group_instance_id,
                    epoch=body.generation_id_or_member_epoch,
                    version=request.version,
                    transactional=transactional,
                    partitions=lambda: self._partitions(request),
                )
            )
        elif body.generation_id_or_member_epoch >= 0:
            raise KafkaError(gone)

    def _partitions(self, request: Request[Any]) -> list[TopicIdPartition]:
        """The partitions that a request names, without those of unknown topics."""
        partitions = []
        for asked in request.body.topics:
            topic, _ = self._topic(request, asked.name, asked.topic_id)
            if topic is not None:
                partitions += [(topic.topic_id, each.partition_index) for each in asked.partitions]
        return partitions

    # ---- fetching ----

    def offset_fetch(self, request: Request[OffsetFetchRequest]) -> Reply:
        """The answer waits until the journal is flushed. Otherwise a power failure could take back an offset that a
        client has seen."""
        return once_flushed(self._state, self._state.end_offset - 1, self._fetched(request))

    def _fetched(self, request: Request[OffsetFetchRequest]) -> OffsetFetchResponse:
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
            if group is not None:
                group.check_fetch(asked.member_id, asked.member_epoch)
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
                unknown = ErrorCode.NONE  # a name without a topic has no offset; that is not an error
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
            if group is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
            group.check_offset_deletion()
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        response = OffsetDeleteResponse()
        gone: list[TopicPartition] = []
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

    # ---- transactions ----

    def complete_transaction(self, producer_id: int, commit: bool) -> list[Change]:
        """The changes that turn the producer's pending offsets into committed ones, or drop them.

        The transaction coordinator writes them with its own decision in one ``put_many`` and then calls
        ``apply_transaction``, with nothing in between.
        """
        return self._offsets.completion(producer_id, commit, self._topics.exists)

    def apply_transaction(self, producer_id: int, commit: bool) -> None:
        for group_id in self._offsets.apply_completion(producer_id, commit, self._topics.exists):
            if self._offsets.has_any(group_id):
                self._ensure_group(group_id)


def _all_failed(asked: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopics:
    partitions = [
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code)
        for index in asked.partition_indexes
    ]
    return OffsetFetchResponseTopics(name=asked.name, partitions=partitions)


def _as_single(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """The answer of versions below 8: one group, without its name."""
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
