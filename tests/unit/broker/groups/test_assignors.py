"""Assignors: complete, balanced, sticky."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from headrace.broker.groups.consumer import Target

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def members(subscriptions: Mapping[str, set[bytes]], last: Mapping[str, Target] | None = None) -> dict[str, Subscriber]:
    last = last or {}
    return {
        name: Subscriber(topics=frozenset(topics), last=last.get(name, {})) for name, topics in subscriptions.items()
    }


def places(target: Target) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, partitions in target.items() for partition in partitions}


def moved(before: Mapping[str, Target], after: Mapping[str, Target]) -> int:
    """Partitions that somebody had and somebody else has now."""
    owner = {place: name for name, target in before.items() for place in places(target)}
    return sum(owner.get(place, name) != name for name, target in after.items() for place in places(target))


def test_uniform_gives_everybody_the_same_number() -> None:
    found = assign_uniform(members({"x": {A, B}, "y": {A, B}, "z": {A, B}}), {A: 4, B: 4})
    assert sorted(len(places(target)) for target in found.values()) == [2, 3, 3]


def test_a_new_member_takes_no_more_than_its_share() -> None:
    counts = {A: 9}
    before = assign_uniform(members({"x": {A}, "y": {A}}), counts)
    after = assign_uniform(members({"x": {A}, "y": {A}, "z": {A}}, before), counts)
    assert [len(places(after[name])) for name in "xyz"] == [3, 3, 3]
    assert moved(before, after) == 3


def test_when_a_member_goes_only_its_own_partitions_move() -> None:
    counts = {A: 9}
    before = assign_uniform(members({"x": {A}, "y": {A}, "z": {A}}), counts)
    after = assign_uniform(members({"x": {A}, "z": {A}}, before), counts)
    assert moved(before, after) == 3
    assert places(before["x"]) <= places(after["x"])


def test_members_with_different_topics_are_evened_out_as_far_as_their_topics_go() -> None:
    found = assign_uniform(members({"x": {A}, "y": {A, B}}), {A: 4, B: 4})
    assert {name: len(places(target)) for name, target in found.items()} == {"x": 4, "y": 4}


def test_more_members_than_partitions_leaves_some_with_nothing() -> None:
    found = assign_uniform(members({name: {A} for name in "vwxyz"}), {A: 2})
    assert sorted(len(places(target)) for target in found.values()) == [0, 0, 0, 1, 1]


def test_range_gives_equal_partitions_of_topics_to_the_same_member() -> None:
    found = assign_range(members({"x": {A, B}, "y": {A, B}}), {A: 5, B: 5})
    assert found["x"] == {A: frozenset({0, 1, 2}), B: frozenset({0, 1, 2})}
    assert found["y"] == {A: frozenset({3, 4}), B: frozenset({3, 4})}


def test_range_orders_static_members_by_instance_so_that_a_new_process_gets_the_same() -> None:
    def found(first_id: str, second_id: str) -> list[Target]:
        both = {
            first_id: Subscriber(topics=frozenset({A}), instance_id="i1"),
            second_id: Subscriber(topics=frozenset({A}), instance_id="i2"),
        }
        return list(assign_range(both, {A: 3}).values())

    assert found("a", "z") == found("z", "a")


def test_without_members_nothing_is_assigned() -> None:
    assert [assignor({}, {A: 3}) for assignor in ASSIGNORS.values()] == [{}, {}]


topics = st.sets(st.sampled_from([A, B, C]))
subscriptions = st.dictionaries(st.sampled_from("uvwxyz"), topics, min_size=1)
counts_of = st.fixed_dictionaries({A: st.integers(0, 9), B: st.integers(0, 9), C: st.integers(0, 4)})


@given(st.sampled_from(sorted(ASSIGNORS)), subscriptions, subscriptions, counts_of, counts_of)
def test_every_partition_that_somebody_wants_has_one_owner_who_wants_it(
    assignor: str,
    then: dict[str, set[bytes]],
    now: dict[str, set[bytes]],
    counts_then: dict[bytes, int],
    counts_now: dict[bytes, int],
) -> None:
    before = ASSIGNORS[assignor](members(then), counts_then)
    after = ASSIGNORS[assignor](members(now, before), counts_now)
    owned = [place for target in after.values() for place in places(target)]
    wanted = {(topic, index) for topic in set().union(*now.values()) for index in range(counts_now[topic])}
    assert sorted(owned) == sorted(wanted)
    assert all(topic in now[name] for name, target in after.items() for topic in target)
    assert set(after) == set(now)


@given(subscriptions, subscriptions, counts_of)
def test_uniform_leaves_nobody_with_two_more_than_one_who_could_take_them(
    then: dict[str, set[bytes]], now: dict[str, set[bytes]], counts: dict[bytes, int]
) -> None:
    before = assign_uniform(members(then), counts)
    after = assign_uniform(members(now, before), counts)
    for giver, target in after.items():
        for taker in now:
            takes = any(topic in now[taker] for topic in target)
            assert not takes or len(places(target)) - len(places(after[taker])) < 2, (giver, taker)


@given(subscriptions, counts_of)
def test_uniform_moves_nothing_when_nothing_changed(now: dict[str, set[bytes]], counts: dict[bytes, int]) -> None:
    before = assign_uniform(members(now), counts)
    assert assign_uniform(members(now, before), counts) == before
