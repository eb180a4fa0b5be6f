"""Duplicates removed, with a bound on what is remembered: ``hr.dedup``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of, names_of, time_column, without_weights
from headrace.spark.state.dedup_operator import Dedup, DedupForever
from headrace.spark.state.kernel import apply_operator, arrow_schema

__all__ = ["FOREVER", "dedup"]

FOREVER: Final = "forever"
"""Keep keys for ever: state then grows with the number of keys."""


def dedup(
    rows: DataFrame,
    keys: str | Sequence[str],
    *,
    within: str | None = None,
    event_time: str | None = None,
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Remove duplicates: of rows with equal keys less than ``within`` apart by ``event_time``, the first comes out.

    A key is removed from state when the watermark is ``within`` past the row that came out. With ``within=hr.FOREVER``
    each key comes out once and is never removed; that needs no event time.
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
