"""A group of the consumer protocol (KIP-848): its members, what each should have, and what each has.

The *group epoch* grows when members or topics change. The *target assignment* says which member should have which
partitions; it is made for a group epoch, which is then the target epoch. A *member's epoch* is the target epoch that
the member has reached. Each member moves by itself, with its heartbeats:

    Stable ──a newer target──▶ UnrevokedPartitions ──it no longer owns what it must give──▶ Stable
                                                     └─ its new partitions are still with others ─▶ UnreleasedPartitions

A partition belongs to at most one member, from its assignment until the member reports that it has given it up, or is
removed. The map ``owners`` enforces this: no two members ever hold the same partition.

Rows: ``groups[group]`` has the epochs, and ``group_members[key]`` is one row per member, so that a heartbeat that moves
one member writes one row. An answer is sent when what it says is flushed, so after a crash all members continue.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.group import Committer, Group, TopicIdPartition
from headrace.broker.groups.timers import Deadline
from headrace.broker.replies import Reply
from headrace.broker.request import Request
from headrace.broker.state import Change
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)

if TYPE_CHECKING:
    from headrace.broker.groups.mixed import ClassicProtocolAdapter

__all__ = [
    "LEFT_STATIC",
    "ClassicSide",
    "ConsumerGroup",
    "ConsumerMember",
    "ConsumerState",
    "MemberState",
    "Owned",
    "Target",
    "member_key",
    "reconcile",
]

LEFT_STATIC = -2
"""The epoch of a static member whose process has announced that it will return."""

Owned = Mapping[bytes, Mapping[int, int]]
"""Topic id → partition → the member epoch in which it was assigned."""

Target = Mapping[bytes, frozenset[int]]

COMMITS_SINCE = 9
"""The first version of OffsetCommit that members of this protocol may use."""


class ConsumerState(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(StrEnum):
    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSide:
    """What a consumer group keeps of a member that speaks the classic protocol (see ``mixed.py``)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    def to_row(self) -> dict[str, Any]:
        protocols = [[name, b64encode(metadata).decode()] for name, metadata in self.protocols]
        return {"session_timeout_ms": self.session_timeout_ms, "protocols": protocols}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> ClassicSide:
        protocols = tuple((name, b64decode(metadata)) for name, metadata in row["protocols"])
        return cls(session_timeout_ms=row["session_timeout_ms"], protocols=protocols)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member, as a value: a heartbeat makes the next one."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)
    classic: ClassicSide | None = None

    @property
    def subscription(self) -> tuple[frozenset[str], str]:
        """What it wants, by name and by pattern."""
        return self.topics, self.pattern

    def at_epoch(self, epoch: int) -> ConsumerMember:
        return self if epoch == self.epoch else replace(self, epoch=epoch, previous_epoch=self.epoch)

    def has_had(self, partition: TopicIdPartition, epoch: int) -> bool:
        """Whether it has held the partition since ``epoch`` or longer, though it may have to give it up."""
        topic_id, index = partition
        for owned in (self.assigned, self.revoking):
            since = owned.get(topic_id, {}).get(index)
            if since is not None:
                return since <= epoch
        return False

    def to_row(self, group_id: str, target: Target) -> dict[str, Any]:
        return {
            "group": group_id,
            "id": self.member_id,
            "instance": self.instance_id,
            "rack": self.rack_id,
            "client_id": self.client_id,
            "client_host": self.client_host,
            "rebalance_timeout_ms": self.rebalance_timeout_ms,
            "assignor": self.assignor,
            "topics": sorted(self.topics),
            "pattern": self.pattern,
            "epoch": self.epoch,
            "previous_epoch": self.previous_epoch,
            "state": self.state.value,
            "assigned": _owned_row(self.assigned),
            "revoking": _owned_row(self.revoking),
            "classic": None if self.classic is None else self.classic.to_row(),
            "target": {topic_id.hex(): sorted(partitions) for topic_id, partitions in target.items()},
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> tuple[ConsumerMember, Target]:
        member = cls(
            member_id=row["id"],
            instance_id=row["instance"],
            rack_id=row["rack"],
            client_id=row["client_id"],
            client_host=row["client_host"],
            rebalance_timeout_ms=row["rebalance_timeout_ms"],
            assignor=row["assignor"],
            topics=frozenset(row["topics"]),
            pattern=row["pattern"],
            epoch=row["epoch"],
            previous_epoch=row["previous_epoch"],
            state=MemberState(row["state"]),
            assigned=_read_owned(row["assigned"]),
            revoking=_read_owned(row["revoking"]),
            classic=None if row.get("classic") is None else ClassicSide.from_row(row["classic"]),
        )
        return member, {bytes.fromhex(topic_id): frozenset(each) for topic_id, each in row["target"].items()}


def _owned_row(owned: Owned) -> dict[str, list[list[int]]]:
    return {topic_id.hex(): [[*each] for each in sorted(partitions.items())] for topic_id, partitions in owned.items()}


def _read_owned(row: dict[str, list[list[int]]]) -> Owned:
    return {bytes.fromhex(topic_id): {each[0]: each[1] for each in partitions} for topic_id, partitions in row.items()}


def member_key(group_id: str, member_id: str) -> str:
    return f"{len(group_id)}:{group_id}{member_id}"


@dataclass(slots=True, eq=False)
class ConsumerGroup(Group):
    """The group as it is. ``heartbeats.Heartbeats`` changes it, after the change is in the journal."""

    group_id: str
    classic_members: ClassicProtocolAdapter = field(repr=False)
    """Answers members that speak the classic protocol."""
    epoch: int = 1
    """The first member makes it 2, as in Apache Kafka."""
    target_epoch: int = 0
    assignor: str = ""
    topics_digest: str = ""
    """A digest of the subscribed topics when the epoch was last raised. When it differs, the epoch is raised again."""
    topics_version: int = -1
    """Of ``Topics`` when the digest was made: topics may have come or gone since."""
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)
    matches: dict[str, frozenset[str]] = field(default_factory=dict)
    """Pattern → the topics it matches."""
    sessions: dict[str, Deadline] = field(default_factory=dict)
    revocations: dict[str, Deadline] = field(default_factory=dict)
    journal_offset: int = -1
    """What members may learn of the group is durable when the journal is flushed up to here."""

    type_name = "consumer"
    protocol_type = "consumer"

    @property
    def state(self) -> ConsumerState:
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        for member in self.members.values():
            if member.state is not MemberState.STABLE or member.epoch != self.target_epoch:
                return ConsumerState.RECONCILING
        return ConsumerState.STABLE

    @property
    def state_name(self) -> str:
        return self.state.value

    def is_empty(self) -> bool:
        return not self.members

    def member_ids(self) -> Collection[str]:
        return self.members.keys()

    def is_removable(self) -> bool:
        return self.is_empty()

    def removal(self) -> list[Change]:
        members = [("group_members", member_key(self.group_id, each), None) for each in self.members]
        return [("groups", self.group_id, None), *members]

    def shut(self, code: ErrorCode) -> None:
        """Stops the timers. No answer of this protocol waits for other members, so ``code`` is not used."""
        for deadlines in (self.sessions, self.revocations):
            for deadline in deadlines.values():
                deadline.stop()
            deadlines.clear()

    def to_row(self, **changed: Any) -> dict[str, Any]:
        row = {
            "type": self.type_name,
            "epoch": self.epoch,
            "target_epoch": self.target_epoch,
            "assignor": self.assignor,
            "topics_digest": self.topics_digest,
        }
        return {**row, **changed}

    # ---- members ----

    def set_member(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._disown(before)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    owner = self.owners.setdefault((topic_id, partition), member.member_id)
                    assert owner == member.member_id, f"{topic_id.hex()}-{partition} would belong to two members"

    def drop_member(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._disown(member)
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
            del self.static_ids[member.instance_id]
        self.targets.pop(member_id, None)
        for deadlines in (self.sessions, self.revocations):
            deadline = deadlines.pop(member_id, None)
            if deadline is not None:
                deadline.stop()

    def _disown(self, member: ConsumerMember) -> None:
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    if self.owners.get((topic_id, partition)) == member.member_id:
                        del self.owners[topic_id, partition]

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        return member.topics | self.matches.get(member.pattern, frozenset()) if member.pattern else member.topics

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    # ---- classic requests ----

    def join(self, request: Request[JoinGroupRequest]) -> Reply:
        return self.classic_members.join(self, request)

    def sync(self, body: SyncGroupRequest) -> Reply:
        return self.classic_members.sync(self, body)

    def heartbeat(self, body: HeartbeatRequest) -> HeartbeatResponse:
        return self.classic_members.heartbeat(self, body)

    def leave(self, identity: MemberIdentity) -> ErrorCode:
        return self.classic_members.leave(self, identity)

    # ---- offsets ----

    def check_commit(self, committer: Committer) -> None:
        """Members commit with their epoch. A tool commits without one, while the group is empty.

        A producer that names no member is not checked against one.
        """
        of_nobody = committer.transactional and committer.member_id == "" and committer.instance_id is None
        if committer.epoch < 0 and (not self.members or of_nobody):
            return
        member = self.member(committer.member_id)
        if not committer.transactional and committer.version < COMMITS_SINCE and member.classic is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        self._check_epoch(member, committer)

    def _check_epoch(self, member: ConsumerMember, committer: Committer) -> None:
        """Accepts the member's epoch, and (KIP-1251) an older one for partitions that it has owned ever since.

        No other member can have moved their offsets, so a commit that crosses a heartbeat on the wire need not fail.
        """
        epoch = committer.epoch
        if epoch == member.epoch:
            return
        if epoch > member.epoch or not all(member.has_had(each, epoch) for each in committer.partitions()):
            raise self._stale(epoch, member)

    def check_offset_deletion(self) -> None:
        """``is_subscribed_to`` decides per topic."""

    def keeps_offsets(self) -> bool:
        return False

    @property
    def empty_since_ms(self) -> int | None:
        return None

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        member = self.member(member_id or "")
        if epoch != member.epoch:
            raise self._stale(epoch, member)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether other members still own some of what this member should have."""
        return any(
            self.owners.get((topic_id, partition), member.member_id) != member.member_id
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    def _stale(self, epoch: int, member: ConsumerMember) -> KafkaError:
        return KafkaError(
            ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION,
            f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}.",
        )


def reconcile(
    member: ConsumerMember,
    *,
    target_epoch: int,
    target: Target,
    owners: Mapping[TopicIdPartition, str],
    owned: Owned | None,
    joins: bool,
) -> ConsumerMember:
    """The member's next state on its way to the target. ``owned`` is what it reported to own; None if it did not.

    A member that ``joins`` owns what it reports and nothing else. One that is in the group may have been assigned more
    than it reports: after an error it sends everything, also while its application is still taking over what the last
    answer brought. Such a report lacks partitions that the member will own in a moment. So a member that lacks some of
    what it keeps is asked to give up the rest. It has to take over the new assignment, and confirms it then.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    if member.state is MemberState.UNREVOKED and _still_owns(owned, member.revoking):
        return member
    keep: dict[bytes, dict[int, int]] = {}
    give: dict[bytes, dict[int, int]] = {}
    for topic_id, partitions in member.assigned.items():
        wanted = target.get(topic_id, frozenset())
        for partition, since in partitions.items():
            side = keep if partition in wanted else give
            side.setdefault(topic_id, {})[partition] = since
    if give and (_still_owns(owned, give) or not (joins or _has_all(owned, keep))):
        return replace(member, state=MemberState.UNREVOKED, assigned=keep, revoking=give)
    unreleased = False
    for topic_id, wanted in target.items():
        for partition in wanted:
            if partition in keep.get(topic_id, {}):
                continue
            if owners.get((topic_id, partition), member.member_id) == member.member_id:
                keep.setdefault(topic_id, {})[partition] = target_epoch
            else:
                unreleased = True
    state = MemberState.UNRELEASED if unreleased else MemberState.STABLE
    return replace(member.at_epoch(target_epoch), state=state, assigned=keep, revoking={})


def _still_owns(owned: Owned | None, given_up: Owned) -> bool:
    """Whether the member still owns some of what it must give up. One that does not report may own all of it."""
    if owned is None:
        return True
    return any(
        partition in given_up.get(topic_id, {}) for topic_id, partitions in owned.items() for partition in partitions
    )


def _has_all(owned: Owned | None, kept: Owned) -> bool:
    reported = owned or {}
    return all(partition in reported.get(topic_id, {}) for topic_id, each in kept.items() for partition in each)
