"""Each day's orders beside those a week ago, by the calendar. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.testing import run_pipeline


def days(spark: SparkSession) -> DataFrame:
    orders = hr.batch(spark, "orders", schema="shop string, at timestamp, amount decimal(12,2)")
    compared = hr.compare(
        orders,
        "shop",
        event_time="at",
        window=hr.calendar("1 day", "Europe/Berlin"),
        to={"last_week": "7 days"},
        values={"revenue": F.sum("amount")},
    )
    return compared.withColumn("day", F.date_format(F.from_utc_timestamp("window_start", "Europe/Berlin"), "EEE d MMM"))


def order(at: str, amount: str) -> dict[str, object]:
    return {"shop": "Lake", "at": at, "amount": amount}


if __name__ == "__main__":
    spark = hr.session(app_name="compare", conf={"spark.log.level": "ERROR"})
    orders = [
        order("2026-03-22T10:00:00+01:00", "100.00"),
        order("2026-03-29T00:30:00+01:00", "30.00"),
        order("2026-03-29T23:30:00+02:00", "120.00"),  # of a day with 23 hours
        order("2026-03-30T00:10:00+02:00", "5.00"),
    ]
    rows = run_pipeline(days, {"orders": orders}, spark=spark)
    spark.stop()
    for row in sorted(rows, key=lambda each: each.window_start):
        print(f"{row.day:10}  {row.events} orders, {row.revenue}  a week before: {row.revenue_last_week}")
    (sunday,) = [row for row in rows if row.day == "Sun 29 Mar"]
    assert (sunday.revenue, sunday.revenue_last_week) == (150, 100)
