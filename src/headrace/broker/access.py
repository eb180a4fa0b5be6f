"""The access gate: a request sees topics, groups, transactional ids and the cluster only through it.

``Broker.handle`` gives every request its ``Access``, which knows the caller's principal. A handler asks for a resource
and says what it will do with it; the answer is the resource, None if there is none, or ``AccessDenied`` with Kafka's
code for that kind of resource. Which operation an API needs is Apache Kafka's table ("Authorization and ACLs" in its
documentation); ``tests/unit/broker/test_access.py`` compares every API with Kafka's answers.

An ``Authorizer`` decides. Without one everything is allowed, and the gate costs one attribute check per lookup.
Whether one operation implies another (READ implies DESCRIBE) is for the authorizer to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from headrace.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.groups.group import Group
    from headrace.broker.partition import Partition
    from headrace.broker.queues.queue import Queue
    from headrace.broker.queues.virtual_host import VirtualHost
    from headrace.broker.topics import Topic
    from headrace.broker.transactions.states import Transaction

__all__ = ["CLUSTER_NAME", "Access", "AccessDenied", "Authorizer", "Gate", "Operation", "ResourceType", "denial_code"]

CLUSTER_NAME = "kafka-cluster"
"""The name that ACLs give to the one resource of type CLUSTER."""


class Operation(IntEnum):
    """What a caller does with a resource, by Kafka's names and numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """Kinds of resources, by Kafka's names and numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    QUEUE = 100
    """This and the next are not Kafka's."""
    EXCHANGE = 101


OPERATIONS: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that ``authorized_operations`` fields report per kind of resource."""

_ALL_OPERATIONS = {kind: sum(1 << each for each in operations) for kind, operations in OPERATIONS.items()}

_DENIED = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.QUEUE: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.EXCHANGE: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


class AccessDenied(KafkaError):
    """The caller may not do this. Whether the resource exists is not disclosed."""

    def __init__(self, kind: ResourceType, name: str, operation: Operation) -> None:
        super().__init__(_DENIED[kind], f"{operation.name} on {kind.name} {name!r} is not authorized")
        self.kind = kind
        self.name = name
        self.operation = operation


def denial_code(*checks: Callable[[], object]) -> ErrorCode:
    """The code of the first check that is denied, or NONE."""
    try:
        for check in checks:
            check()
    except AccessDenied as denied:
        return denied.code
    return ErrorCode.NONE


class Authorizer(Protocol):
    """Decides what a principal may do."""

    def allows(self, principal: str, operation: Operation, kind: ResourceType, name: str) -> bool: ...

    def allows_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether there is at least one resource of this kind, existing or not, with which it may do this."""


class TopicLookup(Protocol):
    def get(self, name: str) -> Topic | None: ...

    def by_id(self, topic_id: bytes) -> Topic | None: ...

    def all(self) -> list[Topic]: ...


class GroupLookup(Protocol):
    def find(self, group_id: str) -> Group | None: ...

    def all(self) -> Iterable[Group]: ...


class TransactionLookup(Protocol):
    def find(self, transactional_id: str) -> Transaction | None: ...

    def all(self) -> Iterable[Transaction]: ...


class Access:
    """What one caller may see and do."""

    __slots__ = ("_authorizer", "_groups", "_principal", "_topics", "_transactions")

    def __init__(
        self,
        *,
        topics: TopicLookup,
        groups: GroupLookup,
        transactions: TransactionLookup,
        authorizer: Authorizer | None,
        principal: str,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._transactions = transactions
        self._authorizer = authorizer
        self._principal = principal

    # ---- topics ----

    def topic(self, name: str, operation: Operation, *, or_on_cluster: Operation | None = None) -> Topic | None:
        """``or_on_cluster``: the operation on the cluster that allows as much."""
        if self._authorizer is not None:
            self._check(operation, ResourceType.TOPIC, name, or_on_cluster)
        return self._topics.get(name)

    def topic_by_id(
        self, topic_id: bytes, operation: Operation, *, or_on_cluster: Operation | None = None
    ) -> Topic | None:
        """Ids are no secret: an unknown one is None even where its topic would have been denied."""
        topic = self._topics.by_id(topic_id)
        if self._authorizer is not None and topic is not None:
            self._check(operation, ResourceType.TOPIC, topic.name, or_on_cluster)
        return topic

    def existing_topic(self, name: str, operation: Operation, *, or_on_cluster: Operation | None = None) -> Topic:
        topic = self.topic(name, operation, or_on_cluster=or_on_cluster)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return topic

    def partition(
        self, name: str, index: int, operation: Operation, *, or_on_cluster: Operation | None = None
    ) -> Partition:
        partition = self.existing_topic(name, operation, or_on_cluster=or_on_cluster).partition(index)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return partition

    def visible_topics(self, *, or_on_cluster: Operation | None = None) -> list[Topic]:
        """The topics that the caller may describe, ordered by name."""
        topics = self._topics.all()
        if self._authorizer is None or (or_on_cluster is not None and self.may_cluster(or_on_cluster)):
            return topics
        return [each for each in topics if self.may(Operation.DESCRIBE, ResourceType.TOPIC, each.name)]

    # ---- groups ----

    def group(self, group_id: str, operation: Operation) -> Group | None:
        if self._authorizer is not None:
            self._check(operation, ResourceType.GROUP, group_id)
        return self._groups.find(group_id)

    def visible_groups(self) -> list[Group]:
        """DESCRIBE on the cluster shows every group; DESCRIBE on a group shows that group."""
        groups = list(self._groups.all())
        if self.may_cluster(Operation.DESCRIBE):
            return groups
        return [each for each in groups if self.may(Operation.DESCRIBE, ResourceType.GROUP, each.group_id)]

    # ---- transactional ids ----

    def transaction(
        self, transactional_id: str, operation: Operation, *, or_on_cluster: Operation | None = None
    ) -> Transaction | None:
        if self._authorizer is not None:
            self._check(operation, ResourceType.TRANSACTIONAL_ID, transactional_id, or_on_cluster)
        return self._transactions.find(transactional_id)

    def visible_transactions(self) -> list[Transaction]:
        transactions = list(self._transactions.all())
        if self._authorizer is None:
            return transactions
        return [
            each
            for each in transactions
            if self.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id)
        ]

    # ---- queues and exchanges ----

    def queue(self, host: VirtualHost, name: str, operation: Operation) -> Queue:
        """A queue that can be served, also one that a connection has for itself."""
        self.check_queue(host, name, operation)
        return host.served_queue(name)

    def check_queue(self, host: VirtualHost, name: str, operation: Operation) -> None:
        if self._authorizer is not None:
            self._check(operation, ResourceType.QUEUE, _qualified(host, name))

    def may_queue(self, host: VirtualHost, name: str, operation: Operation) -> bool:
        return self.may(operation, ResourceType.QUEUE, _qualified(host, name))

    def check_exchange(self, host: VirtualHost, name: str, operation: Operation) -> None:
        if self._authorizer is not None:
            self._check(operation, ResourceType.EXCHANGE, _qualified(host, name))

    def may_exchange(self, host: VirtualHost, name: str, operation: Operation) -> bool:
        return self.may(operation, ResourceType.EXCHANGE, _qualified(host, name))

    # ---- the cluster ----

    def check_cluster(self, operation: Operation) -> None:
        if self._authorizer is not None:
            self._check(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_cluster(self, operation: Operation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def check_idempotent_write(self) -> None:
        """IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)."""
        if self._authorizer is not None and not self._authorizer.allows_any(
            self._principal, Operation.WRITE, ResourceType.TOPIC
        ):
            self.check_cluster(Operation.IDEMPOTENT_WRITE)

    # ---- any resource ----

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self._authorizer is None or self._authorizer.allows(self._principal, operation, kind, name)

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The bit field of an ``authorized_operations`` answer. A cluster that may not be described shows none."""
        if self._authorizer is None:
            return _ALL_OPERATIONS[kind]
        if kind is ResourceType.CLUSTER and not self.may_cluster(Operation.DESCRIBE):
            return 0
        return sum(1 << each for each in OPERATIONS[kind] if self.may(each, kind, name))

    def _check(
        self, operation: Operation, kind: ResourceType, name: str, or_on_cluster: Operation | None = None
    ) -> None:
        if or_on_cluster is not None and self.may_cluster(or_on_cluster):
            return
        if not self.may(operation, kind, name):
            raise AccessDenied(kind, name, operation)


def _qualified(host: VirtualHost, name: str) -> str:
    """Names of the default virtual host stand for themselves."""
    return name if host.name == "/" else f"{host.name}/{name}"


class Gate:
    """Makes the ``Access`` of each caller."""

    def __init__(
        self,
        *,
        topics: TopicLookup,
        groups: GroupLookup,
        transactions: TransactionLookup,
        authorizer: Authorizer | None,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._transactions = transactions
        self._authorizer = authorizer
        self.open: Access | None = None
        """What every caller may see and do when no authorizer is configured: everything."""
        if authorizer is None:
            self.open = self._access("")

    def access(self, principal: str) -> Access:
        return self.open or self._access(principal)

    def _access(self, principal: str) -> Access:
        return Access(
            topics=self._topics,
            groups=self._groups,
            transactions=self._transactions,
            authorizer=self._authorizer,
            principal=principal,
        )
