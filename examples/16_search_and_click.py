"""A search and its click, or none: two streams within a bound of time. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.testing import run_pipeline


def clicked(spark: SparkSession) -> DataFrame:
    searches = hr.stream(spark, "searches", schema="id long, text string, at timestamp").withWatermark("at", "1 minute")
    clicks = hr.stream(spark, "clicks", schema="search long, url string, at timestamp")
    clicks = clicks.select("search", "url", F.col("at").alias("clicked_at")).withWatermark("clicked_at", "1 minute")
    return hr.join_within(
        searches.select("id", "text", "at"),
        clicks,
        {"id": "search"},
        left_event_time="at",
        right_event_time="clicked_at",
        after="10 minutes",
        how="left",
    )


def search(number: int, text: str, at: str) -> dict[str, object]:
    return {"id": number, "text": text, "at": f"2026-01-31T{at}Z"}


def click(number: int, url: str, at: str) -> dict[str, object]:
    return {"search": number, "url": url, "at": f"2026-01-31T{at}Z"}


if __name__ == "__main__":
    spark = hr.session(app_name="clicks", conf={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"})
    rows = run_pipeline(
        clicked,
        {
            "searches": [
                [search(1, "kettle", "10:00:00"), search(2, "teapot", "10:01:00")],
                [search(3, "cups", "11:00:00")],
                [],
            ],
            "clicks": [
                [click(1, "/kettle/7", "10:04:00")],
                [click(2, "/teapot/2", "10:30:00"), click(3, "/cups/1", "11:00:30")],  # the first one is too long after
                [],
            ],
        },
        spark=spark,
    )
    spark.stop()
    for row in rows:
        print(f"{row.text:7} {row.url or 'no click'}")
    assert {(row.id, row.url) for row in rows} == {(1, "/kettle/7"), (2, None), (3, "/cups/1")}
