"""The order in which a pattern sees rows: by key, time and further columns, and as they came where all are equal."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.patterns.sorted_rows import rows_in_order

FEW = st.sampled_from([-(2**62), -7, 0, 1, 2, 2**62])
ROWS = st.lists(st.tuples(st.integers(0, 3), FEW, st.integers(0, 2) | st.none(), st.integers(0, 2)), max_size=40)


@given(rows=ROWS, near=st.booleans())
def test_rows_are_sorted_as_python_sorts_them(rows: list[tuple[int, int, int | None, int]], near: bool) -> None:
    """Also where key and time do not fit into one number."""
    rows = [(code, time % 5 if near else time, amount, place) for code, time, amount, place in rows]
    codes, times = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    table = pa.table({"amount": pa.array([row[2] for row in rows], pa.int64()), "place": [row[3] for row in rows]})
    found = rows_in_order(table, codes, times, (("amount", "descending"), ("place", "ascending")))

    def place_of(index: int) -> tuple[int, int, bool, int, int, int]:
        code, time, amount, place = rows[index]
        return code, time, amount is None, -(amount or 0), place, index

    assert found.tolist() == sorted(range(len(rows)), key=place_of)
