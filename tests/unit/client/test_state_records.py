"""What runs is published in small records: never in the way of what it is about, and old when that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headrace import testing
from headrace.client import (
    STATE_TOPIC,
    Admin,
    Client,
    Consumer,
    Producer,
    ResourceKind,
    StatePublisher,
    StateReader,
    StateRecord,
    TopicPartition,
    read_state_records,
    remove_state_record,
    start_offsets,
)
from headrace.client.positioned import STATE_CONFIG, ensure_topic
from tests.waiting import eventually


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """Every test has its own topic."""
    with testing.broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    with Client(bootstrap) as client:
        yield client


def all_records(client: Client) -> list[StateRecord]:
    place = TopicPartition(STATE_TOPIC, 0)
    consumer = Consumer(client)
    consumer.assign(start_offsets(client, [place]))
    found = consumer.poll(timeout_ms=500).get(place, [])
    return [record for each in found if each.value and (record := StateRecord.from_json(each.value))]


def test_what_is_published_is_read_and_the_topic_is_compacted(bootstrap: str, client: Client) -> None:
    with StatePublisher(bootstrap) as publisher:
        publisher.publish("pipeline", "revenue", state="running", details={"rows": 7})
    record = read_state_records(client, "pipeline")["revenue"]
    assert (record.state, record.details, record.pid, record.ended) == ("running", {"rows": 7}, os.getpid(), False)
    assert record.is_alive()
    settings = {each.name: each.value for each in Admin(client).describe_config(ResourceKind.TOPIC, STATE_TOPIC)}
    assert settings["cleanup.policy"] == "compact"


def test_close_sends_the_last_state_although_a_second_has_not_passed(bootstrap: str, client: Client) -> None:
    with StatePublisher(bootstrap) as publisher:
        publisher.publish("capture", "shop", state="running", details={})
        eventually(lambda: read_state_records(client, "capture"))
        publisher.publish("capture", "shop", state="failed", error="no slot", ended=True, details={})
    record = read_state_records(client, "capture")["shop"]
    assert (record.state, record.error, record.ended) == ("failed", "no slot", True)
    assert not record.is_alive()
    assert not record.is_lost(record.at_ms + 10**9)


@pytest.mark.slow
def test_many_states_become_at_most_one_record_per_second(bootstrap: str, client: Client) -> None:
    began_s = time.monotonic()
    with StatePublisher(bootstrap) as publisher:
        number = 0
        reader = StateReader(client)

        def seen() -> int:
            nonlocal number
            number += 1
            publisher.publish("pipeline", "busy", state="running", details={"number": number})
            records = reader.refresh()
            return records["pipeline/busy"].details["number"] if records else 0

        eventually(seen, lambda newest: newest > 1, pause_s=0.001)
        first = seen()
        eventually(seen, lambda newest: newest > first, pause_s=0.001)
    records = all_records(client)
    assert number > 3 * len(records), "most were replaced by newer ones"
    assert len(records) <= time.monotonic() - began_s + 2, "the first, one after each second, and the last by close"


@pytest.mark.slow
def test_a_state_that_does_not_change_is_sent_once_per_heartbeat(bootstrap: str, client: Client) -> None:
    with StatePublisher(bootstrap) as publisher:

        def published(name: str) -> list[StateRecord]:
            for each in ("quiet", "beating"):
                beat_ms = 600_000 if each == "quiet" else 1_000
                publisher.publish("pipeline", each, state="running", details={}, heartbeat_ms=beat_ms)
            return [each for each in all_records(client) if each.name == name]

        eventually(lambda: published("beating"), lambda found: len(found) == 3)
        assert len(published("quiet")) == 1


@pytest.mark.slow
def test_a_process_that_was_killed_leaves_a_record_that_grows_old(bootstrap: str, client: Client) -> None:
    program = (
        "import sys, time\n"
        "from headrace.client import StatePublisher\n"
        "publisher = StatePublisher(sys.argv[1])\n"
        "while True:\n"
        "    publisher.publish('pipeline', 'mortal', state='running', details={}, heartbeat_ms=100)\n"
        "    time.sleep(0.05)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, bootstrap]) as child:
        try:
            record = eventually(lambda: read_state_records(client, "pipeline").get("mortal"))
            assert record is not None
            assert record.pid == child.pid
            assert record.is_alive(record.at_ms + 5_300)
        finally:
            child.send_signal(signal.SIGKILL)
    record = read_state_records(client, "pipeline")["mortal"]
    assert not record.ended
    eventually(lambda: record.is_lost(), pause_s=0.1)
    assert record.state == "running", "it could not say that it stopped"


def test_a_definition_does_not_age() -> None:
    record = StateRecord(kind="dashboard", name="d", at_ms=1, heartbeat_ms=0)
    assert not record.is_lost()


def test_what_is_removed_is_gone_for_readers_that_follow(bootstrap: str, client: Client) -> None:
    reader = StateReader(client)
    assert reader.refresh() == {}, "nothing was ever published"
    with StatePublisher(bootstrap) as publisher:
        publisher.publish("dashboard", "a/b ü", state="defined", details={}, heartbeat_ms=0)
        eventually(lambda: "dashboard/a/b ü" in reader.refresh())
        publisher.remove("dashboard", "a/b ü")
        eventually(lambda: not reader.refresh())
        publisher.publish("capture", "shop", state="running", details={})
    remove_state_record(client, "capture", "shop")
    assert reader.refresh() == {}


def test_a_broker_that_is_away_is_mentioned_once_and_nothing_waits_for_it() -> None:
    with testing.broker() as broker:
        bootstrap = broker.bootstrap
    told: list[str] = []
    publisher = StatePublisher(bootstrap, trouble=told.append)
    for number in range(10_000):
        publisher.publish("pipeline", "p", state="running", details={"number": number})
    eventually(lambda: told)
    publisher.close()
    (line,) = told
    assert STATE_TOPIC in line
    assert not any(each.name == "headrace-state" for each in threading.enumerate())


def test_publishing_goes_on_when_the_broker_is_back(client: Client) -> None:
    told: list[str] = []
    with testing.broker() as broker:
        broker.stop()
        with StatePublisher(broker.bootstrap, trouble=told.append) as publisher, Client(broker.bootstrap) as own:
            publisher.publish("pipeline", "p", state="running", details={})
            eventually(lambda: told)
            broker.start()
            eventually(lambda: read_state_records(own, "pipeline"))


def test_what_json_does_not_know_is_reported_and_does_not_reach_the_caller(bootstrap: str, client: Client) -> None:
    told: list[str] = []
    with StatePublisher(bootstrap, trouble=told.append) as publisher:
        publisher.publish("pipeline", "p", state="running", details={"x": object()})
        eventually(lambda: told)
        publisher.publish("pipeline", "p", state="running", details={"x": 1})
    assert read_state_records(client, "pipeline")["p"].details == {"x": 1}


def test_details_that_are_too_large_are_left_out(bootstrap: str, client: Client) -> None:
    with StatePublisher(bootstrap) as publisher:
        publisher.publish("pipeline", "p", state="running", details={"text": "x" * 2_000_000})
    record = read_state_records(client, "pipeline")["p"]
    assert record.state == "running"
    assert set(record.details) == {"cut"}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"format": 2, "kind": "pipeline", "name": "x"}',
        b'{"format": 1, "name": "x"}',
        b'{"format": 1, "kind": "pipeline", "name": "x", "at_ms": "now"}',
        b'{"format": 1, "kind": "pipeline", "name": "x", "details": [1]}',
        b'{"format": 1, "kind": "pipeline", "name": "another"}',
        b"\xff\xfe",
    ],
)
def test_a_record_of_another_making_is_passed_over(bootstrap: str, client: Client, value: bytes) -> None:
    ensure_topic(client, STATE_TOPIC, partitions=1, config=STATE_CONFIG)
    with Producer(client) as producer:
        producer.send(STATE_TOPIC, value, key=b"pipeline/x", partition=0)
        good = json.dumps({"format": 1, "kind": "pipeline", "name": "good", "state": "running", "new_field": 1})
        producer.send(STATE_TOPIC, good.encode(), key=b"pipeline/good", partition=0)
    assert set(read_state_records(client, "pipeline")) == {"good"}


def test_a_topic_that_was_deleted_is_read_from_its_beginning(bootstrap: str, client: Client) -> None:
    reader = StateReader(client)
    with StatePublisher(bootstrap) as publisher:
        publisher.publish("pipeline", "before", state="running", details={})
    assert set(reader.refresh()) == {"pipeline/before"}
    Admin(client).delete_topic(STATE_TOPIC)
    assert eventually(reader.refresh, lambda records: not records) == {}
    with StatePublisher(bootstrap) as publisher:
        publisher.publish("pipeline", "after", state="running", details={})
    assert set(eventually(reader.refresh)) == {"pipeline/after"}
