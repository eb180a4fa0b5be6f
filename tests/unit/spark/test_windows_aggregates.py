"""What rows add up to: the same as plain Python, however the rows were parted and merged."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.spark.aggregates import sketches as windows_sketches
from headrace.spark.aggregates.requests import aggregate_of
from headrace.spark.aggregates.sketches import PERCENTILE_ERROR, bins_of, values_of
from headrace.spark.aggregates.totals import HASH, Aggregate, ApproximateDistinctCount, Percentiles, Top, wide

ROWS = pa.schema([("number", pa.int64()), ("price", pa.decimal128(10, 2)), ("word", pa.string()), ("flag", pa.bool_())])
Row = tuple[int | None, Decimal | None, str | None, bool | None]

rows_of = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 5),
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.decimals(-5, 5, places=2)),
        st.one_of(st.none(), st.sampled_from(["a", "b", "é"])),
        st.one_of(st.none(), st.booleans()),
    ),
    max_size=25,
)
"""(group, time, …a row)"""


def table(rows: list[Any]) -> pa.Table:
    columns = list(zip(*rows, strict=True))[2:] if rows else [[]] * 4
    arrays = [pa.array(each, field.type) for each, field in zip(columns, ROWS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ROWS)


def aggregated(aggregate: Aggregate, parts: list[list[Any]], count: int = 3) -> list[Any]:
    """Each part lifted and merged by itself, and then what came of them merged, as batch follows batch."""
    merged = []
    for part in parts:
        groups = np.array([row[0] for row in part], np.int64)
        times = np.array([row[1] for row in part], np.int64)
        merged.append(aggregate.merge(groups, aggregate.lift(table(part), times), count))
    groups = np.tile(np.arange(count), len(parts))
    states = aggregate.merge(groups, pa.concat_arrays(merged), count)
    assert states.type == aggregate.state
    results = aggregate.finish(states)
    assert results.type == aggregate.result
    return list(results.to_pylist())


def plainly(function: str, timed: list[tuple[int, Any]]) -> Any:
    values = [each for _, each in timed]
    if function in ("count", "distinct"):
        return len(values) if function == "count" else len(set(values))
    if not values:
        return None
    if function == "avg":
        return pytest.approx(float(sum(values)) / len(values))
    if function in ("first", "last"):
        return (min if function == "first" else max)(timed)[1]
    return {"sum": sum, "min": min, "max": max}[function](values)


PAIRS = [
    *((function, column) for function in ("sum", "avg") for column in ("number", "price")),
    *((each, column) for each in ("count", "min", "max", "first", "last", "distinct") for column in ROWS.names),
]


@pytest.mark.parametrize(("function", "column"), PAIRS)
@settings(max_examples=10)
@given(st.lists(rows_of, min_size=1, max_size=4))
def test_an_aggregate_is_that_of_plain_python_however_rows_were_parted(
    function: str, column: str, parts: list[list[Any]]
) -> None:
    place = 2 + ROWS.names.index(column)
    everything = [row for part in parts for row in part]
    expected = [
        plainly(function, [(row[1], row[place]) for row in everything if row[0] == group and row[place] is not None])
        for group in range(3)
    ]
    assert aggregated(aggregate_of("x", (function, column), ROWS), parts) == expected


@pytest.mark.parametrize(("function", "expected"), [("first", "1.0"), ("last", "nan")])
def test_of_values_at_one_time_not_a_number_is_the_largest(function: str, expected: str) -> None:
    rows = pa.table({"value": pa.array([2.0, float("nan"), 1.0, None])})
    aggregate = aggregate_of("x", (function, "value"), rows.schema)
    states = aggregate.merge(np.zeros(4, np.int64), aggregate.lift(rows, np.zeros(4, np.int64)), 1)
    assert [str(each) for each in aggregate.finish(states).to_pylist()] == [expected]


@settings(max_examples=40)
@given(st.lists(rows_of, min_size=1, max_size=4), st.integers(1, 3))
def test_the_top_are_the_most_frequent_and_of_equally_frequent_ones_the_smaller(
    parts: list[list[Any]], size: int
) -> None:
    found = aggregated(Top("x", "word", pa.string(), size, "count", None, pa.int64()), parts)
    for group in range(3):
        words = Counter(row[4] for part in parts for row in part if row[0] == group and row[4] is not None)
        ranked = sorted(words.items(), key=lambda each: (-each[1], each[0]))[:size]
        assert [(each["item"], each["weight"]) for each in found[group]] == ranked


def test_a_value_whose_scores_are_all_null_is_not_ranked() -> None:
    parts = [[(0, 0, None, None, "a", None), (0, 0, 5, None, "b", None)]]
    found = aggregated(Top("x", "word", pa.string(), 3, "sum", "number", pa.int64()), parts, count=1)
    assert found == [[{"item": "b", "weight": 5}]]


@pytest.mark.parametrize("count", [0, 1, 2, 10, 100, 5_000, 200_000])
def test_different_values_are_counted_with_an_error_of_a_few_percent_and_repeats_do_not_count(count: int) -> None:
    hashes = np.random.default_rng(count).integers(-(2**63), 2**63 - 1, count, dtype=np.int64)
    aggregate = ApproximateDistinctCount("x", HASH + "word")
    rows = pa.table({HASH + "word": pa.array(np.r_[hashes, hashes[: count // 2]]).cast(pa.int64())})
    lifted = aggregate.lift(rows, np.zeros(rows.num_rows, np.int64))
    half = rows.num_rows // 2
    parts = [aggregate.merge(np.zeros(len(each), np.int64), each, 1) for each in (lifted[:half], lifted[half:])]
    states = aggregate.merge(np.zeros(2, np.int64), pa.concat_arrays(parts), 1)
    (found,) = aggregate.finish(states).to_pylist()
    assert found == pytest.approx(count, rel=0.05, abs=0.5)
    assert len(states[0]) <= 4096


def test_nothing_was_seen_of_nulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_sketches, "SKETCHES_AT_ONCE", 2)
    aggregate = ApproximateDistinctCount("x", "hash")
    rows = pa.table({"hash": pa.array([None, 1, None], pa.int64())})
    states = aggregate.merge(np.array([0, 1, 1]), aggregate.lift(rows, np.zeros(3, np.int64)), 3)
    assert aggregate.finish(states).to_pylist() == [0, 1, 0]


numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60)


@given(numbers, st.floats(0, 1), st.integers(0, 60))
def test_a_percentile_is_within_its_error_of_the_value_that_is_there(
    values: list[float], wanted: float, cut: int
) -> None:
    aggregate = Percentiles("x", "value", (wanted,), True)
    parts = []
    for part in (values[:cut], values[cut:]):
        lifted = aggregate.lift(pa.table({"value": pa.array(part, pa.float64())}), np.zeros(len(part), np.int64))
        parts.append(aggregate.merge(np.zeros(len(part), np.int64), lifted, 1))
    states = aggregate.merge(np.zeros(2, np.int64), pa.concat_arrays(parts), 1)
    (found,) = aggregate.finish(states).to_pylist()
    exact = sorted(values)[int(np.floor(wanted * (len(values) - 1)))]
    near = [exact, sorted(values)[min(int(np.floor(wanted * (len(values) - 1))) + 1, len(values) - 1)]]
    assert any(found == pytest.approx(each, rel=PERCENTILE_ERROR * 1.0001, abs=1e-300) for each in near)


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=30))
def test_bins_keep_the_order_of_numbers_and_stand_for_them(values: list[float]) -> None:
    bins = bins_of(np.array(values))
    order = np.argsort(values)
    assert (np.diff(bins[order].astype(np.int64)) >= 0).all()
    finite = np.isfinite(values) & (np.abs(values) < 1e308)
    there = np.array(values)[finite]
    assert values_of(bins[finite].astype(np.int64)) == pytest.approx(there, rel=PERCENTILE_ERROR * 1.0001, abs=1e-300)


def test_several_percentiles_share_a_sketch_and_nulls_and_nan_are_left_out() -> None:
    rows = pa.table({"value": pa.array([*map(float, range(101)), None, float("nan")])})
    aggregate = aggregate_of("x", ("percentile", "value", [0.1, 0.9]), pa.schema([("value", pa.float64())]))
    groups = np.zeros(rows.num_rows, np.int64)
    states = aggregate.merge(groups, aggregate.lift(rows, groups), 2)
    found = aggregate.finish(states).to_pylist()
    assert found[0] == [pytest.approx(10, rel=0.01), pytest.approx(90, rel=0.01)]
    assert found[1] == [None, None]


@pytest.mark.parametrize(
    ("kind", "most"),
    [(pa.int64(), str(2**63 - 1)), (pa.decimal128(38, 2), f"{'9' * 36}.99")],
)
def test_a_sum_that_its_type_has_no_room_for_is_an_error_and_does_not_wrap_around(kind: pa.DataType, most: str) -> None:
    values = pa.table({"x": pa.array([most, most, f"-{most}", f"-{most}"]).cast(kind), "who": ["a", "a", "a", "a"]})
    times = np.arange(4)
    for aggregate in (
        aggregate_of("total", ("sum", "x"), values.schema),
        Top("total", "who", pa.string(), 1, "sum", "x", wide(kind)),
    ):
        lifted = aggregate.lift(values, times)
        sums = aggregate.merge(np.array([0, 1, 0, 1]), lifted, 2)
        assert sums.to_pylist() in ([0, 0], [[{"item": "a", "weight": 0}]] * 2)
        with pytest.raises(HeadraceError, match=r"a sum of 'total' is too large for its type.*cast the column"):
            aggregate.merge(np.array([0, 0, 1, 1]), lifted, 2)
