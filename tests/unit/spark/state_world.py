"""A stream and its store in memory, for operators with state: no Spark in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from headrace.spark.state_bucket import Bucket, Manifest
from headrace.spark.state_operator import BEGINNING, END, Operator, advance, run_bounded

SECOND = 1_000_000
LATENESS_S = 20
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
    ordered = [event for _, _, event in sorted(delayed, key=lambda each: each[:2])]
    batches: list[list[Event]] = [[]]
    for event in ordered:
        while draw(st.booleans()):
            batches.append([])
        batches[-1].append(event)
    return batches


class MemoryStore:
    def __init__(self) -> None:
        self.chunks: dict[str, bytes] = {}
        self.written: bytes | None = None
        self.chunks_read = 0

    def manifest(self) -> bytes | None:
        return self.written

    def manifest_value(self) -> Manifest:
        return Manifest() if self.written is None else Manifest.decode(self.written)

    def chunk(self, chunk_id: str) -> bytes:
        self.chunks_read += 1
        return self.chunks[chunk_id]

    def put_chunk(self, chunk_id: str, data: bytes) -> None:
        self.chunks[chunk_id] = data

    def remove_chunk(self, chunk_id: str) -> None:
        del self.chunks[chunk_id]

    def put_manifest(self, data: bytes) -> None:
        self.written = data

    def copy(self) -> MemoryStore:
        other = MemoryStore()
        other.chunks, other.written = dict(self.chunks), self.written
        return other


class Stream:
    """A query: its watermark is the highest time of earlier batches less the lateness; it can stop at any time."""

    def __init__(self, operator: Operator, rows: pa.Schema = ROWS, keys: pa.StructType = KEYS) -> None:
        self.operator = operator
        self.rows = rows
        self.keys = keys
        self.store = MemoryStore()
        self.bucket = Bucket(operator.layout(keys))
        self.highest_us = BEGINNING
        self.output: list[pa.Table] = []
        self.late_rows = 0

    def restart(self) -> None:
        """Nothing but the store survives."""
        self.bucket = Bucket(self.operator.layout(self.keys))

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


def folded(results: pa.Table, *name: str) -> list[dict[str, Any]]:
    """The rule for whoever keeps a table: the highest revision of each name, and nothing where that was taken back."""
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in results.to_pylist():
        place = tuple(row[each] for each in name)
        known = newest.get(place)
        if row["is_retraction"]:
            assert known == {**row, "is_retraction": False}, "what is taken back is what was given out last"
        else:
            assert known is None or row["revision"] > known["revision"], "revisions count up"
        newest[place] = row
    return [row for row in newest.values() if not row["is_retraction"]]
