"""Patterns made by functions: ``hr.pattern("a").where(…).followed_by("b").within("5 minutes")``.

Every combination of rows that satisfies the pattern is a match, as in Flink's CEP, unless ``after_match`` says what a
match ends. A part follows the one before it in one of three ways:

    next             the very next row
    followed_by      the next row that matches; rows between are passed over
    followed_by_any  that row, and also every later one that matches

Rows of a loop follow each other as with ``followed_by``, unless ``consecutive`` or ``allow_combinations`` is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column

from headrace.errors import UsageError
from headrace.spark.arguments import duration_of, micros_of
from headrace.spark.patterns.automaton import ACCEPT, Automaton, compile_pattern
from headrace.spark.patterns.conditions import Expression, registers_of
from headrace.spark.patterns.skipping import Skip
from headrace.spark.patterns.syntax import DEPTH_MAX, Absence, Contiguity, Node, Repeat, Variable
from headrace.spark.patterns.syntax import Sequence as InOrder

__all__ = ["UNTIL", "Part", "Pattern", "fluent_automaton", "pattern", "refuse_conditions"]

UNTIL = "__UNTIL"


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a pattern: rows of one variable, or a group, or something that must not come."""

    name: str
    group: Pattern | None = None
    contiguity: Contiguity = "next"
    absent: bool = False
    least: int = 1
    most: int | None = 1
    optional: bool = False
    inner: Contiguity = "followed"
    conditions: tuple[str | Column, ...] = ()
    until: str | Column | None = None

    @property
    def loops(self) -> bool:
        return (self.least, self.most) != (1, 1)

    def as_document(self) -> dict[str, Any]:
        """What differs from a part that says nothing."""
        for each in (*self.conditions, self.until):
            if isinstance(each, Column):
                raise UsageError(f"{self.name}: a condition that is a Column cannot be stored", "write it as text")
        found: dict[str, Any] = {"name": self.name} if self.group is None else {"group": self.group.as_document()}
        said = {
            "follows": self.contiguity if self.contiguity != "next" else None,
            "absent": self.absent or None,
            "times": [self.least, self.most] if self.loops else None,
            "optional": self.optional or None,
            "loop": self.inner if self.inner != "followed" else None,
            "where": list(self.conditions) or None,
            "until": self.until,
        }
        return found | {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern. Every method returns a new one; those about a part speak of the last."""

    parts: tuple[Part, ...]
    within_us: int | None = None
    after: Skip = field(default_factory=lambda: Skip("none"))

    # ---- what follows ----------------------------------------------------------------------------------------------

    def next(self, part: str | Pattern) -> Pattern:
        """The very next row matches."""
        return self._then(part, "next")

    def followed_by(self, part: str | Pattern) -> Pattern:
        """The next row that matches; rows between are passed over."""
        return self._then(part, "followed")

    def followed_by_any(self, part: str | Pattern) -> Pattern:
        """Any later row that matches, each of them in a match."""
        return self._then(part, "any")

    def not_next(self, name: str) -> Pattern:
        """The very next row does not match."""
        return self._add(Part(_named(name), contiguity="next", absent=True))

    def not_followed_by(self, name: str) -> Pattern:
        """No row before the next part matches; at the end of a pattern, no row until its time is over."""
        return self._add(Part(_named(name), contiguity="followed", absent=True))

    # ---- about the last part ---------------------------------------------------------------------------------------

    def where(self, condition: str | Column) -> Pattern:
        """What a row has to satisfy. Several conditions all have to hold.

        A text may speak of rows that were matched before: ``price > LAST(a.price)``, ``amount > 3 * AVG(a.amount)``.
        """
        last = self.parts[-1]
        _check_condition("where", condition)
        if last.group is not None:
            raise UsageError("a group has no condition", "give the conditions to its parts")
        return self._last(conditions=(*last.conditions, condition))

    def times(self, least: int, most: int | None = None) -> Pattern:
        """This many rows; with two numbers, at least and at most so many."""
        upper = least if most is None else most
        if type(least) is not int or type(upper) is not int or not 1 <= least <= upper:
            raise UsageError(f"times({least!r}, {upper!r}) allows no number of rows", "times(2) or times(2, 5)")
        return self._last(least=least, most=upper)

    def times_or_more(self, least: int) -> Pattern:
        if type(least) is not int or least < 1:
            raise UsageError(
                f"times_or_more({least!r}) allows no number of rows", "at least 1; with optional() a part may be absent"
            )
        return self._last(least=least, most=None)

    def one_or_more(self) -> Pattern:
        return self.times_or_more(1)

    def optional(self) -> Pattern:
        """The part may be absent."""
        return self._last(optional=True)

    def consecutive(self) -> Pattern:
        """Rows of the loop follow each other at once."""
        return self._last(inner="next")

    def allow_combinations(self) -> Pattern:
        """Rows of the loop may leave out others that match."""
        return self._last(inner="any")

    def until(self, condition: str | Column) -> Pattern:
        """The loop takes no row from the first one on for which this holds."""
        if not self.parts[-1].loops:
            raise UsageError("until() is for loops", "say one_or_more() or times_or_more(n) first")
        if self.parts[-1].group is not None:
            raise UsageError("a loop of groups has no until()", "give it to a loop of one part")
        if self.parts[-1].until is not None:
            raise UsageError(f"{self.parts[-1].name} has an until() already", "until(\"kind = 'stop' OR amount > 10\")")
        _check_condition("until", condition)
        return self._last(until=condition)

    # ---- about the whole -------------------------------------------------------------------------------------------

    def within(self, duration: str) -> Pattern:
        """The last row is less than this after the first."""
        return replace(self, within_us=micros_of(duration, "within"))

    def after_match(self, skip: str, variable: str | None = None) -> Pattern:
        """What a match ends. ``none``: nothing, the default. ``next``: all others with its first row. ``past_last``:
        all that began before its end. ``to_first`` and ``to_last``: all that began before that row of the variable."""
        if skip in ("to_first", "to_last") and variable is not None:
            return replace(self, after=Skip("first" if skip == "to_first" else "last", frozenset({variable.upper()})))
        if skip not in ("none", "next", "past_last") or variable is not None:
            raise UsageError(
                f"after_match({skip!r}, {variable!r}) is not known",
                "'none', 'next', 'past_last', or 'to_first' and 'to_last' with a variable",
            )
        return replace(self, after=Skip(skip))  # type: ignore[arg-type]  # one of those that were just checked

    def to_json(self) -> str:
        """A text that ``hr.match_patterns`` reads. Conditions have to be texts, not Columns."""
        return json.dumps(self.as_document(), ensure_ascii=False)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def as_document(self) -> dict[str, Any]:
        found: dict[str, Any] = {"parts": [each.as_document() for each in self.parts]}
        if self.within_us is not None:
            found["within"] = duration_of(self.within_us)
        if self.after.to in ("first", "last"):
            found["after_match"] = [f"to_{self.after.to}", *self.after.variables]
        elif self.after.to != "none":
            found["after_match"] = [self.after.to]
        return found

    def _add(self, part: Part) -> Pattern:
        return replace(self, parts=(*self.parts, part))

    def _then(self, part: str | Pattern, contiguity: Contiguity) -> Pattern:
        if isinstance(part, Pattern):
            part.check_group()
            if part.depth() >= DEPTH_MAX:
                raise UsageError(
                    f"groups stand inside each other {DEPTH_MAX} times at most",
                    "parts that follow each other need none",
                )
            return self._add(Part("group", group=part, contiguity=contiguity))
        return self._add(Part(_named(part), contiguity=contiguity))

    def _last(self, **changes: object) -> Pattern:
        last = self.parts[-1]
        if last.absent and set(changes) != {"conditions"}:
            raise UsageError(f"{last.name} must not come, so it has a condition and nothing else")
        return replace(self, parts=(*self.parts[:-1], replace(last, **changes)))  # type: ignore[arg-type]

    def depth(self) -> int:
        """How many groups stand inside each other, this one included."""
        return 1 + max((each.group.depth() for each in self.parts if each.group is not None), default=0)

    def names(self) -> list[str]:
        """The variables, in order; a name may stand once."""
        found: list[str] = []
        for each in self.parts:
            found += each.group.names() if each.group is not None else [each.name]
        return found

    def conditions(self) -> dict[str, tuple[str | Column, ...]]:
        found: dict[str, tuple[str | Column, ...]] = {}
        for each in self.parts:
            if each.group is not None:
                found |= each.group.conditions()
            else:
                found[each.name.upper()] = each.conditions
            if each.until is not None:
                found[each.name.upper() + UNTIL] = (each.until,)
        return found

    def check_group(self) -> None:
        """Refuse what is said of a whole pattern, or waits for its end, in one that is a part of another."""
        if self.within_us is not None or self.after.to != "none":
            raise UsageError("a group has no within() and no after_match()", "say them of the whole pattern")
        if self.parts[-1].absent and self.parts[-1].contiguity == "followed":
            raise UsageError("a group cannot end with not_followed_by", "say it after the group")

    def node(self, first: Contiguity = "next", forbidden: tuple[str, ...] = ()) -> Node:
        """``forbidden``: what must not come before the first row."""
        nodes: list[Node] = []
        for number, part in enumerate(self.parts):
            name = part.name.upper()
            if part.absent and part.contiguity == "next":
                nodes.append(Absence(name, "next"))
            elif part.absent:
                forbidden = (*forbidden, name)
            else:
                nodes.append(_node(part, first if number == 0 else part.contiguity, forbidden))
                forbidden = ()
        if forbidden:
            if self.within_us is None:
                raise UsageError("a pattern that ends with not_followed_by needs within()", 'within("10 minutes"), say')
            nodes += [Absence(each, "followed") for each in forbidden]
        return InOrder(tuple(nodes))


def _node(part: Part, contiguity: Contiguity, forbidden: tuple[str, ...]) -> Node:
    until = (part.name.upper() + UNTIL,) if part.until is not None else ()

    def one(how: Contiguity, no: tuple[str, ...], stop: tuple[str, ...]) -> Node:
        if part.group is not None:
            return part.group.node(how, no)
        return Variable(part.name.upper(), how, no, stop)

    if forbidden and contiguity == "next":
        raise UsageError(f"between not_followed_by and next({part.name!r}) there is no row", "say not_next instead")
    if forbidden and part.optional:
        names = ", ".join(each.lower() for each in forbidden)
        raise UsageError(
            f"{names} must not come before a part that may be absent, so it is not clear until when",
            "let a part follow not_followed_by that is not optional()",
        )
    node = one(contiguity, forbidden, ())
    if part.loops:
        again = one(part.inner, (), until)
        most = None if part.most is None else part.most - 1
        rest: list[Node] = [] if most == 0 else [Repeat(again, part.least - 1, most)]
        node = InOrder((node, *rest))
    return Repeat(node, 0, 1) if part.optional else node


def pattern(name: str) -> Pattern:
    """The beginning of a pattern: its first row, under a name."""
    return Pattern((Part(_named(name)),))


def _check_condition(function: str, condition: object) -> None:
    if not isinstance(condition, str | Column):
        raise UsageError(f"{function}() takes text or a Column, not {condition!r}", f'{function}("amount > 10")')
    if isinstance(condition, str) and not condition.strip():
        raise UsageError(f"{function}() was given an empty text", f'{function}("amount > 10")')


def _named(name: object) -> str:
    if isinstance(name, Pattern):
        raise UsageError("what must not come is one row, not a group", 'not_followed_by("b").where("amount > 10")')
    if not isinstance(name, str) or not name:
        raise UsageError(f"the name of a part is {name!r}, which is no name", 'hr.pattern("a").followed_by("b")')
    return name


def fluent_automaton(name: str, pattern: Pattern) -> tuple[Automaton, dict[str, str]]:
    """The automaton of a pattern, and by variable its name as the user wrote it."""
    labels = {each.upper(): each for each in pattern.names()}
    if len(labels) < len(pattern.names()):
        raise UsageError(f"{name}: a variable stands twice in {', '.join(pattern.names())}", "give each its own name")
    unknown = pattern.after.variables - set(labels)
    if unknown:
        raise UsageError(f"{name}: after_match speaks of {', '.join(unknown)}, which is not in the pattern")
    automaton = compile_pattern(pattern.node())
    if any(each.state != ACCEPT and automaton.states[each.state].kind.startswith("absent") for each in automaton.start):
        raise UsageError(
            f"{name}: something must not come after parts that may all be absent", "leave out an optional()"
        )
    return automaton, labels


def refuse_conditions(name: str, pattern: Pattern, automaton: Automaton, conditions: Mapping[str, Expression]) -> None:
    """What must not come, or ends a loop, is judged by the row alone: rows are found by it without being tested. And
    no condition speaks of rows that cannot be there yet."""
    for state in automaton.states:
        alone = {*state.forbidden, *state.until, *([state.variable] if state.kind.startswith("absent") else [])}
        wrong = sorted(alone & set(conditions))
        if wrong:
            raise UsageError(
                f"{name}: the condition of {wrong[0].removesuffix(UNTIL).lower()} speaks of rows matched before",
                "the condition of what must not come, or of what ends a loop, can use its row only",
            )
    if any(each.group is not None for each in pattern.parts):
        return  # in a loop of groups a later part may have had rows in the round before
    there: set[str] = set()
    for part in pattern.parts:
        there |= set() if part.absent else {part.name.upper()}
        condition = conditions.get(part.name.upper())
        for register in set() if condition is None else registers_of(condition):
            if register.variables is not None and not register.variables & there:
                raise UsageError(
                    f"{name}: the condition of {part.name} speaks of {', '.join(register.variables).lower()}, "
                    f"which has no row by then",
                    "give the condition to the later of the two parts",
                )
