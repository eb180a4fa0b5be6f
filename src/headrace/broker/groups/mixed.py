"""Members of the classic protocol in consumer groups: how a running group changes its protocol.

An operator restarts the consumers of a group one by one with the new protocol, or back with the old one. Meanwhile the
group has members of both kinds. It is then a consumer group, and the broker assigns partitions. A classic member never
leads: its join is answered at once, with its member epoch as the generation. The answer to its sync has its partitions.
The answer to its heartbeat asks it to join again when it has partitions to give up or to take. It reports what it owns
in its subscription.

``to_consumer`` makes the consumer group when the first new member joins a classic group, and ``to_classic`` the classic
group when the last new member has left. Both keep the owner of every partition, so that none gets a second owner.
``group.consumer.migration.policy`` says which of the two may happen; a classic member may always join a consumer group.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.groups.classic import CONSUMER_PROTOCOL, ClassicGroup, ClassicMember, ClassicState
from headrace.broker.groups.consumer import ClassicSide, ConsumerGroup, ConsumerMember, MemberState, Owned
from headrace.broker.groups.heartbeats import Heartbeats
from headrace.broker.groups.rebalance import Rebalancer
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.codec import MalformedMessage, read_message, write_message
from headrace.wire.kafka.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from headrace.wire.kafka.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from headrace.broker.state import StateStore
    from headrace.broker.topics import Topics

__all__ = ["ClassicProtocolAdapter", "cannot_upgrade", "to_classic", "to_consumer"]

T = TypeVar("T")

EMBEDDED_VERSION_MAX = 3


class ClassicProtocolAdapter:
    """Answers classic requests to consumer groups."""

    def __init__(self, *, state: StateStore, heartbeats: Heartbeats, topics: Topics, new_id: Callable[[], str]) -> None:
        self._state = state
        self._heartbeats = heartbeats
        self._topics = topics
        self._new_id = new_id

    def join(self, group: ConsumerGroup, request: Request[JoinGroupRequest]) -> Reply:
        body = request.body
        unnamed = body.member_id == ""
        member_id = body.member_id or self._new_id()
        self._heartbeats.refuse_when_full(group, member_id)
        names = [protocol.name for protocol in body.protocols]
        if body.protocol_type != CONSUMER_PROTOCOL or not _supports(group, names):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are not supported."
            )
        subscription = _read(ConsumerProtocolSubscription, body.protocols[0].metadata)
        if unnamed and body.group_instance_id is None and request.version >= 4:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id, protocol_name=None)
        before, replaced = self._member(group, body, member_id)
        rebalance_ms = body.rebalance_timeout_ms if body.rebalance_timeout_ms >= 0 else body.session_timeout_ms
        member = replace(
            before,
            instance_id=body.group_instance_id or before.instance_id,
            rack_id=subscription.rack_id or before.rack_id,
            client_id=request.client_id or "",
            client_host=request.peer.host,
            rebalance_timeout_ms=rebalance_ms,
            topics=frozenset(subscription.topics),
            pattern="",
            classic=ClassicSide(
                session_timeout_ms=body.session_timeout_ms,
                protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
            ),
        )
        owned = {topic.topic: topic.partitions for topic in subscription.owned_partitions}
        member = self._heartbeats.advance(
            request.access, group, before, member, replaced, _by_id(owned, self._topics), joins=True
        )
        response = JoinGroupResponse(
            member_id=member.member_id,
            generation_id=member.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=body.protocols[0].name,
        )
        return once_flushed(self._state, group.journal_offset, response)

    def _member(
        self, group: ConsumerGroup, body: JoinGroupRequest, member_id: str
    ) -> tuple[ConsumerMember, str | None]:
        if body.group_instance_id is None:
            return group.members.get(member_id) or ConsumerMember(member_id=member_id), None
        if body.member_id:
            return self._known(group, body.member_id, body.group_instance_id), None
        known = group.members.get(group.static_ids.get(body.group_instance_id, ""))
        if known is None:
            return ConsumerMember(member_id=member_id), None
        return replace(known, member_id=member_id, epoch=0, previous_epoch=0), known.member_id

    def _known(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None:
            known_id = group.static_ids.get(instance_id)
            if known_id is not None and known_id != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"instance {instance_id} now belongs to {known_id}")
            if known_id is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"instance {instance_id} is not in group {group.group_id}"
                )
        return group.member(member_id)

    def _classic(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicSide]:
        member = self._known(group, member_id, instance_id)
        if member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
        if generation != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"generation {generation} is not the epoch {member.epoch}")
        return member, member.classic

    def leave(self, group: ConsumerGroup, identity: MemberIdentity) -> ErrorCode:
        """Take out a classic member, or, for an administrator, any member."""
        member_id: str | None = identity.member_id
        if identity.group_instance_id is not None:
            member_id = group.static_ids.get(identity.group_instance_id)
            if member_id is not None and identity.member_id not in ("", member_id):
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id is None or member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._heartbeats.remove(group, [member_id])
        return ErrorCode.NONE

    def sync(self, group: ConsumerGroup, body: SyncGroupRequest) -> Reply:
        member, classic = self._classic(group, body.member_id, body.group_instance_id, body.generation_id)
        name, metadata = classic.protocols[0]
        if body.protocol_type not in (None, CONSUMER_PROTOCOL) or body.protocol_name not in (None, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the protocol of {member.member_id} is {name}")
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._heartbeats.hurry(group, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} is at epoch {group.epoch}")
        self._heartbeats.watch(group, member)
        response = SyncGroupResponse(
            protocol_type=body.protocol_type,
            protocol_name=body.protocol_name,
            assignment=_encode(member.assigned, self._topics, _version(metadata)),
        )
        return once_flushed(self._state, group.journal_offset, response)

    def heartbeat(self, group: ConsumerGroup, body: HeartbeatRequest) -> HeartbeatResponse:
        member, classic = self._classic(group, body.member_id, body.group_instance_id, body.generation_id)
        group.sessions[member.member_id].move(classic.session_timeout_ms)
        gives_up = member.state is MemberState.UNREVOKED
        may_take = member.state is MemberState.UNRELEASED and not group.waits_for_others(member)
        if member.epoch == group.epoch and not gives_up and not may_take:
            return HeartbeatResponse()
        self._heartbeats.hurry(group, member)
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)


def to_consumer(group: ClassicGroup, topics: Topics, mixed: ClassicProtocolAdapter) -> ConsumerGroup:
    """The consumer group that a classic group becomes. Members keep their partitions. Nothing is written yet."""
    epoch = max(group.generation, group.generation_told_max, 1)
    consumer = ConsumerGroup(group.group_id, mixed, epoch=epoch, target_epoch=epoch)
    for member in group.members.values():
        metadata = member.metadata(group.protocol) or member.protocols[0][1]
        subscription = _read(ConsumerProtocolSubscription, metadata)
        assigned: Owned = {}
        if member.assignment:
            assignment = _read(ConsumerProtocolAssignment, member.assignment)
            if assignment.user_data:
                raise cannot_upgrade(group.group_id, "an unsupported custom assignor is in use")
            names = {topic.topic: topic.partitions for topic in assignment.assigned_partitions}
            assigned = _by_id(names, topics, group.generation)
        _check_free(consumer, assigned)
        consumer.set_member(
            ConsumerMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=subscription.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                topics=frozenset(subscription.topics),
                epoch=group.generation,
                previous_epoch=group.generation,
                assigned=assigned,
                classic=ClassicSide(session_timeout_ms=member.session_timeout_ms, protocols=tuple(member.protocols)),
            )
        )
        consumer.targets[member.member_id] = {each: frozenset(partitions) for each, partitions in assigned.items()}
    return consumer


def _check_free(group: ConsumerGroup, assigned: Owned) -> None:
    """A classic leader may have assigned one partition twice. Such a group cannot be upgraded."""
    for topic_id, partitions in assigned.items():
        if any((topic_id, partition) in group.owners for partition in partitions):
            raise cannot_upgrade(group.group_id, "two of its members were assigned the same partition")


def cannot_upgrade(group_id: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group_id} to consumer group because {why}."
    )


def to_classic(group: ConsumerGroup, topics: Topics, rebalancer: Rebalancer, now_ms: int) -> ClassicGroup:
    """The classic group of the remaining members, all of them classic. It is not written yet, and must rebalance."""
    classic = rebalancer.new(group.group_id)
    classic.generation = classic.generation_told_max = group.epoch
    for member in group.members.values():
        assert member.classic is not None
        version = _version(member.classic.protocols[0][1])
        has = {
            topic_id: {**member.assigned.get(topic_id, {}), **member.revoking.get(topic_id, {})}
            for topic_id in {**member.assigned, **member.revoking}
        }
        classic.add(
            ClassicMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.classic.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=list(member.classic.protocols),
                assignment=_encode(has, topics, version),
                session=rebalancer.session(classic, member.member_id),
            ),
            CONSUMER_PROTOCOL,
        )
    classic.state = classic.previous_state = ClassicState.STABLE
    classic.since_ms = now_ms
    classic.protocol = classic.select_protocol()
    classic.subscribed_topics = classic.find_subscribed_topics()
    return classic


def _supports(group: ConsumerGroup, names: list[str]) -> bool:
    sides = [member.classic for member in group.members.values() if member.classic is not None]
    return any(all(name in dict(side.protocols) for side in sides) for name in names)


def _version(data: bytes) -> int:
    """The version at the start of embedded data, or the newest known one: later versions only add fields."""
    return max(0, min(int.from_bytes(data[:2], "big"), EMBEDDED_VERSION_MAX))


def _read(cls: type[T], data: bytes) -> T:
    if len(data) < 2:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the embedded consumer protocol is malformed")
    try:
        message, _ = read_message(cls, _version(data), data, 2)
    except MalformedMessage as error:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the embedded protocol is malformed: {error}"
        ) from None
    return message


def _encode(owned: Owned, topics: Topics, version: int) -> bytes:
    named = []
    for topic_id, partitions in owned.items():
        topic = topics.by_id(topic_id)
        if topic is not None and partitions:
            named.append(ConsumerProtocolAssignmentTopicPartition(topic=topic.name, partitions=sorted(partitions)))
    message = ConsumerProtocolAssignment(assigned_partitions=named)
    return struct.pack(">h", version) + b"".join(bytes(chunk) for chunk in write_message(message, version))


def _by_id(partitions: Mapping[str, list[int]], topics: Topics, epoch: int = 0) -> Owned:
    owned: dict[bytes, dict[int, int]] = {}
    for name, indexes in partitions.items():
        topic = topics.get(name)
        if topic is not None:
            owned[topic.topic_id] = dict.fromkeys(indexes, epoch)
    return owned
