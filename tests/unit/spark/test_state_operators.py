"""Operators with state, without Spark: cuts, order and restarts change nothing in what comes out in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.aggregates.totals import EVENTS
from headrace.spark.state import kernel
from headrace.spark.state.bucket import NEVER, StateMismatch
from headrace.spark.state.dedup_operator import Dedup, DedupForever
from headrace.spark.state.operator import BEGINNING, Clock, Operator, Step, Touched, run_bounded
from headrace.spark.time.clock_operator import SmoothClock
from headrace.spark.windowing.rolling_operator import Rolling
from headrace.spark.windowing.session_operator import Sessions
from headrace.spark.windowing.window_operator import WINDOW, Windows
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
from tests.unit.spark.stream_world import Query

# ---- duplicates ----------------------------------------------------------------------------------------------------

WITHIN_S = 30


def dedup() -> Dedup:
    return Dedup(ROWS, "at", WITHIN_S * SECOND)


def test_a_copy_is_known_up_to_the_last_microsecond_at_which_it_may_come() -> None:
    stream = Stream(dedup())
    stream.push(table([("a", 100, 1)]), BEGINNING)
    last_us = (100 + WITHIN_S) * SECOND - 1
    copy = pa.Table.from_pylist([{"user": "a", "at": last_us, "amount": 1}], ROWS.set(1, pa.field("at", pa.int64())))
    stream.push(table([("a", 300, 1)]), last_us)
    stream.push(copy.cast(ROWS), last_us)
    assert (stream.output[-1].num_rows, stream.late_rows) == (0, 0)
    stream.push(table([("a", 100 + WITHIN_S, 1)]), last_us + 1)
    assert stream.output[-1].num_rows == 1


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


def test_an_offset_is_believed_up_to_its_bound_and_known_until_it_is_forgotten() -> None:
    def row(user: str, second: int, behind_s: int | None = None) -> dict[str, Any]:
        sent = None if behind_s is None else (second - behind_s) * SECOND
        return {"user": user, "at": second * SECOND, "sent": sent, "occurred": second * SECOND}

    believed = [row("a", 100, OFFSET_S_MAX), row("a", 100 + FORGET_S - 1), row("b", 100, OFFSET_S_MAX + 1)]
    forgotten = [row("c", 100, 10), row("c", 100 + FORGET_S)]
    rows = pa.Table.from_pylist([*believed, *forgotten], DEVICE_ROWS)
    found = run_bounded(clock(), rows, KEYS, "at").sort_by([("user", "ascending"), ("at", "ascending")])
    seconds = [each and each // SECOND for each in found.column("clock_offset_us").to_pylist()]
    assert seconds == [OFFSET_S_MAX, OFFSET_S_MAX, None, 10, None]


# ---- the processor's clock -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Silence(Operator):
    """Tells of a key that nothing has come from it for ten seconds, and forgets it after a minute."""

    forget_s: int = 60
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
            expire_us=heard + self.forget_s * SECOND,
        )


def test_a_key_that_is_to_be_woken_and_forgotten_at_one_moment_is_woken_first() -> None:
    stream = Stream(Silence(forget_s=10))
    stream.push(table([("a", 1, 0)]), 100 * SECOND)
    stream.push(ROWS.empty_table(), 110 * SECOND)
    assert stream.output[-1].column("user").to_pylist() == ["a"]
    assert stream.store.manifest_value().key_count == 0


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


# ---- times that were set aside -------------------------------------------------------------------------------------

WINDOW_ROWS = pa.schema([*ROWS, *WINDOW])
EVERY: dict[str, tuple[Operator, pa.Schema, pa.StructType]] = {
    "dedup": (Dedup(ROWS, "at", WITHIN_S * SECOND), ROWS, KEYS),
    "sessions": (Sessions(KEYS, "at", WITHIN_S * SECOND), ROWS, KEYS),
    "windows": (Windows(KEYS, "at", (EVENTS,)), WINDOW_ROWS, pa.struct([*KEYS, *WINDOW])),
    "rolling before": (Rolling(ROWS, "at", WITHIN_S * SECOND, (EVENTS,)), ROWS, KEYS),
    "rolling around": (Rolling(ROWS, "at", WITHIN_S * SECOND, (EVENTS,), "around"), ROWS, KEYS),
    "clocks": (clock(), DEVICE_ROWS, KEYS),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_row_whose_time_leapt_ahead_and_was_set_aside_is_late_and_nothing_is_held_of_it(name: str) -> None:
    """``hr.null_future_times`` takes the time of such rows."""
    operator, schema, keys = EVERY[name]
    undated = pa.Table.from_pylist([{"user": "a"}], schema)
    query = Query(operator, schema, keys, "at")
    for now_us in (BEGINNING, 100 * SECOND):
        query.restart()
        assert query.push(undated, now_us).num_rows == 0
    assert query.late_rows == 2
    assert query.keys_held == 0
    assert query.finish().num_rows == 0
    assert run_bounded(operator, undated, keys, "at").num_rows == 0


# ---- an operator whose state changes its columns -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counted(Operator):
    """How many rows of a key have come, as the first version of a program held it."""

    name: ClassVar[str] = "counted"
    clock: ClassVar[Clock] = "none"

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("count", pa.int64())])

    @property
    def output(self) -> pa.Schema:
        return pa.schema([("user", pa.string()), *self.state])

    def step(self, touched: Touched) -> Step:
        states = self._states(touched)
        return Step(
            output=pa.Table.from_arrays([touched.keys.field("user"), *states], schema=self.output),
            states=pa.StructArray.from_arrays(states, fields=list(self.state)),
            keep=np.ones(len(touched.keys), np.bool_),
        )

    def _states(self, touched: Touched) -> list[pa.Array]:
        return [self._grown(touched, "count", np.ones(len(touched.codes), np.int64))]

    def _grown(self, touched: Touched, column: str, added: Any) -> pa.Array:
        held = np.asarray(touched.held.field(column).fill_null(0), np.int64)
        return pa.array(held + np.bincount(touched.codes, added, minlength=len(held)).astype(np.int64))


@dataclass(frozen=True, slots=True)
class CountedAndAdded(Counted):
    """The next version holds what they add up to as well; what came before counts as nothing."""

    version: ClassVar[int] = 2

    @property
    def state(self) -> pa.StructType:
        return pa.struct([("count", pa.int64()), ("total", pa.int64())])

    def _states(self, touched: Touched) -> list[pa.Array]:
        amounts = np.asarray(touched.rows.column("amount"), np.int64)
        return [*Counted._states(self, touched), self._grown(touched, "total", amounts)]

    def upgrade(self, states: pa.StructArray, version: int) -> pa.StructArray:
        assert version == 1
        zeros = pa.array(np.zeros(len(states), np.int64))
        return pa.StructArray.from_arrays([states.field("count"), zeros], fields=list(self.state))


class Forgetful(CountedAndAdded):
    upgrade = Operator.upgrade


def test_a_program_with_a_newer_state_goes_on_from_what_the_older_one_held() -> None:
    older = Query(Counted(), ROWS, KEYS)
    older.push(table([("a", 1, 5), ("a", 2, 6), ("b", 3, 7)]))
    newer = Query(CountedAndAdded(), ROWS, KEYS)
    newer.store = older.store
    newer.restart()
    found = newer.push(table([("a", 4, 10), ("c", 4, 1)])).to_pylist()
    assert found == [{"user": "a", "count": 3, "total": 10}, {"user": "c", "count": 1, "total": 1}]
    newer.restart()
    found = newer.push(table([("a", 5, 1), ("b", 5, 2)])).to_pylist()
    assert found == [{"user": "a", "count": 4, "total": 11}, {"user": "b", "count": 2, "total": 2}]


def test_a_newer_state_without_an_upgrade_is_refused_with_what_to_do() -> None:
    older = Query(Counted(), ROWS, KEYS)
    older.push(table([("a", 1, 5)]))
    newer = Query(Forgetful(), ROWS, KEYS)
    newer.store = older.store
    with pytest.raises(StateMismatch, match=r"counted: .*version 1 and the program has 2.*give one, or start over"):
        newer.push(table([("a", 2, 5)]))


def test_rows_whose_names_have_dots_are_packed_under_their_names() -> None:
    """They come to the task under others, which PySpark can resolve."""
    schema = pa.schema([("n", pa.int64()), ("user.name", pa.string())])
    batch = pa.record_batch({"n": [1, 2, 3], "_column_1": ["a", "b", "c"], "_bucket": pa.array([5, 3, 5], pa.int32())})
    packed = kernel._packed([batch], schema)
    found = {row["_bucket"]: kernel._read(row["payload"]).to_pylist() for row in packed.to_pylist()}
    one, two, three = ({"n": n, "user.name": name} for n, name in ((1, "a"), (2, "b"), (3, "c")))
    assert found == {3: [two], 5: [one, three]}
