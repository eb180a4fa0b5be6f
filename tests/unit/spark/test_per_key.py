"""A user's function per key, without Spark: it sees rows and timers in the order of time, whatever the batches were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.spark.state.per_key_operator import TIMERS_MAX, Answer, PerKey
from tests.unit.spark.state_world import ROWS, TIME, Event, Stream, arrivals, as_bag, bounded, streamed, table

Values = Mapping[str, Any]

PAUSE = timedelta(seconds=15)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HELD = pa.struct([("total", pa.int64()), ("last", pa.timestamp("us", "UTC"))])
GIVEN = pa.schema([("user", pa.string()), ("total", pa.int64()), ("second", pa.int64())])


def visits(key: Values, rows: Sequence[Values], state: Values | None, now: datetime) -> Answer:
    """What a user adds up to between pauses: given out by a timer, when the pause is over."""
    if not rows:
        assert state is not None
        second = int((now - EPOCH).total_seconds())
        return Answer([{"user": key["user"], "total": state["total"], "second": second}])
    total = (state["total"] if state else 0) + sum(row["amount"] or 0 for row in rows)
    return Answer(state={"total": total, "last": now}, timer=rows[-1]["at"] + PAUSE)


def per_key(function: Any = visits) -> PerKey:
    return PerKey(ROWS, "at", function, HELD, GIVEN)


def by_a_plain_loop(events: Sequence[Event]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for user in {event[0] for event in events}:
        total, last = 0, None
        for second, amount in sorted((second, amount or 0) for name, second, amount in events if name == user):
            if last is not None and second - last >= PAUSE.total_seconds():
                found[(user, total, last + int(PAUSE.total_seconds()))] += 1
                total = 0
            total, last = total + amount, second
        found[(user, total, (last or 0) + int(PAUSE.total_seconds()))] += 1
    return found


@settings(deadline=None)
@given(arrivals(), st.sets(st.integers(0, 12)))
def test_a_function_with_timers_gives_what_a_plain_loop_gives_whatever_the_cuts_the_order_and_the_restarts(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    events = [event for batch in batches for event in batch]
    assert as_bag(bounded(per_key(), batches)) == by_a_plain_loop(events)
    assert as_bag(streamed(per_key(), batches, restarts).finish()) == by_a_plain_loop(events)


def test_rows_come_in_the_order_of_time_and_a_timer_at_its_place_among_them() -> None:
    seen: list[tuple[int, int]] = []

    def look(key: Values, rows: Sequence[Values], state: Values | None, now: datetime) -> Answer:
        seen.append((len(rows), int((now - EPOCH).total_seconds())))
        return Answer(state={"total": 0, "last": now}, timer=now + timedelta(seconds=5) if rows else None)

    bounded(per_key(look), [[("a", 30, 1), ("a", 10, 1), ("a", 12, 1), ("a", 17, 1)]])
    assert seen == [(1, 10), (1, 12), (0, 17), (1, 17), (0, 22), (1, 30), (0, 35)], (
        "a row at the timer's time comes after it"
    )


def test_a_key_is_forgotten_when_the_function_gives_no_state() -> None:
    stream = Stream(per_key(lambda key, rows, state, now: Answer([{"user": key["user"]}])))
    stream.push(table([("a", 1, 1)]), 0)
    stream.push(table([]), 100_000_000)
    assert stream.output[-1].num_rows == 1
    assert stream.keys_held == 0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda key, rows, state, now: None, "gave NoneType and not hr.Answer"),
        (lambda key, rows, state, now: Answer([{"usr": "a"}]), "gave a column 'usr'; output has user, total, second"),
        (lambda key, rows, state, now: Answer([{"total": "much"}]), "does not fit output"),
        (lambda key, rows, state, now: Answer(state={"total": "much"}), "does not fit state"),
        (lambda key, rows, state, now: Answer(state={"totl": 1}), "gave a state with 'totl'; state has total, last"),
        (lambda key, rows, state, now: Answer(state={"total": 2**63}), "does not fit state"),
        (lambda key, rows, state, now: Answer([{"total": 2**63}]), "does not fit output"),
        (lambda key, rows, state, now: Answer(timer=now), "which is not after"),
        (
            lambda key, rows, state, now: Answer(state={"total": 1}, timer=now + PAUSE),
            f"set its timer {TIMERS_MAX} times",
        ),
    ],
)
def test_what_a_function_must_not_give_is_refused_in_plain_words(function: Any, words: str) -> None:
    with pytest.raises(HeadraceError, match=words):
        bounded(per_key(function), [[("a", 1, 1)]])


@pytest.mark.parametrize("year_us", [253_402_300_800_000_000, 1_700_000_000_000_000_000, -62_135_596_800_000_001])
@pytest.mark.parametrize("place", ["event time", "column", "key"])
def test_a_row_with_a_time_that_python_does_not_have_is_late_and_does_not_end_the_query(
    place: str, year_us: int
) -> None:
    """Milliseconds that were taken for seconds, say."""
    times = {each: year_us if each == place else 1 for each in ("event time", "column", "key")}
    rows = pa.schema([("born", TIME), ("at", TIME), ("inner", pa.struct([("seen", TIME)]))])
    bad = pa.table(
        [
            pa.array([times["key"], 1], pa.int64()).cast(TIME),
            pa.array([times["event time"], 1], pa.int64()).cast(TIME),
            pa.StructArray.from_arrays(
                [pa.array([times["column"], None], pa.int64()).cast(TIME)], fields=[*rows][2].type
            ),
        ],
        schema=rows,
    )
    given = pa.schema([("rows", pa.int64())])
    function = PerKey(rows, "at", lambda key, rows, state, now: Answer([{"rows": len(rows)}]), HELD, given)
    stream = Stream(function, rows, pa.struct([("born", TIME)]))
    stream.push(bad)
    assert sum(row["rows"] for row in stream.finish().to_pylist()) == 1
    assert stream.late_rows == 1
