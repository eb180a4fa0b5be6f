"""Tables kept up to date from changes, in columns and without Spark.

Each of these takes the changes of a batch and gives exact changes: at most one per key, with the row before and after,
and none where nothing changed. After every batch, the changes so far add up to the result of the query on the tables.

    Table         by the table's key: the rows, so that a change has the row that it replaces
    TableJoin     by what two tables are joined on: their rows, and the pairs that come and go with them
    Consolidated  by the key of a join: a row that leaves one pair and enters another has changed once

A row that moves to another key of the join, or to another group, leaves one and enters the other. So between operators
a change is taken apart into rows with a *weight*: −1 for the row before and +1 for the row after. Columns of an input
that are not the user's begin with an underscore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.changes import PlacedRows, Truncations, incomplete, newest
from headrace.errors import HeadraceError
from headrace.spark.state.bucket import Flags, Ints
from headrace.spark.state.operator import Clock, Operator, Step, Touched, as_lists, factorize, fields_of, flatten, whole

__all__ = ["Consolidated", "JoinHow", "JoinSide", "NotExact", "Table", "TableJoin", "change_schema", "exact_changes"]

JoinHow = Literal["inner", "left", "full"]


class NotExact(HeadraceError):
    """Changes that do not add up: more rows went than had come, or two rows have one key."""


NOTHING = pa.struct([("nothing", pa.bool_())])


def change_schema(key: pa.StructType, row: pa.StructType) -> pa.Schema:
    return pa.schema([("op", pa.string()), ("key", key), ("before", row), ("after", row)])


def exact_changes(keys: pa.StructArray, before: pa.StructArray, after: pa.StructArray) -> pa.Table:
    """The changes from one state of rows to the next, key by key; a null row is none."""
    had, has = np.asarray(before.is_valid()), np.asarray(after.is_valid())
    told = pa.array((had | has) & ~_equal(before, after))
    operations = np.where(~had, "insert", np.where(has, "update", "delete")).astype(object)
    arrays = [pa.array(operations, pa.string()), keys, before, after]
    return pa.Table.from_arrays(arrays, schema=change_schema(keys.type, before.type)).filter(told)


def _equal(one: pa.Array, other: pa.Array) -> Flags:
    """Which are the same, as nulls and as not-a-numbers are too."""
    both = np.asarray(one.is_valid()) & np.asarray(other.is_valid())
    neither = ~np.asarray(one.is_valid()) & ~np.asarray(other.is_valid())
    if pa.types.is_struct(one.type):
        same = np.ones(len(one), np.bool_)
        for mine, theirs in zip(one.flatten(), other.flatten(), strict=True):
            same &= _equal(mine, theirs)
    elif pa.types.is_nested(one.type):
        same = np.fromiter(map(_same, one, other), np.bool_, len(one))
    else:
        same = np.asarray(pc.equal(one, other).fill_null(False))
        if pa.types.is_floating(one.type):
            same |= np.asarray(pc.and_(pc.is_nan(one), pc.is_nan(other)).fill_null(False))
    found: Flags = neither | (both & same)
    return found


def _same(one: pa.Scalar, other: pa.Scalar) -> bool:
    return bool(one.equals(other))


# ---- one table -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table(Operator):
    """The row of each key.

    Rows of the input: ``_row``, which is null when the key is gone, ``_position`` and ``_lane``. Where ``_truncates``
    is true there is no row: all rows of the lane with a lower position are gone. Values that the database did not send
    are taken from the row before; a row that is incomplete all the same is held and not shown.
    """

    keys: pa.StructType
    row: pa.StructType
    name: ClassVar[str] = "view"
    clock: ClassVar[Clock] = "none"
    everywhere: ClassVar[str | None] = "_truncates"

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("row", self.row), ("lane", pa.int64())])

    @property
    def output(self) -> pa.Schema:
        return change_schema(self.keys, self.row)

    def step(self, touched: Touched) -> Step:
        held = fields_of(touched.held)
        before, held_lanes = held["row"], np.asarray(held["lane"].fill_null(0), np.int64)
        batch = PlacedRows(
            whole(touched.rows.column("_row")),
            touched.codes,
            _ints(touched.rows, "_lane"),
            _ints(touched.rows, "_position"),
        )
        truncations = Truncations(_ints(touched.shared, "_lane"), _ints(touched.shared, "_position"))
        found = newest(before, held_lanes, batch, truncations)
        after = found.rows
        lanes = np.r_[held_lanes, batch.lanes][found.chosen]
        shown = exact_changes(touched.keys, _without(before, incomplete(before)), _without(after, found.incomplete))
        return Step(
            output=shown,
            states=pa.StructArray.from_arrays([after, pa.array(lanes)], fields=list(self.state)),
            keep=np.asarray(after.is_valid()),
            changed=~_equal(before, after) | (lanes != held_lanes),
        )


def _ints(rows: pa.Table, column: str) -> Ints:
    found: Ints = np.asarray(rows.column(column).fill_null(0), np.int64)
    return found


def _without(rows: pa.StructArray, hidden: Flags) -> pa.StructArray:
    """The rows with nulls in place of some."""
    return rows.take(pa.array(np.arange(len(rows)), mask=hidden)) if hidden.any() else rows


# ---- two tables ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One of two tables: what is held of it under a key of the join, and what of it comes out."""

    name: str
    key: pa.StructType
    row: pa.StructType
    key_names: tuple[tuple[str, str], ...]
    """(column of the key, its name in the key of the result); without those that are columns of the join."""
    row_names: tuple[tuple[str, str], ...]

    @property
    def entry(self) -> pa.StructType:
        return pa.struct([("key", self.key), ("row", self.row)])


@dataclass(frozen=True, slots=True)
class _Entries:
    """The rows of a table under the keys that a batch touches: where each is found before the batch, and after it."""

    rows: pa.StructArray
    keys: pa.StructArray
    codes: Ints
    before: Ints
    after: Ints
    """Numbers of ``rows``; -1 is none."""

    @property
    def changed(self) -> Flags:
        flags: Flags = self.before != self.after
        return flags

    def per_code(self, numbers: Ints, count: int) -> Ints:
        found: Ints = np.bincount(self.codes[numbers >= 0], minlength=count)
        return found


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Rows of the join by the entries of both sides; -1 is none. They exist before the batch, after it, or both."""

    left: Ints
    right: Ints
    codes: Ints
    before: Flags
    after: Flags


@dataclass(frozen=True, slots=True)
class TableJoin(Operator):
    """Rows of the input: the columns of the join, ``_left`` or ``_right`` (key and row), and a ``_weight``."""

    on: pa.StructType
    left: JoinSide
    right: JoinSide
    how: JoinHow
    key_on: tuple[tuple[str, str], ...] = ()
    """(column of the join, its name in the key of the result)"""
    row_on: tuple[tuple[str, str], ...] = ()
    name: ClassVar[str] = "join_tables"
    clock: ClassVar[Clock] = "none"

    @property
    def state(self) -> pa.StructType:
        return pa.struct([(side.name, pa.list_(side.entry)) for side in (self.left, self.right)])

    @property
    def output(self) -> pa.Schema:
        return change_schema(self.key_type, self.row_type)

    @property
    def key_type(self) -> pa.StructType:
        fixed = [(name, self.on.field(column).type) for column, name in self.key_on]
        sides = [(name, side.key.field(each).type) for side in (self.left, self.right) for each, name in side.key_names]
        return pa.struct([*fixed, *sides])

    @property
    def row_type(self) -> pa.StructType:
        fixed = [(name, self.on.field(column).type) for column, name in self.row_on]
        sides = [(name, side.row.field(each).type) for side in (self.left, self.right) for each, name in side.row_names]
        return pa.struct([*fixed, *sides])

    def step(self, touched: Touched) -> Step:
        count = len(touched.keys)
        left, right = self._entries(touched, self.left), self._entries(touched, self.right)
        matching = np.ones(count, np.bool_)
        for column in touched.keys.flatten():
            matching &= np.asarray(column.is_valid())  # null equals nothing
        parts = [_matches(left, right, matching)]
        if self.how in ("left", "full"):
            parts.append(_alone(left, right, matching))
        if self.how == "full":
            parts.append(_turned(_alone(right, left, matching)))
        changes = [self._changes(touched, left, right, each) for each in parts]
        lists = [self._kept(each, count) for each in (left, right)]
        held = left.per_code(left.after, count) + right.per_code(right.after, count)
        return Step(
            output=pa.concat_tables(changes),
            states=pa.StructArray.from_arrays(lists, fields=list(self.state)),
            keep=held > 0,
        )

    def _entries(self, touched: Touched, side: JoinSide) -> _Entries:
        """What is held and what the batch brings stand in one array; an entry is a key of the table, and points there.

        Of an entry a batch brings at most one row that went and one that came, and the one that came counts."""
        held_codes, held = flatten(touched.held.field(side.name))
        given = whole(touched.rows.column(f"_{side.name}"))
        present = np.flatnonzero(np.asarray(given.is_valid()))
        weights = np.asarray(touched.rows.column("_weight"), np.int64)[present]
        elements = fields_of(pa.concat_arrays([held, given.take(pa.array(present))]))
        codes = np.r_[held_codes, touched.codes[present]]
        named = pa.struct(
            [("code", pa.int64()), *[(f"key {number}", each.type) for number, each in enumerate(side.key)]]
        )
        table = pa.Table.from_arrays([pa.array(codes), *elements["key"].flatten()], names=[each.name for each in named])
        numbers, _ = factorize(table, named)
        fresh = np.arange(len(held), len(codes))
        total = int(numbers.max()) + 1 if len(numbers) else 0
        before, some = np.full(total, -1, np.int64), np.zeros(total, np.int64)
        some[numbers] = np.arange(len(numbers))
        before[numbers[: len(held)]] = np.arange(len(held))
        after = before.copy()
        after[numbers[fresh[weights < 0]]] = -1
        after[numbers[fresh[weights > 0]]] = fresh[weights > 0]
        return _Entries(elements["row"], elements["key"].take(pa.array(some)), codes[some], before, after)

    def _kept(self, entries: _Entries, count: int) -> pa.ListArray:
        order = np.argsort(entries.codes, kind="stable")
        order = order[entries.after[order] >= 0]
        rows = entries.rows.take(pa.array(entries.after[order]))
        columns = [entries.keys.take(pa.array(order)), rows]
        kind = pa.struct([("key", columns[0].type), ("row", columns[1].type)])
        return as_lists(entries.codes[order], pa.StructArray.from_arrays(columns, fields=list(kind)), count)

    def _changes(self, touched: Touched, left: _Entries, right: _Entries, pairs: _Pairs) -> pa.Table:
        on = fields_of(touched.keys.take(pa.array(pairs.codes)))
        keys = [on[column] for column, _ in self.key_on]
        for side, entries, chosen in ((self.left, left, pairs.left), (self.right, right, pairs.right)):
            found = fields_of(entries.keys.take(pa.array(chosen, mask=chosen < 0)))
            keys += [found[column] for column, _ in side.key_names]
        return exact_changes(
            pa.StructArray.from_arrays(keys, fields=list(self.key_type)),
            self._rows(on, (left, right), pairs, pairs.before, "before"),
            self._rows(on, (left, right), pairs, pairs.after, "after"),
        )

    def _rows(
        self, on: dict[str, pa.Array], entries: tuple[_Entries, _Entries], pairs: _Pairs, exist: Flags, when: str
    ) -> pa.StructArray:
        columns = [on[column] for column, _ in self.row_on]
        for side, held, chosen in ((self.left, entries[0], pairs.left), (self.right, entries[1], pairs.right)):
            places: Ints = held.before if when == "before" else held.after
            rows = np.where(chosen >= 0, places[chosen], -1) if len(places) else np.full(len(chosen), -1)
            found = fields_of(held.rows.take(pa.array(rows, pa.int64(), mask=rows < 0)))
            columns += [found[column] for column, _ in side.row_names]
        return pa.StructArray.from_arrays(columns, fields=list(self.row_type), mask=pa.array(~exist))


def _matches(left: _Entries, right: _Entries, matching: Flags) -> _Pairs:
    """Pairs in which a side changed: each changed row with all of the other side, and the rest with the changed."""
    ours, theirs = matching[left.codes], matching[right.codes]
    one = _crossed(np.flatnonzero(left.changed & ours), np.flatnonzero(theirs), left, right)
    two = _crossed(np.flatnonzero(~left.changed & ours), np.flatnonzero(right.changed & theirs), left, right)
    lefts, rights = np.r_[one[0], two[0]], np.r_[one[1], two[1]]
    before = (left.before[lefts] >= 0) & (right.before[rights] >= 0)
    after = (left.after[lefts] >= 0) & (right.after[rights] >= 0)
    return _chosen(_Pairs(lefts, rights, left.codes[lefts], before, after), before | after)


def _crossed(lefts: Ints, rights: Ints, left: _Entries, right: _Entries) -> tuple[Ints, Ints]:
    """All pairs of these entries under the same key."""
    rights = rights[np.argsort(right.codes[rights], kind="stable")]
    codes = right.codes[rights]
    first = np.searchsorted(codes, left.codes[lefts], side="left")
    counts = np.searchsorted(codes, left.codes[lefts], side="right") - first
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return np.repeat(lefts, counts), rights[np.repeat(first, counts) + within]


def _alone(left: _Entries, right: _Entries, matching: Flags) -> _Pairs:
    """Rows of the left side that have no partner, before the batch or after it."""
    count = len(matching)
    had = (right.per_code(right.before, count) > 0) & matching
    has = (right.per_code(right.after, count) > 0) & matching
    before = (left.before >= 0) & ~had[left.codes]
    after = (left.after >= 0) & ~has[left.codes]
    nobody = np.full(len(left.codes), -1, np.int64)
    pairs = _Pairs(np.arange(len(left.codes)), nobody, left.codes, before, after)
    return _chosen(pairs, (before | after) & (left.changed | (before != after)))


def _turned(pairs: _Pairs) -> _Pairs:
    return _Pairs(pairs.right, pairs.left, pairs.codes, pairs.before, pairs.after)


def _chosen(pairs: _Pairs, flags: Flags) -> _Pairs:
    return _Pairs(pairs.left[flags], pairs.right[flags], pairs.codes[flags], pairs.before[flags], pairs.after[flags])


@dataclass(frozen=True, slots=True)
class Consolidated(Operator):
    """What a batch did to a key in several places, as one change. Nothing is held: all of it is in the batch.

    A pair whose rows move to another key of the join is gone from one place and new in another, and those know nothing
    of each other.

    Rows of the input: ``_before`` and ``_after``. Of a key at most one row was there before and at most one is there
    after, so that it does not matter in which order they come.
    """

    keys: pa.StructType
    row: pa.StructType
    name: ClassVar[str] = "join_tables by key"
    clock: ClassVar[Clock] = "none"

    @property
    def state(self) -> pa.StructType:
        return NOTHING

    @property
    def output(self) -> pa.Schema:
        return change_schema(self.keys, self.row)

    def step(self, touched: Touched) -> Step:
        count = len(touched.keys)
        rows = []
        for name in ("before", "after"):
            given = whole(touched.rows.column(f"_{name}"))
            present = np.flatnonzero(np.asarray(given.is_valid()))
            chosen = np.full(count, -1, np.int64)
            chosen[touched.codes[present]] = present
            if len(present) > np.count_nonzero(chosen >= 0):
                raise NotExact(
                    f"two rows of a table have the key {self._doubled(touched, present)}. "
                    "Choose a key whose values are different in every row"
                )
            rows.append(given.take(pa.array(chosen, mask=chosen < 0)))
        return Step(
            output=exact_changes(touched.keys, *rows),
            states=pa.nulls(count, NOTHING),
            keep=np.zeros(count, np.bool_),
        )

    def _doubled(self, touched: Touched, present: Ints) -> str:
        codes, counts = np.unique(touched.codes[present], return_counts=True)
        return str(touched.keys[int(codes[counts > 1][0])].as_py())
