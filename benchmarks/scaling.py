"""Whether a message costs the same when there is more of everything: partitions, and bytes already in the log.

The cost is the broker's CPU time per message, which other processes on the machine disturb least. A log of 50 GB is
scaled down to what a test machine has room and time for, and the segments likewise, so that there are as many as
50 GB have by default.
"""

from __future__ import annotations

import os
from functools import partial
from statistics import median
from typing import Any

from benchmarks.brokers import Brokers, Client, alternate, create_topic, delete_topic, run_clients, run_metered, unique
from benchmarks.figures import Figure
from tests.servers.process import RunningServer

__all__ = ["run"]

FLAT = 1.2
"""± 20 %: the largest case may cost so much more per message than the smallest."""

SEGMENTS = 50


def run(brokers: Brokers, *, quick: bool) -> list[Figure]:
    rounds = 1 if quick else 3
    gigabytes = float(os.environ.get("HEADRACE_BENCH_LOG_GB", 0.25 if quick else 2.5))
    return [*partitions(brokers, rounds, quick), *log_size(brokers, gigabytes, rounds)]


# ---- partitions ----


def partitions(brokers: Brokers, rounds: int, quick: bool) -> list[Figure]:
    count = 200_000 if quick else 2_000_000
    counts = (1, 100) if quick else (1, 1_000)
    costs = {each: alternate(brokers, rounds, partial(cost, partition_count=each, count=count)) for each in counts}
    figures = []
    for verb in ("produce", "consume"):
        for each in counts:
            figures.append(cost_figure(f"{verb} 100 B, {each:,} partitions", costs[each], verb))
        figures.append(growth(f"{verb}: {counts[-1]:,} partitions against 1", costs[1], costs[counts[-1]], verb))
    return figures


def cost(broker: RunningServer, partition_count: int, count: int) -> dict[str, float]:
    topic = unique("wide")
    create_topic(broker, topic, partition_count)
    task: dict[str, Any] = {"topic": topic, "count": count, "partitions": partition_count, "size": 100}
    try:
        return {work: cost_of(broker, Client(broker, work=work, **task), count) for work in ("produce", "consume")}
    finally:
        delete_topic(broker, topic)


def cost_of(broker: RunningServer, client: Client, count: int) -> float:
    _, meter = run_metered(broker, client)
    return meter.cpu_s / count * 1e6


def cost_figure(case: str, costs: dict[str, list[dict[str, float]]], verb: str) -> Figure:
    return Figure(
        hop="scaling",
        case=case,
        unit="broker CPU s per million",
        ours=[each[verb] for each in costs["headrace"]],
        peers=[each[verb] for each in costs.get("apache_kafka", [])],
        higher_is_better=False,
    )


def growth(
    case: str,
    small: dict[str, list[dict[str, float]]],
    large: dict[str, list[dict[str, float]]],
    verb: str,
    note: str = "",
) -> Figure:
    """The cost of the large case in units of the small one."""

    def grown(name: str) -> list[float]:
        base = median(each[verb] for each in small[name]) if small.get(name) else 0.0
        return [each[verb] / base for each in large.get(name, [])] if base else []

    return Figure(
        hop="scaling",
        case=case,
        unit="× the cost",
        ours=grown("headrace"),
        peers=grown("apache_kafka"),
        higher_is_better=False,
        goal=FLAT,
        absolute=True,
        note=note,
    )


# ---- bytes in the log ----


def log_size(brokers: Brokers, gigabytes: float, rounds: int) -> list[Figure]:
    """The same appends and reads at the end of a log of 1/50 and of the whole size."""
    scale = f"{gigabytes / 50:g} → {gigabytes:g} GB in segments of {gigabytes / 50:g} GB stand for 1 → 50 GB"
    topics = {broker.name: unique("deep") for broker in brokers.all}
    segment_bytes = int(gigabytes * 1e9 / SEGMENTS)
    config = {"segment.bytes": str(max(segment_bytes, 1 << 20))}
    for broker in brokers.all:
        create_topic(broker, topics[broker.name], 1, config)
    ends = dict.fromkeys(topics.values(), 0)

    def grow(broker: RunningServer, total_bytes: float) -> None:
        topic = topics[broker.name]
        count = int(total_bytes / 10_000)
        run_clients([Client(broker, work="produce", topic=topic, count=count, size=10_000)])
        ends[topic] += count

    def at_the_end(broker: RunningServer) -> dict[str, float]:
        topic = topics[broker.name]
        count = 500_000
        produced = cost_of(broker, Client(broker, work="produce", topic=topic, count=count, size=100), count)
        task: dict[str, Any] = {"program": "benchmarks.raw_client", "work": "fetch", "topic": topic}
        fetched = cost_of(broker, Client(broker, offset=ends[topic], count=count, **task), count)
        ends[topic] += count
        return {"append": produced, "fetch": fetched}

    for broker in brokers.all:
        grow(broker, gigabytes * 1e9 / SEGMENTS)
    small = alternate(brokers, rounds, at_the_end)
    for broker in brokers.all:
        grow(broker, gigabytes * 1e9 * (SEGMENTS - 1) / SEGMENTS)
    large = alternate(brokers, rounds, at_the_end)
    for broker in brokers.all:
        delete_topic(broker, topics[broker.name])
    return [
        growth(f"{verb} at the end of a log 50 times as large", small, large, verb, scale)
        for verb in ("append", "fetch")
    ]
