"""The planner of the source on a real broker, without Spark around it: what it finds, and what it reports as lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.client import Admin, Client, Producer, TopicPartition
from headrace.spark.source import tasks
from headrace.spark.source.columns import plain_schema
from headrace.spark.source.data_source import RangePartition, StreamReader
from headrace.spark.source.options import SourceOptions, client_options
from headrace.spark.source.positions import from_json, ids_in
from headrace.spark.source.tasks import DataLost
from headrace.testing import TestBroker, broker

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def running() -> Iterator[TestBroker]:
    with broker() as started:
        yield started


@pytest.fixture
def client(running: TestBroker) -> Iterator[Client]:
    with Client(running.bootstrap) as connected:
        yield connected


def make(client: Client, topic: str, values: int, partitions: int = 1) -> None:
    Admin(client).create_topic(topic, partitions=partitions)
    with Producer(client) as producer:
        for index in range(values):
            producer.send(topic, b"%d" % index, partition=index % partitions)


def replace_topic(client: Client, topic: str, values: int) -> None:
    Admin(client).delete_topic(topic)
    make(client, topic, values)


@pytest.fixture
def planners(running: TestBroker) -> Iterator[Any]:
    """Makes planners as Spark does when a query starts, and stops them in the end."""
    made: list[StreamReader] = []

    def plan(topic: str, **options: str) -> StreamReader:
        given = {"kafka.bootstrap.servers": running.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        if "subscribePattern" in options:
            del given["subscribe"]
        parsed = SourceOptions.parse({**given, **options}, streaming=True)
        made.append(StreamReader(parsed, plain_schema(include_headers=False)))
        return made[-1]

    yield plan
    for each in made:
        each.stop()
    for kept in tasks._clients.values():
        kept.close()
    tasks._clients.clear()


def read(planner: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    batches = [batch for part in planner.partitions(start, end) for batch in planner.read(part)]
    return pa.Table.from_batches(batches).column("value").to_pylist() if batches else []


def test_an_offset_has_the_positions_and_says_which_topic_of_that_name_is_meant(client: Client, planners: Any) -> None:
    make(client, "named", 3)
    planner = planners("named")
    start = planner.initialOffset()
    end = planner.latestOffset(start, ALL)
    assert from_json(end) == {TopicPartition("named", 0): 3}
    assert ids_in(start) == ids_in(end) == {"named": client.topic_id("named")}
    assert read(planner, start, json.loads(json.dumps(end))) == [b"0", b"1", b"2"]


def test_a_topic_made_anew_with_as_many_records_is_reported(client: Client, planners: Any) -> None:
    make(client, "anew", 3)
    first = planners("anew")
    end = first.latestOffset(first.initialOffset(), ALL)
    replace_topic(client, "anew", 5)
    with pytest.raises(DataLost, match="anew was deleted and created again"):
        planners("anew").latestOffset(end, ALL)


def test_a_topic_made_anew_is_read_from_its_beginning_when_loss_is_accepted(client: Client, planners: Any) -> None:
    make(client, "accepted", 3)
    first = planners("accepted", failOnDataLoss="false")
    end = first.latestOffset(first.initialOffset(), ALL)
    replace_topic(client, "accepted", 5)
    second = planners("accepted", failOnDataLoss="false")
    entered = second.latestOffset(end, ALL)
    assert read(second, end, entered) == []
    assert read(second, entered, second.latestOffset(entered, ALL)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_topic_made_anew_after_the_batch_was_planned_is_reported_by_its_task(client: Client, planners: Any) -> None:
    make(client, "planned", 3)
    planner = planners("planned")
    start = planner.initialOffset()
    end = planner.latestOffset(start, ALL)
    replace_topic(client, "planned", 5)
    with pytest.raises(DataLost, match="not there any more"):
        read(planner, start, end)


def test_a_worker_that_knew_the_deleted_topic_reads_the_new_one_of_that_name(client: Client, planners: Any) -> None:
    make(client, "reused", 3)
    first = planners("reused")
    start = first.initialOffset()
    assert len(read(first, start, first.latestOffset(start, ALL))) == 3, "the worker's client now knows the topic's id"
    replace_topic(client, "reused", 25)
    second = planners("reused", failOnDataLoss="false")
    start = second.initialOffset()
    assert len(read(second, start, second.latestOffset(start, ALL))) == 25


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern"])
def test_a_deleted_topic_is_reported_or_left_out_as_was_asked(client: Client, planners: Any, how: str) -> None:
    stays, goes = f"stays-{how}", f"goes-{how}"
    make(client, stays, 3)
    make(client, goes, 4)
    selection = {"subscribe": f"{stays},{goes}"} if how == "subscribe" else {"subscribePattern": f"(stays|goes)-{how}"}
    careful, careless = (planners(stays, failOnDataLoss=each, **selection) for each in ("true", "false"))
    begin = careful.initialOffset()
    careless.latestOffset(begin, ALL)
    careful.latestOffset(begin, ALL)
    Admin(client).delete_topic(goes)
    with pytest.raises(DataLost, match=rf"{goes}\[0\] no longer exists"):
        careful.latestOffset(begin, ALL)
    assert from_json(careless.latestOffset(begin, ALL)) == {TopicPartition(stays, 0): 3}


def test_records_are_committed_ones_unless_others_are_asked_for() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "any"}
    assert SourceOptions.parse(given, streaming=True).read_committed
    uncommitted = {**given, "kafka.isolation.level": "read_uncommitted"}
    assert not SourceOptions.parse(uncommitted, streaming=True).read_committed


def test_a_checkpoint_without_ids_is_gone_on_with(client: Client, planners: Any) -> None:
    make(client, "older", 3)
    planner = planners("older")
    end = planner.latestOffset({"older": {"0": 1}}, ALL)
    assert read(planner, {"older": {"0": 1}}, end) == [b"1", b"2"]
    assert [type(part) for part in planner.partitions({"older": {"0": 1}}, {"older": {"0": 3}})] == [RangePartition]


def test_an_offset_with_ids_is_read_by_those_who_know_positions_only() -> None:
    offset = {"a": {"0": 17}, "a@" + "6a" * 16: {}}
    known_before = {(topic, int(at)): int(end) for topic, each in offset.items() for at, end in each.items()}
    assert known_before == {("a", 0): 17}


def test_settings_of_encryption_and_identity_reach_the_client_beside_our_own() -> None:
    kafka = {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
        "request.timeout.ms": "1234",
    }
    options = client_options(kafka, retry_timeout_ms=7_000, role="task")
    assert (options.security.protocol, options.security.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (options.retry_timeout_ms, options.request_timeout_ms) == (7_000, 1_234)
    assert options.client_id == "headrace-spark-task"


def test_tasks_wait_for_a_broker_that_they_have_not_met_and_the_driver_tells_a_wrong_address_at_once() -> None:
    bounds = {
        role: client_options({}, retry_timeout_ms=7_000, role=role).first_contact_timeout_ms  # type: ignore[arg-type]
        for role in ("driver", "task")
    }
    assert bounds == {"driver": 0, "task": 7_000}
