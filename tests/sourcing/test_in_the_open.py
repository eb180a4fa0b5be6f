"""What forgetting cannot reach: copies of personal values in places that are not encrypted; and the stream it owns."""

from __future__ import annotations

import json
import os
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.errors import UsageError
from headrace.sourcing import (
    FORGOTTEN_STREAM,
    FORGOTTEN_TYPE,
    AppendConflict,
    Decider,
    Event,
    EventStore,
    Forgotten,
    PersonalData,
    Projection,
    ProjectionRunner,
    RecordedEvent,
    Snapshots,
    SubjectIsForgotten,
    UnencryptedPersonalData,
    View,
    handle,
    on,
    open_store,
)
from headrace.sourcing.keys import KeyStore
from headrace.sourcing.publishing import publish
from headrace.testing.broker import TestBroker
from tests.sourcing.test_forgetting import records_of

MAIL = "ada@example.org"


NAME = "Zoë Žižek \U0001f600 of 'Straße'"
NUMBER = 4_915_112_345_678_901
SHAPES: dict[str, Any] = {
    "name": NAME,
    "number": NUMBER,
    "nested": {"list": [{"deep": NAME}, [NUMBER, NAME + NAME]], NAME: "as a key"},
    "long": f"{NAME} " * 20_000,
}
"""Personal values: not ASCII, a number, inside of others, repeated, longer than a page of any database."""


class Cards(Projection):
    """Keeps all of them in plain, as texts and as a number."""

    tables: ClassVar = {"cards": "position bigint primary key, name text, number bigint, whole text"}

    @on("Registered")
    def registered(self, view: View, event: RecordedEvent) -> None:
        if not isinstance(event.data["name"], Forgotten):
            values = (event.position, event.data["name"], event.data["number"], json.dumps(event.data["nested"]))
            view.execute(f"insert into {view.table('cards')} values (?, ?, ?, ?)", *values)


def forms() -> set[bytes]:
    """The pieces of the values as they may stand in a file: texts in all encodings and as JSON, numbers as bytes."""
    pieces = [NAME, "Žižek", "Straße", str(NUMBER)]
    texts = {form for piece in pieces for form in (piece, json.dumps(piece)[1:-1])}
    encoded = {text.encode(encoding) for text in texts for encoding in ("utf-8", "utf-16-le", "utf-16-be")}
    coded = {form.hex().encode() for form in encoded} | {
        b64encode(bytes(shift) + form)[4:-4] for form in encoded for shift in range(3)
    }
    numbers = {NUMBER.to_bytes(size, order) for size in (7, 8) for order in ("big", "little")}  # type: ignore[arg-type]
    return {form for form in encoded | coded | numbers if len(form) >= 7}  # shorter ones are there by chance


def files_with_any(folder: Path) -> list[str]:
    wanted = forms()
    return [
        path.name for path in folder.rglob("*") if path.is_file() and any(map(path.read_bytes().__contains__, wanted))
    ]


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
    with pytest.warns(UnencryptedPersonalData, match=f"mail of Registered is also in {place},") as seen:
        bank.append("user-1", registered(**fields))
    assert MAIL not in str(seen[0].message)


@pytest.mark.parametrize(
    ("data", "personal"),
    [
        ({"phone": 4915112345, "caller": 4915112345}, "phone"),
        ({"phone": "4915112345", "calls": [4915112345]}, "phone"),
        ({"mail": MAIL, "seen": {MAIL: 3}}, "mail"),
    ],
)
def test_a_copy_that_is_a_number_or_a_key_is_pointed_out(bank: EventStore, data: dict[str, Any], personal: str) -> None:
    with pytest.warns(UnencryptedPersonalData, match=f"{personal} of Called is also in another field"):
        bank.append("user-1", Event("Called", data, personal={personal: "u1"}))


@pytest.mark.parametrize(
    ("stream", "command_id"), [(MAIL, None), (f"user-{MAIL}", None), ("user-1", MAIL), ("user-1", f"open:{MAIL}")]
)
def test_a_copy_in_the_name_of_the_stream_or_the_id_of_the_command_is_pointed_out(
    bank: EventStore, stream: str, command_id: str | None
) -> None:
    with pytest.warns(UnencryptedPersonalData, match="name of its stream, or the id of its command"):
        bank.append(stream, registered(), command_id=command_id)


def test_what_is_only_in_the_personal_field_or_short_is_not_pointed_out(bank: EventStore) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bank.append("user-1", registered(tags=["mail:known", "user:u1"], actor="ada", event_id="e-1"))
        bank.append("user-1", Event("Named", {"name": "Ada", "title": "Ada"}, personal={"name": "u1"}))
        home, shop = {"street": "Baker Street", "since": 1985}, {"street": "Broadway", "since": 1985}
        bank.append("user-1", Event("Moved", {"home": home, "shop": shop}, personal={"home": "u1"}))


def test_a_subject_whose_name_is_the_personal_value_is_refused(bank: EventStore) -> None:
    with pytest.raises(UsageError, match=r"also the name of its subject.*opaque id"):
        bank.append("user-1", Event("Registered", {"mail": MAIL}, personal={"mail": MAIL}))
    with pytest.raises(UsageError, match=r"also the name of its subject.*opaque id"):
        bank.append("user-1", Event("Called", {"phone": 4915}, personal={"phone": "4915"}))
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


@pytest.mark.parametrize("kind", ["sqlite", "topic"])
def test_values_of_every_shape_are_gone_from_all_files_after_forgetting_and_a_purge(
    kind: str, new_url: Callable[[str], str], tmp_path: Path, keys: KeyStore, log_broker: TestBroker
) -> None:
    url = new_url(kind) if kind == "sqlite" else f"{new_url(kind)}?index={tmp_path}/index.db"
    event = Event("Registered", {**SHAPES, "plain": 1}, personal=dict.fromkeys(SHAPES, "u1"))
    cached: Decider[dict[str, Any], Event] = Decider(
        decide=lambda _, command: command,
        evolve=lambda _, event: {name: str(value) for name, value in event.data.items()},
        initial=dict,
        snapshots=Snapshots(every=1),
    )
    with open_store(url, keys=keys) as store:
        for _ in range(2):
            handle(store, "user-1", cached, event)
        store.append_all([("user-2", [event, event], "any"), (None, [event], "any")])
        assert [each.data for each in store.read_all()] == [event.data] * 5
        runner = ProjectionRunner(store, tmp_path / "views.db", Cards())
        runner.run(until_current=True)
        assert len(files_with_any(tmp_path)) >= 2  # snapshots and view: the search finds what is there
        store.forget("u1")
        runner.run(until_current=True)
        publish(store, log_broker.bootstrap, topic := f"shapes-{os.urandom(3).hex()}", until_current=True)
        runner.purge()
        store.purge()
        assert files_with_any(tmp_path) == []
        published = records_of(log_broker.bootstrap, topic)
        assert b"$sealed" in published
        assert [form for form in forms() if form in published] == []
        gone = {**dict.fromkeys(SHAPES, Forgotten("u1")), "plain": 1}
        assert [each.data for each in store.read_all(until=5)] == [gone] * 5
        runner.close()
