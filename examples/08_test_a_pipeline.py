"""A pipeline under test: events in, rows out, no broker. Run it: pytest examples/08_test_a_pipeline.py"""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.testing import Event, run_pipeline


def visits_per_minute(spark: SparkSession) -> DataFrame:
    visits = hr.stream(spark, "visits", schema="page string, at timestamp").withWatermark("at", "1 minute")
    return visits.groupBy(F.window("at", "1 minute"), "page").count()


def visit(page: str, at: str) -> dict[str, str]:
    return {"page": page, "at": f"2026-01-31T{at}Z"}


def test_a_visit_out_of_order_counts_and_one_that_is_too_late_does_not() -> None:
    rows = run_pipeline(
        visits_per_minute,
        {
            "visits": [
                [visit("/", "10:00:30"), visit("/", "10:00:10")],  # the first micro-batch
                [visit("/", "10:05:00")],  # moves the watermark to 10:04
                [],  # in which the watermark takes effect
                [visit("/", "10:00:50")],  # its minute is over
            ]
        },
    )
    assert [(row.page, row["count"]) for row in rows] == [("/", 2)]
    assert rows.late == 1


def test_a_table_has_the_latest_of_each_key() -> None:
    pages = [
        Event({"title": "Hello"}, key="/"),
        Event({"title": "Prices"}, key="/buy"),
        Event({"title": "Hi"}, key="/"),
    ]
    rows = run_pipeline(lambda spark: hr.table(spark, "pages", schema="title string"), {"pages": pages})
    assert sorted(row.title for row in rows) == ["Hi", "Prices"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
