"""What patterns and searches come to, in plain loops over the events that were sent.

The three texts of MATCH_RECOGNIZE go through the matcher of the unit tests, which lists every way to match from the
words of the standard; what its variables ask is written here again. The others are loops of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.spark.patterns.clauses import parse_clauses
from tests.chaos.pipeline_kills import Row
from tests.unit.spark.patterns.plain import Path, matches

__all__ = ["Spec", "Tuple", "asked", "lost_of", "nexts_of", "series_of", "stored_of", "text_of", "vees_of"]

Tuple = tuple[Any, ...]
Rows = Sequence[Row]
Spec = Tuple
"""A stored pattern: ("then", kind, kind, seconds), ("rise", kind, seconds), or ("bad",)."""


def partitions(events: Rows) -> Iterator[tuple[int | None, list[Row]]]:
    for who in {event["who"] for event in events}:
        yield who, sorted((each for each in events if each["who"] == who), key=lambda each: (each["s"], each["n"]))


def amounts(rows: Rows, path: Path, *names: str) -> list[int]:
    taken = [rows[at]["amount"] for at, name in path if name in names]
    return [each for each in taken if each is not None]


def above(one: int | None, other: float | None, *, same: bool = False) -> bool:
    return one is not None and other is not None and (one > other or (same and one == other))


# ---- MATCH_RECOGNIZE ------------------------------------------------------------------------------------------------

Asks = Callable[[Rows, int, Path], bool]


@dataclass(frozen=True)
class Recognized:
    """A text, with what its variables ask and where the next match may begin."""

    pattern: str
    within_s: int
    asks: dict[str, Asks]
    skip: Callable[[int, int, Path], int] | None = None

    def matches(self, rows: Rows) -> list[tuple[int, int, Path]]:
        def test(name: str, at: int, path: Path) -> bool:
            first = path[0][0] if path else at
            if rows[at]["s"] - rows[first]["s"] >= self.within_s:
                return False
            return name not in self.asks or self.asks[name](rows, at, path)

        node = parse_clauses(f"ORDER BY at PATTERN ({self.pattern})").pattern
        return matches(node, len(rows), test, self.skip)


def last(path: Path, name: str) -> int:
    return max(at for at, of in path if of == name)


VEES = Recognized(
    "A D+ U+",
    40,
    {
        "D": lambda rows, at, path: at > 0 and above(rows[at - 1]["amount"], rows[at]["amount"]),
        "U": lambda rows, at, path: at > 0 and above(rows[at]["amount"], rows[at - 1]["amount"]),
    },
    skip=lambda start, end, path: last(path, "U"),
)
NEXTS = Recognized(
    "A (B | C){1,3}? D",
    30,
    {
        "B": lambda rows, at, path: above(rows[at]["amount"], rows[path[0][0]]["amount"]),
        "C": lambda rows, at, path: rows[at]["kind"] == "c",
        "D": lambda rows, at, path: above_average(rows[at], amounts(rows, path, "B", "C")),
    },
    skip=lambda start, end, path: start + 1,
)
SERIES = Recognized(
    "A B*",
    25,
    {
        "A": lambda rows, at, path: rows[at]["kind"] == "a",
        "B": lambda rows, at, path: above(rows[at]["amount"], rows[path[0][0]]["amount"], same=True),
    },
)


def above_average(row: Row, taken: list[int]) -> bool:
    """Whether the average of what was taken is above the row."""
    return row["amount"] is not None and bool(taken) and sum(taken) > row["amount"] * len(taken)


def vees_of(events: Rows) -> Iterator[Tuple]:
    for who, rows in partitions(events):
        for start, end, path in VEES.matches(rows):
            yield who, rows[start]["n"], rows[last(path, "D")]["n"], rows[end - 1]["n"], end - start


def nexts_of(events: Rows) -> Iterator[Tuple]:
    for who, rows in partitions(events):
        for start, end, _ in NEXTS.matches(rows):
            yield who, rows[start]["n"], rows[end - 2]["n"], end - start - 2, rows[end - 1]["n"]


def series_of(events: Rows) -> Iterator[Tuple]:
    """By row: its variable, the number of its match, and what the match had come to."""
    for who, rows in partitions(events):
        covered = 0
        for number, (start, end, path) in enumerate(SERIES.matches(rows), 1):
            yield from ((who, row["n"], None, None, None) for row in rows[covered:start])
            for place, (at, name) in enumerate(path):
                sums = amounts(rows, path[: place + 1], "A", "B")
                yield who, rows[at]["n"], name, number, sum(sums) if sums else None
            covered = end
        yield from ((who, row["n"], None, None, None) for row in rows[covered:])


# ---- patterns made by functions -------------------------------------------------------------------------------------


def lost_of(events: Rows) -> Iterator[Tuple]:
    """By match: its pattern, whether its time was over, and its rows."""
    for who, rows in partitions(events):
        for at, row in enumerate(rows):
            if row["kind"] == "a" and not any(each["kind"] == "d" for each in during(rows, at, 20)):
                yield "absent", who, False, (("a", row["n"]),)
            if row["kind"] == "b":
                yield "paid", who, *paid(rows, at)


def paid(rows: Rows, at: int) -> tuple[bool, Tuple]:
    rest = during(rows, at, 30)
    taken = [("x", rows[at]["n"])]
    for place, row in enumerate(rest):
        if row["kind"] == "c" and above(row["amount"], rows[at]["amount"]):
            taken.append(("y", row["n"]))
            end = next((each for each in rest[place + 1 :] if each["kind"] == "d"), None)
            return (True, tuple(taken)) if end is None else (False, (*taken, ("z", end["n"])))
    return True, tuple(taken)


def during(rows: Rows, at: int, seconds: int) -> list[Row]:
    """The rows after one that are less than so long after it."""
    return [each for each in rows[at + 1 :] if each["s"] - rows[at]["s"] < seconds]


# ---- patterns that change -------------------------------------------------------------------------------------------


def text_of(spec: Spec) -> str:
    if spec[0] == "then":
        _, first, second, within_s = spec
        parts = [
            {"name": "x", "where": [f"kind = '{first}'"]},
            {"name": "y", "follows": "followed", "where": [f"kind = '{second}'"]},
        ]
        return json.dumps({"parts": parts, "within": f"{within_s} seconds"})
    if spec[0] == "rise":
        _, kind, within_s = spec
        return f"PATTERN (A B) WITHIN '{within_s} seconds' DEFINE A AS kind = '{kind}', B AS B.amount > A.amount"
    return "PATTERN (A + + B)"


def stored_of(events: Rows, changes: Iterable[tuple[str, int, Spec | None]]) -> Iterator[Tuple]:
    """By match: its pattern and its rows. A pattern has the rows from its change to the next."""
    by_name: dict[str, list[tuple[int, Spec | None]]] = {}
    for name, since, spec in changes:
        given = by_name.setdefault(name, [])
        if not given or given[-1][1] != spec:
            given.append((since, spec))
    for name, given in by_name.items():
        ends = [since for since, _ in given[1:]] + [None]
        for (begin, spec), end in zip(given, ends, strict=True):
            if spec is not None:
                inside = [each for each in events if each["s"] >= begin and (end is None or each["s"] < end)]
                for who, rows in partitions(inside):
                    yield from ((name, who, found) for found in one_stored(spec, rows))


def one_stored(spec: Spec, rows: Rows) -> Iterator[Tuple]:
    if spec[0] == "then":
        _, first, second, within_s = spec
        for at, row in enumerate(rows):
            if row["kind"] == first:
                after = next((each for each in during(rows, at, within_s) if each["kind"] == second), None)
                if after is not None:
                    yield ("x", row["n"]), ("y", after["n"])
    elif spec[0] == "rise":
        _, kind, within_s = spec
        at = 0
        while at + 1 < len(rows):
            one, two = rows[at], rows[at + 1]
            if one["kind"] == kind and above(two["amount"], one["amount"]) and two["s"] - one["s"] < within_s:
                yield ("A", one["n"]), ("B", two["n"])
                at += 1
            at += 1


# ---- searches that change -------------------------------------------------------------------------------------------


def asked(spec: Spec) -> tuple[str, Callable[[Row], bool]]:
    """The text of a search, and whether an event matches it."""
    kind, *rest = spec
    if kind == "word":
        word, least = rest
        return (
            f"{word} AND amount:[{least} TO *]",
            lambda event: word in event["text"].split() and event["amount"] is not None and event["amount"] >= least,
        )
    if kind == "phrase":
        return f'"{rest[0]} {rest[1]}"', lambda event: event["text"] == f"{rest[0]} {rest[1]}"
    if kind == "but":
        name, word = rest
        return (
            f"kind:{name} AND NOT {word}",
            lambda event: event["kind"] == name and word not in event["text"].split(),
        )
    if kind == "begins":
        return (
            f"{rest[0]}* AND NOT amount:*",
            lambda event: event["amount"] is None and any(each.startswith(rest[0]) for each in event["text"].split()),
        )
    return "text:(", lambda event: False
