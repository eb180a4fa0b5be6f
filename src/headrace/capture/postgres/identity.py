"""Which table each topic stands for, kept with the position; and what has become of it since.

A table of a captured name is *another one* when its OID differs: dropped and made again, or swapped by renaming. It is
the same one, but with *other contents than the server's log tells*, when

- it was out of the publication for a time,
- a partition was attached, detached, truncated or rewritten by itself,
- a column was added with a value for old rows, renamed, or given another type: old rows changed, and none was logged,
- the table was rewritten with other values in a column of the same type (``ALTER … TYPE … USING``, ``SET EXPRESSION``),
- a generated column became an ordinary one, which is captured with the values that it has,
- a column was dropped and another one added under its name: rows in the topic still have the values of the old one,
- a value of an enum was renamed, or a composite type has got or lost a column: rows that have it look other than
  before,
- its key changed: rows in the topic have the old one.

In each case the topic needs a truncation and a new snapshot. What the catalogue does not distinguish from such a
change counts as one: a partition that VACUUM FULL has rewritten looks like one that was truncated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.capture.postgres.catalogue import TableInfo

__all__ = ["Known", "known", "partitions_emptied", "remembering", "what_happened"]

VARCHAR, NUMERIC = 1043, 1700
"""A longer or shorter one of these writes old values as before, unless the table is rewritten."""


@dataclass(frozen=True, slots=True)
class Known:
    """A table as it was when its topic began, or when it was last looked at."""

    schema: str
    name: str
    oid: int
    member: int
    key: tuple[str, ...]
    file: int
    leaves: Mapping[int, int]
    shape: tuple[tuple[Any, ...], ...]
    dropped: tuple[str, ...] = ()
    """Columns that the table has lost since its topic began: rows in the topic may still have their values."""
    labels: Mapping[int, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "name": self.name,
            "oid": self.oid,
            "member": self.member,
            "key": list(self.key),
            "file": self.file,
            "leaves": [[oid, file] for oid, file in self.leaves.items()],
            "shape": [list(each) for each in self.shape],
            "dropped": list(self.dropped),
            "labels": [[number, label] for number, label in self.labels.items()],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Known:
        return cls(
            values["schema"],
            values["name"],
            values["oid"],
            values["member"],
            tuple(values["key"]),
            values["file"],
            dict(values["leaves"]),
            tuple(tuple(each) for each in values["shape"]),
            tuple(values.get("dropped", ())),
            dict(values.get("labels", ())),
        )


def known(table: TableInfo, member: int) -> Known:
    leaves = {each.oid: each.file for each in table.leaves}
    shape = tuple(tuple(each) for each in table.shape)
    key, labels = tuple(table.key), dict(table.labels)
    return Known(table.schema, table.name, table.oid, member, key, table.file, leaves, shape, labels=labels)


def what_happened(before: Known, now: Known) -> str | None:
    """Why the topic no longer stands for the table; None: it does."""
    if before.oid != now.oid:
        return "is another table now: it was dropped and made again, or another one was renamed"
    if before.member != now.member:
        return "was not published for a time, or not with all of its changes"
    if before.key != now.key:
        shown = [", ".join(each) or "none" for each in (before.key, now.key)]
        return f"has another key: {shown[1]} and no longer {shown[0]}"
    return _partitions(before, now) or _columns(before, now) or _values(before, now)


def _values(before: Known, now: Known) -> str | None:
    for number, label in now.labels.items():
        if before.labels.get(number, label) == label:
            continue
        if number < 0:
            return "has a column of a composite type that has other columns now"
        return f"has the value {label} of an enum that was {before.labels[number]}"
    return None


def _partitions(before: Known, now: Known) -> str | None:
    if before.leaves.keys() - now.leaves.keys():
        return "has lost a partition with its rows"
    if any(before.leaves[oid] != file for oid, file in now.leaves.items() if oid in before.leaves):
        return "has a partition that was truncated or rewritten by itself"
    return None


def _columns(before: Known, now: Known) -> str | None:
    rewritten = before.file != now.file
    then = {each[0]: (*each, None) for each in before.shape}  # earlier versions did not keep who changed a column
    lost = {*before.dropped, *_lost(before, now)}
    for number, name, kind, modifier, is_filled, changed_by in now.shape:
        if number not in then:
            if is_filled or rewritten:
                return f"has a new column {name} with values in rows from before"
            if name in lost:
                return f"has a new column {name}, and another one of that name was dropped"
            continue
        _, old_name, old_kind, old_modifier, was_filled, old_changed_by, *_ = then[number]
        if name != old_name:
            return f"has the column {name} that was {old_name}"
        if kind != old_kind:
            return f"has another type in column {name}"
        if modifier != old_modifier and (rewritten or kind not in (VARCHAR, NUMERIC)):
            return f"has another precision in column {name}"
        if rewritten and old_changed_by not in (None, changed_by):
            return f"was rewritten, perhaps with other values in column {name}"
        if was_filled and not is_filled and not rewritten:
            return f"has the column {name}, which was generated and is not any more"
    return None


def _lost(before: Known, now: Known) -> list[str]:
    numbers = {each[0] for each in now.shape}
    return [name for number, name, *_ in before.shape if number not in numbers]


def remembering(before: Known, now: Known) -> Known:
    """The same table as it is now, with the columns that it has lost since its topic began."""
    return replace(now, dropped=tuple(dict.fromkeys([*before.dropped, *_lost(before, now)])))


def partitions_emptied(before: Known, now: Known) -> bool:
    """Whether all that has happened is what a truncation of the whole table does to its partitions."""
    same = replace(before, file=now.file, leaves=now.leaves, shape=now.shape, dropped=(), labels=now.labels) == now
    return same and bool(before.leaves) and all(now.leaves.get(oid) != file for oid, file in before.leaves.items())
