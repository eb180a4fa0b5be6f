"""Looking at groups: list, describe."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.access import Access, AccessDenied, Operation, ResourceType
from headrace.broker.groups.classic import ClassicGroup, ClassicMember, ClassicState
from headrace.broker.groups.consumer import ConsumerGroup, ConsumerMember
from headrace.broker.groups.registry import Group
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages import consumer_groups as consumer_messages
from headrace.wire.kafka.messages import groups as classic_messages

__all__ = ["describe_classic", "describe_consumer", "list_groups"]

MEMBER_TYPE_CLASSIC = 0
MEMBER_TYPE_CONSUMER = 1

NOT_ASKED = -(2**31)


def list_groups(
    groups: Iterable[Group], body: classic_messages.ListGroupsRequest
) -> classic_messages.ListGroupsResponse:
    """Both filters are Kafka's words in any case; an empty filter takes all."""
    states = {state.lower() for state in body.states_filter}
    types = {kind.lower() for kind in body.types_filter}
    listed = [
        classic_messages.ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=group.type_name,
        )
        for group in groups
        if (not states or group.state.value.lower() in states) and (not types or group.type_name in types)
    ]
    return classic_messages.ListGroupsResponse(groups=listed)


def describe_classic(
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


def _describe_classic(group_id: str, group: Group | None, version: int) -> classic_messages.DescribedGroup:
    if not isinstance(group, ClassicGroup):
        described = classic_messages.DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
        if version >= 6:
            why = "not found" if group is None else "is not a classic group"
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"Group {group_id} {why}."
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
    """While a group rebalances no protocol is chosen, and so there is no metadata to show."""
    return classic_messages.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=_host(member.client_host),
        member_metadata=member.metadata(group.protocol) if stable else b"",
        member_assignment=member.assignment,
    )


def describe_consumer(
    access: Access, group_id: str, default_assignor: str, with_operations: bool
) -> consumer_messages.DescribedGroup:
    try:
        return _describe_consumer(access, group_id, default_assignor, with_operations)
    except AccessDenied as denied:
        return consumer_messages.DescribedGroup(group_id=group_id, error_code=denied.code)


def _describe_consumer(
    access: Access, group_id: str, default_assignor: str, with_operations: bool
) -> consumer_messages.DescribedGroup:
    group = access.group(group_id, Operation.DESCRIBE)
    if group_id == "":
        return consumer_messages.DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    if not isinstance(group, ConsumerGroup):
        why = "not found" if group is None else "is not a consumer group"
        return consumer_messages.DescribedGroup(
            group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} {why}."
        )
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
    """Raises AccessDenied for a topic that the caller may not describe: then nothing of the group is shown."""
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
    """Topics that are gone are left out: they have no name to show."""
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
    """Kafka shows an address as Java prints it, with a slash before it, and tools cut that off."""
    return host if host.startswith("/") else f"/{host}"
