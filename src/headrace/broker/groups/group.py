"""What every kind of group offers, whichever protocol its members speak.

The coordinator, offsets and descriptions work with groups through ``Group``. Classic groups (``classic``) and consumer
groups (``consumer``) implement it. Another kind of group is another implementation, not another case elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

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

__all__ = ["Committer", "Group", "TopicIdPartition", "require"]

TopicIdPartition = tuple[bytes, int]

G = TypeVar("G", bound="Group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Who commits offsets, as the request says it."""

    member_id: str
    instance_id: str | None
    epoch: int
    """The generation of a classic member, or the member epoch."""
    version: int
    transactional: bool
    partitions: Callable[[], Sequence[TopicIdPartition]]
    """What it commits. A function, because most groups need not know."""


class Group(ABC):
    """One group. Methods that refuse raise KafkaError with the code that the group's protocol has for it."""

    __slots__ = ()

    type_name: ClassVar[str]
    """Kafka's word for the kind of group."""
    group_id: str
    protocol_type: str | None

    # ---- what it is like ----

    @property
    @abstractmethod
    def state_name(self) -> str:
        """Kafka's word for the state."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @abstractmethod
    def member_ids(self) -> Collection[str]: ...

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool: ...

    # ---- requests of the classic protocol ----

    @abstractmethod
    def join(self, request: Request[JoinGroupRequest]) -> Reply: ...

    @abstractmethod
    def sync(self, body: SyncGroupRequest) -> Reply: ...

    @abstractmethod
    def heartbeat(self, body: HeartbeatRequest) -> HeartbeatResponse: ...

    @abstractmethod
    def leave(self, identity: MemberIdentity) -> ErrorCode: ...

    # ---- offsets ----

    @abstractmethod
    def check_commit(self, committer: Committer) -> None: ...

    @abstractmethod
    def check_fetch(self, member_id: str | None, epoch: int) -> None: ...

    @abstractmethod
    def check_offset_deletion(self) -> None: ...

    @abstractmethod
    def keeps_offsets(self) -> bool:
        """Whether no offset may expire now, because it is not known which topics the members read."""

    @property
    @abstractmethod
    def empty_since_ms(self) -> int | None:
        """From when the retention of its offsets counts; None if it counts from each commit."""

    # ---- the end ----

    @abstractmethod
    def is_removable(self) -> bool:
        """Whether nobody is in it or about to be."""

    @abstractmethod
    def removal(self) -> list[Change]:
        """The changes that remove its rows, but not its offsets."""

    @abstractmethod
    def shut(self, code: ErrorCode) -> None:
        """Stop its timers and answer ``code`` to what waits: the broker stops, or the group becomes another one."""


def require(group: Group | None, kind: type[G], group_id: str) -> G:
    """The group, if it is of the kind that a request is for."""
    if isinstance(group, kind):
        return group
    why = "not found" if group is None else f"is not a {kind.type_name} group"
    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
