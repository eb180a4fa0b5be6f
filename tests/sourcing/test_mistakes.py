"""Mistakes in calls are refused in words, before they lose an event, break a rule or store a person's data in plain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from headrace.errors import UsageError
from headrace.sourcing import (
    Condition,
    Decider,
    Event,
    EventStore,
    PersonalData,
    ProcessManager,
    Projection,
    ProjectionRunner,
    Query,
    QueryItem,
    Snapshots,
    SourcingError,
    Upcasters,
    handle,
    open_store,
    run_process,
)
from headrace.sourcing.events import RecordedEvent
from headrace.sourcing.keys import KeyStore


@pytest.fixture
def here(tmp_path: Path) -> Iterator[EventStore]:
    with open_store(tmp_path / "events.db") as store:
        yield store


@pytest.mark.parametrize(
    "fields",
    [
        {"type": ""},
        {"type": 5},
        {"type": "\ud800"},
        {"type": "a\0b"},
        {"data": [1]},
        {"data": None},
        {"tags": None},
        {"tags": "abc"},
        {"tags": [1]},
        {"tags": ["\udc00"]},
        {"tags": ["a\0b"]},
        {"event_id": ""},
        {"event_id": "a\0b"},
        {"event_id": UUID(int=7)},
        {"event_id": "x" * 201},
        {"actor": 7},
        {"correlation_id": "x" * 501},
        {"schema_version": 0},
        {"schema_version": 2**70},
        {"data": {"name": "Ada"}, "personal": ["name"]},
        {"data": {"name": "Ada"}, "personal": {"name": None}},
        {"data": {"name": "Ada"}, "personal": {"name": ""}},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_what_is_no_event_is_refused_before_it_meets_the_appends_of_others(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Event(**{"type": "Paid", **fields})


@pytest.mark.parametrize("data", [{"name": "\ud800"}, {"\ud800": 1}], ids=["value", "name"])
def test_half_of_a_surrogate_pair_is_no_json(here: EventStore, data: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no JSON"):
        here.append("a-1", Event("Paid", data))


@pytest.mark.parametrize("expected", [None, "3", -1, True, 2**70], ids=str)
def test_an_expected_version_that_is_none_is_refused(store: EventStore, expected: Any) -> None:
    with pytest.raises(UsageError, match="no stream has the version"):
        store.append("a-1", Event("Paid"), expected=expected)


def test_a_page_without_events_is_refused(here: EventStore) -> None:
    here.append("a-1", Event("Paid"))
    with pytest.raises(UsageError, match="a page of 0 events"):
        here.page(limit=0)


def test_a_snapshot_at_no_version_is_refused() -> None:
    with pytest.raises(UsageError, match="every=1 or more"):
        Snapshots(every=0)


@pytest.mark.parametrize("command_id", ["", 7, "x" * 501, "a\0b"], ids=["empty", "a number", "long", "with NUL"])
def test_an_empty_id_of_a_command_is_refused(here: EventStore, command_id: Any) -> None:
    """Else the second command of a script with an unset variable would be taken for the first one."""
    with pytest.raises(UsageError, match="id of a command"):
        here.append("a-1", Event("Paid"), command_id=command_id)


@pytest.mark.parametrize("name", ["types", "tags", "streams", "categories"])
def test_a_text_in_the_place_of_a_list_is_refused(name: str) -> None:
    """A condition over the letters of a tag would never fail."""
    with pytest.raises(UsageError, match="no list"):
        Query.of(**{name: "ada"})
    with pytest.raises(UsageError, match="no list"):
        QueryItem(**{name: "ada"})


def test_a_condition_without_a_position_or_a_query_is_refused() -> None:
    query = Query.of(tags=["name:ada"])
    for after in (None, -1, "5"):
        with pytest.raises(UsageError, match="is no position"):
            Condition(query, after=after)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no query"):
        Condition(QueryItem(tags=("name:ada",)))  # type: ignore[arg-type]


@pytest.mark.parametrize("events", ["Paid", ["Paid"], {"type": "Paid"}, [{"type": "Paid"}]], ids=str)
def test_what_is_no_event_is_refused_by_an_append(here: EventStore, events: Any) -> None:
    with pytest.raises(UsageError, match="is no event to append"):
        here.append("a-1", events)


def test_an_event_that_was_read_is_no_event_to_append(here: EventStore) -> None:
    here.append("a-1", Event("Paid"))
    with pytest.raises(UsageError, match="<Paid at 1, a-1 1> is no event to append"):
        here.append("a-2", list(here.read("a-1")))  # type: ignore[arg-type]


def test_a_query_in_the_place_of_a_condition_is_refused(here: EventStore) -> None:
    with pytest.raises(UsageError, match="is no condition"):
        here.append("a-1", Event("Paid"), condition=Query.of(tags=["a"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("read", ["read_all", "subscribe", "pages"])
def test_a_name_in_the_place_of_a_query_is_refused(here: EventStore, read: str) -> None:
    with pytest.raises(UsageError, match=r"use Query\.of\(streams=\['a-1'\]\)"):
        next(iter(getattr(here, read)("a-1")))


@pytest.mark.parametrize("found", ["Paid", [{"type": "Paid"}]], ids=str)
def test_a_decision_that_is_no_event_is_refused(here: EventStore, found: Any) -> None:
    decider: Decider[int, int] = Decider(decide=lambda _, __: found, evolve=lambda state, _: state, initial=int)
    with pytest.raises(UsageError, match="a list of them, a Rejection or None"):
        handle(here, "a-1", decider, 1)


def test_a_class_in_the_place_of_what_runs_is_refused(here: EventStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Projection\(\)"):
        ProjectionRunner(here, tmp_path / "views.db", Projection)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"ProcessManager\(\)"):
        run_process(here, ProcessManager)  # type: ignore[arg-type]


def test_a_category_with_a_dash_is_refused() -> None:
    with pytest.raises(UsageError, match="before the first dash"):
        Query.of(categories=["account-1"])


def test_events_from_a_generator_with_ids_are_appended_once(store: EventStore) -> None:
    def events() -> Any:
        return (Event("Paid", event_id=each) for each in ("e-1", "e-2"))

    assert not store.append("a-1", events()).repeated
    assert store.append("a-1", events()).repeated
    assert store.head() == 2


# ---- personal data --------------------------------------------------------------------------------------------------


def test_the_name_of_a_key_file_is_no_key_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no key store \(open it: keys=KeyStore\('customers.keys'\)"):
        open_store(tmp_path / "events.db", keys="customers.keys")  # type: ignore[arg-type]


def test_an_upcaster_that_returns_nothing_is_reported(tmp_path: Path) -> None:
    upcasters = Upcasters()
    upcasters.register("Paid", from_version=1)(lambda data: data.update(currency="EUR"))  # type: ignore[arg-type,func-returns-value]
    with open_store(tmp_path / "events.db") as store:
        store.append("a-1", Event("Paid", {"amount": 1}, schema_version=1))
    with open_store(tmp_path / "events.db", upcasters=upcasters) as store:
        with pytest.raises(UsageError, match="the upcaster of Paid from version 1 gave None"):
            _ = next(store.read("a-1")).data


def test_a_rule_whose_fields_are_a_text_is_refused() -> None:
    with pytest.raises(UsageError, match="mind the comma"):
        PersonalData("owner", ("name"))  # type: ignore[arg-type]


def test_an_event_that_names_personal_fields_keeps_those_of_its_rule_secret_too(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    rules = {"Opened": PersonalData("owner", ("name", "mail"))}
    with open_store(tmp_path / "events.db", keys=keys, personal=rules) as store:
        data = {"owner": "u1", "name": "Ada", "partner": "Charles", "mail": "a@x"}
        store.append("a-1", Event("Opened", data, personal={"partner": "u2", "mail": "u3"}))
        (event,) = store.read("a-1")
        assert event.data == data
        assert set(event.tags) == {"subject:u1", "subject:u2", "subject:u3"}
        assert not any(word in event.row[6] for word in ("Ada", "Charles", "a@x"))
    keys.close()


@pytest.mark.parametrize(
    "note",
    [
        {"$sealed": 1},
        {"$sealed": "AAAA", "$subject": "u1", "$key": 1},
        {"$sealed": "AAAA", "$subject": ["u1"], "$key": "1"},
    ],
)
def test_data_that_only_looks_encrypted_is_read_as_it_is(tmp_path: Path, note: dict[str, Any]) -> None:
    """An application may have got it from a person, who must not be able to stop every replay."""
    keys = KeyStore(tmp_path / "keys")
    with open_store(tmp_path / "events.db", keys=keys) as store:
        store.append("a-1", Event("Noted", {"note": note}, tags=["subject:other"]))
        assert next(store.read("a-1")).data == {"note": note}
    keys.close()


def test_data_that_looks_encrypted_is_refused_beside_a_field_that_is(tmp_path: Path) -> None:
    """The event has the subject's tag, so nothing would tell them apart."""
    keys = KeyStore(tmp_path / "keys")
    note = {"$sealed": "AAAA", "$subject": "u1", "$key": 1}
    with open_store(tmp_path / "events.db", keys=keys) as store:
        with pytest.raises(UsageError, match="the field note of Noted looks like an encrypted one"):
            store.append("a-1", Event("Noted", {"note": note, "name": "Ada"}, personal={"name": "u1"}))
        assert store.head() == 0
    keys.close()


def test_a_damaged_ciphertext_is_an_error_in_words(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    with open_store(tmp_path / "events.db", keys=keys) as store:
        store.append("a-1", Event("Noted", {"name": "Ada"}, personal={"name": "u1"}))
        for sealed in ("A", "AAAA"):
            note = {"$sealed": sealed, "$subject": "u1", "$key": 1}
            store.append("a-2", Event("Noted", {"name": note}, tags=["subject:u1"]))  # a copy of an encrypted event
            with pytest.raises(SourcingError, match=r"field name of event .* cannot be decrypted"):
                assert next(store.read("a-2", backwards=True)).data
    keys.close()


def test_a_personal_field_whose_name_is_no_text_is_refused() -> None:
    """In JSON it is a text, and the ciphertext is bound to the name: it could not be read."""
    with pytest.raises(UsageError, match="T has no field 7 to keep"):
        Event("T", {7: "secret"}, personal={7: "u1"})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="are no texts"):
        PersonalData("owner", (7,))  # type: ignore[arg-type]


def test_data_may_be_any_mapping(tmp_path: Path) -> None:
    with open_store(tmp_path / "events.db") as store:
        store.append("a-1", Event("Noted", MappingProxyType({"by": MappingProxyType({"name": "Ada"})})))
        assert next(store.read("a-1")).data == {"by": {"name": "Ada"}}


# ---- upcasting ------------------------------------------------------------------------------------------------------


def renaming() -> Upcasters:
    upcasters = Upcasters()

    @upcasters.register("Old", from_version=1)
    def rename(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "New", data

    return upcasters


def test_an_event_keeps_its_stored_type_and_row_when_its_data_was_looked_at(tmp_path: Path) -> None:
    with open_store(tmp_path / "events.db", upcasters=renaming()) as store:
        store.append("a-1", Event("Old", schema_version=1))
        (event,) = store.read("a-1")
        before = event.row
        assert (event.data, event.type) == ({}, "New")
        assert (event.stored_type, event.row) == ("Old", before)


def test_a_view_that_asks_for_an_old_type_gets_its_events_under_their_new_type(tmp_path: Path) -> None:
    seen: list[str] = []

    class Seen(Projection):
        query = Query.of(types=["Old"])

        def apply(self, view: object, event: RecordedEvent) -> None:
            seen.append(event.type)

    with open_store(tmp_path / "events.db", upcasters=renaming()) as store:
        store.append("a-1", Event("Old", schema_version=1))
        runner = ProjectionRunner(store, tmp_path / "views.db", Seen())
        runner.run(until_current=True)
        runner.close()
    assert seen == ["New"]


def test_a_store_that_refuses_unknown_types_knows_who_was_forgotten(tmp_path: Path) -> None:
    keys, upcasters = KeyStore(tmp_path / "keys"), Upcasters(known=["Opened"], unknown="refuse")
    for _ in range(2):
        with open_store(tmp_path / "events.db", keys=keys, upcasters=upcasters) as store:
            store.append("a-1", Event("Opened"))
            store.forget("u1")
            assert list(store.forgotten()) == ["u1"]
    keys.close()


def test_an_upcaster_that_is_registered_after_the_store_was_opened_is_used(tmp_path: Path) -> None:
    upcasters = Upcasters()
    with open_store(tmp_path / "events.db", upcasters=upcasters) as store:
        store.append("a-1", Event("Paid"))

        @upcasters.register("Paid", from_version=1)
        def add_currency(data: dict[str, Any]) -> dict[str, Any]:
            return {**data, "currency": "EUR"}

        assert next(store.read("a-1")).data == {"currency": "EUR"}
