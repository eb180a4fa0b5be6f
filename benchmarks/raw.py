"""What the broker alone can take and give, with a client that costs next to nothing, beside Kafka and the hardware.

The limits are measured in the same run, in the same folder: ``pwrite`` of the same sizes with ``fdatasync`` after every
five (the client has five requests under way), and one socket to another over loopback.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.brokers import Brokers, Client, alternate, create_topic, delete_topic, run_metered, unique
from benchmarks.figures import Figure
from tests.servers.process import RunningServer

__all__ = ["run"]

SIZE = 100
RECORDS_LARGE, RECORDS_SMALL = 8_000, 100
IN_FLIGHT = 5


def run(brokers: Brokers, *, quick: bool) -> list[Figure]:
    rounds = 1 if quick else 3
    scale = 4 if quick else 1
    figures = []
    for records, requests in ((RECORDS_LARGE, 1_000 // scale), (RECORDS_SMALL, 20_000 // scale)):
        turns = alternate(brokers, rounds, partial(turn, records=records, requests=requests))
        figures += figures_of(f"batches of {records:,} × {SIZE} B", turns, records * requests)
        if records == RECORDS_LARGE:
            figures += against_hardware(turns["headrace"], requests)
    return figures


def turn(broker: RunningServer, records: int, requests: int) -> dict[str, float]:
    topic = unique("raw")
    create_topic(broker, topic, 1)
    task: dict[str, Any] = {"program": "benchmarks.raw_client", "topic": topic}
    count = records * requests
    try:
        client = Client(broker, work="produce", partitions=1, records=records, requests=requests, size=SIZE, **task)
        produced, produce_meter = run_metered(broker, client)
        fetched, fetch_meter = run_metered(broker, Client(broker, work="fetch", count=count, **task))
    finally:
        delete_topic(broker, topic)
    return {
        "produce": count / produced["wall_s"],
        "produce_cpu": produce_meter.cpu_s / count * 1e6,
        "produce_bytes": produced["bytes"] / produced["wall_s"],
        "fetch": count / fetched["wall_s"],
        "fetch_cpu": fetch_meter.cpu_s / count * 1e6,
        "fetch_bytes": fetched["bytes"] / fetched["wall_s"],
    }


def figures_of(case: str, turns: dict[str, list[dict[str, float]]], count: int) -> list[Figure]:
    ours, kafka = turns["headrace"], turns.get("apache_kafka", [])
    figures = []
    for verb in ("produce", "fetch"):
        figures.append(
            Figure(
                hop="raw",
                case=f"{verb} {case}",
                unit="msg/s",
                ours=[each[verb] for each in ours],
                peers=[each[verb] for each in kafka],
                goal=1.0,
            )
        )
        figures.append(
            Figure(
                hop="raw",
                case=f"{verb} {case}",
                unit="broker CPU s per million",
                ours=[each[f"{verb}_cpu"] for each in ours],
                peers=[each[f"{verb}_cpu"] for each in kafka],
                higher_is_better=False,
                goal=1.0,
            )
        )
    return figures


def against_hardware(ours: list[dict[str, float]], requests: int) -> list[Figure]:
    request_bytes = SIZE * RECORDS_LARGE
    return [
        Figure(
            hop="raw",
            case="produce, bytes flushed",
            unit="MB/s",
            ours=[each["produce_bytes"] / 1e6 for each in ours],
            peers=[disk_bytes_per_second(request_bytes, requests) / 1e6 for _ in ours],
            peer="the disk, written and synced",
        ),
        Figure(
            hop="raw",
            case="fetch, bytes received",
            unit="MB/s",
            ours=[each["fetch_bytes"] / 1e6 for each in ours],
            peers=[loopback_bytes_per_second() / 1e6 for _ in ours],
            peer="loopback TCP",
        ),
    ]


def disk_bytes_per_second(request_bytes: int, requests: int) -> float:
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    data = bytes(request_bytes)
    descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        began = time.monotonic()
        for number in range(requests):
            os.pwrite(descriptor, data, number * request_bytes)
            if number % IN_FLIGHT == IN_FLIGHT - 1:
                os.fdatasync(descriptor)
        return request_bytes * requests / (time.monotonic() - began)
    finally:
        os.close(descriptor)
        shutil.rmtree(folder)


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
