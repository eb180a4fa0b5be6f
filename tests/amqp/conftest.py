"""``play_on``: a scenario on RabbitMQ and on headrace gives the same notes.

RabbitMQ's notes are kept in ``recorded.json``: both brokers are compared with them, RabbitMQ where it can be had, so
that the recording stays true. HEADRACE_RECORD=1 writes it again from RabbitMQ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.amqp.scenario import AmqpScenario
from tests.servers.headrace import headrace_server, listener_address
from tests.servers.rabbitmq import RabbitMqServer, rabbitmq_server
from tests.skips import or_skip

RECORDED = Path(__file__).with_name("recorded.json")
Play = Callable[[AmqpScenario], None]


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMqServer]:
    with or_skip(), rabbitmq_server() as server:
        yield server


@pytest.fixture(scope="session")
def amqp_port() -> Iterator[int]:
    """``headrace up`` with queues, shared by the tests of a run."""
    with headrace_server(arguments=["--amqp", "127.0.0.1:0"]) as server:
        yield int(listener_address(server.log, "amqp").rpartition(":")[2])


def notes_of(port: int, play: Play) -> list[Any]:
    scenario = AmqpScenario(port)
    try:
        play(scenario)
    finally:
        scenario.close()
    notes: list[Any] = json.loads(json.dumps(scenario.notes))
    return notes


@pytest.fixture(params=["headrace", "rabbitmq"])
def play_on(request: pytest.FixtureRequest) -> Callable[[Play], None]:
    name = request.node.originalname.removeprefix("test_")
    is_rabbitmq = request.param == "rabbitmq"
    port = request.getfixturevalue("rabbitmq").port if is_rabbitmq else request.getfixturevalue("amqp_port")

    def play(scenario: Play) -> None:
        recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        notes = notes_of(port, scenario)
        if is_rabbitmq and os.environ.get("HEADRACE_RECORD"):
            recorded[name] = notes
            RECORDED.write_text(json.dumps(dict(sorted(recorded.items())), indent=1, ensure_ascii=False) + "\n")
        assert notes == recorded.get(name)

    return play
