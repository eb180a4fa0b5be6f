"""Views through the writers that pipelines use: a table, a cache; one runner at a time, each row once in effect."""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis

from headrace.address import Address
from headrace.errors import Refused, UsageError
from headrace.sourcing import Event, EventStore, Query, RecordedEvent, open_store
from headrace.sourcing.keys import KeyStore
from headrace.sourcing.target_views import RemovedRow, TargetView
from headrace.targets.redis import RedisTarget
from headrace.targets.search import SearchTarget, find_in_file
from headrace.targets.sql import sqlite
from headrace.targets.sql.dialect import TableName
from headrace.targets.sql.table import SqlTarget
from headrace.targets.target import Target, Unavailable
from tests.servers.redis import RedisServer

COLUMNS = pa.schema([("id", pa.string()), ("name", pa.string())])


def rows(event: RecordedEvent) -> Iterator[Any]:
    if event.type == "Named":
        yield {"id": event.stream, "name": event.data["name"]}
    elif event.type == "Closed":
        yield RemovedRow({"id": event.stream})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with open_store(tmp_path / "events.db") as store:
        yield store


def view(store: EventStore, target: Target) -> TargetView:
    return TargetView(store, target, name="names", columns=COLUMNS, rows=rows)


@pytest.fixture
def cache(redis: RedisServer, unique: Any) -> tuple[Target, Any]:
    prefix = unique("names")[:40] + ":"

    def seen() -> dict[str, str]:
        with Redis.from_url(redis.url(), decode_responses=True) as client:
            client_any: Any = client
            keys = sorted(client_any.scan_iter(match=f"{prefix}*"))
            return {key.removeprefix(prefix): client_any.get(key) for key in keys}

    return RedisTarget(Address(redis.url()), prefix, ("id",)), seen


@pytest.mark.servers
def test_a_cache_follows_events_and_a_page_that_comes_twice_changes_nothing(
    store: EventStore, cache: tuple[Target, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, seen = cache
    store.append("a-1", [Event("Named", {"name": "Ada"}), Event("Named", {"name": "Ada L."}), Event("Other")])
    store.append("a-2", Event("Named", {"name": "Grace"}))
    with monkeypatch.context() as patch:
        patch.setattr(store, "append_all", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            view(store, target).run(until_current=True)  # dies before the store knows
    store.append("a-2", Event("Closed"))
    again = view(store, target)
    assert again.position() == 0
    again.run(until_current=True)
    assert {key: "Ada L." in value for key, value in seen().items()} == {"a-1": True}
    assert again.position() == store.head()


@pytest.mark.servers
def test_an_older_runner_is_refused_with_the_name_of_the_newer_one(
    store: EventStore, cache: tuple[Target, Any]
) -> None:
    target, seen = cache
    older, newer = view(store, target), view(store, target)
    for runner in (older, newer):
        store.append("a-1", Event("Named", {"name": "Ada"}))
        runner.run(until_current=True)
    store.append("a-1", Event("Named", {"name": "late"}))
    with pytest.raises(Refused, match="another run of pipeline view:names has taken over"):
        older.run(until_current=True)
    newer.run(until_current=True)
    assert "late" in seen()["a-1"]


@pytest.mark.servers
@pytest.mark.parametrize("query", [Query(), Query.of(types=["Named"])])
def test_a_cache_loses_the_rows_of_a_person_who_is_forgotten_and_a_replay_brings_none_back(
    tmp_path: Path, cache: tuple[Target, Any], query: Query
) -> None:
    target, seen = cache
    keys = KeyStore(tmp_path / "k.keys")
    with open_store(tmp_path / "people.db", keys=keys) as store:
        for number, name in enumerate(["Ada", "Grace", "Ada L."]):
            person = "u2" if name == "Grace" else "u1"
            store.append(f"a-{number}", Event("Named", {"name": name}, personal={"name": person}))
        names = TargetView(store, target, name="names", columns=COLUMNS, rows=rows, query=query)
        names.run(until_current=True)
        assert sorted(seen()) == ["a-0", "a-1", "a-2"]
        store.forget("u1")
        names.run(until_current=True)
        assert list(seen()) == ["a-1"]
        assert names.position() == store.head()
        again = TargetView(store, target, name="again", columns=COLUMNS, rows=rows, query=query)
        again.run(until_current=True)
        assert list(seen()) == ["a-1"]
        assert "Grace" in seen()["a-1"]


@pytest.mark.servers
def test_a_view_says_itself_what_becomes_of_the_rows_of_a_forgotten_person(
    tmp_path: Path, cache: tuple[Target, Any]
) -> None:
    target, seen = cache
    with open_store(tmp_path / "people.db", keys=KeyStore(tmp_path / "k.keys")) as store:
        store.append("a-1", Event("Named", {"name": "Ada"}, personal={"name": "u1"}))
        names = TargetView(
            store, target, name="names", columns=COLUMNS, rows=rows, forget=lambda subject: [{"id": "a-1", "name": "?"}]
        )
        names.run(until_current=True)
        store.forget("u1")
        names.run(until_current=True)
        assert '"?"' in seen()["a-1"]
        assert "Ada" not in seen()["a-1"]


def search_index(folder: Path) -> SearchTarget:
    return SearchTarget(Address(f"sqlite:///{folder}/index.db"), TableName.of("names"), ("id",), create=True)


def table(folder: Path) -> SqlTarget:
    return SqlTarget(Address(f"sqlite:///{folder}/table.db"), TableName.of("names"), ("id",), create=True)


@pytest.mark.parametrize(("make", "file"), [(search_index, "index.db"), (table, "table.db")])
def test_after_a_purge_the_files_of_a_table_and_of_a_search_index_have_no_word_of_a_forgotten_person(
    make: Callable[[Path], Target], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search index keeps the words of deleted rows, in small letters, and the WAL what was written."""
    opened = sqlite.Sqlite.__init__

    def as_most_systems_build_it(self: sqlite.Sqlite, address: Address) -> None:
        opened(self, address)
        self._connection.execute("pragma secure_delete = off")

    monkeypatch.setattr(sqlite.Sqlite, "__init__", as_most_systems_build_it)
    with open_store(tmp_path / "people.db", keys=KeyStore(tmp_path / "k.keys")) as store:
        names = view(store, make(tmp_path))
        names.run(until_current=True)
        with closing(sqlite3.connect(tmp_path / file)) as other:  # keeps the WAL in use
            for number in range(5):
                event = Event("Named", {"name": f"Hopper{number}zz Lovelace"}, personal={"name": f"u{number}"})
                store.append(f"a-{number}", event)
                names.run(until_current=True)
                assert other.execute("select count(*) from sqlite_schema").fetchone()[0] > 1
            store.forget("u2")
            names.run(until_current=True)
            assert words_in(tmp_path, "hopper2zz") != []  # the search finds what is there
            names.purge()
            assert words_in(tmp_path, "hopper2zz") == []
            assert words_in(tmp_path, "hopper3zz") != []


def words_in(folder: Path, word: str) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file() and word.encode() in path.read_bytes().lower()]


def test_a_search_still_finds_the_others_after_a_purge(tmp_path: Path) -> None:
    with open_store(tmp_path / "people.db", keys=KeyStore(tmp_path / "k.keys")) as store:
        names = view(store, search_index(tmp_path))
        for number, name in enumerate(["Ada Lovelace", "Grace Hopper"]):
            store.append(f"a-{number}", Event("Named", {"name": name}, personal={"name": f"u{number}"}))
        names.run(until_current=True)
        store.forget("u0")
        names.run(until_current=True)
        names.purge()
    address = Address(f"sqlite:///{tmp_path}/index.db")
    assert [row["id"] for row in find_in_file(address, "names", "hopper", 10)] == ["a-1"]
    assert find_in_file(address, "names", "lovelace", 10) == []


def test_a_purge_while_somebody_reads_is_refused_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.2)
    with open_store(tmp_path / "events.db") as store:
        names = view(store, table(tmp_path))
        store.append("a-1", Event("Named", {"name": "Ada"}))
        names.run(until_current=True)
        with closing(sqlite3.connect(tmp_path / "table.db", isolation_level=None, timeout=0)) as reader:
            reader.execute("begin")
            reader.execute("select * from names").fetchall()
            store.append("a-1", Event("Named", {"name": "Ada L."}))
            names.run(until_current=True)
            with pytest.raises(Unavailable):
                names.purge()
        names.purge()


def test_a_purge_of_another_system_names_where_its_command_is_documented(store: EventStore) -> None:
    target = RedisTarget(Address("redis://127.0.0.1:1/0"), "names:", ("id",))
    with pytest.raises(UsageError, match="Purging"):
        view(store, target).purge()


@pytest.mark.parametrize("by", ["key", "presence"])
def test_rows_that_could_not_be_found_when_their_person_is_forgotten_are_refused_at_once(
    by: str, tmp_path: Path
) -> None:
    """Otherwise forgetting would leave them in the target without a word."""

    def of_person(event: RecordedEvent) -> Iterator[Any]:
        name = event.data.get("name")
        if by == "key":
            yield {"id": str(name), "name": "known"}
        elif name:
            yield {"id": event.stream, "name": name}

    def run(**more: Any) -> None:
        target = table(tmp_path)
        TargetView(store, target, name="names", columns=COLUMNS, rows=of_person, **more).run(until_current=True)

    with open_store(tmp_path / "people.db", keys=KeyStore(tmp_path / "k.keys")) as store:
        store.append("a-1", Event("Named", {"name": "in the open"}))
        run()
        store.append("a-2", Event("Named", {"name": "Ada Lovelace"}, personal={"name": "u1"}))
        with pytest.raises(UsageError, match="the event Named leads to depends on personal data") as raised:
            run()
        assert "Lovelace" not in str(raised.value)
        assert words_in(tmp_path, "lovelace") == []
        run(forget=lambda subject: [])
        assert words_in(tmp_path, "lovelace") != []


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "headrace.sourcing.target_views")
    with pytest.raises(UsageError, match="pip install pyarrow numpy"):
        importlib.import_module("headrace.sourcing.target_views")


def test_a_target_without_a_key_is_refused(store: EventStore) -> None:
    with pytest.raises(UsageError, match="has no key"):
        view(store, SqlTarget(Address("sqlite:///x.db"), ("", "t")))  # type: ignore[arg-type]
