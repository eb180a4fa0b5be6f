"""Patterns on Spark: a stream in micro-batches gives the matches of the bounded frame, with the same ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

import headrace.spark as hr
from headrace.errors import UsageError
from headrace.spark.patterns.fluent import Pattern
from headrace.spark.testing import run_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(1200)]

SCHEMA = "user string, at timestamp, amount long, kind string"
COLUMNS = ("user", "at", "amount", "kind")
START = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
BUCKETS = 2
Event = tuple[str, int, int | None, str]
"""(user, seconds after the start, amount, kind)"""
Operator = Callable[[DataFrame], DataFrame]

EVENTS: list[Event] = [
    ("anna", 0, 10, "pay"),
    ("ben", 1, 3, "pay"),
    ("anna", 2, 8, "pay"),
    ("anna", 1, 9, "pay"),
    ("anna", 5, 12, "pay"),
    ("ben", 6, None, "login"),
    ("anna", 7, 15, "logout"),
    ("ben", 8, 40, "pay"),
    ("anna", 30, 1, "login"),
    ("ben", 31, 50, "pay"),
    ("ben", 32, 2, "pay"),
]
LAST: Event = ("last", 100_000, 0, "none")
V_SHAPE = """
    PARTITION BY user ORDER BY at
    MEASURES FIRST(A.amount) AS top, LAST(D.amount) AS bottom, LAST(U.amount) AS after, COUNT(*) AS n,
             upper(CLASSIFIER()) AS last_of, round(AVG(D.amount) / 2, 3) AS half
    PATTERN (A D+ U+) WITHIN INTERVAL '20' SECONDS
    DEFINE D AS D.amount < PREV(D.amount), U AS U.amount > PREV(U.amount)
"""


def by_text(rows: DataFrame) -> DataFrame:
    return hr.match_recognize(rows, V_SHAPE, buckets=BUCKETS)


def by_functions(rows: DataFrame) -> DataFrame:
    big = (
        hr.pattern("a")
        .where(F.col("kind") == "pay")
        .followed_by_any("b")
        .where("kind = 'pay'")
        .where("amount > a.amount")
    )
    quiet = hr.pattern("a").where("kind = 'login'").not_followed_by("p").where("kind = 'pay'").within("10 seconds")
    patterns = {"bigger": big.within("20 seconds"), "quiet": quiet}
    return hr.match(rows, patterns, keys="user", event_time="at", timeouts=True, buckets=BUCKETS)


def plain(rows: Sequence[Row]) -> Counter[str]:
    return Counter(str(sorted(row.asDict(recursive=True).items(), key=str)) for row in rows)


def bounded(spark: SparkSession, operator: Operator, events: Sequence[Event]) -> list[Row]:
    rows = [(user, START + timedelta(seconds=second), amount, kind) for user, second, amount, kind in events]
    return operator(spark.createDataFrame(rows, SCHEMA)).collect()


def streamed(spark: SparkSession, operator: Operator, *batches: Sequence[Event]) -> list[Row]:
    def build(spark: SparkSession) -> DataFrame:
        rows = hr.stream(spark, "rows", schema=SCHEMA).select(*COLUMNS)
        return operator(rows.withWatermark("at", "20 seconds"))

    def value(event: Event) -> dict[str, Any]:
        return dict(
            zip(COLUMNS, (event[0], (START + timedelta(seconds=event[1])).isoformat(), *event[2:]), strict=True)
        )

    given = [[value(event) for event in batch] for batch in batches]
    return list(run_pipeline(build, {"rows": given}, spark=spark, timeout_s=400))


@pytest.mark.parametrize("operator", [by_text, by_functions])
def test_a_stream_gives_the_matches_of_the_bounded_frame_with_the_same_ids(
    spark: SparkSession, operator: Operator
) -> None:
    wanted = bounded(spark, operator, [*EVENTS, LAST])
    found = streamed(spark, operator, EVENTS[:4], EVENTS[4:7], EVENTS[7:], [LAST])
    assert plain(found) == plain(wanted)
    assert len({row.match_id for row in found}) == len(found) > 0


def test_ids_do_not_depend_on_the_time_zone_of_the_session(spark: SparkSession) -> None:
    zone, found = str(spark.conf.get("spark.sql.session.timeZone")), []
    try:
        for each in ("UTC", "Asia/Tokyo"):
            spark.conf.set("spark.sql.session.timeZone", each)
            found.append({row.match_id for row in bounded(spark, by_functions, EVENTS)})
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert found[0] == found[1]


def test_names_in_another_case_are_found_and_names_that_collide_are_refused(spark: SparkSession) -> None:
    rows = [("anna", START + timedelta(seconds=second), second, "pay") for second in range(3)]
    frame = spark.createDataFrame(rows, SCHEMA)
    text = "PARTITION BY USER ORDER BY AT MEASURES COUNT(*) AS {} ALL ROWS PER MATCH PATTERN (A+)"
    assert [row.n for row in hr.match_recognize(frame, text.format("n")).orderBy("at").collect()] == [1, 2, 3]
    with pytest.raises(UsageError, match="two columns called 'amount'"):
        hr.match_recognize(frame, text.format("amount"))
    with pytest.raises(UsageError, match="mixed up"):
        hr.match(frame.withColumnRenamed("kind", "variable"), hr.pattern("a"), keys="user", event_time="at")


ONE = "PARTITION BY user ORDER BY at MEASURES A.amount AS a PATTERN (A B) DEFINE B AS {}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ONE.format("B.kind < A.amount"), "condition of B cannot be computed over these columns"),
        (ONE.format("B.amount + A.amount"), "condition of B is int64 and not true or false"),
        (ONE.format("B.amount > A.amoumt"), r"there is no column amoumt; the columns are user, at, amount, kind"),
        (ONE.format("B.amount > AA.amount"), r"(?s)there is no column AA.amount.*the variables A, B.*\n +\^$"),
        (ONE.format("B.amount > = A.amount"), "not complete|Invalid expression"),
        (ONE.format("B.amount"), r"(?s)the condition is bigint and not true or false.* B.amount\n +\^$"),
        (
            ONE.format("COUNT(A) > 1"),
            r"(?s)A is a variable; A.x is the column x of its last row.*COUNT\(A\) > 1\n +\^$",
        ),
        (ONE.format("B.at < A.at + INTERVAL '1' MONTH"), "has no fixed length; expected whole days or less"),
        (ONE.format("A.at < '2026-01-31'"), "TIMESTAMP '2026-01-31 10:00:00' make another type"),
    ],
)
def test_a_condition_that_cannot_be_computed_is_refused_before_the_start(
    spark: SparkSession, text: str, said: str
) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    with pytest.raises(UsageError, match=said):
        hr.match_recognize(frame, text)


def test_functions_refuse_a_condition_that_cannot_be_computed_before_the_start(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    wanted = hr.pattern("a").followed_by("b").where("b.kind > a.amount")
    with pytest.raises(UsageError, match="condition of b cannot be computed over these columns"):
        hr.match(frame, wanted, keys="user", event_time="at")


@pytest.mark.parametrize(
    ("wanted", "measures", "said"),
    [
        (hr.pattern("a").where("amoumt > 1"), None, r"there is no column amoumt; the columns are user, at, amount"),
        (hr.pattern("a").next("b").where("amount > c.amount"), None, r"there is no column c.amount;.*variables a, b"),
        (hr.pattern("a").where("amount + 1"), None, "the condition is bigint and not true or false"),
        (hr.pattern("a"), {"total": "SUM(a.amoumt)"}, "there is no column amoumt"),
        (hr.pattern("a"), {"total": "AVERAGE(a.amount)"}, "there is no function AVERAGE"),
    ],
)
def test_functions_show_a_wrong_name_where_it_stands(
    spark: SparkSession, wanted: Pattern, measures: dict[str, str] | None, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=rf"(?s){said}.*\n +\^$"):
        hr.match(spark.createDataFrame([], SCHEMA), wanted, keys="user", event_time="at", measures=measures)
    assert "Traceback" not in capfd.readouterr().err, "the error says it all"


def test_rows_without_a_match_have_no_measures(spark: SparkSession) -> None:
    text = ONE.format("B.amount > A.amount").replace("PATTERN", ", 1 AS one, COALESCE(A.amount, 0) AS some PATTERN")
    rows = [("anna", START + timedelta(seconds=second), amount, "pay") for second, amount in enumerate([5, 2, 1])]
    given = hr.match_recognize(
        spark.createDataFrame(rows, SCHEMA),
        text.replace("PATTERN", "ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN"),
        buckets=BUCKETS,
    )
    assert [(row.amount, row.one, row.some, row.match_id) for row in given.orderBy("at").collect()] == [
        (each, None, None, None) for each in (5, 2, 1)
    ]


def test_rows_with_maps_and_lists_are_matched_and_have_ids(spark: SparkSession) -> None:
    """Spark hashes no maps, so they are no part of an id."""
    frame = spark.createDataFrame([("anna", START, 1, "pay")], SCHEMA).withColumns(
        {"tags": F.create_map(F.lit("a"), F.lit(1)), "words": F.array(F.lit("b"))}
    )
    (found,) = hr.match(frame, hr.pattern("a"), keys="user", event_time="at", buckets=BUCKETS).collect()
    assert (found.events[0].tags, found.events[0].words) == ({"a": 1}, ["b"])
    assert found.match_id


HALVES = "user string, at timestamp, one long, other long, list array<long>"
Half = tuple[int | None, int | None, list[int | None] | None]


@pytest.mark.parametrize(
    ("first", "second"),
    [((1, None, None), (None, 1, None)), ((1, 2, [1, None]), (1, 2, [None, 1]))],
)
def test_rows_that_differ_in_where_their_nulls_are_are_different_rows(
    spark: SparkSession, first: Half, second: Half
) -> None:
    """Spark's hash passes over nulls. By it rows of equal times are sorted, and matches are distinguished."""
    pair = "PARTITION BY user ORDER BY at MEASURES FIRST(one) AS one, FIRST(list) AS list PATTERN (A B)"
    found = []
    for rows in ((first, second), (second, first)):
        frame = spark.createDataFrame([("anna", START, *row) for row in rows], HALVES).coalesce(1)
        found.append(hr.match_recognize(frame, pair, buckets=BUCKETS).collect())
    assert found[0] == found[1]
    ends = [("anna", START + timedelta(seconds=second), 7, 7, None) for second in (-1, 1)]
    frame = spark.createDataFrame([*ends, *(("anna", START, *row) for row in (first, second))], HALVES)
    between = hr.pattern("a").where("one = 7").followed_by_any("b").where("coalesce(one, other) = 1")
    wanted = between.followed_by("c").where("one = 7").within("1 minute")
    matches = hr.match(frame, wanted, keys="user", event_time="at", buckets=BUCKETS).collect()
    assert len({each.match_id for each in matches}) == len(matches) == 2


def test_the_matches_are_those_one_sees(spark: SparkSession) -> None:
    rows = bounded(spark, by_text, EVENTS)
    assert [(row.user, row.top, row.bottom, row.after, row.n, row.last_of, row.half) for row in rows] == [
        ("anna", 10, 8, 15, 5, "U", 4.25)
    ]
    found = bounded(spark, by_functions, EVENTS)
    names = Counter((row.user, row.pattern, row.timed_out, len(row.events)) for row in found)
    assert names[("anna", "bigger", False, 2)] == 3
    assert names[("ben", "bigger", False, 2)] == 1
    assert names[("anna", "quiet", False, 1)] == 1
    assert names[("ben", "quiet", False, 1)] == 0


def test_why_rows_do_not_match_is_said_row_by_row(spark: SparkSession) -> None:
    rows = [(event[0], START + timedelta(seconds=event[1]), *event[2:]) for event in EVENTS if event[0] == "ben"]
    said = hr.why_not(spark.createDataFrame(rows, SCHEMA), V_SHAPE).splitlines()
    assert len(said) == 5
    assert "is no D (D.amount < PREV(D.amount))" in said[0]
    frame = spark.createDataFrame(rows, SCHEMA)
    with pytest.raises(UsageError, match="there is no column amont"):
        hr.why_not(frame, V_SHAPE.replace("D.amount < PREV(D.amount)", "D.amont < PREV(D.amont)"))
    with pytest.raises(UsageError, match="cannot be computed over these columns"):
        hr.why_not(frame, hr.pattern("a").next("b").where("user > a.amount"), event_time="at")


def test_what_a_stream_cannot_decide_is_refused_before_it_starts(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    text = "ORDER BY timestamp PATTERN ({}) DEFINE A AS value > 1"
    for pattern, said in [("A $", "no last row"), ("A+", "greedy loop"), ("A B", "without WITHIN")]:
        with pytest.raises(UsageError, match=said):
            hr.match_recognize(rows, text.format(pattern))
    with pytest.raises(UsageError, match="without within"):
        hr.match(rows, hr.pattern("a").next("b"), keys="value", event_time="timestamp")
    with pytest.raises(UsageError, match="aggregate of values of type timestamp"):
        hr.match_recognize(
            rows, "ORDER BY timestamp PATTERN (A B) WITHIN '1 minute' DEFINE B AS MAX(A.timestamp) > timestamp"
        )


def test_late_rows_are_a_further_output_and_too_many_partial_matches_are_given_up_and_counted(
    spark: SparkSession,
) -> None:
    """Seventy patterns have more conditions than a long has bits."""
    wanted = {
        f"p{number}": hr.pattern("a").where(f"amount = {number}").followed_by("b").where(f"amount = -{number}")
        for number in range(1, 71)
    }

    def operator(rows: DataFrame) -> DataFrame:
        return hr.match(
            rows,
            {name: each.within("1 hour") for name, each in wanted.items()},
            keys="user",
            event_time="at",
            late="side",
            partials_max=1,
            overflow="drop_oldest",
            buckets=BUCKETS,
        )

    first: list[Event] = [("anna", 100, 70, "x"), ("anna", 101, 70, "y"), ("anna", 102, -70, "x"), ("ben", 103, 5, "x")]
    late: list[Event] = [("ben", 1, -5, "too late")]
    found = streamed(spark, operator, first, [LAST], late)
    matches = [row for row in found if row.late is None]
    assert [(row.pattern, [each.kind for each in row.events]) for row in matches] == [("p70", ["y", "x"])]
    assert [row.late.kind for row in found if row.late is not None] == ["too late"]
    side, rest = hr.split_late(operator(spark.createDataFrame([], SCHEMA)))
    assert ("late" in side.columns, rest.columns) == (False, list(COLUMNS))
    with pytest.raises(UsageError, match="overflow='explode' is none of"):
        hr.match(spark.createDataFrame([], SCHEMA), hr.pattern("a"), keys="user", event_time="at", overflow="explode")
