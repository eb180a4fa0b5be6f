"""Forgetting while something else goes on, and after a crash or a restored backup: no plain text survives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.sourcing import Event, EventStore, ProjectionRunner, SourcingError, TakenOver, open_store
from headrace.sourcing.keys import KeyStore
from tests.sourcing.bank import Names
from tests.sourcing.test_forgetting import SECRET, Letters, files_with, opened

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
