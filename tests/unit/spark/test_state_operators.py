"""Operators with state, without Spark: cuts, order and restarts change nothing in what comes out in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.clock_correction import SmoothClock
from headrace.spark.deduplication import Dedup, DedupForever
from headrace.spark.session_windows import Aggregate, Sessions
from headrace.spark.state_bucket import NEVER, Bucket
from headrace.spark.state_operator import BEGINNING, END, Clock, Operator, Step, Touched, advance, run_bounded
from tests.unit.spark.state_world import MemoryStore

SECOND = 1_000_000
LATENESS_S = 20
TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("user", pa.string()), ("at", TIME), ("amount", pa.int64())])
KEYS = pa.struct([("user", pa.string())])
GAP_S = 10

Event = tuple[str | None, int, int | None]

events = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(1, 120), st.one_of(st.none(), st.integers(-5, 5))),
    max_size=40,
)
"""(key, second, amount)"""


def table(rows: Sequence[Event]) -> pa.Table:
    users, seconds, amounts = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(users, pa.string()), pa.array([each * SECOND for each in seconds], pa.int64()).cast(TIME)]
    return pa.Table.from_arrays([*columns, pa.array(amounts, pa.int64())], schema=ROWS)


@st.composite
def arrivals(draw: st.DrawFn, rows: st.SearchStrategy[list[Event]] = events) -> list[list[Event]]:
    """The events in an order that the lateness allows, in micro-batches, some of them empty."""
    delays = st.sampled_from([0, 0, 1, LATENESS_S // 2, LATENESS_S - 1, LATENESS_S, LATENESS_S])
    delayed = [(event[1] + draw(delays), number, event) for number, event in enumerate(draw(rows))]
    ordered = [event for _, _, event in sorted(delayed, key=lambda each: each[:2])]
    batches: list[list[Event]] = [[]]
    for event in ordered:
        while draw(st.booleans()):
            batches.append([])
        batches[-1].append(event)
    return batches


class Stream:
    """A query: its watermark is the highest time of earlier batches less the lateness; it can stop at any time."""

    def __init__(self, operator: Operator, rows: pa.Schema = ROWS) -> None:
        self.operator = operator
        self.rows = rows
        self.store = MemoryStore()
        self.bucket = Bucket(operator.layout(KEYS))
        self.highest_us = BEGINNING
        self.output: list[pa.Table] = []
        self.late_rows = 0

    def restart(self) -> None:
        """Nothing but the store survives."""
        self.bucket = Bucket(self.operator.layout(KEYS))

    def push(self, rows: pa.Table, now_us: int | None = None) -> None:
        seen = self.highest_us != BEGINNING
        watermark = self.highest_us - LATENESS_S * SECOND if seen else BEGINNING
        before = self.store.manifest_value()
        self.bucket.refresh(before, self.store)
        outcome = advance(
            self.bucket, self.operator, rows, now_us=watermark if now_us is None else now_us, event_time="at"
        )
        self.bucket.save(before, 1, self.store)
        self.output.append(outcome.output)
        self.late_rows += outcome.late_rows
        if rows.num_rows:
            self.highest_us = max(self.highest_us, pc.max(rows.column("at").cast(pa.int64())).as_py())

    def finish(self) -> pa.Table:
        self.push(self.rows.empty_table(), END)
        return pa.concat_tables(self.output)


def streamed(operator: Operator, batches: list[list[Event]], restarts: set[int]) -> Stream:
    stream = Stream(operator)
    for number, batch in enumerate(batches):
        if number in restarts:
            stream.restart()
        stream.push(table(batch))
    return stream


def as_bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def bounded(operator: Operator, batches: list[list[Event]]) -> pa.Table:
    together = [event for batch in batches for event in batch]
    return run_bounded(operator, table(together), KEYS, "at")


# ---- sessions ------------------------------------------------------------------------------------------------------


def sessions(emit: Any = "final") -> Sessions:
    values = (
        Aggregate("total", "sum", "amount", pa.int64()),
        Aggregate("lowest", "min", "amount", pa.int64()),
        Aggregate("highest", "max", "amount", pa.int64()),
    )
    return Sessions(KEYS, "at", GAP_S * SECOND, values, emit)


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


@given(arrivals(), st.sets(st.integers(0, 30)))
def test_sessions_are_those_of_a_plain_loop_whatever_the_cuts_the_order_and_the_restarts(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    expected = sessions_by_hand([event for batch in batches for event in batch])
    stream = streamed(sessions(), batches, restarts)
    assert plain(stream.finish()) == expected
    assert stream.late_rows == 0
    assert plain(bounded(sessions(), batches)) == expected


def folded(results: pa.Table) -> list[dict[str, Any]]:
    newest: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in results.to_pylist():
        name = (row["user"], row["session_start"])
        if name not in newest or row["revision"] > newest[name]["revision"]:
            newest[name] = row
        else:
            assert row["revision"] < newest[name]["revision"], "two results of a session with the same revision"
    return [row for row in newest.values() if row["events"]]


@given(arrivals(), st.sets(st.integers(0, 30)))
def test_early_sessions_fold_to_what_is_known_after_every_batch_and_to_the_final_ones_in_the_end(
    batches: list[list[Event]], restarts: set[int]
) -> None:
    stream = Stream(sessions("early"))
    known: list[Event] = []
    for number, batch in enumerate(batches):
        if number in restarts:
            stream.restart()
        stream.push(table(batch))
        known += batch
        now = folded(pa.concat_tables(stream.output))
        assert plain(pa.Table.from_pylist(now, stream.operator.output)) == sessions_by_hand(known)
    final = folded(stream.finish())
    assert all(row["is_final"] for row in final)
    assert plain(pa.Table.from_pylist(final, stream.operator.output)) == sessions_by_hand(known)


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
