"""Why rows do not match, said of the rows that matter."""

from __future__ import annotations

import pyarrow as pa

from headrace.spark.patterns.explanation import _report, _Wanted
from headrace.spark.patterns.fluent import Pattern, pattern
from headrace.spark.patterns.pattern_plan import PatternPlan
from tests.unit.spark.patterns.world import Matching
from tests.unit.spark.state_world import Event

ONE_THEN_TWO = pattern("a").where("amount = 1").not_followed_by("c").where("amount = 3").followed_by("b")


def said(wanted: Pattern, events: list[Event]) -> list[str]:
    report = _report(_Wanted.of(wanted), *plan_and_rows(wanted, events), "at")
    return [line.split("): ", 1)[-1] for line in report.split("\n")]


def plan_and_rows(wanted: Pattern, events: list[Event]) -> tuple[PatternPlan, pa.Table]:
    """An event at 0 seconds has no time."""
    matching = Matching(wanted)
    table = matching.prepared(events)
    times = pa.array([None if event[1] == 0 else event[1] * 10**6 for event in events], pa.int64())
    place = table.schema.get_field_index("at")
    table = table.set_column(place, "at", times.cast(table.schema.field("at").type))
    return matching.operator.patterns[0], table


def test_the_row_that_must_not_come_is_named_and_not_the_one_before_it() -> None:
    lines = said(ONE_THEN_TWO.where("amount = 2"), [("u", 1, 1), ("u", 2, 9), ("u", 3, 3), ("u", 4, 2)])
    assert lines[0] == "row 3 (1970-01-01 00:00:03+00:00) is c (amount = 3), which must not come before b"


def test_rows_that_were_passed_over_are_no_rows_of_a_match_and_rows_without_a_time_are_left_out() -> None:
    lines = said(ONE_THEN_TWO.where("amount = 2"), [("u", 1, 1), ("u", 2, 9), ("u", 0, 3), ("u", 4, 2)])
    assert lines[0] == "a match of 2 rows"
    assert lines[3:] == ["rows without a time, which are left out: 1"]


def test_what_must_not_come_until_the_time_is_over_is_named_when_it_came() -> None:
    wanted = pattern("a").where("amount = 1").not_followed_by("c").where("amount = 3").within("5 minutes")
    lines = said(wanted, [("u", 1, 1), ("u", 2, 9), ("u", 3, 3)])
    assert lines[0] == "row 3 (1970-01-01 00:00:03+00:00) is c (amount = 3), which must not come"


def test_what_must_not_come_next_is_named_when_it_came() -> None:
    wanted = pattern("a").where("amount = 1").not_next("c").where("amount = 3").followed_by("b")
    lines = said(wanted, [("u", 1, 1), ("u", 2, 3), ("u", 3, 2)])
    assert lines[0] == "row 2 (1970-01-01 00:00:02+00:00) is c (amount = 3), which must not come"


def test_rows_that_end_are_not_called_a_time_that_was_over() -> None:
    wanted = pattern("a").where("amount = 1").followed_by("b").where("amount = 2").within("10 seconds")
    lines = said(wanted, [("u", 1, 1), ("u", 2, 9)])
    assert lines[0] == "the rows ended before b"
    lines = said(wanted, [("u", 1, 1), ("u", 11, 2)])
    assert lines[0] == "the time was over before b: row 2 (1970-01-01 00:00:11+00:00) is too late"


def test_the_row_that_ends_a_loop_is_named_with_its_condition() -> None:
    wanted = pattern("a").where("amount = 1").times_or_more(2).until("amount = 5")
    lines = said(wanted, [("u", 1, 1), ("u", 2, 5), ("u", 3, 1)])
    assert lines[0] == "row 2 (1970-01-01 00:00:02+00:00) ends the loop before a (amount = 5)"


def test_no_rows_at_all_are_said_in_words() -> None:
    assert "there are no rows" in _report(_Wanted.of(pattern("a")), *plan_and_rows(pattern("a"), []), "at")
