"""Administration of groups: list, describe, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from headrace.broker.access import Access, AccessDenied, Operation, ResourceType
from headrace.broker.elements import AnswerTooLarge, Elements
from headrace.broker.errors import coordinator_code_of
from headrace.broker.groups.classic import ClassicGroup, ClassicMember, ClassicState
from headrace.broker.groups.consumer import ConsumerGroup, ConsumerMember
from headrace.broker.groups.group import Group, require
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.slices import Steps, in_steps
from headrace.broker.state import StateStore
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.wire.kafka.messages import consumer_groups as consumer_messages
from headrace.wire.kafka.messages import groups as classic_messages

__all__ = ["GroupAdmin"]

MEMBER_TYPE_CLASSIC = 0
MEMBER_TYPE_CONSUMER = 1

GROUPS_PER_STEP = 50
BYTES_PER_UNIT = 16 << 10
ASSIGNMENT_BYTES_PER_UNIT = 512
"""About a hundred partitions."""

NOT_FOUND_SINCE = 6
"""The version of DescribeGroups from which a group that is not there is an error; before, it is Dead."""


class GroupAdmin:
    """Answers ListGroups, DescribeGroups, ConsumerGroupDescribe and DeleteGroups.

    There may be many groups with many members, and a group is described as often as it is asked for, as in Kafka. So
    all of this runs in steps, and what is repeated shares its bytes.
    """

    def __init__(self, *, state: StateStore, settings: Settings, remove_group: Callable[[Group], Steps[int]]) -> None:
        self._state = state
        self._settings = settings
        self._remove_group = remove_group
        """Removes a group with its offsets; the journal offset to wait for."""

    def list_groups(
        self, request: Request[classic_messages.ListGroupsRequest]
    ) -> Steps[classic_messages.ListGroupsResponse]:
        """Filters are compared without regard to case; an empty filter passes all."""
        states = {state.lower() for state in request.body.states_filter}
        types = {kind.lower() for kind in request.body.types_filter}
        listed = Elements(classic_messages.ListGroupsResponse, request.version, self._settings)
        for groups in in_steps(request.access.visible_groups(), GROUPS_PER_STEP):
            for group in groups:
                if (states and group.state_name.lower() not in states) or (types and group.type_name not in types):
                    continue
                try:
                    listed.require(_listed(group))
                except AnswerTooLarge as error:
                    return classic_messages.ListGroupsResponse(error_code=error.code)
            yield len(groups)
        return classic_messages.ListGroupsResponse(groups=listed.encoded)

    def describe_groups(
        self, request: Request[classic_messages.DescribeGroupsRequest]
    ) -> Steps[classic_messages.DescribeGroupsResponse]:
        groups = Elements(classic_messages.DescribeGroupsResponse, request.version, self._settings)
        for group_id in request.body.groups:
            if groups.full is not None:
                groups.refuse(_too_much(group_id, groups.full))
            elif not groups.repeat(group_id):
                described = yield from _described_classic(request, group_id, groups)
                groups.add(described, partial(_too_much, group_id), group_id)
            yield 1
        return classic_messages.DescribeGroupsResponse(groups=groups.encoded)

    def consumer_group_describe(
        self, request: Request[consumer_messages.ConsumerGroupDescribeRequest]
    ) -> Steps[consumer_messages.ConsumerGroupDescribeResponse]:
        default_assignor = self._settings.items("group.consumer.assignors")[0]
        groups = Elements(consumer_messages.ConsumerGroupDescribeResponse, request.version, self._settings)
        for group_id in request.body.group_ids:
            if groups.full is not None:
                groups.refuse(_failed(group_id, groups.full))
            elif not groups.repeat(group_id):
                described = yield from _described_consumer(request, group_id, groups, default_assignor)
                groups.add(described, partial(_failed, group_id), group_id)
            yield 1
        return consumer_messages.ConsumerGroupDescribeResponse(groups=groups.encoded)

    def delete_groups(self, request: Request[classic_messages.DeleteGroupsRequest]) -> Steps[Reply]:
        results: list[classic_messages.DeletableGroupResult] = []
        journal_offset = -1
        for group_id in dict.fromkeys(request.body.groups_names):
            result = classic_messages.DeletableGroupResult(group_id=group_id)
            results.append(result)
            try:
                journal_offset = yield from self._remove_group(_deletable(request.access, group_id))
            except HeadraceError as error:
                result.error_code = coordinator_code_of(error)
            yield 1
        return once_flushed(self._state, journal_offset, classic_messages.DeleteGroupsResponse(results=results))


def _listed(group: Group) -> classic_messages.ListedGroup:
    return classic_messages.ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state_name,
        group_type=group.type_name,
    )


def _deletable(access: Access, group_id: str) -> Group:
    group = access.group(group_id, Operation.DELETE)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if not group.is_empty():
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def _too_much(group_id: str, error: AnswerTooLarge) -> classic_messages.DescribedGroup:
    return classic_messages.DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)


def _described_classic(
    request: Request[classic_messages.DescribeGroupsRequest], group_id: str, groups: Elements
) -> Steps[classic_messages.DescribedGroup]:
    access = request.access
    try:
        group = access.group(group_id, Operation.DESCRIBE)
    except AccessDenied as denied:
        return classic_messages.DescribedGroup(group_id=group_id, error_code=denied.code)
    described = yield from _describe_classic(group_id, group, request.version, groups)
    if request.body.include_authorized_operations and described.error_code == ErrorCode.NONE:
        described.authorized_operations = access.operations(ResourceType.GROUP, group_id)
    return described


def _describe_classic(
    group_id: str, found: Group | None, version: int, groups: Elements
) -> Steps[classic_messages.DescribedGroup]:
    try:
        group = require(found, ClassicGroup, group_id)
    except KafkaError as error:
        described = classic_messages.DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
        if version >= NOT_FOUND_SINCE:
            described.error_code = error.code
            described.error_message = error.message
        return described
    stable = group.state is ClassicState.STABLE
    members: list[Any] = []
    described = classic_messages.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=members,
    )
    for member in list(group.members.values()):
        raw = groups.encode(_classic_member(group, member, stable))
        members.append(raw)
        yield 1 + len(raw) // BYTES_PER_UNIT
    return described


def _classic_member(group: ClassicGroup, member: ClassicMember, stable: bool) -> classic_messages.DescribedGroupMember:
    """While a group rebalances no protocol is chosen, so there is no metadata."""
    return classic_messages.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=_host(member.client_host),
        member_metadata=member.metadata(group.protocol) if stable else b"",
        member_assignment=member.assignment,
    )


def _failed(group_id: str, error: KafkaError) -> consumer_messages.DescribedGroup:
    return consumer_messages.DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)


def _described_consumer(
    request: Request[consumer_messages.ConsumerGroupDescribeRequest],
    group_id: str,
    groups: Elements,
    default_assignor: str,
) -> Steps[consumer_messages.DescribedGroup]:
    try:
        return (yield from _describe_consumer(request, group_id, groups, default_assignor))
    except AccessDenied as denied:
        return consumer_messages.DescribedGroup(group_id=group_id, error_code=denied.code)
    except KafkaError as error:
        return _failed(group_id, error)


def _describe_consumer(
    request: Request[consumer_messages.ConsumerGroupDescribeRequest],
    group_id: str,
    groups: Elements,
    default_assignor: str,
) -> Steps[consumer_messages.DescribedGroup]:
    access = request.access
    found = access.group(group_id, Operation.DESCRIBE)
    if group_id == "":
        return consumer_messages.DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    group = require(found, ConsumerGroup, group_id)
    members: list[Any] = []
    described = consumer_messages.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor or default_assignor,
        members=members,
    )
    if request.body.include_authorized_operations:
        described.authorized_operations = access.operations(ResourceType.GROUP, group_id)
    for member in list(group.members.values()):
        raw = groups.encode(_consumer_member(group, member, access))
        members.append(raw)
        yield 1 + len(raw) // ASSIGNMENT_BYTES_PER_UNIT
    return described


def _consumer_member(group: ConsumerGroup, member: ConsumerMember, access: Access) -> consumer_messages.Member:
    """Raises AccessDenied if the caller may not describe one of the member's topics."""
    for name in member.topics:
        access.topic(name, Operation.DESCRIBE)
    target = group.targets.get(member.member_id, {})
    return consumer_messages.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=_host(member.client_host),
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(member.assigned.items(), access),
        target_assignment=_assignment(target.items(), access),
        member_type=MEMBER_TYPE_CONSUMER if member.classic is None else MEMBER_TYPE_CLASSIC,
    )


def _assignment(
    partitions: Iterable[tuple[bytes, Iterable[int]]], access: Access
) -> consumer_messages.ConsumerGroupDescribeAssignment:
    """Deleted topics are left out, because their names are not known."""
    shown = []
    for topic_id, indexes in partitions:
        topic = access.topic_by_id(topic_id, Operation.DESCRIBE)
        if topic is not None:
            shown.append(
                consumer_messages.ConsumerGroupDescribeTopicPartitions(
                    topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes)
                )
            )
    return consumer_messages.ConsumerGroupDescribeAssignment(topic_partitions=shown)


def _host(host: str) -> str:
    """Kafka sends an address as Java prints it, with a slash in front, and tools remove the slash."""
    return host if host.startswith("/") else f"/{host}"
