"""The judge of pipelines on Spark notices planted faults."""

from __future__ import annotations

import pytest

from headrace.record import Record
from tests.chaos.spark_judge import CLOSING_S, judge_updates, out_of_order, windows

ROWS = [(number % 2, Record(b"%d" % (number % 3), b"%d" % number, offset=number // 2)) for number in range(12)]
UPDATES = ["0:2:3", "1:4:22", "2:1:2", "0:4:18", "2:4:26"]


def test_sound_updates_pass_and_each_planted_fault_is_found() -> None:
    assert judge_updates(UPDATES, ROWS).complete
    faults = {
        "lost": UPDATES[:-1],
        "doubled": [*UPDATES, "2:4:26"],
        "in another order": [UPDATES[3], *UPDATES],
        "too many": [*UPDATES, "1:5:30"],
    }
    for fault, found in faults.items():
        assert not judge_updates(found, ROWS).complete, fault


def test_windows_are_those_that_the_watermark_has_passed() -> None:
    assert windows(ROWS) == []
    closing = (0, Record(b"0", b"%d" % CLOSING_S, offset=6))
    assert sorted(windows([*ROWS, closing])) == ["0:0:4:18", "0:1:4:22", "0:2:4:26"]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([("a", 1), ("b", 1), ("a", 2), ("b", 5)], []),
        ([("a", 2), ("a", 1), ("a", 3)], [("a", 1)]),
        ([("a", 1), ("a", 2), ("a", 2)], [("a", 2)]),
    ],
)
def test_rows_of_a_key_in_another_order_are_found(rows: list[tuple[str, int]], wrong: list[tuple[str, int]]) -> None:
    assert out_of_order(rows) == wrong
