"""The group coordinator: every request about groups and offsets comes here.

It finds the group, decides which protocol it speaks, and hands on: classic groups to ``rebalance``, consumer groups to
``heartbeats``, classic members of consumer groups to ``mixed``, offsets to ``commits``. A group without members takes
the protocol of whoever joins it next. A group with members changes while it runs if ``group.consumer.migration.policy``
lets it; if not, a new member of the other protocol is told what Apache Kafka tells it (GROUP_ID_NOT_FOUND).

Groups without a row of their own exist too: those that only ever committed offsets.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.access import Access, AccessDenied, Operation
from headrace.broker.errors import code_of, coordinator_code_of
from headrace.broker.groups.classic import CONSUMER_PROTOCOL, ClassicGroup, ClassicState
from headrace.broker.groups.commits import Commits
from headrace.broker.groups.consumer import LEFT_STATIC, ConsumerGroup, member_key
from headrace.broker.groups.describe import describe_classic, describe_consumer, list_groups
from headrace.broker.groups.heartbeats import LEAVE, Heartbeats, check_heartbeat
from headrace.broker.groups.mixed import Mixed, cannot_upgrade, to_classic, to_consumer
from headrace.broker.groups.offsets import Change, Offsets
from headrace.broker.groups.rebalance import Rebalancer
from headrace.broker.groups.registry import Group, Groups
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.config import GROUP_SETTINGS, Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock, TimerHandle
from headrace.wire.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from headrace.wire.kafka.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from headrace.wire.kafka.messages.transactions import TxnOffsetCommitRequest

if TYPE_CHECKING:
    from headrace.broker.state import StateStore
    from headrace.broker.topics import Topics

__all__ = ["GroupCoordinator"]

CheckProducer = Callable[[Request[TxnOffsetCommitRequest]], ErrorCode]

GROUP_ID_CHARS_MAX = 10_000
GROUPS_MAX = 100_000

PROTOCOL_NAMED_SINCE = 5
"""The version of SyncGroup from which a member must say which protocol it thinks was chosen."""


class GroupCoordinator:
    """All groups of the broker."""

    def __init__(
        self,
        *,
        state: StateStore,
        clock: Clock,
        settings: Settings,
        topics: Topics,
        groups: Groups,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._offsets = Offsets(state)
        self._rebalancer = Rebalancer(state=state, clock=clock, settings=settings, new_id=new_id)
        self._heartbeats = Heartbeats(
            state=state,
            clock=clock,
            settings=settings,
            topics=topics,
            new_id=new_id,
            group_setting=self._group_setting,
            only_classic_left=self._downgrade,
        )
        self._mixed = Mixed(state=state, heartbeats=self._heartbeats, topics=topics, new_id=new_id)
        self._commits = Commits(
            state=state,
            clock=clock,
            settings=settings,
            offsets=self._offsets,
            found=self._ensure,
        )
        self._sweep_timer: TimerHandle | None = None
        self._closed = False

    def _group_setting(self, group_id: str, name: str) -> int:
        """What was configured for this group alone, else for all."""
        given = self._state.table("group_config").get(group_id, {}).get(name)
        return int(given) if given is not None else self._settings.integer(GROUP_SETTINGS[name].synonym)

    # ---- starting and stopping ----

    def load(self) -> None:
        """Rebuild everything from the state; to be called when the topics are there."""
        self._offsets.load()
        members: dict[str, list[dict[str, Any]]] = {}
        for row in self._state.table("group_members").values():
            members.setdefault(row["group"], []).append(row)
        generations = self._state.table("group_generations")
        for group_id, row in self._state.table("groups").items():
            if row["type"] == ConsumerGroup.type_name:
                self._groups[group_id] = self._heartbeats.restore(group_id, row, members.get(group_id, []))
            else:
                self._groups[group_id] = self._rebalancer.restore(group_id, row, generations.get(group_id, 0))
        for group_id, told in generations.items():
            if group_id not in self._groups:
                self._groups[group_id] = self._rebalancer.restore(group_id, None, told)
        for group_id in self._offsets.group_ids():
            self._ensure(group_id)
        self._topics.subscribe(self._topics_changed)
        self._drop_offsets_of_deleted_topics()
        self._set_sweep_timer()

    def close(self) -> None:
        """Stop the timers; whoever waits is told to look for a coordinator again."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for group in self._groups.values():
            self._shut(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _shut(self, group: Group, code: ErrorCode) -> None:
        if isinstance(group, ClassicGroup):
            self._rebalancer.shut(group, code)
        else:
            self._heartbeats.shut(group)

    # ---- classic groups ----

    def join_group(self, request: Request[JoinGroupRequest]) -> Reply:
        body = request.body
        try:
            group = request.access.group(body.group_id, Operation.READ)
        except AccessDenied as denied:
            return JoinGroupResponse(error_code=denied.code, protocol_name=None)
        refused = self._join_refusal(body)
        if refused is not ErrorCode.NONE:
            return _join_error(refused, body)
        if isinstance(group, ConsumerGroup):
            try:
                if not group.is_empty():
                    return self._mixed.join(group, request)
                group = self._to_classic(group)
            except HeadraceError as error:
                return _join_error(coordinator_code_of(error), body)
        if group is None:
            if body.member_id:
                return _join_error(ErrorCode.UNKNOWN_MEMBER_ID, body)
            group = ClassicGroup(body.group_id)
        reply = self._rebalancer.join(group, request)
        if group.members or group.pending:
            self._groups[body.group_id] = group
        return reply

    def _join_refusal(self, body: JoinGroupRequest) -> ErrorCode:
        if self._closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not _is_group_id(body.group_id):
            return ErrorCode.INVALID_GROUP_ID
        least = self._settings.integer("group.min.session.timeout.ms")
        most = self._settings.integer("group.max.session.timeout.ms")
        if not least <= body.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return self._growth_refusal(body.group_id)

    def _growth_refusal(self, group_id: str) -> ErrorCode:
        """Nothing grows without a limit: neither ids nor the number of groups."""
        if len(group_id) > GROUP_ID_CHARS_MAX:
            return ErrorCode.INVALID_GROUP_ID
        full = group_id not in self._groups and len(self._groups) >= GROUPS_MAX
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if full else ErrorCode.NONE

    def sync_group(self, request: Request[SyncGroupRequest]) -> Reply:
        body = request.body
        if request.version >= PROTOCOL_NAMED_SINCE and (body.protocol_type is None or body.protocol_name is None):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            group = self._member_group(request, body.group_id)
            if isinstance(group, ClassicGroup):
                return self._rebalancer.sync(group, body)
            return self._mixed.sync(group, body)
        except HeadraceError as error:
            return SyncGroupResponse(error_code=code_of(error))

    def heartbeat(self, request: Request[HeartbeatRequest]) -> Reply:
        body = request.body
        try:
            group = self._member_group(request, body.group_id)
            if isinstance(group, ClassicGroup):
                return self._rebalancer.heartbeat(group, body)
            return self._mixed.heartbeat(group, body)
        except HeadraceError as error:
            return HeartbeatResponse(error_code=code_of(error))

    def leave_group(self, request: Request[LeaveGroupRequest]) -> Reply:
        body = request.body
        identities = body.members if request.version >= 3 else [MemberIdentity(member_id=body.member_id)]
        try:
            group = self._known_group(request, body.group_id)
        except HeadraceError as error:
            return LeaveGroupResponse(error_code=code_of(error))
        left = [
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=self._leave(group, identity),
            )
            for identity in identities
        ]
        if request.version >= 3:
            return LeaveGroupResponse(members=left)
        return LeaveGroupResponse(error_code=left[0].error_code)

    def _leave(self, group: Group | None, identity: MemberIdentity) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ClassicGroup):
            return self._rebalancer.leave(group, identity)
        try:
            return self._leave_consumer(group, identity)
        except HeadraceError as error:
            return coordinator_code_of(error)

    def _leave_consumer(self, group: ConsumerGroup, identity: MemberIdentity) -> ErrorCode:
        """An administrator takes a member of the consumer protocol out with the classic request."""
        member_id: str | None = identity.member_id
        if identity.group_instance_id is not None:
            member_id = group.static_ids.get(identity.group_instance_id)
            if member_id is not None and identity.member_id not in ("", member_id):
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id is None or member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._heartbeats.remove(group, [member_id])
        return ErrorCode.NONE

    def _known_group(self, request: Request[Any], group_id: str) -> Group | None:
        group = request.access.group(group_id, Operation.READ)
        if self._closed:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not _is_group_id(group_id):
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return group

    def _member_group(self, request: Request[Any], group_id: str) -> Group:
        """The group of a request that only a member sends."""
        group = self._known_group(request, group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # ---- consumer groups ----

    def consumer_group_heartbeat(self, request: Request[ConsumerGroupHeartbeatRequest]) -> Reply:
        body = request.body
        try:
            if self._closed:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is stopping")
            if "consumer" not in self._settings.items("group.coordinator.rebalance.protocols"):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the consumer protocol is switched off here")
            group = request.access.group(body.group_id, Operation.READ)
            for name in body.subscribed_topic_names or ():
                request.access.topic(name, Operation.DESCRIBE)
            check_heartbeat(body, request.version, self._settings.items("group.consumer.assignors"))
            if body.member_epoch in (LEAVE, LEFT_STATIC):
                return self._heartbeats.leave(_consumer_group(group, body.group_id), body)
            return self._consumer_heartbeat(request, group)
        except HeadraceError as error:
            return ConsumerGroupHeartbeatResponse(error_code=coordinator_code_of(error), error_message=error.message)

    def _consumer_heartbeat(self, request: Request[ConsumerGroupHeartbeatRequest], known: Group | None) -> Reply:
        body = request.body
        if body.member_epoch != 0 or isinstance(known, ConsumerGroup):
            return self._heartbeats.heartbeat(_consumer_group(known, body.group_id), request)
        refused = self._growth_refusal(body.group_id)
        if refused is not ErrorCode.NONE:
            raise KafkaError(refused, "The group id is too long, or there are too many groups.")
        group = ConsumerGroup(body.group_id)
        first: list[Change] = []
        if known is not None:
            first = self._rows_of(known)
            if not known.is_empty():
                group = self._upgraded(known)
                first += self._heartbeats.rows_of(group)
        reply = self._heartbeats.heartbeat(group, request, first)
        if known is not None:
            self._shut(known, ErrorCode.REBALANCE_IN_PROGRESS)
        for member in group.members.values():
            self._heartbeats.watch(group, member)
        self._groups[body.group_id] = group
        return reply

    def _upgraded(self, group: ClassicGroup) -> ConsumerGroup:
        """The consumer group that a classic group with members becomes when one of the new protocol joins it."""
        if self._settings.text("group.consumer.migration.policy") not in ("upgrade", "bidirectional"):
            raise cannot_upgrade(group.group_id, "online upgrade is disabled")
        if group.protocol_type != CONSUMER_PROTOCOL:
            raise cannot_upgrade(group.group_id, "the group does not use the consumer embedded protocol")
        if len(group.members) > self._settings.integer("group.consumer.max.size"):
            raise cannot_upgrade(group.group_id, "the group size exceeds the consumer group maximum size")
        try:
            return to_consumer(group, self._topics)
        except HeadraceError as error:
            if code_of(error) is ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            raise cannot_upgrade(group.group_id, "the embedded consumer protocol is malformed") from None

    def _downgrade(self, group: ConsumerGroup) -> None:
        """Only classic members are left: if they may, they become a classic group again, and rebalance."""
        allowed = self._settings.text("group.consumer.migration.policy") in ("downgrade", "bidirectional")
        if not allowed or len(group.members) > self._settings.integer("group.max.size"):
            return
        classic = to_classic(group, self._topics, self._rebalancer, self._clock.wall_ms())
        changes = [*self._rows_of(group), ("groups", group.group_id, classic.to_row())]
        try:
            classic.journal_offset = self._state.put_many(changes)
        except HeadraceError:
            return  # The disk is full: it stays a consumer group of classic members, which works as well.
        self._heartbeats.shut(group)
        self._groups[group.group_id] = classic
        for member in classic.members.values():
            self._rebalancer.touch(member)
        self._rebalancer.prepare(classic)

    def _to_classic(self, group: ConsumerGroup) -> ClassicGroup:
        changes = self._rows_of(group)
        self._state.put_many(changes)
        self._shut(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        classic = ClassicGroup(group.group_id)
        self._groups[group.group_id] = classic
        return classic

    def _rows_of(self, group: Group) -> list[Change]:
        """The changes that remove a group, but not its offsets."""
        changes: list[Change] = [("groups", group.group_id, None)]
        if isinstance(group, ClassicGroup):
            changes.append(("group_generations", group.group_id, None))
        else:
            changes += [("group_members", member_key(group.group_id, each), None) for each in group.members]
        return changes

    def consumer_group_describe(self, request: Request[ConsumerGroupDescribeRequest]) -> Reply:
        default_assignor = self._settings.items("group.consumer.assignors")[0]
        return ConsumerGroupDescribeResponse(
            groups=[
                describe_consumer(
                    request.access, group_id, default_assignor, request.body.include_authorized_operations
                )
                for group_id in request.body.group_ids
            ]
        )

    # ---- offsets ----

    def offset_commit(self, request: Request[OffsetCommitRequest]) -> Reply:
        return self._commits.offset_commit(request, self._growth_refusal(request.body.group_id))

    def offset_fetch(self, request: Request[OffsetFetchRequest]) -> Reply:
        """What is told is durable: an offset that a power failure could take back would be seen to go back."""
        response = self._commits.offset_fetch(request)
        return once_flushed(self._state, self._state.end_offset - 1, response)

    def offset_delete(self, request: Request[OffsetDeleteRequest]) -> Reply:
        return self._commits.offset_delete(request)

    def txn_offset_commit(self, request: Request[TxnOffsetCommitRequest], check_producer: CheckProducer) -> Reply:
        """Keep offsets until their transaction ends. ``check_producer`` says whether the producer may add them."""
        group_id = request.body.group_id
        refused = self._growth_refusal(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        return self._commits.txn_offset_commit(request, lambda: refused or check_producer(request))

    def committed_offset(self, group_id: str, topic: str, partition: int) -> int | None:
        row = self._offsets.get(group_id, topic, partition)
        return None if row is None else int(row[0])

    def ids(self) -> list[str]:
        return list(self._groups)

    def member_count(self, group_id: str) -> int:
        group = self._groups.get(group_id)
        return 0 if group is None else len(group.members)

    def committed_offsets(self, group_id: str) -> dict[str, dict[int, int]]:
        """By topic and partition."""
        return {
            topic: {partition: int(row[0]) for partition, row in rows.items()}
            for topic, rows in self._offsets.of_group(group_id).items()
        }

    def has_members(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and not group.is_empty()

    def has_pending_offsets(self, producer_id: int, group_id: str | None = None) -> bool:
        return self._offsets.has_pending(producer_id, group_id)

    def complete_transaction(self, producer_id: int, commit: bool) -> list[Change]:
        """The changes that turn the producer's pending offsets into committed ones, or drop them.

        The transaction coordinator writes them with its own decision in one ``put_many`` and then calls
        ``apply_transaction``, with nothing in between.
        """
        return self._offsets.completion(producer_id, commit, self._topic_exists)

    def apply_transaction(self, producer_id: int, commit: bool) -> None:
        for group_id in self._offsets.apply_completion(producer_id, commit, self._topic_exists):
            if self._offsets.has_any(group_id):
                self._ensure(group_id)

    def _topic_exists(self, name: str) -> bool:
        return self._topics.get(name) is not None

    def _ensure(self, group_id: str) -> None:
        if group_id not in self._groups:
            self._groups[group_id] = ClassicGroup(group_id)

    # ---- looking and deleting ----

    def list_groups(self, request: Request[ListGroupsRequest]) -> ListGroupsResponse:
        return list_groups(request.access.visible_groups(), request.body)

    def describe_groups(self, request: Request[DescribeGroupsRequest]) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(
            groups=[
                describe_classic(request.access, group_id, request.version, request.body.include_authorized_operations)
                for group_id in request.body.groups
            ]
        )

    def delete_groups(self, request: Request[DeleteGroupsRequest]) -> Reply:
        results: list[DeletableGroupResult] = []
        changes: list[Change] = []
        gone: list[str] = []
        for group_id in dict.fromkeys(request.body.groups_names):
            result = DeletableGroupResult(group_id=group_id)
            results.append(result)
            try:
                group = _deletable(request.access, group_id)
            except HeadraceError as error:
                result.error_code = code_of(error)
                continue
            gone.append(group_id)
            changes += self._rows_of(group) + self._offsets.group_removal(group_id)
        response = DeleteGroupsResponse(results=results)
        if not gone:
            return response
        try:
            offset = self._state.put_many(changes)
        except HeadraceError as error:
            for result in results:
                result.error_code = result.error_code or coordinator_code_of(error)
            return response
        for group_id in gone:
            self._forget(group_id)
        return once_flushed(self._state, offset, response)

    def _forget(self, group_id: str) -> None:
        self._offsets.apply_group_removal(group_id)
        self._shut(self._groups.pop(group_id), ErrorCode.UNKNOWN_MEMBER_ID)

    # ---- what time and topics do ----

    def _set_sweep_timer(self) -> None:
        interval_ms = self._settings.integer("offsets.retention.check.interval.ms")
        self._sweep_timer = self._clock.call_later(interval_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        """Remove offsets that are past their time, and groups of which nothing is left."""
        try:
            for group in list(self._groups.values()):
                self._expire(group)
        except HeadraceError:
            pass  # The disk is full: what could not be written down now is found again by the next sweep.
        self._set_sweep_timer()

    def _expire(self, group: Group) -> None:
        since_ms: int | None = None
        if isinstance(group, ClassicGroup) and group.protocol_type is not None:
            if group.state is ClassicState.EMPTY:
                since_ms = group.since_ms
            elif group.state is not ClassicState.STABLE or group.subscribed_topics is None:
                return
        retention_ms = self._settings.integer("offsets.retention.minutes") * 60_000
        places = self._offsets.expired(
            group.group_id, self._clock.wall_ms(), retention_ms, since_ms, group.is_subscribed_to
        )
        if places:
            self._state.put_many(self._offsets.removal(group.group_id, places))
            self._offsets.apply_removal(group.group_id, places)
        pending = isinstance(group, ClassicGroup) and group.pending
        if group.is_empty() and not pending and not self._offsets.has_any(group.group_id):
            self._state.put_many(self._rows_of(group))
            self._forget(group.group_id)

    def _topics_changed(self) -> None:
        self._drop_offsets_of_deleted_topics()
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                group.topics_stale = True

    def _drop_offsets_of_deleted_topics(self) -> None:
        for topic in self._offsets.topics():
            if self._topic_exists(topic):
                continue
            changes, gone = self._offsets.topic_removal(topic)
            if changes:
                try:
                    self._state.put_many(changes)
                except HeadraceError:
                    return  # The disk is full: a start, or the next change of topics, finds them again.
                for group_id, partition in gone:
                    self._offsets.apply_removal(group_id, [(topic, partition)])


def _consumer_group(group: Group | None, group_id: str) -> ConsumerGroup:
    if not isinstance(group, ConsumerGroup):
        why = "not found" if group is None else "is not a consumer group"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
    return group


def _deletable(access: Access, group_id: str) -> Group:
    group = access.group(group_id, Operation.DELETE)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if not group.is_empty():
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def _join_error(code: ErrorCode, body: JoinGroupRequest) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=body.member_id, protocol_name=None)


def _is_group_id(group_id: str) -> bool:
    return 0 < len(group_id) <= GROUP_ID_CHARS_MAX
