"""One of each server for the whole run: starting Apache Kafka takes seconds, and tests use names of their own."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.headrace import headrace_server as start_headrace
from tests.servers.kafka import apache_kafka_server
from tests.servers.mariadb import MariadbServer, mariadb_server
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.process import RunningServer
from tests.servers.redis import RedisServer, redis_server
from tests.skips import or_skip


def already_running(name: str) -> RunningServer | None:
    """HEADRACE_RUNNING_HEADRACE and HEADRACE_RUNNING_APACHE_KAFKA (host:port) spare the start of a server."""
    bootstrap = os.environ.get(f"HEADRACE_RUNNING_{name.upper()}")
    if not bootstrap:
        return None
    return RunningServer(
        name=name, bootstrap=bootstrap, pid=os.getpid(), data=Path("/nonexistent"), log=Path("/nonexistent")
    )


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[RunningServer]:
    """Apache Kafka 4.x, one node. Skips with the reason where it cannot be had."""
    if running := already_running("apache_kafka"):
        yield running
        return
    with or_skip(), apache_kafka_server() as server:
        yield server


@pytest.fixture(scope="session")
def headrace_server() -> Iterator[RunningServer]:
    """``headrace up``, shared by the tests of a run."""
    if running := already_running("headrace"):
        yield running
        return
    with start_headrace() as server:
        yield server


@pytest.fixture(scope="session", params=["headrace", "apache_kafka"])
def broker(request: pytest.FixtureRequest) -> RunningServer:
    """The same test on both brokers: what it claims of headrace is true of Apache Kafka as well.

    HEADRACE_TEST_BROKER names one of the two when only that one is wanted.
    """
    only = os.environ.get("HEADRACE_TEST_BROKER")
    if only and only != request.param:
        pytest.skip(f"HEADRACE_TEST_BROKER={only}")
    fixture = "headrace_server" if request.param == "headrace" else "apache_kafka"
    server: RunningServer = request.getfixturevalue(fixture)
    return server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with or_skip(), postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    with or_skip(), mariadb_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    with or_skip(), redis_server() as server:
        yield server


counter = itertools.count()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names nobody else uses, on servers that are shared by all tests of a run and perhaps by earlier runs."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    run = os.urandom(3).hex()

    def name(what: str) -> str:
        return f"{what}-{test}-{run}{next(counter)}"

    return name
