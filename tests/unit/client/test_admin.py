"""Topics and settings, made and changed through the client."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.client import Admin, Client, ConfigSource, Producer, ResourceKind, TopicPartition, start_offsets
from headrace.errors import ErrorCode, KafkaError

MakeTopic = Callable[..., list[TopicPartition]]


def test_a_topic_is_listed_until_it_is_deleted(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    admin = Admin(client)
    assert partition.topic in [topic.name for topic in admin.topics()]
    admin.delete_topic(partition.topic)
    assert partition.topic not in [topic.name for topic in admin.topics()]
    with pytest.raises(KafkaError) as caught:
        client.topic(partition.topic)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_second_topic_of_the_same_name_is_refused(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    with pytest.raises(KafkaError, match=f"creating topic '{partition.topic}'") as caught:
        Admin(client).create_topic(partition.topic, partitions=1)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_validating_a_topic_makes_none(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("dry")
    Admin(client).create_topic(name, partitions=1, validate_only=True)
    assert name not in [topic.name for topic in client.topics()]


def test_partitions_are_added_and_seen_at_once(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    assert len(client.topic(partition.topic).partitions) == 1
    Admin(client).create_partitions(partition.topic, 3)
    assert len(client.topic(partition.topic).partitions) == 3


def test_settings_are_set_and_returned_to_their_defaults_one_by_one(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic(retention_ms="1000")
    admin = Admin(client)

    def changed() -> dict[str, str | None]:
        entries = admin.describe_config(ResourceKind.TOPIC, partition.topic)
        return {each.name: each.value for each in entries if each.source is ConfigSource.TOPIC}

    assert changed() == {"retention.ms": "1000"}
    admin.alter_config(ResourceKind.TOPIC, partition.topic, put={"segment.bytes": "2000000"})
    assert changed() == {"retention.ms": "1000", "segment.bytes": "2000000"}
    admin.alter_config(ResourceKind.TOPIC, partition.topic, remove=["retention.ms"])
    assert changed() == {"segment.bytes": "2000000"}


def test_the_settings_of_the_broker_can_be_read(client: Client) -> None:
    entries = {each.name: each for each in Admin(client).describe_config(ResourceKind.BROKER, "1")}
    assert entries["auto.create.topics.enable"].value == "false"


def test_deleted_records_move_the_start(client: Client, make_topic: MakeTopic) -> None:
    (partition,) = make_topic()
    with Producer(client) as producer:
        for _ in range(10):
            producer.send(partition.topic, b"x")
    assert Admin(client).delete_records({partition: 4}) == {partition: 4}
    assert start_offsets(client, [partition]) == {partition: 4}
    assert Admin(client).delete_records({partition: -1}) == {partition: 10}
    with pytest.raises(KafkaError) as caught:
        Admin(client).delete_records({partition: 99})
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_sizes_on_disk_are_told_per_partition(client: Client, make_topic: MakeTopic) -> None:
    empty, filled = make_topic(2)
    with Producer(client) as producer:
        producer.send(filled.topic, b"x" * 1000, partition=filled.partition)
    sizes = Admin(client).partition_bytes()
    assert sizes[empty] == 0
    assert sizes[filled] > 1000
