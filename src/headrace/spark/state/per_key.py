"""A function of yours with state per key: ``hr.per_key``."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.errors import UsageError
from headrace.spark.arguments import names_of, time_column, without_weights
from headrace.spark.state.kernel import all_nullable, apply_operator, arrow_schema
from headrace.spark.state.per_key_operator import KeyFunction, PerKey

__all__ = ["per_key"]


def per_key(
    rows: DataFrame,
    keys: str | Sequence[str],
    function: KeyFunction,
    *,
    event_time: str,
    state: str | StructType,
    output: str | StructType,
    version: int = 1,
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Apply a Python function to the rows of each key, with state between its calls.

    ``function(key, rows, state, now)`` gets the key, its rows at the event time ``now`` as dicts, and its last state
    (None at first), one time after the other, each when the watermark has passed it. It returns ``hr.Answer(rows,
    state, timer)``. At its timer it is called without rows. ``state`` and ``output`` are schemas in Spark's DDL. A
    changed function is not noticed: raise ``version``, and a checkpoint of the old one is refused.
    """
    without_weights(rows, PerKey.name)
    time = time_column(rows, event_time, "event_time")
    if not callable(function):
        raise UsageError(f"{function!r} is no function", "def f(key, rows, state, now): return hr.Answer(…)")
    held, given = _schema(state, "state"), _schema(output, "output")
    operator = PerKey(arrow_schema(rows.schema), time, function, pa.struct(list(held)), given, version)
    return apply_operator(rows, operator, keys=names_of(keys), event_time=time, buckets=buckets, name=name)


def _schema(given: str | StructType, argument: str) -> pa.Schema:
    try:
        found = StructType.fromDDL(given) if isinstance(given, str) else given
    except PySparkException as error:
        raise UsageError(f"{argument}={given!r} is no schema", "'count long, last timestamp', say") from error
    nullable = all_nullable(found)
    assert isinstance(nullable, StructType), nullable
    return arrow_schema(nullable)
