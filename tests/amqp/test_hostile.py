"""Bad input costs one connection: others go on, and memory stays bounded."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator

import pika
import psutil
import pytest

from tests.servers.headrace import headrace_server, listener_address
from tests.servers.process import RunningServer

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
