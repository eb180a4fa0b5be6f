"""Backups: what is kept, what is copied again, what is noticed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.backup.create import Backup, create
from headrace.backup.manifest import BackupDamaged, BackupFile, Manifest
from headrace.backup.repository import OBJECT_BYTES, Repository
from headrace.backup.restore import findings_in, restore
from headrace.backup.source import Source, of_running
from headrace.cli.main import run
from headrace.client import Admin, Client, Groups, Producer, TopicPartition, end_offsets
from headrace.errors import HeadraceError, UsageError
from headrace.log.snapshot import sweep
from headrace.log.store import epoch_of_time
from tests.waiting import PATIENCE_S, eventually

TOPIC = "orders"
P0 = TopicPartition(TOPIC, 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[testing.InProcessBroker]:
    with testing.broker(data=tmp_path / "data", settings={"broker.id": 1}) as running:
        with Client(running.bootstrap) as client:
            Admin(client).create_topic(TOPIC, partitions=2, config={"segment.ms": "10000", "retention.ms": "-1"})
        yield running


def send(bootstrap: str, count: int) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for number in range(count):
            producer.send(TOPIC, b"%d" % number + bytes(1000), partition=0, timestamp=1_700_000_000_000 + 1000 * number)
            producer.flush()


def backed_up(bootstrap: str, repository: Repository) -> Backup:
    with Client(bootstrap) as client, of_running(client) as source:
        return create(repository, source)


def ends(bootstrap: str) -> dict[TopicPartition, int]:
    with Client(bootstrap) as client:
        return end_offsets(client, [P0])


def cluster(bootstrap: str) -> str | None:
    with Client(bootstrap) as client:
        client.refresh([])
        return client.cluster_id


def test_a_restored_broker_has_records_groups_settings_and_its_cluster_id(
    broker: testing.InProcessBroker, tmp_path: Path
) -> None:
    send(broker.bootstrap, 10)
    with Client(broker.bootstrap) as client:
        Groups(client).commit("readers", {P0: 7})
    repository = Repository.create(str(tmp_path / "backups"))
    backed_up(broker.bootstrap, repository)
    send(broker.bootstrap, 5)
    newest = repository.newest()
    assert newest is not None
    restore(repository, newest, str(tmp_path / "again"))
    assert list(findings_in(str(tmp_path / "again"))) == []
    with testing.broker(data=tmp_path / "again") as again, Client(again.bootstrap) as client:
        assert end_offsets(client, [P0]) == {P0: 10}
        assert Groups(client).committed("readers") == {P0: 7}
        assert client.cluster_id == cluster(broker.bootstrap)
        eventually(lambda: (tmp_path / "again/restored").exists(), lambda there: not there)


def test_clients_of_the_old_broker_notice_a_restored_one_by_its_leader_epoch_and_producer_ids(
    broker: testing.InProcessBroker, tmp_path: Path
) -> None:
    """The old broker was started again after the backup, so its epoch and producer ids went on."""
    send(broker.bootstrap, 1)
    repository = Repository.create(str(tmp_path / "backups"))
    made = backed_up(broker.bootstrap, repository)
    for _ in range(3):
        broker.restart()
    send(broker.bootstrap, 1)
    restore(repository, made.manifest, str(tmp_path / "again"))
    with testing.broker(data=tmp_path / "again") as again:
        send(again.bootstrap, 1)
        old, new = (last_batch(data) for data in (tmp_path / "data", tmp_path / "again"))
    assert new["leader_epoch"] > old["leader_epoch"]
    assert new["producer_id"] > old["producer_id"] + 1_000_000
    with testing.broker(data=tmp_path / "again") as again:
        send(again.bootstrap, 1)
        assert last_batch(tmp_path / "again")["producer_id"] > new["producer_id"], "also at its second start"


def test_two_restores_right_after_each_other_do_not_share_an_epoch_with_one_another(
    broker: testing.InProcessBroker, tmp_path: Path
) -> None:
    """What one of the two writes under an epoch must not be taken for what the other writes under it."""
    send(broker.bootstrap, 1)
    repository = Repository.create(str(tmp_path / "backups"))
    made = backed_up(broker.bootstrap, repository)
    used: list[set[int]] = []
    for name in ("first", "second"):
        restore(repository, made.manifest, str(tmp_path / name))
        epochs = set()
        for _ in range(3):
            with testing.broker(data=tmp_path / name) as again:
                send(again.bootstrap, 1)
            epochs.add(last_batch(tmp_path / name)["leader_epoch"])
        used.append(epochs)
    assert len(used[0]) == 3
    assert used[0].isdisjoint(used[1])
    assert min(used[1]) > max(used[0])


def test_backups_that_may_only_be_read_are_restored(broker: testing.InProcessBroker, tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    made = backed_up(broker.bootstrap, repository)
    (tmp_path / "backups/epoch.tmp").mkdir()  # root may write anywhere, but no file over a directory
    restore(repository, made.manifest, str(tmp_path / "again"))
    assert not (tmp_path / "backups/epoch").exists()
    with testing.broker(data=tmp_path / "again") as again:
        assert ends(again.bootstrap) == {P0: 0}


def test_a_leader_epoch_fits_its_31_bits_whatever_the_clock_says() -> None:
    now_ms = 1_800_000_000_000
    assert epoch_of_time(now_ms + 2_000) == epoch_of_time(now_ms) + 1
    assert epoch_of_time(now_ms) > now_ms // 60_000, "an earlier version counted minutes"
    assert epoch_of_time(2**62) < 2**31


def test_backups_of_two_clusters_do_not_go_into_one_directory(
    broker: testing.InProcessBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "backups")
    assert run(["backup", "create", target, "--bootstrap", broker.bootstrap]) == 0
    with testing.broker(data=tmp_path / "other") as other:
        assert run(["backup", "create", target, "--bootstrap", other.bootstrap]) == 1
        assert f"has backups of the cluster {cluster(broker.bootstrap)}" in capsys.readouterr().err
    assert run(["backup", "create", target, "--data", str(tmp_path / "other")]) == 1
    assert "give each cluster its own directory" in capsys.readouterr().err
    assert len(Repository(target).names()) == 1
    broker.stop()
    assert run(["backup", "create", target, "--data", str(tmp_path / "data")]) == 0
    assert run(["restore", target, "--data", str(tmp_path / "again")]) == 0
    with testing.broker(data=tmp_path / "again") as again:
        assert run(["backup", "create", target, "--bootstrap", again.bootstrap]) == 0, "a restored one is the same"
    assert len(Repository(target).names()) == 3


def last_batch(data: Path) -> dict[str, int]:
    from headrace.log.disk import OsDisk
    from headrace.log.dump import StoredBatch, walk_directory

    (folder,) = (data / "topics").glob(f"{TOPIC}~*/0")
    (*_, last) = [each for each in walk_directory(OsDisk(), str(folder)) if isinstance(each, StoredBatch)]
    return {"leader_epoch": last.batch.leader_epoch, "producer_id": last.batch.producer_id}


def test_a_second_backup_reads_and_copies_what_has_changed(broker: testing.InProcessBroker, tmp_path: Path) -> None:
    send(broker.bootstrap, 60)
    repository = Repository.create(str(tmp_path / "backups"))
    first = backed_up(broker.bootstrap, repository)
    assert first.bytes_written > 60_000
    second = backed_up(broker.bootstrap, repository)
    assert second.bytes_written < 2_000, "checkpoint and table of flushed ends, at most"
    assert second.bytes_read < 2_000
    send(broker.bootstrap, 1)
    third = backed_up(broker.bootstrap, repository)
    assert third.bytes_read < 25_000, "the active segment is read again, the sealed ones are not"
    assert third.files_unchanged > 4
    assert not list((tmp_path / "data/snapshots").iterdir()), "no snapshot is left"


def test_of_a_file_that_has_grown_only_the_end_is_new(tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    file = tmp_path / "source/topics/big.log"
    file.parent.mkdir(parents=True)
    file.write_bytes(os.urandom(OBJECT_BYTES + 1000))
    source = lambda at: Source(  # noqa: E731
        directory=str(tmp_path / "source"), files=[("topics/big.log", file.stat().st_size)], created_ms=at
    )
    create(repository, source(1000))
    with file.open("ab") as end:
        end.write(b"more")
    assert create(repository, source(2000)).bytes_written == 1004
    restore(repository, repository.manifest(repository.names()[0]), str(tmp_path / "first"))
    restore(repository, repository.manifest(repository.names()[1]), str(tmp_path / "second"))
    assert (tmp_path / "second/topics/big.log").read_bytes() == file.read_bytes()
    assert (tmp_path / "first/topics/big.log").read_bytes() == file.read_bytes()[:-4]


def small_source(tmp_path: Path, content: bytes, at: int = 1000) -> Source:
    (tmp_path / "source").mkdir(exist_ok=True)
    (tmp_path / "source/flushed").write_bytes(content)
    return Source(directory=str(tmp_path / "source"), files=[("flushed", len(content))], created_ms=at)


def test_a_file_that_was_replaced_by_one_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    """As a compacted segment is put in the place of the old one, or a file that was copied with its times."""
    repository = Repository.create(str(tmp_path / "backups"))
    create(repository, small_source(tmp_path, b"old", 1000))
    file, other = tmp_path / "source/flushed", tmp_path / "source/other"
    other.write_bytes(b"new")
    made = file.stat()
    os.utime(other, ns=(made.st_atime_ns, made.st_mtime_ns))
    other.replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (made.st_size, made.st_mtime_ns)
    create(repository, Source(directory=str(tmp_path / "source"), files=[("flushed", 3)], created_ms=2000))
    restore(repository, repository.manifest(repository.names()[1]), str(tmp_path / "again"))
    assert (tmp_path / "again/flushed").read_bytes() == b"new"


def only_object(repository: Repository) -> Path:
    (found,) = [each for each in Path(repository.path, "objects").rglob("*") if each.is_file()]
    return found


def test_a_backup_that_fails_in_the_middle_leaves_the_earlier_ones_and_no_new_one(tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    create(repository, small_source(tmp_path, b"one", 1000))
    broken = small_source(tmp_path, b"two", 2000)
    broken.files.append(("flushed", 100))
    with pytest.raises(HeadraceError, match="has 3 bytes where there were 100"):
        create(repository, broken)
    assert repository.names() == ["19700101T000001.000Z"]
    restore(repository, repository.manifest(repository.names()[0]), str(tmp_path / "again"))
    assert (tmp_path / "again/flushed").read_bytes() == b"one"


def test_a_manifest_is_written_when_its_objects_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What power loss takes is not of a backup that exists."""
    repository = Repository.create(str(tmp_path / "backups"))
    seen = []

    def syncfs(path: str) -> None:
        seen.append((only_object(repository).read_bytes(), repository.names()))

    monkeypatch.setattr(repository.disk, "syncfs", syncfs)
    create(repository, small_source(tmp_path, b"precious"))
    assert seen == [(b"precious", [])]
    assert len(repository.names()) == 1


def test_an_object_that_no_manifest_vouches_for_is_written_again(tmp_path: Path) -> None:
    """A power failure may have torn it."""
    repository = Repository.create(str(tmp_path / "backups"))
    name, _ = repository.put(b"whole")
    only_object(repository).write_bytes(b"")
    later = Repository(repository.path)
    assert later.put(b"whole") == (name, True)
    assert later.read(name) == b"whole"


def test_damage_is_found_named_and_healed_by_the_next_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    create(repository, small_source(tmp_path, b"precious", 1000))
    assert run(["backup", "verify", repository.path]) == 0
    damaged = only_object(repository)
    damaged.write_bytes(b"preciouS")
    with pytest.raises(BackupDamaged, match="its checksum is wrong"):
        restore(repository, repository.manifest(repository.names()[0]), str(tmp_path / "again"))
    with pytest.raises(UsageError, match="did not end"):
        restore(repository, repository.manifest(repository.names()[0]), str(tmp_path / "again"))
    capsys.readouterr()
    assert run(["backup", "verify", repository.path]) == 1
    assert str(damaged) in capsys.readouterr().err
    assert damaged.read_bytes() == b"preciouS", "nothing is changed without --set-aside"
    assert run(["backup", "verify", repository.path, "--set-aside"]) == 1
    create(Repository(repository.path), small_source(tmp_path, b"precious", 2000))
    assert run(["backup", "verify", repository.path]) == 0, "the first backup is whole again too"


def test_a_damaged_manifest_is_no_backup_and_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    for at in (1000, 2000):
        create(repository, small_source(tmp_path, b"%d" % at, at))
    newest = Path(repository.path, "manifests", repository.names()[1])
    newest.write_bytes(newest.read_bytes()[:-2])
    assert run(["backup", "list", repository.path, "--output", "json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert ["error" in row for row in rows] == [False, True]
    found = repository.newest()
    assert found is not None
    assert found.name == repository.names()[0]


def test_restoring_says_that_it_passes_over_a_damaged_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    for at in (1000, 2000):
        create(repository, small_source(tmp_path, b"%d" % at, at))
    newest = Path(repository.path, "manifests", repository.names()[1])
    newest.write_bytes(newest.read_bytes()[:-2])
    run(["restore", repository.path, "--data", str(tmp_path / "again"), "--no-verify"])
    assert f"the newest backup, {newest.name}, cannot be read" in capsys.readouterr().err


def test_the_last_backup_is_the_newest_also_when_the_clock_was_set_back(tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    made = [create(repository, small_source(tmp_path, b"%d" % at, at)).manifest.name for at in (9000, 1000, 9000, 2000)]
    assert repository.names() == made
    repository.prune(1)
    assert repository.names() == made[-1:]
    assert create(repository, small_source(tmp_path, b"x", 9001)).manifest.name > made[-1]


def test_damage_is_not_set_aside_while_a_backup_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The backup may have found the object there, and would name one that is gone."""
    repository = Repository.create(str(tmp_path / "backups"))
    create(repository, small_source(tmp_path, b"precious"))
    only_object(repository).write_bytes(b"preciouS")
    lock = repository.locked()
    assert run(["backup", "verify", repository.path, "--set-aside"]) == 1
    assert "another command writes" in capsys.readouterr().err
    assert only_object(repository).read_bytes() == b"preciouS"
    lock.release()


def test_a_first_command_that_was_killed_does_not_spoil_the_directory(tmp_path: Path) -> None:
    (tmp_path / "backups/objects").mkdir(parents=True)
    (tmp_path / "backups/headrace-backups.tmp").write_bytes(b"headr")
    repository = Repository.create(str(tmp_path / "backups"))
    create(repository, small_source(tmp_path, b"one"))


@pytest.mark.parametrize("answer", ["photos", "snapshots/1"])
def test_a_broker_that_answers_with_a_directory_that_is_no_snapshot_has_nothing_removed(
    broker: testing.InProcessBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    (tmp_path / answer).mkdir(parents=True)
    (tmp_path / answer / "one.jpg").touch()
    monkeypatch.setattr(Admin, "create_snapshot", lambda _: str(tmp_path / answer))
    with Client(broker.bootstrap) as client, pytest.raises(UsageError, match="cannot be read here"):
        with of_running(client):
            pass
    assert os.listdir(tmp_path / answer) == ["one.jpg"]


def test_a_snapshot_that_is_made_while_others_are_removed_is_not_removed_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, swept = threading.Event(), threading.Event()

    def slow(*given: Any) -> Any:
        made.wait(0.5)  # a removal that begins before the snapshot is there, and looks when it is
        try:
            return sweep(*given)
        finally:
            swept.set()

    monkeypatch.setattr("headrace.broker.snapshots.sweep", slow)
    with testing.broker(data=tmp_path / "data") as running, Client(running.bootstrap) as client:
        path = Admin(client).create_snapshot()
        made.set()
        assert swept.wait(PATIENCE_S)
        assert os.path.exists(f"{path}/snapshot.json")


def test_pruning_removes_what_only_old_backups_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    for at, content in ((1000, b"a" * 100), (2000, b"b" * 100), (3000, b"b" * 100)):
        create(repository, small_source(tmp_path, content, at))
    assert run(["backup", "prune", repository.path, "--keep", "2", "--output", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["bytes_freed"] == 100
    assert len(repository.names()) == 2
    assert run(["backup", "verify", repository.path]) == 0


def test_a_restore_refuses_what_is_there_and_files_outside(tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    create(repository, small_source(tmp_path, b"one"))
    manifest = repository.manifest(repository.names()[0])
    with pytest.raises(UsageError, match="is not empty"):
        restore(repository, manifest, str(tmp_path / "source"))
    for path in ("../outside", "/outside", "topics/../../outside"):
        evil = Manifest(name="x", created_ms=0, cluster_id="", headrace="", files=[BackupFile(path, 0, (0, 0, 0), ())])
        with pytest.raises(UsageError, match="outside"):
            restore(repository, evil, str(tmp_path / f"evil{len(path)}"))
    assert not (tmp_path / "outside").exists()


def test_a_directory_of_something_else_is_not_used_for_backups(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.jpg").touch()
    with pytest.raises(UsageError, match="not empty and holds no backups"):
        Repository.create(str(tmp_path / "photos"))
    with pytest.raises(UsageError, match="holds no backups"):
        Repository(str(tmp_path / "photos"))


def test_two_commands_do_not_write_to_one_directory(tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path / "backups"))
    lock = repository.locked()
    with pytest.raises(UsageError, match="another command"):
        Repository(repository.path).locked()
    lock.release()


def test_the_command_backs_up_a_broker_that_runs_and_one_that_is_stopped(
    broker: testing.InProcessBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    send(broker.bootstrap, 3)
    target, data = str(tmp_path / "backups"), str(tmp_path / "data")

    def made(*arguments: str) -> Any:
        assert run(["backup", "create", target, "--output", "json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)[0]

    running = made("--bootstrap", broker.bootstrap)
    assert run(["backup", "create", target, "--data", data]) == 1
    assert "is in use by process" in capsys.readouterr().err
    broker.stop()
    stopped = made("--data", data, "--keep", "5")
    assert stopped["name"] > running["name"]
    assert stopped["files"] > running["files"], "the indexes of active segments are there, once they are closed"
    for name in (running["name"], stopped["name"]):
        again = str(tmp_path / name)
        assert run(["restore", target, "--data", again, "--backup", name]) == 0
        with testing.broker(data=again) as restored:
            assert ends(restored.bootstrap) == {P0: 3}
    assert run(["restore", target, "--data", str(tmp_path / "x"), "--backup", "none"]) == 1
    assert "has no backup 'none'" in capsys.readouterr().err
