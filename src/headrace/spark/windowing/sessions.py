"""Sessions: ``hr.sessions``, rows of a key that follow each other within a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from headrace.spark.arguments import micros_of, names_of, time_column, without_weights
from headrace.spark.state.kernel import BUCKETS, apply_operator, arrow_schema, key_type
from headrace.spark.windowing.session_operator import Sessions
from headrace.spark.windowing.window_operator import Emit, Late
from headrace.spark.windowing.windows import aggregates_of, keep_us_of, needed_rows, without_doubles

__all__ = ["sessions"]


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
