"""Orders with the price that was valid when they were placed. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

import headrace.spark as hr
from headrace.spark.testing import Event, run_pipeline


def priced(spark: SparkSession) -> DataFrame:
    orders = hr.stream(spark, "orders", schema="id long, product string, at timestamp").withWatermark("at", "1 minute")
    prices = hr.changes(hr.stream(spark, "prices", schema="product string, price long"), key="product")
    return hr.join_as_of(
        orders.select("id", "product", "at"),
        prices.withWatermark("at", "1 minute"),
        "product",
        event_time="at",
        version="price_version",
    )


def moment(at: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-31T{at}+00:00")


def order(number: int, at: str) -> dict[str, object]:
    return {"id": number, "product": "tea", "at": moment(at).isoformat()}


def price(at: str, cents: int | None) -> Event:
    """A record of a compacted topic: the latest of a key counts, and no value removes it."""
    value = None if cents is None else {"product": "tea", "price": cents}
    return Event(value, key="tea", timestamp=moment(at))


if __name__ == "__main__":
    spark = hr.session(app_name="prices", conf={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"})
    rows = run_pipeline(
        priced,
        {
            "orders": [
                [order(1, "10:00:00"), order(2, "10:20:00")],
                [order(3, "10:10:00"), order(4, "10:40:00")],
                [order(5, "12:00:00")],
                [],
            ],
            "prices": [
                [price("09:00:00", 250)],
                [price("10:15:00", 300), price("10:30:00", None)],  # before order 3 came, which is older
                [price("12:30:00", 350)],
                [],
            ],
        },
        spark=spark,
    )
    spark.stop()
    for row in sorted(rows, key=lambda each: each.at):
        print(f"order {row.id} at {row.at:%H:%M}: {row.price} cents, {row.price_version}")
    # Order 5 waits: as long as neither stream is past its time, a price that was valid then may come.
    assert {(row.id, row.price) for row in rows} == {(1, 250), (2, 300), (3, 250), (4, None)}
