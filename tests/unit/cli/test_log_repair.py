"""``headrace log verify`` and ``headrace log repair`` on whole data directories."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace import testing
from headrace.cli.main import run
from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    Consumer,
    Groups,
    Producer,
    TopicPartition,
    TransactionalProducer,
    end_offsets,
    start_offsets,
)
from headrace.errors import HeadraceError
from headrace.log.disk import OsDisk
from headrace.log.errors import CorruptLog
from tests.waiting import eventually

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


def values(client: Client, partition: TopicPartition = ORDERS) -> list[bytes | None]:
    consumer = Consumer(client)
    consumer.assign(start_offsets(client, [partition]))
    found: list[bytes | None] = []
    while not consumer.at_end():
        found += [record.value for records in consumer.poll(500).values() for record in records]
    return found


# ---- verify ----


def test_a_directory_that_a_killed_broker_left_has_no_problems(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "verify", str(data)]) == 0
    assert "2 partitions checked: 0 errors, 0 warnings" in capsys.readouterr().out


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
    assert " 0 errors, 1 warning" in out


def stranger_of(data: Path, name: str = "old") -> Path:
    folder = log_of(data, "orders").parent.parent
    return Path(shutil.copytree(folder, folder.with_name(f"{name}~{'ab' * 16}")))


def test_records_in_a_directory_that_no_topic_has_are_an_error_with_size_and_cure(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = stranger_of(data)
    size = (stranger / "0" / "00000000000000000000.log").stat().st_size
    assert run(["log", "verify", str(data)]) == 1
    out = capsys.readouterr().out
    assert f"error: {stranger}: partitions 0, 1 with {size} bytes of records belong to no topic" in out
    assert f"headrace log repair {data} --adopt --yes" in out


def test_an_empty_directory_that_no_topic_has_is_a_warning(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(stranger_of(data) / "0" / "00000000000000000000.log", 0)
    assert run(["log", "verify", str(data)]) == 0
    assert "1 warning" in capsys.readouterr().out


def test_the_format_of_another_version_is_not_called_damage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "checkpoint"
    path.write_bytes(path.read_bytes().replace(b"headrace-checkpoint 2 ", b"headrace-checkpoint 1 "))
    assert run(["log", "verify", str(data)]) == 0
    out = capsys.readouterr().out
    assert "another version of headrace wrote it" in out
    assert "checksum" not in out


def test_a_damaged_entry_of_the_flushed_ends_is_reported_once_and_healed_by_a_start(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(data / "flushed", 27)
    with testing.broker(data=data):
        pass
    assert run(["log", "verify", str(data)]) == 0
    assert " 0 errors, 0 warnings" in capsys.readouterr().out


# ---- repair ----


def test_without_yes_a_repair_only_tells_what_it_would_do(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log_of(data, "orders")
    flip(path, starts_in(path)[4] + 65)
    before = {each: each.read_bytes() for each in data.rglob("*") if each.is_file() and each.name != "lock"}
    assert run(["log", "repair", str(data)]) == 1
    out = capsys.readouterr().out
    assert "offsets 4 to 4 are lost" in out
    assert "1 partition damaged; --yes repairs" in out
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


def test_without_adopt_a_repair_names_the_directories_that_belong_to_no_topic(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = log_of(data, "orders").parent.parent
    shutil.rmtree(log_of(data, JOURNAL).parent)
    assert run(["log", "repair", str(data), "--yes"]) == 1
    out = capsys.readouterr().out
    assert f"error: {folder}: partitions 0, 1 with " in out
    assert "--adopt --yes' makes them the topic 'orders'" in out
    assert "the journal and 0 partitions repaired; 1 directory belongs to no topic" in out
    assert run(["log", "verify", str(data)]) == 1
    assert run(["log", "repair", str(data), "--yes", "--adopt"]) == 0
    assert run(["log", "verify", str(data)]) == 0


def test_a_directory_whose_topic_was_made_again_is_adopted_under_another_name(
    data: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(log_of(data, JOURNAL).parent)
    assert run(["log", "repair", str(data), "--yes"]) == 1
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=1)
    assert "belong to no topic" in caplog.text
    assert "the new topic orders is empty" in caplog.text
    assert run(["log", "repair", str(data), "--yes", "--adopt"]) == 0
    assert "topic orders-recovered adopted: 2 partitions" in capsys.readouterr().out
    caplog.clear()
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        assert values(client) == []
        assert len(values(client, TopicPartition("orders-recovered", 0))) == 10
    assert [each.getMessage() for each in caplog.records if each.name == "headrace.recovery"] == []


def test_partitions_beyond_those_of_their_topic_are_adopted_too(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = log_of(data, "orders").parent.parent
    shutil.copytree(folder / "0", folder / "2")
    assert run(["log", "repair", str(data)]) == 1
    assert f"error: {folder}: partitions 2 with " in capsys.readouterr().out
    assert run(["log", "repair", str(data), "--yes", "--adopt"]) == 0
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        assert len(client.topic("orders").partitions) == 3
        assert len(values(client, TopicPartition("orders", 2))) == 10


@pytest.mark.parametrize("name", ["20261101", "02"])
def test_a_copy_whose_name_cannot_be_a_partitions_is_not_adopted(data: Path, name: str) -> None:
    folder = log_of(data, "orders").parent.parent
    shutil.copytree(folder / "0", folder / name)
    assert run(["log", "repair", str(data), "--yes", "--adopt"]) == 0
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        assert len(client.topic("orders").partitions) == 2
    assert (folder / name).is_dir()


@pytest.mark.parametrize("lost", ["all", "end", "middle"])
def test_the_sum_of_lost_offsets_is_that_of_the_lines_above(
    data: Path, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_of(data, "orders")
    if lost == "all":
        path.unlink()
    elif lost == "end":
        flip(path, starts_in(path)[-1] + 65)
    else:
        flip(path, starts_in(path)[4] + 65)
    assert run(["log", "repair", str(data)]) == 1
    out = capsys.readouterr().out
    count = {"all": 10, "end": 1, "middle": 1}[lost]
    first = {"all": 0, "end": 9, "middle": 4}[lost]
    assert out.count(f"offsets {first} to {first + count - 1} are lost") == 1
    assert f"in all {count} offset" in out
    assert "no offset" not in out


def test_what_the_journal_says_after_the_damage_counts_too(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("gone", partitions=1)
        with Producer(client) as producer:
            producer.send("gone", b"x", partition=0)
        Groups(client).commit("others", {ORDERS: 3})
        Admin(client).delete_topic("gone")
        eventually(lambda: list(data.glob("topics/gone~*")), lambda left: not left)
    path = log_of(data, JOURNAL)
    (committed,) = [start for start in starts_in(path) if b"others" in path.read_bytes()[start : start + 150]][-1:]
    flip(path, committed + 9)
    assert run(["log", "verify", str(data)]) == 1
    assert "gone" not in capsys.readouterr().out.replace("are gone", "")
    assert run(["log", "repair", str(data), "--yes"]) == 0
    assert run(["log", "verify", str(data)]) == 0
    assert list(data.glob("topics/gone~*")) == []


def producer_writes_more(data: Path) -> None:
    """A new producer sends batches like those of the first: with the first one's id they would be taken for retries."""
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        with Producer(client) as producer:
            for number in range(10):
                producer.send("orders", b"more %d" % number, partition=0)
                producer.flush()
        assert len(values(client)) == 20


def test_after_the_loss_of_any_change_of_the_journal_a_new_producer_is_not_taken_for_an_old_one(data: Path) -> None:
    path = log_of(data, JOURNAL)
    (reservation,) = [start for start in starts_in(path) if b"reserved_end" in path.read_bytes()[start : start + 120]]
    flip(path, reservation + 70)
    assert run(["log", "repair", str(data), "--yes"]) == 0
    producer_writes_more(data)


def test_after_the_loss_of_the_journals_last_changes_a_new_producer_is_not_taken_for_an_old_one(data: Path) -> None:
    path = log_of(data, JOURNAL)
    (reservation,) = [start for start in starts_in(path) if b"reserved_end" in path.read_bytes()[start : start + 120]]
    cut(path, reservation)
    assert run(["log", "repair", str(data), "--yes"]) == 0
    producer_writes_more(data)


def test_a_journal_without_even_a_known_end_gives_new_producers_new_ids(data: Path) -> None:
    shutil.rmtree(log_of(data, JOURNAL).parent)
    (data / "flushed").unlink()
    (data / "checkpoint").unlink()
    assert run(["log", "repair", str(data), "--yes", "--adopt"]) == 0
    producer_writes_more(data)


def test_after_the_loss_of_journal_changes_the_leader_epoch_still_rises(data: Path) -> None:
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        before = client.topic("orders").partitions[0].leader_epoch
    shutil.rmtree(log_of(data, JOURNAL).parent)
    assert run(["log", "repair", str(data), "--yes", "--adopt"]) == 0
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        repaired = client.topic("orders").partitions[0].leader_epoch
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        assert before < repaired < client.topic("orders").partitions[0].leader_epoch


def test_after_the_loss_of_the_whole_journal_a_new_producer_is_not_taken_for_an_old_one(data: Path) -> None:
    shutil.rmtree(log_of(data, JOURNAL).parent)
    assert run(["log", "repair", str(data), "--yes", "--adopt"]) == 0
    producer_writes_more(data)


def test_a_transaction_whose_rows_are_lost_does_not_hold_back_readers_of_committed_data(data: Path) -> None:
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        producer = TransactionalProducer(client, "t")
        producer.begin()
        producer.send("orders", b"undecided", partition=0)
        producer.flush()
        assert end_offsets(client, [ORDERS], read_committed=True) == {ORDERS: 10}
    # The broker was stopped in good order, so the end of the partition need not be recovered.
    path = log_of(data, JOURNAL)
    starts = starts_in(path)
    content = path.read_bytes()
    for start, end in zip(starts, [*starts[1:], len(content)], strict=True):
        if b"transactions/t" in content[start:end]:
            flip(path, end - 1)
    assert run(["log", "repair", str(data), "--yes"]) == 0
    with testing.broker(data=data) as broker, Client(broker.bootstrap) as client:
        marker = TopicPartition("orders", 0), 12
        assert eventually(
            lambda: end_offsets(client, [ORDERS], read_committed=True), lambda ends: ends == dict([marker])
        )


def test_a_directory_in_use_is_not_repaired(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = OsDisk().lock(str(data / "lock"))
    assert run(["log", "repair", str(data), "--yes"]) == 1
    err = capsys.readouterr().err
    assert "is in use by process" in err
    assert "--data" not in err
    lock.release()


def test_a_folder_that_is_no_data_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "repair", str(tmp_path)]) == 1
    assert "is no data directory" in capsys.readouterr().err
