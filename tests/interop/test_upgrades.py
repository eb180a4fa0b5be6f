"""A data directory that an earlier commit wrote, and that was killed, is opened with everything in it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pika
import pytest

from headrace import testing
from headrace.backup.restore import findings_in
from headrace.client import (
    Admin,
    Client,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    Groups,
    ResourceKind,
    TopicPartition,
    start_offsets,
)
from headrace.log.findings import Severity
from headrace.log.format import encode_format
from tests.interop import upgrades

DIRECTORIES = sorted((Path(__file__).parent / "data_directories").glob("*.tar.xz"))
PLAIN = TopicPartition(upgrades.PLAIN, 0)


@pytest.fixture(params=DIRECTORIES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def values(client: Client, partition: TopicPartition) -> list[str]:
    """Everything that is committed, up to the last stable offset."""
    consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(read_committed=True)))
    consumer.assign(start_offsets(client, [partition]))
    found: list[str] = []
    while not consumer.at_end():
        for records in consumer.poll(timeout_ms=100).values():
            found += [(each.value or b"").decode() for each in records]
    return found


def test_it_is_whole_before_the_upgrade(data: Path) -> None:
    """What is derived from the log may have another form now, and is derived again."""
    assert [each for each in findings_in(str(data)) if each.severity is Severity.ERROR] == []


def test_records_groups_transactions_and_queues_are_there_after_the_upgrade(data: Path) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with testing.broker(data=data, amqp=True, settings=settings) as broker, Client(broker.bootstrap) as client:
        assert (data / "format").read_bytes() == encode_format(1)
        plain = [each.split()[0] for each in values(client, PLAIN)]
        assert plain == [str(number) for number in range(upgrades.DELETED, upgrades.PLAIN_RECORDS)]
        assert Groups(client).committed("readers") == {PLAIN: upgrades.READ}
        assert values(client, TopicPartition(upgrades.TABLE, 0))[-1] == str(upgrades.PLAIN_RECORDS - 1)
        settings = {each.name: each.value for each in Admin(client).describe_config(ResourceKind.TOPIC, upgrades.TABLE)}
        assert settings["cleanup.policy"] == "compact"
        committed = [f"committed {number}" for number in range(upgrades.COMMITTED)]
        for index in (0, 1):
            seen = values(client, TopicPartition(upgrades.PAIRS, index))
            assert seen == committed, "aborted ones are not shown, and the open one is aborted"
        if any((data / "queues").iterdir()):
            assert held(broker.amqp_port) == list(range(upgrades.ACKNOWLEDGED, upgrades.MESSAGES))


def held(port: int) -> list[int]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    found = []
    while (body := channel.basic_get(upgrades.QUEUE, auto_ack=True)[2]) is not None:
        found.append(int(body))
    connection.close()
    return found
