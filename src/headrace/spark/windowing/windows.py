"""``hr.windows``: what the rows of each interval add up to, with results that are early, final, and corrected.

Where Spark's own ``groupBy(window)`` gives the same answer it is used, as nothing in Python is as fast: final results,
late rows left out, no calendar, and only functions that Spark has for streams. Everything else takes the operator of
``window_operator``, which stands on the state of buckets. The arguments alone decide which, never the frame, so a
bounded frame and a stream go the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.pandas.types import from_arrow_type

from headrace.errors import UsageError
from headrace.spark.aggregates.expressions import requested
from headrace.spark.aggregates.totals import HASH, Aggregate, ApproximateDistinctCount, Average, Count, Extreme, Total
from headrace.spark.arguments import micros_of, names_of, no_doubles, plain_columns, time_column, without_weights
from headrace.spark.description import parameters_of
from headrace.spark.plan import WATERMARK
from headrace.spark.state.kernel import apply_operator, arrow_schema, watermarked
from headrace.spark.windowing.assignment import ROLE, SessionWindow, TimeWindow, time_window
from headrace.spark.windowing.inputs import aggregates_of, keep_us_of, needed_rows, window_keys
from headrace.spark.windowing.sessions import sessions
from headrace.spark.windowing.window_operator import LATE, WINDOW, Emit, Late, Windows

__all__ = ["null_future_times", "split_late", "windowed", "windows"]

NATIVE = (Count, Total, Average, Extreme, ApproximateDistinctCount)
DIFFERENT_ERROR = 0.016


def windows(
    rows: DataFrame,
    keys: str | Sequence[str] = (),
    *,
    event_time: str,
    window: TimeWindow | SessionWindow,
    values: Mapping[str, Column] | None = None,
    emit: Emit = "final",
    late: Late = "drop",
    keep: str = "1 hour",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Aggregate rows per key and window: ``window_start``, ``window_end``, ``events`` and the values.

    Without ``keys`` there is one result per window. ``window`` is one of ``hr.tumbling("1 minute")``, ``hr.hopping("1
    hour", "5 minutes")``, ``hr.calendar("day", "Europe/Berlin")`` and ``hr.session_window("30 minutes")``; sessions
    need keys. ``values``: aggregates by the name of the result, ``{"revenue": F.sum(F.col("price") *
    F.col("quantity"))}``. ``emit="early"`` gives a result whenever a batch changed it, and then the final one. ``late``
    says what happens to rows whose window is closed: "drop", "side" (see ``split_late``), or "correct", until ``keep``
    has passed.
    """
    names = names_of(keys)
    without_weights(rows, Windows.name)
    time = time_column(rows, event_time, "event_time")
    keep_us = keep_us_of(emit, late, keep)
    wanted = requested(rows, values)
    if isinstance(window, SessionWindow):
        return sessions(
            rows, wanted, names, time, window, emit=emit, late=late, keep_us=keep_us, buckets=buckets, name=name
        )
    window = time_window(window)
    aggregates = aggregates_of(wanted)
    native = emit == "final" and late == "drop" and window.timezone is None
    if native and all(isinstance(each, NATIVE) for each in aggregates):
        return _native(wanted.rows, names, time, window, aggregates)
    side = late == "side"
    late_rows = arrow_schema(rows.schema) if side else None
    operator = Windows(window_keys(rows, names), time, aggregates, emit, late, keep_us, late_rows)
    needed = needed_rows(wanted.rows, rows.columns if side else [*names, time], aggregates)
    assigned = window.apply(needed, time).drop(ROLE)
    return windowed(assigned, operator, names, parameters_of(window), buckets=buckets, name=name)


def windowed(
    assigned: DataFrame,
    operator: Windows,
    names: Sequence[str],
    also: Mapping[str, str],
    *,
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """The operator on rows that have their windows; ``also`` says by which rule."""
    no_doubles(operator.output.names)
    keys = [*names, *(each.name for each in WINDOW)]
    return apply_operator(
        assigned,
        operator,
        keys=keys,
        event_time=operator.event_time,
        buckets=buckets,
        name=name,
        also=also,
    )


def split_late(results: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Split results with ``late="side"`` into the results and the late rows, with the window that each missed.

    On a stream these are two frames with a query each. To have both from one query, call it in ``foreachBatch``.
    """
    if LATE not in results.columns:
        raise UsageError(
            f"these results have no column {LATE!r}", 'they come of hr.windows(…, late="side"), or of hr.match'
        )
    missed = [each for each in results.columns if each in ("window_start", "window_end")]
    late = results.where(F.col(LATE).isNotNull()).select(*missed, f"{LATE}.*")
    return results.where(F.col(LATE).isNull()).drop(LATE), late


def null_future_times(
    rows: DataFrame, event_time: str, *, future_max: str = "1 day", arrived: str | None = None
) -> DataFrame:
    """Remove event times further than ``future_max`` ahead, so that a wrong clock does not close all windows.

    The time is compared with the column ``arrived``, such as a record's ``timestamp``, or by default with the time at
    which the batch runs. The original time is kept in ``<event_time>_claimed``. A row without a time counts as late.
    Call it before ``withWatermark``: the watermark must not see such times. The progress counts them:
    ``observedMetrics["future <event_time>"]``.
    """
    time = time_column(rows, event_time, "event_time")
    if WATERMARK in rows.schema[time].metadata:
        raise UsageError(
            f"{time!r} has its watermark already, which a wrong time has moved by now",
            f'first hr.null_future_times(rows, "{time}"), then .withWatermark("{time}", …)',
        )
    claimed = f"{time}_claimed"
    if claimed in rows.columns:
        raise UsageError(f"there is a column {claimed!r} already", "rename it")
    now = F.current_timestamp() if arrived is None else F.col(time_column(rows, arrived, "arrived"))
    ahead = F.unix_micros(time) - F.unix_micros(now)
    far = F.coalesce(ahead > F.lit(micros_of(future_max, "future_max")), F.lit(False))
    marked = rows.withColumns({time: F.when(~far, F.col(time)), claimed: F.col(time)})
    lost = F.count_if(F.col(time).isNull() & F.col(claimed).isNotNull()).alias("rows")
    return marked.observe(f"future {time}", lost)


# ---- Spark's own ---------------------------------------------------------------------------------------------------


def _native(
    rows: DataFrame, names: Sequence[str], time: str, window: TimeWindow, aggregates: Sequence[Aggregate]
) -> DataFrame:
    no_doubles(Windows(window_keys(rows, names), time, tuple(aggregates)).output.names)
    if rows.isStreaming:
        watermarked(rows, time, Windows.name)
    lengths = (window.size_us, window.every_us, window.origin_us % window.every_us)
    spans = F.window(F.col(f"`{time}`"), *(f"{each} microseconds" for each in lengths))
    grouped = rows.groupBy(*plain_columns(names), spans.alias("_window"))
    results = grouped.agg(*(_native_value(each, time).alias(each.name) for each in aggregates))
    told = {"revision": F.lit(1).cast("long"), "is_final": F.lit(True), "is_retraction": F.lit(False)}
    return results.select(
        *plain_columns(names),
        F.col("_window.start").alias("window_start"),
        F.col("_window.end").alias("window_end"),
        F.window_time("_window").alias("window_time"),
        *plain_columns(each.name for each in aggregates),
        *(value.alias(each) for each, value in told.items()),
    )


def _native_value(aggregate: Aggregate, time: str) -> Column:
    kind = from_arrow_type(aggregate.result)
    column = F.lit(1) if aggregate.column is None else F.col(f"`{aggregate.column.removeprefix(HASH)}`")
    if isinstance(aggregate, Count):
        return F.count(column)
    if isinstance(aggregate, Total):
        return {"sum": F.sum, "min": F.min, "max": F.max}[aggregate.function](column).cast(kind)
    if isinstance(aggregate, Average):
        return F.avg(column.cast("double"))
    if isinstance(aggregate, Extreme):
        # Of several at the same time the smallest or largest value, as the operator has it.
        dated = F.when(column.isNotNull(), F.struct(F.col(f"`{time}`"), column.alias("value")))
        return (F.min if aggregate.function == "first" else F.max)(dated)["value"]
    return F.approx_count_distinct(column, DIFFERENT_ERROR)
