"""JSON values become typed columns: all at once in Arrow's parser, and one by one where that parser cannot follow.

Values of one shape, which most producers write, need no parser (``json_uniform``). Otherwise:

Arrow's parser is fast and strict. It reads a sequence of objects and does not care where one value ends and the next
begins, it gives up at the first object it does not like, and it knows fewer conversions than Spark's ``from_json``. So:

- A value goes to it only if it begins with ``{`` and ends with ``}``. Then two values can never be read as one: after
  a closing brace no further value may follow inside the same object, and a string cannot reach over the line break
  that is put between values. One value may still hold two objects; then there are more rows than values, which is seen.
- When it gives up, the values are halved until the trouble lies among a few; those are read one by one with Python's
  own parser, under rules that accept everything Arrow accepts, with the same result, and more: numbers as strings,
  rounding of decimals, maps. What fails there too is bad, and has a reason.
- Times and dates are read as strings, or as the numbers that ``json_forms`` says, and converted by Arrow's kernels,
  since its JSON parser does not know zones.
"""

from __future__ import annotations

import binascii
import datetime
import decimal
import json
import re
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.errors import UsageError
from headrace.spark.source.json_forms import MOMENT_US_MAX, MOMENT_US_MIN, PLAIN, UNITS_NS, Forms
from headrace.spark.source.json_uniform import read_uniform
from headrace.spark.source.json_values import SIMPLE, NumberText, as_decimal, shown
from headrace.spark.source.pieces import Pieces

__all__ = ["JsonColumns", "Parsed"]

ONE_BY_ONE_ROWS = 64
"""Fewer rows than this are not halved again: a call of Arrow's parser costs as much as some rows in Python."""

UNIFORM_ROWS_MIN = 256
"""Fewer rows are not worth the fixed costs of looking for their shape."""
MISSES_MAX = 8

DAY_US = 86_400_000_000
_UNIT_NAMES = {ns: name for name, ns in UNITS_NS.items()}
_INDEX = re.compile(r"\[\d+\]")


class _Unfit(Exception):
    """A value does not fit the schema; the message says where and why."""


@dataclass(slots=True)
class Parsed:
    """One array per column, as many rows as values went in. Bad rows are null in all of them and have a reason."""

    columns: list[pa.Array]
    bad: dict[int, str] = field(default_factory=dict)


class JsonColumns:
    """Turns arrays of JSON texts into the columns of a schema."""

    def __init__(self, schema: StructType, *, time_zone: str = "UTC", forms: Forms = PLAIN) -> None:
        self._schema = schema
        self._forms = forms
        self._types = [to_arrow_type(each.dataType, timezone="UTC") for each in schema.fields]
        self._zone = zoneinfo.ZoneInfo(time_zone)
        self._zone_name = time_zone
        self._native = all(_is_native(each.dataType) for each in schema.fields)
        self._times_are_numbers = False
        self._misses = 0
        for each in schema.fields:
            _check_type(each.dataType, each.name)

    def parse(self, values: pa.BinaryArray) -> Parsed:
        return self.parse_pieces(Pieces.of(values))

    def parse_pieces(self, values: Pieces) -> Parsed:
        """Rows whose value is null are null, and not bad."""
        null = values.is_null()
        has_nulls = bool(null.any())
        made: list[list[pa.Array]] = []
        bad: dict[int, str] = {}
        self._parse_part(values[~null] if has_nulls else values, 0, made, bad)
        columns = [_joined([part[index] for part in made], kind) for index, kind in enumerate(self._types)]
        if has_nulls:
            valid = ~null
            places = np.cumsum(valid) - 1
            spread = pa.array(places, mask=~valid)
            columns = [column.take(spread) for column in columns]
            rows = np.nonzero(valid)[0]
            bad = {int(rows[row]): reason for row, reason in bad.items()}
        return Parsed(columns, bad)

    def _parse_part(self, values: Pieces, first: int, made: list[list[pa.Array]], bad: dict[int, str]) -> None:
        """Natively if that works, else in halves, else one by one; parts are appended in the order of rows."""
        if len(values) == 0:
            return
        found = self._parse_natively(values) if self._native else None
        if found is not None:
            made.append(found)
        elif len(values) <= ONE_BY_ONE_ROWS or not self._native:
            made.append(self._parse_one_by_one(_trimmed(values.column()), first, bad))
        else:
            for half in values.halves():
                self._parse_part(half, first, made, bad)
                first += len(half)

    # ---- all at once -----------------------------------------------------------------------------------------------

    def _parse_natively(self, values: Pieces) -> list[pa.Array] | None:
        """None when Arrow's parser did not like something; nothing is known then about any single value."""
        found = self._read_as_uniform(values)
        if found is not None:
            return found
        column = _trimmed(values.column())
        if not _begins_and_ends_with_braces(column):
            return None
        try:
            texts = column.cast(pa.string())  # checks that it is UTF-8, which the parser does not
        except pa.ArrowException:
            return None
        return self._read_as_lines(texts)

    def _read_as_uniform(self, values: Pieces) -> list[pa.Array] | None:
        """Without a parser, where all have one shape. After some misses in a row it is not tried again: they cost time,
        and producers keep to their shape or have none."""
        if len(values) < UNIFORM_ROWS_MIN or self._misses >= MISSES_MAX:
            return None
        found = read_uniform(values, self._fields(self._times_are_numbers))
        try:
            converted = None if found is None else self._converted(found)
        except pa.ArrowException:
            converted = None
        self._misses = 0 if converted is not None else self._misses + 1
        return converted

    def _read_as_lines(self, texts: pa.StringArray) -> list[pa.Array] | None:
        try:
            lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
            buffer = pc.binary_join(lines, "\n")[0].as_buffer()
        except pa.ArrowException:
            return None
        for times_are_numbers in (self._times_are_numbers, not self._times_are_numbers):
            try:
                found = self._read(buffer, len(texts), times_are_numbers)
            except pa.ArrowException:
                continue
            self._times_are_numbers = times_are_numbers
            return found
        return None

    def _read(self, buffer: pa.Buffer, row_count: int, times_are_numbers: bool) -> list[pa.Array] | None:
        table = pyarrow.json.read_json(
            pa.BufferReader(buffer),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=buffer.size + 64),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(self._fields(times_are_numbers)), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != row_count:
            return None
        return self._converted([_whole(column) for column in table.columns])

    def _fields(self, times_are_numbers: bool) -> list[pa.Field]:
        return [
            pa.field(each.name, self._read_type(each.dataType, each.name, times_are_numbers))
            for each in self._schema.fields
        ]

    def _converted(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return [
            self._convert(column, each.dataType, kind, each.name)
            for column, each, kind in zip(columns, self._schema.fields, self._types, strict=True)
        ]

    def _read_type(self, kind: DataType, path: str, times_are_numbers: bool) -> pa.DataType:
        """What Arrow's parser is asked for; ``_convert`` does the rest."""
        if isinstance(kind, TimestampType | TimestampNTZType):
            return pa.int64() if times_are_numbers or path in self._forms.columns_time_ns else pa.string()
        if isinstance(kind, DateType):
            return pa.int64() if times_are_numbers and self._forms.dates_are_days else pa.string()
        if isinstance(kind, DecimalType) and self._forms.scale(path, kind.scale) is not None:
            return pa.string()
        if isinstance(kind, ArrayType):
            return pa.list_(self._read_type(kind.elementType, path, times_are_numbers))
        if isinstance(kind, StructType):
            names = [(each.name, f"{path}.{each.name}", each.dataType) for each in kind.fields]
            return pa.struct([(name, self._read_type(inner, place, times_are_numbers)) for name, place, inner in names])
        return to_arrow_type(kind)

    def _convert(self, column: pa.Array, kind: DataType, arrow: pa.DataType, path: str) -> pa.Array:
        """From what the parser reads to what Spark takes."""
        if isinstance(kind, DecimalType) and pa.types.is_string(column.type):
            try:
                return pa.array([as_decimal(each, kind, self._forms, path) for each in column.to_pylist()], arrow)
            except (ValueError, decimal.InvalidOperation) as error:
                raise pa.ArrowInvalid(f"{path}: {error}") from error
        if isinstance(kind, DecimalType):
            column.validate(full=True)  # the parser checks the digits after the point only
        if column.type == arrow and not isinstance(kind, ArrayType | StructType):
            return column
        if isinstance(kind, TimestampType | TimestampNTZType):
            return self._convert_times(column, arrow, path)
        if isinstance(kind, DateType) and pa.types.is_integer(column.type):
            return _days(column).cast(arrow)
        if isinstance(kind, ArrayType):
            inner = self._convert(column.flatten(), kind.elementType, arrow.value_type, path)
            return _list_like(column, inner, arrow)
        if isinstance(kind, StructType):
            children = [
                self._convert(column.field(index), each.dataType, arrow.field(index).type, f"{path}.{each.name}")
                for index, each in enumerate(kind.fields)
            ]
            mask = column.is_null() if column.null_count else None
            return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)
        return column.cast(arrow)

    def _convert_times(self, column: pa.Array, arrow: pa.DataType, path: str) -> pa.Array:
        """Numbers have a unit; strings have a zone, all of them or none. A mixture is read one by one."""
        if pa.types.is_integer(column.type):
            return _moments(column, self._forms.unit_ns(path)).cast(arrow)
        if arrow.tz is None:
            return column.cast(arrow)
        try:
            return column.cast(arrow)
        except pa.ArrowInvalid:
            local = column.cast(pa.timestamp("us"))
            zoned = pc.assume_timezone(local, self._zone_name, ambiguous="earliest", nonexistent="raise")
            return zoned.cast(arrow)

    # ---- one by one ------------------------------------------------------------------------------------------------

    def _parse_one_by_one(self, values: pa.BinaryArray, first: int, bad: dict[int, str]) -> list[pa.Array]:
        rows: list[Sequence[Any]] = []
        nothing = [None] * len(self._schema.fields)
        for index, value in enumerate(values.to_pylist()):
            try:
                rows.append(self._read_one(value))
            except _Unfit as why:
                bad[first + index] = str(why)
                rows.append(nothing)
        return [pa.array([row[index] for row in rows], kind) for index, kind in enumerate(self._types)]

    def _read_one(self, value: bytes) -> Sequence[Any]:
        try:
            found = json.loads(value.decode(), parse_int=NumberText, parse_float=NumberText, parse_constant=NumberText)
        except UnicodeDecodeError:
            raise _Unfit("it is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise _Unfit(f"it is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise _Unfit("it is JSON but not an object")
        return [self._fit(found.get(each.name), each.dataType, each.name) for each in self._schema.fields]

    def _fit(self, value: Any, kind: DataType, where: str) -> Any:
        if value is None:
            return None
        try:
            return self._fitted(value, kind, where)
        except (ValueError, TypeError, OverflowError, decimal.InvalidOperation, binascii.Error):
            raise _Unfit(f"{where} is {shown(value)}, which is no {kind.simpleString()}{_hint(value, kind)}") from None

    def _fitted(self, value: Any, kind: DataType, where: str) -> Any:
        """The value as Python has it; ValueError and the like when it does not fit."""
        if isinstance(kind, StructType):
            if not isinstance(value, dict):
                raise ValueError
            return {each.name: self._fit(value.get(each.name), each.dataType, f"{where}.{each.name}") for each in kind}
        if isinstance(kind, ArrayType):
            if not isinstance(value, list):
                raise ValueError
            return [self._fit(each, kind.elementType, f"{where}[{index}]") for index, each in enumerate(value)]
        if isinstance(kind, MapType):
            if not isinstance(value, dict):
                raise ValueError
            return [(key, self._fit(each, kind.valueType, f"{where}.{key}")) for key, each in value.items()]
        if isinstance(kind, TimestampType | TimestampNTZType):
            return self._fit_time(value, isinstance(kind, TimestampType), _path(where))
        if isinstance(kind, DecimalType):
            return as_decimal(value, kind, self._forms, _path(where))
        if isinstance(kind, DateType) and isinstance(value, NumberText) and self._forms.dates_are_days:
            return _checked_days(int(value))
        return SIMPLE[type(kind)](value, kind)

    def _fit_time(self, value: Any, zoned: bool, path: str) -> int:
        """Microseconds since 1970, as Arrow counts them."""
        if isinstance(value, NumberText):
            unit_ns = self._forms.unit_ns(path)
            if unit_ns is None:
                raise _Unfit(
                    f"{path} is {value}, a number whose unit is not known. Say timeUnit=milliseconds, microseconds or "
                    "nanoseconds where it is the same for all columns; write the records with their schema; capture "
                    "with --times strings; or read the column as long"
                )
            moment_us = int(value) * unit_ns // 1_000
            if not MOMENT_US_MIN <= moment_us <= MOMENT_US_MAX:
                raise _Unfit(
                    f"{path} is {value}, which is outside of the years 1 to 9999 when it counts "
                    f"{_UNIT_NAMES[unit_ns]}. timeUnit=… says what numbers in timestamps count"
                )
            return moment_us
        if not isinstance(value, str):
            raise ValueError
        when = datetime.datetime.fromisoformat(value)
        if not zoned:
            if when.tzinfo is not None:
                raise ValueError
            when = when.replace(tzinfo=datetime.UTC)
        elif when.tzinfo is None:
            when = when.replace(tzinfo=self._zone)
        since = when - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return since // datetime.timedelta(microseconds=1)


# ---- types ---------------------------------------------------------------------------------------------------------


def _check_type(kind: DataType, where: str) -> None:
    if isinstance(kind, StructType):
        for each in kind.fields:
            _check_type(each.dataType, f"{where}.{each.name}")
    elif isinstance(kind, ArrayType):
        _check_type(kind.elementType, f"{where}[]")
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise UsageError(f"{where}: keys of a map in JSON are strings, not {kind.keyType.simpleString()}")
        _check_type(kind.valueType, f"{where}{{}}")
    elif type(kind) not in SIMPLE and not isinstance(kind, TimestampType | TimestampNTZType):
        raise UsageError(f"{where}: JSON has no {kind.simpleString()}", "read it as string and convert it in Spark")


def _is_native(kind: DataType) -> bool:
    """Whether Arrow's parser can read the type at all."""
    if isinstance(kind, StructType):
        return len(kind.fields) > 0 and all(_is_native(each.dataType) for each in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_native(kind.elementType)
    return not isinstance(kind, MapType | BinaryType)


def _path(where: str) -> str:
    """The column of an element of an array."""
    return _INDEX.sub("", where)


def _moments(numbers: pa.Array, unit_ns: int | None) -> pa.Array:
    """Microseconds since 1970. ArrowInvalid: they are read one by one, where the reason is found."""
    if unit_ns is None:
        raise pa.ArrowInvalid("the unit is not known")
    if unit_ns >= 1_000:
        found = pc.multiply_checked(numbers, unit_ns // 1_000)
    else:
        found = pa.array(
            [None if each is None else each * unit_ns // 1_000 for each in numbers.to_pylist()], pa.int64()
        )
    bounds = pc.min_max(found).as_py()
    if bounds["min"] is not None and not (bounds["min"] >= MOMENT_US_MIN and bounds["max"] <= MOMENT_US_MAX):
        raise pa.ArrowInvalid("outside of the years 1 to 9999")
    return found


def _days(numbers: pa.Array) -> pa.Array:
    for bound in pc.min_max(numbers).as_py().values():
        if bound is not None:
            _checked_days(bound)
    return numbers.cast(pa.int32())


def _checked_days(days: int) -> int:
    if not MOMENT_US_MIN <= days * DAY_US <= MOMENT_US_MAX:
        raise pa.ArrowInvalid(f"{days} days are outside of the years 1 to 9999")  # a ValueError too
    return days


def _hint(value: Any, kind: DataType) -> str:
    """What may have been meant."""
    if isinstance(kind, DecimalType) and isinstance(value, str) and not isinstance(value, NumberText):
        return (
            ". If it is the unscaled number in base64, as Debezium writes decimals by default: say "
            "decimalFormat=base64, or capture with --decimals string"
        )
    return ""


def _list_like(column: pa.ListArray, inner: pa.Array, arrow: pa.DataType) -> pa.ListArray:
    """The lists of ``column`` with converted elements. Null lists have no elements, so offsets follow from lengths."""
    lengths = column.value_lengths().fill_null(0).to_numpy()
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), inner, type=arrow, mask=mask)


# ---- values as bytes -----------------------------------------------------------------------------------------------


def _edges(values: pa.BinaryArray) -> tuple[Any, Any, Any]:
    """(first byte, last byte, length) of each value; bytes of empty values are whatever lies there."""
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    data = np.frombuffer(values.buffers()[2] or b"\0", np.uint8)
    if len(data) == 0:
        data = np.zeros(1, np.uint8)
    last = len(data) - 1
    return data[np.minimum(offsets[:-1], last)], data[np.clip(offsets[1:] - 1, 0, last)], np.diff(offsets)


def _begins_and_ends_with_braces(values: pa.BinaryArray) -> bool:
    first, last, lengths = _edges(values)
    return bool(((first == ord("{")) & (last == ord("}")) & (lengths >= 2)).all())


def _trimmed(values: pa.BinaryArray) -> pa.BinaryArray:
    """Without the white space that many producers leave around their JSON; most do not, and pay one comparison."""
    if len(values) == 0:
        return values
    first, last, _ = _edges(values)
    if (first > ord(" ")).all() and (last > ord(" ")).all():
        return values
    # Trimming works on bytes below 128 only, so it needs no valid UTF-8; it is offered for strings only.
    texts = pa.Array.from_buffers(pa.string(), len(values), values.buffers(), values.null_count, values.offset)
    return pc.ascii_trim(texts, " \t\r\n").cast(pa.binary())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _joined(pieces: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)
