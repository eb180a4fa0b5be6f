"""Session windows for ``hr.windows``: rows of a key that follow each other within a gap."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from headrace.errors import UsageError
from headrace.spark.aggregates.expressions import Requested
from headrace.spark.arguments import no_doubles
from headrace.spark.state.kernel import apply_operator, arrow_schema, key_type
from headrace.spark.windowing.assignment import SessionWindow
from headrace.spark.windowing.inputs import aggregates_of, needed_rows
from headrace.spark.windowing.session_operator import Sessions
from headrace.spark.windowing.window_operator import Emit, Late

__all__ = ["sessions"]


def sessions(
    rows: DataFrame,
    wanted: Requested,
    names: Sequence[str],
    time: str,
    window: SessionWindow,
    *,
    emit: Emit,
    late: Late,
    keep_us: int,
    buckets: int | None,
    name: str | None,
) -> DataFrame:
    """Where each session starts and ends, ``session_start`` and ``session_end``, and what it adds up to."""
    if not names:
        raise UsageError("session windows are kept for each key, and there is none", 'for example keys="user"')
    aggregates = aggregates_of(wanted)
    side = late == "side"
    late_rows = arrow_schema(rows.schema) if side else None
    operator = Sessions(key_type(rows, names), time, window.gap_us, aggregates, emit, late, keep_us, late_rows)
    no_doubles(operator.output.names)
    needed = needed_rows(wanted.rows, rows.columns if side else [*names, time], aggregates)
    return apply_operator(needed, operator, keys=names, event_time=time, buckets=buckets, name=name)
