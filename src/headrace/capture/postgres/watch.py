"""Watches the tables of a capture: new ones, other ones under an old name, and those whose contents changed unlogged.

What has happened is found in the catalogue as it is *now*, while the stream may be far behind. So the topic changes
over at a mark in the server's own log (``pg_logical_emit_message``): what passes before it belongs to the table that
the topic stood for so far, and where it passes, the truncation and the new snapshot begin. A table that has just been
published needs one thing more. A transaction that wrote to it before stays invisible to the stream, even if it commits
later; so the mark is written when the transactions that had written to the table by then are over.

A change-over that has not passed when capture ends is found again by the next one: what is kept with the position is
what the topic stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from psycopg import errors, sql

from headrace.capture.postgres.catalogue import GONE, Catalogue, TableInfo
from headrace.capture.postgres.identity import Known, known, partitions_emptied, remembering, what_happened
from headrace.capture.postgres.publications import Publications

__all__ = ["Change", "TableWatch"]


@dataclass(slots=True)
class Change:
    """What a topic changes over to. ``table`` is None when there is none any more."""

    name: str
    why: str
    table: TableInfo | None
    now: Known | None
    writers: set[str] = field(default_factory=set)
    mark: int | None = None
    is_new: bool = False
    is_asked: bool = False
    has_attached: bool = False
    """Whether rows came with a partition, whatever else there was."""


class TableWatch:
    """What each topic stands for, and what it is about to change over to; see the module."""

    def __init__(
        self, catalogue: Catalogue, publications: Publications, slot: str, run: str, say: Callable[[str], None]
    ) -> None:
        self._catalogue = catalogue
        self._publications = publications
        self._run = run
        self._say = say
        self.prefix = f"{slot}.change"
        self.known: dict[str, Known] = {}
        self.version = 1
        """Grows with every change of ``known``."""
        self.tables: dict[str, TableInfo] = {}
        self._changes: dict[str, Change] = {}
        self._marks = 0
        self._seen = ""
        self._truncated: dict[int, int] = {}
        """By table the transaction that truncated it last, as it passed."""
        self._noted: set[str] = set()

    def begin(self, seen: str, tables: Mapping[str, TableInfo], recorded: Mapping[str, Known] | None) -> None:
        """Take over what topics stand for; None: they begin with these tables as they are. ``seen`` is a fingerprint of
        the catalogue from before it showed these tables."""
        self._seen = seen
        members = self._publications.hold(tables.values())
        now = {name: known(table, members[table.oid]) for name, table in tables.items()}
        self.known = dict(now if recorded is None else recorded)
        self.tables = {name: table for name, table in tables.items() if name in self.known}
        self._compare(tables, now)

    @property
    def settled(self) -> bool:
        return not self._changes

    # ---- looking ----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare the catalogue with what topics stand for. Where somebody is at a table, the next look will see."""
        seen = self._catalogue.fingerprint()
        if seen != self._seen:
            tables = self._catalogue.selected(self._catalogue.all_tables())
            try:
                members = self._publications.hold(tables.values())
            except (*GONE, errors.LockNotAvailable):
                return
            self._compare(tables, {name: known(table, members[table.oid]) for name, table in tables.items()})
            self._seen = seen
        self.proceed()

    def _compare(self, tables: Mapping[str, TableInfo], now: Mapping[str, Known]) -> None:
        self._note_unidentifiable(tables.values())
        for name in [*self.known, *(each for each in now if each not in self.known)]:
            change = self._change(name, tables.get(name), now.get(name))
            waiting = self._changes.get(name)
            if change is None:
                if waiting is not None and not waiting.is_asked:
                    del self._changes[name]
            elif waiting is None or waiting.now != change.now:
                self._changes[name] = change

    def _change(self, name: str, table: TableInfo | None, now: Known | None) -> Change | None:
        before = self.known.get(name)
        if table is None or now is None:
            return Change(name, "is gone, or no longer chosen", None, None)
        if before is None:
            return Change(name, "is new", table, now, self._writers(table), is_new=True)
        why = what_happened(before, now)
        attached = None
        if why is None or partitions_emptied(before, now):
            attached = self._attached(before, table)
        if why is not None or attached is not None:
            return Change(name, attached or why or "", table, now, self._writers(table), has_attached=bool(attached))
        now = remembering(before, now)
        if now != before:
            self.version += 1
        self.known[name], self.tables[name] = now, table
        self._truncated.pop(table.oid, None)
        return None

    def _attached(self, before: Known, table: TableInfo) -> str | None:
        """Partitions that came with rows. One that is made as a partition is empty, and filled through the log."""
        new = [each.oid for each in table.leaves if each.oid not in before.leaves]
        return "has a new partition with rows" if self._catalogue.came_with_rows(new) else None

    def _writers(self, table: TableInfo) -> set[str]:
        return self._catalogue.writers(table.oids)

    def _note_unidentifiable(self, tables: Iterable[TableInfo]) -> None:
        without = {each.full_name: each for each in tables if not each.changes_identifiable}
        for name in without.keys() - self._noted:
            self._say(self.note(without[name]))
        self._noted = set(without)

    @staticmethod
    def note(table: TableInfo) -> str:
        return (
            f"{table.full_name} has no key that tells its rows apart: only insertions and truncations are captured "
            f"(all of it: ALTER TABLE {table.quoted} REPLICA IDENTITY FULL)"
        )

    # ---- changing over ----------------------------------------------------------------------------------------------

    def ask(self, names: Iterable[str], why: str) -> None:
        """Read these tables again, though they are the same."""
        for name in names:
            if name in self.known and name in self.tables and name not in self._changes:
                table = self.tables[name]
                # What has passed may still be invisible: its writers are waited for, as those of a new table are.
                self._changes[name] = Change(name, why, table, self.known[name], self._writers(table), is_asked=True)

    def truncated(self, oid: int, xid: int) -> None:
        """A truncation of a whole table passes: it announces that its partitions were emptied."""
        self._truncated[oid] = xid

    def is_told(self, change: Change) -> bool:
        """Whether what was found has passed in the stream as well, as a truncation of the whole table.

        A partition may have been filled again and truncated by itself after it, and that does not pass.
        """
        before = self.known.get(change.name)
        if before is None or change.now is None or change.table is None or change.has_attached:
            return False
        xid = self._truncated.get(change.table.oid)
        return change.table.was_emptied_by(xid, before.leaves) and partitions_emptied(before, change.now)

    def proceed(self) -> None:
        """Write the mark of changes whose tables nobody writes to any more that did when they were found."""
        ready = []
        for change in self._changes.values():
            if change.mark is None:
                if change.writers and change.table is not None:
                    change.writers &= self._writers(change.table)
                if not change.writers:
                    ready.append(change)
        if ready:
            self._marks += 1
            content = f"{self._run}:{self._marks}"
            query = sql.SQL("select pg_logical_emit_message(true, {}, {})")
            self._catalogue.connection.execute(query.format(sql.Literal(self.prefix), sql.Literal(content)))
            for change in ready:
                change.mark = self._marks

    def passed(self, content: bytes) -> list[Change]:
        """A mark comes by; gives what changes over here."""
        run, _, number = content.decode().partition(":")
        if run != self._run:
            return []
        return [each for each in self._changes.values() if each.mark == int(number)]

    def done(self, change: Change) -> None:
        """The topic stands for what it has changed over to."""
        del self._changes[change.name]
        self.version += 1
        if change.table is None or change.now is None:
            self.known.pop(change.name, None)
            self.tables.pop(change.name, None)
            return
        self.known[change.name], self.tables[change.name] = change.now, change.table
        self._truncated.pop(change.table.oid, None)
