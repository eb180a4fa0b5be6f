"""OffsetFetch: what groups have committed.

A request may ask for all offsets of a group, and for the same group again and again, which Kafka answers as often. So
offsets are encoded as they are found, in steps, and a question that was asked before in the same request is answered
with the same bytes.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from headrace.broker.access import Access, AccessDenied, Operation
from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.broker.errors import code_of
from headrace.broker.groups.offsets import NO_OFFSET, Offsets
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
from headrace.broker.state import StateStore
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError
from headrace.wire.kafka.messages.group_offsets import (
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
from headrace.wire.kafka.schema import NO_ID

__all__ = ["OffsetFetchHandler"]

GROUP_ERROR_SINCE = 2
"""The version from which an error of the whole group has a place in the answer."""

MANY_GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10
PARTITIONS_PER_STEP = 50


class OffsetFetchHandler:
    """Answers OffsetFetch."""

    def __init__(self, *, state: StateStore, offsets: Offsets, settings: Settings) -> None:
        self._state = state
        self._offsets = offsets
        self._settings = settings

    def offset_fetch(self, request: Request[OffsetFetchRequest]) -> Steps[Reply]:
        """Only durable offsets are answered. Otherwise a power failure could make an offset go back."""
        response = yield from self._fetched(request)
        return once_flushed(self._state, self._state.end_offset - 1, response)

    def _fetched(self, request: Request[OffsetFetchRequest]) -> Steps[OffsetFetchResponse]:
        if request.version < MANY_GROUPS_SINCE:
            return (yield from self._single(request))
        groups = Elements(OffsetFetchResponse, request.version, self._settings)
        for asked in request.body.groups:
            key = _question(asked)
            if groups.full is not None:
                groups.refuse(_failed(asked, groups.full))
            elif key is None or not groups.repeat(key):
                found = yield from self._group(request, asked, groups)
                groups.add(found, partial(_failed, asked), key)
            yield 1
        return OffsetFetchResponse(groups=groups.encoded)

    def _single(self, request: Request[OffsetFetchRequest]) -> Steps[OffsetFetchResponse]:
        """The form that versions below 8 have: one group, not named."""
        body = request.body
        topics = None
        if body.topics is not None:
            topics = [
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in body.topics
            ]
        asked = OffsetFetchRequestGroup(group_id=body.group_id, topics=topics)
        elements = Elements(OffsetFetchResponse, request.version, self._settings)
        found = yield from self._group(request, asked, elements)
        if found.error_code and request.version < GROUP_ERROR_SINCE:
            return OffsetFetchResponse(topics=[_all_failed(topic, found.error_code) for topic in topics or []])
        elements.encoded.extend(found.topics)
        return OffsetFetchResponse(topics=elements.encoded, error_code=found.error_code)

    def _group(
        self, request: Request[OffsetFetchRequest], asked: OffsetFetchRequestGroup, elements: Elements
    ) -> Steps[OffsetFetchResponseGroup]:
        """A group's answer, its topics already encoded."""
        response = OffsetFetchResponseGroup(group_id=asked.group_id)
        try:
            group = request.access.group(asked.group_id, Operation.DESCRIBE)
            if group is not None:
                group.check_fetch(asked.member_id, asked.member_epoch)
        except HeadraceError as error:
            response.error_code = code_of(error)
            return response
        topics: list[Any] = []
        if asked.topics is None:
            for name in list(self._offsets.of_group(asked.group_id)):
                wanted = self._all_of(request, asked.group_id, name)
                if wanted is not None:
                    topics.append((yield from self._topic(request, asked.group_id, wanted, elements)))
        else:
            for wanted in asked.topics:
                topics.append((yield from self._topic(request, asked.group_id, wanted, elements)))
        response.topics = topics
        return response

    def _all_of(
        self, request: Request[OffsetFetchRequest], group_id: str, name: str
    ) -> OffsetFetchRequestTopics | None:
        """Every partition of a topic that the group has an offset of, if the caller may see it."""
        try:
            topic = request.access.topic(name, Operation.DESCRIBE)
        except AccessDenied:
            return None
        if topic is None and request.version >= TOPIC_IDS_SINCE:
            return None
        indexes = sorted(self._offsets.of_group(group_id).get(name, ()))
        topic_id = NO_ID if topic is None else topic.topic_id
        return OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=indexes)

    def _topic(
        self,
        request: Request[OffsetFetchRequest],
        group_id: str,
        wanted: OffsetFetchRequestTopics,
        elements: Elements,
    ) -> Steps[Any]:
        name, unknown = _named(request.access, wanted, by_id=request.version >= TOPIC_IDS_SINCE)
        single = request.version < MANY_GROUPS_SINCE
        form = OffsetFetchResponsePartition if single else OffsetFetchResponsePartitions
        partitions: list[Any] = []
        for indexes in in_steps(wanted.partition_indexes, PARTITIONS_PER_STEP):
            for index in indexes:
                found = self._partition(group_id, name, index, request.body.require_stable, unknown, form)
                partitions.append(elements.encode(found))
            yield len(indexes)
        if single:
            return elements.encode(OffsetFetchResponseTopic(name=wanted.name, partitions=partitions))
        topic = OffsetFetchResponseTopics(name=wanted.name, topic_id=wanted.topic_id, partitions=partitions)
        return elements.encode(topic)

    def _partition(
        self,
        group_id: str,
        topic: str,
        index: int,
        require_stable: bool,
        unknown: ErrorCode,
        form: type[OffsetFetchResponsePartition] | type[OffsetFetchResponsePartitions],
    ) -> OffsetFetchResponsePartition | OffsetFetchResponsePartitions:
        nothing = form(partition_index=index, committed_offset=NO_OFFSET, metadata="")
        if unknown:
            nothing.error_code = unknown
        elif require_stable and self._offsets.is_unstable(group_id, topic, index):
            nothing.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        elif (row := self._offsets.get(group_id, topic, index)) is not None:
            offset, leader_epoch, metadata, *_ = row
            return form(
                partition_index=index, committed_offset=offset, committed_leader_epoch=leader_epoch, metadata=metadata
            )
        return nothing


def _question(asked: OffsetFetchRequestGroup) -> Hashable:
    """What makes two questions for everything of a group the same; others cost no more than they name."""
    return None if asked.topics is not None else (asked.group_id, asked.member_id, asked.member_epoch)


def _named(access: Access, wanted: OffsetFetchRequestTopics, *, by_id: bool) -> tuple[str, ErrorCode]:
    """The topic's name, and why its offsets cannot be given. A name without a topic has none, and that is no error."""
    try:
        if not by_id:
            access.topic(wanted.name, Operation.DESCRIBE)
            return wanted.name, ErrorCode.NONE
        topic = access.topic_by_id(wanted.topic_id, Operation.DESCRIBE)
    except AccessDenied as denied:
        return wanted.name, denied.code
    return ("", ErrorCode.UNKNOWN_TOPIC_ID) if topic is None else (topic.name, ErrorCode.NONE)


def _failed(asked: OffsetFetchRequestGroup, error: AnswerTooLarge) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)


def _all_failed(asked: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopic:
    partitions = [
        OffsetFetchResponsePartition(partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code)
        for index in asked.partition_indexes
    ]
    return OffsetFetchResponseTopic(name=asked.name, partitions=partitions)
