"""``hr.match_recognize``: SQL's MATCH_RECOGNIZE as text, on a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them

from headrace.errors import UsageError
from headrace.spark.arguments import plain_columns, time_column, without_weights
from headrace.spark.patterns.automaton import Automaton, compile_pattern
from headrace.spark.patterns.clauses import Clauses, parse_clauses
from headrace.spark.patterns.condition_types import check_conditions, check_order
from headrace.spark.patterns.conditions import Expression
from headrace.spark.patterns.expressions import Columns, Reader
from headrace.spark.patterns.measures import Atom
from headrace.spark.patterns.mistakes import Written, pointing
from headrace.spark.patterns.names import hashable, null_places, refuse_reserved, refuse_twice, resolved
from headrace.spark.patterns.operator import GIVEN_UP, LATE, MASK, MASK_BITS, MATCH_FIELDS, MatchPatterns
from headrace.spark.patterns.overflow import Overflow
from headrace.spark.patterns.pattern_plan import PatternPlan
from headrace.spark.patterns.syntax import PatternSyntaxError, variables_of
from headrace.spark.state.kernel import apply_operator, arrow_schema, key_type

__all__ = [
    "PARTIALS_MAX",
    "PLACE",
    "Late",
    "check_choices",
    "mask_name",
    "match_id",
    "match_recognize",
    "prepare",
    "sql_plan",
    "written_in",
]

PARTIALS_MAX = 100_000
"""Partial matches of a key at one time."""
PLACE = "_place"
NO_KEY = "_all"
CONDITIONS_MAX = 32 * MASK_BITS
Late = Literal["drop", "side"]


def match_recognize(
    rows: DataFrame,
    text: str,
    *,
    unbounded: bool = False,
    partials_max: int = PARTIALS_MAX,
    overflow: Overflow = "fail",
    late: Late = "drop",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Matches of a row pattern, written as in SQL's MATCH_RECOGNIZE.

    The result has the columns of PARTITION BY and MEASURES, with ALL ROWS PER MATCH also those of the rows, and
    ``match_id``, which is the same after a replay. The first column of ORDER BY is the event time. On a stream the
    pattern needs WITHIN, or ``unbounded=True`` if the rows that a match may span are bounded by the data itself.
    ``overflow`` says what happens when a key has more than ``partials_max`` partial matches: "fail", "drop_oldest" or
    "drop_newest". ``late="side"`` also gives late rows, in the column ``late`` (see ``hr.split_late``).
    """
    clauses = parse_clauses(text)
    without_weights(rows, MatchPatterns.name)
    clauses = _resolved(clauses, rows.columns)
    automaton = compile_pattern(clauses.pattern)
    _decidable(rows, clauses, automaton, unbounded)
    check_choices(overflow, late, partials_max)
    shown = rows.columns if clauses.rows == "all" else []
    side = rows.columns if late == "side" else []
    columns = Columns(coming=frozenset([*clauses.partition, *(each for each, _ in clauses.order), *shown, *side]))
    plan, measures = sql_plan(clauses, automaton, columns, partials_max, name or "match_recognize", overflow)
    time = time_column(rows, clauses.order[0][0], "ORDER BY")
    keys = list(clauses.partition) or [NO_KEY]
    refuse_reserved([*clauses.partition, *(each for each, _ in clauses.order)], [])
    refuse_reserved([*clauses.partition, *shown], [each.name for each in MATCH_FIELDS])
    refuse_twice([*dict.fromkeys([*clauses.partition, *shown]), *(each for each, _ in clauses.measures), "match_id"])
    refuse_reserved([*clauses.partition, *(each for each, _ in clauses.measures), *shown] if side else [], [LATE])
    keyed = rows if clauses.partition else rows.withColumn(NO_KEY, F.lit(0))
    names = [*variables_of(clauses.pattern), *clauses.subsets]
    with pointing(rows, columns, written_in(clauses, plan), names):
        prepared = prepare(keyed, keys, clauses.order, columns, [*shown, *side], overflow)
        schema = arrow_schema(prepared.schema)
        check_order([each for each, _ in clauses.order[1:]], schema)
        check_conditions(plan, schema)
        operator = MatchPatterns(
            rows=schema,
            keys=key_type(prepared, keys),
            event_time=time,
            order=(*clauses.order[1:], (PLACE, "ascending")),
            place=PLACE,
            patterns=(plan,),
            given="rows" if clauses.rows == "all" else "atoms",
            shown=tuple(shown),
            empty=clauses.empty,
            unmatched=clauses.unmatched,
            numbered=any(each.kind == "match_number" for each in plan.atoms),
            anchored=any(each.at_start for each in automaton.start),
            late=tuple(side) if side else None,
        )
        matches = apply_operator(prepared, operator, keys=keys, event_time=time, buckets=buckets, name=name)
        values = [_of_match(F.expr(sql), clauses.unmatched).alias(measure) for measure, sql in measures.items()]
        identity = match_id(keys).alias("match_id")
        return matches.select(
            *plain_columns([*clauses.partition, *shown]), *values, identity, *([LATE] if side else [])
        )


def written_in(clauses: Clauses, plan: PatternPlan) -> list[Written]:
    """Conditions and measures, where they stand."""
    conditions = [Written(name, clauses.text, piece, plan.bits.get(name)) for name, piece in clauses.define]
    return conditions + [Written(name, clauses.text, piece) for name, piece in clauses.measures]


def _of_match(measure: Column, unmatched: bool) -> Column:
    """Rows without a match have no measures, not even one that is the same for all matches."""
    return F.when(F.col("pattern").isNotNull(), measure) if unmatched else measure


def check_choices(overflow: str, late: str, partials_max: int) -> None:
    if overflow not in ("fail", "drop_oldest", "drop_newest"):
        raise UsageError(f"overflow={overflow!r} is none of 'fail', 'drop_oldest', 'drop_newest'")
    if late not in ("drop", "side"):
        raise UsageError(f"late={late!r} is neither 'drop' nor 'side'")
    if type(partials_max) is not int:
        raise UsageError(f"partials_max={partials_max!r} is no whole number", "partials_max=1000")
    if partials_max < 1:
        raise UsageError(f"partials_max={partials_max} leaves no partial match", "1 or more")


def _resolved(clauses: Clauses, columns: Sequence[str]) -> Clauses:
    return replace(
        clauses,
        partition=tuple(resolved(each, columns, "to partition by") for each in clauses.partition),
        order=tuple((resolved(each, columns, "to order by"), way) for each, way in clauses.order),
    )


def match_id(keys: Sequence[str], also: Sequence[str] = ()) -> Column:
    """A text that is different for different matches of a pattern, and the same whenever a match is found again."""
    # Times as numbers: as text they would depend on the time zone of the session.
    start = F.unix_micros(F.col("match_start"))
    others = [F.unix_micros(F.col(each)) if each == "match_end" else F.col(each) for each in also]
    parts = [F.col("pattern"), *plain_columns(keys), start, F.col("_start_place"), *others]
    texts = [F.coalesce(each.cast("string"), F.lit("\u0000")) for each in parts]
    return F.when(F.col("pattern").isNotNull(), F.md5(F.concat_ws("\u0001", *texts)))


def prepare(
    rows: DataFrame,
    keys: Sequence[str],
    order: Sequence[tuple[str, str]],
    columns: Columns,
    shown: Sequence[str],
    overflow: Overflow = "fail",
) -> DataFrame:
    """The rows with what conditions and measures ask of them, and nothing else."""
    if len(columns.conditions) > CONDITIONS_MAX:
        raise UsageError(f"{len(columns.conditions)} conditions are too many; at most {CONDITIONS_MAX} at once")
    hashed = {each.name: each.dataType for each in rows.schema if hashable(each.dataType)}
    chosen = dict.fromkeys([*keys, *(name for name, _ in order), *shown])
    masks: dict[int, Column] = {}
    for sql, bit in columns.conditions.items():
        condition = columns.given[sql] if sql in columns.given else F.expr(sql)
        part, shift = divmod(bit, MASK_BITS)
        flag = F.when(condition, F.lit(1 << shift)).otherwise(F.lit(0)).cast("long")
        masks[part] = masks[part] + flag if part in masks else flag
    named = [mask.alias(mask_name(part)) for part, mask in masks.items()]
    if overflow == "drop_newest":
        named.append(F.array().cast("array<int>").alias(GIVEN_UP))
    values = [F.expr(sql).alias(name) for sql, name in columns.values.items()]
    parts = plain_columns(hashed)
    place = F.xxhash64(*parts, *null_places(list(zip(parts, hashed.values(), strict=True))))
    return rows.select(*plain_columns(chosen), *values, *named, place.alias(PLACE))


def mask_name(part: int) -> str:
    return f"{MASK}_{part}" if part else MASK


def _decidable(rows: DataFrame, clauses: Clauses, automaton: Automaton, unbounded: bool) -> None:
    """Refuse what a stream can never decide, or only with memory that grows without end."""
    if not rows.isStreaming:
        return
    if automaton.needs_end:
        problem = "a stream has no last row, so $ is never true; leave it out, or match a bounded DataFrame"
        raise PatternSyntaxError(
            clauses.text, clauses.text.index("$", clauses.text.index(clauses.pattern_text)), problem
        )
    if clauses.within_us is None and automaton.open_ended:
        raise UsageError(
            "the pattern ends with a greedy loop, so on a stream a match may grow without end",
            "add WITHIN, make the loop reluctant (A+?), or let a variable follow that ends it",
        )
    if clauses.within_us is None and not unbounded:
        raise UsageError(
            "on a stream a pattern without WITHIN may wait for ever, and the rows that it waits with are kept",
            "add WITHIN INTERVAL '10' MINUTE after PATTERN, or say unbounded=True",
        )


def sql_plan(
    clauses: Clauses,
    automaton: Automaton,
    columns: Columns,
    partials_max: int,
    name: str,
    overflow: Overflow = "fail",
) -> tuple[PatternPlan, dict[str, str]]:
    names = variables_of(clauses.pattern)
    variables = {each: frozenset({each}) for each in names}
    variables |= {each: frozenset(members) for each, members in clauses.subsets.items()}
    reader = Reader(clauses.text, variables, columns)
    bits: dict[str, int] = {}
    conditions: dict[str, Expression] = {}
    for variable, piece in clauses.define:
        if variable in bits or variable in conditions:
            raise PatternSyntaxError(clauses.text, piece.at, f"{variable} is defined twice")
        bit, condition = reader.condition(variable, piece)
        if bit is not None:
            bits[variable] = bit
        if condition is not None:
            conditions[variable] = condition
    atoms: dict[Atom, int] = {}
    per_row = clauses.rows == "all"
    measures = {measure: reader.measure(piece, atoms, per_row) for measure, piece in clauses.measures}
    plan = PatternPlan(
        name=name,
        text=clauses.text,
        automaton=automaton,
        bits=bits,
        conditions=conditions,
        skip=clauses.skip,
        one=True,
        within_us=clauses.within_us,
        atoms=tuple(atoms),
        runs_max=partials_max,
        overflow=overflow,
    )
    return plan, measures
