"""A stream and a table that changes, without Spark: the as-of join is that of a plain loop however it is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.state.operator import BEGINNING, run_bounded
from headrace.spark.tables.join_operators import (
    CHANGE,
    EVENT,
    TRUNCATES,
    AsOf,
    Latest,
    Matched,
    change_type,
    event_type,
)
from headrace.vocabulary import UNAVAILABLE
from tests.unit.spark.stream_world import SECOND, Query, Watermark, cut

LATENESS_S = 10
TIME = pa.timestamp("us", "UTC")
EVENT_ROW = pa.struct([("user", pa.string()), ("number", pa.int64()), ("at", TIME)])
TABLE_ROW = pa.struct([("user", pa.string()), ("city", pa.string())])
ROWS = pa.schema(
    [
        ("user", pa.string()),
        (TRUNCATES, pa.bool_()),
        ("_time", TIME),
        (EVENT, event_type(EVENT_ROW)),
        (CHANGE, change_type(TABLE_ROW)),
    ]
)
LANES = {"a": 1, "b": 2, "c": 1}
KEYS = pa.struct([("user", pa.string())])
MATCHED = Matched(EVENT_ROW, TABLE_ROW, "version", (("city", "city"),))


@dataclass(frozen=True)
class Event:
    user: str | None
    second: float
    number: int = 0


@dataclass(frozen=True)
class Change:
    """Of a user's row, from this second on; without a city the row is deleted."""

    user: str | None
    second: int
    city: str | None
    position: int = 0

    @property
    def version(self) -> str:
        return f"users/0/{self.position}"


@dataclass(frozen=True)
class Truncation:
    """Of all rows of a lane that came before."""

    lane: int
    second: int
    position: int = 0

    @property
    def version(self) -> str:
        return f"users/0/{self.position}"


Item = Event | Change | Truncation


def table(items: list[Item]) -> pa.Table:
    return pa.Table.from_pylist([_row(item) for item in items], ROWS)


def _row(item: Item) -> dict[str, Any]:
    at = round(item.second * SECOND)
    if isinstance(item, Event):
        event = {"at": at, "row": {"user": item.user, "number": item.number, "at": at}}
        return {"user": item.user, TRUNCATES: False, "_time": at, EVENT: event, CHANGE: None}
    change: dict[str, Any] = {"at": at, "position": item.position, "version": item.version, "live": False, "row": None}
    if isinstance(item, Truncation):
        change["lane"] = item.lane
        return {"user": None, TRUNCATES: True, "_time": at, EVENT: None, CHANGE: change}
    change["lane"] = LANES.get(item.user or "", 0)
    if item.city is not None:
        change |= {"live": True, "row": {"user": item.user, "city": item.city}}
    return {"user": item.user, TRUNCATES: False, "_time": at, EVENT: None, CHANGE: change}


def as_deletions(items: list[Item]) -> list[Item]:
    """Every truncation as deletions of the users that it removes."""
    found: list[Item] = []
    for item in items:
        if not isinstance(item, Truncation):
            found.append(item)
            continue
        before = {each.user for each in items if isinstance(each, Change) and each.position < item.position}
        gone = [user for user in sorted(filter(None, before)) if LANES[user] == item.lane]
        found += [Change(user, item.second, None, item.position) for user in gone]
    return found


def as_of_by_hand(items: list[Item]) -> Counter[tuple[Any, ...]]:
    """(user, number, version, city) of each event, by looking at every change."""
    found = []
    items = as_deletions(items)
    for event in (item for item in items if isinstance(item, Event)):
        valid = [
            item
            for item in items
            if isinstance(item, Change)
            and item.user == event.user
            and item.user is not None
            and item.second <= event.second
        ]
        newest = max(valid, key=lambda change: (change.second, change.position), default=None)
        joined = (None, None) if newest is None or newest.city is None else (newest.version, newest.city)
        found.append((event.user, event.number, *joined))
    return Counter(found)


def bag(*tables: pa.Table) -> Counter[tuple[Any, ...]]:
    names = ("user", "number", "version", "city")
    return Counter(tuple(row[name] for name in names) for each in tables for row in each.to_pylist())


USERS = st.sampled_from(["a", "b", "c", None])


@st.composite
def arrivals(draw: st.DrawFn) -> list[list[Item]]:
    """Events and changes in an order that the lateness allows, in batches; positions follow the order of arrival."""
    seconds = st.integers(1, 60)
    events = draw(st.lists(st.builds(Event, USERS, seconds), max_size=20))
    cities = st.sampled_from(["Rome", "Oslo", "Bern", None])
    changes = draw(st.lists(st.builds(Change, USERS, seconds, cities), max_size=20))
    truncations = draw(st.lists(st.builds(Truncation, st.sampled_from([1, 2, 3]), seconds), max_size=3))
    items: list[Item] = [replace(event, number=number) for number, event in enumerate(events)]
    delays = st.sampled_from([0, 0, 1, LATENESS_S // 2, LATENESS_S])
    delayed = [
        (item.second + draw(delays), number, item) for number, item in enumerate([*items, *changes, *truncations])
    ]
    ordered = [item for _, _, item in sorted(delayed, key=lambda each: each[:2])]
    placed = [
        item if isinstance(item, Event) else replace(item, position=number) for number, item in enumerate(ordered)
    ]
    return draw(cut(placed))


def streamed(query: Query, batches: list[list[Item]], restarts: set[int]) -> list[pa.Table]:
    """What comes out batch by batch. The watermark of a batch is that of those before it."""
    watermark = Watermark(2, LATENESS_S)
    output = []
    for number, batch in enumerate(batches):
        if number in restarts:
            query.restart()
        output.append(query.push(table(batch), watermark.now_us()))
        watermark.see(0, [item.second for item in batch if isinstance(item, Event)])
        watermark.see(1, [item.second for item in batch if not isinstance(item, Event)])
    return output


def as_of(how: Any = "left") -> Query:
    return Query(AsOf(replace(MATCHED, how=how), "at"), ROWS, KEYS, "_time")


@settings(max_examples=30)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_the_join_as_of_is_that_of_a_plain_loop_whatever_the_cuts_the_order_and_the_restarts(
    batches: list[list[Item]], restarts: set[int]
) -> None:
    together = [item for batch in batches for item in batch]
    expected = as_of_by_hand(together)
    query = as_of()
    assert bag(*streamed(query, batches, restarts), query.finish()) == expected
    assert query.late_rows == 0
    assert bag(run_bounded(query.operator, table(together), KEYS, "_time")) == expected


@settings(max_examples=30)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_of_each_key_are_held_the_versions_above_the_watermark_and_at_most_one_below_but_for_the_last_change(
    batches: list[list[Item]], restarts: set[int]
) -> None:
    query, watermark = as_of(), Watermark(2, LATENESS_S)
    for number, batch in enumerate(batches):
        now_us = watermark.now_us()
        if number in restarts:
            query.restart()
        query.push(table(batch), now_us)
        for state in query.held():
            old = [version for version in state["versions"] if version["at"] <= now_us]
            last = max(state["versions"], key=lambda version: version["position"], default=None)
            kept = [version for version in old if not last["row"] or version["at"] < last["at"]]
            assert len(kept) <= 1
            assert all(version["live"] for version in kept)
            assert all(waiting["at"] >= now_us for waiting in state["waiting"])
        watermark.see(0, [item.second for item in batch if isinstance(item, Event)])
        watermark.see(1, [item.second for item in batch if not isinstance(item, Event)])


def test_an_event_at_the_time_of_a_change_has_the_new_row_and_one_just_before_has_the_old() -> None:
    query = as_of()
    items = [Change("a", 10, "Rome", 0), Change("a", 20, "Oslo", 1), Event("a", 19, 1), Event("a", 20, 2)]
    found = {row["number"]: row["city"] for row in run_bounded(query.operator, table(items), KEYS, "_time").to_pylist()}
    assert found == {1: "Rome", 2: "Oslo"}


def test_a_row_is_held_up_to_the_last_microsecond_before_the_one_that_replaces_it() -> None:
    query = as_of()
    query.push(table([Change("a", 10, "Rome", 0), Change("a", 20, "Oslo", 1)]))
    query.push(table([Event("a", 15, 1)]), 20 * SECOND - 1)
    query.push(table([Event("a", 20 - 1e-6, 2)]), 20 * SECOND - 1)
    assert bag(query.push(table([]), 20 * SECOND)) == Counter([("a", 2, "users/0/0", "Rome")])


@pytest.mark.parametrize("before_us", [BEGINNING, 15 * SECOND, 20 * SECOND - 1])
def test_a_replaced_row_is_let_go_at_the_moment_of_the_one_that_replaces_it(before_us: int) -> None:
    """Nobody else would touch the key any more."""
    query = as_of()
    query.push(table([Change("a", 10, "Rome", 0), Change("a", 20, "Oslo", 1)]), before_us)
    query.push(table([]), 20 * SECOND)
    (state,) = query.held()
    assert [version["row"]["city"] for version in state["versions"]] == ["Oslo"]


def test_an_event_waits_until_the_watermark_is_past_its_time_and_not_only_there() -> None:
    query = as_of()
    assert query.push(table([Event("a", 20, 1)])).num_rows == 0
    assert query.push(table([]), 20 * SECOND).num_rows == 0
    assert query.push(table([Change("a", 20, "Rome")]), 20 * SECOND).num_rows == 0, "a change at this very time"
    (row,) = query.push(table([]), 20 * SECOND + 1).to_pylist()
    assert (row["version"], row["city"]) == ("users/0/0", "Rome")


def test_after_a_deletion_there_is_no_match_and_nothing_is_held_of_the_key() -> None:
    query = as_of()
    query.push(table([Change("a", 10, "Rome", 0), Change("a", 20, None, 1), Event("a", 15, 1), Event("a", 25, 2)]))
    found = bag(query.push(table([]), 30 * SECOND))
    assert found == Counter([("a", 1, "users/0/0", "Rome"), ("a", 2, None, None)])
    assert query.keys_held == 0


def test_the_inner_join_leaves_out_events_without_a_row() -> None:
    query = as_of("inner")
    query.push(table([Change("a", 10, "Rome"), Event("a", 5, 1), Event("a", 15, 2), Event("b", 15, 3)]))
    assert bag(query.finish()) == Counter([("a", 2, "users/0/0", "Rome")])


def test_a_change_behind_the_watermark_counts_for_the_events_to_come_and_a_late_event_is_left_out() -> None:
    query = as_of()
    query.push(table([Change("a", 10, "Rome", 0)]), 30 * SECOND)
    query.push(table([Change("a", 20, "Oslo", 1), Event("a", 29, 1), Event("a", 40, 2)]), 30 * SECOND)
    assert bag(query.finish()) == Counter([("a", 2, "users/0/1", "Oslo")])
    undated = table([Event("a", 50, 3)]).to_pylist()
    undated[0][EVENT]["at"] = None
    assert query.push(pa.Table.from_pylist(undated, ROWS), 30 * SECOND).num_rows == 0
    assert query.late_rows == 2, "the one behind the watermark, and the one without a time"


def test_null_equals_nothing_also_where_both_have_it() -> None:
    for query in (as_of(), Query(Latest(MATCHED), ROWS, KEYS)):
        rows = query.push(table([Change(None, 10, "Rome", 0), Event(None, 15, 1)])).to_pylist()
        rows += [*query.push(table([Event(None, 20, 2)])).to_pylist(), *query.finish().to_pylist()]
        assert {row["number"]: row["city"] for row in rows} == {1: None, 2: None}
        assert query.keys_held == 0


# ---- the latest ----------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(arrivals(), st.sets(st.integers(0, 30)))
def test_the_latest_row_is_that_of_the_last_change_up_to_the_events_batch(
    batches: list[list[Item]], restarts: set[int]
) -> None:
    query = Query(Latest(MATCHED), ROWS, KEYS)
    rows: dict[str, Change] = {}
    for number, batch in enumerate(batches):
        if number in restarts:
            query.restart()
        found = query.push(table(batch))
        for item in batch:
            if isinstance(item, Change) and item.user is not None:
                rows[item.user] = item
            elif isinstance(item, Truncation):
                rows = {user: change for user, change in rows.items() if LANES[user] != item.lane}
        current = {user: change for user, change in rows.items() if change.city is not None}
        expected = []
        for event in (item for item in batch if isinstance(item, Event)):
            change = current.get(event.user or "")
            expected.append((event.user, event.number, change and change.version, change and change.city))
        assert bag(found) == Counter(expected)
        assert query.keys_held == len(current)


# ---- values that were not sent -------------------------------------------------------------------------------------


def test_a_value_that_was_not_sent_is_that_of_the_version_before_it() -> None:
    query = as_of()
    query.push(table([Change("a", 10, "Rome", 0), Change("a", 20, UNAVAILABLE, 1)]))
    query.push(table([Change("a", 30, UNAVAILABLE, 2), Event("a", 15, 1), Event("a", 25, 2), Event("a", 35, 3)]))
    found = {row["number"]: (row["version"], row["city"]) for row in query.finish().to_pylist()}
    assert found == {1: ("users/0/0", "Rome"), 2: ("users/0/1", "Rome"), 3: ("users/0/2", "Rome")}
    latest = Query(Latest(MATCHED), ROWS, KEYS)
    latest.push(table([Change("a", 10, "Rome", 0)]))
    (row,) = latest.push(table([Change("a", 20, UNAVAILABLE, 1), Event("a", 5)])).to_pylist()
    assert (row["version"], row["city"]) == ("users/0/1", "Rome")


def test_a_version_that_lacks_a_value_is_joined_to_nothing_until_its_row_comes() -> None:
    for query in (as_of(), Query(Latest(MATCHED), ROWS, KEYS)):
        rows = query.push(table([Change("a", 10, UNAVAILABLE, 0), Event("a", 15, 1)])).to_pylist()
        rows += query.push(table([Change("a", 20, "Rome", 1), Event("a", 25, 2)])).to_pylist()
        rows += query.finish().to_pylist()
        assert {row["number"]: row["city"] for row in rows} == {1: None, 2: "Rome"}


def test_a_value_that_was_not_sent_is_that_of_the_last_change_and_not_of_the_row_with_the_latest_time() -> None:
    query = as_of()
    query.push(table([Change("a", 10, "Rome", 0), Change("a", 5, "Oslo", 1)]))
    query.push(table([Event("a", 15, 1)]), 12 * SECOND)
    query.push(table([]), 20 * SECOND)
    query.push(table([Change("a", 30, UNAVAILABLE, 2), Event("a", 35, 2)]), 20 * SECOND)
    assert bag(query.finish()) == Counter([("a", 2, "users/0/2", "Oslo")])


def test_a_truncation_removes_the_rows_of_its_own_lane_and_no_others() -> None:
    for query in (as_of(), Query(Latest(MATCHED), ROWS, KEYS)):
        rows = query.push(table([Change("a", 10, "Rome", 0), Change("b", 10, "Oslo", 1), Truncation(1, 20, 2)]))
        found = [*rows.to_pylist(), *query.push(table([Event("a", 25, 1), Event("b", 25, 2)])).to_pylist()]
        found += query.finish().to_pylist()
        assert {row["number"]: row["city"] for row in found} == {1: None, 2: "Oslo"}
