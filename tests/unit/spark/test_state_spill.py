"""Rows that are too many for memory come back in parts, with all rows of a key together and in order."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.state.spill import PARTS, in_parts

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
