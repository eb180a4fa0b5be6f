"""File descriptors that run out: at the start, by connections, and later by anything at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from headrace.client import Admin, ClientOptions, Producer
from headrace.client import Client as KafkaClient
from headrace.errors import HeadraceError, UsageError
from headrace.server.descriptors import DESCRIPTORS_MIN, DescriptorPlan, descriptors_for
from tests.unit.server.harness import Client
from tests.unit.server.test_node import api_versions
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow  # a process for each test

SERVE = [sys.executable, "-m", "headrace.node"]


def limit_to(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


@contextmanager
def broker_with(descriptors: int, data: Path) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A broker as a child that may open so many files."""
    with (data / "stderr").open("w") as errors:
        child = subprocess.Popen(
            SERVE,
            env={**os.environ, "HEADRACE_DATA": str(data / "log"), "HEADRACE_KAFKA": "127.0.0.1:0"},
            preexec_fn=lambda: limit_to(descriptors),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert child.stdout is not None
            address = child.stdout.readline().split()[-1]
            assert child.stdout.readline() == "ready\n"
            host, _, port = address.rpartition(":")
            yield child, (host, int(port))
            child.terminate()
            assert child.wait(PATIENCE_S) == 0, (data / "stderr").read_text()
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def serves(address: tuple[str, int]) -> bool:
    """Whether a new connection is answered."""
    try:
        return api_versions(address).error_code == 0
    except (EOFError, ConnectionError):
        return False


@pytest.mark.parametrize("limit", [1, 64, DESCRIPTORS_MIN - 1])
def test_too_few_descriptors_are_refused_with_the_command_that_gives_more(limit: int) -> None:
    with pytest.raises(UsageError, match=rf"may open {limit} files.*at least {DESCRIPTORS_MIN}.*ulimit -n 8192"):
        DescriptorPlan.of(limit, 4000)


@pytest.mark.parametrize("limit", [DESCRIPTORS_MIN, 256, 1024, 4096, 1 << 20])
def test_every_limit_that_is_accepted_leaves_room_for_segments_and_connections(limit: int) -> None:
    plan = DescriptorPlan.of(limit, 4000)
    assert plan.segment_files_max >= 32
    assert plan.connections_max >= 32
    assert plan.segment_files_max + plan.connections_max < limit
    assert DescriptorPlan.of(descriptors_for(4000), 4000).connections_max == 4000


def test_a_broker_with_too_few_descriptors_does_not_start_and_says_so_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        SERVE,
        env={**os.environ, "HEADRACE_DATA": str(tmp_path / "log"), "HEADRACE_KAFKA": "127.0.0.1:0"},
        preexec_fn=lambda: limit_to(64),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ulimit -n" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "log").exists()


def test_more_connections_than_descriptors_are_refused_and_the_others_are_served(tmp_path: Path) -> None:
    with broker_with(DESCRIPTORS_MIN, tmp_path) as (_, address), KafkaClient(f"{address[0]}:{address[1]}") as client:
        Admin(client).create_topic("before", partitions=4)
        with ExitStack() as stack:
            for _ in range(2 * DESCRIPTORS_MIN):
                with suppress(ConnectionError):
                    stack.enter_context(Client(address))
            eventually(lambda: not serves(address))
            Admin(client).create_topic("meanwhile", partitions=4)
            with Producer(client) as producer:
                for number in range(50):
                    producer.send("before", b"%d" % number)
                    producer.send("meanwhile", b"%d" % number)
        eventually(lambda: serves(address))


def test_descriptors_that_run_out_while_serving_cost_requests_and_connections_and_nothing_more(tmp_path: Path) -> None:
    options = ClientOptions(retry_timeout_ms=0)
    with broker_with(1024, tmp_path) as (child, address), KafkaClient(f"{address[0]}:{address[1]}", options) as client:
        Admin(client).create_topic("open", partitions=1)
        with Producer(client) as producer:
            producer.send("open", b"before")
        in_use = max(map(int, os.listdir(f"/proc/{child.pid}/fd")))
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (in_use + 1, 1024))
        refused = sum(not created(client, f"topic-{number}") for number in range(20))
        assert refused > 10
        with Producer(client) as producer:
            producer.send("open", b"meanwhile")
        assert not serves(address)
        assert child.poll() is None
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        eventually(lambda: serves(address))
        assert created(client, "after")
        with Producer(client) as producer:
            producer.send("after", b"after")


def created(client: KafkaClient, topic: str) -> bool:
    try:
        Admin(client).create_topic(topic, partitions=3)
        return True
    except HeadraceError:
        return False
