"""The core that producer, consumer and admin share: who leads what, connections to them, and retries.

A ``Client`` keeps one connection per broker and a cache of topics and their leaders. ``call`` sends one request to one
broker. ``retrying`` repeats an attempt while its error is one that Kafka calls retriable, with growing pauses, within a
deadline, and forgets what the error has shown to be out of date.

It speaks to any Kafka broker and is used by one thread at a time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.client.connection import Address, BrokerUnreachable, Connection, Pending, parse_addresses
from headrace.client.security import Security
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from headrace.wire.kafka.schema import NO_ID

if TYPE_CHECKING:
    import ssl

__all__ = [
    "ANY",
    "CONTROLLER",
    "Client",
    "ClientOptions",
    "PartitionInfo",
    "TopicInfo",
    "TopicPartition",
    "check",
    "error_of",
]

T = TypeVar("T")
R = TypeVar("R")

ANY = -1
"""Instead of a node id: whichever broker answers."""
CONTROLLER = -2
"""Instead of a node id: the broker that makes and removes topics."""

COORDINATES_GROUPS = 0
COORDINATES_TRANSACTIONS = 1

_LEADERS_CHANGED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_CONTROLLER,
    }
)
_DAMAGED = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE})
"""What passes where there are replicas, and does not where the only copy of a partition is damaged."""
_COORDINATOR_CHANGED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition as metadata shows it; ``leader`` is -1 while it has none."""

    index: int
    leader: int
    leader_epoch: int = -1
    error: ErrorCode = ErrorCode.NONE
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic as metadata shows it; partitions in the order of their index."""

    name: str
    topic_id: bytes = NO_ID
    internal: bool = False
    partitions: tuple[PartitionInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Every wait and every bound of a client."""

    client_id: str = "headrace"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    retry_timeout_ms: int = 30_000
    first_contact_timeout_ms: int = 0  # before any broker was ever reached; 0 tells a wrong address at once
    retry_pause_ms: int = 50
    retry_pause_ms_max: int = 1_000
    metadata_age_ms_max: int = 300_000
    missing_topic_timeout_ms: int = 1_000  # a topic made a moment ago may not be known everywhere yet
    damage_timeout_ms: int | None = None  # no leader, or storage that fails; None: as long as other errors
    security: Security = field(default_factory=Security)

    @classmethod
    def from_kafka_config(cls, config: Mapping[str, str], **own: Any) -> ClientOptions:
        """Options from settings by Kafka's names, such as ``security.protocol``; unknown names are refused.

        ``own`` are fields by our names, for what the settings leave open.
        """
        from headrace.client.kafka_config import client_settings

        return cls(**{**own, **client_settings(config)})


@dataclass(slots=True)
class _Cluster:
    """What answers to metadata requests have said so far."""

    cluster_id: str | None = None
    controller: int = -1
    brokers: dict[int, Address] = field(default_factory=dict)
    topics: dict[str, tuple[float, TopicInfo]] = field(default_factory=dict)
    names_by_id: dict[bytes, str] = field(default_factory=dict)


def error_of(code: int, message: str | None, what: str) -> KafkaError | None:
    """The wire's error, saying what was asked for; the broker's own words are kept when it gave any."""
    if code == ErrorCode.NONE:
        return None
    known = known_code(code)
    told = message or known.name.lower().replace("_", " ")
    return KafkaError(known, f"{what}: {told}")


def known_code(code: int) -> ErrorCode:
    return ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR


def check(code: int, message: str | None, what: str) -> None:
    """Raise what ``error_of`` finds."""
    error = error_of(code, message, what)
    if error is not None:
        raise error


class Client:
    """Connections, metadata and retries for one cluster."""

    def __init__(self, bootstrap: str, options: ClientOptions | None = None) -> None:
        self.bootstrap = parse_addresses(bootstrap)
        self.options = options or ClientOptions()
        self._cluster = _Cluster()
        self._connections: dict[Address, Connection] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._ssl_context: ssl.SSLContext | None = None
        self._lanes: list[Client] = []

    @classmethod
    def from_kafka_config(cls, config: Mapping[str, str]) -> Client:
        """A client from settings by Kafka's names, ``bootstrap.servers`` among them."""
        return cls(config.get("bootstrap.servers", ""), ClientOptions.from_kafka_config(config))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        for lane in self._lanes:
            lane.close()
        self._lanes.clear()

    def lanes(self, count: int) -> list[Client]:
        """Clients with separate connections, for threads that ask at the same time; they are closed with this one.

        This client has reached the cluster before, so theirs wait for a broker that is away.
        """
        options = replace(self.options, first_contact_timeout_ms=self.options.retry_timeout_ms)
        while len(self._lanes) < count:
            self._lanes.append(Client(",".join(map(str, self.bootstrap)), options))
        return self._lanes[:count]

    # ---- one request to one broker ----------------------------------------------------------------------------------

    def call(
        self,
        node: int,
        request: object,
        response_class: type[R],
        *,
        version_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> R:
        """Ask one broker once. Error codes inside the answer are the caller's to look at."""
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        connection = self.connection(node)
        return connection.call(request, response_class, version_max=version_max, timeout_s=timeout_s)

    def send(
        self, node: int, request: object, response_class: type[R], *, version_max: int | None = None
    ) -> tuple[Connection, Pending[R]]:
        """Ask without waiting, so that several brokers work at the same time."""
        connection = self.connection(node)
        return connection, connection.send(request, response_class, version_max=version_max)

    def connection(self, node: int = ANY) -> Connection:
        """An open connection to a broker, made when there is none."""
        if node == ANY:
            return self._any_connection()
        if node == CONTROLLER:
            node = self.controller()
        address = self._cluster.brokers.get(node)
        if address is None:
            self.refresh([])
            address = self._cluster.brokers.get(node)
        if address is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {node}")
        return self._connect(address)

    def _any_connection(self) -> Connection:
        for connection in self._connections.values():
            if connection.usable:
                return connection
        failure: BrokerUnreachable | None = None
        for address in [*self.bootstrap, *self._cluster.brokers.values()]:
            try:
                return self._connect(address)
            except BrokerUnreachable as error:
                failure = failure or error
        assert failure is not None, "parse_addresses gives at least one address"
        raise failure

    def _connect(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.usable:
            return connection
        security = self.options.security
        if self._ssl_context is None:
            self._ssl_context = security.ssl_context()
        connection = Connection.open(
            address,
            security=security,
            ssl_context=self._ssl_context,
            client_id=self.options.client_id,
            connect_timeout_s=self.options.connect_timeout_ms / 1000,
            timeout_s=self.options.request_timeout_ms / 1000,
        )
        self._connections[address] = connection
        return connection

    # ---- metadata ---------------------------------------------------------------------------------------------------

    def refresh(self, topics: Iterable[str] | None, *, create: bool = False) -> MetadataResponse:
        """Ask for metadata of these topics (None: all, []: brokers only) and remember it."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        answer = self.call(ANY, request, MetadataResponse)
        self._cluster.cluster_id = answer.cluster_id
        self._cluster.controller = answer.controller_id
        self._cluster.brokers = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        now = time.monotonic()
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE and topic.name is not None:
                self._cluster.topics[topic.name] = now, _topic_info(topic)
                self._cluster.names_by_id[topic.topic_id] = topic.name
        return answer

    def topics(self) -> list[TopicInfo]:
        """Every topic, sorted by name."""
        answer = self.retrying(lambda: self.refresh(None))
        found = [_topic_info(topic) for topic in answer.topics if topic.error_code == ErrorCode.NONE]
        return sorted(found, key=lambda topic: topic.name)

    def topic(self, name: str, *, create: bool = False) -> TopicInfo:
        """One topic, from the cache while it is fresh; with ``create`` a broker that allows it makes a missing one."""
        cached = self._cluster.topics.get(name)
        if cached is not None and (time.monotonic() - cached[0]) * 1000 < self.options.metadata_age_ms_max:
            return cached[1]
        wait_ms = self.options.retry_timeout_ms if create else self.options.missing_topic_timeout_ms
        return self.retrying(lambda: self._ask_topic(name, create), missing_timeout_ms=wait_ms)

    def _ask_topic(self, name: str, create: bool) -> TopicInfo:
        answer = self.refresh([name], create=create)
        for topic in answer.topics:
            if topic.name == name:
                check(topic.error_code, None, f"topic {name!r}")
                return _topic_info(topic)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}: unknown topic or partition")

    def leader(self, partition: TopicPartition) -> int:
        """The node that leads a partition now."""
        topic = self.topic(partition.topic)
        if not 0 <= partition.partition < len(topic.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1}, not {partition.partition}",
            )
        found = topic.partitions[partition.partition]
        if found.leader < 0:
            why = f": the broker says {found.error.name}" if found.error else ""
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader{why}")
        return found.leader

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        grouped: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            grouped.setdefault(self.leader(partition), []).append(partition)
        return grouped

    def topic_id(self, name: str) -> bytes:
        return self.topic(name).topic_id

    def topic_name(self, topic_id: bytes) -> str:
        """The name behind an id; asks for all topics when it is new to us."""
        if topic_id not in self._cluster.names_by_id:
            self.retrying(lambda: self.refresh(None))
        name = self._cluster.names_by_id.get(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")
        return name

    def forget_topic(self, name: str) -> None:
        """Ask again the next time: the topic was changed by us."""
        self._cluster.topics.pop(name, None)

    def controller(self) -> int:
        if self._cluster.controller < 0:
            self.refresh([])
        return self._cluster.controller

    def brokers(self) -> Mapping[int, Address]:
        self.retrying(lambda: self.refresh([]))
        return dict(self._cluster.brokers)

    def known_brokers(self) -> Mapping[int, Address]:
        """As metadata last told, without asking again."""
        return dict(self._cluster.brokers)

    @property
    def cluster_id(self) -> str | None:
        return self._cluster.cluster_id

    # ---- coordinators -----------------------------------------------------------------------------------------------

    def group_coordinator(self, group: str) -> int:
        return self._coordinator(COORDINATES_GROUPS, group)

    def transaction_coordinator(self, transactional_id: str) -> int:
        return self._coordinator(COORDINATES_TRANSACTIONS, transactional_id)

    def _coordinator(self, kind: int, key: str) -> int:
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        answer = self.call(ANY, request, FindCoordinatorResponse)
        if answer.coordinators:
            found = answer.coordinators[0]
            code, message, node = found.error_code, found.error_message, found.node_id
            address = Address(found.host, found.port)
        else:
            code, message, node = answer.error_code, answer.error_message, answer.node_id
            address = Address(answer.host, answer.port)
        check(code, message, f"finding the coordinator of {key!r}")
        self._cluster.brokers[node] = address
        self._coordinators[kind, key] = node
        return node

    # ---- retries ----------------------------------------------------------------------------------------------------

    def retrying(
        self, attempt: Callable[[], T], *, timeout_ms: int | None = None, missing_timeout_ms: int | None = None
    ) -> T:
        """Repeat ``attempt`` while its error may pass, within ``timeout_ms``.

        A topic that does not exist may be one that was made a moment ago, or one that never will be: that error is
        retried for the shorter ``missing_timeout_ms``.
        """
        options = self.options
        start = time.monotonic()
        limit_ms = options.retry_timeout_ms if timeout_ms is None else timeout_ms
        missing_ms = options.missing_topic_timeout_ms if missing_timeout_ms is None else missing_timeout_ms
        pause_ms = float(options.retry_pause_ms)
        while True:
            try:
                return attempt()
            except KafkaError as error:
                self.learn_from(error.code)
                missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                bound_ms = min(limit_ms, missing_ms) if missing else self.patience_ms(error, limit_ms)
                if isinstance(error, BrokerUnreachable):
                    bound_ms = bound_ms if self._connections else min(bound_ms, options.first_contact_timeout_ms)
                if not error.retriable or (time.monotonic() - start) * 1000 + pause_ms > bound_ms:
                    raise
            time.sleep(pause_ms * random.uniform(0.8, 1.2) / 1000)
            pause_ms = min(pause_ms * 2, options.retry_pause_ms_max)

    def patience_ms(self, error: KafkaError, limit_ms: int) -> int:
        """How long to repeat what fails with this error."""
        damage_ms = self.options.damage_timeout_ms
        return min(limit_ms, damage_ms) if damage_ms is not None and error.code in _DAMAGED else limit_ms

    def learn_from(self, code: ErrorCode) -> None:
        """Forget what an error has shown to be out of date."""
        if code in _LEADERS_CHANGED:
            self._cluster.topics.clear()
            self._cluster.controller = -1
        if code in _COORDINATOR_CHANGED:
            self._coordinators.clear()


def _topic_info(topic: MetadataResponseTopic) -> TopicInfo:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        name=topic.name or "",
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions=tuple(
            PartitionInfo(
                index=each.partition_index,
                leader=each.leader_id,
                leader_epoch=each.leader_epoch,
                error=known_code(each.error_code),
                replicas=tuple(each.replica_nodes),
                in_sync=tuple(each.isr_nodes),
            )
            for each in partitions
        ),
    )
