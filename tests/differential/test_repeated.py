"""Requests that name the same thing twice. Kafka answers some twice, some once, and refuses others.

``tests/unit/broker/test_bounded_requests.py`` shows that the cost of such requests is bounded.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.batches import batch
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario
from tests.differential.test_transactions import Producer

pytestmark = pytest.mark.servers


def note_twice(s: Scenario, api: str, version: int | None = None, /, **values: Any) -> None:
    s.note(api, api, version, **values)
    s.notes[-1].append(counts(s.notes[-1][1]))


def counts(answer: Any) -> list[int]:
    """How many elements each list has, which a reader of the recording wants to see first."""
    if isinstance(answer, dict):
        return [count for value in answer.values() for count in counts(value)]
    if not isinstance(answer, list):
        return []
    return [len(answer), *(count for each in answer for count in counts(each))]


# ---- topics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 9, 13])
def test_metadata(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        names = [s.topic("a"), s.name("unknown")] * 2
        values: dict[str, Any] = {"allow_auto_topic_creation": False} if version >= 4 else {}
        if version == 0:
            names = names[::2]  # asking version 0 for a topic creates it
        note_twice(s, "Metadata", version, topics=[{"name": name} for name in names], **values)

    same_as_kafka(play)


def test_metadata_by_id(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        asked = {"topic_id": s.topic_id(s.topic("a")), "name": None}
        note_twice(s, "Metadata", topics=[asked, asked], allow_auto_topic_creation=False)

    same_as_kafka(play)


def test_topic_partitions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        names = [s.topic("a", partitions=2), s.name("unknown")] * 2
        note_twice(s, "DescribeTopicPartitions", topics=[{"name": name} for name in names])

    same_as_kafka(play)


@pytest.mark.parametrize("version", [5, 6])
def test_deleted_topics(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        names = [s.topic("a"), s.topic("b"), s.name("unknown"), s.name("unknown")]
        names.insert(0, names[0])
        asked: dict[str, Any] = (
            {"topics": [{"name": name} for name in names]} if version >= 6 else {"topic_names": names}
        )
        note_twice(s, "DeleteTopics", version, **asked, timeout_ms=60_000)

    same_as_kafka(play)


def test_a_topic_deleted_by_name_and_by_id(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("a")
        asked = [{"name": name}, {"name": None, "topic_id": s.topic_id(name)}]
        note_twice(s, "DeleteTopics", topics=asked, timeout_ms=60_000)

    same_as_kafka(play)


def test_created_topics_and_partitions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        topic = {"name": s.name("new"), "num_partitions": 1, "replication_factor": 1}
        note_twice(s, "CreateTopics", topics=[topic, {**topic, "num_partitions": 2}], timeout_ms=60_000)
        grown = {"name": s.topic("a"), "count": 3, "assignments": None}
        note_twice(s, "CreatePartitions", topics=[grown, {**grown, "count": 4}], timeout_ms=60_000)

    same_as_kafka(play)


def test_settings(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("a")
        keys = ["retention.ms", "retention.ms"]
        resource = {"resource_type": 2, "resource_name": name, "configuration_keys": keys}
        note_twice(s, "DescribeConfigs", resources=[resource, {**resource, "configuration_keys": ["segment.ms"]}])
        changes = [{"name": "retention.ms", "value": "1000"}, {"name": "retention.ms", "value": "2000"}]
        note_twice(s, "AlterConfigs", resources=[{"resource_type": 2, "resource_name": name, "configs": changes}])

    same_as_kafka(play)


# ---- partitions -----------------------------------------------------------------------------------------------------


def two_partitions(s: Scenario) -> str:
    name = s.topic("a", partitions=2)
    s.produce(name, batch())
    return name


@pytest.mark.parametrize("version", [1, 10])
def test_offsets_of_a_partition(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = two_partitions(s)
        asked = [{"partition_index": index, "timestamp": -1} for index in (0, 0, 1)]
        note_twice(s, "ListOffsets", version, replica_id=-1, topics=[{"name": name, "partitions": asked}])
        once = {"name": name, "partitions": asked[1:]}
        s.note("a topic twice", "ListOffsets", version, replica_id=-1, topics=[once, once])

    same_as_kafka(play)


def test_fetched_partitions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = two_partitions(s)
        asked = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in (0, 0, 1)]
        topics = [{"topic": name, "partitions": asked}]
        note_twice(s, "Fetch", 12, max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=topics)

    same_as_kafka(play)


def test_epochs_of_a_partition(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        asked = [{"partition": index, "leader_epoch": 0, "current_leader_epoch": -1} for index in (0, 0, 1)]
        topics = [{"topic": two_partitions(s), "partitions": asked}]
        note_twice(s, "OffsetForLeaderEpoch", replica_id=-1, topics=topics)

    same_as_kafka(play)


def test_deleted_records(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        asked = [{"partition_index": index, "offset": 1 if index == 0 else 0} for index in (0, 0, 1)]
        topics = [{"name": two_partitions(s), "partitions": asked}]
        note_twice(s, "DeleteRecords", topics=topics, timeout_ms=10_000)

    same_as_kafka(play)


def test_producers_and_directories(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = two_partitions(s)
        note_twice(s, "DescribeProducers", topics=[{"name": name, "partition_indexes": [0, 0, 9, 9]}])
        note_twice(s, "DescribeLogDirs", topics=[{"topic": name, "partitions": [0, 0, 1]}])

    same_as_kafka(play)


def test_elections_and_reassignments(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = two_partitions(s)
        where = [{"topic": name, "partitions": [0, 0]}]
        note_twice(s, "ElectLeaders", topic_partitions=where, timeout_ms=5000)
        topics = [{"name": name, "partition_indexes": [0, 0]}]
        note_twice(s, "ListPartitionReassignments", topics=topics)
        moved = [{"partition_index": 0, "replicas": [s.node]}] * 2
        note_twice(s, "AlterPartitionReassignments", 0, topics=[{"name": name, "partitions": moved}])

    same_as_kafka(play)


# ---- groups and transactions ----------------------------------------------------------------------------------------


def group_with_offsets(s: Scenario, name: str) -> str:
    group = s.name("group")
    s.coordinator(group, 0)
    partitions = [{"partition_index": 0, "committed_offset": offset} for offset in (1, 2)]
    commit = {"group_id": group, "generation_id_or_member_epoch": -1}
    note_twice(s, "OffsetCommit", 9, **commit, topics=[{"name": name, "partitions": partitions}])
    return group


def test_offsets_of_a_group(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = two_partitions(s)
        group = group_with_offsets(s, name)
        topics = [{"name": name, "partition_indexes": [0, 0, 1]}]
        note_twice(s, "OffsetFetch", 9, groups=[{"group_id": group, "topics": topics}])
        s.note("a topic twice", "OffsetFetch", 9, groups=[{"group_id": group, "topics": topics * 2}])
        s.note("a group twice", "OffsetFetch", 9, groups=[{"group_id": group, "topics": None}] * 2)
        deleted = [{"name": name, "partitions": [{"partition_index": index} for index in (0, 0, 1)]}]
        note_twice(s, "OffsetDelete", group_id=group, topics=deleted)

    same_as_kafka(play)


def test_groups(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        group = group_with_offsets(s, two_partitions(s))
        unknown = s.name("unknown")
        note_twice(s, "FindCoordinator", key_type=0, coordinator_keys=[group, group])
        note_twice(s, "DescribeGroups", groups=[group, unknown] * 2)
        note_twice(s, "ConsumerGroupDescribe", group_ids=[group, unknown] * 2)
        note_twice(s, "DeleteGroups", groups_names=[group, unknown] * 2)

    same_as_kafka(play)


def test_transactions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic("a", partitions=2), Producer(s)
        producer.init()
        partitions = {"name": name, "partitions": [0, 0, 1]}
        who = {f"v3_and_below_{key}": value for key, value in producer.who().items()}
        s.until(lambda: s.ask("AddPartitionsToTxn", 3, **who, v3_and_below_topics=[partitions]) is not None)
        note_twice(s, "AddPartitionsToTxn", 3, **who, v3_and_below_topics=[partitions])
        s.note("a topic twice", "AddPartitionsToTxn", 3, **who, v3_and_below_topics=[partitions] * 2)
        answer = s.ask("DescribeTransactions", transactional_ids=[producer.id] * 2)
        for topic in (each for state in answer["transaction_states"] for each in state["topics"]):
            topic["partitions"].sort()
        s.write("DescribeTransactions", answer)

    same_as_kafka(play)


def test_unknown_transactions(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        s.coordinator(s.name("unknown"), 1)
        note_twice(s, "DescribeTransactions", transactional_ids=[s.name("unknown")] * 2)

    same_as_kafka(play)


def test_a_topic_with_no_partitions_asked_for_and_the_same_topic_in_two_parts(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name, other = two_partitions(s), s.topic("b")
        parts = [{"name": name, "partitions": [{"partition_index": index, "timestamp": -1}]} for index in (0, 1)]
        note_twice(s, "ListOffsets", replica_id=-1, topics=[*parts, {"name": other, "partitions": []}])

    same_as_kafka(play)
