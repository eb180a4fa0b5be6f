"""Every kind of store, each empty: the same tests on all of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace import testing
from headrace.sourcing import EventStore, open_store
from headrace.testing.broker import TestBroker
from tests.servers.postgres import PostgresServer

KINDS = ("sqlite", "postgres", "topic")
numbers = itertools.count()


@pytest.fixture(scope="session")
def log_broker() -> Iterator[TestBroker]:
    """An embedded broker, for all stores that are topics."""
    with testing.broker() as broker:
        yield broker


@pytest.fixture
def new_schema(request: pytest.FixtureRequest) -> Callable[[], str]:
    """The address of a new schema on the server that all tests share."""

    def make() -> str:
        server: PostgresServer = request.getfixturevalue("postgres")
        name = f"events_{os.getpid()}_{next(numbers)}"
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"create schema {name}".encode())
        return f"{server.url()}?options=-csearch_path%3D{name}"

    return make


NewUrl = Callable[[str], str]


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path, new_schema: Callable[[], str]) -> NewUrl:
    """The address of a store of a kind that does not exist yet."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/events.db"
        if kind == "postgres":
            return new_schema()
        broker: TestBroker = request.getfixturevalue("log_broker")
        return f"kafka://{broker.bootstrap}/events-{os.getpid()}-{next(numbers)}"

    return make


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.servers if kind == "postgres" else ()) for kind in KINDS])
def url(request: pytest.FixtureRequest, new_url: NewUrl) -> str:
    return new_url(request.param)


@pytest.fixture
def several_writers(url: str) -> bool:
    """Whether several processes may append to the store at a time."""
    return not url.startswith("kafka:")


@pytest.fixture
def open_(url: str) -> Iterator[Callable[..., EventStore]]:
    """Opens the store once more, as another process would; all are closed at the end."""
    opened: list[EventStore] = []

    def again(**choices: Any) -> EventStore:
        opened.append(open_store(url, **choices))
        return opened[-1]

    yield again
    for each in opened:
        each.close()


@pytest.fixture
def store(open_: Callable[..., EventStore]) -> EventStore:
    return open_()
