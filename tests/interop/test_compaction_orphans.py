"""kill -9 of a broker while its child compacts, with real processes: the child goes too, and nothing is lost."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from headrace import testing
from headrace.client import Admin, Client, Consumer, Producer, TopicPartition, start_offsets
from headrace.client.producer import ProducerOptions
from tests.waiting import eventually

KEYS = 200
ROUNDS = 60
SETTINGS = {"log.cleaner.backoff.ms": "100"}
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}

pytestmark = pytest.mark.servers


def fill(client: Client, first_round: int) -> None:
    with Producer(client, ProducerOptions(linger_ms=20)) as producer:
        for turn in range(first_round, first_round + ROUNDS):
            for key in range(KEYS):
                producer.send("t", b"%d " % turn + bytes(1000), key=b"k%d" % key, partition=0)


def newest(client: Client) -> dict[bytes | None, int]:
    """The last round of each key."""
    found: dict[bytes | None, int] = {}
    consumer = Consumer(client)
    consumer.assign(start_offsets(client, [TopicPartition("t", 0)]))
    while not consumer.at_end():
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                assert record.value is not None
                found[record.key] = int(record.value.split()[0])
    return found


def compacting_children(pid: int) -> list[int]:
    """Those that have begun: they are nicer than the broker by then."""
    found = []
    broker = psutil.Process(pid)
    for each in broker.children():
        with suppress(psutil.NoSuchProcess):
            if each.nice() > broker.nice():
                found.append(each.pid)
    return found


def size_of_segments(folder: Path) -> int:
    """A segment may be swapped away while they are looked at."""
    total = 0
    for each in folder.glob("*.log"):
        with suppress(FileNotFoundError):
            total += each.stat().st_size
    return total


def is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_stopped_child_of_a_killed_broker_dies_and_the_next_broker_compacts_without_loss(tmp_path: Path) -> None:
    with testing.broker(in_process=False, data=tmp_path, settings=SETTINGS) as broker:
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic("t", partitions=1, config=CONFIG)
            fill(client, 0)
        child = eventually(lambda: compacting_children(broker.pid), pause_s=0.001)[0]
        os.kill(child, signal.SIGSTOP)
        broker.kill()
        eventually(lambda: is_dead(child))
        broker.start()
        with Client(broker.bootstrap) as client:
            fill(client, ROUNDS)
            folder = next((tmp_path / "topics").glob("t~*/0"))
            eventually(lambda: size_of_segments(folder) < 8 << 20)
            eventually(lambda: not list(folder.glob("*.cleaned-*")))
            assert newest(client) == {b"k%d" % key: 2 * ROUNDS - 1 for key in range(KEYS)}
