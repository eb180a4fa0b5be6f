"""What tools ask about the cluster."""

from __future__ import annotations

import pytest

from tests.differential.batches import batch
from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        s.note("plain", "DescribeCluster", version)
        s.note("operations", "DescribeCluster", version, include_cluster_authorized_operations=True)
        if version >= 1:
            s.note("controllers", "DescribeCluster", version, endpoint_type=2)
            s.note("unknown endpoint type", "DescribeCluster", version, endpoint_type=9)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_tell_the_size_of_partitions(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic", partitions=2)
        s.produce(name, batch())
        s.note("known", "DescribeLogDirs", version, topics=[{"topic": name, "partitions": [0, 1, 7]}])
        s.note("unknown", "DescribeLogDirs", version, topics=[{"topic": s.name("unknown"), "partitions": [0]}])

    same_as_kafka(play)


def test_log_dirs_without_topics_tell_all(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic")
        answer = s.ask("DescribeLogDirs", topics=None)
        for result in answer["results"]:
            result["topics"] = [each for each in result["topics"] if each["name"] == name]
        s.write("all", answer)

    same_as_kafka(play)


def test_config_resources_are_listed(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic")
        answer = s.ask("ListConfigResources", 1, resource_types=[2])
        resources = answer["config_resources"]
        answer["config_resources"] = [each for each in resources if each["resource_name"] == name]
        s.write("topics", answer)
        s.note("unknown type", "ListConfigResources", 1, resource_types=[99])

    same_as_kafka(play)


def test_leaders_are_elected_where_that_makes_sense(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic")
        for election_type in (0, 1):
            for topic in (name, s.name("unknown")):
                where = [{"topic": topic, "partitions": [0]}]
                asked = {"election_type": election_type, "topic_partitions": where, "timeout_ms": 5000}
                s.note(f"type {election_type} {'known' if topic == name else 'unknown'}", "ElectLeaders", **asked)

    same_as_kafka(play)


def test_nothing_is_being_reassigned(same_as_kafka: Compare) -> None:
    def play(s: Scenario) -> None:
        name = s.topic("topic")
        s.note("all", "ListPartitionReassignments", topics=None)
        s.note("one", "ListPartitionReassignments", topics=[{"name": name, "partition_indexes": [0]}])

        def move(label: str, topic: str, partition: int, replicas: list[int] | None) -> None:
            topics = [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
            s.note(label, "AlterPartitionReassignments", 0, topics=topics)

        move("to where it is", name, 0, [s.node])
        move("to nobody", name, 0, [99])
        move("to an empty list", name, 0, [])
        move("cancel", name, 0, None)
        move("unknown partition", name, 9, [s.node])
        move("unknown topic", s.name("unknown"), 0, [s.node])

    same_as_kafka(play)
