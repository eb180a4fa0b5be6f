"""Topics as DataFrames in one call: what the options of the source say, with the usual ones filled in."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from headrace.errors import UsageError
from headrace.spark.source.columns import ERROR_COLUMN, TOMBSTONE_COLUMN
from headrace.spark.source.registration import register
from headrace.vocabulary import UNAVAILABLE

__all__ = [
    "batch",
    "bootstrap_of",
    "has_all_values",
    "is_bad",
    "is_tombstone",
    "is_unavailable",
    "option_texts",
    "stream",
    "table",
]

BOOTSTRAP_CONF = "spark.headrace.bootstrap"
BOOTSTRAP_DEFAULT = "127.0.0.1:9092"


def stream(
    spark: SparkSession,
    topic: str,
    schema: str | StructType | None = None,
    *,
    value_format: str | None = None,
    bootstrap: str | None = None,
    **options: Any,
) -> DataFrame:
    """A topic (or several, with commas) as a streaming DataFrame, from its beginning.

    With a ``schema`` values are read as JSON, or as ``value_format`` says, into its columns. ``options`` are those of
    the source, by their names.
    """
    register(spark)
    reader = spark.readStream.format("headrace")
    return reader.options(**_options(spark, topic, schema, value_format, bootstrap, options)).load()


def batch(
    spark: SparkSession,
    topic: str,
    schema: str | StructType | None = None,
    *,
    value_format: str | None = None,
    bootstrap: str | None = None,
    **options: Any,
) -> DataFrame:
    """What a topic holds now, as a bounded DataFrame; arguments as for ``stream``."""
    register(spark)
    reader = spark.read.format("headrace")
    return reader.options(**_options(spark, topic, schema, value_format, bootstrap, options)).load()


def table(
    spark: SparkSession,
    topic: str,
    schema: str | StructType | None = None,
    *,
    value_format: str | None = None,
    bootstrap: str | None = None,
    **options: Any,
) -> DataFrame:
    """The latest row per key of a keyed topic, bounded. A null value has deleted its key.

    Of two records with one key the later offset counts; a key is always in one partition. A record without a key ends
    the query: no later record can replace it.
    """
    rows = batch(spark, topic, schema, value_format=value_format, bootstrap=bootstrap, **options)
    mark = "_" if schema is not None else ""
    if value_format == "debezium":
        rows = _after_truncations(rows)
    rows = rows.where(~is_bad(rows))
    columns = F.struct(*[F.col(f"`{name}`") for name in rows.columns])
    newest = F.max_by(columns, F.col(f"{mark}offset")).alias("row")
    parts = [F.col(f"{mark}{name}") for name in ("topic", "partition", "key")]
    keyed = rows.where(_has_key(f"{mark}key", topic))
    latest = keyed.groupBy(*parts).agg(newest).select("row.*").where(~is_tombstone(rows))
    if value_format == "debezium":
        latest = latest.where("op <> 'd'")
    return latest.where(has_all_values(latest))


def is_tombstone(rows: DataFrame) -> Column:
    """Whether a record has no value, and so removes its key. Rows that were not read from a topic are none."""
    if TOMBSTONE_COLUMN in rows.columns:
        return F.col(TOMBSTONE_COLUMN)
    if "_offset" in rows.columns or "_key" in rows.columns:
        raise UsageError(
            f"these rows do not say which records removed their key: the column {TOMBSTONE_COLUMN} is missing",
            f"keep it in select(…), or add '{TOMBSTONE_COLUMN} boolean' to the schema",
        )
    return F.col("value").isNull() if {"value", "offset"} <= set(rows.columns) else F.lit(False)


def is_bad(rows: DataFrame) -> Column:
    """Whether a value did not fit the schema (``onBadRecord=null``). It is neither a row nor a deletion."""
    return F.col(ERROR_COLUMN).isNotNull() if ERROR_COLUMN in rows.columns else F.lit(False)


def _after_truncations(rows: DataFrame) -> DataFrame:
    """Without the changes before a truncation of their partition, and without truncations."""
    truncated = F.col("op").isin("t", "tp")
    parts = Window.partitionBy("_topic", "_partition")
    emptied = F.max(F.when(truncated, F.col("_offset"))).over(parts)
    numbered = rows.withColumn("_emptied", emptied)
    return numbered.where(
        (F.col("_emptied").isNull() | (F.col("_offset") > F.col("_emptied"))) & ~F.coalesce(truncated, F.lit(False))
    ).drop("_emptied")


def _has_key(column: str, topic: str) -> Column:
    """True; a record without a key ends the query. For a filter, which stays in the plan."""
    refusal = F.raise_error(
        F.lit(
            f"a record of {topic} has no key, so hr.table cannot say which row it replaces. "
            "hr.batch gives every record; a captured table needs a primary key or --key-columns"
        )
    )
    return F.when(F.col(column).isNull(), refusal.cast("boolean")).otherwise(F.lit(True))


def has_all_values(rows: DataFrame) -> Column:
    """True; a row with a value that the database did not send ends the query. For a filter, which stays in the plan."""
    kinds = {f"`{each.name}`": each.dataType for each in rows.schema}
    after = kinds.get("`after`")
    if isinstance(after, StructType):
        kinds |= {f"after.`{each.name}`": each.dataType for each in after}
    found = [is_unavailable(F.col(path), kind) for path, kind in kinds.items()]
    lacks = functools.reduce(operator.or_, [each for each in found if each is not None], F.lit(False))
    refusal = F.raise_error(
        F.lit(
            "a row lacks a large value that had not changed, so the database did not send it again. "
            "hr.view(hr.changes(rows, key=…)) fills it in from the changes before"
        )
    )
    return F.when(lacks, refusal.cast("boolean")).otherwise(F.lit(True))


def is_unavailable(column: Column, kind: DataType) -> Column | None:
    """Whether a value is the stand-in for one that the database did not send; None where the type has none."""
    if isinstance(kind, StringType):
        return column == UNAVAILABLE
    if isinstance(kind, BinaryType):
        return column == F.encode(F.lit(UNAVAILABLE), "UTF-8")
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType):
        return column == F.array(F.lit(UNAVAILABLE))
    return None


def bootstrap_of(spark: SparkSession, given: str | None = None) -> str:
    """The broker's address: what was given, the session's, the environment's, this machine's."""
    address = given or spark.conf.get(BOOTSTRAP_CONF, None) or os.environ.get("HEADRACE_BOOTSTRAP")
    return address or BOOTSTRAP_DEFAULT


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark takes them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _options(
    spark: SparkSession,
    topic: str,
    schema: str | StructType | None,
    value_format: str | None,
    bootstrap: str | None,
    options: dict[str, Any],
) -> dict[str, str]:
    chosen: dict[str, Any] = {
        "kafka.bootstrap.servers": bootstrap_of(spark, bootstrap),
        "subscribe": topic,
        "startingOffsets": "earliest",
        **options,
    }
    if schema is not None:
        chosen["valueFormat"] = value_format or "json"
        chosen["valueSchema"] = schema if isinstance(schema, str) else schema.json()
    elif value_format is not None:
        chosen["valueFormat"] = value_format
    return option_texts(chosen)
