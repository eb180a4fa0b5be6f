"""Topics as DataFrames in one call: what the options of the source say, with the usual ones filled in."""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import StructType

from headrace.spark.profile import register

__all__ = ["batch", "removed", "stream", "table"]

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
    """The latest row per key of a keyed topic, as a compacted topic means it: a null value has removed its key.

    Of two records with one key the later offset counts; a key always lies in one partition.
    """
    rows = batch(spark, topic, schema, value_format=value_format, bootstrap=bootstrap, **options)
    mark = "_" if schema is not None else ""
    columns = F.struct(*[F.col(f"`{name}`") for name in rows.columns])
    newest = F.max_by(columns, F.col(f"{mark}offset")).alias("row")
    latest = rows.groupBy(F.col(f"{mark}key"), F.col(f"{mark}partition")).agg(newest).select("row.*")
    return latest.where(~removed(latest, schema))


def removed(rows: DataFrame, schema: str | StructType | None) -> Column:
    """A tombstone: no value, or every column of the value null."""
    if schema is None:
        return F.col("value").isNull()
    removed = F.lit(True)
    for name in rows.columns:
        if not name.startswith("_"):
            removed = removed & F.col(f"`{name}`").isNull()
    return removed


def _options(
    spark: SparkSession,
    topic: str,
    schema: str | StructType | None,
    value_format: str | None,
    bootstrap: str | None,
    options: dict[str, Any],
) -> dict[str, str]:
    address = bootstrap or spark.conf.get(BOOTSTRAP_CONF, None) or os.environ.get("HEADRACE_BOOTSTRAP")
    chosen: dict[str, Any] = {
        "kafka.bootstrap.servers": address or BOOTSTRAP_DEFAULT,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **options,
    }
    if schema is not None:
        chosen["valueFormat"] = value_format or "json"
        chosen["valueSchema"] = schema if isinstance(schema, str) else schema.json()
    elif value_format is not None:
        chosen["valueFormat"] = value_format
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in chosen.items()}
