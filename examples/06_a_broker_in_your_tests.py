"""Tests with a broker of their own. Run them: pytest examples/06_a_broker_in_your_tests.py"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import testing
from headrace.client import Admin, Client, GroupConsumer, Groups, Producer, TopicPartition, start_offsets


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One broker for all tests of this file; it is there within milliseconds and leaves nothing behind."""
    with testing.broker() as broker, Client(broker.bootstrap) as client:
        yield client


def test_what_was_acknowledged_is_there(client: Client) -> None:
    with Producer(client) as producer:
        producer.send("orders", b"espresso", partition=0)
    partition = TopicPartition("orders", 0)
    assert start_offsets(client, [partition]) == {partition: 0}


def test_old_records_go_when_their_time_is_over() -> None:
    """Three minutes pass in a moment: the test owns the clock."""
    clock = testing.VirtualClock()
    settings = {"log.retention.check.interval.ms": 10_000}
    with testing.broker(clock=clock, settings=settings) as broker, Client(broker.bootstrap) as client:
        config = {"retention.ms": "60000", "segment.ms": "20000"}
        Admin(client).create_topic("readings", partitions=1, config=config)
        partition = TopicPartition("readings", 0)
        for _ in range(2):
            with Producer(client) as producer:
                producer.send("readings", b"21 degrees", partition=0, timestamp=clock.wall_ms())
            clock.advance(180_000)
        assert start_offsets(client, [partition])[partition] > 0


def test_a_restart_loses_nothing() -> None:
    with testing.broker() as broker, Client(broker.bootstrap) as client:
        with Producer(client) as producer:
            producer.send("kept", b"1", partition=0)
        with GroupConsumer(client, "readers", ["kept"]) as member:
            member.poll(timeout_ms=500)
        broker.restart()
        assert [topic.name for topic in Admin(client).topics()] == ["kept"]
        assert [group.name for group in Groups(client).list_all()] == ["readers"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
