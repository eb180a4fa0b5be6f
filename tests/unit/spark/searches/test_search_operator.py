"""Searches as an operator with state: which searches count for which events, whatever is restarted."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.searches.search_operator import EVENT, KEYLESS, QUERY, SEARCH, TRUNCATES, MatchSearches
from headrace.spark.state.operator import run_bounded
from tests.unit.spark.searches.search_world import (
    DEFAULTS,
    EVENTS,
    EXACT,
    Event,
    Spec,
    as_text,
    events,
    matches,
    specs,
    table,
)
from tests.unit.spark.stream_world import Query

KEYS = pa.struct([("_key_0", pa.string())])
ROW = pa.struct([(QUERY, pa.string()), ("owner", pa.string())])
EVENT_TYPE = pa.struct([("row", pa.struct(list(EVENTS)))])
SEARCH_TYPE = pa.struct([("position", pa.int64()), ("lane", pa.int64()), ("row", ROW)])
INPUT = pa.schema(
    [
        ("_key_0", pa.string()),
        (KEYLESS, pa.bool_()),
        (TRUNCATES, pa.bool_()),
        (EVENT, EVENT_TYPE),
        (SEARCH, SEARCH_TYPE),
    ]
)
OPERATOR = MatchSearches(
    events=pa.struct(list(EVENTS)),
    keys=KEYS,
    row=ROW,
    names=("search_id", "search_owner"),
    fields=tuple(EVENTS.names),
    exact=EXACT,
    defaults=DEFAULTS,
)
TRUNCATION = "truncation"
Change = tuple[str, Spec | str | None]
"""(id, its search from now on; None: it was removed). The id TRUNCATION removes all."""
Batch = tuple[list[Change], list[Event]]

changes: st.SearchStrategy[Change] = st.one_of(
    st.tuples(st.sampled_from("abcd"), st.none() | specs), st.just((TRUNCATION, None))
)
batches = st.lists(st.tuples(st.lists(changes, max_size=4), st.lists(events, max_size=3)), min_size=1, max_size=5)


def owner(search: str) -> str:
    return f"{search}@example.com"


def taken(batch: Batch, position: int) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for number, (key, spec) in enumerate(batch[0]):
        truncates = key == TRUNCATION
        row = None if spec is None else {QUERY: as_text(spec) if isinstance(spec, tuple) else spec, "owner": owner(key)}
        search = {"position": position + number, "lane": 7, "row": row}
        rows.append({"_key_0": None if truncates else key, TRUNCATES: truncates, KEYLESS: False, SEARCH: search})
    rows += [{KEYLESS: True, TRUNCATES: False, EVENT: {"row": event}} for event in batch[1]]
    return pa.Table.from_pylist(rows, INPUT)


def plain(given_batches: list[Batch]) -> Counter[str]:
    """What a loop over events and searches finds, with the searches that there are after each batch's changes."""
    known: dict[str, Spec] = {}
    found: Counter[str] = Counter()
    for changed, rows in given_batches:
        for key, spec in changed:
            if key == TRUNCATION:
                known = {}
            elif isinstance(spec, tuple):
                known[key] = spec
            else:
                known.pop(key, None)
        found.update(
            shown({**table([event]).to_pylist()[0], "search_id": key, "search_owner": owner(key)})
            for event in rows
            for key, spec in known.items()
            if matches(spec, event)
        )
    return found


def shown(row: dict[str, Any]) -> str:
    return str(sorted(row.items(), key=lambda each: each[0]))


def as_bag(rows: pa.Table) -> Counter[str]:
    return Counter(shown(row) for row in rows.to_pylist())


def query() -> Query:
    return Query(OPERATOR, INPUT, KEYS)


@given(batches, st.sets(st.integers(0, 4)))
@settings(max_examples=40)
def test_events_match_the_searches_that_there_are_whatever_is_restarted(
    given_batches: list[Batch], restarts: set[int]
) -> None:
    stream, found, position = query(), Counter[str](), 0
    for number, batch in enumerate(given_batches):
        if number in restarts:
            stream.restart()
        found += as_bag(stream.push(taken(batch, position)))
        position += len(batch[0])
    assert found == plain(given_batches)


@given(batches)
@settings(max_examples=25)
def test_buckets_that_share_a_process_share_an_index_and_still_match_their_own_searches(
    given_batches: list[Batch],
) -> None:
    """Every bucket sees all changes and some events. One lags a batch behind in memory, as after work elsewhere."""
    one, other, position = query(), query(), 0
    memory: dict[str, Any] = {}
    one.memory = other.memory = memory
    found: Counter[str] = Counter()
    for number, (changed, rows) in enumerate(given_batches):
        for each, part in ((one, rows[::2]), (other, rows[1::2])):
            if (number + (each is one)) % 3 == 0:
                each.restart()
                each.memory = memory
            found += as_bag(each.push(taken((changed, part), position)))
        position += len(changed)
    assert found == plain(given_batches)


@given(st.lists(st.tuples(st.sampled_from("abcd"), specs), max_size=5), st.lists(events, max_size=6))
@settings(max_examples=20)
def test_a_bounded_frame_gives_what_a_stream_gives_with_all_searches_there_before(
    changed: list[Change], rows: list[Event]
) -> None:
    whole = run_bounded(OPERATOR, taken((changed, rows), 0), KEYS, None)
    stream = query()
    stream.push(taken((changed, []), 0))
    streamed = pa.concat_tables([stream.push(taken(([], rows[at : at + 2]), 0)) for at in range(0, len(rows) + 1, 2)])
    assert as_bag(whole) == as_bag(streamed) == plain([(changed, rows)])


FLAT: Event = {**dict.fromkeys(EVENTS.names), "title": "flat"}


def test_a_search_counts_for_the_events_of_its_own_batch_and_no_longer_when_it_is_removed() -> None:
    stream = query()
    assert stream.push(taken(([("a", ("term", "title", "flat"))], [FLAT]), 0)).num_rows == 1
    assert stream.push(taken(([], [FLAT, FLAT]), 1)).num_rows == 2
    assert stream.push(taken(([("a", None)], [FLAT]), 1)).num_rows == 0
    assert stream.keys_held == 0


def test_a_process_that_missed_batches_takes_over_what_changed_in_them() -> None:
    """A bucket is worked on in one process and then in another, whose index is of an earlier batch."""
    stream = query()
    first: list[Change] = [(key, ("term", "title", "flat")) for key in "abc"]
    stream.push(taken((first, [FLAT]), 0))
    earlier = copy.deepcopy(stream.memory)
    stream.push(taken(([("a", None), ("b", ("term", "title", "house")), ("d", ("all",))], []), 10))
    stream.memory = earlier
    assert sorted(stream.push(taken(([], [FLAT]), 20)).column("search_id").to_pylist()) == ["c", "d"]
    assert stream.counts["searches"] == 3


def test_a_search_that_cannot_be_read_matches_nothing_and_holds_nobody_up() -> None:
    stream = query()
    outcome = stream.push(taken(([("bad", "title:("), ("good", ("term", "title", "flat"))], [FLAT]), 0))
    assert outcome.column("search_id").to_pylist() == ["good"]
    assert stream.counts == {
        "searches": 2,
        "unindexed_searches": 0,
        "bad_searches": 1,
        "candidates": 1,
        "matches": 1,
    }


def test_a_search_in_odd_json_holds_nobody_up() -> None:
    """Half of a surrogate pair, and lists so deep that they can be read but not shown in an error."""
    odd = [r'{"field": "title", "term": "\ud800"}']
    odd += ['{"field": "title", "term": ' + "[" * depth + "]" * depth + "}" for depth in range(100, 1000)]
    stream = query()
    rows = [(str(number), each) for number, each in enumerate(odd)]
    outcome = stream.push(taken(([*rows, ("good", ("term", "title", "flat"))], [FLAT]), 0))
    assert outcome.column("search_id").to_pylist() == ["good"]
    assert stream.counts["bad_searches"] == len(odd)


def test_of_two_changes_of_a_search_in_a_batch_the_last_by_position_counts() -> None:
    stream = query()
    changed: list[Change] = [("a", ("term", "title", "flat")), ("a", ("term", "title", "house"))]
    assert stream.push(taken((changed, [FLAT]), 0)).num_rows == 0


def test_a_batch_without_changes_writes_no_state() -> None:
    stream = query()
    stream.push(taken(([("a", ("term", "title", "flat"))], []), 0))
    before = stream.store.manifest_value().chunks
    stream.push(taken(([], [FLAT]), 1))
    assert stream.store.manifest_value().chunks == before


def test_an_index_full_of_replaced_searches_is_made_again() -> None:
    stream, indexes = query(), set()
    for time in range(5):
        changed: list[Change] = [(f"s{number}", ("term", "title", f"flat{time}")) for number in range(700)]
        stream.push(taken((changed, []), 1000 * time))
        indexes.add(id(stream.memory["index"]))
        kept = stream.memory  # so that no id is used twice
        kept[f"kept {time}"] = stream.memory["index"]
    assert len(indexes) == 2
    assert stream.push(taken(([], [{**FLAT, "title": "flat4"}]), 9000)).num_rows == 700
