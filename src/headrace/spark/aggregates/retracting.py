"""Groups whose rows come and go: count, sum, avg, min, max, distinct and top, with retraction.

A group takes rows with weights, −1 for a row that went and +1 for one that came, and is a row of the result as long as
it has any. A row that changes its group leaves the old one, since that is where its −1 goes.

What is held of a group depends on what is asked. Counts and sums are numbers. A minimum has to be found again when it
goes, so ``min``, ``max`` and ``distinct`` hold every value with how often it is there (one such bag per column, however
many ask for it), and ``top`` the columns it shows of every row: a change then costs what its group holds. Sums of whole
and decimal numbers are exact; of floating point numbers they are as rounded as such sums are, and begin at zero again
when a group has none left. What is not finite is counted beside the sum: no subtraction would ever take it out of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.spark.state.bucket import Ints
from headrace.spark.state.operator import as_lists, fields_of, flatten

__all__ = [
    "ROWS",
    "Average",
    "Count",
    "Distinct",
    "Fresh",
    "Maximum",
    "Minimum",
    "Part",
    "Sum",
    "Tally",
    "Top",
    "Value",
]

ROWS = "rows"
NOT_FINITE = {"nans": np.nan, "highs": np.inf, "lows": -np.inf}


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a batch brings to the groups that it touches."""

    rows: pa.Table
    codes: Ints
    weights: Ints
    count: int


class Part(ABC):
    """Something held of each group; several values may be read from it."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Its name in the state: equal ones are held once."""

    @property
    @abstractmethod
    def type(self) -> pa.DataType: ...

    @abstractmethod
    def merge(self, held: pa.Array, fresh: Fresh) -> pa.Array: ...


@dataclass(frozen=True, slots=True)
class Tally(Part):
    """How many rows, or how many that are not null in a column."""

    column: str | None = None

    @property
    def key(self) -> str:
        return ROWS if self.column is None else f"count {self.column}"

    @property
    def type(self) -> pa.DataType:
        return pa.int64()

    def merge(self, held: pa.Array, fresh: Fresh) -> pa.Array:
        totals = np.asarray(held.fill_null(0), np.int64).copy()
        weights = fresh.weights
        if self.column is not None:
            weights = np.where(np.asarray(fresh.rows.column(self.column).is_valid()), weights, 0)
        np.add.at(totals, fresh.codes, weights)
        return pa.array(totals)


@dataclass(frozen=True, slots=True)
class Total(Part):
    """The sum of a column and of how many values it is."""

    column: str
    number: pa.DataType
    """float64, or a decimal with all digits there are, which whole numbers are added up as too."""

    @property
    def key(self) -> str:
        return f"sum {self.column}"

    @property
    def type(self) -> pa.DataType:
        fixed = [("total", self.number), ("count", pa.int64())]
        return pa.struct([*fixed, *((name, pa.int64()) for name in self._odd)])

    @property
    def _odd(self) -> dict[str, float]:
        """What is counted beside the sum of numbers that are finite."""
        return NOT_FINITE if pa.types.is_floating(self.number) else {}

    def read(self, held: pa.Array) -> pa.Array:
        """The sums; null without any value."""
        found = fields_of(held)
        if not self._odd:
            return found["total"]
        odd, high, low = (np.asarray(found[name].fill_null(0), np.int64) > 0 for name in NOT_FINITE)
        kinds = [odd | (high & low), high, low]
        sums = np.select(kinds, [np.nan, np.inf, -np.inf], np.asarray(found["total"].fill_null(0)))
        return pa.array(sums, self.number, mask=np.asarray(found["total"].is_null()))

    def merge(self, held: pa.Array, fresh: Fresh) -> pa.Array:
        known = fields_of(held)
        rows = np.repeat(np.arange(len(fresh.codes)), np.abs(fresh.weights))
        signs = np.sign(fresh.weights)[rows]
        values = fresh.rows.column(self.column).combine_chunks().take(pa.array(rows)).cast(self.number)
        counted = [self._counted(known[name], values, odd, fresh.codes[rows], signs) for name, odd in self._odd.items()]
        if self._odd:
            values = pc.if_else(pc.is_finite(values), values, pa.scalar(0.0, self.number))
        values = pc.if_else(pa.array(signs > 0), values, pc.negate(values))
        codes = pa.array(np.r_[np.arange(fresh.count), fresh.codes[rows]])
        counts = pa.array(np.r_[np.asarray(known["count"].fill_null(0), np.int64), signs], pa.int64())
        all_values = pa.concat_arrays([known["total"], values])
        counts = pc.if_else(
            pc.or_(all_values.is_valid(), pa.array(np.arange(len(counts)) < fresh.count)), counts, pa.scalar(0)
        )
        table = pa.table({"code": codes, "total": all_values, "count": counts})
        added = table.group_by("code", use_threads=False).aggregate([("total", "sum"), ("count", "sum")])
        added = added.sort_by("code")
        count = added.column("count_sum").combine_chunks()
        total = added.column("total_sum").combine_chunks().cast(self.number)
        total = pc.if_else(pc.equal(count, 0), pa.scalar(None, self.number), total)
        return pa.StructArray.from_arrays([total, count, *counted], fields=list(self.type))

    def _counted(self, held: pa.Array, values: pa.Array, odd: float, codes: Ints, signs: Ints) -> pa.Array:
        """How often a value that is not finite is there."""
        is_one = pc.is_nan(values) if np.isnan(odd) else pc.equal(values, pa.scalar(odd, self.number))
        counts = np.asarray(held.fill_null(0), np.int64).copy()
        np.add.at(counts, codes, np.where(np.asarray(is_one.fill_null(False)), signs, 0))
        return pa.array(counts)


@dataclass(frozen=True, slots=True)
class Bag(Part):
    """Every combination of values in some columns, in order, with how often it is there."""

    columns: tuple[tuple[str, pa.DataType], ...]
    orders: tuple[str, ...]
    """ascending or descending, column by column; nulls last"""
    with_nulls: bool = False

    @property
    def key(self) -> str:
        asked = [f"{name} {order}" for (name, _), order in zip(self.columns, self.orders, strict=True)]
        return f"values {', '.join(asked)}"

    @property
    def entry(self) -> pa.StructType:
        return pa.struct([*self._names, ("count", pa.int64())])

    @property
    def _names(self) -> list[tuple[str, pa.DataType]]:
        return [(f"value {number}", kind) for number, (_, kind) in enumerate(self.columns)]

    @property
    def type(self) -> pa.DataType:
        return pa.list_(self.entry)

    def merge(self, held: pa.Array, fresh: Fresh) -> pa.Array:
        held_codes, entries = flatten(held)
        names = [name for name, _ in self._names]
        new = [fresh.rows.column(name).combine_chunks().cast(kind) for name, kind in self.columns]
        mine = fields_of(entries)
        columns = {
            "code": pa.array(np.r_[held_codes, fresh.codes]),
            **{name: pa.concat_arrays([mine[name], each]) for name, each in zip(names, new, strict=True)},
            "count": pa.concat_arrays([mine["count"], pa.array(fresh.weights)]),
        }
        table = pa.table(columns)
        if not self.with_nulls:
            table = table.filter(pc.is_valid(table.column(names[0])))
        counted = table.group_by(["code", *names], use_threads=False).aggregate([("count", "sum")])
        counted = counted.filter(pc.not_equal(counted.column("count_sum"), 0))
        counted = counted.take(pc.sort_indices(*self._ordered(counted)))
        arrays = [counted.column(name).combine_chunks() for name in [*names, "count_sum"]]
        codes = np.asarray(counted.column("code"), np.int64)
        return as_lists(codes, pa.StructArray.from_arrays(arrays, fields=list(self.entry)), fresh.count)

    def _ordered(self, counted: pa.Table) -> tuple[pa.Table, list[tuple[str, str]]]:
        """What to sort, and by which columns. Not-a-number is the largest; Arrow puts it last in either order."""
        keys = [("code", "ascending")]
        for (name, kind), order in zip(self._names, self.orders, strict=True):
            if pa.types.is_floating(kind) and order == "descending":
                counted = counted.append_column(f"odd {name}", pc.is_nan(counted.column(name)).cast(pa.int8()))
                keys.append((f"odd {name}", order))
            keys.append((name, order))
        return counted, keys


# ---- values of the result ------------------------------------------------------------------------------------------


class Value(ABC):
    """A column of the result, read from what is held."""

    name: str

    @property
    @abstractmethod
    def part(self) -> Part: ...

    @property
    @abstractmethod
    def type(self) -> pa.DataType: ...

    @abstractmethod
    def read(self, held: pa.Array) -> pa.Array: ...


@dataclass(frozen=True, slots=True)
class Count(Value):
    name: str
    column: str | None = None

    @property
    def part(self) -> Part:
        return Tally(self.column)

    @property
    def type(self) -> pa.DataType:
        return pa.int64()

    def read(self, held: pa.Array) -> pa.Array:
        return held


@dataclass(frozen=True, slots=True)
class Sum(Value):
    """Null without any value, as in SQL."""

    name: str
    column: str
    type: pa.DataType
    """int64, float64 or a decimal of 38 digits"""

    @property
    def part(self) -> Total:
        return Total(self.column, pa.decimal128(38, 0) if pa.types.is_integer(self.type) else self.type)

    def read(self, held: pa.Array) -> pa.Array:
        try:
            return self.part.read(held).cast(self.type)
        except pa.ArrowInvalid as error:
            raise HeadraceError(
                f"the sum {self.name!r} of {self.column!r} is too large: cast it to a decimal"
            ) from error


@dataclass(frozen=True, slots=True)
class Average(Value):
    name: str
    column: str
    number: pa.DataType

    @property
    def part(self) -> Total:
        return Sum(self.name, self.column, self.number).part

    @property
    def type(self) -> pa.DataType:
        return pa.float64()

    def read(self, held: pa.Array) -> pa.Array:
        total = self.part.read(held).cast(pa.float64(), safe=False)
        return pc.divide(total, fields_of(held)["count"].cast(pa.float64()))


@dataclass(frozen=True, slots=True)
class Minimum(Value):
    """The first in order that is there."""

    name: str
    column: str
    type: pa.DataType

    @property
    def part(self) -> Part:
        return Bag(((self.column, self.type),), ("ascending",))

    def read(self, held: pa.Array) -> pa.Array:
        return self._at(held, 0)

    def _at(self, held: pa.Array, place: int) -> pa.Array:
        """By offsets: of a list from the beginning (0) or from the end (-1); null for an empty one."""
        held = held.fill_null([]) if held.null_count else held
        offsets = np.asarray(held.offsets, np.int64)
        empty = offsets[1:] == offsets[:-1]
        at = offsets[1:] - 1 if place else offsets[:-1]
        return fields_of(held.values)["value 0"].take(pa.array(np.where(empty, 0, at), mask=empty))


@dataclass(frozen=True, slots=True)
class Maximum(Minimum):
    def read(self, held: pa.Array) -> pa.Array:
        return self._at(held, -1)


@dataclass(frozen=True, slots=True)
class Distinct(Value):
    """How many different values there are, exactly."""

    name: str
    column: str
    of: pa.DataType

    @property
    def part(self) -> Part:
        return Bag(((self.column, self.of),), ("ascending",))

    @property
    def type(self) -> pa.DataType:
        return pa.int64()

    def read(self, held: pa.Array) -> pa.Array:
        return pc.list_value_length(held).cast(pa.int64())


@dataclass(frozen=True, slots=True)
class Top(Value):
    """The rows that come first by some columns, then by the others, so that equal ones have an order too."""

    name: str
    count: int
    columns: tuple[tuple[str, pa.DataType], ...]
    """Those it is ordered by stand first."""
    orders: tuple[str, ...]
    shown: tuple[str, ...]

    @property
    def part(self) -> Part:
        return Bag(self.columns, self.orders, with_nulls=True)

    @property
    def row(self) -> pa.StructType:
        kinds = dict(self.columns)
        return pa.struct([(name, kinds[name]) for name in self.shown])

    @property
    def type(self) -> pa.DataType:
        return pa.list_(self.row)

    def read(self, held: pa.Array) -> pa.Array:
        codes, entries = flatten(held)
        times = np.minimum(np.asarray(entries.field("count"), np.int64), self.count)
        rows = np.repeat(np.arange(len(codes)), np.maximum(times, 0))
        firsts = np.searchsorted(codes[rows], codes[rows], side="left")
        rows = rows[np.arange(len(rows)) - firsts < self.count]
        found = fields_of(entries.take(pa.array(rows)))
        names = [name for name, _ in self.columns]
        columns = [found[f"value {names.index(name)}"] for name in self.shown]
        return as_lists(codes[rows], pa.StructArray.from_arrays(columns, fields=list(self.row)), len(held))
