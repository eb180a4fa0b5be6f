"""Limits of what a client may have under way: messages that never end, transactions of nothing, names that are too
long, and clients that leave in the middle of a change."""

from __future__ import annotations

import struct
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
from headrace.client import Admin, Client, Producer, Queues
from headrace.testing import InProcessBroker
from headrace.testing.disk import SimulatedDisk
from tests.amqp.raw import BODY, FRAME_MAX, HEADER, METHOD, Basic, Connection, RawPeer, frame
from tests.waiting import eventually

pytestmark = pytest.mark.servers

Queue, Tx = pamqp.commands.Queue, pamqp.commands.Tx
TOO_LONG = "k" * 256


@contextmanager
def served(**options: Any) -> Iterator[tuple[InProcessBroker, Any]]:
    with testing.broker(amqp=True, **options) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        try:
            yield broker, connection.channel()
        finally:
            if connection.is_open:
                connection.close()


def begun(channel: int, size: int, sent: int) -> bytes:
    """A message of a size of which only a part is sent."""
    parts = [pamqp.frame.marshal(Basic.Publish(routing_key="q"), channel)]
    parts.append(frame(HEADER, channel, struct.pack(">HHQH", 60, 0, size, 0)))
    most = FRAME_MAX - 8
    parts += [frame(BODY, channel, bytes(min(most, sent - first))) for first in range(0, sent, most)]
    return b"".join(parts)


# ---- messages that never end ----------------------------------------------------------------------------------------


def test_no_message_is_taken_before_the_connection_is_open() -> None:
    with served() as (broker, _):
        peer = RawPeer(broker.amqp_port)
        peer.login()
        peer.expect(Connection.Tune)
        peer.send(begun(1, 16_000_000, 1_000))
        assert peer.closed_with() == ["connection", 504, "CHANNEL_ERROR - expected 'channel.open'", 60, 40]
        peer.close()


def test_a_message_may_follow_the_opening_at_once() -> None:
    with served() as (broker, channel):
        channel.queue_declare("q", durable=True)
        peer = RawPeer(broker.amqp_port)
        peer.login()
        peer.tune()
        opening = [(0, Connection.Open("/")), (1, pamqp.commands.Channel.Open())]
        peer.send(b"".join(pamqp.frame.marshal(method, number) for number, method in opening) + begun(1, 5, 5))
        eventually(lambda: channel.queue_declare("q", passive=True).method.message_count == 1)
        peer.close()


def test_all_connections_together_hold_a_limited_part_of_messages_that_do_not_end() -> None:
    """The one that holds the most is closed, and others go on."""
    with served(settings={"amqp.unfinished.bytes.max": 4 << 20}) as (broker, channel):
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        small, large = RawPeer(broker.amqp_port).opened(1), RawPeer(broker.amqp_port).opened(1, 2)
        small.send(begun(1, 2_000_000, 1_900_000))
        large.send(begun(1, 2_000_000, 1_900_000) + begun(2, 2_000_000, 1_900_000))
        kind, code, text, *_ = large.closed_with()
        assert (kind, code) == ("connection", 506)
        assert "amqp.unfinished.bytes.max" in text
        channel.basic_publish("", "q", b"x" * 1_000_000)
        small.send(frame(BODY, 1, bytes(100_000)))
        eventually(lambda: channel.queue_declare("q", passive=True).method.message_count == 2)
        for peer in (small, large):
            peer.close()


def test_methods_and_headers_of_messages_that_do_not_end_count_too() -> None:
    """Both may be as long as a frame, and there are two thousand channels."""
    method = pamqp.frame.marshal(Basic.Publish(routing_key="q"), 1)[7:-1].ljust(FRAME_MAX - 8, b"\x00")
    header = struct.pack(">HHQH", 60, 0, 5, 0).ljust(FRAME_MAX - 8, b"\x00")
    with served(settings={"amqp.unfinished.bytes.max": 4 << 20}) as (broker, channel):
        for frames in ((METHOD, method), (METHOD, method, HEADER, header)):
            peer = RawPeer(broker.amqp_port).opened()
            for number in range(1, 51):
                for kind, payload in zip(frames[::2], frames[1::2], strict=True):
                    peer.send(frame(kind, number, payload))
            kind, code, text, *_ = peer.closed_with()
            assert (kind, code) == ("connection", 506)
            assert "amqp.unfinished.bytes.max" in text
            peer.close()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for _ in range(50):
            channel.basic_publish("", "q", b"x" * 100_000, pika.BasicProperties(headers={"h": "x" * 50_000}))


def test_what_a_connection_held_that_broke_off_counts_no_longer() -> None:
    with served(settings={"amqp.unfinished.bytes.max": 4 << 20}) as (broker, _):
        for _ in range(3):
            peer = RawPeer(broker.amqp_port).opened(1)
            peer.send(begun(1, 2_000_000, 1_900_000))
            peer.close()

        def is_taken() -> bool:
            peer = RawPeer(broker.amqp_port).opened(1)
            peer.send(begun(1, 2_000_000, 1_900_000))
            peer.method(0, Connection.Close(200, "", 0, 0))
            answer = peer.receive()
            peer.close()
            return answer is not None and isinstance(answer[1], Connection.CloseOk)

        eventually(is_taken)


def test_what_an_ended_connection_held_counts_no_longer() -> None:
    with served(settings={"amqp.unfinished.bytes.max": 4 << 20}) as (broker, channel):
        channel.queue_declare("q", durable=True)
        for _ in range(4):
            peer = RawPeer(broker.amqp_port).opened(1)
            peer.send(begun(1, 2_000_000, 1_900_000))
            peer.method(0, Connection.Close(200, "", 0, 0))
            peer.expect(Connection.CloseOk)
            peer.close()


# ---- transactions of nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [begun(1, 0, 0), pamqp.frame.marshal(Basic.Ack(0, True), 1)],
    ids=["empty messages", "acknowledgements of nothing"],
)
def test_a_transaction_is_limited_although_its_steps_have_no_bytes(step: bytes) -> None:
    with served(settings={"amqp.transaction.bytes.max": 1 << 16}) as (broker, channel):
        channel.queue_declare("q", durable=True)
        peer = RawPeer(broker.amqp_port).opened(1)
        peer.method(1, Tx.Select())
        peer.expect(Tx.SelectOk)
        peer.send(step * 200)
        kind, code, text, *_ = peer.closed_with()
        assert (kind, code) == ("connection", 506)
        assert "amqp.transaction.bytes.max" in text
        peer.close()


# ---- names that are too long ----------------------------------------------------------------------------------------


def test_a_dead_letter_routing_key_that_no_delivery_could_carry_is_refused() -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": TOO_LONG}
    with served() as (_, channel):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-dead-letter-routing-key") as refused:
            channel.queue_declare("q", durable=True, arguments=arguments)
        assert refused.value.reply_code == 406


@pytest.mark.parametrize(
    "death", [{"routing-keys": [TOO_LONG], "exchange": ""}, {"routing-keys": ["k"], "exchange": TOO_LONG}]
)
def test_a_redriven_message_is_delivered_whatever_its_header_says(death: dict[str, Any]) -> None:
    headers = {"x-death": [{"queue": "work", "reason": "rejected", **death}]}
    with served() as (broker, channel):
        for name in ("work", "dead"):
            channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "dead", b"x", pika.BasicProperties(headers=headers))
        with Client(broker.bootstrap) as client:
            queues = Queues(client)
            assert [done.moved for done in queues.redrive("dead", list(queues.messages("dead")))][-1] == 1
        method, _, body = channel.basic_get("work", auto_ack=True)
        assert (method.routing_key, body) == ("dead", b"x")


def test_messages_cannot_be_moved_with_a_routing_key_that_is_too_long() -> None:
    with served() as (broker, channel):
        channel.queue_declare("work", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "work", b"x")
        with Client(broker.bootstrap) as client, pytest.raises(Exception, match="at most 255 bytes"):
            queues = Queues(client)
            list(queues.move("work", list(queues.messages("work")), exchange="amq.fanout", routing_key=TOO_LONG))
        assert channel.queue_declare("work", passive=True).method.message_count == 1


def test_a_feed_takes_records_of_long_names() -> None:
    topic = "t" * 249
    with served(settings={"headrace.queue.feeds": f"{topic} -> :q"}) as (broker, channel):
        channel.queue_declare("q", durable=True)
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic(topic, partitions=1)
            with Producer(client) as producer:
                producer.send(topic, b"x", headers=[("h" * 300, b"1"), ("kept", b"2")])
        _, properties, body = eventually(lambda: channel.basic_get("q", auto_ack=True), lambda got: got[0] is not None)
        assert body == b"x"
        assert properties.message_id.endswith("/0/0")
        assert properties.headers["kept"] == "2"


# ---- clients that leave ---------------------------------------------------------------------------------------------


def test_a_queue_is_deleted_to_the_last_file_although_the_client_leaves(tmp_path: Path) -> None:
    with served(data=tmp_path) as (broker, channel):
        channel.queue_declare("kept", durable=True)
        files = len(list((tmp_path / "queues").iterdir()))
        for number in range(5):
            channel.queue_declare(f"q{number}", durable=True)
            peer = RawPeer(broker.amqp_port).opened(1)
            peer.method(1, Queue.Delete(queue=f"q{number}"))
            peer.close()
        eventually(lambda: len(list((tmp_path / "queues").iterdir())) == files)


def test_an_exclusive_queue_does_not_stay_although_its_client_leaves_while_it_is_made(tmp_path: Path) -> None:
    with served(data=tmp_path) as (broker, channel):
        channel.queue_declare("kept", durable=True)
        files = len(list((tmp_path / "queues").iterdir()))
        for _ in range(5):
            peer = RawPeer(broker.amqp_port).opened(1)
            peer.method(1, Queue.Declare(queue="mine", exclusive=True))
            peer.close()
        listeners = {each.name: each for each in broker._node._listeners}
        eventually(lambda: listeners["amqp"].connections == 1)
        # A declaration whose files are under way is still carried out, and undone after that.
        eventually(lambda: refusal_of_passive_declare(channel, "mine"), lambda refusal: "NOT_FOUND" in refusal)
        eventually(lambda: len(list((tmp_path / "queues").iterdir())) == files)


def refusal_of_passive_declare(channel: Any, queue: str) -> str:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.connection.channel().queue_declare(queue, passive=True)
    return str(refused.value)


# ---- messages that cannot be read -----------------------------------------------------------------------------------


def test_a_refusal_that_fails_half_way_leaves_nothing_that_nobody_holds() -> None:
    """The second of three rejected messages cannot be read for its dead letter: the connection ends with an error, and
    all that was not rejected is ready again."""
    disk = SimulatedDisk()
    with served(disk=disk) as (broker, channel):
        channel.queue_declare("dead", durable=True)
        dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("work", durable=True, arguments=dying)
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("", "work", b"message %d" % number)
        tags = [channel.basic_get("work")[0].delivery_tag for _ in range(3)]
        path = next(path for path in paths_of(disk, "/") if b"message 1" in disk.contents(path))
        at = disk.contents(path).index(b"message 1")
        disk.damage(path, lambda data: data.__setitem__(at, 0))
        channel.basic_nack(tags[-1], multiple=True, requeue=False)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="RESOURCE_ERROR"):
            channel.queue_declare("dead", passive=True)
        with Client(broker.bootstrap) as client:
            found = eventually(lambda: Queues(client).describe("work"), lambda each: each.unacknowledged == 0)
            assert found.ready == 2
            assert Queues(client).describe("dead").ready == 1


def paths_of(disk: SimulatedDisk, folder: str) -> Iterator[str]:
    """Every file below a folder of the simulated disk."""
    for name in disk.listdir(folder):
        path = f"{folder.rstrip('/')}/{name}"
        if disk.is_directory(path):
            yield from paths_of(disk, path)
        else:
            yield path
