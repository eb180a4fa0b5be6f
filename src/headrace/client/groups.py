"""Consumer groups as seen from outside: who is in them, what they committed, how far behind they are.

Both kinds of group are shown the same way: those whose members divide the partitions among themselves (classic) and
those whose coordinator does it (KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from headrace.client.client import Client, TopicPartition, check
from headrace.client.offsets import end_offsets, start_offsets
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.codec import MalformedMessage, read_message
from headrace.wire.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from headrace.wire.kafka.messages.consumer_protocol import ConsumerProtocolAssignment
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from headrace.wire.kafka.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

__all__ = ["Group", "GroupListing", "GroupMember", "Groups", "PartitionLag"]

OFFSETS_VERSION_BY_NAME_MAX = 9
"""From version 10 on OffsetCommit and OffsetFetch name topics by id only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group as ``Groups.list_all`` shows it."""

    name: str
    state: str = ""
    kind: str = ""  # "classic" or "consumer"
    protocol_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, with the partitions that are assigned to it."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group with its members."""

    name: str
    state: str
    kind: str
    assignor: str = ""
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group is behind in one partition; ``committed`` is None before its first commit there, ``start`` and
    ``end`` are None while the partition has no leader."""

    partition: TopicPartition
    committed: int | None
    start: int | None
    end: int | None
    member: GroupMember | None = None

    @property
    def lag(self) -> int | None:
        """Records that are still to be read; records that retention removed cannot be."""
        if self.start is None or self.end is None:
            return None
        return max(0, self.end - max(self.start, self.committed if self.committed is not None else self.start))


class Groups:
    """Looks at groups and moves their offsets, through a client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list_all(self) -> list[GroupListing]:
        """Every group of every broker, by name."""
        found: list[GroupListing] = []
        for node in self._client.brokers():
            found += self._client.retrying(partial(self._list_on, node))
        return sorted(found, key=lambda group: group.name)

    def _list_on(self, node: int) -> list[GroupListing]:
        answer = self._client.call(node, ListGroupsRequest(), ListGroupsResponse)
        check(answer.error_code, None, "listing groups")
        return [
            GroupListing(
                name=each.group_id,
                state=each.group_state,
                kind=each.group_type.lower() or "classic",
                protocol_type=each.protocol_type,
            )
            for each in answer.groups
        ]

    def describe(self, name: str) -> Group:
        """State and members; a group that does not exist raises GROUP_ID_NOT_FOUND."""
        return self._client.retrying(lambda: self._describe(name))

    def _describe(self, name: str) -> Group:
        node = self._client.group_coordinator(name)
        try:
            found = self._describe_consumer(node, name)
        except KafkaError as error:
            if error.code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND):
                raise
            found = None
        return found or self._describe_classic(node, name)

    def _describe_consumer(self, node: int, name: str) -> Group:
        request = ConsumerGroupDescribeRequest(group_ids=[name])
        group = self._client.call(node, request, ConsumerGroupDescribeResponse).groups[0]
        check(group.error_code, group.error_message, f"describing group {name!r}")
        members = tuple(
            GroupMember(
                member_id=each.member_id,
                client_id=each.client_id,
                host=each.client_host.removeprefix("/"),
                instance_id=each.instance_id,
                partitions=_assigned(each.assignment),
            )
            for each in group.members
        )
        return Group(name=name, state=group.group_state, kind="consumer", assignor=group.assignor_name, members=members)

    def _describe_classic(self, node: int, name: str) -> Group:
        group = self._client.call(node, DescribeGroupsRequest(groups=[name]), DescribeGroupsResponse).groups[0]
        check(group.error_code, group.error_message, f"describing group {name!r}")
        if group.group_state == "Dead":
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name!r} does not exist")
        members = tuple(
            GroupMember(
                member_id=each.member_id,
                client_id=each.client_id,
                host=each.client_host.removeprefix("/"),
                instance_id=each.group_instance_id,
                partitions=_assigned_classic(each.member_assignment),
            )
            for each in group.members
        )
        return Group(name=name, state=group.group_state, kind="classic", assignor=group.protocol_data, members=members)

    # ---- offsets ----------------------------------------------------------------------------------------------------

    def committed(self, name: str, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Committed offsets; of all partitions that have one when none are named."""
        wanted = None if partitions is None else list(partitions)
        return self._client.retrying(lambda: self._committed(name, wanted))

    def _committed(self, name: str, wanted: list[TopicPartition] | None) -> dict[TopicPartition, int]:
        by_topic = None if wanted is None else _by_topic(wanted)
        old = new = None
        if by_topic is not None:
            old = [OffsetFetchRequestTopic(name=topic, partition_indexes=each) for topic, each in by_topic.items()]
            new = [OffsetFetchRequestTopics(name=topic, partition_indexes=each) for topic, each in by_topic.items()]
        request = OffsetFetchRequest(
            group_id=name,
            topics=old,
            groups=[OffsetFetchRequestGroup(group_id=name, topics=new)],
            require_stable=True,
        )
        node = self._client.group_coordinator(name)
        answer = self._client.call(node, request, OffsetFetchResponse, version_max=OFFSETS_VERSION_BY_NAME_MAX)
        group = answer.groups[0] if answer.groups else answer
        check(group.error_code, None, f"fetching offsets of group {name!r}")
        found = {}
        for topic in group.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                check(each.error_code, None, f"fetching the offset of group {name!r} in {partition}")
                if each.committed_offset >= 0:
                    found[partition] = each.committed_offset
        return found

    def commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets of a group that has no members: reset, seek, migrate."""
        self._client.retrying(lambda: self._commit(name, offsets))

    def _commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offsets[TopicPartition(topic, index)]
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in _by_topic(offsets).items()
        ]
        request = OffsetCommitRequest(group_id=name, topics=topics)
        node = self._client.group_coordinator(name)
        answer = self._client.call(node, request, OffsetCommitResponse, version_max=OFFSETS_VERSION_BY_NAME_MAX)
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                check(each.error_code, None, f"setting the offset of group {name!r} in {partition}")

    def lag(self, name: str) -> list[PartitionLag]:
        """One entry per partition that the group has committed or is assigned, by topic and partition."""
        group = self.describe(name)
        owners = {partition: member for member in group.members for partition in member.partitions}
        committed = self.committed(name)
        leaders = {
            TopicPartition(topic.name, each.index): each.leader
            for topic in self._client.topics()
            for each in topic.partitions
        }
        # Offsets outlive a topic that was deleted; there is no lag in what is gone.
        partitions = sorted({*owners, *committed} & leaders.keys())
        served = [each for each in partitions if leaders[each] >= 0]
        starts = start_offsets(self._client, served)
        ends = end_offsets(self._client, served)
        return [
            PartitionLag(
                partition=each,
                committed=committed.get(each),
                start=starts.get(each),
                end=ends.get(each),
                member=owners.get(each),
            )
            for each in partitions
        ]

    def delete(self, name: str) -> None:
        request = DeleteGroupsRequest(groups_names=[name])

        def attempt() -> None:
            answer = self._client.call(self._client.group_coordinator(name), request, DeleteGroupsResponse)
            for each in answer.results:
                check(each.error_code, each.error_message, f"deleting group {name!r}")

        self._client.retrying(attempt)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for each in partitions:
        grouped.setdefault(each.topic, []).append(each.partition)
    return grouped


def _assigned(assignment: ConsumerGroupDescribeAssignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index) for topic in assignment.topic_partitions for index in topic.partitions
    )


def _assigned_classic(data: bytes) -> tuple[TopicPartition, ...]:
    """A classic assignment is the clients' own business; what is not in the consumers' format is shown as none."""
    if len(data) < 2:
        return ()
    version = min(int.from_bytes(data[:2]), 3)
    try:
        assignment, _ = read_message(ConsumerProtocolAssignment, version, data, 2)
    except MalformedMessage:
        return ()
    return tuple(
        TopicPartition(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions
    )
