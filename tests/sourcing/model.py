"""An event store of lists and dicts, written from docs/sourcing.md: what the real ones are compared with.

Operations are values (``Operation``). ``Model.perform`` and ``perform`` (on a real store) give an outcome of the same
shape for each, so that a history is a list of operations and a comparison is ``==``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import HeadraceError
from headrace.sourcing import (
    ANY,
    EXISTS,
    FORGOTTEN_STREAM,
    FORGOTTEN_TYPE,
    NONE,
    Appended,
    Command,
    Condition,
    Decider,
    Event,
    EventStore,
    Forgotten,
    ProcessManager,
    Progress,
    Query,
    RecordedEvent,
    Rejection,
    Snapshots,
    Upcasters,
    handle,
    load,
    on,
    run_process,
)

Row = dict[str, Any]
Outcome = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """The name of what is done, and with what."""

    name: str
    values: Mapping[str, Any]


# ---- the application: rules, a process and upcasters that both sides use ---------------------------------------------


def decide(state: Mapping[str, Any], command: int) -> list[Event] | Rejection:
    if state["cents"] + command < 0:
        return Rejection("not enough")
    return [Event("Moved", {"cents": command})] if command else []


def evolve(state: Mapping[str, Any], event: Any) -> dict[str, Any]:
    if event.type == "Moved":
        return {**state, "cents": state["cents"] + event.data["cents"]}
    if event.type == "Named":
        return {**state, "name": str(event.data["name"])}
    return dict(state)


def account(every: int | None) -> Decider[dict[str, Any], int]:
    snapshots = Snapshots(every=every) if every else None
    return Decider(decide=decide, evolve=evolve, initial=lambda: {"cents": 0, "name": ""}, snapshots=snapshots)


class Shipping(ProcessManager):
    """Each order leads to a movement of goods, and some orders to none or to a refused one."""

    name = "shipping"

    @on("Ordered")
    def ordered(self, event: RecordedEvent) -> Iterable[Command]:
        for cents in event.data["cents"]:
            yield Command(f"ship-{event.data['to']}", account(None), cents)

    def rejected(self, event: RecordedEvent, command: Command, rejection: Rejection) -> None:
        return


def upcasters() -> Upcasters:
    made = Upcasters()

    @made.register("Grown", from_version=1)
    def second(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "second": True}

    @made.register("Grown", from_version=2)
    def third(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "third": len(data)}

    @made.register("Renamed", from_version=1)
    def renamed(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "Grown", {**data, "from": "Renamed"}

    return made


NEWEST = {"Grown": 3, "Renamed": 2}


def upcast(kind: str, version: int, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if kind == "Renamed" and version == 1:
        return upcast("Grown", 1, {**data, "from": "Renamed"})
    if kind == "Grown" and version == 1:
        return upcast(kind, 2, {**data, "second": True})
    if kind == "Grown" and version == 2:
        return kind, {**data, "third": len(data)}
    return kind, data


# ---- the model -------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The outcome of an operation that fails."""

    def __init__(self, *outcome: Any) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(slots=True)
class Model:
    rows: list[Row] = field(default_factory=list)
    commands: dict[str, Outcome] = field(default_factory=dict)
    progress: dict[str, int] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    subjects: set[str] = field(default_factory=set)

    def perform(self, operation: Operation, newest: bool, *, only_try: bool = False) -> Outcome:
        """``newest``: by a store that is opened with upcasters. ``only_try``: nothing is changed."""
        before = dict(self.commands), dict(self.progress), set(self.subjects), len(self.rows), len(self.forgotten)
        outcome, keep = self._outcome(operation, newest)
        if only_try or not keep:
            self.commands, self.progress, self.subjects, rows, forgotten = before
            del self.rows[rows:], self.forgotten[forgotten:]
        return outcome

    def _outcome(self, operation: Operation, newest: bool) -> tuple[Outcome, bool]:
        try:
            return ("ok", getattr(self, operation.name)(newest=newest, **operation.values)), True
        except Refused as refused:
            return refused.outcome, False

    def stream_of(self, stream: str) -> list[Row]:
        return [row for row in self.rows if row["stream"] == stream]

    # -- writing --

    def append(
        self,
        parts: Sequence[tuple[str | None, Sequence[Event], Any]],
        command_id: str | None,
        condition: Condition | None,
        progress: Progress | None,
        newest: bool,
    ) -> Outcome:
        if command_id in self.commands:
            return (*self.commands[command_id][:3], True)
        repeated = self._repeated(parts)
        if repeated is not None and repeated[0] == "ok":
            return repeated[1]
        if any(set(event.personal.values()) & set(self.forgotten) for _, events, _ in parts for event in events):
            raise Refused("error", "SubjectIsForgotten")
        if repeated is not None:
            raise Refused(*repeated)
        for stream, _, expected in parts:
            actual = len(self.stream_of(stream)) if stream is not None else 0
            if stream is not None and not _fits(expected, actual):
                raise Refused("error", "AppendConflict", stream, actual)
        if condition is not None and any(
            matches(row, condition.fail_if_events_match) for row in self.rows[condition.after :]
        ):
            raise Refused("error", "AppendConflict", None, None)
        if progress is not None:
            if progress.position <= self.progress.get(progress.name, 0):
                raise Refused("error", "AppendConflict", None, None)
            self.progress[progress.name] = progress.position
        first, versions = len(self.rows) + 1, {}
        for stream, events, _ in parts:
            for event in events:
                self._add(stream, event, command_id, newest)
            if stream is not None:
                versions[stream] = len(self.stream_of(stream))
        done = (len(self.rows), first, versions, False)
        if command_id is not None and len(self.rows) >= first:
            self.commands[command_id] = done
        return done

    def _repeated(self, parts: Sequence[tuple[str | None, Sequence[Event], Any]]) -> Outcome | None:
        """Where the events are, if the store has all of their ids, in these streams. Otherwise they are a conflict."""
        events = [(stream, event) for stream, events, _ in parts for event in events]
        at = {row["event_id"]: row for row in self.rows if row["event_id"] is not None}
        found = [at[event.event_id] for _, event in events if event.event_id in at]
        if not found:
            return None
        if sorted(str(row["stream"]) for row in found) != sorted(str(stream) for stream, _ in events):
            return ("error", "AppendConflict", None, None)
        positions = [row["position"] for row in found]
        versions: dict[str, int] = {}
        for row in found:
            if row["stream"] is not None:
                versions[row["stream"]] = max(row["version"], versions.get(row["stream"], 0))
        return ("ok", (max(positions), min(positions), versions, True))

    def _add(self, stream: str | None, event: Event, command_id: str | None, newest: bool) -> None:
        subjects = set(event.personal.values())
        self.subjects |= subjects
        default = NEWEST.get(event.type, 1) if newest else 1
        self.rows.append(
            {
                "position": len(self.rows) + 1,
                "stream": stream,
                "version": len(self.stream_of(stream)) + 1 if stream is not None else None,
                "stored_type": event.type,
                "schema_version": event.schema_version or default,
                "data": copy.deepcopy(dict(event.data)),
                "personal": dict(event.personal),
                "tags": {*event.tags, *(f"subject:{subject}" for subject in subjects)},
                "event_id": event.event_id,
                "correlation_id": event.correlation_id,
                "causation_id": event.causation_id,
                "actor": event.actor,
                "command_id": command_id,
            }
        )

    def forget(self, subject: str, newest: bool) -> Outcome:
        if subject not in self.forgotten:
            self.forgotten.append(subject)
            event = Event(FORGOTTEN_TYPE, {"subject": subject})
            self._add(FORGOTTEN_STREAM, event, None, newest)
        row = next(r for r in self.stream_of(FORGOTTEN_STREAM) if r["data"]["subject"] == subject)
        return (row["position"],)

    def handle(self, stream: str, command: int, command_id: str | None, every: int | None, newest: bool) -> Outcome:
        if command_id in self.commands:
            done = self.commands[command_id]
            return (True, done[0])
        state = self.state(stream, None, newest)
        if state["cents"] + command < 0:
            raise Refused("error", "Rejection")
        if command:
            self.append([(stream, [Event("Moved", {"cents": command})], ANY)], command_id, None, None, newest)
        return (False, self.state(stream, None, newest), len(self.stream_of(stream)))

    def run_process(self, newest: bool) -> int:
        """The commands of all orders, up to the end; the process sees its own events, too."""
        for row in self.rows[self.progress.get("shipping", 0) :]:
            kind, data = self.shown(row, newest)
            if kind != "Ordered":
                continue
            for cents in data["cents"]:
                stream = f"ship-{data['to']}"
                if cents and self.state(stream, None, newest)["cents"] + cents >= 0:
                    self._add(stream, Event("Moved", {"cents": cents}), None, newest)
                    self.rows[-1] |= {
                        "causation_id": row["event_id"],
                        "correlation_id": row["correlation_id"] or row["event_id"],
                        "actor": row["actor"],
                        "made": True,
                    }
        self.progress["shipping"] = len(self.rows)
        return len(self.rows)

    # -- reading --

    def shown(self, row: Row, newest: bool) -> tuple[str, dict[str, Any]]:
        data = copy.deepcopy(row["data"])
        for name, subject in row["personal"].items():
            if subject in self.forgotten and name in data:
                data[name] = Forgotten(subject)
        return upcast(row["stored_type"], row["schema_version"], data) if newest else (row["stored_type"], data)

    def seen(self, row: Row, newest: bool) -> Row:
        kind, data = self.shown(row, newest)
        return {**{name: value for name, value in row.items() if name != "personal"}, "type": kind, "data": data}

    def read(
        self, stream: str, after: int, until: int | None, limit: int | None, backwards: bool, newest: bool
    ) -> list[Row]:
        chosen = [
            r for r in self.stream_of(stream) if after < r["version"] <= (len(self.rows) if until is None else until)
        ]
        return self._cut(chosen, limit, backwards, newest)

    def read_all(
        self, query: Query, after: int, until: int | None, limit: int | None, backwards: bool, newest: bool
    ) -> list[Row]:
        chosen = [
            row
            for row in self.rows
            if after < row["position"] <= (len(self.rows) if until is None else until) and matches(row, query)
        ]
        return self._cut(chosen, limit, backwards, newest)

    def _cut(self, rows: list[Row], limit: int | None, backwards: bool, newest: bool) -> list[Row]:
        ordered = rows[::-1] if backwards else rows
        return [self.seen(row, newest) for row in (ordered if limit is None else ordered[:limit])]

    def subscribe(self, query: Query, after: int, newest: bool) -> list[Row]:
        return self.read_all(query, after, None, None, False, newest)

    def walk(self, query: Query, after: int, limit: int, newest: bool) -> list[Row]:
        return self.read_all(query, after, None, None, False, newest)

    def streams(self, category: str | None, after: str, limit: int, newest: bool) -> list[Outcome]:
        names = sorted({row["stream"] for row in self.rows if row["stream"] is not None})
        chosen = [name for name in names if name > after and category in (None, name.split("-", 1)[0])][:limit]
        rows = {name: self.stream_of(name) for name in chosen}
        return [(name, len(rs), rs[0]["position"], rs[-1]["position"]) for name, rs in rows.items()]

    def facts(self, stream: str, command_id: str, name: str, subject: str, newest: bool) -> Outcome:
        done = self.commands.get(command_id)
        return (
            len(self.rows),
            len(self.stream_of(stream)),
            self.progress.get(name, 0),
            done and done[:3],
            subject in self.subjects,
            self.forgotten,
            len(self.forgotten),
        )

    def state(self, stream: str, version: int | None, newest: bool) -> dict[str, Any]:
        state: dict[str, Any] = {"cents": 0, "name": ""}
        for row in self.stream_of(stream)[:version]:
            kind, data = self.shown(row, newest)
            if kind == "Moved":
                state["cents"] += data["cents"]
            elif kind == "Named":
                state["name"] = str(data["name"])
        return state

    def load(self, stream: str, version: int | None, every: int | None, newest: bool) -> Outcome:
        return (self.state(stream, version, newest), len(self.stream_of(stream)[:version]))

    def delete_snapshots(self, newest: bool) -> None:
        return None


def _fits(expected: Any, actual: int) -> bool:
    fits: dict[Any, bool] = {ANY: True, NONE: actual == 0, EXISTS: actual > 0}
    return fits[expected] if expected in fits else bool(expected == actual)


def matches(row: Row, query: Query) -> bool:
    return not query.items or any(
        (not item.types or row["stored_type"] in item.types)
        and all(tag in row["tags"] for tag in item.tags)
        and (not item.streams or row["stream"] in item.streams)
        and (not item.categories or (row["stream"] is not None and row["stream"].split("-", 1)[0] in item.categories))
        for item in query.items
    )


# ---- the same on a real store ----------------------------------------------------------------------------------------


def perform(store: EventStore, operation: Operation) -> Outcome:
    try:
        return ("ok", REAL[operation.name](store, **operation.values))
    except HeadraceError as error:
        if type(error).__name__ == "AppendConflict":
            return ("error", "AppendConflict", getattr(error, "stream", None), getattr(error, "actual", None))
        return ("error", type(error).__name__)


def row_of(event: RecordedEvent) -> Row:
    names = ("position", "stream", "version", "stored_type", "schema_version", "data", "event_id", "correlation_id")
    more = ("causation_id", "actor", "command_id", "type", "recorded_at")
    return {**{name: getattr(event, name) for name in (*names, *more)}, "tags": set(event.tags)}


def rows_of(events: Iterable[RecordedEvent]) -> list[Row]:
    return [row_of(event) for event in events]


def _append(store: EventStore, parts: Sequence[Any], **more: Any) -> Outcome:
    if len(parts) == 1:
        stream, events, expected = parts[0]
        done = store.append(stream, events, expected=expected, **more)
    else:
        done = store.append_all(parts, **more)
    return (*_shown(done), done.repeated)


def _shown(done: Appended) -> Outcome:
    return (done.position, done.first_position, dict(done.versions))


def _handle(store: EventStore, stream: str, command: int, command_id: str | None, every: int | None) -> Outcome:
    done = handle(store, stream, account(every), command, command_id=command_id)
    return (True, done.position) if done.repeated else (False, dict(done.state), done.version)


def _facts(store: EventStore, stream: str, command_id: str, name: str, subject: str) -> Outcome:
    done = store.command_result(command_id)
    return (
        store.head(),
        store.version(stream),
        store.progress(name),
        done and _shown(done),
        store.has_events_of(subject),
        list(store.forgotten()),
        store.forgotten_count(),
    )


def _walk(store: EventStore, query: Query, after: int, limit: int) -> list[Row]:
    """Pages by hand: each goes on where the one before has ended."""
    rows: list[Row] = []
    while (page := store.page(query, after=after, limit=limit)).scanned_to > after:
        assert len(page.events) <= limit, (len(page.events), limit)
        assert all(after < event.position <= page.scanned_to for event in page.events)
        rows += rows_of(page.events)
        after = page.scanned_to
    assert not page.events
    return rows


def _load(store: EventStore, stream: str, version: int | None, every: int | None) -> Outcome:
    loaded = load(store, stream, account(every), version=version)
    return (dict(loaded.state), loaded.version)


def _delete_snapshots(store: EventStore) -> None:
    store.delete_snapshots()


REAL: dict[str, Callable[..., Any]] = {
    "append": _append,
    "forget": lambda store, subject: (store.forget(subject).position,),
    "handle": _handle,
    "run_process": lambda store: run_process(store, Shipping(), until_current=True),
    "read": lambda store, stream, **choices: rows_of(store.read(stream, **choices)),
    "read_all": lambda store, query, **choices: rows_of(store.read_all(query, **choices)),
    "subscribe": lambda store, query, after: rows_of(store.subscribe(query, after=after, until_current=True)),
    "walk": _walk,
    "streams": lambda store, category, **choices: [tuple(each) for each in store.streams(category, **choices)],
    "facts": _facts,
    "load": _load,
    "delete_snapshots": _delete_snapshots,
}
