"""What rows add up to: counts, sums, averages, first and last, different values, percentiles, the most frequent.

An aggregate is three functions on columns. ``lift`` makes of each row the state of a group that has only that row,
``merge`` makes one state of all the states of a group, ``finish`` makes results of states. An operator that keeps
states, for windows, sessions or sliding intervals, needs no more, and the result does not depend on the order in which
states were merged (sums of floating point numbers do in their last digits, as always).

Nulls are left out, as in SQL: an aggregate of nothing is null, and a count of nothing is 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.spark.aggregates.sketches import bins_of, estimates, percentile, registers_of
from headrace.spark.state.bucket import Ints
from headrace.spark.state.operator import as_lists, flatten, whole

__all__ = [
    "EVENTS",
    "HASH",
    "Aggregate",
    "ApproximateDistinctCount",
    "Average",
    "Count",
    "DistinctCount",
    "Extreme",
    "Percentiles",
    "Top",
    "Total",
    "has_room",
    "merged",
    "wide",
]

HASH: Final = "_hash_"
"""What the column of hashes of a column is called, which approximate counts work on; Spark fills it."""


class Aggregate(ABC):
    """One value of a group of rows."""

    name: str
    column: str | None

    @property
    def columns(self) -> list[str]:
        """What it needs of a row."""
        return [] if self.column is None else [self.column]

    @property
    @abstractmethod
    def state(self) -> pa.DataType: ...

    @property
    def held(self) -> pa.Field:
        """The state as a field among an operator's own: those are called ``last`` or ``final``, as values may be."""
        return pa.field(f"value {self.name}", self.state)

    @property
    @abstractmethod
    def result(self) -> pa.DataType: ...

    @abstractmethod
    def lift(self, rows: pa.Table, times_us: Ints) -> pa.Array: ...

    @abstractmethod
    def merge(self, groups: Ints, states: pa.Array, count: int) -> pa.Array:
        """``groups`` says for each state which of ``count`` groups it belongs to."""

    def finish(self, states: pa.Array) -> pa.Array:
        return states


def merged(
    aggregates: Sequence[Aggregate], groups: Ints, pieces: Sequence[Sequence[pa.Array]], count: int
) -> list[pa.Array]:
    """The states of ``count`` groups, from several parts that each have a column of states per aggregate."""
    together = [pa.concat_arrays(columns) for columns in zip(*pieces, strict=True)]
    return [each.merge(groups, states, count) for each, states in zip(aggregates, together, strict=True)]


def _by_group(groups: Ints, values: pa.Array, function: str, count: int) -> pa.Array:
    """A function of Arrow's on each group; null for a group without values."""
    table = pa.table({"group": pa.array(groups), "value": values})
    found = table.group_by("group", use_threads=False).aggregate([("value", function)])
    places = np.full(count, -1, np.int64)
    places[np.asarray(found.column("group"))] = np.arange(found.num_rows)
    return whole(found.column(f"value_{function}")).take(pa.array(places, mask=places < 0))


def _largest(groups: Ints, values: pa.Array, count: int) -> pa.Array:
    """Arrow passes over not-a-numbers where there are numbers too."""
    found = _by_group(groups, values, "max", count)
    odd = np.asarray(pc.is_nan(values).fill_null(False))
    if not odd.any():
        return found
    return pc.if_else(pa.array(np.bincount(groups[odd], minlength=count) > 0), pa.scalar(np.nan, found.type), found)


def has_room(values: pa.Array, count: int) -> bool:
    """Whether as many of these as ``count`` can surely be added up in their type."""
    if not (pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)) or not len(values):
        return True
    bounds = pc.min_max(values).as_py()
    largest = max(abs(each or 0) for each in bounds.values()) * count
    digits = 38 - getattr(values.type, "scale", 0)
    return bool(largest < (1 << 63 if pa.types.is_integer(values.type) else 10**digits))


def _roomy(values: pa.Array) -> pa.Array:
    """What is to be added up, in a type that has room for it: Arrow's sums of integers and decimals wrap around."""
    if has_room(values, len(values)):
        return values
    return values.cast(
        pa.decimal128(38, 0) if pa.types.is_integer(values.type) else pa.decimal256(76, values.type.scale)
    )


def _added_up(sums: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return sums.cast(kind)
    except pa.ArrowInvalid as error:
        raise HeadraceError(
            f"a sum of {name!r} is too large for its type, {kind}: cast the column to a wider one"
        ) from error


# ---- numbers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """Rows, or those that have something in a column."""

    name: str
    column: str | None = None

    @property
    def state(self) -> pa.DataType:
        return pa.int64()

    @property
    def result(self) -> pa.DataType:
        return pa.int64()

    def lift(self, rows: pa.Table, times_us: Ints) -> pa.Array:
        if self.column is None:
            return pa.array(np.ones(rows.num_rows, np.int64))
        return whole(rows.column(self.column)).is_valid().cast(pa.int64())

    def merge(self, groups: Ints, states: pa.Array, count: int) -> pa.Array:
        sums = np.zeros(count, np.int64)
        np.add.at(sums, groups, np.asarray(states, np.int64))
        return pa.array(sums)


EVENTS: Final = Count("events")


@dataclass(frozen=True, slots=True)
class Total(Aggregate):
    """Sum, smallest or largest. Not-a-number is larger than all numbers, as in Spark's own aggregations."""

    name: str
    function: Literal["sum", "min", "max"]
    column: str
    type: pa.DataType

    @property
    def state(self) -> pa.DataType:
        return self.type

    @property
    def result(self) -> pa.DataType:
        return self.type

    def lift(self, rows: pa.Table, times_us: Ints) -> pa.Array:
        return whole(rows.column(self.column)).cast(self.type)

    def merge(self, groups: Ints, states: pa.Array, count: int) -> pa.Array:
        if self.function == "max" and pa.types.is_floating(self.type):
            return _largest(groups, states, count).cast(self.type)
        if self.function != "sum":
            return _by_group(groups, states, self.function, count).cast(self.type)
        return _added_up(_by_group(groups, _roomy(states), "sum", count), self.type, self.name)


@dataclass(frozen=True, slots=True)
class Average(Aggregate):
    name: str
    column: str

    @property
    def state(self) -> pa.DataType:
        return pa.struct([("sum", pa.float64()), ("count", pa.int64())])

    @property
    def result(self) -> pa.DataType:
        return pa.float64()

    def lift(self, rows: pa.Table, times_us: Ints) -> pa.Array:
        values = whole(rows.column(self.column)).cast(pa.float64(), safe=False)
        return pa.StructArray.from_arrays([values, values.is_valid().cast(pa.int64())], fields=list(self.state))

    def merge(self, groups: Ints, states: pa.Array, count: int) -> pa.Array:
        sums = _by_group(groups, states.field("sum"), "sum", count)
        counts = _by_group(groups, states.field("count"), "sum", count).fill_null(0)
        return pa.StructArray.from_arrays([sums, counts], fields=list(self.state))

    def finish(self, states: pa.Array) -> pa.Array:
        counts = states.field("count")
        return pc.divide(states.field("sum"), pc.if_else(pc.equal(counts, 0), None, counts).cast(pa.float64()))


@dataclass(frozen=True, slots=True)
class Extreme(Aggregate):
    """The first or the last by time; of several at that time the smallest value, or the largest."""

    name: str
    function: Literal["first", "last"]
    column: str
    type: pa.DataType

    @property
    def state(self) -> pa.DataType:
        return pa.struct([("time", pa.int64()), ("value", self.type)])

    @property
    def result(self) -> pa.DataType:
        return self.type

    def lift(self, rows: pa.Table, times_us: Ints) -> pa.Array:
        return pa.StructArray.from_arrays(
            [pa.array(times_us), whole(rows.column(self.column)).cast(self.type)], fields=list(self.state)
        )

    def merge(self, groups: Ints, states: pa.Array, count: int) -> pa.Array:
        there = np.flatnonzero(np.asarray(states.field("value").is_valid()))
        chosen = states.take(pa.array(there))
        table = pa.table(
            {"group": pa.array(groups[there]), "time": chosen.field("time"), "value": chosen.field("value")}
        )
        way = "ascending" if self.function == "first" else "descending"
        keys = [("group", "ascending"), ("time", way), ("value", way)]
        if pa.types.is_floating(self.type):  # not-a-number is the largest, and Arrow puts it last in either direction
            table = table.append_column("odd", pc.is_nan(table.column("value")).cast(pa.int8()))
            keys.insert(2, ("odd", way))
        order = np.asarray(pc.sort_indices(table, sort_keys=keys))
        owners, first = np.unique(groups[there][order], return_index=True)
        places = np.full(count, -1, np.int64)
        places[owners] = order[first]
        at = pa.array(places, mask=places < 0)
        columns = [chosen.field("time").take(at), chosen.field("value").take(at)]
        return pa.StructArray.from_arrays(columns, fields=list(self.state))

    def finish(self, states: pa.Array) -> pa.Array:
        return states.field("value")


# ---- maps from items to weights ------------------------------------------------------------------------------------


class Entries(Aggregate):
    """A state that is a map, as a list of entries; weights of the same item are merged by a function of Arrow's."""

    @property
    @abstractmethod
    def entry(self) -> tuple[pa.DataType, pa.DataType]:
        """The types of items and weights."""

    @property
    @abstractmethod
    def weighing(self) -> str: ...

    @abstractmethod
    def items(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        """The item and the weight of each row; a row without item has no entry."""

    @property
    def state(self) -> pa.DataType:
        item, weight = self.entry
        return pa.list_(pa.struct([("item", item), ("weight", weight)]))

    def lift(self, rows: pa.Table, times_us: Ints) -> pa.Array:
        items, weights = self.items(rows)
        there = np.asarray(items.is_valid())
        kept = pa.array(there)
        elements = self._elements(items.filter(kept), weights.filter(kept))
        return as_lists(np.flatnonzero(there), elements, rows.num_rows).cast(self.state)

    def merge(self, groups: Ints, states: pa.Array, count: int) -> pa.Array:
        owners, entries = flatten(states)
        weights = entries.field("weight")
        if self.weighing == "sum":
            weights = _roomy(weights)
        columns = {"group": groups[owners], "item": entries.field("item"), "weight": weights}
        grouped = pa.table(columns).group_by(["group", "item"], use_threads=False)
        found = grouped.aggregate([("weight", self.weighing)]).sort_by("group")
        total = _added_up(whole(found.column(f"weight_{self.weighing}")), self.entry[1], self.name)
        elements = self._elements(whole(found.column("item")), total)
        return as_lists(np.asarray(found.column("group"), np.int64), elements, count).cast(self.state)

    def _elements(self, items: pa.Array, weights: pa.Array) -> pa.StructArray:
        item, weight = self.entry
        return pa.StructArray.from_arrays([items.cast(item), weights.cast(weight)], names=["item", "weight"])


@dataclass(frozen=True, slots=True)
class DistinctCount(Entries):
    """How many different values there are, exactly: all of them are kept."""

    name: str
    column: str
    type: pa.DataType

    @property
    def entry(self) -> tuple[pa.DataType, pa.DataType]:
        return self.type, pa.int8()

    @property
    def weighing(self) -> str:
        return "min"

    @property
    def result(self) -> pa.DataType:
        return pa.int64()

    def items(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        return whole(rows.column(self.column)), pa.array(np.zeros(rows.num_rows, np.int8))

    def finish(self, states: pa.Array) -> pa.Array:
        return pc.list_value_length(states).fill_null(0).cast(pa.int64())


@dataclass(frozen=True, slots=True)
class ApproximateDistinctCount(Entries):
    """How many different values there are, with a standard error of 1.6 %."""

    name: str
    column: str
    """Of hashes."""

    @property
    def entry(self) -> tuple[pa.DataType, pa.DataType]:
        return pa.int16(), pa.int8()

    @property
    def weighing(self) -> str:
        return "max"

    @property
    def result(self) -> pa.DataType:
        return pa.int64()

    def items(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        hashes = whole(rows.column(self.column))
        registers, ranks = registers_of(np.asarray(hashes.fill_null(0), np.int64))
        return pa.array(registers, mask=np.asarray(hashes.is_null())), pa.array(ranks)

    def finish(self, states: pa.Array) -> pa.Array:
        owners, entries = flatten(states)
        found = estimates(owners, np.asarray(entries.field("weight"), np.int64), len(states))
        return pa.array(np.rint(found).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Percentiles(Entries):
    """Values below which given parts of all lie, each within 1 % of itself; one, or a list of them."""

    name: str
    column: str
    wanted: tuple[float, ...]
    single: bool

    @property
    def entry(self) -> tuple[pa.DataType, pa.DataType]:
        return pa.int32(), pa.int64()

    @property
    def weighing(self) -> str:
        return "sum"

    @property
    def result(self) -> pa.DataType:
        return pa.float64() if self.single else pa.list_(pa.float64())

    def items(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        values = whole(rows.column(self.column)).cast(pa.float64(), safe=False)
        numbers = np.asarray(values.fill_null(np.nan), np.float64)
        missing = np.isnan(numbers)
        bins = bins_of(np.where(missing, 0.0, numbers))
        return pa.array(bins, mask=missing), pa.array(np.ones(len(bins), np.int64))

    def finish(self, states: pa.Array) -> pa.Array:
        owners, entries = flatten(states)
        bins, counts = (np.asarray(entries.field(name), np.int64) for name in ("item", "weight"))
        order = np.lexsort((bins, owners))
        sorted_columns = (owners[order], bins[order], counts[order])
        found = [percentile(*sorted_columns, each, len(states)) for each in self.wanted]
        if self.single:
            return pa.array(found[0], mask=np.isnan(found[0]))
        flat = np.stack(found, axis=1).reshape(-1)
        offsets = np.arange(len(states) + 1, dtype=np.int32) * len(self.wanted)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, mask=np.isnan(flat)))


@dataclass(frozen=True, slots=True)
class Top(Entries):
    """The items with the largest weights; of equal ones the smaller item first. All items are kept until the end."""

    name: str
    column: str
    type: pa.DataType
    size: int
    function: Literal["count", "sum", "max"]
    by: str | None
    by_type: pa.DataType

    @property
    def columns(self) -> list[str]:
        return [self.column] if self.by is None else [self.column, self.by]

    @property
    def entry(self) -> tuple[pa.DataType, pa.DataType]:
        return self.type, self.by_type

    @property
    def weighing(self) -> str:
        return "sum" if self.function == "count" else self.function

    @property
    def result(self) -> pa.DataType:
        return self.state

    def items(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        items = whole(rows.column(self.column))
        if self.by is None:
            return items, pa.array(np.ones(rows.num_rows, np.int64))
        return items, whole(rows.column(self.by)).cast(self.by_type)

    def finish(self, states: pa.Array) -> pa.Array:
        owners, entries = flatten(states)
        table = pa.table({"owner": owners, "item": entries.field("item"), "weight": entries.field("weight")})
        table = table.filter(table.column("weight").is_valid())
        ranked = table.sort_by([("owner", "ascending"), ("weight", "descending"), ("item", "ascending")])
        codes = np.asarray(ranked.column("owner"), np.int64)
        rank = np.arange(len(codes)) - np.searchsorted(codes, codes)
        best = ranked.filter(pa.array(rank < self.size))
        elements = self._elements(whole(best.column("item")), whole(best.column("weight")))
        return as_lists(codes[rank < self.size], elements, len(states)).cast(self.state)


def wide(kind: pa.DataType) -> pa.DataType:
    """The type in which values of this one are added up and compared."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    return kind
