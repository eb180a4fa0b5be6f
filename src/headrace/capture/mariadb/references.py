"""Foreign keys that change rows: what ON DELETE or ON UPDATE does to the rows of a child is not in the binlog.

Only the change of the parent is. So a child is read again after each change of a parent that may have changed it, which
is any deletion, and an update of the columns that it refers to. Its children in turn may have changed too.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.capture.mariadb.binlog import Change
from headrace.capture.mariadb.catalogue import Catalogue

__all__ = ["References"]


class Reference(NamedTuple):
    """``column`` is one of the parent's that ``child`` refers to."""

    column: str
    child: str
    on_delete: bool
    on_update: bool


class References:
    """Those into the captured database, as the catalogue shows them now."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._of_parent: dict[str, list[Reference]] = {}

    def look(self) -> None:
        schema = self._catalogue.settings["database"]
        found: dict[str, list[Reference]] = {}
        for parent_schema, parent, column, child, on_delete, on_update in self._catalogue.references():
            reference = Reference(column, f"{schema}.{child}", on_delete, on_update)
            found.setdefault(f"{parent_schema}.{parent}", []).append(reference)
        self._of_parent = found

    def is_parent(self, name: str) -> bool:
        return name in self._of_parent

    def changed_by(self, change: Change) -> set[str]:
        """Tables whose rows may be others after this change."""
        found: set[str] = set()
        for each in self._of_parent.get(f"{change.shape.schema}.{change.shape.table}", ()):
            if _concerns(each, change):
                self._add(each.child, found)
        return found

    def _add(self, name: str, found: set[str]) -> None:
        if name not in found:
            found.add(name)
            for each in self._of_parent.get(name, ()):
                self._add(each.child, found)


def _concerns(reference: Reference, change: Change) -> bool:
    if change.event.operation == "delete":
        return reference.on_delete
    if change.event.operation == "insert" or not reference.on_update:
        return False
    names = [each.name for each in change.shape.columns]
    if reference.column not in names:
        return True
    place = names.index(reference.column)
    return any(old[place] != new[place] for old, new in zip(change.rows[::2], change.rows[1::2], strict=True))
