"""A channel: what one client publishes, consumes and acknowledges.

``handle`` takes every method but the two that come with every message, which have their own: ``publish`` and ``ack``.
Errors are ``AmqpError``; the session closes the channel, or the connection, with them.

**Consumer timeout.** A message that is neither acknowledged nor given back for ``amqp.consumer.timeout.ms`` ends its
channel, as in RabbitMQ: the consumer is stuck, and another one may do better.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from headrace.broker.queues.confirms import Confirms, Flushed
from headrace.broker.queues.consumer import UNLIMITED, ChannelConsumer, deliver_method
from headrace.broker.queues.deliveries import Deliveries, Held
from headrace.broker.queues.message import Message, check_expiration, without_hidden_copies
from headrace.broker.queues.queue import Published, Queue
from headrace.broker.queues.registry import Registry
from headrace.broker.queues.reply_to import REPLY_TO, ReplyConsumer
from headrace.broker.queues.rotation import Delivery
from headrace.broker.queues.topology import Topology
from headrace.broker.queues.transaction import Transaction
from headrace.broker.queues.turn import Alarm, Output, Turn
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.log.errors import LogError
from headrace.wire.amqp.connection import AckReceived, AmqpConnection, PublishReceived
from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.methods import IDS, encode_method

__all__ = ["Channel", "Client"]

LOG = logging.getLogger("headrace.queues")

TIMEOUT_NOTES = 10
"""How often the age of deliveries is looked at within the consumer timeout."""


class Client(Output, Protocol):
    """The connection that a channel belongs to."""

    virtual_host: VirtualHost
    user: str
    wire: AmqpConnection

    @property
    def is_writable(self) -> bool:
        """False while the peer does not read what it was sent."""

    def understands(self, capability: str) -> bool:
        """Whether the peer has said that it knows this extension."""

    def refuse(self, number: int, error: AmqpError) -> None:
        """Close a channel with an error that no method of the peer has caused."""


class Channel:
    """See the module."""

    def __init__(self, number: int, client: Client, registry: Registry, turn: Turn) -> None:
        self.number = number
        self._client = client
        self._wire = client.wire
        self._host = client.virtual_host
        self._registry = registry
        self._turn = turn
        self._topology = Topology(self._host, registry, client)
        self._consumers: dict[str, ChannelConsumer] = {}
        self._deliveries = Deliveries()
        self._ages = Alarm(turn, self._look_at_ages)
        self._prefetch = 0
        self._prefetch_together = 0
        self._confirms: Confirms | None = None
        self._transaction: Transaction | None = None
        self._replies: ReplyConsumer | None = None
        self._is_closed = False
        """Nothing is sent any more: the next channel may have the same number."""
        self._handlers: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {
            "channel.flow": self._flow,
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
        try:
            change = self._topology.handlers.get(name)
            if change is not None:
                self._answer(arguments, f"{name}-ok", await change(arguments))
                return
            handler = self._handlers.get(name)
            if handler is None:
                raise AmqpError(ReplyCode.COMMAND_INVALID, f"{name} is not a request of a client")
            await handler(arguments)
        except AmqpError as error:
            error.method = IDS[name]
            raise
        except LogError as error:
            raise AmqpError(ReplyCode.RESOURCE_ERROR, str(error), IDS[name]) from error

    def close(self) -> None:
        """The channel ends: its consumers go, and what they have not acknowledged comes back."""
        self._is_closed = True
        for consumer in list(self._consumers.values()):
            self._remove_consumer(consumer)
        self._stop_replies()
        self._ages.cancel()
        if self._transaction is not None:
            self._deliveries.put_back(self._transaction.undo())
        for delivery in self._deliveries.take_all():
            try:
                delivery.queue.give_back(delivery, is_failure=True)
            except Exception:  # the others come back, and the connection ends with all that it has
                LOG.exception("%s: a message did not come back; please file a bug", delivery.queue.where)

    # ---- what consumers ask -----------------------------------------------------------------------------------------

    @property
    def has_credit(self) -> bool:
        return not self._prefetch_together or self.room > 0

    @property
    def room(self) -> int:
        """How many messages the limit of the channel lets its consumers have now."""
        if not self._prefetch_together:
            return UNLIMITED
        settled = 0 if self._transaction is None else self._transaction.settled_count
        return self._prefetch_together - (len(self._deliveries) + settled - self._deliveries.fetched)

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
        tag = self._deliveries.next_tag() if consumer.no_ack else self._deliveries.hold(delivery, consumer)
        self._send_delivery(method, tag, message, is_redelivered=is_redelivered)

    def _send_delivery(self, method: bytes, tag: int, message: Message, *, is_redelivered: bool) -> None:
        head = b"%b%b%c%c%b%c%b" % (
            method,
            tag.to_bytes(8, "big"),
            is_redelivered,
            len(message.exchange),
            message.exchange,
            len(message.routing_key),
            message.routing_key,
        )
        self._wire.send_content(self.number, head, message.properties, message.body)
        self._turn.send(self._client)

    def deliver_run(
        self,
        consumer: bytes,
        deliveries: list[Held] | None,
        messages: Sequence[Message],
        *,
        is_redelivered: bool,
    ) -> None:
        """Messages for a consumer; ``deliveries`` unless it does not acknowledge."""
        first = self._deliveries.hold_run(deliveries, len(messages))
        self._wire.send_deliveries(self.number, consumer, first, messages, is_redelivered=is_redelivered)
        self._turn.send(self._client)

    @property
    def limits_together(self) -> bool:
        """Whether a limit holds for all consumers of the channel together."""
        return self._prefetch_together > 0

    def queue_deleted(self, consumer: ChannelConsumer) -> None:
        """Consumers learn that they get nothing more, if they understand it."""
        self._consumers.pop(consumer.tag, None)
        if self._client.understands("consumer_cancel_notify"):
            self._send("basic.cancel", {"consumer_tag": consumer.tag, "no_wait": True})

    def _send(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        if not self._is_closed:
            self._wire.send(self.number, name, arguments)
            self._turn.send(self._client)

    def _answer(self, asked: dict[str, Any], name: str, arguments: dict[str, Any] | None = None) -> None:
        if not asked.get("no_wait"):
            self._send(name, arguments)

    # ---- publishing -------------------------------------------------------------------------------------------------

    def publish(self, event: PublishReceived) -> None:
        if event.is_immediate:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "immediate=true", IDS["basic.publish"])
        exchange, routing_key, properties, now_ms = (
            event.exchange,
            event.routing_key,
            event.properties,
            self._turn.now_ms(),
        )
        messages = [Message(exchange, routing_key, properties, body, now_ms) for body in event.bodies]
        try:
            self._check_published(messages[0])  # the others differ in their bodies alone
            if messages[0].summary.reply_to == REPLY_TO:
                messages = [self._with_reply_name(message) for message in messages]
            if self._transaction is None and self._route_together(messages):
                return
            for message in messages:
                self._publish_one(message, event.is_mandatory)
        except AmqpError as error:
            error.method = IDS["basic.publish"]
            raise

    def _route_together(self, messages: list[Message]) -> bool:
        """Give messages that differ in their bodies alone to their queues; False if each must be looked at."""
        queues = self._host.route(messages[0])
        if not queues or messages[0].may_have_copies or any(queue.may_reject for queue in queues):
            return False
        group = None
        if self._confirms is not None:
            group = self._confirms.published(len(messages))
            self._turn.send(self._client)
        for queue in queues:
            queue.publish_all(messages, group)
        return True

    def _publish_one(self, message: Message, is_mandatory: bool) -> None:
        if self._transaction is not None:
            queues = self._host.route(message)  # where it goes is decided now, as in RabbitMQ
            self._transaction.publish(
                message.size, lambda flushed: self._give(message, self._still(queues), is_mandatory, flushed)
            )
        elif self._confirms is None:
            self._route(message, is_mandatory, None)
        else:
            self._publish_confirmed(self._confirms, message, is_mandatory)

    def _check_published(self, message: Message) -> None:
        """In RabbitMQ's order: the first thing that is wrong is the error. Raises AmqpError."""
        exchange = self._host.exchange(message.exchange.decode("utf-8", "surrogateescape"))
        if exchange.is_internal:
            raise AmqpError(
                ReplyCode.ACCESS_REFUSED,
                f"cannot publish to internal exchange '{exchange.name}' in vhost '{self._host.name}'",
            )
        summary = message.summary
        if summary.user_id is not None and summary.user_id != self._client.user:
            raise AmqpError(
                ReplyCode.PRECONDITION_FAILED,
                f"user_id property set to '{summary.user_id}' but authenticated user was '{self._client.user}'",
            )
        if summary.expiration is not None:
            check_expiration(summary.expiration)

    def _publish_confirmed(self, confirms: Confirms, message: Message, is_mandatory: bool) -> None:
        group = confirms.published()
        if self._route(message, is_mandatory, group):
            confirms.refuse(group)
        self._turn.send(self._client)

    def _route(self, message: Message, is_mandatory: bool, published: Published | None) -> bool:
        """Give a message to its queues; True if one of them has refused it."""
        return self._give(message, self._host.route(message), is_mandatory, published)

    def _still(self, queues: Sequence[Queue]) -> list[Queue]:
        """The queues of these names that there are now."""
        return [found for each in queues if (found := self._host.destination(each.name)) is not None]

    def _give(self, message: Message, queues: Sequence[Queue], is_mandatory: bool, published: Published | None) -> bool:
        message = without_hidden_copies(message)
        if not queues and not self._host.replies.deliver(message) and is_mandatory:
            self._return(message)
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
        if self._is_closed:
            return
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
            self._transaction = Transaction(self._registry.limits.transaction_bytes_max)
        self._send("tx.select-ok")

    async def _commit(self, asked: dict[str, Any]) -> None:
        """Carry out the collected steps, and answer when their messages are flushed. If a queue has refused one, the
        others are published all the same, and the client gets an error."""
        flushed = Flushed()
        is_refused = False
        for step in self._selected().take_steps():
            is_refused |= step(flushed)
        await flushed.wait()
        if is_refused:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
        self._send("tx.commit-ok")

    async def _rollback(self, asked: dict[str, Any]) -> None:
        self._deliveries.put_back(self._selected().undo())
        self._send("tx.rollback-ok")

    def _selected(self) -> Transaction:
        if self._transaction is None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "channel is not transactional")
        return self._transaction

    # ---- consuming --------------------------------------------------------------------------------------------------

    async def _qos(self, asked: dict[str, Any]) -> None:
        if asked["prefetch_size"]:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({asked['prefetch_size']})")
        if asked["global"]:
            self._host.warn_once(
                "global-qos",
                "a client limits the prefetch of a whole channel (basic.qos with global): it is served, and RabbitMQ "
                "4.3 and newer refuse it; limit each consumer",
            )
            self._prefetch_together = asked["prefetch_count"]
        else:
            self._prefetch = asked["prefetch_count"]
            self._prefetch_together = 0  # RabbitMQ takes the later limit for the wanted one
        self._send("basic.qos-ok")
        self.wake()

    async def _consume(self, asked: dict[str, Any]) -> None:
        tag = asked["consumer_tag"] or f"amq.ctag-{os.urandom(12).hex()}"
        if tag in self._consumers or (self._replies is not None and tag == self._replies.tag):
            raise AmqpError(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if asked["queue"] == REPLY_TO:
            self._consume_replies(asked, tag)
            return
        queue = self._host.queue(self._topology.named(asked["queue"]), self._client)
        priority = queue.policy.consumer_priority(asked["arguments"], queue.where)
        queue.check_consumer(no_ack=asked["no_ack"], prefetch=self._prefetch, arguments=asked["arguments"])
        if queue.exclusive_consumer is not None or (asked["exclusive"] and not _may_be_exclusive(queue)):
            raise AmqpError(ReplyCode.ACCESS_REFUSED, f"{queue.where} in exclusive use")
        consumer = ChannelConsumer(self, queue, tag, no_ack=asked["no_ack"], priority=priority, prefetch=self._prefetch)
        self._consumers[tag] = consumer
        self._answer(asked, "basic.consume-ok", {"consumer_tag": tag})
        queue.add_consumer(consumer, is_exclusive=asked["exclusive"], arguments=asked["arguments"])
        self._watch_timeout()

    async def _cancel(self, asked: dict[str, Any]) -> None:
        consumer = self._consumers.get(asked["consumer_tag"])
        if consumer is not None:
            self._remove_consumer(consumer)
        elif self._replies is not None and asked["consumer_tag"] == self._replies.tag:
            self._stop_replies()
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
        queue = self._host.queue(self._topology.named(asked["queue"]), self._client)
        if queue.policy.queue_type == "quorum" and queue.policy.has_single_active_consumer:
            raise AmqpError(
                ReplyCode.RESOURCE_LOCKED,
                f"cannot obtain access to locked {queue.where}. basic.get operations are not supported by quorum "
                "queues with single active consumer",
            )
        found = queue.get(no_ack=asked["no_ack"])
        if found is None:
            self._send("basic.get-empty")
            return
        delivery, message, is_redelivered = found
        if asked["no_ack"]:
            tag = self._deliveries.next_tag()
        else:
            tag = self._deliveries.hold(delivery, None)
            self._watch_timeout()
        method = encode_method(
            "basic.get-ok",
            {
                "delivery_tag": tag,
                "redelivered": is_redelivered,
                "exchange": message.exchange.decode("utf-8", "surrogateescape"),
                "routing_key": message.routing_key.decode("utf-8", "surrogateescape"),
                "message_count": queue.ready,
            },
        )
        self._wire.send_content(self.number, method, message.properties, message.body)
        self._turn.send(self._client)

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _consume_replies(self, asked: dict[str, Any], tag: str) -> None:
        if not asked["no_ack"]:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        if self._replies is not None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "reply consumer already set")
        method = deliver_method(tag)
        self._replies = ReplyConsumer(self._host.replies, tag, lambda message: self._take_reply(method, message))
        self._answer(asked, "basic.consume-ok", {"consumer_tag": tag})

    def _take_reply(self, method: bytes, message: Message) -> None:
        if self.is_writable:
            self._send_delivery(method, self._deliveries.next_tag(), message, is_redelivered=False)

    def _stop_replies(self) -> None:
        if self._replies is not None:
            self._replies.stop()
            self._replies = None

    def _with_reply_name(self, message: Message) -> Message:
        if self._replies is None:
            raise AmqpError(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
        return message.with_properties(reply_to=self._replies.name.decode())

    # ---- settling ---------------------------------------------------------------------------------------------------

    def ack(self, event: AckReceived) -> None:
        if self._transaction is not None:
            for tag in event.delivery_tags:
                taken = self._deliveries.take(tag, event.is_multiple, "basic.ack")
                self._settle(taken, _acknowledge)
            return
        tags = event.delivery_tags
        if event.is_multiple:
            tags = self._deliveries.up_to(tags[0], "basic.ack")
        done: dict[tuple[Queue, int], list[int]] = {}
        try:
            self._deliveries.take_each(tags, done)
        finally:
            for (queue, lane), offsets in done.items():
                queue.acknowledge_all(lane, offsets)
        if self._prefetch_together:
            self.wake()

    async def _nack(self, asked: dict[str, Any]) -> None:
        taken = self._deliveries.take(asked["delivery_tag"], asked["multiple"], "basic.nack")
        self._settle(taken, _give_back if asked["requeue"] else _reject)

    async def _reject(self, asked: dict[str, Any]) -> None:
        taken = self._deliveries.take(asked["delivery_tag"], False, "basic.reject")
        self._settle(taken, _give_back if asked["requeue"] else _reject)

    def _settle(self, taken: dict[int, Held], settle: Callable[[Delivery], None]) -> None:
        if self._transaction is None:
            self._settle_now(taken, settle)
        else:
            self._transaction.settle(taken, lambda held: self._settle_now(held, settle))

    def _settle_now(self, taken: dict[int, Held], settle: Callable[[Delivery], None]) -> None:
        self._deliveries.settle(taken, settle)
        if self._prefetch_together:
            self.wake()

    async def _recover(self, asked: dict[str, Any]) -> None:
        if not asked["requeue"]:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
        self._settle_now(self._deliveries.take(0, True, "basic.recover"), _give_back)
        self._send("basic.recover-ok")

    # ---- time -------------------------------------------------------------------------------------------------------

    def _watch_timeout(self) -> None:
        self._ages.set(1 + self._timeout_ms() // TIMEOUT_NOTES)

    def _timeout_ms(self) -> int:
        """The shortest that a queue of this channel has asked for, or the broker's."""
        wanted = [each.queue.policy.consumer_timeout_ms for each in self._consumers.values()]
        return min((each for each in wanted if each is not None), default=self._registry.limits.consumer_timeout_ms)

    def _look_at_ages(self) -> None:
        """End the channel if a delivery is too old."""
        timeout_ms = self._timeout_ms()
        if self._deliveries.has_overdue(self._turn.now_ms(), timeout_ms):
            self._client.refuse(
                self.number,
                AmqpError(
                    ReplyCode.PRECONDITION_FAILED,
                    f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: {timeout_ms} "
                    "ms. This timeout value can be configured, see consumers doc guide to learn more",
                ),
            )
        elif self._consumers or len(self._deliveries):
            self._watch_timeout()

    async def _flow(self, asked: dict[str, Any]) -> None:
        if not asked["active"]:
            raise AmqpError(ReplyCode.NOT_IMPLEMENTED, "active=false")
        self._send("channel.flow-ok", {"active": True})


def _may_be_exclusive(queue: Queue) -> bool:
    """Whether a consumer may be exclusive: not beside others, nor on a classic queue with a single active consumer."""
    policy = queue.policy
    return not queue.consumers and not (policy.has_single_active_consumer and policy.queue_type == "classic")


def _acknowledge(delivery: Delivery) -> None:
    delivery.queue.acknowledge(delivery)


def _give_back(delivery: Delivery) -> None:
    delivery.queue.give_back(delivery)


def _reject(delivery: Delivery) -> None:
    delivery.queue.reject(delivery)
