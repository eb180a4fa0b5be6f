"""How the rows of a micro-batch become changes for a target. No JVM is started."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.spark.sinks.following import _cut, _regrouped
from headrace.targets.changes import Changes

NUMBERS = pa.table({"id": pa.array(range(6), pa.int64())})
GONE = pa.chunked_array([pa.array([False, True, False, True, False, True])])


@pytest.mark.parametrize(
    ("truncations", "parts"),
    [
        ([], [(False, [0, 1, 2, 3, 4, 5])]),
        ([0], [(True, [1, 2, 3, 4, 5])]),
        ([5], [(False, [0, 1, 2, 3, 4]), (True, [])]),
        ([1, 2, 4], [(False, [0]), (True, []), (True, [3]), (True, [5])]),
    ],
)
def test_each_truncation_stands_between_the_changes_before_and_after_it(
    truncations: list[int], parts: list[tuple[bool, list[int]]]
) -> None:
    found = list(_cut(Changes(NUMBERS, GONE), truncations))
    assert [(each.truncates, each.rows["id"].to_pylist()) for each in found] == parts
    for each in found:
        assert each.deleted is not None
        assert each.deleted.to_pylist() == [number % 2 == 1 for number in each.rows["id"].to_pylist()]


def test_a_batch_without_rows_has_no_changes() -> None:
    assert list(_cut(Changes(NUMBERS.slice(0, 0)), [])) == []


def test_small_blocks_go_together_in_their_order_and_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.sinks.following.CHUNK_ROWS", 4)
    blocks = [pa.record_batch({"id": pa.array(part)}) for part in ([1, 2, 3], [4, 5], [6], [7, 8, 9, 10], [11])]
    found = [table["id"].to_pylist() for table in _regrouped(iter(blocks))]
    assert found == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11]]
