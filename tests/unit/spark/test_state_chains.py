"""One operator behind another, without Spark: the same in the end as on all rows at once. And where buckets are put."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.aggregates.totals import EVENTS
from headrace.spark.state.bucket import BEGINNING, Bucket
from headrace.spark.state.dedup_operator import Dedup
from headrace.spark.state.operator import END, Operator, advance, micros, run_bounded
from headrace.spark.state.placement import _spark_hash, bucket_numbers
from headrace.spark.tables.join_operators import CHANGE, EVENT, TRUNCATES, AsOf, Matched, change_type, event_type
from headrace.spark.time.clock_operator import SmoothClock
from headrace.spark.windowing.rolling_operator import Rolling
from headrace.spark.windowing.session_operator import Sessions
from headrace.spark.windowing.window_operator import WINDOW, Windows
from tests.unit.spark.stream_world import MemoryStore

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("user", pa.string()), ("at", TIME), ("n", pa.int64())])
USER = pa.struct([("user", pa.string())])
KEY = pa.struct([("user", pa.string()), ("n", pa.int64())])
LATENESS_US = 20
Event = tuple[str, int, int]

DEDUP = Dedup(ROWS, "at", 1000)
VISITS = Sessions(USER, "at", 5)
STAYS = Sessions(USER, "session_end", 8)
SIZE_US = 10
WINDOWED = pa.struct([*USER, *WINDOW])
EVENT_ROW = pa.struct(list(ROWS))
TABLE_ROW = pa.struct([("user", pa.string()), ("home", pa.int64())])
TAGGED = pa.schema(
    [
        ("user", pa.string()),
        (TRUNCATES, pa.bool_()),
        ("_time", TIME),
        (EVENT, event_type(EVENT_ROW)),
        (CHANGE, change_type(TABLE_ROW)),
    ]
)
AS_OF = AsOf(Matched(EVENT_ROW, TABLE_ROW, "version", (("home", "home"),)), "at")

events = st.builds(lambda user, time: (user, time, time), st.sampled_from("ab"), st.integers(0, 60))
"""Rows with one key are copies of each other, so it does not matter which of them comes first."""
batches = st.lists(st.lists(events, max_size=5), max_size=8)


class Place:
    """The buckets of an operator, each with its store; a bucket is worked on when it has rows or something is due."""

    def __init__(self, operator: Operator, keys: pa.StructType, event_time: str, *, follows: bool) -> None:
        self.operator, self.keys, self.event_time, self.follows = operator, keys, event_time, follows
        self.stores = [MemoryStore(), MemoryStore()]
        self.late_rows = 0

    def advance(self, rows: pa.Table, now_us: int) -> pa.Table:
        numbers = [0 if each == "a" else 1 for each in rows.column("user").to_pylist()]
        outputs = [self.operator.output.empty_table()]
        for number, store in enumerate(self.stores):
            mine = rows.filter(pa.array([each == number for each in numbers], pa.bool_()))
            before = store.manifest_value()
            if mine.num_rows or before.due_us <= now_us:
                bucket = Bucket(self.operator.layout(self.keys))  # each time as if the process had been restarted
                bucket.refresh(before, store)
                outcome = advance(
                    bucket, self.operator, mine, now_us=now_us, event_time=self.event_time, follows=self.follows
                )
                bucket.save(before, 2, store)
                self.late_rows += outcome.late_rows
                outputs.append(outcome.output)
        return pa.concat_tables(outputs)


def table(rows: list[Event]) -> pa.Table:
    users, times, numbers = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(users, pa.string()), pa.array(times, pa.int64()).cast(TIME), pa.array(numbers, pa.int64())]
    return pa.Table.from_arrays(columns, schema=ROWS)


def within_lateness(given_batches: list[list[Event]]) -> list[list[Event]]:
    """Without the events that the watermark, as Spark moves it after each batch, would make late."""
    watermark, kept = BEGINNING, []
    for batch in given_batches:
        good = [event for event in batch if event[1] >= watermark]
        kept.append(good)
        watermark = max([watermark, *(time - LATENESS_US for _, time, _ in good)])
    return kept


def in_windows(rows: pa.Table, time: str) -> pa.Table:
    """As Spark SQL gives rows to the operator of windows."""
    starts = micros(rows.column(time)) // SIZE_US * SIZE_US
    rows = rows.select([name for name in rows.column_names if not name.startswith("window_") or name == time])
    for field, offset in zip(WINDOW, (0, SIZE_US), strict=True):
        rows = rows.append_column(field, pa.array(starts + offset).cast(TIME))
    return rows


def tagged(rows: pa.Table) -> pa.Table:
    """Every third row is a change of its user's row, and the others are events."""
    found = []
    for user, at, n in zip(*(rows.column(name).cast(kind).to_pylist() for name, kind in PLAIN), strict=True):
        live = n % 2 == 0
        change = {
            "at": at,
            "position": n,
            "version": str(n),
            "live": live,
            "row": {"user": user, "home": n} if live else None,
        }
        event = {"at": at, "row": {"user": user, "at": at, "n": n}}
        is_change = n % 3 == 0
        found.append(
            {"user": user, "_time": at, EVENT: None if is_change else event, CHANGE: change if is_change else None}
        )
    return pa.Table.from_pylist(found, TAGGED)


PLAIN = (("user", pa.string()), ("at", pa.int64()), ("n", pa.int64()))


@dataclass(frozen=True)
class Stage:
    """A function of a chain: its operator, by which column it goes, and what its rows are made of those before it."""

    operator: Operator
    time: str = "at"
    keys: pa.StructType = USER
    prepare: Callable[[pa.Table], pa.Table] = lambda rows: rows


def windows(time: str, emit: Any = "final") -> Stage:
    return Stage(Windows(USER, time, (EVENTS,), emit), time, WINDOWED, lambda rows: in_windows(rows, time))


CLOCK = SmoothClock(pa.schema([*ROWS, ("sent", TIME)]), "at", "sent", "at", 3, 1000, 30)
CHAINS: dict[str, list[Stage]] = {
    "dedup, sessions, sessions": [Stage(DEDUP, keys=KEY), Stage(VISITS), Stage(STAYS, "session_end")],
    "windows, sessions": [windows("at"), Stage(Sessions(USER, "window_time", 12), "window_time")],
    "windows, windows, windows": [windows("at"), windows("window_time"), windows("window_time")],
    "rolling, windows": [Stage(Rolling(ROWS, "at", 7, (EVENTS,))), windows("at")],
    "sessions, rolling": [
        Stage(VISITS),
        Stage(
            Rolling(VISITS.output.remove(VISITS.output.get_field_index("events")), "session_end", 9, (EVENTS,)),
            "session_end",
        ),
    ],
    "clocks, sessions": [
        Stage(CLOCK, prepare=lambda rows: rows.append_column("sent", rows.column("at"))),
        Stage(VISITS),
    ],
    "join_as_of, windows, sessions": [
        Stage(AS_OF, "_time", prepare=tagged),
        windows("at"),
        Stage(Sessions(USER, "window_time", 12), "window_time"),
    ],
}


@pytest.mark.parametrize("chain", CHAINS)
@settings(deadline=None, max_examples=15)
@given(given_batches=batches)
def test_operators_in_a_row_give_on_a_stream_what_they_give_on_all_rows_at_once(
    chain: str, given_batches: list[list[Event]]
) -> None:
    cut = within_lateness(given_batches)
    stages = CHAINS[chain]
    places = [Place(each.operator, each.keys, each.time, follows=number > 0) for number, each in enumerate(stages)]
    found = [stages[-1].operator.output.empty_table()]
    watermark = BEGINNING
    for batch in [*cut, None]:  # at the end the clock goes to the end of time
        now_us = watermark if batch is not None else END
        rows = table(batch or [])
        for stage, place in zip(stages, places, strict=True):
            rows = place.advance(stage.prepare(rows), now_us)
        found.append(rows)
        watermark = max([watermark, *(time - LATENESS_US for _, time, _ in batch or [])])
    rows = table([event for batch in cut for event in batch])
    for stage in stages:
        rows = run_bounded(stage.operator, stage.prepare(rows), stage.keys, stage.time)
    assert bag(pa.concat_tables(found)) == bag(rows)
    assert [place.late_rows for place in places] == [0] * len(places)


def bag(found: pa.Table) -> Counter[str]:
    return Counter(map(repr, found.to_pylist()))


def test_rows_that_an_earlier_operator_gives_out_would_be_late_if_they_were_judged_by_now() -> None:
    """What ``follows`` is for: a session that ended at 15 is known when the watermark is at 30."""
    visits = run_bounded(VISITS, table([("a", 10, 0)]), USER, "at")
    for follows, late_rows in ((True, 0), (False, 1)):
        place = Place(STAYS, USER, "session_end", follows=follows)
        place.advance(visits, 30)
        assert place.late_rows == late_rows


def test_what_a_bucket_has_settled_makes_rows_late_behind_another_operator_too() -> None:
    place = Place(STAYS, USER, "session_end", follows=True)
    place.advance(run_bounded(VISITS, table([("a", 10, 0)]), USER, "at"), 30)
    place.advance(run_bounded(VISITS, table([("a", 24, 0)]), USER, "at"), 40)  # ends at 29
    assert place.late_rows == 1


@pytest.mark.parametrize("buckets", [1, 2, 7, 8, 32, 100, 4096])
def test_tasks_get_equally_many_buckets(buckets: int) -> None:
    numbers = bucket_numbers(buckets)
    assert len(set(numbers)) == buckets
    for tasks in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 30, 48):
        counts = np.bincount(_spark_hash(np.array(numbers)) % tasks, minlength=tasks)
        assert counts.max() - counts.min() <= 1


def test_the_hash_is_sparks_and_the_numbers_stay_as_they_are() -> None:
    """Both are part of every checkpoint."""
    assert _spark_hash(np.array([0, 1, 2])).tolist() == [933211791, -559580957, 1765031574]
    assert bucket_numbers(8) == (22362, 14516, 848, 16776, 10632, 1651, 6674, 4288)
