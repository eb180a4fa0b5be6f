"""How long messages take from a publisher to a consumer, and how many of them wait in the queue meanwhile.

Both clients send prepared bytes and cost little, each in its own process. By Little's law the time is what waits
divided by the rate: where PerfTest's consumer is slower than its publisher for a moment, its time measures the clients.
"""

from __future__ import annotations

import multiprocessing
import select
import struct
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.brokers import unique
from benchmarks.queue_client import READ_BYTES, PreparedClient, acks, delivery_size, publication
from headrace.wire.amqp.methods import encode_method

__all__ = ["DeliveryTimes", "delivery_times"]

SIZE = 12
"""A time of eight bytes, and four more."""
STAMP = struct.Struct(">qi")
GROUP = 10
WINDOW = 500
PREFETCH = 200
WARM_UP_SHARE = 5
"""This part of what was measured first does not count."""


@dataclass(frozen=True, slots=True)
class DeliveryTimes:
    """Of one run; ``waiting_p99`` is how many messages were ready in the queue."""

    received_per_s: float
    p50_ms: float
    p99_ms: float
    waiting_p99: float


def delivery_times(port: int, seconds: float, rate: int | None) -> DeliveryTimes:
    """A publisher with a window of unconfirmed messages, at a rate if one is given, and a consumer with a prefetch that
    acknowledges each message."""
    queue = unique("delivery")
    observer = PreparedClient(port)
    observer.call("queue.declare", queue=queue, durable=True)
    context = multiprocessing.get_context("fork")
    found: multiprocessing.SimpleQueue[tuple[float, float, float]] = context.SimpleQueue()
    clients = [
        context.Process(target=_consume, args=(port, queue, seconds, found)),
        context.Process(target=_publish, args=(port, queue, seconds, rate)),
    ]
    for client in clients:
        client.start()
    waiting = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        waiting.append(observer.call("queue.declare", queue=queue, durable=True, passive=True)["message_count"])
        time.sleep(0.05)
    received_per_s, p50_ms, p99_ms = found.get()
    for client in clients:
        client.join()
    observer.call("queue.delete", queue=queue)
    observer.close()
    return DeliveryTimes(received_per_s, p50_ms, p99_ms, float(np.percentile(_warm(waiting), 99)))


def _warm(values: list[int]) -> list[int]:
    return values[len(values) // WARM_UP_SHARE :]


def _publish(port: int, queue: str, seconds: float, rate: int | None) -> None:
    client = PreparedClient(port)
    client.call("confirm.select")
    head = publication(queue, SIZE)[: -1 - SIZE]
    sent = confirmed = 0
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        has_room = sent - confirmed <= WINDOW - GROUP
        if has_room and (rate is None or sent < passed * rate):
            client.send((head + STAMP.pack(time.monotonic_ns(), 0) + b"\xce") * GROUP)
            sent += GROUP
            continue
        wait_s = 0.0005 if has_room else 1.0
        if client.has_events or select.select([client.socket], [], [], wait_s)[0]:
            confirmed = max(confirmed, client.next_confirm()[0][-1])
    client.close()


def _consume(
    port: int, queue: str, seconds: float, found: multiprocessing.SimpleQueue[tuple[float, float, float]]
) -> None:
    """All deliveries have one length, so the times in them are a column of what was read."""
    client = PreparedClient(port)
    client.call("basic.qos", prefetch_count=PREFETCH)
    client.send_method("basic.consume", queue=queue, consumer_tag="c")
    size = delivery_size(queue, SIZE)
    skipped = len(encode_method("basic.consume-ok", {"consumer_tag": "c"})) + 8
    client.socket.settimeout(0.2)
    data, count, taken = b"", 0, []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            data += client.socket.recv(READ_BYTES)
        except TimeoutError:
            continue
        if skipped and len(data) >= skipped:
            data, skipped = data[skipped:], 0
        whole = 0 if skipped else len(data) // size
        if whole:
            rows = np.frombuffer(data, np.uint8, whole * size).reshape(whole, size)
            stamps = np.ascontiguousarray(rows[:, -1 - SIZE : -1 - SIZE + 8]).view(">i8").ravel()
            taken.append((time.monotonic_ns() - stamps.astype(np.int64)) / 1e6)
            data = data[whole * size :]
            client.send(acks(range(count + 1, count + whole + 1)))
            count += whole
    client.close()
    times = np.concatenate(taken)
    p50_ms, p99_ms = np.percentile(times[len(times) // WARM_UP_SHARE :], [50, 99])
    found.put((count / seconds, float(p50_ms), float(p99_ms)))
