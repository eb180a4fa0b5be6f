"""How classic groups rebalance: join, sync, heartbeat, leave, and the timers between them.

A rebalance has two barriers. Members *join*: when all known members have joined, or the rebalance timeout has passed
and the others are removed, a new generation begins, and its members are sent to the leader. Members *sync*: when the
leader has sent all assignments, and they are flushed, each member gets its own.

A request that waits is a ``PendingReply`` in its member. A member has at most one waiting join and one waiting sync. A
client that asks again gets the answer on its second request, and REBALANCE_IN_PROGRESS on its first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.errors import code_of, coordinator_code_of
from headrace.broker.groups.classic import ClassicGroup, ClassicMember, ClassicState
from headrace.broker.groups.timers import Deadline
from headrace.broker.limits import GROUP_BYTES_MAX, MEMBER_BYTES_MAX, MEMBERS_PER_GROUP_MAX, PENDING_MEMBERS_MAX
from headrace.broker.replies import PendingReply, Reply, once_flushed
from headrace.broker.request import Request
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError
from headrace.ports import Clock
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

__all__ = ["Rebalancer"]

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""A new member cannot heartbeat while its first join waits. After this time it is removed."""

STORAGE_RETRY_S = 1.0

T = TypeVar("T")

Member = ClassicMember
State = ClassicState


class Rebalancer:
    """Moves classic groups through their states."""

    def __init__(self, *, state: StateStore, clock: Clock, settings: Settings, new_id: Callable[[], str]) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._new_id = new_id

    def new(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self)

    # ---- joining ----

    def join(self, group: ClassicGroup, request: Request[JoinGroupRequest]) -> Reply:
        body = request.body
        if not self._accepts(group, body.member_id):
            group.remove(body.member_id)
            return _join_error(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if refused := _size_refusal(group, request):
            return _join_error(refused, body.member_id)
        if not group.supports(body.protocol_type, [protocol.name for protocol in body.protocols]):
            return _join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, body.member_id)
        if body.member_id == "":
            return self._join_new(group, request)
        if body.member_id in group.pending and body.group_instance_id is None:
            return self._add_member(group, request, body.member_id)
        try:
            member = group.validate_member(body.member_id, body.group_instance_id)
        except HeadraceError as error:
            return _join_error(code_of(error), body.member_id)
        return self._join_again(group, member, request)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """During a rebalance only members that have joined count, so that the last to rejoin are refused."""
        size_max = min(self._settings.integer("group.max.size"), MEMBERS_PER_GROUP_MAX)
        member = group.members.get(member_id)
        if group.state is State.EMPTY:
            return True
        if group.state is State.PREPARING:
            return (member is not None and member.join_reply is not None) or group.awaiting_join_count() < size_max
        return member is not None or len(group.members) < size_max

    def _join_new(self, group: ClassicGroup, request: Request[JoinGroupRequest]) -> Reply:
        body = request.body
        member_id = f"{body.group_instance_id or request.client_id or ''}-{self._new_id()}"
        if body.group_instance_id is not None:
            old_id = group.static_ids.get(body.group_instance_id)
            if old_id is not None:
                return self._replace_static(group, request, old_id, member_id)
        elif request.version >= 4:
            return self._require_member_id(group, body.session_timeout_ms, member_id)
        return self._add_member(group, request, member_id)

    def _require_member_id(self, group: ClassicGroup, session_timeout_ms: int, member_id: str) -> JoinGroupResponse:
        """Ask the client to join again with an id. Otherwise a client that retries would leave dead members."""
        if len(group.pending) >= PENDING_MEMBERS_MAX:
            return _join_error(ErrorCode.GROUP_MAX_SIZE_REACHED)
        deadline = Deadline(self._clock, partial(self._pending_expired, group, member_id))
        group.pending[member_id] = deadline
        deadline.move(session_timeout_ms)
        return _join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _add_member(self, group: ClassicGroup, request: Request[JoinGroupRequest], member_id: str) -> Reply:
        body = request.body
        member = Member(
            member_id=member_id,
            instance_id=body.group_instance_id,
            client_id=request.client_id or "",
            client_host=request.peer.host,
            session_timeout_ms=body.session_timeout_ms,
            rebalance_timeout_ms=_rebalance_timeout_ms(body),
            protocols=[(protocol.name, protocol.metadata) for protocol in body.protocols],
            is_new=True,
            session=self.session(group, member_id),
            join_reply=PendingReply(),
        )
        if group.state is State.PREPARING and group.previous_state is State.EMPTY:
            group.new_member_added = True
        group.add(member, body.protocol_type)
        member.session.move(NEW_MEMBER_JOIN_TIMEOUT_MS)
        reply = member.join_reply
        self._rebalance_or_complete(group)
        return reply

    def _join_again(self, group: ClassicGroup, member: Member, request: Request[JoinGroupRequest]) -> Reply:
        """A known member joins: in a rebalance, to start one, or because it missed the last answer."""
        protocols = [(protocol.name, protocol.metadata) for protocol in request.body.protocols]
        unchanged = protocols == member.protocols
        told_again = (unchanged and group.is_current()) and (
            group.state is State.COMPLETING or (group.state is State.STABLE and member.member_id != group.leader)
        )
        if told_again:
            return once_flushed(self._state, group.journal_offset, group.join_response(member.member_id))
        assert group.state is not State.EMPTY, "an empty group has no members"
        reply = self._update_member(member, request)
        self._rebalance_or_complete(group)
        return reply

    def _update_member(self, member: Member, request: Request[JoinGroupRequest]) -> PendingReply[JoinGroupResponse]:
        body = request.body
        member.protocols = [(protocol.name, protocol.metadata) for protocol in body.protocols]
        member.session_timeout_ms = body.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout_ms(body)
        _answer(member.join_reply, _join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        reply: PendingReply[JoinGroupResponse] = PendingReply()
        member.join_reply = reply
        return reply

    # ---- static members ----

    def _replace_static(
        self, group: ClassicGroup, request: Request[JoinGroupRequest], old_id: str, new_id: str
    ) -> Reply:
        """A process joins with a known instance id. It takes over the member, and the old process is fenced."""
        old_leader = group.leader
        member = group.members[old_id]
        old_protocols = member.protocols
        old_timeouts = (member.session_timeout_ms, member.rebalance_timeout_ms)
        _answer(member.join_reply, _join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))
        _answer(member.sync_reply, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        member.join_reply = member.sync_reply = None
        self._rename(group, member, new_id)
        reply = self._update_member(member, request)
        unsettled = group.state is not State.STABLE or not group.is_current()
        if unsettled or not group.keeps_assignment(member, old_protocols):
            self._rebalance_or_complete(group)
            return reply
        try:
            offset = self._state.put("groups", group.group_id, group.to_row())
        except HeadraceError as error:
            member.join_reply = None
            member.protocols = old_protocols
            member.session_timeout_ms, member.rebalance_timeout_ms = old_timeouts
            self._rename(group, member, old_id)
            return _join_error(coordinator_code_of(error))
        group.journal_offset = offset
        member.join_reply = None
        response = group.join_response(new_id)
        if request.version >= 9:
            response.skip_assignment = new_id == group.leader
        else:
            # An older client that sees itself as leader would compute assignments: it gets the id of the old member.
            response.leader = old_leader or ""
            response.members = []
        self._deliver_once_flushed(group, [(reply, response)])
        return reply

    def _rename(self, group: ClassicGroup, member: Member, new_id: str) -> None:
        old_id = member.member_id
        assert member.instance_id is not None
        member.session.stop()
        member.session = self.session(group, new_id)
        member.member_id = new_id
        group.members = {each.member_id: each for each in group.members.values()}
        group.static_ids[member.instance_id] = new_id
        group.awaiting_sync.discard(old_id)
        if group.leader == old_id:
            group.leader = new_id
        member.session.move(member.session_timeout_ms)

    # ---- the first barrier ----

    def _rebalance_or_complete(self, group: ClassicGroup) -> None:
        if group.can_rebalance():
            self.prepare(group)
        else:
            self._complete_if_all_joined(group)

    def prepare(self, group: ClassicGroup) -> None:
        """Begin a rebalance. A new group waits a little for more members, so that its first assignment lasts."""
        if group.state is State.COMPLETING:
            self._refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._stop_sync_timer(group)
        group.awaiting_sync.clear()
        initial = group.state is State.EMPTY
        group.enter(State.PREPARING, self._clock.wall_ms())
        if initial:
            delay_ms = self._settings.integer("group.initial.rebalance.delay.ms")
            remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            self._wait_for_more(group, delay_ms, remaining_ms)
        elif group.all_members_joined():
            self._complete_join(group)
        else:
            self._set_join_timer(group, group.rebalance_timeout_ms() / 1000, self._complete_join)

    def _wait_for_more(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        group.new_member_added = False

        def waited(group: ClassicGroup) -> None:
            if group.new_member_added and remaining_ms:
                more_ms = min(self._settings.integer("group.initial.rebalance.delay.ms"), remaining_ms)
                self._wait_for_more(group, more_ms, max(remaining_ms - delay_ms, 0))
            else:
                self._complete_join(group)

        if delay_ms == 0:
            self._complete_join(group)
        else:
            self._set_join_timer(group, delay_ms / 1000, waited)

    def _set_join_timer(self, group: ClassicGroup, delay_s: float, then: Callable[[ClassicGroup], None]) -> None:
        if group.join_timer is not None:
            group.join_timer.cancel()
        group.join_timer = self._clock.call_later(delay_s, partial(then, group))

    def _complete_if_all_joined(self, group: ClassicGroup) -> None:
        """Except in the first rebalance of a group: it ends by its timer, or the first member would be alone in it."""
        if group.state is State.PREPARING and group.previous_state is not State.EMPTY and group.all_members_joined():
            self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> None:
        """End the first barrier. Members that did not join are removed; static ones stay until their session ends."""
        if group.join_timer is not None:
            group.join_timer.cancel()
            group.join_timer = None
        assert group.state is State.PREPARING, f"group {group.group_id} completed a join while {group.state}"
        for member in list(group.members.values()):
            if member.join_reply is None and member.instance_id is None:
                group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            self._set_join_timer(group, group.rebalance_timeout_ms() / 1000, self._complete_join)
            return
        try:
            self._next_generation(group)
        except HeadraceError:
            self._set_join_timer(group, STORAGE_RETRY_S, self._complete_join)

    def _next_generation(self, group: ClassicGroup) -> None:
        generation = max(group.generation, group.generation_told_max) + 1
        if not group.members:
            self._become_empty(group, generation)
            return
        offset = self._state.put("group_generations", group.group_id, generation)
        group.journal_offset = offset
        group.generation = group.generation_told_max = generation
        group.protocol = group.select_protocol()
        group.subscribed_topics = group.find_subscribed_topics()
        group.enter(State.COMPLETING, self._clock.wall_ms())
        waiting: list[tuple[PendingReply[Any], Any]] = []
        for member in group.members.values():
            member.is_new = False
            member.session.move(member.session_timeout_ms)
            if member.join_reply is not None:
                waiting.append((member.join_reply, group.join_response(member.member_id)))
                member.join_reply = None
        group.awaiting_sync = set(group.members)
        group.sync_timer = self._clock.call_later(
            group.rebalance_timeout_ms() / 1000, partial(self._sync_expired, group, generation)
        )
        self._deliver_once_flushed(group, waiting)

    def _become_empty(self, group: ClassicGroup, generation: int) -> None:
        now_ms = self._clock.wall_ms()
        row = {**group.to_row(), "generation": generation, "protocol": None, "leader": None, "since_ms": now_ms}
        offset = self._state.put_many([("groups", group.group_id, row), ("group_generations", group.group_id, None)])
        group.journal_offset = offset
        group.generation = group.generation_told_max = generation
        group.protocol = group.leader = None
        group.subscribed_topics = frozenset()
        group.enter(State.EMPTY, now_ms)

    # ---- the second barrier ----

    def sync(self, group: ClassicGroup, body: SyncGroupRequest) -> Reply:
        try:
            member = group.validate_member(body.member_id, body.group_instance_id)
        except HeadraceError as error:
            return SyncGroupResponse(error_code=code_of(error))
        error_code = group.sync_refusal(body)
        if error_code is not ErrorCode.NONE:
            return SyncGroupResponse(error_code=error_code)
        if sum(len(each.assignment) for each in body.assignments) > GROUP_BYTES_MAX:
            return SyncGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
        group.awaiting_sync.discard(member.member_id)
        if not group.awaiting_sync:
            self._stop_sync_timer(group)
        if group.state is State.STABLE:
            member.session.move(member.session_timeout_ms)
            return once_flushed(self._state, group.journal_offset, group.sync_response(member))
        assert group.state is State.COMPLETING
        _answer(member.sync_reply, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        reply: PendingReply[SyncGroupResponse] = PendingReply()
        member.sync_reply = reply
        if member.member_id == group.leader:
            self._install(group, {each.member_id: each.assignment for each in body.assignments})
        return reply

    def _install(self, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """Store the leader's assignment. When it is flushed, every member gets its own."""
        before = {member: member.assignment for member in group.members.values()}
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.enter(State.STABLE, self._clock.wall_ms())
        try:
            offset = self._state.put_many(
                [("groups", group.group_id, group.to_row()), ("group_generations", group.group_id, None)]
            )
        except HeadraceError as error:
            for member, assignment in before.items():
                member.assignment = assignment
            self._refuse_syncs(group, coordinator_code_of(error))
            self.prepare(group)
            return
        group.journal_offset = offset
        waiting: list[tuple[PendingReply[Any], Any]] = []
        for member in group.members.values():
            if member.sync_reply is not None:
                waiting.append((member.sync_reply, group.sync_response(member)))
                member.sync_reply = None
                member.session.move(member.session_timeout_ms)
        self._deliver_once_flushed(group, waiting)

    def _deliver_once_flushed(
        self, group: ClassicGroup, waiting: Sequence[tuple[PendingReply[Any], JoinGroupResponse | SyncGroupResponse]]
    ) -> None:
        for reply, response in waiting:
            self._state.when_flushed(group.journal_offset, partial(reply.deliver, response))

    def _refuse_syncs(self, group: ClassicGroup, code: ErrorCode) -> None:
        for member in group.members.values():
            if member.sync_reply is not None:
                _answer(member.sync_reply, SyncGroupResponse(error_code=code))
                member.sync_reply = None
                member.session.move(member.session_timeout_ms)

    def _sync_expired(self, group: ClassicGroup, generation: int) -> None:
        """Remove members that joined and did not sync in time, and rebalance without them."""
        group.sync_timer = None
        if generation != group.generation or group.state not in (State.COMPLETING, State.STABLE):
            return
        if not group.awaiting_sync:
            return
        for member_id in list(group.awaiting_sync):
            group.remove(member_id)
        self.prepare(group)

    def _stop_sync_timer(self, group: ClassicGroup) -> None:
        if group.sync_timer is not None:
            group.sync_timer.cancel()
            group.sync_timer = None

    # ---- staying and leaving ----

    def heartbeat(self, group: ClassicGroup, body: HeartbeatRequest) -> HeartbeatResponse:
        try:
            member = group.validate_member(body.member_id, body.group_instance_id)
        except HeadraceError as error:
            return HeartbeatResponse(error_code=code_of(error))
        if body.generation_id != group.generation:
            return HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION)
        self.touch(member)
        rejoin = group.state is State.PREPARING
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if rejoin else ErrorCode.NONE)

    def touch(self, member: Member) -> None:
        """Restart the member's session timeout."""
        member.session.move(member.session_timeout_ms)

    def leave(self, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        """Remove a member at its own request, or at an administrator's, who names its instance id only."""
        member_id = identity.member_id
        if member_id == "":
            known_id = group.static_ids.get(identity.group_instance_id or "")
            if known_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = known_id
        elif group.drop_pending(member_id):
            self._complete_if_all_joined(group)
            return ErrorCode.NONE
        else:
            try:
                group.validate_member(member_id, identity.group_instance_id)
            except HeadraceError as error:
                return code_of(error)
        self.remove(group, member_id)
        return ErrorCode.NONE

    def remove(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a member, refuse what it waits for, and rebalance."""
        member = group.remove(member_id)
        if member is None:
            return
        _answer(member.join_reply, _join_error(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        _answer(member.sync_reply, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        if group.state in (State.STABLE, State.COMPLETING):
            self.prepare(group)
        else:
            self._complete_if_all_joined(group)

    def session(self, group: ClassicGroup, member_id: str) -> Deadline:
        return Deadline(self._clock, partial(self._session_expired, group, member_id))

    def _session_expired(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a silent member. One that waits for an answer cannot heartbeat: its session restarts then."""
        member = group.members.get(member_id)
        if member is None:
            return
        waits = member.join_reply is not None or member.sync_reply is not None
        if member.is_new or not waits:
            self.remove(group, member_id)

    def _pending_expired(self, group: ClassicGroup, member_id: str) -> None:
        group.drop_pending(member_id)
        self._complete_if_all_joined(group)

    # ---- starting and stopping ----

    def restore(self, group_id: str, row: dict[str, Any] | None, told: int) -> ClassicGroup:
        """A group from its rows. Its members get a whole session timeout, because they could not reach the broker."""
        group = self.new(group_id)
        group.generation_told_max = told
        if row is None:
            return group
        group.generation = row["generation"]
        group.generation_told_max = max(told, group.generation)
        group.protocol_type = row["protocol_type"]
        group.protocol = row["protocol"]
        group.leader = row["leader"]
        group.since_ms = row["since_ms"]
        for member_row in row["members"]:
            member = Member.from_row(member_row, self.session(group, member_row["id"]))
            group.members[member.member_id] = member
            if member.instance_id is not None:
                group.static_ids[member.instance_id] = member.member_id
            member.session.move(member.session_timeout_ms)
        group.state = group.previous_state = State.STABLE if group.members else State.EMPTY
        group.subscribed_topics = group.find_subscribed_topics() if group.protocol_type is not None else None
        return group

    def shut(self, group: ClassicGroup, code: ErrorCode) -> None:
        """Stop all timers and refuse all requests that wait."""
        self._stop_sync_timer(group)
        if group.join_timer is not None:
            group.join_timer.cancel()
            group.join_timer = None
        for member_id in list(group.pending):
            group.drop_pending(member_id)
        for member in group.members.values():
            member.session.stop()
            _answer(member.join_reply, _join_error(code, member.member_id))
            _answer(member.sync_reply, SyncGroupResponse(error_code=code))
            member.join_reply = member.sync_reply = None


def _size_refusal(group: ClassicGroup, request: Request[JoinGroupRequest]) -> ErrorCode:
    """The error if the group would keep too much, or NONE: its members are in one row of the state."""
    body = request.body
    given = sum(len(protocol.name) + len(protocol.metadata) for protocol in body.protocols)
    given += len(body.group_instance_id or "") + len(request.client_id or "")
    if given > MEMBER_BYTES_MAX:
        return ErrorCode.INVALID_REQUEST
    others = sum(member.size_bytes for member in group.members.values() if member.member_id != body.member_id)
    return ErrorCode.GROUP_MAX_SIZE_REACHED if others + given > GROUP_BYTES_MAX else ErrorCode.NONE


def _answer(reply: PendingReply[T] | None, response: T) -> None:
    if reply is not None:
        reply.deliver(response)


def _join_error(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None)


def _rebalance_timeout_ms(body: JoinGroupRequest) -> int:
    """Version 0 has one timeout for both."""
    return body.rebalance_timeout_ms if body.rebalance_timeout_ms >= 0 else body.session_timeout_ms
