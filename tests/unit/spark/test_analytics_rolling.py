"""Intervals that slide, without Spark: each row has what a plain loop finds near it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.spark.aggregates.requests import aggregate_of
from headrace.spark.aggregates.totals import EVENTS, Aggregate
from headrace.spark.state.bucket import Bucket
from headrace.spark.state.operator import BEGINNING, advance, run_bounded
from headrace.spark.windowing import rolling_operator
from headrace.spark.windowing.rolling_operator import Rolling, over_intervals
from tests.unit.spark.state_world import (
    KEYS,
    LATENESS_S,
    ROWS,
    SECOND,
    Event,
    Stream,
    arrivals,
    bounded,
    events,
    streamed,
    table,
)

WITHIN_S = 15
ASKED: dict[str, tuple[Any, ...]] = {
    "total": ("sum", "amount"),
    "lowest": ("min", "amount"),
    "highest": ("max", "amount"),
    "mean": ("avg", "amount"),
    "closing": ("last", "amount"),
    "kinds": ("distinct", "amount"),
}


def rolling(reach: Any = "before") -> Rolling:
    values = tuple(aggregate_of(name, given, ROWS) for name, given in ASKED.items())
    return Rolling(ROWS, "at", WITHIN_S * SECOND, (EVENTS, *values), reach)


def by_hand(rows: Sequence[Event], reach: str) -> Counter[tuple[Any, ...]]:
    found = []
    for user, second, amount in rows:
        near = [
            (other[1], other[2])
            for other in rows
            if other[0] == user and abs(other[1] - second) < WITHIN_S and (reach == "around" or other[1] <= second)
        ]
        amounts = [each for _, each in near if each is not None]
        values: tuple[Any, ...] = (None,) * 5 + (0,)
        if amounts:
            last = max(each for each in near if each[1] is not None)[1]
            mean = round(sum(amounts) / len(amounts), 9)
            values = (sum(amounts), min(amounts), max(amounts), mean, last, len(set(amounts)))
        found.append((user, second, amount, len(near), *values))
    return Counter(found)


def plain(results: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            row["user"],
            int(row["at"].timestamp()),
            row["amount"],
            row["events"],
            *(round(row[name], 9) if name == "mean" and row[name] is not None else row[name] for name in ASKED),
        )
        for row in results.to_pylist()
    )


@settings(max_examples=25)
@given(arrivals(), st.sets(st.integers(0, 30)), st.sampled_from(["before", "around"]))
def test_each_row_has_what_is_near_it_whatever_the_cuts_the_order_and_the_restarts(
    batches: list[list[Event]], restarts: set[int], reach: str
) -> None:
    expected = by_hand([event for batch in batches for event in batch], reach)
    stream = streamed(rolling(reach), batches, restarts)
    assert plain(stream.finish()) == expected
    assert stream.late_rows == 0
    assert plain(bounded(rolling(reach), batches)) == expected
    assert stream.store.manifest_value().key_count == 0, "nothing is held in the end"


def test_a_row_comes_when_the_watermark_is_past_it_and_not_when_it_is_at_it() -> None:
    stream = Stream(rolling())
    stream.push(table([("a", 100, 1)]), BEGINNING)
    stream.push(table([("a", 100, 2)]), 100 * SECOND)
    assert [each.num_rows for each in stream.output] == [0, 0], "rows at the same time can still come"
    stream.push(table([]), 100 * SECOND + 1)
    assert stream.output[-1].column("events").to_pylist() == [2, 2]


def test_a_row_that_looks_around_waits_for_those_behind_it() -> None:
    stream = Stream(rolling("around"))
    stream.push(table([("a", 100, 1), ("a", 100 + WITHIN_S - 1, 2), ("a", 100 + WITHIN_S, 3)]), BEGINNING)
    stream.push(table([]), (100 + WITHIN_S) * SECOND - 1)
    assert stream.output[-1].num_rows == 0
    stream.push(table([]), (100 + WITHIN_S) * SECOND)
    assert stream.output[-1].column("events").to_pylist() == [2]


def test_a_row_exactly_an_interval_away_is_no_neighbour() -> None:
    found = bounded(rolling(), [[("a", 100, 1), ("a", 100 + WITHIN_S, 2)]])
    assert found.column("events").to_pylist() == [1, 1]


def test_a_late_row_is_counted_and_left_out_and_no_neighbour_of_others() -> None:
    stream = Stream(rolling())
    stream.push(table([("a", 100, 1)]))
    stream.push(table([("a", 100 - LATENESS_S - 1, 1), ("a", 100 - LATENESS_S, 1)]))
    assert stream.late_rows == 1
    assert sorted(stream.finish().column("events").to_pylist()) == [1, 1]


def test_a_key_is_forgotten_as_soon_as_no_neighbour_of_its_rows_can_come() -> None:
    for reach, last in (("before", WITHIN_S * SECOND), ("around", 2 * WITHIN_S * SECOND - 1)):
        stream = Stream(rolling(reach))
        stream.push(table([("a", 100, 1)]), BEGINNING)
        stream.push(table([]), 100 * SECOND + last - 1)
        assert stream.output[-1].num_rows == 1
        assert stream.store.manifest_value().key_count == 1
        stream.push(table([]), 100 * SECOND + last)
        assert stream.store.manifest_value().key_count == 0


COLUMNS = pa.schema(
    [
        ("whole", pa.int64()),
        ("broken", pa.float64()),
        ("exact", pa.decimal128(12, 2)),
        ("text", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
    ]
)
FUNCTIONS = [
    *((function, column) for function in ("sum", "avg") for column in ("whole", "broken", "exact")),
    *((function, column) for function in ("min", "max", "first", "last", "distinct") for column in COLUMNS.names),
    ("count", "text"),
    ("percentile", "broken", (0.0, 0.5, 1.0)),
]


def members(count: int, seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    missing = chance.random(count) < 0.3
    numbers = chance.integers(-1000, 1000, count)
    columns = [
        pa.array(numbers, mask=missing),
        pa.array(numbers * 1e6 + chance.random(count), mask=missing),
        pa.array([None if gone else Decimal(int(each)) / 4 for each, gone in zip(numbers, missing, strict=True)]).cast(
            pa.decimal128(12, 2)
        ),
        pa.array([None if gone else f"t{each}" for each, gone in zip(numbers, missing, strict=True)]),
        pa.array(numbers + 10**15, mask=missing).cast(pa.timestamp("us", "UTC")),
    ]
    return pa.Table.from_arrays(columns, schema=COLUMNS)


@pytest.mark.parametrize("asked", FUNCTIONS, ids=lambda asked: "-".join(map(str, asked)))
def test_an_aggregate_of_stretches_is_that_of_each_stretch_by_itself(
    asked: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_operator, "PAIRS_MAX", 500)
    aggregate: Aggregate = aggregate_of("x", asked, COLUMNS)
    count = 300
    rows, times = members(count, 7), np.sort(np.random.default_rng(8).integers(0, 50, count))
    bounds = np.sort(np.random.default_rng(9).integers(0, count + 1, (40, 2)), axis=1)
    first, end = bounds[:, 0], bounds[:, 1]
    found = over_intervals(aggregate, rows, times, first, end).to_pylist()
    for number, (low, high) in enumerate(bounds.tolist()):
        part, size = rows.slice(low, high - low), high - low
        lifted = aggregate.lift(part, times[low:high])
        (alone,) = aggregate.finish(aggregate.merge(np.zeros(size, np.int64), lifted, 1)).to_pylist()
        if isinstance(alone, float):
            assert found[number] == pytest.approx(alone, rel=1e-9, abs=1e-3)
        else:
            assert found[number] == alone


@pytest.mark.parametrize(("function", "wanted"), [("max", ["nan", "nan", 2.0, None]), ("min", [1.0, "nan", 2.0, None])])
def test_not_a_number_is_larger_than_all_numbers_as_in_sparks_own_aggregations(
    function: str, wanted: list[Any]
) -> None:
    nan = float("nan")
    rows = pa.table({"value": pa.array([1.0, nan, 2.0, nan, nan, 2.0, None, None])})
    first, end, times = np.array([0, 3, 5, 6]), np.array([3, 5, 7, 8]), np.zeros(8, np.int64)
    aggregate = aggregate_of("x", (function, "value"), rows.schema)

    def shown(found: pa.Array) -> list[Any]:
        return [str(each) if each != each else each for each in found.to_pylist()]

    assert shown(over_intervals(aggregate, rows, times, first, end)) == wanted
    groups = np.array([0, 0, 0, 1, 1, 2, 2, 3])
    states = aggregate.merge(groups, aggregate.lift(rows, times), 4)
    assert shown(aggregate.finish(states)) == wanted
    assert shown(aggregate.merge(np.zeros(4, np.int64), states, 1)) == ["nan" if function == "max" else 1.0]


def test_many_rows_near_each_other_are_not_taken_pair_by_pair() -> None:
    """The work grows with the rows and the logarithm of the interval, not with their product: 50,000 near each row."""
    count = 100_000
    times = pa.array(np.arange(1, count + 1, dtype=np.int64)).cast(pa.timestamp("us", "UTC"))
    rows = pa.Table.from_arrays([pa.array(["a"] * count), times, pa.array(np.ones(count, np.int64))], schema=ROWS)
    values = [
        aggregate_of(name, given, ROWS) for name, given in {"m": ("avg", "amount"), "h": ("max", "amount")}.items()
    ]
    found = run_bounded(Rolling(ROWS, "at", 50_000, (EVENTS, *values)), rows, KEYS, "at")
    assert found.column("events").to_pylist()[-1] == 50_000
    assert set(found.column("m").to_pylist()) == {1.0}


@settings(max_examples=30)
@given(events, st.sets(st.integers(1, 140), min_size=1, max_size=8))
def test_rows_that_another_operator_held_until_they_were_final_find_their_neighbours(
    arrived: list[Event], clocks: set[int]
) -> None:
    """Such rows come with times behind the watermark, but not behind where it was before."""
    bucket = Bucket(rolling().layout(KEYS))
    output, before = [], 0
    for clock in [*sorted(clocks), 200]:
        batch = table([event for event in arrived if before <= event[1] < clock])
        outcome = advance(bucket, rolling(), batch, now_us=clock * SECOND, event_time="at", follows=True)
        output.append(outcome.output)
        before = clock
    assert plain(pa.concat_tables(output)) == by_hand(arrived, "before")


def test_a_rolling_sum_of_large_numbers_is_exact_or_an_error() -> None:
    large = 2**62
    near = bounded(rolling(), [[("a", 1, large), ("a", 2, -large), ("a", 3, large)]])
    assert near.column("total").to_pylist() == [large, 0, large]
    with pytest.raises(HeadraceError, match="a sum of 'total' is too large"):
        bounded(rolling(), [[("a", 1, large), ("a", 2, large)]])
