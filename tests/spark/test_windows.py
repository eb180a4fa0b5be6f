"""Windows on Spark: Spark's own and ours agree, calendars are right, and a stream ends where the bounded frame does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import StructType

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.testing import Rows, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

SCHEMA = "user string, at timestamp, amount long, took double"
COLUMNS = ("user", "at", "amount", "took")
START = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
BUCKETS = 2
Operator = Callable[[DataFrame], DataFrame]
Event = tuple[str | None, float, int | None]
"""(user, seconds after the start, amount)"""
LAST: Event = ("last", 100_000, 0)
"""Its time moves the watermark past everything else."""


def value(event: Event) -> dict[str, Any]:
    user, second, amount = event
    at = START + timedelta(seconds=second)
    return {"user": user, "at": at.isoformat(), "amount": amount, "took": None if amount is None else amount / 2}


def run(spark: SparkSession, operator: Operator, *batches: Sequence[Event]) -> Rows:
    """The operator on a stream, batch by batch."""

    def build(spark: SparkSession) -> DataFrame:
        rows = hr.stream(spark, "rows", schema=SCHEMA).select(*COLUMNS)
        return operator(rows.withWatermark("at", "20 seconds"))

    given = [[value(event) for event in batch] for batch in batches]
    return run_pipeline(build, {"rows": given}, spark=spark, timeout_s=400)


def bounded(spark: SparkSession, operator: Operator, events: Sequence[Event]) -> list[Row]:
    rows = [
        Row(user=user, at=START + timedelta(seconds=second), amount=amount, took=None if amount is None else amount / 2)
        for user, second, amount in events
    ]
    return operator(spark.createDataFrame(rows, SCHEMA)).collect()


BATCHES: list[list[Event]] = [
    [("anna", 0, 1), ("ben", 2, 2), (None, 3, 3), ("anna", 10, 4)],
    [("anna", 12, 4), ("ben", 1, 5), ("anna", 12, None)],
    [("anna", 5, 6), ("anna", 5, 6), ("ben", 40, 7), (None, 41, None)],
    [LAST],
    [],
]
EVENTS = [event for batch in BATCHES for event in batch]


def values() -> dict[str, Column]:
    """Columns need a session, so they are no constants."""
    return {
        "total": F.sum("amount"),
        "twice": F.sum(F.col("amount") * 2),
        "mean": F.avg("took"),
        "lowest": F.min("amount"),
        "opening": F.first("amount"),
        "closing": F.last("amount"),
        "many": F.count_if(F.col("amount") > 3),
        "about": F.approx_count_distinct("amount"),
    }


def as_bag(rows: Sequence[Row], *leaving_out: str) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple(each for name, each in row.asDict().items() if name not in leaving_out)
        for row in rows
        if row.user != "last"
    )


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_an_hour_every_five_minutes_is_twelve_windows_a_row(spark: SparkSession, ansi: str) -> None:
    at = datetime(2026, 1, 1, 10, 2, tzinfo=UTC)
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        rows = spark.createDataFrame([("anna", at)], "user string, at timestamp")
        results = hr.windows(rows, "user", event_time="at", window=hr.hopping("1 hour", "5 minutes"), emit="early")
        final = results.where("is_final").select(F.unix_seconds("window_start").alias("start")).collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))
    first = int(at.timestamp()) - 3600 + 180
    assert sorted(row.start for row in final) == list(range(first, first + 3600, 300))


@pytest.mark.parametrize(
    ("window", "in_windows"), [(hr.tumbling("10 seconds"), 11), (hr.hopping("10 seconds", "4 seconds"), 30)]
)
def test_the_operator_and_sparks_own_windows_agree_on_a_bounded_frame(
    spark: SparkSession, window: Any, in_windows: int
) -> None:
    def native(rows: DataFrame, **more: Any) -> DataFrame:
        return hr.windows(rows, "user", event_time="at", window=window, values=values(), **more)

    def ours(rows: DataFrame) -> DataFrame:
        return native(rows, late="correct", buckets=BUCKETS)

    found = bounded(spark, native, EVENTS)
    assert as_bag(found) == as_bag(bounded(spark, ours, EVENTS))
    none = spark.createDataFrame([], SCHEMA)
    assert native(none).dtypes == ours(none).dtypes
    assert sum(row.events for row in found if row.user != "last") == in_windows


def test_windows_with_stragglers_on_a_stream_fold_to_those_of_the_bounded_frame(spark: SparkSession) -> None:
    def corrected(rows: DataFrame) -> DataFrame:
        values = {
            "total": F.sum("amount"),
            "slow": F.percentile_approx("took", 0.5),
            "kinds": F.count_distinct("amount"),
        }
        return hr.windows(
            rows,
            "user",
            event_time="at",
            window=hr.tumbling("10 seconds"),
            values=values,
            late="correct",
            buckets=BUCKETS,
        )

    straggler: list[Event] = [("anna", 7, 100)]
    batches = [*BATCHES[:3], [("ben", 60, 1)], [], straggler, *BATCHES[3:]]
    streamed = run(spark, corrected, *batches)
    taken_back = [row for row in streamed if row.is_retraction]
    assert [(row.user, row.events, row.revision) for row in taken_back] == [("anna", 3, 1)]
    kept = as_bag([row for row in streamed if not row.is_retraction], "revision", "is_retraction")
    kept.subtract(as_bag(taken_back, "revision", "is_retraction"))
    events = [event for batch in batches for event in batch]
    assert +kept == as_bag(bounded(spark, corrected, events), "revision", "is_retraction")


DAYS = [
    ("Europe/Berlin", date(2026, 3, 29), 23),
    ("Europe/Berlin", date(2026, 10, 25), 25),
    ("America/Sao_Paulo", date(2018, 11, 4), 23),  # there is no midnight
    ("America/Havana", date(2026, 11, 1), 25),  # midnight comes twice
    ("America/St_Johns", date(2006, 10, 29), 25),  # a minute past midnight clocks go back to the day before
    ("Asia/Kathmandu", date(2026, 5, 1), 24),
]


def midnight(zone: str, day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(("zone", "day", "hours"), DAYS, ids=lambda each: str(each))
def test_a_day_of_a_calendar_begins_at_its_first_moment_and_has_the_hours_that_clocks_leave_it(
    spark: SparkSession, zone: str, day: date, hours: int
) -> None:
    begin = midnight(zone, day) - timedelta(hours=30)
    moments = [begin + timedelta(minutes=10 * number) for number in range(6 * 24 * 4)]
    frame = spark.createDataFrame([Row(at=each) for each in moments], "at timestamp")
    found = hr.windows(frame, event_time="at", window=hr.calendar("1 day", zone), buckets=1)
    spans = found.select(F.unix_seconds("window_start"), F.unix_seconds("window_end"), "events").collect()
    bounds = [midnight(zone, day + timedelta(days=each)).timestamp() for each in range(-3, 5)]
    expected = Counter(
        next((start, end) for start, end in pairwise(bounds) if start <= each.timestamp() < end) for each in moments
    )
    assert {(start, end): events for start, end, events in spans} == expected
    (that_day,) = [(end - start) / 3600 for start, end, _ in spans if start == midnight(zone, day).timestamp()]
    assert that_day == hours


def test_where_clocks_change_days_overlap_compare_and_have_rates_by_their_own_hours(spark: SparkSession) -> None:
    """A row an hour; the last Sunday of March has 23 of them in Berlin, and the one a week before has 24."""
    zone, sunday = "Europe/Berlin", date(2026, 3, 29)
    begin = midnight(zone, sunday - timedelta(days=9))
    hours = int((midnight(zone, sunday + timedelta(days=2)) - begin) / timedelta(hours=1))
    frame = spark.createDataFrame([Row(at=begin + timedelta(hours=each)) for each in range(hours)], "at timestamp")
    days: dict[str, Any] = {"event_time": "at", "window": hr.calendar("day", zone), "buckets": 1}

    def by_start(results: DataFrame) -> dict[float, Row]:
        return {row.start: row for row in results.withColumn("start", F.unix_seconds("window_start")).collect()}

    starts = [midnight(zone, sunday + timedelta(days=each)).timestamp() for each in range(-1, 2)]
    compared = by_start(hr.compare(frame, to={"last_week": "1 week"}, **days))
    assert [(compared[each].events, compared[each].events_last_week) for each in starts] == [
        (24, 24),
        (23, 24),
        (24, 24),
    ]
    following = compared[midnight(zone, sunday + timedelta(days=7)).timestamp()]
    assert (following.events, following.events_last_week) == (0, 23)
    rates = by_start(hr.rate(frame, per="1 hour", **days))
    assert [rates[each].rate for each in starts] == [1.0, 1.0, 1.0]
    pairs = by_start(hr.windows(frame, **{**days, "window": hr.calendar("2 days", zone, every="day")}))
    assert [pairs[each].events for each in starts[:2]] == [47, 47]


def test_a_time_is_set_aside_when_it_is_further_ahead_than_allowed_and_not_when_it_is_just_as_far(
    spark: SparkSession,
) -> None:
    ahead = [timedelta(0), timedelta(days=1), timedelta(days=1, microseconds=1)]
    rows = [Row(at=START + each, came=START) for each in ahead] + [Row(at=START, came=None), Row(at=None, came=START)]
    frame = spark.createDataFrame(rows, "at timestamp, came timestamp")
    found = hr.null_future_times(frame, "at", future_max="1 day", arrived="came").collect()
    assert [(row["at"] is None, row.at_claimed is None) for row in found] == [
        (False, False),
        (False, False),
        (True, False),
        (False, False),
        (True, True),
    ]
    windows = hr.windows(
        hr.null_future_times(frame, "at", arrived="came"), event_time="at", window=hr.tumbling("1 day")
    )
    assert sum(row.events for row in windows.collect()) == 3, "Spark's own windows leave out what has no time, too"


def test_weeks_begin_on_monday_and_windows_where_the_origin_says(spark: SparkSession) -> None:
    frame = spark.createDataFrame([Row(at=START)], "at timestamp")  # a Saturday

    def start(window: Any) -> str:
        (row,) = (
            hr.windows(frame, event_time="at", window=window)
            .select(F.date_format("window_start", "MM-dd HH:mm"))
            .collect()
        )
        return str(row[0])

    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert start(hr.tumbling("1 week")) == "01-26 00:00"
    assert start(hr.calendar("7 days", "Asia/Tokyo")) == "01-25 15:00"
    assert start(hr.tumbling("1 week", origin="2026-01-01")) == "01-29 00:00"
    assert start(hr.tumbling("1 hour", origin="2026-01-01T00:15:00Z")) == "01-31 09:15"
    assert start(hr.calendar("day", "Europe/Berlin", origin="2026-01-01T06:00:00")) == "01-31 05:00"


def test_questions_in_one_line_are_answered_as_plain_python_answers_them(spark: SparkSession) -> None:
    arguments: dict[str, Any] = {"event_time": "at", "window": hr.tumbling("10 seconds")}
    by_user = Counter((user, int(second // 10)) for user, second, _ in EVENTS)

    rates = bounded(spark, lambda rows: hr.rate(rows, "user", per="1 minute", **arguments), EVENTS)
    assert Counter({(row.user, number_of(row)): row.rate for row in rates}) == {
        each: count * 6 for each, count in by_user.items()
    }
    kinds = bounded(
        spark,
        lambda rows: hr.windows(rows, values={"distinct": F.count_distinct("user")}, buckets=BUCKETS, **arguments),
        EVENTS,
    )
    assert {number_of(row): row.distinct for row in kinds} == {0: 2, 1: 1, 4: 1, 10_000: 1}
    best = bounded(spark, lambda rows: hr.top(rows, of="user", n=1, buckets=BUCKETS, **arguments), EVENTS)
    assert {number_of(row): (row.rank, row.user, row.score) for row in best} == {
        0: (1, "anna", 3),
        1: (1, "anna", 3),
        4: (1, "ben", 1),
        10_000: (1, "last", 1),
    }
    richest = bounded(
        spark,
        lambda rows: hr.top(rows, "user", of="amount", n=2, by=F.max("took"), buckets=BUCKETS, **arguments),
        EVENTS,
    )
    assert [(row.rank, row.amount, row.score) for row in richest if row.user == "anna" and number_of(row) == 0] == [
        (1, 6, 3.0),
        (2, 1, 0.5),
    ]
    asked = {"of": "amount", "wanted": [0, 0.999], "buckets": BUCKETS, **arguments}
    middle = bounded(spark, lambda rows: hr.percentiles(rows, "user", **asked), EVENTS)
    (annas,) = [row for row in middle if row.user == "anna" and number_of(row) == 0]
    assert (annas.p0, annas.p99_9) == (pytest.approx(1, rel=0.01), pytest.approx(6, rel=0.01))


def number_of(row: Row) -> int:
    return int((row.window_start.replace(tzinfo=UTC) - START).total_seconds() // 10)


def test_windows_are_compared_with_earlier_ones_and_empty_ones_have_nothing(spark: SparkSession) -> None:
    def compared(rows: DataFrame) -> DataFrame:
        to = {"before": "10 seconds", "long_ago": "40 seconds"}
        values = {"total": F.sum("amount"), "kinds": F.approx_count_distinct("amount")}
        return hr.compare(
            rows, "user", event_time="at", window=hr.tumbling("10 seconds"), to=to, values=values, buckets=BUCKETS
        )

    found = bounded(spark, compared, EVENTS)
    bens = {number_of(row): row for row in found if row.user == "ben"}
    columns = (
        "events",
        "total",
        "events_before",
        "total_before",
        "events_long_ago",
        "total_long_ago",
        "kinds_long_ago",
    )
    assert {number: tuple(row[name] for name in columns) for number, row in bens.items()} == {
        0: (2, 7, 0, None, 0, None, 0),
        1: (0, None, 2, 7, 0, None, 0),
        4: (1, 7, 0, None, 2, 7, 2),
        5: (0, None, 1, 7, 0, None, 0),
        8: (0, None, 0, None, 1, 7, 1),
    }


@pytest.mark.slow
def test_each_row_knows_the_rows_before_it_on_a_stream_as_on_a_bounded_frame(spark: SparkSession) -> None:
    def rolled(rows: DataFrame) -> DataFrame:
        values = {"mean": F.avg("amount"), "about": F.approx_count_distinct("amount")}
        return hr.rolling(rows, "user", event_time="at", within="10 seconds", values=values, buckets=BUCKETS)

    streamed = run(spark, rolled, *BATCHES)
    found = sorted((row.at, row.events, row.mean, row.about) for row in streamed if row.user == "anna")
    assert [each[1:] for each in found] == [
        (1, 1.0, 1),
        (3, pytest.approx(13 / 3), 2),
        (3, pytest.approx(13 / 3), 2),
        (3, pytest.approx(16 / 3), 2),
        (5, 5.0, 2),
        (5, 5.0, 2),
    ]
    assert as_bag(streamed) == as_bag(bounded(spark, rolled, EVENTS))


@pytest.mark.slow
def test_a_leap_of_a_wrong_clock_into_the_future_is_set_aside_and_ends_no_window(spark: SparkSession) -> None:
    def guarded(spark: SparkSession) -> DataFrame:
        rows = hr.stream(spark, "rows", schema=SCHEMA).withColumn("came", F.lit(START))
        believed = hr.null_future_times(rows, "at", future_max="2 days", arrived="came")
        dated = believed.withWatermark("at", "20 seconds")
        results = hr.windows(
            dated, "user", event_time="at", window=hr.tumbling("10 seconds"), late="side", buckets=BUCKETS
        )
        schemas.append(results.schema)
        return results

    schemas: list[StructType] = []

    leap: Event = ("wrong", 1e9, 0)
    given = [[value(event) for event in batch] for batch in [[leap, BATCHES[0][0]], [], *BATCHES[1:]]]
    rows = run_pipeline(guarded, {"rows": given}, spark=spark, timeout_s=400)
    results, late = [row for row in rows if row.late is None], [row.late for row in rows if row.late is not None]
    assert sum(row.events for row in results if row.user == "anna") == 5
    assert [(row.user, row["at"]) for row in late] == [("wrong", None)]
    assert late[0].at_claimed.replace(tzinfo=UTC) == START + timedelta(seconds=1e9)
    frame, side = hr.split_late(spark.createDataFrame(list(rows), schemas[0]))
    assert (frame.count(), side.count()) == (len(results), 1)
    assert side.columns[:3] == ["window_start", "window_end", "user"]


@pytest.mark.slow
def test_comparisons_on_a_stream_are_those_of_the_bounded_frame(spark: SparkSession) -> None:
    def compared(rows: DataFrame) -> DataFrame:
        return hr.compare(rows, "user", event_time="at", window=hr.tumbling("10 seconds"), buckets=BUCKETS)

    assert as_bag(run(spark, compared, *BATCHES)) == as_bag(bounded(spark, compared, EVENTS))


@pytest.mark.slow
def test_windows_behind_duplicates_removed_miss_nothing(spark: SparkSession) -> None:
    def best(rows: DataFrame) -> DataFrame:
        once = hr.dedup(rows, ["user", "at"], within="1 hour", event_time="at", buckets=BUCKETS)
        return hr.top(once, of="user", n=1, event_time="at", window=hr.tumbling("10 seconds"), buckets=BUCKETS)

    found = as_bag(run(spark, best, *BATCHES, []))
    assert found == as_bag(bounded(spark, best, EVENTS))
    assert found, "there are results"


def test_what_cannot_work_is_refused_before_the_query_starts_with_what_to_write_instead(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.schema(SCHEMA).json(str(tmp_path))
    dated = rows.withWatermark("at", "1 minute")
    arguments: dict[str, Any] = {"event_time": "at", "window": hr.tumbling("1 minute")}
    for late in ("drop", "correct"):
        with pytest.raises(UsageError, match=r"windows on a stream needs a watermark on at.*hr.watermark\(rows"):
            hr.windows(rows, "user", late=late, **arguments)
    questions: list[tuple[str, Operator]] = [
        ("rolling", lambda rows: hr.rolling(rows, "user", event_time="at", within="1 minute")),
        ("windows", lambda rows: hr.rate(rows, **arguments)),
        ("windows", lambda rows: hr.percentiles(rows, of="took", **arguments)),
        ("windows", lambda rows: hr.windows(rows, values={"distinct": F.count_distinct("user")}, **arguments)),
        ("windows", lambda rows: hr.windows(rows, values={"distinct": F.approx_count_distinct("user")}, **arguments)),
        ("windows", lambda rows: hr.top(rows, of="user", **arguments)),
        ("windows", lambda rows: hr.compare(rows, **arguments)),
    ]
    for name, question in questions:
        with pytest.raises(UsageError, match=rf"{name} on a stream needs a watermark on at.*hr.watermark\(rows"):
            question(rows)
    with pytest.raises(UsageError, match="every='2 minutes' is longer than size"):
        hr.hopping("1 minute", "2 minutes")
    with pytest.raises(UsageError, match=r"in 60000 windows.*hr.rolling"):
        hr.hopping("1 minute", "1 millisecond")
    with pytest.raises(UsageError, match=r"'Mars/Olympus' is not known.*Europe/Berlin"):
        hr.calendar("day", "Mars/Olympus")
    with pytest.raises(UsageError, match=r"a calendar has whole days"):
        hr.calendar("1 minute", "Europe/Berlin")
    with pytest.raises(UsageError, match="origin='soon' is no time"):
        hr.tumbling("1 minute", origin="soon")
    with pytest.raises(UsageError, match=r"x: median\(amount\) is not offered here.*F.percentile_approx"):
        hr.windows(dated, values={"x": F.median("amount")}, **arguments)
    with pytest.raises(UsageError, match=r"x: sum\(amount\) is not offered"):
        hr.windows(dated, values={"x": F.sum_distinct("amount")}, **arguments)
    with pytest.raises(UsageError, match=r"x: /\(sum\(amount\), 2\) is not offered"):
        hr.windows(dated, values={"x": F.sum("amount") / 2}, **arguments)
    with pytest.raises(UsageError, match=r"x: \('sum', 'amount'\) is no aggregate function.*F.sum"):
        hr.windows(dated, values={"x": ("sum", "amount")}, **arguments)  # type: ignore[dict-item]
    with pytest.raises(UsageError, match=r"window='1 minute' is no window.*hr.tumbling"):
        hr.windows(dated, event_time="at", window="1 minute")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"session windows are kept for each key"):
        hr.windows(dated, event_time="at", window=hr.session_window("1 minute"))
    with pytest.raises(UsageError, match=r"sessions have no fixed length"):
        hr.compare(dated, event_time="at", window=hr.session_window("1 minute"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"windows that overlap are not compared"):
        hr.compare(dated, event_time="at", window=hr.hopping("1 hour", "1 minute"))
    with pytest.raises(UsageError, match=r"x: there is no column 'id'.*user, at, amount, took"):
        hr.windows(dated, values={"x": F.sum("id")}, **arguments)
    with pytest.raises(UsageError, match="sum of 'user', which is string"):
        hr.windows(dated, values={"x": F.sum("user")}, **arguments)
    with pytest.raises(UsageError, match=r"99 is not between 0 and 1.*0.99"):
        hr.windows(dated, values={"x": F.percentile_approx("took", 99)}, **arguments)
    with pytest.raises(UsageError, match="would be called 'revision'"):
        hr.windows(dated, values={"revision": F.sum("amount")}, **arguments)
    with pytest.raises(UsageError, match="late='maybe' is none of"):
        hr.windows(dated, late="maybe", **arguments)
    with pytest.raises(UsageError, match=r"no multiple of the window's size"):
        hr.compare(dated, to={"x": "90 seconds"}, **arguments)
    with pytest.raises(UsageError, match=r"has its watermark already.*first hr.null_future_times"):
        hr.null_future_times(dated, "at")
    with pytest.raises(UsageError, match="by: 'weight' is no aggregate function"):
        hr.top(dated, of="user", by="weight", **arguments)
    with pytest.raises(UsageError, match="values are not ranked by avg"):
        hr.top(dated, of="user", by=F.avg("amount"), **arguments)
    with pytest.raises(UsageError, match="have a column 'window_end' already"):
        hr.windows(dated.withColumn("window_end", F.col("at")), late="side", **arguments)
    with pytest.raises(UsageError, match="would be called 'user'"):
        hr.top(dated, "user", of="user", **arguments)
