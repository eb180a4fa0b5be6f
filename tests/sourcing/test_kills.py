"""Killed writers, publishers and views leave nothing lost, doubled or split; and the checker finds what is planted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.sourcing.kills import Seen, faults_of, kill_in_turn, worlds

pytestmark = [pytest.mark.servers, pytest.mark.slow]

KILLS = 6


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "topic"])
def test_kills_of_writers_publisher_and_view_lose_and_double_nothing(kind: str) -> None:
    with worlds(kind, pace_s=0.01) as world:
        seen = kill_in_turn(world, KILLS, seed=7)
    assert len(seen.store) > 0
    assert faults_of(seen) == []


def good() -> Seen:
    def event(position: int, version: int, number: int) -> dict[str, Any]:
        return {
            "position": position,
            "stream": "s-1",
            "version": version,
            "event_id": f"e{position}",
            "command_id": f"w0:{number}",
            "recorded_us": position,
            "data": {"amount": 2},
        }

    events = [event(1, 1, 0), event(2, 2, 0), event(3, 3, 1), event(4, 4, 2)]
    acknowledged = [{"number": 0, "first": 1, "last": 2}, {"number": 1, "first": 3, "last": 3}]
    return Seen(events, copy.deepcopy(events), {"s-1": (4, 8)}, {"w0": acknowledged})


def test_the_checker_finds_nothing_where_nothing_is_wrong() -> None:
    assert faults_of(good()) == []


PLANTED: dict[str, tuple[Callable[[Seen], Any], str]] = {
    "a lost event": (lambda seen: seen.store.pop(), "the topic has 4 of 3"),
    "a lost acknowledged event": (
        lambda seen: seen.acknowledged["w0"].append({"number": 9, "first": 5, "last": 5}),
        "w0:9",
    ),
    "a moved event": (
        lambda seen: seen.acknowledged["w0"].__setitem__(1, {"number": 1, "first": 4, "last": 4}),
        "w0:1",
    ),
    "a gap in positions": (lambda seen: seen.store[3].update(position=5), "position 5"),
    "a gap in versions": (lambda seen: seen.store[3].update(version=5), "version 5"),
    "a command twice": (lambda seen: seen.store[3].update(command_id="w0:0"), "is split"),
    "an id twice": (lambda seen: seen.store[3].update(event_id="e1"), "twice"),
    "a time that goes back": (lambda seen: seen.store[3].update(recorded_us=1), "time goes back"),
    "a record that is missing": (lambda seen: seen.topic.pop(), "the topic has 3 of 4"),
    "a record that is there twice": (lambda seen: seen.topic.append(seen.topic[0]), "the topic has 5 of 4"),
    "records in another order": (lambda seen: seen.topic.reverse(), "first at 0"),
    "a view with a wrong sum": (lambda seen: seen.view.update({"s-1": (4, 9)}), "the view has"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_checker_finds_a_planted_fault(fault: str) -> None:
    seen = good()
    plant, says = PLANTED[fault]
    plant(seen)
    assert any(says in each for each in faults_of(seen)), faults_of(seen)
