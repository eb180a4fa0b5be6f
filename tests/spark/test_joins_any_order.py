"""Two streams joined within a bound: whatever order, cuts and deaths of the query, the pairs of a plain loop."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark.test_chains import TABLE, near
from tests.spark.test_state import TIMEOUT_S, Event, Lane

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

LATENESS_S = 20
BOUND_S = 10
DEATHS_MAX = 2
KILLED = "killed before its results were taken"
LAST: list[Event] = [("last", 10_000, 0), ("last", 10_000, 10_000)]
"""One of each side: it moves the watermark past everything."""

users = st.sampled_from(["anna", "ben", None])
seconds = st.integers(0, 60)


@st.composite
def arrivals(draw: st.DrawFn) -> list[list[Event]]:
    """Files of events of both sides, none further behind than the lateness allows; equal times are frequent."""
    drawn = draw(
        st.lists(st.tuples(users, seconds, st.booleans(), st.integers(0, LATENESS_S - 1)), min_size=4, max_size=30)
    )
    came = sorted(enumerate(drawn), key=lambda each: each[1][1] + each[1][3])
    events: list[Event] = [
        (user, second, number + (TABLE if is_move else 0)) for number, (user, second, is_move, _) in came
    ]
    cuts = draw(st.sets(st.integers(1, len(events) - 1), max_size=3))
    bounds = [0, *sorted(cuts), len(events)]
    return [events[low:high] for low, high in itertools.pairwise(bounds)]


@given(
    files=arrivals(),
    how=st.sampled_from(["inner", "left", "full"]),
    deaths=st.sets(st.integers(0, 5), max_size=DEATHS_MAX),
)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_pairs_are_those_of_a_plain_loop(
    spark: SparkSession, files: list[list[Event]], how: str, deaths: set[int]
) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-joins-") as folder:
        lane = Lane(spark, Path(folder))
        lane.add(*files, LAST, [])
        found = streamed(lane, how, set(deaths))
        bounded = near(lane.rows(streaming=False), how).collect()
    expected = by_hand(how, [event for each in files for event in each])
    assert triples(bounded) == expected
    assert triples(found) == expected
    dropped = [each["numRowsDroppedByWatermark"] for report in lane.progress for each in report["stateOperators"]]
    assert sum(dropped) == 0


def streamed(lane: Lane, how: str, deaths: set[int]) -> list[Row]:
    """Until it has read everything: a micro-batch that dies is repeated by a query that goes on from the checkpoint."""
    batches: dict[int, list[Row]] = {}

    def take(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        if number in deaths:
            deaths.remove(number)
            raise RuntimeError(KILLED)
        batches[number] = rows

    while True:
        writer = near(lane.rows(streaming=True), how).writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(lane.checkpoint)).start()
        try:
            assert query.awaitTermination(TIMEOUT_S), f"not done after {TIMEOUT_S} s: {query.lastProgress}"
            lane.progress += query.recentProgress
            return [row for rows in batches.values() for row in rows]
        except StreamingQueryException as error:
            if KILLED not in str(error):
                raise
        finally:
            query.stop()


def by_hand(how: str, events: list[Event]) -> Counter[tuple[Any, ...]]:
    """(user, order, move). A null equals nothing, and both bounds belong to it."""
    orders = [each for each in events if each[2] < TABLE]
    moves = [each for each in events if each[2] >= TABLE]
    pairs = [
        (one, other)
        for one in orders
        for other in moves
        if one[0] is not None and one[0] == other[0] and abs(one[1] - other[1]) <= BOUND_S
    ]
    found: list[tuple[Any, ...]] = [(one[0], one[2], other[2]) for one, other in pairs]
    if how in ("left", "full"):
        paired = {one for one, _ in pairs}
        found += [(one[0], one[2], None) for one in orders if one not in paired]
    if how == "full":
        paired = {other for _, other in pairs}
        found += [(other[0], None, other[2]) for other in moves if other not in paired]
    return Counter(found)


def triples(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter((row.user, row.amount, row.home) for row in rows if row.user != "last")
