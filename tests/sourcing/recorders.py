"""The recorders of the package eventsourcing on our store, so that its published test cases run on it.

Its sequences may begin at 0 or 1; ours begin at 1. The version that the caller gave is kept in the event, and the first
event of a stream says how the two differ. States are bytes there and JSON here.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from itertools import groupby
from threading import Event as Flag
from typing import Any
from uuid import UUID

from eventsourcing.dcb.api import (
    DCBAppendCondition,
    DCBEvent,
    DCBQuery,
    DCBReadResponse,
    DCBRecorder,
    DCBSequencedEvent,
    DCBSubscription,
)
from eventsourcing.persistence import (
    AggregateRecorder,
    IntegrityError,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Subscription,
    Tracking,
)

from headrace.sourcing import (
    ANY,
    NONE,
    AppendConflict,
    Condition,
    Event,
    EventStore,
    Progress,
    Query,
    QueryItem,
    RecordedEvent,
)


def _identity(stream: str) -> UUID | str:
    try:
        return UUID(stream)
    except ValueError:
        return stream


def _event(stored: StoredEvent) -> Event:
    return Event(stored.topic, {"v": stored.originator_version, "s": b64encode(stored.state).decode()})


def _fields(event: RecordedEvent) -> tuple[UUID | str, int, str, bytes]:
    return _identity(event.stream), event.data["v"], event.type, b64decode(event.data["s"])


class Recorder(ProcessRecorder):
    """All recorders in one."""

    def __init__(self, store: EventStore) -> None:
        self._store = store

    def insert_events(
        self, stored_events: Sequence[StoredEvent], *, tracking: Tracking | None = None, **_: Any
    ) -> Sequence[int] | None:
        ordered = sorted(range(len(stored_events)), key=lambda index: str(stored_events[index].originator_id))
        parts = []
        for stream, places in groupby(ordered, key=lambda index: str(stored_events[index].originator_id)):
            events = [stored_events[index] for index in places]
            parts.append((stream, [_event(each) for each in events], self._expected(stream, events)))
        progress = tracking and Progress(tracking.application_name, tracking.notification_id)
        if not parts and progress is None:
            return []
        try:
            done = self._store.append_all(parts, progress=progress)  # type: ignore[arg-type]
        except AppendConflict as conflict:
            raise IntegrityError(str(conflict)) from conflict
        positions = dict(zip(ordered, range(done.first_position, done.position + 1), strict=True))
        return [positions[index] for index in range(len(stored_events))]

    def _expected(self, stream: str, events: Sequence[StoredEvent]) -> int | str:
        first = events[0].originator_version
        if [each.originator_version for each in events] != list(range(first, first + len(events))):
            raise IntegrityError("versions of one sequence do not follow each other")
        skipped = self._skipped(stream)
        if skipped is None:
            return NONE
        if first - 1 - skipped < 0:
            raise IntegrityError("the version is there")
        return first - 1 - skipped

    def _skipped(self, stream: str) -> int | None:
        """How far the caller's versions are ahead of ours; None in an empty stream."""
        for event in self._store.read(stream, limit=1):
            return int(event.data["v"]) - 1
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        stream = str(originator_id)
        skipped = self._skipped(stream) or 0
        found = self._store.read(
            stream,
            after=0 if gt is None else gt - skipped,
            until=None if lte is None else lte - skipped,
            limit=limit,
            backwards=desc,
        )
        return [StoredEvent(*_fields(event)) for event in found]

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        after = (start or 0) - (1 if inclusive_of_start and start else 0)
        found = self._store.read_all(Query.of(types=topics), after=after, until=stop, limit=limit)
        return [Notification(*_fields(event), id=event.position) for event in found]

    def max_notification_id(self) -> int | None:
        return self._store.head() or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[Recorder]:
        return _Follower(self, self._store, gt, topics)

    def insert_tracking(self, tracking: Tracking) -> None:
        self.insert_events([], tracking=tracking)

    def max_tracking_id(self, application_name: str) -> int | None:
        return self._store.progress(application_name) or None


class AggregatesOnly(AggregateRecorder):
    """Gives no ids of notifications, as its cases want."""

    def __init__(self, store: EventStore) -> None:
        self._recorder = Recorder(store)

    def insert_events(self, stored_events: Sequence[StoredEvent], **options: Any) -> None:
        self._recorder.insert_events(stored_events, **options)

    def select_events(self, originator_id: UUID | str, **options: Any) -> Sequence[StoredEvent]:
        return self._recorder.select_events(originator_id, **options)


class _Follower(Subscription[Recorder]):
    def __init__(self, recorder: Recorder, store: EventStore, gt: int | None, topics: Sequence[str]) -> None:
        super().__init__(recorder, gt, topics)
        self._stop = Flag()
        self._events = store.subscribe(Query.of(types=topics), after=gt or 0, stop=self._stop)

    def stop(self) -> None:
        super().stop()
        self._stop.set()

    def __next__(self) -> Notification:
        event = next(self._events)
        return Notification(*_fields(event), id=event.position)


# ---- dynamic consistency boundaries ---------------------------------------------------------------------------------


def _query(query: DCBQuery | None) -> Query:
    items = query.items if query else []
    return Query(tuple(QueryItem(types=tuple(item.types), tags=tuple(item.tags)) for item in items))


def _sequenced(event: RecordedEvent) -> DCBSequencedEvent:
    data = DCBEvent(type=event.type, data=b64decode(event.data["s"]), tags=list(event.tags))
    return DCBSequencedEvent(event=data, position=event.position)


class _Read(DCBReadResponse):
    def __init__(self, events: Iterator[DCBSequencedEvent], head: int | None) -> None:
        self._events = events
        self._head = head

    @property
    def head(self) -> int | None:
        return self._head

    def __next__(self) -> DCBSequencedEvent:
        return next(self._events)


class BoundaryRecorder(DCBRecorder):
    def __init__(self, store: EventStore) -> None:
        self._store = store

    def read(
        self, query: DCBQuery | None = None, *, after: int | None = None, limit: int | None = None
    ) -> DCBReadResponse:
        head = self._store.head() or None
        found = [
            _sequenced(event)
            for event in self._store.read_all(_query(query), after=after or 0, until=head, limit=limit)
        ]
        if limit is not None:
            head = found[-1].position if found else None
        return _Read(iter(found), head)

    def append(self, events: Sequence[DCBEvent], condition: DCBAppendCondition | None = None) -> int:
        batch = [Event(each.type, {"s": b64encode(each.data).decode()}, each.tags) for each in events]
        refused = condition and Condition(_query(condition.fail_if_events_match), condition.after or 0)
        try:
            return self._store.append_all([(None, batch, ANY)], condition=refused).position
        except AppendConflict as conflict:
            raise IntegrityError(str(conflict)) from conflict

    def subscribe(
        self, query: DCBQuery | None = None, *, after: int | None = None
    ) -> DCBSubscription[BoundaryRecorder]:
        return _BoundaryFollower(self, self._store, query, after)


class _BoundaryFollower(DCBSubscription[BoundaryRecorder]):
    def __init__(
        self, recorder: BoundaryRecorder, store: EventStore, query: DCBQuery | None, after: int | None
    ) -> None:
        super().__init__(recorder, query, after)
        self._stop = Flag()
        self._events = store.subscribe(_query(query), after=after or 0, stop=self._stop)

    def stop(self) -> None:
        super().stop()
        self._stop.set()

    def __next__(self) -> DCBSequencedEvent:
        return _sequenced(next(self._events))
