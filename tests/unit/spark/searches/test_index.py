"""The index of searches against plain loops: the same pairs, whatever is placed under which condition."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.searches import index as index_module
from headrace.spark.searches.analysis import fields_in
from headrace.spark.searches.index import SearchIndex
from headrace.spark.searches.intervals import IntervalTree
from tests.unit.spark.searches.search_world import (
    DEFAULTS,
    EVENTS,
    EXACT,
    Event,
    Spec,
    as_json,
    as_text,
    events,
    matches,
    specs,
    table,
)

PAYLOAD = pa.struct([("id", pa.int64())])


def empty() -> SearchIndex:
    return SearchIndex(fields_in(EVENTS, EXACT), DEFAULTS, PAYLOAD)


def put(index: SearchIndex, searches: dict[int, str]) -> None:
    ids = list(searches)
    prints = [hash((each, searches[each])) for each in ids]
    index.put(ids, list(searches.values()), prints, pa.array([{"id": each} for each in ids], PAYLOAD))


def pairs(index: SearchIndex, rows: list[Event]) -> set[tuple[int, int]]:
    found = index.match(table(rows))
    ids = index.payload.field("id").take(pa.array(found.searches)).to_pylist()
    assert len(set(zip(found.rows.tolist(), ids, strict=True))) == len(ids), "no pair comes twice"
    return set(zip(found.rows.tolist(), ids, strict=True))


def wanted(searches: dict[int, Spec], rows: list[Event]) -> set[tuple[int, int]]:
    return {(row, each) for row, event in enumerate(rows) for each, spec in searches.items() if matches(spec, event)}


@given(st.lists(specs, max_size=8), st.lists(events, max_size=8), st.sampled_from([as_text, as_json]))
def test_an_event_matches_the_searches_that_a_plain_loop_finds(
    searches: list[Spec], rows: list[Event], written: object
) -> None:
    index = empty()
    put(index, {number: written(each) for number, each in enumerate(searches)})  # type: ignore[operator]
    assert index.bad == {}
    assert pairs(index, rows) == wanted(dict(enumerate(searches)), rows)


@given(st.data())
@settings(max_examples=40)
def test_searches_that_come_change_and_go_between_batches_are_those_that_are_matched(data: st.DataObject) -> None:
    index, known = empty(), {}
    for _ in range(data.draw(st.integers(1, 5))):
        changed = data.draw(st.dictionaries(st.integers(0, 5), specs, max_size=4))
        gone = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True)) if known else []
        index.remove(gone)
        known = {each: spec for each, spec in known.items() if each not in gone}
        put(index, {each: as_text(spec) for each, spec in changed.items()})
        known |= changed
        rows = data.draw(st.lists(events, max_size=6))
        assert pairs(index, rows) == wanted(known, rows)
    assert len(index.numbers) == len(known)


def test_what_matches_does_not_depend_on_how_many_are_tested_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Event] = [
        {**dict.fromkeys(EVENTS.names), "title": f"flat {number % 7} rooms", "price": number} for number in range(50)
    ]
    searches = {number: f"rooms price:[{number} TO {number + 20}]" for number in range(20)}
    searches |= {100 + number: f"NOT title:{number}" for number in range(7)}
    index = empty()
    put(index, searches)
    whole = pairs(index, rows)
    monkeypatch.setattr(index_module, "PAIRS_MAX", 10)
    monkeypatch.setattr(index_module, "ROWS_MAX", 7)
    assert pairs(index, rows) == whole
    assert len(whole) > 100


def test_an_event_tests_the_searches_under_its_rarest_condition_only() -> None:
    """Each search has a word that all events have, and one that no other search has."""
    index = empty()
    put(index, {number: f"flat AND word{number} AND price:>0" for number in range(1000)})
    rows: list[Event] = [
        {**dict.fromkeys(EVENTS.names), "title": f"flat word{number}", "price": 1} for number in range(100)
    ]
    found = index.match(table(rows))
    assert (len(found.rows), found.candidates) == (100, 100)


def test_searches_by_ranges_alone_are_found_without_testing_all_of_them() -> None:
    index = empty()
    put(index, {number: f"price:[{10 * number} TO {10 * number + 9}]" for number in range(1000)})
    rows: list[Event] = [{**dict.fromkeys(EVENTS.names), "price": number} for number in range(0, 10_000, 100)]
    found = index.match(table(rows))
    assert (len(found.rows), found.candidates) == (100, 100)


def test_searches_move_to_a_rarer_condition_when_events_show_that_theirs_is_common() -> None:
    """The first event has the words that no later one has, and not the word that all later ones have."""
    index = empty()
    put(index, {number: f"common rare{number}" for number in range(300)})
    nothing: Event = dict.fromkeys(EVENTS.names)
    index.match(table([{**nothing, "title": " ".join(f"rare{number}" for number in range(300))}]))
    common = [{**nothing, "title": "common"}] * 100
    assert index.match(table(common)).candidates == 100 * 300
    assert index.match(table(common)).candidates == 0


def test_a_phrase_does_not_go_from_one_element_of_a_list_into_the_next() -> None:
    index = empty()
    put(index, {1: 'tags:"a b"', 2: "tags:a tags:b", 3: 'tags:"x a b"'})
    nothing: Event = dict.fromkeys(EVENTS.names)
    rows = [{**nothing, "tags": tags} for tags in (["a", "b"], ["x a b"], ["a", None, "b a"], ["b", "a", "a b"])]
    assert pairs(index, rows) == {(0, 2), (1, 1), (1, 2), (1, 3), (2, 2), (3, 1), (3, 2)}


def test_a_search_that_no_condition_can_select_is_counted_as_unindexed() -> None:
    index = empty()
    put(index, {1: "NOT title:a", 2: "a OR NOT b", 3: "price:*", 4: "*:*", 5: "a AND NOT b", 6: "price:>1", 7: "("})
    assert sorted(index.payload.field("id").take(pa.array(list(index.unindexed))).to_pylist()) == [1, 2, 3, 4]
    assert list(index.bad) == [7]
    index.remove([1, 7])
    assert (len(index.unindexed), len(index.bad)) == (3, 0)


def test_garbage_of_replaced_searches_is_noticed() -> None:
    index = empty()
    for time in range(4):
        assert not index.has_garbage
        put(index, dict.fromkeys(range(700), f"word{time}"))
    assert index.has_garbage
    assert len(index.numbers) == 700


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9)), min_size=1, max_size=20),
    st.lists(st.integers(-12, 20), max_size=20),
)
def test_an_interval_tree_gives_each_interval_that_contains_a_value_once(
    intervals: list[tuple[int, int]], values: list[int]
) -> None:
    lows, highs = np.array([low for low, _ in intervals]), np.array([low + length for low, length in intervals])
    tree = IntervalTree(lows, highs, np.arange(len(intervals)))
    asked, starts, counts = tree.stab(np.array(values, np.int64))
    found = [
        (value, int(member))
        for value, start, count in zip(asked.tolist(), starts.tolist(), counts.tolist(), strict=True)
        for member in tree.members[start : start + count]
    ]
    plain = [
        (place, number)
        for place, value in enumerate(values)
        for number, (low, length) in enumerate(intervals)
        if low <= value <= low + length
    ]
    assert sorted(found) == plain
