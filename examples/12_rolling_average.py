"""Each price beside the average of the hour before it. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.testing import run_pipeline


def averages(spark: SparkSession) -> DataFrame:
    trades = hr.stream(spark, "trades", schema="stock string, at timestamp, price double")
    values = {"average": F.avg("price"), "highest": F.max("price")}
    dated = trades.withWatermark("at", "1 hour")
    return hr.rolling(dated, "stock", event_time="at", within="1 hour", values=values)


def trade(at: str, price: float) -> dict[str, object]:
    return {"stock": "HEAD", "at": f"2026-01-31T{at}Z", "price": price}


if __name__ == "__main__":
    spark = hr.session(app_name="rolling", conf={"spark.log.level": "ERROR"})
    rows = run_pipeline(
        averages,
        {
            "trades": [
                [trade("10:00:00", 10), trade("10:59:00", 20)],
                [trade("10:30:00", 30)],  # out of order, and counted where it belongs
                [trade("11:00:00", 40)],  # ten o'clock is a whole hour ago: no longer near
                [trade("13:00:00", 50)],  # moves the watermark past the others
            ]
        },
        spark=spark,
    )
    spark.stop()
    for row in sorted(rows, key=lambda each: each.at):
        print(f"{row.at:%H:%M}  {row.price:5.2f}  average of the hour {row.average:5.2f}, of {row.events} trades")
    assert sorted((row.price, row.average) for row in rows) == [(10, 10), (20, 20), (30, 20), (40, 30)]
