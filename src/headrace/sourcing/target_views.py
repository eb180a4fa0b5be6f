"""Views in systems that have no transactions of ours: caches, search indexes, files, tables of others.

    names = TargetView(
        store,
        RedisTarget(Address("redis://127.0.0.1:6379/0"), "names:", ("id",)),
        name="names",
        columns=pa.schema([("id", pa.string()), ("name", pa.string())]),
        rows=lambda event: [{"id": event.stream, "name": event.data["name"]}] if event.type == "Opened" else [],
    )
    names.run(until_current=True)

The writers and fences are those of ``headrace.targets``, which pipelines on Spark use, too. Rows are known by the key
of the target, and each is a function of one event; ``Gone`` removes one. The target keeps a fence with each page of
events, and refuses a runner that another one has taken over. How far a view is stands in the event store: when a
runner dies after the target has a page and before the store knows, that page is written once more, by key, which
changes nothing.

A view with personal data answers the event ``SubjectForgotten`` with ``Gone`` rows. Needs the package pyarrow.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import UsageError
from headrace.sourcing.appends import Progress
from headrace.sourcing.events import EVERYTHING, Query, RecordedEvent
from headrace.sourcing.store import EventStore, Page
from headrace.targets.target import Changes, Delivery, Fence, Letters, Session, Target

__all__ = ["Gone", "TargetView"]

BATCH_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class Gone:
    """The row with this key is removed."""

    key: Mapping[str, Any]


Rows = Callable[[RecordedEvent], Iterable[Mapping[str, Any] | Gone]]


class TargetView:
    """Keeps a target up to date with a store; see the module. Used by one thread."""

    def __init__(
        self, store: EventStore, target: Target, *, name: str, columns: pa.Schema, rows: Rows, query: Query = EVERYTHING
    ) -> None:
        if not target.key:
            raise UsageError(f"{target.shown} has no key", "a view needs one: pages may be written twice, by key")
        self._store = store
        self._target = target
        self._columns = columns
        self._rows = rows
        self._query = query
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
        session.write(Delivery(self._columns, iter([changes]), Letters(self._target.shown), fence))
        self._takes_over = False
        self._store.append_all([], progress=Progress(self._name, page.scanned_to))

    def _changes(self, page: Page) -> Changes:
        rows: list[Mapping[str, Any]] = []
        gone: list[bool] = []
        for event in page.events:
            for each in self._rows(event):
                is_gone = isinstance(each, Gone)
                rows.append(each.key if isinstance(each, Gone) else each)
                gone.append(is_gone)
        table = pa.Table.from_pylist(rows, schema=self._columns)
        return Changes(table, pa.chunked_array([gone], pa.bool_()) if any(gone) else None)
