"""The group coordinator: membership, groups that change their protocol, and expiry.

It finds the group and hands on: classic groups to ``rebalance``, consumer groups to ``heartbeats``, classic members of
consumer groups to ``mixed``. A group without members takes the protocol of the member that joins it next. A group with
members changes while it runs if ``group.consumer.migration.policy`` allows it; if not, a new member of the other
protocol gets GROUP_ID_NOT_FOUND, as in Apache Kafka. Offsets are in ``commits``, descriptions and deletions in
``admin``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from headrace.broker.access import AccessDenied, Operation
from headrace.broker.errors import code_of, coordinator_code_of
from headrace.broker.groups.assigning import AssignmentWanted
from headrace.broker.groups.classic import CONSUMER_PROTOCOL, ClassicGroup
from headrace.broker.groups.commits import ROWS_PER_WRITE, UNITS_PER_WRITE
from headrace.broker.groups.consumer import LEFT_STATIC, ConsumerGroup
from headrace.broker.groups.group import Group, require
from headrace.broker.groups.heartbeat_checks import JOIN, check_heartbeat
from headrace.broker.groups.heartbeats import LEAVE, Heartbeats
from headrace.broker.groups.mixed import ClassicProtocolAdapter, cannot_upgrade, to_classic, to_consumer
from headrace.broker.groups.offsets import Offsets
from headrace.broker.groups.rebalance import Rebalancer
from headrace.broker.groups.registry import Groups
from headrace.broker.limits import GROUP_ID_CHARS_MAX
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.slices import InThread, Steps, in_steps
from headrace.config import GROUP_SETTINGS, Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock, TimerHandle
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from headrace.wire.kafka.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from headrace.broker.state import Change, StateStore
    from headrace.broker.topics import Topics

__all__ = ["GroupCoordinator"]

PROTOCOL_NAMED_SINCE = 5
"""The version of SyncGroup from which a member must say which protocol it thinks was chosen."""

UNITS_PER_LEAVE = 15
MEMBERS_PER_UNIT = 100
"""Each member that leaves writes a row and makes the coordinator look at all that stay."""

ASSIGNMENTS_TRIED_MAX = 5
"""A group that changes all the time gets its assignment on the loop after so many attempts."""

GROUPS_PER_TURN = 200
"""Groups whose offsets are looked at for expiry in one go."""


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
        offsets: Offsets,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
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
        self._mixed = ClassicProtocolAdapter(state=state, heartbeats=self._heartbeats, topics=topics, new_id=new_id)
        self._sweep_timer: TimerHandle | None = None
        self._closed = False
        self._removals: dict[str, Iterator[Change]] = {}
        """By deleted topic: the rows of its offsets that are still to be removed."""

    def _group_setting(self, group_id: str, name: str) -> int:
        """What was configured for this group, or else for all."""
        given = self._state.table("group_config").get(group_id, {}).get(name)
        return int(given) if given is not None else self._settings.integer(GROUP_SETTINGS[name].synonym)

    # ---- starting and stopping ----

    def load(self) -> None:
        """Rebuild all groups from the state. The topics must be loaded."""
        self._offsets.load()
        members: dict[str, list[dict[str, Any]]] = {}
        for row in self._state.table("group_members").values():
            members.setdefault(row["group"], []).append(row)
        generations = self._state.table("group_generations")
        for group_id, row in self._state.table("groups").items():
            if row["type"] == ConsumerGroup.type_name:
                group = self._groups[group_id] = ConsumerGroup(group_id, self._mixed)
                self._heartbeats.restore(group, row, members.get(group_id, []))
            else:
                self._groups[group_id] = self._rebalancer.restore(group_id, row, generations.get(group_id, 0))
        for group_id, told in generations.items():
            if group_id not in self._groups:
                self._groups[group_id] = self._rebalancer.restore(group_id, None, told)
        for group_id in self._offsets.group_ids():
            self.ensure(group_id)
        self._topics.subscribe(self._topic_deleted, before_creation=self._before_creation)
        self._drop_offsets_of_deleted_topics()
        self._set_sweep_timer()

    def close(self) -> None:
        """Stop the timers, and answer requests that wait with COORDINATOR_NOT_AVAILABLE."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for group in self._groups.values():
            group.shut(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def ensure(self, group_id: str) -> None:
        """Make a group for an id that only has offsets."""
        if group_id not in self._groups:
            self._groups[group_id] = self._rebalancer.new(group_id)

    def remove(self, group: Group) -> Steps[int]:
        """Remove a group with its offsets, pending ones included; the journal offset to wait for.

        The first write removes the group and some of its offsets; later writes remove the others.
        """
        removal = self._offsets.group_removal(group.group_id)
        journal_offset = self._state.put_many([*group.removal(), *islice(removal, ROWS_PER_WRITE)])
        self._offsets.apply_group_removal(group.group_id)
        del self._groups[group.group_id]
        group.shut(ErrorCode.UNKNOWN_MEMBER_ID)
        for changes in in_steps(removal, ROWS_PER_WRITE):
            yield UNITS_PER_WRITE
            journal_offset = self._state.put_many(changes)
        return journal_offset

    # ---- requests of the classic protocol ----

    def join_group(self, request: Request[JoinGroupRequest]) -> Reply:
        body = request.body
        try:
            known = request.access.group(body.group_id, Operation.READ)
        except AccessDenied as denied:
            return JoinGroupResponse(error_code=denied.code, protocol_name=None)
        try:
            self._check_join(body)
            group = self._joined(known, body)
            reply = group.join(request)
        except HeadraceError as error:
            return JoinGroupResponse(
                error_code=coordinator_code_of(error), member_id=body.member_id, protocol_name=None
            )
        if not group.is_removable():
            self._groups[body.group_id] = group
        return reply

    def _check_join(self, body: JoinGroupRequest) -> None:
        self._check_open(body.group_id)
        least = self._settings.integer("group.min.session.timeout.ms")
        most = self._settings.integer("group.max.session.timeout.ms")
        if not least <= body.session_timeout_ms <= most:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if refused := self._groups.growth_refusal(body.group_id):
            raise KafkaError(refused)

    def _joined(self, known: Group | None, body: JoinGroupRequest) -> Group:
        """The group that a classic member joins. An empty one of another kind becomes a classic group."""
        if known is None:
            if body.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            return self._rebalancer.new(body.group_id)
        if known.type_name == ClassicGroup.type_name or not known.is_empty():
            return known
        self._state.put_many(known.removal())
        known.shut(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        classic = self._groups[body.group_id] = self._rebalancer.new(body.group_id)
        return classic

    def sync_group(self, request: Request[SyncGroupRequest]) -> Reply:
        body = request.body
        if request.version >= PROTOCOL_NAMED_SINCE and (body.protocol_type is None or body.protocol_name is None):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            return self._member_group(request, body.group_id).sync(body)
        except HeadraceError as error:
            return SyncGroupResponse(error_code=code_of(error))

    def heartbeat(self, request: Request[HeartbeatRequest]) -> Reply:
        body = request.body
        try:
            return self._member_group(request, body.group_id).heartbeat(body)
        except HeadraceError as error:
            return HeartbeatResponse(error_code=code_of(error))

    def leave_group(self, request: Request[LeaveGroupRequest]) -> Steps[LeaveGroupResponse]:
        body = request.body
        identities = body.members if request.version >= 3 else [MemberIdentity(member_id=body.member_id)]
        left: list[MemberResponse] = []
        try:
            group = request.access.group(body.group_id, Operation.READ)
            self._check_open(body.group_id)
            for identity in identities:
                left.append(
                    MemberResponse(
                        member_id=identity.member_id,
                        group_instance_id=identity.group_instance_id,
                        error_code=_leave(group, identity),
                    )
                )
                if group is not None and left[-1].error_code == ErrorCode.NONE:
                    yield UNITS_PER_LEAVE + len(group.member_ids()) // MEMBERS_PER_UNIT
                yield 1
                group = request.access.group(body.group_id, Operation.READ)  # it may be of another protocol now
        except HeadraceError as error:
            return LeaveGroupResponse(error_code=code_of(error))
        if request.version >= 3:
            return LeaveGroupResponse(members=left)
        return LeaveGroupResponse(error_code=left[0].error_code)

    def _check_open(self, group_id: str) -> None:
        if self._closed:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not 0 < len(group_id) <= GROUP_ID_CHARS_MAX:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)

    def _member_group(self, request: Request[Any], group_id: str) -> Group:
        """The group of a request that only members send."""
        group = request.access.group(group_id, Operation.READ)
        self._check_open(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # ---- the consumer protocol ----

    def consumer_group_heartbeat(self, request: Request[ConsumerGroupHeartbeatRequest]) -> Steps[Reply]:
        """Patterns are matched in slices, and a large assignment is computed on a thread. Then the heartbeat is made
        again, with what is there by then."""
        body, heartbeats, known = request.body, self._heartbeats, None
        for _ in range(ASSIGNMENTS_TRIED_MAX):
            pattern = body.subscribed_topic_regex
            matched = yield from heartbeats.matching.in_steps(request.access, body.group_id, pattern)
            try:
                with heartbeats.matching.knowing(matched), heartbeats.assignments.asking(known):
                    return self._consumer_heartbeat(request)
            except AssignmentWanted as wanted:
                known = (wanted.inputs, (yield InThread(wanted.inputs.compute, ())))
        with heartbeats.matching.knowing(matched):
            return self._consumer_heartbeat(request)

    def _consumer_heartbeat(self, request: Request[ConsumerGroupHeartbeatRequest]) -> Reply:
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
                return self._heartbeats.leave(require(group, ConsumerGroup, body.group_id), body)
            if body.member_epoch == JOIN and (group is None or group.type_name == ClassicGroup.type_name):
                return self._first_heartbeat(request, group)
            return self._heartbeats.heartbeat(require(group, ConsumerGroup, body.group_id), request)
        except HeadraceError as error:
            return ConsumerGroupHeartbeatResponse(error_code=coordinator_code_of(error), error_message=error.message)

    def _first_heartbeat(self, request: Request[ConsumerGroupHeartbeatRequest], known: Group | None) -> Reply:
        """The first member of the consumer protocol joins; a classic group of that id changes its protocol."""
        group_id = request.body.group_id
        if refused := self._groups.growth_refusal(group_id):
            raise KafkaError(refused, "The group id is too long, or there are too many groups.")
        group = ConsumerGroup(group_id, self._mixed)
        first: list[Change] = []
        if known is not None:
            first = known.removal()
            if not known.is_empty():
                group = self._upgraded(require(known, ClassicGroup, group_id))
                first += self._heartbeats.rows_of(group)
        reply = self._heartbeats.heartbeat(group, request, first)
        if known is not None:
            known.shut(ErrorCode.REBALANCE_IN_PROGRESS)
        for member in group.members.values():
            self._heartbeats.watch(group, member)
        self._groups[group_id] = group
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
            return to_consumer(group, self._topics, self._mixed)
        except HeadraceError as error:
            if code_of(error) is ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            raise cannot_upgrade(group.group_id, "the embedded consumer protocol is malformed") from None

    def _downgrade(self, group: ConsumerGroup) -> None:
        """Only classic members are left. If the policy allows it, they become a classic group again and rebalance."""
        allowed = self._settings.text("group.consumer.migration.policy") in ("downgrade", "bidirectional")
        if not allowed or len(group.members) > self._settings.integer("group.max.size"):
            return
        classic = to_classic(group, self._topics, self._rebalancer, self._clock.wall_ms())
        changes = [*group.removal(), ("groups", group.group_id, classic.to_row())]
        try:
            classic.journal_offset = self._state.put_many(changes)
        except HeadraceError:
            return  # The disk is full. It stays a consumer group of classic members, which works too.
        group.shut(ErrorCode.REBALANCE_IN_PROGRESS)
        self._groups[group.group_id] = classic
        for member in classic.members.values():
            self._rebalancer.touch(member)
        self._rebalancer.prepare(classic)

    # ---- what time and topics do ----

    def _set_sweep_timer(self) -> None:
        interval_ms = self._settings.integer("offsets.retention.check.interval.ms")
        self._sweep_timer = self._clock.call_later(interval_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        """Remove expired offsets, and groups without members and offsets."""
        self._sweep_some(iter(list(self._groups.values())))

    def _sweep_some(self, groups: Iterator[Group]) -> None:
        """Look at the next groups, and remove so many offsets at most. The rest follows in later turns of the loop:
        requests are served in between."""
        removed = 0
        some = list(islice(groups, GROUPS_PER_TURN))
        try:
            for number, group in enumerate(some):
                if self._groups.find(group.group_id) is group:
                    removed += self._expire(group)
                if removed >= ROWS_PER_WRITE:
                    groups = chain(some[number:], groups)  # the group itself may have more
                    break
        except HeadraceError:
            some.clear()  # The disk is full. The next sweep tries again.
        if some:
            self._sweep_timer = self._clock.call_later(0.0, partial(self._sweep_some, groups))
        else:
            self._set_sweep_timer()

    def _expire(self, group: Group) -> int:
        """The number of offsets that were removed."""
        if group.keeps_offsets():
            return 0
        retention_ms = self._settings.integer("offsets.retention.minutes") * 60_000
        expired = self._offsets.expired(
            group.group_id, self._clock.wall_ms(), retention_ms, group.empty_since_ms, group.is_subscribed_to
        )
        gone = list(islice(expired, ROWS_PER_WRITE))
        if gone:
            self._state.put_many(self._offsets.removal(group.group_id, gone))
            self._offsets.apply_removal(group.group_id, gone)
        if group.is_removable() and not self._offsets.has_any(group.group_id):
            for _ in self.remove(group):
                pass  # it has no offsets, so there is one step
        return len(gone)

    def _drop_offsets_of_deleted_topics(self) -> None:
        """At a start: what a crash left."""
        for topic in self._offsets.topics():
            if not self._topics.exists(topic):
                self._topic_deleted(topic)

    def _topic_deleted(self, topic: str) -> None:
        before = self._removals.get(topic, iter(()))
        self._removals[topic] = chain(before, self._offsets.topic_removal(topic))
        self._remove_rows(topic)

    def _remove_rows(self, topic: str) -> None:
        """Remove the next rows of a deleted topic's offsets. The rest follows in later turns of the loop."""
        if topic in self._removals and not self._closed:
            with suppress(HeadraceError):  # The disk is full. A new topic of that name, or the next start, goes on.
                if self._remove_some(topic, ROWS_PER_WRITE):
                    self._clock.call_later(0.0, partial(self._remove_rows, topic))

    def _before_creation(self, topic: str) -> None:
        """A new topic must not get the offsets of a deleted one of that name, also after a crash: so their removal
        comes before it in the journal."""
        if topic in self._removals:
            self._remove_some(topic, None)

    def _remove_some(self, topic: str, row_count: int | None) -> bool:
        """Whether any rows were removed. If the disk refuses, they are still to be removed."""
        removal = self._removals.pop(topic)
        changes = list(islice(removal, row_count))
        if not changes:
            return False
        try:
            self._state.put_many(changes)
        except HeadraceError:
            self._removals[topic] = chain(changes, removal)
            raise
        self._removals[topic] = removal
        return True


def _leave(group: Group | None, identity: MemberIdentity) -> ErrorCode:
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    try:
        return group.leave(identity)
    except HeadraceError as error:
        return coordinator_code_of(error)
