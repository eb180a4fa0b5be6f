"""Changes of a table, in the one form that joins, views and sinks share: ``hr.changes(frame, key="id")``.

    op        insert, update, delete, truncate or truncate_partition; see ``headrace.changes``
    key       a struct: the columns by which the table knows its rows; null columns for a truncation
    before    the row as it was, a struct; null when there was none, or when the source does not say
    after     the row as it is from now on; null for a delete and for a truncation

Changes that were read from a topic also say where they come from, and are as complete as their source made them:

    at        since when the row is so
    version   names this version of the row for good: topic/partition/offset
    position  the order of the changes of one key

Changes that headrace made itself (a view, a join of tables) have the first four columns only, and are *exact*: each key
comes at most once a batch, ``before`` is what the changes so far add up to, there are no truncations, and no value is
unavailable. Operators that need exact changes make them first from those with a ``position``, by holding the rows of
the table (``views``).

Debezium's envelopes (``value_format="debezium"``) have ``before`` as far as the database logs it. In a keyed topic each
record is the row of its key from then on, and a null value removes it. Such a topic does not say whether a key is new,
so its rows are updates without a ``before``. A tombstone after an envelope is a second delete, which changes nothing,
and the only one where compaction has removed the envelope.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.types import DataType, IntegralType, StructType, TimestampType

from headrace.changes import TRUNCATE, TRUNCATE_PARTITION, WEIGHT
from headrace.errors import UsageError
from headrace.spark.source.reading import has_all_values, is_bad, is_tombstone
from headrace.spark.source.values import PARTITION_TRUNCATED
from headrace.spark.state.kernel import all_nullable, apply_operator, arrow_schema, key_type
from headrace.spark.tables.view_operators import Consolidated

__all__ = [
    "CHANGE",
    "HOLD_ROWS",
    "PLACE",
    "REVISION",
    "as_records",
    "as_rows",
    "changes",
    "from_record_key",
    "is_exact",
    "is_truncation",
    "key_names",
    "lane",
    "row_type",
    "without_truncations",
]

CHANGE = ("op", "key", "before", "after")
PLACE = ("at", "version", "position")
OPERATIONS = {
    "c": "insert",
    "r": "insert",
    "u": "update",
    "d": "delete",
    "t": TRUNCATE,
    PARTITION_TRUNCATED: TRUNCATE_PARTITION,
}
"""By Debezium's letters. ``m``, a message of the database, is no change of a table."""
REVISION = ("revision", "is_final", "is_retraction")
"""Columns of the results of windows."""
HOLD_ROWS = "hr.view(hr.changes(rows, key=…)) holds the rows of the table and deletes them one by one"


def changes(
    rows: DataFrame,
    key: str | Sequence[str],
    *,
    event_time: str | None = None,
    position: str | None = None,
) -> DataFrame:
    """The changes of a table: of a topic that was read with its schema, envelopes or plain rows by key.

    Rows with weights (``hr.deltas``) become the exact changes of a table by this key. Results of windows are rows by
    key and start: a higher revision replaces a lower one, and a retracted one is deleted.

    ``event_time``: the column that says since when a row is valid; by default, when the change was captured or written.
    A deletion has no row, so it always has the latter. ``position``: a column of integers that orders the changes of a
    key, for frames that were not read from a topic.
    """
    names = [key] if isinstance(key, str) else list(key)
    if WEIGHT in rows.columns:
        return _of_weights(rows, names)
    if position is None and set(REVISION) <= set(rows.columns):
        return _of_revisions(rows, names, event_time)
    enveloped = _is_enveloped(rows)
    row = _row_type(rows, enveloped)
    _check_names(row, names, event_time)
    if not enveloped:
        return _of_rows(rows, row, names, event_time, position, is_tombstone(rows))
    return _of_envelopes(rows, names, event_time, position)


def _of_weights(rows: DataFrame, names: list[str]) -> DataFrame:
    """What went and what came under a key in a batch is one change."""
    row = _row_type(rows, False)
    _check_names(row, names, None)
    whole = F.struct(*[_field(each.name) for each in row])
    weight = _field(WEIGHT)
    tagged = rows.select(
        *[_field(name) for name in names],
        F.when(weight < 0, whole).cast(all_nullable(row)).alias("_before"),
        F.when(weight > 0, whole).cast(all_nullable(row)).alias("_after"),
    )
    operator = Consolidated(key_type(tagged, names), arrow_schema(tagged.schema).field("_after").type)
    return apply_operator(tagged, operator, keys=names).select(*CHANGE)


def _of_revisions(rows: DataFrame, names: list[str], time: str | None) -> DataFrame:
    """A result that is taken back comes after the result itself, and before the next revision."""
    revision, retracted = (_field(name) for name in ("revision", "is_retraction"))
    numbered = rows.where(revision.isNotNull()).withColumn("_position", 2 * revision + retracted.cast("long"))
    row = StructType([each for each in _row_type(rows, False) if each.name != "is_retraction"])
    _check_names(row, names, time)
    return _of_rows(numbered, row, names, time, "_position", retracted)


def _check_names(row: StructType, names: list[str], time: str | None) -> None:
    for name in names or [""]:
        if name not in row.fieldNames():
            raise UsageError(
                f"there is no column {name!r} to be the key", f"a row has {', '.join(row.fieldNames()) or 'no columns'}"
            )
    if time is not None and (time not in row.fieldNames() or not isinstance(row[time].dataType, TimestampType)):
        timed = [each.name for each in row if isinstance(each.dataType, TimestampType)]
        raise UsageError(
            f"event_time={time!r} is no column with a timestamp", f"a row has {', '.join(timed) or 'none'}"
        )


def _is_enveloped(rows: DataFrame) -> bool:
    has = {"op", "before", "after"} <= set(rows.columns)
    return has and all(isinstance(rows.schema[name].dataType, StructType) for name in ("before", "after"))


def _row_type(rows: DataFrame, enveloped: bool) -> StructType:
    if enveloped:
        found = rows.schema["after"].dataType
        assert isinstance(found, StructType), found
        return found
    return StructType([each for each in rows.schema if not each.name.startswith("_")])


def _of_rows(
    rows: DataFrame, row: StructType, names: list[str], time: str | None, position: str | None, gone: Column
) -> DataFrame:
    keys = {name: F.coalesce(_field(name), from_record_key(rows, name, row[name].dataType, names)) for name in names}
    after = F.struct(*[keys.get(each.name, _field(each.name)).alias(each.name) for each in row])
    at = _field("_timestamp") if "_timestamp" in rows.columns else F.lit(None).cast("timestamp")
    return rows.where(~is_bad(rows)).select(
        F.when(gone, "delete").otherwise("update").alias("op"),
        F.struct(*[column.alias(name) for name, column in keys.items()]).alias("key"),
        F.lit(None).cast(row).alias("before"),
        F.when(~gone, after).alias("after"),
        (F.coalesce(_field(time), at) if time else at).alias("at"),
        *_place(rows, position),
    )


def _of_envelopes(rows: DataFrame, names: list[str], time: str | None, position: str | None) -> DataFrame:
    row = _row_type(rows, True)
    kind = F.when(is_tombstone(rows), "d").otherwise(F.col("op"))  # a bad record has neither
    named = F.create_map(*[F.lit(each) for pair in OPERATIONS.items() for each in pair])
    keys = [
        F.coalesce(
            F.col(f"after.`{name}`"),
            F.col(f"before.`{name}`"),
            from_record_key(rows, name, row[name].dataType, names),
        ).alias(name)
        for name in names
    ]
    written = [F.timestamp_millis(F.col("ts_ms"))] if "ts_ms" in rows.columns else []
    written += [_field("_timestamp")] if "_timestamp" in rows.columns else []
    at = F.coalesce(*([F.col(f"after.`{time}`")] if time else []), *written, F.lit(None).cast("timestamp"))
    return rows.where(kind.isin([*OPERATIONS])).select(
        named[kind].alias("op"),
        F.struct(*keys).alias("key"),
        F.col("before"),
        F.when(kind != "d", F.col("after")).alias("after"),
        at.alias("at"),
        *_place(rows, position),
    )


def from_record_key(rows: DataFrame, name: str, kind: DataType, names: list[str]) -> Column:
    """A column of the key from the record's key: a JSON object, such an object in Debezium's schema, or plain text."""
    if "_key" not in rows.columns:
        return F.lit(None).cast(kind)
    text = _field("_key").cast("string")
    field = f"`{name}` {kind.simpleString()}"
    found = F.from_json(text, f"{field}, payload struct<{field.replace('` ', '`:', 1)}>")
    candidates = [found.getField(name), found.getField("payload").getField(name)]
    if len(names) == 1:
        candidates.append(text.try_cast(kind))
    return F.coalesce(*candidates)


def _place(rows: DataFrame, position: str | None) -> list[Column]:
    if position is not None:
        if position not in rows.columns or not isinstance(rows.schema[position].dataType, IntegralType):
            raise UsageError(f"position={position!r} is no column of integers", f"there are {', '.join(rows.columns)}")
        order = _field(position).cast("long")
    elif "_offset" in rows.columns:
        order = _field("_offset")
    else:
        raise UsageError(
            "these rows do not say in which order they were written",
            "keep _topic, _partition and _offset of the topic, or name a column: position=…",
        )
    return [_version(rows, position).alias("version"), order.alias("position")]


def _version(rows: DataFrame, position: str | None) -> Column:
    names = [position] if position is not None else ["_topic", "_partition", "_offset"]
    return F.concat_ws("/", *[_field(name).cast("string") for name in names if name in rows.columns])


def _field(name: str) -> Column:
    return F.col(f"`{name}`")


# ---- what a frame of changes is ------------------------------------------------------------------------------------


def row_type(frame: DataFrame) -> StructType:
    """The columns of the table that these changes are of."""
    return _struct(frame, "after")


def key_names(frame: DataFrame) -> list[str]:
    return _struct(frame, "key").fieldNames()


def _struct(frame: DataFrame, name: str) -> StructType:
    if not isinstance(frame, DataFrame):
        raise UsageError(f"{type(frame).__name__} is no DataFrame of changes", 'hr.changes(rows, key="id") makes one')
    if not set(CHANGE) <= set(frame.columns):
        raise UsageError(
            f"these are no changes: a change has the columns {', '.join(CHANGE)}, and here are "
            f"{', '.join(frame.columns)}",
            'hr.changes(rows, key="id") makes changes of a captured or keyed topic',
        )
    kind = frame.schema[name].dataType
    if not isinstance(kind, StructType):
        raise UsageError(f"the column {name!r} of a change is a struct, and not {kind.simpleString()}")
    return kind


def is_truncation() -> Column:
    """Whether a change removes all rows before it."""
    return F.coalesce(F.col("op").isin(TRUNCATE, TRUNCATE_PARTITION), F.lit(False))


def lane(frame: DataFrame) -> Column:
    """The number of the topic and partition that a change was read from: its position counts there and nowhere else."""
    if "version" not in frame.columns:
        raise UsageError("these changes do not say where they were read", "keep their column 'version'")
    return F.xxhash64(F.regexp_replace("version", "/?[^/]*$", ""))


def without_truncations(frame: DataFrame, why: str) -> DataFrame:
    """The changes; a truncation ends the query. A filter, because an optimiser removes columns that nobody reads."""
    refusal = F.raise_error(F.lit(f"the table was emptied (TRUNCATE, or a new snapshot): {why}"))
    return frame.where(F.when(is_truncation(), refusal.cast("boolean")).otherwise(F.lit(True)))


def is_exact(frame: DataFrame) -> bool:
    """Whether each key comes at most once a batch, with what was there before."""
    return "position" not in frame.columns


# ---- changes for those who want rows or records --------------------------------------------------------------------


def as_rows(frame: DataFrame) -> DataFrame:
    """Changes as flat rows: ``op`` beside the columns of the row; of a deletion the old row, or at least its key."""
    row, names = row_type(frame), set(key_names(frame))
    if "op" in row.fieldNames():
        raise UsageError("a row has a column 'op' itself", "rename it before: the operation needs the name")

    def column(name: str) -> Column:
        # Not the field of a null row: a deleted row's columns are those of ``before``.
        found = [F.col(f"after.`{name}`"), F.col(f"before.`{name}`")]
        known = F.when(F.col("op") == "delete", found[1]).otherwise(found[0])
        return F.coalesce(known, F.col(f"key.`{name}`")) if name in names else known

    return frame.select("op", *[column(each.name).alias(each.name) for each in row])


def as_records(frame: DataFrame, *, envelope: bool = False) -> DataFrame:
    """Changes as records for ``hr.sinks.topic``: the row as JSON under its key, a null value for a deletion.

    So a compacted topic holds the table: ``hr.table`` reads it, and ``hr.changes`` its changes. With ``envelope`` each
    record is a change in Debezium's envelope, for a topic that keeps them all. A truncation ends the query: it has no
    key, so it cannot be written in order with the rows of every partition.
    """
    names = key_names(frame)
    frame = without_truncations(frame, f"that cannot be written to a topic by key. {HOLD_ROWS}")
    whole = F.to_json(F.col("key"), {"ignoreNullFields": "false"})
    key = F.col(f"key.`{names[0]}`").cast("string") if len(names) == 1 else whole
    if not envelope:
        frame = frame.where(has_all_values(frame))
        return frame.select(key.alias("key"), F.to_json("after", {"ignoreNullFields": "false"}).alias("value"))
    letters = {"insert": "c", "update": "u", "delete": "d"}
    letter = F.create_map(*[F.lit(each) for pair in letters.items() for each in pair])[F.col("op")]
    now = F.unix_millis(F.current_timestamp())
    written = F.coalesce(F.unix_millis(F.col("at")), now) if "at" in frame.columns else now
    value = F.struct("before", "after", letter.alias("op"), written.alias("ts_ms"))
    return frame.select(whole.alias("key"), F.to_json(value, {"ignoreNullFields": "false"}).alias("value"))
