"""A classic group: its members, its state, and its rows.

The group moves through these states (``TRANSITIONS``); ``rebalance.py`` moves it:

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                │      ▲                              │                                  │
      └──nobody left───┘      └───────────a join, a leave or an expiry──────────────────────────┘

It has two rows. ``group_generations[group]`` holds the newest generation that any member knows of. It is flushed before
the JoinGroup answers are sent, so a generation number is never used twice, however often the broker is killed.
``groups[group]`` holds the last generation whose assignment is complete. It is flushed before the SyncGroup answers are
sent. So after a restart the broker knows every assignment that a member may be working with: members heartbeat as
before, and a member that knows of a later generation joins again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.group import Committer, Group
from headrace.broker.groups.timers import Deadline
from headrace.broker.replies import PendingReply, Reply
from headrace.broker.request import Request
from headrace.broker.state import Change
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import TimerHandle
from headrace.wire.kafka.codec import MalformedMessage, read_message
from headrace.wire.kafka.messages.consumer_protocol import ConsumerProtocolSubscription
from headrace.wire.kafka.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from headrace.broker.groups.rebalance import Rebalancer

__all__ = ["CONSUMER_PROTOCOL", "TRANSITIONS", "ClassicGroup", "ClassicMember", "ClassicState", "read_subscription"]

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members put topics into their metadata; Kafka Connect and others use their own."""


class ClassicState(StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: dict[ClassicState, frozenset[ClassicState]] = {
    ClassicState.EMPTY: frozenset({ClassicState.PREPARING, ClassicState.DEAD}),
    ClassicState.PREPARING: frozenset({ClassicState.COMPLETING, ClassicState.EMPTY, ClassicState.DEAD}),
    ClassicState.COMPLETING: frozenset({ClassicState.STABLE, ClassicState.PREPARING, ClassicState.DEAD}),
    ClassicState.STABLE: frozenset({ClassicState.PREPARING, ClassicState.DEAD}),
    ClassicState.DEAD: frozenset(),
}


@dataclass(slots=True, kw_only=True, eq=False)
class ClassicMember:
    """One member. ``join_reply`` and ``sync_reply`` are answers it waits for."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    assignment: bytes = b""
    is_new: bool = False
    session: Deadline
    join_reply: PendingReply[JoinGroupResponse] | None = None
    sync_reply: PendingReply[SyncGroupResponse] | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes to keep the member, its assignment not counted."""
        named = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        return named + sum(len(name) + len(metadata) for name, metadata in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """The first of its own protocols that everybody supports."""
        return next(name for name, _ in self.protocols if name in candidates)

    def to_row(self) -> dict[str, Any]:
        return {
            "id": self.member_id,
            "instance": self.instance_id,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "session_timeout_ms": self.session_timeout_ms,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "protocols": [[name, b64encode(metadata).decode()] for name, metadata in self.protocols],
            "assignment": b64encode(self.assignment).decode(),
        }

    @classmethod
    def from_row(cls, row: dict[str, Any], session: Deadline) -> ClassicMember:
        return cls(
            member_id=row["id"],
            instance_id=row["instance"],
            client_id=row["client_id"],
            client_host=row["client_host"],
            session_timeout_ms=row["session_timeout_ms"],
            rebalance_timeout_ms=row["rebalance_timeout_ms"],
            protocols=[(name, b64decode(metadata)) for name, metadata in row["protocols"]],
            assignment=b64decode(row["assignment"]),
            session=session,
        )


@dataclass(slots=True, eq=False)
class ClassicGroup(Group):
    """The members and what they agreed on. What moves it is the ``rebalancer``."""

    group_id: str
    rebalancer: Rebalancer = field(repr=False)
    state: ClassicState = ClassicState.EMPTY
    previous_state: ClassicState = ClassicState.EMPTY
    since_ms: int | None = None
    """When the state was entered; None for a group that only ever committed offsets."""
    generation: int = 0
    generation_told_max: int = 0
    """The newest generation that any member knows of, even if it was never completed."""
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    pending: dict[str, Deadline] = field(default_factory=dict)
    """Ids that were given out with MEMBER_ID_REQUIRED and have not come back yet."""
    awaiting_sync: set[str] = field(default_factory=set)
    subscribed_topics: frozenset[str] | None = None
    new_member_added: bool = False
    join_timer: TimerHandle | None = None
    sync_timer: TimerHandle | None = None
    journal_offset: int = -1
    """What members may learn of the current generation is durable when the journal is flushed up to here."""

    type_name = "classic"

    # ---- states ----

    def enter(self, state: ClassicState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"group {self.group_id} cannot go from {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.since_ms = now_ms

    @property
    def state_name(self) -> str:
        return self.state.value

    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    def member_ids(self) -> Collection[str]:
        return self.members.keys()

    def is_removable(self) -> bool:
        return self.is_empty() and not self.pending

    def is_current(self) -> bool:
        """False after a restart that found a later generation announced: the older number is not given out any more."""
        return self.generation == self.generation_told_max

    def can_rebalance(self) -> bool:
        return ClassicState.PREPARING in TRANSITIONS[self.state]

    # ---- members ----

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        assert member.member_id not in self.members
        assert member.instance_id is None or member.instance_id not in self.static_ids
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.drop_pending(member.member_id)

    def remove(self, member_id: str) -> ClassicMember | None:
        self.drop_pending(member_id)
        self.awaiting_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        member.session.stop()
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def drop_pending(self, member_id: str) -> bool:
        deadline = self.pending.pop(member_id, None)
        if deadline is None:
            return False
        deadline.stop()
        return True

    def validate_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member that sent a request. Raises if it is not known or another process took over its instance id.

        Processes that took over in a rebalance which a crash cut short are in no row. They join again.
        """
        if instance_id is not None:
            known_id = self.static_ids.get(instance_id)
            if known_id is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"instance {instance_id} is not in group {self.group_id}")
            if known_id != member_id:
                code = ErrorCode.FENCED_INSTANCE_ID if self.is_current() else ErrorCode.UNKNOWN_MEMBER_ID
                raise KafkaError(code, f"instance {instance_id} now belongs to {known_id}")
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"member {member_id} is not in group {self.group_id}")
        return member

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def awaiting_join_count(self) -> int:
        return sum(member.join_reply is not None for member in self.members.values())

    def all_members_joined(self) -> bool:
        return not self.pending and all(member.join_reply is not None for member in self.members.values())

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it joined, else take any member that did; False if nobody did."""
        if self.leader is not None and self.members[self.leader].join_reply is not None:
            return True
        for member_id, member in self.members.items():
            if member.join_reply is not None:
                self.leader = member_id
                return True
        return False

    # ---- protocols ----

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols fits the present members."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        if self.protocol_type != protocol_type:
            return False
        candidates = self.common_protocols()
        return any(name in candidates for name in names)

    def common_protocols(self) -> set[str]:
        counts = Counter(name for member in self.members.values() for name in {name for name, _ in member.protocols})
        return {name for name, count in counts.items() if count == len(self.members)}

    def select_protocol(self) -> str:
        """The protocol with the most votes among those that everybody supports."""
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def keeps_assignment(self, member: ClassicMember, old_protocols: list[tuple[str, bytes]]) -> bool:
        """Whether the assignment still fits a static member that returned with new protocols."""
        if self.select_protocol() != self.protocol:
            return False
        before = read_subscription(dict(old_protocols).get(self.protocol or "", b""))
        now = read_subscription(member.metadata(self.protocol))
        if before is None or now is None:
            return True
        return set(before.topics) == set(now.topics)

    def find_subscribed_topics(self) -> frozenset[str] | None:
        """All topics that members subscribe to; None when their metadata is not a consumer's."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscription = read_subscription(member.metadata(self.protocol))
            if subscription is None:
                return None
            topics.update(subscription.topics)
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """If the topics are not known, a group of consumers counts as subscribed, so that its offsets are kept."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics

    # ---- requests ----

    def join(self, request: Request[JoinGroupRequest]) -> Reply:
        return self.rebalancer.join(self, request)

    def sync(self, body: SyncGroupRequest) -> Reply:
        return self.rebalancer.sync(self, body)

    def heartbeat(self, body: HeartbeatRequest) -> HeartbeatResponse:
        return self.rebalancer.heartbeat(self, body)

    def leave(self, identity: MemberIdentity) -> ErrorCode:
        return self.rebalancer.leave(self, identity)

    def shut(self, code: ErrorCode) -> None:
        self.rebalancer.shut(self, code)

    # ---- offsets ----

    def check_commit(self, committer: Committer) -> None:
        """Members commit in their generation. Tools and consumers with assigned partitions commit while it is empty."""
        generation, transactional = committer.epoch, committer.transactional
        if generation < 0 and self.is_empty():
            return
        if generation >= 0 or committer.member_id or committer.instance_id is not None:
            member = self.validate_member(committer.member_id, committer.instance_id)
            if generation != self.generation:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"generation {generation} is not {self.generation}")
            if not transactional and self.state in (ClassicState.STABLE, ClassicState.PREPARING):
                member.session.move(member.session_timeout_ms)
        elif not transactional:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has members; commit as one of them")
        if not transactional and self.state is ClassicState.COMPLETING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"group {self.group_id} is rebalancing")

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """No restriction."""

    def check_offset_deletion(self) -> None:
        """Of the groups that have members, only one of consumers can say which topics they read."""
        if not self.is_empty() and self.protocol_type != CONSUMER_PROTOCOL:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def keeps_offsets(self) -> bool:
        if self.protocol_type is None or self.is_empty():
            return False
        return self.state is not ClassicState.STABLE or self.subscribed_topics is None

    @property
    def empty_since_ms(self) -> int | None:
        return self.since_ms if self.protocol_type is not None and self.is_empty() else None

    # ---- answers ----

    def member_list(self) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        ]

    def join_response(self, member_id: str) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader or "",
            member_id=member_id,
            members=self.member_list() if member_id == self.leader else [],
        )

    def sync_refusal(self, body: SyncGroupRequest) -> ErrorCode:
        if body.generation_id != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if body.protocol_type is not None and body.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if body.protocol_name is not None and body.protocol_name != self.protocol:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is ClassicState.PREPARING else ErrorCode.NONE

    def sync_response(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    # ---- rows ----

    def removal(self) -> list[Change]:
        return [("groups", self.group_id, None), ("group_generations", self.group_id, None)]

    def to_row(self) -> dict[str, Any]:
        return {
            "type": self.type_name,
            "generation": self.generation,
            "protocol_type": self.protocol_type,
            "protocol": self.protocol,
            "leader": self.leader,
            "since_ms": self.since_ms,
            "members": [member.to_row() for member in self.members.values()],
        }


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """A consumer's subscription, read as version 0, which is a prefix of all versions; None if it is something else."""
    try:
        if len(metadata) < 2:
            return None
        subscription, _ = read_message(ConsumerProtocolSubscription, 0, metadata, 2)
    except MalformedMessage:
        return None
    return subscription
