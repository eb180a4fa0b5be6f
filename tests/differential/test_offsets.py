"""Where a log begins, ends, stood at a time; and what DeleteRecords does to that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.batches import batch, values
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers

EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -2, -1, -3, -4, -5, -6


def list_offsets(
    s: Scenario, label: str, name: str, timestamp: int, *, version: int | None = None, **more: Any
) -> None:
    partition = {"partition_index": more.pop("partition", 0), "timestamp": timestamp}
    if "current_leader_epoch" in more:
        partition["current_leader_epoch"] = more.pop("current_leader_epoch")
    s.note(label, "ListOffsets", version, replica_id=-1, topics=[{"name": name, "partitions": [partition]}], **more)


def topic_with_times(s: Scenario) -> str:
    name = s.topic()
    s.produce(name, batch(records=values("a", "b", "c"), timestamps=[1000, 3000, 2000]))
    s.produce(name, batch(records=values("d", "e"), timestamps=[2500, 5000]))
    s.produce(name, batch(records=values("f"), timestamps=[4000]))
    return name


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_of_list_offsets(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_times(s)
        list_offsets(s, "earliest", name, EARLIEST, version=version)
        list_offsets(s, "latest", name, LATEST, version=version)
        list_offsets(s, "at 2600", name, 2600, version=version)
        if version >= 7:
            list_offsets(s, "max timestamp", name, MAX_TIMESTAMP, version=version)

    same_as_kafka(play)


def test_the_offset_of_a_time_is_the_first_record_not_older(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_times(s)
        for time in (0, 999, 1000, 1001, 2000, 2001, 3000, 3001, 4500, 5000, 5001, 1 << 50):
            list_offsets(s, f"at {time}", name, time)

    same_as_kafka(play)


@pytest.mark.parametrize("timestamp", [EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD, -7, -99])
def test_special_timestamps_and_nonsense(same_as_kafka: Compare, timestamp: int) -> None:
    same_as_kafka(lambda s: list_offsets(s, "special", topic_with_times(s), timestamp))


@pytest.mark.parametrize("timestamp", [MAX_TIMESTAMP, EARLIEST_LOCAL])
def test_special_timestamps_in_versions_that_do_not_know_them(same_as_kafka: Compare, timestamp: int) -> None:
    same_as_kafka(lambda s: list_offsets(s, "old version", topic_with_times(s), timestamp, version=5))


def test_an_empty_log(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        for timestamp in (EARLIEST, LATEST, MAX_TIMESTAMP, 0, 5000):
            list_offsets(s, f"{timestamp}", name, timestamp)

    same_as_kafka(play)


def test_unknown_topics_partitions_and_epochs(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_times(s)
        list_offsets(s, "unknown topic", s.name("unknown"), LATEST)
        list_offsets(s, "unknown partition", name, LATEST, partition=5)
        list_offsets(s, "epoch 0", name, LATEST, current_leader_epoch=0)
        list_offsets(s, "epoch 5", name, LATEST, current_leader_epoch=5)

    same_as_kafka(play)


def test_the_same_partition_twice_in_one_request(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        partition = {"partition_index": 0, "timestamp": LATEST}
        topics = [{"name": topic_with_times(s), "partitions": [partition, partition]}]
        s.note("twice", "ListOffsets", replica_id=-1, topics=topics)

    same_as_kafka(play)


def test_compressed_batches_are_searched_by_time_too(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        s.produce(name, batch(attributes=1, records=values("a", "b", "c"), timestamps=[1000, 2000, 3000]))
        list_offsets(s, "in the middle", name, 1500)
        list_offsets(s, "max timestamp", name, MAX_TIMESTAMP)

    same_as_kafka(play)


def delete_before(s: Scenario, name: str, offset: int, version: int) -> None:
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}]
    s.note(f"before {offset}", "DeleteRecords", version, topics=topics, timeout_ms=60_000)
    list_offsets(s, "earliest", name, EARLIEST)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_delete_records_moves_the_start(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_times(s)
        for offset in (2, 1, 99, -2, 4):
            delete_before(s, name, offset, version)
            list_offsets(s, "by time", name, 0)
            list_offsets(s, "max timestamp", name, MAX_TIMESTAMP)
        for offset in (-1, 4):
            delete_before(s, name, offset, version)
            list_offsets(s, "by time", name, 0)

    same_as_kafka(play)


def test_delete_records_of_what_does_not_exist(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic()
        for topic, partition in ((s.name("unknown"), 0), (name, 7)):
            topics = [{"name": topic, "partitions": [{"partition_index": partition, "offset": 0}]}]
            s.note(f"partition {partition}", "DeleteRecords", topics=topics, timeout_ms=60_000)
        topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}]
        s.note("empty log", "DeleteRecords", topics=topics, timeout_ms=60_000)

    same_as_kafka(play)


def test_delete_records_of_a_compacted_topic(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", cleanup_policy="compact")
        s.produce(name, batch())
        topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 1}]}]
        s.note("delete", "DeleteRecords", topics=topics, timeout_ms=60_000)

    same_as_kafka(play)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offset_for_leader_epoch(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = topic_with_times(s)
        for current, epoch in ((-1, 0), (0, 0), (-1, 1), (-1, -1), (5, 0), (-1, 99)):
            partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            topics = [{"topic": name, "partitions": [partition]}]
            s.note(f"current {current}, epoch {epoch}", "OffsetForLeaderEpoch", version, topics=topics)
        partition = {"partition": 3, "leader_epoch": 0}
        for topic in (name, s.name("unknown")):
            topics = [{"topic": topic, "partitions": [partition]}]
            s.note("unknown", "OffsetForLeaderEpoch", version, topics=topics)

    same_as_kafka(play)
