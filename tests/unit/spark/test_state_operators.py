"""Operators with state, without Spark: cuts, order and restarts change nothing in what comes out in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.clock_correction import SmoothClock
from headrace.spark.deduplication import Dedup, DedupForever
from headrace.spark.state_bucket import NEVER
from headrace.spark.state_operator import Clock, Operator, Step, Touched, run_bounded
from tests.unit.spark.state_world import (
    KEYS,
    ROWS,
    SECOND,
    TIME,
    Event,
    Stream,
    arrivals,
    as_bag,
    bounded,
    streamed,
    table,
)

# ---- duplicates ----------------------------------------------------------------------------------------------------

WITHIN_S = 30


def dedup() -> Dedup:
    return Dedup(ROWS, "at", WITHIN_S * SECOND)


@st.composite
def copies(draw: st.DrawFn) -> list[Event]:
    """Events with copies of some of them; events of a key are further apart than the bound."""
    originals: list[Event] = []
    for user in ("a", "b", None):
        second = draw(st.integers(1, 20))
        for _ in range(draw(st.integers(0, 4))):
            originals.append((user, second, draw(st.integers(0, 9))))
            second += WITHIN_S + draw(st.integers(0, 40))
    return [event for event in originals for _ in range(draw(st.integers(1, 4)))]


@settings(max_examples=60)
@given(arrivals(copies()), st.sets(st.integers(0, 30)))
def test_of_copies_one_is_given_out_whatever_the_cuts_the_order_and_the_restarts(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    expected = as_bag(table(sorted({event for batch in batches for event in batch}, key=str)))
    stream = streamed(dedup(), batches, restarts)
    assert as_bag(stream.finish()) == expected
    assert as_bag(bounded(dedup(), batches)) == expected
    assert stream.store.manifest_value().key_count == 0, "everything is forgotten in the end"


@settings(max_examples=60)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_rows_given_out_are_never_closer_than_the_bound_and_every_other_row_is_close_to_one(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    for given_out in (streamed(dedup(), batches, restarts).finish(), bounded(dedup(), batches)):
        kept = [(row["user"], int(row["at"].timestamp())) for row in given_out.to_pylist()]
        for number, (user, second) in enumerate(kept):
            assert all(other != user or abs(at - second) >= WITHIN_S for other, at in kept[:number])
        for user, second, _ in (event for batch in batches for event in batch):
            assert any(other == user and abs(at - second) < WITHIN_S for other, at in kept)


@settings(max_examples=60)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_without_a_bound_each_key_comes_once_for_ever(batches: list[list[Event]], restarts: set[int]) -> None:
    operator = DedupForever(ROWS)
    expected = Counter({event[0] for batch in batches for event in batch})
    for given_out in (streamed(operator, batches, restarts).finish(), bounded(operator, batches)):
        assert Counter(given_out.column("user").to_pylist()) == expected


def test_many_rows_of_one_key_far_apart_all_come() -> None:
    count = 5_000
    times = pa.array(np.arange(1, count + 1) * WITHIN_S * SECOND).cast(TIME)
    rows = pa.Table.from_arrays([pa.array(["a"] * count), times, pa.array([0] * count, pa.int64())], schema=ROWS)
    assert run_bounded(dedup(), rows, KEYS, "at").num_rows == count


# ---- clocks --------------------------------------------------------------------------------------------------------

DEVICE_ROWS = pa.schema([("user", pa.string()), ("at", TIME), ("sent", TIME), ("occurred", TIME)])
FORGET_S = 40
OFFSET_S_MAX = 100


def clock(samples: int = 3) -> SmoothClock:
    return SmoothClock(DEVICE_ROWS, "occurred", "sent", "at", samples, OFFSET_S_MAX * SECOND, FORGET_S * SECOND)


def device_table(rows: Sequence[Event]) -> pa.Table:
    """An event's amount becomes how many minutes the device's clock is behind; all but -1, 0 and 1 is not believed."""
    return pa.Table.from_pylist(
        [
            {
                "user": user,
                "at": second * SECOND,
                "sent": None if minutes is None else (second - minutes * 60 - number % 7) * SECOND,
                "occurred": (second - number % 5) * SECOND,
            }
            for number, (user, second, minutes) in enumerate(rows)
        ],
        DEVICE_ROWS,
    )


def clocks_by_hand(rows: pa.Table, samples: int) -> Counter[tuple[Any, ...]]:
    """(user, received, sent, occurred, corrected, offset, trusted), the plain way."""
    results: list[tuple[Any, ...]] = []
    recent: dict[Any, list[tuple[int, int]]] = {}
    plain_rows = [
        [each if number == 0 else each and int(each.timestamp()) for number, each in enumerate(row.values())]
        for row in rows.to_pylist()
    ]
    believed = {True: 0, False: 1}

    def offset(row: list[Any]) -> int | None:
        return None if row[2] is None or abs(row[1] - row[2]) > OFFSET_S_MAX else row[1] - row[2]

    for row in sorted(plain_rows, key=lambda each: (each[1], believed[offset(each) is not None], offset(each) or 0)):
        user, received, _, occurred = row
        known = recent.setdefault(user, [])
        if known and received - known[-1][0] >= FORGET_S:
            known.clear()
        sample = offset(row)
        if sample is not None:
            known.append((received, sample))
        window = [each for _, each in known[-samples:]]
        smooth = round(median(window) * SECOND) if window else None
        corrected = occurred * SECOND + (smooth or 0)
        results.append((*row, corrected, smooth, sample is not None))
    return Counter(results)


def plain_clocks(results: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            row["user"],
            *(row[name] and int(row[name].timestamp()) for name in ("at", "sent", "occurred")),
            round(row["corrected"].timestamp() * SECOND),
            row["clock_offset_us"],
            row["clock_trusted"],
        )
        for row in results.to_pylist()
    )


@settings(max_examples=40)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_corrected_times_are_those_of_a_plain_loop_whatever_the_cuts_the_order_and_the_restarts(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    everything = device_table([event for batch in batches for event in batch])
    expected = clocks_by_hand(everything, 3)
    stream = Stream(clock(), DEVICE_ROWS)
    start = 0
    for number, batch in enumerate(batches):
        if number in restarts:
            stream.restart()
        stream.push(everything.slice(start, len(batch)))
        start += len(batch)
    assert plain_clocks(stream.finish()) == expected
    assert plain_clocks(run_bounded(clock(), everything, KEYS, "at")) == expected
    assert stream.store.manifest_value().key_count == 0, "every device is forgotten in the end"


# ---- the processor's clock -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Silence(Operator):
    """Tells of a key that nothing has come from it for ten seconds, and forgets it after a minute."""

    name: ClassVar[str] = "silence"
    clock: ClassVar[Clock] = "processing"

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("heard", pa.int64())])

    @property
    def output(self) -> pa.Schema:
        return pa.schema([("user", pa.string())])

    def step(self, touched: Touched) -> Step:
        count = len(touched.keys)
        has_rows = np.bincount(touched.codes, minlength=count) > 0
        heard = np.where(has_rows, touched.now_us, np.asarray(touched.held.field("heard").fill_null(0), np.int64))
        silent = heard + 10 * SECOND <= touched.now_us
        return Step(
            output=pa.Table.from_arrays([touched.keys.field("user").filter(pa.array(silent))], schema=self.output),
            states=pa.StructArray.from_arrays([pa.array(heard)], fields=list(self.state)),
            keep=np.ones(count, np.bool_),
            wake_us=np.where(silent, NEVER, heard + 10 * SECOND),
            expire_us=heard + 60 * SECOND,
        )


def test_a_key_is_woken_and_forgotten_by_the_time_of_the_batches_and_no_row_is_late() -> None:
    stream = Stream(Silence())

    def told(second: int, *events: Event) -> list[str]:
        stream.push(table(events), second * SECOND)
        return list(stream.output[-1].column("user").to_pylist())

    assert told(100, ("a", 1, 0), ("b", 99, 0)) == []
    assert told(105, ("a", 1, 0)) == []
    assert told(109) == []
    assert told(110) == ["b"]
    stream.restart()
    assert told(115) == ["a"]
    assert told(159) == []
    assert stream.store.manifest_value().key_count == 2
    assert told(160) == []
    assert stream.store.manifest_value().key_count == 1
    assert told(161, ("b", 1, 0)) == []
    assert told(200) == ["b"]
    assert stream.store.manifest_value().key_count == 1
    assert stream.late_rows == 0
