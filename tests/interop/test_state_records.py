"""State records and what the console watches, on headrace and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.client import Client, StatePublisher, StateReader, remove_state_record
from headrace.console.watch import Watch
from tests.servers.process import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers


@pytest.fixture
def watch(broker: RunningServer) -> Iterator[Watch]:
    watch = Watch(broker.bootstrap)
    watch.start()
    yield watch
    watch.stop()


def test_what_is_published_is_read_watched_and_removed(
    broker: RunningServer, watch: Watch, unique: Callable[[str], str]
) -> None:
    name = unique("revenue")
    with Client(broker.bootstrap) as client, StatePublisher(broker.bootstrap) as publisher:
        reader = StateReader(client)
        publisher.publish("pipeline", name, state="running", details={"rows_per_s": 5})
        record = eventually(lambda: reader.refresh().get(f"pipeline/{name}"))
        assert record is not None
        assert record.is_alive()
        eventually(lambda: f"pipeline/{name}" in watch.look().states)
        publisher.publish("pipeline", name, state="stopped", ended=True, details={})
        publisher.close()
        eventually(lambda: reader.refresh()[f"pipeline/{name}"].ended)
        remove_state_record(client, "pipeline", name)
        eventually(lambda: f"pipeline/{name}" not in reader.refresh())
        eventually(lambda: f"pipeline/{name}" not in watch.look().states)


def test_apache_kafka_has_no_queues_and_the_reason_is_shown(broker: RunningServer, watch: Watch) -> None:
    seen = watch.look()
    assert seen.problem == ""
    assert ("Kafka has none" in seen.no_queues) == (broker.name == "apache_kafka")
