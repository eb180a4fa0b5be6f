"""Bad input costs one connection: others go on, and memory stays bounded."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator

import confluent_kafka
import pamqp.commands
import pamqp.frame
import pika
import psutil
import pytest

from tests.amqp.raw import BODY, FRAME_MAX, HEADER, METHOD, Basic, Channel, Connection, RawPeer, nested
from tests.amqp.raw import frame as raw_frame
from tests.servers.headrace import headrace_server, listener_address
from tests.servers.process import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers

CONNECTIONS = 150
CLASSES = (10, 20, 40, 50, 60, 85, 90)
METHODS = (10, 11, 20, 30, 31, 40, 41, 50, 51, 60, 70, 80, 90, 110, 120)


@pytest.fixture
def server() -> Iterator[tuple[RunningServer, int]]:
    with headrace_server(arguments=["--amqp", "127.0.0.1:0"]) as running:
        yield running, int(listener_address(running.log, "amqp").rpartition(":")[2])


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def handshaken(port: int) -> socket.socket:
    """A connection with channel 1 open, made by hand."""
    peer = socket.create_connection(("127.0.0.1", port), timeout=10)
    peer.sendall(b"AMQP\x00\x00\x09\x01")
    peer.recv(65536)
    login = b"\x00\x0a\x00\x0b" + b"\x00" * 4 + b"\x05PLAIN" + struct.pack(">I", 12) + b"\x00guest\x00guest\x05en_US"
    peer.sendall(frame(1, 0, login))
    peer.recv(65536)
    peer.sendall(frame(1, 0, b"\x00\x0a\x00\x1f" + struct.pack(">HIH", 2047, 131_072, 0)))
    peer.sendall(frame(1, 0, b"\x00\x0a\x00\x28\x01/\x00\x00"))
    peer.recv(65536)
    peer.sendall(frame(1, 1, b"\x00\x14\x00\x0a\x00"))
    peer.recv(65536)
    return peer


def test_frames_of_nonsense_harm_nobody_else(server: tuple[RunningServer, int]) -> None:
    running, port = server
    chance = random.Random(7)
    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
    channel.queue_declare("good", durable=True)
    channel.confirm_delivery()
    for number in range(CONNECTIONS):
        with handshaken(port) as peer:
            try:
                for _ in range(chance.randrange(1, 8)):
                    method = struct.pack(">HH", chance.choice(CLASSES), chance.choice(METHODS))
                    payload = method + chance.randbytes(chance.randrange(60))
                    peer.sendall(frame(chance.choice((1, 1, 1, 2, 3, 8)), chance.choice((0, 1, 1, 2)), payload))
            except ConnectionError:
                pass  # it has been cut off
        if number % 10 == 0:
            channel.basic_publish("", "good", b"%d" % number)
    assert channel.queue_declare("good", durable=True, passive=True).method.message_count == CONNECTIONS // 10
    channel.connection.close()
    assert "Traceback" not in running.log.read_text()


def test_a_consumer_that_does_not_read_gets_no_more_than_fits(server: tuple[RunningServer, int]) -> None:
    running, port = server
    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
    channel.queue_declare("much", durable=True)
    channel.confirm_delivery()
    body = b"x" * 1_000_000
    for _ in range(20):
        channel.basic_publish("", "much", body)
    before = psutil.Process(running.pid).memory_info().rss
    silent = handshaken(port)
    silent.sendall(frame(1, 1, b"\x00\x3c\x00\x14\x00\x00\x04much\x00\x02\x00\x00\x00\x00"))
    for _ in range(60):
        channel.basic_publish("", "much", body)
    time.sleep(0.5)
    assert psutil.Process(running.pid).memory_info().rss - before < 60_000_000
    left = channel.queue_declare("much", durable=True, passive=True).method.message_count
    assert left > 60
    silent.close()
    channel.connection.close()


def test_another_protocol_is_told_which_one_is_spoken_here(server: tuple[RunningServer, int]) -> None:
    _, port = server
    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.recv(100) == b"AMQP\x00\x00\x09\x01"
        assert peer.recv(100) == b""


def test_a_wrong_password_is_refused_in_words(server: tuple[RunningServer, int]) -> None:
    _, port = server
    wrong = pika.PlainCredentials("guest", "guess")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="Login was refused"):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=wrong))


DECLARE = struct.pack(">HH", 50, 10) + b"\x00\x00\x01q\x00"
PUBLISH = pamqp.frame.marshal(pamqp.commands.Basic.Publish(routing_key="q"), 1)


def content_header(size: int) -> bytes:
    return raw_frame(HEADER, 1, struct.pack(">HHQH", 60, 0, size, 0))


ATTACKS: dict[str, tuple[bytes, list[object]]] = {
    "a table in a thousand tables": (raw_frame(METHOD, 1, DECLARE + nested(1_000)), ["connection", 501]),
    "a value of no type": (raw_frame(METHOD, 1, DECLARE + b"\x00\x00\x00\x03\x01aQ"), ["connection", 501]),
    "an unknown method": (raw_frame(METHOD, 1, struct.pack(">HH", 60, 77)), ["connection", 503]),
    "an unknown class": (raw_frame(METHOD, 1, struct.pack(">HH", 77, 10)), ["connection", 503]),
    "an answer that only a broker gives": (
        raw_frame(METHOD, 1, struct.pack(">HHQB", 60, 71, 1, 0) + b"\x00\x00" + bytes(4)),
        ["connection", 503],
    ),
    "a frame larger than agreed": (struct.pack(">BHI", BODY, 1, FRAME_MAX) + bytes(100), ["connection", 501]),
    "a frame of four gigabytes": (struct.pack(">BHI", BODY, 1, 2**32 - 1) + b"x", ["connection", 501]),
    "a channel above the limit": (raw_frame(METHOD, 3_000, b"\x00\x14\x00\x0a\x00"), ["connection", 504]),
    "a body longer than announced": (
        PUBLISH + content_header(3) + raw_frame(BODY, 1, b"longer than three"),
        ["connection", 501],
    ),
    "a body of exabytes": (PUBLISH + content_header(2**62), ["channel", 406]),
    "properties that are cut short": (
        PUBLISH + raw_frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 0, 0xFFFE)),
        ["connection", 502],
    ),
}


def test_every_attack_gets_its_answer_and_others_go_on(server: tuple[RunningServer, int]) -> None:
    """On one broker, with a client of Kafka and one of AMQP at work beside."""
    running, port = server
    producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap})
    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
    channel.queue_declare("beside", durable=True)
    channel.confirm_delivery()
    ends = {}
    delivered: list[object] = []
    for name, (attack, _) in ATTACKS.items():
        peer = RawPeer(port).opened(1)
        peer.send(attack)
        end = peer.closed_with()
        ends[name] = end[:2] if isinstance(end, list) else end
        peer.close()
        channel.basic_publish("", "beside", name.encode())
        producer.produce("beside", name.encode(), on_delivery=lambda error, _: delivered.append(error))
    assert ends == {name: expected for name, (_, expected) in ATTACKS.items()}
    assert producer.flush(30) == 0
    assert delivered == [None] * len(ATTACKS)
    assert channel.queue_declare("beside", durable=True, passive=True).method.message_count == len(ATTACKS)
    channel.connection.close()
    assert "Traceback" not in running.log.read_text()


def test_announced_bodies_are_not_believed_and_channels_are_cheap(server: tuple[RunningServer, int]) -> None:
    """All channels that there may be, on each of them a large message that never comes."""
    running, port = server
    before = psutil.Process(running.pid).memory_info().rss
    peer = RawPeer(port).opened()
    for number in range(1, 2048):
        peer.send(pamqp.frame.marshal(Channel.Open(), number))
    for number in range(1, 2048):
        peer.send(pamqp.frame.marshal(Basic.Publish(routing_key="q"), number))
        peer.send(raw_frame(HEADER, number, struct.pack(">HHQH", 60, 0, 16_000_000, 0)))
    kind, code, text, *_ = peer.closed_with()
    assert (kind, code) == ("connection", 506)
    assert "begun and not ended" in text
    peer.close()
    assert psutil.Process(running.pid).memory_info().rss - before < 60_000_000


def test_a_peer_that_falls_silent_is_cut_off(server: tuple[RunningServer, int]) -> None:
    """Half a handshake, and a connection that stops beating. What the second one holds comes back."""
    _, port = server
    half = RawPeer(port)
    half.expect(Connection.Start)
    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
    channel.queue_declare("held", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "held", b"x")
    silent = RawPeer(port)
    silent.login()
    silent.tune(heartbeat=1)
    silent.open()
    silent.method(1, Channel.Open())
    silent.expect(Channel.OpenOk)
    silent.method(1, Basic.Get(queue="held"))
    silent.expect(Basic.GetOk)
    assert silent.closed_with() == "cut off", "heartbeats of the broker come, and then the end"
    eventually(lambda: channel.queue_declare("held", durable=True, passive=True).method.message_count == 1)
    assert half.receive() is None
    for peer in (half, silent):
        peer.close()
    channel.connection.close()
