"""Patterns that are rows of a table: a text becomes a plan in the worker, since Spark did not know it when it planned.

A text that begins with ``{`` is a pattern made by functions, as ``Pattern.to_json`` writes it:

    {"parts": [{"name": "a", "where": ["amount > 10"]}, {"name": "b", "follows": "followed", "times": [2, null]}],
     "within": "5 minutes", "after_match": ["past_last"]}

Any other text is SQL: ``PATTERN (A B+) WITHIN '5 minutes' DEFINE B AS B.price < A.price``, with AFTER MATCH SKIP and
SUBSET. Keys and order are those of the function that matches, so the text has none. All conditions are computed by
Arrow, with the functions that conditions on matched rows have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.errors import HeadraceError, UsageError
from headrace.spark.arguments import duration_of
from headrace.spark.patterns.automaton import ACCEPT, Automaton, compile_pattern
from headrace.spark.patterns.clauses import Piece, parse_clauses, without_comments
from headrace.spark.patterns.condition_types import check_conditions
from headrace.spark.patterns.conditions import Expression, all_of
from headrace.spark.patterns.expressions import Columns, Reader
from headrace.spark.patterns.fluent import Part, Pattern, fluent_automaton, refuse_conditions
from headrace.spark.patterns.names import resolved
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.syntax import PatternSyntaxError, variables_of

__all__ = ["TEXT_MAX", "Limits", "PatternProblem", "compile_stored", "pattern_of"]

TEXT_MAX = 20_000
"""Characters of a pattern."""
PARTS_MAX = 100
DEPTH_MAX = 8
"""Groups in groups."""
FIELDS = ("name", "group", "follows", "absent", "times", "optional", "loop", "where", "until")
CONTIGUITIES = ("next", "followed", "any")


class PatternProblem(UsageError):
    """A stored pattern that cannot be matched, and why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What every pattern has to keep to."""

    partials_max: int
    within_max_us: int | None = None
    timeouts: bool = False


class _RowColumns(Columns):
    """Columns as the rows have them; nothing is computed before."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self.names = schema.names

    def computes(self, node: exp.Expr) -> bool:
        return isinstance(node, exp.Column)

    def value(self, sql: str) -> str:
        name = sql.strip("`")
        if name not in self.names and not any(each.lower() == name.lower() for each in self.names):
            raise UsageError(
                f"{sql} is no column of the rows",
                f"the columns are {', '.join(self.names)}; FIRST, LAST, PREV, NEXT and aggregates take one of them",
            )
        return resolved(name, self.names, "in a condition")


def compile_stored(name: str, text: str | None, schema: pa.Schema, limits: Limits) -> PatternPlan:
    """The plan of a stored pattern over rows with these columns. Raises PatternProblem, whatever is wrong with it."""
    try:
        if text is None or not text.strip():
            raise UsageError("there is no text")
        if len(text) > TEXT_MAX:
            raise UsageError(f"{len(text)} characters are too many; at most {TEXT_MAX}")
        columns = _RowColumns(schema)
        make = _functions_plan if text.lstrip().startswith("{") else _sql_plan
        plan = make(name, text, columns, limits)
        _check(plan, schema, limits)
    except RecursionError:
        raise PatternProblem("the pattern is nested too deeply") from None
    except (HeadraceError, pa.ArrowException) as error:
        raise PatternProblem(str(error)) from None
    return plan


def _functions_plan(name: str, text: str, columns: Columns, limits: Limits) -> PatternPlan:
    pattern = pattern_of(text)
    automaton, labels = fluent_automaton(name, pattern)
    variables = {each: frozenset({each}) for each in labels}
    tested: dict[str, Expression] = {}
    conditions: dict[str, Expression] = {}
    for variable, given in pattern.conditions().items():
        texts = [without_comments(str(each)) for each in given]
        read = [Reader(each, variables, columns).trees(variable, Piece(each, 0)) for each in texts]
        alone = all_of([each for each, _ in read if each is not None])
        rest = all_of([each for _, each in read if each is not None])
        _place(variable, (alone, rest), tested, conditions)
    refuse_conditions(name, pattern, automaton, conditions)
    return PatternPlan(
        name=name,
        text=text,
        automaton=automaton,
        bits={},
        tested=tested,
        conditions=conditions,
        skip=pattern.after,
        one=False,
        within_us=pattern.within_us,
        runs_max=limits.partials_max,
        overflow="drop_oldest",
        timeouts=limits.timeouts,
        labels=labels,
    )


def _sql_plan(name: str, text: str, columns: Columns, limits: Limits) -> PatternPlan:
    clauses = parse_clauses(text, ordered=False)
    if clauses.partition or clauses.order or clauses.measures or clauses.rows == "all":
        raise UsageError(
            "a stored pattern has PATTERN, WITHIN, DEFINE, SUBSET and AFTER MATCH SKIP",
            "keys=, event_time= and order= say the rest; the result has the matched rows",
        )
    names = variables_of(clauses.pattern)
    variables = {each: frozenset({each}) for each in names}
    variables |= {each: frozenset(members) for each, members in clauses.subsets.items()}
    reader = Reader(clauses.text, variables, columns)
    tested: dict[str, Expression] = {}
    conditions: dict[str, Expression] = {}
    for variable, piece in clauses.define:
        if variable in tested or variable in conditions:
            raise PatternSyntaxError(clauses.text, piece.at, f"{variable} is defined twice")
        _place(variable, reader.trees(variable, piece), tested, conditions)
    return PatternPlan(
        name=name,
        text=clauses.text,
        automaton=compile_pattern(clauses.pattern),
        bits={},
        tested=tested,
        conditions=conditions,
        skip=clauses.skip,
        one=True,
        within_us=clauses.within_us,
        runs_max=limits.partials_max,
        overflow="drop_oldest",
    )


def _place(
    variable: str,
    read: tuple[Expression | None, Expression | None],
    tested: dict[str, Expression],
    conditions: dict[str, Expression],
) -> None:
    alone, rest = read
    if alone is not None:
        tested[variable] = alone
    if rest is not None:
        conditions[variable] = rest


# ---- what is refused -----------------------------------------------------------------------------------------------


def _check(plan: PatternPlan, schema: pa.Schema, limits: Limits) -> None:
    if plan.within_us is None:
        raise UsageError("a stored pattern needs a bound of time", 'WITHIN \'10 minutes\', or "within": "10 minutes"')
    if limits.within_max_us is not None and plan.within_us > limits.within_max_us:
        asked, most = duration_of(plan.within_us), duration_of(limits.within_max_us)
        raise UsageError(f"the pattern spans {asked}, and at most {most} are allowed")
    _check_automaton(plan.automaton)
    check_conditions(plan, schema, stored=True)


def _check_automaton(automaton: Automaton) -> None:
    if any(each.at_start or each.at_end for targets in (automaton.start, *automaton.after) for each in targets):
        raise UsageError("a stored pattern cannot ask for the first or last row of a key", "leave ^ and $ out")
    if any(each.state == ACCEPT for each in automaton.start):
        raise UsageError("the pattern matches without any row", "one part at least has to be there: A+ and not A*")


# ---- the form made by functions ------------------------------------------------------------------------------------


def pattern_of(text: str) -> Pattern:
    """A pattern that ``Pattern.to_json`` wrote."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise PatternSyntaxError(text, min(error.pos, len(text)), error.msg) from None
    except ValueError:  # Python refuses to read numbers of thousands of digits
        raise UsageError("a number in the pattern has too many digits") from None
    return _pattern(document, 0)


def _pattern(document: Any, depth: int) -> Pattern:
    _object(document, "a pattern", ("parts", "within", "after_match"))
    parts = document.get("parts")
    if not isinstance(parts, list) or not 1 <= len(parts) <= PARTS_MAX:
        raise UsageError(f"parts is a list of 1 to {PARTS_MAX} parts")
    if depth > DEPTH_MAX:
        raise UsageError(f"groups stand inside each other {DEPTH_MAX} times at most")
    found = Pattern(tuple(_part(each, depth) for each in parts))
    if found.parts[0].absent:
        raise UsageError("the first part of a pattern has to come", "absent parts stand after it")
    if "within" in document:
        found = found.within(_text(document["within"], "within"))
    after = document.get("after_match", [])
    if not isinstance(after, list) or len(after) > 2 or not all(isinstance(each, str) for each in after):
        raise UsageError(f"after_match={after!r} is not known", '["past_last"], ["next"], or ["to_last", "a"]')
    return found.after_match(*after) if after else found


def _part(document: Any, depth: int) -> Part:
    _object(document, "a part", FIELDS)
    if ("name" in document) == ("group" in document):
        raise UsageError("a part has a name or a group")
    group = _pattern(document["group"], depth + 1) if "group" in document else None
    if group is not None:
        group.check_group()
    follows, loop = (_one_of(document.get(each, default), each) for each, default in _CONTIGUITY_DEFAULTS)
    least, most = _times(document.get("times", [1, 1]))
    where = document.get("where", [])
    conditions = tuple(_text(each, "where") for each in where) if isinstance(where, list) else (_text(where, "where"),)
    until = _text(document["until"], "until") if "until" in document else None
    part = Part(
        _text(document["name"], "name") if group is None else "group",
        group=group,
        contiguity=follows,
        absent=_flag(document, "absent"),
        least=least,
        most=most,
        optional=_flag(document, "optional"),
        inner=loop,
        conditions=conditions,
        until=until,
    )
    if group is not None and (conditions or until):
        raise UsageError("a group has no condition", "give the conditions to its parts")
    if part.absent and (part.loops or part.optional or until or group is not None or follows == "any"):
        raise UsageError(f"{part.name} must not come, so it has a condition and nothing else")
    if until and not part.loops:
        raise UsageError(f"{part.name}: until is for loops", '"times": [1, null]')
    return part


_CONTIGUITY_DEFAULTS = (("follows", "next"), ("loop", "followed"))


def _object(document: Any, what: str, fields: tuple[str, ...]) -> None:
    if not isinstance(document, dict):
        raise UsageError(f"{what} is a JSON object, and this is {json.dumps(document)[:100]}")
    unknown = sorted(set(document) - set(fields))
    if unknown:
        raise UsageError(f"{what} has no {unknown[0]!r}", f"it has {', '.join(fields)}")


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{what}={value!r} is no text")
    return value


def _flag(document: dict[str, Any], name: str) -> bool:
    value = document.get(name, False)
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is neither true nor false")
    return value


def _one_of(value: Any, what: str) -> Any:
    if value not in CONTIGUITIES:
        raise UsageError(f"{what}={value!r} is none of {', '.join(CONTIGUITIES)}")
    return value


def _times(value: Any) -> tuple[int, int | None]:
    is_pair = isinstance(value, list) and len(value) == 2
    if not is_pair or type(value[0]) is not int or not (value[1] is None or type(value[1]) is int):
        raise UsageError(f"times={value!r} is not known", "[2, 5], or [2, null] for two or more")
    least, most = value
    if least < 1 or (most is not None and most < least):
        raise UsageError(f"times={value!r} allows no number of rows", "[2, 5], or [2, null] for two or more")
    return least, most
