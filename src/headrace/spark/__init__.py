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
    from headrace.spark.keyed import FOREVER, correct_clock, dedup, sessions
    from headrace.spark.pipelines import pipeline
    from headrace.spark.profile import register, session
    from headrace.spark.reading import batch, stream, table
    from headrace.spark.sink import exactly_once_batch
    from headrace.spark.sink_checkpoint import read_end_offsets
    from headrace.spark.source import HeadraceDataSource
    from headrace.spark.state_inspection import state_of, state_totals

__all__ = [
    "FOREVER",
    "HeadraceDataSource",
    "batch",
    "correct_clock",
    "dedup",
    "exactly_once_batch",
    "pipeline",
    "read_end_offsets",
    "register",
    "session",
    "sessions",
    "sinks",
    "state_of",
    "state_totals",
    "stream",
    "table",
]

_HOMES = {
    "FOREVER": "keyed",
    "HeadraceDataSource": "source",
    "batch": "reading",
    "correct_clock": "keyed",
    "dedup": "keyed",
    "exactly_once_batch": "sink",
    "pipeline": "pipelines",
    "read_end_offsets": "sink_checkpoint",
    "register": "profile",
    "session": "profile",
    "sessions": "keyed",
    "sinks": "",
    "state_of": "state_inspection",
    "state_totals": "state_inspection",
    "stream": "reading",
    "table": "reading",
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
