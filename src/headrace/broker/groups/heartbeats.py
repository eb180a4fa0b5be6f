"""The consumer protocol (KIP-848), in which one request does everything.

With a heartbeat a member joins, subscribes and reports what it owns; the answer says what it should own. The code works
on values: it computes the member's next state and the group's next epoch and target, writes all of it as one change,
and then applies it to the group. If the disk is full nothing has changed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.access import Access
from headrace.broker.groups.assigning import AssignmentInputs, Assignments
from headrace.broker.groups.assignors import ASSIGNORS, Subscriber
from headrace.broker.groups.consumer import (
    LEFT_STATIC,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Owned,
    Target,
    member_key,
    reconcile,
)
from headrace.broker.groups.heartbeat_checks import JOIN, check_epoch, check_instance
from headrace.broker.groups.matching import Matching, matching
from headrace.broker.groups.timers import Deadline
from headrace.broker.limits import MEMBERS_PER_GROUP_MAX
from headrace.broker.replies import Reply, once_flushed
from headrace.broker.request import Request
from headrace.config import Settings
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.ports import Clock
from headrace.wire.kafka.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
    TopicPartitions,
)

if TYPE_CHECKING:
    from headrace.broker.state import Change, StateStore
    from headrace.broker.topics import Topics

__all__ = ["LEAVE", "Heartbeats"]

LEAVE = -1
STORAGE_RETRY_MS = 1000


@dataclass(slots=True)
class _Draft:
    """What a heartbeat will change."""

    member: ConsumerMember
    replaced: str | None = None
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    topics_digest: str = ""
    topics_version: int = -1
    targets: dict[str, Target] = field(default_factory=dict)
    """Only those that differ from the group's."""


class Heartbeats:
    """Moves consumer groups."""

    def __init__(
        self,
        *,
        state: StateStore,
        clock: Clock,
        settings: Settings,
        topics: Topics,
        new_id: Callable[[], str],
        group_setting: Callable[[str, str], int],
        only_classic_left: Callable[[ConsumerGroup], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._topics = topics
        self._new_id = new_id
        self._group_setting = group_setting
        self.assignments = Assignments()
        self.matching = Matching(topics)
        self._only_classic_left = only_classic_left
        """Called when the last member of the consumer protocol leaves and classic members remain."""

    # ---- a heartbeat ----

    def heartbeat(
        self, group: ConsumerGroup, request: Request[ConsumerGroupHeartbeatRequest], first: Sequence[Change] = ()
    ) -> Reply:
        """``first`` are changes that must be written with this one, such as the end of the classic group before it."""
        body = request.body
        owned = _read_owned(body.topic_partitions)
        self.refuse_when_full(group, body.member_id)
        before, replaced = self._member(group, body, owned)
        member = self.advance(
            request.access,
            group,
            before,
            self._updated(before, request),
            replaced,
            owned,
            joins=body.member_epoch == JOIN,
            first=first,
        )
        response = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._group_setting(group.group_id, "consumer.heartbeat.interval.ms"),
        )
        if body.member_epoch == JOIN or _is_full(body) or before.assigned != member.assigned:
            response.assignment = _assignment(member.assigned)
        return once_flushed(self._state, group.journal_offset, response)

    def advance(
        self,
        access: Access,
        group: ConsumerGroup,
        before: ConsumerMember,
        member: ConsumerMember,
        replaced: str | None,
        owned: Owned | None,
        *,
        joins: bool,
        first: Sequence[Change] = (),
    ) -> ConsumerMember:
        """Move a member that reported ``owned`` one step towards its target, and the group with it.

        Returns the member after that.
        """
        draft = self._draft(access, group, before, member, replaced)
        draft.member = reconcile(
            draft.member,
            target_epoch=draft.target_epoch,
            target=draft.targets.get(member.member_id, group.targets.get(replaced or member.member_id, {})),
            owners=_owners_seen_by(group, replaced, member.member_id),
            owned=owned,
            joins=joins,
        )
        self._write(group, draft, first)
        self.watch(group, draft.member)
        return draft.member

    def refuse_when_full(self, group: ConsumerGroup, member_id: str) -> None:
        size_max = min(self._settings.integer("group.consumer.max.size"), MEMBERS_PER_GROUP_MAX)
        if member_id not in group.members and len(group.members) >= size_max:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {size_max} members.",
            )

    def _member(
        self, group: ConsumerGroup, body: ConsumerGroupHeartbeatRequest, owned: Owned | None
    ) -> tuple[ConsumerMember, str | None]:
        """The member that sent the request, and the id of the static member that it replaces, if any."""
        joins = body.member_epoch == JOIN
        if body.instance_id is None:
            if joins:
                member_id = body.member_id or self._new_id()
                return group.members.get(member_id) or ConsumerMember(member_id=member_id), None
            member = group.member(body.member_id)
            check_epoch(member, body.member_epoch, owned)
            return member, None
        known = group.members.get(group.static_ids.get(body.instance_id, ""))
        if not joins:
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {body.instance_id} is unknown.")
            check_instance(known, body)
            check_epoch(known, body.member_epoch, owned)
            return known, None
        member_id = body.member_id or self._new_id()
        if known is None:
            return group.members.get(member_id) or ConsumerMember(member_id=member_id), None
        if known.epoch != LEFT_STATIC and known.classic is None:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {body.instance_id} cannot join the group because the "
                f"instance id is owned by {known.member_id} member.",
            )
        return replace(known, member_id=member_id, epoch=0, previous_epoch=0), known.member_id

    def _updated(self, member: ConsumerMember, request: Request[ConsumerGroupHeartbeatRequest]) -> ConsumerMember:
        """The member with the fields of the request. Fields that are left out stay as they are."""
        body = request.body
        changes: dict[str, Any] = {
            "client_id": request.client_id or "",
            "client_host": request.peer.host,
            "classic": None,
        }
        if body.instance_id is not None:
            changes["instance_id"] = body.instance_id
        if body.rack_id is not None:
            changes["rack_id"] = body.rack_id
        if body.rebalance_timeout_ms != -1:
            changes["rebalance_timeout_ms"] = body.rebalance_timeout_ms
        if body.server_assignor is not None:
            changes["assignor"] = body.server_assignor
        if body.subscribed_topic_names is not None:
            changes["topics"] = frozenset(body.subscribed_topic_names)
        if body.subscribed_topic_regex is not None:
            changes["pattern"] = body.subscribed_topic_regex
        return replace(member, **changes)

    # ---- what it changes ----

    def _draft(
        self,
        access: Access,
        group: ConsumerGroup,
        before: ConsumerMember,
        member: ConsumerMember,
        replaced: str | None,
    ) -> _Draft:
        draft = _Draft(member, replaced, group.epoch, group.target_epoch, group.assignor, group.topics_digest)
        subscription_changed = member.topics != before.topics or member.pattern != before.pattern
        draft.topics_version = group.topics_version
        if member.pattern and member.pattern not in group.matches:
            group.matches[member.pattern] = self.matching.names(access, member.pattern)
            draft.topics_version = min(draft.topics_version, self.matching.version(member.pattern))
        is_new = group.target_epoch == 0
        topics_changed = not self.matching.is_current(group) and self.matching.may_look_again(group)
        if is_new or subscription_changed or topics_changed:
            if topics_changed:
                group.matches = {pattern: self.matching.names(access, pattern) for pattern in group.matches}
                draft.topics_version = self._topics.version
            members = _members_with(group, draft)
            digest = self._digest(group, members)
            if is_new or subscription_changed or digest != group.topics_digest:
                draft.epoch = group.epoch + 1
                draft.topics_digest = digest
        if draft.epoch > draft.target_epoch:
            self._retarget(group, draft)
        return draft

    def _retarget(self, group: ConsumerGroup, draft: _Draft) -> None:
        members = _members_with(group, draft)
        draft.assignor = self._preferred_assignor(members)
        subscribers = {}
        counts: dict[bytes, int] = {}
        ids: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}  # most members want the same
        for member_id, member in members.items():
            if member.subscription not in ids:
                found = [topic for name in group.topics_of(member) if (topic := self._topics.get(name)) is not None]
                counts.update((topic.topic_id, len(topic.partitions)) for topic in found)
                ids[member.subscription] = frozenset(topic.topic_id for topic in found)
            last_id = draft.replaced if member_id == draft.member.member_id and draft.replaced else member_id
            subscribers[member_id] = Subscriber(
                topics=ids[member.subscription],
                instance_id=member.instance_id,
                last=group.targets.get(last_id, {}),
            )
        targets = self.assignments.assign(AssignmentInputs(draft.assignor, subscribers, counts))
        draft.targets = {each: target for each, target in targets.items() if target != group.targets.get(each, {})}
        if draft.replaced is not None:
            draft.targets[draft.member.member_id] = targets[draft.member.member_id]
        draft.target_epoch = draft.epoch

    def _preferred_assignor(self, members: dict[str, ConsumerMember]) -> str:
        """The assignor that most members ask for, or the broker's first."""
        votes = Counter(member.assignor for member in members.values() if member.assignor in ASSIGNORS)
        return str(votes.most_common(1)[0][0]) if votes else self._settings.items("group.consumer.assignors")[0]

    def _write(self, group: ConsumerGroup, draft: _Draft, first: Sequence[Change]) -> None:
        """Write the change to the journal, then apply it in memory."""
        group_id, member = group.group_id, draft.member
        if draft.replaced is not None and member.member_id not in draft.targets:
            draft.targets[member.member_id] = group.targets.get(draft.replaced, {})
        changes: list[Change] = list(first)
        header = {
            "epoch": draft.epoch,
            "target_epoch": draft.target_epoch,
            "assignor": draft.assignor,
            "topics_digest": draft.topics_digest,
        }
        if group.to_row() != group.to_row(**header):
            changes.append(("groups", group_id, group.to_row(**header)))
        if draft.replaced is not None:
            changes.append(("group_members", member_key(group_id, draft.replaced), None))
        others = {each for each in draft.targets if each in group.members and each != member.member_id}
        for each in others:
            row = group.members[each].to_row(group_id, draft.targets[each])
            changes.append(("group_members", member_key(group_id, each), row))
        target = draft.targets.get(member.member_id, group.targets.get(member.member_id, {}))
        if group.members.get(member.member_id) != member or member.member_id in draft.targets:
            changes.append(("group_members", member_key(group_id, member.member_id), member.to_row(group_id, target)))
        if changes:
            group.journal_offset = self._state.put_many(changes)
        self._apply(group, draft)

    def _apply(self, group: ConsumerGroup, draft: _Draft) -> None:
        if draft.replaced is not None:
            group.drop_member(draft.replaced)
        group.epoch, group.target_epoch = draft.epoch, draft.target_epoch
        group.assignor, group.topics_digest = draft.assignor, draft.topics_digest
        group.targets.update(draft.targets)
        group.set_member(draft.member)
        group.topics_version = draft.topics_version
        self._forget_patterns(group)

    def rows_of(self, group: ConsumerGroup) -> list[Change]:
        """The changes that write the whole group."""
        return [("groups", group.group_id, group.to_row())] + [
            (
                "group_members",
                member_key(group.group_id, member.member_id),
                member.to_row(group.group_id, group.targets.get(member.member_id, {})),
            )
            for member in group.members.values()
        ]

    # ---- leaving ----

    def leave(self, group: ConsumerGroup, body: ConsumerGroupHeartbeatRequest) -> Reply:
        if body.instance_id is None:
            member = group.member(body.member_id)
        else:
            known = group.members.get(group.static_ids.get(body.instance_id, ""))
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {body.instance_id} is unknown.")
            check_instance(known, body)
            member = known
        if body.member_epoch == LEFT_STATIC and body.instance_id is not None:
            self._park(group, member)
        else:
            self.remove(group, [member.member_id])
        response = ConsumerGroupHeartbeatResponse(member_id=body.member_id, member_epoch=body.member_epoch)
        return once_flushed(self._state, group.journal_offset, response)

    def _park(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A static member's process ends and announces its return. Its partitions are kept until its session ends."""
        away = replace(
            member,
            epoch=LEFT_STATIC,
            previous_epoch=member.epoch,
            state=MemberState.STABLE,
            assigned={topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in member.assigned.items()},
            revoking={},
        )
        row = away.to_row(group.group_id, group.targets.get(member.member_id, {}))
        group.journal_offset = self._state.put("group_members", member_key(group.group_id, member.member_id), row)
        group.set_member(away)
        self._stop_revocation(group, member.member_id)

    def remove(self, group: ConsumerGroup, member_ids: Sequence[str]) -> None:
        """Remove members. The others are reassigned with their next heartbeats."""
        changes: list[Change] = [
            ("group_members", member_key(group.group_id, member_id), None) for member_id in member_ids
        ]
        changes.append(("groups", group.group_id, group.to_row(epoch=group.epoch + 1)))
        group.journal_offset = self._state.put_many(changes)
        group.epoch += 1
        for member_id in member_ids:
            group.drop_member(member_id)
        self._forget_patterns(group)
        if group.members and all(member.classic is not None for member in group.members.values()):
            self._only_classic_left(group)

    # ---- time ----

    def watch(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Restart the session timeout, and the rebalance timeout of a member that has to give up partitions."""
        session = group.sessions.get(member.member_id)
        if session is None:
            session = Deadline(self._clock, partial(self._session_expired, group, member.member_id))
            group.sessions[member.member_id] = session
        if member.classic is not None:
            session.move(member.classic.session_timeout_ms)
        else:
            session.move(self._group_setting(group.group_id, "consumer.session.timeout.ms"))
        if member.state is MemberState.UNREVOKED:
            self.hurry(group, member)
        else:
            self._stop_revocation(group, member.member_id)

    def hurry(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Start the rebalance timeout of a member that has to give up partitions or to join again."""
        if member.member_id not in group.revocations:
            deadline = Deadline(self._clock, partial(self._session_expired, group, member.member_id))
            group.revocations[member.member_id] = deadline
            deadline.move(member.rebalance_timeout_ms)

    def _stop_revocation(self, group: ConsumerGroup, member_id: str) -> None:
        deadline = group.revocations.pop(member_id, None)
        if deadline is not None:
            deadline.stop()

    def _session_expired(self, group: ConsumerGroup, member_id: str) -> None:
        if member_id not in group.members:
            return
        try:
            self.remove(group, [member_id])
        except HeadraceError:  # The disk is full. Whichever of its deadlines has passed is set again.
            for deadlines in (group.sessions, group.revocations):
                deadline = deadlines.get(member_id)
                if deadline is not None and not deadline.running:
                    deadline.move(STORAGE_RETRY_MS)

    # ---- topics ----

    def _digest(self, group: ConsumerGroup, members: dict[str, ConsumerMember]) -> str:
        """A digest of the ids and numbers of partitions of all subscribed topics."""
        different = {member.subscription: member for member in members.values()}
        names = set().union(*(group.topics_of(member) for member in different.values()))
        digest = hashlib.sha256()
        for name in sorted(names):
            topic = self._topics.get(name)
            if topic is not None:
                digest.update(topic.topic_id + len(topic.partitions).to_bytes(4, "big"))
        return digest.hexdigest()[:32]

    def _forget_patterns(self, group: ConsumerGroup) -> None:
        if group.matches:
            used = {member.pattern for member in group.members.values()}
            group.matches = {pattern: names for pattern, names in group.matches.items() if pattern in used}

    # ---- starting and stopping ----

    def restore(self, group: ConsumerGroup, row: dict[str, Any], member_rows: Sequence[dict[str, Any]]) -> None:
        """Fill a new group from its rows. Its members get a whole session timeout to come back."""
        group.epoch, group.target_epoch = row["epoch"], row["target_epoch"]
        group.assignor, group.topics_digest = row["assignor"], row["topics_digest"]
        for member_row in member_rows:
            member, target = ConsumerMember.from_row(member_row)
            group.set_member(member)
            group.targets[member.member_id] = target
            if member.pattern:
                with suppress(KafkaError):  # an earlier version took it; the member's next heartbeat is refused
                    group.matches[member.pattern] = matching(member.pattern, self._topics.all())
            self.watch(group, member)


def _is_full(body: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has every field. Clients send all of them after an error, because they may have missed an
    answer, and expect the whole assignment."""
    subscribes = body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None
    return body.rebalance_timeout_ms != -1 and subscribes and body.topic_partitions is not None


def _members_with(group: ConsumerGroup, draft: _Draft) -> dict[str, ConsumerMember]:
    members = {**group.members, draft.member.member_id: draft.member}
    if draft.replaced is not None:
        del members[draft.replaced]
    return members


def _owners_seen_by(group: ConsumerGroup, replaced: str | None, member_id: str) -> dict[tuple[bytes, int], str]:
    """The owners, if a member that replaces another owns what that one did."""
    if replaced is None:
        return group.owners
    return {place: member_id if owner == replaced else owner for place, owner in group.owners.items()}


def _read_owned(topic_partitions: list[TopicPartitions] | None) -> Owned | None:
    if topic_partitions is None:
        return None
    owned: dict[bytes, dict[int, int]] = {}
    for topic in topic_partitions:
        owned.setdefault(topic.topic_id, {}).update(dict.fromkeys(topic.partitions, 0))
    return owned


def _assignment(assigned: Owned) -> Assignment:
    return Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )
