"""Searches on Spark: a stream matches its events against searches that come, change and go."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.testing import Event, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

FLATS = "id long, title string, city string, price long, listed timestamp"
SEARCHES = "id string, query string, mail string"
FIRST_FILE_S = 1_750_000_000


def flat(number: int, title: str, city: str | None = "Berlin", price: int | None = 800) -> dict[str, Any]:
    return {"id": number, "title": title, "city": city, "price": price, "listed": "2026-01-31T10:00:00Z"}


def search(key: str, query: str | None) -> Event:
    """A record of a compacted topic; without a query a tombstone."""
    value = None if query is None else {"id": key, "query": query, "mail": f"{key}@example.com"}
    return Event(value, key=key)


def matched(streaming: bool) -> Any:
    def build(spark: SparkSession) -> DataFrame:
        read = hr.stream if streaming else hr.batch
        flats = read(spark, "flats", schema=FLATS).select("id", "title", "city", "price", "listed")
        searches = hr.changes(read(spark, "searches", schema=SEARCHES), key="id")
        return hr.match_searches(flats, searches, default="title", columns="mail", buckets=2)

    return build


def pairs(rows: Sequence[Row]) -> list[tuple[int, str]]:
    return sorted((row.id, row.search_id) for row in rows)


def test_searches_are_added_changed_and_removed_while_the_stream_runs(spark: SparkSession) -> None:
    searches = [
        [search("rooms", '"two rooms" price:[0 TO 900]'), search("bad", "title:("), search("any", "NOT city:paris")],
        [search("rooms", "three rooms"), search("house", "title:hous*")],
        [search("any", None)],
    ]
    flats = [
        [flat(1, "Two rooms, balcony"), flat(2, "Two rooms", price=1000), flat(3, "Two rooms", city=None, price=None)],
        [flat(4, "Two rooms"), flat(5, "House with three rooms")],
        [flat(6, "Housing for three, no rooms", city="Paris"), flat(7, "Flat")],
    ]
    rows = run_pipeline(matched(True), {"flats": flats, "searches": searches}, spark=spark)
    assert [pairs(batch) for batch in rows.batches] == [
        [(1, "any"), (1, "rooms"), (2, "any"), (3, "any")],
        [(4, "any"), (5, "any"), (5, "house"), (5, "rooms")],
        [(6, "house"), (6, "rooms")],
    ]
    assert {row.search_mail for row in rows} == {f"{key}@example.com" for key in ("any", "rooms", "house")}

    last = {"flats": [flats[2]], "searches": [[each for batch in searches for each in batch]]}
    assert pairs(run_pipeline(matched(False), last, spark=spark)) == pairs(rows.batches[2])


@pytest.mark.slow
def test_searches_outlive_a_restart_and_the_progress_counts_them(spark: SparkSession, tmp_path: Path) -> None:
    """Two runs on one checkpoint; the second has no new searches, and finds those of the first."""
    count = 0

    def add(name: str, *rows: dict[str, Any]) -> None:
        nonlocal count
        (tmp_path / name).mkdir(exist_ok=True)
        path = tmp_path / name / f"{count:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        count += 1
        os.utime(path, (FIRST_FILE_S + count, FIRST_FILE_S + count))

    def run() -> tuple[list[Row], dict[str, Any]]:
        flats = spark.readStream.schema(FLATS).json(str(tmp_path / "flats"))
        changed = spark.readStream.schema(SEARCHES + ", seq long").json(str(tmp_path / "searches"))
        found: list[Row] = []
        query = (
            hr.match_searches(flats, hr.changes(changed, "id", position="seq"), default="title", buckets=2)
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(lambda batch, _: found.extend(batch.collect()))
            .start()
        )
        assert query.awaitTermination(300)
        seen = [each["observedMetrics"]["state match_searches"] for each in query.recentProgress]
        return found, {name: max(each[name] or 0 for each in seen) for name in seen[0].asDict() if "searches" in name}

    add("searches", *({"id": f"s{n}", "query": f"word{n} price:>{n}", "seq": n} for n in range(300)))
    add("searches", {"id": "odd", "query": "NOT title:word1", "seq": 300}, {"id": "bad", "query": "((", "seq": 301})
    add("flats", flat(1, "word7 word8", price=8))
    first, counts = run()
    assert pairs(first) == [(1, "odd"), (1, "s7")]
    assert counts == {"searches": 302, "unindexed_searches": 1, "bad_searches": 1}
    add("searches", {"id": "s7", "query": "word9", "seq": 400})
    add("flats", flat(2, "word1 word7 word9 word299", price=1000))
    second, _ = run()
    assert pairs(second) == [(2, "s1"), (2, "s299"), (2, "s7"), (2, "s9")]


def test_what_cannot_be_searched_is_refused_before_the_start_with_what_to_write_instead(spark: SparkSession) -> None:
    flats = spark.createDataFrame([], FLATS)
    rows = spark.createDataFrame([], SEARCHES + ", seq long, search_id long")
    searches = hr.changes(rows, "id", position="seq")
    with pytest.raises(UsageError, match=r"no column 'text'.*its columns are id, query, mail"):
        hr.match_searches(flats, searches, query="text")
    with pytest.raises(UsageError, match="query='seq' is bigint, and a search is text"):
        hr.match_searches(flats, searches, query="seq")
    with pytest.raises(UsageError, match="default='price' is no column of text"):
        hr.match_searches(flats, searches, default="price")
    with pytest.raises(UsageError, match="two columns of the result would be called 'id'"):
        hr.match_searches(flats, searches, prefix="")
    with pytest.raises(UsageError, match="these are no changes"):
        hr.match_searches(flats, rows)
    with pytest.raises(UsageError, match="there is no field 'colour'"):
        hr.check_search("colour:red", flats)
    hr.check_search({"field": "price", "range": {"lt": 900}}, flats.schema)
