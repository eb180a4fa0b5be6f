"""The PATTERN of a row pattern: a tree, and the parser of its text.

    pattern  = sequence { "|" sequence }
    sequence = { part }
    part     = primary [ quantifier ]
    primary  = name | "(" [ pattern ] ")" | "PERMUTE" "(" pattern { "," pattern } ")" | "{-" pattern "-}" | "^" | "$"
    quantifier = ( "*" | "+" | "?" | "{" n "}" | "{" [ n ] "," [ m ] "}" ) [ "?" ]

The order of alternatives is their order of preference: the first of ``A | B``, one more round of a greedy loop before
leaving it, the other way round for a reluctant one. Names of variables do not distinguish case.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.errors import UsageError
from headrace.spark.arguments import pointed_at

__all__ = [
    "DEPTH_MAX",
    "REPEAT_MAX",
    "Absence",
    "Anchor",
    "Choice",
    "Contiguity",
    "Exclusion",
    "Node",
    "PatternSyntaxError",
    "Repeat",
    "Sequence",
    "Variable",
    "parse_pattern",
    "variables_of",
]

REPEAT_MAX = 1000
"""A counted loop is unrolled, so its bounds are limited."""
PERMUTE_MAX = 6
"""PERMUTE of n parts is n! sequences."""
DEPTH_MAX = 50
"""Groups in groups. Reading one takes some calls."""

Contiguity = Literal["next", "followed", "any"]
"""How a row follows the one before it: at once, after rows that do not match, or after any rows."""


class PatternSyntaxError(UsageError):
    """A text that is no pattern, with the place where that shows."""

    def __init__(self, text: str, at: int, problem: str) -> None:
        super().__init__(f"{problem}\n{pointed_at(text, at)}")
        self.at = at


@dataclass(frozen=True, slots=True)
class Variable:
    """One row for which the variable's condition is true."""

    name: str
    contiguity: Contiguity = "next"
    forbidden: tuple[str, ...] = ()
    """Variables that no row between the last one and this one may match."""
    until: tuple[str, ...] = ()
    """Variables that end the waiting for this row without ending the match: the stop condition of a loop."""


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    least: int
    most: int | None
    greedy: bool = True


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Rows that are matched and not given out with ALL ROWS PER MATCH."""

    part: Node


@dataclass(frozen=True, slots=True)
class Anchor:
    """The first row of the partition, or the place after the last."""

    at: Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Absence:
    """Nothing is consumed. ``next``: the next row does not match the variable. Otherwise no row does, until the time
    of the whole pattern is over."""

    name: str
    contiguity: Literal["next", "followed"]


Node = Variable | Sequence | Choice | Repeat | Exclusion | Anchor | Absence

TOKEN = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*|`[^`]+`|\"[^\"]+\")|(?P<number>\d+)|(?P<mark>\{-|-\}|[(){}|*+?,^$]))")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    """Recursive descent over the tokens of ``text[start:end]``; positions count from the start of the whole text."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text = text
        self.end = end
        self.tokens = list(self._tokens(start, end))
        self.index = 0
        self.depth = 0

    def _tokens(self, start: int, end: int) -> Iterator[_Token]:
        at = start
        while self.text[at:end].strip():
            found = TOKEN.match(self.text, at, end)
            if found is None:
                at += len(self.text[at:end]) - len(self.text[at:end].lstrip())
                raise PatternSyntaxError(
                    self.text,
                    at,
                    f"{self.text[at]!r} means nothing in a pattern; expected a variable, ( or a quantifier",
                )
            kind = str(found.lastgroup)
            yield _Token(kind, found.group(kind), found.start(kind))
            at = found.end()

    def fail(self, expected: str) -> PatternSyntaxError:
        if self.index < len(self.tokens):
            token = self.tokens[self.index]
            return PatternSyntaxError(self.text, token.at, f"{token.text!r} was not expected here; expected {expected}")
        return PatternSyntaxError(self.text, self.end, f"the pattern ends too early; expected {expected}")

    def peek(self, mark: str) -> bool:
        return self.index < len(self.tokens) and self.tokens[self.index].text == mark

    def take(self, mark: str) -> bool:
        found = self.peek(mark)
        self.index += found
        return found

    def expect(self, mark: str, expected: str | None = None) -> None:
        if not self.take(mark):
            raise self.fail(expected or repr(mark))

    def whole(self) -> Node:
        found = self.choice()
        if self.index < len(self.tokens):
            raise self.fail("a variable, a group, | or the end")
        return found

    def choice(self) -> Node:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            problem = f"groups stand inside each other {DEPTH_MAX} times at most"
            raise PatternSyntaxError(self.text, self.tokens[self.index - 1].at, problem)
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
            if options[-1] == Sequence(()):
                raise self.fail("a variable or a group after |")
        self.depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.index < len(self.tokens) and self.tokens[self.index].text not in ("|", ")", "-}", ","):
            parts.append(self.part())
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def part(self) -> Node:
        primary = self.primary()
        bounds = self.quantifier()
        if bounds is None:
            return primary
        least, most = bounds
        return Repeat(primary, least, most, greedy=not self.take("?"))

    def primary(self) -> Node:
        if self.index >= len(self.tokens):
            raise self.fail("a variable")
        token = self.tokens[self.index]
        if token.kind == "name":
            self.index += 1
            if token.text.upper() == "PERMUTE":
                self.expect("(", "( after PERMUTE")
                return self.permute(token)
            return Variable(token.text.strip('`"').upper())
        if self.take("("):
            inside = self.choice()
            self.expect(")")
            return inside
        if self.take("{-"):
            inside = self.choice()
            self.expect("-}")
            return Exclusion(inside)
        if self.take("^"):
            return Anchor("start")
        if self.take("$"):
            return Anchor("end")
        raise self.fail("a variable, ( , {- , ^ or $")

    def permute(self, token: _Token) -> Node:
        parts = [self.choice()]
        while self.take(","):
            parts.append(self.choice())
        self.expect(")", "',' or ')'")
        if len(parts) > PERMUTE_MAX:
            problem = f"PERMUTE of {len(parts)} parts would be too many sequences; at most {PERMUTE_MAX} parts"
            raise PatternSyntaxError(self.text, token.at, problem)
        return Choice(tuple(Sequence(each) for each in itertools.permutations(parts)))

    def quantifier(self) -> tuple[int, int | None] | None:
        if self.take("*"):
            return 0, None
        if self.take("+"):
            return 1, None
        if self.take("?"):
            return 0, 1
        if not self.take("{"):
            return None
        opened = self.tokens[self.index - 1]
        least = self.number()
        if self.take(","):
            most = self.number()
        elif least is not None:
            most = least
        else:
            raise self.fail("a number or ','")
        self.expect("}")
        if most is not None and (most < (least or 0) or most == 0):
            given = self.text[opened.at : self.tokens[self.index - 1].at + 1]
            raise PatternSyntaxError(self.text, opened.at, f"{given} allows no number of rows")
        return least or 0, most

    def number(self) -> int | None:
        if self.index >= len(self.tokens) or self.tokens[self.index].kind != "number":
            return None
        token = self.tokens[self.index]
        self.index += 1
        if len(token.text.lstrip("0")) > len(str(REPEAT_MAX)) or int(token.text) > REPEAT_MAX:
            raise PatternSyntaxError(
                self.text, token.at, f"{token.text} repetitions are too many; at most {REPEAT_MAX}"
            )
        return int(token.text)


def parse_pattern(text: str, start: int = 0, end: int | None = None) -> Node:
    """The tree of ``text[start:end]``; errors point into the whole text."""
    return _Parser(text, start, len(text) if end is None else end).whole()


def variables_of(node: Node) -> list[str]:
    """The names of all variables, in the order of the pattern, each once."""
    return list(dict.fromkeys(_names(node)))


def _names(node: Node) -> Iterator[str]:
    match node:
        case Variable(name=name, forbidden=forbidden, until=until):
            yield from (name, *forbidden, *until)
        case Absence(name=name):
            yield name
        case Sequence(parts=parts):
            for each in parts:
                yield from _names(each)
        case Choice(options=options):
            for each in options:
                yield from _names(each)
        case Repeat(part=part) | Exclusion(part=part):
            yield from _names(part)
