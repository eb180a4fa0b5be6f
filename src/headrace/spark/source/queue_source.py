"""Queues of a headrace broker as DataFrames: the data source ``headrace-queue``, and ``hr.queue``.

A queue cannot replay a micro-batch: what was acknowledged is gone, what was not comes in another order. So a queue is
read by the offsets of its log, as a partition of a topic is, and nothing is taken from it. A query that is restarted
reads the same messages again. With ``acknowledge`` they are acknowledged to the queue when their micro-batch is
committed (``queue_acknowledgements``), and Spark should then be the queue's only consumer.

There is a lane for each priority, and an offset in each.
"""

# ruff: noqa: N802 the names of methods are Spark's
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.client import Client, ClientOptions, QueuedMessage, QueueInfo, Queues
from headrace.errors import UsageError
from headrace.spark.plan import refuse_connect
from headrace.spark.source.reading import BOOTSTRAP_DEFAULT, bootstrap_of, option_texts
from headrace.spark.source.tasks import DataLost

__all__ = ["QUEUE_SOURCE", "QueueDataSource", "QueueOptions", "queue"]

QUEUE_SOURCE = "headrace-queue"
SCHEMA = (
    "lane int, offset long, enqueued timestamp, exchange string, routing_key string, message_id string, "
    "headers map<string,string>, body binary"
)
MESSAGES_PER_TASK = 100_000
MESSAGES_PER_BLOCK = 5_000
OPTIONS = ("bootstrap", "queue", "vhost", "acknowledge", "startingOffsets", "maxMessagesPerTrigger", "failOnDataLoss")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What a read was asked for."""

    queue: str
    bootstrap: str = BOOTSTRAP_DEFAULT
    vhost: str = "/"
    acknowledge: bool = False
    starting: str = "ready"
    messages_max: int | None = None
    fails_on_loss: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> QueueOptions:
        """Raises UsageError."""
        options = {name.lower(): value for name, value in given.items()}
        unknown = set(options) - {name.lower() for name in OPTIONS} - {"path"}
        if unknown:
            raise UsageError(f"unknown options of {QUEUE_SOURCE}: {', '.join(sorted(unknown))}", ", ".join(OPTIONS))
        starting = options.get("startingoffsets", "ready")
        if starting not in ("ready", "earliest"):
            raise UsageError(
                f"startingOffsets={starting!r} must be ready or earliest", "earliest reads what is kept too"
            )
        if not options.get("queue"):
            raise UsageError("no queue is named", "option queue")
        most = options.get("maxmessagespertrigger")
        if most is not None and not (most.isdecimal() and int(most)):
            raise UsageError(f"maxMessagesPerTrigger={most!r} is no number above 0")
        return cls(
            queue=options["queue"],
            bootstrap=options.get("bootstrap", BOOTSTRAP_DEFAULT),
            vhost=options.get("vhost", "/"),
            acknowledge=options.get("acknowledge", "false") == "true",
            starting=starting,
            messages_max=None if most is None else int(most),
            fails_on_loss=options.get("failondataloss", "true") == "true",
        )

    def connect(self) -> Client:
        return Client(self.bootstrap, ClientOptions(client_id="headrace-spark"))

    def describe(self) -> QueueInfo:
        with self.connect() as client:
            return Queues(client, self.vhost).describe(self.queue)


def queue(
    spark: SparkSession,
    name: str,
    *,
    bootstrap: str | None = None,
    acknowledge: bool = False,
    **options: Any,
) -> DataFrame:
    """A queue of a headrace broker as a streaming DataFrame, exactly once: messages that are ready, then new ones.

    ``acknowledge``: messages are acknowledged to the queue when their micro-batch is committed. ``options`` are those
    of the source ``headrace-queue``, by their names.
    """
    from headrace.spark.source.queue_acknowledgements import acknowledge_committed

    refuse_connect(spark)
    spark.dataSource.register(QueueDataSource)
    acknowledge_committed(spark)
    chosen = {"bootstrap": bootstrap_of(spark, bootstrap), "queue": name, "acknowledge": acknowledge, **options}
    return spark.readStream.format(QUEUE_SOURCE).options(**option_texts(chosen)).load()


@dataclass
class LanePart(InputPartition):
    """What one task reads."""

    lane: int
    first: int
    end: int


class QueueDataSource(DataSource):
    """``spark.readStream.format("headrace-queue")``, and ``spark.read``."""

    @classmethod
    def name(cls) -> str:
        return QUEUE_SOURCE

    def schema(self) -> str:
        QueueOptions.parse(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return QueueBatchReader(QueueOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return QueueStreamReader(QueueOptions.parse(self.options))


class QueueBatchReader(DataSourceReader):
    """What the queue has when the read is planned."""

    def __init__(self, options: QueueOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        found = self._options.describe()
        return _parts(_starts(self._options, found), {number: lane.end for number, lane in enumerate(found.lanes)})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _blocks(self._options, partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides, batch after batch, how far to read. Lives in the planner; only ``read`` runs in tasks."""

    def __init__(self, options: QueueOptions) -> None:
        self._options = options
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return _to_json(_starts(self._options, self._options.describe()))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.messages_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what this run reads."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """At most as many messages as asked for, of the highest priorities first."""
        before = _from_json(start)
        ends = self._ends() if self._target is None else self._target
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = {}
        for lane in sorted(ends, reverse=True):
            first = before.get(lane, 0)
            reached[lane] = max(first, ends[lane] if left is None else min(ends[lane], first + left))
            left = None if left is None else left - (reached[lane] - first)
        return _to_json(reached)

    def _ends(self) -> dict[int, int]:
        return {number: lane.end for number, lane in enumerate(self._options.describe().lanes)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _parts(_from_json(start), _from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _blocks(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The listener of the driver acknowledges, since this comes only with the next batch."""


def _starts(options: QueueOptions, found: QueueInfo) -> dict[int, int]:
    return {
        number: lane.start if options.starting == "earliest" else lane.floor for number, lane in enumerate(found.lanes)
    }


def _to_json(offsets: Mapping[int, int]) -> dict[str, Any]:
    return {str(lane): offset for lane, offset in offsets.items()}


def _from_json(offsets: Mapping[str, Any] | str) -> dict[int, int]:
    found = json.loads(offsets) if isinstance(offsets, str) else offsets
    return {int(lane): int(offset) for lane, offset in found.items()}


def _parts(starts: Mapping[int, int], ends: Mapping[int, int]) -> list[InputPartition]:
    return [
        LanePart(lane, first, min(end, first + MESSAGES_PER_TASK))
        for lane, end in sorted(ends.items())
        for first in range(starts.get(lane, 0), end, MESSAGES_PER_TASK)
    ]


def _blocks(options: QueueOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, LanePart):  # Spark makes one without a range when there is nothing to read
        return
    with options.connect() as client:
        queues = Queues(client, options.vhost)
        start = queues.describe(options.queue).lanes[partition.lane].start
        if start > partition.first and options.fails_on_loss:
            raise DataLost(
                f"queue {options.queue!r} has no messages before offset {start} any more, and {partition.first} is the "
                "next: others have acknowledged them; see headrace.queue.retention.ms, or set failOnDataLoss=false"
            )
        block: list[QueuedMessage] = []
        for message in queues.read(options.queue, partition.lane, partition.first, partition.end):
            block.append(message)
            if len(block) == MESSAGES_PER_BLOCK:
                yield _arrow(block)
                block = []
        if block:
            yield _arrow(block)


def _arrow(messages: Sequence[QueuedMessage]) -> pa.RecordBatch:
    columns = {
        "lane": pa.array([each.lane for each in messages], pa.int32()),
        "offset": pa.array([each.offset for each in messages], pa.int64()),
        "enqueued": pa.array([(each.enqueued_ms or 0) * 1_000 for each in messages], pa.timestamp("us", "UTC")),
        "exchange": pa.array([each.exchange for each in messages], pa.string()),
        "routing_key": pa.array([each.routing_key for each in messages], pa.string()),
        "message_id": pa.array([each.properties.get("message_id") for each in messages], pa.string()),
        "headers": pa.array(
            [[(name, str(value)) for name, value in each.headers.items()] for each in messages],
            pa.map_(pa.string(), pa.string()),
        ),
        "body": pa.array([each.body for each in messages], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)
