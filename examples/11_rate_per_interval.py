"""How many requests a second, minute by minute. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

import headrace.spark as hr
from headrace.spark.testing import run_pipeline

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def load(spark: SparkSession) -> DataFrame:
    requests = hr.stream(spark, "requests", schema="path string, at timestamp").withWatermark("at", "1 minute")
    return hr.rate(requests, "path", event_time="at", window=hr.tumbling("1 minute"), per="1 second")


def request(second: int) -> dict[str, object]:
    return {"path": "/buy", "at": (NOON + timedelta(seconds=second)).isoformat()}


if __name__ == "__main__":
    spark = hr.session(app_name="rate", conf={"spark.log.level": "ERROR"})
    busy = [request(second % 60) for second in range(120)]
    quiet = [request(60 + second) for second in range(0, 60, 10)]
    rows = run_pipeline(load, {"requests": [busy, quiet, [request(600)], []]}, spark=spark)
    spark.stop()
    for row in sorted(rows, key=lambda each: each.window_start):
        print(f"{row.path} at {row.window_start:%H:%M}: {row.events} requests, {row.rate:.2f} a second")
    assert sorted(row.rate for row in rows) == [0.1, 2.0]
