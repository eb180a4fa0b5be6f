"""A peak that never was: a job pauses and catches up, seen by both clocks. Needs Java and 'headrace[spark]'."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

import headrace.spark as hr
from headrace.spark.testing import run_pipeline

TEN = datetime(2026, 1, 31, 10, tzinfo=UTC)
DOWN_FROM, DOWN_UNTIL = 3, 8
"""Minutes past ten between which the job did not run."""


def per_minute(spark: SparkSession, clock: str) -> DataFrame:
    visits = hr.batch(spark, "visits", schema="happened timestamp, processed timestamp")
    return hr.windows(visits, event_time=clock, window=hr.tumbling("1 minute"))


def visit(second: int) -> dict[str, str]:
    """Ten a minute, all the time. The job sees a visit at once, or when it is back."""
    happened = TEN + timedelta(seconds=second)
    down = DOWN_FROM * 60 <= second < DOWN_UNTIL * 60
    processed = TEN + timedelta(minutes=DOWN_UNTIL) if down else happened
    return {"happened": happened.isoformat(), "processed": processed.isoformat()}


if __name__ == "__main__":
    visits = [visit(second) for second in range(0, 12 * 60, 6)]
    spark = hr.session(app_name="clocks", conf={"spark.log.level": "ERROR"})
    counts = {}
    for clock in ("happened", "processed"):
        rows = run_pipeline(lambda spark, clock=clock: per_minute(spark, clock), {"visits": visits}, spark=spark)
        counts[clock] = {f"{row.window_start:%H:%M}": row.events for row in rows}
    spark.stop()
    print("minute  happened  processed")
    for minute, events in sorted(counts["happened"].items()):
        print(f"{minute}   {events:8}  {counts['processed'].get(minute, 0):9}")
    assert set(counts["happened"].values()) == {10}, "what happened is as even as it was"
    assert counts["processed"]["10:08"] == 60, "the job's return looks like a rush"
