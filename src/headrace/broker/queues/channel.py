"""A channel: what one client publishes, consumes and acknowledges.

``handle`` takes every method but the two that come with every message, which have their own: ``publish`` and ``ack``.
Errors are ``AmqpError``; the session closes the channel, or the connection, with them.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headrace.broker.queues.confirms import Confirms, Flushed
from headrace.broker.queues.message import Message
from headrace.broker.queues.queue import Delivery, Published, Queue
from headrace.broker.queues.registry import Registry
from headrace.broker.queues.routing import Binding, Exchange
from headrace.broker.queues.turn import Output, Turn
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.log.errors import LogError
from headrace.wire.amqp.connection import AckReceived, AmqpConnection, PublishReceived
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.methods import IDS, encode_method, short_string

__all__ = ["Channel", "Client"]

RESERVED = "amq."
TTL_DIGITS_MAX = 15


Step = Callable[[Published | None], object]
"""Something to do at the commit of a transaction; messages of it report to what it is given."""


class Client(Output, Protocol):
    """The connection that a channel belongs to."""

    virtual_host: VirtualHost
    user: str
    wire: AmqpConnection

    @property
    def is_writable(self) -> bool:
        """False while the peer does not read what it was sent."""


class ChannelConsumer:
    """``basic.consume``: takes messages of one queue."""

    def __init__(self, channel: Channel, queue: Queue, tag: str, *, no_ack: bool, priority: int, prefetch: int) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.priority = priority
        self.unacknowledged = 0
        self._channel = channel
        self._prefetch = prefetch
        self._method = b"\x00\x3c\x00\x3c" + short_string(tag)

    def has_credit(self) -> bool:
        if self.no_ack:
            return self._channel.is_writable
        return (
            (not self._prefetch or self.unacknowledged < self._prefetch)
            and self._channel.has_credit
            and self._channel.is_writable
        )

    def deliver(self, delivery: Delivery, message: Message, *, is_redelivered: bool) -> None:
        self._channel.deliver(self, self._method, delivery, message, is_redelivered)

    def cancelled(self) -> None:
        self._channel.queue_deleted(self)


class Channel:
    """See the module."""

    def __init__(self, number: int, client: Client, registry: Registry, turn: Turn) -> None:
        self.number = number
        self._client = client
        self._wire = client.wire
        self._host = client.virtual_host
        self._registry = registry
        self._turn = turn
        self._consumers: dict[str, ChannelConsumer] = {}
        self._deliveries: dict[int, tuple[Delivery, ChannelConsumer | None]] = {}
        self._last_tag = 0
        self._prefetch = 0
        self._prefetch_together = 0
        self._last_queue = ""
        self._confirms: Confirms | None = None
        self._transaction: list[Step] | None = None
        self._handlers: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {
            "channel.flow": self._flow,
            "exchange.declare": self._declare_exchange,
            "exchange.delete": self._delete_exchange,
            "exchange.bind": self._bind_exchange,
            "exchange.unbind": self._unbind_exchange,
            "queue.declare": self._declare_queue,
            "queue.bind": self._bind_queue,
            "queue.unbind": self._unbind_queue,
            "queue.purge": self._purge_queue,
            "queue.delete": self._delete_queue,
            "basic.qos": self._qos,
            "basic.consume": self._consume,
            "basic.cancel": self._cancel,
            "basic.get": self._get,
            "basic.reject": self._reject,
            "basic.nack": self._nack,
            "basic.recover": self._recover,
            "basic.recover-async": self._recover,
            "confirm.select": self._select_confirms,
            "tx.select": self._select_transactions,
            "tx.commit": self._commit,
            "tx.rollback": self._rollback,
        }

    async def handle(self, name: str, arguments: dict[str, Any]) -> None:
        handler = self._handlers.get(name)
        if handler is None:
            raise AmqpError(ReplyCode.COMMAND_INVALID, f"{name} is not a request of a client", IDS[name])
        try:
            await handler(arguments)
        except AmqpError as error:
            error.method = IDS[name]
            raise
        except LogError as error:
            raise AmqpError(ReplyCode.RESOURCE_ERROR, str(error), IDS[name]) from error

    def close(self) -> None:
        """The channel ends: its consumers go, and what they have not acknowledged comes back."""
        for consumer in list(self._consumers.values()):
            self._remove_consumer(consumer)
        for delivery, _ in self._deliveries.values():
            delivery.queue.give_back(delivery)
        self._deliveries.clear()

    # ---- what consumers ask -----------------------------------------------------------------------------------------

    @property
    def has_credit(self) -> bool:
        return not self._prefetch_together or len(self._deliveries) < self._prefetch_together

    @property
    def is_writable(self) -> bool:
        return self._client.is_writable

    def wake(self) -> None:
        """The peer reads again."""
        for consumer in self._consumers.values():
            consumer.queue.wake()

    def deliver(
        self, consumer: ChannelConsumer, method: bytes, delivery: Delivery, message: Message, is_redelivered: bool
    ) -> None:
        self._last_tag += 1
        if not consumer.no_ack:
            self._deliveries[self._last_tag] = (delivery, consumer)
            consumer.unacknowledged += 1
        head = b"%b%b%c%c%b%c%b" % (
            method,
            self._last_tag.to_bytes(8, "big"),
            is_redelivered,
            len(message.exchange),
            message.exchange,
            len(message.routing_key),
            message.routing_key,
        )
        self._wire.send_content(self.number, head, message.properties, message.body)
        self._turn.send(self._client)

    def queue_deleted(self, consumer: ChannelConsumer) -> None:
        """Consumers learn that they get nothing more."""
        self._consumers.pop(consumer.tag, None)
        self._send("basic.cancel", {"consumer_tag": consumer.tag, "no_wait": True})

    def _send(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        self._wire.send(self.number, name, arguments)
        self._turn.send(self._client)

    def _answer(self, asked: dict[str, Any], name: str, arguments: dict[str, Any] | None = None) -> None:
        if not asked.get("no_wait"):
            self._send(name, arguments)

    # ---- publishing -------------------------------------------------------------------------------------------------

    def publish(self, event: PublishReceived) -> None:
        if event.is_immediate:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "immediate=true", IDS["basic.publish"])
        message = Message(event.exchange, event.routing_key, event.properties, event.body, self._turn.now_ms())
        try:
            self._check_published(message)
            if self._transaction is not None:
                self._host.exchange(event.exchange.decode("utf-8", "surrogateescape"))
                self._transaction.append(lambda flushed: self._route(message, event.is_mandatory, flushed))
            elif self._confirms is None:
                self._route(message, event.is_mandatory, None)
            else:
                self._publish_confirmed(self._confirms, message, event.is_mandatory)
        except AmqpError as error:
            error.method = IDS["basic.publish"]
            raise

    def _check_published(self, message: Message) -> None:
        summary = message.summary
        if summary.user_id is not None and summary.user_id != self._client.user:
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"user_id property set to '{summary.user_id}' but authenticated user was '{self._client.user}'",
            )
        expiration = summary.expiration
        if expiration is not None and not (expiration.isdecimal() and len(expiration) <= TTL_DIGITS_MAX):
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"invalid expiration '{expiration}': not a number")
        exchange = self._host.exchanges.get(message.exchange.decode("utf-8", "surrogateescape"))
        if exchange is not None and exchange.is_internal:
            raise AmqpError(
                ReplyCode.ACCESS_REFUSED,
                f"cannot publish to internal exchange '{exchange.name}' in vhost '{self._host.name}'",
            )

    def _publish_confirmed(self, confirms: Confirms, message: Message, is_mandatory: bool) -> None:
        group = confirms.published()
        if self._route(message, is_mandatory, group):
            confirms.refuse(group)
        self._turn.send(self._client)

    def _route(self, message: Message, is_mandatory: bool, published: Published | None) -> bool:
        """Give a message to its queues; True if one of them has refused it."""
        queues = self._host.route(message)
        if not queues and is_mandatory:
            self._return(message)
        if message.summary.has_headers and "BCC" in message.headers:
            headers = {name: value for name, value in message.headers.items() if name != "BCC"}
            message = message.with_properties(headers=headers)
        is_refused = False
        for queue in queues:
            if queue.rejects(message):
                is_refused = True
            else:
                queue.publish(message, published)
        return is_refused

    def end_turn(self) -> None:
        """Everything that one read has brought was handled."""
        if self._confirms is not None:
            self._confirms.end_turn()

    def _return(self, message: Message) -> None:
        method = encode_method(
            "basic.return",
            {
                "reply_code": int(ReplyCode.NO_ROUTE),
                "reply_text": "NO_ROUTE",
                "exchange": message.exchange.decode("utf-8", "surrogateescape"),
                "routing_key": message.routing_key.decode("utf-8", "surrogateescape"),
            },
        )
        self._wire.send_content(self.number, method, message.properties, message.body)
        self._turn.send(self._client)

    async def _select_confirms(self, asked: dict[str, Any]) -> None:
        if self._transaction is not None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        if self._confirms is None:
            self._confirms = Confirms(self._send_confirm)
        self._answer(asked, "confirm.select-ok")

    def _send_confirm(self, number: int, is_multiple: bool, is_ack: bool) -> None:
        if is_ack:
            self._wire.send_ack(self.number, number, is_multiple=is_multiple)
        else:
            self._wire.send(self.number, "basic.nack", {"delivery_tag": number, "multiple": is_multiple})
        self._turn.send(self._client)

    # ---- transactions -----------------------------------------------------------------------------------------------

    async def _select_transactions(self, asked: dict[str, Any]) -> None:
        if self._confirms is not None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        if self._transaction is None:
            self._transaction = []
        self._send("tx.select-ok")

    async def _commit(self, asked: dict[str, Any]) -> None:
        """Do what was collected, and answer when the messages of it are flushed."""
        steps, self._transaction = self._collected(), []
        flushed = Flushed()
        for step in steps:
            step(flushed)
        await flushed.wait()
        self._send("tx.commit-ok")

    async def _rollback(self, asked: dict[str, Any]) -> None:
        self._collected()
        self._transaction = []
        self._send("tx.rollback-ok")

    def _collected(self) -> list[Step]:
        if self._transaction is None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
        return self._transaction

    # ---- consuming --------------------------------------------------------------------------------------------------

    async def _qos(self, asked: dict[str, Any]) -> None:
        if asked["prefetch_size"]:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({asked['prefetch_size']})")
        if asked["global"]:
            self._prefetch_together = asked["prefetch_count"]
        else:
            self._prefetch = asked["prefetch_count"]
        self._send("basic.qos-ok")
        self.wake()

    async def _consume(self, asked: dict[str, Any]) -> None:
        queue = self._host.queue(self._named(asked["queue"]), self._client)
        tag = asked["consumer_tag"] or f"amq.ctag-{os.urandom(12).hex()}"
        if tag in self._consumers:
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if queue.exclusive_consumer is not None or (asked["exclusive"] and queue.consumers):
            raise AmqpError(
                ReplyCode.ACCESS_REFUSED,
                f"queue '{queue.name}' in vhost '{self._host.name}' in exclusive use",
            )
        priority = asked["arguments"].get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"invalid arg 'x-priority': {priority!r}")
        consumer = ChannelConsumer(self, queue, tag, no_ack=asked["no_ack"], priority=priority, prefetch=self._prefetch)
        self._consumers[tag] = consumer
        self._answer(asked, "basic.consume-ok", {"consumer_tag": tag})
        queue.add_consumer(consumer, is_exclusive=asked["exclusive"])

    async def _cancel(self, asked: dict[str, Any]) -> None:
        consumer = self._consumers.get(asked["consumer_tag"])
        if consumer is not None:
            self._remove_consumer(consumer)
        self._answer(asked, "basic.cancel-ok", {"consumer_tag": asked["consumer_tag"]})

    def _remove_consumer(self, consumer: ChannelConsumer) -> None:
        del self._consumers[consumer.tag]
        queue = consumer.queue
        if queue.is_deleted:
            return
        queue.remove_consumer(consumer)
        if queue.is_auto_delete and not queue.consumers:
            self._registry.remove_queue_soon(self._host, queue)

    async def _get(self, asked: dict[str, Any]) -> None:
        queue = self._host.queue(self._named(asked["queue"]), self._client)
        found = queue.get(no_ack=asked["no_ack"])
        if found is None:
            self._send("basic.get-empty")
            return
        delivery, message, is_redelivered = found
        self._last_tag += 1
        if not asked["no_ack"]:
            self._deliveries[self._last_tag] = (delivery, None)
        method = encode_method(
            "basic.get-ok",
            {
                "delivery_tag": self._last_tag,
                "redelivered": is_redelivered,
                "exchange": message.exchange.decode("utf-8", "surrogateescape"),
                "routing_key": message.routing_key.decode("utf-8", "surrogateescape"),
                "message_count": queue.ready,
            },
        )
        self._wire.send_content(self.number, method, message.properties, message.body)
        self._turn.send(self._client)

    # ---- settling ---------------------------------------------------------------------------------------------------

    def ack(self, event: AckReceived) -> None:
        taken = self._take(event.delivery_tag, event.is_multiple, "basic.ack")
        self._settle(taken, lambda delivery: delivery.queue.acknowledge(delivery))

    async def _nack(self, asked: dict[str, Any]) -> None:
        taken = self._take(asked["delivery_tag"], asked["multiple"], "basic.nack")
        self._settle(taken, _give_back if asked["requeue"] else _reject)

    async def _reject(self, asked: dict[str, Any]) -> None:
        taken = self._take(asked["delivery_tag"], False, "basic.reject")
        self._settle(taken, _give_back if asked["requeue"] else _reject)

    def _take(self, tag: int, is_multiple: bool, method: str) -> list[Delivery]:
        """The deliveries that a tag means; they no longer count against any limit."""
        if is_multiple:
            tags = list(self._deliveries) if tag == 0 else [each for each in self._deliveries if each <= tag]
        else:
            tags = [tag]
        if (not tags and tag != 0) or (tag not in self._deliveries and not is_multiple):
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}", IDS[method])
        taken = []
        for each in tags:
            delivery, consumer = self._deliveries.pop(each)
            if consumer is not None:
                consumer.unacknowledged -= 1
            taken.append(delivery)
        return taken

    def _settle(self, deliveries: list[Delivery], settle: Callable[[Delivery], None]) -> None:
        def all_of_them(_: Published | None) -> None:
            for delivery in deliveries:
                settle(delivery)

        if self._transaction is None:
            all_of_them(None)
        else:
            self._transaction.append(all_of_them)
        if self._prefetch_together:
            self.wake()

    async def _recover(self, asked: dict[str, Any]) -> None:
        if not asked["requeue"]:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
        for delivery in self._take(0, True, "basic.recover"):
            delivery.queue.give_back(delivery)
        self._send("basic.recover-ok")

    async def _flow(self, asked: dict[str, Any]) -> None:
        if not asked["active"]:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "active=false")
        self._send("channel.flow-ok", {"active": True})

    # ---- exchanges --------------------------------------------------------------------------------------------------

    async def _declare_exchange(self, asked: dict[str, Any]) -> None:
        name = asked["exchange"]
        if asked["passive"]:
            self._host.exchange(name)
        else:
            if name == "":
                raise AmqpError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
            if name.startswith(RESERVED) and name not in self._host.exchanges:
                raise AmqpError(
                    ReplyCode.ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix '{RESERVED}*'"
                )
            self._host.check_kind(asked["type"])
            exchange = Exchange(
                name,
                asked["type"],
                is_durable=asked["durable"],
                is_auto_delete=asked["auto_delete"],
                is_internal=asked["internal"],
                arguments=asked["arguments"],
            )
            await self._registry.declare_exchange(self._host, exchange)
        self._answer(asked, "exchange.declare-ok")

    async def _delete_exchange(self, asked: dict[str, Any]) -> None:
        name = asked["exchange"]
        if name == "":
            raise AmqpError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
        if name.startswith(RESERVED):
            raise AmqpError(
                ReplyCode.ACCESS_REFUSED,
                f"deletion of system exchange '{name}' in vhost '{self._host.name}' not allowed",
            )
        exchange = self._host.exchanges.get(name)
        if exchange is not None:
            if asked["if_unused"] and exchange.bindings:
                raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"exchange '{name}' in vhost '{self._host.name}' in use")
            await self._registry.remove_exchange(self._host, exchange)
        self._answer(asked, "exchange.delete-ok")

    async def _bind_exchange(self, asked: dict[str, Any]) -> None:
        source = self._bindable(asked["source"])
        binding = Binding(self._bindable(asked["destination"]), asked["routing_key"], asked["arguments"])
        await self._registry.bind(self._host, source, binding)
        self._answer(asked, "exchange.bind-ok")

    async def _unbind_exchange(self, asked: dict[str, Any]) -> None:
        source = self._host.exchanges.get(asked["source"])
        destination = self._host.exchanges.get(asked["destination"])
        if source is not None and destination is not None:
            binding = Binding(destination, asked["routing_key"], asked["arguments"])
            await self._registry.unbind(self._host, source, binding)
        self._answer(asked, "exchange.unbind-ok")

    def _bindable(self, name: str) -> Exchange:
        if name == "":
            raise AmqpError(ReplyCode.ACCESS_REFUSED, "operation not permitted on the default exchange")
        return self._host.exchange(name)

    # ---- queues -----------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> str:
        """An empty name means the queue that this channel has declared last."""
        if name:
            return name
        if not self._last_queue:
            raise AmqpError(ReplyCode.NOT_FOUND, "no previously declared queue")
        return self._last_queue

    async def _declare_queue(self, asked: dict[str, Any]) -> None:
        name = asked["queue"]
        await self._registry.settled(self._host, name)
        if asked["passive"]:
            queue = self._host.queue(self._named(name), self._client)
        elif name and (name in self._host.queues or name in self._host.damaged):
            queue = self._declared_again(name, asked)
        else:
            if name.startswith(RESERVED):
                raise AmqpError(ReplyCode.ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix '{RESERVED}*'")
            queue = await self._registry.make_queue(
                self._host,
                name or f"amq.gen-{os.urandom(16).hex()}",
                asked["arguments"],
                is_durable=asked["durable"],
                is_auto_delete=asked["auto_delete"],
                owner=self._client if asked["exclusive"] else None,
            )
        queue.used()
        self._last_queue = queue.name
        counts = {"message_count": queue.ready, "consumer_count": len(queue.consumers)}
        self._answer(asked, "queue.declare-ok", {"queue": queue.name, **counts})

    def _declared_again(self, name: str, asked: dict[str, Any]) -> Queue:
        queue = self._host.queue(name, self._client)
        if asked["exclusive"] and queue.owner is None:
            raise AmqpError(
                ReplyCode.RESOURCE_LOCKED,
                f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self._host.name}'",
            )
        self._host.check_same_queue(
            queue, is_durable=asked["durable"], is_auto_delete=asked["auto_delete"], arguments=asked["arguments"]
        )
        return queue

    async def _bind_queue(self, asked: dict[str, Any]) -> None:
        queue = self._host.queue(self._named(asked["queue"]), self._client)
        key = asked["routing_key"] or ("" if asked["queue"] else queue.name)
        source = self._bindable(asked["exchange"])
        await self._registry.bind(self._host, source, Binding(queue, key, asked["arguments"]))
        self._answer(asked, "queue.bind-ok")

    async def _unbind_queue(self, asked: dict[str, Any]) -> None:
        queue = self._host.queues.get(self._named(asked["queue"]))
        source = self._host.exchanges.get(asked["exchange"])
        if queue is not None and source is not None:
            await self._registry.unbind(self._host, source, Binding(queue, asked["routing_key"], asked["arguments"]))
        self._send("queue.unbind-ok")

    async def _purge_queue(self, asked: dict[str, Any]) -> None:
        queue = self._host.queue(self._named(asked["queue"]), self._client)
        self._answer(asked, "queue.purge-ok", {"message_count": queue.purge()})

    async def _delete_queue(self, asked: dict[str, Any]) -> None:
        name = self._named(asked["queue"])
        count = 0
        if name in self._host.queues:
            queue = self._host.queue(name, self._client)
            if asked["if_unused"] and queue.consumers:
                raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"queue '{name}' in vhost '{self._host.name}' in use")
            if asked["if_empty"] and queue.ready:
                raise AmqpError(ReplyCode.PRECONDITION_FAILED, f"queue '{name}' in vhost '{self._host.name}' not empty")
            count = await self._registry.remove_queue(self._host, queue)
        self._answer(asked, "queue.delete-ok", {"message_count": count})


def _give_back(delivery: Delivery) -> None:
    delivery.queue.give_back(delivery)


def _reject(delivery: Delivery) -> None:
    delivery.queue.reject(delivery)
