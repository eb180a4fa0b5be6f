"""What a broker costs to have: memory under load, memory with consumers that do not read, and time to be ready.

*Ready* is the same for both brokers: from starting the program until it answers a request, and, where there are topics,
until a client gets a leader for every partition. When headrace printed its line "ready" is noted beside it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.brokers import (
    Brokers,
    Client,
    alternate,
    create_topic,
    delete_topic,
    run_clients,
    unique,
    wait_for_leaders,
)
from benchmarks.figures import Figure
from benchmarks.meters import Meter, resident_mb
from benchmarks.raw_client import FETCH, FETCH_VERSION, connect, frame
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.servers.headrace import COMMAND
from tests.servers.kafka import JVM_AS_SHIPPED, answers, format_storage, java_command, write_properties
from tests.servers.process import RunningServer, spare_port

__all__ = ["run"]

RESIDENT_MB_MAX = 150
READY_S_MAX = 1.0
READY_MANY_S_MAX = 3.0
SLOW_CONSUMERS = 50
ASKED_BYTES = 50 << 20


def run(brokers: Brokers, *, quick: bool) -> list[Figure]:
    count = 100_000 if quick else 500_000
    partitions = 100 if quick else 1_000
    return [
        *under_load(brokers, count),
        *slow_consumers(brokers, count),
        *ready(brokers, 1 if quick else 3),
        *ready_after_kill(Brokers(brokers.headrace, None) if quick else brokers, 1 if quick else 3, partitions),
    ]


# ---- memory ----


def under_load(brokers: Brokers, count: int) -> list[Figure]:
    peaks = alternate(brokers, 1, partial(peak_under_load, count=count))
    return [memory_figure(f"produce and 2 × consume at once, {count:,} × 1 KB, 16 partitions", peaks)]


def memory_figure(case: str, peaks: dict[str, list[float]]) -> Figure:
    return Figure(
        hop="footprint",
        case=case,
        unit="MB resident, peak",
        ours=peaks["headrace"],
        peers=peaks.get("apache_kafka", []),
        higher_is_better=False,
        goal=RESIDENT_MB_MAX,
        absolute=True,
    )


def peak_under_load(broker: RunningServer, count: int) -> float:
    topic = unique("load")
    create_topic(broker, topic, 16)
    task: dict[str, Any] = {"topic": topic, "count": count, "partitions": 16, "size": 1000}
    clients = [Client(broker, work=work, **task) for work in ("consume", "consume", "produce")]
    with Meter(broker.pid, sample_memory=True) as meter:
        run_clients(clients)
    delete_topic(broker, topic)
    return meter.resident_mb_max


def slow_consumers(brokers: Brokers, count: int) -> list[Figure]:
    peaks = alternate(brokers, 1, partial(peak_with_slow_consumers, count=count))
    return [
        memory_figure(
            f"{SLOW_CONSUMERS} consumers ask for 50 MB each and do not read, {count:,} × 1 KB produced", peaks
        )
    ]


def peak_with_slow_consumers(broker: RunningServer, count: int) -> float:
    topic = unique("slow")
    create_topic(broker, topic, 1)
    task: dict[str, Any] = {"topic": topic, "partitions": 1, "size": 1000}
    run_clients([Client(broker, work="produce", count=max(count, 60_000), **task)])
    ask = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=ASKED_BYTES)
    body = FetchRequest(max_bytes=ASKED_BYTES, topics=[FetchTopic(topic=topic, partitions=[ask])])
    connections: list[socket.socket] = []
    try:
        with Meter(broker.pid, sample_memory=True) as meter:
            for _ in range(SLOW_CONSUMERS):
                connections.append(connect(broker.bootstrap))
                connections[-1].sendall(frame(FETCH, FETCH_VERSION, body))
            run_clients([Client(broker, work="produce", count=count, **task)])
    finally:
        for connection in connections:
            connection.close()
        delete_topic(broker, topic)
    return meter.resident_mb_max


# ---- time to be ready ----


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[str], float]]:
    """A broker that is killed at the end without a word; ``stop`` it before for a clean end."""
    with (folder / "errors.log").open("ab") as errors:
        began = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder)
    try:
        yield child, began
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def headrace_command(folder: Path) -> list[str]:
    return [
        str(COMMAND),
        "up",
        "--data",
        str(folder / "data"),
        "--kafka",
        "127.0.0.1:0",
        "--amqp",
        "off",
        "--http",
        "off",
    ]


def headrace_ready(child: subprocess.Popen[str]) -> str:
    """Read up to the line "ready"; gives the address."""
    assert child.stdout is not None
    address = ""
    for line in child.stdout:
        if line.strip() == "ready":
            return address
        if line.startswith("kafka"):
            address = line.split()[-1]
    raise RuntimeError(f"headrace up ended with {child.wait()} before it was ready")


def kafka_command(folder: Path) -> tuple[list[str], int]:
    port = spare_port()
    properties = write_properties(folder, port, spare_port(), {})
    if not (folder / "logs" / "meta.properties").exists():
        format_storage(folder, properties)
    return java_command("kafka.Kafka", str(properties), jvm=JVM_AS_SHIPPED), port


def until_it_answers(address: str) -> None:
    port = int(address.rpartition(":")[2])
    while not answers(port):
        time.sleep(0.005)


def stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGTERM)
    child.wait(60)


@dataclass(frozen=True, slots=True)
class Start:
    """How long a broker took to serve, when it said so itself, and what it held then."""

    ready_s: float
    resident_mb: float
    said_ready_s: float | None = None


def headrace_start(folder: Path, wait: Callable[[str], None], *, clean: bool = False) -> Start:
    with started(headrace_command(folder), folder) as (child, began):
        address = headrace_ready(child)
        said_ready_s = time.monotonic() - began
        return measure(child, began, address, wait, said_ready_s=said_ready_s, clean=clean)


def kafka_start(folder: Path, wait: Callable[[str], None], *, clean: bool = False) -> Start:
    command, port = kafka_command(folder)
    with started(command, folder) as (child, began):
        return measure(child, began, f"127.0.0.1:{port}", wait, said_ready_s=None, clean=clean)


def measure(
    child: subprocess.Popen[str],
    began: float,
    address: str,
    wait: Callable[[str], None],
    *,
    said_ready_s: float | None,
    clean: bool,
) -> Start:
    """The same point for both brokers: it answers, and what ``wait`` waits for has come."""
    until_it_answers(address)
    wait(address)
    start = Start(time.monotonic() - began, resident_mb(child.pid), said_ready_s)
    if clean:
        stop(child)
    return start


STARTS: dict[str, Callable[..., Start]] = {"headrace": headrace_start, "apache_kafka": kafka_start}


def ready(brokers: Brokers, rounds: int) -> list[Figure]:
    """A data directory that exists already and was closed cleanly: making it is not part of it for either."""
    measured: dict[str, list[Start]] = {}
    for broker in brokers.all:
        with scratch() as folder:
            start = partial(STARTS[broker.name], folder, lambda _: None, clean=True)
            measured[broker.name] = [start() for _ in range(rounds + 1)][1:]
    return [
        ready_figure("ready with no topic", measured, READY_S_MAX),
        Figure(
            hop="footprint",
            case="idle with no topic",
            unit="MB resident",
            ours=[each.resident_mb for each in measured["headrace"]],
            peers=[each.resident_mb for each in measured.get("apache_kafka", [])],
            higher_is_better=False,
        ),
    ]


def ready_figure(case: str, measured: dict[str, list[Start]], goal: float) -> Figure:
    said = [each.said_ready_s for each in measured["headrace"] if each.said_ready_s is not None]
    return Figure(
        hop="footprint",
        case=case,
        unit="s",
        ours=[each.ready_s for each in measured["headrace"]],
        peers=[each.ready_s for each in measured.get("apache_kafka", [])],
        higher_is_better=False,
        goal=goal,
        absolute=True,
        note=f'headrace printed "ready" after {median(said):.2f} s' if said else "",
    )


def ready_after_kill(brokers: Brokers, rounds: int, partitions: int) -> list[Figure]:
    """Every partition holds data and the broker was killed while it was written to."""
    measured: dict[str, list[Start]] = {}
    for broker in brokers.all:
        start = STARTS[broker.name]
        with scratch() as folder:
            start(folder, partial(fill, broker.name, partitions))
            measured[broker.name] = [
                start(folder, partial(wait_for_leaders, name="many", partitions=partitions))
                for _ in range(rounds if broker.name == "headrace" else 1)  # Kafka takes its time
            ]
    return [ready_figure(f"ready with {partitions:,} partitions after kill -9", measured, READY_MANY_S_MAX)]


def fill(name: str, partitions: int, address: str) -> None:
    broker = RunningServer(name=name, bootstrap=address, pid=os.getpid(), data=Path("/"), log=Path("/"))
    create_topic(broker, "many", partitions)
    settings = {"linger.ms": 200}
    task: dict[str, Any] = {
        "topic": "many",
        "count": partitions * 100,
        "size": 1000,
        "keys": partitions * 5,
        "settings": settings,
    }
    run_clients([Client(broker, work="produce", **task)])
