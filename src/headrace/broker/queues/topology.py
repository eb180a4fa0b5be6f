"""Exchanges, queues and bindings as one channel declares and removes them: the methods ``exchange.*`` and ``queue.*``.

Each gives the arguments of its answer. Errors are ``AmqpError`` with RabbitMQ's codes and words. What newer versions of
RabbitMQ refuse is done, and the operator's log says so once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.queues.policy import QueuePolicy
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.registry import Registry
from headrace.broker.queues.reply_to import REPLY_TO
from headrace.broker.queues.routing import Binding, Exchange, check_headers_binding
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.tables import type_name

__all__ = ["Topology"]

LOG = logging.getLogger("headrace.queues")

RESERVED = "amq."
ALTERNATE = "alternate-exchange"

Answer = dict[str, Any]


class Topology:
    """Of one channel, which may leave out the name of the queue that it has declared last."""

    def __init__(self, host: VirtualHost, registry: Registry, client: object) -> None:
        self._host = host
        self._registry = registry
        self._client = client
        self._last_queue = ""
        self.handlers: dict[str, Callable[[dict[str, Any]], Awaitable[Answer]]] = {
            "exchange.declare": self._declare_exchange,
            "exchange.delete": self._delete_exchange,
            "exchange.bind": self._bind_exchange,
            "exchange.unbind": self._unbind_exchange,
            "queue.declare": self._declare_queue,
            "queue.bind": self._bind_queue,
            "queue.unbind": self._unbind_queue,
            "queue.purge": self._purge_queue,
            "queue.delete": self._delete_queue,
        }

    def named(self, name: str) -> str:
        """An empty name means the queue that this channel has declared last."""
        if name:
            return name
        if not self._last_queue:
            raise AmqpError(ReplyCode.NOT_FOUND, "no previously declared queue")
        return self._last_queue

    # ---- exchanges --------------------------------------------------------------------------------------------------

    async def _declare_exchange(self, asked: dict[str, Any]) -> Answer:
        name, arguments = asked["exchange"], asked["arguments"]
        if asked["passive"]:
            self._host.exchange(name)
            return {}
        if name == "":
            raise _default_exchange()
        if name.startswith(RESERVED) and name not in self._host.exchanges:
            raise AmqpError(ReplyCode.ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix '{RESERVED}*'")
        self._host.check_kind(asked["type"])
        alternate = arguments.get(ALTERNATE, "")
        if not isinstance(alternate, str):
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"invalid type '{type_name(alternate)}' for arg '{ALTERNATE}' in {self._exchange_text(name)}",
            )
        exchange = Exchange(
            name,
            asked["type"],
            is_durable=asked["durable"],
            is_auto_delete=asked["auto_delete"],
            is_internal=asked["internal"],
            arguments=arguments,
        )
        await self._registry.declare_exchange(self._host, exchange)
        return {}

    async def _delete_exchange(self, asked: dict[str, Any]) -> Answer:
        name = asked["exchange"]
        if name == "":
            raise _default_exchange()
        if name.startswith(RESERVED):
            raise AmqpError(ReplyCode.ACCESS_REFUSED, f"deletion of system {self._exchange_text(name)} not allowed")
        exchange = self._host.exchanges.get(name)
        if exchange is None:
            await self._registry.rows.change()
            return {}
        if asked["if_unused"] and exchange.bindings:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"{self._exchange_text(name)} in use")
        await self._registry.remove_exchange(self._host, exchange)
        return {}

    async def _bind_exchange(self, asked: dict[str, Any]) -> Answer:
        source = self._bindable(asked["source"])
        binding = Binding(self._bindable(asked["destination"]), asked["routing_key"], asked["arguments"])
        self._check_binding(source, binding)
        await self._registry.bind(self._host, source, binding)
        return {}

    async def _unbind_exchange(self, asked: dict[str, Any]) -> Answer:
        source = self._unbindable(asked["source"])
        destination = self._unbindable(asked["destination"])
        if source is not None and destination is not None:
            binding = Binding(destination, asked["routing_key"], asked["arguments"])
            await self._registry.unbind(self._host, source, binding)
        return {}

    def _check_binding(self, source: Exchange, binding: Binding) -> None:
        if source.matcher.needs_headers:
            check_headers_binding(binding)

    def _bindable(self, name: str) -> Exchange:
        if name == "":
            raise _default_exchange()
        return self._host.exchange(name)

    def _unbindable(self, name: str) -> Exchange | None:
        if name == "":
            raise _default_exchange()
        return self._host.exchanges.get(name)

    def _exchange_text(self, name: str) -> str:
        return f"exchange '{name}' in vhost '{self._host.name}'"

    # ---- queues -----------------------------------------------------------------------------------------------------

    async def _declare_queue(self, asked: dict[str, Any]) -> Answer:
        name = asked["queue"]
        if name.startswith(REPLY_TO):
            return {"queue": name, **self._host.replies.counts(name, self._host.name)}
        await self._registry.settled(self._host, name)
        if asked["passive"]:
            queue = self._host.queue(name, self._client)
        elif name.startswith(RESERVED):
            raise AmqpError(ReplyCode.ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix '{RESERVED}*'")
        elif name and (name in self._host.queues or name in self._host.damaged):
            queue = self._declared_again(name, asked)
        else:
            queue = await self._new_queue(name, asked)
        queue.used()
        self._last_queue = queue.name
        return {"queue": queue.name, "message_count": queue.ready, "consumer_count": len(queue.consumers)}

    async def _new_queue(self, name: str, asked: dict[str, Any]) -> Queue:
        policy = QueuePolicy.of(asked["arguments"], self._queue_text(name))
        if policy.queue_type != "classic":
            self._check_replicated(name, policy, asked)
        elif not asked["durable"] and not asked["exclusive"]:
            self._host.warn_once(
                "transient-queue",
                f"{self._queue_text(name)} is neither durable nor exclusive: it is served, and RabbitMQ 4.3 and newer "
                "refuse it; declare it durable, or exclusive",
            )
        return await self._registry.make_queue(
            self._host,
            name or f"amq.gen-{os.urandom(16).hex()}",
            asked["arguments"],
            is_durable=_is_durable(asked),
            is_auto_delete=asked["auto_delete"],
            owner=self._client if asked["exclusive"] else None,
        )

    def _check_replicated(self, name: str, policy: QueuePolicy, asked: dict[str, Any]) -> None:
        """Quorum queues and streams are durable, shared and have names."""
        if not name:
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"Cannot declare a server-named queue for type rabbit_{policy.queue_type}_queue",
            )
        for wrong, text in (
            (asked["auto_delete"], "auto-delete"),
            (asked["exclusive"], "exclusive-owner"),
            (not asked["durable"], "non-durable"),
        ):
            if wrong:
                raise AmqpError(
                    ReplyCode.PRECONDITION_FAILED, f"invalid property '{text}' for {self._queue_text(name)}"
                )

    def _declared_again(self, name: str, asked: dict[str, Any]) -> Queue:
        queue = self._host.queue(name, self._client)
        if asked["exclusive"] is (queue.owner is None):
            raise self._host.locked(name)
        self._host.check_same_queue(
            queue, is_durable=_is_durable(asked), is_auto_delete=asked["auto_delete"], arguments=asked["arguments"]
        )
        return queue

    async def _bind_queue(self, asked: dict[str, Any]) -> Answer:
        name, key = self.named(asked["queue"]), asked["routing_key"]
        if not asked["queue"] and not key:
            key = name
        source = self._bindable(asked["exchange"])  # where both are missing, RabbitMQ names the exchange
        binding = Binding(self._host.served_queue(name), key, asked["arguments"])
        self._check_binding(source, binding)
        self._host.queue(name, self._client)  # whose it is, RabbitMQ asks last
        await self._registry.bind(self._host, source, binding)
        return {}

    async def _unbind_queue(self, asked: dict[str, Any]) -> Answer:
        queue = self._host.queues.get(self.named(asked["queue"]))
        source = self._unbindable(asked["exchange"])
        if queue is not None and source is not None:
            await self._registry.unbind(self._host, source, Binding(queue, asked["routing_key"], asked["arguments"]))
        return {}

    async def _purge_queue(self, asked: dict[str, Any]) -> Answer:
        queue = self._host.queue(self.named(asked["queue"]), self._client)
        return {"message_count": queue.purge()}

    async def _delete_queue(self, asked: dict[str, Any]) -> Answer:
        name = self.named(asked["queue"])
        if name not in self._host.queues and name not in self._host.damaged:
            await self._registry.rows.change()
            return {"message_count": 0}
        queue = self._host.queue(name, self._client)
        if queue.policy.queue_type == "quorum":
            self._check_unconditional(name, asked)
        if asked["if_unused"] and queue.consumers:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"{self._queue_text(name)} in use")
        if asked["if_empty"] and queue.ready:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"{self._queue_text(name)} not empty")
        return {"message_count": await self._registry.remove_queue(self._host, queue)}

    def _check_unconditional(self, name: str, asked: dict[str, Any]) -> None:
        """RabbitMQ cannot know of a replicated queue whether it is in use, or empty, at the moment of its end."""
        for flag in ("if_unused", "if_empty"):
            if asked[flag]:
                raise AmqpError(
                    ReplyCode.NOT_IMPLEMENTED,
                    f"cannot delete {self._queue_text(name)}. queue.delete operations with {flag.replace('_', '-')} "
                    "flag set are not supported by quorum queues",
                )

    def _queue_text(self, name: str) -> str:
        return f"queue '{name}' in vhost '{self._host.name}'"


def _is_durable(asked: dict[str, Any]) -> bool:
    """A queue that ends with its connection does not survive a restart, whatever is asked."""
    return bool(asked["durable"]) and not asked["exclusive"]


def _default_exchange() -> AmqpError:
    return AmqpError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
