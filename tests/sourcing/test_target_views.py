"""Views through the writers that pipelines use: a table, a cache; one runner at a time, each row once in effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis import Redis

from headrace.address import Address
from headrace.errors import Refused, UsageError
from headrace.sourcing import Event, EventStore, Query, RecordedEvent, open_store
from headrace.sourcing.keys import KeyStore
from headrace.sourcing.target_views import Gone, TargetView
from headrace.targets.redis import RedisTarget
from headrace.targets.target import Target
from tests.servers.redis import RedisServer

COLUMNS = pa.schema([("id", pa.string()), ("name", pa.string())])


def rows(event: RecordedEvent) -> Iterator[Any]:
    if event.type == "Named":
        yield {"id": event.stream, "name": event.data["name"]}
    elif event.type == "Closed":
        yield Gone({"id": event.stream})


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


def test_a_target_without_a_key_is_refused(store: EventStore) -> None:
    from headrace.targets.sql.table import SqlTarget

    with pytest.raises(UsageError, match="has no key"):
        view(store, SqlTarget(Address("sqlite:///x.db"), ("", "t")))  # type: ignore[arg-type]
