"""Forgetting while something else goes on, and after a crash or a restored backup: no plain text survives."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headrace.sourcing import (
    Event,
    EventStore,
    ProjectionRunner,
    Snapshots,
    SourcingError,
    TakenOver,
    handle,
    load,
    open_store,
)
from headrace.sourcing.keys import KeyStore
from headrace.sourcing.store import Snapshot
from headrace.testing.broker import TestBroker
from tests.sourcing.bank import Deposit, Names, Open, account
from tests.sourcing.test_forgetting import SECRET, Letters, files_with, opened
from tests.waiting import eventually

quick = replace(account, snapshots=Snapshots(every=1))

PAGE = 500
"""Events that a projection applies in one transaction."""


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "customers.keys")
    yield store
    store.close()


@pytest.fixture
def bank(tmp_path: Path, keys: KeyStore) -> Iterator[EventStore]:
    with open_store(tmp_path / "bank.db", keys=keys) as store:
        yield store


@pytest.fixture
def names(bank: EventStore, tmp_path: Path) -> Iterator[ProjectionRunner]:
    runner = ProjectionRunner(bank, tmp_path / "views.db", Names())
    yield runner
    runner.close()


def names_in(runner: ProjectionRunner) -> set[str]:
    return {name for (name,) in runner.ask("select name from names")}


class Killed(BaseException):
    """The process dies here."""


def die(*_: object) -> None:
    raise Killed


# ---- views ----------------------------------------------------------------------------------------------------------


def test_a_person_who_is_forgotten_during_a_rebuild_is_not_in_the_new_view(
    bank: EventStore, names: ProjectionRunner
) -> None:
    bank.append("account-1", [opened()])
    bank.append("noise-1", [Event("Noise")] * PAGE)
    names.rebuild(lambda _: bank.forget("u1") and None)
    assert names_in(names) == {"[forgotten]"}


def test_a_person_who_is_forgotten_just_before_the_switch_is_met_by_the_next_run(
    bank: EventStore, names: ProjectionRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch applies what the old view has, and not what comes after it."""
    bank.append("account-1", opened())
    names.run(until_current=True)
    other, switch = ProjectionRunner(bank, tmp_path / "views.db", Names()), ProjectionRunner._switch

    def switch_late(self: ProjectionRunner, following: int, position: int) -> int:
        bank.append("noise-1", Event("Noise"))
        names.run(until_current=True)
        bank.forget("u1")
        monkeypatch.undo()
        return switch(self, following, position)

    monkeypatch.setattr(ProjectionRunner, "_switch", switch_late)
    assert other.rebuild() == 2
    other.run(until_current=True)
    assert names_in(other) == {"[forgotten]"}
    other.close()


def test_a_runner_that_dies_before_the_rebuild_meets_the_forgotten_person_again(
    bank: EventStore, names: ProjectionRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank.append("account-1", opened())
    names.run(until_current=True)
    bank.forget("u1")
    with monkeypatch.context() as patch:
        patch.setattr(names, "rebuild", die)
        with pytest.raises(Killed):
            names.run(until_current=True)
    names.run(until_current=True)
    assert names_in(names) == {"[forgotten]"}


def test_a_runner_that_was_taken_over_rebuilds_nothing_when_somebody_is_forgotten(
    bank: EventStore, names: ProjectionRunner, tmp_path: Path
) -> None:
    bank.append("account-1", opened())
    names.run(until_current=True)
    names._take_over()
    newer = ProjectionRunner(bank, tmp_path / "views.db", Names())
    newer.run(until_current=True)
    bank.forget("u1")
    with pytest.raises(TakenOver):
        names._follow(threading.Event(), until_current=True)
    newer.close()


def test_a_purge_also_removes_what_a_rebuild_has_left_that_died(bank: EventStore, tmp_path: Path) -> None:
    bank.append("account-1", opened())
    runner = ProjectionRunner(bank, tmp_path / "views.db", Letters())
    runner.run(until_current=True)
    with pytest.raises(Killed):
        runner.rebuild(die)
    bank.forget("u1")
    runner.run(until_current=True)
    runner.purge()
    assert files_with(tmp_path, SECRET) == []
    runner.close()


def test_a_view_that_is_ahead_of_a_restored_store_is_refused_and_a_rebuild_helps(
    bank: EventStore, names: ProjectionRunner, tmp_path: Path, keys: KeyStore
) -> None:
    bank.append("account-1", opened("Grace", "u2"))
    with open_store(tmp_path / "older.db", keys=keys) as older:
        bank.append("account-2", opened("Hedy", "u3"))
        names.run(until_current=True)
        older.append("account-1", opened("Grace", "u2"))
        runner = ProjectionRunner(older, tmp_path / "views.db", Names())
        with pytest.raises(SourcingError, match=r"is at position 2 and .* ends at 1.*Rebuild the view"):
            runner.run(until_current=True)
        runner.rebuild()
        runner.run(until_current=True)
        assert names_in(runner) == {"Grace"}
        runner.close()


# ---- backups, several stores ----------------------------------------------------------------------------------------


def test_a_store_from_an_older_backup_forgets_again_whom_its_key_file_knows_to_be_forgotten(
    tmp_path: Path, keys: KeyStore
) -> None:
    folder, backup = tmp_path / "now", tmp_path / "backup"
    folder.mkdir()
    with open_store(folder / "bank.db", keys=keys) as store:
        handle(store, "account-1", quick, Open("u1", SECRET))
        runner = ProjectionRunner(store, folder / "views.db", Names())
        runner.run(until_current=True)
        runner.close()
    shutil.copytree(folder, backup)
    with open_store(folder / "bank.db", keys=keys) as store:
        store.forget("u1")
    with open_store(backup / "bank.db", keys=keys) as store:
        assert load(store, "account-1", quick).state["name"] == "[forgotten]"
        assert list(store.forgotten()) == ["u1"]
        runner = ProjectionRunner(store, backup / "views.db", Names())
        runner.run(until_current=True)
        assert names_in(runner) == {"[forgotten]"}
        runner.close()


def test_two_stores_that_share_keys_both_follow_and_one_without_events_of_the_person_does_not(
    tmp_path: Path, keys: KeyStore
) -> None:
    for name in ("bank", "shop", "empty"):
        with open_store(tmp_path / f"{name}.db", keys=keys) as store:
            store.append("account-1", opened() if name != "empty" else Event("Noise"))
    with open_store(tmp_path / "bank.db", keys=keys) as store:
        store.forget("u1")
    for name, expected in {"bank": ["u1"], "shop": ["u1"], "empty": []}.items():
        with open_store(tmp_path / f"{name}.db", keys=keys) as store:
            assert list(store.forgotten()) == expected


# ---- snapshots ------------------------------------------------------------------------------------------------------


@pytest.mark.servers
def test_a_snapshot_that_waits_for_a_forgetting_append_is_not_kept(new_schema: Callable[[], str]) -> None:
    url = new_schema()
    with open_store(url) as store, psycopg.connect(url) as other:
        other.execute("select 1 from headrace_head for update")
        other.execute(
            "insert into headrace_events values (1, '$forgotten', 1, 'e', 'SubjectForgotten', 1, '{}', '[]', null, "
            "null, null, null, 1)"
        )
        other.execute("update headrace_head set position = 1")
        snapshot = Snapshot(1, 1, SECRET)
        saving = threading.Thread(target=store.save_snapshot, args=("a-1", "s", snapshot), kwargs={"forgotten": 0})
        saving.start()
        with psycopg.connect(url, autocommit=True) as watcher:
            waiting = "select 1 from pg_locks where not granted"
            eventually(lambda: watcher.execute(waiting).fetchone())
        other.commit()
        saving.join()
        assert store.load_snapshot("a-1", "s") is None


def test_snapshots_in_the_index_of_another_process_go_when_it_reads_that_somebody_was_forgotten(
    tmp_path: Path, keys: KeyStore, log_broker: TestBroker, unique: Callable[[str], str]
) -> None:
    topic = f"kafka://{log_broker.bootstrap}/{unique('events')[:80]}"
    with open_store(f"{topic}?index={tmp_path}/one.db", keys=keys) as store:
        handle(store, "account-1", quick, Open("u1", SECRET))
    with open_store(f"{topic}?index={tmp_path}/two.db", keys=keys) as store:
        store.forget("u1")
    with open_store(f"{topic}?index={tmp_path}/one.db", keys=keys) as store:
        assert load(store, "account-1", quick).state["name"] == "[forgotten]"
        store.purge()
    assert files_with(tmp_path, SECRET) == []


def test_a_command_is_done_also_when_its_snapshot_cannot_be_kept(
    bank: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SourcingError("the disk is full")

    monkeypatch.setattr(bank, "save_snapshot", fail)
    assert handle(bank, "account-1", quick, Deposit(5)).version == 1


def test_a_state_that_is_no_json_is_found_out_before_anything_is_appended(bank: EventStore) -> None:
    wrong = replace(account, snapshots=Snapshots(every=1, encode=lambda state: object()))
    with pytest.raises(Exception, match="no JSON"):
        handle(bank, "account-1", wrong, Deposit(5))
    assert bank.version("account-1") == 0
