"""``headrace log verify`` and ``headrace log repair`` on whole data directories."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli.main import run
from headrace.client import Admin, Client, ClientOptions, Consumer, Groups, Producer, TopicPartition, start_offsets
from headrace.errors import HeadraceError
from headrace.log.disk import OsDisk
from headrace.log.errors import CorruptLog

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that was killed: ten acknowledged records, one batch each, and a group at offset 7."""
    folder = tmp_path_factory.mktemp("filled")
    with testing.broker(data=folder, in_process=False) as broker:
        with Client(broker.bootstrap) as client:
            Admin(client).create_topic("orders", partitions=2)
            with Producer(client) as producer:
                for number in range(10):
                    producer.send("orders", b"value %d" % number, partition=0)
                    producer.flush()
            Groups(client).commit("readers", {ORDERS: 7})
        broker.kill()
    return folder


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "data"))


JOURNAL = "the journal"


def log_of(data: Path, topic: str) -> Path:
    (found,) = data.glob("state/journal/0/*.log" if topic == JOURNAL else f"topics/{topic}~*/0/*.log")
    return found


def starts_in(path: Path) -> list[int]:
    content, starts, position = path.read_bytes(), [], 0
    while position < len(content):
        starts.append(position)
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    return starts


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def cut(path: Path, position: int) -> None:
    path.write_bytes(path.read_bytes()[:position])


def values(client: Client) -> list[bytes | None]:
    consumer = Consumer(client)
    consumer.assign(start_offsets(client, [ORDERS]))
    found: list[bytes | None] = []
    while not consumer.at_end():
        found += [record.value for records in consumer.poll(500).values() for record in records]
    return found


# ---- verify ----


def test_a_directory_that_a_killed_broker_left_has_no_problems(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "verify", str(data)]) == 0
    assert "3 partitions checked: 0 errors, 0 warnings" in capsys.readouterr().out


def test_a_directory_can_be_checked_while_its_broker_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with testing.broker(data=tmp_path / "data") as broker, Client(broker.bootstrap) as client:
        with Producer(client) as producer:
            producer.send("orders", b"x")
        assert run(["log", "verify", str(tmp_path / "data")]) == 0
    assert " 0 errors, 0 warnings" in capsys.readouterr().out


def test_a_lost_end_is_an_error_with_the_offsets_that_are_missing(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_of(data, "orders")
    cut(path, starts_in(path)[6])
    assert run(["log", "verify", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"error: {path}: offsets 6 to 9 were flushed and are not here" in out


@pytest.mark.parametrize("topic", ["orders", JOURNAL])
def test_a_directory_that_is_gone_is_an_error(data: Path, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = log_of(data, topic).parent.parent
    shutil.rmtree(folder)
    assert run(["log", "verify", str(data)]) == 1
    assert f"error: {folder / '0'}" in capsys.readouterr().out


def test_a_journal_without_its_file_is_an_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_of(data, JOURNAL).unlink()
    assert run(["log", "verify", str(data)]) == 1
    assert "were flushed and are not here" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["checkpoint", "flushed"])
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_lost_checkpoint_or_table_is_a_warning(
    data: Path, name: str, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if harm == "missing":
        (data / name).unlink()
    else:
        flip(data / name, 27)
    assert run(["log", "verify", str(data)]) == 0
    out = capsys.readouterr().out
    assert f"warning: {data / name}" in out
    assert " 0 errors, 1 warnings" in out


def test_a_directory_that_no_topic_has_is_a_warning(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = log_of(data, "orders").parent.parent
    stranger = folder.with_name(f"old~{'ab' * 16}")
    shutil.copytree(folder, stranger)
    assert run(["log", "verify", str(data)]) == 0
    assert f"warning: {stranger / '0'}: no topic of the journal has this directory" in capsys.readouterr().out


# ---- repair ----


def test_without_yes_a_repair_only_tells_what_it_would_do(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log_of(data, "orders")
    flip(path, starts_in(path)[4] + 65)
    before = {each: each.read_bytes() for each in data.rglob("*") if each.is_file() and each.name != "lock"}
    assert run(["log", "repair", str(data)]) == 1
    out = capsys.readouterr().out
    assert "offsets 4 to 4 are lost" in out
    assert "1 partitions are damaged; repeat with --yes" in out
    assert {each: each.read_bytes() for each in data.rglob("*") if each.is_file() and each.name != "lock"} == before


def test_a_repaired_partition_is_served_with_all_that_was_whole(data: Path) -> None:
    path = log_of(data, "orders")
    flip(path, starts_in(path)[4] + 65)
    with testing.broker(data=data) as broker, Client(broker.bootstrap, ClientOptions(retry_timeout_ms=1)) as client:
        with pytest.raises(HeadraceError):
            values(client)
    assert run(["log", "repair", str(data), "--yes"]) == 0
    assert run(["log", "repair", str(data)]) == 0, "nothing is left to do"
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        assert values(client) == [b"value %d" % number for number in range(10) if number != 4]
        with Producer(client) as producer:
            producer.send("orders", b"next", partition=0)
        assert values(client)[-1] == b"next"


def test_a_damaged_journal_names_itself_refuses_the_start_and_can_be_repaired(data: Path) -> None:
    path = log_of(data, JOURNAL)
    flip(path, starts_in(path)[-1] + 70)
    with pytest.raises(CorruptLog, match=str(path)), testing.broker(data=data):
        pass
    assert run(["log", "repair", str(data), "--yes"]) == 0
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        assert len(values(client)) == 10


def test_a_journal_that_is_gone_gets_its_topics_back_from_their_directories(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(log_of(data, JOURNAL).parent)
    assert run(["log", "repair", str(data), "--yes", "--adopt"]) == 0
    assert "topic orders adopted" in capsys.readouterr().out
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        (topic,) = Admin(client).topics()
        assert (topic.name, len(topic.partitions)) == ("orders", 2)
        assert len(values(client)) == 10


def test_a_directory_in_use_is_not_repaired(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = OsDisk().lock(str(data / "lock"))
    assert run(["log", "repair", str(data), "--yes"]) == 1
    assert "is in use by process" in capsys.readouterr().err
    lock.release()


def test_a_folder_that_is_no_data_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "repair", str(tmp_path)]) == 1
    assert "is no data directory" in capsys.readouterr().err
