"""A real broker in this process, shared by a module's tests; topics have names of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace import testing
from headrace.client import Admin, Client, ClientOptions, TopicPartition

PATIENCE = ClientOptions(
    connect_timeout_ms=60_000, request_timeout_ms=60_000, retry_timeout_ms=60_000, missing_topic_timeout_ms=100
)
"""A busy machine may be slow. Only a topic that was never made is reported soon: one that was made is there at once."""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    settings = {"group.consumer.heartbeat.interval.ms": 50, "auto.create.topics.enable": False}
    with testing.broker(settings=settings) as broker:
        yield broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap, PATIENCE) as client:
        yield client


@pytest.fixture
def make_topic(client: Client, unique: Callable[[str], str]) -> Callable[..., list[TopicPartition]]:
    """Makes a topic and gives its partitions."""

    def make(partitions: int = 1, **config: str) -> list[TopicPartition]:
        name = unique("t")
        settings = {key.replace("_", "."): value for key, value in config.items()}
        Admin(client).create_topic(name, partitions=partitions, config=settings)
        return [TopicPartition(name, index) for index in range(partitions)]

    return make
