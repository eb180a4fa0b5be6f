"""The table of changes in the file: made, watched, read and emptied here.

    _headrace_<name>           change_id, shape, table_name, operation, row_number, old_row, new_row, committed_ms,
                               token
    _headrace_<name>$shapes    shape, table_name, described: the columns that a change's values belong to
    _headrace_<name>$made      a view that was made after the triggers, see below

SQLite has one writer at a time, so the numbers of changes (``AUTOINCREMENT``) are in the order of commits, and what a
reader sees has no gap that could still be filled. Operations are c, u and d, m for a row that may have been displaced
(see ``triggers``), t for a gap, and w for what says nothing.

**The witness.** The last change that the log has stays in the table, with its random token, which the log has too. An
older copy of the file, or one that went another way, does not have it.

**Gaps.** What was written while a table had no triggers, or triggers that did not know a column, is not known. When the
triggers are made again, that is noted as a gap in the same transaction: no kill can come between. A table that is
dropped loses its triggers, one that is renamed takes them along, so either is found by its triggers.

**Triggers that were put back.** A migration may drop triggers, write, and make them again as they were (SQLite's own
recommendation for other changes of a schema). SQLite lists triggers and views in the order in which they were made,
also after a VACUUM; so capture makes a view after its triggers, and triggers that come after the view were put back.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.capture.sqlite.file import SqliteFile, TableInfo, literal, quoted
from headrace.capture.sqlite.triggers import GONE, columns_named, triggers_of

__all__ = ["Change", "ChangeTable", "Comparison", "Shape", "Triggers"]

READ_CHANGES_MAX = 10_000
_COLUMNS = (
    "change_id integer primary key autoincrement, shape integer, table_name text not null, operation text not null, "
    "row_number integer, old_row text, new_row text, committed_ms integer not null, "
    "token integer not null default (random())"
)


class Shape(NamedTuple):
    """What a table was like when its triggers were made."""

    number: int
    table: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]


class Change(NamedTuple):
    number: int
    shape: int
    table: str
    operation: str
    old_row: str | None
    new_row: str | None
    committed_ms: int
    token: int


@dataclass(slots=True)
class Triggers:
    """The triggers of one table as they are and as they should be."""

    table: TableInfo
    shape: int
    wanted: dict[str, str]
    found: dict[str, str] = field(default_factory=dict)
    known: Shape | None = None
    """What the table was like when they were made."""
    named: tuple[str, ...] = ()
    """The columns that they name now."""
    dropped: frozenset[str] = frozenset()
    """Columns that the table once had; rows of the topic may still have them."""
    were_put_back: bool = False
    run_late: bool = False
    """A trigger of the application was made later, and runs before ours."""

    @property
    def are_lost(self) -> bool:
        """Changes may have been made that no trigger saw."""
        after = [name for name, text in self.wanted.items() if " after " in text]
        return self.were_put_back or not all(name in self.found for name in after)

    @property
    def columns_changed(self) -> str | None:
        """Why rows that were not written since look other than they were captured; None: they do not."""
        before, now = self.known, self.table
        if before is None or not self.found:
            return None
        if before.key != now.key or self.named != before.columns:
            return "has a column with another name than before"
        kept = [name for name in now.columns if name in before.columns]
        types = dict(zip(now.columns, now.types, strict=True))
        if kept != [name for name in before.columns if name in kept] or any(
            kind != types[name] for name, kind in zip(before.columns, before.types, strict=True) if name in kept
        ):
            return "has a column that was dropped and made again"
        added = [name for name in now.columns if name not in kept]
        if any(name in self.dropped for name in added):
            return "has a column that was dropped and made again"
        if any(name in now.filled for name in added):
            return "has a new column with values in rows from before"
        if not now.key and before.columns != now.columns:
            return "has no key and other columns than before"  # by which its rows are known
        return None

    @property
    def are_other(self) -> bool:
        # Its own spelling of the first words is all that SQLite changes in a statement.
        return {name: text.lower() for name, text in self.found.items()} != {
            name: text.lower() for name, text in self.wanted.items()
        }

    @property
    def are_wrong(self) -> bool:
        return self.are_lost or self.are_other or self.run_late


@dataclass(slots=True)
class Comparison:
    """The triggers of all tables, and what has to be made besides."""

    triggers: dict[str, Triggers] = field(default_factory=dict)
    new_shapes: dict[int, TableInfo] = field(default_factory=dict)
    unwanted: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[Triggers]:
        return [each for each in self.triggers.values() if each.are_wrong]

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.new_shapes or self.unwanted)


class StoredShape(NamedTuple):
    """A row of the table of shapes."""

    number: int
    table: str
    described: str


def _described(table: TableInfo) -> str:
    return json.dumps([table.columns, table.types, table.key])


class ChangeTable:
    """One capture's table of changes, with its triggers; see the module."""

    def __init__(self, file: SqliteFile, name: str) -> None:
        self._file = file
        self.name = f"_headrace_{name}"
        self._quoted = quoted(self.name)
        self._shapes = quoted(f"{self.name}$shapes")
        self._view = f"{self.name}$made"
        self._inserts = f"insert into {self._quoted} ("

    # ---- making -----------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return self._columns() == [each.split()[0] for each in _COLUMNS.split(", ")]

    def _columns(self) -> list[str]:
        return [row[0] for row in self._file.run("select name from pragma_table_info(?)", self.name)]

    def make(self) -> None:
        """The tables, where they are missing; one of an earlier version of headrace is replaced."""
        if self.exists:
            return
        self._file.run(f"drop table if exists {self._quoted}")
        self._file.run(f"create table {self._quoted} ({_COLUMNS})")
        for operation in "mt":
            index = quoted(f"{self.name}${operation}")
            columns = "(table_name, row_number)"
            self._file.run(f"create index {index} on {self._quoted} {columns} where operation = '{operation}'")
        self._file.run(
            f"create table if not exists {self._shapes} (shape integer primary key, table_name text not null, "
            "described text not null)"
        )

    def compare(self, tables: Mapping[str, TableInfo]) -> Comparison:
        """Compare the triggers of every table with what they should be; nothing is changed."""
        found = Comparison()
        shapes = self._all_shapes()
        numbers = {(each.table, each.described): each.number for each in reversed(shapes)}
        highest = max((each.number for each in shapes), default=0)
        newest_others = self._newest_others()
        for name, table in tables.items():
            number = numbers.get((table.name, _described(table)))
            if number is None:
                number = highest + len(found.new_shapes) + 1
                found.new_shapes[number] = table
            wanted = triggers_of(table, changes=self.name, shape=number, prefix=self.name)
            found.triggers[name] = Triggers(table, number, wanted)
        columns_ever: dict[str, set[str]] = {}
        for shape in shapes:
            columns_ever.setdefault(shape.table, set()).update(json.loads(shape.described)[0])
        view = self._file.one("select rowid from sqlite_schema where type = 'view' and name = ?", self._view)
        for name, on_table, text, place in self._own_triggers():
            each = found.triggers.get(on_table)
            if each is None or name not in each.wanted:
                # A table that is renamed takes its triggers along, and they would write under its old name.
                found.unwanted.append(name)
                continue
            each.found[name] = text
            self._recognise(each, name, text, columns_ever)
            each.were_put_back |= view is None or place > view
            each.run_late |= place < newest_others.get(on_table, -1)
        return found

    def _recognise(
        self, triggers: Triggers, name: str, text: str, columns_ever: Mapping[str, AbstractSet[str]]
    ) -> None:
        """Which columns the triggers were made for, and which they name now; the one for deletions has both."""
        made_for = re.search(rf"select (\d+), {re.escape(literal(triggers.table.name))},", text)
        if name.endswith("$d") and made_for:
            triggers.known = self.shape(int(made_for[1]))
            triggers.named = columns_named(text)
            triggers.dropped = frozenset(columns_ever.get(triggers.table.name, set()) - set(triggers.known.columns))

    def _newest_others(self) -> dict[str, int]:
        """By table, where the newest trigger of the application stands; SQLite runs those first that were made last."""
        query = (
            "select tbl_name, max(rowid) from sqlite_schema where type = 'trigger' "
            "and name not like '\\_headrace\\_%' escape '\\' group by tbl_name"
        )
        return dict(self._file.run(query))

    def repair(self, compared: Comparison) -> None:
        """Make wrong triggers again, and the view after them."""
        for number, table in compared.new_shapes.items():
            self._file.run(
                f"insert into {self._shapes} (shape, table_name, described) values (?, ?, ?)",
                number,
                table.name,
                _described(table),
            )
        for name in compared.unwanted:
            self._file.run(f"drop trigger {quoted(name)}")
        for each in compared.wrong:
            for name in each.found:
                self._file.run(f"drop trigger {quoted(name)}")
            for text in each.wanted.values():
                self._file.run(text)
        if compared.wrong:
            self._file.run(f"drop view if exists {quoted(self._view)}")
            self._file.run(
                f"create view {quoted(self._view)} as select 'the triggers of this capture were made before'"
            )

    def _own_triggers(self) -> list[tuple[Any, ...]]:
        """Name, table, text and place; known by what they write to: the name of a capture may begin as another's."""
        query = "select name, tbl_name, sql, rowid from sqlite_schema where type = 'trigger' and instr(sql, ?)"
        return self._file.run(query, self._inserts)

    def drop(self) -> list[str]:
        triggers = [row[0] for row in self._own_triggers()]
        with self._file.transaction("begin immediate"):
            for name in triggers:
                self._file.run(f"drop trigger {quoted(name)}")
            self._file.run(f"drop view if exists {quoted(self._view)}")
            for table in (self._shapes, self._quoted):
                self._file.run(f"drop table if exists {table}")
        return [f"table {self.name}", *(f"trigger {name}" for name in triggers)]

    # ---- shapes -----------------------------------------------------------------------------------------------------

    def _all_shapes(self) -> list[StoredShape]:
        query = f"select shape, table_name, described from {self._shapes} order by shape"
        return [StoredShape(*row) for row in self._file.run(query)]

    def shape(self, number: int) -> Shape:
        query = f"select table_name, described from {self._shapes} where shape = ?"
        table, described = self._file.run(query, number)[0]
        return Shape(number, table, *map(tuple, json.loads(described)))

    def latest_shape(self, table: str) -> int | None:
        number: int | None = self._file.one(f"select max(shape) from {self._shapes} where table_name = ?", table)
        return number

    # ---- notes ------------------------------------------------------------------------------------------------------

    def newest(self) -> int:
        if not self.exists:
            return 0
        return int(self._file.one("select seq from sqlite_sequence where name = ?", self.name) or 0)

    def witness(self, number: int) -> int | None:
        """The token of a change; None: there is no such change."""
        if not self.exists:
            return None
        token: int | None = self._file.one(f"select token from {self._quoted} where change_id = ?", number)
        return token

    def note_witness(self, above: int) -> tuple[int, int]:
        """A change that says nothing, with a number above those that the log knows; its number and token."""
        number = max(self.newest(), above) + 1
        self._note(number, "", "w")
        return number, self.witness(number) or 0

    def note_gap(self, table: str) -> None:
        self._note(None, table, "t")

    def _note(self, number: int | None, table: str, operation: str) -> None:
        self._file.run(
            f"insert into {self._quoted} (change_id, table_name, operation, committed_ms) "
            f"values (?, {literal(table)}, '{operation}', ?)",
            number,
            time.time_ns() // 1_000_000,
        )

    def has_unread(self, table: str, after: int) -> bool:
        query = f"select 1 from {self._quoted} where change_id > ? and table_name = ? and operation <> 't' limit 1"
        return bool(self._file.run(query, after, table))

    def has_lacked_column(self, table: str, after: int) -> bool:
        """Whether a row was written while the table had not all columns, with no gap after it."""
        query = (
            f"select 1 from {self._quoted} where change_id > max(?, coalesce((select max(change_id) "
            f"from {self._quoted} where operation = 't' and table_name = ?), 0)) and table_name = ? "
            "and instr(coalesce(old_row, '') || ',' || coalesce(new_row, ''), ?) limit 1"
        )
        return bool(self._file.run(query, after, table, table, f"b{GONE.hex().upper()}"))

    # ---- reading ----------------------------------------------------------------------------------------------------

    def changes(self, after: int) -> Generator[Change, None, None]:
        """Up to READ_CHANGES_MAX of them."""
        query = (
            "select change_id, coalesce(shape, 0), table_name, operation, old_row, new_row, committed_ms, token "
            f"from {self._quoted} where change_id > ? order by change_id limit {READ_CHANGES_MAX}"
        )
        for row in self._file.each(query, after):
            yield Change(*row)

    def last_gaps(self) -> dict[str, int]:
        """The number of the last gap of every table that has one."""
        query = f"select table_name, max(change_id) from {self._quoted} where operation = 't' group by table_name"
        return dict(self._file.run(query))

    def waiting(self) -> tuple[int, int | None]:
        """The last change that the log has, and the time of the first that it does not have."""
        (position,) = self._file.run(f"select coalesce(min(change_id), 0) from {self._quoted}")[0]
        query = f"select min(committed_ms) from {self._quoted} where change_id > ?"
        return position, self._file.one(query, position)

    def forget(self, before: int) -> bool:
        """The log has these changes. False: somebody is writing at this moment; they are forgotten later."""
        if not self._file.run(f"select 1 from {self._quoted} where change_id < ? limit 1", before):
            return True
        return self._file.try_run(f"delete from {self._quoted} where change_id < ?", before)
