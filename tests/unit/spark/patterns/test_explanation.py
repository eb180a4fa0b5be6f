"""Why rows do not match, said of the rows that matter."""

from __future__ import annotations

import pyarrow as pa

from headrace.spark.patterns.explanation import _report, _Wanted
from headrace.spark.patterns.fluent import Pattern, pattern
from tests.unit.spark.patterns.world import Matching
from tests.unit.spark.state_world import Event

ONE_THEN_TWO = pattern("a").where("amount = 1").not_followed_by("c").where("amount = 3").followed_by("b")


def said(wanted: Pattern, events: list[Event]) -> list[str]:
    matching = Matching(wanted)
    table = matching.prepared(events)
    times = pa.array([None if event[1] == 0 else event[1] * 10**6 for event in events], pa.int64())
    place = table.schema.get_field_index("at")
    table = table.set_column(place, "at", times.cast(table.schema.field("at").type))
    return [
        line.split("): ", 1)[1]
        for line in _report(_Wanted.of(wanted), matching.operator.patterns[0], table, "at").split("\n")
    ]


def test_the_row_that_must_not_come_is_named_and_not_the_one_before_it() -> None:
    lines = said(ONE_THEN_TWO.where("amount = 2"), [("u", 1, 1), ("u", 2, 9), ("u", 3, 3), ("u", 4, 2)])
    assert lines[0] == "row 3 (1970-01-01 00:00:03+00:00) must not come before b"


def test_rows_that_were_passed_over_are_no_rows_of_a_match_and_rows_without_a_time_are_left_out() -> None:
    lines = said(ONE_THEN_TWO.where("amount = 2"), [("u", 1, 1), ("u", 2, 9), ("u", 0, 3), ("u", 4, 2)])
    assert lines[0] == "a match of 2 rows"
    assert len(lines) == 3
