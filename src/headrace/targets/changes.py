"""The changes that a target is given: rows as they are from now on, in columns, and which of them are gone.

What several changes to one key come to is decided here once, for all targets: the last one counts, or the one with the
highest version, and a value that the database did not send is that of the change before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changes import Flags, Ints, filled, unavailable

__all__ = ["JSON_FIELD", "Changes", "is_json"]

JSON_FIELD = {b"headrace": b"json"}
"""The metadata of a column whose text is JSON."""
POSITION = "__headrace_position"


def is_json(column: pa.Field) -> bool:
    return bool(column.metadata) and column.metadata.get(b"headrace") == b"json"


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows as they are after a change. Of one that is gone (``deleted``) only the key counts.

    A row may lack values that the database did not send (``headrace.changes``): what the target has stays there.
    """

    rows: pa.Table
    deleted: pa.ChunkedArray | None = None  # booleans; None: nothing is gone
    truncates: bool = False
    """Before these, all rows that came so far are gone."""

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def slice(self, start: int, length: int) -> Changes:
        return Changes(
            self.rows.slice(start, length), None if self.deleted is None else self.deleted.slice(start, length)
        )

    def where(self, wanted: pa.ChunkedArray | pa.Array) -> Changes:
        return Changes(self.rows.filter(wanted), None if self.deleted is None else self.deleted.filter(wanted))

    def upserts(self) -> pa.Table:
        return self.rows if self.deleted is None else self.rows.filter(pc.invert(self.deleted))

    def deletes(self) -> pa.Table:
        return self.rows.slice(0, 0) if self.deleted is None else self.rows.filter(self.deleted)

    def last_per_key(self, key: Sequence[str], version: str | None = None, *, partial: bool = False) -> Changes:
        """Of several changes to one key the last, or the one with the highest version; it replaces the others.

        ``partial``: a row that lacks values keeps those that the target has.

        A deletion without a version, such as a tombstone, counts where it stands: it ends the life of a row. What comes
        after it is compared only with what comes after it, and the deletion is kept before it, because the target may
        have a row with a higher version.
        """
        lives, ends = self._lives(key, version) if version else (None, None)
        order = np.arange(len(self)) if version is None else self._by_version(version, lives)
        ranked = self.rows.select(list(key)).take(pa.array(order))
        ranked = ranked.append_column(POSITION, pa.array(np.arange(len(self))))
        last = ranked.group_by(list(key)).aggregate([(POSITION, "max")]).column(f"{POSITION}_max")
        if len(last) == len(self):
            return self
        chosen = order[np.sort(np.asarray(last))]
        kept = pa.array(chosen if ends is None else _with_ends(chosen, ends))
        whole = self._filled(key, order, partial)
        return Changes(whole.rows.take(kept), None if whole.deleted is None else whole.deleted.take(kept))

    def _by_version(self, version: str, lives: Ints | None) -> Ints:
        marked = self.rows.select([version])
        keys = [(version, "ascending", "at_start")]
        if lives is not None:
            marked, keys = marked.append_column(POSITION, pa.array(lives)), [(POSITION, "ascending", "at_end"), *keys]
        return np.asarray(pc.sort_indices(marked, keys), np.int64)

    def _lives(self, key: Sequence[str], version: str) -> tuple[Ints | None, Ints | None]:
        """For each change a number that grows with each deletion of its key without a version, and where the last of
        these stands up to it; -1 is nowhere. None: there are no such deletions."""
        if self.deleted is None:
            return None, None
        ending = np.asarray(self.deleted, np.bool_) & np.asarray(pc.is_null(self.rows.column(version)))
        if not ending.any():
            return None, None
        codes = self._codes(key)
        by_key = np.argsort(codes, kind="stable")
        first = np.searchsorted(codes[by_key], codes[by_key])
        lives, ends = np.empty(len(self), np.int64), np.empty(len(self), np.int64)
        lives[by_key] = np.cumsum(ending[by_key])
        last = np.maximum.accumulate(np.where(ending[by_key], np.arange(len(self)), -1))
        ends[by_key] = np.where(last >= first, by_key[last], -1)
        return lives, ends

    def _codes(self, key: Sequence[str]) -> Ints:
        """A number for the key of each change."""
        names = list(zip(*(self.rows.column(name).to_pylist() for name in key), strict=True))
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return np.fromiter((numbers[name] for name in names), np.int64, len(names))

    def _filled(self, key: Sequence[str], order: Ints, partial: bool) -> Changes:
        """With values that were not sent taken from an earlier change of the same key, where there is one.

        ``partial``: a row that lacks a value after its deletion is a deletion too, because the target has the row that
        was deleted.
        """
        if not any(unavailable(column) is not None for column in self.rows.columns):
            return self
        codes = self._codes(key)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        by_key = np.lexsort((places, codes))
        gone = np.zeros(len(self), np.bool_) if self.deleted is None else np.array(self.deleted, np.bool_)
        columns = [each.combine_chunks() for each in self.rows.combine_chunks().columns]
        whole = pa.StructArray.from_arrays(columns, fields=list(self.rows.schema), mask=pa.array(gone))
        found, lacking = filled(whole.take(pa.array(by_key)), codes[by_key])
        back = np.empty(len(by_key), np.int64)
        back[by_key] = np.arange(len(by_key))
        plain = pa.Table.from_arrays(found.take(pa.array(back)).flatten(), schema=self.rows.schema)
        # Of a deletion the key counts, which a null row does not have.
        for name in key:
            plain = plain.set_column(plain.schema.get_field_index(name), plain.schema.field(name), self.rows[name])
        if self.deleted is None or not partial:
            return Changes(plain, self.deleted)
        gone |= lacking[back] & np.isin(codes, codes[gone])
        return Changes(plain, pa.chunked_array([pa.array(gone)]))

    def whole_and_partial(self) -> tuple[Changes, list[pa.Table]]:
        """The changes that lack nothing, and the other rows, grouped: each table has the columns that are known."""
        lacking = {name: flags for name in self.rows.column_names if (flags := self._lacking(name)) is not None}
        if not lacking:
            return self, []
        anything = np.logical_or.reduce(list(lacking.values()))
        marks = np.stack(list(lacking.values()), axis=1)
        parts = []
        for kind in np.unique(marks[anything], axis=0):
            missing = {name for name, flag in zip(lacking, kind, strict=True) if flag}
            rows = self.rows.filter(pa.array((marks == kind).all(axis=1)))
            parts.append(rows.select([name for name in rows.column_names if name not in missing]))
        return self.where(pa.array(~anything)), parts

    def _lacking(self, column: str) -> Flags | None:
        """Which rows lack a value of the column; deletions lack none."""
        flags = unavailable(self.rows.column(column))
        if flags is None or self.deleted is None:
            return flags
        return flags & ~np.asarray(self.deleted, np.bool_)


def _with_ends(chosen: Ints, ends: Ints) -> Ints:
    """With the deletion before each chosen change, where there is one and it is not the change itself."""
    before = ends[chosen]
    both = np.stack([np.where(before == chosen, -1, before), chosen], axis=1).reshape(-1)
    return both[both >= 0]
