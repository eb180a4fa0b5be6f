"""Reading what has left the page cache: the catch-up of a consumer that was away for long.

The log is written, synced and dropped from the page cache; then a client reads all of it, while others produce and
consume at a steady pace. Reading cold data should be as fast as the disk and should not be felt by the others.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.brokers import Brokers, Client, alternate, create_topic, delete_topic, run_clients, unique
from benchmarks.figures import Figure
from tests.servers.process import RunningServer

__all__ = ["run"]

SIZE = 10_000
RATE = 2_000


def run(brokers: Brokers, *, quick: bool) -> list[Figure]:
    count = 20_000 if quick else 100_000
    turns = alternate(brokers, 1 if quick else 3, partial(turn, count=count))
    ours, kafka = turns["headrace"], turns.get("apache_kafka", [])
    return [
        Figure(
            hop="cold",
            case=f"fetch {count * SIZE / 1e9:g} GB that is not in memory",
            unit="MB/s",
            ours=[each["rate"] for each in ours],
            peers=[each["rate"] for each in kafka],
        ),
        *(
            Figure(
                hop="cold",
                case=f"{quantile} of {RATE:,} msg/s to others meanwhile",
                unit="ms",
                ours=[each[quantile] for each in ours],
                peers=[each[quantile] for each in kafka],
                higher_is_better=False,
            )
            for quantile in ("p50", "p99")
        ),
    ]


def turn(broker: RunningServer, count: int) -> dict[str, float]:
    cold, live = unique("cold"), unique("live")
    for topic in (cold, live):
        create_topic(broker, topic, 1)
    try:
        run_clients([Client(broker, work="produce", topic=cold, count=count, size=SIZE)])
        drop_from_memory(broker.data, cold)
        seconds = 3
        task: dict[str, Any] = {"topic": live, "partitions": 1, "size": 100, "count": RATE * seconds, "warm_up": 0}
        clients = [
            Client(broker, program="benchmarks.raw_client", work="fetch", topic=cold, count=count),
            Client(broker, work="listen", **task),
            Client(broker, work="pace", rate=RATE, seconds=seconds, **task),
        ]
        fetched, heard, _ = run_clients(clients)
        return {"rate": fetched["bytes"] / fetched["wall_s"] / 1e6, "p50": heard["p50"], "p99": heard["p99"]}
    finally:
        for topic in (cold, live):
            delete_topic(broker, topic)


def drop_from_memory(data: Path, topic: str) -> None:
    """Only clean pages can be dropped, hence the sync."""
    os.sync()
    files = [path for path in data.rglob("*.log") if topic in str(path)]
    if not files:
        raise FileNotFoundError(f"{data} holds no segment of {topic}")
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
