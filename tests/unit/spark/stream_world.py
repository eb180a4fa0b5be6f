"""A streaming query without Spark: an operator, its bucket and store, watermarks, cuts and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pyarrow as pa
from hypothesis import strategies as st

from headrace.spark.state.bucket import Bucket, Manifest
from headrace.spark.state.operator import BEGINNING, END, Operator, Outcome, advance

SECOND = 1_000_000
T = TypeVar("T")


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


class Query:
    """One operator; nothing but its store survives a restart."""

    def __init__(self, operator: Operator, rows: pa.Schema, keys: pa.StructType, event_time: str | None = None) -> None:
        self.operator, self.rows, self.keys, self.event_time = operator, rows, keys, event_time
        self.store = MemoryStore()
        self.late_rows = 0
        self.bucket = Bucket(operator.layout(keys))
        self.memory: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.fails = False

    def restart(self) -> None:
        """Begin again with what is in the store. The next batch fails once, after it was worked on: what
        it wrote is thrown away, as Spark does, but not what its process keeps in memory."""
        self.bucket = Bucket(self.operator.layout(self.keys))
        self.memory = {}
        self.fails = True

    def push(self, rows: pa.Table, now_us: int = BEGINNING) -> pa.Table:
        if self.fails:
            self._work(rows, now_us, self.store.copy())
            self.fails = False
        outcome = self._work(rows, now_us, self.store)
        self.late_rows += outcome.late_rows
        self.counts = dict(outcome.counts)
        return outcome.output

    def _work(self, rows: pa.Table, now_us: int, store: MemoryStore) -> Outcome:
        before = store.manifest_value()
        self.bucket.refresh(before, store)
        outcome = advance(
            self.bucket, self.operator, rows, now_us=now_us, event_time=self.event_time, memory=self.memory
        )
        self.bucket.save(before, 1, store)
        return outcome

    def finish(self) -> pa.Table:
        return self.push(self.rows.empty_table(), END)

    @property
    def keys_held(self) -> int:
        return self.store.manifest_value().key_count

    def held(self) -> list[dict[str, Any]]:
        """Every key's state, as the store has it."""
        bucket = Bucket(self.operator.layout(self.keys))
        bucket.refresh(self.store.manifest_value(), self.store)
        return [
            row["state"]
            for chunk in bucket.chunks
            for row, counts in zip(chunk.batch.to_pylist(), (chunk.current & chunk.live).tolist(), strict=True)
            if counts
        ]


class Watermark:
    """That of the slowest of several inputs: each is its highest time so far less the lateness."""

    def __init__(self, inputs: int, lateness_s: int) -> None:
        self.highest_us: list[int | None] = [None] * inputs
        self.lateness_us = lateness_s * SECOND

    def see(self, number: int, seconds: Sequence[int]) -> None:
        for each in seconds:
            known = self.highest_us[number]
            self.highest_us[number] = each * SECOND if known is None else max(known, each * SECOND)

    def now_us(self) -> int:
        known = [each for each in self.highest_us if each is not None]
        return min(known) - self.lateness_us if len(known) == len(self.highest_us) else BEGINNING


@st.composite
def cut(draw: st.DrawFn, given: Sequence[T]) -> list[list[T]]:
    """The same in order, in batches, some of them empty."""
    batches: list[list[T]] = [[]]
    for each in given:
        while draw(st.booleans()):
            batches.append([])
        batches[-1].append(each)
    return batches
