"""Rows that come after their minute was published: the result is taken back and the right one follows.

Needs Java and pip install 'headrace[spark]'.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.testing import run_pipeline


def revenue(spark: SparkSession) -> DataFrame:
    orders = hr.stream(spark, "orders", schema="at timestamp, amount long").withWatermark("at", "1 minute")
    values = {"revenue": F.sum("amount")}
    return hr.windows(
        orders, event_time="at", window=hr.tumbling("1 minute"), values=values, late="correct", keep="1 hour"
    )


def order(at: str, amount: int) -> dict[str, object]:
    return {"at": f"2026-01-31T{at}Z", "amount": amount}


if __name__ == "__main__":
    spark = hr.session(app_name="stragglers", conf={"spark.log.level": "ERROR"})
    rows = run_pipeline(
        revenue,
        {
            "orders": [
                [order("10:00:10", 5), order("10:00:50", 7)],
                [order("10:20:00", 1)],  # moves the watermark to 10:19: the minute from 10:00 is final
                [],
                [order("10:00:30", 100)],  # twenty minutes too late
            ]
        },
        spark=spark,
    )
    spark.stop()
    total = 0
    for row in rows:
        print(f"{row.window_start:%H:%M}  {'takes back' if row.is_retraction else 'says'} {row.revenue}")
        total += -row.revenue if row.is_retraction else row.revenue
    assert [(row.revenue, row.is_retraction) for row in rows] == [(12, False), (12, True), (112, False)]
    assert total == 112, "adding results and subtracting retractions gives the right sum"
