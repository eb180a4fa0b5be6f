"""Patterns of topics, against a plain definition of what they mean."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.queues import routing
from headrace.broker.queues.message import Message, without_hidden_copies
from headrace.broker.queues.routing import Binding, Exchange
from headrace.broker.queues.virtual_host import VirtualHost
from headrace.wire.amqp import properties
from headrace.wire.amqp.properties import NO_PROPERTIES

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


def test_the_worst_pattern_and_the_longest_key_hold_up_nobody() -> None:
    """Every hash may stand for any of the words that are left; a search goes on word by word all the same."""
    exchange = Exchange("t", "topic")
    exchange.bind(Binding(Place("q"), ".".join(["#"] * 128)))
    exchange.bind(Binding(Place("r"), ".".join([*["#"] * 127, "x"])))
    taken_s = []
    for _ in range(3):
        began = time.process_time()
        assert [each.name for each in exchange.matcher.matching("." * 255, {})] == ["q"]
        taken_s.append(time.process_time() - began)
    assert min(taken_s) < 0.2


class CountingDict(dict[Any, Any]):
    """Counts how often anybody looks something up."""

    lookups = 0

    def get(self, key: Any, default: Any = None) -> Any:
        CountingDict.lookups += 1
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        CountingDict.lookups += 1
        return super().__contains__(key)

    def __getitem__(self, key: Any) -> Any:
        CountingDict.lookups += 1
        return super().__getitem__(key)


class CountingNode(routing._Node):
    def __init__(self, word: str = "") -> None:
        super().__init__(word)
        self.children = CountingDict()


@pytest.mark.parametrize("pattern", ["orders.{}.created", "*.{}.#", "orders.{}.*", "#.{}"])
def test_ten_thousand_patterns_cost_a_publish_no_more_than_ten(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns are a tree: what is looked up depends on the words of the key, not on the number of bindings."""
    monkeypatch.setattr(routing, "_Node", CountingNode)
    lookups = {}
    for count in (10, 10_000):
        exchange = Exchange("events", "topic")
        for number in range(count):
            exchange.bind(Binding(Place(f"q{number}"), pattern.format(number)))
        CountingDict.lookups = 0
        key = "orders.7" if pattern == "#.{}" else "orders.7.created"
        found = [place.name for place in exchange.matcher.matching(key, {})]
        assert found == ["q7"]
        lookups[count] = CountingDict.lookups
    assert lookups[10_000] == lookups[10] <= 50


def test_a_routing_key_that_was_routed_is_not_matched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    host = VirtualHost("/")
    matcher = host.exchanges["amq.topic"].matcher
    matched: list[str] = []
    monkeypatch.setattr(matcher, "matching", lambda key, headers: matched.append(key) or iter(()))
    message = Message(b"amq.topic", b"a.b", NO_PROPERTIES, b"", 0)
    assert [host.route(message) for _ in range(3)] == [(), (), ()]
    assert matched == ["a.b"]


def test_a_long_chain_of_exchanges_goes_with_the_queue_at_its_end() -> None:
    host = VirtualHost("/")
    chain = [Exchange(f"x{number}", "fanout", is_auto_delete=True) for number in range(2_000)]
    for exchange in chain:
        host.declare_exchange(exchange)
    for source, destination in pairwise(chain):
        host.bind(source, Binding(destination, ""))
    queue: Any = Place("q")
    host.add_queue(queue)
    host.bind(chain[-1], Binding(queue, ""))
    assert host.remove_queue(queue) == chain[::-1]
    assert not any(exchange.name in host.exchanges for exchange in chain)


def test_exchanges_that_are_bound_in_a_circle_go_once() -> None:
    host = VirtualHost("/")
    one, other = (Exchange(name, "fanout", is_auto_delete=True) for name in ("one", "other"))
    for exchange in (one, other):
        host.declare_exchange(exchange)
    for source, destination in ((one, other), (other, one), (one, one)):
        host.bind(source, Binding(destination, ""))
    assert host.remove_exchange(one) == [one, other]
    assert not {"one", "other"} & set(host.exchanges)


def test_an_exchange_forgets_those_that_are_bound_to_it_no_longer() -> None:
    host = VirtualHost("/")
    source = Exchange("source", "topic")
    host.declare_exchange(source)
    destination = host.exchange("amq.fanout")
    bindings = [Binding(destination, key) for key in ("a", "b")]
    for binding in bindings:
        host.bind(source, binding)
    host.unbind(source, bindings[0])
    assert destination.sources == {source}
    host.unbind(source, bindings[1])
    assert not destination.sources


def test_the_properties_of_a_message_with_headers_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message of Celery has others: ids are among them."""
    decoded: list[bytes] = []
    decode = properties._decoded

    def counted(raw: bytes) -> dict[str, Any]:
        decoded.append(raw)
        return decode(raw)

    monkeypatch.setattr(properties, "_decoded", counted)
    host = VirtualHost("/")
    headers = {"task": "tasks.add", "id": "a" * 200}
    message = Message(b"", b"q", properties.encode_properties({"headers": headers, "message_id": "once"}), b"", 0)
    assert message.summary.has_headers
    assert host.route(message) == host.route(message) == ()
    assert without_hidden_copies(message) is message
    assert message.summary.expiration is None
    assert decoded == [message.properties]


class UnreadDict(dict[Any, Any]):
    """Nobody may look at all of it."""

    def values(self) -> Any:
        raise AssertionError("all bindings are looked at")


def test_a_queue_that_goes_looks_at_its_own_bindings_only() -> None:
    """A connection may end with thousands of exclusive queues."""
    host = VirtualHost("/")
    exchange = host.exchange("amq.topic")
    queues: list[Any] = [Place(f"q{number}") for number in range(3)]
    for queue in queues:
        host.add_queue(queue)
        for key in ("a", "b"):
            host.bind(exchange, Binding(queue, key))
    exchange.bindings = UnreadDict(exchange.bindings)
    host.remove_queue(queues[1])
    assert set(exchange.matcher.matching("a", {})) == {queues[0], queues[2]}
    assert [binding.key for binding in exchange.bindings_to(queues[0])] == ["a", "b"]
    assert len(exchange.bindings) == 4
