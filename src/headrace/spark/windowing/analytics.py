"""Questions one asks of a stream, each in one line: rates, rolling values, percentiles, comparisons, the most frequent.

All but ``rolling`` are windows (``windows``), and take what windows take: ``emit``, ``late``, ``keep`` and the others.
Their results have ``window_start``, ``window_end``, ``revision``, ``is_final`` and ``is_retraction``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.errors import UsageError
from headrace.spark.aggregates.expressions import Requested, requested
from headrace.spark.aggregates.requests import aggregate_of
from headrace.spark.aggregates.totals import EVENTS, Aggregate, Top, wide
from headrace.spark.arguments import micros_of, names_of, no_doubles, plain_columns, time_column, without_weights
from headrace.spark.description import parameters_of
from headrace.spark.state.kernel import apply_operator, arrow_schema, key_type
from headrace.spark.windowing.assignment import ROLE, TimeWindow, time_window
from headrace.spark.windowing.inputs import aggregates_of, keep_us_of, needed_rows, window_keys
from headrace.spark.windowing.rolling_operator import Reach, Rolling
from headrace.spark.windowing.window_operator import MOMENT, WINDOW, Emit, Late, Windows
from headrace.spark.windowing.windows import windowed, windows

__all__ = ["compare", "percentiles", "rate", "rolling", "top"]

TOP_MAX = 10_000


def rate(
    rows: DataFrame,
    keys: str | Sequence[str] = (),
    *,
    event_time: str,
    window: TimeWindow,
    per: str = "1 second",
    of: str | Column | None = None,
    **options: Any,
) -> DataFrame:
    """The rate of rows ``per`` second in each window: ``rate``. With ``of``, the sum of that column per second."""
    per_us = micros_of(per, "per")
    values = {} if of is None else {"total": F.sum(of)}
    results = windows(rows, keys, event_time=event_time, window=time_window(window), values=values, **options)
    # A day of a calendar has 23 hours once a year: its own length counts.
    length = F.unix_micros("window_end") - F.unix_micros("window_start")
    amount = F.col("events" if of is None else "total").cast("double")
    return results.withColumn("rate", amount * F.lit(float(per_us)) / length)


def percentiles(
    rows: DataFrame,
    keys: str | Sequence[str] = (),
    *,
    of: str | Column,
    wanted: Sequence[float] = (0.5, 0.9, 0.99),
    event_time: str,
    window: TimeWindow,
    **options: Any,
) -> DataFrame:
    """Percentiles of a column in each window: ``p50``, ``p90``, ``p99``; each within 1 %."""
    names = [f"p{100 * each:.10g}".replace(".", "_") for each in wanted]
    values = {"_percentiles": F.percentile_approx(of, list(wanted))}
    results = windows(rows, keys, event_time=event_time, window=time_window(window), values=values, **options)
    found = [F.col("_percentiles")[number].alias(name) for number, name in enumerate(names)]
    return results.select("*", *found).drop("_percentiles")


def top(
    rows: DataFrame,
    keys: str | Sequence[str] = (),
    *,
    of: str,
    n: int = 10,
    by: Column | None = None,
    event_time: str,
    window: TimeWindow,
    emit: Emit = "final",
    late: Late = "drop",
    keep: str = "1 hour",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """The ``n`` values of a column with the highest ``score`` in each window, by ``rank`` from 1.

    The score is how often the value comes, or with ``by=F.sum("amount")`` or ``by=F.max("amount")`` the sum or the
    largest of an expression over its rows. Of equal scores the smaller value is first. Nulls are not ranked.
    """
    names = names_of(keys)
    without_weights(rows, "top")
    time = time_column(rows, event_time, "event_time")
    if not 1 <= n <= TOP_MAX:
        raise UsageError(f"n={n} is outside [1, {TOP_MAX}]")
    if late == "side":
        raise UsageError("top does not give out late rows", 'late="drop" or late="correct"; hr.windows has the other')
    window = time_window(window)
    wanted = requested(rows, {} if by is None else {"by": by})
    ranking = _ranking(wanted, of, n)
    keep_us = keep_us_of(emit, late, keep)
    operator = Windows(window_keys(rows, names), time, (EVENTS, ranking), emit, late, keep_us)
    needed = needed_rows(wanted.rows, [*names, time], operator.aggregates)
    assigned = window.apply(needed, time).drop(ROLE)
    results = windowed(assigned, operator, names, parameters_of(window), buckets=buckets, name=name)
    ranked = results.select("*", F.posexplode(ranking.name).alias("_place", "_entry"))
    first = [*names, *(each.name for each in WINDOW), MOMENT.name]
    if of in (*first, "rank", "score", "revision", "is_final", "is_retraction"):
        raise UsageError(f"two columns of the result would be called {of!r}", "rename what is ranked")
    return ranked.select(
        *plain_columns(first),
        (F.col("_place") + 1).alias("rank"),
        F.col("_entry.item").cast(rows.schema[of].dataType).alias(of),
        F.col("_entry.weight").alias("score"),
        "revision",
        "is_final",
        "is_retraction",
    )


def _ranking(wanted: Requested, column: str, n: int) -> Top:
    schema = arrow_schema(wanted.rows.schema)
    # The checks of a count of different values and of a sum are those needed here.
    aggregate_of("top", ("distinct", column), schema)
    kind = schema.field(column).type
    by = wanted.requests.get("by", ("count",))
    if by == ("count",):
        return Top("_top", column, kind, n, "count", None, pa.int64())
    if by[0] not in ("sum", "max"):
        raise UsageError(f"by: values are not ranked by {by[0]}", 'by=F.sum("amount"), by=F.max("amount"), or nothing')
    aggregate_of("top", by, schema)
    return Top("_top", column, kind, n, by[0], by[1], wide(schema.field(by[1]).type))


def compare(
    rows: DataFrame,
    keys: str | Sequence[str] = (),
    *,
    event_time: str,
    window: TimeWindow,
    to: Mapping[str, str] | None = None,
    values: Mapping[str, Column] | None = None,
    late: Late = "drop",
    keep: str = "1 hour",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Each window beside earlier ones: ``events`` and the values, and ``events_<name>``, ``<value>_<name>`` of those.

    ``to``: by name, how much earlier: ``{"yesterday": "1 day", "last_week": "1 week"}``; default: the window before, as
    ``previous``. A window without rows comes out if one that it is compared with has rows: with 0 events, and nulls.
    With a time zone, days and weeks are those of its calendar.
    """
    names = names_of(keys)
    without_weights(rows, "compare")
    time = time_column(rows, event_time, "event_time")
    if late == "side":
        raise UsageError("compare does not give out late rows", 'late="drop" or late="correct"')
    keep_us = keep_us_of("final", late, keep)
    window = time_window(window)
    if window.every_us != window.size_us:
        raise UsageError("windows that overlap are not compared", 'hr.tumbling("1 hour") or hr.calendar("day", …)')
    earlier = dict(to or {"previous": f"{window.size_us} microseconds"})
    later_us = tuple(micros_of(given, f"to[{each!r}]") for each, given in earlier.items())
    for each, length_us in zip(earlier, later_us, strict=True):
        if length_us % window.every_us:
            raise UsageError(
                f"to[{each!r}]={earlier[each]!r} is no multiple of the window's size", "no window began then"
            )
    wanted = requested(rows, values)
    aggregates_of(wanted)
    asked: dict[str, tuple[Any, ...]] = {"events": ("count",), **wanted.requests}
    sources = list(dict.fromkeys(given[1] for given in asked.values() if len(given) > 1))
    # A row counts in its own window and, under another name, in each later one that is compared with it.
    spanned = window.apply(wanted.rows.select(*plain_columns([*names, time, *sources])), time, later_us=later_us)
    for role in range(len(later_us) + 1):
        mine = F.col(ROLE) == F.lit(role)
        told_apart = {_of_role(role, each): F.when(mine, F.col(f"`{each}`")) for each in sources}
        spanned = spanned.withColumns({_of_role(role): F.when(mine, F.lit(1)), **told_apart})
    schema = arrow_schema(spanned.schema)
    aggregates: list[Aggregate] = []
    for role, suffix in enumerate(["", *(f"_{each}" for each in earlier)]):
        for each, (function, *rest) in asked.items():
            column, *details = rest or [""]
            given = (function, _of_role(role, column), *details)
            aggregates.append(aggregate_of(f"{each}{suffix}", given, schema))
    operator = Windows(window_keys(rows, names), time, tuple(aggregates), "final", late, keep_us)
    assigned = needed_rows(spanned, [*names, time, *(each.name for each in WINDOW)], aggregates)
    also = {**parameters_of(window), "to": str(earlier)}
    return windowed(assigned, operator, names, also, buckets=buckets, name=name)


def _of_role(role: int, column: str = "") -> str:
    return f"_{role}_{column}"


def rolling(
    rows: DataFrame,
    keys: str | Sequence[str],
    *,
    event_time: str,
    within: str,
    values: Mapping[str, Column] | None = None,
    reach: Reach = "before",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Each row, with aggregates of the rows of its key less than ``within`` before it, itself included.

    ``values`` as for ``hr.windows``: ``{"average": F.avg("price")}``; their number is ``events``. ``reach="around"``
    also takes the rows after it. A row comes out when the watermark has passed all rows that count for it.
    """
    names = names_of(keys)
    without_weights(rows, Rolling.name)
    time = time_column(rows, event_time, "event_time")
    if reach not in ("before", "around"):
        raise UsageError(f"reach={reach!r} is neither 'before' nor 'around'")
    wanted = requested(rows, values)
    aggregates = aggregates_of(wanted)
    key_type(rows, names)
    needed = needed_rows(wanted.rows, rows.columns, aggregates)
    operator = Rolling(arrow_schema(needed.schema), time, micros_of(within, "within"), aggregates, reach)
    no_doubles(operator.output.names)
    results = apply_operator(needed, operator, keys=names, event_time=time, buckets=buckets, name=name)
    return results.drop(*(F.col(f"`{each}`") for each in needed.columns if each not in rows.columns))
