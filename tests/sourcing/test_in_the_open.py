"""What forgetting cannot reach: copies of personal values in places that are not encrypted; and the stream it owns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.sourcing import (
    FORGOTTEN_STREAM,
    FORGOTTEN_TYPE,
    AppendConflict,
    Event,
    EventStore,
    InTheOpen,
    PersonalData,
    SubjectIsForgotten,
    open_store,
)
from headrace.sourcing.keys import KeyStore

MAIL = "ada@example.org"


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path / "customers.keys")
    yield store
    store.close()


@pytest.fixture
def bank(tmp_path: Path, keys: KeyStore) -> Iterator[EventStore]:
    with open_store(tmp_path / "bank.db", keys=keys) as store:
        yield store


def registered(**more: Any) -> Event:
    return Event("Registered", {"mail": MAIL, "plain": "yes", **more.pop("data", {})}, personal={"mail": "u1"}, **more)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tags": [MAIL]}, "a tag"),
        ({"tags": [f"mail:{MAIL}"]}, "a tag"),
        ({"event_id": MAIL}, "its id"),
        ({"actor": MAIL}, "its actor"),
        ({"correlation_id": MAIL}, "its correlation_id"),
        ({"causation_id": MAIL}, "its causation_id"),
        ({"data": {"copies": [{"of": MAIL}]}}, "another field"),
        ({"data": {"mail": {"all": [MAIL]}}, "actor": MAIL}, "its actor"),
    ],
)
def test_a_copy_of_a_personal_value_in_the_open_is_pointed_out(
    bank: EventStore, fields: dict[str, Any], place: str
) -> None:
    with pytest.warns(InTheOpen, match=f"mail of Registered is also in {place},") as seen:
        bank.append("user-1", registered(**fields))
    assert MAIL not in str(seen[0].message)


@pytest.mark.parametrize(("stream", "command_id"), [(MAIL, None), ("user-1", MAIL)])
def test_a_copy_in_the_name_of_the_stream_or_the_id_of_the_command_is_pointed_out(
    bank: EventStore, stream: str, command_id: str | None
) -> None:
    with pytest.warns(InTheOpen, match="name of its stream, or the id of its command"):
        bank.append(stream, registered(), command_id=command_id)


def test_what_is_only_in_the_personal_field_or_short_is_not_pointed_out(bank: EventStore) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bank.append("user-1", registered(tags=["mail:known", "user:u1"], actor="ada", event_id="e-1"))
        bank.append("user-1", Event("Named", {"name": "Ada", "title": "Ada"}, personal={"name": "u1"}))


def test_a_subject_whose_name_is_the_personal_value_is_refused(bank: EventStore) -> None:
    with pytest.raises(UsageError, match=r"also the name of its subject.*opaque id"):
        bank.append("user-1", Event("Registered", {"mail": MAIL}, personal={"mail": MAIL}))
    with pytest.raises(UsageError, match="mail names the subject"):
        PersonalData("mail", ("name", "mail"))
    assert bank.head() == 0


@pytest.mark.parametrize(
    ("stream", "event"),
    [
        (FORGOTTEN_STREAM, Event("Opened", {})),
        (FORGOTTEN_STREAM, Event(FORGOTTEN_TYPE, {"subject": "u1"})),
        ("account-1", Event(FORGOTTEN_TYPE, {"subject": "u1"})),
        (None, Event(FORGOTTEN_TYPE, {})),
    ],
)
def test_the_stream_and_the_type_of_forgetting_are_not_for_others(
    bank: EventStore, stream: str | None, event: Event
) -> None:
    """An event without a subject there would stop every store and view that acts on it."""
    with pytest.raises(UsageError, match="subjects that were forgotten"):
        bank.append(stream, event)
    assert list(bank.forgotten()) == []


def test_a_store_that_is_copied_event_by_event_knows_who_was_forgotten(bank: EventStore, tmp_path: Path) -> None:
    bank.append("user-1", Event("Registered", {"mail": MAIL}, personal={"mail": "u1"}))
    bank.forget("u1")
    with open_store(tmp_path / "copy.db") as copy:
        for event in open_store(tmp_path / "bank.db").read_all():
            copy.append(event.stream, Event(event.type, event.data, event_id=event.event_id))
        assert list(copy.forgotten()) == ["u1"]


@pytest.mark.parametrize("subject", ["", "u" * 491, "u\0"])
def test_a_subject_that_no_event_can_have_is_not_forgotten(bank: EventStore, subject: str) -> None:
    with pytest.raises(UsageError, match="name of a subject"):
        bank.forget(subject)
    assert bank.head() == 0


def test_an_append_is_repeatable_also_after_its_subject_was_forgotten(
    open_: Callable[..., EventStore], keys: KeyStore
) -> None:
    """Its caller may have missed the answer, and sends again what the store has."""
    store = open_(keys=keys)
    named = replace(registered(), event_id="e-1")
    other = Event("Opened", event_id="e-2")
    by_ids = store.append("user-1", [named, other])
    by_command = store.append("user-1", registered(), command_id="c-1")
    store.forget("u1")
    head = store.head()
    assert store.append("user-1", [named, other]) == replace(by_ids, repeated=True)
    assert store.append("user-1", registered(), command_id="c-1") == replace(by_command, repeated=True)
    for events, stream in (([named], "user-2"), ([named, registered()], "user-1"), ([registered()], "user-1")):
        with pytest.raises(SubjectIsForgotten):
            store.append(stream, events)
    with pytest.raises(AppendConflict):
        store.append("user-2", other)
    assert store.head() == head
