"""What a user and an operator learn about a damaged partition, and how soon."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli import shared
from headrace.cli.main import run
from headrace.client import Admin, Client, Groups, Producer, TopicPartition


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that was killed: the topic ``orders`` with ten batches in its partition 0."""
    folder = tmp_path_factory.mktemp("filled")
    with testing.broker(data=folder, in_process=False) as broker:
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic("orders", partitions=2)
            with Producer(client) as producer:
                for number in range(10):
                    producer.send("orders", b"value %d" % number, partition=0)
                    producer.flush()
        broker.kill()
    return folder


@pytest.fixture
def data(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared, "DAMAGE_TIMEOUT_MS", 300)
    return Path(shutil.copytree(filled, tmp_path / "data"))


def log_of(data: Path) -> Path:
    (found,) = data.glob("topics/orders~*/0/*.log")
    return found


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("command", ["consume orders -e", "produce orders -p 0 -k a"])
def test_a_partition_that_is_not_served_is_named_with_the_cure(
    data: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flip(log_of(data), 70)
    line = tmp_path / "line"
    line.write_text("a\n")
    extra = [str(line)] if command.startswith("produce") else []
    with testing.broker(data=data) as broker:
        assert run([*command.split(), *extra, "--bootstrap", broker.bootstrap, "--timeout", "20"]) == 1
    err = capsys.readouterr().err
    assert "orders[0] has no leader: the broker says LEADER_NOT_AVAILABLE" in err
    assert "headrace log verify" in err
    assert "headrace log repair" in err


def test_describe_shows_the_served_partitions_and_names_the_others(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(log_of(data), 70)
    with testing.broker(data=data) as broker:
        assert run(["topic", "describe", "orders", "--bootstrap", broker.bootstrap]) == 0
    captured = capsys.readouterr()
    assert len([line for line in captured.out.splitlines() if line.strip()[:1].isdecimal()]) == 2
    assert "orders[0]: no leader" in captured.err
    assert "headrace log repair" in captured.err


def test_a_group_is_described_with_the_partitions_that_are_served(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(log_of(data), 70)
    with testing.broker(data=data) as broker:
        with Client(broker.bootstrap) as client:
            Groups(client).commit("readers", {TopicPartition("orders", 1): 0, TopicPartition("orders", 0): 3})
        assert run(["group", "describe", "readers", "--bootstrap", broker.bootstrap]) == 0
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()[2:]] == [
        ["orders", "0", "3", "-", "-", "-"],
        ["orders", "1", "0", "0", "0", "-"],
    ]
    assert "orders[0]: no leader" in captured.err


def test_a_batch_that_is_damaged_while_it_is_served_is_named_to_the_reader_and_to_the_operator(
    data: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = log_of(data)
    size = path.stat().st_size // 10
    with testing.broker(data=data) as broker:
        flip(path, 4 * size + 65)
        assert run(["consume", "orders", "-e", "--bootstrap", broker.bootstrap]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [f"value {number}" for number in range(4)]
    assert "fetching orders[0]: the batch at offset 4 arrived with a wrong checksum" in captured.err
    assert "headrace log repair" in captured.err
    assert f"orders-0: a read at offset 4 failed: {path} is corrupt at byte {4 * size}" in caplog.text


def test_a_write_that_fails_is_named_to_the_operator_too(
    data: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    line = tmp_path / "line"
    line.write_text("a\n")
    with testing.broker(data=data) as broker:
        (folder,) = data.glob("topics/orders~*/1")
        shutil.rmtree(folder)
        assert run(["produce", "orders", "-p", "1", str(line), "--bootstrap", broker.bootstrap]) == 1
    assert "orders[1] were not delivered: the broker answered" in capsys.readouterr().err
    assert f"orders-1: a write failed: {folder}" in caplog.text
