"""Spark reads and writes the log: ``import headrace.spark as hr``.

    spark = hr.session()
    orders = hr.stream(spark, "orders", schema="id long, amount decimal(12,2), placed_at timestamp")

The parts load when they are first used, and only they load PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.spark import sinks
    from headrace.spark.patterns.changing import check_pattern, match_patterns
    from headrace.spark.patterns.explanation import explain_pattern, why_not
    from headrace.spark.patterns.fluent import pattern
    from headrace.spark.patterns.match import match
    from headrace.spark.patterns.recognize import match_recognize
    from headrace.spark.run.dashboards import dashboard
    from headrace.spark.run.pipelines import pipeline
    from headrace.spark.run.session import session
    from headrace.spark.searches.searches import check_search, match_searches
    from headrace.spark.source.data_source import HeadraceDataSource
    from headrace.spark.source.queue_source import queue
    from headrace.spark.source.reading import batch, stream, table
    from headrace.spark.source.registration import register
    from headrace.spark.state.dedup import FOREVER, dedup
    from headrace.spark.state.in_order import InOrder, Settled, SettledStep
    from headrace.spark.state.inspection import state_of, state_totals
    from headrace.spark.state.kernel import apply_operator
    from headrace.spark.state.operator import Operator, Step, Touched
    from headrace.spark.state.per_key import per_key
    from headrace.spark.state.per_key_operator import Answer
    from headrace.spark.tables.changelog import as_records, as_rows, changes
    from headrace.spark.tables.joins import join_as_of, join_latest, join_within
    from headrace.spark.tables.views import deltas, join_tables, view
    from headrace.spark.time.clocks import correct_clock
    from headrace.spark.time.explanation import explain_watermark
    from headrace.spark.time.watermarks import watermark
    from headrace.spark.topic_sink.checkpoint import read_end_offsets
    from headrace.spark.topic_sink.sink import exactly_once_batch
    from headrace.spark.windowing.analytics import compare, percentiles, rate, rolling, top
    from headrace.spark.windowing.assignment import calendar, hopping, session_window, tumbling
    from headrace.spark.windowing.windows import null_future_times, split_late, windows

__all__ = [
    "FOREVER",
    "Answer",
    "HeadraceDataSource",
    "InOrder",
    "Operator",
    "Settled",
    "SettledStep",
    "Step",
    "Touched",
    "apply_operator",
    "as_records",
    "as_rows",
    "batch",
    "calendar",
    "changes",
    "check_pattern",
    "check_search",
    "compare",
    "correct_clock",
    "dashboard",
    "dedup",
    "deltas",
    "exactly_once_batch",
    "explain_pattern",
    "explain_watermark",
    "hopping",
    "join_as_of",
    "join_latest",
    "join_tables",
    "join_within",
    "match",
    "match_patterns",
    "match_recognize",
    "match_searches",
    "null_future_times",
    "pattern",
    "per_key",
    "percentiles",
    "pipeline",
    "queue",
    "rate",
    "read_end_offsets",
    "register",
    "rolling",
    "session",
    "session_window",
    "sinks",
    "split_late",
    "state_of",
    "state_totals",
    "stream",
    "table",
    "top",
    "tumbling",
    "view",
    "watermark",
    "why_not",
    "windows",
]

_HOMES = {
    "Answer": "state.per_key_operator",
    "FOREVER": "state.dedup",
    "HeadraceDataSource": "source.data_source",
    "InOrder": "state.in_order",
    "Operator": "state.operator",
    "Settled": "state.in_order",
    "SettledStep": "state.in_order",
    "Step": "state.operator",
    "Touched": "state.operator",
    "apply_operator": "state.kernel",
    "as_records": "tables.changelog",
    "as_rows": "tables.changelog",
    "batch": "source.reading",
    "calendar": "windowing.assignment",
    "changes": "tables.changelog",
    "check_pattern": "patterns.changing",
    "check_search": "searches.searches",
    "compare": "windowing.analytics",
    "correct_clock": "time.clocks",
    "dashboard": "run.dashboards",
    "dedup": "state.dedup",
    "deltas": "tables.views",
    "exactly_once_batch": "topic_sink.sink",
    "explain_pattern": "patterns.explanation",
    "explain_watermark": "time.explanation",
    "hopping": "windowing.assignment",
    "join_as_of": "tables.joins",
    "join_latest": "tables.joins",
    "join_tables": "tables.views",
    "join_within": "tables.joins",
    "match": "patterns.match",
    "match_patterns": "patterns.changing",
    "match_recognize": "patterns.recognize",
    "match_searches": "searches.searches",
    "null_future_times": "windowing.windows",
    "pattern": "patterns.fluent",
    "per_key": "state.per_key",
    "percentiles": "windowing.analytics",
    "pipeline": "run.pipelines",
    "queue": "source.queue_source",
    "rate": "windowing.analytics",
    "read_end_offsets": "topic_sink.checkpoint",
    "register": "source.registration",
    "rolling": "windowing.analytics",
    "session": "run.session",
    "session_window": "windowing.assignment",
    "sinks": "",
    "split_late": "windowing.windows",
    "state_of": "state.inspection",
    "state_totals": "state.inspection",
    "stream": "source.reading",
    "table": "source.reading",
    "top": "windowing.analytics",
    "tumbling": "windowing.assignment",
    "view": "tables.views",
    "watermark": "time.watermarks",
    "why_not": "patterns.explanation",
    "windows": "windowing.windows",
}
"""Where each name is defined; a name without one is a module itself."""

_NEEDED = ("pyspark", "pyarrow", "numpy", "pandas", "sqlglot")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{home or name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise UsageError(f"headrace.spark needs {error.name}", "pip install 'headrace[spark]'") from error
    value = globals()[name] = getattr(module, name) if home else module
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
