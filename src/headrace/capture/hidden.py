"""Columns that a user wants hidden are hidden, or capture does not run.

**At the start**, a mask that matches no column of a captured table is refused, and so is any other column that is named
and not there: a misspelled name would show what it should hide. A pattern of columns to leave out may match nothing.

**While capture runs**, a column may be renamed, and no pattern matches its new name. So which columns of a table were
hidden is part of the capture's state, and with every shape of the table they are looked for. Where one is missing and a
column is new that nothing hides, that may be the same column: capture stops. A column that was only dropped is
reported. Names can also be exchanged. A database keeps the order of a table's columns. Where a column that nothing
hides stands in the place of a hidden one, the two may have exchanged their names: capture stops too.

**Changes from before** may still come in a shape that has the old name, while the options know only the new one. A
column that the table does not have any more stays hidden as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from headrace.capture.columns import Mask, is_shown
from headrace.capture.envelope import Table
from headrace.capture.options import CaptureOptions
from headrace.capture.patterns import is_pattern, matches
from headrace.errors import UsageError

__all__ = ["Columns", "HiddenColumns", "check_columns"]

Columns = Mapping[str, Sequence[str]]
"""The columns of each captured table, by its full name."""
Rule = list[str]
"""The pattern that hides a column, and its mask; no mask: it is left out."""


def check_columns(options: CaptureOptions, columns: Columns) -> list[str]:
    """Refuse names of columns that are not there; notes for the user come back. The options must be ``qualified``."""
    for how in options.masks.values():
        Mask(how).check()
    names = [f"{table}.{name}" for table, found in columns.items() if table != options.outbox for name in found]
    for option, patterns in (
        ("--mask", options.masks),
        ("--include-columns", options.include_columns),
        ("--exclude-columns", options.exclude_columns),
        ("--key-columns", [f"{table}.{name}" for table, chosen in options.key_columns.items() for name in chosen]),
    ):
        for each in _unmatched(patterns, names):
            if option in ("--mask", "--key-columns") or not is_pattern(each):
                raise UsageError(f"{option} {each} matches no column of a captured table", _near(each, names))
    loose = _unmatched((*options.include_columns, *options.exclude_columns), names)
    return [f"no column matches {each} yet" for each in loose]


def _unmatched(patterns: Iterable[str], names: Sequence[str]) -> list[str]:
    return [each for each in patterns if not any(matches(each, name) for name in names)]


def _near(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, n=3)
    return f"the nearest: {', '.join(near)}" if near else "write SCHEMA.TABLE.COLUMN, or a pattern of it"


@dataclass(slots=True)
class _Known:
    """What was hidden and what was shown of a table. ``past``: hidden columns that its last shape did not have.
    ``order``: the columns of its last shape."""

    hidden: dict[str, list[Rule]] = field(default_factory=dict)
    past: dict[str, list[Rule]] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)


class HiddenColumns:
    """The hidden columns of one capture; see the module."""

    def __init__(self, options: CaptureOptions, recorded: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """``options`` are those of the user, ``qualified``; ``recorded`` is what ``state`` gave."""
        self._options = self._effective = options
        self._say = say
        self._tables = {name: _Known(**each) for name, each in recorded.items()}

    def state(self) -> dict[str, Any]:
        return {name: asdict(each) for name, each in self._tables.items()}

    def accept_order(self) -> None:
        """The user begins again with the columns as they are called now."""
        for each in self._tables.values():
            each.order = []

    def kept(self, options: CaptureOptions, columns: Columns) -> CaptureOptions:
        """The options, with columns hidden that the tables do not have any more."""
        masks, excluded = dict(options.masks), list(options.exclude_columns)
        for table, known in self._tables.items():
            for name, rules in (known.past | known.hidden).items():
                full_name = f"{table}.{name}"
                if name in columns.get(table, ()):
                    continue
                for _, how in rules:
                    if how:
                        masks.setdefault(full_name, how)
                    elif full_name not in excluded:
                        excluded.append(full_name)
        return replace(options, masks=masks, exclude_columns=tuple(excluded))

    def begin(self, columns: Columns) -> None:
        self._effective = self.kept(self._options, columns)

    def check(self, table: Table) -> None:
        """Called before there are events of a table in a shape that may be new."""
        names = [each.name for each in table.columns]
        rules = {name: self._rules(f"{table.full_name}.{name}") for name in names}
        hidden = {name: found for name, found in rules.items() if found}
        shown = [name for name in names if not rules[name] and self._is_included(f"{table.full_name}.{name}")]
        known = self._tables.get(table.full_name)
        if known is None:
            if hidden:
                self._tables[table.full_name] = _Known(hidden, {}, shown, names)
            return
        self._refuse_exchanged(table.full_name, known, names, hidden)
        new = [name for name in shown if name not in {*known.shown, *known.hidden, *known.past}]
        gone = [name for name, found in known.hidden.items() if name not in names and self._is_wanted(found)]
        self._judge(table.full_name, gone, new)
        past = {name: found for name, found in (known.past | known.hidden).items() if name not in names}
        self._tables[table.full_name] = _Known(hidden, past, list(dict.fromkeys([*known.shown, *shown])), names)

    def _refuse_exchanged(
        self, table: str, known: _Known, names: Sequence[str], hidden: Mapping[str, list[Rule]]
    ) -> None:
        before = [each for each in known.order if each in names]
        now = [each for each in names if each in known.order]
        for old, new in zip(before, now, strict=True):
            if old != new and old in known.hidden and new not in hidden and self._is_wanted(known.hidden[old]):
                raise UsageError(
                    f"{table} has the column {new}, which nothing hides, where the hidden column {old} was: they may "
                    "have exchanged their names",
                    f"hide both (--mask {table}.{new}=…) with 'headrace capture add'; or, where the columns only "
                    "changed places, run once with --resnapshot",
                )

    def _judge(self, table: str, gone: list[str], new: list[str]) -> None:
        if gone and new:
            raise UsageError(
                f"{table} does not have the hidden column {', '.join(gone)} any more, and has {', '.join(new)}, which "
                "nothing hides: it may be the same column, renamed",
                f"hide it (--mask {table}.{new[0]}=…), or no longer ask for {gone[0]} where it may be shown, with "
                "'headrace capture add'; then run it again",
            )
        if gone:
            self._say(f"{table} does not have the hidden column {', '.join(gone)} any more")
        elif new:
            self._say(f"{table} has hidden columns, and its new column {', '.join(new)} is not one of them")

    def _rules(self, column: str) -> list[Rule]:
        options = self._effective
        masks = [[each, how] for each, how in options.masks.items() if matches(each, column)]
        return masks[:1] + [[each, ""] for each in options.exclude_columns if matches(each, column)][:1]

    def _is_included(self, column: str) -> bool:
        return is_shown(column, self._effective.include_columns, ())

    def _is_wanted(self, rules: list[Rule]) -> bool:
        """Whether the user still asks for it."""
        return any(each in self._options.masks or each in self._options.exclude_columns for each, _ in rules)
