"""Features of queues that meet: confirms and closed channels, transactions and deleted exchanges, streams and
retention, limits of a channel and several consumers, feeds and full queues."""

from __future__ import annotations

import logging
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pamqp.commands
import pamqp.frame
import pika
import pika.exceptions
import pytest

from headrace import testing
from headrace.broker.queues.feeds import Feeds
from headrace.broker.queues.queue import Queue as BrokerQueue
from headrace.broker.queues.rotation import Delivery
from headrace.client import Admin, Client, Producer, Queues
from headrace.client.queues import QueueInfo
from headrace.testing import InProcessBroker
from headrace.testing.disk import SimulatedDisk
from tests.amqp.raw import BODY, HEADER, HEARTBEAT, Basic, Channel, Connection, RawPeer, frame
from tests.waiting import eventually

pytestmark = pytest.mark.servers

Confirm, Queue = pamqp.commands.Confirm, pamqp.commands.Queue


@contextmanager
def served(**options: Any) -> Iterator[tuple[InProcessBroker, Any]]:
    with testing.broker(amqp=True, **options) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        try:
            yield broker, connection
        finally:
            if connection.is_open:
                connection.close()


def port_of(broker: InProcessBroker) -> int:
    return int(broker.amqp_url.rpartition("@")[2].split(":")[1].split("/")[0])


def unacknowledged(broker: InProcessBroker, name: str) -> int:
    with Client(broker.bootstrap) as client:
        return next(each.unacknowledged for each in Queues(client).list_all() if each.name == name)


def published(key: str, body: bytes, channel: int = 1) -> bytes:
    method = pamqp.frame.marshal(Basic.Publish(exchange="", routing_key=key), channel)
    return (
        bytes(method) + frame(HEADER, channel, struct.pack(">HHQH", 60, 0, len(body), 0)) + frame(BODY, channel, body)
    )


def drain(peer: RawPeer, count: int) -> None:
    """Read so many bytes."""
    while count > 0:
        count -= len(peer._socket.recv(1 << 20))


def test_a_confirm_of_a_closed_channel_does_not_reach_the_next_channel_of_its_number() -> None:
    with served() as (broker, connection):
        connection.channel().queue_declare("work", durable=True)
        peer = RawPeer(port_of(broker)).opened(1)
        peer.method(1, Confirm.Select())
        peer.expect(Confirm.SelectOk)
        again = [Channel.Close(200, "", 0, 0), Channel.Open()]
        peer.send(published("work", b"a") + b"".join(pamqp.frame.marshal(each, 1) for each in again))
        peer.expect(Channel.CloseOk)
        peer.expect(Channel.OpenOk)
        peer.method(1, Basic.Qos(0, 1, False))
        time.sleep(0.2)
        peer.method(1, Basic.Qos(0, 1, False))
        kinds = []
        while len(kinds) < 2:
            found = peer.receive()
            assert found is not None
            kinds.append(type(found[1]).__name__)
        assert kinds == ["QosOk", "QosOk"], "a confirm of the old channel came on the new one"
        peer.close()


def test_a_publisher_learns_of_messages_whose_queue_is_deleted_before_they_are_written() -> None:
    with served() as (broker, connection):
        connection.channel().queue_declare("work", durable=True)
        peer = RawPeer(port_of(broker)).opened(1)
        peer.method(1, Confirm.Select())
        peer.expect(Confirm.SelectOk)
        passive = pamqp.frame.marshal(Queue.Declare(queue="work", passive=True), 1)
        deleted = pamqp.frame.marshal(Queue.Delete(queue="work"), 1)
        peer.send(passive + published("work", b"a") + deleted)
        assert peer.expect(Basic.Ack).delivery_tag == 1
        peer.close()


def test_what_a_failed_commit_has_not_acknowledged_comes_back() -> None:
    """A stream cannot take a message back; the error comes before the acknowledgement after it."""
    with served() as (broker, connection):
        channel = connection.channel()
        channel.queue_declare("work", durable=True)
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        for name in ("work", "log"):
            channel.basic_publish("", name, b"task")
        other = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        transactional = other.channel()
        transactional.basic_qos(prefetch_count=10)
        read = transactional.consume("log", arguments={"x-stream-offset": "first"})
        of_stream = next(read)[0].delivery_tag
        transactional.tx_select()
        tag = transactional.basic_get("work")[0].delivery_tag
        transactional.basic_nack(of_stream)
        transactional.basic_ack(tag)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            transactional.tx_commit()
        eventually(lambda: channel.queue_declare("work", passive=True).method.message_count == 1)
        method, _, body = channel.basic_get("work")
        assert (body, method.redelivered) == (b"task", True)


def test_two_consumers_of_a_channel_share_its_limit() -> None:
    with served() as (broker, connection):
        channel = connection.channel()
        channel.queue_declare("work", durable=True)
        for number in range(5):
            channel.basic_publish("", "work", b"%d" % number)
        channel.basic_qos(prefetch_count=1, global_qos=True)
        arrived: list[tuple[int, bytes]] = []
        for _ in range(3):
            channel.basic_consume("work", lambda _, method, __, body: arrived.append((method.delivery_tag, body)))
        connection.process_data_events(0.3)
        assert arrived == [(1, b"0")]
        channel.basic_ack(1)
        connection.process_data_events(0.3)
        assert arrived == [(1, b"0"), (2, b"1")]
        assert unacknowledged(broker, "work") == 1


def test_messages_expire_after_a_restart_although_nobody_uses_their_queue(tmp_path: Path) -> None:
    delay = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    with served(data=tmp_path) as (_, connection):
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("work", durable=True)
        channel.queue_declare("later", durable=True, arguments=delay)
        channel.basic_publish("", "later", b"x", pika.BasicProperties(expiration="300"))
    with served(data=tmp_path) as (_, connection):
        channel = connection.channel()
        eventually(lambda: channel.basic_get("work", auto_ack=True)[2] == b"x")


def test_a_message_that_expires_soon_is_not_held_up_by_the_timer_of_one_that_is_gone() -> None:
    with served() as (_, connection):
        channel = connection.channel()
        channel.queue_declare("work", durable=True)
        delay = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
        channel.queue_declare("later", durable=True, arguments=delay)
        channel.basic_publish("", "later", b"long", pika.BasicProperties(expiration="3600000"))
        assert channel.basic_get("later", auto_ack=True)[2] == b"long"
        channel.basic_publish("", "later", b"short", pika.BasicProperties(expiration="50"))
        eventually(lambda: channel.basic_get("work", auto_ack=True)[2] == b"short")


def test_an_exclusive_queue_that_deletes_itself_is_deleted_once(caplog: pytest.LogCaptureFixture) -> None:
    with served() as (broker, _), caplog.at_level(logging.ERROR):
        peer = RawPeer(port_of(broker)).opened(1)
        peer.method(1, Queue.Declare(queue="own", exclusive=True, auto_delete=True))
        peer.method(1, Basic.Consume(queue="own"))
        peer.expect(Basic.ConsumeOk)
        peer.close()
        with Client(broker.bootstrap) as client:
            eventually(lambda: not list(Queues(client).list_all()))
        time.sleep(0.1)
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize(
    "header", [{"x-death": 5}, {"x-death": [{"queue": "work", "reason": "rejected", "count": "x"}]}]
)
def test_a_history_of_deaths_that_is_none_does_not_lose_the_message(header: dict[str, Any]) -> None:
    with served() as (_, connection):
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("work", durable=True, arguments=arguments)
        channel.basic_publish("", "work", b"odd", pika.BasicProperties(headers=header))
        channel.basic_reject(channel.basic_get("work")[0].delivery_tag, requeue=False)
        assert channel.basic_get("dead")[2] == b"odd"


def test_a_record_with_a_header_that_amqp_routes_by_does_not_stop_its_feed() -> None:
    with served(settings={"headrace.queue.feeds": "orders -> :work"}) as (broker, connection):
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic("orders", partitions=1)
            channel = connection.channel()
            channel.queue_declare("work", durable=True)
            with Producer(client) as producer:
                producer.send("orders", b"odd", headers=[("CC", b"everybody")])
                producer.send("orders", b"plain")
        found: list[bytes] = []

        def take() -> bool:
            body = channel.basic_get("work", auto_ack=True)[2]
            if body is not None:
                found.append(body)
            return found == [b"odd", b"plain"]

        eventually(take)


def test_a_publisher_that_is_held_is_not_cut_off_for_heartbeats_that_nobody_reads() -> None:
    disk = SimulatedDisk()
    with served(disk=disk) as (broker, connection):
        connection.channel().queue_declare("work", durable=True)
        peer = RawPeer(port_of(broker))
        peer.login()
        peer.tune(heartbeat=1)
        peer.open()
        peer.expect(Connection.OpenOk)
        peer.method(1, Channel.Open())
        peer.expect(Channel.OpenOk)
        disk.capacity_bytes = disk.used_bytes() + 1_000
        peer.send(published("work", b"x" * 5_000))
        peer.expect(Connection.Blocked)
        for _ in range(7):
            peer.send(frame(HEARTBEAT, 0, b""))
            time.sleep(0.5)
        disk.capacity_bytes = None
        peer.expect(Connection.Unblocked)
        peer.close()


def test_a_peer_that_does_not_read_what_comes_back_is_not_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.amqp.UNREAD_BYTES_MAX", 2 << 20)
    with served() as (broker, _):
        peer = RawPeer(port_of(broker)).opened(1)
        peer._socket.settimeout(1.0)
        method = pamqp.frame.marshal(Basic.Publish(exchange="", routing_key="nowhere", mandatory=True), 1)
        body = b"x" * 100_000
        message = method + frame(HEADER, 1, struct.pack(">HHQH", 60, 0, len(body), 0)) + frame(BODY, 1, body)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 1_000:
                peer._socket.sendall(message)
                sent += 1
        drain(peer, sent * len(body))
        peer.close()


def test_a_peer_that_fetches_and_does_not_read_gets_all_of_it_when_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.amqp.UNREAD_BYTES_MAX", 2 << 20)
    with served() as (broker, connection):
        channel = connection.channel()
        channel.queue_declare("work", durable=True)
        for _ in range(200):
            channel.basic_publish("", "work", b"x" * 100_000)
        peer = RawPeer(port_of(broker)).opened(1)
        peer.send(pamqp.frame.marshal(Basic.Get(queue="work", no_ack=True), 1) * 200)
        time.sleep(0.5)
        assert channel.queue_declare("work", durable=True, passive=True).method.message_count > 0
        drain(peer, 200 * 100_000)
        peer.close()


def test_a_consumer_of_a_stream_may_take_its_time() -> None:
    with served(settings={"amqp.consumer.timeout.ms": 1_000}) as (_, connection):
        channel = connection.channel()
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare("work", durable=True)
        channel.basic_qos(prefetch_count=10)
        channel.basic_publish("", "events", b"slow")
        arrived: list[bytes] = []
        take = lambda *delivered: arrived.append(delivered[3])  # noqa: E731
        channel.basic_consume("events", take, arguments={"x-stream-offset": "first"})
        eventually(lambda: connection.process_data_events(0.05) or arrived == [b"slow"])
        connection.process_data_events(1.5)
        assert channel.is_open
        channel.basic_consume("work", take)
        channel.basic_publish("", "work", b"stuck")
        eventually(lambda: connection.process_data_events(0.1) or channel.is_closed)


def test_a_feed_waits_for_room_in_a_full_queue_without_looking_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    pause = Feeds._pause

    async def counted(self: Feeds, seconds: float) -> None:
        pauses.append(seconds)
        await pause(self, seconds)

    monkeypatch.setattr(Feeds, "_pause", counted)
    with served(settings={"headrace.queue.feeds": "orders -> :work"}) as (broker, connection):
        channel = connection.channel()
        channel.queue_declare("work", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic("orders", partitions=1)
            with Producer(client) as producer:
                for number in range(3):
                    producer.send("orders", b"%d" % number)
        eventually(lambda: channel.queue_declare("work", passive=True).method.message_count == 1)
        time.sleep(0.5)
        assert len(pauses) < 50
        found: list[bytes] = []

        def take() -> bool:
            body = channel.basic_get("work", auto_ack=True)[2]
            if body is not None:
                found.append(body)
            return found == [b"0", b"1", b"2"]

        eventually(take)


def test_acknowledgements_that_come_together_make_room_and_count_up_to_a_wrong_one() -> None:
    with served() as (broker, connection):
        channel = connection.channel()
        channel.queue_declare("work", durable=True)
        for number in range(6):
            channel.basic_publish("", "work", b"%d" % number)
        peer = RawPeer(port_of(broker)).opened(1)
        peer.method(1, Basic.Qos(0, 2, False))
        peer.method(1, Basic.Consume(queue="work"))
        assert [peer.expect(Basic.Deliver).delivery_tag for _ in range(2)] == [1, 2]
        peer.send(b"".join(pamqp.frame.marshal(Basic.Ack(tag), 1) for tag in (1, 2)))
        assert [peer.expect(Basic.Deliver).delivery_tag for _ in range(2)] == [3, 4]
        peer.send(b"".join(pamqp.frame.marshal(Basic.Ack(tag), 1) for tag in (3, 99)))
        assert peer.closed_with()[:2] == ["channel", 406]
        assert unacknowledged(broker, "work") == 0
        rest = [channel.basic_get("work", auto_ack=True)[2] for _ in range(4)]
        assert rest == [b"3", b"4", b"5", None]
        peer.close()


def test_of_messages_that_come_together_a_full_queue_takes_what_fits() -> None:
    with served() as (broker, connection):
        limited = {"x-max-length": 2, "x-overflow": "reject-publish"}
        connection.channel().queue_declare("work", durable=True, arguments=limited)
        peer = RawPeer(port_of(broker)).opened(1)
        peer.method(1, Confirm.Select())
        peer.expect(Confirm.SelectOk)
        peer.send(published("work", b"x") * 3)
        assert peer.expect(Basic.Nack).delivery_tag == 3
        peer.close()


def test_a_connection_that_only_consumes_is_not_told_that_publishers_are_held() -> None:
    """Many clients give up a connection that is blocked for long, and then nobody would drain the queue."""
    disk = SimulatedDisk(capacity_bytes=16 << 20)
    with served(disk=disk, settings={"amqp.disk.free.limit.bytes": 1 << 20}) as (broker, connection):
        connection.channel().queue_declare("work", durable=True)
        consumer, publisher = RawPeer(port_of(broker)).opened(1), RawPeer(port_of(broker)).opened(1)
        publisher.send(published("work", b"before"))
        disk.capacity_bytes = disk.used_bytes() + (1 << 19)
        assert publisher.expect(Connection.Blocked).reason == "low on disk"
        late = RawPeer(port_of(broker)).opened(1)
        late.send(published("work", b"late"))
        late.expect(Connection.Blocked)
        consumer.method(1, Basic.Get(queue="work"))
        answer = consumer.receive()
        assert answer is not None
        assert isinstance(answer[1], Basic.GetOk)
        disk.capacity_bytes = 16 << 20
        for peer in (publisher, late):
            peer.expect(Connection.Unblocked)
        for peer in (consumer, publisher, late):
            peer.close()


def test_a_short_consumer_timeout_holds_although_another_consumer_of_the_channel_has_a_long_one() -> None:
    with served() as (broker, connection):
        channel = connection.channel()
        channel.queue_declare("patient", durable=True)
        channel.queue_declare("hasty", durable=True, arguments={"x-consumer-timeout": 300})
        channel.basic_publish("", "hasty", b"hard")
        peer = RawPeer(port_of(broker)).opened(1)
        for queue in ("patient", "hasty"):
            peer.method(1, Basic.Consume(queue=queue))
        kind, code, text, *_ = peer.closed_with()
        assert (kind, code) == ("channel", 406)
        assert "Timeout value used: 300 ms" in text
        peer.close()


def test_a_message_that_cannot_come_back_does_not_keep_the_others_or_the_queues_of_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One error in the end of a connection left its other messages with nobody, and its exclusive queues locked."""

    def give_back(queue: BrokerQueue, delivery: Delivery, *, is_failure: bool = False) -> None:
        if queue.name == "broken":
            raise RuntimeError("planted")
        original(queue, delivery, is_failure=is_failure)

    original = BrokerQueue.give_back
    monkeypatch.setattr(BrokerQueue, "give_back", give_back)
    with served() as (broker, connection):
        peer = RawPeer(port_of(broker)).opened(1)
        for name in ("broken", "sound"):
            peer.method(1, Queue.Declare(queue=name))
        peer.method(1, Queue.Declare(queue="own", exclusive=True))
        channel = connection.channel()
        eventually(lambda: [each.name for each in queues_of(broker)], lambda names: len(names) == 3)
        for name in ("broken", "sound"):
            channel.basic_publish("", name, b"x")
            peer.method(1, Basic.Get(queue=name))
            peer.expect(Basic.GetOk)
        peer.close()
        eventually(lambda: [each.name for each in queues_of(broker)], lambda names: names == ["broken", "sound"])
        assert channel.queue_declare("sound", passive=True).method.message_count == 1


def queues_of(broker: InProcessBroker) -> list[QueueInfo]:
    with Client(broker.bootstrap) as client:
        return list(Queues(client).list_all())


@pytest.mark.parametrize("exchange", ["", "shop"])
def test_what_is_published_to_a_damaged_queue_is_not_confirmed(tmp_path: Path, exchange: str) -> None:
    """It was taken for a message that nobody wants, and that is confirmed. The other queues get it."""
    with served(data=tmp_path) as (_, connection):
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("shop", "fanout", durable=True)
        for name in ("work", "copy"):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "shop")
        channel.basic_publish("", "work", b"x" * 1_000)
    (log,) = [path for path in tmp_path.glob("queues/*/1/*.log") if path.stat().st_size]
    os.truncate(log, 500)
    with served(data=tmp_path) as (broker, connection):
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish(exchange, "work", b"lost", mandatory=True)
        transactional = connection.channel()
        transactional.tx_select()
        transactional.basic_publish(exchange, "work", b"lost")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="partial tx completion"):
            transactional.tx_commit()
        copies = 2 if exchange else 0
        assert channel.queue_declare("copy", passive=True).method.message_count == copies
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="cannot be served"):
            channel.queue_delete("work")
        assert [each.name for each in queues_of(broker) if each.error] == ["work"]
