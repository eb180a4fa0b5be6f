"""Joins on Spark: a stream and a table that changes, and two streams, as they are on the bounded frames."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.testing import Event, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

START = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
BUCKETS = 4
TIMEOUT_S = 600
FIRST_FILE_S = 1_750_000_000
ORDERS = "id long, customer long, at timestamp"
CUSTOMERS = "id long, city string"


def moment(second: int) -> datetime:
    return START + timedelta(seconds=second)


def order(number: int, customer: int | None, second: int) -> Event:
    return Event({"id": number, "customer": customer, "at": moment(second).isoformat()}, timestamp=moment(second))


def customer(number: int, second: int, city: str | None) -> Event:
    """A record of a keyed topic; without a city a tombstone."""
    value = None if city is None else {"id": number, "city": city}
    return Event(value, key=str(number), timestamp=moment(second))


def envelope(number: int, second: int, city: str | None, was: str | None = None) -> Event:
    """The same as a captured change."""
    after = None if city is None else {"id": number, "city": city}
    before = None if was is None else {"id": number, "city": was}
    letter = "d" if after is None else "u" if before else "c"
    stamp = int(moment(second).timestamp() * 1000)
    value = {"op": letter, "before": before, "after": after, "ts_ms": stamp}
    return Event(value, key=f'{{"id":{number}}}', timestamp=moment(second))


def reading(spark: SparkSession, streaming: bool) -> Callable[..., DataFrame]:
    def read(topic: str, schema: str, time: str, delay: str = "5 seconds", **options: Any) -> DataFrame:
        rows = (hr.stream if streaming else hr.batch)(spark, topic, schema=schema, **options)
        return rows.withWatermark(time, delay) if time in rows.columns else rows

    return read


def as_of(streaming: bool, **options: Any) -> Callable[[SparkSession], DataFrame]:
    def build(spark: SparkSession) -> DataFrame:
        read = reading(spark, streaming)
        orders = read("orders", ORDERS, "at").select("id", "customer", "at")
        customers = hr.changes(read("customers", CUSTOMERS, "", **options), "id").withWatermark("at", "5 seconds")
        return hr.join_as_of(orders, customers, {"customer": "id"}, event_time="at", buckets=BUCKETS)

    return build


ORDER_BATCHES = [
    [order(1, 7, 12), order(2, 7, 3), order(3, 8, 12), order(4, None, 12)],
    [order(5, 7, 25), order(6, 7, 10)],
    [order(7, 7, 31), order(8, 7, 29)],
    [order(99, 7, 1000)],
    [],
]
CUSTOMER_BATCHES = [
    [customer(7, 5, "Rome"), customer(8, 20, "Oslo")],
    [customer(7, 12, "Bern")],
    [customer(7, 30, None)],
    [customer(9, 1000, "Nice")],
    [],
]
CAPTURED = [
    [envelope(7, 5, "Rome"), envelope(8, 20, "Oslo")],
    [envelope(7, 12, "Bern", "Rome")],
    [envelope(7, 30, None, "Bern"), customer(7, 30, None)],
    [envelope(9, 1000, "Nice")],
    [],
]
JOINED = {
    (1, "Bern", "customers/0/2"),
    (2, None, None),
    (3, None, None),
    (4, None, None),
    (5, "Bern", "customers/0/2"),
    (6, "Rome", "customers/0/0"),
    (7, None, None),
    (8, "Bern", "customers/0/2"),
}


@pytest.mark.parametrize(
    ("customers", "options"),
    [(CUSTOMER_BATCHES, {}), pytest.param(CAPTURED, {"value_format": "debezium"}, marks=pytest.mark.slow)],
    ids=["a keyed topic", "a captured table"],
)
def test_events_have_the_row_that_was_valid_at_their_time_on_a_stream_as_on_the_bounded_frames(
    spark: SparkSession, customers: list[list[Event]], options: dict[str, Any]
) -> None:
    events = {"orders": ORDER_BATCHES, "customers": customers}
    streamed = run_pipeline(as_of(True, **options), events, spark=spark, timeout_s=TIMEOUT_S)
    assert Counter((row.id, row.city, row.version) for row in streamed) == Counter(JOINED)
    bounded = run_pipeline(as_of(False, **options), events, spark=spark, timeout_s=TIMEOUT_S)
    assert Counter(row for row in bounded if row.id != 99) == Counter(streamed)


class Lane:
    """Two folders of files that a stream reads one by one, and the checkpoint that it goes on from."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        for name in ("orders", "customers"):
            (folder / name).mkdir()

    def add(self, name: str, *rows: dict[str, Any]) -> None:
        number = len(list((self.folder / name).iterdir()))
        path = self.folder / name / f"{number:04}.json"
        path.write_text("\n".join(json.dumps(row, default=datetime.isoformat) for row in rows))
        os.utime(path, (FIRST_FILE_S + number, FIRST_FILE_S + number))  # streams take files by their age

    def frames(self, streaming: bool) -> DataFrame:
        reader = self.spark.readStream.option("maxFilesPerTrigger", 1) if streaming else self.spark.read
        orders = reader.schema(ORDERS).json(str(self.folder / "orders")).withWatermark("at", "5 seconds")
        rows = reader.schema(f"{CUSTOMERS}, since timestamp, seq long").json(str(self.folder / "customers"))
        customers = hr.changes(rows, "id", event_time="since", position="seq").withWatermark("at", "5 seconds")
        return hr.join_as_of(orders, customers, {"customer": "id"}, event_time="at", buckets=BUCKETS)

    def run(self) -> list[Row]:
        found: list[Row] = []
        writer = self.frames(True).writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        query = writer.option("checkpointLocation", str(self.folder / "kept")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(TIMEOUT_S), query.lastProgress
        finally:
            query.stop()
        return found


@pytest.mark.slow
def test_events_that_wait_and_versions_that_are_held_outlive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    lane = Lane(spark, tmp_path)

    def placed(number: int, second: int) -> dict[str, Any]:
        return {"id": number, "customer": 7, "at": moment(second)}

    def moved(second: int, city: str, place: int) -> dict[str, Any]:
        return {"id": 7, "city": city, "since": moment(second), "seq": place}

    lane.add("orders", placed(1, 10), placed(2, 20))
    lane.add("customers", moved(5, "Rome", 1), moved(18, "Oslo", 2))
    streamed = lane.run()
    assert {row.id for row in streamed} == {1}, "the second order waits"
    lane.add("orders", placed(3, 16), placed(4, 1000))
    lane.add("customers", moved(19, "Bern", 3), moved(1000, "Nice", 4))
    streamed += lane.run()
    cities = Counter((row.id, row.city, row.version) for row in streamed)
    assert cities == Counter([(1, "Rome", "1"), (2, "Bern", "3"), (3, "Rome", "1")])
    assert Counter(row for row in lane.frames(False).collect() if row.id != 4) == Counter(streamed)


def test_the_latest_row_is_joined_at_once(spark: SparkSession) -> None:
    def build(spark: SparkSession) -> DataFrame:
        orders = hr.stream(spark, "orders", schema=ORDERS).select("id", "customer")
        customers = hr.changes(hr.stream(spark, "customers", schema=CUSTOMERS), "id")
        return hr.join_latest(orders, customers, {"customer": "id"}, how="inner", prefix="its_", buckets=BUCKETS)

    events = {"orders": ORDER_BATCHES[:3], "customers": CUSTOMER_BATCHES[:3]}
    streamed = run_pipeline(build, events, spark=spark, timeout_s=TIMEOUT_S)
    assert streamed.batches[0]
    found = {(row.id, row.its_city, row.version) for row in streamed}
    assert found == {
        (1, "Rome", "customers/0/0"),
        (2, "Rome", "customers/0/0"),
        (3, "Oslo", "customers/0/1"),
        (5, "Bern", "customers/0/2"),
        (6, "Bern", "customers/0/2"),
    }


# ---- changes -------------------------------------------------------------------------------------------------------


def changes_of(spark: SparkSession, events: list[Event], **options: Any) -> DataFrame:
    """The changes in a topic, collected and made a frame again: the topic is gone when the pipeline is done."""
    asked = {name: options.pop(name) for name in ("time", "truncation") if name in options}

    def build(spark: SparkSession) -> DataFrame:
        return hr.changes(hr.batch(spark, "customers", schema=CUSTOMERS, **options), "id", **asked)

    rows = run_pipeline(build, {"customers": events}, spark=spark, timeout_s=TIMEOUT_S)
    row = "id: bigint, city: string"
    kind = f"op string, key struct<id: bigint>, before struct<{row}>, after struct<{row}>, at timestamp"
    return spark.createDataFrame(list(rows), f"{kind}, version string, position long")


def test_a_captured_table_and_a_keyed_topic_give_changes_of_one_form(spark: SparkSession) -> None:
    keyed = changes_of(spark, [customer(7, 5, "Rome"), customer(7, 9, None)]).collect()
    assert [(row.op, row.key.id, row.before, row.after and row.after.city) for row in keyed] == [
        ("update", 7, None, "Rome"),
        ("delete", 7, None, None),
    ]
    assert [(row.version, row.position) for row in keyed] == [("customers/0/0", 0), ("customers/0/1", 1)]
    envelopes = [envelope(7, 5, "Rome"), envelope(7, 6, "Bern", "Rome"), envelope(7, 9, None, "Bern")]
    captured = changes_of(spark, envelopes, value_format="debezium").collect()
    assert [(row.op, row.before and row.before.city, row.after and row.after.city) for row in captured] == [
        ("insert", None, "Rome"),
        ("update", "Rome", "Bern"),
        ("delete", "Bern", None),
    ]
    assert [row.at.timestamp() for row in captured] == [moment(second).timestamp() for second in (5, 6, 9)]


def test_the_key_of_a_tombstone_is_read_from_text_and_from_objects_with_and_without_debeziums_schema(
    spark: SparkSession,
) -> None:
    keys = ["7", '{"id": 8}', '{"schema": {"type": "struct"}, "payload": {"id": 9}}']
    for options in ({}, {"value_format": "debezium"}):
        found = changes_of(spark, [Event(None, key=key) for key in keys], **options).collect()
        assert [(row.op, row.key.id) for row in found] == [("delete", 7), ("delete", 8), ("delete", 9)]


def test_a_truncation_is_a_change_without_a_key(spark: SparkSession) -> None:
    emptied = Event({"op": "t", "before": None, "after": None, "ts_ms": 0})
    rows = changes_of(spark, [envelope(7, 5, "Rome"), emptied], value_format="debezium").collect()
    assert [(row.op, row.key.id, row.version) for row in rows][1:] == [("truncate", None, "customers/0/1")]


def test_changes_become_rows_and_records_and_come_back_from_these(spark: SparkSession) -> None:
    events = [envelope(7, 5, "Rome"), envelope(7, 6, "Bern", "Rome"), envelope(7, 9, None, "Bern")]
    made = changes_of(spark, events, value_format="debezium")
    flat = [tuple(row) for row in hr.as_rows(made).collect()]
    assert flat == [("insert", 7, "Rome"), ("update", 7, "Bern"), ("delete", 7, "Bern")]
    plain = hr.as_records(made).collect()
    assert [(row.key, row.value) for row in plain][1:] == [("7", '{"id":7,"city":"Bern"}'), ("7", None)]
    stored = [Event(row.value, key=row.key) for row in hr.as_records(made, envelope=True).collect()]
    again = changes_of(spark, stored, value_format="debezium")
    columns = ("op", "key", "before", "after", "at")
    assert again.select(*columns).collect() == made.select(*columns).collect()


# ---- two streams ---------------------------------------------------------------------------------------------------

SEARCHES = "query string, user string, at timestamp"
CLICKS = "user string, url string, at timestamp"
Search = tuple[str, str | None, Any]
Click = tuple[str | None, str, Any]
"""With the second after the start, or without a time."""


def search(text: str, user: str | None, second: int | None) -> Event:
    return Event({"query": text, "user": user, "at": None if second is None else moment(second).isoformat()})


def click(user: str | None, url: str, second: int | None) -> Event:
    return Event({"user": user, "url": url, "at": None if second is None else moment(second).isoformat()})


SEARCH_BATCHES: list[list[Search]] = [
    [("tea", "anna", 0), ("jam", "ben", 3), ("rye", None, 4)],
    [("figs", "anna", 20), ("oats", "ben", 2), ("timeless", "anna", None)],
    [("last", "zoe", 1000)],
    [],
]
CLICK_BATCHES: list[list[Click]] = [
    [("anna", "/t1", 10), ("anna", "/early", 0), (None, "/r", 5)],
    [("anna", "/t2", 9), ("anna", "/f", 20), ("carl", "/c", 21), ("anna", "/timeless", None)],
    [("zoe", "/last", 1002)],
    [],
]


def within_by_hand(
    how: str, search_batches: list[list[Search]], click_batches: list[list[Click]]
) -> Counter[tuple[Any, ...]]:
    """(user, query, url): clicks up to ten seconds after their search, and both bounds belong to it. A null equals
    nothing, and what has no time is left out."""
    searches, clicks = (
        [each for batch in batches for each in batch if each[2] is not None]
        for batches in (search_batches, click_batches)
    )
    pairs = [
        (one, other)
        for one in searches
        for other in clicks
        if one[1] is not None and one[1] == other[0] and 0 <= other[2] - one[2] <= 10
    ]
    found = [(one[1], one[0], other[1]) for one, other in pairs]
    if how in ("left", "full"):
        found += [(one[1], one[0], None) for one in searches if one not in [each for each, _ in pairs]]
    if how == "full":
        found += [(other[0], None, other[1]) for other in clicks if other not in [each for _, each in pairs]]
    return Counter(found)


def within(how: Any, streaming: bool) -> Callable[[SparkSession], DataFrame]:
    def build(spark: SparkSession) -> DataFrame:
        read = reading(spark, streaming)
        searches = read("searches", SEARCHES, "at").select("query", "user", "at")
        clicks = read("clicks", CLICKS, "at").select("user", "url", F.col("at").alias("clicked"))
        return hr.join_within(
            searches, clicks, "user", left_event_time="at", right_event_time="clicked", after="10 seconds", how=how
        )

    return build


@pytest.mark.parametrize(
    "how", [pytest.param("inner", marks=pytest.mark.slow), pytest.param("left", marks=pytest.mark.slow), "full"]
)
def test_two_streams_within_a_bound_give_the_pairs_of_a_plain_loop_and_rows_without_a_partner(
    spark: SparkSession, how: str
) -> None:
    join_both_ways(spark, how, SEARCH_BATCHES, CLICK_BATCHES)


def join_both_ways(spark: SparkSession, how: str, searches: list[list[Search]], clicks: list[list[Click]]) -> None:
    """On bounded frames and on streams, both as by hand; on these without zoe, whose rows move the watermark."""
    events = {
        "searches": [[search(*each) for each in batch] for batch in searches],
        "clicks": [[click(*each) for each in batch] for batch in clicks],
    }
    expected = within_by_hand(how, searches, clicks)
    bounded = run_pipeline(within(how, False), events, spark=spark, timeout_s=TIMEOUT_S)
    assert Counter((row.user, row.query, row.url) for row in bounded) == expected
    streamed = run_pipeline(within(how, True), events, spark=spark, timeout_s=TIMEOUT_S)
    found = Counter((row.user, row.query, row.url) for row in streamed if row.user != "zoe")
    assert found == Counter({row: count for row, count in expected.items() if row[0] != "zoe"})
    assert streamed.late == 0


def arriving(chance: random.Random, count: int) -> list[list[tuple[str | None, int, int]]]:
    """(user, number, second) in an order that the lateness of five seconds allows, in a few batches. For Spark's join a
    row that is just as late is too late."""
    made = [(chance.choice(["anna", "ben", None]), number, chance.randrange(60)) for number in range(count)]
    delayed = sorted(made, key=lambda each: each[2] + chance.choice([0, 0, 2, 4]))
    cuts = sorted(chance.sample(range(count + 1), 3))
    return [delayed[low:high] for low, high in pairwise([0, *cuts, count])]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "seed"), [("full", 1), ("full", 2), ("left", 3)])
def test_two_streams_are_joined_as_by_a_plain_loop_in_any_order_and_cuts_that_the_lateness_allows(
    spark: SparkSession, how: str, seed: int
) -> None:
    chance = random.Random(seed)
    searches = [[(f"q{number}", user, at) for user, number, at in batch] for batch in arriving(chance, 30)]
    clicks = [[(user, f"/{number}", at) for user, number, at in batch] for batch in arriving(chance, 30)]
    join_both_ways(spark, how, [*searches, [("last", "zoe", 1000)], []], [*clicks, [("zoe", "/last", 1002)], []])


# ---- wrong use -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_joined_is_refused_before_the_query_starts_with_what_to_write_instead(
    spark: SparkSession,
) -> None:
    orders = spark.readStream.format("rate").load().selectExpr("value as customer", "timestamp as at")
    dated = orders.withWatermark("at", "1 minute")
    plain = spark.readStream.format("rate").load().selectExpr("value as id", "'x' as city", "timestamp", "value as n")
    customers = hr.changes(plain, "id", event_time="timestamp", position="n")
    watched = customers.withWatermark("at", "1 minute")
    on = {"customer": "id"}
    with pytest.raises(UsageError, match=r"join_as_of on a stream needs a watermark on at.*hr.watermark\(rows"):
        hr.join_as_of(orders, watched, on, event_time="at")
    with pytest.raises(UsageError, match=r"its table.* on a stream needs a watermark on at"):
        hr.join_as_of(dated, customers, on, event_time="at")
    fixed = hr.changes(spark.createDataFrame([], plain.schema), "id", event_time="timestamp", position="n")
    for join in (
        lambda table: hr.join_as_of(dated, table, on, event_time="at"),
        lambda table: hr.join_latest(dated, table, on),
    ):
        with pytest.raises(
            UsageError, match=r"left side is a stream and its right side a bounded frame.*hr.stream, or"
        ):
            join(fixed)
    with pytest.raises(UsageError, match=r"left side is a bounded frame and its right side a stream"):
        hr.join_tables(fixed, customers, "id", prefix="its_")
    with pytest.raises(UsageError, match=r"no column with a timestamp.*: at"):
        hr.join_as_of(dated, watched, on, event_time="customer")
    with pytest.raises(UsageError, match=r"known by id, and the join is on city"):
        hr.join_as_of(dated, watched, {"customer": "city"}, event_time="at")
    with pytest.raises(UsageError, match=r"these are no changes.*hr.changes"):
        hr.join_as_of(dated, plain, on, event_time="at")
    with pytest.raises(UsageError, match=r"do not say at, position, version.*hr.changes\(hr.stream"):
        hr.join_latest(dated, watched.drop("at", "version", "position"), on)
    with pytest.raises(UsageError, match=r"'customer' is string on the left and 'id' is bigint on the right.*cast"):
        hr.join_latest(dated.withColumn("customer", F.lit("7")), watched, on)
    with pytest.raises(UsageError, match=r"two columns of the result would be called 'city'.*prefix="):
        hr.join_latest(dated.withColumn("city", F.lit("")), watched, on)
    with pytest.raises(UsageError, match=r"needs a bound of time.*after="):
        hr.join_within(dated, dated, "customer", left_event_time="at", right_event_time="at")
    with pytest.raises(UsageError, match=r"its right side.* on a stream needs a watermark"):
        hr.join_within(dated, orders, "customer", left_event_time="at", right_event_time="at", after="1 hour")
    with pytest.raises(UsageError, match=r"in which order they were written.*position="):
        hr.changes(plain, "id")
    with pytest.raises(UsageError, match=r"no column 'no' to be the key.*id, city"):
        hr.changes(plain, "no", position="n")
