"""Messages that an administrator moves to another queue, and brings back after they were gone.

Messages go from one queue to another in this order, so that a kill loses none:

1. They are held: nobody gets them, and they keep their places.
2. The journal of their queue notes that they may be elsewhere from now on.
3. They are appended to the queues they go to, and flushed there.
4. The journal notes that they are gone.

A kill before 3 leaves them where they were. A kill between 3 and 4 leaves them in both queues, and both say so: the old
one delivers them with ``redelivered``, the new one has them with the header ``x-headrace-moved-from``. If they are then
moved once more, the second copy has the header ``x-headrace-moved-again``.

Both are generators, run in slices (``headrace.broker.slices``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.broker.access import Operation
from headrace.broker.queues.admin_requests import answered, lane_number, raw_name
from headrace.broker.queues.message import Message
from headrace.broker.queues.queue import Place, Queue
from headrace.broker.queues.queue_broker import QueueBroker
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.broker.replies import PendingReply
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.amqp.methods import is_short
from headrace.wire.kafka.messages.queues import (
    LanePlaces,
    MoveMessagesRequest,
    MoveMessagesResponse,
    RestoreMessagesRequest,
    RestoreMessagesResponse,
)

__all__ = ["Moves"]

MESSAGES_MAX = 1_000
"""Messages that one request may name."""
MOVE_BYTES_MAX = 4 << 20
"""Messages up to this size are moved together: with one append per queue, and one flush."""
FAR = 2_000
"""A place at most this many offsets ahead is reached by reading on; one further away is looked up."""

TO_EXCHANGE, TO_ORIGIN, NOWHERE = range(3)
MOVED_FROM = "x-headrace-moved-from"
MOVED_AGAIN = "x-headrace-moved-again"


class _Flush(PendingReply[None]):
    """Ready when everything that was published with it is flushed, and ``one_done`` was called once more."""

    __slots__ = ()

    def add_waits(self, count: int) -> None:
        self.waits += count


class Moves:
    """Answers requests to move and to restore messages."""

    def __init__(self, queues: QueueBroker) -> None:
        self._queues = queues

    def move_messages(self, request: Request[MoveMessagesRequest]) -> Steps[MoveMessagesResponse]:
        return (yield from answered(MoveMessagesResponse, self._move(request)))

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
        if not is_short(body.routing_key or ""):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a routing key has at most 255 bytes")
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
            key = message.routing_key if body.routing_key is None else raw_name(body.routing_key)
            copy = copy._replace(exchange=raw_name(body.exchange), routing_key=key)
            targets = [each for each in host.route(copy) if each is not queue]
            return [(each, copy) for each in targets] or None
        target = host.queues.get(name)
        if target is None or target is queue:
            return None
        if body.way == TO_ORIGIN and not request.access.may_queue(host, name, Operation.WRITE):
            return None
        return [(target, copy)]

    def restore_messages(self, request: Request[RestoreMessagesRequest]) -> Steps[RestoreMessagesResponse]:
        return (yield from answered(RestoreMessagesResponse, self._restore(request)))

    def _restore(self, request: Request[RestoreMessagesRequest]) -> Steps[RestoreMessagesResponse]:
        body = request.body
        queue = self._queue(request, body.queue, Operation.WRITE)
        _check_places(body.places)
        answer = RestoreMessagesResponse()
        for places in body.places:
            number = lane_number(queue, places.lane)
            for each in places.ranges:
                if queue.is_deleted:
                    return answer
                answer.restored += queue.restore(number, each.first, each.end)
                yield 1 + (each.end - each.first) // 5
        return answer

    def _queue(self, request: Request[Any], name: str, operation: Operation) -> Queue:
        host = self._queues.virtual_host(request.body.virtual_host)
        return request.access.queue(host, name, operation)


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
        number = lane_number(queue, lane.lane)
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
    """The queue that a dead letter came from, and the message with the exchange and routing key it had there. Clients
    can write anything into the header."""
    deaths = message.headers.get("x-death")
    death = deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}
    keys = death.get("routing-keys")
    exchange = death.get("exchange")
    key = keys[0] if isinstance(keys, list) and keys else None
    if isinstance(exchange, str) and isinstance(key, str) and is_short(exchange) and is_short(key):
        copy = copy._replace(exchange=raw_name(exchange), routing_key=raw_name(key))
    return str(death.get("queue", "")), copy
