"""From a command to events: pure functions, or a class for those who prefer it.

The pure way has two functions. ``decide(state, command)`` gives the events that follow from a command, or a
``Rejection``; ``evolve(state, event)`` gives the state after an event. Neither does I/O, so both are tested without a
store, in one call:

    check(account, given=[Event("Deposited", {"amount": 5})], when=Withdraw(7), then=Rejection("only 5 left"))

``handle`` does the rest: it reads the stream, folds it into a state, decides, and appends with the version that it
read. When somebody else was faster, it starts over with the newer state.

The class way keeps state in an object. Its methods check, and ``record`` what happened; methods marked with ``on``
change the state, for events that were just recorded and for those that are read alike.

**Snapshots** are a cache of states, off by default: ``Snapshots(every=100)`` stores the state at every hundredth
version. A snapshot is used only if its ``schema`` is that of the code; raise the number when the state or ``evolve``
changes. All of them can be deleted at any time. They are deleted for the streams of a subject that is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, ClassVar, Generic, TypeVar

from headrace.errors import UsageError
from headrace.sourcing.appends import Appended, retrying
from headrace.sourcing.errors import SourcingError
from headrace.sourcing.events import NONE, Event, RecordedEvent, as_json
from headrace.sourcing.store import EventStore, Snapshot

__all__ = [
    "Aggregate",
    "CommandOutcome",
    "Decider",
    "Loaded",
    "Rejection",
    "Repository",
    "Snapshots",
    "check",
    "handle",
    "handlers_of",
    "load",
    "on",
]

S = TypeVar("S")
C = TypeVar("C")
A = TypeVar("A", bound="Aggregate")
AnyEvent = Event | RecordedEvent
CONFLICTS_MAX = 20
_NOT_GIVEN: Any = object()


class Rejection(SourcingError):
    """A command that is refused, by a rule of the domain. ``decide`` may return it or raise it."""

    def __init__(self, reason: str, **details: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rejection) and (self.reason, self.details) == (other.reason, other.details)

    def __hash__(self) -> int:
        return hash(self.reason)


def _same(state: Any) -> Any:
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """When states are stored, and how they become JSON and back; see the module."""

    every: int = 100
    schema: int = 1
    encode: Callable[[Any], Any] = _same
    decode: Callable[[Any], Any] = _same

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError(f"a snapshot at every {self.every} versions is none", "use every=1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider(Generic[S, C]):
    """The rules of one kind of stream. ``initial`` gives the state of a stream without events."""

    decide: Callable[[S, C], Iterable[Event] | Event | Rejection | None]
    evolve: Callable[[S, AnyEvent], S]
    initial: Callable[[], S]
    name: str = "state"
    """What its snapshots are kept under."""
    snapshots: Snapshots | None = None

    def fold(self, events: Iterable[AnyEvent], state: S = _NOT_GIVEN) -> S:
        """The state after these events, from ``state`` on; None is a state like any other."""
        return reduce(self.evolve, events, self.initial() if state is _NOT_GIVEN else state)

    def decided(self, state: S, command: C) -> list[Event]:
        """The events that follow from a command; a rejection is raised."""
        found = self.decide(state, command)
        if isinstance(found, Rejection):
            raise found
        if found is None:
            return []
        events = [found] if isinstance(found, Event) else list(found)
        for each in events:
            if not isinstance(each, Event):
                raise UsageError(f"decide gave {each!r:.40}", "it gives an Event, a list of them, a Rejection or None")
        return events


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """The state of a stream at a version."""

    state: S
    version: int


@dataclass(frozen=True, slots=True)
class CommandOutcome(Generic[S]):
    """What became of a command. ``repeated``: one with this id was handled before; ``events`` are those of now."""

    state: S
    events: Sequence[Event]
    version: int
    position: int
    repeated: bool = False


def load(
    store: EventStore,
    stream: str,
    decider: Decider[S, Any],
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> Loaded[S]:
    """The state of a stream: now, as it was at a version, or as it was at a moment."""
    loaded, _ = _load(store, stream, decider, version, at)
    return loaded


def _load(
    store: EventStore, stream: str, decider: Decider[S, Any], version: int | None, at: datetime | None
) -> tuple[Loaded[S], int]:
    """With the number of subjects that were forgotten when the state was read."""
    options = decider.snapshots
    forgotten = store.forgotten_count() if options else 0
    state, reached = decider.initial(), 0
    if options and at is None:
        found = store.load_snapshot(stream, decider.name)
        if found and found.schema == options.schema and (version is None or found.version <= version):
            state, reached = options.decode(json.loads(found.state)), found.version
    last_position = None if at is None else store.position_at(at)
    for event in store.read(stream, after=reached, until=version):
        if last_position is not None and event.position > last_position:
            break
        state, reached = decider.evolve(state, event), event.version
    return Loaded(state, reached), forgotten


def handle(
    store: EventStore,
    stream: str,
    decider: Decider[S, C],
    command: C,
    *,
    command_id: str | None = None,
    cause: RecordedEvent | None = None,
    actor: str | None = None,
    conflicts_max: int = CONFLICTS_MAX,
) -> CommandOutcome[S]:
    """Decide a command on the state of a stream and append what follows. A ``Rejection`` is raised."""

    def once() -> CommandOutcome[S]:
        # Asked first: decided a second time, on the state that it has led to, the command might be rejected.
        earlier = None if command_id is None else store.command_result(command_id)
        if earlier is not None:
            state = load(store, stream, decider).state
            return CommandOutcome(state, [], earlier.versions.get(stream, 0), earlier.position, repeated=True)
        loaded, forgotten = _load(store, stream, decider, None, None)
        events = [event.caused_by(cause, actor) for event in decider.decided(loaded.state, command)]
        if not events:
            return CommandOutcome(loaded.state, [], loaded.version, store.head())
        # Before the append: a state that cannot be made, or is no JSON, must not be found out when all is done.
        state = decider.fold(events, loaded.state)
        snapshot = _snapshot_of(decider, Loaded(state, loaded.version + len(events)), loaded.version)
        done = store.append(stream, events, expected=loaded.version, command_id=command_id)
        if done.repeated:
            state = load(store, stream, decider).state
            return CommandOutcome(state, [], done.versions.get(stream, 0), done.position, repeated=True)
        if snapshot is not None:
            with suppress(SourcingError):  # a cache: the command is done, whatever becomes of it
                store.save_snapshot(stream, decider.name, snapshot, forgotten=forgotten)
        return CommandOutcome(state, events, done.version, done.position)

    return retrying(once, attempts=conflicts_max)


def _snapshot_of(decider: Decider[S, Any], now: Loaded[S], before: int) -> Snapshot | None:
    options = decider.snapshots
    if options is None or now.version // options.every == before // options.every:
        return None
    return Snapshot(now.version, options.schema, as_json(options.encode(now.state)))


def check(
    decider: Decider[Any, C],
    *,
    given: Iterable[AnyEvent] = (),
    when: C,
    then: Event | Sequence[Event] | Rejection | type[Rejection],
) -> None:
    """A test of a decider in one call: after these events and this command, exactly these events, or this rejection.

    Of events, type and data are compared; tags only where ``then`` has some.
    """
    state = decider.fold(given)
    try:
        got: list[Event] | Rejection = decider.decided(state, when)
    except Rejection as rejection:
        got = rejection
    if isinstance(then, type):
        matches = isinstance(got, then)
    elif isinstance(then, Rejection) or isinstance(got, Rejection):
        matches = got == then
    else:
        wanted = [then] if isinstance(then, Event) else list(then)
        matches = len(got) == len(wanted) and all(map(_alike, got, wanted))
    if not matches:
        raise AssertionError(f"given state {state!r}\nwhen {when!r}\nthen {then!r}\nbut got {got!r}")


def _alike(got: Event, wanted: Event) -> bool:
    return (got.type, got.data) == (wanted.type, wanted.data) and (not wanted.tags or set(got.tags) == set(wanted.tags))


# ---- classes --------------------------------------------------------------------------------------------------------


def on(*types: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks the method that is called for events of these types."""

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        method.__dict__["event_types"] = types
        return method

    return mark


def handlers_of(owner: type) -> dict[str, str]:
    """The names of a class's methods marked with ``on``, by type of event. A subclass goes before its bases."""
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        for name, value in vars(base).items():
            for kind in getattr(value, "event_types", ()):
                found[kind] = name
    return found


class Aggregate:
    """State and rules in one object; see the module. Its stream is ``category`` and its id, with a dash between.

    ``snapshot_every`` turns snapshots on; the attributes of the object must then be JSON, and ``snapshot_schema`` is
    raised when they change.
    """

    category: ClassVar[str] = ""
    snapshot_every: ClassVar[int | None] = None
    snapshot_schema: ClassVar[int] = 1
    _handlers: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._handlers = handlers_of(cls)
        cls.category = cls.__dict__.get("category") or cls.__name__.lower()
        if "-" in cls.category:
            raise UsageError(f"the category {cls.category} has a dash", "a dash ends the category in a stream's name")

    def record(
        self, kind: str, *, tags: Sequence[str] = (), personal: dict[str, str] | None = None, **data: Any
    ) -> None:
        """Something has happened: the state changes, and the event is appended when the change is saved."""
        event = Event(kind, data, tags, personal=personal or {})
        self.evolve(event)
        self.recorded.append(event)

    @property
    def recorded(self) -> list[Event]:
        """Events that are not appended yet."""
        found: list[Event] = self.__dict__.setdefault("_recorded", [])
        return found

    def evolve(self, event: AnyEvent) -> None:
        method = self._handlers.get(event.type)
        if method is not None:
            getattr(self, method)(event)


class Repository(Generic[A]):
    """Loads and changes the aggregates of one class."""

    def __init__(self, store: EventStore, kind: type[A]) -> None:
        self._store = store
        self._kind = kind
        snapshots = None
        if kind.snapshot_every:
            snapshots = Snapshots(
                every=kind.snapshot_every, schema=kind.snapshot_schema, encode=_attributes, decode=self._restored
            )
        self._decider: Decider[A, Callable[[A], Any]] = Decider(
            decide=_decide, evolve=_evolve, initial=kind, name=kind.__name__, snapshots=snapshots
        )

    def _restored(self, attributes: dict[str, Any]) -> A:
        found = self._kind()
        found.__dict__.update(attributes)
        return found

    def stream(self, identity: str) -> str:
        return f"{self._kind.category}-{identity}"

    def get(self, identity: str, *, version: int | None = None, at: datetime | None = None) -> A:
        """The aggregate now, at a version, or at a moment; one without events is as its class makes it."""
        return load(self._store, self.stream(identity), self._decider, version=version, at=at).state

    def change(
        self,
        identity: str,
        change: Callable[[A], Any],
        *,
        command_id: str | None = None,
        cause: RecordedEvent | None = None,
        actor: str | None = None,
    ) -> CommandOutcome[A]:
        """Load it, call ``change`` with it, and append what that recorded; again from the start after a conflict."""
        return handle(
            self._store,
            self.stream(identity),
            self._decider,
            change,
            command_id=command_id,
            cause=cause,
            actor=actor,
        )

    def create(self, identity: str, change: Callable[[A], Any], *, actor: str | None = None) -> Appended:
        """The same for one that must not exist yet."""
        made = self._kind()
        change(made)
        events = [event.caused_by(None, actor) for event in made.recorded]
        return self._store.append(self.stream(identity), events, expected=NONE)


def _attributes(aggregate: Aggregate) -> dict[str, Any]:
    return {name: value for name, value in aggregate.__dict__.items() if name != "_recorded"}


def _decide(aggregate: A, change: Callable[[A], Any]) -> list[Event]:
    """The state changes as the method records: the events are folded into it already, see ``_evolve``."""
    change(aggregate)
    return list(aggregate.recorded)


def _evolve(aggregate: A, event: AnyEvent) -> A:
    if isinstance(event, RecordedEvent):
        aggregate.evolve(event)
    return aggregate
