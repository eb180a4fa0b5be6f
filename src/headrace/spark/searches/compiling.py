"""A search as the index takes it: a tree of AND and OR over conditions, of which some are negated.

Negations are pushed down to the conditions, words are analysed as those of events are, and the ends of ranges become
the smallest and the largest value that belong to them: integers for all numeric fields but floating point ones.

A condition on a field that is null, or that the event does not have, is false, and its negation is true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation, localcontext
from typing import Any, Literal

import numpy as np

from headrace.spark.searches.analysis import Field, split_words
from headrace.spark.searches.language import parse_search
from headrace.spark.searches.query import (
    BooleanQuery,
    Bound,
    Condition,
    MatchAll,
    Negation,
    Query,
    SearchError,
    conditions_of,
)

__all__ = ["ALWAYS", "NEVER", "Branch", "Leaf", "Test", "Tree", "compile_search", "compile_searches"]

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_US = 86_400_000_000
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
DIGITS_MAX = 40
SINGLE_MAX = float(np.finfo(np.float32).max)
NOTHING = (1.0, 0.0)
"""Ends of a range that has no number."""
TRUTH = {"true": 1, "false": 0}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A condition. ``value``: a word, a prefix, the words of a phrase, or the ends of a range."""

    kind: Literal["word", "prefix", "phrase", "range", "exists"]
    field: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Test:
    leaf: Leaf
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    how: Literal["and", "or"]
    parts: tuple[Tree, ...]


Tree = Test | Branch
ALWAYS = Branch("and", ())
NEVER = Branch("or", ())


@dataclass(frozen=True, slots=True)
class Compiler:
    fields: Mapping[str, Field]
    defaults: Sequence[str]
    words: Mapping[str, tuple[str, ...]]
    text: str | None = None
    """The search as text, for errors that point at a character."""

    def tree(self, query: Query, negated: bool = False) -> Tree:
        if isinstance(query, MatchAll):
            return NEVER if negated else ALWAYS
        if isinstance(query, Negation):
            return self.tree(query.part, not negated)
        if isinstance(query, BooleanQuery):
            both = (query.how == "and") != negated
            return joined("and" if both else "or", [self.tree(each, negated) for each in query.parts])
        alternatives = [self.leaf(query, field) for field in self.asked(query)]
        parts = [(ALWAYS if negated else NEVER) if each is None else Test(each, negated) for each in alternatives]
        return joined("and" if negated else "or", parts)

    def asked(self, condition: Condition) -> list[Field]:
        if condition.field is not None:
            if condition.field not in self.fields:
                raise self.fail(
                    f"there is no field {condition.field!r}; the fields are {', '.join(self.fields)}",
                    condition.field_place,
                )
            return [self.fields[condition.field]]
        if not self.defaults:
            raise self.fail("say which field: title:flat, or give default fields", condition.place)
        return [self.fields[each] for each in self.defaults]

    def leaf(self, condition: Condition, field: Field) -> Leaf | None:
        """None: it can never be true."""
        if condition.kind == "exists":
            return Leaf("exists", field.name)
        if field.is_numeric:
            return self.numeric(condition, field)
        if condition.kind == "range":
            raise self.fail(f"a range is for numbers, dates and times, and {field.name!r} is text", condition.place)
        if field.kind == "exact":
            return Leaf("prefix" if condition.kind == "prefix" else "word", field.name, condition.text)
        words = self.words[condition.text]
        if not words:
            raise self.fail(f"there is no word in {condition.text!r}", condition.place)
        if condition.kind == "prefix":
            if len(words) > 1:
                raise self.fail(f"a prefix is of one word, and {condition.text!r} has several", condition.place)
            return Leaf("prefix", field.name, words[0])
        return Leaf("word", field.name, words[0]) if len(words) == 1 else Leaf("phrase", field.name, words)

    def numeric(self, condition: Condition, field: Field) -> Leaf | None:
        if condition.kind == "prefix":
            raise self.fail(
                f"a prefix is for text, and {field.name!r} has values of kind {field.kind}", condition.place
            )
        low, high = condition.low, condition.high
        if condition.kind in ("term", "phrase"):
            low = high = Bound(condition.text, True, condition.place)
        if field.kind == "float":
            ends: tuple[Any, Any] = self.float_ends(field, low, high)
        else:
            lowest, highest = self.ends(field, low), self.ends(field, high)
            # A value is an interval of integers, of which one is enough for all but days in fields of times.
            first = LOWEST if low is None else lowest[0] if low.included else lowest[1] + 1
            last = HIGHEST if high is None else highest[1] if high.included else highest[0] - 1
            ends = (max(first, LOWEST), min(last, HIGHEST))
        return Leaf("range", field.name, ends) if ends[0] <= ends[1] else None

    def float_ends(self, field: Field, low: Bound | None, high: Bound | None) -> tuple[float, float]:
        first = -math.inf if low is None else self.number(field, low)
        last = math.inf if high is None else self.number(field, high)
        if low is not None and not low.included:
            if first == math.inf:
                return NOTHING
            first = math.nextafter(first, math.inf)
        if high is not None and not high.included:
            if last == -math.inf:
                return NOTHING
            last = math.nextafter(last, -math.inf)
        return first, last

    def number(self, field: Field, bound: Bound) -> float:
        """As the column has it: 0.1 in a column of 32 bits is the number of 32 bits next to it."""
        try:
            found = float(bound.value)
        except ValueError:
            found = math.nan
        if math.isnan(found):
            raise self.fail(f"{bound.value!r} is no number", bound.place)
        if field.single and abs(found) <= SINGLE_MAX:
            return float(np.float32(found))
        return found

    def ends(self, field: Field, bound: Bound | None) -> tuple[int, int]:
        """The first and the last integer of a value. Between two integers the last is the smaller one."""
        if bound is None:
            return 0, 0
        if field.kind == "boolean":
            if bound.value.lower() not in TRUTH:
                raise self.fail(f"{field.name!r} is true or false, and not {bound.value!r}", bound.place)
            return (TRUTH[bound.value.lower()],) * 2
        if field.kind in ("time", "date"):
            first, last = self.moment(bound)
            return (first, last) if field.kind == "time" else (-(-first // DAY_US), last // DAY_US)
        try:
            with localcontext() as context:
                context.prec = 60
                value = Decimal(bound.value)
                if value.is_finite() and value.adjusted() > DIGITS_MAX:  # beyond all integers there are
                    value = Decimal(2 * HIGHEST).copy_sign(value)
                value = value.scaleb(field.scale)
                return int(value.to_integral_value(ROUND_CEILING)), int(value.to_integral_value(ROUND_FLOOR))
        except (InvalidOperation, ValueError, OverflowError):
            raise self.fail(f"{bound.value!r} is no number", bound.place) from None

    def moment(self, bound: Bound) -> tuple[int, int]:
        """A day is from its first to its last microsecond, in UTC; a time without a zone is in UTC."""
        try:
            if DAY.fullmatch(bound.value):
                first = (date.fromisoformat(bound.value) - EPOCH.date()).days * DAY_US
                return first, first + DAY_US - 1
            found = datetime.fromisoformat(bound.value)
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
            at = (found - EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError):
            raise self.fail(
                f"{bound.value!r} is neither a day (2026-01-31) nor a time (2026-01-31T10:00:00Z)", bound.place
            ) from None
        return at, at

    def fail(self, problem: str, place: int | str) -> SearchError:
        return SearchError(problem, place, self.text)


def joined(how: Literal["and", "or"], parts: Iterable[Tree]) -> Tree:
    """The parts in one branch, without branches of the same kind in it and without what is always so."""
    nothing, everything = (ALWAYS, NEVER) if how == "and" else (NEVER, ALWAYS)
    found: dict[Tree, None] = {}
    for each in parts:
        if each == everything:
            return everything
        if isinstance(each, Branch) and each.how == how:
            found.update(dict.fromkeys(each.parts))
        else:
            found[each] = None
    found.pop(nothing, None)
    return next(iter(found)) if len(found) == 1 else Branch(how, tuple(found))


def compile_search(given: str | Mapping[str, Any], fields: Mapping[str, Field], defaults: Sequence[str] = ()) -> Tree:
    query = parse_search(given)
    words = split_words(each.text for each in conditions_of(query))
    return Compiler(fields, defaults, words, given if isinstance(given, str) else None).tree(query)


def compile_searches(
    texts: Sequence[str | None], fields: Mapping[str, Field], defaults: Sequence[str]
) -> list[Tree | str]:
    """The tree of each text, or what is wrong with it. Words of all texts are found in one go."""
    queries: list[Query | str] = [_parsed(each) for each in texts]
    words = split_words(
        condition.text for each in queries if not isinstance(each, str) for condition in conditions_of(each)
    )
    found: list[Tree | str] = []
    for text, query in zip(texts, queries, strict=True):
        try:
            found.append(query if isinstance(query, str) else Compiler(fields, defaults, words, text).tree(query))
        except SearchError as error:
            found.append(str(error))
    return found


def _parsed(text: str | None) -> Query | str:
    try:
        return "there is no search: the column is null" if text is None else parse_search(text)
    except SearchError as error:
        return str(error)
