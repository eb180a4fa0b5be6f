"""One operator behind another, without Spark: the same in the end as on all rows at once. And where buckets are put."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.deduplication import Dedup
from headrace.spark.session_windows import Sessions
from headrace.spark.state import _spark_hash, bucket_numbers
from headrace.spark.state_bucket import BEGINNING, Bucket
from headrace.spark.state_operator import END, Operator, advance, run_bounded
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
                bucket = Bucket(self.operator.layout(self.keys))  # each time as if the process had begun anew
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


def stays(found: pa.Table) -> Counter[Any]:
    columns = [found.column(name).to_pylist() for name in ("user", "session_start", "session_end", "events")]
    return Counter(zip(*columns, strict=True))


@settings(deadline=None, max_examples=30)
@given(batches)
def test_three_operators_in_a_row_give_on_a_stream_what_they_give_on_all_rows_at_once(
    given_batches: list[list[Event]],
) -> None:
    cut = within_lateness(given_batches)
    places = [
        Place(DEDUP, KEY, "at", follows=False),
        Place(VISITS, USER, "at", follows=True),
        Place(STAYS, USER, "session_end", follows=True),
    ]
    found = [STAYS.output.empty_table()]
    watermark = BEGINNING
    for batch in [*cut, None]:  # at the end the clock goes to the end of time
        now_us = watermark if batch is not None else END
        rows = table(batch or [])
        for place in places:
            rows = place.advance(rows, now_us)
        found.append(rows)
        watermark = max([watermark, *(time - LATENESS_US for _, time, _ in batch or [])])
    rows = table([event for batch in cut for event in batch])
    for place in places:
        rows = run_bounded(place.operator, rows, place.keys, place.event_time)
    assert stays(pa.concat_tables(found)) == stays(rows)
    assert [place.late_rows for place in places] == [0, 0, 0]


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
