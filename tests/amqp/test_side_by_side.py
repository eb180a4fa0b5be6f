"""Random sequences of operations give the same on RabbitMQ and on headrace; ``side_by_side`` runs as many as wanted."""

from __future__ import annotations

import pytest

from tests.amqp.side_by_side import difference
from tests.servers.rabbitmq import RabbitMqServer

pytestmark = pytest.mark.servers

STEPS = 40


@pytest.mark.parametrize("seed", [20, 101, 113, 115, 117, 120])
def test_clients_of_both_brokers_get_the_same_after_every_step(
    rabbitmq: RabbitMqServer, amqp_port: int, seed: int
) -> None:
    found = difference(seed, STEPS, (rabbitmq.port, amqp_port))
    assert found is None, found


@pytest.mark.parametrize(("queue_type", "seed"), [("quorum", 5), ("quorum", 9), ("stream", 4), ("stream", 7)])
def test_clients_of_quorum_queues_and_streams_get_the_same_after_every_step(
    rabbitmq: RabbitMqServer, amqp_port: int, queue_type: str, seed: int
) -> None:
    found = difference(seed, STEPS, (rabbitmq.port, amqp_port), queue_type)
    assert found is None, found
