"""Feeds: records of a topic that become messages of an exchange, and messages of an exchange that become records.

They are configured, not declared by clients:

    headrace.queue.feeds = ["orders -> :work", "orders -> amq.topic:orders.new"]
    headrace.topic.feeds = ["amq.topic:audit.# -> audit"]

**From a topic.** Committed records are published in their order, partition by partition, to the exchange; with an
empty name it is the default one, and the key is a queue. An exchange or queue that does not exist yet is waited for,
and a queue that refuses messages holds the feed. How far a partition was read is a row of the state tables, written
when the messages are flushed.

**To a topic.** A durable queue of the feed collects what the exchange routes. A message is acknowledged there when its
record is flushed. The key of a record is the routing key, which also chooses the partition.

A kill between the two steps repeats what was under way, so a feed delivers at least once. The same message has the same
``message_id`` each time, ``TOPIC/PARTITION/OFFSET``; the same record has the same header ``headrace.message``.

Feeds that lead in a circle are refused at the start. Bindings between exchanges can close one later: what has gone
through ``HOPS_MAX`` feeds goes no further.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import zlib
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.batch import build_batch
from headrace.broker.partition import Partition
from headrace.broker.queues.confirms import Flushed
from headrace.broker.queues.message import Message
from headrace.broker.queues.queue import Queue
from headrace.broker.queues.queue_broker import QueueBroker
from headrace.broker.queues.rotation import Delivery
from headrace.broker.queues.routing import Binding
from headrace.broker.state import StateStore
from headrace.broker.topics import Topic, Topics
from headrace.errors import BadArgument, HeadraceError
from headrace.log.errors import LogError
from headrace.log.reader import checked_batches
from headrace.record import Record, iter_records, records_of
from headrace.vocabulary import Offset
from headrace.wire.amqp.errors import AmqpError
from headrace.wire.amqp.methods import is_short
from headrace.wire.amqp.properties import encode_properties
from headrace.wire.amqp.tables import header_of

__all__ = ["ExchangeFeed", "Feeds", "TopicFeed", "exchange_feeds", "refuse_circles", "topic_feeds"]

LOG = logging.getLogger("headrace.queues")

POSITIONS = "amqp-feeds"
OWN_QUEUE = "headrace.feed "
READ_BYTES = 256 << 10
DECODED_BYTES_MAX = 64 << 20
MESSAGES_PER_STEP = 500
CREDIT = 2_000
"""Messages of a feed's own queue that are on their way to the topic."""
RETRY_S = 0.2
LOOK_AGAIN_S = 1.0
HOPS_MAX = 8
HOPS = "x-headrace-hops"
MESSAGE_ID = "headrace.message"
ROUTED_BY = ("CC", "BCC")
"""Headers by which exchanges route: the records of a feed go where its configuration says, and nowhere else."""


@dataclass(frozen=True, slots=True)
class TopicFeed:
    """From a topic to an exchange, with a routing key."""

    topic: str
    exchange: str
    key: str

    def __str__(self) -> str:
        return f"{self.topic} -> {self.exchange}:{self.key}"


@dataclass(frozen=True, slots=True)
class ExchangeFeed:
    """From an exchange, by a binding key, to a topic."""

    exchange: str
    key: str
    topic: str

    def __str__(self) -> str:
        return f"{self.exchange}:{self.key} -> {self.topic}"

    @property
    def queue(self) -> str:
        return f"{OWN_QUEUE}{self}"


def topic_feeds(texts: Iterable[str]) -> list[TopicFeed]:
    """Raises BadArgument."""
    return [TopicFeed(topic, *_exchange_and_key(place, each)) for each in texts for topic, place in [_halves(each)]]


def exchange_feeds(texts: Iterable[str]) -> list[ExchangeFeed]:
    """Raises BadArgument."""
    found = []
    for each in texts:
        place, topic = _halves(each)
        feed = ExchangeFeed(*_exchange_and_key(place, each), topic)
        if not is_short(feed.queue):
            raise BadArgument(f"feed {each!r} is too long", "it is the name of a queue, which has at most 255 bytes")
        if feed.exchange == "":
            raise BadArgument(f"feed {each!r}: the default exchange cannot feed a topic", "name another exchange")
        found.append(feed)
    return found


def _halves(text: str) -> tuple[str, str]:
    source, arrow, target = (part.strip() for part in text.partition("->"))
    if not (source and arrow and target):
        raise BadArgument(f"{text!r} is no feed", "for example 'orders -> :work', or 'amq.topic:audit.# -> audit'")
    return source, target


def _exchange_and_key(place: str, text: str) -> tuple[str, str]:
    exchange, colon, key = place.partition(":")
    if not colon or (not exchange and not key):
        raise BadArgument(f"feed {text!r}: {place!r} is not EXCHANGE:KEY", "for example amq.topic:orders.# or :QUEUE")
    if not is_short(exchange) or not is_short(key):
        raise BadArgument(f"feed {text!r}: {place!r} is too long", "exchanges and keys have at most 255 bytes")
    return exchange, key


def refuse_circles(from_topics: Sequence[TopicFeed], to_topics: Sequence[ExchangeFeed]) -> None:
    """Raises BadArgument for feeds that lead back to where they began."""
    steps: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for feed in from_topics:
        if feed.exchange:
            steps.setdefault(("topic", feed.topic), []).append(("exchange", feed.exchange))
    for each in to_topics:
        steps.setdefault(("exchange", each.exchange), []).append(("topic", each.topic))
    for start in steps:
        waiting, seen = list(steps[start]), set()
        while waiting:
            place = waiting.pop()
            if place == start:
                raise BadArgument(
                    f"the feeds of {start[0]} {start[1]!r} lead back to it", "take one of them out of the configuration"
                )
            if place not in seen:
                seen.add(place)
                waiting += steps.get(place, [])


class Feeds:
    """All feeds of a broker: a task for each, from ``start`` to ``stop``."""

    def __init__(
        self,
        *,
        from_topics: Sequence[TopicFeed],
        to_topics: Sequence[ExchangeFeed],
        queues: QueueBroker,
        topics: Topics,
        state: StateStore,
    ) -> None:
        refuse_circles(from_topics, to_topics)
        self._from_topics = from_topics
        self._to_topics = to_topics
        self._registry = queues.registry
        self._host = queues.virtual_host("/")
        self._turn = queues.turn
        self._blocking = queues.blocking
        self._topics = topics
        self._state = state
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: set[str] = set()

    def start(self) -> None:
        wanted = {feed.queue for feed in self._to_topics}
        for name, queue in list(self._host.queues.items()):
            if name.startswith(OWN_QUEUE) and name not in wanted:
                self._retire(queue)
        for feed in self._from_topics:
            self._run(self._follow_topic(feed))
        for each in self._to_topics:
            self._run(self._follow_exchange(each))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            LOG.error("a feed has ended: %s; please file a bug", task.exception(), exc_info=task.exception())

    def _retire(self, queue: Queue) -> None:
        """The queue of a feed that is no longer configured collects nothing more, and goes when it is empty."""
        if not queue.ready:
            self._registry.remove_queue_soon(self._host, queue)
            return
        LOG.warning("queue %r has %d messages of a feed that is not configured any more", queue.name, queue.ready)
        for exchange in list(self._host.exchanges.values()):
            for binding in exchange.bindings_to(queue) if exchange.name else []:
                self._run(self._registry.unbind(self._host, exchange, binding))

    async def _pause(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turn.later(seconds, lambda: None if future.done() else future.set_result(None))
        await future

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            LOG.warning("%s", text)

    # ---- from a topic -----------------------------------------------------------------------------------------------

    async def _follow_topic(self, feed: TopicFeed) -> None:
        """A task for each partition; partitions and topics may come later."""
        followed: set[Partition] = set()
        while True:
            topic = self._topics.get(feed.topic)
            if topic is None:
                self._say_once(f"feed {feed}: there is no topic {feed.topic!r} yet")
            for partition in [] if topic is None else topic.served:
                if partition not in followed and not partition.removed:
                    followed.add(partition)
                    assert topic is not None
                    self._run(self._follow_partition(feed, topic, partition))
            await self._pause(LOOK_AGAIN_S)

    async def _make_queue(self, name: str) -> None:
        await self._registry.settled(self._host, name)
        if name not in self._host.queues and name not in self._host.damaged:
            await self._registry.make_queue(self._host, name, {}, is_durable=True, is_auto_delete=False, owner=None)

    async def _follow_partition(self, feed: TopicFeed, topic: Topic, partition: Partition) -> None:
        row = json.dumps([str(feed), topic.topic_id.hex(), partition.index])
        known = self._state.table(POSITIONS).get(row)
        position = 0 if known is None else int(known["offset"])
        while not partition.removed:
            position = max(position, partition.log.start_offset)
            end = partition.last_stable_offset
            if position >= end:
                await self._advanced(partition, position)
                continue
            if self._blocking.reason is not None:
                await self._pause(LOOK_AGAIN_S)
                continue
            try:
                records, position = _committed(partition, position, end)
                await self._publish(feed, partition, records)
                await self._registry.rows.change([(POSITIONS, row, {"offset": position})])
            except (LogError, AmqpError) as error:
                self._say_once(f"feed {feed}: {error}")
                known = self._state.table(POSITIONS).get(row)
                position = 0 if known is None else int(known["offset"])
                await self._pause(LOOK_AGAIN_S)

    async def _advanced(self, partition: Partition, position: int) -> None:
        """Wait for the next record. One that is there and not committed is looked for again soon."""
        if position < partition.high_watermark:
            await self._pause(RETRY_S)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.when_acknowledged(Offset(position), lambda: None if future.done() else future.set_result(None))
        await future
        if not partition.removed and position >= partition.high_watermark:
            await self._pause(RETRY_S)

    async def _publish(self, feed: TopicFeed, partition: Partition, records: Sequence[Record]) -> None:
        waiting = deque(records)
        while waiting:
            if feed.exchange == "":
                self._host.served_queue(feed.key)
            flushed, before = Flushed(), len(waiting)
            for _ in range(min(MESSAGES_PER_STEP, len(waiting))):
                message = _message(feed, partition, waiting[0], self._turn.now_ms())
                targets = () if message is None else self._host.route(message)
                if message is not None and not all(each.has_room(1, len(message.body)) for each in targets):
                    break
                waiting.popleft()
                for target in targets:
                    assert message is not None
                    target.publish(message, flushed)
            await flushed.wait()
            if waiting:
                await self._pause(0 if len(waiting) < before else RETRY_S)

    # ---- to a topic -------------------------------------------------------------------------------------------------

    async def _follow_exchange(self, feed: ExchangeFeed) -> None:
        """The feed's queue is made again when somebody has deleted it."""
        while True:
            while feed.exchange not in self._host.exchanges:
                self._say_once(f"feed {feed}: there is no exchange {feed.exchange!r} yet")
                await self._pause(LOOK_AGAIN_S)
            try:
                await self._make_queue(feed.queue)
                queue = self._host.served_queue(feed.queue)
            except AmqpError as error:
                self._say_once(f"feed {feed}: {error}")
                await self._pause(LOOK_AGAIN_S)
                continue
            self._run(self._keep_bound(feed, queue))
            await self._take_all(feed, queue)

    async def _keep_bound(self, feed: ExchangeFeed, queue: Queue) -> None:
        """An exchange that is deleted and declared again has lost its bindings."""
        binding = Binding(queue, feed.key)
        while not queue.is_deleted:
            exchange = self._host.exchanges.get(feed.exchange)
            if exchange is not None and binding.identity not in exchange.bindings:
                try:
                    await self._registry.bind(self._host, exchange, binding)
                except AmqpError as error:
                    self._say_once(f"feed {feed}: {error}")
            await self._pause(LOOK_AGAIN_S)

    async def _take_all(self, feed: ExchangeFeed, queue: Queue) -> None:
        """Until the queue is deleted."""
        consumer = _FeedConsumer(queue)
        queue.add_consumer(consumer)
        while not queue.is_deleted:
            await consumer.arrived()
            taken = consumer.take()
            try:
                await self._append(feed, taken)
            except HeadraceError as error:
                self._say_once(f"feed {feed}: {error}")
                for delivery, _ in taken:
                    queue.give_back(delivery)
                await self._pause(LOOK_AGAIN_S)
            finally:
                consumer.done(len(taken))

    async def _append(self, feed: ExchangeFeed, taken: Sequence[tuple[Delivery, Message]]) -> None:
        """One append per partition; acknowledged when all are flushed. Raises HeadraceError."""
        topic = self._topics.get(feed.topic)
        if topic is None or not topic.served:
            raise LogError(f"there is no topic {feed.topic!r} that can be written")
        partitions = topic.served
        by_partition: dict[int, list[Record]] = {}
        for delivery, message in taken:
            record = _record(feed, delivery, message)
            if record is not None:
                number = zlib.crc32(message.routing_key) % len(partitions)
                by_partition.setdefault(number, []).append(record)
        flushed = Flushed()
        flushed.add_waits(len(by_partition))
        for number, records in by_partition.items():
            partition = partitions[number]
            batch = build_batch(records)
            partition.append(batch)
            partition.when_acknowledged(batch.last_offset, flushed.one_done)
        await flushed.wait()
        if any(partition.removed for partition in partitions):
            raise LogError(f"topic {feed.topic!r} was deleted")
        for delivery, _ in taken:
            delivery.queue.acknowledge(delivery)


class _FeedConsumer:
    """Takes messages of a feed's own queue."""

    tag = "headrace.feed"
    no_ack = False
    priority = 0

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.outlet = self
        self._arrived: list[tuple[Delivery, Message]] = []
        self._under_way = 0
        self._event = asyncio.Event()

    def has_credit(self) -> bool:
        return self.credit() > 0

    def credit(self) -> int:
        return CREDIT - len(self._arrived) - self._under_way

    room = credit

    def deliver(self, delivery: Delivery, message: Message, *, is_redelivered: bool) -> None:
        self._arrived.append((delivery, message))
        self._event.set()

    def deliver_run(
        self, queue: Queue, lane: int, offsets: Sequence[int], messages: Sequence[Message], *, is_redelivered: bool
    ) -> None:
        for offset, message in zip(offsets, messages, strict=True):
            self._arrived.append((Delivery(queue, lane, offset, len(message.body)), message))
        self._event.set()

    def cancelled(self) -> None:
        self._event.set()

    async def arrived(self) -> None:
        await self._event.wait()

    def take(self) -> list[tuple[Delivery, Message]]:
        taken, self._arrived = self._arrived[:MESSAGES_PER_STEP], self._arrived[MESSAGES_PER_STEP:]
        self._under_way += len(taken)
        if not self._arrived and not self._queue.is_deleted:
            self._event.clear()
        return taken

    def done(self, count: int) -> None:
        self._under_way -= count
        self._queue.wake()


def _committed(partition: Partition, position: int, end: int) -> tuple[list[Record], int]:
    """Records of committed transactions and of none, and where to go on. Raises LogError."""
    log = partition.log
    aborted = log.reader.aborted_transactions(Offset(position), Offset(end))
    found: list[Record] = []
    for piece in log.reader.read(Offset(position), bytes_max=READ_BYTES, offset_max=Offset(end)):
        for batch in checked_batches(piece):
            is_aborted = batch.is_transactional and any(
                each.producer_id == batch.producer_id and each.first_offset <= batch.base_offset <= each.last_offset
                for each in aborted
            )
            if not (batch.is_control or is_aborted):
                for record in iter_records(batch, records_of(batch, DECODED_BYTES_MAX)):
                    if position <= record.offset < end:
                        found.append(record)
            position = max(position, batch.last_offset + 1)
    return found, position


def _message(feed: TopicFeed, partition: Partition, record: Record, now_ms: int) -> Message | None:
    """None for a record that has gone through too many feeds."""
    headers: dict[str, Any] = {
        name: (value or b"").decode("utf-8", "backslashreplace")
        for name, value in record.headers
        if name not in ROUTED_BY and is_short(name)  # AMQP cannot say longer names
    }
    hops = int(headers.get(HOPS, "0")) if str(headers.get(HOPS, "0")).isdecimal() else 0
    if hops >= HOPS_MAX:
        return None
    headers[HOPS] = hops + 1
    if record.key is not None:
        headers["x-headrace-key"] = record.key.decode("utf-8", "backslashreplace")
    if record.value is None:
        headers["x-headrace-tombstone"] = True
    properties = {
        "delivery_mode": 2,
        "message_id": _message_id(partition.topic, f"{partition.index}/{record.offset}"),
        "headers": headers,
    }
    exchange, key = feed.exchange.encode(), feed.key.encode()
    return Message(exchange, key, encode_properties(properties), record.value or b"", now_ms)


def _message_id(topic: str, place: str) -> str:
    """The topic and the place in it; of a topic with a very long name, a hash of the name."""
    text = f"{topic}/{place}"
    return text if is_short(text) else f"{hashlib.sha256(topic.encode()).hexdigest()}/{place}"


def _record(feed: ExchangeFeed, delivery: Delivery, message: Message) -> Record | None:
    """None for a message that has gone through too many feeds."""
    hops = message.headers.get(HOPS, 0)
    if isinstance(hops, int) and hops >= HOPS_MAX:
        return None
    given = message.headers
    headers = [header_of(name, value) for name, value in given.items() if name not in (HOPS, "x-death")]
    headers.append((HOPS, b"%d" % (hops if isinstance(hops, int) else 0)))
    headers.append((MESSAGE_ID, f"{delivery.queue.name}/{delivery.lane}/{delivery.offset}".encode()))
    return Record(message.routing_key, message.body, message.enqueued_ms, headers=tuple(headers))
