"""Queues of a headrace broker: looked at, moved, redriven and restored, through requests that only headrace has.

    queues = Queues(client)
    dead = [each for each in queues.messages("dead") if each.state == "ready"]
    for done in queues.redrive("dead", dead):
        print(done.moved)

A client that wants to consume uses AMQP. These calls are for administration, and for reading a queue by the offsets of
its log, as Spark does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.client.client import ANY, Client, check
from headrace.client.connection import UnsupportedByBroker
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.amqp.properties import decode_properties
from headrace.wire.amqp.tables import decode_table, encode_table
from headrace.wire.kafka.messages.queues import (
    AlterBindingsRequest,
    AlterBindingsResponse,
    BindingChange,
    CreateExchangeRequest,
    CreateExchangeResponse,
    CreateQueueRequest,
    CreateQueueResponse,
    DeleteExchangeRequest,
    DeleteExchangeResponse,
    DeleteQueueRequest,
    DeleteQueueResponse,
    DescribedBinding,
    DescribedQueue,
    DescribeExchangesRequest,
    DescribeExchangesResponse,
    DescribeQueuesRequest,
    DescribeQueuesResponse,
    LanePlaces,
    LaneRange,
    MoveMessagesRequest,
    MoveMessagesResponse,
    PurgeQueueRequest,
    PurgeQueueResponse,
    QueueMessage,
    ReadQueueRequest,
    ReadQueueResponse,
    RestoreMessagesRequest,
    RestoreMessagesResponse,
)

__all__ = ["BindingInfo", "ExchangeInfo", "LaneInfo", "MoveResult", "NoQueues", "QueueInfo", "QueuedMessage", "Queues"]

R = TypeVar("R")

PLACES_MAX = 1_000
"""Of one request."""
MOVED_BYTES_MAX = 16 << 20
"""Of the bodies that one request moves."""
TO_EXCHANGE, TO_ORIGIN, NOWHERE = range(3)
STATES = ("ready", "unacknowledged", "acknowledged", "moving")


class NoQueues(KafkaError):
    """The broker is not headrace's, or one that is older than these requests."""

    def __init__(self, broker: str) -> None:
        super().__init__(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{broker} is not a headrace broker with queues: Kafka has none; for RabbitMQ give --management URL",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingInfo:
    """A binding from an exchange to a queue or to another exchange."""

    source: str
    destination: str
    is_to_exchange: bool = False
    routing_key: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInfo:
    """Offsets of one lane's log: from ``start`` on it has messages, below ``floor`` all are gone, below ``cursor`` all
    were handed out, below ``end`` all are flushed."""

    start: int
    floor: int
    cursor: int
    end: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue as the broker describes it. One with an ``error`` cannot be served. One that was deleted and made again
    has another ``id``."""

    name: str
    error: str | None = None
    is_durable: bool = True
    is_auto_delete: bool = False
    is_exclusive: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ready: int = 0
    unacknowledged: int = 0
    consumers: int = 0
    lanes: tuple[LaneInfo, ...] = ()
    bindings: tuple[BindingInfo, ...] = ()
    id: str = ""

    @property
    def is_stream(self) -> bool:
        return self.arguments.get("x-queue-type") == "stream"

    @property
    def published(self) -> int:
        """Messages that were ever published to it."""
        return sum(lane.end for lane in self.lanes)

    @property
    def retained(self) -> int:
        """Messages in the log, also those that are gone."""
        return sum(lane.end - lane.start for lane in self.lanes)

    @property
    def bytes_on_disk(self) -> int:
        return sum(lane.bytes_on_disk for lane in self.lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """A message in a queue; ``state`` is ready, unacknowledged, acknowledged (or gone otherwise) or moving."""

    lane: int = 0
    offset: int = 0
    state: str = "ready"
    enqueued_ms: int | None = None
    exchange: str = ""
    routing_key: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""
    body_bytes: int = 0

    @property
    def headers(self) -> Mapping[str, Any]:
        return self.properties.get("headers") or {}

    @property
    def death(self) -> Mapping[str, Any]:
        """The latest entry of ``x-death``; empty if it is no dead letter."""
        deaths = self.headers.get("x-death")
        return deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeInfo:
    """An exchange with its bindings."""

    name: str
    kind: str
    is_durable: bool = True
    is_auto_delete: bool = False
    is_internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    bindings: tuple[BindingInfo, ...] = ()


@dataclass(slots=True, kw_only=True)
class MoveResult:
    """What has become of messages that were to be moved."""

    moved: int = 0
    not_ready: int = 0
    unroutable: int = 0
    refused: int = 0

    def add(self, other: MoveMessagesResponse) -> None:
        self.moved += other.moved
        self.not_ready += other.not_ready
        self.unroutable += other.unroutable
        self.refused += other.refused


class Queues:
    """The queues of one virtual host, through a client."""

    def __init__(self, client: Client, virtual_host: str = "/") -> None:
        self._client = client
        self._virtual_host = virtual_host

    # ---- looking ----------------------------------------------------------------------------------------------------

    def list_all(self) -> Iterator[QueueInfo]:
        """Every queue by name, a page at a time."""
        after = ""
        while True:
            request = DescribeQueuesRequest(virtual_host=self._virtual_host, after=after)
            answer = self._ask(request, DescribeQueuesResponse, "listing queues")
            yield from (_info(each) for each in answer.queues)
            if answer.is_last or not answer.queues:
                return
            after = answer.queues[-1].name

    def describe(self, name: str) -> QueueInfo:
        request = DescribeQueuesRequest(virtual_host=self._virtual_host, name=name)
        answer = self._ask(request, DescribeQueuesResponse, f"describing queue {name!r}")
        return _info(answer.queues[0])

    def messages(self, name: str, *, body_bytes_max: int = -1, with_gone: bool = False) -> Iterator[QueuedMessage]:
        """The messages of a queue in the order in which they would be delivered: the highest priority first."""
        lanes = self.describe(name).lanes
        for number in reversed(range(len(lanes))):
            lane = lanes[number]
            first = lane.start if with_gone else lane.floor
            for each in self.read(name, number, first, lane.end, body_bytes_max=body_bytes_max):
                if with_gone or each.state != "acknowledged":
                    yield each

    def read(self, name: str, lane: int, first: int, end: int, *, body_bytes_max: int = -1) -> Iterator[QueuedMessage]:
        """Everything that the log of a lane has between two offsets, also what is gone."""
        offset = first
        while offset < end:
            request = ReadQueueRequest(
                virtual_host=self._virtual_host,
                queue=name,
                lane=lane,
                offset=offset,
                end=end,
                bytes_max=4 << 20,
                body_bytes_max=body_bytes_max,
            )
            answer = self._ask(request, ReadQueueResponse, f"reading queue {name!r}")
            yield from (_message(lane, each) for each in answer.messages)
            if answer.next_offset <= offset and not answer.messages:
                return
            offset = answer.next_offset

    def exchanges(self) -> Iterator[ExchangeInfo]:
        after = ""
        while True:
            request = DescribeExchangesRequest(virtual_host=self._virtual_host, after=after)
            answer = self._ask(request, DescribeExchangesResponse, "listing exchanges")
            for each in answer.exchanges:
                yield ExchangeInfo(
                    name=each.name,
                    kind=each.kind,
                    is_durable=each.is_durable,
                    is_auto_delete=each.is_auto_delete,
                    is_internal=each.is_internal,
                    arguments=_table(each.arguments),
                    bindings=tuple(map(_binding, each.bindings)),
                )
            if answer.is_last or not answer.exchanges:
                return
            after = answer.exchanges[-1].name

    # ---- moving and restoring ---------------------------------------------------------------------------------------

    def move(
        self, name: str, messages: Iterable[QueuedMessage], *, exchange: str = "", routing_key: str | None = None
    ) -> Iterator[MoveResult]:
        """Move messages to a queue (``routing_key`` without an exchange), or publish them to an exchange. What was
        done so far is yielded after each step; nothing is done before it is asked for."""
        return self._move(name, messages, TO_EXCHANGE, exchange, routing_key)

    def redrive(self, name: str, messages: Iterable[QueuedMessage]) -> Iterator[MoveResult]:
        """Bring dead letters back to the queues they came from."""
        return self._move(name, messages, TO_ORIGIN)

    def drop(self, name: str, messages: Iterable[QueuedMessage]) -> Iterator[MoveResult]:
        """Acknowledge messages that are ready."""
        return self._move(name, messages, NOWHERE)

    def _move(
        self,
        name: str,
        messages: Iterable[QueuedMessage],
        way: int,
        exchange: str = "",
        routing_key: str | None = None,
    ) -> Iterator[MoveResult]:
        done = MoveResult()
        for chosen in _portions(messages):
            request = MoveMessagesRequest(
                virtual_host=self._virtual_host,
                queue=name,
                way=way,
                exchange=exchange,
                routing_key=routing_key,
                places=_places([(each.lane, each.offset) for each in chosen]),
            )
            done.add(self._ask(request, MoveMessagesResponse, f"moving messages of queue {name!r}", once=True))
            yield done

    def acknowledge(self, name: str, lane: int, first: int, end: int) -> int:
        """Acknowledge what is ready between two offsets; how many messages that were."""
        count = 0
        for start in range(first, end, PLACES_MAX):
            places = [LanePlaces(lane=lane, ranges=[LaneRange(first=start, end=min(end, start + PLACES_MAX))])]
            request = MoveMessagesRequest(virtual_host=self._virtual_host, queue=name, way=NOWHERE, places=places)
            count += self._ask(request, MoveMessagesResponse, f"acknowledging messages of queue {name!r}").moved
        return count

    def restore(self, name: str, messages: Iterable[QueuedMessage]) -> Iterator[int]:
        """Make messages ready again that are gone; how many so far, after each step."""
        restored = 0
        for chosen in _portions(messages):
            request = RestoreMessagesRequest(
                virtual_host=self._virtual_host,
                queue=name,
                places=_places([(each.lane, each.offset) for each in chosen]),
            )
            restored += self._ask(request, RestoreMessagesResponse, f"restoring messages of queue {name!r}").restored
            yield restored

    def purge(self, name: str) -> int:
        """Everything that is ready is gone; how many messages that were."""
        request = PurgeQueueRequest(virtual_host=self._virtual_host, queue=name)
        return self._ask(request, PurgeQueueResponse, f"purging queue {name!r}").purged

    # ---- declaring and deleting -------------------------------------------------------------------------------------

    def create_queue(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        is_durable: bool = True,
        is_auto_delete: bool = False,
    ) -> None:
        """Declare a queue; one that exists must be the same."""
        request = CreateQueueRequest(
            virtual_host=self._virtual_host,
            queue=name,
            is_durable=is_durable,
            is_auto_delete=is_auto_delete,
            arguments=encode_table(arguments or {}),
        )
        self._ask(request, CreateQueueResponse, f"declaring queue {name!r}")

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue with its messages; how many were ready."""
        request = DeleteQueueRequest(
            virtual_host=self._virtual_host, queue=name, if_unused=if_unused, if_empty=if_empty
        )
        return self._ask(request, DeleteQueueResponse, f"deleting queue {name!r}", once=True).deleted

    def create_exchange(
        self,
        name: str,
        kind: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        is_durable: bool = True,
        is_auto_delete: bool = False,
        is_internal: bool = False,
    ) -> None:
        """Declare an exchange; one that exists must be the same."""
        request = CreateExchangeRequest(
            virtual_host=self._virtual_host,
            exchange=name,
            kind=kind,
            is_durable=is_durable,
            is_auto_delete=is_auto_delete,
            is_internal=is_internal,
            arguments=encode_table(arguments or {}),
        )
        self._ask(request, CreateExchangeResponse, f"declaring exchange {name!r}")

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        request = DeleteExchangeRequest(virtual_host=self._virtual_host, exchange=name, if_unused=if_unused)
        self._ask(request, DeleteExchangeResponse, f"deleting exchange {name!r}", once=True)

    def bind(self, binding: BindingInfo) -> None:
        self._alter_binding(binding, is_removed=False)

    def unbind(self, binding: BindingInfo) -> None:
        self._alter_binding(binding, is_removed=True)

    def _alter_binding(self, binding: BindingInfo, *, is_removed: bool) -> None:
        change = BindingChange(
            is_removed=is_removed,
            source=binding.source,
            is_to_exchange=binding.is_to_exchange,
            destination=binding.destination,
            routing_key=binding.routing_key,
            arguments=encode_table(dict(binding.arguments)),
        )
        request = AlterBindingsRequest(virtual_host=self._virtual_host, changes=[change])
        self._ask(request, AlterBindingsResponse, f"binding {binding.source!r} to {binding.destination!r}")

    def _ask(self, request: object, response: type[R], what: str, *, once: bool = False) -> R:
        """``once``: do not repeat a request whose connection is lost, since it may have taken effect."""

        def attempt() -> R:
            try:
                answer = self._client.call(ANY, request, response)
            except UnsupportedByBroker:
                raise NoQueues(", ".join(map(str, self._client.bootstrap))) from None
            check(answer.error_code, answer.error_message, what)  # type: ignore[attr-defined]
            return answer

        return attempt() if once else self._client.retrying(attempt)


def _table(raw: bytes) -> dict[str, Any]:
    return decode_table(raw, 0, len(raw))[0] if raw else {}


def _binding(each: DescribedBinding) -> BindingInfo:
    return BindingInfo(
        source=each.source,
        destination=each.destination,
        is_to_exchange=each.is_to_exchange,
        routing_key=each.routing_key,
        arguments=_table(each.arguments),
    )


def _info(each: DescribedQueue) -> QueueInfo:
    return QueueInfo(
        name=each.name,
        error=each.error,
        is_durable=each.is_durable,
        is_auto_delete=each.is_auto_delete,
        is_exclusive=each.is_exclusive,
        arguments=_table(each.arguments),
        ready=each.ready,
        unacknowledged=each.unacknowledged,
        consumers=each.consumers,
        lanes=tuple(
            LaneInfo(
                start=lane.start, floor=lane.floor, cursor=lane.cursor, end=lane.end, bytes_on_disk=lane.bytes_on_disk
            )
            for lane in each.lanes
        ),
        bindings=tuple(map(_binding, each.bindings)),
        id=each.id,
    )


def _message(lane: int, each: QueueMessage) -> QueuedMessage:
    return QueuedMessage(
        lane=lane,
        offset=each.offset,
        state=STATES[each.state],
        enqueued_ms=each.enqueued_ms,
        exchange=bytes(each.exchange).decode("utf-8", "replace"),
        routing_key=bytes(each.routing_key).decode("utf-8", "replace"),
        properties=decode_properties(bytes(each.properties)),
        body=bytes(each.body),
        body_bytes=each.body_bytes,
    )


def _portions(messages: Iterable[QueuedMessage]) -> Iterator[list[QueuedMessage]]:
    """As many as one request may name and move."""
    chosen: list[QueuedMessage] = []
    size = 0
    for each in messages:
        chosen.append(each)
        size += each.body_bytes
        if len(chosen) == PLACES_MAX or size >= MOVED_BYTES_MAX:
            yield chosen
            chosen, size = [], 0
    if chosen:
        yield chosen


def _places(places: Sequence[tuple[int, int]]) -> list[LanePlaces]:
    """In the order given, so that messages arrive in it; runs of offsets become ranges."""
    found: list[LanePlaces] = []
    for lane, offset in places:
        if not found or found[-1].lane != lane:
            found.append(LanePlaces(lane=lane))
        ranges = found[-1].ranges
        if ranges and ranges[-1].end == offset:
            ranges[-1].end = offset + 1
        else:
            ranges.append(LaneRange(first=offset, end=offset + 1))
    return found
