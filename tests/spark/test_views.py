"""Views on Spark: what their changes add up to is the query on the tables, after restarts and on bounded frames too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.testing import Event, run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

BUCKETS = 2
TIMEOUT_S = 600
POSTS = "id long, author string, text string"
FOLLOWS = "follower string, author string"


def post(number: int, author: str | None, text: str = "") -> Event:
    """A record of the topic posts; without an author a tombstone."""
    value = None if author is None else {"id": number, "author": author, "text": text}
    return Event(value, key=str(number))


def follow(follower: str, author: str, gone: bool = False) -> Event:
    key = {"follower": follower, "author": author}
    return Event(None if gone else key, key=json.dumps(key))


def folded(rows: list[Row]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What changes add up to; each must be true to what was there."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        change = row.asDict(recursive=True)
        key = tuple(change["key"].values())
        assert found.get(key) == change["before"], change
        found.pop(key, None)
        if change["after"] is not None:
            found[key] = change["after"]
    return found


def timelines(streaming: bool) -> Callable[[SparkSession], DataFrame]:
    """The two latest posts of everybody that somebody follows."""

    def build(spark: SparkSession) -> DataFrame:
        read = hr.stream if streaming else hr.batch
        posts = hr.changes(read(spark, "posts", schema=POSTS), "id")
        follows = hr.changes(read(spark, "follows", schema=FOLLOWS), ["follower", "author"])
        seen = hr.join_tables(posts, follows, "author", buckets=BUCKETS)
        values = {"posts": F.count("*"), "latest": F.max_by(F.struct("id", "text"), "id", 2)}
        return hr.view(seen, "follower", values, buckets=BUCKETS)

    return build


TIMELINE_EVENTS: dict[str, list[list[Event]]] = {
    "posts": [
        [post(1, "ann", "one"), post(2, "bob", "two")],
        [post(3, "ann", "three"), post(2, "bob", "two, mended")],
        [post(3, None), post(4, "cy", "four")],
    ],
    "follows": [
        [follow("zoe", "ann")],
        [follow("zoe", "bob"), follow("yan", "ann")],
        [follow("yan", "ann", gone=True)],
    ],
}
TIMELINES = {("zoe",): {"follower": "zoe", "posts": 2, "latest": [(2, "two, mended"), (1, "one")]}}


def shown(found: dict[tuple[Any, ...], dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {key: {**row, "latest": [tuple(each.values()) for each in row["latest"]]} for key, row in found.items()}


def test_home_timelines_of_bounded_frames_are_the_rows_of_the_result(spark: SparkSession) -> None:
    rows = run_pipeline(timelines(False), TIMELINE_EVENTS, spark=spark, timeout_s=TIMEOUT_S)
    assert {row.op for row in rows} == {"insert"}
    assert shown(folded(list(rows))) == TIMELINES


@pytest.mark.slow  # five operators with state in one query
def test_home_timelines_follow_posts_and_follows(spark: SparkSession) -> None:
    streamed = run_pipeline(timelines(True), TIMELINE_EVENTS, spark=spark, timeout_s=TIMEOUT_S)
    after_two = [row for batch in streamed.batches[:2] for row in batch]
    assert shown(folded(after_two))[("yan",)]["latest"] == [(3, "three"), (1, "one")]
    assert shown(folded(list(streamed))) == TIMELINES


# ---- a view that is stopped and goes on ----------------------------------------------------------------------------

ORDERS = "id long, country string, price decimal(12,2), seq long"


class Lane:
    """Files that a stream reads one by one, and the checkpoint that it goes on from."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.input, self.checkpoint = spark, folder / "input", folder / "checkpoint"
        self.input.mkdir()

    def add(self, *orders: tuple[int, str | None, str]) -> None:
        number = len(list(self.input.iterdir()))
        lines = [
            json.dumps({"id": order, "country": country, "price": price, "seq": number * 100 + place})
            for place, (order, country, price) in enumerate(orders)
        ]
        (self.input / f"{number:04}.json").write_text("\n".join(lines))

    def orders(self, streaming: bool) -> DataFrame:
        reader = self.spark.readStream if streaming else self.spark.read
        return hr.changes(reader.schema(ORDERS).json(str(self.input)), "id", position="seq")

    def run(self, build: Callable[[DataFrame], DataFrame]) -> list[Row]:
        rows: list[Row] = []
        writer = build(self.orders(True)).writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(TIMEOUT_S), query.lastProgress
        finally:
            query.stop()
        return rows


def test_a_row_that_changes_its_group_leaves_the_old_one_also_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    def per_country(orders: DataFrame) -> DataFrame:
        paid = hr.deltas(orders, buckets=BUCKETS).where("price > 0").withColumn("half", F.col("price") / 2)
        values = {"orders": F.count("*"), "total": F.sum("price"), "most": F.max("price"), "half": F.sum("half")}
        return hr.view(paid, "country", values, buckets=BUCKETS)

    lane = Lane(spark, tmp_path)
    lane.add((1, "NO", "10.00"), (2, "NO", "5.50"), (3, None, "1.00"), (4, "SE", "0.00"))
    rows = lane.run(per_country)
    lane.add((1, "SE", "12.00"), (3, None, "0.00"))
    rows += lane.run(per_country)
    found = {key[0]: (row["orders"], str(row["total"]), str(row["most"])) for key, row in folded(rows).items()}
    assert found == {"NO": (1, "5.50", "5.50"), "SE": (1, "12.00", "12.00")}
    assert [row.op for row in rows if row.key.country is None] == ["insert", "delete"]
    bounded = per_country(lane.orders(False)).collect()
    assert folded(bounded) == folded(rows)


@pytest.mark.slow
def test_a_foreign_key_join_is_updated_in_place_and_comes_back_from_its_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    countries = [{"code": "NO", "name": "Norway"}, {"code": "SE", "name": "Sweden"}]

    def with_names(streaming: bool) -> Callable[[SparkSession], DataFrame]:
        def build(spark: SparkSession) -> DataFrame:
            read = hr.stream if streaming else hr.batch
            orders = hr.changes(read(spark, "orders", schema="id long, country string, price long"), "id")
            named = hr.changes(read(spark, "countries", schema="code string, name string"), "code")
            return hr.join_tables(orders, named, {"country": "code"}, how="left", buckets=BUCKETS)

        return build

    events: dict[str, list[list[Event]]] = {
        "orders": [
            [
                Event({"id": 1, "country": "NO", "price": 5}, key="1"),
                Event({"id": 2, "country": "DK", "price": 6}, key="2"),
            ],
            [Event({"id": 1, "country": "SE", "price": 5}, key="1")],
            [Event(None, key="2")],
        ],
        "countries": [[Event(each, key=each["code"]) for each in countries], [], [Event(None, key="NO")]],
    }
    streamed = run_pipeline(with_names(True), events, spark=spark, timeout_s=TIMEOUT_S)
    assert [row.op for row in streamed if row.key.id == 1] == ["insert", "update"]
    expected = {(1,): {"country": "SE", "id": 1, "price": 5, "name": "Sweden"}}
    assert folded(list(streamed)) == expected
    assert folded(list(run_pipeline(with_names(False), events, spark=spark, timeout_s=TIMEOUT_S))) == expected

    row = "country: string, id: bigint, price: bigint, name: string"
    kind = f"op string, key struct<id: bigint>, before struct<{row}>, after struct<{row}>"
    records = hr.as_records(spark.createDataFrame(list(streamed), kind))
    stored = [Event(row.value, key=row.key) for row in records.collect()]

    def again(spark: SparkSession) -> DataFrame:
        return hr.view(hr.changes(hr.batch(spark, "joined", schema="id long, country string, name string"), "id"))

    (kept,) = run_pipeline(again, {"joined": stored}, spark=spark, timeout_s=TIMEOUT_S)
    assert (kept.op, kept.after.asDict()) == ("insert", {"id": 1, "country": "SE", "name": "Sweden"})


def test_what_cannot_be_a_view_is_refused_before_the_query_starts_with_what_to_write_instead(
    spark: SparkSession,
) -> None:
    plain = spark.range(1).selectExpr("id", "'NO' as country", "1.5D as price", "id as n")
    orders = hr.changes(plain, "id", position="n")
    with pytest.raises(UsageError, match=r"these are no changes.*hr.changes"):
        hr.view(plain)
    with pytest.raises(UsageError, match=r"there are no keys.*keys="):
        hr.view(orders, values={"n": F.count("*")})
    with pytest.raises(UsageError, match=r"no column 'land' to be the key"):
        hr.view(orders, "land", {"n": F.count("*")})
    with pytest.raises(UsageError, match=r"n: median\(price\) is not offered here.*F.sum, F.avg.*F.max_by"):
        hr.view(orders, "country", {"n": F.median("price")})
    with pytest.raises(UsageError, match=r"n: first\(price, false\) is not offered here"):
        hr.view(orders, "country", {"n": F.first("price")})
    with pytest.raises(UsageError, match=r"no column 'cost'.*id, country, price, n"):
        hr.view(orders, "country", {"n": F.sum("cost")})
    with pytest.raises(UsageError, match=r"cannot be added up.*cast"):
        hr.view(orders, "country", {"n": F.sum("country")})
    with pytest.raises(UsageError, match=r"n: max_by\(price, n, 3\) is not offered.*F.max_by\(F.struct"):
        hr.view(orders, "country", {"n": F.max_by("price", "n", 3)})
    with pytest.raises(UsageError, match=r"would be called 'country'"):
        hr.view(orders, "country", {"country": F.count("*")})
    with pytest.raises(UsageError, match=r"would be called 'country'.*prefix="):
        hr.join_tables(orders, orders, "id")
    with pytest.raises(UsageError, match=r"no column 'no' to join on"):
        hr.join_tables(orders, orders, "no")
