"""Rows that are too many for memory come back in parts, with all rows of a key together and in order."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.state import kernel
from headrace.spark.state.kernel import PART
from headrace.spark.state.spill import PARTS, in_parts
from headrace.spark.tables.view_operators import Table
from headrace.vocabulary import UNAVAILABLE

SCHEMA = pa.schema({"key": pa.int64(), "number": pa.int64(), "part": pa.int32()})
keys = st.one_of(st.none(), st.integers(0, 10))


def batches_of(cuts: list[list[int | None]]) -> list[pa.RecordBatch]:
    made, number = [], 0
    for cut in cuts:
        rows = []
        for key in cut:
            rows.append({"key": key, "number": number, "part": None if key is None else (key * 7) % PARTS})
            number += 1
        made.append(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    return made


@settings(max_examples=25)  # a row for all keys opens a file for every part
@given(st.lists(st.lists(keys, max_size=6), max_size=12), st.sampled_from([0, 50, 100, 1 << 30]))
def test_every_row_is_in_the_part_of_its_key_in_order_and_a_row_for_all_is_in_every_part(
    cuts: list[list[int | None]], bytes_max: int
) -> None:
    batches = batches_of(cuts)
    rows = [row for batch in batches for row in batch.to_pylist()]
    tables = [table.to_pylist() for table in in_parts(batches, "part", bytes_max)]
    where = {row["key"]: index for index, table in enumerate(tables) for row in table if row["key"] is not None}
    for index, table in enumerate(tables):
        assert table == [row for row in rows if row["key"] is None or where[row["key"]] == index]
    assert {row["number"] for row in rows} == {row["number"] for table in tables for row in table}
    if bytes_max == 1 << 30:
        assert len(tables) <= 1


def test_no_part_is_much_larger_than_its_share_and_the_files_are_gone_at_the_end_and_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    numbers = pa.array(range(20_000))
    batch = pa.record_batch(
        {"key": numbers, "number": numbers, "part": pa.array([each % PARTS for each in range(20_000)])}
    )
    largest = 0
    for table in in_parts([batch] * 10, "part", bytes_max=1 << 16):
        assert os.listdir(tmp_path), "rows are on the disk that Spark names"
        largest = max(largest, table.nbytes)
    assert largest <= 2 * 10 * batch.nbytes / PARTS
    assert os.listdir(tmp_path) == []
    tables = in_parts([batch] * 10, "part", bytes_max=1 << 16)
    next(tables)
    tables.close()
    assert os.listdir(tmp_path) == []


KEY = pa.struct([("id", pa.int64())])
ROW = pa.struct([("id", pa.int64()), ("name", pa.string())])
CHANGES = pa.schema(
    [
        *KEY,
        ("_truncates", pa.bool_()),
        ("_lane", pa.int64()),
        ("_position", pa.int64()),
        ("_row", ROW),
        (PART, pa.int32()),
    ]
)
changes = st.tuples(st.integers(-1, 12), st.sampled_from(["ann", "bob", UNAVAILABLE, None]))
"""Of a key, with its name from now on or None; a key below zero removes all rows."""


@settings(max_examples=25)
@given(st.lists(st.lists(changes, max_size=8), max_size=12), st.sampled_from([0, 200, 1 << 30]))
def test_a_table_of_more_rows_than_fit_into_memory_is_that_of_a_plain_loop(
    cuts: list[list[tuple[int, str | None]]], bytes_max: int
) -> None:
    position, batches, expected = 0, [], dict[int, str]()
    for cut in cuts:
        rows = []
        for key, name in cut:
            position += 1
            row = None if key < 0 or name is None else {"id": key, "name": name}
            where = {"id": None, "_truncates": True, PART: None} if key < 0 else {"id": key, PART: key * 7 % PARTS}
            rows.append({"_truncates": False, "_lane": 0, "_position": position, "_row": row, **where})
            if key < 0:
                expected.clear()
            elif name is None:
                expected.pop(key, None)
            else:
                expected[key] = expected.get(key, name) if name == UNAVAILABLE else name
        batches.append(pa.RecordBatch.from_pylist(rows, schema=CHANGES))
    plan = kernel.Plan(Table(KEY, ROW), CHANGES.remove(len(CHANGES) - 1), KEY, None, 1, False, 0, "view")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel, "BOUNDED_BYTES_MAX", bytes_max)
        found = [row for batch in kernel._bounded(plan)(iter(batches)) for row in batch.to_pylist()]
    assert all((row["op"], row["before"]) == ("insert", None) for row in found)
    shown = sorted((row["after"]["id"], row["after"]["name"]) for row in found)
    assert shown == sorted((key, name) for key, name in expected.items() if name != UNAVAILABLE)
