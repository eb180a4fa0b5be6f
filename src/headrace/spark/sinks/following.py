"""Brings the micro-batches of a stream to a target: rows become changes, changes Arrow tables of bounded size.

Everything is written from the driver, because a batch must count at one moment and a transaction has one connection.
Tasks turn their rows into blocks of Arrow inside the JVM: no worker of Python sees them, and none is pickled. The
driver takes them partition by partition, in order: its JVM holds two partitions of a batch at a time, the one being
written and the one that comes next, and this process a few blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, MapType, StringType, StructType, VariantType

from headrace.changes import TRUNCATE, TRUNCATE_PARTITION, WEIGHT
from headrace.errors import UsageError
from headrace.spark.owner import PipelineRun
from headrace.spark.plan import arrow_blocks
from headrace.spark.sinks.dead_letters import DeadLetters
from headrace.spark.sinks.plain import BatchWrite, Sink
from headrace.spark.source.reading import bootstrap_of, is_unavailable, option_texts
from headrace.spark.tables.changelog import (
    CHANGE,
    HOLD_ROWS,
    REVISION,
    changes,
    is_exact,
    key_names,
    row_type,
    without_truncations,
)
from headrace.spark.topic_sink.checkpoint import planned_batch
from headrace.targets.changes import JSON_FIELD, Changes
from headrace.targets.target import Delivery, Fence, Outcome, RefusedRows, Target, utc
from headrace.vocabulary import UNAVAILABLE

__all__ = ["TargetSink"]

DELETED = "__headrace_deleted"
TRUNCATED = "__headrace_truncated"
MARKS = (DELETED, TRUNCATED)
"""Columns that tell what a row is: one that is gone, or none at all, because all rows are."""
NESTED = (StructType, ArrayType, MapType, VariantType)
DELETES = ("delete", "d")
UPSERTS = ("insert", "update", "upsert", "c", "u", "r")
BLOCK_ROWS_MAX = 4096
BLOCK_ROWS_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""Spark counts rows here, not bytes: set it lower for huge rows, as for everything else in Arrow."""
CHUNK_ROWS = 50_000
CHUNK_BYTES = 8 * 1024 * 1024
REFUSED_MAX = 1000


@dataclass(frozen=True, slots=True)
class TargetSink(Sink):
    """A target as a sink. ``options`` are those of the sink ``headrace``, for the broker with the dead letters."""

    target: Target
    op: str | None = None
    dead_letters: str | None = None
    refused_max: int = REFUSED_MAX
    bootstrap: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    run: PipelineRun | None = field(default=None, compare=False)

    def describe(self) -> str:
        return self.target.shown

    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        prepared, follower = self._following(rows, mode, checkpoint)
        return prepared.writeStream.outputMode(mode).foreachBatch(follower.batch)

    def batches(self, rows: DataFrame, mode: str, checkpoint: str) -> BatchWrite:
        _, follower = self._following(rows, mode, checkpoint)
        key, op = self.target.key, self.op

        def write(batch: DataFrame, batch_id: int) -> None:
            follower.batch(as_changes(batch, key, op)[0], batch_id)

        return write

    def _following(self, rows: DataFrame, mode: str, checkpoint: str) -> tuple[DataFrame, Follower]:
        prepared, follower = self._prepared(rows)
        if mode != "append" and not follower.target.key:
            raise UsageError(
                f"{self.target.shown} has no key, so rows can only be added, and this query has output mode {mode}",
                "give the sink a key=…, or the query a watermark",
            )
        return prepared, replace(follower, checkpoint=checkpoint)

    @property
    def can_be_rebuilt(self) -> bool:
        return self.target.version() is not None

    @property
    def dead_letters_topic(self) -> str:
        return self.dead_letters or ""

    def for_run(self, run: PipelineRun) -> TargetSink:
        return self if self.run is not None else replace(self, run=run)

    def check(self) -> None:
        self.target.check()

    def write(self, rows: DataFrame) -> None:
        prepared, follower = self._prepared(rows)
        follower.deliver(prepared, None)

    def _prepared(self, rows: DataFrame) -> tuple[DataFrame, Follower]:
        frame, key = as_changes(rows, self.target.key, self.op)
        target: Any = self.target
        if key != target.key:
            target = replace(target, key=key)
        return frame, Follower(target, self, run=self.run or PipelineRun())

    def letters(self, spark: SparkSession, target: Target, fence: Fence | None) -> RefusedRows:
        if self.dead_letters is None:
            return RefusedRows(target.shown, rows_max=self.refused_max)
        address = bootstrap_of(spark, self.bootstrap)
        options = option_texts({"kafka.bootstrap.servers": address, "topic": self.dead_letters, **self.options})
        about = {"sink": target.shown}
        if fence is not None:
            about |= {"query": fence.query, "batch": str(fence.batch_id)}
        return RefusedRows(target.shown, DeadLetters(options, target.key, about).send, self.refused_max)


@dataclass(slots=True)
class Follower:
    """One run of a stream into a target. A connection is opened for each batch: it costs little beside the batch, and
    a target that was restarted in between is no matter."""

    target: Target
    sink: TargetSink
    checkpoint: str = ""
    run: PipelineRun = field(default_factory=PipelineRun)

    def batch(self, frame: DataFrame, batch_id: int) -> None:
        """What ``foreachBatch`` calls. A replayed batch is computed all the same: operators with state must see it."""
        outcome = self.deliver(frame, self._fence(frame, batch_id))
        self.run.has_written = True
        if outcome.replayed:
            frame.write.format("noop").mode("append").save()

    def deliver(self, frame: DataFrame, fence: Fence | None) -> Outcome:
        letters = self.sink.letters(frame.sparkSession, self.target, fence)
        schema = _schema(frame)
        delivery = Delivery(schema, _changes(frame, schema), letters, fence)
        session = self.target.open()
        try:
            outcome = session.write(delivery)
        finally:
            session.close()
        self.run.refused(letters.count)
        return outcome

    def _fence(self, frame: DataFrame, batch_id: int) -> Fence:
        query, ends = planned_batch(self.checkpoint, frame.sparkSession, batch_id)
        run = self.run
        return Fence(query, batch_id, ends, run.owner, not run.has_written, run.pipeline, run.starts_over)


# ---- rows become changes -------------------------------------------------------------------------------------------


def as_changes(rows: DataFrame, key: tuple[str, ...], op: str | None = None) -> tuple[DataFrame, tuple[str, ...]]:
    """Flat rows with a column that tells deletions, and the key.

    Taken are changes (``hr.changes``, views, joins), rows with weights (``hr.deltas``), results of windows, envelopes
    of Debezium and keyed topics as they are read, rows with a column ``op``, and plain rows. Columns that begin with an
    underscore tell where a row was read and are left out.
    """
    if set(CHANGE) <= set(rows.columns) and isinstance(rows.schema["key"].dataType, StructType):
        own = tuple(key_names(rows))
        return _of_changes(rows, key or own, may_move=not is_exact(rows) or key not in ((), own))
    if WEIGHT in rows.columns:
        _need_key(key)
        return _of_changes(changes(rows, list(key)), key, may_move=False)
    if op is None and key and set(REVISION) <= set(rows.columns):
        return _of_revisions(rows, key)
    if op is None and key and _is_read_from_a_topic(rows):
        return _of_changes(changes(rows, list(key)), key, may_move="before" in rows.columns)
    if op is not None and op not in rows.columns:
        raise UsageError(f"there is no column {op!r} with the operation", f"there are: {', '.join(rows.columns)}")
    shown = [_flat(rows, each) for each in rows.columns if not each.startswith("_") and each != op]
    if op is None:
        return rows.select(*shown), key
    _need_key(key)
    return rows.select(*shown, _deleted(_column(op)).alias(DELETED)), key


def _of_revisions(rows: DataFrame, key: tuple[str, ...]) -> tuple[DataFrame, tuple[str, ...]]:
    """Results of windows: what is taken back is deleted. It comes before the revision that takes its place."""
    shown = [_flat(rows, each) for each in rows.columns if not each.startswith("_")]
    retracted = F.coalesce(_column("is_retraction"), F.lit(False))
    return rows.select(*shown, retracted.alias(DELETED)), key


def _is_read_from_a_topic(rows: DataFrame) -> bool:
    """As ``hr.stream`` gives it with a schema: then a null value is a deletion, and its key is the record's."""
    return {"_key", "_offset", "_partition", "_topic"} <= set(rows.columns)


def _of_changes(frame: DataFrame, key: tuple[str, ...], *, may_move: bool) -> tuple[DataFrame, tuple[str, ...]]:
    """A change that moves a row to another key also deletes the old key; exact changes have that deletion already."""
    row, names = row_type(frame), key_names(frame)
    missing = [name for name in key if name not in row.fieldNames()]
    if missing:
        raise UsageError(f"a row has no column {missing[0]!r}", f"it has {', '.join(row.fieldNames())}")
    if is_exact(frame):
        why = "changes without a position are exact and name every row; keep the columns of hr.changes"
        frame = without_truncations(frame, why)
    gone = F.col("op") == "delete"

    def column(name: str) -> Column:
        """Of a deletion what is known of the row, and at least its key."""
        before, after = F.col(f"before.`{name}`"), F.col(f"after.`{name}`")
        known = F.when(gone, before).otherwise(after)
        return F.coalesce(known, F.col(f"key.`{name}`")) if name in names else known

    columns = [
        gone.alias(DELETED),
        _truncated().alias(TRUNCATED),
        *[column(each.name).alias(each.name) for each in row],
    ]
    flat = _with_moves(frame, row, key, columns) if may_move else frame.select(*columns)
    shown = [_flat(flat, each.name) for each in row if not each.name.startswith("_")]
    return flat.select(*shown, _column(DELETED), _column(TRUNCATED)), key


def _truncated() -> Column:
    """Whether the whole table was emptied. What is written to a target has no partition any more."""
    refusal = F.raise_error(
        F.lit(
            "the table was emptied (TRUNCATE, or a new snapshot), partition by partition, and which of the target's "
            f"rows came from which partition is not known. {HOLD_ROWS}"
        )
    )
    return F.when(F.col("op") == TRUNCATE_PARTITION, refusal.cast("boolean")).otherwise(F.col("op") == TRUNCATE)


def _with_moves(frame: DataFrame, row: StructType, key: tuple[str, ...], columns: list[Column]) -> DataFrame:
    now = F.struct(*columns)
    old = F.struct(
        F.lit(True).alias(DELETED),
        F.lit(False).alias(TRUNCATED),
        *[F.col(f"before.`{each.name}`").alias(each.name) for each in row],
    )
    moved = F.lit(False)
    for name in key:
        before, after = F.col(f"before.`{name}`"), F.col(f"after.`{name}`")
        moved = moved | (before.isNotNull() & after.isNotNull() & (before != after))
    both = F.when(F.coalesce(moved, F.lit(False)), F.array(old, now)).otherwise(F.array(now))
    return frame.select(F.explode(both).alias("change")).select("change.*")


def _deleted(op: Column) -> Column:
    word = F.lower(op.cast("string"))
    unknown = F.raise_error(F.concat(F.lit("the operation of a row is none of insert, update, delete: "), word))
    return F.when(word.isin(*DELETES), True).when(word.isin(*UPSERTS), False).otherwise(unknown.cast("boolean"))


def _need_key(key: tuple[str, ...]) -> None:
    if not key:
        raise UsageError("changes need to know which row they change", "give the sink a key=…")


def _flat(rows: DataFrame, name: str) -> Column:
    """Structs, arrays and maps as JSON: tables, caches and indexes hold them so.

    The stand-in for a list that was not sent stays a stand-in: as JSON no target would know it.
    """
    kind = rows.schema[name].dataType
    if not isinstance(kind, NESTED):
        return _column(name)
    text = F.to_json(_column(name), {"ignoreNullFields": "false"})
    missing = is_unavailable(_column(name), kind)
    if missing is not None:
        text = F.when(missing, F.lit(UNAVAILABLE)).otherwise(text)
    return text.alias(name, metadata={"headrace": "json"})


def _column(name: str) -> Column:
    return F.col(f"`{name}`")


# ---- rows become Arrow ---------------------------------------------------------------------------------------------


def _schema(frame: DataFrame) -> pa.Schema:
    """The columns of the rows, without the mark of deletions."""
    arrow = to_arrow_schema(frame.schema, timezone="UTC")
    columns = []
    for spark_field, column in zip(frame.schema, arrow, strict=True):
        is_json = isinstance(spark_field.dataType, StringType) and spark_field.metadata.get("headrace") == "json"
        columns.append(column.with_metadata(JSON_FIELD if is_json else None))
    return pa.schema([column for column in columns if column.name not in MARKS])


def _changes(frame: DataFrame, schema: pa.Schema) -> Iterator[Changes]:
    for table in _regrouped(_blocks(frame)):
        rows = utc(table.select(schema.names)).cast(schema)
        deleted = table.column(DELETED) if DELETED in table.column_names else None
        cuts = np.flatnonzero(np.asarray(table.column(TRUNCATED))).tolist() if TRUNCATED in table.column_names else []
        yield from _cut(Changes(rows, deleted), cuts)


def _cut(changes: Changes, truncations: list[int]) -> Iterator[Changes]:
    """The changes between truncations, which are the rows at these places."""
    start = 0
    for number, end in enumerate([*truncations, len(changes)]):
        part = changes.slice(start, end - start)
        if number or len(part):
            yield replace(part, truncates=number > 0)
        start = end + 1


def _blocks(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    said = int(frame.sparkSession.conf.get(BLOCK_ROWS_CONF) or 0)
    return arrow_blocks(frame, min(said, BLOCK_ROWS_MAX) if said > 0 else BLOCK_ROWS_MAX)


def _regrouped(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Small blocks together: a statement per handful of rows would be most of the work."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for block in blocks:
        held.append(block)
        rows, size = rows + block.num_rows, size + block.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(held).combine_chunks()
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()
