"""Views: tables that are derived from events, and can be derived again.

    class Balances(Projection):
        tables = {"balances": "account text primary key, cents integer not null"}

        @on("Deposited")
        def deposited(self, view, event):
            view.execute(
                f"insert into {view.table('balances')} values (?, ?) "
                "on conflict (account) do update set cents = balances.cents + excluded.cents", …)

    runner = ProjectionRunner(store, "sqlite:///views.db", Balances())
    runner.run(until_current=True)
    runner.ask("select * from balances")

**Each event has its effect once.** The position up to which events were applied is stored in headrace_projections
of the same database, in the same transaction as the rows. One runner of a projection writes at a time: the newest takes
over, and an older one finds the name of its successor and stops (``TakenOver``).

**Rebuilding** goes on beside the old view. Tables have a generation in their names (balances__g2); readers use a view
of the database with the plain name. ``rebuild`` fills the tables of the next generation from the first event, then
lets the plain name mean them and drops the old ones, in one transaction. Until then readers see the old view, and a
runner in another process keeps it up to date; after the switch that runner goes on with the new tables. A projection
whose ``version`` was raised is rebuilt when it next runs.

**Forgetting.** A projection that keeps personal data must lose it when a subject is forgotten. ``forget`` is called for
each; unless a projection says how (by overriding it), it is rebuilt, which is always right and costs a replay. One
without personal data says ``personal = False``. Then ``purge`` removes deleted rows from the files of the database.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from headrace.errors import UsageError
from headrace.sourcing.databases import Database, Row, Transaction, open_database
from headrace.sourcing.deciding import handlers_of
from headrace.sourcing.errors import SourcingError, TakenOver
from headrace.sourcing.events import EVERYTHING, Forgotten, Query, RecordedEvent
from headrace.sourcing.privacy import FORGOTTEN_TYPE
from headrace.sourcing.store import EventStore, Page

__all__ = ["Projection", "ProjectionRunner", "View"]

BATCH_EVENTS = 500
WAIT_PAUSE_S = 0.01
NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_STATE = (
    "create table if not exists headrace_projections (name text primary key, version integer not null, "
    "generation integer not null, position bigint not null, owner text not null)"
)


class View:
    """What a projection writes with: the tables of one generation, in one transaction."""

    def __init__(self, transaction: Transaction, generation: int) -> None:
        self._transaction = transaction
        self._generation = generation

    def table(self, name: str) -> str:
        """The table's name in the database, for statements that write."""
        return f"{name}__g{self._generation}"

    def execute(self, statement: str, *values: Any) -> list[Row]:
        """Run a statement with ``?`` for each value. A forgotten field is null, so that every replay goes on."""
        return self._transaction.execute(statement, *[None if isinstance(each, Forgotten) else each for each in values])


class Projection:
    """The derivation of one view; see the module."""

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    tables: ClassVar[Mapping[str, str]] = {}
    """By name, the columns as ``create table`` takes them."""
    query: ClassVar[Query] = EVERYTHING
    personal: ClassVar[bool] = True
    _handlers: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__dict__.get("name") or re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__).lower()
        cls._handlers = handlers_of(cls)
        for each in (cls.name, *cls.tables):
            if not NAME.fullmatch(each):
                raise UsageError(f"{each!r} is no name of a view", "use up to 41 of a-z, 0-9 and _")

    def setup(self, view: View) -> None:
        """Make the tables; override it for indexes, whose names should begin with that of their table, and for other
        kinds of tables. A rebuild drops what ``tables`` names, and nothing else.
        """
        for name, columns in self.tables.items():
            view.execute(f"create table {view.table(name)} ({columns})")

    def apply(self, view: View, event: RecordedEvent) -> None:
        method = self._handlers.get(event.type)
        if method is not None:
            getattr(self, method)(view, event)

    def forget(self, view: View, subject: str) -> None:
        """Remove what the view knows of a subject. Not overridden, the view is rebuilt instead."""

    @property
    def is_rebuilt_to_forget(self) -> bool:
        return self.personal and type(self).forget is Projection.forget


class _Rebuilt(Exception):
    """Another process has rebuilt the view: the runner goes on with the new tables."""


class ProjectionRunner:
    """Keeps one projection up to date in a database; see the module. Used by one thread."""

    def __init__(self, store: EventStore, database: str | Path | Database, projection: Projection) -> None:
        if isinstance(projection, type):
            raise UsageError(f"{projection.__name__} is a class", f"give a projection: {projection.__name__}()")
        self._store = store
        self.projection = projection
        self._database = database if isinstance(database, Database) else open_database(database)
        self._owner = f"{socket.gethostname()} process {os.getpid()} {os.urandom(3).hex()}"
        self._position = 0
        self._generation = 0
        with self._database.writing() as transaction:
            transaction.alone()
            transaction.execute(_STATE)
        query = projection.query
        self._query = query | Query.of(types=[FORGOTTEN_TYPE]) if query.items and projection.personal else query

    def close(self) -> None:
        self._database.close()

    def ask(self, statement: str, *values: Any) -> list[Row]:
        """Read the view."""
        return self._database.ask(statement, *values)

    # ---- running ----------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event | None = None, *, until_current: bool = False) -> None:
        """Apply events until ``stop`` is set, or to the end that the store has now."""
        stop = stop or threading.Event()
        while not stop.is_set():
            try:
                self._take_over()
                self._follow(stop, until_current)
                return
            except _Rebuilt:
                continue

    def _follow(self, stop: threading.Event, until_current: bool) -> None:
        pages = self._store.pages(
            self._query, after=self._position, stop=stop, until_current=until_current, limit=BATCH_EVENTS
        )
        for page in pages:
            if self._must_be_rebuilt(page, after=0):
                # The position stays before the event: a process that dies in the rebuild meets it again.
                with self._database.writing() as transaction:
                    self._advance(transaction, self._position)
                self.rebuild()
                raise _Rebuilt  # it is further than the pages
            self._apply(page)

    def _must_be_rebuilt(self, page: Page, *, after: int) -> bool:
        """Whether somebody was forgotten after a position, and only a rebuild removes the person's rows."""
        return self.projection.is_rebuilt_to_forget and any(
            event.type == FORGOTTEN_TYPE and event.position > after for event in page.events
        )

    def _take_over(self) -> None:
        """Become the runner. What is there is of this version, or is made: the first time, or by a rebuild."""
        with self._database.writing() as transaction:
            transaction.alone()
            version = self._read_state(transaction)
            if version is None:
                self._make(transaction, 1)
                self._show(transaction, 1)
                self._insert_state(transaction, self.projection.name, 1)
                version, self._generation, self._position = self.projection.version, 1, 0
            else:
                transaction.execute(
                    "update headrace_projections set owner = ? where name = ?", self._owner, self.projection.name
                )
        if version != self.projection.version:
            self.rebuild()
        elif self._position > (head := self._store.head()):
            raise SourcingError(
                f"projection {self.projection.name} is at position {self._position} and {self._store.shown} ends at "
                f"{head}: it is another store, or an older copy of it. Rebuild the view"
            )

    def _read_state(self, transaction: Transaction) -> int | None:
        """Where the view stands; gives the version of the projection that made it, or None where there is none."""
        found = self._state(transaction, self.projection.name)
        if found is None:
            self._generation = self._position = 0
            return None
        version, self._generation, self._position, _ = found
        return int(version)

    def _state(self, transaction: Transaction, name: str) -> Row | None:
        rows = transaction.execute(
            "select version, generation, position, owner from headrace_projections where name = ?", name
        )
        return rows[0] if rows else None

    def _insert_state(self, transaction: Transaction, name: str, generation: int) -> None:
        transaction.execute(
            "insert into headrace_projections values (?, ?, ?, 0, ?)",
            name,
            self.projection.version,
            generation,
            self._owner,
        )

    def _apply(self, page: Page) -> None:
        with self._database.writing() as transaction:
            self._advance(transaction, page.scanned_to)
            self._apply_to(View(transaction, self._generation), page.events)
        self._position = page.scanned_to

    def _advance(self, transaction: Transaction, position: int) -> None:
        """First of all: it locks the row, so that nobody else applies the same events."""
        moved = transaction.execute(
            "update headrace_projections set position = ? where name = ? and owner = ? and position = ? "
            "and generation = ? returning 1",
            position,
            self.projection.name,
            self._owner,
            self._position,
            self._generation,
        )
        if moved:
            return
        found = self._state(transaction, self.projection.name)
        if found is not None and found[1] > self._generation and found[0] == self.projection.version:
            raise _Rebuilt
        raise self._taken_over(found)

    def _taken_over(self, found: Row | None) -> TakenOver:
        return TakenOver(
            f"projection {self.projection.name} in {self._database.shown} was taken over by "
            f"{found[3] if found else 'nobody: its row in headrace_projections is gone'}; this one stops. "
            "Run a projection in one place"
        )

    def _apply_to(self, view: View, events: Sequence[RecordedEvent]) -> None:
        for event in events:
            if event.type == FORGOTTEN_TYPE and self.projection.personal:
                self.projection.forget(view, event.data["subject"])
            if self.projection.query.matches(event):
                self.projection.apply(view, event)

    # ---- rebuilding -------------------------------------------------------------------------------------------------

    def rebuild(self, seen: Callable[[int], None] = lambda position: None) -> int:
        """Derive the view again beside the old one, then switch; gives the position that it has reached.

        ``seen`` is called with each position on the way. Of two rebuilds at a time, the newer one goes on. When
        somebody is forgotten meanwhile, it starts over: events that it has read before had the person's data in plain.
        """
        while (position := self._filled(following := self._begin_rebuild(), seen)) is None:
            pass
        return self._switch(following, position)

    def _begin_rebuild(self) -> int:
        """Empty tables of the next generation; gives its number."""
        with self._database.writing() as transaction:
            transaction.alone()
            self._read_state(transaction)
            following = self._generation + 1
            self._drop_rebuild(transaction)  # what a rebuild has left that died
            self._make(transaction, following)
            self._insert_state(transaction, self._rebuild_name, following)
        return following

    def _drop_rebuild(self, transaction: Transaction) -> None:
        self._drop(transaction, self._generation + 1)
        transaction.execute("delete from headrace_projections where name = ?", self._rebuild_name)

    def _filled(self, following: int, seen: Callable[[int], None]) -> int | None:
        """Apply all events to the next generation; gives the position, or None if somebody was forgotten meanwhile."""
        begun, position = self._store.head(), 0
        while (page := self._store.page(self._query, after=position, limit=BATCH_EVENTS)).scanned_to > position:
            if self._must_be_rebuilt(page, after=begun):
                return None
            with self._database.writing() as transaction:
                self._advance_rebuild(transaction, page.scanned_to)
                self._apply_to(View(transaction, following), page.events)
            position = page.scanned_to
            seen(position)
        return position

    @property
    def _rebuild_name(self) -> str:
        return f"{self.projection.name}$rebuild"

    def _advance_rebuild(self, transaction: Transaction, position: int) -> None:
        moved = transaction.execute(
            "update headrace_projections set position = ? where name = ? and owner = ? returning 1",
            position,
            self._rebuild_name,
            self._owner,
        )
        if not moved:
            raise self._taken_over(self._state(transaction, self._rebuild_name))

    def _switch(self, following: int, position: int) -> int:
        """The new tables take the place of the old ones, and this is the runner; gives its position.

        A runner may have brought the old view further meanwhile. Who has waited for that must not lose it: the events
        are applied here, while the runner waits for the lock of its row. Only these: a runner goes past an event by
        which somebody was forgotten only in views that need no rebuild for it, and after them there may be such a one.
        """
        with self._database.writing() as transaction:
            self._advance_rebuild(transaction, position)
            shown = transaction.execute(
                "update headrace_projections set owner = owner where name = ? returning position", self.projection.name
            )
            while shown and position < (end := shown[0][0]):
                page = self._store.page(self._query, after=position, limit=BATCH_EVENTS)
                if page.scanned_to == position:
                    break  # the view is that of another store, or of a newer copy
                self._apply_to(View(transaction, following), [each for each in page.events if each.position <= end])
                position = min(page.scanned_to, end)
            transaction.execute(
                "delete from headrace_projections where name in (?, ?)", self.projection.name, self._rebuild_name
            )
            transaction.execute(
                "insert into headrace_projections values (?, ?, ?, ?, ?)",
                self.projection.name,
                self.projection.version,
                following,
                position,
                self._owner,
            )
            self._show(transaction, following)
            self._drop(transaction, self._generation)
        self._generation, self._position = following, position
        return position

    def _make(self, transaction: Transaction, generation: int) -> None:
        self.projection.setup(View(transaction, generation))

    def _show(self, transaction: Transaction, generation: int) -> None:
        for name in self.projection.tables:
            # In quotes: a view may be named order, or user.
            transaction.execute(f'drop view if exists "{name}"')
            transaction.execute(f'create view "{name}" as select * from {name}__g{generation}')

    def _drop(self, transaction: Transaction, generation: int) -> None:
        for name in self.projection.tables:
            transaction.execute(f"drop table if exists {name}__g{generation}")

    # ---- reading ----------------------------------------------------------------------------------------------------

    def position(self) -> int:
        """How far the view that readers see is."""
        rows = self._database.ask("select position from headrace_projections where name = ?", self.projection.name)
        return int(rows[0][0]) if rows else 0

    def wait_for(self, position: int, timeout_s: float = 10.0) -> None:
        """Until the view has what was appended at a position: an application reads its own writes."""
        deadline = time.monotonic() + timeout_s
        while (reached := self.position()) < position:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"projection {self.projection.name} is at position {reached} and not at {position} after "
                    f"{timeout_s:g} s: is its runner running?"
                )
            time.sleep(WAIT_PAUSE_S)

    def purge(self) -> None:
        """Remove deleted rows from the files of the database, also from those of its log.

        The tables of a rebuild that died go first: they may hold people who were forgotten later. A rebuild that is
        going on ends with ``TakenOver``.
        """
        with self._database.writing() as transaction:
            self._read_state(transaction)
            self._drop_rebuild(transaction)
        self._database.purge()
