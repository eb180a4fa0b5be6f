"""Administration of queues: what AMQP has no methods for, and the rest of it for clients that speak Kafka.

Everything that may take long is a generator, run in slices (``headrace.broker.slices``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from headrace.broker.access import Operation
from headrace.broker.queues.admin_requests import answered, lane_number, raw_name, reply_code
from headrace.broker.queues.message import Message
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.queue_broker import QueueBroker
from headrace.broker.queues.routing import Binding, Destination, Exchange, check_headers_binding
from headrace.broker.queues.virtual_host import COMPARED_ARGUMENTS, OTHER_ARGUMENTS, VirtualHost
from headrace.broker.replies import PendingReply
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.errors import ErrorCode, HeadraceError, KafkaError
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
    PurgeQueueRequest,
    PurgeQueueResponse,
    QueueMessage,
    ReadQueueRequest,
    ReadQueueResponse,
)

__all__ = ["QueueAdmin"]

T = TypeVar("T")

QUEUES_MAX = 1_000
BINDINGS_MAX = 10_000
"""Of one queue or exchange, in an answer."""
MESSAGES_MAX = 1_000
READ_BYTES_MAX = 8 << 20
CHANGES_MAX = 1_000
ARGUMENTS = (*COMPARED_ARGUMENTS, *OTHER_ARGUMENTS)

STATES = {"ready": 0, "unacknowledged": 1, "gone": 2, "moving": 3}


class QueueAdmin:
    """Answers headrace's requests about queues and exchanges."""

    def __init__(self, queues: QueueBroker) -> None:
        self._queues = queues
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- looking ----------------------------------------------------------------------------------------------------

    def describe_queues(self, request: Request[DescribeQueuesRequest]) -> Steps[DescribeQueuesResponse]:
        return (yield from answered(DescribeQueuesResponse, self._describe_queues(request)))

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
        return (yield from answered(DescribeExchangesResponse, self._describe_exchanges(request)))

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
        return (yield from answered(ReadQueueResponse, self._read_queue(request)))

    def _read_queue(self, request: Request[ReadQueueRequest]) -> Steps[ReadQueueResponse]:
        body = request.body
        queue = self._queue(request, body.queue, Operation.READ)
        lane = queue.lanes[lane_number(queue, body.lane)]
        log = lane.log
        end = log.high_watermark if body.end < 0 else min(body.end, log.high_watermark)
        offset = min(max(body.offset, log.start_offset), end)
        answer = ReadQueueResponse(start=log.start_offset, end=log.high_watermark)
        count_max, bytes_max = _within(body.count_max, MESSAGES_MAX), _within(body.bytes_max, READ_BYTES_MAX)
        size = 0
        while offset < end and not queue.is_deleted:
            for at, message in lane.scan(offset, end):
                shown = _shown(at, STATES[queue.state_of(body.lane, at)], message, body.body_bytes_max)
                size += len(shown.body) + len(shown.properties) + len(shown.routing_key)
                if answer.messages and (size > bytes_max or len(answer.messages) >= count_max):
                    answer.next_offset = at
                    return answer
                answer.messages.append(shown)
                offset = at + 1
                yield 2
        answer.next_offset = offset
        return answer

    def purge_queue(self, request: Request[PurgeQueueRequest]) -> PurgeQueueResponse:
        try:
            purged = self._queue(request, request.body.queue, Operation.WRITE).purge()
        except HeadraceError as error:
            return PurgeQueueResponse(error_code=reply_code(error), error_message=error.message)
        return PurgeQueueResponse(purged=purged)

    # ---- declaring and deleting -------------------------------------------------------------------------------------

    def create_queue(self, request: Request[CreateQueueRequest]) -> Steps[CreateQueueResponse]:
        return (yield from answered(CreateQueueResponse, self._create_queue(request)))

    def _create_queue(self, request: Request[CreateQueueRequest]) -> Steps[CreateQueueResponse]:
        body = request.body
        host = self._queues.virtual_host(body.virtual_host)
        request.access.check_queue(host, body.queue, Operation.CREATE)
        _check_name("queue", body.queue)
        yield from self._awaited(self._make_queue(host, body))
        return CreateQueueResponse()

    async def _make_queue(self, host: VirtualHost, body: CreateQueueRequest) -> None:
        arguments = _table(body.arguments)
        _check_arguments(arguments)
        await self._queues.registry.settled(host, body.queue)
        if body.queue in host.queues or body.queue in host.damaged:
            host.check_same_queue(
                host.queue(body.queue, None),
                is_durable=body.is_durable,
                is_auto_delete=body.is_auto_delete,
                arguments=arguments,
                compared=ARGUMENTS,
            )
            return
        await self._queues.registry.make_queue(
            host, body.queue, arguments, is_durable=body.is_durable, is_auto_delete=body.is_auto_delete, owner=None
        )

    def delete_queue(self, request: Request[DeleteQueueRequest]) -> Steps[DeleteQueueResponse]:
        return (yield from answered(DeleteQueueResponse, self._delete_queue(request)))

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
        return (yield from answered(CreateExchangeResponse, self._create_exchange(request)))

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
        return (yield from answered(DeleteExchangeResponse, self._delete_exchange(request)))

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
        return (yield from answered(AlterBindingsResponse, self._alter_bindings(request)))

    def _alter_bindings(self, request: Request[AlterBindingsRequest]) -> Steps[AlterBindingsResponse]:
        changes = request.body.changes
        if len(changes) > CHANGES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {CHANGES_MAX} bindings can be changed at a time")
        host = self._queues.virtual_host(request.body.virtual_host)
        for change in changes:
            request.access.check_exchange(host, change.source, Operation.READ)
            if change.source == "" or (change.is_to_exchange and change.destination == ""):
                raise KafkaError(ErrorCode.POLICY_VIOLATION, "the default exchange has the bindings that it has")
            source = host.exchange(change.source)
            binding = Binding(self._destination(request, host, change), change.routing_key, _table(change.arguments))
            if source.matcher.needs_headers and not change.is_removed:
                check_headers_binding(binding)
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


def _within(asked: int, most: int) -> int:
    return most if asked <= 0 else min(asked, most)


def _table(raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    try:
        return decode_table(raw, 0, len(raw))[0]
    except BadTable as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the arguments are no field table: {error}") from error


def _check_name(what: str, name: str) -> None:
    if not name or name.startswith("amq.") or len(raw_name(name)) > 255:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{what} name '{name}' is not allowed: names have 1 to 255 bytes, and those that begin with 'amq.' are "
            "the broker's",
        )


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse unknown arguments. Applications may send any, as to RabbitMQ; an administrator may have misspelt one."""
    for name in arguments:
        if name.startswith("x-") and name not in ARGUMENTS:
            near = get_close_matches(name, ARGUMENTS, 1)
            hint = f": did you mean '{near[0]}'?" if near else ""
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"queues have no argument '{name}'{hint}")


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
        return DescribedQueue(name=name, error=host.damaged[name].reason)
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
        lanes=[_described_lane(queue, number) for number in range(len(queue.lanes))],
        bindings=bindings,
        id=queue.group,
    )


def _described_lane(queue: Queue, number: int) -> DescribedLane:
    log = queue.lanes[number].log
    floor, cursor = queue.cursors(number)
    return DescribedLane(
        start=log.start_offset, floor=floor, cursor=cursor, end=log.high_watermark, bytes_on_disk=log.size_bytes
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
