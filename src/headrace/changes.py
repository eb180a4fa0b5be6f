"""What a change of a table is, and what it does to rows, in Arrow and without Spark.

A change has one of five forms, from capture to sink:

    insert, update, delete    of one row; ``after`` is the row from now on, null when it is gone
    truncate                  of all rows that came before it in its topic, which has one partition
    truncate_partition        of all rows that came before it in its partition; there is one in every partition

The offsets of a partition are the order of its changes, and there is no order between partitions. So a truncation
removes the rows of its *lane* (topic and partition) whose position is lower, and nothing else.

A value may be *unavailable*: PostgreSQL does not send a large value again that an update did not touch (TOAST), and
Debezium and capture write a stand-in for it. That stand-in is the one encoding of such a value. It can stand in
columns of text, bytes and arrays of text, and everything that keeps rows replaces it by the value of the row before
(``filled``). A row that is still incomplete then is not shown to anybody: its first complete version comes later, with
the snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.vocabulary import UNAVAILABLE

__all__ = [
    "TRUNCATE",
    "TRUNCATE_PARTITION",
    "WEIGHT",
    "Flags",
    "Ints",
    "Newest",
    "PlacedRows",
    "Truncations",
    "filled",
    "incomplete",
    "newest",
    "sources_of",
    "unavailable",
]

TRUNCATE = "truncate"
TRUNCATE_PARTITION = "truncate_partition"
WEIGHT = "_weight"
"""The column of ``hr.deltas``: 1 for a row that came, −1 for a row that went."""
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Truncations:
    """Where tables were emptied: lanes and positions."""

    lanes: Ints
    positions: Ints

    def remove(self, lanes: Ints, positions: Ints) -> Flags:
        """Which rows of these places are gone."""
        last: dict[int, int] = {}
        for lane, position in zip(self.lanes.tolist(), self.positions.tolist(), strict=True):
            last[lane] = max(position, last.get(lane, position))
        gone = np.zeros(len(lanes), np.bool_)
        for lane, position in last.items():
            gone |= (lanes == lane) & (positions < position)
        return gone


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Rows with the number of their key and their place; a null row is a deletion."""

    rows: pa.StructArray
    codes: Ints
    lanes: Ints
    positions: Ints


@dataclass(frozen=True, slots=True)
class Newest:
    """The row of each key after a batch; null where there is none."""

    rows: pa.StructArray
    chosen: Ints
    """Which of the rows it is: held ones first, then those of the batch."""
    incomplete: Flags
    """Where a value was never sent."""


def newest(held: pa.StructArray, held_lanes: Ints, batch: PlacedRows, truncations: Truncations) -> Newest:
    """What a batch leaves of each key. ``held`` has a row or a null per key, all of them older than the batch."""
    count = len(held)
    codes = np.r_[np.arange(count), batch.codes]
    lanes = np.r_[held_lanes, batch.lanes]
    positions = np.r_[np.full(count, np.iinfo(np.int64).min), batch.positions]
    order = np.lexsort((positions, codes))
    gone = truncations.remove(lanes, positions)
    rows, lacking = filled(pa.concat_arrays([held, batch.rows]).take(pa.array(order, mask=gone[order])), codes[order])
    last = np.flatnonzero(np.r_[np.diff(codes[order]) != 0, True]) if count else order
    return Newest(rows.take(pa.array(last)), order[last], lacking[last])


def unavailable(column: pa.Array | pa.ChunkedArray) -> Flags | None:
    """Which values of a column the database did not send. None: all are there."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        found = pc.equal(column, pa.scalar(UNAVAILABLE, kind))
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        found = pc.equal(column, pa.scalar(UNAVAILABLE.encode(), kind))
    elif pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        found = pc.and_(pc.equal(pc.list_value_length(column), 1), _first_is_stand_in(column))
    else:
        return None
    flags = np.asarray(found.fill_null(False), np.bool_)
    return flags if flags.any() else None


def _first_is_stand_in(lists: pa.ListArray | pa.ChunkedArray) -> pa.Array:
    """Of lists with one element: Arrow has no element at a place that a list may lack."""
    one = pc.equal(pc.list_value_length(lists), 1).fill_null(False)
    single = pc.list_flatten(lists.filter(one))
    found = np.zeros(len(lists), np.bool_)
    found[np.flatnonzero(np.asarray(one))] = np.asarray(pc.equal(single, UNAVAILABLE).fill_null(False))
    return pa.array(found)


def sources_of(missing: Flags, codes: Ints) -> Ints:
    """For each row the last row of its key, up to itself, that is not missing; -1: there is none.

    Rows are sorted by key and, within a key, by position.
    """
    numbers = np.arange(len(codes))
    starts = (
        np.maximum.accumulate(np.where(np.r_[True, codes[1:] != codes[:-1]], numbers, 0)) if len(codes) else numbers
    )
    found = np.maximum.accumulate(np.where(missing, -1, numbers)) if len(codes) else numbers
    sources: Ints = np.where(found >= starts, found, -1)
    return sources


def incomplete(rows: pa.StructArray) -> Flags:
    """Which rows lack a value that was not sent."""
    found = np.zeros(len(rows), np.bool_)
    for column in rows.flatten():
        missing = unavailable(column)
        if missing is not None:
            found |= missing
    return found


def filled(rows: pa.StructArray, codes: Ints) -> tuple[pa.StructArray, Flags]:
    """Rows with what was not sent taken from the row before, and which rows are incomplete all the same.

    Rows are sorted as for ``sources_of``. A null row is a deletion: nothing is taken from before it.
    """
    lacking, valid = np.zeros(len(rows), np.bool_), np.asarray(rows.is_valid())
    columns = list(rows.flatten())
    gaps = {place: missing for place, column in enumerate(columns) if (missing := unavailable(column)) is not None}
    for place, missing in gaps.items():
        sources = sources_of(missing, codes)
        known = (sources >= 0) & valid[sources]
        lacking |= missing & ~known
        columns[place] = columns[place].take(pa.array(np.where(missing & known, sources, np.arange(len(rows)))))
    if not gaps:
        return rows, lacking
    return pa.StructArray.from_arrays(columns, fields=list(rows.type), mask=pa.array(~valid)), lacking
