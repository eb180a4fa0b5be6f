"""Spark, views: what 100 changes cost on a view of 10,000 rows and on one of 1,000,000.

The first batch fills the table; every further one changes 100 rows of it, scattered, of which some change their group.
Groups have about 100 rows, so that a change costs the same in each. Times are those of whole micro-batches
(``addBatch``); the first ones, in which workers start and the table is filled, do not count. ``alone`` is the same
without Spark: the operators in one process, their state written to a store in memory. It shows what Spark's own share
hides, and needs no quiet machine.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from benchmarks.figures import Figure, table
from benchmarks.spark_source import spark_session
from benchmarks.spark_state import batch_seconds, rows_of
from headrace.spark.aggregates.retracting import Count, Maximum, Sum
from headrace.spark.tables.grouped import Grouped
from headrace.spark.tables.view_operators import Table
from tests.unit.spark.stream_world import Query

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
    values = {"orders": F.count("*"), "revenue": F.sum("price"), "dearest": F.max("price")}
    return hr.view(orders(spark, held), "shop", values)


# ---- without Spark -------------------------------------------------------------------------------------------------

INT = pa.int64()
KEY = pa.struct([("id", INT)])
ROW = pa.struct([("id", INT), ("shop", INT), ("price", INT)])
SHOP = pa.struct([("shop", INT)])
TABLE_INPUT = pa.schema([*KEY, ("_position", INT), ("_lane", INT), ("_truncates", pa.bool_()), ("_row", ROW)])
GROUP_INPUT = pa.schema([*SHOP, ("price", INT), ("_weight", INT)])


def some_orders(numbers: npt.NDArray[np.int64], shops: int, random: np.random.Generator) -> pa.Table:
    columns = [numbers, random.integers(0, shops, len(numbers)), random.integers(0, 97, len(numbers))]
    rows = pa.StructArray.from_arrays([pa.array(each) for each in columns], fields=list(ROW))
    lanes, truncations = pa.repeat(0, len(numbers)), pa.repeat(False, len(numbers))
    positions = pa.array(np.arange(len(numbers)))
    return pa.Table.from_arrays([pa.array(numbers), positions, lanes, truncations, rows], schema=TABLE_INPUT)


def weighed(changes: pa.Table) -> pa.Table:
    parts = []
    for side, weight in (("before", -1), ("after", 1)):
        rows = changes.column(side).combine_chunks().drop_null()
        columns = [rows.field("shop"), rows.field("price"), pa.array(np.full(len(rows), weight))]
        parts.append(pa.Table.from_arrays(columns, schema=GROUP_INPUT))
    return pa.concat_tables(parts).combine_chunks()


def alone(held: int, rounds: int) -> list[float]:
    """CPU milliseconds of 100 changes, batch by batch."""
    random = np.random.default_rng(7)
    rows = Query(Table(KEY, ROW), TABLE_INPUT, KEY)
    values = (Count("orders"), Sum("revenue", "price", INT), Maximum("dearest", "price", INT))
    groups = Query(Grouped(SHOP, values), GROUP_INPUT, SHOP)
    groups.push(weighed(rows.push(some_orders(np.arange(held), held // GROUP_ROWS, random))))
    found = []
    for _ in range(rounds):
        numbers = np.unique(random.integers(0, held, CHANGES))
        batch = some_orders(numbers, held // GROUP_ROWS, random)
        began = time.process_time()
        groups.push(weighed(rows.push(batch)))
        found.append((time.process_time() - began) * 1000)
    return found


def without_spark(rounds: int, many: int) -> Figure:
    small, large = alone(FEW, rounds), alone(many, rounds)
    return Figure(
        hop="spark views",
        case=f"{CHANGES} changes of a view of {many:,} rows and of {FEW:,}, without Spark",
        unit="ms CPU a batch",
        ours=large,
        peers=small,
        peer=f"{FEW:,} rows",
        higher_is_better=False,
        goal=1.5,
        note=f"slowest {max(large):.0f} ms, {max(small):.0f} ms",
    )


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
        ),
        without_spark(50, many),
    ]


if __name__ == "__main__":
    print(table([without_spark(50, MANY)] if "alone" in sys.argv else run(quick="--quick" in sys.argv)))
