"""Joins of streams: with a table that keeps changing, and with each other within a bound of time.

``hr.join_as_of``   a stream and the version of a table's row that was valid at the event's time
``hr.join_latest``  a stream and the row that the table has when the event comes
``hr.join_within``  two streams whose events are not too far apart

The first two are operators with state (``join_operators``), since Spark has no table that changes while a stream runs.
The third is Spark's own join of streams. It gives the right answer when both sides have a watermark and the condition
bounds the times, and the function makes sure of both. Two tables that change are joined by ``hr.join_tables``
(``views``).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import StructType, TimestampType

from headrace.errors import UsageError
from headrace.spark.arguments import micros_of, no_doubles, without_weights
from headrace.spark.state.kernel import apply_operator, arrow_schema, free_name, united, watermarked
from headrace.spark.tables.changelog import PLACE, is_truncation, key_names, lane, row_type
from headrace.spark.tables.join_operators import CHANGE, EVENT, TRUNCATES, AsOf, How, Latest, Matched

__all__ = [
    "PREFIX_HINT",
    "On",
    "both_alike",
    "join_as_of",
    "join_latest",
    "join_within",
    "pairs_of",
    "same_types",
]

On = str | Sequence[str] | Mapping[str, str]
"""Columns of the same name on both sides, or the name on the left and the name on the right."""
TIME = "_time"
RIGHT = "_right_"
JOIN_METRIC = "join "
PREFIX_HINT = 'give those of the right side a prefix: prefix="table_", or rename one'


def join_as_of(
    stream: DataFrame,
    table: DataFrame,
    on: On,
    *,
    event_time: str,
    version: str = "version",
    how: How = "left",
    prefix: str = "",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join each event with the row of the table that was valid at the event's time.

    ``table``: changes (``hr.changes``), whose ``at`` says since when a row is valid. ``on``: the columns of the stream
    that are the table's key. On a stream both need a watermark: an event comes out when both have passed its time, so
    the result is the same on every run. ``version``: the name of the column that says which version was joined (null:
    none). ``prefix``: for the names of the table's columns. ``how``: left keeps events without a row.
    """
    _time(stream, event_time, "event_time")
    _versioned(table)
    both_alike(stream, table, AsOf.name)
    if stream.isStreaming:
        watermarked(stream, event_time, AsOf.name)
        watermarked(table, "at", f"{AsOf.name} (its table)")
    matched, tagged, keys = _tagged(stream, table, on, version, how, prefix, F.col(f"`{event_time}`"))
    return apply_operator(tagged, AsOf(matched, event_time), keys=keys, event_time=TIME, buckets=buckets, name=name)


def join_latest(
    stream: DataFrame,
    table: DataFrame,
    on: On,
    *,
    version: str = "version",
    how: How = "left",
    prefix: str = "",
    buckets: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join each event immediately with the row that the table has then; arguments as for ``join_as_of``.

    The result depends on arrival order: the same inputs read again in other batches give other rows. Where that
    matters, use ``join_as_of``.
    """
    both_alike(stream, table, Latest.name)
    matched, tagged, keys = _tagged(stream, table, on, version, how, prefix, F.lit(None).cast("timestamp"))
    return apply_operator(tagged.drop(TIME), Latest(matched), keys=keys, buckets=buckets, name=name)


def _tagged(
    stream: DataFrame, table: DataFrame, on: On, version: str, how: How, prefix: str, time: Column
) -> tuple[Matched, DataFrame, list[str]]:
    """Both inputs as one: the key, and an event or a change."""
    if how not in ("left", "inner"):
        raise UsageError(f"how={how!r} is neither 'left' nor 'inner'")
    without_weights(stream, "a join of a stream")
    pairs = pairs_of(on)
    row = _versioned(table)
    if sorted(pairs.values()) != sorted(key_names(table)):
        raise UsageError(
            f"the table is known by {', '.join(key_names(table))}, and the join is on {', '.join(pairs.values())}",
            f"a version is one of a key's row: on={{'column of the stream': '{key_names(table)[0]}'}}",
        )
    same_types(stream.schema, _key_schema(table), pairs)
    taken = tuple((each.name, prefix + each.name) for each in row if each.name not in pairs.values())
    no_doubles([*stream.columns, version, *(name for _, name in taken)], PREFIX_HINT)

    moment = F.unix_micros(time).alias("at")
    events = stream.select(
        *[F.col(f"`{each}`") for each in pairs],
        F.lit(False).alias(TRUNCATES),
        time.alias(TIME),
        moment,
        F.struct(*[F.col(f"`{each}`") for each in stream.columns]).alias("row"),
    )
    changed = table.select(
        *[F.col(f"key.`{right}`").alias(left) for left, right in pairs.items()],
        is_truncation().alias(TRUNCATES),
        F.col("at").alias(TIME),
        F.unix_micros("at").alias("at"),
        F.col("position"),
        lane(table).alias("lane"),
        F.col("version"),
        F.col("after").isNotNull().alias("live"),
        F.col("after").alias("row"),
    )
    tagged = united({EVENT: events, CHANGE: changed}, [*pairs, TRUNCATES, TIME])
    types = arrow_schema(tagged.schema)
    matched = Matched(_row_of(types, EVENT), _row_of(types, CHANGE), version, taken, how)
    return matched, tagged, list(pairs)


def _versioned(table: DataFrame) -> StructType:
    row = row_type(table)
    if not set(PLACE) <= set(table.columns):
        raise UsageError(
            f"the table's changes do not say {', '.join(sorted(set(PLACE) - set(table.columns)))}",
            "join with changes that were read from a topic: hr.changes(hr.stream(…), key=…)",
        )
    return row


def _key_schema(table: DataFrame) -> StructType:
    kind = table.schema["key"].dataType
    assert isinstance(kind, StructType), kind
    return kind


def _row_of(types: pa.Schema, column: str) -> pa.StructType:
    kind: pa.StructType = types.field(column).type.field("row").type
    return kind


# ---- two streams ---------------------------------------------------------------------------------------------------


def join_within(
    left: DataFrame,
    right: DataFrame,
    on: On,
    *,
    left_event_time: str,
    right_event_time: str,
    before: str | None = None,
    after: str | None = None,
    how: Literal["inner", "left", "full"] = "inner",
    prefix: str = "",
) -> DataFrame:
    """Join two streams: equal keys, the right event from ``before`` before to ``after`` after the left one.

    Bounds are inclusive; one that is not given is zero. ``left`` and ``full`` also give events without a partner, when
    the watermark says that none can come. Every pair comes out, so an event may come several times. Rows behind the
    watermark are dropped and counted (``numRowsDroppedByWatermark``); a partner that comes too late leaves its event
    without one. Rows without a time are dropped. A null in a key equals nothing. ``prefix``: for the names of the right
    side's columns. The progress of a stream counts pairs, and rows without a partner: ``observedMetrics["join
    <keys>"]``.
    """
    if how not in ("inner", "left", "full"):
        raise UsageError(f"how={how!r} is none of 'inner', 'left', 'full'")
    for rows in (left, right):
        without_weights(rows, "join_within")
    if before is None and after is None:
        raise UsageError("join_within needs a bound of time", 'after="1 hour": the right event up to an hour later')
    _time(left, left_event_time, "left_event_time")
    _time(right, right_event_time, "right_event_time")
    for rows, time, side in ((left, left_event_time, "left"), (right, right_event_time, "right")):
        if rows.isStreaming:
            watermarked(rows, time, f"join_within (its {side} side)")
    pairs = pairs_of(on)
    same_types(left.schema, right.schema, pairs)
    keys = {name: RIGHT + name for name in pairs.values()}
    names = {name: keys.get(name, prefix + name) for name in right.columns}
    no_doubles([*left.columns, *(name for name in names.values() if not name.startswith(RIGHT))], PREFIX_HINT)
    renamed = right.select(*[F.col(f"`{old}`").alias(new) for old, new in names.items()])
    condition = _between(left_event_time, names[right_event_time], before, after)
    for name, other in pairs.items():
        condition = condition & (F.col(f"`{name}`") == F.col(f"`{keys[other]}`"))
    if how == "full":
        condition = condition & (_lacks(pairs, 1) == _lacks(keys.values(), 2))
    # A row without a time would never be let go of, nor come out: no watermark ever passes it.
    joined = _dated(left, left_event_time).join(_dated(renamed, names[right_event_time]), condition, how)
    if joined.isStreaming:
        joined = _counted(joined, left, right, list(pairs), left_event_time, names[right_event_time])
    if how == "full":
        joined = joined.withColumns(
            {name: F.coalesce(F.col(f"`{name}`"), F.col(f"`{keys[other]}`")) for name, other in pairs.items()}
        )
    return joined.drop(*keys.values())


def _counted(
    joined: DataFrame, left: DataFrame, right: DataFrame, keys: list[str], left_event_time: str, right_event_time: str
) -> DataFrame:
    """How many pairs there were in a batch, and how many rows without a partner.

    It keeps the join in the query, too: where nothing is asked of the right side later, Spark would leave that out, and
    then wait for its watermark for ever.
    """
    paired = F.col(f"`{left_event_time}`").isNotNull() & F.col(f"`{right_event_time}`").isNotNull()
    name = free_name(", ".join(keys), left, right, prefix=JOIN_METRIC)
    counts = [F.count_if(paired).alias("pairs"), F.count_if(~paired).alias("without_partner")]
    return joined.observe(f"{JOIN_METRIC}{name}", *counts)


def _lacks(keys: Iterable[str], number: int) -> Column:
    """0, or the number where a key is null: with another one on each side such rows meet nothing.

    Spark's join of streams looks keys up byte by byte, and finds nulls equal. Of other joins it leaves rows with null
    keys out before, on the side whose rows without a partner are not wanted; of a full join it cannot.
    """
    missing = functools.reduce(operator.or_, (F.col(f"`{each}`").isNull() for each in keys))
    return F.when(missing, number).otherwise(0)


def _dated(rows: DataFrame, time: str) -> DataFrame:
    return rows.where(F.col(f"`{time}`").isNotNull())


def _between(left_event_time: str, right_event_time: str, before: str | None, after: str | None) -> Column:
    """Two comparisons and not BETWEEN with a difference: from these Spark sees how long it must keep rows."""
    one, other = F.col(f"`{left_event_time}`"), F.col(f"`{right_event_time}`")
    earliest = one - _interval(micros_of(before, "before")) if before else one
    latest = one + _interval(micros_of(after, "after")) if after else one
    return (other >= earliest) & (other <= latest)


def _interval(duration_us: int) -> Column:
    seconds, micros = divmod(duration_us, 1_000_000)
    return F.expr(f"INTERVAL '{seconds}.{micros:06}' SECOND")


# ---- arguments -----------------------------------------------------------------------------------------------------


def pairs_of(on: On) -> dict[str, str]:
    """By the name on the left the name on the right."""
    if isinstance(on, str):
        return {on: on}
    pairs = dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    if not pairs:
        raise UsageError("a join needs columns to join on", 'on="id", or on={"customer": "id"}')
    return pairs


def both_alike(left: DataFrame, right: DataFrame, what: str) -> None:
    """Both sides become one input, and Spark has none that is a stream and a bounded frame."""
    if left.isStreaming != right.isStreaming:
        kinds = ("a stream", "a bounded frame") if left.isStreaming else ("a bounded frame", "a stream")
        raise UsageError(
            f"{what}: its left side is {kinds[0]} and its right side {kinds[1]}",
            "read both with hr.stream, or both with hr.batch",
        )


def same_types(left: StructType, right: StructType, pairs: Mapping[str, str]) -> None:
    for name, other in pairs.items():
        for schema, wanted in ((left, name), (right, other)):
            if wanted not in schema.fieldNames():
                raise UsageError(
                    f"there is no column {wanted!r} to join on", f"the columns are {', '.join(schema.fieldNames())}"
                )
        one, two = left[name].dataType, right[other].dataType
        if one != two:
            raise UsageError(
                f"{name!r} is {one.simpleString()} on the left and {other!r} is {two.simpleString()} on the right",
                "read or cast one of them as the other's type: keys are compared as they are",
            )


def _time(rows: DataFrame, column: str, argument: str) -> None:
    if column not in rows.columns or not isinstance(rows.schema[column].dataType, TimestampType):
        timed = [each.name for each in rows.schema if isinstance(each.dataType, TimestampType)]
        raise UsageError(
            f"{argument}={column!r} is no column with a timestamp",
            f"columns with timestamps: {', '.join(timed) or 'none'}",
        )
