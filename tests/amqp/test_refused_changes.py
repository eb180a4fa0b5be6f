"""Declarations and deletions that the disk refuses: what a client is answered afterwards holds after a restart."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pika.exceptions
import pytest

from headrace import testing
from headrace.broker.queues import rows
from headrace.testing.disk import SimulatedDisk
from tests.waiting import eventually

pytestmark = pytest.mark.servers

STATE = "/state/"


@contextmanager
def served(disk: SimulatedDisk) -> Iterator[pika.BlockingConnection]:
    with testing.broker(amqp=True, disk=disk, data="/data") as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        yield connection
        if connection.is_open:
            connection.close()


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again by itself within this test."""
    monkeypatch.setattr(rows, "RETRY_S", 3_600.0)


def refused(
    disk: SimulatedDisk, connection: pika.BlockingConnection, change: str, *arguments: Any, **named: Any
) -> Any:
    """A change that the disk refuses once, and the channel that another client makes after it."""
    disk.fail_next("write", errno.ENOSPC, STATE)
    parameters = pika.ConnectionParameters("127.0.0.1", connection._impl.params.port)
    other = pika.BlockingConnection(parameters)
    with pytest.raises(pika.exceptions.AMQPError, match="the disk refuses the change"):
        getattr(other.channel(), change)(*arguments, **named)
    return connection.channel()


def exists(connection: pika.BlockingConnection, declare: str, name: str) -> bool:
    try:
        getattr(connection.channel(), declare)(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        return error.reply_code != 404
    return True


@pytest.mark.usefixtures("later")
def test_an_exchange_and_a_binding_that_are_declared_again_are_there_after_a_restart(disk: SimulatedDisk) -> None:
    with served(disk) as connection:
        connection.channel().queue_declare("q", durable=True)
        channel = refused(disk, connection, "exchange_declare", "e", "fanout", durable=True)
        channel.exchange_declare("e", "fanout", durable=True)
        channel = refused(disk, connection, "queue_bind", "q", "e", "key")
        channel.queue_bind("q", "e", "key")
    with served(disk) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("e", "any", b"x", mandatory=True)
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"


@pytest.mark.usefixtures("later")
def test_what_is_deleted_again_does_not_come_back(disk: SimulatedDisk) -> None:
    with served(disk) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        for name in ("e", "f"):
            channel.exchange_declare(name, "fanout", durable=True)
            channel.queue_bind("q", name)
        refused(disk, connection, "queue_unbind", "q", "f").queue_unbind("q", "f")
        refused(disk, connection, "exchange_delete", "e").exchange_delete("e")
    with served(disk) as connection:
        assert not exists(connection, "exchange_declare", "e")
        connection.channel().basic_publish("f", "", b"x")
        assert connection.channel().queue_declare("q", passive=True).method.message_count == 0
        refused(disk, connection, "queue_delete", "q").queue_delete("q")
    with served(disk) as connection:
        assert not exists(connection, "queue_declare", "q")
    assert disk.listdir("/data/queues") == [], "its files are gone too"


@pytest.mark.usefixtures("later")
def test_a_queue_that_was_refused_does_not_exist(disk: SimulatedDisk) -> None:
    with served(disk) as connection:
        refused(disk, connection, "queue_declare", "q", durable=True)
        assert not exists(connection, "queue_declare", "q")
        connection.channel().exchange_declare("e", "fanout", durable=True)
    with served(disk) as connection:
        assert not exists(connection, "queue_declare", "q")


@pytest.mark.usefixtures("later")
def test_a_refused_binding_does_not_outlive_its_queue(disk: SimulatedDisk) -> None:
    with served(disk) as connection:
        connection.channel().queue_declare("q", durable=True)
        channel = refused(disk, connection, "queue_bind", "q", "amq.fanout")
        channel.queue_delete("q")
        channel.queue_declare("q", durable=True)
    with served(disk) as connection:
        channel = connection.channel()
        channel.basic_publish("amq.fanout", "", b"x")
        assert channel.queue_declare("q", passive=True).method.message_count == 0


def test_a_refused_deletion_is_done_as_soon_as_the_disk_takes_it(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "RETRY_S", 0.01)
    with served(disk) as connection:
        connection.channel().queue_declare("q", durable=True)
        for _ in range(3):  # the client's attempt and two of the broker's
            disk.fail_next("write", errno.ENOSPC, STATE)
        refused(disk, connection, "queue_delete", "q")
        eventually(lambda: disk.listdir("/data/queues") == [])
    with served(disk) as connection:
        assert not exists(connection, "queue_declare", "q")
