"""Patterns that change while a stream runs: which rows they count for, whatever is cut and restarted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.patterns.changing_operator import CHANGE, EVENT, TABLE, MatchChangingPatterns
from headrace.spark.patterns.fluent import pattern
from headrace.spark.patterns.operator import MatchPatterns
from headrace.spark.patterns.outcome import TIME
from headrace.spark.patterns.recognize import PLACE
from headrace.spark.patterns.stored import Limits
from headrace.spark.state.operator import BEGINNING, END, run_bounded
from tests.unit.spark.stream_world import SECOND, Query, cut

USERS = pa.struct([("user", pa.string())])
KEYS = pa.struct([("user", pa.string()), (TABLE, pa.bool_())])
ROWS = pa.schema([("user", pa.string()), ("at", TIME), ("amount", pa.int64()), (PLACE, pa.int64())])
INPUT = pa.schema(
    [
        ("user", pa.string()),
        (TABLE, pa.bool_()),
        ("at", TIME),
        (EVENT, pa.struct([("amount", pa.int64()), (PLACE, pa.int64())])),
        (
            CHANGE,
            pa.struct(
                [
                    ("pattern", pa.string()),
                    ("text", pa.string()),
                    ("removed", pa.bool_()),
                    ("position", pa.int64()),
                    ("lane", pa.int64()),
                ]
            ),
        ),
    ]
)
WITHIN_S = 4
FOLLOWED = pattern("a").where("amount = 1").followed_by("b").where("amount = 2").within(f"{WITHIN_S} seconds")
ABSENT = pattern("a").where("amount = 1").not_followed_by("b").where("amount = 2").within(f"{WITHIN_S} seconds")
TEXTS = {
    "followed": FOLLOWED.to_json(),
    "past": FOLLOWED.after_match("past_last").to_json(),
    "absent": ABSENT.to_json(),
    "risen": FOLLOWED.next("c").where("amount > a.amount + b.amount").to_json(),
    "loop": f"PATTERN (A+ B) WITHIN '{WITHIN_S} seconds' DEFINE A AS amount = 1, B AS amount = 2",
    "prev": f"PATTERN (A B) WITHIN '{WITHIN_S} seconds' DEFINE A AS PREV(A.amount) = 0, B AS amount = 2",
    "bad": "PATTERN (A + + B)",
}


def operator(patterns_max: int = 100, **limits: Any) -> MatchChangingPatterns:
    matching = MatchPatterns(
        rows=ROWS,
        keys=USERS,
        event_time="at",
        order=((PLACE, "ascending"),),
        place=PLACE,
        patterns=(),
        given="events",
        shown=("at", "amount"),
    )
    return MatchChangingPatterns(matching, patterns_max, Limits(**{"partials_max": 1000} | limits))


@dataclass(frozen=True)
class Paid:
    """An event. ``place`` is its order among those of one time."""

    user: str
    at_s: int
    amount: int
    place: int


@dataclass(frozen=True)
class Said:
    """A change: a pattern is one of ``TEXTS``, or removed; without a name, all are."""

    pattern: str | None
    at_s: int | None
    kind: str | None
    position: int


def moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def table(given_rows: Sequence[Paid | Said]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for each in given_rows:
        if isinstance(each, Paid):
            rows.append(
                {
                    "user": each.user,
                    TABLE: False,
                    "at": moment(each.at_s),
                    EVENT: {"amount": each.amount, PLACE: each.place},
                }
            )
            continue
        text = None if each.kind is None else TEXTS.get(each.kind, each.kind)
        change = {
            "pattern": each.pattern,
            "text": text,
            "removed": each.kind is None,
            "position": each.position,
            "lane": 3,
        }
        rows.append({TABLE: True, "at": moment(each.at_s), CHANGE: change})
    return pa.Table.from_pylist(rows, INPUT)


# ---- a plain loop ----------------------------------------------------------------------------------------------------


def versions_of(batches: Sequence[tuple[int, Sequence[Paid | Said]]]) -> list[tuple[str, str, int, int]]:
    """(pattern, kind, from, to) of all versions, in microseconds."""
    current: dict[str, tuple[str, int]] = {}
    last: dict[str, int] = {}
    found = []

    def end(name: str, at: int) -> None:
        kind, began = current.pop(name)
        found.append((name, kind, began, max(at, began)))
        last[name] = max(at, began)

    for clock, batch in batches:
        for said in sorted((each for each in batch if isinstance(each, Said)), key=lambda each: each.position):
            at = max(clock if said.at_s is None else said.at_s * SECOND, clock)
            if said.pattern is None:
                for name in list(current):
                    end(name, at)
                continue
            if said.kind is not None and current.get(said.pattern, ("",))[0] == said.kind:
                continue
            at = max(at, last.get(said.pattern, at))
            if said.pattern in current:
                at = max(at, current[said.pattern][1])
                end(said.pattern, at)
            if said.kind is not None:
                current[said.pattern] = (said.kind, at)
    return found + [(name, kind, began, END) for name, (kind, began) in current.items()]


def plain(batches: Sequence[tuple[int, Sequence[Paid | Said]]]) -> Counter[tuple[Any, ...]]:
    events = [
        each for clock, batch in batches for each in batch if isinstance(each, Paid) and each.at_s * SECOND >= clock
    ]
    found: Counter[tuple[Any, ...]] = Counter()
    for name, kind, begin, end in versions_of(batches):
        for user in {each.user for each in events}:
            rows = sorted((each.at_s, each.place, each.amount) for each in events if each.user == user)
            rows = [each for each in rows if begin <= each[0] * SECOND < end]
            for match in MATCHES[kind](rows, end):
                found[(user, name, tuple(each[1] for each in match))] += 1
    return found


Row = tuple[int, int, int]


def followed(rows: list[Row], end: int) -> list[list[Row]]:
    found = []
    for index, first in enumerate(rows):
        if first[2] == 1:
            second = next((each for each in rows[index + 1 :] if each[2] == 2), None)
            if second is not None and second[0] - first[0] < WITHIN_S:
                found.append([first, second])
    return found


def past(rows: list[Row], end: int) -> list[list[Row]]:
    """Of matches in the order of their ends, those that begin after the end of the last one that was taken."""
    taken: list[list[Row]] = []
    for match in sorted(followed(rows, end), key=lambda each: (rows.index(each[1]), rows.index(each[0]))):
        if not taken or rows.index(match[0]) > rows.index(taken[-1][1]):
            taken.append(match)
    return taken


def absent(rows: list[Row], end: int) -> list[list[Row]]:
    return [
        [first]
        for index, first in enumerate(rows)
        if first[2] == 1
        and (end == END or (first[0] + WITHIN_S) * SECOND <= end)
        and not any(each[2] == 2 and each[0] - first[0] < WITHIN_S for each in rows[index + 1 :])
    ]


def risen(rows: list[Row], end: int) -> list[list[Row]]:
    found = []
    for first, second in followed(rows, end):
        place = rows.index(second) + 1
        if place < len(rows) and rows[place][2] > 3 and rows[place][0] - first[0] < WITHIN_S:
            found.append([first, second, rows[place]])
    return found


def loop(rows: list[Row], end: int) -> list[list[Row]]:
    found, at = [], 0
    while at < len(rows):
        stop = at
        while stop < len(rows) and rows[stop][2] == 1:
            stop += 1
        if stop > at and stop < len(rows) and rows[stop][2] == 2 and rows[stop][0] - rows[at][0] < WITHIN_S:
            found.append(rows[at : stop + 1])
            at = stop + 1
        else:
            at += 1
    return found


def prev(rows: list[Row], end: int) -> list[list[Row]]:
    found, at = [], 1
    while at + 1 < len(rows):
        if rows[at - 1][2] == 0 and rows[at + 1][2] == 2 and rows[at + 1][0] - rows[at][0] < WITHIN_S:
            found.append(rows[at : at + 2])
            at += 2
        else:
            at += 1
    return found


MATCHES: dict[str, Any] = {
    "followed": followed,
    "past": past,
    "absent": absent,
    "risen": risen,
    "loop": loop,
    "prev": prev,
    "bad": lambda rows, end: [],
}


# ---- the operator beside it ------------------------------------------------------------------------------------------


def shown(rows: pa.Table, places: dict[tuple[str, int, int], list[int]]) -> Counter[tuple[Any, ...]]:
    """Matches with the places of their rows. Rows are distinguished by user, time and amount."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows.to_pylist():
        took = [places[(row["user"], int(each["at"].timestamp()), each["amount"])][0] for each in row["events"]]
        found[(row["user"], row["pattern"], tuple(took))] += 1
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[Paid | Said]:
    """Events and changes in the order of their arrival, none later than two seconds. Events of a user and a time have
    different amounts, so that a match shows which rows it has. Most events are of one user and fit into patterns, and
    there are patterns from the beginning: otherwise few examples would have a match."""
    good = sorted(set(TEXTS) - {"bad"})
    found: list[Paid | Said] = [
        Said(name, 0, draw(st.sampled_from(good)), -number) for number, name in ((2, "p"), (1, "q"))
    ]
    now = 0
    used: set[tuple[str, int, int]] = set()
    for number in range(draw(st.integers(10, 40))):
        now += draw(st.sampled_from([0, 0, 1, 1, 2]))
        at = max(now - draw(st.sampled_from([0, 0, 0, 1, 2])), 0)
        if draw(st.integers(0, 6)) == 0:
            name = draw(st.sampled_from(["p", "q", "p", "q", "p", "q", None]))
            kind = None if name is None else draw(st.sampled_from([*good, *good, "bad", None]))
            found.append(Said(name, draw(st.sampled_from([at, at, at + 2, None])), kind, number))
            continue
        user, amount = draw(st.sampled_from("uuuv")), draw(st.sampled_from([0, 1, 1, 2, 2, 4]))
        if (user, at, amount) not in used:
            used.add((user, at, amount))
            found.append(Paid(user, at, amount, number))
    return found


def places_of(history: Sequence[Paid | Said]) -> dict[tuple[str, int, int], list[int]]:
    return {(each.user, each.at_s, each.amount): [each.place] for each in history if isinstance(each, Paid)}


def with_clocks(batches: Sequence[Sequence[Paid | Said]], lateness_s: int) -> list[tuple[int, Sequence[Paid | Said]]]:
    """Each batch with the watermark that the events of earlier ones left."""
    found, highest = [], None
    for batch in batches:
        now = BEGINNING if highest is None else (highest - lateness_s) * SECOND
        found.append((now, batch))
        highest = max([each.at_s for each in batch if isinstance(each, Paid)], default=highest)
        highest = max(
            [each.at_s for _, past_batch in found for each in past_batch if isinstance(each, Paid)], default=None
        )
    return found


def streamed(
    timed: Sequence[tuple[int, Sequence[Paid | Said]]],
    restarts: set[int],
    places: dict[tuple[str, int, int], list[int]],
) -> Counter[tuple[Any, ...]]:
    query, found = Query(operator(), INPUT, KEYS, "at"), Counter[tuple[Any, ...]]()
    for number, (now, batch) in enumerate(timed):
        if number in restarts:
            query.restart()
        found += shown(query.push(table(batch), now), places)
    return found + shown(query.finish(), places)


@given(histories(), st.data(), st.sets(st.integers(0, 12)), st.integers(0, 2))
@settings(max_examples=120, deadline=None)
def test_a_pattern_counts_from_its_time_to_the_next_change_whatever_is_cut_late_or_restarted(
    history: list[Paid | Said], data: st.DataObject, restarts: set[int], lateness_s: int
) -> None:
    timed = with_clocks(data.draw(cut(history)), lateness_s)
    assert streamed(timed, restarts, places_of(history)) == plain(timed)


@given(histories(), st.data(), st.sets(st.integers(0, 12)))
@settings(max_examples=60, deadline=None)
def test_where_nothing_is_late_every_cut_gives_what_the_bounded_frame_gives(
    history: list[Paid | Said], data: st.DataObject, restarts: set[int]
) -> None:
    history = [each for each in history if isinstance(each, Paid) or each.at_s is not None]
    timed = with_clocks(data.draw(cut(history)), 100)
    whole = shown(run_bounded(operator(), table(history), KEYS, "at"), places_of(history))
    assert streamed(timed, restarts, places_of(history)) == whole == plain([(BEGINNING, history)])


def texts_of(query: Query) -> list[tuple[str, str | None]]:
    held = [each["table"] for each in query.held() if each["table"] is not None]
    return [(each["pattern"], each["error"]) for each in held[0]["versions"]]


def test_a_malformed_pattern_is_set_aside_with_its_error_and_the_others_match() -> None:
    query = Query(operator(within_max_us=60 * SECOND), INPUT, KEYS, "at")
    wrong = {
        "syntax": "PATTERN (A + + B) WITHIN '1 second'",
        "column": "PATTERN (A B) WITHIN '1 second' DEFINE B AS B.price > 3",
        "endless": "PATTERN (A B)",
        "long": "PATTERN (A B) WITHIN '2 minutes'",
        "types": "PATTERN (A B) WITHIN '1 second' DEFINE B AS B.amount > 'x'",
        "number": "PATTERN (A B) WITHIN '1 second' DEFINE B AS B.amount + 1",
        "like": "PATTERN (A B) WITHIN '1 second' DEFINE B AS A.user LIKE 5",
        "operand": "PATTERN (A B) WITHIN '1 second' DEFINE B AS 1 IN",
        "interval": "PATTERN (A B) WITHIN '1 second' DEFINE B AS B.at - A.at < INTERVAL 99999999999999999 DAYS",
        "text": "PATTERN (A B) WITHIN '1 second' DEFINE B AS SQRT(A.user) > 1 OR A.user / 2 > 1",
        "function": "PATTERN (A) WITHIN '1 second' DEFINE A AS date_trunc('day', at) = at",
        "anchor": "PATTERN (^ A) WITHIN '1 second'",
        "empty": "PATTERN (A*) WITHIN '1 second'",
        "ordered": "ORDER BY at PATTERN (A B) WITHIN '1 second'",
        "json": '{"parts": [',
        "field": json.dumps({"parts": [{"nam": "a"}], "within": "1 second"}),
        "none": "   ",
        "huge": " " * 30_000 + "x",
        "deep": "PATTERN (" + "(" * 5000 + "A" + ")" * 5000 + ") WITHIN '1 second'",
    }
    said = [Said(name, 0, text, number) for number, (name, text) in enumerate(wrong.items())]
    query.push(table([*said, Said("good", 0, "followed", 99)]))
    assert query.counts["bad_patterns"] == len(wrong)
    errors = dict(texts_of(query))
    assert {name for name, error in errors.items() if error} == set(wrong)
    assert "'+' was not expected here" in str(errors["syntax"])
    assert "price is no column of the rows" in str(errors["column"])
    assert "needs a bound of time" in str(errors["endless"])
    assert "at most 1 minutes are allowed" in str(errors["long"])
    assert "is int64 and not true or false" in str(errors["number"])
    assert "the condition of B cannot be computed over these columns" in str(errors["types"])
    assert "a part has no 'nam'" in str(errors["field"])
    assert "DATE_TRUNC('day', at) cannot be computed" in str(errors["function"])
    assert "Spark SQL" not in str(errors["function"])
    query.push(table([Paid("u", 1, 1, 1), Paid("u", 2, 2, 2)]))
    assert [row["pattern"] for row in query.finish().to_pylist()] == ["good"]


def test_a_pattern_that_fails_while_it_is_computed_gives_no_match_and_the_others_do() -> None:
    query = Query(operator(), INPUT, KEYS, "at")
    overflows = pattern("a").where("amount * 9223372036854775807 > 1").within("9 seconds").to_json()
    query.push(table([Said("bad", 0, overflows, 0), Said("good", 0, "followed", 1)]))
    query.push(table([Paid("u", 1, 1, 1), Paid("u", 2, 2, 2), Paid("u", 3, 4, 3)]))
    assert [row["pattern"] for row in query.finish().to_pylist()] == ["good"]
    assert query.counts["failed_patterns"] == 1


def test_one_pattern_too_many_is_refused_and_counted_until_another_is_removed() -> None:
    query = Query(operator(patterns_max=2), INPUT, KEYS, "at")
    query.push(table([Said(name, 0, "followed", number) for number, name in enumerate("abc")]))
    assert (query.counts["patterns"], query.counts["refused_patterns"]) == (2, 1)
    query.push(table([Said("a", 0, None, 7), Said("c", 0, "followed", 8), Said("b", 0, "absent", 9)]), 0)
    assert [name for name, _ in texts_of(query)] == ["c", "b"]
    assert query.counts["refused_patterns"] == 0


def test_the_same_text_again_is_no_change_and_keeps_partial_matches() -> None:
    query = Query(operator(), INPUT, KEYS, "at")
    query.push(table([Said("p", 0, "followed", 0), Paid("u", 1, 1, 1)]))
    query.push(table([Said("p", 2, "followed", 5), Paid("u", 3, 2, 2)]), 2 * SECOND)
    assert [row["pattern"] for row in query.finish().to_pylist()] == ["p"]


def test_nothing_is_kept_of_rows_and_versions_that_no_pattern_needs() -> None:
    query = Query(operator(), INPUT, KEYS, "at")
    query.push(table([Said("p", 0, "followed", 0)]))
    for second in range(1, 200):
        kind = None if second % 2 else "followed"
        query.push(
            table([Said("p", second, kind, second), Paid(f"u{second}", second, 1, second)]), (second - 1) * SECOND
        )
    assert query.keys_held <= 2 * WITHIN_S
    assert len(texts_of(query)) <= 3


def test_a_row_at_the_very_time_of_a_change_meets_the_new_pattern_and_not_the_old_one() -> None:
    single = pattern("a").where("amount = 1").within("4 seconds").to_json()
    query = Query(operator(), INPUT, KEYS, "at")
    query.push(table([Said("old", 0, single, 0), Said("old", 3, None, 1), Said("new", 3, single, 2)]))
    query.push(table([Paid("u", 2, 1, 1), Paid("u", 3, 1, 2)]))
    found = [(row["pattern"], row["events"][0]["at"].second) for row in query.finish().to_pylist()]
    assert sorted(found) == [("new", 3), ("old", 2)]
