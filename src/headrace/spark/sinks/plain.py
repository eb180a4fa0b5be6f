"""Where a pipeline's rows go.

A sink knows two things: how a stream of rows is written, and how a bounded set of rows is. A plain function of (rows,
batch id) is a sink too; a stream calls it once per micro-batch, and again with the same batch id after a crash.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from headrace.changes import WEIGHT
from headrace.errors import UsageError
from headrace.spark.arguments import given_names, topic_name
from headrace.spark.owner import PipelineRun
from headrace.spark.progress import screen_cleared
from headrace.spark.source.columns import TOMBSTONE_COLUMN
from headrace.spark.source.reading import bootstrap_of, has_all_values, option_texts
from headrace.spark.tables.changelog import CHANGE, as_records, changes, from_record_key
from headrace.spark.topic_sink.checkpoint import is_local, planned_batch
from headrace.spark.topic_sink.options import check_options
from headrace.spark.topic_sink.protocol import sink_beside
from headrace.spark.topic_sink.sink import exactly_once_batch

__all__ = ["BatchWrite", "Sink", "as_sink", "console", "parquet", "topic"]

RECORD_COLUMNS = frozenset({"key", "value", "headers", "topic", "partition"})
PARQUET_MODES = ("error", "overwrite", "append", "ignore")


BatchWrite = Callable[[DataFrame, int], None]
"""Writes one micro-batch, given its number."""


class Sink(ABC):
    """Where rows go; ``describe`` names it for people and for the check of a checkpoint."""

    @abstractmethod
    def describe(self) -> str: ...

    @abstractmethod
    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        """A writer of the stream that lacks only its name and pace. The checkpoint is given to Spark by the caller."""

    @abstractmethod
    def write(self, rows: DataFrame) -> None:
        """Write a bounded set of rows."""

    def batches(self, rows: DataFrame, mode: str, checkpoint: str) -> BatchWrite:
        """How a micro-batch is written beside other sinks of the stream; called before the stream starts.

        What does not fit the columns of the stream is refused here.
        """
        raise UsageError(
            f"{self.describe()} cannot be one of several sinks: it would not be exactly once",
            "give it a separate pipeline, as its only sink",
        )

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Sink:
        """This sink for some of the rows, or for other columns: ``function`` is applied to each micro-batch."""
        from headrace.spark.sinks.several import Transformed

        return Transformed(self, function)

    @property
    def parts(self) -> tuple[Sink, ...]:
        """Itself, or the sinks that it is made of."""
        return (self,)

    @property
    def can_be_rebuilt(self) -> bool:
        """Whether ``headrace rebuild`` can fill it again beside the one in use."""
        return False

    @property
    def results_topic(self) -> str:
        """The topic at the pipeline's own broker that has the rows; empty where they are elsewhere."""
        return ""

    @property
    def dead_letters_topic(self) -> str:
        """Where rows go that a target refuses; empty where they go nowhere."""
        return ""

    def for_run(self, run: PipelineRun) -> Sink:
        """The sink for one run of a pipeline, which may keep what it must know about the run."""
        return self

    def check(self) -> None:  # noqa: B027 most need nothing of the machine
        """Refuse what cannot work on this machine, such as a password that the environment does not have."""


def as_sink(given: Sink | Callable[[DataFrame, int], None]) -> Sink:
    """A sink as it is; a function of (rows, batch id) as a sink."""
    if isinstance(given, Sink):
        return given
    if callable(given):
        return _Function(given)
    raise UsageError(
        f"{given!r} is no sink", "hr.sinks.topic(…), console(), parquet(…), or a function of (rows, batch id)"
    )


def console(rows: int = 20, *, truncate: bool = True) -> Sink:
    """Print every micro-batch, its first ``rows`` rows."""
    return _Console(rows, truncate)


def parquet(path: str, *, partition_by: Sequence[str] = (), mode: str = "error") -> Sink:
    """Parquet files in a folder. A stream adds to it, exactly once; bounded rows do as ``mode`` says."""
    if mode not in PARQUET_MODES:
        raise UsageError(f"mode={mode!r} must be one of {', '.join(PARQUET_MODES)}")
    return _Parquet(str(path), tuple(partition_by), mode)


def topic(
    name: str,
    *,
    key: str | Sequence[str] | None = None,
    bootstrap: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Sink:
    """A topic, exactly once. Rows become JSON objects, keyed by one column, or by several as a JSON object.

    Changes (``hr.changes``, views, joins of tables) become the row under its key, and a null value for a deletion. Rows
    that already are records (a column ``value`` of text or bytes, and none beside ``key``, ``headers``, ``topic``
    and ``partition``) are written as they are. Columns that begin with an underscore tell where a row was read and are
    not written. ``options`` are those of the sink ``headrace``.
    """
    check_options(option_texts(options or {}))
    return _Topic(topic_name(name), given_names("key", key), bootstrap, dict(options or {}))


@dataclass(frozen=True, slots=True)
class _Function(Sink):
    call: Callable[[DataFrame, int], None]

    def describe(self) -> str:
        return f"function {getattr(self.call, '__qualname__', type(self.call).__name__)}"

    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        return rows.writeStream.outputMode(mode).foreachBatch(self.call)

    def batches(self, rows: DataFrame, mode: str, checkpoint: str) -> BatchWrite:
        return self.call

    def write(self, rows: DataFrame) -> None:
        self.call(rows, 0)


@dataclass(frozen=True, slots=True)
class _Console(Sink):
    rows: int
    truncate: bool

    def describe(self) -> str:
        return "console"

    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        return rows.writeStream.outputMode(mode).foreachBatch(self._show)

    def batches(self, rows: DataFrame, mode: str, checkpoint: str) -> BatchWrite:
        return self._show

    def write(self, rows: DataFrame) -> None:
        """By Python and not by Spark's own console sink, which writes where the JVM's messages go.

        Rows are computed once: asking for a micro-batch's rows twice would do its work twice.
        """
        found = rows.limit(self.rows + 1).collect()
        if not found:
            return
        shown = rows.sparkSession.createDataFrame(found[: self.rows], rows.schema)
        with screen_cleared() as tables, contextlib.redirect_stdout(tables):
            shown.show(self.rows, self.truncate)
            if len(found) > self.rows:
                tables.write(f"the first {self.rows} rows\n\n")
            tables.flush()

    def _show(self, rows: DataFrame, batch_id: int) -> None:
        self.write(rows)


@dataclass(frozen=True, slots=True)
class _Parquet(Sink):
    path: str
    partition_by: tuple[str, ...]
    mode: str

    def describe(self) -> str:
        return f"parquet {self.path}"

    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        if mode != "append":
            raise UsageError(
                f"files can only be added to, and this query has output mode {mode}",
                "give it a watermark, or write it to a topic",
            )
        writer = rows.writeStream.format("parquet").outputMode("append").option("path", self.path)
        return writer.partitionBy(*self.partition_by) if self.partition_by else writer

    def write(self, rows: DataFrame) -> None:
        rows.write.mode(self.mode).parquet(self.path, partitionBy=list(self.partition_by) or None)


@dataclass(frozen=True, slots=True)
class _Topic(Sink):
    name: str
    key: tuple[str, ...]
    bootstrap: str | None
    options: dict[str, Any] = field(default_factory=dict)
    run: PipelineRun | None = field(default=None, compare=False)

    def describe(self) -> str:
        return f"topic {self.name}"

    @property
    def results_topic(self) -> str:
        return self.name if self.bootstrap is None else ""

    def for_run(self, run: PipelineRun) -> _Topic:
        return replace(self, run=run)

    def stream(self, rows: DataFrame, mode: str, checkpoint: str) -> DataStreamWriter:
        records, options = self.records(rows), self._options(rows.sparkSession)
        if mode != "update" and is_local(checkpoint):
            return records.writeStream.format("headrace").outputMode(mode).options(**options)
        # Spark's Python sinks know no update mode, and cannot read a checkpoint that is not on a local disk. A batch
        # write under a name that a replay has again is as good.
        return records.writeStream.outputMode(mode).foreachBatch(partial(self._write_batch, checkpoint))

    def batches(self, rows: DataFrame, mode: str, checkpoint: str) -> BatchWrite:
        self.records(rows)

        def write(batch: DataFrame, batch_id: int) -> None:
            self._write_batch(checkpoint, self.records(batch), batch_id, beside=True)

        return write

    def write(self, rows: DataFrame) -> None:
        self.records(rows).write.format("headrace").mode("append").options(**self._options(rows.sparkSession)).save()

    def _write_batch(self, checkpoint: str, records: DataFrame, batch_id: int, *, beside: bool = False) -> None:
        """``beside``: the query has other sinks too, and batches of each are recorded under a separate id."""
        spark = records.sparkSession
        query, ends = planned_batch(checkpoint, spark, batch_id)
        sink = sink_beside(query, self.name) if beside else query
        exactly_once_batch(sink, batch_id, ends).write(records, **self._options(spark))

    def records(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns of a record."""
        if self._are_records(rows):
            return rows
        if not self.key and set(CHANGE) <= set(rows.columns) and isinstance(rows.schema["key"].dataType, StructType):
            return as_records(rows)
        if WEIGHT in rows.columns:
            return self._of_weights(rows)
        missing = [name for name in self.key if name not in rows.columns]
        if missing:
            raise UsageError(
                f"there is no column {missing[0]!r} to key {self.describe()} by",
                f"there are: {', '.join(rows.columns)}",
            )
        shown = [_column(name) for name in rows.columns if not name.startswith("_")]
        value = F.to_json(F.struct(*shown), {"ignoreNullFields": "false"})
        if not self.key:
            return rows.select(value.alias("value"))
        if _is_keyed_topic(rows):
            gone = _column(TOMBSTONE_COLUMN)
            rows, value = self._keys_of_tombstones(rows, gone), F.when(~gone, value)
        return rows.where(has_all_values(rows)).select(self._key(rows).alias("key"), value.alias("value"))

    def _keys_of_tombstones(self, rows: DataFrame, gone: Column) -> DataFrame:
        """A record without a value has its key only as the record's."""
        kinds = {name: rows.schema[name].dataType for name in self.key}
        found = {name: from_record_key(rows, name, kind, list(self.key)) for name, kind in kinds.items()}
        return rows.withColumns({name: F.when(gone, found[name]).otherwise(_column(name)) for name in self.key})

    def _of_weights(self, rows: DataFrame) -> DataFrame:
        """Each row of ``hr.deltas`` is half of a change; a record is a whole one, by its key."""
        if not self.key:
            raise UsageError(
                f"rows with a {WEIGHT} are what went and what came, and {self.describe()} needs to know of which row",
                "give the sink a key=…, or write hr.changes(rows, key=…)",
            )
        return as_records(changes(rows, list(self.key)))

    def _are_records(self, rows: DataFrame) -> bool:
        if self.key or "value" not in rows.columns or not set(rows.columns) <= RECORD_COLUMNS:
            return False
        return isinstance(rows.schema["value"].dataType, StringType | BinaryType)

    def _key(self, rows: DataFrame) -> Column:
        if len(self.key) > 1:
            return F.to_json(F.struct(*[_column(name) for name in self.key]))
        column, kind = _column(self.key[0]), rows.schema[self.key[0]].dataType
        if isinstance(kind, StructType | ArrayType | MapType):
            return F.to_json(column)
        return column if isinstance(kind, BinaryType) else column.cast("string")

    def _options(self, spark: SparkSession) -> dict[str, str]:
        address = bootstrap_of(spark, self.bootstrap)
        chosen = {"kafka.bootstrap.servers": address, "topic": self.name, **self.options}
        if self.run is not None:
            chosen |= {"pipeline": self.run.pipeline, "startOver": self.run.starts_over}
        return option_texts(chosen)


def _is_keyed_topic(rows: DataFrame) -> bool:
    """As ``hr.stream`` gives it with a schema: a record without a value removes its key, also from a topic of rows."""
    return {"_key", TOMBSTONE_COLUMN} <= set(rows.columns)


def _column(name: str) -> Column:
    return F.col(f"`{name}`")
