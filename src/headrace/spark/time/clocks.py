"""Clocks of devices, corrected by three timestamps: ``hr.correct_clock``."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of, names_of, time_column, without_weights
from headrace.spark.state.kernel import apply_operator, arrow_schema
from headrace.spark.time.clock_operator import SmoothClock

__all__ = ["correct_clock"]


def correct_clock(
    rows: DataFrame,
    *,
    occurred: str,
    sent: str,
    received: str,
    keys: str | Sequence[str] | None = None,
    samples: int = 15,
    offset_max: str = "3650 days",
    keep: str = "7 days",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Correct a device's clock by three timestamps: occurred + (received − sent).

    Adds ``corrected``, ``clock_offset_us`` and ``clock_trusted`` and keeps the three times. Without ``keys`` each row
    is corrected by itself. With ``keys="device"`` the offset is the median of the device's last ``samples`` offsets in
    the order of ``received``; rows then wait for the watermark on ``received``. An offset beyond ``offset_max`` is not
    used. A device without a sample for ``keep`` starts over.
    """
    for column in (occurred, sent, received):
        time_column(rows, column, "a time of clock correction")
    offset_us_max = micros_of(offset_max, "offset_max")
    if keys is None:
        return _corrected_row_by_row(rows, occurred, sent, received, offset_us_max)
    without_weights(rows, SmoothClock.name)
    if samples < 1:
        raise UsageError(f"samples={samples}: a median needs at least one")
    schema = arrow_schema(rows.schema)
    operator = SmoothClock(schema, occurred, sent, received, samples, offset_us_max, micros_of(keep, "keep"))
    return apply_operator(rows, operator, keys=names_of(keys), event_time=received, buckets=buckets, name=name)


def _corrected_row_by_row(rows: DataFrame, occurred: str, sent: str, received: str, offset_us_max: int) -> DataFrame:
    offset: Column = F.unix_micros(F.col(received)) - F.unix_micros(F.col(sent))
    believed = F.when(F.abs(offset) <= F.lit(offset_us_max), offset)
    corrected = F.timestamp_micros(F.unix_micros(F.col(occurred)) + F.coalesce(believed, F.lit(0)))
    return rows.withColumns(
        {"corrected": corrected, "clock_offset_us": believed, "clock_trusted": believed.isNotNull()}
    )
