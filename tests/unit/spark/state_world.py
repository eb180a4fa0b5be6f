"""Events of users and a stream of them, for operators with state: no Spark in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from headrace.spark.state.operator import BEGINNING, END, Operator, run_bounded
from tests.unit.spark.stream_world import SECOND, Query, cut

LATENESS_S = 20
LONG_AGO_S = -1_000_000
TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("user", pa.string()), ("at", TIME), ("amount", pa.int64())])
KEYS = pa.struct([("user", pa.string())])

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
    return draw(cut([event for _, _, event in sorted(delayed, key=lambda each: each[:2])]))


class Stream(Query):
    """A query whose watermark is the highest time of earlier batches less the lateness."""

    def __init__(self, operator: Operator, rows: pa.Schema = ROWS, keys: pa.StructType = KEYS) -> None:
        super().__init__(operator, rows, keys, "at")
        self.highest_us = BEGINNING
        self.output: list[pa.Table] = []

    @property
    def watermark_us(self) -> int:
        return BEGINNING if self.highest_us == BEGINNING else self.highest_us - LATENESS_S * SECOND

    def push(self, rows: pa.Table, now_us: int | None = None) -> pa.Table:
        self.output.append(super().push(rows, self.watermark_us if now_us is None else now_us))
        if rows.num_rows:
            self.highest_us = max(self.highest_us, pc.max(rows.column("at").cast(pa.int64())).as_py())
        return self.output[-1]

    def take(self, batches: Iterable[pa.Table], restarts: Container[int]) -> Iterator[None]:
        """One batch after the other, with restarts before some of them; a pause after each to look at what came."""
        for number, batch in enumerate(batches):
            if number in restarts:
                self.restart()
            self.push(batch)
            yield

    def finish(self) -> pa.Table:
        self.push(self.rows.empty_table(), END)
        return pa.concat_tables(self.output)


def streamed(operator: Operator, batches: list[list[Event]], restarts: set[int]) -> Stream:
    stream = Stream(operator)
    for _ in stream.take(map(table, batches), restarts):
        pass
    return stream


def out_of_order(arrived: list[Event], cuts: list[int]) -> Iterator[tuple[list[Event], int]]:
    """Batches of these sizes as they are, late ones too, each with the watermark that the earlier ones leave, in
    seconds; before there is any, it is long ago."""
    start = 0
    for size in [*cuts, len(arrived)]:
        watermark = max((second for _, second, _ in arrived[:start]), default=LONG_AGO_S) - LATENESS_S
        yield arrived[start : start + size], watermark
        start += size


def as_bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def bounded(operator: Operator, batches: list[list[Event]]) -> pa.Table:
    together = [event for batch in batches for event in batch]
    return run_bounded(operator, table(together), KEYS, "at")


def folded(results: pa.Table, *name: str) -> pa.Table:
    """The rule for a reader that keeps a table: each name's highest revision, and nothing where that was taken back."""
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in results.to_pylist():
        place = tuple(row[each] for each in name)
        known = newest.get(place)
        if row["is_retraction"]:
            assert known == {**row, "is_retraction": False}, "what is taken back is what was given out last"
        else:
            assert known is None or row["revision"] > known["revision"], "revisions count up"
        newest[place] = row
    return pa.Table.from_pylist([row for row in newest.values() if not row["is_retraction"]], results.schema)


def added_up(results: pa.Table, plain: Callable[[pa.Table], Counter[tuple[Any, ...]]]) -> Counter[tuple[Any, ...]]:
    """The rule for a reader that adds up: final results that are given, less those that are taken back."""
    final = results.filter(results.column("is_final"))
    added = plain(final.filter(pc.invert(final.column("is_retraction"))))
    added.subtract(plain(final.filter(final.column("is_retraction"))))
    return +added
