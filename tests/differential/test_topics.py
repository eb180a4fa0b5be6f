"""Topics made, seen, grown and removed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers


def create(s: Scenario, label: str, *topics: dict[str, Any], **values: Any) -> None:
    wanted = [{"num_partitions": 1, "replication_factor": 1, **topic} for topic in topics]
    for topic in wanted:
        topic["assignments"] = [assignment(s, each) for each in topic.get("assignments", [])]
    answer = s.ask("CreateTopics", **{"topics": wanted, "timeout_ms": 60_000, **values})
    for topic in answer["topics"]:
        if values.get("validate_only"):
            topic.pop("topic_id")  # Kafka invents one that is never used
        # Every config with its default is compared in test_configs; here their number would only be noise.
        topic["configs"] = None if topic["configs"] is None else "some" if topic["configs"] else "empty"
    s.write(label, answer)


def assignment(s: Scenario, wanted: dict[str, Any]) -> dict[str, Any]:
    """Broker 1 in a parameter stands for the one broker there is, whatever its number."""
    return {**wanted, "broker_ids": [s.node if each == 1 else each for each in wanted["broker_ids"]]}


@pytest.mark.parametrize(
    "bad",
    ["", ".", "..", "a/b", "a b", "é", "x" * 250, "a:b", "a\x00b", "a\nb", "__consumer_offsets", "__cluster_metadata"],
    ids=lambda bad: repr(bad)[:20],
)
def test_bad_topic_names_are_refused(same_as_kafka: Compare, bad: str) -> None:
    same_as_kafka(lambda s: create(s, "create", {"name": bad}))


def test_a_name_of_249_characters_is_allowed(same_as_kafka: Compare) -> None:
    same_as_kafka(lambda s: create(s, "create", {"name": s.name("x" * 240)}))


def test_names_that_differ_only_by_dot_and_underscore_collide(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        create(s, "first", {"name": s.name("with.dot")})
        create(s, "second", {"name": s.name("with_dot")})

    same_as_kafka(play)


@pytest.mark.parametrize(
    "topic",
    [
        {"num_partitions": 0},
        {"num_partitions": -1},
        {"num_partitions": -2},
        {"replication_factor": 2},
        {"replication_factor": 0},
        {"replication_factor": -1},
        {"replication_factor": -2},
        {"num_partitions": -1, "replication_factor": -1},
        {"num_partitions": -1, "replication_factor": -1, "assignments": [{"partition_index": 0, "broker_ids": [1]}]},
        {"num_partitions": -1, "replication_factor": -1, "assignments": [{"partition_index": 1, "broker_ids": [1]}]},
        {"num_partitions": -1, "replication_factor": -1, "assignments": [{"partition_index": 0, "broker_ids": [99]}]},
        {"num_partitions": -1, "replication_factor": -1, "assignments": [{"partition_index": 0, "broker_ids": []}]},
        {"num_partitions": 1, "replication_factor": 1, "assignments": [{"partition_index": 0, "broker_ids": [1]}]},
        {"configs": [{"name": "no.such.config", "value": "1"}]},
        {"configs": [{"name": "retention.ms", "value": "soon"}]},
        {"configs": [{"name": "retention.ms", "value": "-2"}]},
        {"configs": [{"name": "retention.ms", "value": None}]},
        {"configs": [{"name": "cleanup.policy", "value": "shred"}]},
        {"configs": [{"name": "cleanup.policy", "value": "compact,delete"}]},
        {"configs": [{"name": "segment.bytes", "value": "1"}]},
        {"configs": [{"name": "max.message.bytes", "value": "-1"}]},
        {"configs": [{"name": "compression.type", "value": "rar"}]},
        {"configs": [{"name": "message.timestamp.type", "value": "never"}]},
        {"configs": [{"name": "min.insync.replicas", "value": "0"}]},
        {"configs": [{"name": "retention.ms", "value": "5"}, {"name": "retention.ms", "value": "6"}]},
    ],
    ids=lambda topic: "-".join(f"{key}-{value}" for key, value in topic.items())[:60],
)
def test_wrong_counts_assignments_and_configs_are_refused(same_as_kafka: Compare, topic: dict[str, Any]) -> None:
    def play(s: Scenario) -> None:
        create(s, "validate", {"name": s.name("topic"), **topic}, validate_only=True)
        create(s, "create", {"name": s.name("topic"), **topic})

    same_as_kafka(play)


def test_a_topic_that_exists_is_not_made_again(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        s.topic("topic")
        create(s, "again", {"name": s.name("topic")})
        create(s, "again, validating", {"name": s.name("topic")}, validate_only=True)

    same_as_kafka(play)


def test_the_same_topic_twice_in_one_request_is_refused(same_as_kafka: Compare) -> None:
    same_as_kafka(lambda s: create(s, "twice", {"name": s.name("topic")}, {"name": s.name("topic")}))


def test_one_bad_topic_does_not_stop_the_others_in_a_request(same_as_kafka: Compare) -> None:
    same_as_kafka(lambda s: create(s, "mixed", {"name": s.name("good")}, {"name": "not good"}, {"name": s.name("two")}))


def test_an_empty_create_request_is_answered_empty(same_as_kafka: Compare) -> None:
    same_as_kafka(lambda s: create(s, "none"))


@pytest.mark.parametrize("version", range(14))
def test_metadata_describes_a_topic_in_every_version(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", partitions=3)
        s.note("topic", "Metadata", version, topics=[{"name": name}], allow_auto_topic_creation=False)

    same_as_kafka(play)


@pytest.mark.parametrize("version", [1, 4, 9, 12, 13])
def test_metadata_of_unknown_and_impossible_topics(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        create_none = {"allow_auto_topic_creation": False} if version >= 4 else {}
        s.note("no topics", "Metadata", version, topics=[], **create_none)
        if version >= 4:  # before, asking for a topic creates it
            s.note("unknown", "Metadata", version, topics=[{"name": s.name("unknown")}], **create_none)
        s.note("bad name", "Metadata", version, topics=[{"name": "bad/name"}], **create_none)

    same_as_kafka(play)


@pytest.mark.parametrize("version", [10, 12, 13])
def test_metadata_by_topic_id(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        identifier = s.topic_id(s.topic("topic", partitions=2))
        s.note("known", "Metadata", version, topics=[{"topic_id": identifier, "name": None}])
        s.note("unknown", "Metadata", version, topics=[{"topic_id": b"\x01" * 16, "name": None}])

    same_as_kafka(play)


def test_metadata_creates_a_topic_when_allowed(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.name("made")
        s.ask("Metadata", topics=[{"name": name}], allow_auto_topic_creation=True)
        s.topic_id(name)
        s.note("afterwards", "Metadata", topics=[{"name": name}], allow_auto_topic_creation=False)

    same_as_kafka(play)


def test_authorized_operations_are_told_when_asked_for(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic")
        s.note("topic", "Metadata", topics=[{"name": name}], include_topic_authorized_operations=True)
        asked = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
        s.note("cluster", "Metadata", 8, topics=[{"name": name}], **asked)

    same_as_kafka(play)


def test_describe_topic_partitions_pages_through_a_topic(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", partitions=5)
        s.note("all", "DescribeTopicPartitions", topics=[{"name": name}])
        s.note("two", "DescribeTopicPartitions", topics=[{"name": name}], response_partition_limit=2)
        cursor = {"topic_name": name, "partition_index": 2}
        s.note("next", "DescribeTopicPartitions", topics=[{"name": name}], response_partition_limit=2, cursor=cursor)
        s.note("unknown", "DescribeTopicPartitions", topics=[{"name": s.name("unknown")}])
        s.note("bad name", "DescribeTopicPartitions", topics=[{"name": "bad/name"}])
        cursor = {"topic_name": name, "partition_index": -1}
        s.note("bad cursor", "DescribeTopicPartitions", topics=[{"name": name}], cursor=cursor)

    same_as_kafka(play)


def grow(s: Scenario, label: str, name: str, count: int, **values: Any) -> None:
    topic = {"name": name, "count": count, "assignments": values.pop("assignments", None)}
    s.note(label, "CreatePartitions", topics=[topic], timeout_ms=60_000, **values)


def test_partitions_are_added_and_never_taken_away(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", partitions=2)
        grow(s, "validate", name, 3, validate_only=True)
        grow(s, "fewer", name, 1)
        grow(s, "as many", name, 2)
        grow(s, "none", name, 0)
        grow(s, "negative", name, -1)
        grow(s, "unknown topic", s.name("unknown"), 3)
        grow(s, "bad name", "bad/name", 3)
        grow(s, "assigned", name, 3, assignments=[{"broker_ids": [s.node]}])
        grow(s, "assigned to nobody", name, 4, assignments=[{"broker_ids": [99]}])
        grow(s, "too few assignments", name, 5, assignments=[{"broker_ids": [s.node]}])
        grow(s, "more", name, 4)
        s.until(lambda: len(s.ask("Metadata", topics=[{"name": name}])["topics"][0]["partitions"]) == 4)
        s.note("afterwards", "Metadata", topics=[{"name": name}])

    same_as_kafka(play)


def test_the_same_topic_twice_in_create_partitions_is_refused(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        topic = {"name": s.topic("topic"), "count": 2, "assignments": None}
        s.note("twice", "CreatePartitions", topics=[topic, topic], timeout_ms=60_000)

    same_as_kafka(play)


def test_topics_are_deleted_by_name_and_by_id(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        by_name, by_id = s.topic("name"), s.topic("id")
        identifier = s.topic_id(by_id)
        s.note("by name", "DeleteTopics", topics=[{"name": by_name}], timeout_ms=60_000)
        s.note("by id", "DeleteTopics", topics=[{"topic_id": identifier}], timeout_ms=60_000)
        s.note("by name, again", "DeleteTopics", topics=[{"name": by_name}], timeout_ms=60_000)
        s.note("by id, again", "DeleteTopics", topics=[{"topic_id": identifier}], timeout_ms=60_000)
        asked = {"topics": [{"name": by_name}], "allow_auto_topic_creation": False}
        s.until(lambda: s.ask("Metadata", **asked)["topics"][0]["error_code"] == 3)
        s.note("afterwards", "Metadata", **asked)

    same_as_kafka(play)


def test_delete_requests_that_make_no_sense_are_refused(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic")
        both = {"name": name, "topic_id": s.topic_id(name)}
        s.note("neither name nor id", "DeleteTopics", topics=[{"name": None}], timeout_ms=60_000)
        s.note("name and id", "DeleteTopics", topics=[both], timeout_ms=60_000)
        s.note("bad name", "DeleteTopics", topics=[{"name": "bad/name"}], timeout_ms=60_000)
        s.note("twice", "DeleteTopics", topics=[{"name": name}, {"name": name}], timeout_ms=60_000)
        s.note("version 1, unknown", "DeleteTopics", 1, topic_names=[s.name("unknown")], timeout_ms=60_000)

    same_as_kafka(play)


def test_a_topic_made_again_under_its_name_has_another_id_and_is_empty(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic")
        first = s.topic_id(name)
        s.ask("DeleteTopics", topics=[{"name": name}], timeout_ms=60_000)
        asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        s.until(lambda: s.ask("Metadata", **asked)["topics"][0]["error_code"] == 3)
        s.symbols.pop(first)
        s.topic("topic")
        s.notes.append(["another id", s.topic_id(name) != first])
        latest = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        s.note("empty", "ListOffsets", replica_id=-1, topics=latest)
        s.note("old id", "Metadata", topics=[{"topic_id": first, "name": None}])

    same_as_kafka(play)
