"""The file of a store in SQLite: how much an append writes, and files that an older version has made."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from headrace.sourcing import Event, StoreUnavailable, open_store
from headrace.sourcing import sqlite as sqlite_module
from headrace.sourcing.sql import tables
from headrace.sourcing.sqlite import SqliteStore

FRAME_BYTES = 4096 + 24


def test_an_append_writes_few_pages_since_ids_that_the_store_makes_are_in_no_index(tmp_path: Path) -> None:
    """Counted in the WAL. With all ids in an index it would be a page more for each append, 3.6 and not 2.5."""
    with open_store(tmp_path / "events.db") as store:
        for number in range(300):
            store.append(f"account-{number % 20}", Event("Paid", {"memo": "x" * 200}))
        with closing(sqlite3.connect(tmp_path / "events.db")) as other:
            other.execute("pragma wal_checkpoint(truncate)")
        for number in range(100):
            store.append(f"account-{number % 20}", Event("Paid", {"memo": "x" * 200}))
        pages = (tmp_path / "events.db-wal").stat().st_size / FRAME_BYTES
        with closing(sqlite3.connect(tmp_path / "events.db")) as other:
            (plan,) = other.execute(
                "select sql from sqlite_master where name = 'headrace_events_id' and sql like '%unique%'"
            ).fetchone()
    assert "printf" in plan
    assert pages < 300


def test_an_append_of_one_event_is_four_statements(tmp_path: Path) -> None:
    """What one writer pays beside the sync. Position, time and version are one question."""
    with SqliteStore(tmp_path / "events.db") as store:
        store.append("account-1", Event("Paid"), expected=0)
        seen: list[str] = []
        store._writer.set_trace_callback(seen.append)
        store.append("account-1", Event("Paid", {"cents": 5}), expected=1)
    assert [statement.split()[0] for statement in seen] == ["begin", "select", "insert", "commit"]


def test_every_commit_is_synced_whatever_the_default_of_sqlite_is(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "events.db") as store:
        assert store._writer.execute("pragma synchronous").fetchone() == (2,)  # FULL
        assert store._writer.execute("pragma journal_mode").fetchone() == ("wal",)


def test_times_do_not_go_back_when_the_clock_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path / "events.db") as store:
        store.append("account-1", Event("Paid"))
        earlier_ns = time.time_ns() - 3600 * 10**9
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: earlier_ns)
            store.append("account-1", Event("Paid"))
        store.append("account-1", Event("Paid"))
        first, second, third = (event.recorded_at for event in store.read_all())
    assert first == second <= third


def test_a_file_whose_index_has_all_ids_is_used_as_before(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "events.db")) as older:
        for statement in tables(no_rowid=" without rowid"):
            older.execute(statement)
        older.commit()
    with open_store(tmp_path / "events.db") as store:
        store.append("account-1", [Event("Paid"), Event("Paid", event_id="given")])
        made = next(store.read("account-1")).event_id
        assert store.append("account-1", [Event("Paid", event_id=made), Event("Paid", event_id="given")]).repeated
        assert store.head() == 2


def test_a_file_that_cannot_be_opened_is_an_error_that_says_what_sqlite_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file on a read-only disk, for example."""
    path = tmp_path / "events.db"
    path.touch()

    def refuse(*_: object, **__: object) -> None:
        sqlite3.connect(tmp_path / "nowhere" / "file")

    monkeypatch.setattr(sqlite_module, "use_wal", refuse)
    with pytest.raises(StoreUnavailable, match=r"unable to open database file \(SQLite makes files beside it"):
        open_store(path)
