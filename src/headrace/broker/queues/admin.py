"""Administration of queues: what AMQP has no methods for, and the rest of it for clients that speak Kafka.

**Moving.** Messages go from one queue to another in this order, so that a kill loses none:

1. They are held: nobody gets them, and they keep their places.
2. The journal of their queue notes that they may be elsewhere from now on.
3. They are appended to the queues they go to, and flushed there.
4. The journal notes that they are gone.

A kill before 3 leaves them where they were. A kill between 3 and 4 leaves them in both queues, and both say so: the old
one delivers them with ``redelivered``, the new one has them with the header ``x-headrace-moved-from``. If they are then
moved once more, the second copy has the header ``x-headrace-moved-again``.

Everything that may take long is a generator, run in slices (``headrace.broker.slices``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from headrace.broker.access import Operation
from headrace.broker.errors import code_of
from headrace.broker.queues.message import Message
from headrace.broker.queues.queue import Place, Queue
from headrace.broker.queues.queue_broker import QueueBroker
from headrace.broker.queues.routing import Binding, Destination, Exchange
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.broker.replies import PendingReply
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.tables import BadTable, decode_table, encode_table
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
    DescribedExchange,
    DescribedLane,
    DescribedQueue,
    DescribeExchangesRequest,
    DescribeExchangesResponse,
    DescribeQueuesRequest,
    DescribeQueuesResponse,
    LanePlaces,
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

__all__ = ["QueueAdmin"]

T = TypeVar("T")

QUEUES_MAX = 1_000
BINDINGS_MAX = 10_000
"""Of one queue or exchange, in an answer."""
MESSAGES_MAX = 1_000
READ_BYTES_MAX = 8 << 20
MOVE_BYTES_MAX = 4 << 20
"""Are moved together: in one append per queue, and with one flush."""
CHANGES_MAX = 1_000
FAR = 2_000
"""So many offsets are passed over by reading; a place further away is looked up."""

TO_EXCHANGE, TO_ORIGIN, NOWHERE = range(3)
STATES = {"ready": 0, "unacknowledged": 1, "gone": 2, "moving": 3}
MOVED_FROM = "x-headrace-moved-from"
MOVED_AGAIN = "x-headrace-moved-again"

_CODES = {
    ReplyCode.NOT_FOUND: ErrorCode.RESOURCE_NOT_FOUND,
    ReplyCode.RESOURCE_LOCKED: ErrorCode.POLICY_VIOLATION,
    ReplyCode.ACCESS_REFUSED: ErrorCode.POLICY_VIOLATION,
    ReplyCode.RESOURCE_ERROR: ErrorCode.KAFKA_STORAGE_ERROR,
}


class _Flush(PendingReply[None]):
    """Ready when everything that was published with it is flushed, and ``one_done`` was called once more."""

    __slots__ = ()

    def add_waits(self, count: int) -> None:
        self.waits += count


class QueueAdmin:
    """Answers headrace's requests about queues and exchanges."""

    def __init__(self, queues: QueueBroker) -> None:
        self._queues = queues
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- looking ----------------------------------------------------------------------------------------------------

    def describe_queues(self, request: Request[DescribeQueuesRequest]) -> Steps[DescribeQueuesResponse]:
        return (yield from _answered(DescribeQueuesResponse, self._describe_queues(request)))

    def _describe_queues(self, request: Request[DescribeQueuesRequest]) -> Steps[DescribeQueuesResponse]:
        body, access = request.body, request.access
        host = self._queues.virtual_host(body.virtual_host)
        if body.name is not None:
            access.queue(host, body.name, Operation.DESCRIBE)
            names, is_last = [body.name], True
        else:
            known = sorted(each for each in {*host.queues, *host.damaged} if each > body.after)
            visible = [each for each in known if access.may_queue(host, each, Operation.DESCRIBE)]
            yield 1 + len(known) // 50
            count = _within(body.count_max, QUEUES_MAX)
            names, is_last = visible[:count], len(visible) <= count
        bindings = yield from _bindings_by_queue(host, set(names))
        found = []
        for name in names:
            found.append(_described(host, name, bindings.get(name, [])))
            yield 2
        return DescribeQueuesResponse(queues=[each for each in found if each is not None], is_last=is_last)

    def describe_exchanges(self, request: Request[DescribeExchangesRequest]) -> Steps[DescribeExchangesResponse]:
        return (yield from _answered(DescribeExchangesResponse, self._describe_exchanges(request)))

    def _describe_exchanges(self, request: Request[DescribeExchangesRequest]) -> Steps[DescribeExchangesResponse]:
        body, access = request.body, request.access
        host = self._queues.virtual_host(body.virtual_host)
        if body.name is not None:
            access.check_exchange(host, body.name, Operation.DESCRIBE)
            names, is_last = [host.exchange(body.name).name], True
        else:
            known = sorted(each for each in host.exchanges if each > body.after or not body.after)
            visible = [each for each in known if access.may_exchange(host, each, Operation.DESCRIBE)]
            yield 1 + len(known) // 50
            count = _within(body.count_max, QUEUES_MAX)
            names, is_last = visible[:count], len(visible) <= count
        found = []
        for name in names:
            exchange = host.exchanges.get(name)
            if exchange is not None:  # it may have been deleted between two steps
                found.append(_described_exchange(exchange))
                yield 1 + len(found[-1].bindings)
        return DescribeExchangesResponse(exchanges=found, is_last=is_last)

    def read_queue(self, request: Request[ReadQueueRequest]) -> Steps[ReadQueueResponse]:
        return (yield from _answered(ReadQueueResponse, self._read_queue(request)))

    def _read_queue(self, request: Request[ReadQueueRequest]) -> Steps[ReadQueueResponse]:
        body = request.body
        queue = self._queue(request, body.queue, Operation.READ)
        lane = queue.lanes[_lane_number(queue, body.lane)]
        log = lane.log
        end = log.high_watermark if body.end < 0 else min(body.end, log.high_watermark)
        offset = min(max(body.offset, log.start_offset), end)
        answer = ReadQueueResponse(start=log.start_offset, end=log.high_watermark)
        count_max, bytes_max = _within(body.count_max, MESSAGES_MAX), _within(body.bytes_max, READ_BYTES_MAX)
        size = 0
        while offset < end and not queue.is_deleted:
            for at, message in lane.scan(offset, end):
                shown = _shown(at, STATES[lane.state_of(at)], message, body.body_bytes_max)
                size += len(shown.body) + len(shown.properties) + len(shown.routing_key)
                if answer.messages and (size > bytes_max or len(answer.messages) >= count_max):
                    answer.next_offset = at
                    return answer
                answer.messages.append(shown)
                offset = at + 1
                yield 2
        answer.next_offset = offset
        return answer

    # ---- moving and restoring ---------------------------------------------------------------------------------------

    def move_messages(self, request: Request[MoveMessagesRequest]) -> Steps[MoveMessagesResponse]:
        return (yield from _answered(MoveMessagesResponse, self._move(request)))

    def _move(self, request: Request[MoveMessagesRequest]) -> Steps[MoveMessagesResponse]:
        body = request.body
        host = self._queues.virtual_host(body.virtual_host)
        queue = self._queue(request, body.queue, Operation.READ)
        self._check_way(request, host, queue)
        places = list(_places(queue, body.places))
        held = queue.hold(places)
        yield 1 + len(places) // 10
        answer = MoveMessagesResponse(not_ready=len(places) - len(held))
        waiting = deque(held)
        try:
            while waiting:
                found = yield from _messages_of(queue, waiting)
                if not found:
                    break
                yield from self._move_some(request, host, queue, found, answer)
        except Exception:
            queue.let_go(list(waiting))
            raise
        answer.not_ready += len(waiting)
        return answer

    def _check_way(self, request: Request[MoveMessagesRequest], host: VirtualHost, queue: Queue) -> None:
        body = request.body
        if body.way not in (TO_EXCHANGE, TO_ORIGIN, NOWHERE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no way {body.way} to move messages")
        if body.way == TO_EXCHANGE and body.exchange == "":
            target = self._queue(request, body.routing_key or "", Operation.WRITE)
            if target is queue:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"queue '{queue.name}' cannot be moved into itself")
        elif body.way == TO_EXCHANGE:
            request.access.check_exchange(host, body.exchange, Operation.WRITE)
            host.exchange(body.exchange)

    def _move_some(
        self,
        request: Request[MoveMessagesRequest],
        host: VirtualHost,
        queue: Queue,
        found: list[tuple[Place, Message]],
        answer: MoveMessagesResponse,
    ) -> Steps[None]:
        """Steps 2 to 4 for messages that are held; those that cannot go are ready again."""
        ways: list[tuple[Place, Message, list[tuple[Queue, Message]]]] = []
        planned: dict[Queue, tuple[int, int]] = {}
        try:
            for place, message in found:
                targets = self._targets(request, host, queue, place, message)
                if targets is None:
                    answer.unroutable += 1
                elif not all(_has_room(target, each, planned) for target, each in targets):
                    answer.refused += 1
                else:
                    ways.append((place, message, targets))
                    for target, each in targets:
                        count, size = planned.get(target, (0, 0))
                        planned[target] = count + 1, size + len(each.body)
                yield 1
            open_ways = [way for way in ways if not any(target.is_deleted for target, _ in way[2])]
            answer.unroutable += len(ways) - len(open_ways)
            goes = [(place, message) for place, message, _ in open_ways]
            published = [each for _, _, targets in open_ways for each in targets]
            moving = [place for place, _ in goes]
            stays = set(moving)
            queue.let_go([place for place, _ in found if place not in stays])
            if published:
                queue.note_moving(moving)
                yield from _flushed(published)
            queue.settle_held(goes)
            answer.moved += len(goes)
        except Exception:
            queue.let_go([place for place, _ in found])
            raise

    def _targets(
        self, request: Request[MoveMessagesRequest], host: VirtualHost, queue: Queue, place: Place, message: Message
    ) -> list[tuple[Queue, Message]] | None:
        """Where a message goes and as what, or None where there is no queue for it."""
        body = request.body
        if body.way == NOWHERE:
            return []
        headers = {**message.headers, MOVED_FROM: f"{queue.name}/{place[0]}/{place[1]}"}
        if queue.lanes[place[0]].is_doubtful(place[1]):
            headers[MOVED_AGAIN] = True
        copy = message.with_properties(headers=headers)._replace(enqueued_ms=queue.now_ms())
        if body.way == TO_ORIGIN:
            name, copy = _redriven(message, copy)
        elif body.exchange == "":
            name = body.routing_key or ""
        else:
            key = message.routing_key if body.routing_key is None else _raw(body.routing_key)
            copy = copy._replace(exchange=_raw(body.exchange), routing_key=key)
            targets = [each for each in host.route(copy) if each is not queue]
            return [(each, copy) for each in targets] or None
        target = host.queues.get(name)
        if target is None or target is queue:
            return None
        if body.way == TO_ORIGIN and not request.access.may_queue(host, name, Operation.WRITE):
            return None
        return [(target, copy)]

    def restore_messages(self, request: Request[RestoreMessagesRequest]) -> Steps[RestoreMessagesResponse]:
        return (yield from _answered(RestoreMessagesResponse, self._restore(request)))

    def _restore(self, request: Request[RestoreMessagesRequest]) -> Steps[RestoreMessagesResponse]:
        body = request.body
        queue = self._queue(request, body.queue, Operation.WRITE)
        _check_places(body.places)
        answer = RestoreMessagesResponse()
        for places in body.places:
            number = _lane_number(queue, places.lane)
            for each in places.ranges:
                if queue.is_deleted:
                    return answer
                answer.restored += queue.restore(number, each.first, each.end)
                yield 1 + (each.end - each.first) // 5
        return answer

    def purge_queue(self, request: Request[PurgeQueueRequest]) -> PurgeQueueResponse:
        try:
            purged = self._queue(request, request.body.queue, Operation.WRITE).purge()
        except HeadraceError as error:
            return PurgeQueueResponse(error_code=_code_of(error), error_message=error.message)
        return PurgeQueueResponse(purged=purged)

    # ---- declaring and deleting -------------------------------------------------------------------------------------

    def create_queue(self, request: Request[CreateQueueRequest]) -> Steps[CreateQueueResponse]:
        return (yield from _answered(CreateQueueResponse, self._create_queue(request)))

    def _create_queue(self, request: Request[CreateQueueRequest]) -> Steps[CreateQueueResponse]:
        body = request.body
        host = self._queues.virtual_host(body.virtual_host)
        request.access.check_queue(host, body.queue, Operation.CREATE)
        _check_name("queue", body.queue)
        yield from self._awaited(self._make_queue(host, body))
        return CreateQueueResponse()

    async def _make_queue(self, host: VirtualHost, body: CreateQueueRequest) -> None:
        arguments = _table(body.arguments)
        await self._queues.registry.settled(host, body.queue)
        if body.queue in host.queues or body.queue in host.damaged:
            host.check_same_queue(
                host.queue(body.queue, None),
                is_durable=body.is_durable,
                is_auto_delete=body.is_auto_delete,
                arguments=arguments,
            )
            return
        await self._queues.registry.make_queue(
            host, body.queue, arguments, is_durable=body.is_durable, is_auto_delete=body.is_auto_delete, owner=None
        )

    def delete_queue(self, request: Request[DeleteQueueRequest]) -> Steps[DeleteQueueResponse]:
        return (yield from _answered(DeleteQueueResponse, self._delete_queue(request)))

    def _delete_queue(self, request: Request[DeleteQueueRequest]) -> Steps[DeleteQueueResponse]:
        body = request.body
        host = self._queues.virtual_host(body.virtual_host)
        queue = self._queue(request, body.queue, Operation.DELETE)
        if body.if_unused and queue.consumers:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"queue '{queue.name}' has {len(queue.consumers)} consumers")
        if body.if_empty and queue.ready:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"queue '{queue.name}' has {queue.ready} messages")
        deleted = yield from self._awaited(self._queues.registry.remove_queue(host, queue))
        return DeleteQueueResponse(deleted=deleted)

    def create_exchange(self, request: Request[CreateExchangeRequest]) -> Steps[CreateExchangeResponse]:
        return (yield from _answered(CreateExchangeResponse, self._create_exchange(request)))

    def _create_exchange(self, request: Request[CreateExchangeRequest]) -> Steps[CreateExchangeResponse]:
        body = request.body
        host = self._queues.virtual_host(body.virtual_host)
        request.access.check_exchange(host, body.exchange, Operation.CREATE)
        _check_name("exchange", body.exchange)
        host.check_kind(body.kind)
        exchange = Exchange(
            body.exchange,
            body.kind,
            is_durable=body.is_durable,
            is_auto_delete=body.is_auto_delete,
            is_internal=body.is_internal,
            arguments=_table(body.arguments),
        )
        yield from self._awaited(self._queues.registry.declare_exchange(host, exchange))
        return CreateExchangeResponse()

    def delete_exchange(self, request: Request[DeleteExchangeRequest]) -> Steps[DeleteExchangeResponse]:
        return (yield from _answered(DeleteExchangeResponse, self._delete_exchange(request)))

    def _delete_exchange(self, request: Request[DeleteExchangeRequest]) -> Steps[DeleteExchangeResponse]:
        body = request.body
        host = self._queues.virtual_host(body.virtual_host)
        request.access.check_exchange(host, body.exchange, Operation.DELETE)
        _check_name("exchange", body.exchange)
        exchange = host.exchange(body.exchange)
        if body.if_unused and exchange.bindings:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"exchange '{exchange.name}' has bindings")
        yield from self._awaited(self._queues.registry.remove_exchange(host, exchange))
        return DeleteExchangeResponse()

    def alter_bindings(self, request: Request[AlterBindingsRequest]) -> Steps[AlterBindingsResponse]:
        return (yield from _answered(AlterBindingsResponse, self._alter_bindings(request)))

    def _alter_bindings(self, request: Request[AlterBindingsRequest]) -> Steps[AlterBindingsResponse]:
        changes = request.body.changes
        if len(changes) > CHANGES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {CHANGES_MAX} bindings can be changed at a time")
        host = self._queues.virtual_host(request.body.virtual_host)
        for change in changes:
            request.access.check_exchange(host, change.source, Operation.READ)
            if change.source == "":
                raise KafkaError(ErrorCode.POLICY_VIOLATION, "the default exchange has the bindings that it has")
            source = host.exchange(change.source)
            binding = Binding(self._destination(request, host, change), change.routing_key, _table(change.arguments))
            registry = self._queues.registry
            alter = registry.unbind if change.is_removed else registry.bind
            yield from self._awaited(alter(host, source, binding))
        return AlterBindingsResponse()

    def _destination(
        self, request: Request[AlterBindingsRequest], host: VirtualHost, change: BindingChange
    ) -> Destination:
        if not change.is_to_exchange:
            return self._queue(request, change.destination, Operation.WRITE)
        request.access.check_exchange(host, change.destination, Operation.WRITE)
        return host.exchange(change.destination)

    # ---- finding ----------------------------------------------------------------------------------------------------

    def _queue(self, request: Request[Any], name: str, operation: Operation) -> Queue:
        host = self._queues.virtual_host(request.body.virtual_host)
        return request.access.queue(host, name, operation)

    def _awaited(self, work: Coroutine[Any, Any, T]) -> Steps[T]:
        """The result of a coroutine, which runs as a task. It goes on when the peer is gone."""
        reply: PendingReply[asyncio.Task[T]] = PendingReply()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(reply.deliver)
        done: asyncio.Task[T] = yield reply
        return done.result()


def _answered(response: Callable[..., T], steps: Steps[T]) -> Steps[T]:
    """What the steps answer, or the error that they end with."""
    try:
        return (yield from steps)
    except HeadraceError as error:
        return response(error_code=_code_of(error), error_message=error.message)


def _code_of(error: HeadraceError) -> ErrorCode:
    if isinstance(error, AmqpError):
        return _CODES.get(error.code, ErrorCode.INVALID_REQUEST)
    return code_of(error)


def _within(asked: int, most: int) -> int:
    return most if asked <= 0 else min(asked, most)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _table(raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    try:
        return decode_table(raw, 0, len(raw))[0]
    except BadTable as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the arguments are no field table: {error}") from error


def _check_name(what: str, name: str) -> None:
    if not name or name.startswith("amq.") or len(_raw(name)) > 255:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{what} name '{name}' is not allowed: names have 1 to 255 bytes, and those that begin with 'amq.' are "
            "the broker's",
        )


def _bindings_by_queue(host: VirtualHost, names: set[str]) -> Steps[dict[str, list[DescribedBinding]]]:
    found: dict[str, list[DescribedBinding]] = {}
    for exchange in list(host.exchanges.values()):
        if exchange.name == "":
            continue  # every queue is bound to it by its name
        for looked_at, binding in enumerate(list(exchange.bindings.values())):
            if isinstance(binding.destination, Queue) and binding.destination.name in names:
                rows = found.setdefault(binding.destination.name, [])
                if len(rows) < BINDINGS_MAX:
                    rows.append(_described_binding(exchange, binding))
            if looked_at % 100 == 99:
                yield 5
        yield 1
    return found


def _described_binding(source: Exchange, binding: Binding) -> DescribedBinding:
    return DescribedBinding(
        source=source.name,
        is_to_exchange=isinstance(binding.destination, Exchange),
        destination=binding.destination.name,
        routing_key=binding.key,
        arguments=encode_table(dict(binding.arguments)),
    )


def _described_exchange(exchange: Exchange) -> DescribedExchange:
    bindings = [] if exchange.name == "" else list(exchange.bindings.values())[:BINDINGS_MAX]
    return DescribedExchange(
        name=exchange.name,
        kind=exchange.kind,
        is_durable=exchange.is_durable,
        is_auto_delete=exchange.is_auto_delete,
        is_internal=exchange.is_internal,
        arguments=encode_table(exchange.arguments),
        bindings=[_described_binding(exchange, each) for each in bindings],
    )


def _described(host: VirtualHost, name: str, bindings: list[DescribedBinding]) -> DescribedQueue | None:
    """None if it was deleted between two steps."""
    if name in host.damaged:
        return DescribedQueue(name=name, error=host.damaged[name])
    queue = host.queues.get(name)
    if queue is None:
        return None
    return DescribedQueue(
        name=name,
        is_durable=queue.is_durable,
        is_auto_delete=queue.is_auto_delete,
        is_exclusive=queue.owner is not None,
        arguments=encode_table(queue.arguments),
        ready=queue.ready,
        unacknowledged=queue.unacknowledged,
        consumers=len(queue.consumers),
        lanes=[
            DescribedLane(
                start=lane.log.start_offset,
                floor=lane.floor,
                cursor=lane.cursor,
                end=lane.log.high_watermark,
                bytes_on_disk=lane.log.size_bytes,
            )
            for lane in queue.lanes
        ],
        bindings=bindings,
    )


def _shown(offset: int, state: int, message: Message, body_bytes_max: int) -> QueueMessage:
    body = message.body if body_bytes_max < 0 else message.body[:body_bytes_max]
    return QueueMessage(
        offset=offset,
        state=state,
        enqueued_ms=message.enqueued_ms,
        exchange=message.exchange,
        routing_key=message.routing_key,
        properties=message.properties,
        body=body,
        body_bytes=len(message.body),
    )


def _lane_number(queue: Queue, number: int) -> int:
    if not 0 <= number < len(queue.lanes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"queue '{queue.name}' has lanes 0 to {len(queue.lanes) - 1}")
    return number


def _check_places(places: Iterable[LanePlaces]) -> None:
    count = 0
    for each in (one for lane in places for one in lane.ranges):
        if not 0 <= each.first <= each.end:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"[{each.first}, {each.end}) is no range of offsets")
        count += each.end - each.first
    if count > MESSAGES_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a request may name {MESSAGES_MAX} messages, and not {count}")


def _places(queue: Queue, places: Sequence[LanePlaces]) -> Iterator[Place]:
    """Those that the logs have, of a limited number."""
    _check_places(places)
    for lane in places:
        number = _lane_number(queue, lane.lane)
        log = queue.lanes[number].log
        for each in lane.ranges:
            for offset in range(max(each.first, log.start_offset), min(each.end, log.end_offset)):
                yield number, offset


def _messages_of(queue: Queue, waiting: deque[Place]) -> Steps[list[tuple[Place, Message]]]:
    """The messages at the first of these places, which are held, up to ``MOVE_BYTES_MAX``; they are taken from the
    deque. Nothing if the queue was deleted."""
    found: list[tuple[Place, Message]] = []
    size = looked_at = 0
    while waiting and size < MOVE_BYTES_MAX and not queue.is_deleted:
        number, first = waiting[0]
        lane = queue.lanes[number]
        for offset, message in lane.scan(first, lane.end):
            if offset == waiting[0][1]:
                found.append((waiting.popleft(), message))
                size += message.size
            looked_at += 1
            if looked_at % 20 == 0:
                yield 20
            is_near = waiting and waiting[0][0] == number and waiting[0][1] - offset < FAR
            if not is_near or size >= MOVE_BYTES_MAX:
                break
        yield 2
    return found


def _has_room(target: Queue, message: Message, planned: Mapping[Queue, tuple[int, int]]) -> bool:
    count, size = planned.get(target, (0, 0))
    return target.has_room(count + 1, size + len(message.body))


def _flushed(published: Sequence[tuple[Queue, Message]]) -> Steps[None]:
    """Publish, and wait until everything is flushed."""
    flush = _Flush()
    for target, message in published:
        target.publish(message, flush)
    flush.one_done()
    yield flush


def _redriven(message: Message, copy: Message) -> tuple[str, Message]:
    """The queue that a dead letter came from, and the message with the exchange and routing key it had there."""
    deaths = message.headers.get("x-death")
    death = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
    keys = death.get("routing-keys")
    exchange = death.get("exchange")
    if isinstance(exchange, str) and isinstance(keys, list) and keys and isinstance(keys[0], str):
        copy = copy._replace(exchange=_raw(exchange), routing_key=_raw(keys[0]))
    return str(death.get("queue", "")), copy
