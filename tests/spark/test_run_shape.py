"""What of a query its checkpoint depends on, read from real plans; and the folder it is kept in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.plan import shape_of
from headrace.spark.run.checkpoint_lock import CheckpointInUse, locked
from headrace.spark.run.checkpoints import Checkpoint, HadoopFile
from headrace.spark.run.pipelines import Pipeline
from headrace.spark.run.runner import Choices, run
from headrace.spark.shape import Shape, changes, refuse
from headrace.spark.sinks import as_sink
from headrace.spark.source.reading import stream
from tests.spark.watching import Told

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
    folder = tmp_path / "with space" / "orders"
    (folder / "shape.json").rename(folder / "shape.json.new")  # a driver was killed before it had put it in place
    assert checkpoint.shape() == kept
    (folder / "shape.json.new").write_text("{")  # or in the middle of the first one
    assert checkpoint.shape() is None
    checkpoint.keep(kept)
    assert checkpoint.shape() == kept
    aside = checkpoint.put_aside()
    assert aside is not None
    assert (tmp_path / "with space" / aside / "shape.json").is_file()
    assert checkpoint.shape() is None
    assert checkpoint.put_aside() is None


def test_a_lease_is_kept_in_a_file_of_sparks_file_systems(spark: SparkSession, tmp_path: Path) -> None:
    file = HadoopFile(spark, str(tmp_path / "with space"), ".locks/orders")
    assert file.read() is None
    assert file.create("first")
    assert not file.create("second")
    assert file.read() == "first"
    file.replace("third")
    assert HadoopFile(spark, str(tmp_path / "with space"), ".locks/orders").read() == "third"
    file.remove()
    assert file.read() is None


def test_a_second_driver_is_refused_before_it_builds_its_query(spark: SparkSession, tmp_path: Path) -> None:
    def build(spark: SparkSession) -> DataFrame:
        raise AssertionError("the query is built")

    def say(line: str) -> None:
        """Nothing is said."""

    pipeline = Pipeline("orders", build, hr.sinks.console())
    choices = Choices(command="test", checkpoints=str(tmp_path))
    with (
        locked(str(tmp_path), ["orders"], lambda name: HadoopFile(spark, str(tmp_path), name), say),
        pytest.raises(CheckpointInUse, match="orders is in use by process"),
    ):
        run(spark, [pipeline], choices, Told(), threading.Event())


def test_a_checkpoint_has_begun_when_spark_has_planned_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path), "rate")
    rows = spark.readStream.format("rate").option("rowsPerSecond", "10").load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint.location)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(60)
    query.stop()
    assert checkpoint.has_begun()


def test_a_first_micro_batch_that_could_not_be_planned_leaves_a_checkpoint_that_serves(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A full disk or a kill leaves a part of its offsets, and Spark then says for ever that there should be none."""
    checkpoint = Checkpoint(spark, str(tmp_path), "numbers")
    left = tmp_path / "numbers" / "spark" / "offsets" / ".0.7e77d8c1-6a4c-4ac7-a7b2-5b6cdc4855c0.tmp"
    left.parent.mkdir(parents=True)
    left.write_text("v1\n{")
    assert not checkpoint.has_begun()
    rows: list[int] = []

    def build(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").option("rowsPerSecond", "1").load()

    def take(batch: DataFrame, batch_id: int) -> None:
        rows.append(batch_id)

    choices = Choices(command="test", checkpoints=str(tmp_path), available_now=True, restarts_max=0)
    assert run(spark, [Pipeline("numbers", build, as_sink(take))], choices, Told(), threading.Event())
    assert rows == [0]
    assert checkpoint.has_begun()
    assert not left.exists()


def test_a_function_with_state_cannot_have_it_in_memory_and_sparks_own_can(spark: SparkSession) -> None:
    rows = orders(spark).withWatermark("at", "1 minute")
    assert shape_of(minutes(orders(spark)), output_mode=None, sink="", state="memory").state == "memory"
    visits = hr.windows(rows, "city", event_time="at", window=hr.session_window("1 minute"))
    assert shape_of(visits, output_mode=None, sink="", state="disk").state == "disk"
    with pytest.raises(UsageError, match=r"function with state.*on disk only.*leave state= out"):
        shape_of(visits, output_mode=None, sink="", state="memory")


def in_windows(rows: DataFrame, **changed: object) -> DataFrame:
    values = {"value": F.sum("id")}
    asked = {"event_time": "at", "window": MINUTE, "values": values, "late": "correct", **changed}
    return hr.windows(hr.watermark(rows, "at", "1 minute"), "city", **asked)  # type: ignore[arg-type]


def deduplicated(rows: DataFrame, keys: str = "city", within: str = "1 hour") -> DataFrame:
    return hr.dedup(hr.watermark(rows, "at", "1 minute"), keys, within=within, event_time="at")


def in_sessions(rows: DataFrame) -> DataFrame:
    return hr.windows(
        hr.watermark(rows, "at", "1 minute"), "city", event_time="at", window=hr.session_window("1 minute")
    )


@pytest.mark.parametrize(
    ("before", "after", "severity", "word"),
    [
        (
            in_windows,
            lambda rows: in_windows(rows, values={"value": F.max("id")}),
            "mixes",
            "aggregates of windows was",
        ),
        (in_windows, lambda rows: in_windows(rows, window=HOUR), "mixes", "size of windows was 60 s and is 3600 s"),
        (in_windows, lambda rows: in_windows(rows, late="side"), "note", "late of windows was correct and is side"),
        (in_windows, lambda rows: in_windows(rows, buckets=4), "breaks", "in 4 buckets"),
        (in_windows, in_sessions, "breaks", "windows by city, window_start, window_end"),
        (in_windows, deduplicated, "breaks", "dedup by city"),
        (deduplicated, lambda rows: deduplicated(rows, "id"), "breaks", "the dedup was by city (string) and is by id"),
        (deduplicated, lambda rows: deduplicated(rows, within="2 hours"), "note", "within of dedup was 3600 s"),
    ],
)
def test_a_change_of_an_operator_of_ours_is_found(
    spark: SparkSession, before: object, after: object, severity: str, word: str
) -> None:
    old, new = (shape(build(orders(spark))) for build in (before, after))  # type: ignore[operator]
    assert changes(old, shape(before(orders(spark)))) == []  # type: ignore[operator]
    found = changes(old, new)
    assert found[0].severity == severity, found
    assert any(word in each.text for each in found), found


def in_time(spark: SparkSession, topic: str = "orders") -> DataFrame:
    return hr.watermark(orders(spark, topic), "at", "1 minute")


def captured(spark: SparkSession, topic: str = "people") -> DataFrame:
    rows = hr.stream(spark, topic, "id long, city string, age long", value_format="debezium", bootstrap="h:1")
    return hr.changes(rows, "id")


MINUTE, HOUR = hr.tumbling("1 minute"), hr.tumbling("1 hour")

EVERY: dict[str, Callable[..., DataFrame]] = {
    "windows": lambda spark, **given: hr.windows(
        in_time(spark), **{"keys": "city", "event_time": "at", "window": HOUR, "emit": "early", **given}
    ),
    "distinct": lambda spark, function="count_distinct", of="id": hr.windows(
        in_time(spark), "city", event_time="at", window=HOUR, values={"distinct": getattr(F, function)(of)}
    ),
    "percentiles": lambda spark, **given: hr.percentiles(
        in_time(spark), **{"keys": "city", "of": "id", "event_time": "at", "window": HOUR, **given}
    ),
    "top": lambda spark, **given: hr.top(
        in_time(spark), **{"keys": "city", "of": "id", "event_time": "at", "window": HOUR, **given}
    ),
    "compare": lambda spark, **given: hr.compare(
        in_time(spark), **{"keys": "city", "event_time": "at", "window": HOUR, **given}
    ),
    "rolling": lambda spark, **given: hr.rolling(
        in_time(spark), **{"keys": "city", "event_time": "at", "within": "1 hour", **given}
    ),
    "sessions": lambda spark, **given: hr.windows(
        in_time(spark), **{"keys": "city", "event_time": "at", "window": hr.session_window("1 minute"), **given}
    ),
    "dedup": lambda spark, **given: hr.dedup(
        in_time(spark), **{"keys": "city", "event_time": "at", "within": "1 hour", **given}
    ),
    "view": lambda spark, **given: hr.view(
        captured(spark), **{"keys": "city", "values": {"value": F.sum("age")}, **given}
    ),
    "join_latest": lambda spark, **given: hr.join_latest(
        orders(spark), captured(spark), **{"on": "id", "prefix": "person_", **given}
    ),
    "join_as_of": lambda spark, **given: hr.join_as_of(
        in_time(spark),
        hr.watermark(captured(spark), "at", "1 minute"),
        **{"on": "id", "event_time": "at", "prefix": "person_", **given},
    ),
    "join_tables": lambda spark, **given: hr.join_tables(
        captured(spark), captured(spark, "cities"), **{"on": "id", "prefix": "other_", **given}
    ),
}
CHANGED: list[tuple[str, Any]] = [
    ("windows", {"window": hr.tumbling("2 hours")}),
    ("windows", {"window": hr.hopping("1 hour", "30 minutes")}),
    ("windows", {"window": hr.tumbling("1 hour", origin="1970-01-01T00:10:00Z")}),
    ("windows", {"keys": ["city", "id"]}),
    ("windows", lambda: {"values": {"value": F.sum("id")}}),
    ("windows", {"window": hr.calendar("day", "Europe/Berlin")}),
    ("windows", lambda: {"values": {"value": F.sum(F.col("id") * F.col("amount"))}}),
    ("windows", {"buckets": 3}),
    ("distinct", {"function": "approx_count_distinct"}),
    ("distinct", {"of": "amount"}),
    ("percentiles", {"of": "amount"}),
    ("top", {"of": "amount"}),
    ("top", {"n": 3}),
    ("top", lambda: {"by": F.sum("id")}),
    ("compare", {"to": {"previous": "2 hours"}}),
    ("compare", lambda: {"values": {"value": F.sum("id")}}),
    ("rolling", {"within": "2 hours"}),
    ("rolling", {"reach": "around"}),
    ("rolling", lambda: {"values": {"value": F.sum("id")}}),
    ("sessions", {"window": hr.session_window("2 minutes")}),
    ("sessions", lambda: {"values": {"value": F.sum("id")}}),
    ("dedup", {"keys": ["city", "id"]}),
    ("dedup", {"within": hr.FOREVER}),
    ("view", {"keys": "id"}),
    ("view", lambda: {"values": {"value": F.max("age")}}),
    ("view", lambda: {"values": {"value": F.sum("id")}}),
    ("view", {"buckets": 3}),
    ("join_latest", {"how": "inner"}),
    ("join_latest", {"buckets": 3}),
    ("join_as_of", {"how": "inner"}),
    ("join_tables", {"how": "left"}),
    ("join_tables", {"on": "age"}),
]


@pytest.mark.parametrize(("function", "changed"), CHANGED)
def test_a_changed_argument_of_any_function_with_state_is_refused(
    spark: SparkSession, function: str, changed: Any
) -> None:
    build, given = EVERY[function], changed() if callable(changed) else changed
    before = Shape.from_json(shape(build(spark)).to_json())
    assert changes(before, shape(build(spark))) == []
    found = changes(before, shape(build(spark, **given)))
    assert refuse("orders", "checkpoints/orders", found, "headrace run shop.py") is not None, found


def test_the_number_of_buckets_is_a_setting_of_the_session(spark: SparkSession) -> None:
    spark.conf.set("spark.headrace.state.buckets", "3")
    try:
        assert "in 3 buckets" in shape(in_windows(orders(spark))).operators[0].values[0].type
        assert "in 5 buckets" in shape(in_windows(orders(spark), buckets=5)).operators[0].values[0].type
        spark.conf.set("spark.headrace.state.buckets", "some")
        with pytest.raises(UsageError, match=r"spark.headrace.state.buckets='some' is no number above 0"):
            in_windows(orders(spark))
    finally:
        spark.conf.unset("spark.headrace.state.buckets")
