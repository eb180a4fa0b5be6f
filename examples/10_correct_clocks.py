"""Devices whose clocks are wrong, put right by three timestamps. Needs Java and pip install 'headrace[spark]'."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

import headrace.spark as hr
from headrace.spark.testing import run_pipeline

READINGS = "device string, occurred timestamp, sent timestamp, received timestamp"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def corrected(spark: SparkSession) -> DataFrame:
    readings = hr.batch(spark, "readings", schema=READINGS)
    return hr.correct_clock(readings, keys="device", occurred="occurred", sent="sent", received="received")


def reading(number: int, *, behind: timedelta, transfer_s: float) -> dict[str, str]:
    """Taken at noon and some minutes, sent a minute later; the device's clock is behind."""
    took_place = NOON + timedelta(minutes=number)
    sent = took_place + timedelta(minutes=1)
    received = sent + timedelta(seconds=transfer_s)
    times = {"occurred": took_place - behind, "sent": sent - behind, "received": received}
    return {"device": f"behind by {behind}", **{name: time.isoformat() for name, time in times.items()}}


if __name__ == "__main__":
    events = []
    for behind in (timedelta(hours=3), timedelta(days=-1)):
        for number in range(5):
            events.append(reading(number, behind=behind, transfer_s=40 if number == 3 else 0.1))  # one transfer is slow
    spark = hr.session(app_name="clocks", conf={"spark.log.level": "ERROR"})
    rows = run_pipeline(corrected, {"readings": events}, spark=spark)
    spark.stop()
    for row in sorted(rows, key=lambda each: (each.device, each.received)):
        print(f"{row.device:24}  said {row.occurred:%d %H:%M:%S}  corrected {row.corrected:%d %H:%M:%S}")
        off = row.corrected.replace(tzinfo=UTC) - NOON
        assert abs(off.total_seconds() % 60) < 1, "within a second, the slow transfer too"
