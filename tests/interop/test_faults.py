"""Faults of the world around the broker: its clients recover, and nothing acknowledged is lost.

Each test takes seconds; ``make chaos`` has the same faults under a larger load and for long.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    Delivery,
    GroupConsumer,
    Producer,
    ProducerOptions,
    TopicPartition,
    end_offsets,
)
from headrace.errors import KafkaError
from tests.chaos.broker import WRITES, ChaosBroker, require_strace
from tests.chaos.history import Recorder
from tests.chaos.proxy import TO_BROKER, TO_CLIENT, Proxy
from tests.chaos.small_load import SmallLoad
from tests.chaos.topics import Recreator
from tests.skips import or_skip
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow

DAY_S = 86_400
STORAGE_FAILED = 74
GIVES_UP_SOON = ClientOptions(retry_timeout_ms=1_000)
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}

IMPATIENT = {
    "connections.max.idle.ms": 3_000,
    "group.consumer.session.timeout.ms": 3_000,
    "group.consumer.heartbeat.interval.ms": 500,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ChaosBroker]:
    with ChaosBroker(tmp_path, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def strace() -> None:
    with or_skip():
        require_strace()


def test_a_broker_that_is_stopped_and_continued_loses_nothing(broker: ChaosBroker, tmp_path: Path) -> None:
    with SmallLoad(broker.bootstrap, tmp_path) as load:
        for _ in range(2):
            with broker.frozen():
                load.until_waiting()
            load.until_acknowledged()
        assert load.finish() == []


def test_a_wall_clock_that_jumps_changes_nothing_for_records_and_transactions(
    broker: ChaosBroker, tmp_path: Path
) -> None:
    with SmallLoad(broker.bootstrap, tmp_path) as load:
        for seconds in (DAY_S, -DAY_S, 8 * DAY_S, 0):
            broker.shift_clock(seconds)
            load.until_acknowledged()
        broker.shift_clock(-DAY_S)
        broker.kill()
        broker.start()
        load.until_acknowledged()
        assert load.finish() == []


@pytest.mark.usefixtures("strace")
def test_a_slow_disk_delays_acknowledgements_and_nothing_else(broker: ChaosBroker, tmp_path: Path) -> None:
    with SmallLoad(broker.bootstrap, tmp_path) as load:
        with broker.injected("fdatasync:delay_enter=300ms", "syncfs:delay_enter=300ms"):
            load.until_acknowledged()
        load.until_acknowledged()
        assert load.finish() == []


@pytest.mark.usefixtures("strace")
def test_while_a_sync_takes_long_others_are_answered(broker: ChaosBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
    delivered: list[object] = []
    producer = ConfluentProducer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    with broker.injected("fdatasync:delay_enter=4s", "syncfs:delay_enter=4s") as strace:
        producer.produce("t", b"slow", on_delivery=lambda error, _: delivered.append(error))
        eventually(lambda: producer.poll(0.01) or "sync" in strace.output.read_text())
        assert admin.list_topics(timeout=PATIENCE_S).topics
        producer.poll(0)
        assert delivered == [], "the answer about topics came while the sync was under way"
        producer.flush(PATIENCE_S)
    assert delivered == [None]


@pytest.mark.usefixtures("strace")
def test_a_full_disk_refuses_and_goes_on_when_there_is_space(broker: ChaosBroker, tmp_path: Path) -> None:
    """Every write fails for lack of space, which needs no small filesystem: see test_storage_faults for a real one."""
    with SmallLoad(broker.bootstrap, tmp_path) as load:
        with broker.injected(f"{WRITES}:error=ENOSPC"):
            load.until_waiting()
        load.until_acknowledged()
        assert load.finish() == []
    assert "Traceback" not in broker.output()


def test_a_broker_without_descriptors_serves_its_connections_and_recovers(broker: ChaosBroker, tmp_path: Path) -> None:
    with SmallLoad(broker.bootstrap, tmp_path) as load:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("before", 1)])["before"].result(PATIENCE_S)  # on the connection of later requests
        with broker.few_files(spare=2):
            with suppress(KafkaException):  # partitions are made with few files open, so this may succeed or be refused
                admin.create_topics([NewTopic("many", 20)], operation_timeout=5)["many"].result(PATIENCE_S)
            load.until_acknowledged()
        admin.create_topics([NewTopic("later", 20)])["later"].result(PATIENCE_S)
        with socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S) as late:
            late.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            assert late.recv(4)
        assert load.finish() == []
    assert "Traceback" not in broker.output()


# ---- the network ----


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[ChaosBroker, Proxy]]:
    broker = ChaosBroker(tmp_path)
    with Proxy(broker.port) as proxy:
        broker.settings = {**SETTINGS, **IMPATIENT, "advertised.kafka": proxy.bootstrap}
        with broker:
            yield broker, proxy


def test_the_load_of_a_topic_that_is_created_again_sends_nothing_twice_that_the_network_holds(
    proxied: tuple[ChaosBroker, Proxy], tmp_path: Path
) -> None:
    """It would delete the topic when the second copy is acknowledged, create it again, and take the first copy, which
    then arrives in the new topic, for a defect of the broker."""
    broker, proxy = proxied
    recorder = Recorder(tmp_path / "history.jsonl")
    recreator = Recreator("recreator", proxy.bootstrap, recorder, topic="fleeting", seed=1)
    recreator.settings = {"socket.timeout.ms": 500}
    recreator.until_done(recreator.create)
    producer = recreator.make_producer()
    recreator.produce(producer)
    assert producer.flush(PATIENCE_S) == 0
    with proxy.held(TO_BROKER):
        recreator.produce(producer)
        assert producer.flush(2.5) == 1  # before the broker ends the connection, which is idle to it
    assert producer.flush(PATIENCE_S) == 0
    recreator.until_done(recreator.delete)
    recorder.close()
    broker.check_alive()


@pytest.mark.parametrize("direction", [TO_BROKER, TO_CLIENT])
def test_requests_and_answers_that_arrive_late_are_not_doubled(
    proxied: tuple[ChaosBroker, Proxy], tmp_path: Path, direction: str
) -> None:
    """Clients give up and ask again on new connections; then what was held arrives as well."""
    broker, proxy = proxied
    with SmallLoad(proxy.bootstrap, tmp_path, **{"socket.timeout.ms": 1_500}) as load:
        with proxy.held(direction):
            load.until_acknowledged()
        load.until_acknowledged()
        assert load.finish() == []
    broker.check_alive()


@pytest.mark.parametrize("direction", [TO_BROKER, TO_CLIENT])
def test_a_connection_that_is_dead_in_one_direction_is_replaced(
    proxied: tuple[ChaosBroker, Proxy], tmp_path: Path, direction: str
) -> None:
    broker, proxy = proxied
    with SmallLoad(proxy.bootstrap, tmp_path, **{"socket.timeout.ms": 1_500}) as load:
        proxy.lose(direction)
        load.until_acknowledged()
        assert load.finish() == []
    broker.check_alive()


def test_clients_that_vanish_without_a_word_are_let_go_and_their_partitions_given_to_others(
    proxied: tuple[ChaosBroker, Proxy],
) -> None:
    _, proxy = proxied
    with Client(proxy.bootstrap) as client, Client(proxy.bootstrap) as other:
        Admin(client).create_topic("t", partitions=1)
        lost = GroupConsumer(client, "g", ["t"])
        eventually(lambda: lost.poll(100) or lost.assignment)
        gone = proxy.vanish()
        heir = GroupConsumer(other, "g", ["t"])
        eventually(lambda: heir.poll(100) or heir.assignment)
        eventually(lambda: [link.ended for link in gone], lambda ended: all(TO_CLIENT in each for each in ended))


# ---- the disk ----


def produced(bootstrap: str, partitions: int) -> int:
    """One record to each partition, all in one request: how many were acknowledged."""
    deliveries: list[Delivery] = []
    options = ProducerOptions(linger_ms=1_000, delivery_timeout_ms=5_000)
    with Client(bootstrap, GIVES_UP_SOON) as client, suppress(KafkaError):
        producer = Producer(client, options, deliveries.append)
        for partition in range(partitions):
            producer.send("t", b"x" * 100, partition=partition)
        producer.flush()
    return sum(each.count for each in deliveries if each.error is None)


def topic_of(broker: ChaosBroker, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", partitions)])["t"].result(PATIENCE_S)


def records_in(bootstrap: str, partitions: int) -> int:
    with Client(bootstrap) as client:
        return sum(end_offsets(client, [TopicPartition("t", index) for index in range(partitions)]).values())


@pytest.mark.usefixtures("strace")
def test_an_acknowledgement_follows_a_sync_of_the_file_or_of_the_filesystem(broker: ChaosBroker) -> None:
    """Seen from outside: without the system call there is no durability, whatever the code says."""
    topic_of(broker, 64)
    with broker.injected("fdatasync", "syncfs") as strace:
        before = strace.calls("fdatasync") + strace.calls("syncfs")
        assert produced(broker.bootstrap, 1) == 1
        assert strace.calls("fdatasync") + strace.calls("syncfs") > before
        before = strace.calls("syncfs")
        assert produced(broker.bootstrap, 64) == 64
        assert strace.calls("syncfs") > before, "many files are synced by one call"


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize(("call", "partitions"), [("fdatasync,syncfs", 1), ("syncfs", 64)])
def test_a_sync_that_fails_ends_the_broker_and_what_was_acknowledged_is_there(
    broker: ChaosBroker, call: str, partitions: int
) -> None:
    topic_of(broker, partitions)
    acknowledged = produced(broker.bootstrap, partitions)
    assert acknowledged == partitions
    with broker.injected(f"{call}:error=EIO"):
        more = produced(broker.bootstrap, partitions)
        assert more < partitions
        assert broker.wait() == STORAGE_FAILED
    assert "writing to disk failed" in broker.output()
    assert "Traceback" not in broker.output()
    broker.start()
    assert records_in(broker.bootstrap, partitions) >= acknowledged + more
    assert produced(broker.bootstrap, partitions) == partitions


@pytest.mark.usefixtures("strace")
def test_a_write_that_fails_is_refused_and_loses_nothing(broker: ChaosBroker, tmp_path: Path) -> None:
    with SmallLoad(broker.bootstrap, tmp_path) as load:
        with broker.injected(f"{WRITES}:error=EIO"):
            load.until_waiting()
        load.until_acknowledged()
        assert load.finish() == []
    assert "Traceback" not in broker.output()
