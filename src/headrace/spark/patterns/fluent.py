"""Patterns made by functions: ``hr.pattern("a").where(…).followed_by("b").within("5 minutes")``, and ``hr.match``.

Every combination of rows that satisfies the pattern is a match, as in Flink's CEP, unless ``after_match`` says what a
match ends. A part follows the one before it in one of three ways:

    next             the very next row
    followed_by      the next row that matches; rows between are passed over
    followed_by_any  that row, and also every later one that matches

Rows of a loop follow each other as with ``followed_by``, unless ``consecutive`` or ``allow_combinations`` is said.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import StructType

from headrace.errors import UsageError
from headrace.spark.arguments import duration_of, micros_of, names_of, plain_columns, time_column, without_weights
from headrace.spark.patterns.automaton import ACCEPT, Automaton, compile_pattern
from headrace.spark.patterns.clauses import Piece
from headrace.spark.patterns.condition_types import check_conditions
from headrace.spark.patterns.conditions import Expression
from headrace.spark.patterns.expressions import Columns, Reader
from headrace.spark.patterns.measures import Atom
from headrace.spark.patterns.names import hashable, refuse_reserved, refuse_twice, resolved
from headrace.spark.patterns.operator import EVENTS, LATE, MASK_BITS, MATCH_FIELDS, MatchPatterns
from headrace.spark.patterns.overflow import Overflow
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.recognize import (
    PARTIALS_MAX,
    PLACE,
    Late,
    check_choices,
    mask_name,
    match_id,
    prepare,
)
from headrace.spark.patterns.skipping import Skip
from headrace.spark.patterns.syntax import Absence, Contiguity, Node, Repeat, Variable
from headrace.spark.patterns.syntax import Sequence as InOrder
from headrace.spark.state.kernel import BUCKETS, apply_operator, arrow_schema, key_type

__all__ = [
    "UNTIL",
    "Part",
    "Pattern",
    "fluent_automaton",
    "fluent_plan",
    "match",
    "pattern",
    "refuse_conditions",
    "refuse_names",
    "with_events",
]

AfterMatch = Literal["none", "past_last", "next"]
UNTIL = "__UNTIL"
RESULT = ("pattern", "match_id", "match_start", "match_end")
"""What the result says of every match."""


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
        if not isinstance(condition, str | Column):
            raise UsageError(f"where() takes text or a Column, not {condition!r}", 'where("amount > 10")')
        if isinstance(condition, str) and not condition.strip():
            raise UsageError("where() was given an empty text", 'where("amount > 10")')
        if last.group is not None:
            raise UsageError("a group has no condition", "give the conditions to its parts")
        return self._last(conditions=(*last.conditions, condition))

    def times(self, least: int, most: int | None = None) -> Pattern:
        """So many rows; with two numbers, from so many to so many."""
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
            return self._add(Part("group", group=part, contiguity=contiguity))
        return self._add(Part(_named(part), contiguity=contiguity))

    def _last(self, **changes: object) -> Pattern:
        last = self.parts[-1]
        if last.absent and set(changes) != {"conditions"}:
            raise UsageError(f"{last.name} must not come, so it has a condition and nothing else")
        return replace(self, parts=(*self.parts[:-1], replace(last, **changes)))  # type: ignore[arg-type]

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


def _named(name: object) -> str:
    if isinstance(name, Pattern):
        raise UsageError("what must not come is one row, not a group", 'not_followed_by("b").where("amount > 10")')
    if not isinstance(name, str) or not name:
        raise UsageError(f"the name of a part is {name!r}, which is no name", 'hr.pattern("a").followed_by("b")')
    return name


def match(
    rows: DataFrame,
    patterns: Pattern | Mapping[str, Pattern],
    *,
    keys: str | Sequence[str],
    event_time: str,
    order: Sequence[str] = (),
    measures: Mapping[str, str] | None = None,
    timeouts: bool = False,
    unbounded: bool = False,
    partials_max: int = PARTIALS_MAX,
    overflow: Overflow = "fail",
    late: Late = "drop",
    buckets: int = BUCKETS,
    name: str | None = None,
) -> DataFrame:
    """The matches of one pattern, or of several with names, in one pass over the rows.

    Each is a row with the keys, ``pattern``, ``match_id`` (the same after a replay), ``match_start``, ``match_end`` and
    ``events``, the matched rows with their variables. With ``measures`` those expressions stand in the place of
    ``events``: ``{"spent": "SUM(b.amount)"}``. With ``timeouts=True`` partial matches whose time was over come too; the
    column ``timed_out`` is true for them. Rows of equal times are taken in the order of the columns in ``order``.
    ``overflow`` says what happens when a key has more than ``partials_max`` partial matches: "fail", "drop_oldest" or
    "drop_newest". ``late="side"`` also gives late rows, in the column ``late`` (see ``hr.split_late``).
    """
    without_weights(rows, MatchPatterns.name)
    several = _several(patterns)
    if measures is not None and (len(several) > 1 or timeouts):
        raise UsageError("measures are for one pattern without timeouts", "read events instead")
    names = [resolved(each, rows.columns, "among keys=") for each in names_of(keys)]
    event_time, *order = [resolved(each, rows.columns, "to order by") for each in (event_time, *order)]
    time = time_column(rows, event_time, "event_time")
    check_choices(overflow, late, partials_max)
    shown = [] if measures is not None else rows.columns
    side = rows.columns if late == "side" else []
    columns = Columns(coming=frozenset([*names, event_time, *order, *shown, *side]))
    limit = (partials_max, overflow)
    plans = {each: fluent_plan(each, of, columns, limit, timeouts, measures or {}) for each, of in several.items()}
    if rows.isStreaming and not unbounded:
        _refuse_endless(several)
    places = [(each, "ascending") for each in (event_time, *order)]
    refuse_names(names, [event_time, *order], shown, measures or {}, bool(side))
    prepared = prepare(rows, names, places, columns, [*shown, *side], overflow)
    if not side and all(_ignores_others(plan) for plan, _ in plans.values()):
        # Part of the condition is the time, so that Spark does not filter before the watermark is taken.
        prepared = prepared.where(F.when(F.col(f"`{time}`").isNotNull(), _any_holds(columns)).otherwise(False))
    schema = arrow_schema(prepared.schema)
    for plan, _ in plans.values():
        check_conditions(plan, schema)
    matching = MatchPatterns(
        rows=schema,
        keys=key_type(prepared, names),
        event_time=time,
        order=(*((each, "ascending") for each in order), (PLACE, "ascending")),
        place=PLACE,
        patterns=tuple(plan for plan, _ in plans.values()),
        given="events" if measures is None else "atoms",
        shown=tuple(shown),
        late=tuple(side) if side else None,
    )
    found = apply_operator(prepared, matching, keys=names, event_time=time, buckets=buckets, name=name)
    said = [F.col("match_start"), F.col("match_end"), *([F.col("timed_out")] if timeouts else [])]
    values = [F.col(EVENTS)] if measures is None else []
    values += [F.expr(sql).alias(each) for _, texts in plans.values() for each, sql in texts.items()]
    unique = match_id(names, ["_end_place", "match_end"] + (["timed_out"] if timeouts else []))
    identity = (unique if measures is not None else with_events(unique, rows.schema)).alias("match_id")
    return found.select(*plain_columns(names), "pattern", identity, *said, *values, *([LATE] if side else []))


def _several(patterns: object) -> dict[str, Pattern]:
    if isinstance(patterns, str):
        raise UsageError("match takes patterns made by functions", "match_recognize and match_patterns take text")
    several = {"match": patterns} if isinstance(patterns, Pattern) else patterns
    if not isinstance(several, Mapping) or not all(isinstance(each, Pattern) for each in several.values()):
        raise UsageError("match takes a pattern, or patterns by their names", '{"fraud": hr.pattern("a")…, …}')
    if not several:
        raise UsageError("there is no pattern to match", 'hr.pattern("a").where(…).followed_by("b")')
    return dict(several)


def _refuse_endless(patterns: Mapping[str, Pattern]) -> None:
    for name, wanted in patterns.items():
        if wanted.within_us is None:
            raise UsageError(
                f"{name}: on a stream a pattern without within() may wait for ever, and the rows that it waits with "
                f"are kept",
                'within("10 minutes"), or unbounded=True',
            )


def _any_holds(columns: Columns) -> Column:
    parts = sorted({bit // MASK_BITS for bit in columns.conditions.values()})
    return functools.reduce(operator.or_, (F.col(mask_name(part)) != 0 for part in parts))


def refuse_names(
    keys: Sequence[str], order: Sequence[str], shown: Sequence[str], measures: Mapping[str, str], side: bool
) -> None:
    refuse_reserved([*keys, *measures] if side else [], [LATE])
    refuse_reserved([*keys, *order, *shown], [])
    refuse_reserved(keys, [*(each.name for each in MATCH_FIELDS), EVENTS, "match_id"])
    refuse_reserved(shown, ["variable"])
    refuse_twice([*dict.fromkeys(keys), *RESULT, *measures])


def with_events(unique: Column, rows: StructType) -> Column:
    """Matches with the same first and last row differ in the rows between, which are part of the id."""
    events = F.col(EVENTS)
    named = [each.name for each in rows if hashable(each.dataType)]
    if len(named) < len(rows):
        events = F.transform(events, lambda each: F.struct(each["variable"], *(each[name] for name in named)))
    return F.md5(F.concat(unique, F.xxhash64(events).cast("string")))


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


def fluent_plan(
    name: str,
    pattern: Pattern,
    columns: Columns,
    limit: tuple[int, Overflow],
    timeouts: bool,
    measures: Mapping[str, str],
) -> tuple[PatternPlan, dict[str, str]]:
    automaton, labels = fluent_automaton(name, pattern)
    variables = {each: frozenset({each}) for each in labels}
    bits: dict[str, int] = {}
    conditions: dict[str, Expression] = {}
    for variable, given in pattern.conditions().items():
        bit, condition = _condition(variable, given, variables, columns)
        if bit is not None:
            bits[variable] = bit
        if condition is not None:
            conditions[variable] = condition
    atoms: dict[Atom, int] = {}
    texts = {
        each: Reader(sql, variables, columns).measure(Piece(sql, 0), atoms, False) for each, sql in measures.items()
    }
    if any(each.kind == "match_number" for each in atoms):
        raise UsageError(
            "matches made by functions have no MATCH_NUMBER()", "they come in the order of their completion"
        )
    refuse_conditions(name, automaton, conditions)
    plan = PatternPlan(
        name=name,
        text=repr(pattern),
        automaton=automaton,
        bits=bits,
        conditions=conditions,
        skip=pattern.after,
        one=False,
        within_us=pattern.within_us,
        atoms=tuple(atoms),
        runs_max=limit[0],
        overflow=limit[1],
        timeouts=timeouts,
        labels=labels,
    )
    return plan, texts


def _condition(
    variable: str, given: Sequence[str | Column], variables: Mapping[str, frozenset[str]], columns: Columns
) -> tuple[int | None, Expression | None]:
    """What a variable asks of a row alone, as a bit, and what it asks of rows that were matched before."""
    text = " AND ".join(f"({each})" for each in given if isinstance(each, str))
    alone, rest = Reader(text, variables, columns).split(variable, Piece(text, 0)) if text else (None, None)
    ready = [each for each in given if isinstance(each, Column)]
    if not ready:
        return None if alone is None else columns.bit(alone), rest
    if alone is not None:
        ready.append(F.expr(alone))
    key = f"{variable} {len(columns.conditions)}"
    columns.given[key] = functools.reduce(operator.and_, ready)
    return columns.bit(key), rest


def refuse_conditions(name: str, automaton: Automaton, conditions: Mapping[str, Expression]) -> None:
    """What must not come, or ends a loop, is judged by the row alone: rows are found by it without being tested."""
    for state in automaton.states:
        alone = {*state.forbidden, *state.until, *([state.variable] if state.kind.startswith("absent") else [])}
        wrong = sorted(alone & set(conditions))
        if wrong:
            raise UsageError(
                f"{name}: the condition of {wrong[0].removesuffix(UNTIL).lower()} speaks of rows matched before",
                "what must not come, and what ends a loop, can speak of its own row only",
            )


def _ignores_others(plan: PatternPlan) -> bool:
    """Whether rows that no variable can take make no difference, so that they need not reach the matcher."""
    later = {each.state for targets in plan.automaton.after for each in targets}
    seeks = all(
        state.kind.startswith("seek") or state.kind == "absent_end" or (state.kind == "row" and number not in later)
        for number, state in enumerate(plan.automaton.states)
    )
    asked = {name for each in plan.automaton.states for name in (each.variable, *each.forbidden, *each.until)}
    return seeks and asked <= set(plan.bits) and not any(offset for _, offset in plan.offsets())
