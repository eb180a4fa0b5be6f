"""A virtual host: the exchanges and queues of one name space, and the way of a message through them.

Names and texts of errors are RabbitMQ's. What of it is durable is the ``Registry``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.broker.queues.damaged import DamagedQueue
from headrace.broker.queues.message import Message, carbon_copies
from headrace.broker.queues.policy import COUNT_MAX, REFUSED, QueueType
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.reply_to import Replies
from headrace.broker.queues.routing import EXCHANGE_TYPES, Binding, Exchange
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.tables import Timestamp, type_name

__all__ = ["COMPARED_ARGUMENTS", "OTHER_ARGUMENTS", "VirtualHost"]

LOG = logging.getLogger("headrace.queues")

ROUTES_MAX = 10_000
DEATHS_MAX = 1_000
"""Entries of an ``x-death`` header that are looked at."""

_PREDECLARED = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


_COMPARED: Final[Mapping[QueueType, tuple[str, ...]]] = {
    "classic": (
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-single-active-consumer",
        "x-queue-type",
    ),
    "quorum": (
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-quorum-initial-group-size",
        "x-message-ttl",
        "x-queue-leader-locator",
        "x-max-priority",
    ),
    "stream": (
        "x-max-length-bytes",
        "x-queue-type",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
    ),
}
"""What must be the same when a queue of a type is declared again, in the order in which RabbitMQ looks."""

COMPARED_ARGUMENTS: Final = tuple(dict.fromkeys(name for names in _COMPARED.values() for name in names))

OTHER_ARGUMENTS: Final = (
    "x-headrace-retention-ms",
    "x-headrace-retention-bytes",
    "x-delivery-limit",
    "x-consumer-timeout",
    "x-delayed-retry-type",
    "x-delayed-retry-min",
    "x-delayed-retry-max",
    "x-dead-letter-strategy",
)
"""What applications need not repeat, since an administrator may have chosen it. What they give must be the same."""


def _shown(value: Any) -> str:
    """A property in RabbitMQ's words."""
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _shown_with_type(value: Any) -> str:
    return "none" if value is None else f"the value {_shown(value)} of type '{type_name(value)}'"


class VirtualHost:
    """See the module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.exchanges = {each: Exchange(each, kind) for each, kind in _PREDECLARED}
        self.queues: dict[str, Queue] = {}
        self.damaged: dict[str, DamagedQueue] = {}
        """Queues whose logs cannot be read."""
        self.replies = Replies()
        self._routes: dict[tuple[bytes, bytes], tuple[Queue, ...]] = {}
        self._headers_matter: bool | None = None
        """Whether an exchange looks at headers; None: not known since the last change."""
        self._warned: set[str] = set()

    # ---- finding ----------------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        found = self.exchanges.get(name)
        if found is None:
            raise AmqpError(ReplyCode.NOT_FOUND, f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def served_queue(self, name: str) -> Queue:
        """A queue whose logs can be read."""
        if name in self.damaged:
            raise AmqpError(ReplyCode.RESOURCE_ERROR, f"queue '{name}' cannot be served: {self.damaged[name].reason}")
        found = self.queues.get(name)
        if found is None:
            raise AmqpError(ReplyCode.NOT_FOUND, f"no queue '{name}' in vhost '{self.name}'")
        return found

    def queue(self, name: str, connection: object) -> Queue:
        """A queue that this connection may use."""
        found = self.served_queue(name)
        if found.owner is not None and found.owner is not connection:
            raise self.locked(name)
        return found

    def locked(self, name: str) -> AmqpError:
        return AmqpError(
            ReplyCode.RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'. It could be originally "
            "declared on another connection or the exclusive property value does not match that of the original "
            "declaration.",
        )

    def warn_once(self, about: str, text: str) -> None:
        """Tell the operator something that would otherwise be said for every client."""
        if about not in self._warned:
            self._warned.add(about)
            LOG.warning("%s", text)

    # ---- exchanges --------------------------------------------------------------------------------------------------

    def declare_exchange(self, wanted: Exchange) -> bool:
        """True if it is new. One that exists must be the same."""
        existing = self.exchanges.get(wanted.name)
        if existing is None:
            self.exchanges[wanted.name] = wanted
            self._forget_routes()
            return True
        for field, name in (
            ("kind", "type"),
            ("is_durable", "durable"),
            ("is_auto_delete", "auto_delete"),
            ("is_internal", "internal"),
        ):
            self._check_same("exchange", wanted.name, name, getattr(existing, field), getattr(wanted, field))
        self._check_same_argument("exchange", wanted.name, "alternate-exchange", existing.arguments, wanted.arguments)
        return False

    def check_kind(self, kind: str) -> None:
        if kind not in EXCHANGE_TYPES:
            raise AmqpError(ReplyCode.COMMAND_INVALID, f"unknown exchange type '{kind}'")

    def _check_same(self, what: str, name: str, field: str, current: Any, received: Any) -> None:
        if current != received:
            raise self._unequal(what, name, field, _shown(received), _shown(current))

    def _check_same_argument(
        self, what: str, name: str, field: str, current: Mapping[str, Any], received: Mapping[str, Any]
    ) -> None:
        one, other = received.get(field), current.get(field)
        if one is not None and other is not None:
            self._check_same(what, name, field, other, one)
        elif one is not None or other is not None:
            raise self._unequal(what, name, field, _shown_with_type(one), _shown_with_type(other))

    def _unequal(self, what: str, name: str, field: str, received: str, current: str) -> AmqpError:
        return AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f"inequivalent arg '{field}' for {what} '{name}' in vhost '{self.name}': "
            f"received {received} but current is {current}",
        )

    def check_same_queue(
        self,
        queue: Queue,
        *,
        is_durable: bool,
        is_auto_delete: bool,
        arguments: Mapping[str, Any],
        compared: Sequence[str] | None = None,
    ) -> None:
        """Whether a queue may be declared like this, since it exists. Without ``compared`` what an application says of
        its type of queue must be the same, and of other arguments what it gives."""
        self._check_same("queue", queue.name, "durable", queue.is_durable, is_durable)
        self._check_same("queue", queue.name, "auto_delete", queue.is_auto_delete, is_auto_delete)
        current = queue.arguments
        if {current.get("x-queue-type", "classic"), arguments.get("x-queue-type", "classic")} == {"classic"}:
            current, arguments = _without_type(current), _without_type(arguments)
        if compared is None:
            kind = queue.policy.queue_type
            given = [name for name in OTHER_ARGUMENTS if name in arguments and name not in REFUSED[kind]]
            compared = (*_COMPARED[kind], *given)
        for name in compared:
            self._check_same_argument("queue", queue.name, name, current, arguments)

    def remove_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Take it away with all its bindings; the exchanges that go with it, since they were bound to nothing else."""
        self._forget_routes()
        gone: list[Exchange] = []
        waiting = [exchange]
        while waiting:
            each = waiting.pop()
            del self.exchanges[each.name]
            gone.append(each)
            for binding in each.bindings.values():
                if isinstance(binding.destination, Exchange):
                    binding.destination.sources.discard(each)
            for source in each.sources:
                for binding in source.bindings_to(each):
                    source.unbind(binding)
                if source.is_auto_delete and not source.bindings:
                    waiting.append(source)
        return gone

    # ---- bindings ---------------------------------------------------------------------------------------------------

    def bind(self, source: Exchange, binding: Binding) -> bool:
        """False if it existed."""
        is_new = source.bind(binding)
        if isinstance(binding.destination, Exchange):
            binding.destination.sources.add(source)
        self._forget_routes()
        return is_new

    def unbind(self, source: Exchange, binding: Binding) -> tuple[bool, list[Exchange]]:
        """Whether it existed, and the exchanges that went with it."""
        if not source.unbind(binding):
            return False, []
        destination = binding.destination
        if isinstance(destination, Exchange) and not source.bindings_to(destination):
            destination.sources.discard(source)
        self._forget_routes()
        return True, self._after_unbind(source)

    def _after_unbind(self, source: Exchange) -> list[Exchange]:
        if source.is_auto_delete and not source.bindings and self.exchanges.get(source.name) is source:
            return self.remove_exchange(source)
        return []

    # ---- queues -----------------------------------------------------------------------------------------------------

    def add_queue(self, queue: Queue) -> None:
        """The default exchange knows every queue by its name."""
        self.queues[queue.name] = queue
        self.exchanges[""].bind(Binding(queue, queue.name))
        self._forget_routes()

    def add_damaged(self, queue: DamagedQueue) -> None:
        self.damaged[queue.name] = queue
        self.exchanges[""].bind(Binding(queue, queue.name))

    def destination(self, name: str) -> Queue | None:
        """Where messages for a queue of this name go, also if it cannot be served."""
        return self.queues.get(name) or self.damaged.get(name)

    def remove_queue(self, queue: Queue) -> list[Exchange]:
        """Take it away with its bindings; the exchanges that go with it."""
        del self.queues[queue.name]
        self._forget_routes()
        gone: list[Exchange] = []
        for exchange in list(self.exchanges.values()):
            bindings = exchange.bindings_to(queue)
            for binding in bindings:
                exchange.unbind(binding)
            if bindings:
                gone += self._after_unbind(exchange)
        return gone

    # ---- routing ----------------------------------------------------------------------------------------------------

    def route(self, message: Message) -> tuple[Queue, ...]:
        """The queues that a message goes to, each once."""
        if message.may_have_copies or (self._needs_headers and message.summary.has_headers):
            headers = message.headers
            others = carbon_copies(headers)
            if others or self._needs_headers:
                return self._route(message.exchange, [message.routing_key, *others], headers)
        place = (message.exchange, message.routing_key)
        known = self._routes.get(place)
        if known is None:
            known = self._route(message.exchange, [message.routing_key], {})
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            if not self._needs_headers:
                self._routes[place] = known
        return known

    def _forget_routes(self) -> None:
        """Exchanges or bindings have changed."""
        self._routes.clear()
        self._headers_matter = None

    @property
    def _needs_headers(self) -> bool:
        if self._headers_matter is None:
            self._headers_matter = any(each.matcher.needs_headers and each.bindings for each in self.exchanges.values())
        return self._headers_matter

    def _route(self, exchange: bytes, keys: list[bytes], headers: Mapping[str, Any]) -> tuple[Queue, ...]:
        queues: dict[Queue, None] = {}
        waiting = [self.exchange(exchange.decode("utf-8", "surrogateescape"))]
        seen = {waiting[0].name}
        texts = [key.decode("utf-8", "surrogateescape") for key in keys]
        while waiting:
            current = waiting.pop()
            found: dict[Any, None] = {}
            for key in texts:
                found.update(dict.fromkeys(current.matcher.matching(key, headers)))
            following = [each for each in found if isinstance(each, Exchange)]
            queues.update({each: None for each in found if isinstance(each, Queue)})
            if not found and current.alternate is not None and current.alternate in self.exchanges:
                following = [self.exchanges[current.alternate]]
            for each in following:
                if each.name not in seen:
                    seen.add(each.name)
                    waiting.append(each)
        return tuple(queues)

    # ---- dead letters -----------------------------------------------------------------------------------------------

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        """Send a message that a queue does not deliver to the queue's dead-letter exchange, with its history."""
        name = queue.policy.dead_letter_exchange
        if name is None or name not in self.exchanges:
            return
        key = queue.policy.dead_letter_routing_key
        headers = message.headers
        copies = carbon_copies(headers)
        if key is not None:  # which takes the place of all the routing keys that the message had
            headers.pop("CC", None)
        known = headers.get("x-death")
        deaths = [each for each in known[:DEATHS_MAX] if isinstance(each, dict)] if isinstance(known, list) else []
        headers = _with_death(headers, deaths, queue, message, reason, copies)
        letter = message.with_properties(headers=headers, expiration=None)._replace(
            exchange=name.encode("utf-8", "surrogateescape"),
            routing_key=message.routing_key if key is None else key.encode("utf-8", "surrogateescape"),
            enqueued_ms=queue.now_ms(),
        )
        for target in self.route(letter):
            if reason != "rejected" and _went_round(target.name, headers["x-death"]):
                continue
            if not target.rejects(letter):
                target.publish(letter)
                queue.leaves_to(target)


def _went_round(queue: str, deaths: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message comes to a queue for the second time by itself: nobody has rejected it since it was there."""
    for each in deaths:
        if each.get("reason") == "rejected":
            return False
        if each.get("queue") == queue:
            return True
    return False


def _without_type(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "x-queue-type"}


def _with_death(
    headers: dict[str, Any],
    deaths: list[dict[str, Any]],
    queue: Queue,
    message: Message,
    reason: str,
    copies: list[bytes],
) -> dict[str, Any]:
    """RabbitMQ's history: one entry per queue and reason, the latest first, with how often it happened."""
    same = [each for each in deaths if each.get("queue") == queue.name and each.get("reason") == reason]
    others = [each for each in deaths if not (each.get("queue") == queue.name and each.get("reason") == reason)]
    exchange = message.exchange.decode("utf-8", "surrogateescape")
    if same:
        count = same[0].get("count")
        death = {**same[0], "count": min(count if isinstance(count, int) else 1, COUNT_MAX - 1) + 1}
    else:
        death = {
            "count": 1,
            "reason": reason,
            "queue": queue.name,
            "time": Timestamp(queue.now_ms() // 1000),
            "exchange": exchange,
            "routing-keys": [each.decode("utf-8", "surrogateescape") for each in (message.routing_key, *copies)],
        }
        expiration = message.summary.expiration
        if expiration is not None:  # the dead letter has none, whatever it died of
            death["original-expiration"] = expiration
    first = {
        "x-first-death-reason": reason,
        "x-first-death-queue": queue.name,
        "x-first-death-exchange": exchange,
    }
    last = {"x-last-death-reason": reason, "x-last-death-queue": queue.name, "x-last-death-exchange": exchange}
    return {**first, **headers, **last, "x-death": [death, *others]}
