"""The speed of a query is a slope: its start counts apart, however long it takes."""

from __future__ import annotations

import pytest

from benchmarks.nexmark import flink_sql
from benchmarks.nexmark.__main__ import Spent
from benchmarks.nexmark.load import Loaded

A_MILLION = 1_000_000


def test_the_start_of_a_query_is_no_part_of_its_speed() -> None:
    spent = Spent()
    for start_s, second_each in ((2.0, 4e-6), (9.0, 4e-6)):
        smaller = (start_s + second_each * A_MILLION, 1.0 + 7e-6 * A_MILLION)
        larger = (start_s + second_each * 4 * A_MILLION, 1.0 + 7e-6 * 4 * A_MILLION)
        spent.add_slope(smaller, larger, 1 / 4)
    assert spent.seconds == pytest.approx([16.0, 16.0]), "four million events at four microseconds"
    assert spent.cpu == pytest.approx([28.0, 28.0])
    assert spent.starts == pytest.approx([2.0, 9.0])


def test_flinks_tables_have_the_columns_that_headrace_reads_and_a_watermark_where_the_time_is_one() -> None:
    loaded = Loaded({}, {kind: f"topic-{kind}" for kind in ("person", "auction", "bid")}, 0.0)
    statements = flink_sql.setup("broker:9092", loaded, "/side.csv", {"bid": ("auction", "price")})
    [topic] = [each for each in statements if "CREATE TABLE bid_topic" in each]
    assert "`auction` BIGINT, `price` BIGINT)" in topic
    assert not [each for each in statements if "CREATE TABLE person_topic" in each]
    assert "CREATE VIEW bid AS SELECT * FROM bid_topic WHERE `auction` >= 0" in statements
    timed = flink_sql.setup("broker:9092", loaded, "/side.csv", {"bid": ("auction", "dateTime")})
    [topic] = [each for each in timed if "CREATE TABLE bid_topic" in each]
    assert "`dateTime` TIMESTAMP_LTZ(3), WATERMARK FOR `dateTime`" in topic
