"""Conditions on the rows that a run has matched so far, computed for many runs at once.

What a condition says of the current row alone was computed by Spark before; it is a column here. The rest is a tree of
expressions over such columns, at rows that the run remembers in registers:

    RowColumn       a column of the row that is being tested
    VariableColumn  a column of the first or the last row of some variables, or of a row near it
    Aggregated      a count, sum, average, least or greatest value over the rows of some variables and the tested one

Null is not true, as everywhere in SQL.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.spark.state.bucket import Flags, Ints

__all__ = [
    "FUNCTIONS",
    "Aggregated",
    "AllRows",
    "ArithmeticOverflow",
    "Call",
    "Constant",
    "Expression",
    "Lookup",
    "Memory",
    "Register",
    "RowColumn",
    "VariableColumn",
    "all_of",
    "holds",
    "offsets_of",
    "registers_of",
]

Memory = npt.NDArray[np.float64] | npt.NDArray[np.int64]
"""A register of many runs. Rows, counts, and the least and greatest of integers are integers; all else is doubles."""
RegisterKind = Literal["first", "last", "count", "sum", "min", "max"]


@dataclass(frozen=True, slots=True)
class Register:
    """Something that every run remembers of the rows that it gave to some variables; None stands for all of them."""

    kind: RegisterKind
    variables: frozenset[str] | None
    column: str | None = None
    skipped: int = 0
    """Of first and last: how many rows of the variables from that end."""

    @property
    def nearer(self) -> Register:
        """The row that is one less from its end."""
        return replace(self, skipped=self.skipped - 1)

    def empty(self, count: int, columns: Mapping[str, pa.Array]) -> Memory:
        """The register of ``count`` runs that took no row yet."""
        if self.kind in ("first", "last"):
            return np.full(count, -1)
        if self.kind == "count":
            return np.zeros(count, np.int64)
        if self.kind == "sum":
            return np.zeros(count)
        if pa.types.is_integer(columns[str(self.column)].type):
            ends = np.iinfo(np.int64)
            return np.full(count, ends.max if self.kind == "min" else ends.min)
        return np.full(count, math.nan if self.kind == "min" else -math.inf)  # NaN is the greatest number, as in Spark


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The rows, and of each run in question its row and its registers."""

    columns: Mapping[str, pa.Array]
    rows: Ints
    first: Ints
    """By row, of all rows: the first of its partition that is there."""
    end: Ints
    """By row: after the last of its partition that can be looked at."""
    registers: Mapping[Register, Any]

    def at(self, column: str, places: Ints) -> pa.Array:
        """Values at rows; null where a row is outside the partition."""
        inside = (places >= self.first[self.rows]) & (places < self.end[self.rows])
        if inside.all():
            return _at(self.columns[column], places)
        return self.columns[column].take(pa.array(np.where(inside, places, 0), mask=~inside))

    def here(self, column: str) -> pa.Array:
        """Values at the rows in question."""
        return _at(self.columns[column], self.rows)


def _at(column: pa.Array, places: Ints) -> pa.Array:
    """Numbers without nulls are taken by numpy, in half the time."""
    if column.null_count == 0 and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return pa.array(np.asarray(column)[places])
    return column.take(pa.array(places))


class AllRows(Lookup):
    """Every row there is, for conditions on a row alone."""

    def __init__(self, columns: Mapping[str, pa.Array], count: int) -> None:
        rows = np.arange(count)
        super().__init__(columns=columns, rows=rows, first=np.zeros_like(rows), end=rows + 1, registers={})

    def here(self, column: str) -> pa.Array:
        return self.columns[column]


@dataclass(frozen=True, slots=True)
class Constant:
    value: Any
    type: pa.DataType

    def compute(self, lookup: Lookup) -> Any:
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True, slots=True)
class RowColumn:
    column: str
    offset: int = 0

    def compute(self, lookup: Lookup) -> Any:
        return lookup.at(self.column, lookup.rows + self.offset) if self.offset else lookup.here(self.column)


@dataclass(frozen=True, slots=True)
class VariableColumn:
    register: Register
    column: str
    offset: int = 0

    def compute(self, lookup: Lookup) -> Any:
        places = lookup.registers[self.register]
        return lookup.at(self.column, np.where(places >= 0, places + self.offset, -1))


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Null without rows, but for a count."""

    kind: Literal["count", "sum", "avg", "min", "max"]
    value: Register
    count: Register

    def compute(self, lookup: Lookup) -> Any:
        counts = lookup.registers[self.count]
        if self.kind == "count":
            return pa.array(counts)
        values = lookup.registers[self.value]
        if self.kind == "avg":
            values = values / np.maximum(counts, 1)
        return pa.array(values) if counts.all() else pa.array(values, mask=counts == 0)


class ArithmeticOverflow(HeadraceError):
    """A condition computes an integer that its type cannot hold."""


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Expression, ...]

    def compute(self, lookup: Lookup) -> Any:
        return FUNCTIONS[self.function](*_alike([each.compute(lookup) for each in self.arguments]))


def all_of(conditions: Sequence[Expression]) -> Expression | None:
    """One condition that is true where all are."""
    return functools.reduce(lambda left, right: Call("and", (left, right)), conditions) if conditions else None


def _alike(values: list[Any]) -> list[Any]:
    """As in Spark, numbers beside a double are doubles. By itself Arrow fails at integers beyond 2^53 there."""
    if not any(pa.types.is_floating(each.type) for each in values):
        return values
    return [_as_double(each) if _is_exact(each.type) else each for each in values]


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _as_double(values: Any) -> Any:
    kind = values.type
    if not (_is_exact(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise pa.ArrowNotImplementedError(f"{kind} is no number")
    return pc.cast(values, pa.float64(), safe=False)


Expression = Constant | RowColumn | VariableColumn | Aggregated | Call


def holds(condition: Expression, lookup: Lookup) -> Flags:
    """For which runs the condition is true."""
    found = condition.compute(lookup)
    if isinstance(found, pa.Scalar):
        return np.full(len(lookup.rows), bool(found.as_py()))
    return np.asarray(pc.fill_null(found, False) if found.null_count else found, np.bool_)


def registers_of(expression: Expression) -> set[Register]:
    match expression:
        case VariableColumn(register=register):
            return {replace(register, skipped=each) for each in range(register.skipped + 1)}
        case Aggregated(value=value, count=count, kind=kind):
            return {count} if kind == "count" else {value, count}
        case Call(arguments=arguments):
            return set().union(*[registers_of(each) for each in arguments])
    return set()


def offsets_of(expression: Expression, name: str) -> Iterator[tuple[frozenset[str] | None, int]]:
    """Which rows the condition of a variable looks at: how many after or, negative, before the rows of which variables;
    None stands for all of them."""
    match expression:
        case RowColumn(offset=offset):
            yield frozenset({name}), offset
        case VariableColumn(register=register, offset=offset):
            yield register.variables, offset
        case Call(arguments=arguments):
            for each in arguments:
                yield from offsets_of(each, name)


def _arithmetic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decimals stay exact as long as the result has at most 38 digits; otherwise they are doubles. An integer that is
    too large ends the query, as it does in Spark."""

    def computed(*values: Any) -> Any:
        try:
            return function(*values)
        except pa.ArrowInvalid as error:
            if any(pa.types.is_decimal(each.type) for each in values):
                return function(*map(_as_double, values))
            if "overflow" not in str(error):
                raise
            raise ArithmeticOverflow(
                f"a condition computes an integer that does not fit into {values[0].type}: compute with doubles, "
                f"such as A.amount / 1"
            ) from None

    return computed


def _of_doubles(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*map(_as_double, values))


def _whole_number(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value: value if pa.types.is_integer(value.type) else function(value)


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of decimals with other numbers the greatest is a double."""

    def computed(*values: Any) -> Any:
        kinds = {each.type for each in values}
        if len(kinds) > 1 and any(pa.types.is_decimal(each) for each in kinds):
            values = tuple(map(_as_double, values))
        return function(*values)

    return computed


def _greatest(*values: Any) -> Any:
    """NaN is the greatest number; Arrow leaves it out."""
    found = _extreme(pc.max_element_wise)(*values)
    for nan in map(_nan, values):
        found = found if nan is None else pc.if_else(nan, pa.scalar(math.nan), found)
    return found


def _compared(function: Callable[..., Any], of_nan: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """As in Spark, NaN is equal to NaN and greater than every number. ``of_nan``: given which of both are NaN."""

    def computed(left: Any, right: Any) -> Any:
        found = function(left, right)
        nans = [_nan(each) for each in (left, right)]
        if all(each is None for each in nans):
            return found
        first, second = (pa.scalar(False) if each is None else each for each in nans)
        return pc.if_else(pc.or_(first, second), pc.if_else(pc.is_null(found), found, of_nan(first, second)), found)

    return computed


def _nan(values: Any) -> Any:
    """Where values are NaN; None where there is none, which is nearly always so."""
    if not pa.types.is_floating(values.type):
        return None
    found = pc.is_nan(values)
    there = found if isinstance(found, pa.Scalar) else pc.any(found)
    return pc.fill_null(found, False) if there.as_py() else None


_EQUAL = _compared(_arithmetic(pc.equal), pc.and_)
_LESS = _compared(_arithmetic(pc.less), lambda left, right: pc.and_(pc.invert(left), right))
_LESS_EQUAL = _compared(_arithmetic(pc.less_equal), lambda left, right: right)


def _divide(left: Any, right: Any) -> Any:
    """As in Spark, a quotient of integers is a double. Division by zero is null, where Spark fails with ANSI on."""
    left, right = _as_double(left), _as_double(right)
    return pc.if_else(pc.equal(right, 0.0), pa.scalar(None, pa.float64()), pc.divide(left, right))


def _modulo(left: Any, right: Any) -> Any:
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):  # doubles have too few digits
        divisor = pc.if_else(pc.equal(right, 0), pa.scalar(None, right.type), right)
        return pc.subtract(left, pc.multiply(pc.divide(left, divisor), right))
    quotient = pc.trunc(_divide(left, right))
    return pc.subtract(_as_double(left), pc.multiply(quotient, _as_double(right)))


def _ln(value: Any) -> Any:
    """As in Spark null, and not minus infinity, where there is no logarithm."""
    return pc.ln(pc.if_else(pc.less_equal(value, 0.0), pa.scalar(None, pa.float64()), value))


def _like(value: Any, wanted: Any) -> Any:
    if not isinstance(wanted, pa.Scalar):
        raise pa.ArrowNotImplementedError("LIKE takes a text that is the same for all rows")
    return pc.match_like(value, pattern=wanted.as_py())


def _in(value: Any, *options: Any) -> Any:
    return functools.reduce(pc.or_kleene, [_EQUAL(value, each) for each in options])


def _case(*parts: Any) -> Any:
    """condition, value, condition, value, …, otherwise."""
    *pairs, otherwise = parts
    for value, condition in zip(reversed(pairs[1::2]), reversed(pairs[0::2]), strict=True):
        otherwise = pc.if_else(pc.fill_null(condition, False), value, otherwise)
    return otherwise


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": _arithmetic(pc.add_checked),
    "sub": _arithmetic(pc.subtract_checked),
    "mul": _arithmetic(pc.multiply_checked),
    "div": _divide,
    "mod": _modulo,
    "neg": _arithmetic(pc.negate_checked),
    "eq": _EQUAL,
    "neq": lambda left, right: pc.invert(_EQUAL(left, right)),
    "lt": _LESS,
    "lte": _LESS_EQUAL,
    "gt": lambda left, right: _LESS(right, left),
    "gte": lambda left, right: _LESS_EQUAL(right, left),
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "is_null": pc.is_null,
    "between": lambda value, low, high: pc.and_kleene(_LESS_EQUAL(low, value), _LESS_EQUAL(value, high)),
    "in": _in,
    "like": _like,
    "case": _case,
    "coalesce": pc.coalesce,
    "abs": _arithmetic(pc.abs_checked),
    "sqrt": _of_doubles(pc.sqrt),
    "pow": _of_doubles(pc.power),
    "exp": _of_doubles(pc.exp),
    "ln": _of_doubles(_ln),
    "floor": _whole_number(pc.floor),
    "ceil": _whole_number(pc.ceil),
    "sin": _of_doubles(pc.sin),
    "cos": _of_doubles(pc.cos),
    "tan": _of_doubles(pc.tan),
    "asin": _of_doubles(pc.asin),
    "acos": _of_doubles(pc.acos),
    "atan": _of_doubles(pc.atan),
    "atan2": _of_doubles(pc.atan2),
    "radians": _of_doubles(lambda degrees: pc.multiply(degrees, math.pi / 180)),
    "greatest": _greatest,
    "least": _extreme(pc.min_element_wise),
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "length": pc.utf8_length,
}
"""What a condition on matched rows may compute. Conditions on the current row alone may use all of Spark SQL."""
