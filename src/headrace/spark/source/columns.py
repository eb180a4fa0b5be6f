"""Which columns a read has, and how decoded records fill them.

Without a ``valueFormat`` the columns are those of Spark's Kafka source; a schema given by the user picks some of them,
and what is not picked is not copied. With one, the columns of the value stand first and what surrounds the value has a
name with an underscore: ``_key``, ``_topic``, ``_partition``, ``_offset``, ``_timestamp``, ``_timestampType``,
``_headers``, ``_tombstone`` (the record has no value), and ``_raw`` and ``_error`` for values that did not fit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import HeadraceError, UsageError
from headrace.spark.source.decode import HEADERS_TYPE, Decoded
from headrace.spark.source.positions import OffsetRange

__all__ = [
    "ERROR_COLUMN",
    "META_PREFIX",
    "PLAIN",
    "RAW_COLUMN",
    "TOMBSTONE_COLUMN",
    "meta_columns",
    "metadata",
    "plain_schema",
]

META_PREFIX = "_"
TOMBSTONE_COLUMN = "_tombstone"
"""A value whose columns are all null is a row; a record without a value removes its key."""
RAW_COLUMN = "_raw"
ERROR_COLUMN = "_error"

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

PLAIN: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
"""As in Spark's Kafka source, in its order."""

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000


def plain_schema(include_headers: bool) -> StructType:
    return StructType([StructField(name, kind) for name, kind in PLAIN.items() if name != "headers" or include_headers])


def meta_columns(include_headers: bool, keep_bad: bool) -> list[StructField]:
    """The columns beside those of a typed value, when the user did not choose."""
    names = ["key", "topic", "partition", "offset", "timestamp", "timestampType"] + ["headers"] * include_headers
    fields = [StructField(META_PREFIX + name, PLAIN[name]) for name in names]
    fields.append(StructField(TOMBSTONE_COLUMN, BooleanType()))
    if keep_bad:
        fields += [StructField(RAW_COLUMN, BinaryType()), StructField(ERROR_COLUMN, StringType())]
    return fields


def check_plain(field: StructField, prefix: str = "") -> str:
    """The name of a column of the record itself, or an error that lists what there is."""
    name = field.name.removeprefix(prefix)
    kind = PLAIN.get(name)
    if kind is None:
        valid = ", ".join(f"{prefix}{each} {of.simpleString()}" for each, of in PLAIN.items())
        raise UsageError(f"there is no column {field.name!r} in a record; valid: {valid}")
    readable = (kind, StringType()) if name == "key" and prefix else (kind,)
    if field.dataType not in readable:
        raise UsageError(f"column {field.name!r} is {kind.simpleString()}, not {field.dataType.simpleString()}")
    return name


def metadata(name: str, decoded: Decoded, place: OffsetRange) -> pa.Array:
    """One column of the records themselves, by its plain name."""
    return _MAKERS[name](decoded, place)


def _timestamps(decoded: Decoded, place: OffsetRange) -> pa.Array:
    """Milliseconds become microseconds; a time that no timestamp can hold is an error and not wrapped around."""
    times = decoded.timestamps_ms
    if len(times) and (times.max() > TIMESTAMP_MS_MAX or times.min() < -TIMESTAMP_MS_MAX):
        row = int(np.nonzero((times > TIMESTAMP_MS_MAX) | (times < -TIMESTAMP_MS_MAX))[0][0])
        raise HeadraceError(
            f"the record at {place.topic}[{place.partition}] offset {decoded.offsets[row]} has the timestamp "
            f"{times[row]} ms, which Spark cannot represent; read without the column timestamp"
        )
    return _from_numpy(times * 1000, pa.timestamp("us", tz="UTC"))


def _from_numpy(values: np.ndarray[tuple[int], np.dtype[np.int64 | np.int32]], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _same(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _headers(decoded: Decoded, place: OffsetRange) -> pa.Array:
    assert decoded.headers is not None, f"headers of {place} were not decoded"
    return decoded.headers.cast(HEADERS_TYPE)


_MAKERS: dict[str, Callable[[Decoded, OffsetRange], pa.Array]] = {
    "key": lambda decoded, place: decoded.keys,
    "value": lambda decoded, place: decoded.values,
    "topic": lambda decoded, place: _same(place.topic, pa.string(), decoded.row_count),
    "partition": lambda decoded, place: _same(place.partition, pa.int32(), decoded.row_count),
    "offset": lambda decoded, place: _from_numpy(decoded.offsets, pa.int64()),
    "timestamp": _timestamps,
    "timestampType": lambda decoded, place: _from_numpy(decoded.timestamp_types, pa.int32()),
    "headers": _headers,
}
assert set(_MAKERS) == set(PLAIN)
