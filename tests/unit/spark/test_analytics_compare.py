"""Windows beside earlier ones, without Spark: rows are given as Spark SQL gives them to the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.aggregates.requests import aggregate_of
from headrace.spark.state.operator import run_bounded
from headrace.spark.windowing.window_operator import WINDOW, Windows
from tests.unit.spark.state_world import KEYS, SECOND, TIME, Event, Stream, arrivals, folded

SIZE_S = 10
LATER = {0: 0, 1: 10, 2: 40}
"""By role how many seconds later the window is that a row counts in."""
ROWS = pa.schema([("user", pa.string()), ("at", TIME), *((f"_{role}_", pa.int64()) for role in LATER), *WINDOW])
WINDOW_KEYS = pa.struct([*KEYS, *WINDOW])


def compared() -> Windows:
    values = tuple(aggregate_of(f"sum{role}", ("sum", f"_{role}_"), ROWS) for role in LATER)
    counts = tuple(aggregate_of(f"events{role}", ("count", f"_{role}_"), ROWS) for role in LATER)
    return Windows(KEYS, "at", (*counts, *values))


def table(rows: Sequence[Event]) -> pa.Table:
    found = []
    for user, second, _ in rows:
        for role, later in LATER.items():
            start = second - second % SIZE_S + later
            marks = {f"_{each}_": 1 if each == role else None for each in LATER}
            bounds = {"window_start": start * SECOND, "window_end": (start + SIZE_S) * SECOND}
            found.append({"user": user, "at": second * SECOND, **marks, **bounds})
    return pa.Table.from_pylist(found, ROWS)


def by_hand(rows: Sequence[Event]) -> dict[tuple[Any, int], tuple[int, ...]]:
    counts: dict[tuple[Any, int], int] = {}
    for user, second, _ in rows:
        place = (user, second - second % SIZE_S)
        counts[place] = counts.get(place, 0) + 1
    there = {(user, start + later) for user, start in counts for later in LATER.values()}
    return {
        (user, start): tuple(counts.get((user, start - later), 0) for later in LATER.values()) for user, start in there
    }


def plain(results: pa.Table) -> dict[tuple[Any, int], tuple[int, ...]]:
    rows = results.to_pylist()
    for row in rows:
        assert all(row[f"sum{role}"] == (row[f"events{role}"] or None) for role in LATER), "a sum of nothing is null"
    return {
        (row["user"], int(row["window_start"].timestamp())): tuple(row[f"events{role}"] for role in LATER)
        for row in rows
    }


@settings(max_examples=25)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_each_window_has_the_counts_of_those_before_it_and_empty_ones_are_there_when_they_are_compared(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    everything = [event for batch in batches for event in batch]
    stream = Stream(compared(), ROWS, WINDOW_KEYS)
    for _ in stream.take(map(table, batches), restarts):
        pass
    found = folded(stream.finish(), "user", "window_start")
    assert plain(found) == by_hand(everything)
    assert all(found.column("is_final").to_pylist())
    assert stream.late_rows == 0
    bounded = run_bounded(compared(), table(everything), WINDOW_KEYS, "at")
    assert plain(bounded) == by_hand(everything)


def test_a_comparison_with_long_ago_is_held_as_sums_and_not_as_rows() -> None:
    stream = Stream(compared(), ROWS, WINDOW_KEYS)
    stream.push(table([("a", 1, 1)]))
    held = stream.store.manifest_value().byte_count
    stream.push(table([("a", 1, 1)] * 1000))
    assert stream.store.manifest_value().key_count == len(LATER)
    assert stream.store.manifest_value().byte_count < 3 * held
