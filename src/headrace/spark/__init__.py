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
    from headrace.spark.analytics import compare, distinct, percentiles, rate, rolling, top
    from headrace.spark.changelog import as_records, as_rows, changes
    from headrace.spark.joins import join_as_of, join_latest, join_within
    from headrace.spark.keyed import FOREVER, correct_clock, dedup, sessions
    from headrace.spark.pipelines import pipeline
    from headrace.spark.profile import register, session
    from headrace.spark.reading import batch, stream, table
    from headrace.spark.sink import exactly_once_batch
    from headrace.spark.sink_checkpoint import read_end_offsets
    from headrace.spark.source import HeadraceDataSource
    from headrace.spark.state_inspection import state_of, state_totals
    from headrace.spark.views import deltas, join_tables, view
    from headrace.spark.watermark_explanation import explain_watermark
    from headrace.spark.watermarks import watermark
    from headrace.spark.windowing import set_aside_future, split_late, windows

__all__ = [
    "FOREVER",
    "HeadraceDataSource",
    "as_records",
    "as_rows",
    "batch",
    "changes",
    "compare",
    "correct_clock",
    "dedup",
    "deltas",
    "distinct",
    "exactly_once_batch",
    "explain_watermark",
    "join_as_of",
    "join_latest",
    "join_tables",
    "join_within",
    "percentiles",
    "pipeline",
    "rate",
    "read_end_offsets",
    "register",
    "rolling",
    "session",
    "sessions",
    "set_aside_future",
    "sinks",
    "split_late",
    "state_of",
    "state_totals",
    "stream",
    "table",
    "top",
    "view",
    "watermark",
    "windows",
]

_HOMES = {
    "FOREVER": "keyed",
    "HeadraceDataSource": "source",
    "as_records": "changelog",
    "as_rows": "changelog",
    "batch": "reading",
    "changes": "changelog",
    "compare": "analytics",
    "correct_clock": "keyed",
    "dedup": "keyed",
    "deltas": "views",
    "distinct": "analytics",
    "exactly_once_batch": "sink",
    "explain_watermark": "watermark_explanation",
    "join_as_of": "joins",
    "join_latest": "joins",
    "join_tables": "views",
    "join_within": "joins",
    "percentiles": "analytics",
    "pipeline": "pipelines",
    "rate": "analytics",
    "read_end_offsets": "sink_checkpoint",
    "register": "profile",
    "rolling": "analytics",
    "session": "profile",
    "sessions": "keyed",
    "set_aside_future": "windowing",
    "sinks": "",
    "split_late": "windowing",
    "state_of": "state_inspection",
    "state_totals": "state_inspection",
    "stream": "reading",
    "table": "reading",
    "top": "analytics",
    "view": "views",
    "watermark": "watermarks",
    "windows": "windowing",
}
"""Where each name is defined; a name without one is a module itself."""

_NEEDED = ("pyspark", "pyarrow", "numpy", "pandas")


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
