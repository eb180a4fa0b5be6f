"""Exchanges and bindings: which queues a message goes to.

An exchange has bindings to queues and to other exchanges. Its type says how a binding's key is compared with the
routing key: equal (direct), not at all (fanout), word by word with ``*`` for one word and ``#`` for any number (topic),
or not the key but the message's headers (headers).

Patterns are words in a tree, so the cost of a search depends on the words of the routing key and not on the number of
bindings. On top of that ``VirtualHost`` remembers the queues of recent routing keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from headrace.wire.amqp.errors import AmqpError, ReplyCode
from headrace.wire.amqp.tables import Timestamp, type_name

__all__ = ["EXCHANGE_TYPES", "Binding", "Destination", "Exchange", "Matcher", "check_headers_binding", "new_matcher"]


class Destination(Protocol):
    """A queue or an exchange, as a binding sees it."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a destination. Two bindings with the same key and arguments are one."""

    destination: Destination
    key: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def identity(self) -> tuple[int, str, str]:
        return id(self.destination), self.key, repr(sorted(self.arguments.items()))


class Matcher(Protocol):
    """The bindings of one exchange."""

    needs_headers: bool

    def add(self, binding: Binding) -> None: ...

    def remove(self, binding: Binding) -> None: ...

    def matching(self, routing_key: str, headers: Mapping[str, Any]) -> Iterator[Destination]:
        """The destinations of a message; one may come more than once."""


class DirectMatcher:
    needs_headers = False

    def __init__(self) -> None:
        self._by_key: dict[str, dict[tuple[int, str, str], Binding]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.key, {})[binding.identity] = binding

    def remove(self, binding: Binding) -> None:
        bindings = self._by_key[binding.key]
        del bindings[binding.identity]
        if not bindings:
            del self._by_key[binding.key]

    def matching(self, routing_key: str, headers: Mapping[str, Any]) -> Iterator[Destination]:
        for binding in self._by_key.get(routing_key, {}).values():
            yield binding.destination


class _EveryBinding:
    """Looks at all bindings for each message."""

    def __init__(self) -> None:
        self._bindings: dict[tuple[int, str, str], Binding] = {}

    def add(self, binding: Binding) -> None:
        self._bindings[binding.identity] = binding

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding.identity]


class FanoutMatcher(_EveryBinding):
    needs_headers = False

    def matching(self, routing_key: str, headers: Mapping[str, Any]) -> Iterator[Destination]:
        for binding in self._bindings.values():
            yield binding.destination


class _Node:
    """A word of patterns: what follows it, and the bindings whose pattern ends here."""

    __slots__ = ("bindings", "children", "is_any")

    def __init__(self, word: str = "") -> None:
        self.is_any = word == "#"
        self.children: dict[str, _Node] = {}
        self.bindings: dict[tuple[int, str, str], Binding] = {}


def _words(key: str) -> list[str]:
    """An empty key has no words, and not one that is empty."""
    return key.split(".") if key else []


class TopicMatcher:
    needs_headers = False

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, binding: Binding) -> None:
        node = self._root
        for word in _words(binding.key):
            node = node.children.setdefault(word, _Node(word))
        node.bindings[binding.identity] = binding

    def remove(self, binding: Binding) -> None:
        path = [self._root]
        words = _words(binding.key)
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].bindings[binding.identity]
        for parent, word, node in zip(reversed(path[:-1]), reversed(words), reversed(path[1:]), strict=True):
            if node.children or node.bindings:
                return
            del parent.children[word]

    def matching(self, routing_key: str, headers: Mapping[str, Any]) -> Iterator[Destination]:
        words = _words(routing_key)
        # Every node is looked at once for each number of words that are left, however many '#' lead there.
        seen: set[tuple[int, int]] = set()
        waiting = [(self._root, 0)]
        while waiting:
            node, place = waiting.pop()
            if (id(node), place) in seen:
                continue
            seen.add((id(node), place))
            if place == len(words):
                for binding in node.bindings.values():
                    yield binding.destination
            else:
                for word in (words[place], "*"):
                    if word in node.children and word != "#":
                        waiting.append((node.children[word], place + 1))
                if node.is_any:
                    waiting.append((node, place + 1))
            if "#" in node.children:
                waiting.append((node.children["#"], place))


HEADER_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


def check_headers_binding(binding: Binding) -> None:
    """Raises AmqpError for an ``x-match`` that is none."""
    how = binding.arguments.get("x-match", "all")
    if not isinstance(how, str):
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f"Invalid x-match field type {type_name(how)} (value {how}); expected longstr",
        )
    if how not in HEADER_MATCHES:
        raise AmqpError(
            ReplyCode.PRECONDITION_FAILED,
            f'Invalid x-match field value <<"{how}">>; expected all, any, all-with-x, or any-with-x',
        )


class HeadersMatcher(_EveryBinding):
    """``x-match``: all (the default) or any of the binding's arguments must be in the headers. An argument without a
    value asks only that the header is there. Names that begin with ``x-`` count only with all-with-x and any-with-x."""

    needs_headers = True

    def matching(self, routing_key: str, headers: Mapping[str, Any]) -> Iterator[Destination]:
        for binding in self._bindings.values():
            how = binding.arguments.get("x-match", "all")
            with_x = how.endswith("-with-x")
            wanted = [
                (name, value)
                for name, value in binding.arguments.items()
                if name != "x-match" and (with_x or not name.startswith("x-"))
            ]
            is_found = (name in headers and (value is None or _same(value, headers[name])) for name, value in wanted)
            if all(is_found) if how.startswith("all") else any(is_found):
                yield binding.destination


def _same(one: Any, other: Any) -> bool:
    """Numbers are compared by value, and nothing else across types."""
    kinds = {_kind(one), _kind(other)}
    return len(kinds) == 1 and bool(one == other)


def _kind(value: Any) -> type:
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return Timestamp if isinstance(value, Timestamp) else type(value)


EXCHANGE_TYPES: dict[str, type[DirectMatcher | FanoutMatcher | TopicMatcher | HeadersMatcher]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
}


def new_matcher(kind: str) -> Matcher:
    return EXCHANGE_TYPES[kind]()


class Exchange:
    """A named set of bindings."""

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        is_durable: bool = True,
        is_auto_delete: bool = False,
        is_internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.is_durable = is_durable
        self.is_auto_delete = is_auto_delete
        self.is_internal = is_internal
        self.arguments = dict(arguments or {})
        self.matcher = new_matcher(kind)
        self.bindings: dict[tuple[int, str, str], Binding] = {}
        self._by_destination: dict[int, dict[tuple[int, str, str], Binding]] = {}
        """The same: a queue that goes looks at its own bindings only."""
        self.sources: set[Exchange] = set()
        """Exchanges that are bound to this one."""

    @property
    def alternate(self) -> str | None:
        """Where messages go that match no binding."""
        found = self.arguments.get("alternate-exchange")
        return found if isinstance(found, str) else None

    def bind(self, binding: Binding) -> bool:
        """False if there was such a binding."""
        if binding.identity in self.bindings:
            return False
        self.bindings[binding.identity] = binding
        self._by_destination.setdefault(id(binding.destination), {})[binding.identity] = binding
        self.matcher.add(binding)
        return True

    def unbind(self, binding: Binding) -> bool:
        """False if there was none."""
        found = self.bindings.pop(binding.identity, None)
        if found is None:
            return False
        to_destination = self._by_destination[id(found.destination)]
        del to_destination[found.identity]
        if not to_destination:
            del self._by_destination[id(found.destination)]
        self.matcher.remove(found)
        return True

    def bindings_to(self, destination: Destination) -> list[Binding]:
        return list(self._by_destination.get(id(destination), {}).values())
