"""The lag of pipelines against the ends that their topics have now, asked of a real broker; no JVM is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headrace.client import Admin, Client, Producer, TopicPartition
from headrace.spark.progress import Report, lag_of
from headrace.spark.run.lag import FollowedSource, TopicEnds, present, take_positions
from headrace.testing import TestBroker, broker
from tests.waiting import eventually

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def running() -> Iterator[TestBroker]:
    with broker() as started:
        with Client(started.bootstrap) as client:
            Admin(client).create_topic("orders")
        yield started


@pytest.fixture
def ends() -> Iterator[TopicEnds]:
    made = TopicEnds(lambda line: None)
    yield made
    made.stop()


def send(running: TestBroker, count: int, partition: int = 0) -> None:
    with Client(running.bootstrap) as client, Producer(client) as producer:
        for _ in range(count):
            producer.send("orders", b"x", partition=partition)


def followed(ends: TopicEnds, bootstrap: str, read: int | None = None, **more: str) -> list[FollowedSource | None]:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "orders", "startingoffsets": "earliest", **more}
    return ends.follow("shop", [("headrace", options)], [None if read is None else {ORDERS: read}])


def report(read: int, latest: int) -> Report:
    return {"sources": [{"endOffset": {"orders": {"0": read}}, "latestOffset": {"orders": {"0": latest}}}]}


def test_before_the_first_batch_everything_is_lag(running: TestBroker, ends: TopicEnds) -> None:
    send(running, 7)
    sources = followed(ends, running.bootstrap)
    eventually(lambda: lag_of(present({}, sources)) == 7)


def test_without_a_new_batch_the_lag_grows_with_the_topic(running: TestBroker, ends: TopicEnds) -> None:
    send(running, 7)
    sources = followed(ends, running.bootstrap, read=7)
    last = report(read=7, latest=7)
    eventually(lambda: lag_of(present({}, sources)) == 0)
    send(running, 715)
    eventually(lambda: lag_of(present(last, sources)) == 715)
    take_positions(report(read=700, latest=722), sources)
    assert lag_of(present(last, sources)) == 22


def test_a_partition_that_is_new_counts_from_its_beginning(
    running: TestBroker, ends: TopicEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.run.lag.DISCOVERY_S", 0.0)
    sources = followed(ends, running.bootstrap, read=0)
    eventually(lambda: lag_of(present({}, sources)) == 0)
    with Client(running.bootstrap) as client:
        Admin(client).create_partitions("orders", 2)
    send(running, 5, partition=1)
    eventually(lambda: lag_of(present({}, sources)) == 5)


def test_what_spark_has_seen_since_the_last_look_counts_too(running: TestBroker, ends: TopicEnds) -> None:
    sources = followed(ends, running.bootstrap, read=0)
    eventually(lambda: lag_of(present({}, sources)) == 0)
    assert lag_of(present(report(read=0, latest=9), sources)) == 9


def test_a_topic_that_is_deleted_does_not_hide_the_lag_of_another_pipeline(
    running: TestBroker, ends: TopicEnds
) -> None:
    with Client(running.bootstrap) as client:
        Admin(client).create_topic("gone")
    sources = followed(ends, running.bootstrap, read=0)
    given = {"kafka.bootstrap.servers": running.bootstrap, "subscribe": "gone"}
    other = ends.follow("other", [("headrace", given)], [])
    eventually(lambda: lag_of(present({}, other)) == 0)
    with Client(running.bootstrap) as client:
        Admin(client).delete_topic("gone")
    send(running, 3)
    eventually(lambda: lag_of(present({}, sources)) == 3)


def test_while_the_broker_does_not_answer_the_lag_is_unknown_and_the_broker_is_named_once() -> None:
    said: list[str] = []
    ends = TopicEnds(said.append)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"127.0.0.1:{silent.getsockname()[1]}"
        sources = followed(ends, there, read=0)
        assert lag_of(present(report(read=0, latest=9), sources)) == 9, "nobody was asked yet"
        eventually(lambda: lag_of(present(report(read=0, latest=9), sources)) is None)
    ends.stop()
    assert [f"broker {there} does not answer since " in each for each in said] == [True]


def test_sources_of_other_kinds_keep_what_spark_says_of_them(running: TestBroker, ends: TopicEnds) -> None:
    sources = ends.follow("shop", [("rate-micro-batch", {})], [])
    assert sources == [None]
    assert lag_of(present(report(read=4, latest=6), sources)) == 2
