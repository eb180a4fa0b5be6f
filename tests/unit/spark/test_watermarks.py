"""Marks of silence by a planner on a real broker, and what is said of watermarks from progress reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace.client import Admin, Client, Producer
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.positions import from_json
from headrace.spark.time.explanation import explain
from headrace.spark.time.watermarks import IdleReader
from headrace.testing import TestBroker, broker

ALL = ReadAllAvailable()
IDLE_MS = 60_000
NOW = datetime(2026, 1, 31, 10, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def running() -> Iterator[TestBroker]:
    with broker() as started:
        yield started


class Clocked(IdleReader):
    """Time is what the test says."""

    now_s = 1000.0

    def _now_s(self) -> float:
        return self.now_s

    def _wall_ms(self) -> int:
        return int(self.now_s * 1000)


@pytest.fixture
def reader(running: TestBroker, request: pytest.FixtureRequest) -> Iterator[Clocked]:
    topic = request.node.name[:60]
    with Client(running.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=2)
    given = {"kafka.bootstrap.servers": running.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    made = Clocked(SourceOptions.parse({**given, "commitGroupOffsets": "false"}, streaming=True), IDLE_MS)
    yield made
    made.stop()


def send(reader: Clocked, count: int) -> None:
    options = reader.plan.options
    with Client(options.bootstrap) as client, Producer(client) as producer:
        for number in range(count):
            producer.send(options.selection.topics[0], b"x", partition=number % 2)


def later(reader: Clocked, offset: dict[str, Any], seconds: float, limit: Any = ALL) -> dict[str, Any]:
    """What is planned so many seconds later, after a way through Spark's log of offsets."""
    reader.now_s += seconds
    return dict(json.loads(json.dumps(reader.latestOffset(offset, limit))))


def test_silence_is_marked_after_its_time_and_again_and_again_but_never_while_records_come(reader: Clocked) -> None:
    start = reader.initialOffset()
    send(reader, 4)
    first = later(reader, start, 100)
    assert sum(from_json(first["positions"]).values()) == 4
    assert first["marked_ms"] == 0
    quiet = later(reader, first, 59)
    assert quiet == first
    assert later(reader, first, 59) == first, "silence counts from the first planning without news"
    marked = later(reader, first, 1)
    assert marked["positions"] == first["positions"]
    assert marked["marked_ms"] == int(reader.now_s * 1000) - IDLE_MS
    assert later(reader, marked, 59) == marked
    again = later(reader, marked, 1)
    assert again["marked_ms"] == marked["marked_ms"] + 60_000
    send(reader, 1)
    assert later(reader, again, 1000)["marked_ms"] == again["marked_ms"], "a record is news, however late it is seen"


def test_a_mark_is_one_row_and_positions_alone_are_none(reader: Clocked) -> None:
    start = reader.initialOffset()
    send(reader, 2)
    first = later(reader, start, 1)
    assert list(reader.partitions(start, first)) == []
    later(reader, first, 1)
    marked = later(reader, first, 60)
    (partition,) = reader.partitions(first, marked)
    (batch,) = reader.read(partition)
    (moment,) = batch.column("marked").to_pylist()
    assert moment == datetime.fromtimestamp(marked["marked_ms"] / 1000, UTC)


def test_who_is_still_catching_up_is_not_idle_however_long_a_batch_takes(reader: Clocked) -> None:
    start = reader.initialOffset()
    send(reader, 6)
    offset, steps = start, 0
    while sum(from_json(offset["positions"]).values()) < 6:
        offset = later(reader, offset, 3600, ReadMaxRows(2))
        assert offset["marked_ms"] == 0
        steps += 1
    assert steps >= 3
    assert later(reader, offset, 3600, ReadMaxRows(2))["marked_ms"] == 0, "the rows' own source may be a batch behind"
    assert later(reader, offset, 3600, ReadMaxRows(2))["marked_ms"] > 0


def test_a_run_that_works_off_what_is_there_marks_nothing(reader: Clocked) -> None:
    start = reader.initialOffset()
    send(reader, 2)
    reader.prepareForTriggerAvailableNow()
    first = later(reader, start, 1)
    assert later(reader, first, 3600) == first
    assert later(reader, first, 3600) == first


# ---- in plain words ------------------------------------------------------------------------------------------------


def source(topic: str, rows: int, at: int, latest: int | None = None) -> dict[str, Any]:
    end = {topic: {"0": at}, f"{topic}@aa": {}}
    return {
        "description": "PythonStream",
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps({topic: {"0": latest if latest is not None else at}}),
        "numInputRows": rows,
    }


def report(minute: int, sources: list[dict[str, Any]], **marks: dict[str, Any]) -> dict[str, Any]:
    return {
        "timestamp": f"2026-01-31T10:{minute:02}:00.000Z",
        "eventTime": {"watermark": "2026-01-31T09:40:12.000Z"},
        "sources": sources,
        "observedMetrics": {f"watermark {name}.at": values for name, values in marks.items()},
    }


def told(newest: datetime | None, marked: datetime | None = None) -> dict[str, Any]:
    return {"newest": newest, "marked": marked, "lateness_us": 600_000_000 if newest or marked else None}


def test_the_source_with_the_smallest_watermark_is_named_with_how_long_it_has_been_quiet() -> None:
    payments, orders = NOW - timedelta(minutes=40), NOW - timedelta(minutes=1)
    found = explain(
        [
            report(
                18, [source("payments", 3, 3), source("orders", 5, 5)], payments=told(payments), orders=told(payments)
            ),
            report(29, [source("payments", 0, 3), source("orders", 1, 6)], payments=told(None), orders=told(orders)),
        ],
        NOW,
    )
    assert found.holding is not None
    assert (found.holding.name, found.holding.watermark) == ("payments.at", payments - timedelta(minutes=10))
    lines = str(found).splitlines()
    assert lines[0] == "the watermark is 09:40:12, 50 min behind the clock"
    assert lines[1] == (
        "payments.at holds it back: its newest row is from 09:50:00 and rows may come 10 min late; "
        "nothing new for 12 min"
    )
    assert lines[2].startswith("orders.at: its newest row is from 10:29:00")


def test_a_silent_source_counts_as_far_as_its_marks_say_and_then_another_one_holds_back() -> None:
    old, young = NOW - timedelta(hours=2), NOW - timedelta(minutes=5)
    reports = [
        report(20, [source("payments", 1, 1), source("orders", 1, 1)], payments=told(old), orders=told(young)),
        report(29, [source("payments", 0, 1), source("orders", 0, 1)], payments=told(None, NOW), orders=told(None)),
    ]
    found = explain(reports, NOW)
    assert found.holding is not None
    assert found.holding.name == "orders.at"
    (silent,) = [each for each in found.sources if each.name == "payments.at"]
    assert silent.is_idle
    assert "payments.at: it is silent, and counts as 10:30:00" in str(found)


def test_a_source_that_never_gave_a_row_holds_back_everything() -> None:
    reports = [report(20, [source("a", 0, 0), source("b", 4, 4)], a=told(None), b=told(NOW))]
    found = explain(reports, NOW)
    assert found.holding is not None
    assert found.reason.startswith("a.at holds it back: no row has come from it yet")


def test_without_marks_sources_are_told_by_what_they_read() -> None:
    found = explain([report(20, [source("a", 2, 2, 500), source("b", 0, 4)])], NOW)
    assert found.holding is None
    assert "b: nothing new as far back as is known" in found.reason
    assert [each.waiting for each in found.sources] == [498, 0]
    assert str(explain([], NOW)) == "there is no watermark yet\nnothing has been read yet"
