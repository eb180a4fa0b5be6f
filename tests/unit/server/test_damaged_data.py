"""A broker on a data directory in which something is damaged or missing: clients get what is right, or an error."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from headrace import testing
from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    Producer,
    TopicPartition,
    TransactionalProducer,
    start_offsets,
)
from headrace.errors import HeadraceError

PLACE = TopicPartition("t", 0)
IMPATIENT = ClientOptions(retry_timeout_ms=1)


def values(client: Client, *, read_committed: bool = False) -> list[bytes | None]:
    consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(read_committed=read_committed)))
    consumer.assign(start_offsets(client, [PLACE]))
    found: list[bytes | None] = []
    while not consumer.at_end():
        found += [record.value for records in consumer.poll(200).values() for record in records]
    return found


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("killed", [False, True], ids=["after an orderly stop", "after a kill"])
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_deleted_records_stay_deleted_when_the_checkpoint_is_lost(
    tmp_path: Path, harm: str, killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with testing.broker(data=tmp_path, in_process=False) as broker:
        with Client(broker.bootstrap) as client:
            with Producer(client) as producer:
                for value in (b"secret", b"kept"):
                    producer.send("t", value, partition=0)
                    producer.flush()
            Admin(client).delete_records({PLACE: 1})
        if killed:
            broker.kill()
    checkpoint = tmp_path / "checkpoint"
    if harm == "missing":
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    with testing.broker(data=tmp_path) as broker, Client(broker.bootstrap) as client:
        assert values(client) == [b"kept"]
    assert any(str(checkpoint) in line for line in warned(caplog))


def test_aborted_records_stay_hidden_when_their_file_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with testing.broker(data=tmp_path) as broker, Client(broker.bootstrap) as client:
        producer = TransactionalProducer(client, "id", 60_000)
        for commit in (False, True):
            producer.begin()
            producer.send("t", b"kept" if commit else b"aborted", partition=0)
            producer.flush()
            if commit:
                producer.commit()
            else:
                producer.abort()
    (path,) = tmp_path.glob("topics/t~*/0/*.txn")
    path.unlink()
    with testing.broker(data=tmp_path) as broker, Client(broker.bootstrap) as client:
        assert values(client, read_committed=True) == [b"kept"]
    assert any(str(path) in line for line in warned(caplog))


def test_a_topic_whose_directory_is_gone_is_refused_and_the_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with testing.broker(data=tmp_path) as broker, Client(broker.bootstrap) as client:
        with Producer(client) as producer:
            for topic in ("t", "other"):
                producer.send(topic, b"x", partition=0)
    (folder,) = tmp_path.glob("topics/t~*")
    shutil.rmtree(folder)
    with testing.broker(data=tmp_path) as broker, Client(broker.bootstrap, IMPATIENT) as client:
        with pytest.raises(HeadraceError):
            values(client)
        with Producer(client) as producer:
            producer.send("other", b"y", partition=0)
    assert any(str(folder) in line for line in warned(caplog))
    assert not list(folder.glob("0/*.log")), "nothing was made in its place"
