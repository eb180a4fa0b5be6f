"""What is said of a match: values at its rows, aggregates over them, and which variable took which row.

A measure in full, ``LAST(B.price) / AVG(A.price) - 1``, is Spark's to compute: the text goes to Spark with a column in
the place of each atom. An atom is what only the matcher knows: ``LAST(B.price)`` and ``AVG(A.price)`` here.

An atom is asked at points. A point is a match and how much of it counts: all of it (one row per match, or FINAL), or
the rows up to one of them (RUNNING, with all rows per match).
"""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UsageError
from headrace.spark.state.bucket import Flags, Ints

__all__ = ["AGGREGATES", "Atom", "AtomKind", "MatchedRows", "compute"]

AtomKind = Literal[
    "first", "last", "count", "count_distinct", "sum", "avg", "min", "max", "array_agg", "classifier", "match_number"
]

AGGREGATES: dict[str, str] = {
    "count": "count",
    "count_distinct": "count_distinct",
    "sum": "sum",
    "avg": "mean",
    "min": "min",
    "max": "max",
    "array_agg": "list",
}
"""By our name, Arrow's."""
DIGITS_MAX = 80
"""Of a sum of decimals before it is cut to 38."""


@dataclass(frozen=True, slots=True)
class Atom:
    kind: AtomKind
    variables: frozenset[str] | None = None
    """None: the rows of all variables."""
    column: str | None = None
    """A column of the rows; None counts rows."""
    skipped: int = 0
    """FIRST and LAST: how many rows of the variables from that end."""
    offset: int = 0
    """PREV and NEXT: how many rows of the partition from there."""
    running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRows:
    """The rows of matches, sorted by match and row."""

    matches: Ints
    rows: Ints
    variables: Ints
    """By row: the number of its variable in ``names``."""
    names: tuple[str, ...]
    count: int
    """How many matches there are; some may be empty."""
    columns: Mapping[str, pa.Array]
    first: Ints
    """By row of the partition: the first that is there."""
    end: Ints
    numbers: Ints
    """By match: its number in the partition."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """By variable: its name as the user wrote it."""

    def members(self, variables: frozenset[str] | None) -> Ints:
        """Indexes of the matched rows that these variables took."""
        if variables is None:
            return np.arange(len(self.rows))
        wanted = np.array([each in variables for each in self.names], np.bool_)
        return np.flatnonzero(wanted[self.variables]) if len(self.names) else np.zeros(0, np.int64)


def compute(atom: Atom, matched: MatchedRows, per_row: bool) -> pa.Array:
    """The atom for each match or, with ``per_row``, for each matched row."""
    if atom.kind == "match_number":
        return pa.array(matched.numbers[matched.matches] if per_row else matched.numbers)
    if atom.kind in ("first", "last", "classifier"):
        return _at(atom, matched, per_row)
    if per_row and atom.running:
        return _running(atom, matched)
    totals = _aggregated(atom, matched)
    return totals.take(pa.array(matched.matches)) if per_row else totals


def _at(atom: Atom, matched: MatchedRows, per_row: bool) -> pa.Array:
    members = matched.members(atom.variables)
    counts = np.bincount(matched.matches[members], minlength=matched.count)
    before = np.cumsum(counts) - counts
    if per_row:
        base = before[matched.matches]
        known = counts[matched.matches]
        if atom.running:
            is_member = np.zeros(len(matched.rows), np.int64)
            is_member[members] = 1
            known = np.cumsum(is_member) - base
    else:
        base, known = before, counts
    place = atom.skipped if atom.kind == "first" else known - 1 - atom.skipped
    valid = (place >= 0) & (place < known)
    index = np.where(valid, base + place, 0)
    if atom.kind == "classifier":
        names = pa.array([matched.labels.get(each, each) for each in matched.names], pa.string())
        chosen = matched.variables[members[index]] if len(members) else np.zeros(len(index), np.int64)
        return names.take(pa.array(chosen, mask=~valid)) if len(names) else pa.nulls(len(index), pa.string())
    rows = matched.rows[members[index]] if len(members) else np.zeros(len(index), np.int64)
    places = rows + atom.offset
    if len(matched.first):
        valid &= (places >= matched.first[rows]) & (places < matched.end[rows])
    column = matched.columns[str(atom.column)]
    return column.take(pa.array(np.where(valid, places, 0), mask=~valid))


def _aggregated(atom: Atom, matched: MatchedRows) -> pa.Array:
    members = matched.members(atom.variables)
    groups = matched.matches[members]
    if atom.column is None:
        return pa.array(np.bincount(groups, minlength=matched.count))
    values = matched.columns[atom.column].take(pa.array(matched.rows[members]))
    if atom.kind == "count":
        valid = np.asarray(values.is_valid(), np.bool_)
        return pa.array(np.bincount(groups[valid], minlength=matched.count))
    if atom.kind == "avg" and pa.types.is_decimal(values.type):
        values = values.cast(_average_type(values.type))
    table = pa.table({"match": pa.array(groups, pa.int64()), "value": values})
    if atom.kind == "array_agg":
        table = table.filter(pc.is_valid(table.column("value")))
    options: Any = pc.CountOptions(mode="only_valid") if atom.kind.startswith("count") else None
    found = table.group_by("match", use_threads=False).aggregate([("value", AGGREGATES[atom.kind], options)])
    results = found.column(f"value_{AGGREGATES[atom.kind]}").combine_chunks()
    if isinstance(results, pa.ChunkedArray):
        results = pa.concat_arrays(results.chunks) if results.num_chunks else pa.array([], results.type)
    place = np.full(matched.count, -1)
    place[np.asarray(found.column("match"), np.int64)] = np.arange(found.num_rows)
    scattered = results.take(pa.array(np.maximum(place, 0), mask=place < 0))
    if atom.kind == "max" and pa.types.is_floating(values.type):
        scattered = _with_nan(scattered, groups[np.isnan(np.asarray(values.fill_null(0)))])
    return pc.fill_null(scattered, 0) if atom.kind.startswith("count") else scattered


def _with_nan(greatest: pa.Array, groups: Ints) -> pa.Array:
    """NaN is the greatest number, as in Spark; Arrow leaves it out."""
    if not len(groups):
        return greatest
    found = np.zeros(len(greatest), np.bool_)
    found[groups] = True
    return pc.if_else(pa.array(found), pa.scalar(math.nan, greatest.type), greatest)


def _running(atom: Atom, matched: MatchedRows) -> pa.Array:
    """The aggregate over each matched row and those before it."""
    is_member = np.zeros(len(matched.rows), np.bool_)
    is_member[matched.members(atom.variables)] = True
    if atom.column is None:
        values = pa.array(np.ones(len(matched.rows), np.int64), mask=~is_member)
    else:
        values = matched.columns[atom.column].take(pa.array(matched.rows, mask=~is_member))
    kind = _aggregated(atom, _nothing(matched)).type
    pieces = [pa.array([], kind)]
    changes = matched.matches[1:] != matched.matches[:-1]
    edges = np.flatnonzero(np.r_[True, changes, True]).tolist() if len(matched.rows) else []
    for start, end in itertools.pairwise(edges):
        pieces.append(_cumulative(atom, values.slice(start, end - start)).cast(kind))
    return pa.concat_arrays(pieces)


def _cumulative(atom: Atom, values: pa.Array) -> pa.Array:
    """By row of a match: the aggregate of the values up to there. Rows of other variables have null as their value."""
    valid = np.asarray(values.is_valid(), np.bool_)
    counts = np.cumsum(valid, dtype=np.int64)
    if atom.kind == "count":
        return pa.array(counts)
    if atom.kind == "count_distinct":
        fresh = np.zeros(len(values), np.bool_)
        fresh[np.unique(np.asarray(values.dictionary_encode().indices.fill_null(-1)), return_index=True)[1]] = True
        return pa.array(np.cumsum(fresh & valid))
    if atom.kind == "array_agg":
        chosen = np.concatenate([np.zeros(0, np.int64), *[np.arange(each) for each in counts.tolist()]])
        offsets = pa.array(np.r_[0, np.cumsum(counts)], pa.int32())
        return pa.ListArray.from_arrays(offsets, values.drop_null().take(pa.array(chosen)), mask=pa.array(counts == 0))
    if atom.kind in ("min", "max"):
        return values.take(_extremes(atom, values, valid))
    found = _sums(atom, values, counts)
    # A row of another variable has the value of the last row that counted.
    last = np.maximum.accumulate(np.where(valid, np.arange(len(values)), -1))
    return found.take(pa.array(np.maximum(last, 0), mask=last < 0))


def _extremes(atom: Atom, values: pa.Array, valid: Flags) -> pa.Array:
    """By row: the place of the least or greatest value so far. Places in the order of the values, so of any type."""
    order = np.asarray(pc.sort_indices(values), np.int64)  # nulls are last
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    if atom.kind == "min":
        best = np.minimum.accumulate(np.where(valid, rank, len(order)))
        found = best < len(order)
    else:
        best = np.maximum.accumulate(np.where(valid, rank, -1))
        found = best >= 0
    return pa.array(order[np.where(found, best, 0)], mask=~found)


def _sums(atom: Atom, values: pa.Array, counts: Ints) -> pa.Array:
    """Sums or averages up to each row, where the row has a value."""
    if not pa.types.is_decimal(values.type):
        wide = pa.float64() if pa.types.is_floating(values.type) else pa.int64()
        found = pc.cumulative_sum(values.cast(wide), skip_nulls=True)
        if atom.kind == "avg":
            found = pc.divide(found.cast(pa.float64(), safe=False), pa.array(np.maximum(counts, 1), pa.float64()))
        return found
    kind = _average_type(values.type) if atom.kind == "avg" else pa.decimal128(38, values.type.scale)
    with decimal.localcontext(prec=DIGITS_MAX):
        sums = itertools.accumulate(each or decimal.Decimal(0) for each in values.to_pylist())
        divisors = np.maximum(counts, 1).tolist() if atom.kind == "avg" else [1] * len(counts)
        unit = decimal.Decimal(1).scaleb(-kind.scale)
        exact = [(each / by).quantize(unit, decimal.ROUND_HALF_UP) for each, by in zip(sums, divisors, strict=True)]
    return pa.array(exact, kind)


def _average_type(kind: pa.DataType) -> pa.DataType:
    """As in Spark an average of decimals has four more digits, if there is room for them."""
    return pa.decimal128(38, min(kind.scale + 4, 38 - (kind.precision - kind.scale)))


def _nothing(matched: MatchedRows) -> MatchedRows:
    nothing = np.zeros(0, np.int64)
    return MatchedRows(
        matches=nothing,
        rows=nothing,
        variables=nothing,
        names=matched.names,
        count=0,
        columns={name: column.slice(0, 0) for name, column in matched.columns.items()},
        first=nothing,
        end=nothing,
        numbers=nothing,
    )


def type_of(atom: Atom, columns: Mapping[str, pa.DataType]) -> pa.DataType:
    """The type of an atom's values, found by computing it over no rows."""
    nothing = np.zeros(0, np.int64)
    empty = MatchedRows(
        matches=nothing,
        rows=nothing,
        variables=nothing,
        names=("X",),
        count=0,
        columns={name: pa.array([], kind) for name, kind in columns.items()},
        first=nothing,
        end=nothing,
        numbers=nothing,
    )
    try:
        return compute(atom, empty, False).type
    except pa.ArrowException:
        assert atom.column is not None, "what counts rows takes every type"
        name = atom.kind.upper().replace("COUNT_DISTINCT", "COUNT(DISTINCT …)")
        raise UsageError(
            f"{name} cannot be computed over values of type {columns[atom.column]}",
            "SUM and AVG take numbers; COUNT, MIN, MAX, FIRST, LAST and ARRAY_AGG take other types too",
        ) from None
