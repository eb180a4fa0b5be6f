"""Views in systems that cannot share a transaction with the store: caches, search indexes, files, tables of others.

    names = TargetView(
        store,
        RedisTarget(Address("redis://127.0.0.1:6379/0"), "names:", ("id",)),
        name="names",
        columns=pa.schema([("id", pa.string()), ("name", pa.string())]),
        rows=lambda event: [{"id": event.stream, "name": event.data["name"]}] if event.type == "Opened" else [],
    )
    names.run(until_current=True)

The writers and fences are those of ``headrace.targets``, which pipelines on Spark use, too. Rows are known by the key
of the target, and each is a function of one event; ``RemovedRow`` removes one. The target keeps a fence with each page
of events, and refuses a runner that another one has taken over. How far a view is stands in the event store: when a
runner dies after the target has a page and before the store knows, that page is written once more, by key, which
changes nothing.

**Forgetting.** When a subject is forgotten, the rows of all events with its personal data are removed, whatever
``query`` selects. Which rows these are must be known without the data: a view whose keys, or number of rows, depend on
personal data is refused at the first such event. Where a row is shared with others, say with ``forget`` what becomes of
it: it gets the subject and gives rows and ``RemovedRow``. A view without personal data says ``personal=False``. In a
later replay, a forgotten field is null in its row. Then ``purge`` removes deleted rows from the files. Needs the
packages pyarrow and numpy.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import UsageError
from headrace.sourcing.appends import Progress
from headrace.sourcing.events import EVERYTHING, Forgotten, Query, RecordedEvent
from headrace.sourcing.privacy import FORGOTTEN_TYPE
from headrace.sourcing.store import EventStore, Page

try:
    import pyarrow as pa

    from headrace.targets.changes import Changes
    from headrace.targets.target import Delivery, Fence, RefusedRows, Session, Target
except ModuleNotFoundError as error:
    needed = "views in other systems need the packages pyarrow and numpy"
    raise UsageError(needed, "pip install pyarrow numpy") from error

__all__ = ["RemovedRow", "TargetView"]

BATCH_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class RemovedRow:
    """The row with this key is removed."""

    key: Mapping[str, Any]


Rows = Callable[[RecordedEvent], Iterable[Mapping[str, Any] | RemovedRow]]
Forget = Callable[[str], Iterable[Mapping[str, Any] | RemovedRow]]


class TargetView:
    """Keeps a target up to date with a store; see the module. Used by one thread."""

    def __init__(
        self,
        store: EventStore,
        target: Target,
        *,
        name: str,
        columns: pa.Schema,
        rows: Rows,
        query: Query = EVERYTHING,
        personal: bool = True,
        forget: Forget | None = None,
    ) -> None:
        if not target.key:
            raise UsageError(f"{target.shown} has no key", "a view needs one: pages may be written twice, by key")
        self._store = store
        self._target = target
        self._columns = columns
        self._rows = rows
        self._wanted = query
        self._query = query | Query.of(types=[FORGOTTEN_TYPE]) if query.items and personal else query
        self._personal = personal
        self._forget = forget or self._rows_of
        self._name = f"view:{name}"
        self._owner = f"{socket.gethostname()} process {os.getpid()} {os.urandom(3).hex()}"
        self._takes_over = True

    def run(self, stop: threading.Event | None = None, *, until_current: bool = False) -> None:
        """Write events until ``stop`` is set, or to the end that the store has now."""
        session = self._target.open()
        try:
            pages = self._store.pages(
                self._query, after=self.position(), stop=stop, until_current=until_current, limit=BATCH_EVENTS
            )
            for page in pages:
                self._write(session, page)
        finally:
            session.close()

    def purge(self) -> None:
        """Remove deleted rows from the target's files: those of SQLite and its search index. For other systems this is
        a UsageError; they have their own commands (docs/sourcing.md).
        """
        session = self._target.open()
        try:
            session.purge()
        finally:
            session.close()

    def position(self) -> int:
        """How far the target is."""
        return self._store.progress(self._name)

    def _write(self, session: Session, page: Page) -> None:
        changes = self._changes(page)
        fence = Fence(
            query=self._name,
            batch_id=page.scanned_to,
            ends=str(page.scanned_to),
            owner=self._owner,
            takes_over=self._takes_over,
            pipeline=self._name,
        )
        session.write(Delivery(self._columns, iter([changes]), RefusedRows(self._target.shown), fence))
        self._takes_over = False
        self._store.append_all([], progress=Progress(self._name, page.scanned_to))

    def _changes(self, page: Page) -> Changes:
        rows: list[Mapping[str, Any]] = []
        gone: list[bool] = []
        for event in page.events:
            for each in self._answers(event):
                is_gone = isinstance(each, RemovedRow)
                rows.append(_without_forgotten(each.key if isinstance(each, RemovedRow) else each))
                gone.append(is_gone)
        table = pa.Table.from_pylist(rows, schema=self._columns)
        return Changes(table, pa.chunked_array([gone], pa.bool_()) if any(gone) else None)

    def _answers(self, event: RecordedEvent) -> Iterator[Mapping[str, Any] | RemovedRow]:
        if self._personal and event.type == FORGOTTEN_TYPE:
            yield from self._forget(event.data["subject"])
        if self._wanted.matches(event):
            found = list(self._rows(event))
            if self._personal and self._forget == self._rows_of:
                self._check_keys(event, found)
            yield from found

    def _check_keys(self, event: RecordedEvent, found: Iterable[Mapping[str, Any] | RemovedRow]) -> None:
        """That the rows of an event will be found when its subject is forgotten."""
        forgotten = self._store.as_forgotten(event)
        if forgotten is None:
            return
        left = {self._key_of(each) for each in self._rows(forgotten)}
        if not {self._key_of(each) for each in found} <= left:
            raise UsageError(
                f"which rows of {self._target.shown} the event {event.type} leads to depends on personal data: they "
                "could not be found when the person is forgotten",
                "key rows by a stream or an opaque id, or say what becomes of them: forget=…",
            )

    def _key_of(self, answer: Mapping[str, Any] | RemovedRow) -> tuple[Any, ...]:
        row = answer.key if isinstance(answer, RemovedRow) else answer
        return tuple(row[name] for name in self._target.key)

    def _rows_of(self, subject: str) -> Iterator[RemovedRow]:
        """Every row that an event with the subject's data has led to is removed."""
        for event in self._store.read_all(Query.of(tags=[self._store.privacy.tag(subject)])):
            if self._wanted.matches(event):
                for each in self._rows(event):
                    yield RemovedRow(dict(zip(self._target.key, self._key_of(each), strict=True)))


def _without_forgotten(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: None if isinstance(value, Forgotten) else value for name, value in row.items()}
