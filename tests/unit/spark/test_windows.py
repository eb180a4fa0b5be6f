"""Windows, without Spark: whatever the cuts, the order and the restarts, they end as a plain loop has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.aggregates.requests import aggregate_of
from headrace.spark.aggregates.totals import EVENTS, HASH, Top
from headrace.spark.state.bucket import Bucket
from headrace.spark.state.operator import BEGINNING, END, advance, micros, run_bounded
from headrace.spark.windowing.window_operator import WINDOW, Windows
from tests.unit.spark.state_world import (
    KEYS,
    ROWS,
    SECOND,
    TIME,
    Event,
    Stream,
    added_up,
    arrivals,
    events,
    folded,
    out_of_order,
)
from tests.unit.spark.state_world import table as plain_table

SIZE_S = 10
ASKED: dict[str, tuple[Any, ...]] = {
    "total": ("sum", "amount"),
    "lowest": ("min", "amount"),
    "mean": ("avg", "amount"),
    "opening": ("first", "amount"),
    "closing": ("last", "amount"),
    "kinds": ("distinct", "amount"),
}
WINDOW_KEYS = pa.struct([*KEYS, *WINDOW])
WINDOW_ROWS = pa.schema([*ROWS, *WINDOW])


def windows(emit: Any = "final", late: Any = "drop", keep_s: int = 0) -> Windows:
    values = tuple(aggregate_of(name, given, ROWS) for name, given in ASKED.items())
    late_rows = ROWS if late == "side" else None
    return Windows(KEYS, "at", (EVENTS, *values), emit, late, keep_s * SECOND, late_rows)


def starts_of(second: int, every_s: int) -> list[int]:
    last = second - second % every_s
    return list(range(last, second - SIZE_S, -every_s))


def table(rows: Sequence[Event], every_s: int = SIZE_S) -> pa.Table:
    """The rows once for each window, as Spark SQL gives them to the operator."""
    pairs = [(event, start) for event in rows for start in starts_of(event[1], every_s)]
    found = plain_table([event for event, _ in pairs])
    for name, offset in (("window_start", 0), ("window_end", SIZE_S)):
        times = pa.array([(start + offset) * SECOND for _, start in pairs], pa.int64()).cast(TIME)
        found = found.append_column(name, times)
    return found


def by_hand(rows: Sequence[Event], every_s: int = SIZE_S) -> Counter[tuple[Any, ...]]:
    groups: dict[tuple[Any, int], list[Event]] = {}
    for event in rows:
        for start in starts_of(event[1], every_s):
            groups.setdefault((event[0], start), []).append(event)
    return Counter((user, start, *_values(members)) for (user, start), members in groups.items())


def _values(members: list[Event]) -> tuple[Any, ...]:
    timed = sorted((second, amount) for _, second, amount in members if amount is not None)
    amounts = [amount for _, amount in timed]
    if not amounts:
        return (len(members), None, None, None, None, None, 0)
    mean = round(sum(amounts) / len(amounts), 9)
    return (len(members), sum(amounts), min(amounts), mean, timed[0][1], timed[-1][1], len(set(amounts)))


def plain(results: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            row["user"],
            int(row["window_start"].timestamp()),
            row["events"],
            *(row["mean"] and round(row["mean"], 9) if name == "mean" else row[name] for name in ASKED),
        )
        for row in results.to_pylist()
    )


def new_stream(operator: Windows) -> Stream:
    return Stream(operator, WINDOW_ROWS, WINDOW_KEYS)


@settings(max_examples=25)
@given(arrivals(), st.sets(st.integers(0, 30)), st.sampled_from([SIZE_S, 5, 3]))
def test_final_windows_are_those_of_a_plain_loop_whatever_the_cuts_the_order_and_the_restarts(
    batches: list[list[Event]], restarts: set[int], every_s: int
) -> None:
    everything = [event for batch in batches for event in batch]
    expected = by_hand(everything, every_s)
    stream = new_stream(windows())
    for _ in stream.take([table(batch, every_s) for batch in batches], restarts):
        pass
    found = stream.finish()
    assert plain(found) == expected
    assert all(row["is_final"] and row["revision"] == 1 and not row["is_retraction"] for row in found.to_pylist())
    assert stream.late_rows == 0
    assert stream.store.manifest_value().key_count == 0, "nothing is held in the end"
    bounded = run_bounded(windows(), table(everything, every_s), WINDOW_KEYS, "at")
    assert plain(bounded) == expected


@settings(max_examples=10)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_sketches_and_the_most_frequent_are_those_of_all_rows_at_once_whatever_the_cuts_and_restarts(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    hashed = pa.field(f"{HASH}amount", pa.int64())
    schema = pa.schema([*ROWS, hashed])
    asked: dict[str, tuple[Any, ...]] = {
        "about": ("approx_distinct", "amount"),
        "middle": ("percentile", "amount", (0.5, 0.9)),
    }
    sketches = tuple(aggregate_of(name, given, schema) for name, given in asked.items())
    best = Top("best", "amount", pa.int64(), 2, "count", None, pa.int64())
    operator = Windows(KEYS, "at", (*sketches, best))

    def with_hashes(rows: Sequence[Event]) -> pa.Table:
        found = table(rows)
        spread = [None if each is None else each * 0x1379B97F4A7C15F3 for each in found.column("amount").to_pylist()]
        return found.append_column(hashed, pa.array(spread, pa.int64()))

    stream = Stream(operator, pa.schema([*WINDOW_ROWS, hashed]), WINDOW_KEYS)
    for _ in stream.take(map(with_hashes, batches), restarts):
        pass
    everything = with_hashes([event for batch in batches for event in batch])
    expected = run_bounded(operator, everything, WINDOW_KEYS, "at")
    assert Counter(map(repr, stream.finish().to_pylist())) == Counter(map(repr, expected.to_pylist()))


@settings(max_examples=25)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_early_windows_fold_to_what_is_known_after_every_batch_and_to_the_final_ones_in_the_end(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    stream = new_stream(windows("early"))
    known: list[Event] = []
    for number, _ in enumerate(stream.take(map(table, batches), restarts)):
        known += batches[number]
        assert plain(folded(pa.concat_tables(stream.output), "user", "window_start")) == by_hand(known)
    final = folded(stream.finish(), "user", "window_start")
    assert all(final.column("is_final").to_pylist())
    assert plain(final) == by_hand(known)


KEEP_S = 60


@settings(max_examples=30)
@given(
    events, st.lists(st.integers(0, 8), max_size=20), st.sampled_from(["final", "early"]), st.sets(st.integers(0, 9))
)
def test_stragglers_correct_what_was_final_and_adding_and_subtracting_gives_the_same_as_keeping_a_table(
    arrived: list[Event], cuts: list[int], emit: str, restarts: set[int]
) -> None:
    """Any order at all: a row counts unless its window's end is further behind the watermark than it is kept."""
    stream = new_stream(windows(emit, "correct", KEEP_S))
    known: list[Event] = []
    late = 0
    for number, (batch, watermark) in enumerate(out_of_order(arrived, cuts)):
        ends = [starts_of(event[1], SIZE_S)[0] + SIZE_S for event in batch]
        late += sum(end <= watermark for end in ends)
        known += [event for event, end in zip(batch, ends, strict=True) if end + KEEP_S > watermark]
        if number in restarts:
            stream.restart()
        stream.push(table(batch), watermark * SECOND)
    results = stream.finish()
    assert stream.late_rows == late
    assert plain(folded(results, "user", "window_start")) == by_hand(known)
    assert added_up(results, plain) == by_hand(known)
    assert stream.store.manifest_value().key_count == 0


def test_a_straggler_publishes_the_old_row_as_a_retraction_and_then_the_new_one() -> None:
    stream = new_stream(windows(late="correct", keep_s=KEEP_S))
    stream.push(table([("a", 100, 1)]), BEGINNING)
    stream.push(table([]), 110 * SECOND)
    stream.push(table([("a", 105, 2)]), 120 * SECOND)
    given_out = [
        (row["revision"], row["is_final"], row["is_retraction"], row["events"], row["total"])
        for each in stream.output
        for row in each.to_pylist()
    ]
    assert given_out == [(1, True, False, 1, 1), (1, True, True, 1, 1), (2, True, False, 2, 3)]
    assert stream.late_rows == 1


def test_a_window_can_be_corrected_until_it_is_let_go_and_not_a_moment_longer() -> None:
    stream = new_stream(windows(late="correct", keep_s=KEEP_S))
    stream.push(table([("a", 100, 1), ("b", 100, 1)]), BEGINNING)
    stream.push(table([]), 110 * SECOND)
    stream.push(table([("a", 101, 2)]), (110 + KEEP_S) * SECOND - 1)
    assert stream.output[-1].num_rows == 2
    stream.push(table([("b", 101, 2)]), (110 + KEEP_S) * SECOND)
    assert stream.output[-1].num_rows == 0
    assert stream.late_rows == 2
    assert stream.store.manifest_value().key_count == 0


def test_a_straggler_in_a_window_that_had_nothing_is_a_first_final_result() -> None:
    stream = new_stream(windows(late="correct", keep_s=KEEP_S))
    stream.push(table([("a", 100, 1)]), 120 * SECOND)
    assert [(row["revision"], row["is_retraction"]) for row in stream.output[-1].to_pylist()] == [(1, False)]


def test_late_rows_come_out_beside_the_results_with_the_window_that_they_missed() -> None:
    stream = new_stream(windows(late="side"))
    stream.push(table([("a", 109, 1)]), BEGINNING)
    undated = table([(None, 1, 7)]).to_pylist()[0] | {"at": None, "window_start": None, "window_end": None}
    rows = pa.concat_tables([table([("a", 105, 2), ("b", 110, 3)]), pa.Table.from_pylist([undated], WINDOW_ROWS)])
    stream.push(rows, 110 * SECOND)
    found = stream.output[-1].to_pylist()
    results = [row for row in found if row["late"] is None]
    late = [row for row in found if row["late"] is not None]
    assert [(row["user"], row["events"]) for row in results] == [("a", 1)]
    assert [(row["late"]["user"], row["late"]["amount"], row["events"]) for row in late] == [
        ("a", 2, None),
        (None, 7, None),
    ]
    assert int(late[0]["window_start"].timestamp()) == 100
    assert late[1]["window_start"] is None
    assert stream.late_rows == 2


def test_a_row_behind_the_watermark_counts_as_long_as_its_window_is_open() -> None:
    stream = new_stream(windows())
    stream.push(table([("a", 101, 1)]), 109 * SECOND)
    stream.push(table([("a", 102, 1)]), 110 * SECOND - 1)
    assert stream.late_rows == 0
    (row,) = stream.finish().to_pylist()
    assert row["events"] == 2


def test_a_value_may_be_called_as_what_the_operator_keeps_of_a_window() -> None:
    operator = Windows(KEYS, "at", (EVENTS, aggregate_of("final", ("max", "amount"), ROWS)))
    stream = new_stream(operator)
    stream.push(table([("a", 10, 1)]), BEGINNING)
    stream.push(table([("a", 12, 5)]), BEGINNING)
    (row,) = stream.finish().to_pylist()
    assert row["final"] == 5


def test_a_row_exactly_on_a_boundary_belongs_to_the_window_that_begins_there() -> None:
    found = run_bounded(windows(), table([("a", 109, 1), ("a", 110, 1)]), WINDOW_KEYS, "at").to_pylist()
    assert [int(row["window_start"].timestamp()) for row in found] == [100, 110]


def test_windows_without_rows_are_not_given_out() -> None:
    found = run_bounded(windows(), table([("a", 100, 1), ("a", 150, 1)]), WINDOW_KEYS, "at")
    assert found.num_rows == 2


def test_a_batch_rewrites_only_the_windows_that_it_touches() -> None:
    stream = new_stream(windows(late="correct", keep_s=100_000))
    stream.push(table([("a", second, 1) for second in range(1, 5_000, SIZE_S)]), BEGINNING)
    held = stream.store.manifest_value().byte_count
    stream.push(table([("a", 4_001, 1)]), BEGINNING)
    assert stream.store.manifest_value().key_count == 500
    assert stream.store.manifest_value().byte_count - held < held / 20


@pytest.mark.parametrize("now_us", [BEGINNING, 0, END])
def test_a_row_without_a_time_is_late_at_any_time(now_us: int) -> None:
    stream = new_stream(windows(late="correct", keep_s=KEEP_S))
    undated = {"user": "a", "at": None, "amount": 1, "window_start": None, "window_end": None}
    rows = pa.concat_tables([pa.Table.from_pylist([undated], WINDOW_ROWS), table([("a", 1, 1)])])
    stream.push(rows, now_us)
    assert stream.late_rows == (2 if now_us == END else 1)


def test_after_a_restart_windows_of_processing_time_show_a_peak_that_never_was_and_those_of_event_time_do_not() -> None:
    """An event each second; the job works every ten seconds, is down from 30 to 80, and finds what has gathered."""
    by_event, by_processing = new_stream(windows()), new_stream(windows())
    taken = 0
    for clock in [10, 20, 30, 80, 90, 100]:
        if clock == 80:
            by_event.restart()
            by_processing.restart()
        by_event.push(table([("a", second, 1) for second in range(taken, clock)]))
        by_processing.push(table([("a", clock, 1)] * (clock - taken)))
        taken = clock
    peaks = [
        {int(row["window_start"].timestamp()): row["events"] for row in each.finish().to_pylist()}
        for each in (by_event, by_processing)
    ]
    assert peaks[0] == dict.fromkeys(range(0, 100, 10), 10)
    assert peaks[1] == {**dict.fromkeys([10, 20, 30, 90, 100], 10), 80: 50}
    assert by_event.late_rows == 0


@settings(max_examples=30)
@given(events, st.sets(st.integers(1, 140), min_size=1, max_size=8), st.sampled_from(["drop", "correct"]))
def test_windows_of_rows_that_another_operator_held_until_they_were_final_miss_none_of_them(
    arrived: list[Event], clocks: set[int], late: str
) -> None:
    """Such rows come with times behind the watermark, but not behind where it was before."""
    operator = windows(late=late, keep_s=KEEP_S if late == "correct" else 0)
    bucket = Bucket(operator.layout(WINDOW_KEYS))
    output, late_rows, before = [], 0, 0
    for clock in [*sorted(clocks), 150]:
        batch = table([event for event in arrived if before <= event[1] < clock])
        outcome = advance(bucket, operator, batch, now_us=clock * SECOND, event_time="at", follows=True)
        output.append(outcome.output)
        late_rows += outcome.late_rows
        before = clock
    assert plain(folded(pa.concat_tables(output), "user", "window_start")) == by_hand(arrived)
    assert late_rows == 0


@settings(max_examples=20)
@given(arrivals(), st.sampled_from(["final", "early"]))
def test_what_comes_after_the_clock_has_come_to_a_time_is_not_of_an_earlier_moment(
    batches: list[list[Event]], emit: str
) -> None:
    """So another function can follow, and knows what is final."""
    operator = windows(emit)
    assert operator.output_time == "window_time"
    assert windows(late="correct").output_time is None
    stream = new_stream(operator)
    seen_us = BEGINNING
    for batch in batches:
        clock_us = stream.watermark_us
        moments = micros(stream.push(table(batch)).column("window_time"))
        assert (moments >= seen_us).all()
        seen_us = clock_us
