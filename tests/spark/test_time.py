"""Time on Spark: operators that follow one another, watermarks of several sources, silence, and what is said of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.client import Admin, Client, Producer
from headrace.errors import UsageError
from headrace.testing import TestBroker, broker
from tests.spark.test_state import FILES, LAST, MORE, SCHEMA, Lane

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1200)]

PATIENCE_S = 240
BUCKETS = 2


@pytest.fixture
def lane(spark: SparkSession, tmp_path: Path) -> Lane:
    return Lane(spark, tmp_path)


def once_in_sessions(rows: DataFrame) -> DataFrame:
    """Duplicates out, then sessions of what is left."""
    once = hr.dedup(rows, ["user", "amount"], within="1 hour", event_time="at", buckets=BUCKETS)
    return hr.windows(once, "user", event_time="at", window=hr.session_window("10 seconds"), buckets=BUCKETS)


def in_stays(rows: DataFrame) -> DataFrame:
    """And sessions of those."""
    visits = once_in_sessions(rows)
    return hr.windows(visits, "user", event_time="session_end", window=hr.session_window("1 minute"), buckets=BUCKETS)


def seen(rows: list[Any]) -> Counter[tuple[Any, ...]]:
    return Counter((row.user, row.session_start, row.session_end, row.events) for row in rows if row.user != "last")


def test_one_operator_behind_another_gives_across_a_restart_what_they_give_on_the_bounded_frame(lane: Lane) -> None:
    lane.add([("anna", 0, 1), ("ben", 2, 2), ("anna", 0, 1)])
    streamed = lane.run(once_in_sessions)
    lane.add([("anna", 0, 1), ("anna", 7, 3), ("ben", 40, 4)], [LAST])
    streamed += lane.run(once_in_sessions)
    expected = seen(lane.bounded(once_in_sessions))
    assert len(expected) == 3
    assert seen(streamed) == expected


def test_three_operators_in_one_query_give_across_a_restart_what_they_give_on_the_bounded_frame(lane: Lane) -> None:
    lane.add(*FILES)
    streamed = lane.run(in_stays)
    lane.add(*MORE, [LAST], [("last", 20_000, 0)])
    streamed += lane.run(in_stays)
    expected = seen(lane.bounded(in_stays))
    assert len(expected) > 2
    assert seen(streamed) == expected


def test_an_operator_behind_another_goes_by_the_column_that_has_an_order(lane: Lane) -> None:
    rows = lane.spark.readStream.schema(SCHEMA).json(str(lane.input)).withWatermark("at", "1 minute")
    visits = hr.windows(rows, "user", event_time="at", window=hr.session_window("10 seconds"))
    with pytest.raises(UsageError, match=r"follows another stateful function.*use session_end, which has"):
        hr.windows(visits, "user", event_time="session_start", window=hr.session_window("1 minute"))
    early = hr.windows(rows, "user", event_time="at", window=hr.session_window("10 seconds"), emit="early")
    with pytest.raises(UsageError, match=r"follows another stateful function.*write those to a topic"):
        hr.windows(early, "user", event_time="session_end", window=hr.session_window("1 minute"))


# ---- several sources -----------------------------------------------------------------------------------------------

BEGIN = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)


@pytest.fixture
def running() -> Iterator[TestBroker]:
    with broker() as started:
        yield started


def write(running: TestBroker, topic: str, *seconds: int) -> None:
    """A new topic with a record at each of these seconds."""
    with Client(running.bootstrap) as client, Producer(client) as producer:
        Admin(client).create_topic(topic, partitions=1)
        for second in seconds:
            at = BEGIN + timedelta(seconds=second)
            value = b'{"at": "%s", "kind": "x"}' % at.isoformat().encode()
            producer.send(topic, value, timestamp=int(at.timestamp() * 1000))


def until(query: Any, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"{what} did not come in {PATIENCE_S} s: {query.lastProgress}"
        time.sleep(0.1)


def test_a_silent_source_holds_the_watermark_back_until_it_counts_as_idle(
    spark: SparkSession, running: TestBroker, tmp_path: Path
) -> None:
    write(running, "busy", 0, 3600)
    write(running, "silent", 60)

    def minutes(idle_after: str | None) -> DataFrame:
        sides = [
            hr.watermark(
                hr.stream(spark, topic, "at timestamp, kind string", bootstrap=running.bootstrap).select("at", "kind"),
                "at",
                "1 minute",
                idle_after=idle_after if topic == "silent" else None,
            )
            for topic in ("busy", "silent")
        ]
        # A condition that Spark would like to have below the watermark, and that no mark fulfils.
        both = sides[0].unionByName(sides[1]).where("kind = 'x'")
        return both.groupBy(F.window("at", "1 minute")).count().select("window.start", "count")

    closed: list[datetime] = []

    def start(idle_after: str | None) -> Any:
        writer = minutes(idle_after).writeStream.foreachBatch(
            lambda batch, _: closed.extend(row.start.astimezone(UTC) for row in batch.collect())
        )
        place = str(tmp_path / (idle_after or "never"))
        return writer.option("checkpointLocation", place).outputMode("append").start()

    query = start(None)
    try:
        until(query, lambda: hr.explain_watermark(query).watermark is not None, "a watermark")
        told = hr.explain_watermark(query, partitions=True)
        assert told.watermark == BEGIN, "a minute before the row of the silent source"
        assert told.holding is not None
        assert (told.holding.name, told.holding.newest) == ("silent.at", BEGIN + timedelta(seconds=60))
        assert "silent.at holds it back: its newest row is from 2026-01-31 10:01:00" in str(told)
        assert "busy[0]: newest record 2026-01-31 11:00:00" in str(told)
    finally:
        query.stop()
    assert closed == []

    query = start("1 second")
    try:
        until(query, lambda: len(closed) >= 2, "the windows before the newest row of the busy source")
        told = hr.explain_watermark(query)
        assert told.holding is not None
        assert told.holding.name == "busy.at"
        assert {each.name: each.is_idle for each in told.sources} == {"busy.at": False, "silent.at": True}
    finally:
        query.stop()
    assert sorted(closed) == [BEGIN, BEGIN + timedelta(seconds=60)], "and none of a mark"


def test_marks_of_silence_outlive_the_conditions_of_a_join(
    spark: SparkSession, running: TestBroker, tmp_path: Path
) -> None:
    """An inner join asks for keys that are not null, and Spark asks as early as it can; a mark has no key."""
    write(running, "searches", 0, 3600)
    write(running, "clicks", 5)

    def side(topic: str, time: str) -> DataFrame:
        read = hr.stream(spark, topic, "at timestamp, kind string", bootstrap=running.bootstrap)
        rows = read.select("kind", F.col("at").alias(time))
        return hr.watermark(rows, time, "1 minute", idle_after="1 second" if topic == "clicks" else None)

    pairs = hr.join_within(
        side("searches", "at"),
        side("clicks", "clicked"),
        "kind",
        left_event_time="at",
        right_event_time="clicked",
        after="1 minute",
    )
    found: list[datetime] = []
    counts = hr.windows(pairs, event_time="at", window=hr.tumbling("1 minute"))
    writer = counts.writeStream.foreachBatch(
        lambda batch, _: found.extend(row.window_start.astimezone(UTC) for row in batch.collect())
    )
    query = writer.option("checkpointLocation", str(tmp_path / "joined")).outputMode("append").start()
    try:
        until(query, lambda: bool(found), "the window of the pair")
    finally:
        query.stop()
    assert found == [BEGIN]


def test_a_watermark_is_of_a_time_and_silence_can_only_be_told_of_one_topic_source_at_a_time(
    spark: SparkSession,
) -> None:
    rows = spark.readStream.format("rate").load()
    with pytest.raises(UsageError, match=r"idle_after needs rows of exactly one source 'headrace'; here there is rate"):
        hr.watermark(rows, "timestamp", "1 minute", idle_after="1 minute")
    with pytest.raises(UsageError, match=r"event_time: 'value' is no column with a timestamp.*: timestamp"):
        hr.watermark(rows, "value", "1 minute")
    with pytest.raises(UsageError, match=r"lateness='soon' is no duration.*10 minutes"):
        hr.watermark(rows, "timestamp", "soon")
