"""Patterns and searches for the drivers that are killed: what is stored in topics, and what plain loops make of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from headrace.client import Admin, Client, Producer

__all__ = ["CHANGES", "SEARCHES", "STORED_PATTERNS", "STORED_SEARCHES", "matched", "searched", "stored", "words"]

STORED_PATTERNS = "stored-patterns"
STORED_SEARCHES = "stored-searches"
WITHIN_S = 100
SECOND_MS = 1000


def following(first: str, second: str) -> str:
    parts = [{"name": "a", "where": [first]}, {"name": "b", "follows": "followed", "where": [second]}]
    return json.dumps({"parts": parts, "within": f"{WITHIN_S} seconds"})


CHANGES: tuple[tuple[str, int, str | None], ...] = (
    ("p", 0, following("number % 5 = 1", "number % 3 = 0")),
    ("bad", 0, "PATTERN (A + + B)"),
    ("q", 200, f"PATTERN (A B) WITHIN '{WITHIN_S} seconds' DEFINE A AS number % 2 = 0, B AS number % 3 = 0"),
    ("p", 500, following("number % 4 = 1", "number % 7 = 3")),
    ("q", 800, None),
    ("p", 900, following("number % 5 = 1", "number % 3 = 0")),
)
"""Patterns and the event times from which they count, in the order in which they are written."""
SEARCHES: dict[str, tuple[str, Callable[[int], bool]]] = {
    "range": ("word3 AND number:[50 TO *]", lambda number: 3 in (number % 7, number % 11) and number >= 50),
    "phrase": ('"word1 word2"', lambda number: number % 7 == 1 and number % 11 == 2),
    "rare": (
        "word5 AND NOT word4",
        lambda number: 5 in (number % 7, number % 11) and 4 not in (number % 7, number % 11),
    ),
}


def words(number: str) -> str:
    """SQL for the text of a row."""
    return f"concat('word', {number} % 7, ' word', {number} % 11)"


def stored(client: Client) -> None:
    """Write patterns and searches into their topics."""
    for topic in (STORED_PATTERNS, STORED_SEARCHES):
        # Patterns have times of 1970, which a topic keeps no records of for long.
        Admin(client).create_topic(topic, partitions=1, config={"retention.ms": "-1"})
    with Producer(client) as producer:
        for name, since, text in CHANGES:
            value = None if text is None else json.dumps({"id": name, "pattern": text}).encode()
            producer.send(STORED_PATTERNS, value, key=name.encode(), timestamp=since * SECOND_MS)
        for name, (query, _) in SEARCHES.items():
            value = json.dumps({"id": name, "query": query}).encode()
            producer.send(STORED_SEARCHES, value, key=name.encode())


# ---- plain loops -----------------------------------------------------------------------------------------------------


def searched(numbers: Iterable[int]) -> list[str]:
    return [f"{number}:{name}" for number in numbers for name, (_, matches) in SEARCHES.items() if matches(number)]


def matched(numbers: dict[str, list[int]]) -> list[str]:
    """By key its numbers, which are times; a pattern sees those from its change to the next."""
    found = []
    for key, given in numbers.items():
        ordered = sorted(given)
        for begin, end, modulus, rest, other, other_rest in ((0, 500, 5, 1, 3, 0), (500, 900, 4, 1, 7, 3)):
            found += pairs("p", key, ordered, begin, end, (modulus, rest), (other, other_rest))
        found += pairs("p", key, ordered, 900, None, (5, 1), (3, 0))
        found += adjacent("q", key, [each for each in ordered if 200 <= each < 800])
    return found


def pairs(
    name: str, key: str, given: Sequence[int], begin: int, end: int | None, one: tuple[int, int], two: tuple[int, int]
) -> list[str]:
    rows = [each for each in given if each >= begin and (end is None or each < end)]
    found = []
    for place, first in enumerate(rows):
        if first % one[0] == one[1]:
            second = next((each for each in rows[place + 1 :] if each % two[0] == two[1]), None)
            if second is not None and second - first < WITHIN_S:
                found.append(f"{name}:{key}:{first}-{second}")
    return found


def adjacent(name: str, key: str, rows: Sequence[int]) -> list[str]:
    found, place = [], 0
    while place + 1 < len(rows):
        first, second = rows[place], rows[place + 1]
        if first % 2 == 0 and second % 3 == 0 and second - first < WITHIN_S:
            found.append(f"{name}:{key}:{first}-{second}")
            place += 1
        place += 1
    return found
