"""What of a query its checkpoint depends on, read from real plans; and the folder it is kept in."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.errors import UsageError
from headrace.spark import sessions
from headrace.spark.checkpoints import Checkpoint
from headrace.spark.compat import Shape, changes, shape_of
from headrace.spark.reading import stream

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]


def orders(spark: SparkSession, topic: str = "orders") -> DataFrame:
    return stream(spark, topic, schema="id long, city string, amount decimal(12,2), at timestamp", bootstrap="h:1")


def shape(rows: DataFrame, output_mode: str | None = None) -> Shape:
    return shape_of(rows, output_mode=output_mode, sink="console")


def minutes(rows: DataFrame, width: str = "1 minute", total: str = "sum(amount)") -> DataFrame:
    watermarked = rows.withWatermark("at", "2 minutes")
    return watermarked.groupBy(F.window("at", width), "city").agg(F.expr(total).alias("total"))


def test_a_source_is_known_by_its_kind_its_topics_and_its_broker(spark: SparkSession) -> None:
    (source,) = shape(orders(spark)).sources
    assert (source.kind, source.reads, source.bootstrap) == ("headrace", "subscribe orders", "h:1")
    (rate,) = shape(spark.readStream.format("rate").load()).sources
    assert (rate.kind, rate.bootstrap) == ("rate", "")


def test_filters_projections_watermarks_and_names_of_results_are_free(spark: SparkSession) -> None:
    before = shape(minutes(orders(spark)))
    rows = orders(spark).where("amount > 0").withColumn("note", F.lit("x")).withWatermark("at", "5 minutes")
    after = shape(rows.groupBy(F.window("at", "1 minute"), "city").agg(F.sum("amount").alias("other_name")))
    assert changes(before, after) == []


@pytest.mark.parametrize(
    ("changed", "severity", "word"),
    [
        (lambda rows: minutes(rows, "5 minutes"), "mixes", "window is computed otherwise"),
        (lambda rows: minutes(rows, total="max(amount)"), "breaks", "max(amount)"),
        (lambda rows: minutes(rows, total="sum(amount) + count(*)"), "breaks", "count"),
        (lambda rows: minutes(rows).dropDuplicates(["city"]), "breaks", "removal of duplicates by city"),
        (lambda rows: rows, "breaks", "would keep state for: nothing"),
    ],
)
def test_a_change_that_matters_is_found(spark: SparkSession, changed: object, severity: str, word: str) -> None:
    before = shape(minutes(orders(spark)))
    found = changes(before, shape(changed(orders(spark)), "append"))  # type: ignore[operator]
    assert found[0].severity == severity, found
    assert word in found[0].text


def test_a_maximum_in_place_of_a_sum_of_the_same_type_is_found(spark: SparkSession) -> None:
    before, after = (shape(minutes(orders(spark), total=f"{each}(id)")) for each in ("sum", "max"))
    assert [each.severity for each in changes(before, after)] == ["mixes"]


def test_joins_are_state_only_when_both_sides_are_streams(spark: SparkSession) -> None:
    cities = spark.createDataFrame([("Oslo", 1)], "city string, id long")
    assert shape(orders(spark).join(cities, "city")).operators == ()
    left, right = orders(spark), orders(spark, "returns").select("id")
    (operator,) = shape(left.join(right, "id")).operators
    assert operator.kind == "join of two streams"


def test_an_aggregate_without_a_watermark_gives_updates_and_everything_else_is_appended(spark: SparkSession) -> None:
    assert shape(orders(spark).groupBy("city").count()).output_mode == "update"
    assert shape(minutes(orders(spark))).output_mode == "append"
    assert shape(orders(spark).withWatermark("at", "1 minute").groupBy("city").count()).output_mode == "update"
    assert shape(orders(spark)).output_mode == "append"


def test_a_checkpoint_keeps_the_shape_and_can_be_put_aside(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "with space"), "orders")
    assert checkpoint.shape() is None
    assert not checkpoint.has_begun()
    kept = shape(minutes(orders(spark)))
    checkpoint.keep(kept)
    checkpoint.keep(kept)
    assert checkpoint.shape() == kept
    aside = checkpoint.put_aside()
    assert aside is not None
    assert (tmp_path / "with space" / aside / "shape.json").is_file()
    assert checkpoint.shape() is None
    assert checkpoint.put_aside() is None


def test_a_checkpoint_has_begun_when_spark_has_planned_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path), "rate")
    rows = spark.readStream.format("rate").option("rowsPerSecond", "10").load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint.location)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(60)
    query.stop()
    assert checkpoint.has_begun()


def test_a_function_with_state_cannot_have_it_in_memory_and_sparks_own_can(spark: SparkSession) -> None:
    rows = orders(spark).withWatermark("at", "1 minute")
    assert shape_of(minutes(orders(spark)), output_mode=None, sink="", state="memory").state == "memory"
    visits = sessions(rows, "city", event_time="at", gap="1 minute")
    assert shape_of(visits, output_mode=None, sink="", state="disk").state == "disk"
    with pytest.raises(UsageError, match=r"function with state.*on disk only.*leave state= out"):
        shape_of(visits, output_mode=None, sink="", state="memory")
