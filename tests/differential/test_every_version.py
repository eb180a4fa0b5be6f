"""Each version of the smaller APIs once: a field in the wrong version shows here and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.differential.conftest import Compare
from tests.differential.scenario import Scenario
from tests.differential.test_groups import Group
from tests.differential.test_transactions import Producer, offsets

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        configs = [{"name": "retention.ms", "value": "1000"}]
        topic = {"name": s.name("topic"), "num_partitions": 2, "replication_factor": 1, "configs": configs}
        for label in ("create", "again"):
            answer = s.ask("CreateTopics", version, topics=[topic], timeout_ms=60_000)
            if version >= 5:
                answer["topics"][0].pop("configs")  # compared in test_configs
            s.write(label, answer)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        names = [s.topic("topic"), s.name("unknown")]
        which: dict[str, Any] = (
            {"topics": [{"name": name} for name in names]} if version >= 6 else {"topic_names": names}
        )
        s.note("delete", "DeleteTopics", version, **which, timeout_ms=60_000)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(4))
def test_create_partitions(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        topics = [{"name": name, "count": 3, "assignments": None} for name in (s.topic("topic"), s.name("unknown"))]
        s.note("grow", "CreatePartitions", version, topics=topics, timeout_ms=60_000)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(3))
def test_alter_configs(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        configs = [{"name": "retention.ms", "value": "1000"}]
        names = (s.topic("topic"), s.name("unknown"))
        resources = [{"resource_type": 2, "resource_name": name, "configs": configs} for name in names]
        s.note("alter", "AlterConfigs", version, resources=resources)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(2))
def test_incremental_alter_configs(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        configs = [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
        names = (s.topic("topic"), s.name("unknown"))
        resources = [{"resource_type": 2, "resource_name": name, "configs": configs} for name in names]
        s.note("alter", "IncrementalAlterConfigs", version, resources=resources)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        group = Group(s)
        member, generation = group.alone(s.main)
        for label, who in (("member", member), ("stranger", "nobody")):
            asked = {"group_id": group.id, "member_id": who, "generation_id": generation}
            s.note(label, "Heartbeat", version, **asked)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(6))
def test_sync_group(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        group = Group(s)
        member = group.member(s.main)
        generation = s.main.receive(group.join(s.main, member))["generation_id"]
        asked = {"group_id": group.id, "member_id": member, "generation_id": generation}
        named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        assignments = [{"member_id": member, "assignment": b"all"}]
        s.note("sync", "SyncGroup", version, **asked, **named, assignments=assignments)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(3))
def test_delete_groups(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        group = Group(s)
        member, _ = group.alone(s.main)
        s.ask("LeaveGroup", group_id=group.id, members=[{"member_id": member}])
        s.note("delete", "DeleteGroups", version, groups_names=[group.id, s.name("unknown")])

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        identifier = s.name("transaction")
        s.coordinator(identifier, 1)
        asked = {"transactional_id": identifier, "transaction_timeout_ms": 60_000}
        first = s.note("first", "InitProducerId", version, **asked)
        s.note("second", "InitProducerId", version, **asked)
        if version >= 3:
            own = {"producer_id": first["producer_id"], "producer_epoch": first["producer_epoch"]}
            s.note("stale", "InitProducerId", version, **asked, **own)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_to_txn(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic("topic"), Producer(s)
        producer.init()
        producer.add("add", name, version=version)
        producer.add("future epoch", name, version=version, producer_epoch=producer.epoch + 5)
        producer.add("unknown topic", name, s.name("unknown"), version=version)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(6))
def test_end_txn(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name, producer = s.topic("topic"), Producer(s)
        producer.init()
        producer.add("", name)
        producer.end("future epoch", commit=True, version=version, producer_epoch=producer.epoch + 5)
        producer.end("commit", commit=True, version=version)
        producer.wait_for("CompleteCommit")

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_to_txn(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        producer, group = Producer(s), s.name("group")
        s.coordinator(group, 0)
        producer.init()
        s.write("add", producer.settled("AddOffsetsToTxn", version, **producer.who(), group_id=group))
        stale = producer.who(producer_epoch=producer.epoch + 5)
        s.write("future epoch", producer.settled("AddOffsetsToTxn", version, **stale, group_id=group))

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(6))
def test_txn_offset_commit(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        name, producer, group = s.topic("topic"), Producer(s), s.name("group")
        s.coordinator(group, 0)
        producer.init()
        producer.settled("AddOffsetsToTxn", 3, **producer.who(), group_id=group)
        topics = offsets(name, 5) + offsets(s.name("unknown"), 6)
        s.note("commit", "TxnOffsetCommit", version, **producer.who(), group_id=group, topics=topics)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(3))
def test_list_transactions(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        producer = Producer(s)
        producer.init()
        answer = s.ask("ListTransactions", version, state_filters=["Empty", "Nonsense"])
        states = answer["transaction_states"]
        answer["transaction_states"] = [each for each in states if each["transactional_id"] == producer.id]
        s.write("list", answer)

    same_as_kafka(play)


@pytest.mark.parametrize("version", range(3))
def test_elect_leaders(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        where = [{"topic": name, "partitions": [0]} for name in (s.topic("topic"), s.name("unknown"))]
        s.note("elect", "ElectLeaders", version, topic_partitions=where, timeout_ms=5000)

    same_as_kafka(play)


@pytest.mark.parametrize("version", [0, 1])
def test_consumer_group_describe(same_as_kafka: Compare, version: int) -> None:
    def play(s: Scenario) -> None:
        group = s.name("group")
        s.coordinator(group, 0)
        s.note("unknown", "ConsumerGroupDescribe", version, group_ids=[group])

    same_as_kafka(play)
