"""The test kit: a pipeline, a list of events, and its rows, without a broker."""

from __future__ import annotations

import runpy
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.source.reading import batch, stream, table
from headrace.spark.testing import Event, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(600)]

ORDERS = "id long, amount decimal(12,2), placed_at timestamp"


def order(number: int, amount: str, at: str) -> dict[str, object]:
    return {"id": number, "amount": Decimal(amount), "placed_at": f"2026-01-31T{at}Z"}


def revenue_per_minute(spark: SparkSession) -> DataFrame:
    orders = stream(spark, "orders", schema=ORDERS).withWatermark("placed_at", "2 minutes")
    minutes = orders.groupBy(F.window("placed_at", "1 minute")).agg(F.sum("amount").alias("revenue"))
    return minutes.select(F.col("window.start").alias("minute"), "revenue")


def test_events_out_of_order_count_and_late_ones_are_dropped_and_counted(spark: SparkSession) -> None:
    rows = run_pipeline(
        revenue_per_minute,
        {
            "orders": [
                [order(1, "3.20", "10:00:05"), order(2, "4.50", "10:00:01")],
                [order(3, "9.90", "10:05:00")],
                [],
                [order(4, "1.00", "10:00:59")],
            ]
        },
        spark=spark,
    )
    assert rows.dicts() == [{"minute": datetime(2026, 1, 31, 10, 0), "revenue": Decimal("7.70")}]
    assert rows.late == 1


def shops_per_minute(spark: SparkSession) -> DataFrame:
    orders = hr.watermark(stream(spark, "orders", schema=ORDERS), "placed_at", "2 minutes")
    return hr.windows(
        orders, event_time="placed_at", window=hr.tumbling("1 minute"), values={"different": F.count_distinct("id")}
    )


def test_rows_that_are_late_for_an_operator_of_ours_are_counted_too(spark: SparkSession) -> None:
    batches = [[order(1, "1.00", "10:00:05")], [order(2, "1.00", "10:05:00")], [], [order(3, "1.00", "10:00:59")]]
    rows = run_pipeline(shops_per_minute, {"orders": batches}, spark=spark)
    assert [row.different for row in rows] == [1]
    assert rows.late == 1


@pytest.mark.slow
def test_micro_batches_come_as_they_were_given(spark: SparkSession) -> None:
    """The same event is late or not by the micro-batch that it comes in."""
    together = [[order(1, "3.20", "10:00:05"), order(3, "9.90", "10:05:00"), order(4, "1.00", "10:00:59")]]
    rows = run_pipeline(revenue_per_minute, {"orders": together}, spark=spark)
    assert [row.revenue for row in rows] == [Decimal("4.20")]
    assert rows.late == 0


def test_a_stateless_pipeline_gives_its_rows_batch_by_batch_with_all_that_a_record_has(spark: SparkSession) -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    events = [
        [Event(b"\x00\xff", key="k", timestamp=at, partition=2, headers=[("h", b"v")])],
        ["text", Event(None, key=b"gone", partition=2)],
    ]
    rows = run_pipeline(
        lambda spark: (
            spark.readStream.format("headrace").option("subscribe", "t").option("includeHeaders", "true").load()
        ),
        {"t": events},
        spark=spark,
    )
    assert [[bytes(row.value) if row.value is not None else None for row in each] for each in rows.batches] == [
        [b"\x00\xff"],
        [b"text", None],
    ]
    first, _, gone = rows
    assert (bytes(first.key), first.topic, first.partition, first.offset) == (b"k", "t", 2, 0)
    assert first.timestamp.replace(tzinfo=UTC) == at
    assert [(each.key, bytes(each.value)) for each in first.headers] == [("h", b"v")]
    assert (bytes(gone.key), gone.partition, gone.offset) == (b"gone", 2, 1)


@pytest.mark.slow
def test_an_aggregation_without_a_watermark_gives_updates(spark: SparkSession) -> None:
    def count(spark: SparkSession) -> DataFrame:
        return stream(spark, "words", value_format="text").groupBy("value").count()

    rows = run_pipeline(count, {"words": [["a", "b"], ["a"]]}, spark=spark)
    assert [{(row.value, row["count"]) for row in each} for each in rows.batches] == [{("a", 1), ("b", 1)}, {("a", 2)}]


@pytest.mark.slow
def test_topics_go_through_their_micro_batches_side_by_side(spark: SparkSession) -> None:
    def both(spark: SparkSession) -> DataFrame:
        left = stream(spark, "left", value_format="text").select("value", "_topic")
        return left.union(stream(spark, "right", value_format="text").select("value", "_topic"))

    rows = run_pipeline(both, {"left": [["l0"], ["l1"]], "right": [["r0"], [], ["r2"]]}, spark=spark)
    assert [{row.value for row in each} for each in rows.batches] == [{"l0", "r0"}, {"l1"}, {"r2"}]


def test_a_bounded_pipeline_gives_its_rows_and_a_table_the_latest_of_each_key(spark: SparkSession) -> None:
    users = [Event({"name": "Anna"}, key="1"), Event({"name": "Ben"}, key="2"), Event({"name": "Anne"}, key="1")]
    users.append(Event(None, key="2"))
    rows = run_pipeline(lambda spark: table(spark, "users", schema="name string"), {"users": users}, spark=spark)
    assert [row.name for row in rows] == ["Anne"]
    whole = run_pipeline(lambda spark: batch(spark, "users"), {"users": users}, spark=spark)
    assert [row.offset for row in whole] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_bad_record_does_what_the_source_would_do(spark: SparkSession) -> None:
    events = {"orders": [order(1, "3.20", "10:00:05"), "not json", order(2, "1.00", "10:00:06")]}
    with pytest.raises(StreamingQueryException, match=r"orders\[0\] offset 1 does not fit"):
        run_pipeline(lambda spark: stream(spark, "orders", schema=ORDERS), events, spark=spark)
    kept = run_pipeline(lambda spark: stream(spark, "orders", schema=ORDERS, onBadRecord="null"), events, spark=spark)
    assert [row._raw and bytes(row._raw) for row in kept] == [None, b"not json", None]
    good = run_pipeline(
        lambda spark: stream(spark, "orders", schema=ORDERS, onBadRecord="deadletter", deadLetterTopic="bad"),
        events,
        spark=spark,
    )
    assert [(row.id, row._offset) for row in good] == [(1, 0), (2, 2)]


@pytest.mark.slow
def test_a_topic_without_events_is_told_with_those_that_have_some(spark: SparkSession) -> None:
    with pytest.raises(
        (UsageError, StreamingQueryException), match=r"reads topic 'orders', and the test gives .* users"
    ):
        run_pipeline(revenue_per_minute, {"users": []}, spark=spark)


def test_a_session_is_listened_to_once_however_many_pipelines_it_runs(spark: SparkSession) -> None:
    def listeners() -> int:
        return len(list(spark._jsparkSession.streams().listListeners()))

    before = listeners()
    run_pipeline(lambda spark: batch(spark, "t", value_format="text"), {"t": ["a"]}, spark=spark)
    assert listeners() == before


def test_the_example_of_a_pipeline_under_test_passes(spark: SparkSession) -> None:
    """In this session; that the example runs by itself is a test of the documents."""
    example = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "08_test_a_pipeline.py"))
    tests = [value for name, value in example.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_what_is_not_a_data_frame_is_told(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="returns int and not a DataFrame"):
        run_pipeline(lambda spark: 7, {}, spark=spark)  # type: ignore[arg-type, return-value]
