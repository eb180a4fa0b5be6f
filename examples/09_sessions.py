"""Sessions that correct themselves: early results, then final ones. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.testing import run_pipeline

CLICKS = "user string, at timestamp, amount long"


def visits(spark: SparkSession) -> DataFrame:
    clicks = hr.stream(spark, "clicks", schema=CLICKS).withWatermark("at", "5 minutes")
    spent = {"spent": F.sum("amount")}
    return hr.windows(
        clicks, "user", event_time="at", window=hr.session_window("10 minutes"), values=spent, emit="early"
    )


def click(user: str, at: str, amount: int) -> dict[str, object]:
    return {"user": user, "at": f"2026-01-31T{at}Z", "amount": amount}


if __name__ == "__main__":
    spark = hr.session(app_name="sessions", conf={"spark.log.level": "ERROR"})
    rows = run_pipeline(
        visits,
        {
            "clicks": [
                [click("anna", "10:00:00", 5), click("anna", "10:14:00", 7)],  # a pause of 14 minutes: two sessions
                [click("anna", "10:09:00", 1)],  # comes late, and joins them
                [click("ben", "11:00:00", 2)],  # the watermark goes past anna's session
            ]
        },
        spark=spark,
    )
    spark.stop()
    for row in rows:
        what = "taken back" if row.is_retraction else "final" if row.is_final else "so far"
        print(f"{row.user:5} from {row.session_start:%H:%M}  {row.events} clicks  spent {row.spent}  {what}")
    final = [row for row in rows if row.is_final]
    assert [(row.user, row.events, row.spent) for row in final] == [("anna", 3, 13)]
