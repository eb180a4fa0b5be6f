"""How long a confirm takes, seen by a client that costs next to nothing.

PerfTest publishes as fast as it can with 500 messages unconfirmed, so its latency is 500 divided by the rate, unless
the broker reads the publisher's socket slowly: then the wait is in the socket, where nobody measures it. Here latency
is measured in two other ways: at a fixed rate that both brokers can keep, from when a message should have been sent;
and with a full window, where the rate tells the rest.
"""

from __future__ import annotations

import select
import time
from collections import deque
from dataclasses import dataclass
from statistics import quantiles

from benchmarks.brokers import unique
from benchmarks.meters import Meter
from benchmarks.queue_client import PreparedClient, publication

__all__ = ["RATE", "ConfirmTimes", "at_a_rate", "with_a_full_window"]

RATE = 500


@dataclass(frozen=True, slots=True)
class ConfirmTimes:
    """Of one run."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


class Confirmed:
    """Which messages are confirmed; RabbitMQ may confirm out of order."""

    def __init__(self, client: PreparedClient) -> None:
        self._client = client
        self._early: set[int] = set()
        self._waiting: deque[tuple[int, float]] = deque()
        self._up_to = 0
        self.taken_ms: list[float] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def sent(self, number: int, at: float) -> None:
        """Numbers up to this one were sent."""
        self._waiting.append((number, at))

    def receive(self) -> None:
        """Take the confirms that are next."""
        tags, is_multiple = self._client.next_confirm()
        now = time.monotonic()
        if is_multiple:
            self._up_to = max(self._up_to, tags[-1])
        else:
            self._early.update(tags)
        while self._up_to + 1 in self._early:
            self._up_to += 1
            self._early.discard(self._up_to)
        while self._waiting and self._waiting[0][0] <= self._up_to:
            self.taken_ms.append((now - self._waiting.popleft()[1]) * 1000)


def with_a_full_window(port: int, pid: int, size: int, seconds: float, *, group: int, groups: int) -> ConfirmTimes:
    """As fast as it goes, with so many groups of messages unconfirmed; the time of a group is that of its last."""
    client, queue = _publisher(port)
    data = publication(queue, size) * group
    confirmed, number = Confirmed(client), 0
    with Meter(pid) as meter:
        end = time.monotonic() + seconds
        while confirmed.waiting or time.monotonic() < end:
            while confirmed.waiting < groups and time.monotonic() < end:
                number += group
                confirmed.sent(number, time.monotonic())
                client.send(data)
            confirmed.receive()
    return _ended(client, queue, confirmed, meter, number)


def at_a_rate(port: int, pid: int, size: int, seconds: float) -> ConfirmTimes:
    """``RATE`` messages a second, each by itself. The time begins when a message is due, also where it is sent late."""
    client, queue = _publisher(port)
    data = publication(queue, size)
    confirmed, number, count = Confirmed(client), 0, int(RATE * seconds)
    with Meter(pid) as meter:
        began = time.monotonic()
        while number < count or confirmed.waiting:
            due = began + number / RATE
            wait_s = max(0.0, due - time.monotonic()) if number < count else 10.0
            if client.has_events or select.select([client.socket], [], [], wait_s)[0]:
                confirmed.receive()
            elif number < count:
                number += 1
                confirmed.sent(number, due)
                client.send(data)
    return _ended(client, queue, confirmed, meter, number)


def _publisher(port: int) -> tuple[PreparedClient, str]:
    client, queue = PreparedClient(port), unique("confirms")
    client.call("queue.declare", queue=queue, durable=True)
    client.call("confirm.select")
    return client, queue


def _ended(client: PreparedClient, queue: str, confirmed: Confirmed, meter: Meter, count: int) -> ConfirmTimes:
    client.call("queue.delete", queue=queue)
    client.close()
    parts = quantiles(confirmed.taken_ms, n=100)
    return ConfirmTimes(count / meter.wall_s, parts[49], parts[98], meter.cpu_s / count * 1e6)
