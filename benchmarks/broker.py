"""Produce and consume through librdkafka: messages per second, and what the broker paid for them.

Each case is produced by one client process and then read by another from the beginning, on both brokers in turn. The
note shows who was the bottleneck: a client near one full core while the broker is below it cannot go faster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.brokers import Brokers, Client, alternate, create_topic, delete_topic, run_metered, unique
from benchmarks.figures import Figure
from benchmarks.meters import Meter
from tests.servers.process import RunningServer

__all__ = ["run"]


@dataclass(frozen=True, slots=True)
class Case:
    size: int
    partitions: int
    count: int

    def __str__(self) -> str:
        size = f"{self.size // 1000} KB" if self.size >= 1000 else f"{self.size} B"
        return f"{size}, {self.partitions} partition{'s' if self.partitions > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One broker's measurement in one round."""

    rate: float
    broker_cpu_s: float
    broker_cores: float
    client_cores: float
    others_cores: float


CASES = (Case(100, 1, 2_000_000), Case(100, 16, 2_000_000), Case(1000, 1, 700_000), Case(1000, 16, 700_000))
CASES_QUICK = (Case(100, 1, 500_000), Case(1000, 16, 200_000))


def run(brokers: Brokers, *, quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    for case in CASES_QUICK if quick else CASES:
        figures += measure(brokers, case, 1 if quick else 3)
    if not quick and shutil.which("kcat"):
        figures += measure_c_client(brokers, 3)
    return figures


def measure(brokers: Brokers, case: Case, rounds: int) -> list[Figure]:
    turns = alternate(brokers, rounds, partial(round_trip, case=case))
    figures = []
    for number, verb in enumerate(("produce", "consume")):
        each = {name: [pair[number] for pair in pairs] for name, pairs in turns.items()}
        figures += figures_of(f"{verb} {case}", each, case.count)
    return figures


def figures_of(case: str, turns: dict[str, list[Turn]], count: int) -> list[Figure]:
    ours, kafka = turns["headrace"], turns.get("apache_kafka", [])
    return [
        Figure(
            hop="broker",
            case=case,
            unit="msg/s",
            ours=[turn.rate for turn in ours],
            peers=[turn.rate for turn in kafka],
            goal=1.0,
            note=bottleneck(ours, kafka),
        ),
        Figure(
            hop="broker",
            case=case,
            unit="broker CPU s per million",
            ours=[turn.broker_cpu_s / count * 1e6 for turn in ours],
            peers=[turn.broker_cpu_s / count * 1e6 for turn in kafka],
            higher_is_better=False,
            goal=1.0,
        ),
    ]


def bottleneck(ours: list[Turn], kafka: list[Turn]) -> str:
    parts = []
    for name, turns in (("headrace", ours), ("Kafka", kafka)):
        if turns:
            broker, client = median(turn.broker_cores for turn in turns), median(turn.client_cores for turn in turns)
            parts.append(f"{name} {broker:.2f} cores, client {client:.2f}")
    others = median(turn.others_cores for turn in ours + kafka)
    return "; ".join(parts) + f"; other processes {others:.2f}"


def round_trip(broker: RunningServer, case: Case) -> tuple[Turn, Turn]:
    topic = unique("bench")
    create_topic(broker, topic, case.partitions)
    try:
        task: dict[str, Any] = {"topic": topic, "count": case.count, "partitions": case.partitions, "size": case.size}
        return turn(broker, work="produce", **task), turn(broker, work="consume", **task)
    finally:
        delete_topic(broker, topic)


def turn(broker: RunningServer, *, count: int, **task: Any) -> Turn:
    outcome, meter = run_metered(broker, Client(broker, count=count, **task))
    return Turn(
        rate=count / outcome["wall_s"],
        broker_cpu_s=meter.cpu_s,
        broker_cores=meter.cpu_s / meter.wall_s,
        client_cores=outcome["cpu_s"] / outcome["wall_s"],
        others_cores=meter.others_cores(outcome["cpu_s"]),
    )


# ---- a client without Python in it ----------------------------------------------------------------------------------


def measure_c_client(brokers: Brokers, rounds: int) -> list[Figure]:
    """kcat is librdkafka with almost nothing around it: twice as fast as the bindings, so the broker shows more."""
    case = Case(100, 1, 4_000_000)
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        lines = folder / "lines"
        with lines.open("wb") as file:
            for _ in range(case.count // 10_000):
                file.write((b"x" * case.size + b"\n") * 10_000)
        turns = alternate(brokers, rounds, partial(kcat_round_trip, case=case, lines=lines))
    finally:
        shutil.rmtree(folder)
    figures = []
    for number, verb in enumerate(("produce", "consume")):
        each = {name: [pair[number] for pair in pairs] for name, pairs in turns.items()}
        figures += figures_of(f"{verb} {case}, kcat", each, case.count)
    return figures


def kcat_round_trip(broker: RunningServer, case: Case, lines: Path) -> tuple[Turn, Turn]:
    topic = unique("bench")
    create_topic(broker, topic, case.partitions)
    common = ["kcat", "-q", "-b", broker.bootstrap, "-t", topic, "-p", "0"]
    queue = ["-X", "queue.buffering.max.messages=1000000", "-X", "queue.buffering.max.kbytes=262144"]
    try:
        produced = kcat_turn(broker, [*common, "-P", "-X", "acks=all", *queue, "-l", str(lines)], case.count)
        consumed = kcat_turn(broker, [*common, "-C", "-o", "beginning", "-c", str(case.count), "-f", ""], case.count)
        return produced, consumed
    finally:
        delete_topic(broker, topic)


def kcat_turn(broker: RunningServer, command: list[str], count: int) -> Turn:
    """The whole life of the process is measured, connecting included."""
    with Meter(broker.pid) as meter:
        began = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        client_cpu_s = wait_for_cpu(child)
        wall_s = time.monotonic() - began
    if child.returncode:
        raise RuntimeError(f"kcat ended with {child.returncode}: {' '.join(command)}")
    return Turn(
        rate=count / wall_s,
        broker_cpu_s=meter.cpu_s,
        broker_cores=meter.cpu_s / wall_s,
        client_cores=client_cpu_s / wall_s,
        others_cores=meter.others_cores(client_cpu_s),
    )


def wait_for_cpu(child: subprocess.Popen[bytes]) -> float:
    """Wait for the child and learn its CPU time, which is gone once Popen has collected it."""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime
