"""The sink's protocol on headrace and on Apache Kafka, without Spark: deaths at a sample of its remote calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.client import Admin, Client, end_transaction
from headrace.spark.topic_sink.decisions import BatchRef, DecisionTopic
from headrace.spark.topic_sink.protocol import Protocol, Settings
from tests.servers.process import RunningServer
from tests.spark.topics import eventually
from tests.unit.spark.sink_world import PATIENCE, Death, Fate, World, expected, mortality, spread

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

BATCHES = 2
LAYOUT = spread(rows_per_batch=12, tasks=4)


@pytest.fixture
def world(broker: RunningServer, unique: Callable[[str], str]) -> World:
    topic = unique("out")
    with Client(broker.bootstrap, PATIENCE) as client:
        Admin(client).create_topic(topic, partitions=2)
    return World(broker.bootstrap, topic, unique("sink")[-80:], Settings(decision_topic=unique("decisions")))


def visible_soon(world: World, rows: list[bytes]) -> list[bytes]:
    """Apache Kafka answers an end when it is decided; its markers follow a moment later."""
    return eventually(world.visible, lambda found: found == rows)


def test_deaths_all_over_a_run_leave_no_duplicate_and_no_gap(world: World) -> None:
    """One run after the other goes on where the last one died, each a few calls further than the one before."""
    deaths = 0
    for at in range(7, 120, 11):
        patch = pytest.MonkeyPatch()
        try:
            with mortality(patch.setattr, Fate(at, heard=bool(at % 2))):
                world.run(5, LAYOUT)
        except Death:
            deaths += 1
    world.run(5, LAYOUT)
    assert deaths > 5
    assert visible_soon(world, expected(5, LAYOUT)) == expected(5, LAYOUT)


def test_a_decided_transaction_that_was_aborted_is_written_again(world: World) -> None:
    batch = BatchRef(world.sink, 0, "0")
    patch = pytest.MonkeyPatch()
    patch.setattr(Protocol, "_carry_out", lambda self, decision: Fate().die())
    with Client(world.bootstrap, PATIENCE) as driver:
        with pytest.raises(Death):
            world.one_batch(driver, batch, LAYOUT(0))
        patch.undo()
        last = DecisionTopic(driver, world.settings.decision_topic).last(world.sink)
        assert last is not None
        end_transaction(driver, last.identities[1], commit=False)
    world.run(BATCHES, LAYOUT)
    assert visible_soon(world, expected(BATCHES, LAYOUT)) == expected(BATCHES, LAYOUT)
