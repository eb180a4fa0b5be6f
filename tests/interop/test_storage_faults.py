"""A disk that is full, and a directory that is taken: what clients and users see. Failing disks: test_faults.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client import Admin, Client, ClientOptions, end_offsets, start_offsets
from headrace.client import Producer as HeadraceProducer
from headrace.client import TopicPartition as ClientPartition
from headrace.errors import HeadraceError
from tests.servers.headrace import COMMAND, headrace_server
from tests.waiting import PATIENCE_S

DISK_BYTES = 24 << 20
DISK_INODES = 200
GIVES_UP_SOON = ClientOptions(retry_timeout_ms=1_000, request_timeout_ms=3_000)
MESSAGES_MAX = 2 * DISK_BYTES // 100_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 24 MB and 200 files."""
    place = tmp_path / "disk"
    place.mkdir()
    options = f"size={DISK_BYTES},nr_inodes={DISK_INODES}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"only root may mount a small tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def produce_until_refused(bootstrap: str, topic: str) -> tuple[int, list[KafkaError]]:
    """How many 100 kB messages were acknowledged before the first error, and the errors.

    Nothing is tried again, so the first refusal is reported; a message that nobody answers is given a minute.
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


def test_a_disk_without_inodes_refuses_what_needs_files_and_recovers(small_disk: Path) -> None:
    with headrace_server(data=small_disk / "data") as server, Client(server.bootstrap) as client:
        admin = Admin(client)
        admin.create_topic("t", partitions=1)
        place = ClientPartition("t", 0)
        with HeadraceProducer(client) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number, partition=0)
        files = fill_inodes(small_disk / "filler")
        with Client(server.bootstrap, GIVES_UP_SOON) as impatient:
            with pytest.raises(HeadraceError):
                Admin(impatient).create_topic("another", partitions=1)
            with suppress(HeadraceError):  # it needs a new file: it may be refused, and the broker goes on
                Admin(impatient).delete_records({place: -1})
        with HeadraceProducer(client) as producer:
            producer.send("t", b"10", partition=0)
        for file in files:
            file.unlink()
        admin.create_topic("another", partitions=1)
        assert admin.delete_records({place: 11}) == {place: 11}
        assert "Traceback" not in server.log.read_text()
    with headrace_server(data=small_disk / "data") as server, Client(server.bootstrap) as client:
        assert start_offsets(client, [place])[place] == end_offsets(client, [place])[place] == 11


def fill_inodes(folder: Path) -> list[Path]:
    """Create files until there can be no more."""
    folder.mkdir()
    made: list[Path] = []
    while True:
        try:
            (folder / str(len(made))).touch()
        except OSError:
            return made
        made.append(folder / str(len(made)))


def test_a_second_broker_on_the_same_directory_is_refused_naming_the_first(tmp_path: Path) -> None:
    with headrace_server(data=tmp_path / "data") as server:
        second = subprocess.run(
            [str(COMMAND), "up", "--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0", "--amqp", "off"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert second.returncode != 0
        assert str(server.pid) in second.stderr
        assert "Traceback" not in second.stderr
