"""The sink ``headrace``: rows of a stream or a batch become records of a topic, each exactly once.

    query = df.writeStream.format("headrace").option("kafka.bootstrap.servers", …).option("topic", "totals")
    df.write.format("headrace").mode("append").option("writeId", "load-2026-11-15") …

``protocol`` says how; here is what Spark calls, in four kinds of processes. A *planner* makes a writer for each
batch and pickles it for the tasks: leaving for the tasks is the moment at which a batch begins, so that is when the
writer takes the sink's lease. *Tasks* write. A *committer* makes its own writer (for a stream) or gets the
planner's (for a batch) and has the messages of the tasks, which carry the lease.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client import Client, ProducerIdentity
from headrace.errors import HeadraceError, UsageError
from headrace.spark.topic_sink.checkpoint import QUERY_ID_PROPERTY, PlannedBatch, read_checkpoint
from headrace.spark.topic_sink.decisions import BatchRef
from headrace.spark.topic_sink.encode import Encoder, Rows, Tally, buffered
from headrace.spark.topic_sink.options import SinkOptions, canonical, check_columns
from headrace.spark.topic_sink.protocol import OpenTask, Plan, Protocol, Reported

__all__ = ["ExactlyOnceBatch", "exactly_once_batch", "make_stream_writer", "make_writer"]

BATCH_ID_PROPERTY = "streaming.sql.batchId"

_clients: dict[str, Client] = {}
"""Spark reuses its Python workers, and they reuse these connections. A worker runs one task at a time."""


def make_stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """For ``writeStream``. In complete mode every batch appends the whole result, as Spark's Kafka sink does."""
    parsed = SinkOptions.parse(options, streaming=True)
    check_columns(schema, parsed)
    return StreamWriter(parsed)


def make_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """For ``write``."""
    if overwrite:
        raise UsageError("a topic cannot be overwritten", "use mode('append')")
    parsed = SinkOptions.parse(options, streaming=False)
    check_columns(schema, parsed)
    return BatchWriter(parsed)


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task hands to the committer."""

    lease: ProducerIdentity
    batch: BatchRef
    reported: Reported


class _LetThrough(HeadraceError, pickle.PickleError):
    """Spark hides any other kind of error that comes up while it pickles in one that says "Could not serialize"."""


def _let_through(error: HeadraceError) -> HeadraceError:
    """The same error by its name and words, of the kind that Spark's pickler lets through."""
    kind = type(error)
    named = type(kind.__name__, (_LetThrough,), {"__module__": kind.__module__})
    through: HeadraceError = named(str(error))
    for note in getattr(error, "__notes__", ()):
        through.add_note(note)
    return through


def _client_for(options: SinkOptions) -> Client:
    client = _clients.get(options.client_key)
    if client is None:
        client = _clients[options.client_key] = options.connect()
    return client


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write runs in a task"
    return context


class _Writer:
    """What both writers do in the planner and in the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The writer leaves for the tasks: the batch begins."""
        if self.plan is None:
            try:
                self.plan = self._begin()
            except HeadraceError as error:
                raise _let_through(error) from error
        return self.__dict__

    def _begin(self) -> Plan:
        raise NotImplementedError

    def _batch(self) -> BatchRef:
        """The batch that a task belongs to."""
        raise NotImplementedError

    def _protocol(self) -> Protocol:
        return Protocol(_client_for(self.options), self.options.settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """A task: write what Spark gives us and leave the transaction open. A replayed batch is only counted."""
        assert self.plan is not None, "a task's writer comes from the planner"
        context, batch = _context(), self._batch()
        opened = self._protocol().start_task(self.plan, batch, context.partitionId(), context.attemptNumber())
        return TaskMessage(self.plan.lease, batch, self._send(opened, iterator))

    def _send(self, opened: OpenTask, batches: Iterator[pa.RecordBatch]) -> Reported:
        client = _client_for(self.options)
        encoder = Encoder(
            self.options["topic"],
            lambda topic: len(client.topic(topic, create=True).partitions),
            self.options["batchBytes"],
        )
        tally = Tally()
        for table in buffered(batches):
            rows = Rows.of(table)
            tally.add(rows)
            if opened.producer is None:
                continue
            for place, prepared in encoder.encode(rows):
                opened.producer.send_prepared(place, prepared)
        return opened.report(tally.rows, tally.size, tally.crc)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Of one micro-batch, in whichever process."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self.checkpoint: PlannedBatch | None = None

    def _begin(self) -> Plan:
        location = self.options["checkpointLocation"]
        self.checkpoint = read_checkpoint(location) if location else None
        sink = self.options["sinkId"] or (self.checkpoint and self.checkpoint.query_id)
        if not sink:
            raise UsageError(
                "the sink cannot tell which query it belongs to, and so not which batches it has written: the "
                f"checkpoint ({location or 'not given as an option'}) cannot be read from here",
                "option('sinkId', NAME), with a name that stays with the checkpoint",
            )
        return self._protocol().begin(sink, self.options.pipeline)

    def _batch(self) -> BatchRef:
        assert self.plan is not None
        context = _context()
        number = context.getLocalProperty(BATCH_ID_PROPERTY)
        assert number is not None, f"Spark does not tell the batch ({BATCH_ID_PROPERTY})"
        ends = self.checkpoint.ends_of(int(number)) if self.checkpoint is not None else None
        return BatchRef(self.plan.sink, int(number), ends, context.getLocalProperty(QUERY_ID_PROPERTY) or "")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        found = _messages(messages)
        assert found, "Spark runs at least one task for every batch"
        assert found[0].batch.batch_id == batchId, f"tasks wrote batch {found[0].batch.batch_id}, not {batchId}"
        self._protocol().commit(found[0].lease, found[0].batch, [each.reported for each in found])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        found = _messages(messages)
        if found:
            self._protocol().abort(found[0].lease, found[0].batch.sink)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Of ``df.write``: a sink with one batch, or inside foreachBatch with a number for each."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self.anonymous = options["writeId"] is None and options["sinkId"] is None
        self.sink: str = options["writeId"] or options["sinkId"] or f"write-{uuid.uuid4()}"

    def _begin(self) -> Plan:
        return self._protocol().begin(self.sink, self.options.pipeline)

    def _batch(self) -> BatchRef:
        assert self.plan is not None
        return BatchRef(self.plan.sink, self.options["batchId"] or 0, canonical(self.options["endOffsets"]))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = _messages(messages)
        assert found, "Spark runs at least one task for every write"
        self._protocol().commit(found[0].lease, found[0].batch, [each.reported for each in found])
        if self.anonymous:
            self._protocol().forget(self.sink)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = _messages(messages)
        if found:
            self._protocol().abort(found[0].lease, found[0].batch.sink)


def _messages(given: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    """Those of tasks that did not fail."""
    return [each for each in given if isinstance(each, TaskMessage)]


# ---- inside foreachBatch -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExactlyOnceBatch:
    """A batch inside ``foreachBatch``, under the name by which a replay is recognised."""

    query: str
    batch_id: int
    end_offsets: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """For ``df.write.format("headrace").options(…)``."""
        found = {"sinkId": self.query, "batchId": str(self.batch_id)}
        if self.end_offsets is not None:
            found["endOffsets"] = self.end_offsets
        return found

    def write(self, frame: DataFrame, **options: str) -> None:
        """Write the columns of the sink; options with dots in their names go in by ``**{"kafka.…": …}``."""
        frame.write.format("headrace").mode("append").options(**{**options, **self.options}).save()


def exactly_once_batch(
    query: str, batch_id: int, end_offsets: str | Mapping[str, Any] | None = None
) -> ExactlyOnceBatch:
    """Writes inside ``foreachBatch`` that a replay of the batch does not double.

        def write(frame, batch_id):
            batch = exactly_once_batch("totals", batch_id, read_end_offsets(checkpoint, batch_id))
            batch.write(frame.selectExpr("key", "value"), topic="totals", **{"kafka.bootstrap.servers": bootstrap})

    ``query`` must stay with the checkpoint, and differ for each place that is written to in one batch. Without
    ``end_offsets`` a replay is recognised by its number of rows and bytes, so the frame must be deterministic.
    """
    return ExactlyOnceBatch(query, batch_id, canonical(end_offsets))
