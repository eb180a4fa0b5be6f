"""Patterns made by functions: the combinations of Flink's CEP, from its documentation, and the same however cut."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.spark.patterns.fluent import Pattern, pattern
from tests.unit.spark.patterns.world import Matching, place_of
from tests.unit.spark.state_world import Event, arrivals

KINDS = {"a": 1, "b": 2, "c": 3, "d": 4}


def events_of(text: str) -> list[Event]:
    """``a c b1 b2``: one row a second, of that kind."""
    return [("u", second + 1, KINDS[each[0]]) for second, each in enumerate(text.split())]


def found_in(wanted: Pattern, text: str, *, timeouts: bool = False) -> list[str]:
    """Matches, each as the rows that it has."""
    names = text.split()
    rows = Matching(wanted, timeouts=timeouts).bounded(events_of(text))
    marks = {True: "!", False: ""}
    return sorted(
        " ".join(names[int(each["at"].timestamp()) - 1] for each in row["events"]) + marks[row["timed_out"]]
        for row in rows
    )


def part(name: str, kind: str | None = None) -> Pattern:
    return pattern(name).where(f"amount = {KINDS[kind or name]}")


A = part("a")


def then(before: Pattern, how: str, name: str) -> Pattern:
    after: Pattern = getattr(before, how)(name)
    return after.where(f"amount = {KINDS[name[0]]}")


@pytest.mark.parametrize(
    ("how", "wanted"),
    [("next", []), ("followed_by", ["a b1"]), ("followed_by_any", ["a b1", "a b2"])],
)
def test_the_three_ways_to_follow(how: str, wanted: list[str]) -> None:
    assert found_in(then(A, how, "b"), "a c b1 b2") == wanted


B_LOOP = part("b").one_or_more()


@pytest.mark.parametrize(
    ("skip", "wanted"),
    [
        (("none",), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
        (("next",), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
        (("past_last",), ["b1 b2 b3 c"]),
        (("to_first", "b"), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
        (("to_last", "b"), ["b1 b2 b3 c", "b3 c"]),
    ],
)
def test_what_a_match_ends(skip: tuple[str, ...], wanted: list[str]) -> None:
    loop = then(B_LOOP.consecutive(), "next", "c")
    assert found_in(loop.after_match(*skip), "b1 b2 b3 c") == wanted


def test_every_length_of_a_loop_at_the_end_is_a_match_unless_the_first_ends_the_others() -> None:
    loop = then(A, "next", "b").one_or_more().consecutive()
    assert found_in(loop, "a b1 b2 b3") == ["a b1", "a b1 b2", "a b1 b2 b3"]
    assert found_in(loop.after_match("next"), "a b1 b2 b3") == ["a b1"]


def test_rows_of_a_loop_follow_each_other_as_asked() -> None:
    loop = then(then(part("c"), "followed_by", "a").one_or_more(), "followed_by", "b")
    text = "c d a1 a2 a3 d a4 b"
    relaxed = ["c a1 a2 a3 a4 b", "c a1 a2 a3 b", "c a1 a2 b", "c a1 b"]
    assert found_in(loop, text) == relaxed
    strict = then(then(part("c"), "followed_by", "a").one_or_more().consecutive(), "followed_by", "b")
    assert found_in(strict, text) == ["c a1 a2 a3 b", "c a1 a2 b", "c a1 b"]
    any_of = then(then(part("c"), "followed_by", "a").one_or_more().allow_combinations(), "followed_by", "b")
    combined = {"c a1 a2 a3 a4 b", "c a1 a2 a4 b", "c a1 a3 a4 b", "c a1 a4 b", "c a1 a3 b", *relaxed}
    assert found_in(any_of, text) == sorted(combined)


def test_a_row_that_must_not_come_ends_a_match() -> None:
    absent = then(then(A, "not_followed_by", "c"), "followed_by", "b")
    assert found_in(absent, "a d b") == ["a b"]
    assert found_in(absent, "a c b") == []
    assert found_in(then(then(A, "not_next", "c"), "followed_by", "b"), "a c b") == []
    assert found_in(then(then(A, "not_next", "c"), "followed_by", "b"), "a d c b") == ["a b"]


def test_an_absence_at_the_end_is_a_match_when_the_time_is_over() -> None:
    absent = then(A, "not_followed_by", "b").within("3 seconds")
    assert found_in(absent, "a d d b a b") == ["a"]


def test_a_loop_ends_at_its_stop_condition() -> None:
    loop = then(A, "followed_by", "b").one_or_more().until("amount = 3")
    assert found_in(loop, "a b1 b2 c b3") == ["a b1", "a b1 b2"]

    strict = pattern("a").where("amount = 1").next("b").where("amount > 1").one_or_more().consecutive()
    assert found_in(strict.until("amount = 3"), "a b1 b2 c b3") == ["a b1", "a b1 b2"]


def test_what_must_not_come_before_a_group_ends_a_match() -> None:
    absent = then(A, "not_followed_by", "d").followed_by(then(part("b"), "followed_by", "c"))
    assert found_in(absent, "a d b c") == []
    assert found_in(absent, "a b d c") == ["a b c"]


def test_a_row_that_waits_for_the_next_one_is_not_lost() -> None:
    """The row is behind the watermark before the row after it comes."""
    rising = pattern("a").where("amount < NEXT(amount)").within("1 minute")
    batches: list[list[Event]] = [[("u", 10, 1)], [("v", 60, 0)], [], [("u", 100, 2)]]
    assert len(Matching(rising).streamed(batches, set())) == 1
    late = rising.followed_by("b").where("amount = 4").within("5 seconds")
    assert [row["timed_out"] for row in Matching(late, timeouts=True).streamed(batches, set())] == [True]
    quiet = rising.not_followed_by("b").where("amount = 2").within("10 seconds")
    given: list[list[Event]] = [[("u", 1, 0), ("u", 2, 1), ("u", 5, 2)], [("v", 60, 0)], [], [("u", 100, 2)]]
    assert Matching(quiet).streamed(given, set()) == []


def test_a_partial_match_that_a_match_ended_does_not_time_out() -> None:
    two = then(A, "followed_by_any", "b").within("3 seconds")
    assert found_in(two, "a b d d d", timeouts=True) == ["a b", "a!"]
    assert found_in(two.after_match("past_last"), "a b d d d", timeouts=True) == ["a b"]
    assert found_in(two.after_match("next"), "a b d d d", timeouts=True) == ["a b"]


def test_a_partial_match_that_could_go_on_in_two_ways_times_out_once() -> None:
    loop = then(A.one_or_more(), "followed_by", "b").within("3 seconds")
    assert found_in(loop, "a1 a2 d", timeouts=True) == ["a1 a2!", "a1!", "a2!"]


def test_what_must_not_come_does_not_end_a_partial_match_whose_time_was_over() -> None:
    absent = then(then(A, "not_followed_by", "c"), "followed_by", "b").within("2 seconds")
    assert found_in(absent, "a d c", timeouts=True) == ["a!"]
    assert found_in(absent, "a c d", timeouts=True) == []


def test_of_rows_with_equal_times_the_first_completes_its_matches_first() -> None:
    wanted = pattern("a").where("amount < 3").followed_by("b").where("amount = a.amount + 2").within("1 minute")
    for shift in range(20):
        rows: list[Event] = [("u", 1, 1), ("u", 2, 2), ("u", 3 + shift, 3), ("u", 3 + shift, 4)]
        first = min(rows[2:], key=place_of)
        events = [row["events"] for row in Matching(wanted.after_match("past_last")).bounded(rows)]
        assert [each[-1]["amount"] for each in events] == [first[2]]


def test_a_partial_match_whose_time_was_over_before_the_match_times_out() -> None:
    two = then(A, "followed_by", "b").within("4 seconds").after_match("past_last")
    assert found_in(two, "a1 d a2 d d b", timeouts=True) == ["a1!", "a2 b"]


def test_a_row_at_the_watermark_is_matched_when_the_watermark_has_passed_it() -> None:
    batches: list[list[Event]] = [[("u", 10, 1)], [("v", 30, 0)], [("u", 12, 0)], [("v", 60, 0)], []]
    assert len(Matching(A.within("1 minute")).streamed(batches, set())) == 1


def test_partial_matches_come_when_their_time_is_over() -> None:
    two = then(then(A, "followed_by", "b"), "followed_by", "c").within("2 seconds")
    assert found_in(two, "a b c", timeouts=True) == ["a b!"]
    assert found_in(two.within("3 seconds"), "a b c", timeouts=True) == ["a b c"]


def test_an_optional_first_part_and_a_group() -> None:
    maybe = then(A.optional(), "followed_by", "b")
    assert found_in(maybe, "a d b") == ["a b", "b"]
    group = then(part("a"), "followed_by", "b")
    twice = pattern("c").where("amount = 3").followed_by(group).times(2)
    assert found_in(twice, "c a1 b1 a2 b2") == ["c a1 b1 a2 b2"]


def test_conditions_may_speak_of_rows_before() -> None:
    rising = (
        pattern("a").where("amount = 2").next("b").where("amount > LAST(a.amount)").where("amount < 2 * AVG(a.amount)")
    )
    assert found_in(rising, "b1 c1 b2 d") == ["b1 c1"]


def test_a_condition_may_have_comments() -> None:
    two = pattern("a").where("amount > 0 -- something").where("/* and */ amount < 2").next("b").where("amount = 2 -- b")
    assert found_in(two, "a b") == ["a b"]


def test_measures_see_the_rows_around_a_match_and_the_names_as_they_were_written() -> None:
    two = then(A, "next", "b").within("10 seconds")
    said = {"before": "PREV(FIRST(amount), 2)", "after": "NEXT(LAST(b.amount))", "what": "CLASSIFIER()"}
    batches = [[event] for event in [*events_of("d c a b c"), ("v", 100, 1), ("v", 200, 1)]]
    rows = Matching(two, measures=said).streamed(batches, set())
    assert [(row["before"], row["after"], row["what"]) for row in rows] == [(4, 3, "b")]
    with pytest.raises(UsageError, match="MATCH_NUMBER"):
        Matching(two, measures={"n": "MATCH_NUMBER()"})


def test_mistakes_are_refused_with_a_cure() -> None:
    with pytest.raises(UsageError, match="needs within"):
        Matching(then(A, "not_followed_by", "b"))
    with pytest.raises(UsageError, match="stands twice"):
        Matching(A.next("A"))
    with pytest.raises(UsageError, match="until\\(\\) is for loops"):
        A.until("amount = 1")
    with pytest.raises(UsageError, match="can use its row only"):
        Matching(A.not_followed_by("b").where("amount > LAST(a.amount)").followed_by("c"))
    with pytest.raises(UsageError, match="the condition of a speaks of b, which has no row by then"):
        Matching(pattern("a").where("amount > b.amount").followed_by("b"))
    with pytest.raises(UsageError, match="the condition of c speaks of b, which has no row by then"):
        Matching(A.not_followed_by("b").followed_by("c").where("amount > SUM(b.amount)"))
    with pytest.raises(UsageError, match="may be absent"):
        Matching(A.not_followed_by("b").followed_by("c").optional().followed_by("d"))
    with pytest.raises(UsageError, match="may all be absent"):
        Matching(A.optional().not_next("b").followed_by("c"))
    with pytest.raises(UsageError, match="within"):
        A.followed_by(part("b").within("1 minute"))
    with pytest.raises(UsageError, match="cannot end with not_followed_by"):
        A.followed_by(part("b").not_followed_by("c"))
    with pytest.raises(UsageError, match="takes text or a Column"):
        A.where(lambda row: True)  # type: ignore[arg-type]
    loop = A.followed_by("b").one_or_more()
    for condition in (4, "", "  "):
        with pytest.raises(UsageError, match="until\\(\\) "):
            loop.until(condition)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="b has an until\\(\\) already"):
        loop.until("amount = 1").until("amount = 2")
    for name in ("", None, 3):
        for made in (pattern, A.next, A.followed_by, A.not_followed_by):
            with pytest.raises(UsageError, match="which is no name"):
                made(name)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="loop of groups"):
        A.followed_by(part("b").next("c")).one_or_more().until("amount = 1")


def test_groups_in_groups_have_a_bound() -> None:
    nested = part("b")
    with pytest.raises(UsageError, match="groups stand inside each other 50 times at most"):
        for number in range(100):
            nested = pattern(f"p{number}").next(nested)


def test_a_mistake_in_one_of_several_conditions_is_shown_as_it_was_written() -> None:
    with pytest.raises(UsageError) as refused:
        Matching(pattern("a").where("amount > 1").where("amount < "))
    assert str(refused.value).split("\n")[1:] == ["  amount < ", "          ^"]
    with pytest.raises(UsageError):
        Matching(pattern("a").where("amount > 1) OR (amount < 2"))


CASES = [
    then(then(A, "followed_by_any", "b").one_or_more(), "followed_by", "c").within("50 seconds"),
    then(then(then(A, "not_followed_by", "d"), "followed_by", "b"), "not_followed_by", "c").within("30 seconds"),
    pattern("a")
    .where("amount > 0")
    .followed_by("b")
    .where("amount > MAX(a.amount)")
    .within("40 seconds")
    .after_match("past_last"),
]


def bag(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (row["user"], row["timed_out"], *((each["variable"], each["at"], each["amount"]) for each in row["events"]))
        for row in rows
    )


@pytest.mark.parametrize("number", range(len(CASES)))
@settings(max_examples=20, deadline=None)
@given(batches=arrivals(), restarts=st.sets(st.integers(0, 8)))
def test_the_matches_do_not_depend_on_cuts_restarts_and_order(
    number: int, batches: list[list[Event]], restarts: set[int]
) -> None:
    events = [event for batch in batches for event in batch]
    matching = Matching(CASES[number], timeouts=True)
    assert bag(matching.streamed(batches, restarts)) == bag(matching.bounded(events))


@pytest.mark.parametrize(("second", "count"), [(10, 0), (11, 1)])
def test_what_must_not_come_may_come_when_the_time_is_over_and_not_before(second: int, count: int) -> None:
    quiet = pattern("a").where("amount = 1").not_followed_by("b").where("amount = 2").within("10 seconds")
    assert len(Matching(quiet).bounded([("a", 1, 1), ("a", second, 2)])) == count
