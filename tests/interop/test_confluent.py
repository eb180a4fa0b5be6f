"""confluent-kafka (librdkafka): the client most Python programs use, and the C library under many others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.servers.process import RunningServer
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.servers

Name = Callable[[str], str]


@pytest.fixture
def admin(broker: RunningServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def topic(admin: AdminClient, unique: Name) -> Callable[..., str]:
    def make(partitions: int = 1, **config: str) -> str:
        name = unique("topic")
        settings = {key.replace("_", "."): value for key, value in config.items()}
        for future in admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values():
            future.result(PATIENCE_S)
        # Apache Kafka acknowledges a topic a moment before it serves it.
        eventually(lambda: admin.list_topics(timeout=PATIENCE_S).topics, lambda found: name in found)
        return name

    return make


@pytest.fixture
def consumer(broker: RunningServer, unique: Name) -> Iterator[Callable[..., Consumer]]:
    made: list[Consumer] = []

    def make(**config: Any) -> Consumer:
        defaults = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": unique("group"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 45_000,
            "heartbeat.interval.ms": 300,
        }
        settings = {**defaults, **{key.replace("_", "."): value for key, value in config.items()}}
        if settings.get("group.protocol") == "consumer":
            del settings["session.timeout.ms"], settings["heartbeat.interval.ms"]  # the broker decides
        made.append(Consumer(settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def producer(broker: RunningServer, **config: Any) -> Producer:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **settings})


def send(to: Producer, topic: str, *values: str, **more: Any) -> list[Message]:
    """Produce and wait until every message is acknowledged; a failed one fails the test."""
    delivered: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message)

    for value in values:
        to.produce(topic, value, on_delivery=on_delivery, **more)
    assert to.flush(PATIENCE_S) == 0
    return delivered


def read(consumer: Consumer, count: int) -> list[Message]:
    """Exactly this many messages, or a failure that says how many came."""
    found: list[Message] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{len(found)} of {count} messages came, and then none for {PATIENCE_S:g} s"
        assert message.error() is None, message.error()
        found.append(message)
    return found


def texts(messages: list[Message]) -> list[str]:
    return [(message.value() or b"").decode() for message in messages]


def nothing_more(consumer: Consumer, seconds: float = 0.5) -> None:
    message = consumer.poll(seconds)
    assert message is None or message.error() is not None, message


def test_keys_values_headers_and_timestamps_come_back_as_they_went_in(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer]
) -> None:
    name = topic()
    headers = [("one", b"1"), ("empty", b""), ("null", None), ("one", b"again")]
    to = producer(broker)
    sent = send(to, name, "value", key="key", headers=headers, timestamp=1_600_000_000_123)
    send(to, name, "", key="")
    to.produce(name, None, key="tombstone")
    to.flush(PATIENCE_S)
    assert sent[0].offset() == 0
    reader = consumer()
    reader.subscribe([name])
    first, empty, tombstone = read(reader, 3)
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", headers)
    assert first.timestamp()[1] == 1_600_000_000_123
    assert (empty.key(), empty.value()) == (b"", b"")
    assert (tombstone.key(), tombstone.value()) == (b"tombstone", None)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_passes_through(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer], codec: str
) -> None:
    name = topic()
    values = [f"{codec}-{n}-" + "x" * 200 for n in range(500)]
    send(producer(broker, compression_type=codec), name, *values)
    reader = consumer()
    reader.subscribe([name])
    assert texts(read(reader, 500)) == values


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acks_delivers(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer], acks: str
) -> None:
    name = topic()
    send(producer(broker, acks=acks), name, "a", "b")
    reader = consumer()
    reader.subscribe([name])
    assert texts(read(reader, 2)) == ["a", "b"]


def test_an_idempotent_producer_keeps_order_over_many_batches(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer]
) -> None:
    name = topic()
    values = [str(n) for n in range(1500)]
    send(producer(broker, enable_idempotence=True, batch_num_messages=50, linger_ms=0), name, *values)
    reader = consumer()
    reader.subscribe([name])
    assert texts(read(reader, 1500)) == values


def test_a_large_message_goes_through_and_a_too_large_one_is_refused(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer]
) -> None:
    name = topic(max_message_bytes="500000")
    to = producer(broker, message_max_bytes=2_000_000)
    send(to, name, "x" * 400_000)
    failures: list[KafkaError] = []
    to.produce(name, "y" * 600_000, on_delivery=lambda error, _: failures.append(error))
    to.flush(PATIENCE_S)
    assert [failure.code() for failure in failures] == [KafkaError.MSG_SIZE_TOO_LARGE]
    reader = consumer()
    reader.subscribe([name])
    assert len(read(reader, 1)[0].value()) == 400_000


def test_a_topic_is_made_by_producing_to_it(broker: RunningServer, unique: Name, admin: AdminClient) -> None:
    name = unique("made")
    send(producer(broker), name, "first")
    assert len(admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions) == 1


def test_a_consumer_seeks_and_asks_for_positions_by_time(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer]
) -> None:
    name = topic()
    to = producer(broker)
    for n in range(10):
        send(to, name, str(n), timestamp=1_700_000_000_000 + n * 1000)
    reader = consumer()
    assert reader.get_watermark_offsets(TopicPartition(name, 0), timeout=PATIENCE_S) == (0, 10)
    at = reader.offsets_for_times([TopicPartition(name, 0, 1_700_000_004_500)], timeout=PATIENCE_S)
    assert at[0].offset == 5
    after = reader.offsets_for_times([TopicPartition(name, 0, 1_800_000_000_000)], timeout=PATIENCE_S)
    assert after[0].offset == OFFSET_END
    reader.assign([TopicPartition(name, 0, 7)])
    assert texts(read(reader, 3)) == ["7", "8", "9"]
    reader.seek(TopicPartition(name, 0, OFFSET_BEGINNING))
    assert texts(read(reader, 2)) == ["0", "1"]


def test_a_group_goes_on_where_it_committed(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer], unique: Name
) -> None:
    name, group = topic(), unique("group")
    send(producer(broker), name, *"abcdef")
    first = consumer(group_id=group)
    first.subscribe([name])
    messages = read(first, 3)
    first.commit(message=messages[-1], asynchronous=False)
    assert first.committed([TopicPartition(name, 0)], timeout=PATIENCE_S)[0].offset == 3
    first.close()
    second = consumer(group_id=group)
    second.subscribe([name])
    assert texts(read(second, 3)) == ["d", "e", "f"]


PROTOCOLS = {
    "eager": {"partition_assignment_strategy": "range"},
    "cooperative": {"partition_assignment_strategy": "cooperative-sticky"},
    "static": {"partition_assignment_strategy": "range", "group_instance_id": "static"},
    "consumer": {"group_protocol": "consumer"},
}


def settle(consumers: list[Consumer], partitions: int) -> list[set[int]]:
    """Poll until the group shares all partitions, none of them twice."""

    def owned() -> list[set[int]]:
        for each in consumers:
            each.poll(0.05)
        return [{partition.partition for partition in each.assignment()} for each in consumers]

    return eventually(
        owned, lambda sets: all(sets) and sum(map(len, sets)) == partitions == len(set().union(*sets)), pause_s=0
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_the_partitions_as_they_come_and_go(
    topic: Callable[..., str], consumer: Callable[..., Consumer], unique: Name, protocol: str
) -> None:
    name, group = topic(partitions=6), unique("group")

    def member(number: int) -> Consumer:
        settings = dict(PROTOCOLS[protocol])
        if "group_instance_id" in settings:
            settings["group_instance_id"] += str(number)
        made = consumer(group_id=group, **settings)
        made.subscribe([name])
        return made

    members = [member(0)]
    assert settle(members, 6) == [set(range(6))]
    members.append(member(1))
    assert sorted(map(len, settle(members, 6))) == [3, 3]
    if protocol == "static":
        return  # a static member that closes keeps its share until its session ends
    members.pop(0).close()
    assert settle(members, 6) == [set(range(6))]


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    topic: Callable[..., str], consumer: Callable[..., Consumer], unique: Name
) -> None:
    name, group = topic(partitions=4), unique("group")
    revoked: list[int] = []
    one = consumer(group_id=group, group_instance_id="one")
    one.subscribe([name], on_revoke=lambda _, partitions: revoked.append(len(partitions)))
    two = consumer(group_id=group, group_instance_id="two")
    two.subscribe([name])
    _, owned = settle([one, two], 4)
    revoked.clear()
    two.close()
    again = consumer(group_id=group, group_instance_id="two")
    again.subscribe([name])
    assert settle([one, again], 4)[1] == owned
    assert revoked == []


def test_a_pattern_subscribes_to_topics_that_match(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer]
) -> None:
    name = topic()
    send(producer(broker), name, "found")
    reader = consumer()
    reader.subscribe([f"^{name[:-1]}."])
    assert texts(read(reader, 1)) == ["found"]


def transactional(broker: RunningServer, identifier: str) -> Producer:
    made = producer(broker, transactional_id=identifier, transaction_timeout_ms=300_000)
    made.init_transactions(PATIENCE_S)
    return made


def test_only_committed_transactions_are_read(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer], unique: Name
) -> None:
    name = topic(partitions=2)
    to = transactional(broker, unique("transaction"))
    for value, end in (("kept", "commit"), ("dropped", "abort"), ("kept too", "commit")):
        to.begin_transaction()
        send(to, name, value, partition=0)
        send(to, name, value, partition=1)
        getattr(to, f"{end}_transaction")(PATIENCE_S)
    committed = consumer(isolation_level="read_committed")
    committed.subscribe([name])
    assert sorted(texts(read(committed, 4))) == ["kept", "kept", "kept too", "kept too"]
    nothing_more(committed)
    everything = consumer(isolation_level="read_uncommitted")
    everything.subscribe([name])
    assert sorted(set(texts(read(everything, 6)))) == ["dropped", "kept", "kept too"]


def test_an_open_transaction_hides_what_follows_it(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer], unique: Name
) -> None:
    name = topic()
    to = transactional(broker, unique("transaction"))
    to.begin_transaction()
    send(to, name, "open")
    send(producer(broker), name, "plain")
    reader = consumer(isolation_level="read_committed")
    reader.subscribe([name])
    nothing_more(reader, 2)
    to.commit_transaction(PATIENCE_S)
    assert texts(read(reader, 2)) == ["open", "plain"]


def test_positions_travel_with_the_transaction(
    broker: RunningServer, topic: Callable[..., str], consumer: Callable[..., Consumer], unique: Name
) -> None:
    source, target, group = topic(), topic(), unique("group")
    send(producer(broker), source, *"abcd")
    reader = consumer(group_id=group, isolation_level="read_committed")
    reader.subscribe([source])
    to = transactional(broker, unique("transaction"))
    for end, expected in (("abort", -1001), ("commit", 2)):
        messages = read(reader, 2)
        to.begin_transaction()
        send(to, target, *(text.upper() for text in texts(messages)))
        to.send_offsets_to_transaction(
            reader.position(reader.assignment()), reader.consumer_group_metadata(), PATIENCE_S
        )
        getattr(to, f"{end}_transaction")(PATIENCE_S)
        assert reader.committed([TopicPartition(source, 0)], timeout=PATIENCE_S)[0].offset == expected
        reader.seek(TopicPartition(source, 0, 0))
    results = consumer(isolation_level="read_committed")
    results.subscribe([target])
    assert texts(read(results, 2)) == ["A", "B"]


def test_a_second_producer_of_the_same_transactional_id_fences_the_first(
    broker: RunningServer, topic: Callable[..., str], unique: Name
) -> None:
    name, identifier = topic(), unique("transaction")
    old = transactional(broker, identifier)
    old.begin_transaction()
    send(old, name, "zombie")
    new = transactional(broker, identifier)
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()
    new.begin_transaction()
    send(new, name, "alive")
    new.commit_transaction(PATIENCE_S)


def test_topics_and_partitions_are_administered(admin: AdminClient, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    assert name in admin.list_topics(timeout=PATIENCE_S).topics
    for future in admin.create_partitions([NewPartitions(name, 5)]).values():
        future.result(PATIENCE_S)
    eventually(lambda: len(admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions) == 5)
    with pytest.raises(KafkaException) as raised:
        next(iter(admin.create_topics([NewTopic(name, 1, 1)]).values())).result(PATIENCE_S)
    assert raised.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    for future in admin.delete_topics([name]).values():
        future.result(PATIENCE_S)
    eventually(lambda: name not in admin.list_topics(timeout=PATIENCE_S).topics)


def test_configs_are_described_and_altered(admin: AdminClient, topic: Callable[..., str]) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic(retention_ms="5000"))

    def described() -> dict[str, ConfigEntry]:
        configs: dict[str, ConfigEntry] = next(iter(admin.describe_configs([resource]).values())).result(PATIENCE_S)
        return configs

    assert described()["retention.ms"].value == "5000"
    assert described()["cleanup.policy"].value == "delete"
    change = ConfigEntry("retention.ms", "7000", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.TOPIC, resource.name, incremental_configs=[change])
    next(iter(admin.incremental_alter_configs([altered]).values())).result(PATIENCE_S)
    eventually(lambda: described()["retention.ms"].value == "7000")


def test_groups_and_their_positions_are_administered(
    broker: RunningServer,
    admin: AdminClient,
    topic: Callable[..., str],
    consumer: Callable[..., Consumer],
    unique: Name,
) -> None:
    name, group = topic(), unique("group")
    send(producer(broker), name, "a", "b")
    reader = consumer(group_id=group)
    reader.subscribe([name])
    reader.commit(message=read(reader, 2)[-1], asynchronous=False)
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert group in [each.group_id for each in listed.valid]
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert (described.state.name, len(described.members)) == ("STABLE", 1)
    assert described.members[0].assignment.topic_partitions[0].topic == name
    reader.close()
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0, 1)])
    admin.alter_consumer_group_offsets([moved])[group].result(PATIENCE_S)
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(PATIENCE_S)
    assert [(each.topic, each.offset) for each in asked.topic_partitions] == [(name, 1)]
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    assert group not in [each.group_id for each in admin.list_consumer_groups().result(PATIENCE_S).valid]


def test_records_are_deleted_and_offsets_listed(
    broker: RunningServer, admin: AdminClient, topic: Callable[..., str]
) -> None:
    name = topic()
    for n, text in enumerate("abcde"):
        send(producer(broker), name, text, timestamp=1_700_000_000_000 + n)
    partition = TopicPartition(name, 0, 3)
    deleted = next(iter(admin.delete_records([partition]).values())).result(PATIENCE_S)
    assert deleted.low_watermark == 3
    where = TopicPartition(name, 0)
    for spec, offset in ((OffsetSpec.earliest(), 3), (OffsetSpec.latest(), 5), (OffsetSpec.max_timestamp(), 4)):
        listed = next(iter(admin.list_offsets({where: spec}).values())).result(PATIENCE_S)
        assert listed.offset == offset


def test_the_cluster_is_described(broker: RunningServer, admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(PATIENCE_S)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id
