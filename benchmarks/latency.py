"""From ``produce`` in one process to ``poll`` in another, at a steady 10,000 messages a second.

With librdkafka's default ``linger.ms=5`` the client's own waiting is most of it. With ``linger.ms=0`` nearly every
message is a separate request: that shows the broker, and one that syncs before it answers pays the disk each time.

headrace is measured twice: as installed, where a record is seen once it survives power loss, and with
``headrace.flush=os``, which promises what Apache Kafka at its defaults does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.brokers import (
    Brokers,
    Client,
    alternate,
    create_topic,
    delete_topic,
    run_clients,
    sync_quantile_s,
    syncs_so_far,
    unique,
)
from benchmarks.figures import Figure
from benchmarks.meters import Meter
from tests.servers.process import RunningServer

__all__ = ["run"]

RATE = 10_000
SIZE = 100
PARTITIONS = 1
FLUSHES = ("ack", "os")
SYNC_QUANTILE = 0.99


def run(brokers: Brokers, *, quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    seconds = 3 if quick else 6
    for linger_ms in (5,) if quick else (5, 0):
        turns = alternate(brokers, 1 if quick else 3, partial(turns_of, seconds=seconds, linger_ms=linger_ms))
        for flush in FLUSHES:
            case = f"{RATE:,} msg/s, linger.ms={linger_ms}" + (f", flush={flush}" if flush != "ack" else "")
            ours = [each[flush] for each in turns["headrace"]]
            figures += figures_of(case, ours, [each["ack"] for each in turns.get("apache_kafka", [])])
    return [*figures, *disk_figures(1 if quick else 3)]


def turns_of(broker: RunningServer, seconds: float, linger_ms: int) -> dict[str, dict[str, Any]]:
    """Kafka has one way, and it is compared with both of ours."""
    if broker.name != "headrace":
        return {"ack": turn(broker, seconds, linger_ms, {})}
    return {flush: turn(broker, seconds, linger_ms, {"headrace.flush": flush}) for flush in FLUSHES}


def turn(broker: RunningServer, seconds: float, linger_ms: int, config: dict[str, str]) -> dict[str, Any]:
    topic = unique("latency")
    create_topic(broker, topic, PARTITIONS, config)
    count = int(RATE * seconds)
    task: dict[str, Any] = {"topic": topic, "partitions": PARTITIONS, "size": SIZE, "count": count, "warm_up": RATE}
    listener = Client(broker, work="listen", **task)
    sender = Client(broker, work="pace", rate=RATE, seconds=seconds, settings={"linger.ms": linger_ms}, **task)
    try:
        syncs_before = syncs_so_far(broker)
        with Meter(broker.pid) as meter:
            outcome = run_clients([listener, sender])
        sync_s = sync_quantile_s(syncs_before, syncs_so_far(broker), SYNC_QUANTILE)
        clients_cpu_s = sum(each["cpu_s"] for each in outcome)
        return {
            **outcome[0],
            "sync_ms": sync_s * 1000,
            "cpu_per_million": meter.cpu_s / count * 1e6,
            "others": meter.others_cores(clients_cpu_s),
        }
    finally:
        delete_topic(broker, topic)


def disk_figures(rounds: int) -> list[Figure]:
    """What an acknowledgement waits for: how long this disk takes, now, to make a small append durable.

    Kafka waits for none of it. On a machine where others write and sync as well, this is the tail of our latency.
    """
    syncs = [sync_times_ms() for _ in range(rounds)]
    return [
        Figure(
            hop="latency",
            case=f"{quantile} of fdatasync, 5 KB appended every 5 ms",
            unit="ms",
            ours=[each[quantile] for each in syncs],
            peer="none: this is the disk itself",
            higher_is_better=False,
        )
        for quantile in ("p50", "p99")
    ]


def sync_times_ms(count: int = 400) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT, 0o600)
    data = os.urandom(5_000)
    times = []
    try:
        for number in range(count):
            os.pwrite(descriptor, data, number * len(data))
            began = time.monotonic()
            os.fdatasync(descriptor)
            times.append((time.monotonic() - began) * 1000)
            time.sleep(0.005)
    finally:
        os.close(descriptor)
        shutil.rmtree(folder)
    times.sort()
    return {"p50": times[count // 2], "p99": times[count * 99 // 100]}


def figures_of(case: str, ours: list[dict[str, Any]], kafka: list[dict[str, Any]]) -> list[Figure]:
    others = max(each["others"] for each in ours + kafka)
    figures = [
        Figure(
            hop="latency",
            case=f"{quantile} at {case}",
            unit="ms",
            ours=[each[quantile] for each in ours],
            peers=[each[quantile] for each in kafka],
            higher_is_better=False,
            goal=1.0 if quantile in ("p50", "p99") else None,
            note=f"other processes up to {others:.2f} cores",
        )
        for quantile in ("p50", "p90", "p99", "max")
    ]
    figures.append(
        Figure(
            hop="latency",
            case=case,
            unit="broker CPU s per million",
            ours=[each["cpu_per_million"] for each in ours],
            peers=[each["cpu_per_million"] for each in kafka],
            higher_is_better=False,
            goal=1.0,
        )
    )
    if "flush=" not in case:
        figures.append(
            Figure(
                hop="latency",
                case=f"p99 of the broker's syncs at {case}",
                unit="ms at most",
                ours=[each["sync_ms"] for each in ours],
                peer="none: this is the disk, measured by the broker in the same seconds",
                higher_is_better=False,
            )
        )
    return figures
