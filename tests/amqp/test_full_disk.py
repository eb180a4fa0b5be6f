"""A full disk: publishers are held and told, consumers drain the queue, and all goes on when there is room."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pamqp.commands
import pika
import pytest

from tests.amqp.raw import BODY, HEADER, Connection, RawPeer, frame
from tests.servers.headrace import headrace_server, listener_address
from tests.servers.process import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers

DISK_BYTES = 12 << 20
LARGE_DISK_BYTES = 60 << 20
RESERVE_BYTES = 45 << 20
"""More than comes between two looks at the free space: a disk in memory is fast."""
BODY_BYTES = 100_000
MESSAGES_MAX = 2 * DISK_BYTES // BODY_BYTES


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"only root may mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def publish(peer: RawPeer, number: int) -> None:
    body = str(number).encode().ljust(BODY_BYTES)
    peer.method(1, pamqp.commands.Basic.Publish(exchange="", routing_key="full"))
    peer.send(frame(HEADER, 1, struct.pack(">HHQH", 60, 0, len(body), 0)) + frame(BODY, 1, body))


@contextmanager
def broker_on(folder: Path, free_limit: int) -> Iterator[tuple[RunningServer, int]]:
    settings = {"amqp.disk.free.limit.bytes": str(free_limit)}
    arguments = ["--amqp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    with headrace_server(data=folder / "data", settings=settings, arguments=arguments, expect_exit=None) as server:
        yield server, int(listener_address(server.log, "amqp").rpartition(":")[2])


def blocked(server: RunningServer) -> bool:
    """What an operator's dashboard says."""
    with urllib.request.urlopen(f"http://{listener_address(server.log, 'metrics')}/metrics", timeout=30) as answer:
        return "headrace_queues_blocked 1.0" in answer.read().decode().splitlines()


def test_publishers_are_held_and_told_and_consumers_drain(small_disk: Path) -> None:
    """Without a reserve."""
    with broker_on(small_disk, 0) as (server, port):
        consuming = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
        consuming.queue_declare("full", durable=True)
        publisher = RawPeer(port).opened(1)
        sent = 0
        while "disk" not in (said := server.log.read_text()) or "publishers are held" not in said:
            publish(publisher, sent)
            sent += 1
            consuming.queue_declare("full", durable=True, passive=True)
            assert sent < MESSAGES_MAX, "the disk should be full by now"
        assert publisher.expect(Connection.Blocked).reason
        assert blocked(server)
        stored = consuming.queue_declare("full", durable=True, passive=True).method.message_count
        found = []
        while len(found) < stored // 2:
            method, _, body = consuming.basic_get("full")
            assert method is not None, "consumers go on"
            found.append(int(body))
            consuming.basic_ack(method.delivery_tag)
        subprocess.run(["mount", "-o", f"remount,size={8 * DISK_BYTES}", str(small_disk)], check=True)
        publisher.expect(Connection.Unblocked)
        assert not blocked(server)

        def take() -> bool:
            method, _, body = consuming.basic_get("full", auto_ack=True)
            if method is not None:
                found.append(int(body))
            return len(found) == sent

        eventually(take)
        assert found == list(range(sent))
        publisher.close()
        consuming.connection.close()


def test_the_reserve_keeps_acknowledgements_through_a_kill(small_disk: Path) -> None:
    """Publishers are held before a write fails. What consumers acknowledge then is written and does not come back."""
    subprocess.run(["mount", "-o", f"remount,size={LARGE_DISK_BYTES}", str(small_disk)], check=True)
    with broker_on(small_disk, RESERVE_BYTES) as (server, port):
        consuming = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
        consuming.queue_declare("full", durable=True)
        publisher = RawPeer(port).opened(1)
        sent = 0
        while "publishers of queues are held" not in server.log.read_text():
            publish(publisher, sent)
            sent += 1
            consuming.queue_declare("full", durable=True, passive=True)
            assert sent < LARGE_DISK_BYTES // BODY_BYTES, "the disk should be almost full by now"
        assert publisher.expect(Connection.Blocked).reason == "low on disk"
        assert "fails" not in server.log.read_text(), "no write was refused"
        found = []
        for _ in range(20):
            method, _, body = consuming.basic_get("full")
            found.append(int(body))
            consuming.basic_ack(method.delivery_tag)
        # What the broker has read; the acknowledgements before it were handled.
        read = 20 + consuming.queue_declare("full", durable=True, passive=True).method.message_count
        consuming.connection.close()
        os.kill(server.pid, signal.SIGKILL)
        publisher.close()
    with broker_on(small_disk, RESERVE_BYTES) as (server, port):
        publisher = RawPeer(port).opened(1)
        publish(publisher, sent)
        publisher.expect(Connection.Blocked)
        subprocess.run(["mount", "-o", f"remount,size={4 * LARGE_DISK_BYTES}", str(small_disk)], check=True)
        publisher.expect(Connection.Unblocked)
        consuming = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()

        def take() -> bool:
            method, _, body = consuming.basic_get("full", auto_ack=True)
            if method is not None:
                found.append(int(body))
            return len(found) == read + 1

        eventually(take)
        assert found == [*range(read), sent]
        publisher.close()
        consuming.connection.close()
