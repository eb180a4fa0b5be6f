"""Forgetting a person: fields that belong to a subject are encrypted with the subject's key, which can be destroyed.

An event in the store has, in the place of such a field, an object:

    {"$sealed": base64 of nonce and ciphertext, "$subject": the subject, "$key": the number of its key}

Fields are encrypted with AES-256-GCM. The event's id, the field's name and the subject are bound to the ciphertext, so
it cannot be moved to another place. Each event also gets the tag ``subject:`` and the subject's name, by which all
events of a subject are found. The name of a subject is not encrypted: use an opaque id, not an address.

Keys are in a ``KeyStore`` (``keys.py``), which is neither in the store nor in its backups. When a key has been
destroyed, the field reads as ``Forgotten``: a marker, not an error, so replays go on. No new key is made for a subject
that was forgotten: an append of personal data for it is refused.
"""

from __future__ import annotations

import json
import warnings
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from headrace.errors import UsageError
from headrace.sourcing.errors import SourcingError
from headrace.sourcing.events import SUBJECT_LENGTH_MAX, Event, Forgotten, as_json

if TYPE_CHECKING:
    from headrace.sourcing.keys import KeyStore

__all__ = [
    "FORGOTTEN_STREAM",
    "FORGOTTEN_TYPE",
    "PersonalData",
    "Privacy",
    "UnencryptedPersonalData",
    "check_reserved",
    "forgotten_event",
]

FORGOTTEN_STREAM = "$forgotten"
"""The stream of the events that record who was forgotten."""
FORGOTTEN_TYPE = "SubjectForgotten"
"""The type of these events."""
COPY_LENGTH_MIN = 4
COPY_DIGITS_MIN = 6
"""Of texts and numbers whose copies are looked for; shorter ones are equal by chance."""
SEALED, SUBJECT, KEY = "$sealed", "$subject", "$key"


@dataclass(frozen=True, slots=True)
class PersonalData:
    """Which fields of a type of event are personal, and in which field the name of the subject is."""

    subject_field: str
    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        given: object = self.fields
        if isinstance(given, str):
            raise UsageError(f"the fields {given!r} are no list", f"use ({given!r},): mind the comma")
        if not all(isinstance(name, str) for name in self.fields):
            raise UsageError(f"the fields {given!r} are no texts", "the names of fields are texts in JSON")
        if self.subject_field in self.fields:
            raise UsageError(
                f"the field {self.subject_field} names the subject, so it cannot be a personal one",
                "names of subjects are not encrypted: use an opaque id",
            )


class UnencryptedPersonalData(UserWarning):
    """The value of a personal field is also in a place that is not encrypted, and stays there after forgetting."""


def forgotten_event(subject: str, actor: str | None) -> Event:
    """Its id follows from the subject: it is appended once, however often somebody asks."""
    event_id = str(uuid5(NAMESPACE_URL, f"headrace:forgotten:{subject}"))
    return Event(FORGOTTEN_TYPE, {"subject": subject}, event_id=event_id, actor=actor)


def check_reserved(stream: str | None, event: Event) -> None:
    """Stores, views and snapshots act on the events in ``FORGOTTEN_STREAM``: only such an event may be there."""
    if stream != FORGOTTEN_STREAM and event.type != FORGOTTEN_TYPE:
        return
    wanted = forgotten_event(str(event.data.get("subject")), None)
    if (stream, event.type, event.event_id) != (FORGOTTEN_STREAM, wanted.type, wanted.event_id):
        raise UsageError(
            f"the stream {FORGOTTEN_STREAM} and the type {FORGOTTEN_TYPE} are for subjects that were forgotten",
            "use store.forget(SUBJECT), or another name",
        )


class Privacy:
    """Seals and opens the personal fields of events."""

    def __init__(self, keys: KeyStore | None, rules: Mapping[str, PersonalData]) -> None:
        if isinstance(keys, str | Path):
            raise UsageError(f"{str(keys)!r} is no key store", f"open it: keys=KeyStore({str(keys)!r})")
        self._keys = keys
        self.rules = rules
        if rules and keys is None:
            raise UsageError(
                "personal data needs a key store", "open the store with keys=KeyStore(FILE), or --keys FILE"
            )

    @property
    def is_used(self) -> bool:
        return self._keys is not None

    @property
    def keys(self) -> KeyStore:
        if self._keys is None:
            raise UsageError(
                "personal data needs a key store", "open the store with keys=KeyStore(FILE), or --keys FILE"
            )
        return self._keys

    @staticmethod
    def tag(subject: str) -> str:
        return f"subject:{subject}"

    def sealed(self, event: Event, event_id: str, names: Sequence[str | None]) -> tuple[Mapping[str, Any], list[str]]:
        """The data as it is stored, and the tags of the subjects in it. ``names`` are those of stream and command."""
        owners = self._owners(event)
        if not owners:
            return event.data, []
        data = dict(event.data)
        alike = [str(name) for name, value in data.items() if name not in owners and _looks_sealed(value)]
        if alike:
            raise UsageError(
                f"the field {alike[0]} of {event.type} looks like an encrypted one and is none: it could not be read",
                f"give it other names than {SEALED}, {SUBJECT} and {KEY}",
            )
        _warn_of_copies(event, owners, names)
        for name, subject in owners.items():
            if subject in (data[name], as_json(data[name])):
                raise UsageError(
                    f"the field {name} of {event.type} is also the name of its subject, which is not encrypted",
                    "use an opaque id for the subject",
                )
            number, cipher = self.keys.for_writing(subject)
            sealed = cipher.seal(as_json(data[name]).encode(), _bound(event_id, name, subject))
            data[name] = {SEALED: b64encode(sealed).decode(), SUBJECT: subject, KEY: number}
        return data, [self.tag(subject) for subject in dict.fromkeys(owners.values())]

    def _owners(self, event: Event) -> Mapping[str, str]:
        """By field: those of the rule, and those that the event names itself, which go before the rule."""
        rule = self.rules.get(event.type)
        if rule is None:
            return event.personal
        left = [name for name in rule.fields if event.data.get(name) is not None and name not in event.personal]
        subject = event.data.get(rule.subject_field)
        is_needed = left or not event.personal
        if is_needed and (not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_LENGTH_MAX):
            raise UsageError(
                f"{event.type} has no subject in its field {rule.subject_field}", "its personal fields need one"
            )
        return {**dict.fromkeys(left, str(subject)), **event.personal}

    def opened(self, data: dict[str, Any], event_id: str, tags: str) -> dict[str, Any]:
        """The data as it was given. ``tags`` are those of the event, as JSON.

        Data without the subject's tag only looks encrypted: some application took it from a person, who must not be
        able to stop every replay.
        """
        for name in self._sealed_fields(data, tags):
            data[name] = self._opened_field(data[name], event_id, name)
        return data

    def forgotten(self, data: dict[str, Any], tags: str) -> dict[str, Any] | None:
        """The same when all subjects are forgotten; None where nothing is encrypted."""
        names = self._sealed_fields(data, tags)
        return {**data, **{name: Forgotten(data[name][SUBJECT]) for name in names}} if names else None

    def _sealed_fields(self, data: Mapping[str, Any], tags: str) -> list[str]:
        found = [name for name, value in data.items() if _looks_sealed(value)]
        return [name for name in found if self.tag(data[name][SUBJECT]) in json.loads(tags)]

    def _opened_field(self, field: Mapping[str, Any], event_id: str, name: str) -> Any:
        subject: str = field[SUBJECT]
        cipher = self.keys.for_reading(subject, field[KEY])
        if cipher is None:
            return Forgotten(subject)
        try:
            found = cipher.open(b64decode(field[SEALED]), _bound(event_id, name, subject))
        except ValueError:  # no base64, or shorter than a nonce
            found = None
        if found is None:
            raise SourcingError(
                f"field {name} of event {event_id} cannot be decrypted with the key of {subject}: "
                "the event was changed, or the key store belongs to another store"
            )
        return json.loads(found)

    def destroy(self, subject: str) -> None:
        self.keys.destroy(subject)

    def announced(self, subject: str) -> None:
        self.keys.announced(subject)

    def unannounced(self) -> list[str]:
        """Subjects whose keys are gone while no event says so yet."""
        return self.keys.unannounced()


def _looks_sealed(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {SEALED, SUBJECT, KEY}
        and isinstance(value[SEALED], str)
        and isinstance(value[SUBJECT], str)
        and isinstance(value[KEY], int)
    )


def _bound(event_id: str, name: str, subject: str) -> bytes:
    return json.dumps([event_id, name, subject]).encode()


def _warn_of_copies(event: Event, owners: Mapping[str, str], names: Sequence[str | None]) -> None:
    """Places of an event that are not encrypted and have the very value of a personal field."""
    in_open: dict[str, Iterable[str]] = {
        "the name of its stream, or the id of its command": _pieces(*names),
        "its id": _pieces(event.event_id),
        "its actor": _pieces(event.actor),
        "its correlation_id": _pieces(event.correlation_id),
        "its causation_id": _pieces(event.causation_id),
        "a tag": _pieces(*event.tags),
        "another field": [text for name, value in event.data.items() if name not in owners for text in _texts(value)],
    }
    for name in owners:
        secrets = set(_texts(event.data[name], with_keys=False))
        for place in [place for place, texts in in_open.items() if not secrets.isdisjoint(texts)]:
            warnings.warn(
                f"the personal field {name} of {event.type} is also in {place}, which is not encrypted: "
                "it stays there when the subject is forgotten",
                UnencryptedPersonalData,
                stacklevel=2,
            )


def _pieces(*names: str | None) -> list[str]:
    """Names, and what stands after their kind: user-ada@example.org, mail:ada@example.org."""
    return [piece for name in names if name for piece in (name, name.partition("-")[2], name.partition(":")[2])]


def _texts(value: Any, *, with_keys: bool = True) -> Iterator[str]:
    """The values that a copy can be known by. The keys of a personal object say what it has, and are no secrets."""
    if isinstance(value, str) and len(value) >= COPY_LENGTH_MIN:
        yield value
    elif isinstance(value, int | float) and len(number := as_json(value)) >= COPY_DIGITS_MIN:
        yield number
    elif isinstance(value, Mapping):
        each = chain(value, value.values()) if with_keys else value.values()
        yield from (text for part in each for text in _texts(part, with_keys=with_keys))
    elif isinstance(value, list | tuple):
        yield from (text for part in value for text in _texts(part, with_keys=with_keys))
