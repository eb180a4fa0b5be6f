"""What a channel has been sent and not settled: tags, counts, and settling that fails half-way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

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


class CountedDict(dict[int, Any]):
    """Counts how often somebody begins to go through it."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def test_acknowledging_up_to_a_tag_does_not_go_through_what_is_gone() -> None:
    """A dict passes over every place that was taken from its front: the cost of a million such acknowledgements grew
    with their square."""
    deliveries = filled(*[None] * 100)
    held = deliveries._held = CountedDict(deliveries._held)
    for tag in range(1, 101, 2):
        assert deliveries.up_to(tag + 1, "basic.ack") == [tag, tag + 1]
        deliveries.take_each([tag, tag + 1], {})
    assert (len(deliveries), held.walks) == (0, 0)


def test_what_is_put_back_is_acknowledged_with_what_came_later() -> None:
    deliveries = filled(*[None] * 6)
    deliveries.take_each([2], {})
    taken = deliveries.take(4, True, "basic.ack")
    assert list(taken) == [1, 3, 4]
    deliveries.put_back(taken)
    assert deliveries.up_to(5, "basic.ack") == [1, 3, 4, 5]
    deliveries.take_each([1, 3, 4, 5], {})
    assert list(deliveries.take(0, True, "basic.ack")) == [6]
    assert deliveries.hold(Delivery(cast("Any", None), 0, 6, 1), None) == 7
    assert deliveries.up_to(7, "basic.ack") == [7]
