"""The event store: what every backend offers, and what is the same in all of them.

Invariants, which one suite of tests checks on every backend:

- An append is atomic. Its events have consecutive positions, in the order in which they were given.
- Versions of a stream are 1, 2, 3 … and positions of the store are 1, 2, 3 …, without gaps.
- A reader that sees position n sees every position below n, at once and for ever.
- ``recorded_at`` never decreases from one position to the next.
- What was acknowledged is on disk.
- Stored events do not change. Upcasting and decrypting happen when an event is read.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from headrace.errors import UsageError
from headrace.sourcing.appends import (
    Appended,
    Appends,
    EventRow,
    GroupCommit,
    Part,
    Progress,
    Request,
    repeated_by_ids,
)
from headrace.sourcing.errors import AppendConflict, SubjectIsForgotten
from headrace.sourcing.events import (
    ANY,
    EVENT_BYTES_MAX,
    EVERYTHING,
    EXISTS,
    ID_LENGTH_MAX,
    NONE,
    STREAM_LENGTH_MAX,
    SUBJECT_LENGTH_MAX,
    Condition,
    Event,
    Expected,
    Query,
    RecordedEvent,
    Row,
    as_json,
    check_query,
    check_text,
    new_id,
)
from headrace.sourcing.forks import Opener
from headrace.sourcing.privacy import FORGOTTEN_STREAM, PersonalData, Privacy, check_reserved, forgotten_event
from headrace.sourcing.upcasting import Upcasters

__all__ = ["Choices", "EventStore", "Page", "Snapshot", "StreamInfo", "no_store"]

PAGE_EVENTS = 1_000
POLL_INTERVAL_S = 0.05
"""How often a subscription looks for events of other processes. Those of the same process wake it."""
BATCH_EVENTS_MAX = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a store is opened with.

    ``keys``: where the keys of subjects are; needed to write or read personal data. ``personal``: by type of event,
    which fields belong to a subject. ``upcasters`` bring the data of old events to its newest form. Without ``create``
    a store that is not there is an error.
    """

    keys: Any = None
    personal: Mapping[str, PersonalData] | None = None
    upcasters: Upcasters | None = None
    create: bool = True


class Page(NamedTuple):
    """Events that match, in order, and the position up to which all that match are among them."""

    events: list[RecordedEvent]
    scanned_to: int


class StreamInfo(NamedTuple):
    """A stream with its version and the positions of its first and last event."""

    stream: str
    version: int
    first_position: int
    last_position: int


class Snapshot(NamedTuple):
    """The state of a stream at a version, as JSON; ``schema`` is the version of the code that wrote it."""

    version: int
    schema: int
    state: str


class EventStore(ABC):
    """A store of events; see the module. May be used by many threads."""

    _makes_ids = True
    """Before an append, for events that have none. Otherwise ``_write`` does, for rows whose id is empty."""

    def __init__(self, shown: str, choices: Choices) -> None:
        self.shown = shown
        """Its address for people, without a password."""
        self.privacy = Privacy(choices.keys, choices.personal or {})
        self._upcasters = choices.upcasters or Upcasters()
        self._opener = Opener()
        self._group = GroupCommit(self._write)
        self._appends = Appends()
        self._opened: Callable[[Row], tuple[str, dict[str, Any]]] | None = None
        if self.privacy.is_used or choices.upcasters is not None:  # some may be registered later
            self._opened = self._open_row

    # ---- what a backend does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, batch: Sequence[Request]) -> None:
        """Give every request its outcome; all that succeed become durable in one commit."""

    @abstractmethod
    def _select(self, query: Query, after: int, until: int | None, limit: int, *, backwards: bool = False) -> list[Row]:
        """Rows with ``after`` < position <= ``until`` that match, in the order of positions, or backwards."""

    @abstractmethod
    def _select_stream(
        self, stream: str, after: int, until: int | None, limit: int, *, backwards: bool = False
    ) -> list[Row]:
        """The same for the versions of one stream."""

    @abstractmethod
    def head(self) -> int:
        """The position of the last event; 0 in an empty store."""

    @abstractmethod
    def version(self, stream: str) -> int:
        """The version of the stream's last event; 0 where it has none."""

    @abstractmethod
    def streams(self, category: str | None = None, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        """Streams by name, those after the name ``after``."""

    @abstractmethod
    def progress(self, name: str) -> int:
        """The position that was stored last under the name; 0 where there is none."""

    @abstractmethod
    def command_result(self, command_id: str) -> Appended | None:
        """What the append with this command id has done; None where there was none."""

    @abstractmethod
    def _rows_with_ids(self, ids: Sequence[str]) -> list[Row]:
        """Position, stream and version of the events that have these ids."""

    @abstractmethod
    def load_snapshot(self, stream: str, kind: str) -> Snapshot | None: ...

    @abstractmethod
    def save_snapshot(self, stream: str, kind: str, snapshot: Snapshot, *, forgotten: int) -> None:
        """Keep a snapshot, unless somebody was forgotten since ``forgotten``, the number when the state was read."""

    @abstractmethod
    def delete_snapshots(self, streams: Iterable[str] | None = None) -> int:
        """Remove the snapshots of these streams, or all; gives their number. They are a cache."""

    @abstractmethod
    def purge(self) -> None:
        """Remove from the files what was deleted from the tables: deleted rows stay readable there until then."""

    @abstractmethod
    def _close(self) -> None: ...

    # ---- append -----------------------------------------------------------------------------------------------------

    @property
    def appends(self) -> int:
        """How many this process has asked for since the store was opened, successful or not."""
        return self._group.requests

    @property
    def commits(self) -> int:
        """In how many transactions they were written."""
        return self._group.batches

    def append(
        self,
        stream: str | None,
        events: Event | Sequence[Event],
        *,
        expected: Expected = ANY,
        command_id: str | None = None,
        condition: Condition | None = None,
        progress: Progress | None = None,
    ) -> Appended:
        """Append events to a stream, all or none of them.

        ``expected`` is the version that the stream must have: a number, ANY, NONE or EXISTS. ``condition`` refuses the
        append if certain events exist. An append with a ``command_id`` or event ids that the store already has returns
        what the first one returned. Without a stream, events belong only to the whole, and are found by their tags.
        """
        batch = [events] if isinstance(events, Event) else events
        return self.append_all(
            [(stream, batch, expected)], command_id=command_id, condition=condition, progress=progress
        )

    def append_all(
        self,
        parts: Iterable[tuple[str | None, Sequence[Event], Expected]],
        *,
        command_id: str | None = None,
        condition: Condition | None = None,
        progress: Progress | None = None,
    ) -> Appended:
        """Append to several streams at once: (stream, events, expected) of each. A stream may come without events."""
        self._opener.check(self.shown)
        parts = [(stream, list(events), expected) for stream, events, expected in parts]
        if command_id is not None:
            check_text(command_id, "id of a command", ID_LENGTH_MAX)
        if condition is not None and not isinstance(condition, Condition):
            raise UsageError(f"{condition!r:.40} is no condition", "use Condition(Query.of(tags=[…]))")
        try:
            given = [self._prepared(stream, events, expected, command_id) for stream, events, expected in parts]
        except SubjectIsForgotten:
            done = self._done_before(parts, command_id)
            if done is None:
                raise
            return done
        ids = [event.event_id for _, events, _ in parts for event in events if event.event_id is not None]
        if len(given) != 1 or len(given[0].rows) != 1:
            _check_together(given, ids)
        appended = self._group.submit(Request(given, command_id, condition, progress, bool(ids)))
        self._appends.happened()
        return appended

    def _done_before(
        self, parts: Sequence[tuple[str | None, Sequence[Event], Expected]], command_id: str | None
    ) -> Appended | None:
        """What the same append has done before its subject was forgotten: it may be repeated like any other."""
        done = None if command_id is None else self.command_result(command_id)
        if done is not None:
            return done
        wanted = [(stream, event.event_id) for stream, events, _ in parts for event in events]
        rows = self._rows_with_ids([event_id for _, event_id in wanted if event_id is not None])
        with suppress(AppendConflict):
            return repeated_by_ids([stream for stream, _ in wanted], rows)
        return None

    def _prepared(
        self, stream: str | None, events: Sequence[Event], expected: Expected, command_id: str | None
    ) -> Part:
        if stream is not None:
            check_text(stream, "name of a stream", STREAM_LENGTH_MAX)
        if stream is None and expected != ANY:
            raise UsageError("events without a stream have no version to expect", "use a condition")
        is_version = type(expected) is int and 0 <= expected < 2**62
        if not is_version and expected not in (ANY, NONE, EXISTS):
            raise UsageError(f"no stream has the version {expected!r}", "expect 0 or more, ANY, NONE or EXISTS")
        rows: list[EventRow] = []
        tags: list[tuple[str, ...]] = []
        for event in events:
            if not isinstance(event, Event):
                raise UsageError(f"{event!r:.40} is no event to append", 'use Event("Deposited", {"cents": 5})')
            check_reserved(stream, event)
            row, names = self._row_of(event, (stream, command_id))
            rows.append(row)
            tags.append(names)
        return Part(stream, expected, rows, tags)

    def _row_of(self, event: Event, names: Sequence[str | None]) -> tuple[EventRow, tuple[str, ...]]:
        event_id = event.event_id or (new_id() if self._makes_ids else "")
        data, tags = event.data, tuple(event.tags)
        if event.personal or self.privacy.rules:
            event_id = event_id or new_id()  # ciphertexts are bound to it
            data, subjects = self.privacy.sealed(event, event_id, names)
            tags = tuple(dict.fromkeys((*tags, *subjects)))
        text = as_json(data)
        if len(text) > EVENT_BYTES_MAX:
            raise UsageError(
                f"the data of an event {event.type} has {len(text):,} characters, more than {EVENT_BYTES_MAX:,}",
                "store the large part elsewhere and its address in the event",
            )
        schema = event.schema_version or self._upcasters.newest(event.type)
        named = as_json(tags) if tags else "[]"
        return (event_id, event.type, schema, text, named, event.correlation_id, event.causation_id, event.actor), tags

    # ---- read -------------------------------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        backwards: bool = False,
    ) -> Iterator[RecordedEvent]:
        """The events of a stream with ``after`` < version <= ``until``, in order or backwards."""

        def select(low: int, high: int | None, count: int) -> list[Row]:
            return self._select_stream(stream, low, high, count, backwards=backwards)

        return self._paged(select, 2, after, until, limit, backwards)

    def read_all(
        self,
        query: Query = EVERYTHING,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int | None = None,
        backwards: bool = False,
    ) -> Iterator[RecordedEvent]:
        """The events of all streams that match, with ``after`` < position <= ``until``, in order or backwards."""
        check_query(query)

        def select(low: int, high: int | None, count: int) -> list[Row]:
            return self._select(query, low, high, count, backwards=backwards)

        return self._paged(select, 0, after, until, limit, backwards)

    def _paged(
        self,
        select: Callable[[int, int | None, int], list[Row]],
        column: int,
        after: int,
        until: int | None,
        limit: int | None,
        backwards: bool,
    ) -> Iterator[RecordedEvent]:
        """In pages, so that a long stream neither fills the memory nor holds a transaction open."""
        while limit is None or limit > 0:
            count = PAGE_EVENTS if limit is None else min(limit, PAGE_EVENTS)
            rows = select(after, until, count)
            opened = self._opened
            for row in rows:
                yield RecordedEvent(row, opened)
            if len(rows) < count:
                return
            if backwards:
                until = rows[-1][column] - 1
            else:
                after = rows[-1][column]
            limit = None if limit is None else limit - count

    def page(self, query: Query = EVERYTHING, *, after: int = 0, limit: int = PAGE_EVENTS) -> Page:
        """The next events that match, and how far the store has been searched for them."""
        if limit < 1:
            raise UsageError(f"a page of {limit} events leads nowhere", "use a limit of 1 or more")
        head = self.head()
        if head <= after:
            return Page([], after)
        rows = self._select(query, after, head, limit)
        scanned_to = rows[-1][0] if len(rows) == limit else head
        return Page([RecordedEvent(row, self._opened) for row in rows], scanned_to)

    def subscribe(
        self,
        query: Query = EVERYTHING,
        *,
        after: int = 0,
        stop: threading.Event | None = None,
        until_current: bool = False,
    ) -> Iterator[RecordedEvent]:
        """All events that match after a position: those that are there, and then those that come, without a gap.

        Ends when ``stop`` is set, or with ``until_current`` at the end that the store has then.
        """
        for page in self.pages(query, after=after, stop=stop, until_current=until_current):
            for event in page.events:
                if stop is not None and stop.is_set():
                    return
                yield event

    def pages(
        self,
        query: Query = EVERYTHING,
        *,
        after: int = 0,
        stop: threading.Event | None = None,
        until_current: bool = False,
        limit: int = PAGE_EVENTS,
    ) -> Iterator[Page]:
        """``subscribe`` in pages, for those who keep ``scanned_to`` with what they made of the events."""
        check_query(query)
        stop = stop or threading.Event()
        while not stop.is_set():
            seen = self._appends.count
            page = self.page(query, after=after, limit=limit)
            if page.scanned_to > after:
                after = page.scanned_to
                yield page
            elif until_current:
                return
            else:
                self._appends.wait(seen, POLL_INTERVAL_S)

    def position_at(self, moment: datetime) -> int:
        """The last position that was recorded at or before a moment; 0 where there is none."""
        wanted_us = int(moment.timestamp() * 1e6)
        low, high = 0, self.head()
        while low < high:  # the times of positions never decrease
            middle = (low + high + 1) // 2
            (row,) = self._select(EVERYTHING, middle - 1, middle, 1)
            if row[12] <= wanted_us:
                low = middle
            else:
                high = middle - 1
        return low

    def _open_row(self, row: Row) -> tuple[str, dict[str, Any]]:
        data: dict[str, Any] = json.loads(row[6])
        if self.privacy.is_used:
            data = self.privacy.opened(data, row[3], row[7])
        return self._upcasters.upcast(row[4], row[5], data)

    def as_forgotten(self, event: RecordedEvent) -> RecordedEvent | None:
        """The event as it reads when all its subjects are forgotten; None where it has no personal data."""
        row = event.row
        data = self.privacy.forgotten(json.loads(row[6]), row[7]) if self.privacy.is_used else None
        if data is None:
            return None
        found = data
        return RecordedEvent(row, lambda row: self._upcasters.upcast(row[4], row[5], found))

    # ---- forgetting -------------------------------------------------------------------------------------------------

    def forget(self, subject: str, *, actor: str | None = None) -> Appended:
        """Destroy a subject's key, so that nobody can read its fields any more, and append ``SubjectForgotten``.

        The key goes first: if the process dies in between, the store appends the event when it is next opened, or when
        this is called again. Then the snapshots of all streams with events of the subject are deleted.
        """
        check_text(subject, "name of a subject", SUBJECT_LENGTH_MAX)
        self.privacy.destroy(subject)
        return self._announce(subject, actor)

    def _announce(self, subject: str, actor: str | None = None) -> Appended:
        appended = self.append(FORGOTTEN_STREAM, forgotten_event(subject, actor))
        of_subject = Query.of(tags=[self.privacy.tag(subject)])
        streams = {event.stream for event in self.read_all(of_subject) if event.stream is not None}
        self.delete_snapshots(streams)
        self.privacy.announced(subject)
        return appended

    def _finish_forgetting(self) -> None:
        """What a process has left that died inside of ``forget``, and what older copies have brought back.

        An older copy of the key file has keys of people whom the store knows to be forgotten: they are destroyed again.
        An older copy of the store has events of people whom only the key file knows to be forgotten, and snapshots and
        views of that time may have their data in plain: ``SubjectForgotten`` is appended again, and all follow it.
        """
        if not self.privacy.is_used:
            return
        known = set(self.forgotten())
        for subject in known:
            if not self.privacy.keys.is_forgotten(subject):
                self.privacy.destroy(subject)
                self.privacy.announced(subject)
        unannounced = set(self.privacy.unannounced())
        for subject in self.privacy.keys.forgotten():
            if subject in unannounced or (subject not in known and self.has_events_of(subject)):
                self._announce(subject)

    def has_events_of(self, subject: str) -> bool:
        """Whether an event has personal data of a subject, forgotten or not."""
        return any(self.read_all(Query.of(tags=[self.privacy.tag(subject)]), limit=1))

    def forgotten_count(self) -> int:
        """How many subjects have been forgotten."""
        return self.version(FORGOTTEN_STREAM)

    def forgotten(self) -> Iterator[str]:
        """The subjects that have been forgotten, in that order."""
        return (event.data["subject"] for event in self.read(FORGOTTEN_STREAM))

    def close(self) -> None:
        if self._opener.is_here:
            self._close()

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_together(parts: Sequence[Part], ids: Sequence[str]) -> None:
    """What can be wrong with an append though each of its events is right."""
    names = [part.stream for part in parts if part.stream is not None]
    if len(set(names)) < len(names):
        raise UsageError("an append names a stream twice", "give all events of a stream in one part")
    if sum(len(part.rows) for part in parts) > BATCH_EVENTS_MAX:
        raise UsageError(f"an append has more than {BATCH_EVENTS_MAX:,} events", "append them in several batches")
    if len(set(ids)) < len(ids):
        raise UsageError("an append has an event id twice", "an id belongs to one event")


def no_store(shown: str) -> UsageError:
    return UsageError(f"there is no event store {shown}", "headrace events append makes one, and so does open_store")
