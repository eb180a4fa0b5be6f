"""What a channel has been sent and not settled: tags, counts, and settling that fails half-way."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.queues.deliveries import Deliveries
from headrace.broker.queues.rotation import Delivery
from headrace.log.errors import LogError


class Consumer:
    unacknowledged = 0


def filled(*consumers: Any) -> Deliveries:
    """One delivery for each consumer; None has fetched it."""
    deliveries = Deliveries()
    for offset, consumer in enumerate(consumers):
        queue: Any = None
        deliveries.hold(Delivery(queue, 0, offset, 1), consumer)
    return deliveries


def test_settling_that_fails_half_way_keeps_what_is_not_settled_in_order() -> None:
    consumer = Consumer()
    deliveries = filled(consumer, None, consumer, None, consumer)
    last = deliveries.take(5, False, "basic.ack")
    settled: list[int] = []

    def settle(delivery: Delivery) -> None:
        if delivery.offset == 2:
            raise LogError("it cannot be read")
        settled.append(delivery.offset)

    with pytest.raises(LogError):
        deliveries.settle(deliveries.take(0, True, "basic.nack"), settle)
    deliveries.put_back(last)
    assert settled == [0, 1]
    assert (consumer.unacknowledged, deliveries.fetched, len(deliveries)) == (2, 1, 3)
    assert [each.offset for each in deliveries.take_all()] == [2, 3, 4]


def test_what_was_fetched_is_counted_until_it_is_settled() -> None:
    deliveries = filled(None, None, Consumer())
    assert deliveries.fetched == 2
    taken = deliveries.take(1, False, "basic.ack")
    assert deliveries.fetched == 2, "a transaction may take it back"
    deliveries.settle(taken, lambda _: None)
    deliveries.take_each([2, 3], {})
    assert (deliveries.fetched, len(deliveries)) == (0, 0)
