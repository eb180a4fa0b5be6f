"""Personal fields are encrypted with their subject's key; a destroyed key leaves a marker and every replay working."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from headrace.client import Client
from headrace.client.positioned import committed_records
from headrace.errors import UsageError
from headrace.sourcing import (
    Event,
    EventStore,
    Forgotten,
    PersonalData,
    Projection,
    ProjectionRunner,
    Query,
    RecordedEvent,
    Snapshots,
    SourcingError,
    SubjectIsForgotten,
    View,
    handle,
    load,
    on,
    open_store,
)
from headrace.sourcing.keys import KeyStore
from headrace.sourcing.publishing import publish
from headrace.testing.broker import TestBroker
from headrace.testing.postgres import PostgresServer
from tests.sourcing.bank import Balances, Deposit, Names, Open, account

Opener = Callable[..., EventStore]
SECRET = "Ada Lovelace of St James's Square"


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    (tmp_path / "keys").mkdir()
    store = KeyStore(tmp_path / "keys" / "customers.keys")
    yield store
    store.close()


@pytest.fixture
def secret_store(open_: Opener, keys: KeyStore) -> EventStore:
    return open_(keys=keys)


def opened(name: str = SECRET, owner: str = "u1") -> Event:
    return Event("Opened", {"owner": owner, "name": name, "plain": 1}, personal={"name": owner})


def files_with(folder: Path, text: str) -> list[str]:
    """Files that hold the text in any of the encodings that something may have written it in."""
    wanted = [
        text.encode(),
        text.encode("utf-16-le"),
        text.encode().hex().encode(),
        text.encode().hex().upper().encode(),
    ]
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and any(each in path.read_bytes() for each in wanted):
            found.append(str(path.relative_to(folder)))
    return found


def records_of(bootstrap: str, topic: str) -> bytes:
    """Keys, values and headers of a topic. In the files of a log they are compressed, so a search there says little."""
    with Client(bootstrap) as client:
        return b"".join(repr(record).encode() for record in committed_records(client, topic))


def test_personal_fields_are_stored_encrypted_and_read_in_plain(
    secret_store: EventStore, open_: Opener, keys: KeyStore
) -> None:
    secret_store.append("account-1", opened())
    (event,) = secret_store.read("account-1")
    assert event.data == {"owner": "u1", "name": SECRET, "plain": 1}
    assert event.tags == ("subject:u1",)
    assert SECRET not in event.row[6]
    (blind,) = open_().read("account-1")
    assert set(blind.data["name"]) == {"$sealed", "$subject", "$key"}
    assert blind.data["plain"] == 1


def test_a_rule_of_the_store_says_which_fields_are_personal(open_: Opener, keys: KeyStore) -> None:
    store = open_(keys=keys, personal={"Opened": PersonalData("owner", ("name", "mail"))})
    store.append("account-1", Event("Opened", {"owner": "u1", "name": SECRET, "mail": None}))
    (event,) = store.read("account-1")
    assert SECRET not in event.row[6]
    assert event.data == {"owner": "u1", "name": SECRET, "mail": None}
    with pytest.raises(UsageError, match="no subject"):
        store.append("account-1", Event("Opened", {"name": SECRET}))


def test_after_forgetting_a_field_is_a_marker_and_the_rest_is_there(
    secret_store: EventStore, open_: Opener, keys: KeyStore
) -> None:
    secret_store.append("account-1", [opened(), opened("Grace", "u2")])
    other_process = open_(keys=KeyStore(keys.path))
    assert next(other_process.read("account-1")).data["name"] == SECRET
    done = secret_store.forget("u1", actor="dpo")
    for store in (secret_store, other_process):
        first, second = store.read("account-1")
        assert first.data["name"] == Forgotten("u1")
        assert not first.data["name"]
        assert str(first.data["name"]) == "[forgotten]"
        assert first.as_dict()["data"] == {"owner": "u1", "name": {"$forgotten": "u1"}, "plain": 1}
        assert second.data["name"] == "Grace"
    (event,) = secret_store.read_all(Query.of(types=["SubjectForgotten"]))
    assert (event.position, event.data, event.actor) == (done.position, {"subject": "u1"}, "dpo")
    assert secret_store.forget("u1").repeated
    assert list(secret_store.forgotten()) == ["u1"]
    with pytest.raises(SubjectIsForgotten, match="give the person a new id"):
        secret_store.append("account-1", opened())


def test_a_field_that_was_moved_or_changed_is_an_error_and_not_a_marker(
    secret_store: EventStore, open_: Opener, keys: KeyStore
) -> None:
    secret_store.append("account-1", opened())
    (event,) = open_().read("account-1")
    secret_store.append("account-2", Event("Opened", event.data, event.tags))  # the sealed field in another event
    with pytest.raises(SourcingError, match="cannot be decrypted"):
        _ = next(secret_store.read("account-2")).data


def test_a_process_that_died_while_forgetting_is_finished_by_the_next_one(
    secret_store: EventStore, open_: Opener, keys: KeyStore
) -> None:
    secret_store.append("account-1", opened())
    keys.destroy("u1")  # and the process dies
    assert list(secret_store.forgotten()) == []
    secret_store.close()
    assert list(open_(keys=KeyStore(keys.path)).forgotten()) == ["u1"]
    assert keys.unannounced() == []


@pytest.mark.parametrize("dies_in", ["append", "delete_snapshots"])
def test_a_forgetting_that_is_cut_short_anywhere_is_finished_by_the_next_process(
    secret_store: EventStore, open_: Opener, keys: KeyStore, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    quick = replace(account, snapshots=Snapshots(every=1))
    handle(secret_store, "account-1", quick, Open("u1", SECRET))
    with monkeypatch.context() as patch:
        patch.setattr(secret_store, dies_in, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            secret_store.forget("u1")
    assert keys.unannounced() == ["u1"]
    secret_store.close()
    with open_(keys=KeyStore(keys.path)) as store:
        assert list(store.forgotten()) == ["u1"]
        assert store.load_snapshot("account-1", account.name) is None
    assert keys.unannounced() == []


def test_keys_that_an_older_copy_brings_back_are_destroyed_when_the_store_is_opened(
    secret_store: EventStore, open_: Opener, keys: KeyStore, tmp_path: Path
) -> None:
    secret_store.append("account-1", opened())
    older = tmp_path / "older.keys"
    shutil.copy(keys.path, older)
    secret_store.forget("u1")
    restored = KeyStore(older, master_file=keys.master_file)
    (event,) = open_(keys=restored).read("account-1")
    assert event.data["name"] == Forgotten("u1")


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_rotated_keys_open_what_was_written_before_and_a_new_master_key_opens_all(
    secret_store: EventStore, open_: Opener, keys: KeyStore, tmp_path: Path
) -> None:
    secret_store.append("account-1", opened("first"))
    assert keys.rotate("u1") == 2
    secret_store.append("account-1", opened("second"))
    assert keys.rotate_master(tmp_path / "new.master") == 2
    secret_store.close()
    again = open_(keys=KeyStore(keys.path, master_file=tmp_path / "new.master"))
    assert [event.data["name"] for event in again.read("account-1")] == ["first", "second"]
    again.forget("u1")
    assert [event.data["name"] for event in again.read("account-1")] == [Forgotten("u1")] * 2
    again.close()
    other = open_(keys=KeyStore(tmp_path / "other.keys"))
    other.append("account-2", opened("Grace", "u2"))
    with pytest.raises(SourcingError, match="another key store"):
        _ = [event.data for event in open_(keys=keys).read("account-2")]


def test_key_files_are_their_owners_alone_and_a_lost_master_key_is_not_replaced(keys: KeyStore) -> None:
    keys.for_writing("u1")
    for path in (keys.path, keys.master_file):
        assert os.stat(path).st_mode & 0o077 == 0
    keys.master_file.rename(keys.master_file.with_suffix(".away"))
    with pytest.raises(UsageError, match="is missing"):
        KeyStore(keys.path)
    keys.master_file.write_bytes(keys.master_file.with_suffix(".away").read_bytes()[::-1])
    with pytest.raises((UsageError, SourcingError), match="master key"):
        KeyStore(keys.path).for_reading("u1", 1)


# ---- what follows ---------------------------------------------------------------------------------------------------


def test_snapshots_of_the_subjects_streams_are_deleted_and_none_is_written_from_an_older_state(
    secret_store: EventStore,
) -> None:
    quick = replace(account, snapshots=Snapshots(every=1))
    handle(secret_store, "account-1", quick, Open("u1", SECRET))
    handle(secret_store, "account-2", quick, Open("u2", "Grace"))
    found = secret_store.load_snapshot("account-1", "account")
    assert found is not None
    assert SECRET in found.state
    before = secret_store.forgotten_count()
    secret_store.forget("u1")
    assert secret_store.load_snapshot("account-1", "account") is None
    assert secret_store.load_snapshot("account-2", "account") is not None
    secret_store.save_snapshot("account-1", "account", found, forgotten=before)
    assert secret_store.load_snapshot("account-1", "account") is None
    assert load(secret_store, "account-1", quick).state["name"] == "[forgotten]"


class Letters(Projection):
    """Says itself how a subject is removed."""

    tables = {"letters": "owner text, name text"}  # noqa: RUF012
    applied = 0

    def apply(self, view: View, event: object) -> None:
        self.applied += 1
        if event.type == "Opened":  # type: ignore[attr-defined]
            data = event.data  # type: ignore[attr-defined]
            view.execute(f"insert into {view.table('letters')} values (?, ?)", data["owner"], str(data["name"]))

    def forget(self, view: View, subject: str) -> None:
        view.execute(f"delete from {view.table('letters')} where owner = ?", subject)


class Callers(Projection):
    tables = {"callers": "account text primary key, name text"}  # noqa: RUF012

    @on("Opened")
    def opened(self, view: View, event: RecordedEvent) -> None:
        view.execute(f"insert into {view.table('callers')} values (?, ?)", event.stream, event.data["name"])


@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def test_a_forgotten_field_is_null_in_a_view_that_takes_it_as_it_is(
    secret_store: EventStore, new_url: Callable[[str], str], place: str, tmp_path: Path
) -> None:
    secret_store.append("account-1", opened())
    secret_store.append("account-2", opened("Grace", "u2"))
    runner = ProjectionRunner(secret_store, f"{tmp_path}/views.db" if place == "sqlite" else new_url(place), Callers())
    runner.run(until_current=True)
    secret_store.forget("u1")
    runner.run(until_current=True)
    assert runner.ask("select * from callers order by account") == [("account-1", None), ("account-2", "Grace")]
    runner.close()


def test_views_follow_by_their_own_rule_or_by_a_rebuild(secret_store: EventStore, tmp_path: Path) -> None:
    secret_store.append("account-1", opened())
    secret_store.append("account-2", opened("Grace", "u2"))
    letters = Letters()
    runners = [ProjectionRunner(secret_store, tmp_path / "views.db", each) for each in (Names(), letters)]
    for runner in runners:
        runner.run(until_current=True)
    assert {name for _, _, name in runners[0].ask("select * from names")} == {SECRET, "Grace"}
    secret_store.forget("u1")
    for runner in runners:
        runner.run(until_current=True)
    assert {name for _, _, name in runners[0].ask("select * from names")} == {"[forgotten]", "Grace"}
    assert runners[1].ask("select * from letters") == [("u2", "Grace")]
    assert letters.applied == 3
    for runner in runners:
        runner.close()


def test_after_forgetting_and_a_purge_no_file_has_the_plain_text_and_replays_work(
    keys: KeyStore, tmp_path: Path, url: str, log_broker: TestBroker
) -> None:
    """The store where it is a file, or the log and its index; their WAL, the keys, the views, a published topic."""
    if url.startswith("kafka:"):
        url += f"?index={tmp_path}/index.db"
    store = open_store(url, keys=keys)
    quick = replace(account, snapshots=Snapshots(every=1))
    handle(store, "account-1", quick, Open("u1", SECRET))
    handle(store, "account-1", quick, Deposit(7))
    handle(store, "account-2", quick, Open("u2", "Grace Hopper of Arlington"))
    runner = ProjectionRunner(store, tmp_path / "views.db", Names())
    sums = ProjectionRunner(store, tmp_path / "views.db", Balances())
    runner.run(until_current=True)
    publish(store, log_broker.bootstrap, topic := f"forgetting-{os.urandom(3).hex()}", until_current=True)
    assert files_with(tmp_path, SECRET) != []  # the search finds what is there
    store.forget("u1")
    runner.run(until_current=True)
    publish(store, log_broker.bootstrap, topic, until_current=True)
    assert files_with(tmp_path, SECRET) != []  # forgetting alone leaves it in the files
    runner.purge()
    store.purge()
    assert files_with(tmp_path, SECRET) == []
    assert files_with(tmp_path, "Ada Lovelace") == []
    for each in [topic, urlsplit(url).path.strip("/")] if url.startswith("kafka:") else [topic]:
        written = records_of(log_broker.bootstrap, each)
        assert b"SubjectForgotten" in written
        assert b"Hopper" not in written
        assert b"Lovelace" not in written
    assert files_with(tmp_path, "Grace Hopper of Arlington") != []
    assert load(store, "account-1", account).state == {"is_open": True, "cents": 7, "name": "[forgotten]"}
    runner.rebuild()
    sums.run(until_current=True)
    assert sums.ask("select * from balances") == [("account-1", 7)]
    assert [event.type for event in store.subscribe(until_current=True)] == [
        "Opened",
        "Deposited",
        "Opened",
        "SubjectForgotten",
    ]
    for each in (runner, sums, store):
        each.close()


@pytest.mark.servers
def test_after_forgetting_and_a_purge_no_table_file_of_postgresql_has_the_plain_text(
    keys: KeyStore, postgres: PostgresServer, new_schema: Callable[[], str]
) -> None:
    """Snapshots and views are the tables that hold it, and the planner's statistics have values of both.

    The WAL is the server's to recycle.
    """
    tables = postgres.home / "data" / "base"
    url = new_schema()
    secret = f"{SECRET} {os.urandom(4).hex()}"
    with psycopg.connect(url, autocommit=True) as server, open_store(url, keys=keys) as store:
        quick = replace(account, snapshots=Snapshots(every=1))
        handle(store, "account-1", quick, Open("u1", secret))
        handle(store, "account-2", quick, Open("u2", other := f"Grace {os.urandom(4).hex()}"))
        runner = ProjectionRunner(store, url, Names())
        runner.run(until_current=True)
        server.execute("checkpoint")
        assert len(files_with(tables, secret)) == 2  # the search finds what is there
        server.execute("analyze")  # as autovacuum does
        server.execute("checkpoint")
        assert len(files_with(tables, secret)) > 2
        store.forget("u1")
        runner.run(until_current=True)
        server.execute("checkpoint")
        assert files_with(tables, secret) != []  # forgetting alone leaves it in the files
        runner.purge()
        store.purge()
        assert files_with(tables, secret) == []
        assert len(files_with(tables, other)) >= 2
        runner.close()


@pytest.mark.servers
def test_a_purge_that_postgresql_refuses_is_an_error_that_says_which_right_is_missing(
    keys: KeyStore, postgres: PostgresServer, new_schema: Callable[[], str]
) -> None:
    """For a user who does not own the tables VACUUM only warns, and leaves what was deleted in the files."""
    url, name = new_schema(), f"app_{os.getpid()}_{os.urandom(3).hex()}"
    as_app = url.replace("postgres@", f"{name}:other@")
    with psycopg.connect(url, autocommit=True) as server, open_store(url, keys=keys) as owner:
        server.execute(f"create role {name} login password 'other'".encode())
        server.execute(f"grant usage, create on schema {schema_of(url)} to {name}".encode())
        rights = "select, insert, update, delete"
        server.execute(f"grant {rights} on all tables in schema {schema_of(url)} to {name}".encode())
        with open_store(as_app, keys=keys) as store:
            runner = ProjectionRunner(store, as_app, Names())
            with pytest.raises(SourcingError, match=r"still in the files .*purge as the owner of the tables"):
                store.purge()
            with pytest.raises(SourcingError, match=r"statistics .* purge as the owner of the database"):
                runner.purge()
            database = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
            server.execute(f"alter database {database} owner to {name}".encode())
            try:
                with pytest.raises(SourcingError, match=f"GRANT pg_checkpoint TO {name}"):
                    runner.purge()
                server.execute(f"grant pg_checkpoint to {name}".encode())
                runner.purge()
                store.purge()
            finally:
                server.execute(f"alter database {database} owner to current_user".encode())
            runner.close()
        owner.purge()
        server.execute(f"drop owned by {name}".encode())
        server.execute(f"drop role {name}".encode())


def schema_of(url: str) -> str:
    return url.rpartition("%3D")[2]
