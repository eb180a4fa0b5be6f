"""What the broker alone can take and give, with a client that costs next to nothing, beside Kafka and the hardware.

The limits are measured in the same run, in the same folder: the same writes and as many ``fdatasync`` as the broker
made, without a broker, and one socket to another over loopback. What the writes and syncs take alone, one after the
other, is the disk's share of a Produce. It is no hard limit: a broker may write while it syncs, or sync less often.
``bare_server`` sets the bounds for this client and this promise: nothing but the receiving, writing, syncing and
answering, on one thread that waits for the disk, and on two of which one never does.
The lines with ``flush=os`` promise what Kafka promises, an acknowledgement without a sync: what is between them and the
lines without is what the sync costs.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bare_server import bare_server
from benchmarks.brokers import (
    Brokers,
    Client,
    alternate,
    create_topic,
    delete_topic,
    run_metered,
    syncs_so_far,
    unique,
)
from benchmarks.figures import Figure
from tests.servers.process import RunningServer

__all__ = ["run"]

SIZE = 100
RECORDS_LARGE, RECORDS_SMALL = 8_000, 100


def run(brokers: Brokers, *, quick: bool) -> list[Figure]:
    rounds = 1 if quick else 3
    scale = 4 if quick else 1
    figures = []
    for records, requests in ((RECORDS_LARGE, 1_000 // scale), (RECORDS_SMALL, 20_000 // scale)):
        turns = alternate(brokers, rounds, partial(turn, records=records, requests=requests))
        figures += figures_of(f"batches of {records:,} × {SIZE} B", turns, records * requests)
        figures += against_disk(f"batches of {records:,} × {SIZE} B", turns["headrace"], records, requests)
        for how in BARE:
            figures += against_bare(f"batches of {records:,} × {SIZE} B", turns["headrace"], records, requests, how)
        if records == RECORDS_LARGE:
            figures.append(against_loopback(turns["headrace"]))
    return figures


def turn(broker: RunningServer, records: int, requests: int) -> dict[str, float]:
    """Kafka has one way to produce, and it is compared with two of ours."""
    count = records * requests
    with topic_for(broker, {}) as task:
        made = produce(broker, task, records, requests)
        fetched, fetch_meter = run_metered(broker, Client(broker, work="fetch", count=count, **task))
    if broker.name == "headrace":  # last, so that what Kafka does as well comes in the same place of a turn
        with topic_for(broker, {"headrace.flush": "os"}) as task:
            made |= {f"{name}_os": value for name, value in produce(broker, task, records, requests).items()}
    return {
        **made,
        "fetch": count / fetched["wall_s"],
        "fetch_cpu": fetch_meter.cpu_s / count * 1e6,
        "fetch_bytes": fetched["bytes"] / fetched["wall_s"],
    }


@contextmanager
def topic_for(broker: RunningServer, config: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What a client's task says of a topic that is there for so long."""
    topic = unique("raw")
    create_topic(broker, topic, 1, config)
    try:
        yield {"program": "benchmarks.raw_client", "topic": topic}
    finally:
        delete_topic(broker, topic)


def produce(broker: RunningServer, task: dict[str, Any], records: int, requests: int) -> dict[str, float]:
    client = Client(broker, work="produce", partitions=1, records=records, requests=requests, size=SIZE, **task)
    syncs_before = syncs_so_far(broker)
    produced, meter = run_metered(broker, client)
    count = records * requests
    return {
        "produce": count / produced["wall_s"],
        "produce_cpu": meter.cpu_s / count * 1e6,
        "produce_bytes": produced["bytes"],
        "produce_syncs": syncs_so_far(broker)[math.inf] - syncs_before[math.inf],
    }


def figures_of(case: str, turns: dict[str, list[dict[str, float]]], count: int) -> list[Figure]:
    ours, kafka = turns["headrace"], turns.get("apache_kafka", [])
    figures = []
    for verb, of_ours, suffix in (("produce", "", ""), ("produce", "_os", ", flush=os"), ("fetch", "", "")):
        figures.append(
            Figure(
                hop="raw",
                case=f"{verb} {case}{suffix}",
                unit="msg/s",
                ours=[each[verb + of_ours] for each in ours],
                peers=[each[verb] for each in kafka],
                goal=1.0,
            )
        )
        figures.append(
            Figure(
                hop="raw",
                case=f"{verb} {case}{suffix}",
                unit="broker CPU s per million",
                ours=[each[f"{verb}_cpu{of_ours}"] for each in ours],
                peers=[each[f"{verb}_cpu"] for each in kafka],
                higher_is_better=False,
                goal=1.0,
            )
        )
    return figures


def against_disk(case: str, ours: list[dict[str, float]], records: int, requests: int) -> list[Figure]:
    count = records * requests
    alone = [disk_alone(int(each["produce_bytes"]) // requests, requests, int(each["produce_syncs"])) for each in ours]
    syncs = sum(each["produce_syncs"] for each in ours) / len(ours) / requests
    peer = "the same writes and syncs alone"
    return [
        Figure(
            hop="raw",
            case=f"produce {case}, the disk's share",
            unit="msg/s",
            ours=[each["produce"] for each in ours],
            peers=[count / wall_s for wall_s, _ in alone],
            peer=peer,
            note=f"{syncs:.2f} syncs per request",
        ),
        Figure(
            hop="raw",
            case=f"produce {case}, the disk's share",
            unit="broker CPU s per million",
            ours=[each["produce_cpu"] for each in ours],
            peers=[cpu_s / count * 1e6 for _, cpu_s in alone],
            peer=peer,
            higher_is_better=False,
        ),
    ]


BARE = {
    "blocking": "a bare server",
    "threaded": "a bare server that syncs on a thread",
}


def against_bare(case: str, ours: list[dict[str, float]], records: int, requests: int, how: str) -> list[Figure]:
    bare = []
    for _ in ours:
        with bare_server(how) as server:
            task = {"program": "benchmarks.raw_client", "topic": "bare"}
            bare.append(produce(server, task, records, requests))
    return [
        Figure(
            hop="raw",
            case=f"produce {case}, beside {BARE[how]}",
            unit=unit,
            ours=[each[name] for each in ours],
            peers=[each[name] for each in bare],
            peer="receives, writes, syncs and answers, and looks at nothing",
            higher_is_better=name == "produce",
        )
        for name, unit in (("produce", "msg/s"), ("produce_cpu", "broker CPU s per million"))
    ]


def disk_alone(request_bytes: int, requests: int, syncs: int) -> tuple[float, float]:
    """(wall, CPU) seconds of these writes with that many syncs among them, evenly spread."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    data = bytes(request_bytes)
    descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT, 0o600)
    synced = 0
    try:
        began, cpu_before = time.monotonic(), time.process_time()
        for number in range(requests):
            os.pwrite(descriptor, data, number * request_bytes)
            if synced * requests < (number + 1) * syncs:
                os.fdatasync(descriptor)
                synced += 1
        return time.monotonic() - began, time.process_time() - cpu_before
    finally:
        os.close(descriptor)
        shutil.rmtree(folder)


def against_loopback(ours: list[dict[str, float]]) -> Figure:
    return Figure(
        hop="raw",
        case="fetch, bytes received",
        unit="MB/s",
        ours=[each["fetch_bytes"] / 1e6 for each in ours],
        peers=[loopback_bytes_per_second() / 1e6 for _ in ours],
        peer="loopback TCP",
    )


def loopback_bytes_per_second(total: int = 1 << 30) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=send_zeros, args=(server.getsockname(), total))
        sender.start()
        connection, _ = server.accept()
        with connection:
            buffer = bytearray(1 << 20)
            began = time.monotonic()
            while connection.recv_into(buffer):
                pass
            taken_s = time.monotonic() - began
        sender.join()
    return total / taken_s


def send_zeros(address: tuple[str, int], total: int) -> None:
    data = bytes(1 << 20)
    with socket.create_connection(address) as connection:
        for _ in range(total // len(data)):
            connection.sendall(data)
