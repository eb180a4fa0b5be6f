"""Operators with state for pipelines: ``hr.dedup``, ``hr.sessions``, ``hr.correct_clock``.

Each takes a DataFrame and gives one, bounded or streaming, with the same result in the end. What cannot work is
refused here, before a query starts, with what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import DataType, TimestampType

from headrace.errors import UsageError
from headrace.spark.clock_correction import SmoothClock
from headrace.spark.deduplication import Dedup, DedupForever
from headrace.spark.session_windows import Aggregate, Emit, Sessions
from headrace.spark.state import BUCKETS, apply_operator, arrow_schema, key_type

__all__ = ["FOREVER", "correct_clock", "dedup", "sessions"]

FOREVER: Final = "forever"
"""A bound that is none: said out loud, because memory and disk then grow with the number of keys."""

FUNCTIONS = ("sum", "min", "max")
UNITS_US = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
"""No months and years: they differ in length."""
PART = re.compile(rf"(\d+) +({'|'.join(UNITS_US)})s?")
DURATION = re.compile(rf"(interval +)?{PART.pattern}( +{PART.pattern})*")


def dedup(
    rows: DataFrame,
    keys: str | Sequence[str],
    *,
    within: str | None = None,
    event_time: str | None = None,
    buckets: int = BUCKETS,
    name: str | None = None,
) -> DataFrame:
    """Of rows with equal keys and less than ``within`` apart by ``event_time``, the first that comes.

    A key is forgotten when the watermark is ``within`` past the row that was given out. With ``within=hr.FOREVER`` each
    key comes once and is never forgotten; that needs no times.
    """
    names = _names(keys)
    if within is None:
        raise UsageError(
            "dedup needs to know how long it has to remember keys",
            'say within="1 hour", or within=hr.FOREVER if the number of keys is bounded by itself',
        )
    schema = arrow_schema(rows.schema)
    if within == FOREVER:
        return apply_operator(rows, DedupForever(schema), keys=names, buckets=buckets, name=name)
    time = _time_column(rows, event_time, "event_time")
    operator = Dedup(schema, time, micros_of(within, "within"))
    return apply_operator(rows, operator, keys=names, event_time=time, buckets=buckets, name=name)


def sessions(
    rows: DataFrame,
    keys: str | Sequence[str],
    *,
    event_time: str,
    gap: str,
    values: Mapping[str, tuple[str, str]] | None = None,
    emit: Emit = "final",
    buckets: int = BUCKETS,
    name: str | None = None,
) -> DataFrame:
    """Rows of a key that follow each other within ``gap``: where each session starts and ends and what it adds up to.

    ``values``: by the name of the result, a function (sum, min, max) and a column: ``{"spent": ("sum", "amount")}``.
    The number of rows is always there, as ``events``. ``emit="early"`` gives results while sessions are open, and
    corrects them.
    """
    if emit not in ("final", "early"):
        raise UsageError(f"emit={emit!r} is neither 'final' nor 'early'")
    names = _names(keys)
    time = _time_column(rows, event_time, "event_time")
    aggregates = tuple(_aggregate(rows, each, *given) for each, given in (values or {}).items())
    operator = Sessions(key_type(rows, names), time, micros_of(gap, "gap"), aggregates, emit)
    taken = [each.name for each in operator.output]
    doubled = sorted({each for each in taken if taken.count(each) > 1})
    if doubled:
        raise UsageError(f"two columns of the result would be called {doubled[0]!r}", "give the value another name")
    needed = rows.select(*dict.fromkeys([*names, time, *(each.column for each in aggregates)]))
    return apply_operator(needed, operator, keys=names, event_time=time, buckets=buckets, name=name)


def correct_clock(
    rows: DataFrame,
    *,
    occurred: str,
    sent: str,
    received: str,
    device: str | Sequence[str] | None = None,
    samples: int = 15,
    offset_max: str = "3650 days",
    forget: str = "7 days",
    buckets: int = BUCKETS,
    name: str | None = None,
) -> DataFrame:
    """When things occurred by the server's clock, from what a device's clock says: occurred + (received − sent).

    Adds ``corrected``, ``clock_offset_us`` and ``clock_trusted`` and keeps the three times. Without ``device`` each
    row is corrected by itself. With it, by the median of its device's last ``samples`` offsets, in the order of
    ``received``; rows then wait for the watermark on ``received``. An offset beyond ``offset_max`` is not believed. A
    device is forgotten after ``forget`` without a sample.
    """
    for column in (occurred, sent, received):
        _time_column(rows, column, "a time of clock correction")
    offset_us_max = micros_of(offset_max, "offset_max")
    if device is None:
        return _corrected_row_by_row(rows, occurred, sent, received, offset_us_max)
    if samples < 1:
        raise UsageError(f"samples={samples}: a median needs at least one")
    schema = arrow_schema(rows.schema)
    operator = SmoothClock(schema, occurred, sent, received, samples, offset_us_max, micros_of(forget, "forget"))
    return apply_operator(rows, operator, keys=_names(device), event_time=received, buckets=buckets, name=name)


def _corrected_row_by_row(rows: DataFrame, occurred: str, sent: str, received: str, offset_us_max: int) -> DataFrame:
    offset: Column = F.unix_micros(F.col(received)) - F.unix_micros(F.col(sent))
    believed = F.when(F.abs(offset) <= F.lit(offset_us_max), offset)
    corrected = F.timestamp_micros(F.unix_micros(F.col(occurred)) + F.coalesce(believed, F.lit(0)))
    return rows.withColumns(
        {"corrected": corrected, "clock_offset_us": believed, "clock_trusted": believed.isNotNull()}
    )


# ---- arguments -----------------------------------------------------------------------------------------------------


def _names(keys: str | Sequence[str]) -> list[str]:
    return [keys] if isinstance(keys, str) else list(keys)


def _time_column(rows: DataFrame, column: str | None, argument: str) -> str:
    times = [each.name for each in rows.schema if isinstance(each.dataType, TimestampType)]
    if column is None or column not in times:
        what = f"{argument} is not given" if column is None else f"{argument}: {column!r} is no column with a timestamp"
        raise UsageError(what, f"columns with timestamps: {', '.join(times) or 'none'}")
    return column


def micros_of(duration: str, argument: str) -> int:
    """A duration as Spark writes them: '10 minutes', '1 hour 30 seconds'."""
    parts = DURATION.fullmatch(str(duration).strip().lower()) and PART.findall(str(duration).lower())
    if not parts:
        raise UsageError(
            f"{argument}={duration!r} is no duration",
            f"'10 minutes', '1 hour 30 seconds'; units: {', '.join(UNITS_US)}",
        )
    found = sum(int(number) * UNITS_US[unit] for number, unit in parts)
    if found <= 0:
        raise UsageError(f"{argument}={duration!r} is not longer than nothing", "'10 minutes', say")
    return found


def _aggregate(rows: DataFrame, name: str, function: str, column: str) -> Aggregate:
    if function not in FUNCTIONS:
        raise UsageError(f"{name}: there is no function {function!r}", f"there are {', '.join(FUNCTIONS)}")
    if column not in rows.columns:
        raise UsageError(f"{name}: there is no column {column!r}", f"the columns are {', '.join(rows.columns)}")
    known: Literal["sum", "min", "max"] = function  # type: ignore[assignment]
    return Aggregate(name, known, column, _value_type(name, function, rows.schema[column].dataType, rows, column))


def _value_type(name: str, function: str, kind: DataType, rows: DataFrame, column: str) -> pa.DataType:
    found = arrow_schema(rows.schema).field(column).type
    if pa.types.is_integer(found):
        return pa.int64()
    if pa.types.is_floating(found):
        return pa.float64()
    if pa.types.is_decimal(found):
        return pa.decimal128(38, found.scale)
    if function != "sum" and (pa.types.is_temporal(found) or pa.types.is_string(found)):
        return found
    raise UsageError(f"{name}: {function} of {column!r}, which is {kind.simpleString()}, is not offered", "cast it")
