"""One function behind another in one query of Spark: after restarts, what the bounded frame gives, and nothing late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from tests.spark.test_state import Event, Lane

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

BUCKETS = 2
TABLE = 100
"""An amount from here on is no order but a change of the user's row, in the order of the amounts."""
Build = Callable[[DataFrame], DataFrame]
"""From rows whose watermark is yet to be set, as a query has one for each of its inputs."""


def dated(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "20 seconds")


def orders(rows: DataFrame) -> DataFrame:
    return dated(rows.where(f"amount < {TABLE}").select("user", "at", "amount"))


def moves(rows: DataFrame) -> DataFrame:
    """The table: where each user lives since when."""
    moved = rows.where(f"amount >= {TABLE}").select("user", F.col("at").alias("since"), F.col("amount").alias("home"))
    return dated(hr.changes(moved, "user", event_time="since", position="home"))


def at_home(rows: DataFrame) -> DataFrame:
    return hr.join_as_of(orders(rows), moves(rows), "user", event_time="at", buckets=BUCKETS)


def near(rows: DataFrame, how: Any) -> DataFrame:
    """Orders, and changes of the user's row within ten seconds before or after."""
    moved = rows.where(f"amount >= {TABLE}").select(
        "user", F.col("at").alias("moved_at"), F.col("amount").alias("home")
    )
    return hr.join_within(
        orders(rows),
        moved.withWatermark("moved_at", "20 seconds"),
        "user",
        left_event_time="at",
        right_event_time="moved_at",
        before="10 seconds",
        after="10 seconds",
        how=how,
    )


def windows(rows: DataFrame, event_time: str, *, ours: bool = False, **more: Any) -> DataFrame:
    """Spark's own windows, or by a function that it does not have the operator's."""
    values = {"kinds": (F.count_distinct if ours else F.approx_count_distinct)("user")}
    values |= {"rows": F.sum("events")} if "events" in rows.columns else {}
    return hr.windows(
        rows, "user", event_time=event_time, window=hr.tumbling("10 seconds"), values=values, buckets=BUCKETS, **more
    )


def sessions(rows: DataFrame, event_time: str) -> DataFrame:
    return hr.windows(rows, "user", event_time=event_time, window=hr.session_window("15 seconds"), buckets=BUCKETS)


def rolling(rows: DataFrame) -> DataFrame:
    return hr.rolling(dated(rows), "user", event_time="at", within="10 seconds", buckets=BUCKETS)


def corrected(rows: DataFrame) -> DataFrame:
    timed = dated(rows).withColumn("occurred", F.col("sent"))
    clocks = {"occurred": "occurred", "sent": "sent", "received": "at"}
    return hr.correct_clock(timed, keys="user", samples=3, buckets=BUCKETS, **clocks)


def once(rows: DataFrame) -> DataFrame:
    return hr.dedup(orders(rows), ["user", "amount"], within="1 hour", event_time="at", buckets=BUCKETS)


def in_view(results: DataFrame) -> DataFrame:
    """Windows as a table, each known by its key and start, and what they add up to per user."""
    rows = hr.changes(results.where("not is_retraction"), ["user", "window_start"], position="revision")
    return hr.view(
        rows, "user", {"windows": F.count("*"), "rows": F.sum("events"), "most": F.max("events")}, buckets=BUCKETS
    )


LONG: dict[str, Build] = {
    "windows of Spark, sessions": lambda rows: sessions(windows(dated(rows), "at"), "window_time"),
    "windows, windows of Spark": lambda rows: windows(windows(dated(rows), "at", ours=True), "window_time"),
    "windows of Spark, windows": lambda rows: windows(windows(dated(rows), "at"), "window_time", ours=True),
    "windows with corrections, view": lambda rows: in_view(windows(dated(rows), "at", late="correct")),
    "rolling, windows of Spark": lambda rows: windows(rolling(rows).drop("events"), "at"),
    "rolling, windows": lambda rows: windows(rolling(rows).drop("events"), "at", ours=True),
    "join_as_of, early windows, view": lambda rows: in_view(windows(at_home(rows), "at", ours=True, emit="early")),
    "join_within, windows": lambda rows: windows(near(rows, "inner"), "at", ours=True),
    "join_within by the time of the right side, sessions": lambda rows: sessions(near(rows, "inner"), "moved_at"),
    "full join_within, windows of Spark": lambda rows: windows(near(rows, "full"), "at"),
    "clocks, sessions": lambda rows: sessions(corrected(rows), "at"),
    "sessions, sessions": lambda rows: sessions(sessions(dated(rows), "at"), "session_end"),
    "duplicates, join_as_of, windows": lambda rows: windows(
        hr.join_as_of(once(rows), moves(rows), "user", event_time="at", buckets=BUCKETS), "at", ours=True
    ),
}

FILES: list[list[Event]] = [
    [("anna", 0, 1), ("ben", 2, 2), (None, 3, 3), ("anna", 1, 100), ("ben", 1, 101)],
    [
        ("anna", 15, 4),
        ("anna", 12, 4),
        ("ben", 1, 5),
        ("ben", 40, 7),
        (None, 4, 102),
        ("anna", 30, 103),
        ("ben", 39, 104),
    ],
    [("anna", 25, 7), (None, 109, 1), ("ben", 110, 1), ("ben", 111, 105)],
]
MORE: list[list[Event]] = [
    [("anna", 115, 8), ("ben", 91, 9), ("ben", 91, 9), ("anna", 95, 106), ("ben", 118, 12)],
    [("last", 10_000, 0), ("last", 10_000, 10_000)],
]
"""No row is further behind the newest one of the files before than the watermark allows, and the last rows, one of each
kind, move it past all others."""


def counted(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """Without the last rows. Changes are what they add up to."""
    if rows and "op" in rows[0]:
        tables: dict[Any, Row] = {}
        for row in rows:
            tables.pop(row.key.user, None)
            if row.after is not None:
                tables[row.key.user] = row.after
        rows = list(tables.values())
    return Counter(tuple(row) for row in rows if row.user != "last")


def check(spark: SparkSession, folder: Path, build: Build) -> Lane:
    lane = Lane(spark, folder)
    lane.add(*FILES)
    streamed = lane.collect(build(lane.rows(streaming=True)))
    assert streamed, "some results come before the restart"
    lane.add(*MORE)
    streamed += lane.collect(build(lane.rows(streaming=True)))
    assert counted(streamed) == counted(lane.bounded(build))
    seen = [each for report in lane.progress for each in (report["observedMetrics"] or {}).values()]
    assert sum(each["late_rows"] or 0 for each in seen if "late_rows" in each) == 0
    dropped = [each["numRowsDroppedByWatermark"] for report in lane.progress for each in report["stateOperators"]]
    assert sum(dropped) == 0
    return lane


@pytest.mark.slow
def test_windows_of_events_with_their_rows_as_of_then_are_those_of_the_bounded_frame(
    spark: SparkSession, tmp_path: Path
) -> None:
    check(spark, tmp_path, lambda rows: windows(at_home(rows), "at"))


@pytest.mark.slow
def test_sessions_of_windows_of_joined_streams_are_those_of_the_bounded_frame_and_pairs_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing is asked of the right side of the join, and still its rows are waited for."""
    lane = check(spark, tmp_path, lambda rows: sessions(windows(near(rows, "left"), "at"), "window_time"))
    counts = [report["observedMetrics"]["join user"] for report in lane.progress if report["observedMetrics"]]
    pairs = near(lane.rows(streaming=False), "left").where("user is null or user != 'last'").collect()
    assert sum(each["without_partner"] for each in counts) == sum(row.moved_at is None for row in pairs)
    assert sum(each["pairs"] for each in counts) == 1 + sum(row.moved_at is not None for row in pairs), "and the last"


@pytest.mark.slow
@pytest.mark.parametrize("chain", LONG)
def test_other_functions_in_a_row_give_across_a_restart_what_they_give_on_the_bounded_frame(
    spark: SparkSession, tmp_path: Path, chain: str
) -> None:
    check(spark, tmp_path, LONG[chain])


def test_spark_moves_no_condition_in_front_of_a_watermark(spark: SparkSession) -> None:
    """It would if it could, and then rows that are left out later, and marks of silence, would not count for it."""
    rows = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    own = order_of_steps(rows.where("value > 10"))
    assert own.index("EventTimeWatermark") < own.index("Filter")
    rows = hr.watermark(spark.readStream.format("rate").load(), "timestamp", "1 minute")
    ours = order_of_steps(rows.where("value > 10"))
    assert ours.index("Filter") < ours.index("EventTimeWatermark")


def order_of_steps(rows: DataFrame) -> str:
    """As Spark would run them; the last one is first."""
    optimizer = rows.sparkSession._jsparkSession.sessionState().optimizer()
    return str(optimizer.execute(rows._jdf.queryExecution().analyzed()).toString())
