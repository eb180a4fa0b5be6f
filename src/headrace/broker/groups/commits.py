"""OffsetCommit, TxnOffsetCommit and OffsetDelete: who may change a group's offsets, and the answers.

Whether a member may commit is the rule of its group's protocol: ``Group.check_commit``.

A commit of up to ``ROWS_PER_WRITE`` offsets is one batch of the journal. A larger one is written in several, with other
requests in between. Before each of them the member is checked again, so that one that is replaced meanwhile does not
overwrite the offsets of its successor. The answer leaves when all is flushed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.broker.access import Access, AccessDenied, Operation, denial_code
from headrace.broker.errors import coordinator_code_of
from headrace.broker.groups.group import Committer, Group, TopicIdPartition
from headrace.broker.groups.offsets import Offsets, Row, TopicPartition
from headrace.broker.groups.registry import Groups
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
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
)
from headrace.wire.kafka.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

__all__ = ["CheckProducer", "OffsetHandler"]

CheckProducer = Callable[[Request[TxnOffsetCommitRequest]], ErrorCode]

TOPIC_IDS_SINCE = {ApiKey.OFFSET_COMMIT: 10, ApiKey.TXN_OFFSET_COMMIT: 6}
"""By API key: the version from which topics are named by their ids."""

TXN_STALE_SINCE = 6
"""The version of TxnOffsetCommit from which producers know STALE_MEMBER_EPOCH."""


ROWS_PER_WRITE = 1000
UNITS_PER_WRITE = 500
"""A row takes about 6 µs to write."""

PARTITIONS_PER_STEP = 50

Partitions = Callable[[], list[TopicIdPartition]]


@dataclass(slots=True, kw_only=True)
class _Commit:
    """A commit on its way."""

    request: Request[Any]
    denied: ErrorCode
    refusal: Callable[[Partitions], ErrorCode]
    """Why its sender may not commit offsets of these partitions, or NONE."""
    put: Callable[[dict[TopicPartition, Row]], int]
    answer: type[OffsetCommitResponsePartition] | type[TxnOffsetCommitResponsePartition]
    expires_ms: int | None = None
    topics: dict[str, Topic] = field(default_factory=dict)
    """Those of ``rows``, as they were when the offsets were looked at."""
    rows: dict[TopicPartition, Row] = field(default_factory=dict)
    taken: list[tuple[TopicPartition, Any]] = field(default_factory=list)
    """The answers of the partitions that are in ``rows``; one that was named twice has two."""


class OffsetHandler:
    """Answers OffsetCommit, TxnOffsetCommit and OffsetDelete."""

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

    def offset_commit(self, request: Request[OffsetCommitRequest]) -> Steps[Reply]:
        body = request.body
        commit = _Commit(
            request=request,
            denied=denial_code(lambda: request.access.group(body.group_id, Operation.READ)),
            refusal=partial(self._commit_refusal, request),
            put=lambda rows: self._offsets.commit(body.group_id, rows),
            answer=OffsetCommitResponsePartition,
            expires_ms=self._clock.wall_ms() + body.retention_time_ms if body.retention_time_ms >= 0 else None,
        )
        judged = yield from self._judge(commit)
        response = OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
                for topic, partitions in zip(body.topics, judged, strict=True)
            ]
        )
        return (yield from self._write(commit, response))

    def txn_offset_commit(
        self, request: Request[TxnOffsetCommitRequest], check_producer: CheckProducer
    ) -> Steps[Reply]:
        """Keep offsets until their transaction ends. ``check_producer`` says whether the producer may add them."""
        body, access = request.body, request.access
        denied = denial_code(
            lambda: access.transaction(body.transactional_id, Operation.WRITE),
            lambda: access.group(body.group_id, Operation.READ),
        )
        commit = _Commit(
            request=request,
            denied=denied,
            refusal=partial(self._txn_refusal, request, check_producer),
            put=lambda rows: self._offsets.commit_pending(body.producer_id, body.group_id, rows),
            answer=TxnOffsetCommitResponsePartition,
        )
        judged = yield from self._judge(commit)
        response = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
                for topic, partitions in zip(body.topics, judged, strict=True)
            ]
        )
        return (yield from self._write(commit, response))

    def _judge(self, commit: _Commit) -> Steps[list[list[Any]]]:
        """The answers per topic of a commit; the rows to write are noted in it.

        As in Kafka, a topic that is unknown or denied is refused for that reason, and the group is asked only about
        the others.
        """
        request = commit.request
        found = [self._topic(request, each.name, each.topic_id) for each in request.body.topics]
        refused = commit.denied
        if not refused and any(topic is not None for topic, _ in found):
            refused = commit.refusal(partial(self._partitions, request))
        judged = []
        for asked, (topic, unknown) in zip(request.body.topics, found, strict=True):
            answers = []
            for partitions in in_steps(asked.partitions, PARTITIONS_PER_STEP):
                for each in partitions:
                    answer = commit.answer(partition_index=each.partition_index)
                    answer.error_code = commit.denied or unknown or refused or self._take(commit, topic, each, answer)
                    answers.append(answer)
                yield len(partitions)
            judged.append(answers)
        return judged

    def _write(self, commit: _Commit, response: Any) -> Steps[Reply]:
        """Write the rows; the answer leaves when they are flushed.

        Since the offsets were looked at, in earlier turns of the loop, the committer may have lost its place in the
        group, and a topic may have been deleted, or made again: the new one must not get offsets of the old one.
        """
        journal_offset = -1
        written: set[TopicPartition] = set()
        refused = ErrorCode.NONE
        for taken in in_steps(list(commit.rows.items()), ROWS_PER_WRITE):
            there = {name for name in {name for (name, _), _ in taken} if self._is_there(commit, name)}
            rows = {place: row for place, row in taken if place[0] in there}
            refused = refused or commit.refusal(partial(_ids, commit.request, rows))
            if rows and not refused:
                try:
                    journal_offset = commit.put(rows)
                    written.update(rows)
                except HeadraceError as error:
                    refused = coordinator_code_of(error)
            yield UNITS_PER_WRITE
        for place, answer in commit.taken:
            if place not in written:
                answer.error_code = refused or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if written:
            self._ensure_group(commit.request.body.group_id)
        return once_flushed(self._state, journal_offset, response)

    def _is_there(self, commit: _Commit, name: str) -> bool:
        topic = commit.topics[name]
        return self._topic(commit.request, name, topic.topic_id)[0] is topic

    def _take(self, commit: _Commit, topic: Topic | None, partition: Any, answer: Any) -> ErrorCode:
        """Note one offset to be committed, or why it cannot be."""
        assert topic is not None
        index = partition.partition_index
        if not 0 <= index < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = partition.committed_metadata or ""
        if len(metadata) > self._settings.integer("offset.metadata.max.bytes"):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        commit.topics[topic.name] = topic
        commit.rows[topic.name, index] = self._offsets.row(
            partition.committed_offset,
            partition.committed_leader_epoch,
            metadata,
            self._clock.wall_ms(),
            commit.expires_ms,
        )
        commit.taken.append(((topic.name, index), answer))
        return ErrorCode.NONE

    def _topic(self, request: Request[Any], name: str, topic_id: bytes) -> tuple[Topic | None, ErrorCode]:
        try:
            if request.version >= TOPIC_IDS_SINCE[ApiKey(request.api_key)]:
                topic = request.access.topic_by_id(topic_id, Operation.READ)
                return topic, ErrorCode.NONE if topic is not None else ErrorCode.UNKNOWN_TOPIC_ID
            topic = request.access.topic(name, Operation.READ)
        except AccessDenied as denied:
            return None, denied.code
        return topic, ErrorCode.NONE if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # ---- who may ----

    def _commit_refusal(self, request: Request[OffsetCommitRequest], partitions: Partitions) -> ErrorCode:
        body = request.body
        if refused := self._groups.growth_refusal(body.group_id):
            return refused
        # Version 9 and later can say that the group of a member is gone.
        gone = ErrorCode.GROUP_ID_NOT_FOUND if request.version >= 9 else ErrorCode.ILLEGAL_GENERATION
        try:
            self._check_committer(request, gone, partitions, transactional=False)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def _txn_refusal(
        self, request: Request[TxnOffsetCommitRequest], check_producer: CheckProducer, partitions: Partitions
    ) -> ErrorCode:
        group_id = request.body.group_id
        refused = self._groups.growth_refusal(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        if refused := refused or check_producer(request):
            return refused
        try:
            self._check_committer(request, ErrorCode.ILLEGAL_GENERATION, partitions, transactional=True)
        except KafkaError as error:
            stale = error.code is ErrorCode.STALE_MEMBER_EPOCH and request.version < TXN_STALE_SINCE
            return ErrorCode.ILLEGAL_GENERATION if stale else error.code
        return ErrorCode.NONE

    def _check_committer(
        self, request: Request[Any], gone: ErrorCode, partitions: Partitions, *, transactional: bool
    ) -> None:
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
                    partitions=partitions,
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

    # ---- deleting ----

    def offset_delete(self, request: Request[OffsetDeleteRequest]) -> Steps[Reply]:
        body, access = request.body, request.access
        try:
            group = access.group(body.group_id, Operation.DELETE)
            if group is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
            group.check_offset_deletion()
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        response = OffsetDeleteResponse()
        journal_offset = -1
        for asked in body.topics:
            answers: list[OffsetDeleteResponsePartition] = []
            response.topics.append(OffsetDeleteResponseTopic(name=asked.name, partitions=answers))
            for taken in in_steps(asked.partitions, ROWS_PER_WRITE):
                try:
                    written = self._delete(access, group, asked.name, [each.partition_index for each in taken], answers)
                except HeadraceError as error:
                    return OffsetDeleteResponse(error_code=coordinator_code_of(error))
                journal_offset = max(journal_offset, written)
                yield UNITS_PER_WRITE if written >= 0 else len(taken) // 4
        return once_flushed(self._state, journal_offset, response)

    def _delete(
        self, access: Access, group: Group, name: str, indexes: list[int], answers: list[OffsetDeleteResponsePartition]
    ) -> int:
        """Delete offsets of one topic; the journal offset to wait for, or -1 if there was none to delete."""
        try:
            topic, denial = access.topic(name, Operation.READ), ErrorCode.NONE
        except AccessDenied as denied:
            topic, denial = None, denied.code
        gone: dict[TopicPartition, None] = {}
        for index in indexes:
            code = denial
            if topic is None or topic.partition(index) is None:
                code = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif group.is_subscribed_to(name):
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif self._offsets.get(group.group_id, name, index) is not None:
                gone[name, index] = None
            answers.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
        if not gone:
            return -1
        journal_offset = self._state.put_many(self._offsets.removal(group.group_id, gone))
        self._offsets.apply_removal(group.group_id, gone)
        return journal_offset

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


def _ids(request: Request[Any], rows: dict[TopicPartition, Row]) -> list[TopicIdPartition]:
    topics = {name: request.access.topic(name, Operation.READ) for name, _ in rows}
    return [(topic.topic_id, index) for name, index in rows if (topic := topics[name]) is not None]
