"""Operators with state for pipelines: ``hr.dedup``, ``hr.sessions``, ``hr.correct_clock``.

Each takes a DataFrame and gives one, bounded or streaming, with the same result in the end. What cannot work is
refused here, before a query starts, with what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of, names_of, time_column, without_weights
from headrace.spark.clock_correction import SmoothClock
from headrace.spark.deduplication import Dedup, DedupForever
from headrace.spark.session_windows import Sessions
from headrace.spark.state import BUCKETS, apply_operator, arrow_schema, key_type
from headrace.spark.windowing import aggregates_of, keep_us_of, needed_rows, without_doubles
from headrace.spark.windows_operator import Emit, Late

__all__ = ["FOREVER", "correct_clock", "dedup", "micros_of", "sessions"]

FOREVER: Final = "forever"
"""A bound that is none: said out loud, because memory and disk then grow with the number of keys."""


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
    names = names_of(keys)
    without_weights(rows, Dedup.name)
    if within is None:
        raise UsageError(
            "dedup needs to know how long it has to remember keys",
            'say within="1 hour", or within=hr.FOREVER if the number of keys is bounded by itself',
        )
    schema = arrow_schema(rows.schema)
    if within == FOREVER:
        return apply_operator(rows, DedupForever(schema), keys=names, buckets=buckets, name=name)
    time = time_column(rows, event_time, "event_time")
    operator = Dedup(schema, time, micros_of(within, "within"))
    return apply_operator(rows, operator, keys=names, event_time=time, buckets=buckets, name=name)


def sessions(
    rows: DataFrame,
    keys: str | Sequence[str],
    *,
    event_time: str,
    gap: str,
    values: Mapping[str, Sequence[Any]] | None = None,
    emit: Emit = "final",
    late: Late = "drop",
    keep: str = "1 hour",
    buckets: int = BUCKETS,
    name: str | None = None,
) -> DataFrame:
    """Rows of a key that follow each other within ``gap``: where each session starts and ends and what it adds up to.

    ``values``: by the name of the result a function and a column, ``{"spent": ("sum", "amount")}``, as for
    ``hr.windows``. The number of rows is always there, as ``events``. ``emit="early"`` gives results while sessions
    are open, and corrects them. ``late`` and ``keep`` are as for ``hr.windows`` too.
    """
    keep_us = keep_us_of(emit, late, keep)
    names = names_of(keys)
    without_weights(rows, Sessions.name)
    time = time_column(rows, event_time, "event_time")
    aggregates = aggregates_of(rows, values)
    side = late == "side"
    late_rows = arrow_schema(rows.schema) if side else None
    gap_us = micros_of(gap, "gap")
    operator = Sessions(key_type(rows, names), time, gap_us, aggregates, emit, late, keep_us, late_rows)
    without_doubles(operator.output)
    needed = needed_rows(rows, rows.columns if side else [*names, time], aggregates)
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
        time_column(rows, column, "a time of clock correction")
    offset_us_max = micros_of(offset_max, "offset_max")
    if device is None:
        return _corrected_row_by_row(rows, occurred, sent, received, offset_us_max)
    without_weights(rows, SmoothClock.name)
    if samples < 1:
        raise UsageError(f"samples={samples}: a median needs at least one")
    schema = arrow_schema(rows.schema)
    operator = SmoothClock(schema, occurred, sent, received, samples, offset_us_max, micros_of(forget, "forget"))
    return apply_operator(rows, operator, keys=names_of(device), event_time=received, buckets=buckets, name=name)


def _corrected_row_by_row(rows: DataFrame, occurred: str, sent: str, received: str, offset_us_max: int) -> DataFrame:
    offset: Column = F.unix_micros(F.col(received)) - F.unix_micros(F.col(sent))
    believed = F.when(F.abs(offset) <= F.lit(offset_us_max), offset)
    corrected = F.timestamp_micros(F.unix_micros(F.col(occurred)) + F.coalesce(believed, F.lit(0)))
    return rows.withColumns(
        {"corrected": corrected, "clock_offset_us": believed, "clock_trusted": believed.isNotNull()}
    )
