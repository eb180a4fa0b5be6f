"""Flats, searches for them, and a matcher that goes through both with plain loops."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

TIME = pa.timestamp("us", "UTC")
START = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = pa.schema(
    [
        ("title", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("city", pa.string()),
        ("price", pa.int64()),
        ("rating", pa.float64()),
        ("cost", pa.decimal128(8, 2)),
        ("listed", TIME),
        ("free_from", pa.date32()),
        ("furnished", pa.bool_()),
    ]
)
EXACT = ("city",)
DEFAULTS = ("title", "tags")
Event = dict[str, Any]
Spec = tuple[Any, ...]
"""A search as nested tuples: ("and", …), ("or", …), ("not", part), ("all",), (kind, field, value)."""

WORDS = ["a", "b", "ab", "abc", "Ä", "two", "rooms", "3"]
texts = st.lists(st.sampled_from([*WORDS, "AB", "b-b", "!"]), max_size=5).map(" ".join)
events: st.SearchStrategy[Event] = st.fixed_dictionaries(
    {
        "title": st.none() | texts,
        "tags": st.none() | st.lists(st.none() | texts, max_size=3),
        "city": st.none() | st.sampled_from(["Berlin", "berlin", "New York", "a"]),
        "price": st.none() | st.integers(-3, 3),
        "rating": st.none() | st.sampled_from([-1.5, 0.0, 1.0, 1.5, float("nan"), float("inf")]),
        "cost": st.none() | st.sampled_from([Decimal("0.99"), Decimal("1.00"), Decimal("1.01"), Decimal("-1")]),
        "listed": st.none() | st.sampled_from([START, START + timedelta(hours=30), START + timedelta(days=2)]),
        "free_from": st.none() | st.sampled_from([date(2026, 1, 1), date(2026, 1, 2)]),
        "furnished": st.none() | st.booleans(),
    }
)

# ---- searches ------------------------------------------------------------------------------------------------------

BOUNDS = {
    "price": ["-3", "-1", "0", "1", "2.5", "3"],
    "rating": ["-1.5", "0", "1", "1.5", "2"],
    "cost": ["0.99", "1", "1.005", "1.01"],
    "listed": ["2026-01-01", "2026-01-02", "2026-01-02T06:00:00Z", "2026-01-03T00:00:00+00:00"],
    "free_from": ["2026-01-01", "2026-01-02", "2026-01-01T12:00:00"],
}


@st.composite
def ranges(draw: st.DrawFn) -> Spec:
    field = draw(st.sampled_from(sorted(BOUNDS)))
    ends = st.sampled_from(BOUNDS[field])
    low, high = draw(st.tuples(st.none() | ends, st.none() | ends).filter(lambda each: each != (None, None)))
    return ("range", field, (low, draw(st.booleans()), high, draw(st.booleans())))


conditions: st.SearchStrategy[Spec] = st.one_of(
    st.tuples(st.just("term"), st.sampled_from(["title", "tags", None]), st.sampled_from([*WORDS, "b-b"])),
    st.tuples(st.just("term"), st.just("city"), st.sampled_from(["Berlin", "berlin", "a"])),
    st.tuples(
        st.just("phrase"),
        st.sampled_from(["title", "tags", None]),
        st.lists(st.sampled_from(["a", "b", "ab", "TWO"]), min_size=1, max_size=3).map(" ".join),
    ),
    st.tuples(st.just("prefix"), st.sampled_from(["title", "tags", None]), st.sampled_from(["a", "AB", "t"])),
    st.tuples(st.just("prefix"), st.just("city"), st.sampled_from(["B", "b", "New"])),
    st.sampled_from(sorted(BOUNDS)).flatmap(
        lambda field: st.tuples(st.just("term"), st.just(field), st.sampled_from(BOUNDS[field]))
    ),
    st.tuples(st.just("term"), st.just("furnished"), st.sampled_from(["true", "false"])),
    st.tuples(st.just("exists"), st.sampled_from(EVENTS.names), st.none()),
    ranges(),
    st.just(("all",)),
)
specs: st.SearchStrategy[Spec] = st.recursive(
    conditions,
    lambda part: st.one_of(
        st.tuples(st.just("not"), part),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(part, min_size=2, max_size=4)).map(
            lambda each: (each[0], *each[1])
        ),
    ),
    max_leaves=6,
)


def as_text(spec: Spec) -> str:
    kind = spec[0]
    if kind == "all":
        return "*:*"
    if kind == "not":
        return f"NOT ({as_text(spec[1])})"
    if kind in ("and", "or"):
        return f" {kind.upper()} ".join(f"({as_text(each)})" for each in spec[1:])
    _, field, value = spec
    named = "" if field is None else f"{field}:"
    if kind == "range":
        low, with_low, high, with_high = value
        return f"{named}{'[' if with_low else '{'}{low or '*'} TO {high or '*'}{']' if with_high else '}'}"
    if kind == "term":
        return named + re.sub(r"([-:])", r"\\\1", value)
    return named + {"phrase": f'"{value}"', "prefix": f"{value}*", "exists": "*"}[kind]


def as_dict(spec: Spec) -> dict[str, Any]:
    kind = spec[0]
    if kind == "all":
        return {"all": True}
    if kind == "not":
        return {"not": as_dict(spec[1])}
    if kind in ("and", "or"):
        return {kind: [as_dict(each) for each in spec[1:]]}
    _, field, value = spec
    named = {} if field is None else {"field": field}
    if kind == "range":
        low, with_low, high, with_high = value
        ends = {("gte" if with_low else "gt"): low, ("lte" if with_high else "lt"): high}
        return {**named, "range": {name: end for name, end in ends.items() if end is not None}}
    return {**named, kind: True if kind == "exists" else value}


def as_json(spec: Spec) -> str:
    return json.dumps(as_dict(spec))


# ---- the plain matcher ---------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    found, word = [], ""
    for character in unicodedata.normalize("NFKC", text).lower():
        if unicodedata.category(character)[0] in "LNM":
            word += character
        elif word:
            found.append(word)
            word = ""
    return found + [word] if word else found


def matches(spec: Spec, event: Mapping[str, Any]) -> bool:
    kind = spec[0]
    if kind == "all":
        return True
    if kind == "not":
        return not matches(spec[1], event)
    if kind in ("and", "or"):
        return (all if kind == "and" else any)(matches(each, event) for each in spec[1:])
    _, field, wanted = spec
    if field is None:
        return any(matches((kind, each, wanted), event) for each in DEFAULTS)
    value = event[field]
    if value is None or value != value:
        return False
    if kind == "exists":
        return True
    if field in BOUNDS:
        return _in_range(field, value, (wanted, True, wanted, True) if kind == "term" else wanted)
    if field == "furnished":
        return bool(value) == (wanted == "true")
    if field == "city":
        return bool(value.startswith(wanted)) if kind == "prefix" else bool(value == wanted)
    texts_of = [each for each in value if each is not None] if field == "tags" else [value]
    return any(_in_words(kind, words(wanted), words(each)) for each in texts_of)


def _in_words(kind: str, wanted: list[str], there: list[str]) -> bool:
    if kind == "prefix":
        return any(each.startswith(wanted[0]) for each in there)
    return any(there[at : at + len(wanted)] == wanted for at in range(len(there)))


def _in_range(field: str, value: Any, wanted: tuple[str | None, bool, str | None, bool]) -> bool:
    low, with_low, high, with_high = wanted
    first, last = (_moments(field, each) for each in (low, high))
    if field == "free_from":
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if first is not None and not (value >= first[0] if with_low else value > first[1]):
        return False
    return last is None or bool(value <= last[1] if with_high else value < last[0])


def _moments(field: str, end: str | None) -> tuple[Any, Any] | None:
    """The first and the last value that an end stands for."""
    if end is None:
        return None
    if field not in ("listed", "free_from"):
        number = Decimal(end) if field == "cost" else float(end)
        return number, number
    at = datetime.fromisoformat(end)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return at, (at + timedelta(days=1, microseconds=-1) if len(end) == len("2026-01-01") else at)


def table(rows: Sequence[Event]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), EVENTS)


Writer = Callable[[Spec], str]
