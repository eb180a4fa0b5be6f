"""Events before and after they are stored, queries over them, and what an append may expect.

An ``Event`` is what an application writes. A ``RecordedEvent`` is what the store gives back: the same with a
position, a version and a time. Both have ``type``, ``data``, ``tags`` and the metadata, so functions that fold events
take either.

A ``Query`` selects events for reads, subscriptions and conditional appends. It is a list of items; an event matches if
it matches one of them. An item names types, tags, streams and categories: the type, stream and category must be among
those named, and all of the tags must be there. An empty query matches every event. The type is the one that the event
was stored with: where an upcaster gives old events another type, name both.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.errors import UsageError

__all__ = [
    "ANY",
    "EXISTS",
    "NONE",
    "Condition",
    "Event",
    "Expected",
    "Forgotten",
    "Query",
    "QueryItem",
    "RecordedEvent",
    "as_json",
    "category_of",
    "new_id",
]

TYPE_LENGTH_MAX = 200
STREAM_LENGTH_MAX = 500
TAG_LENGTH_MAX = 500
TAGS_MAX = 100
EVENT_ID_LENGTH_MAX = 200
ID_LENGTH_MAX = 500
"""Of other ids: that of a process manager's command has an event's id in it."""
SUBJECT_LENGTH_MAX = 490
"""Each subject is a tag, with a prefix."""
SCHEMA_VERSION_MAX = 2**31 - 1
EVENT_BYTES_MAX = 1_000_000
"""Of an event's data as JSON. A topic takes a megabyte by default, and large facts belong beside the log."""

Expected = int | Literal["any", "none", "exists"]
ANY: Literal["any"] = "any"
"""Append whatever the stream's version is."""
NONE: Literal["none"] = "none"
"""Append only if the stream has no event."""
EXISTS: Literal["exists"] = "exists"
"""Append only if the stream has an event."""


def new_id() -> str:
    """A UUID of version 7: ids that are made one after another stand beside each other in an index."""
    time_digits, digits = f"{time.time_ns() // 1_000_000:012x}", os.urandom(10).hex()
    return f"{time_digits[:8]}-{time_digits[8:]}-7{digits[:3]}-{_VARIANTS[digits[3]]}{digits[4:7]}-{digits[7:19]}"


_VARIANTS = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def check_text(value: object, what: str, length_max: int) -> None:
    """Raise unless it is a text that every store can keep. ``value`` comes from users: it may be anything."""
    if isinstance(value, str) and 0 < len(value) <= length_max and "\0" not in value:
        if value.isascii():
            return
        try:
            value.encode()
            return
        except UnicodeEncodeError:
            pass
    shown = repr(value)[:40]
    raise UsageError(f"{shown} is no {what}", f"use 1 to {length_max} characters, without NUL")


def _names(values: Iterable[str], what: str) -> tuple[str, ...]:
    if isinstance(values, str):
        raise UsageError(f"{values!r} is no list of {what}", f"use [{values!r}]: a text is a list of its letters")
    return tuple(values)


def category_of(stream: str) -> str:
    """The part of a stream's name before its first dash: account of account-7."""
    return stream.partition("-")[0]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Stands where a field was whose subject has been forgotten. It is false, and prints as a marker."""

    subject: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "[forgotten]"


def _plain(value: Any) -> Any:
    if isinstance(value, Forgotten):
        return {"$forgotten": value.subject}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_plain, allow_nan=False).encode


def as_json(value: Any) -> str:
    """JSON without spaces; a forgotten field is an object with the key $forgotten."""
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()  # half of a surrogate pair is refused here, and not by the database
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the data of an event is no JSON: {error}", "use texts, numbers, lists and objects") from None


@dataclass(frozen=True, slots=True)
class Event:
    """A fact to be appended.

    ``personal`` says which fields of ``data`` belong to which subject: ``{"email": "customer-7"}``. They are stored
    encrypted with the subject's key. An ``event_id`` that is given makes the append repeatable: a second one with the
    same id changes nothing.
    """

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    event_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    actor: str | None = None
    schema_version: int | None = None
    personal: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """What is no event is refused here: in a store it would fail together with the appends of others."""
        check_text(self.type, "type of an event", TYPE_LENGTH_MAX)
        if type(self.data) is not dict and not isinstance(self.data, Mapping):
            raise UsageError(f"the data of {self.type} is no object", 'for example {"amount": 5}')
        if self.tags != ():
            self._check_tags()
        if self.event_id is not None:
            check_text(self.event_id, "id of an event", EVENT_ID_LENGTH_MAX)
        for each in (self.correlation_id, self.causation_id, self.actor):
            if each is not None:
                check_text(each, "correlation, causation or actor", ID_LENGTH_MAX)
        schema = self.schema_version
        if schema is not None and (type(schema) is not int or not 0 < schema <= SCHEMA_VERSION_MAX):
            raise UsageError(f"{schema!r} is no schema version", "use 1, 2, 3 …")
        if self.personal:
            self._check_personal()

    def _check_tags(self) -> None:
        given: object = self.tags
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) > TAGS_MAX:
            raise UsageError(f"the tags of {self.type} are no list of at most {TAGS_MAX}", "give a list of texts")
        for tag in given:
            check_text(tag, "tag", TAG_LENGTH_MAX)

    def _check_personal(self) -> None:
        if not isinstance(self.personal, Mapping):
            raise UsageError(f"{self.type} does not say which field belongs to whom", 'use {"email": "customer-7"}')
        given: Collection[object] = self.personal
        unknown = [str(name) for name in given if not isinstance(name, str) or name not in self.data]
        if unknown:
            raise UsageError(f"{self.type} has no field {', '.join(unknown)} to keep for a subject", "name its fields")
        for subject in self.personal.values():
            check_text(subject, "name of a subject", SUBJECT_LENGTH_MAX)

    def caused_by(self, cause: RecordedEvent | None = None, actor: str | None = None) -> Event:
        """With the metadata that it lacks: who did it, and what led to it."""
        if cause is None:
            return replace(self, actor=self.actor or actor)
        return replace(
            self,
            correlation_id=self.correlation_id or cause.correlation_id or cause.event_id,
            causation_id=self.causation_id or cause.event_id,
            actor=self.actor or actor or cause.actor,
        )


Row = tuple[Any, ...]
"""position, stream, version, event_id, type, schema_version, data, tags, correlation_id, causation_id, actor,
command_id, recorded_us: the columns of the table of events, data and tags as JSON."""


class RecordedEvent:
    """A stored event. ``data`` is decoded, decrypted and brought to its newest form when it is first looked at."""

    __slots__ = ("_data", "_kind", "_opened", "_row")

    def __init__(self, row: Row, opened: Callable[[Row], tuple[str, dict[str, Any]]] | None = None) -> None:
        self._row = row
        self._opened = opened
        self._kind: str = row[4]
        self._data: dict[str, Any] | None = None

    position = property(lambda self: self._row[0], doc="Its place among all events of the store, from 1 without gaps.")
    stream = property(lambda self: self._row[1], doc="The stream that it belongs to, or None.")
    version = property(lambda self: self._row[2], doc="Its place in the stream, from 1 without gaps.")
    event_id = property(lambda self: self._row[3])
    correlation_id = property(lambda self: self._row[8])
    causation_id = property(lambda self: self._row[9])
    actor = property(lambda self: self._row[10])
    command_id = property(lambda self: self._row[11])

    @property
    def type(self) -> str:
        if self._opened is not None:
            self._open()
        return self._kind

    @property
    def stored_type(self) -> str:
        """Before upcasting."""
        kind: str = self._row[4]
        return kind

    @property
    def schema_version(self) -> int:
        """Of the data as it was stored."""
        number: int = self._row[5]
        return number

    @property
    def data(self) -> dict[str, Any]:
        return self._open()

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(json.loads(self._row[7]))

    @property
    def recorded_at(self) -> datetime:
        return datetime.fromtimestamp(self._row[12] / 1e6, UTC)

    @property
    def row(self) -> Row:
        """As it is stored: data may have encrypted fields and an older form."""
        return self._row

    def _open(self) -> dict[str, Any]:
        if self._data is None:
            if self._opened is None:
                self._data = json.loads(self._row[6])
            else:
                self._kind, self._data = self._opened(self._row)
        found: dict[str, Any] = self._data
        return found

    def as_dict(self) -> dict[str, Any]:
        """For people and pipes."""
        return {
            "position": self.position,
            "stream": self.stream,
            "version": self.version,
            "type": self.type,
            "data": json.loads(as_json(self.data)),
            "tags": list(self.tags),
            "event_id": self.event_id,
            "correlation_id": self.correlation_id,
            "causation_id": self.causation_id,
            "actor": self.actor,
            "command_id": self.command_id,
            "schema_version": self._row[5],
            "recorded_at": self.recorded_at.isoformat(),
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedEvent) and self.event_id == other.event_id and self.position == other.position

    def __hash__(self) -> int:
        return hash(self.event_id)

    def __repr__(self) -> str:
        return f"<{self._row[4]} at {self.position}, {self.stream or 'no stream'} {self.version or ''}>"


@dataclass(frozen=True, slots=True)
class QueryItem:
    """See the module. What is not named does not matter."""

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for values in (self.types, self.tags, self.streams, self.categories):
            _names(values, "names")
        for name in self.categories:
            if "-" in name:
                raise UsageError(f"{name!r} is no category: it has a dash", "a category ends before the first dash")

    def matches(self, event: RecordedEvent, stream: str | None) -> bool:
        return (
            (not self.types or event.stored_type in self.types)
            and (not self.streams or stream in self.streams)
            and (not self.categories or (stream is not None and category_of(stream) in self.categories))
            and set(self.tags) <= set(event.tags)
        )


@dataclass(frozen=True, slots=True)
class Query:
    """Which events; see the module."""

    items: tuple[QueryItem, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        types: Iterable[str] = (),
        tags: Iterable[str] = (),
        streams: Iterable[str] = (),
        categories: Iterable[str] = (),
    ) -> Query:
        """A query of one item; without arguments it matches everything."""
        item = QueryItem(
            _names(types, "types"), _names(tags, "tags"), _names(streams, "streams"), _names(categories, "categories")
        )
        return cls(() if item == QueryItem() else (item,))

    def __or__(self, other: Query) -> Query:
        both = bool(self.items and other.items)
        return Query(self.items + other.items) if both else Query()

    def matches(self, event: RecordedEvent) -> bool:
        return not self.items or any(item.matches(event, event.stream) for item in self.items)


EVERYTHING = Query()


def check_query(query: object) -> None:
    """The name of a stream is what is given most often in its place."""
    if not isinstance(query, Query):
        shown = repr(query)[:40]
        raise UsageError(f"{shown} is no query", f"use Query.of(streams=[{shown}]), or types, tags, categories")


@dataclass(frozen=True, slots=True)
class Condition:
    """An append is refused if an event after the position ``after`` matches: a dynamic consistency boundary."""

    fail_if_events_match: Query
    after: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.fail_if_events_match, Query):
            raise UsageError("a condition has no query", "use Condition(Query.of(tags=[…]))")
        if type(self.after) is not int or not 0 <= self.after < 2**62:
            raise UsageError(f"{self.after!r} is no position", "use 0 for the beginning of the store")
