"""A long queue: its memory, and how soon it is served again after kill -9.

The hard case has priorities, a TTL of each message, and every second message acknowledged, so that what is gone lies
between what is not.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.meters import cpu_seconds, resident_mb
from benchmarks.queue_client import PreparedClient, delivery_size, publication
from tests.servers.headrace import headrace_server, listener_address
from tests.servers.process import RunningServer

__all__ = ["backlog_figures"]

QUEUE = "long"
SIZE = 12
GROUP = 500
PRIORITIES = 4
TTL_MS = 86_400_000
MEMORY_MB_MAX = 100.0
READY_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many messages, and whether it is the hard case."""

    count: int
    is_hard: bool

    def __str__(self) -> str:
        return f"{self.count:,} messages" + (", priorities, TTL, every second acknowledged" if self.is_hard else "")


def backlog_figures(*, quick: bool) -> list[Figure]:
    count = 200_000 if quick else 10_000_000
    return [figure for is_hard in (False, True) for figure in measure(Backlog(count, is_hard))]


def measure(case: Backlog) -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-backlog-"))
    try:
        with broker_on(folder) as (broker, port):
            cpu_us = fill(broker, port, case)
            full_mb = resident_mb(broker.pid)
            if case.is_hard:
                acknowledge_every_second(port, case)
            os.kill(broker.pid, signal.SIGKILL)
        began = time.monotonic()
        with broker_on(folder) as (broker, port):
            ready_s = time.monotonic() - began
            left = ready_count(port)
            assert left >= case.count // (2 if case.is_hard else 1), f"{left} messages are left of {case.count}"
            found_mb = resident_mb(broker.pid)
        return figures_of(case, cpu_us, full_mb, ready_s, found_mb)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def broker_on(folder: Path) -> Iterator[tuple[RunningServer, int]]:
    with headrace_server(data=folder, arguments=["--amqp", "127.0.0.1:0"], expect_exit=None) as broker:
        yield broker, int(listener_address(broker.log, "amqp").rpartition(":")[2])


def fill(broker: RunningServer, port: int, case: Backlog) -> float:
    """Publish everything with confirms; the broker's CPU per message, in µs."""
    client = PreparedClient(port)
    arguments = {"x-max-priority": PRIORITIES} if case.is_hard else {}
    client.call("queue.declare", queue=QUEUE, durable=True, arguments=arguments)
    client.call("confirm.select")
    before_s = cpu_seconds(broker.pid)
    client.publish(messages_of(case), GROUP, times=case.count // GROUP)
    client.close()
    return (cpu_seconds(broker.pid) - before_s) / case.count * 1e6


def messages_of(case: Backlog) -> bytes:
    if not case.is_hard:
        return publication(QUEUE, SIZE) * GROUP
    each = [publication(QUEUE, SIZE, priority=number, expiration=str(TTL_MS)) for number in range(PRIORITIES)]
    return b"".join(each) * (GROUP // PRIORITIES)


def acknowledge_every_second(port: int, case: Backlog) -> None:
    """Take all, and acknowledge every second; the others are unacknowledged when the broker dies."""
    client = PreparedClient(port)
    size = delivery_size(QUEUE, SIZE, priority=0, expiration=str(TTL_MS))
    client.consume(QUEUE, case.count, size, prefetch=0, every=2)
    client.call("queue.declare", queue=QUEUE, passive=True)  # answered after what was acknowledged before it
    client.close()


def ready_count(port: int) -> int:
    client = PreparedClient(port)
    counts = client.call("queue.declare", queue=QUEUE, passive=True)
    client.close()
    return int(counts["message_count"])


def figures_of(case: Backlog, cpu_us: float, full_mb: float, ready_s: float, found_mb: float) -> list[Figure]:
    def figure(unit: str, value: float, goal: float | None = None) -> Figure:
        return Figure(
            hop="queues",
            case=str(case),
            unit=unit,
            ours=[value],
            peer="none",
            higher_is_better=False,
            goal=goal,
            absolute=True,
        )

    return [
        figure("broker CPU µs to publish one", cpu_us),
        figure("resident MB when published", full_mb, MEMORY_MB_MAX),
        figure("s until ready after kill -9", ready_s, READY_S_MAX),
        figure("resident MB after that", found_mb, MEMORY_MB_MAX),
    ]
