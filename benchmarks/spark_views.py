"""Spark, views: what 100 changes cost on a view of 10,000 rows and on one of 1,000,000.

The first batch fills the table; every further one changes 100 rows of it, scattered, of which some change their group.
Groups have about 100 rows, so that a change costs the same in each. Times are those of whole micro-batches
(``addBatch``); the first ones, in which workers start and the table is filled, do not count.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from benchmarks.figures import Figure, table
from benchmarks.spark_source import spark_session
from benchmarks.spark_state import batch_seconds, rows_of

CHANGES = 100
FEW = 10_000
MANY = 1_000_000
GROUP_ROWS = 100
SKIPPED = 4
"""Batches before those that count."""


def orders(spark: SparkSession, held: int) -> DataFrame:
    """Changes of a table: the first 100 rows stand for all of it, and each further one changes a row anywhere."""
    rows = rows_of(spark, F.col("value"), CHANGES)
    first = F.col("value") < CHANGES
    copies = F.sequence(F.lit(0), F.when(first, F.lit(held // CHANGES - 1)).otherwise(F.lit(0)))
    spread = rows.select("value", F.explode(copies).alias("copy"))
    scattered = F.pmod(F.xxhash64("value"), F.lit(held))
    number = F.when(first, F.col("value") + F.col("copy") * CHANGES).otherwise(scattered)
    moved = F.when(first, F.lit(0)).otherwise(F.col("value"))
    made = spread.select(
        number.alias("id"), (F.col("value") % 97).alias("price"), F.col("value").alias("seq"), moved.alias("moved")
    )
    group = F.pmod(F.col("id") + F.col("moved"), F.lit(held // GROUP_ROWS)).alias("shop")
    return hr.changes(made.select("id", group, "price", "seq"), "id", position="seq")


def view(spark: SparkSession, held: int) -> DataFrame:
    values = {"orders": "count", "revenue": ("sum", "price"), "dearest": ("max", "price")}
    return hr.view(orders(spark, held), "shop", values)


def run(*, quick: bool) -> list[Figure]:
    rounds = 3 if quick else 20
    many = MANY // 10 if quick else MANY
    with spark_session([]) as spark:
        small = batch_seconds(view(spark, FEW), skip=SKIPPED, rounds=rounds)
        large = batch_seconds(view(spark, many), skip=SKIPPED, rounds=rounds)
    return [
        Figure(
            hop="spark views",
            case=f"{CHANGES} changes of a view of {many:,} rows and of {FEW:,}",
            unit="s a batch",
            ours=large,
            peers=small,
            peer=f"{FEW:,} rows",
            higher_is_better=False,
            goal=1.5,
            note=f"slowest {max(large):.2f} s, {max(small):.2f} s",
        )
    ]


if __name__ == "__main__":
    print(table(run(quick="--quick" in sys.argv)))
