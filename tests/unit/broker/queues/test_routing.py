"""Patterns of topics, against a plain definition of what they mean."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.queues.routing import Binding, Exchange

WORDS = st.sampled_from(["a", "b", "c", ""])
KEYS = st.lists(WORDS, max_size=5).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), max_size=5).map(".".join)


@dataclass(frozen=True)
class Place:
    name: str


def matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(matches(pattern[1:], words[first:]) for first in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and matches(pattern[1:], words[1:])


def split(key: str) -> list[str]:
    return key.split(".") if key else []


@given(patterns=st.lists(PATTERNS, max_size=8), removed=st.lists(PATTERNS, max_size=3), key=KEYS)
def test_a_topic_exchange_finds_the_patterns_that_match(patterns: list[str], removed: list[str], key: str) -> None:
    exchange = Exchange("t", "topic")
    for pattern in patterns:
        exchange.bind(Binding(Place(pattern), pattern))
    bindings = {binding.key: binding for binding in exchange.bindings.values()}
    for pattern in removed:
        if pattern in bindings:
            exchange.unbind(bindings.pop(pattern))
    found = {each.name for each in exchange.matcher.matching(key, {})}
    left = [binding.destination.name for binding in exchange.bindings.values()]
    assert found == {pattern for pattern in left if matches(split(pattern), split(key))}


def test_many_hashes_cost_no_more_than_their_number() -> None:
    exchange = Exchange("t", "topic")
    pattern = ".".join(["#", "a"] * 40)
    exchange.bind(Binding(Place("q"), pattern))
    assert not list(exchange.matcher.matching(".".join(["a"] * 39 + ["b"]), {}))
    assert list(exchange.matcher.matching(".".join(["a"] * 60), {}))
