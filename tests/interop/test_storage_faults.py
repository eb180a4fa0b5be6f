"""A disk that is full, and a directory that is taken: what clients and users see. Failing disks: test_faults.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers.headrace import COMMAND, headrace_server
from tests.waiting import PATIENCE_S

DISK_BYTES = 24 << 20
STORAGE_FAILED = 74
MESSAGES_MAX = 2 * DISK_BYTES // 100_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"only root may mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def produce_until_refused(bootstrap: str, topic: str) -> tuple[int, list[KafkaError]]:
    """How many 100 kB messages were acknowledged before the first error, and the errors.

    Nothing is tried again, so the first refusal is told; a message that nobody answers is given a minute.
    """
    acknowledged = 0
    errors: list[KafkaError] = []

    def done(error: KafkaError | None, _: object) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            errors.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 60_000, "linger.ms": 0, "retries": 0})
    for _ in range(MESSAGES_MAX):
        producer.produce(topic, os.urandom(100_000), on_delivery=done)
        assert producer.flush(2 * PATIENCE_S) == 0
        if errors:
            break
    return acknowledged, errors


def count(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = 0
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"neither a message nor the end came after {found} messages"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
            found += 1
    finally:
        consumer.close()


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_when_space_returns(small_disk: Path) -> None:
    with headrace_server(data=small_disk / "data") as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for future in admin.create_topics([NewTopic("fills", 1), NewTopic("ballast", 1)]).values():
            future.result(PATIENCE_S)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(12 << 20))
        acknowledged, errors = produce_until_refused(server.bootstrap, "fills")
        assert acknowledged > 20
        assert errors, "the disk should be full by now"
        assert count(server.bootstrap, "fills") >= acknowledged, "reads go on, and nothing acknowledged is missing"
        ballast.unlink()
        more, _ = produce_until_refused(server.bootstrap, "fills")
        assert more > 20, "writes go on when there is space again"
        assert count(server.bootstrap, "fills") >= acknowledged + more
    with headrace_server(data=small_disk / "data") as server:
        assert count(server.bootstrap, "fills") >= acknowledged + more, "and all of it is there after a restart"


def test_a_second_broker_on_the_same_directory_is_refused_naming_the_first(tmp_path: Path) -> None:
    with headrace_server(data=tmp_path / "data") as server:
        second = subprocess.run(
            [str(COMMAND), "up", "--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert second.returncode != 0
        assert str(server.pid) in second.stderr
        assert "Traceback" not in second.stderr
