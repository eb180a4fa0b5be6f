"""kafka-python 3: pure Python, generated from Kafka's own schemas, so it speaks the newest versions of everything."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, TopicAlreadyExistsError

from tests.servers.process import RunningServer
from tests.waiting import PATIENCE_S, eventually

# Closed while it connects, kafka-python leaves the socket to the collector.
pytestmark = [pytest.mark.servers, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

Name = Callable[[str], str]


@contextmanager
def producer(broker: RunningServer, **config: Any) -> Iterator[KafkaProducer]:
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap, **config)) as made:
        yield made


@contextmanager
def consumer(broker: RunningServer, *topics: str, **config: Any) -> Iterator[KafkaConsumer]:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 300}
    with closing(KafkaConsumer(*topics, bootstrap_servers=broker.bootstrap, **{**defaults, **config})) as made:
        yield made


@pytest.fixture
def admin(broker: RunningServer) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as made:
        yield made


@pytest.fixture
def topic(admin: KafkaAdminClient, unique: Name) -> Callable[..., str]:
    def make(partitions: int = 1, **config: str) -> str:
        name = unique("topic")
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)], wait_for_metadata=True)
        return name

    return make


def read(reader: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []

    def polled() -> int:
        for records in reader.poll(timeout_ms=500).values():
            found.extend(records)
        return len(found)

    eventually(polled, lambda so_far: so_far >= count, pause_s=0)
    assert len(found) == count, f"{len(found)} records, not {count}"
    return found


def values(reader: KafkaConsumer, count: int) -> list[bytes]:
    return [record.value for record in read(reader, count)]


def test_keys_values_headers_and_timestamps_come_back_as_they_went_in(
    broker: RunningServer, topic: Callable[..., str]
) -> None:
    name = topic()
    headers = [("one", b"1"), ("one", b"2"), ("empty", b"")]
    with producer(broker) as to:
        sent = to.send(name, b"value", key=b"key", headers=headers, timestamp_ms=1_600_000_000_123).get(PATIENCE_S)
        to.send(name, None, key=b"tombstone").get(PATIENCE_S)
    assert (sent.offset, sent.timestamp) == (0, 1_600_000_000_123)
    with consumer(broker, name) as reader:
        first, tombstone = read(reader, 2)
    assert (first.key, first.value, list(first.headers)) == (b"key", b"value", headers)
    assert first.timestamp == 1_600_000_000_123
    assert (tombstone.key, tombstone.value) == (b"tombstone", None)


# kafka-python needs further packages for the other codecs; confluent-kafka, aiokafka, kcat and Java try them all.
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_codecs_pass_through(broker: RunningServer, topic: Callable[..., str], codec: str | None) -> None:
    name = topic()
    expected = [f"{codec} {n}".encode() for n in range(200)]
    with producer(broker, compression_type=codec) as to:
        for value in expected:
            to.send(name, value)
        to.flush(PATIENCE_S)
    with consumer(broker, name) as reader:
        assert values(reader, 200) == expected


def test_an_idempotent_producer_keeps_order(broker: RunningServer, topic: Callable[..., str]) -> None:
    name = topic()
    with producer(broker, enable_idempotence=True, batch_size=200, linger_ms=0) as to:
        for n in range(300):
            to.send(name, str(n).encode())
        to.flush(PATIENCE_S)
    with consumer(broker, name) as reader:
        assert values(reader, 300) == [str(n).encode() for n in range(300)]


def test_a_consumer_seeks_and_finds_offsets_by_time(broker: RunningServer, topic: Callable[..., str]) -> None:
    where = TopicPartition(topic(), 0)
    with producer(broker) as to:
        for n in range(5):
            to.send(where.topic, str(n).encode(), timestamp_ms=1_700_000_000_000 + n).get(PATIENCE_S)
    with consumer(broker) as reader:
        reader.assign([where])
        assert reader.beginning_offsets([where]) == {where: 0}
        assert reader.end_offsets([where]) == {where: 5}
        assert reader.offsets_for_times({where: 1_700_000_000_003})[where].offset == 3
        reader.seek(where, 4)
        assert values(reader, 1) == [b"4"]


def test_a_group_goes_on_where_it_committed(broker: RunningServer, topic: Callable[..., str], unique: Name) -> None:
    where, group = TopicPartition(topic(), 0), unique("group")
    with producer(broker) as to:
        for text in "abcd":
            to.send(where.topic, text.encode())
        to.flush(PATIENCE_S)
    with consumer(broker, where.topic, group_id=group) as reader:
        read(reader, 4)
        reader.commit({where: OffsetAndMetadata(2, "note", -1)})
        assert reader.committed(where, metadata=True).metadata == "note"
    with consumer(broker, where.topic, group_id=group) as reader:
        assert values(reader, 2) == [b"c", b"d"]


class Member(threading.Thread):
    """A consumer polls in its own thread: a rebalance needs all members at once."""

    def __init__(self, broker: RunningServer, name: str, group: str, **config: Any) -> None:
        super().__init__(daemon=True)
        self.settings = (broker, name, group, config)
        self.owned: set[int] = set()
        self.done = threading.Event()

    def run(self) -> None:
        broker, name, group, config = self.settings
        with consumer(broker, group_id=group, **config) as reader:
            # A leader shares out what it knows. Subscribing while an answer without the topic is on its way, it
            # takes that for its own answer, shares out nothing, and asks again in five minutes.
            eventually(lambda: reader.partitions_for_topic(name))
            reader.subscribe([name])
            while not self.done.is_set():
                reader.poll(timeout_ms=100)
                self.owned = {each.partition for each in reader.assignment()}

    def stop(self) -> None:
        self.done.set()
        self.join(PATIENCE_S)


def settle(members: list[Member], partitions: int) -> list[int]:
    owned = eventually(
        lambda: [set(member.owned) for member in members],
        lambda sets: all(sets) and sum(map(len, sets)) == partitions == len(set().union(*sets)),
    )
    return sorted(map(len, owned))


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, CooperativeStickyAssignor])
def test_members_share_the_partitions_as_they_come_and_go(
    broker: RunningServer, topic: Callable[..., str], unique: Name, assignor: type
) -> None:
    name, group = topic(partitions=4), unique("group")
    members = [Member(broker, name, group, partition_assignment_strategy=[assignor]) for _ in range(2)]
    try:
        members[0].start()
        assert settle(members[:1], 4) == [4]
        members[1].start()
        assert settle(members, 4) == [2, 2]
        members[0].stop()
        assert settle(members[1:], 4) == [4]
    finally:
        for member in members:
            if member.is_alive():
                member.stop()
        gc.collect()  # here, where a socket left behind is expected


def test_only_committed_transactions_are_read(broker: RunningServer, topic: Callable[..., str], unique: Name) -> None:
    name = topic()
    with producer(broker, transactional_id=unique("transaction")) as to:
        to.init_transactions()
        for value, commit in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
            to.begin_transaction()
            to.send(name, value).get(PATIENCE_S)
            (to.commit_transaction if commit else to.abort_transaction)()
    with consumer(broker, name, isolation_level="read_committed") as reader:
        assert values(reader, 2) == [b"kept", b"kept too"]
    with consumer(broker, name) as reader:
        assert values(reader, 3) == [b"kept", b"dropped", b"kept too"]


def test_positions_travel_with_the_transaction(broker: RunningServer, topic: Callable[..., str], unique: Name) -> None:
    where, target, group = TopicPartition(topic(), 0), topic(), unique("group")
    with producer(broker) as plain:
        plain.send(where.topic, b"source").get(PATIENCE_S)
    with producer(broker, transactional_id=unique("transaction")) as to:
        to.init_transactions()
        with consumer(broker, where.topic, group_id=group) as reader:
            read(reader, 1)
            for offset, commit in ((1, True), (0, False)):
                to.begin_transaction()
                to.send(target, b"result")
                to.send_offsets_to_transaction({where: OffsetAndMetadata(offset, "", -1)}, reader.group_metadata())
                (to.commit_transaction if commit else to.abort_transaction)()
            assert reader.committed(where) == 1


def test_a_second_producer_of_the_same_transactional_id_fences_the_first(
    broker: RunningServer, topic: Callable[..., str], unique: Name
) -> None:
    name, identifier = topic(), unique("transaction")
    with producer(broker, transactional_id=identifier) as new:
        old = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=identifier)
        try:
            old.init_transactions()
            old.begin_transaction()
            old.send(name, b"zombie").get(PATIENCE_S)
            new.init_transactions()
            with pytest.raises(KafkaError) as raised:
                old.commit_transaction()
            assert "Fenced" in type(raised.value).__name__ or "Epoch" in type(raised.value).__name__
        finally:
            old.close(timeout=1)  # it has lost its transaction, and would wait for it
        new.begin_transaction()
        new.send(name, b"alive").get(PATIENCE_S)
        new.commit_transaction()


def test_topics_configs_and_records_are_administered(
    broker: RunningServer, admin: KafkaAdminClient, topic: Callable[..., str]
) -> None:
    name = topic(retention_ms="5000")
    where = TopicPartition(name, 0)
    assert name in admin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(name, 1, 1)])
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    assert value_of(admin.describe_configs([resource]), "retention.ms") == "5000"
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs={"retention.ms": "7000"})])
    eventually(lambda: value_of(admin.describe_configs([resource]), "retention.ms") == "7000")
    with producer(broker) as to:
        for text in "abcde":
            to.send(name, text.encode()).get(PATIENCE_S)
    admin.delete_records({where: 3})
    assert admin.list_partition_offsets({where: OffsetSpec.EARLIEST})[where].offset == 3
    assert admin.list_partition_offsets({where: OffsetSpec.LATEST})[where].offset == 5
    admin.create_partitions({name: NewPartitions(3)})
    eventually(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 3)
    admin.delete_topics([name])
    eventually(lambda: name not in admin.list_topics())


def value_of(described: Any, key: str) -> str:
    """The answer is nested by kind and name of the resource; there is one of each."""
    by_name = next(iter(described.values()))
    config = next(iter(by_name.values()))[key]
    value: str = config["value"] if isinstance(config, dict) else config
    return value


def test_groups_and_transactions_are_administered(
    broker: RunningServer, admin: KafkaAdminClient, topic: Callable[..., str], unique: Name
) -> None:
    where, group, identifier = TopicPartition(topic(), 0), unique("group"), unique("transaction")
    with producer(broker, transactional_id=identifier) as to:
        to.init_transactions()
        to.begin_transaction()
        to.send(where.topic, b"open").get(PATIENCE_S)
        assert admin.describe_transactions([identifier])[identifier].state.name.upper() == "ONGOING"
        assert identifier in str(admin.list_transactions())
        assert admin.describe_producers([where])[where].active_producers
        to.commit_transaction()
    with consumer(broker, where.topic, group_id=group) as reader:
        read(reader, 1)
        reader.commit()
        assert group in str(admin.list_groups())
        assert "Stable" in str(admin.describe_groups([group])[group])
    admin.alter_group_offsets(group, {where: OffsetAndMetadata(1, "moved", -1)})
    assert admin.list_group_offsets([group])[group][where].metadata == "moved"
    admin.delete_group_offsets(group, [where])
    assert where not in admin.list_group_offsets([group]).get(group, {})
    admin.delete_groups([group])
    assert group not in str(admin.list_groups())
