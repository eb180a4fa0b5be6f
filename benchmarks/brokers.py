"""The two brokers under test, and the children that load them.

headrace runs as installed: an acknowledgement follows a sync. Apache Kafka runs as it ships: heap and collector of its
own start script, and no sync before an acknowledgement. Both stand at the same time and take turns; before each turn
the disk is settled (``sync``), so that neither pays for what the other left in the page cache, and memory is touched.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.meters import Meter
from tests.servers.headrace import headrace_server, listener_address
from tests.servers.kafka import JVM_AS_SHIPPED, apache_kafka_server
from tests.servers.process import CannotRun, RunningServer

__all__ = [
    "Brokers",
    "Client",
    "alternate",
    "both_brokers",
    "create_topic",
    "delete_topic",
    "run_clients",
    "run_metered",
    "sync_quantile_s",
    "syncs_so_far",
    "unique",
]

ROOT = Path(__file__).resolve().parent.parent
counter = itertools.count()
KAFKA_SETTINGS = {"log.segment.delete.delay.ms": "0"}
"""Files of a deleted topic go before the next turn, and not a minute later in the middle of somebody else's."""
TOUCHED_BYTES = 3 << 29
"""What the largest turns write and their page cache holds, and half as much again."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """headrace, and Apache Kafka where it can be had; without it ratios are missing and the results say so."""

    headrace: RunningServer
    kafka: RunningServer | None

    @property
    def all(self) -> list[RunningServer]:
        return [self.headrace] if self.kafka is None else [self.headrace, self.kafka]


@contextmanager
def both_brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        ours = stack.enter_context(headrace_server(arguments=["--metrics", "127.0.0.1:0"], expect_exit=None))
        try:
            kafka = stack.enter_context(apache_kafka_server(jvm=JVM_AS_SHIPPED, settings=KAFKA_SETTINGS))
        except CannotRun as why:
            print(f"Apache Kafka cannot run here, so there is nothing to compare with: {why}", file=sys.stderr)
            kafka = None
        yield Brokers(ours, kafka)


def alternate(brokers: Brokers, rounds: int, run: Callable[[RunningServer], Any]) -> dict[str, list[Any]]:
    """Each broker in turn, the order reversed every round, so that a drift of the machine meets both alike."""
    results: dict[str, list[Any]] = {broker.name: [] for broker in brokers.all}
    for number in range(rounds):
        for broker in brokers.all[:: -1 if number % 2 else 1]:
            touch_memory()
            os.sync()
            time.sleep(0.2)
            results[broker.name].append(run(broker))
    return results


def touch_memory(size: int = TOUCHED_BYTES) -> None:
    """Use as much memory for files as a turn will, and free it again.

    A virtual machine gets memory from its host when it first uses it, and may have to give back what is free. Writing
    a GB took 0.21 s of CPU in memory that had been used before and 1.9 s in memory that had not: whichever broker came
    first to new memory paid for it, up to six times the CPU of a large Produce.
    """
    data = bytes(1 << 20)
    with tempfile.TemporaryFile(prefix="headrace-bench-") as file:
        for _ in range(size // len(data)):
            file.write(data)


SYNCS_UP_TO = re.compile(r'headrace_sync_seconds_bucket\{le="([^"]+)"\} (\S+)')


def syncs_so_far(broker: RunningServer) -> dict[float, int]:
    """How many syncs headrace has made since its start, by how many seconds they took at most; all of them stand under
    infinity. Nothing for a broker that does not say."""
    if broker.name != "headrace":
        return {math.inf: 0}
    with urlopen(f"http://{listener_address(broker.log, 'metrics')}/metrics", timeout=10) as answer:
        found = SYNCS_UP_TO.findall(answer.read().decode())
    return {float(bound): int(float(count)) for bound, count in found}


def sync_quantile_s(before: dict[float, int], after: dict[float, int], quantile: float) -> float:
    """The smallest bound of the metric that this share of the syncs in between kept to."""
    made = {bound: count - before[bound] for bound, count in after.items()}
    return min(bound for bound, count in made.items() if count >= quantile * made[math.inf])


def unique(what: str) -> str:
    return f"{what}-{os.getpid()}-{next(counter)}"


def create_topic(broker: RunningServer, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
    admin.create_topics([topic], operation_timeout=60)[name].result(timeout=90)
    wait_for_leaders(broker.bootstrap, name, partitions)


def wait_for_leaders(bootstrap: str, name: str, partitions: int, timeout_s: float = 60) -> None:
    """Until a client gets a leader for every partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):  # a broker that is starting refuses connections
            topic = admin.list_topics(name, timeout=1).topics[name]
            if len(topic.partitions) == partitions and all(each.leader >= 0 for each in topic.partitions.values()):
                return
        time.sleep(0.01)
    raise TimeoutError(f"{name} has not {partitions} partitions with leaders after {timeout_s:g} s")


def delete_topic(broker: RunningServer, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([name], operation_timeout=30)[name].result(timeout=60)


class Client:
    """A child that runs ``benchmarks.client``: made ready first, started by ``go``, its result read by ``outcome``."""

    def __init__(self, broker: RunningServer, program: str = "benchmarks.client", **task: Any) -> None:
        task["bootstrap"] = broker.bootstrap
        self._child = subprocess.Popen(
            [sys.executable, "-m", program, json.dumps(task)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self._child.stdout is not None
        if self._child.stdout.readline().strip() != "go":
            raise RuntimeError(f"a client ended before it was ready, with {self._child.wait()}")

    def go(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()

    def outcome(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"a client ended without a result, with {self._child.wait()}")
        outcome: dict[str, Any] = json.loads(line)
        if outcome["failed"]:
            raise RuntimeError(f"{outcome['failed']} messages failed: {outcome['error']}")
        return outcome

    def end(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def run_metered(broker: RunningServer, client: Client) -> tuple[dict[str, Any], Meter]:
    """One client from ``go`` to its result, and what the broker spent in that time."""
    try:
        client.wait_until_ready()
        with Meter(broker.pid) as meter:
            client.go()
            return client.outcome(), meter
    finally:
        client.end()


def run_clients(clients: Sequence[Client]) -> list[dict[str, Any]]:
    """All ready, then all at once."""
    try:
        for client in clients:
            client.wait_until_ready()
        for client in clients:
            client.go()
        return [client.outcome() for client in clients]
    finally:
        for client in clients:
            client.end()
