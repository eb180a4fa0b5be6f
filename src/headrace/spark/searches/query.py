"""What a search is: conditions on fields, joined by AND, OR and NOT. It is written as text (``language``) or as a dict.

    {"and": [q, …]}   {"or": [q, …]}   {"not": q}   {"all": true}
    {"field": "title", "term": "flat"}     the field has these words: one word, or several in a row
    {"field": "title", "phrase": "two rooms"}
    {"field": "city", "prefix": "berl"}    a word that begins so
    {"field": "price", "range": {"gte": 0, "lt": 900}}
    {"field": "price", "exists": true}     the field is not null

Without ``field`` a term, phrase or prefix asks for any of the default fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import UsageError
from headrace.spark.arguments import pointed_at

__all__ = [
    "CLAUSES_MAX",
    "DEPTH_MAX",
    "HALF_A_CHARACTER",
    "TEXT_CHARS_MAX",
    "BooleanQuery",
    "Bound",
    "Condition",
    "ConditionKind",
    "MatchAll",
    "Negation",
    "Query",
    "SearchError",
    "conditions_of",
    "from_dict",
]

TEXT_CHARS_MAX = 20_000
CLAUSES_MAX = 1_000
DEPTH_MAX = 32
Place = int | str
"""Where a part stands: the number of its character in a text, or its path in a dict."""
ConditionKind = Literal["term", "phrase", "prefix", "range", "exists"]
HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")
"""JSON can say it, and no text of an event can have it."""
BOUNDS = {"gte": ("low", True), "gt": ("low", False), "lte": ("high", True), "lt": ("high", False)}
KINDS: tuple[ConditionKind, ...] = ("term", "phrase", "prefix", "range", "exists")


class SearchError(UsageError):
    """A search that cannot be read, or asks of a field what it does not have; with the place where that shows."""

    def __init__(self, problem: str, place: Place, text: str | None = None) -> None:
        self.place = place
        if isinstance(place, int) and text is not None:
            super().__init__(f"{problem}\n{pointed_at(text, place)}")
        else:
            super().__init__(f"at {place}: {problem}")


@dataclass(frozen=True, slots=True)
class Bound:
    value: str
    included: bool
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition on one field; without a field, on any of the default ones."""

    field: str | None
    kind: ConditionKind
    text: str = ""
    low: Bound | None = None
    high: Bound | None = None
    place: Place = 0
    field_place: Place = 0


@dataclass(frozen=True, slots=True)
class MatchAll:
    """Any event."""


@dataclass(frozen=True, slots=True)
class Negation:
    part: Query


@dataclass(frozen=True, slots=True)
class BooleanQuery:
    how: Literal["and", "or"]
    parts: tuple[Query, ...]


Query = Condition | MatchAll | Negation | BooleanQuery


def conditions_of(query: Query) -> Iterator[Condition]:
    if isinstance(query, Condition):
        yield query
    elif isinstance(query, Negation):
        yield from conditions_of(query.part)
    elif isinstance(query, BooleanQuery):
        for each in query.parts:
            yield from conditions_of(each)


def from_dict(given: Any) -> Query:
    """The search that a dict (or JSON) says."""
    query = _read(given, "$", 0)
    if sum(1 for _ in conditions_of(query)) > CLAUSES_MAX:
        raise SearchError(f"a search has at most {CLAUSES_MAX} conditions", "$")
    return query


def _read(given: Any, path: str, depth: int) -> Query:
    if depth > DEPTH_MAX:
        raise SearchError(f"a search has at most {DEPTH_MAX} levels", path)
    if not isinstance(given, Mapping) or not given:
        raise SearchError(f'expected an object such as {{"field": …, "term": …}}, not {_shown(given)}', path)
    if len(given) == 1:
        ((name, value),) = given.items()
        if name in ("and", "or"):
            if not isinstance(value, list) or not value:
                raise SearchError(f"expected a list of searches, not {_shown(value)}", f"{path}.{name}")
            parts = tuple(_read(each, f"{path}.{name}[{number}]", depth + 1) for number, each in enumerate(value))
            return BooleanQuery(name, parts)
        if name == "not":
            return Negation(_read(value, f"{path}.not", depth + 1))
        if name == "all":
            if value is not True:
                raise SearchError(f"expected true, not {_shown(value)}", f"{path}.all")
            return MatchAll()
    return _condition(given, path)


def _condition(given: Mapping[str, Any], path: str) -> Condition:
    kinds = [each for each in KINDS if each in given]
    unknown = sorted(str(each) for each in set(given) - {"field", *KINDS})
    if unknown:
        known = ", ".join(["and", "or", "not", "all", "field", *KINDS])
        raise SearchError(f"{unknown[0]!r} is not known here; known are {known}", path)
    if len(kinds) != 1:
        raise SearchError(f"expected one of {', '.join(KINDS)}, and here are {' and '.join(kinds) or 'none'}", path)
    field, kind, value = given.get("field"), kinds[0], given[kinds[0]]
    if field is not None and not isinstance(field, str):
        raise SearchError(f"expected the name of a field, not {_shown(field)}", f"{path}.field")
    if field is None and kind in ("range", "exists"):
        raise SearchError(f"a condition {kind!r} needs a field", path)
    inside = f"{path}.{kind}"
    if kind == "range":
        low, high = _bounds(value, inside)
        return Condition(field=field, kind="range", low=low, high=high, place=inside, field_place=f"{path}.field")
    if kind == "exists":
        if value is not True:
            raise SearchError(f'expected true, not {_shown(value)}; write {{"not": …}} around it', inside)
        return Condition(field=field, kind="exists", place=inside, field_place=f"{path}.field")
    text = _scalar(value, inside)
    where = f"{path}.field"
    return Condition(field=field, kind=kind, text=text, place=inside, field_place=where)


def _bounds(value: Any, path: str) -> tuple[Bound | None, Bound | None]:
    if not isinstance(value, Mapping) or not value or not set(value) <= set(BOUNDS):
        raise SearchError(f"expected an object with {', '.join(BOUNDS)}, not {_shown(value)}", path)
    found: dict[str, Bound] = {}
    for name, each in value.items():
        side, included = BOUNDS[name]
        if side in found:
            raise SearchError("there are two bounds for one side", path)
        found[side] = Bound(_scalar(each, f"{path}.{name}"), included, f"{path}.{name}")
    return found.get("low"), found.get("high")


def _scalar(value: Any, path: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (half := HALF_A_CHARACTER.search(value)) is not None:
        raise SearchError(f"{half[0]!r} is half of a character", path)
    if isinstance(value, str | int | float):
        return str(value)
    raise SearchError(f"expected a text or a number, not {_shown(value)}", path)


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        text = f"a {type(value).__name__} of too many levels"
    return text if len(text) <= 60 else f"{text[:57]}…"
