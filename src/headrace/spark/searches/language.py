"""Searches as text, in the manner of Lucene's:

    title:"two rooms" AND price:[0 TO 900] AND NOT city:berl*

    flat                 a word of the default fields           title:flat       a word of a field
    "two rooms"          words in a row                         berl*            a word that begins so
    price:[0 TO 900]     both ends belong to it                 price:{0 TO 900} neither does; [0 TO 900} is possible
    price:[* TO 900]     no lower end                           price:<=900      the same; also < > >=
    price:*              the field is not null                  *:*              any event
    a AND b, a && b, a b both                                   a OR b, a || b   at least one
    NOT a, -a, !a        not                                    ( … )            groups; title:(flat OR house)

AND binds more than OR. What stands side by side must all match, which is another default than Lucene's. A backslash
takes the meaning from the character after it. A text that begins with a brace is JSON (``query``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from headrace.spark.searches.query import (
    CLAUSES_MAX,
    DEPTH_MAX,
    HALF_A_CHARACTER,
    TEXT_CHARS_MAX,
    BooleanQuery,
    Bound,
    Condition,
    ConditionKind,
    MatchAll,
    Negation,
    Query,
    SearchError,
    from_dict,
)

__all__ = ["parse_search"]

SPACE = re.compile(r"\s*")
WORD = re.compile(r"(?:\\.|[^\s()\"\[\]{}:\\^~])+", re.DOTALL)
VALUE = re.compile(r"(?:\\.|[^\s()\"\[\]{}\\^~])+", re.DOTALL)
"""After a field: a colon is part of it, as in 10:30."""
QUOTED = re.compile(r"\"((?:\\.|[^\"\\])*)\"", re.DOTALL)
BOUND = re.compile(r"\"((?:\\.|[^\"\\])*)\"|((?:\\.|[^\s\]}\\\"])+)", re.DOTALL)
COMPARISON = re.compile(r"<=|>=|<|>")
AND = re.compile(r"AND(?=[\s(\"]|$)|&&")
OR = re.compile(r"OR(?=[\s(\"]|$)|\|\|")
NOT = re.compile(r"NOT(?=[\s(\"]|$)|[-!]")
TO = re.compile(r"TO(?=\s)")
JOINED = re.compile(r"(?:AND|OR|NOT)(?=[\s(\"]|$)")
COMPARED = re.compile(r"(\w+)(<=|>=|<|>|=)(.*)", re.DOTALL)
NEGATED = re.compile(r"!(?=\w)|-(?!inf)(?=[^\W\d])", re.IGNORECASE)
"""A number may be negative."""
ESCAPED = re.compile(r"\\(.)", re.DOTALL)
UNESCAPED_WILDCARD = re.compile(r"(?:\\.|[^\\*?])*([*?])", re.DOTALL)


def parse_search(given: str | Mapping[str, Any]) -> Query:
    """A search from its text, its JSON or its dict."""
    if not isinstance(given, str):
        return from_dict(given)
    if len(given) > TEXT_CHARS_MAX:
        raise SearchError(f"a search has at most {TEXT_CHARS_MAX} characters, and this one {len(given)}", "the text")
    if given.lstrip().startswith("{"):
        try:
            value = json.loads(given)
        except (ValueError, RecursionError) as error:
            place = error.pos if isinstance(error, json.JSONDecodeError) else 0
            raise SearchError(f"this begins as JSON and is none: {error}", place, given) from None
        return from_dict(value)
    half = HALF_A_CHARACTER.search(given)
    if half is not None:
        raise SearchError(f"{half[0]!r} is half of a character", half.start())
    return _Parser(given).whole()


class _Named(NamedTuple):
    """A field, and where its name stands."""

    name: str
    at: int


def _condition(field: _Named | None, kind: ConditionKind, place: int, **parts: Any) -> Condition:
    name, at = field or (None, place)
    return Condition(field=name, kind=kind, place=place, field_place=at, **parts)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.clauses = 0

    def whole(self) -> Query:
        if not self.text.strip():
            self.fail("a search says something; *:* matches any event")
        query = self.any_of(None)
        self.skip()
        if self.at < len(self.text):
            self.fail(f"unexpected {self.text[self.at]!r}")
        return query

    # ---- AND, OR, NOT ----------------------------------------------------------------------------------------------

    def any_of(self, field: _Named | None) -> Query:
        parts = [self.all_of(field)]
        while self.take(OR):
            parts.append(self.all_of(field))
        return parts[0] if len(parts) == 1 else BooleanQuery("or", tuple(parts))

    def all_of(self, field: _Named | None) -> Query:
        parts = [self.negated(field)]
        while True:
            if not self.take(AND) and (self.ends() or self.sees(OR)):
                break
            parts.append(self.negated(field))
        return parts[0] if len(parts) == 1 else BooleanQuery("and", tuple(parts))

    def negated(self, field: _Named | None) -> Query:
        negations = 0
        while self.take(NOT):
            negations += 1
        self.skip()
        if self.text.startswith("+", self.at):
            self.at += 1
        query = self.primary(field)
        return Negation(query) if negations % 2 else query

    # ---- conditions ------------------------------------------------------------------------------------------------

    def primary(self, field: _Named | None) -> Query:
        self.skip()
        start = self.at
        self.clauses += 1
        if self.clauses > CLAUSES_MAX:
            self.fail(f"a search has at most {CLAUSES_MAX} conditions")
        for operator, name in ((AND, "AND"), (OR, "OR")):
            if self.sees(operator):
                self.fail(f"expected a condition before {name}")
        if self.text.startswith("(", start):
            return self.group(field)
        if self.text.startswith('"', start):
            return self.phrase(field)
        if self.text.startswith(("[", "{"), start):
            self.fail("a range needs a field: price:[0 TO 900]" if field is None else "a range stands after its field")
        if field is None and (found := WORD.match(self.text, start)) is not None:
            if self.text.startswith(":", found.end()):
                self.at = found.end() + 1
                return self.of_field(found[0], start)
        return self.word(field, WORD if field is None else VALUE)

    def of_field(self, name: str, start: int) -> Query:
        if name == "*":
            if not self.text.startswith("*", self.at):
                self.fail("expected * after *: any event is *:*")
            self.at += 1
            return MatchAll()
        field = _Named(ESCAPED.sub(r"\1", name), start)
        if SPACE.match(self.text, self.at).end() == len(self.text):  # type: ignore[union-attr]  # it always matches
            self.fail(f"expected a word, a phrase or a range after {name}:")
        self.skip()
        first = self.text[self.at]
        if first == "(":
            return self.group(field)
        if first == '"':
            return self.phrase(field)
        if first in "[{":
            return self.range(field)
        if self.sees(COMPARISON):
            return self.comparison(field)
        if (joined := JOINED.match(self.text, self.at)) is not None:
            self.fail(f"{joined[0]} stands before a field: {joined[0]} {name}:…; a backslash makes it a word")
        if re.compile(r"\*(?=[\s)]|$)").match(self.text, self.at):
            self.at += 1
            return _condition(field, "exists", start)
        return self.word(field, VALUE)

    def group(self, field: _Named | None) -> Query:
        opened = self.at
        self.at += 1
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.fail(f"a search has at most {DEPTH_MAX} levels")
        query = self.any_of(field)
        self.skip()
        if not self.text.startswith(")", self.at):
            if self.at < len(self.text):
                self.fail(f"expected ) and not {self.text[self.at]!r}")
            self.fail("this ( is not closed", opened)
        self.at += 1
        self.depth -= 1
        return query

    def phrase(self, field: _Named | None) -> Query:
        start, found = self.at, QUOTED.match(self.text, self.at)
        if found is None:
            self.fail('this " is not closed')
        self.at = found.end()
        if field is None and self.text.startswith(":", self.at):
            self.fail(r"a field stands without quotes, and a blank in its name after a backslash: net\ price:5", start)
        self.no_suffix()
        return _condition(field, "phrase", start, text=ESCAPED.sub(r"\1", found[1]))

    def word(self, field: _Named | None, what: re.Pattern[str]) -> Query:
        start, found = self.at, what.match(self.text, self.at)
        if found is None:
            if start == len(self.text):
                self.fail("expected a condition here")
            self.fail(f"unexpected {self.text[start]!r}; a backslash before it takes its meaning away")
        raw = found[0]
        self.no_slip(field, raw, start)
        wildcard = UNESCAPED_WILDCARD.match(raw)
        is_prefix = wildcard is not None and wildcard.end() == len(raw) and wildcard[1] == "*"
        if wildcard is not None and not is_prefix:
            self.fail("only one * at the end of a word is possible: berl*", start + wildcard.start(1))
        self.at = found.end()
        self.no_suffix()
        if is_prefix:
            raw = raw[:-1]
            if not raw:
                self.fail("* alone needs a field (price:*), or is *:*, any event", start)
        text = ESCAPED.sub(r"\1", raw)
        return _condition(field, "prefix" if is_prefix else "term", start, text=text)

    def no_slip(self, field: _Named | None, raw: str, start: int) -> None:
        """What other languages write so would be words here, and match what nobody meant."""
        if field is None and COMPARISON.fullmatch(raw) is not None:
            self.fail("a comparison stands after a field and a colon: price:<900", start)
        if field is None and (slip := COMPARED.match(raw)) is not None:
            name, sign, value = slip.groups()
            what = "a value" if sign == "=" else "a comparison"
            meant = f"{name}:{sign.removeprefix('=')}{value}"
            self.fail(f"a colon stands before {what}: {meant}; a backslash makes it a word", start + slip.start(2))
        if field is not None and NEGATED.match(raw) is not None:
            meant = f"-{field.name}:{raw[1:]}"
            self.fail(f"a negation stands before the field: {meant}; a backslash makes it a word", start)

    def comparison(self, field: _Named) -> Query:
        start = self.at
        sign = COMPARISON.match(self.text, start)
        assert sign is not None
        self.at = sign.end()
        bound = self.bound(sign[0].endswith("="))
        if bound is None:
            self.fail("expected a value after the comparison", sign.end())
        low = sign[0].startswith(">")
        return _condition(field, "range", start, **{"low" if low else "high": bound})

    def range(self, field: _Named) -> Query:
        start = self.at
        self.at += 1
        low = self.bound(self.text[start] == "[")
        self.skip()
        if not self.take(TO):
            self.fail("expected TO between the ends of a range: [0 TO 900]")
        high = self.bound(True)
        self.skip()
        if not self.text.startswith(("]", "}"), self.at):
            self.fail(
                "expected ] or } at the end of the range" if self.at < len(self.text) else "the range is not closed"
            )
        if high is not None:
            high = Bound(high.value, self.text[self.at] == "]", high.place)
        self.at += 1
        if low is None and high is None:
            self.fail("a range has at least one end; price:* asks whether there is a value", start)
        return _condition(field, "range", start, low=low, high=high)

    def bound(self, included: bool) -> Bound | None:
        """None where a star stands for no bound."""
        self.skip()
        found = BOUND.match(self.text, self.at)
        if found is None:
            self.fail("expected a value")
        # A comparison may end a group.
        raw = found[1] if found[1] is not None else found[2].rstrip(")")
        if not raw:
            self.fail("expected a value")
        start = self.at
        self.at = start + len(raw) if found[1] is None else found.end()
        return None if found[0] == "*" else Bound(ESCAPED.sub(r"\1", raw), included, start)

    # ---- characters ------------------------------------------------------------------------------------------------

    def skip(self) -> None:
        self.at = SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # it always matches

    def sees(self, what: re.Pattern[str]) -> bool:
        self.skip()
        return what.match(self.text, self.at) is not None

    def take(self, what: re.Pattern[str]) -> bool:
        self.skip()
        found = what.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found is not None

    def ends(self) -> bool:
        self.skip()
        return self.at == len(self.text) or self.text[self.at] == ")"

    def no_suffix(self) -> None:
        if self.text.startswith(("~", "^"), self.at):
            self.fail("neither similar words (~) nor weights (^) are possible: an event matches or does not")

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        raise SearchError(problem, self.at if at is None else at, self.text)
