"""A streaming query without Spark: an operator, its bucket and store, watermarks, cuts and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pyarrow as pa
from hypothesis import strategies as st

from headrace.spark.state_bucket import Bucket
from headrace.spark.state_operator import BEGINNING, END, Operator, advance
from tests.unit.spark.state_world import MemoryStore

SECOND = 1_000_000
T = TypeVar("T")


class Query:
    """One operator; nothing but its store survives a restart."""

    def __init__(self, operator: Operator, rows: pa.Schema, keys: pa.StructType, event_time: str | None = None) -> None:
        self.operator, self.rows, self.keys, self.event_time = operator, rows, keys, event_time
        self.store = MemoryStore()
        self.late_rows = 0
        self.restart()

    def restart(self) -> None:
        self.bucket = Bucket(self.operator.layout(self.keys))

    def push(self, rows: pa.Table, now_us: int = BEGINNING) -> pa.Table:
        before = self.store.manifest_value()
        self.bucket.refresh(before, self.store)
        outcome = advance(self.bucket, self.operator, rows, now_us=now_us, event_time=self.event_time)
        self.bucket.save(before, 1, self.store)
        self.late_rows += outcome.late_rows
        return outcome.output

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
