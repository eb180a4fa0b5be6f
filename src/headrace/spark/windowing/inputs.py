"""What windows, sessions and rolling values share: arguments checked, aggregates made, columns chosen."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.errors import UsageError
from headrace.spark.aggregates.expressions import Requested
from headrace.spark.aggregates.requests import aggregate_of
from headrace.spark.aggregates.totals import EVENTS, HASH, Aggregate
from headrace.spark.arguments import micros_of, plain_columns
from headrace.spark.state.kernel import arrow_schema, key_type

__all__ = ["aggregates_of", "keep_us_of", "needed_rows", "window_keys"]


def keep_us_of(emit: str, late: str, keep: str) -> int:
    if emit not in ("final", "early"):
        raise UsageError(f"emit={emit!r} is neither 'final' nor 'early'")
    if late not in ("drop", "correct", "side"):
        raise UsageError(f"late={late!r} is none of 'drop', 'correct' and 'side'")
    return micros_of(keep, "keep") if late == "correct" else 0


def window_keys(rows: DataFrame, names: Sequence[str]) -> pa.StructType:
    """A window alone is a key too."""
    return key_type(rows, names) if names else pa.struct([])


def aggregates_of(wanted: Requested) -> tuple[Aggregate, ...]:
    """The number of rows, and what was asked for."""
    schema = arrow_schema(wanted.rows.schema)
    return (EVENTS, *(aggregate_of(name, given, schema) for name, given in wanted.requests.items()))


def needed_rows(rows: DataFrame, columns: Sequence[str], aggregates: Sequence[Aggregate]) -> DataFrame:
    """These columns and those that the aggregates work on, hashes among them."""
    wanted = dict.fromkeys([*columns, *(name for each in aggregates for name in each.columns)])
    hashed = [each for each in wanted if each.startswith(HASH) and each not in rows.columns]
    plain = [each for each in wanted if each not in hashed]
    return rows.select(*plain_columns(plain), *(_hash(each) for each in hashed))


def _hash(name: str) -> Column:
    column = F.col(f"`{name.removeprefix(HASH)}`")
    return F.when(column.isNotNull(), F.xxhash64(column)).alias(name)
