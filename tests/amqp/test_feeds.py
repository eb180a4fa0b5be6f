"""Topics that feed exchanges and exchanges that feed topics, also after kill -9."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from headrace import testing
from headrace.broker.queues.feeds import ExchangeFeed, TopicFeed, exchange_feeds, refuse_circles, topic_feeds
from headrace.broker.queues.message import Message
from headrace.client import Admin, Client, Consumer, Producer, Queues, TopicPartition, TransactionalProducer
from headrace.errors import BadArgument
from headrace.testing import TestBroker
from headrace.wire.amqp.properties import encode_properties
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.servers

FEEDS = {
    "headrace.queue.feeds": "orders -> :work,orders -> amq.topic:orders.new",
    "headrace.topic.feeds": "amq.topic:audit.# -> audit",
}


@contextmanager
def channel_of(broker: TestBroker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def ready(broker: TestBroker, name: str) -> int:
    with Client(broker.bootstrap) as client:
        return next((each.ready for each in Queues(client).list_all() if each.name == name), 0)


def records_of(broker: TestBroker, topic: str) -> list[Any]:
    with Client(broker.bootstrap) as client:
        consumer = Consumer(client)
        count = len(client.topic(topic).partitions)
        consumer.assign({TopicPartition(topic, index): 0 for index in range(count)})
        found: list[Any] = []
        while polled := consumer.poll(timeout_ms=500):
            found += [record for records in polled.values() for record in records]
        return found


def test_records_of_a_topic_become_messages_of_a_queue_and_of_an_exchange() -> None:
    with testing.broker(amqp=True, settings=FEEDS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=1)
        queues = Queues(client)
        queues.create_queue("news")
        queues.create_queue("work")
        with channel_of(broker) as channel:
            channel.queue_bind("news", "amq.topic", "orders.*")
            with Producer(client) as producer:
                producer.send("orders", b"one", key=b"k", headers=[("colour", b"red")])
                producer.send("orders", b"two")
            eventually(lambda: (ready(broker, "work"), ready(broker, "news")), lambda seen: seen == (2, 2))
            _, properties, body = channel.basic_get("work", auto_ack=True)
            assert (body, properties.message_id, properties.delivery_mode) == (b"one", "orders/0/0", 2)
            assert properties.headers["colour"] == "red"
            assert properties.headers["x-headrace-key"] == "k"
            assert channel.basic_get("work", auto_ack=True)[2] == b"two"


def test_only_committed_records_are_fed() -> None:
    with testing.broker(amqp=True, settings=FEEDS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=1)
        Queues(client).create_queue("work")
        with TransactionalProducer(client, "writer") as producer:
            producer.begin()
            producer.send("orders", b"aborted")
            producer.abort()
            producer.begin()
            producer.send("orders", b"committed")
            producer.commit()
        eventually(lambda: ready(broker, "work"), lambda count: count == 1)
        with channel_of(broker) as channel:
            assert channel.basic_get("work", auto_ack=True)[2] == b"committed"


def test_messages_of_an_exchange_become_records_of_a_topic() -> None:
    with testing.broker(amqp=True, settings=FEEDS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("audit", partitions=2)
        with channel_of(broker) as channel:
            eventually(lambda: any(each.name.startswith("headrace.feed") for each in Queues(client).list_all()), bool)
            for number in range(10):
                channel.basic_publish("amq.topic", f"audit.{number}", b"%d" % number)
            channel.basic_publish("amq.topic", "other", b"not fed")
        found = eventually(lambda: records_of(broker, "audit"), lambda seen: len(seen) >= 10)
        assert Counter(each.value for each in found) == Counter(b"%d" % number for number in range(10))
        assert {each.key for each in found} == {b"audit.%d" % number for number in range(10)}
        eventually(lambda: [each.unacknowledged for each in Queues(client).list_all()], lambda seen: not any(seen))


def test_a_feed_goes_on_when_its_exchange_or_its_queue_was_deleted() -> None:
    settings = {"headrace.topic.feeds": "sales:# -> audit"}
    with testing.broker(amqp=True, settings=settings) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("audit", partitions=1)
        queues = Queues(client)
        for number, deleted in enumerate(("nothing", "exchange", "queue")):
            if deleted == "exchange":
                queues.delete_exchange("sales")
            elif deleted == "queue":
                queues.delete_queue("headrace.feed sales:# -> audit")
            queues.create_exchange("sales", "topic")
            eventually(
                lambda: [each.bindings for each in queues.exchanges() if each.name == "sales"], lambda all_: all_[0]
            )
            with channel_of(broker) as channel:
                channel.basic_publish("sales", "sold", b"%d" % number)
            found = eventually(lambda: records_of(broker, "audit"), lambda seen, number=number: len(seen) > number)
            assert [record.value for record in found] == [b"%d" % each for each in range(number + 1)]


TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}


def test_a_trace_context_goes_from_a_record_through_a_queue_a_dead_letter_and_an_exchange_to_a_record() -> None:
    settings = {
        "headrace.queue.feeds": "orders -> :work",
        "headrace.topic.feeds": "amq.topic:audit.# -> audit",
    }
    with testing.broker(amqp=True, settings=settings) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=1)
        Admin(client).create_topic("audit", partitions=1)
        dead = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "audit.dead"}
        Queues(client).create_queue("work", dead)
        eventually(lambda: any(each.name.startswith("headrace.feed") for each in Queues(client).list_all()), bool)
        with Producer(client) as producer:
            producer.send("orders", b"one", headers=[(name, value.encode()) for name, value in TRACE.items()])
        eventually(lambda: ready(broker, "work"), lambda count: count == 1)
        with channel_of(broker) as channel:
            method, properties, _ = channel.basic_get("work")
            assert {name: properties.headers[name] for name in TRACE} == TRACE
            channel.basic_reject(method.delivery_tag, requeue=False)
            (record,) = eventually(lambda: records_of(broker, "audit"), lambda seen: len(seen) == 1)
        headers = dict(record.headers)
        assert {name: headers[name].decode() for name in TRACE} == TRACE


def test_headers_that_are_bytes_or_no_utf_8_become_headers_of_records_as_they_are() -> None:
    with testing.broker(amqp=True, settings=FEEDS) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("audit", partitions=1)
        eventually(lambda: any(each.name.startswith("headrace.feed") for each in Queues(client).list_all()), bool)

        def publish(node: Any) -> None:
            table = {"traceparent": b"00-aa-bb-01", "latin": "caf\udce9", "count": 3}
            properties = encode_properties({"headers": table})
            host = node.broker.queues.virtual_host("/")
            for queue in host.queues.values():
                queue.publish(Message(b"amq.topic", b"audit.x", properties, b"body", 1_000))

        on_loop(broker, publish)
        (record,) = eventually(lambda: records_of(broker, "audit"), lambda seen: len(seen) == 1)
    headers = dict(record.headers)
    assert headers["traceparent"] == b"00-aa-bb-01"
    assert headers["latin"] == b"caf\xe9"
    assert headers["count"] == b"3"


def on_loop(broker: Any, work: Callable[[Any], None]) -> None:
    """Run ``work`` with the node, on its loop."""

    async def run() -> None:
        work(broker._node)

    asyncio.run_coroutine_threadsafe(run(), broker._loop).result(PATIENCE_S)


def test_a_feed_goes_on_after_kill_9_and_a_repeated_message_has_its_id(tmp_path: Path) -> None:
    with testing.broker(in_process=False, amqp=True, data=tmp_path / "data", settings=FEEDS) as broker:
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic("orders", partitions=1)
            Queues(client).create_queue("work")
        for round_ in range(3):
            with Client(broker.bootstrap) as client, Producer(client) as producer:
                for number in range(500):
                    producer.send("orders", b"%d" % (500 * round_ + number))
            broker.kill()
            broker.start()
        eventually(lambda: ready(broker, "work"), lambda count: count >= 1_500)
        seen: dict[str, bytes] = {}
        order = []
        with channel_of(broker) as channel:
            while (got := channel.basic_get("work", auto_ack=True))[0] is not None:
                assert seen.setdefault(got[1].message_id, got[2]) == got[2]
                order.append(got[1].message_id)
        assert sorted(map(int, seen.values())) == list(range(1_500))
        assert list(dict.fromkeys(order)) == [f"orders/0/{number}" for number in range(1_500)]


def test_a_full_queue_holds_its_feed_and_loses_nothing() -> None:
    settings = {"headrace.queue.feeds": "orders -> :small"}
    with testing.broker(amqp=True, settings=settings) as broker, Client(broker.bootstrap) as client:
        with channel_of(broker) as channel:
            arguments = {"x-max-length": 3, "x-overflow": "reject-publish"}
            channel.queue_declare("small", durable=True, arguments=arguments)
            Admin(client).create_topic("orders", partitions=1)
            with Producer(client) as producer:
                for number in range(10):
                    producer.send("orders", b"%d" % number)
            found: list[bytes] = []

            def more() -> int:
                method, _, body = channel.basic_get("small", auto_ack=True)
                if method is not None:
                    found.append(body)
                return len(found)

            eventually(more, lambda count: count == 10)
        assert found == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("orders", "is no feed"),
        ("orders ->", "is no feed"),
        ("orders -> work", "is not EXCHANGE:KEY"),
        ("orders -> :", "is not EXCHANGE:KEY"),
    ],
)
def test_a_feed_that_cannot_be_read_is_one_clear_line(text: str, reason: str) -> None:
    with pytest.raises(BadArgument, match=reason):
        topic_feeds([text])


def test_feeds_that_lead_in_a_circle_are_refused() -> None:
    with pytest.raises(BadArgument, match="lead back to it"):
        refuse_circles(topic_feeds(["a -> x:k", "b -> y:k"]), exchange_feeds(["x:# -> b", "y:# -> a"]))
    refuse_circles(topic_feeds(["a -> x:k", "b -> y:k"]), exchange_feeds(["x:# -> b"]))
    assert topic_feeds(["a -> x:k"]) == [TopicFeed("a", "x", "k")]
    assert exchange_feeds(["x:k -> a"]) == [ExchangeFeed("x", "k", "a")]
    with pytest.raises(BadArgument, match="default exchange"):
        exchange_feeds([":k -> a"])


def test_a_circle_that_bindings_close_comes_to_an_end() -> None:
    settings = {"headrace.queue.feeds": "a -> amq.topic:k", "headrace.topic.feeds": "amq.fanout: -> a"}
    with testing.broker(amqp=True, settings=settings) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("a", partitions=1)
        with channel_of(broker) as channel:
            channel.exchange_bind("amq.fanout", "amq.topic", "#")
        eventually(lambda: any(each.name.startswith("headrace.feed") for each in Queues(client).list_all()), bool)
        with Producer(client) as producer:
            producer.send("a", b"round")
        count = eventually(lambda: len(records_of(broker, "a")), lambda seen: seen >= 8)
        assert eventually(lambda: len(records_of(broker, "a")), lambda seen: seen >= count) <= 9
