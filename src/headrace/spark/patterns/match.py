"""``hr.match``: the matches of patterns made by functions, on a DataFrame."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import StructType

from headrace.errors import UsageError
from headrace.spark.arguments import names_of, plain_columns, time_column, without_weights
from headrace.spark.patterns.clauses import Piece, without_comments
from headrace.spark.patterns.condition_types import check_conditions, check_order
from headrace.spark.patterns.conditions import Expression, all_of
from headrace.spark.patterns.expressions import Columns, Reader
from headrace.spark.patterns.fluent import Pattern, fluent_automaton, refuse_conditions
from headrace.spark.patterns.measures import Atom
from headrace.spark.patterns.mistakes import Written, pointing
from headrace.spark.patterns.names import hashable, null_places, refuse_reserved, refuse_twice, resolved
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
from headrace.spark.state.kernel import apply_operator, arrow_schema, key_type

__all__ = ["fluent_plan", "match", "refuse_names", "with_events", "written_by"]

RESULT = ("pattern", "match_id", "match_start", "match_end")
"""What the result says of every match."""


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
    buckets: int | None = None,
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
    limit, values_of = (partials_max, overflow), measures or {}
    plans = {each: fluent_plan(each, of, columns, limit, timeouts, values_of) for each, of in several.items()}
    if rows.isStreaming and not unbounded:
        _refuse_endless(several)
    refuse_names(names, [event_time, *order], shown, values_of, bool(side))
    with _pointing(rows, columns, several, plans, values_of):
        places = [(each, "ascending") for each in (event_time, *order)]
        prepared = prepare(rows, names, places, columns, [*shown, *side], overflow)
        if not side and all(_ignores_others(plan) for plan, _ in plans.values()):
            # Part of the condition is the time, so that Spark does not filter before the watermark is taken.
            prepared = prepared.where(F.when(F.col(f"`{time}`").isNotNull(), _any_holds(columns)).otherwise(False))
        schema = arrow_schema(prepared.schema)
        check_order(order, schema)
        for key, (plan, texts) in plans.items():
            with _pointing(rows, columns, several, {key: (plan, texts)}, {}):
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
        values = [F.col(EVENTS)] if measures is None else []
        values += [F.expr(sql).alias(each) for _, texts in plans.values() for each, sql in texts.items()]
        said = ["match_start", "match_end", *(["timed_out"] if timeouts else [])]
        unique = match_id(names, ["_end_place", *said[1:]])
        identity = (unique if measures is not None else with_events(unique, rows.schema)).alias("match_id")
        return found.select(*plain_columns(names), "pattern", identity, *said, *values, *([LATE] if side else []))


def _pointing(
    rows: DataFrame,
    columns: Columns,
    several: Mapping[str, Pattern],
    plans: Mapping[str, tuple[PatternPlan, dict[str, str]]],
    measures: Mapping[str, str],
) -> AbstractContextManager[None]:
    written = [each for key, (plan, _) in plans.items() for each in written_by(several[key], plan, measures)]
    return pointing(rows, columns, written, [each for plan, _ in plans.values() for each in plan.labels.values()])


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
    hashed = [each for each in rows if hashable(each.dataType)]

    def parts(event: Column) -> Column:
        columns = [(event[each.name], each.dataType) for each in hashed]
        return F.struct(event["variable"], *(column for column, _ in columns), *null_places(columns))

    return F.md5(F.concat(unique, F.xxhash64(F.transform(F.col(EVENTS), parts)).cast("string")))


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
    refuse_conditions(name, pattern, automaton, conditions)
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


def written_by(pattern: Pattern, plan: PatternPlan, measures: Mapping[str, str]) -> list[Written]:
    """Conditions and measures, each a separate text."""
    found = []
    for name, given in pattern.conditions().items():
        texts = [each for each in given if isinstance(each, str)] or [""]
        found += [Written(name, each, Piece(each, 0), plan.bits.get(name)) for each in texts]
    return found + [Written(name, text, Piece(text, 0)) for name, text in measures.items()]


def _condition(
    variable: str, given: Sequence[str | Column], variables: Mapping[str, frozenset[str]], columns: Columns
) -> tuple[int | None, Expression | None]:
    """What a variable asks of a row alone, as a bit, and what it asks of rows that were matched before."""
    texts = [without_comments(each) for each in given if isinstance(each, str)]
    halves = [Reader(each, variables, columns).split(variable, Piece(each, 0)) for each in texts]
    alone = " AND ".join(each for each, _ in halves if each is not None) or None
    rest = all_of([each for _, each in halves if each is not None])
    ready = [each for each in given if isinstance(each, Column)]
    if not ready:
        return None if alone is None else columns.bit(alone), rest
    if alone is not None:
        ready.append(F.expr(alone))
    key = f"{variable} {len(columns.conditions)}"
    columns.given[key] = functools.reduce(operator.and_, ready)
    return columns.bit(key), rest


def _ignores_others(plan: PatternPlan) -> bool:
    """Whether rows that no variable can take make no difference, so that they need not reach the matcher."""
    later = {each.state for targets in plan.automaton.after for each in targets}
    seeks = all(
        state.kind.startswith("seek") or state.kind == "absent_end" or (state.kind == "row" and number not in later)
        for number, state in enumerate(plan.automaton.states)
    )
    asked = {name for each in plan.automaton.states for name in (each.variable, *each.forbidden, *each.until)}
    return seeks and asked <= set(plan.bits) and not any(offset for _, offset in plan.offsets())
