"""Administration of groups: list, describe, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.broker.access import Access, AccessDenied, Operation, ResourceType
from headrace.broker.errors import coordinator_code_of
from headrace.broker.groups.classic import ClassicGroup, ClassicMember, ClassicState
from headrace.broker.groups.consumer import ConsumerGroup, ConsumerMember
from headrace.broker.groups.group import Group, require
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.broker.state import StateStore
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.wire.kafka.messages import consumer_groups as consumer_messages
from headrace.wire.kafka.messages import groups as classic_messages

__all__ = ["GroupAdmin"]

MEMBER_TYPE_CLASSIC = 0
MEMBER_TYPE_CONSUMER = 1

NOT_ASKED = -(2**31)
NOT_FOUND_SINCE = 6
"""The version of DescribeGroups from which a group that is not there is an error; before, it is Dead."""


class GroupAdmin:
    """Answers ListGroups, DescribeGroups, ConsumerGroupDescribe and DeleteGroups."""

    def __init__(
        self, *, state: StateStore, settings: Settings, remove_groups: Callable[[Sequence[Group]], int]
    ) -> None:
        self._state = state
        self._settings = settings
        self._remove_groups = remove_groups
        """Removes groups with their offsets; the journal offset to wait for."""

    def list_groups(self, request: Request[classic_messages.ListGroupsRequest]) -> classic_messages.ListGroupsResponse:
        """Filters are compared without regard to case; an empty filter passes all."""
        states = {state.lower() for state in request.body.states_filter}
        types = {kind.lower() for kind in request.body.types_filter}
        listed = [
            classic_messages.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state_name,
                group_type=group.type_name,
            )
            for group in request.access.visible_groups()
            if (not states or group.state_name.lower() in states) and (not types or group.type_name in types)
        ]
        return classic_messages.ListGroupsResponse(groups=listed)

    def describe_groups(self, request: Request[classic_messages.DescribeGroupsRequest]) -> Reply:
        with_operations = request.body.include_authorized_operations
        return classic_messages.DescribeGroupsResponse(
            groups=[
                _described_classic(request.access, group_id, request.version, with_operations)
                for group_id in request.body.groups
            ]
        )

    def consumer_group_describe(self, request: Request[consumer_messages.ConsumerGroupDescribeRequest]) -> Reply:
        default_assignor = self._settings.items("group.consumer.assignors")[0]
        with_operations = request.body.include_authorized_operations
        return consumer_messages.ConsumerGroupDescribeResponse(
            groups=[
                _described_consumer(request.access, group_id, default_assignor, with_operations)
                for group_id in request.body.group_ids
            ]
        )

    def delete_groups(self, request: Request[classic_messages.DeleteGroupsRequest]) -> Reply:
        results: list[classic_messages.DeletableGroupResult] = []
        gone: list[Group] = []
        for group_id in dict.fromkeys(request.body.groups_names):
            result = classic_messages.DeletableGroupResult(group_id=group_id)
            results.append(result)
            try:
                gone.append(_deletable(request.access, group_id))
            except KafkaError as error:
                result.error_code = error.code
        response = classic_messages.DeleteGroupsResponse(results=results)
        if not gone:
            return response
        try:
            offset = self._remove_groups(gone)
        except HeadraceError as error:
            for result in results:
                result.error_code = result.error_code or coordinator_code_of(error)
            return response
        return once_flushed(self._state, offset, response)


def _deletable(access: Access, group_id: str) -> Group:
    group = access.group(group_id, Operation.DELETE)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if not group.is_empty():
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def _described_classic(
    access: Access, group_id: str, version: int, with_operations: bool
) -> classic_messages.DescribedGroup:
    try:
        group = access.group(group_id, Operation.DESCRIBE)
    except AccessDenied as denied:
        return classic_messages.DescribedGroup(group_id=group_id, error_code=denied.code)
    described = _describe_classic(group_id, group, version)
    if with_operations and described.error_code == ErrorCode.NONE:
        described.authorized_operations = access.operations(ResourceType.GROUP, group_id)
    return described


def _describe_classic(group_id: str, found: Group | None, version: int) -> classic_messages.DescribedGroup:
    try:
        group = require(found, ClassicGroup, group_id)
    except KafkaError as error:
        described = classic_messages.DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
        if version >= NOT_FOUND_SINCE:
            described.error_code = error.code
            described.error_message = error.message
        return described
    stable = group.state is ClassicState.STABLE
    return classic_messages.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[_classic_member(group, member, stable) for member in group.members.values()],
    )


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


def _described_consumer(
    access: Access, group_id: str, default_assignor: str, with_operations: bool
) -> consumer_messages.DescribedGroup:
    try:
        return _describe_consumer(access, group_id, default_assignor, with_operations)
    except AccessDenied as denied:
        return consumer_messages.DescribedGroup(group_id=group_id, error_code=denied.code)
    except KafkaError as error:
        return consumer_messages.DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)


def _describe_consumer(
    access: Access, group_id: str, default_assignor: str, with_operations: bool
) -> consumer_messages.DescribedGroup:
    found = access.group(group_id, Operation.DESCRIBE)
    if group_id == "":
        return consumer_messages.DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    group = require(found, ConsumerGroup, group_id)
    return consumer_messages.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor or default_assignor,
        members=[_consumer_member(group, member, access) for member in group.members.values()],
        authorized_operations=access.operations(ResourceType.GROUP, group_id) if with_operations else NOT_ASKED,
    )


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
