"""A topic as an event store, and a store that is published, on headrace and on Apache Kafka alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.client.positioned import committed_records
from headrace.sourcing import AppendConflict, Condition, Event, EventStore, Query, WriterBusy, open_store
from headrace.sourcing.publishing import publish
from tests.servers.process import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers


def test_a_topic_is_a_store_with_one_writer_whose_successor_is_the_only_one(
    broker: RunningServer, unique: Callable[[str], str]
) -> None:
    url = f"kafka://{broker.bootstrap}/{unique('events')}"
    first, second = open_store(f"{url}?lease=5"), open_store(f"{url}?lease=5")
    first.append("a-1", [Event("Paid", {"n": 1}), Event("Paid", {"n": 2}, tags=("x",))], expected="none")
    with pytest.raises(AppendConflict):
        first.append("a-1", Event("Paid"), expected=1)
    with pytest.raises(AppendConflict):
        first.append("a-2", Event("Paid"), condition=Condition(Query.of(tags=["x"])))
    assert [event.data for event in second.read("a-1")] == [{"n": 1}, {"n": 2}]
    with pytest.raises(WriterBusy, match="is written by"):
        second.append("a-1", Event("Paid"))
    first._ended.set()  # type: ignore[attr-defined]  # it stops renewing its lease, as a stopped process does
    assert eventually(lambda: appended(second)) == 3
    with pytest.raises(WriterBusy, match=r"taken over by|is written by"):
        first.append("a-1", Event("Paid", {"n": 9}))
    assert [event.position for event in first.read_all()] == [1, 2, 3]
    first.close()
    second.close()


def appended(store: EventStore) -> int:
    try:
        return store.append("a-1", Event("Paid", {"n": 3}), expected=2).position
    except WriterBusy:
        return 0


def test_a_store_is_published_once_and_in_order(
    broker: RunningServer, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("published")
    with open_store(tmp_path / "events.db") as store:
        for number in range(3):
            store.append(f"a-{number % 2}", [Event("Paid", {"n": number})] * 5)
            publish(store, broker.bootstrap, topic, until_current=True)
        with Client(broker.bootstrap) as client:
            found = [json.loads(record.value or b"") for record in committed_records(client, topic)]
        assert [each["event_id"] for each in found] == [event.event_id for event in store.read_all()]
