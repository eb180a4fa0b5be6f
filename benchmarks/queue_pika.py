"""Load from pika, the client that most Python programs use: one message at a time, and a backlog with a prefetch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import quantiles

import pika

from benchmarks.brokers import unique
from benchmarks.meters import Meter
from benchmarks.queue_client import PreparedClient, publication

__all__ = ["PikaOutcome", "confirm_each", "consume_backlog"]

SIZE = 1_000
PREFETCH = 200
GROUP = 500


@dataclass(frozen=True, slots=True)
class PikaOutcome:
    """Rate, the p99 of one call where calls were timed, and the broker's CPU."""

    per_s: float
    p99_ms: float
    cpu_us: float


def confirm_each(port: int, pid: int, count: int) -> PikaOutcome:
    """Publish persistent messages of 1 KB, each when the one before it is confirmed."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    queue = unique("pika")
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    properties, body = pika.BasicProperties(delivery_mode=2), b"x" * SIZE
    taken_ms = []
    with Meter(pid) as meter:
        for _ in range(count):
            began = time.monotonic()
            channel.basic_publish("", queue, body, properties)
            taken_ms.append((time.monotonic() - began) * 1000)
    channel.queue_delete(queue)
    connection.close()
    return PikaOutcome(count / meter.wall_s, quantiles(taken_ms, n=100)[98], meter.cpu_s / count * 1e6)


def consume_backlog(port: int, pid: int, count: int) -> PikaOutcome:
    """Take a backlog of messages of 1 KB with a prefetch, and acknowledge each."""
    queue = unique("pika")
    fill(port, queue, count, SIZE)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    with Meter(pid) as meter:
        for number, (method, _, _) in enumerate(channel.consume(queue), 1):
            channel.basic_ack(method.delivery_tag)
            if number == count:
                break
        channel.cancel()
    channel.queue_delete(queue)
    connection.close()
    return PikaOutcome(count / meter.wall_s, 0.0, meter.cpu_s / count * 1e6)


def fill(port: int, queue: str, count: int, size: int) -> None:
    """Publish persistent messages with confirms, by a client that is not the limit."""
    client = PreparedClient(port)
    client.call("queue.declare", queue=queue, durable=True)
    client.call("confirm.select")
    client.publish(publication(queue, size) * GROUP, GROUP, times=count // GROUP)
    client.close()
