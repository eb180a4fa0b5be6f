"""Session windows, without Spark: early results fold to what is known, and all end as a plain loop has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.aggregates.requests import aggregate_of
from headrace.spark.aggregates.totals import EVENTS
from headrace.spark.state.operator import BEGINNING
from headrace.spark.windowing.session_operator import Sessions
from tests.unit.spark.state_world import (
    KEYS,
    LATENESS_S,
    ROWS,
    SECOND,
    Event,
    Stream,
    added_up,
    arrivals,
    bounded,
    events,
    folded,
    out_of_order,
    streamed,
    table,
)

GAP_S = 10


def sessions(emit: Any = "final", late: Any = "drop", keep_s: int = 0) -> Sessions:
    asked = {"total": ("sum", "amount"), "lowest": ("min", "amount"), "highest": ("max", "amount")}
    values = [aggregate_of(name, given, ROWS) for name, given in asked.items()]
    late_rows = ROWS if late == "side" else None
    return Sessions(KEYS, "at", GAP_S * SECOND, (EVENTS, *values), emit, late, keep_s * SECOND, late_rows)


def sessions_by_hand(rows: Sequence[Event]) -> Counter[tuple[Any, ...]]:
    """(user, start, end, events, total, lowest, highest), the plain way."""
    found: list[list[Event]] = []
    for event in sorted(rows, key=lambda each: (str(each[0]), each[1])):
        same = found and found[-1][-1][0] == event[0] and event[1] < found[-1][-1][1] + GAP_S
        if same:
            found[-1].append(event)
        else:
            found.append([event])
    results = []
    for each in found:
        amounts = [amount for _, _, amount in each if amount is not None]
        values = (sum(amounts), min(amounts), max(amounts)) if amounts else (None, None, None)
        results.append((each[0][0], each[0][1], each[-1][1] + GAP_S, len(each), *values))
    return Counter(results)


def plain(results: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            row["user"],
            int(row["session_start"].timestamp()),
            int(row["session_end"].timestamp()),
            row["events"],
            row["total"],
            row["lowest"],
            row["highest"],
        )
        for row in results.to_pylist()
    )


@settings(max_examples=40)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_sessions_are_those_of_a_plain_loop_whatever_the_cuts_the_order_and_the_restarts(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    expected = sessions_by_hand([event for batch in batches for event in batch])
    stream = streamed(sessions(), batches, restarts)
    assert plain(stream.finish()) == expected
    assert stream.late_rows == 0
    assert plain(bounded(sessions(), batches)) == expected


@settings(max_examples=40)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_early_sessions_fold_to_what_is_known_after_every_batch_and_to_the_final_ones_in_the_end(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    stream = Stream(sessions("early"))
    known: list[Event] = []
    for number, _ in enumerate(stream.take(map(table, batches), restarts)):
        known += batches[number]
        assert plain(folded(pa.concat_tables(stream.output), "user", "session_start")) == sessions_by_hand(known)
    final = folded(stream.finish(), "user", "session_start")
    assert all(final.column("is_final").to_pylist())
    assert plain(final) == sessions_by_hand(known)


def test_values_may_be_called_as_what_the_operator_keeps_of_a_session() -> None:
    values = [aggregate_of(name, ("max", "amount"), ROWS) for name in ("start", "last", "final", "open")]
    operator = Sessions(KEYS, "at", GAP_S * SECOND, (EVENTS, *values))
    stream = streamed(operator, [[("a", 10, 1)], [("a", 12, 5)], [("a", 14, 3)]], {1, 2})
    (row,) = stream.finish().to_pylist()
    assert [row[each.name] for each in values] == [5, 5, 5, 5]


def test_an_event_exactly_at_the_end_of_a_session_begins_the_next_one() -> None:
    found = bounded(sessions(), [[("a", 10, 1), ("a", 10 + GAP_S, 2)]])
    assert [row["events"] for row in found.to_pylist()] == [1, 1]


def test_a_session_is_final_when_the_watermark_comes_to_its_end_and_not_before() -> None:
    stream = Stream(sessions())
    stream.push(table([("a", 10, 1)]))
    stream.push(ROWS.empty_table(), (10 + GAP_S) * SECOND - 1)
    assert [each.num_rows for each in stream.output] == [0, 0]
    stream.push(ROWS.empty_table(), (10 + GAP_S) * SECOND)
    assert stream.output[-1].num_rows == 1
    assert stream.store.manifest_value().key_count == 0


def test_a_session_that_is_touched_just_before_its_end_stays_open_for_an_event_within_it() -> None:
    stream = Stream(sessions())
    stream.push(table([("a", 10, 1)]), BEGINNING)
    stream.push(table([("a", 40, 1)]), (10 + GAP_S - 1) * SECOND)
    stream.push(table([("a", 10 + GAP_S - 1, 1)]), (10 + GAP_S - 1) * SECOND)
    assert sorted(row["events"] for row in stream.finish().to_pylist()) == [1, 2]


def test_an_event_behind_the_watermark_and_one_without_a_time_are_counted_and_left_out() -> None:
    stream = Stream(sessions())
    stream.push(table([("a", 100, 1)]))
    late = table([("a", 100 - LATENESS_S - 1, 1), ("a", 100 - LATENESS_S, 1)])
    undated = pa.Table.from_pylist([{"user": "a", "at": None, "amount": 1}], ROWS)
    stream.push(pa.concat_tables([late, undated]))
    assert stream.late_rows == 2
    assert stream.store.manifest_value().late_rows == 2
    assert sum(row["events"] for row in stream.finish().to_pylist()) == 2


def test_a_result_under_a_start_that_moved_comes_again_as_it_was_and_is_taken_back() -> None:
    stream = Stream(sessions("early"))
    stream.push(table([("a", 100, 1), ("a", 112, 2)]), BEGINNING)
    stream.push(table([("a", 105, 4)]), BEGINNING)
    first, second = (each.to_pylist() for each in stream.output)
    (taken_back,) = [row for row in second if row["is_retraction"]]
    (as_it_was,) = [row for row in first if row["session_start"] == taken_back["session_start"]]
    assert taken_back == {**as_it_was, "is_retraction": True}
    assert [row["total"] for row in second if not row["is_retraction"]] == [7]


def test_sessions_know_every_function_that_windows_know() -> None:
    functions = {"who": ("distinct", "amount"), "mean": ("avg", "amount"), "end": ("last", "amount")}
    values = [aggregate_of(name, given, ROWS) for name, given in functions.items()]
    operator = Sessions(KEYS, "at", GAP_S * SECOND, tuple(values))
    stream = Stream(operator)
    stream.push(table([("a", 100, 1), ("a", 101, 3)]))
    stream.restart()
    stream.push(table([("a", 99, 1), ("a", 102, None)]))
    (row,) = stream.finish().to_pylist()
    assert (row["who"], round(row["mean"], 6), row["end"]) == (2, round(5 / 3, 6), 3)


KEEP_S = 40


@settings(max_examples=40)
@given(
    events, st.lists(st.integers(0, 8), max_size=20), st.sampled_from(["final", "early"]), st.sets(st.integers(0, 9))
)
def test_stragglers_correct_sessions_that_were_final_join_them_and_open_them_again(
    arrived: list[Event], cuts: list[int], emit: str, restarts: set[int]
) -> None:
    """Any order at all: a row counts unless its own session would have ended longer ago than sessions are kept."""
    stream = Stream(sessions(emit, "correct", KEEP_S))
    known: list[Event] = []
    late = 0
    for number, (batch, watermark) in enumerate(out_of_order(arrived, cuts)):
        late += sum(event[1] < watermark for event in batch)
        known += [event for event in batch if event[1] + GAP_S + KEEP_S > watermark]
        if number in restarts:
            stream.restart()
        stream.push(table(batch), watermark * SECOND)
    results = stream.finish()
    assert stream.late_rows == late
    assert plain(folded(results, "user", "session_start")) == sessions_by_hand(known)
    assert added_up(results, plain) == sessions_by_hand(known)
    assert stream.store.manifest_value().key_count == 0


def test_the_last_row_that_may_still_come_finds_the_session_that_it_makes_longer() -> None:
    """A session is held for as long as a row counts that is almost a gap younger than its last one."""
    youngest = 100 + GAP_S - 1
    stream = Stream(sessions(late="correct", keep_s=KEEP_S))
    stream.push(table([("a", 100, 1)]), BEGINNING)
    last_us = (youngest + GAP_S + KEEP_S) * SECOND - 1
    for now_us in ((100 + GAP_S) * SECOND, last_us - SECOND, last_us):
        stream.push(ROWS.empty_table(), now_us)
    stream.push(table([("a", youngest, 2)]), last_us)
    told = [(row["events"], row["is_retraction"]) for row in stream.output[-1].to_pylist()]
    assert told == [(1, True), (2, False)]
    assert plain(folded(stream.finish(), "user", "session_start")) == sessions_by_hand(
        [("a", 100, 1), ("a", youngest, 2)]
    )


def test_late_rows_of_sessions_come_out_beside_the_results() -> None:
    stream = Stream(sessions(late="side"))
    stream.push(table([("a", 100, 1)]), BEGINNING)
    undated = pa.Table.from_pylist([{"user": "b", "at": None, "amount": 9}], ROWS)
    stream.push(pa.concat_tables([table([("a", 99, 2), ("a", 105, 3)]), undated]), 105 * SECOND)
    late = [row["late"] for row in stream.output[-1].to_pylist()]
    assert [(row["user"], row["amount"]) for row in late] == [("a", 2), ("b", 9)]
    assert stream.late_rows == 2
    (row,) = [row for row in stream.finish().to_pylist() if row["late"] is None]
    assert (row["events"], row["total"]) == (2, 4)
