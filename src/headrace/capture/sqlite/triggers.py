"""The triggers that write a table's changes down: their SQL, and why it is as it is.

**What is noted is what is there.** SQLite does not say in which order triggers of one event run, and those of the
application may run first and change the row again: the later change is then noted before the earlier one. So a trigger
notes, for each key that its change touches, the row that has the key *at that moment*, and a deletion only when no row
has it. The last note about a key was made after all changes of it, so it is right, in whatever order they came.
Without a key there is nothing to look up but the rowid. There, a row that is no longer what the trigger was called for
is noted as a gap (``t``), and the table is read again.

**REPLACE** removes the rows that are in the way, and by default calls no trigger for them. A trigger that runs *before*
an insertion or update notes (``m``, maybe) the row that shares a unique value with the new one. With a key, the reader
looks whether it is still there. Without one, the trigger that runs after makes a deletion of the note if it is gone. A
note that has become wrong stays (``w``): it may be the last change that the log has.

**No column is kept from being dropped.** ``ALTER TABLE … DROP COLUMN`` fails when a trigger names the column. A name
that a scope of SQL does not have is looked for in the scope around it; so every name of a column stands inside a scope
that has it in the table or in ``new`` and ``old``, with one around it that has the same name for a constant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.capture.sqlite.file import TableInfo, UniqueIndex, literal, quoted

__all__ = ["GONE", "columns_named", "triggers_of"]

GONE = b"headrace: there is no such column"
VALUE_LENGTH_MAX = 64 * 1024 * 1024
"""Of a text or blob: its hexadecimal digits must be few enough for SQLite, or the application's write would fail."""
_NOW_MS = "cast((julianday('now') - 2440587.5) * 86400000 as integer)"


def triggers_of(table: TableInfo, *, changes: str, shape: int, prefix: str) -> dict[str, str]:
    """The statements that make a table's triggers, by the names of the triggers."""
    made = _Triggers(table, changes, shape)
    bodies = {
        "c": ("after insert", made.inserted()),
        "u": ("after update", made.updated()),
        "d": ("after delete", made.deleted()),
    }
    if made.probes:
        bodies["bi"] = ("before insert", made.before("insert"))
        bodies["bu"] = ("before update", made.before("update"))
    names = {event: f"{prefix}${table.name}${event}" for event in bodies}
    return {
        names[event]: f"create trigger {quoted(names[event])} {when} on {quoted(table.name)} begin {body} end"
        for event, (when, body) in bodies.items()
    }


class _Triggers:
    def __init__(self, table: TableInfo, changes: str, shape: int) -> None:
        self._table = table
        self._name = quoted(table.name)
        self._changes = quoted(changes)
        self._insert = (
            f"insert into {self._changes} (shape, table_name, operation, row_number, old_row, new_row, committed_ms) "
            f"select {shape}, {literal(table.name)},"
        )
        self._of_table = f"table_name = {literal(table.name)}"
        self._rowid = table.rowid and quoted(table.rowid)
        self.probes = self._unique()

    def _unique(self) -> list[UniqueIndex]:
        """What a REPLACE may remove another row for, whose key is not the new row's."""
        table = self._table
        if table.key_is_rowid or self._rowid is None:
            return list(table.unique)
        return [*table.unique, UniqueIndex((self._rowid,))]

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _row(self, which: str) -> str:
        """The text of a row: ``which`` is new or old, or nothing for a row of the table."""
        return _joined([_value_text(f"{which}.{quoted(each)}" if which else quoted(each)) for each in self._columns])

    @property
    def _columns(self) -> tuple[str, ...]:
        return self._table.columns

    def _around(self, *scopes: str) -> str:
        """The scope around others, in which every column is a constant; see the module."""
        names = ", ".join(f"x'{GONE.hex()}' as {quoted(each)}" for each in self._columns)
        return ", ".join(f"(select {names}) as {each}" for each in scopes)

    def _has_key(self, which: str) -> str:
        """The condition that a row of the table has exactly the key of new or old: also of two that compare as
        equal."""
        each = "{0} is {1}.{0} and {0} is {1}.{0} collate binary and typeof({0}) is typeof({1}.{0})"
        names = [quoted(name) for name in self._table.key]
        if names:
            exact = " and ".join(each.format(name, which) for name in names)
            if self._table.key_is_rowid or self._rowid is None:
                return exact
            # Any number of rows may have the same NULL.
            no_null = " and ".join(f"{name} is not null" for name in names)
            return f"{exact} and ({no_null} or {self._rowid} is {which}.{self._rowid})"
        return f"{self._rowid} is {which}.{self._rowid}" if self._rowid else "false"

    def _found(self, what: str, where: str) -> str:
        """Something of the first row of the table for which a condition holds."""
        return f"(select (select {what} from {self._name} where {where} limit 1) from {self._around('here')})"

    def _now(self, which: str) -> str:
        return self._found(self._row(""), self._has_key(which))

    def _is_there(self, which: str) -> str:
        return f"exists (select 1 from {self._name} where {self._has_key(which)})"

    def _same_key(self) -> str:
        each = (
            "(select old.{0} is new.{0} and old.{0} is new.{0} collate binary and typeof(old.{0}) is typeof(new.{0}))"
        )
        names = [quoted(name) for name in self._table.key] or ([self._rowid] if self._rowid else [])
        return "(" + (" and ".join(each.format(name) for name in names) or "true") + ")"

    # ---- tables with a key ------------------------------------------------------------------------------------------

    def inserted(self) -> str:
        if not self._table.key:
            return self._inserted_without_key()
        return f"{self._insert} 'c', null, null, {self._now('new')}, {_NOW_MS};"

    def updated(self) -> str:
        if not self._table.key:
            return self._updated_without_key()
        # Of a row that kept its key: what it was, if it is still there. Of one that did not: if nothing took its place.
        old = f"case when {self._same_key()} is {self._is_there('old')} then (select {self._row('old')}) end"
        return f"{self._insert} 'u', null, {old}, {self._now('new')}, {_NOW_MS} from {self._around('old')};"

    def deleted(self) -> str:
        if not self._table.key:
            return self._deleted_without_key()
        return (
            f"{self._insert} 'd', null, (select {self._row('old')}), null, {_NOW_MS} from {self._around('old')} "
            f"where not {self._is_there('old')};"
        )

    # ---- tables without ---------------------------------------------------------------------------------------------

    def _inserted_without_key(self) -> str:
        operation = self._unless_changed("'c'", f"{self._now('new')} is (select {self._row('new')})")
        return (
            f"{self._insert} {operation}, null, null, (select {self._row('new')}), {_NOW_MS} "
            f"from {self._around('new')};" + self._displaced("true")
        )

    def _updated_without_key(self) -> str:
        right = f"{self._now('new')} is (select {self._row('new')})"
        if self._rowid:
            right += f" and ({self._same_key()} or not {self._is_there('old')})"
        operation = self._unless_changed("'u'", right)
        return (
            f"{self._insert} {operation}, null, (select {self._row('old')}), "
            f"(select {self._row('new')}), {_NOW_MS} from {self._around('old', 'new')};"
            + self._not_displaced()
            + self._displaced(f"not {self._same_key()}")
        )

    def _deleted_without_key(self) -> str:
        operation = self._unless_changed("'d'", f"not {self._is_there('old')}")
        return (
            f"{self._insert} {operation}, null, (select {self._row('old')}), null, {_NOW_MS} "
            f"from {self._around('old')};" + self._not_displaced()
        )

    def _unless_changed(self, operation: str, condition: str) -> str:
        return f"case when {condition} then {operation} else 't' end" if self._rowid else operation

    def _displaced(self, took_rowid: str) -> str:
        """Rows that were in the way and are gone: their notes become deletions.

        A note of the rowid that the new row has is of the row that had it before, or of the new row itself: a trigger
        of the application that ran first may have tried to insert the same again, and ignored the conflict. Where the
        noted row looks like the new one it may be either, and the note becomes a gap.
        """
        if not self.probes or not self._rowid:
            return ""
        number = f"{self._changes}.row_number"
        gone = f"not exists (select 1 from {self._name} where {self._rowid} = {number})"
        is_either = f"{number} is new.{self._rowid} and {self._changes}.old_row is {self._now('new')}"
        return (
            f" update {self._changes} set operation = case when {is_either} then 't' else 'd' end "
            f"where operation = 'm' and {self._of_table} "
            f"and ({number} is new.{self._rowid} and {took_rowid} or {gone});"
        )

    def _not_displaced(self) -> str:
        if not self.probes or not self._rowid:
            return ""
        return (
            f" update {self._changes} set operation = 'w' where operation = 'm' and {self._of_table} "
            f"and row_number is old.{self._rowid};"
        )

    # ---- before a change --------------------------------------------------------------------------------------------

    def before(self, event: str) -> str:
        """Notes of rows that a REPLACE would remove."""
        return " ".join(self._probe(each, event) for each in self.probes)

    def _probe(self, index: UniqueIndex, event: str) -> str:
        as_new = ", ".join(f"new.{quoted(each)} as {quoted(each)}" for each in self._columns)
        equal = [
            f"{term} = new.{term}" if term == self._rowid else f"{term} = (select {term} from (select {as_new}))"
            for term in index.terms
        ]
        if index.condition:
            equal.append(f"({index.condition})")
        if self._table.key:
            equal.append(f"not ({self._has_key('new')})")
        if event == "update":
            equal.append(f"not ({self._has_key('old')})")
        where = " and ".join(equal)
        scopes = self._around("new") if event == "insert" else self._around("new", "old")
        number, forget = "null", ""
        if self._rowid and not self._table.key:
            number = self._found(self._rowid, where)
            forget = (
                f"update {self._changes} set operation = 'w' where operation = 'm' and {self._of_table} "
                f"and row_number is (select {number} from {scopes}); "
            )
        return (
            f"{forget}{self._insert} 'm', number, found, null, {_NOW_MS} from "
            f"(select {self._found(self._row(''), where)} as found, {number} as number from {scopes}) "
            "where found is not null;"
        )


def _value_text(value: str) -> str:
    """A value as a letter and its text; see ``values``."""
    limited = f"case when length({value}) > {VALUE_LENGTH_MAX} then 'l' else '{{}}' || hex({value}) end"
    return (
        f"case typeof({value}) when 'null' then 'n' when 'integer' then 'i' || {value} "
        f"when 'real' then 'r' || printf('%!.20g', {value}) when 'text' then {limited.format('t')} "
        f"else {limited.format('b')} end"
    )


_NAMED = re.compile(r'case typeof\(old\."((?:[^"]|"")*)"\)')


def columns_named(text: str) -> tuple[str, ...]:
    """The columns of a row that the text of the trigger for deletions names. RENAME COLUMN changes them there."""
    return tuple(each.replace('""', '"') for each in _NAMED.findall(text))


def _joined(parts: Sequence[str]) -> str:
    """Texts with commas between, as a balanced tree: SQLite limits the depth of an expression."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return f"({_joined(parts[:middle])}) || ',' || ({_joined(parts[middle:])})"
