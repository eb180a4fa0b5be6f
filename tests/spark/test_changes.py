"""The forms of a change through the public functions: truncations, values that were not sent, tombstones, weights.

Each test gives operators and sinks the records that capture and Debezium write.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.run.failures import is_permanent, reason
from headrace.spark.testing import Event, run_pipeline
from headrace.vocabulary import UNAVAILABLE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

PERSON = "id long, name string, city string"
BUCKETS = 2
TIMEOUT_S = 600


def envelope(
    op: str, number: int | None = None, name: str | None = None, city: str | None = None, **more: Any
) -> Event:
    row = None if number is None else {"id": number, "name": name, "city": city}
    value = {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row, "ts_ms": 1, **more}
    return Event(value, key=None if number is None else json.dumps({"id": number}))


def people(spark: SparkSession, read: Callable[..., DataFrame] = hr.batch, topic: str = "people") -> DataFrame:
    return hr.changes(read(spark, topic, schema=PERSON, value_format="debezium"), "id")


def folded(rows: list[Row]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        change = row.asDict(recursive=True)
        assert found.get(change["key"]["id"]) == change["before"], change
        found.pop(change["key"]["id"], None)
        if change["after"] is not None:
            found[change["key"]["id"]] = change["after"]
    return found


TRUNCATED = [
    [envelope("c", 1, "ann", "Oslo"), envelope("r", 2, "bob", "Rome")],
    [envelope("t"), envelope("c", 3, "cy", "Bern")],
]


def test_a_truncation_removes_all_rows_before_it_from_a_view_on_a_stream(spark: SparkSession) -> None:
    rows = run_pipeline(
        lambda spark: hr.view(people(spark, hr.stream), buckets=BUCKETS),
        {"people": TRUNCATED},
        spark=spark,
        timeout_s=TIMEOUT_S,
    )
    assert sorted(row.op for row in rows) == ["delete", "delete", "insert", "insert", "insert"]
    assert list(folded(rows)) == [3]


def test_a_truncation_reaches_groups_and_joins(spark: SparkSession) -> None:
    cities = [
        Event({"city": "Oslo", "country": "NO"}, key="Oslo"),
        Event({"city": "Bern", "country": "CH"}, key="Bern"),
    ]
    clicks = [{"person": number, "at": "2026-02-01T00:00:00Z"} for number in (1, 3)]
    events = {"people": TRUNCATED, "cities": cities, "clicks": clicks}

    def grouped(spark: SparkSession) -> DataFrame:
        return hr.view(people(spark), "city", {"people": F.count("*")}, buckets=BUCKETS)

    def joined(spark: SparkSession) -> DataFrame:
        places = hr.changes(hr.batch(spark, "cities", schema="city string, country string"), "city")
        return hr.join_tables(people(spark), places, "city", buckets=BUCKETS)

    def latest(spark: SparkSession) -> DataFrame:
        clicked = hr.batch(spark, "clicks", schema="person long, at timestamp")
        return hr.join_latest(clicked.select("person"), people(spark), {"person": "id"}, buckets=BUCKETS)

    def as_of(spark: SparkSession) -> DataFrame:
        clicked = hr.batch(spark, "clicks", schema="person long, at timestamp").select("person", "at")
        return hr.join_as_of(clicked, people(spark), {"person": "id"}, event_time="at", buckets=BUCKETS)

    def run(build: Callable[[SparkSession], DataFrame]) -> list[Row]:
        return run_pipeline(build, events, spark=spark, timeout_s=TIMEOUT_S)

    assert [(row.after.city, row.after.people) for row in run(grouped)] == [("Bern", 1)]
    assert [(row.after.name, row.after.country) for row in run(joined)] == [("cy", "CH")]
    assert {row.person: row.name for row in run(latest)} == {1: None, 3: "cy"}
    assert {row.person: row.name for row in run(as_of)} == {1: None, 3: "cy"}


def test_with_several_partitions_a_truncation_removes_the_rows_of_its_own(spark: SparkSession) -> None:
    def placed(event: Event, partition: int) -> Event:
        return Event(event.value, key=event.key, partition=partition)

    everywhere = envelope("t", partitions=2)
    events = [
        *[placed(envelope("c", number, "old"), number % 2) for number in (1, 2)],
        placed(everywhere, 0),
        placed(envelope("c", 4, "new"), 0),
        placed(everywhere, 1),
        placed(envelope("c", 3, "new"), 1),
    ]
    found = run_pipeline(lambda spark: hr.view(people(spark)), {"people": events}, spark=spark, timeout_s=TIMEOUT_S)
    assert sorted(folded(found)) == [3, 4]
    tables = run_pipeline(
        lambda spark: hr.table(spark, "people", schema=PERSON, value_format="debezium"),
        {"people": events},
        spark=spark,
        timeout_s=TIMEOUT_S,
    )
    assert sorted(row.after.id for row in tables) == [3, 4]
    debezium = [placed(envelope("c", 1), 1), placed(envelope("t"), 0)]
    with pytest.raises(Exception, match="a truncation, and the topic has 2 partitions") as told:
        run_pipeline(lambda spark: hr.view(people(spark)), {"people": debezium}, spark=spark, timeout_s=TIMEOUT_S)
    assert is_permanent(told.value)


# ---- sinks ---------------------------------------------------------------------------------------------------------


def written(
    spark: SparkSession, path: Path, build: Callable[[SparkSession], DataFrame], *events: Event
) -> list[tuple[Any, ...]]:
    """What the table holds after a bounded write of these events."""
    sink = hr.sinks.sql(f"sqlite:///{path}", table="people", key="id", create=True)

    def write(spark: SparkSession) -> DataFrame:
        sink.write(build(spark))
        return spark.range(0)

    run_pipeline(write, {"people": list(events)}, spark=spark, timeout_s=TIMEOUT_S)
    with closing(sqlite3.connect(path)) as database:
        return database.execute("select * from people order by id").fetchall()


def captured(spark: SparkSession) -> DataFrame:
    return hr.batch(spark, "people", schema=PERSON, value_format="debezium")


def keyed(spark: SparkSession) -> DataFrame:
    return hr.batch(spark, "people", schema=PERSON)


def test_a_truncation_empties_a_table_that_follows_a_captured_one(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    assert len(written(spark, path, captured, envelope("c", 1, "a", "x"), envelope("c", 2, "b", "y"))) == 2
    later = [envelope("c", 5, "gone", "z"), envelope("t"), envelope("c", 3, "c", "z")]
    assert written(spark, path, captured, *later) == [(3, "c", "z")]


def test_a_truncation_of_partitions_is_refused_by_a_sink_that_does_not_know_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = [envelope("c", 1, "a", "x"), envelope("t", partitions=2)]
    with pytest.raises(Exception, match="partition by partition") as told:
        written(spark, tmp_path / "d.db", captured, *events)
    assert is_permanent(told.value)
    assert "hr.view(hr.changes(rows, key=…))" in reason(told.value)


def test_records_of_a_topic_by_key_refuse_a_truncation_also_where_nobody_reads_the_operation(
    spark: SparkSession,
) -> None:
    with pytest.raises(Exception, match="the table was emptied") as told:
        run_pipeline(
            lambda spark: hr.as_records(people(spark)).select("key"),
            {"people": [envelope("c", 1), envelope("t")]},
            spark=spark,
            timeout_s=TIMEOUT_S,
        )
    assert is_permanent(told.value)


def test_a_value_that_was_not_sent_never_replaces_the_one_that_is_there(spark: SparkSession, tmp_path: Path) -> None:
    first, second = envelope("r", 1, "a large text", "Oslo"), envelope("u", 1, UNAVAILABLE, "Rome")
    never_seen = envelope("u", 9, UNAVAILABLE, "Bern")
    path = tmp_path / "d.db"
    written(spark, path, captured, first)
    assert written(spark, path, captured, second, never_seen) == [(1, "a large text", "Rome")]
    assert written(spark, tmp_path / "e.db", captured, first, second) == [(1, "a large text", "Rome")]
    viewed = run_pipeline(
        lambda spark: hr.view(people(spark)),
        {"people": [first, second, never_seen]},
        spark=spark,
        timeout_s=TIMEOUT_S,
    )
    assert folded(viewed) == {1: {"id": 1, "name": "a large text", "city": "Rome"}}
    unwrapped = [Event({"id": 1, "name": UNAVAILABLE, "city": "Rome"}, key="1")]
    with pytest.raises(Exception, match="lacks a large value") as told:
        run_pipeline(lambda spark: hr.table(spark, "people", schema=PERSON), {"people": unwrapped}, spark=spark)
    assert is_permanent(told.value)
    with pytest.raises(Exception, match="lacks a large value"):
        run_pipeline(lambda spark: hr.as_records(people(spark)), {"people": [never_seen]}, spark=spark)
    plain = [{"id": 1, "name": UNAVAILABLE, "city": "Bern"}]
    rows = spark.createDataFrame(plain, PERSON)
    hr.sinks.sql(f"sqlite:///{path}", table="people", key="id").write(rows)
    assert written(spark, path, captured, envelope("c", 2, "b", "c"))[0] == (1, "a large text", "Bern")


PICTURE = "id long, picture binary, tags array<string>, city string"


def pictured(city: str, picture: str, *tags: str) -> Event:
    after = {"id": 1, "picture": base64.b64encode(picture.encode()).decode(), "tags": tags, "city": city}
    return Event({"op": "u", "before": None, "after": after, "ts_ms": 1}, key='{"id": 1}')


def test_bytes_and_lists_that_were_not_sent_are_noticed_as_texts_are(spark: SparkSession, tmp_path: Path) -> None:
    first, second = pictured("Oslo", "large", "a", "b"), pictured("Rome", UNAVAILABLE, UNAVAILABLE)

    def pictures(spark: SparkSession) -> DataFrame:
        return hr.batch(spark, "people", schema=PICTURE, value_format="debezium")

    expected = [(1, b"large", '["a","b"]', "Rome")]
    path = tmp_path / "d.db"
    assert written(spark, path, pictures, first) == [(1, b"large", '["a","b"]', "Oslo")]
    assert written(spark, path, pictures, second) == expected
    assert written(spark, tmp_path / "e.db", pictures, first, second) == expected
    viewed = run_pipeline(
        lambda spark: hr.view(hr.changes(pictures(spark), "id")),
        {"people": [first, second]},
        spark=spark,
        timeout_s=TIMEOUT_S,
    )
    assert [(bytes(row.after.picture), row.after.tags, row.after.city) for row in viewed] == [
        (b"large", ["a", "b"], "Rome")
    ]
    for lacking in (pictured("Rome", UNAVAILABLE, "a"), pictured("Rome", "small", UNAVAILABLE)):
        for read in (
            lambda spark: hr.table(spark, "people", schema=PICTURE, value_format="debezium"),
            lambda spark: hr.as_records(hr.changes(pictures(spark), "id")),
        ):
            with pytest.raises(Exception, match="lacks a large value") as told:
                run_pipeline(read, {"people": [lacking]}, spark=spark)
            assert is_permanent(told.value)


def test_only_a_record_without_a_value_is_a_deletion(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    written(spark, path, keyed, *[Event({"id": n, "name": "x", "city": "y"}, key=str(n)) for n in (1, 2, 3, 4)])
    later = [Event({"ID": 4}, key="4"), Event({"id": None, "name": None, "city": None}, key="2"), Event(None, key="3")]
    assert written(spark, path, keyed, *later) == [(1, "x", "y"), (2, None, None), (4, None, None)]

    def lenient(spark: SparkSession) -> DataFrame:
        return hr.batch(spark, "people", schema=PERSON, onBadRecord="null")

    assert written(spark, path, lenient, Event("junk", key="1"))[0] == (1, "x", "y")

    def nicknames(spark: SparkSession) -> DataFrame:
        return hr.table(spark, "people", schema="nickname string")

    users = [Event({"nickname": None}, key="1"), Event({"nickname": "x"}, key="2"), Event(None, key="2")]
    found = run_pipeline(nicknames, {"people": users}, spark=spark, timeout_s=TIMEOUT_S)
    assert [(row.nickname, bytes(row._key)) for row in found] == [(None, b"1")]
    with pytest.raises(UsageError, match="_tombstone is missing"):
        run_pipeline(lambda spark: hr.changes(keyed(spark).drop("_tombstone"), "id"), {"people": users}, spark=spark)


def test_a_deletion_in_a_keyed_topic_is_one_in_a_topic_of_its_rows(spark: SparkSession) -> None:
    """Also where the record's key is written in another way; a row without a column of the key stays a row."""
    given = [
        Event({"id": 1, "name": "x", "city": "y"}, key="1"),
        Event(None, key="1"),
        Event(None, key='{"id":2}'),
        Event({"id": None, "name": "z", "city": None}, key="3"),
    ]

    def records(spark: SparkSession, **sink: Any) -> list[tuple[Any, Any]]:
        made: Any = hr.sinks.topic("clean", **sink)
        rows = run_pipeline(lambda spark: made.records(keyed(spark)), {"people": given}, spark=spark)
        return [(row["key"], row["value"] and json.loads(row["value"])["name"]) for row in rows]

    assert records(spark, key="id") == [("1", "x"), ("1", None), ("2", None), (None, "z")]
    both = [('{"id":1,"name":"x"}', "x"), ("{}", None), ('{"id":2}', None), ('{"name":"z"}', "z")]
    assert records(spark, key=["id", "name"]) == both


def test_rows_with_weights_become_changes_in_a_sink_with_a_key_and_are_refused_without(
    spark: SparkSession, tmp_path: Path
) -> None:
    def weighed(spark: SparkSession) -> DataFrame:
        return hr.deltas(people(spark)).where("city <> 'Rome'").withColumn("name", F.upper("name"))

    def halves(spark: SparkSession) -> DataFrame:
        """An update, as two rows, and a row that went."""
        rows = [(1, "new", "x", 1), (1, "old", "x", -1), (2, "gone", "x", -1)]
        return spark.createDataFrame(rows, f"{PERSON}, _weight int")

    path = tmp_path / "d.db"
    events = [envelope("c", 1, "ann", "Oslo"), envelope("c", 2, "bob", "Oslo"), envelope("c", 3, "cy", "Rome")]
    assert written(spark, path, weighed, *events) == [(1, "ANN", "Oslo"), (2, "BOB", "Oslo")]
    assert written(spark, path, halves, *events) == [(1, "new", "x")]
    records = hr.sinks.topic("t", key="id").records(halves(spark)).collect()  # type: ignore[attr-defined]
    assert {row.key: row.value and json.loads(row.value)["name"] for row in records} == {"1": "new", "2": None}
    for sink in (hr.sinks.topic("t"), hr.sinks.sql(f"sqlite:///{path}", table="people")):
        with pytest.raises(UsageError, match="key"):
            sink.write(halves(spark))


@pytest.mark.parametrize(
    "counting",
    [
        lambda rows: hr.windows(rows, "city", event_time="at", window=hr.tumbling("1 hour")),
        lambda rows: hr.windows(
            rows, "city", values={"distinct": F.count_distinct("id")}, event_time="at", window=hr.tumbling("1 hour")
        ),
        lambda rows: hr.top(rows, "city", of="id", event_time="at", window=hr.tumbling("1 hour")),
        lambda rows: hr.compare(rows, "city", event_time="at", window=hr.tumbling("1 hour")),
        lambda rows: hr.rolling(rows, "city", event_time="at", within="1 hour"),
        lambda rows: hr.windows(rows, "city", event_time="at", window=hr.session_window("1 hour")),
        lambda rows: hr.dedup(rows, "city", within=hr.FOREVER),
        lambda rows: hr.correct_clock(rows, occurred="at", sent="at", received="at", keys="city"),
        lambda rows: hr.join_within(
            rows, rows, "id", left_event_time="at", right_event_time="at", after="1 hour", prefix="other_"
        ),
        lambda rows: hr.join_latest(rows, people(rows.sparkSession), "id", prefix="person_"),
    ],
)
def test_what_counts_rows_refuses_rows_with_weights(
    spark: SparkSession, counting: Callable[[DataFrame], DataFrame]
) -> None:
    rows = spark.createDataFrame([(1, "x", datetime.now(UTC), -1)], "id long, city string, at timestamp, _weight int")
    with pytest.raises(UsageError, match=r"would count the rows that went.*hr\.view"):
        counting(rows)


def test_a_result_of_a_window_that_is_taken_back_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [("a", start, 5, 1, False, False), ("a", start, 5, 1, False, True), ("b", start, 1, 1, False, False)]
    rows += [("b", start, 1, 1, False, True), ("b", start, 2, 2, True, False)]
    columns = (
        "user string, session_start timestamp, events long, revision long, is_final boolean, is_retraction boolean"
    )
    results = spark.createDataFrame(rows, columns).coalesce(1)
    found = hr.view(hr.changes(results, ["user", "session_start"])).collect()
    assert [(row.op, row.after.user, row.after.events) for row in found] == [("insert", "b", 2)]
    sink = hr.sinks.sql(f"sqlite:///{tmp_path}/d.db", table="s", key=["user", "session_start"], create=True)
    sink.write(results)
    with closing(sqlite3.connect(tmp_path / "d.db")) as database:
        assert database.execute("select user, events from s").fetchall() == [("b", 2)]
