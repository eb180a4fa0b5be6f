"""Patterns that change while the query runs: ``hr.match_patterns`` and ``hr.check_pattern``."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import StringType, StructType

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of, names_of, plain_columns, time_column, without_weights
from headrace.spark.patterns.changing_operator import CHANGE, CHANGE_FIELDS, EVENT, TABLE, MatchChangingPatterns
from headrace.spark.patterns.condition_types import check_order
from headrace.spark.patterns.expressions import Columns
from headrace.spark.patterns.fluent import Pattern
from headrace.spark.patterns.match import refuse_names, with_events
from headrace.spark.patterns.names import refuse_reserved, resolved
from headrace.spark.patterns.operator import EVENTS, MatchPatterns
from headrace.spark.patterns.recognize import PARTIALS_MAX, PLACE, check_choices, match_id, prepare
from headrace.spark.patterns.stored import Limits, compile_stored
from headrace.spark.state.kernel import apply_operator, arrow_schema, key_type, united
from headrace.spark.tables.changelog import is_exact, is_truncation, key_names, lane, row_type
from headrace.spark.tables.joins import both_alike

__all__ = ["check_pattern", "match_patterns"]

PATTERNS_MAX = 1000


def match_patterns(
    rows: DataFrame,
    patterns: DataFrame,
    *,
    keys: str | Sequence[str],
    event_time: str,
    order: Sequence[str] = (),
    text: str = "pattern",
    timeouts: bool = False,
    patterns_max: int = PATTERNS_MAX,
    within_max: str | None = None,
    partials_max: int = PARTIALS_MAX,
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """The matches of patterns that are added, replaced and removed while the query runs, all in one pass.

    ``patterns``: changes of a table (``hr.changes``) whose rows have a pattern in the column ``text``: the text of
    PATTERN, WITHIN and DEFINE, or what ``Pattern.to_json`` gives. A pattern counts for rows whose time is not before
    that of its change (``at``), until the time of the change that replaces or removes it; a change that is late counts
    from the watermark on. The result is that of ``hr.match``: the keys, ``pattern`` (the key of the table),
    ``match_id``, ``match_start``, ``match_end`` and ``events``. A pattern that cannot be read, or has no WITHIN or one
    above ``within_max``, matches nothing; the progress counts such: ``observedMetrics["state match_patterns"]``.
    """
    without_weights(rows, MatchChangingPatterns.name)
    _check_text(row_type(patterns), text)
    both_alike(rows, patterns, MatchChangingPatterns.name)
    check_choices("drop_oldest", "drop", partials_max)
    if patterns_max < 1:
        raise UsageError(f"patterns_max={patterns_max} leaves no pattern", "1 or more")
    names = [resolved(each, rows.columns, "among keys=") for each in names_of(keys)]
    event_time, *order = [resolved(each, rows.columns, "to order by") for each in (event_time, *order)]
    time = time_column(rows, event_time, "event_time")
    if time in names:
        raise UsageError(f"{time!r} is the event time and cannot be a key as well")
    refuse_names(names, [time, *order], rows.columns, {}, False)
    refuse_reserved(rows.columns, [EVENT, CHANGE, TABLE])
    events = prepare(rows, names, [(time, ""), *((each, "") for each in order)], Columns(), rows.columns)
    check_order(order, arrow_schema(events.schema))
    events = events.withColumn(TABLE, F.lit(False))
    changes = _changes(patterns, events.schema, names, time, text)
    tagged = united({EVENT: events, CHANGE: changes}, [*names, TABLE, time])
    matching = MatchPatterns(
        rows=pa.schema([each for each in arrow_schema(events.schema) if each.name != TABLE]),
        keys=key_type(events, names),
        event_time=time,
        order=(*((each, "ascending") for each in order), (PLACE, "ascending")),
        place=PLACE,
        patterns=(),
        given="events",
        shown=tuple(rows.columns),
    )
    limits = Limits(partials_max, None if within_max is None else micros_of(within_max, "within_max"), timeouts)
    operator = MatchChangingPatterns(matching, patterns_max, limits)
    found = apply_operator(
        tagged, operator, keys=[*names, TABLE], event_time=time, buckets=buckets, name=name or operator.name
    )
    said = [F.col("match_start"), F.col("match_end"), *([F.col("timed_out")] if timeouts else [])]
    unique = match_id(names, ["_end_place", "match_end"] + (["timed_out"] if timeouts else []))
    identity = with_events(unique, rows.schema).alias("match_id")
    return found.select(*plain_columns(names), "pattern", identity, *said, EVENTS)


def check_pattern(text: str | Pattern, rows: DataFrame | StructType, *, within_max: str | None = None) -> None:
    """Raise an error that says what is wrong, if ``match_patterns`` could not match this pattern over such rows. For a
    program that stores patterns, so that a mistake is shown to the one who made it."""
    schema = arrow_schema(rows if isinstance(rows, StructType) else rows.schema)
    limits = Limits(PARTIALS_MAX, None if within_max is None else micros_of(within_max, "within_max"))
    compile_stored("pattern", text.to_json() if isinstance(text, Pattern) else text, schema, limits)


def _check_text(row: StructType, text: str) -> None:
    if text not in row.fieldNames():
        raise UsageError(
            f"the table of patterns has no column {text!r}", f"its columns are {', '.join(row.fieldNames())}"
        )
    if not isinstance(row[text].dataType, StringType):
        raise UsageError(f"text={text!r} is {row[text].dataType.simpleString()}, and a pattern is text")


def _changes(patterns: DataFrame, events: StructType, keys: Sequence[str], time: str, text: str) -> DataFrame:
    """Changes of the table with the columns that all rows have: no key, and the time of the change."""
    exact = is_exact(patterns)
    fields = key_names(patterns)
    known = F.col(f"key.`{fields[0]}`").cast("string") if len(fields) == 1 else F.to_json("key")
    zero = F.lit(0).cast("long")
    given: dict[str, Column] = {
        "pattern": F.when(~is_truncation(), F.coalesce(known, F.lit(""))),
        "text": F.col(f"after.`{text}`"),
        "removed": F.col("after").isNull(),
        "position": zero if exact else F.col("position"),
        "lane": zero if exact else lane(patterns),
    }
    assert tuple(given) == CHANGE_FIELDS
    at = F.col("at") if "at" in patterns.columns else F.lit(None).cast("timestamp")
    return patterns.select(
        *[F.lit(None).cast(events[each].dataType).alias(each) for each in keys],
        F.lit(True).alias(TABLE),
        at.cast("timestamp").alias(time),
        *[column.alias(name) for name, column in given.items()],
    )
