"""How slow the slowest requests are, how many visitors there were and what they looked at, minute by minute.

Percentiles and the cheap count of visitors come of sketches: a few kilobytes for each minute, however many requests
there are, and an error that is known. Needs Java and pip install 'headrace[spark]'.
"""

from __future__ import annotations

import random
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.spark.testing import run_pipeline

COUNT = 3_000
MINUTE: dict[str, Any] = {"event_time": "at", "window": hr.tumbling("1 minute")}


def requests(spark: SparkSession) -> DataFrame:
    return hr.batch(spark, "requests", schema="visitor long, page string, ms double, at timestamp")


QUESTIONS = {
    "percentiles": lambda rows: hr.percentiles(rows, of="ms", wanted=[0.5, 0.99], **MINUTE),
    "visitors": lambda rows: hr.windows(rows, values={"distinct": F.count_distinct("visitor")}, **MINUTE),
    "about": lambda rows: hr.windows(rows, values={"distinct": F.approx_count_distinct("visitor")}, **MINUTE),
    "pages": lambda rows: hr.top(rows, of="page", n=2, **MINUTE),
}


def request(chance: random.Random) -> dict[str, object]:
    """Most take some 20 ms, and one in fifty takes a second."""
    page = chance.choices(["/", "/search", "/cart", "/help"], [8, 4, 2, 1])[0]
    ms = 1000.0 if chance.random() < 0.02 else chance.uniform(15, 25)
    at = f"2026-01-31T10:00:{chance.randrange(60):02}Z"
    return {"visitor": chance.randrange(2_000), "page": page, "ms": ms, "at": at}


if __name__ == "__main__":
    chance = random.Random(7)
    events = [request(chance) for _ in range(COUNT)]
    spark = hr.session(app_name="requests", conf={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"})
    found = {
        name: run_pipeline(lambda spark, ask=ask: ask(requests(spark)), {"requests": events}, spark=spark)
        for name, ask in QUESTIONS.items()
    }
    spark.stop()
    (slow,), (exact,), (about,) = found["percentiles"], found["visitors"], found["about"]
    print(f"half of {slow.events} requests took less than {slow.p50:.1f} ms, and 99 % less than {slow.p99:.1f} ms")
    print(f"{exact.distinct} visitors, or about {about.distinct}")
    for row in sorted(found["pages"], key=lambda each: each.rank):
        print(f"{row.rank}. {row.page}  {row.score} times")
    assert abs(slow.p99 - 1000) <= 10, "within one percent"
    assert exact.distinct == len({event["visitor"] for event in events})
    assert abs(about.distinct - exact.distinct) <= 0.05 * exact.distinct, "a standard error of 1.6 %"
    assert [row.page for row in sorted(found["pages"], key=lambda each: each.rank)] == ["/", "/search"]
