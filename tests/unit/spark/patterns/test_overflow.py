"""More partial matches than a key may have, and rows that come too late: what is given up, counted and given out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.patterns.fluent import Pattern, pattern
from headrace.spark.patterns.overflow import Overflow
from headrace.spark.patterns.runs import TooManyRuns
from tests.unit.spark.patterns.world import Matching, place_of
from tests.unit.spark.state_world import KEYS, Event, Stream, arrivals

WITHIN_S = 30
Pair = tuple[str | None, int, int]
"""(key, second of the first row, second of the last row)"""


def opened(any_later: bool) -> Pattern:
    """A positive amount and then, if ``any_later`` every, otherwise the first negative one within half a minute."""
    first = pattern("a").where("amount > 0")
    second = first.followed_by_any("b") if any_later else first.followed_by("b")
    return second.where("amount < 0").within(f"{WITHIN_S} seconds")


def plain(events: Sequence[Event], limit: int, overflow: Overflow, any_later: bool) -> tuple[Counter[Pair], int]:
    """The pairs and how many first rows were given up, row by row."""
    found: Counter[Pair] = Counter()
    dropped = 0
    for key in {event[0] for event in events}:
        open_starts: list[int] = []
        for _, second, amount in sorted(
            (event for event in events if event[0] == key), key=lambda each: (each[1], place_of(each))
        ):
            open_starts = [start for start in open_starts if second < start + WITHIN_S]
            if amount is not None and amount < 0:
                found.update((key, start, second) for start in open_starts)
                open_starts = open_starts if any_later else []
            elif amount is not None and amount > 0:
                if len(open_starts) >= limit:
                    dropped += 1
                    if overflow == "drop_newest":
                        continue
                    open_starts.pop(0)
                open_starts.append(second)
    return found, dropped


def pairs(rows: list[dict[str, object]]) -> Counter[Pair]:
    return Counter(
        (row["user"], int(row["match_start"].timestamp()), int(row["match_end"].timestamp()))  # type: ignore[attr-defined,misc]
        for row in rows
    )


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
@pytest.mark.parametrize("any_later", [False, True])
@given(batches=arrivals(), restarts=st.sets(st.integers(0, 5)), limit=st.integers(1, 3))
@settings(max_examples=15)
def test_which_partial_matches_are_given_up_is_that_of_a_plain_loop_whatever_the_cuts_and_restarts(
    overflow: Overflow, any_later: bool, batches: list[list[Event]], restarts: set[int], limit: int
) -> None:
    matching = Matching(opened(any_later), partials_max=limit, overflow=overflow)
    events = [event for batch in batches for event in batch]
    stream, dropped = Stream(matching.operator, matching.operator.rows, KEYS), 0
    for _ in stream.take(map(matching.prepared, batches), restarts):
        dropped += stream.counts["dropped_partials"]
    found = matching.read(stream.finish())
    assert (pairs(found), dropped + stream.counts["dropped_partials"]) == plain(events, limit, overflow, any_later)


def test_a_first_row_that_was_given_up_stays_so_when_those_before_it_are_gone() -> None:
    """The first of two open rows times out in a batch before the one that brings the end of the others."""
    batches: list[list[Event]] = [[("a", 1, 1), ("a", 10, 1), ("a", 20, 1)], [("a", 52, None)], [("a", 39, -1)]]
    matching = Matching(opened(False), partials_max=2, overflow="drop_newest")
    assert pairs(matching.streamed([*batches, [("a", 100, None)]], set())) == Counter({("a", 10, 39): 1})


def test_a_match_that_is_complete_at_the_row_that_takes_its_place_stays() -> None:
    """Each row is the end of the match before and the beginning of the next."""
    wanted = pattern("a").where("amount > 0").followed_by_any("b").where("amount > 2").within("30 seconds")
    matching = Matching(wanted, partials_max=1, overflow="drop_oldest")
    found = matching.bounded([("a", 1, 1), ("a", 2, 3), ("a", 3, 3)])
    assert pairs(found) == Counter({("a", 1, 2): 1, ("a", 2, 3): 1})


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
@given(batches=arrivals(), restarts=st.sets(st.integers(0, 5)), limit=st.integers(1, 2))
@settings(max_examples=10)
def test_with_sqls_patterns_too_a_stream_gives_up_what_the_bounded_frame_does(
    overflow: Overflow, batches: list[list[Event]], restarts: set[int], limit: int
) -> None:
    text = """PARTITION BY user ORDER BY at MEASURES LAST(B.amount) AS amount, COUNT(*) AS n
        AFTER MATCH SKIP TO NEXT ROW PATTERN (A N* B) WITHIN INTERVAL '30' SECONDS
        DEFINE A AS A.amount > 0, N AS N.amount >= 0, B AS B.amount < -1"""
    matching = Matching(text, partials_max=limit, overflow=overflow)
    whole = matching.bounded([event for batch in batches for event in batch])
    assert Counter(map(str, matching.streamed(batches, restarts))) == Counter(map(str, whole))


def test_without_a_policy_too_many_partial_matches_end_the_query() -> None:
    matching = Matching(opened(False), partials_max=2)
    with pytest.raises(TooManyRuns, match="partials_max is 2"):
        matching.bounded([("a", second, 1) for second in range(3)])


def test_partial_matches_that_wait_count_whenever_they_began_to() -> None:
    """The last row begins one, which waits at once; when the first two begin two each, it still waits."""
    text = "PARTITION BY user ORDER BY at MEASURES COUNT(*) AS n PATTERN (A A A (B C | B D)) WITHIN INTERVAL '1' HOUR"
    batches = [[("a", second, 1.0) for second in range(4)], [("b", 500, 1.0)], [("b", 900, 1.0)]]
    assert not Matching(text, partials_max=6).streamed(batches, set())  # a fifth row is lacking
    with pytest.raises(TooManyRuns, match="has 6 partial matches at once and partials_max is 5"):
        Matching(text, partials_max=5).streamed(batches, set())


def test_late_rows_come_out_beside_the_matches_if_they_are_wanted() -> None:
    matching = Matching(opened(False), late=True)
    stream = Stream(matching.operator, matching.operator.rows, KEYS)
    stream.push(matching.prepared([("a", 100, 1), ("a", 110, -1)]))
    late = stream.push(matching.prepared([("b", 50, 1), ("a", 95, -1), ("a", 200, 1)])).to_pylist()
    assert [(row["user"], row["pattern"], row["late"]["amount"]) for row in late] == [("b", None, 1)]
    assert stream.late_rows == 1
    rest = stream.finish().to_pylist()
    matched = [row for row in rest if row["late"] is None]
    assert [(row["user"], row["match_end"].timestamp()) for row in matched] == [("a", 110)]
    assert stream.keys_held == 0
