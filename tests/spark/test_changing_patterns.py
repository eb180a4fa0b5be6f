"""Patterns that change while a stream runs, on Spark: added, replaced and removed by the records of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.testing import Event, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

SCHEMA = "card string, at timestamp, amount long"
PATTERNS = "id string, pattern string"
START = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
SMALL_BIG = hr.pattern("small").where("amount < 10").followed_by("big").where("amount > 500").within("60 seconds")
TWO_BIG = "PATTERN (A B) WITHIN '60 seconds' DEFINE A AS amount > 500, B AS B.amount > A.amount"


def paid(card: str | None, second: int, amount: int | None) -> dict[str, Any]:
    return {"card": card, "at": (START + timedelta(seconds=second)).isoformat(), "amount": amount}


def stored(name: str, second: int, text: str | None) -> Event:
    value = None if text is None else {"id": name, "pattern": text}
    return Event(value, key=name, timestamp=START + timedelta(seconds=second))


CHANGES = [
    [stored("tested", 0, SMALL_BIG.to_json()), stored("bad", 0, "PATTERN (A + + B)")],
    [stored("rising", 100, TWO_BIG), stored("tested", 130, None)],
    [],
    [],
]
PAYMENTS = [
    [paid("a", 1, 5), paid("b", 2, 700), paid("a", 20, 900), paid("b", 3, 800), paid(None, 4, 1), paid(None, 5, 999)],
    [paid("b", 101, 600), paid("b", 102, 601), paid("a", 110, 3), paid("c", 120, 2)],
    [paid("a", 125, 501), paid("c", 131, 502), paid("c", 132, None), paid("a", 140, 510)],
    [paid("last", 100_000, 0)],
]
WANTED = [
    ("None", "tested", [1, 999]),
    ("a", "rising", [501, 510]),
    ("a", "tested", [3, 501]),
    ("a", "tested", [5, 900]),
    ("b", "rising", [600, 601]),
]
"""No pattern saw 700 and 800, which came before "rising"; c's 2 and 502 are before and after the end of "tested"."""


def matches(streaming: bool) -> Any:
    def build(spark: SparkSession) -> DataFrame:
        read = hr.stream if streaming else hr.batch
        payments = read(spark, "payments", schema=SCHEMA).select("card", "at", "amount")
        if streaming:
            payments = hr.watermark(payments, "at", "60 seconds")
        patterns = hr.changes(read(spark, "patterns", schema=PATTERNS), key="id")
        return hr.match_patterns(payments, patterns, keys="card", event_time="at", buckets=2)

    return build


def shown(rows: Sequence[Row]) -> list[tuple[str, str, list[int]]]:
    return sorted((str(row.card), row.pattern, [each.amount for each in row.events]) for row in rows)


def test_patterns_come_change_and_go_by_time_and_the_bounded_frame_has_the_same_matches(spark: SparkSession) -> None:
    found = run_pipeline(matches(True), {"payments": PAYMENTS, "patterns": CHANGES}, spark=spark, timeout_s=400)
    assert shown(found) == WANTED
    everything = {
        "payments": [[each for batch in PAYMENTS for each in batch]],
        "patterns": [[each for batch in CHANGES for each in batch]],
    }
    bounded = run_pipeline(matches(False), everything, spark=spark, timeout_s=400)
    assert shown(bounded) == WANTED
    assert {row.match_id for row in bounded} == {row.match_id for row in found}
    assert len({row.match_id for row in found}) == len(WANTED)


def test_what_cannot_be_matched_is_refused_before_the_start(spark: SparkSession) -> None:
    payments = spark.createDataFrame([], SCHEMA)
    table = spark.createDataFrame([], f"{PATTERNS}, seq long")
    patterns = hr.changes(table, "id", position="seq")
    arguments: dict[str, Any] = {"keys": "card", "event_time": "at"}
    with pytest.raises(UsageError, match=r"no column 'text'.*its columns are id, pattern"):
        hr.match_patterns(payments, patterns, text="text", **arguments)
    with pytest.raises(UsageError, match="is bigint, and a pattern is text"):
        hr.match_patterns(payments, patterns, text="seq", **arguments)
    with pytest.raises(UsageError, match="these are no changes"):
        hr.match_patterns(payments, table, **arguments)
    with pytest.raises(UsageError, match="is the event time"):
        hr.match_patterns(payments, patterns, keys=["card", "at"], event_time="at")
    with pytest.raises(UsageError, match="there is no column 'user'"):
        hr.match_patterns(payments, patterns, keys="user", event_time="at")
    with pytest.raises(UsageError, match="'\\+' was not expected"):
        hr.check_pattern("PATTERN (A + + B) WITHIN '1 second'", payments)
    with pytest.raises(UsageError, match="at most 1 hours"):
        hr.check_pattern(SMALL_BIG.within("2 hours"), payments, within_max="1 hour")
    hr.check_pattern(TWO_BIG, payments.schema)
