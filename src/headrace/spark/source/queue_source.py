"""Queues of a headrace broker as DataFrames: the data source ``headrace-queue``, and ``hr.queue``.

A queue cannot replay a micro-batch: what was acknowledged is gone, what was not comes in another order. So a queue is
read by the offsets of its log, as a partition of a topic is, and nothing is taken from it. A query that is restarted
reads the same messages again. With ``acknowledge`` they are acknowledged to the queue when their micro-batch is
committed (``queue_acknowledgements``), and Spark should then be the queue's only consumer.

There is a lane for each priority, and an offset in each. Offsets carry the id of their queue, so one that was deleted
and made again is noticed.
"""

# ruff: noqa: N802 the names of methods are Spark's
from __future__ import annotations

import json
import logging
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

__all__ = ["QUEUE_SOURCE", "QueueDataSource", "QueueOptions", "QueuePosition", "queue"]

logger = logging.getLogger(__name__)

QUEUE_SOURCE = "headrace-queue"
SCHEMA = (
    "lane int, offset long, enqueued timestamp, exchange string, routing_key string, message_id string, "
    "headers map<string,string>, body binary"
)
MESSAGES_PER_TASK = 100_000
MESSAGES_PER_BLOCK = 5_000
ID = "id"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """How far a queue was read: an offset for each lane, and which queue of that name. Old checkpoints have no id."""

    lanes: Mapping[int, int]
    queue_id: str = ""

    @classmethod
    def of(cls, offsets: Mapping[str, Any] | str) -> QueuePosition:
        found = json.loads(offsets) if isinstance(offsets, str) else offsets
        lanes = {int(lane): int(offset) for lane, offset in found.items() if lane != ID}
        return cls(lanes=lanes, queue_id=found.get(ID, ""))

    def to_json(self) -> dict[str, Any]:
        return {ID: self.queue_id, **{str(lane): offset for lane, offset in self.lanes.items()}}

    def is_in(self, queue_id: str) -> bool:
        """Whether it is a position in this queue, as far as is known."""
        return self.queue_id in ("", queue_id)


@dataclass
class LanePart(InputPartition):
    """What one task reads."""

    lane: int
    first: int
    end: int
    queue_id: str


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
        return _parts(_start(self._options, found), _end(found))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _blocks(self._options, partition)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides, batch after batch, how far to read. Lives in the planner; only ``read`` runs in tasks."""

    def __init__(self, options: QueueOptions) -> None:
        self._options = options
        self._target: QueuePosition | None = None

    def initialOffset(self) -> dict[str, Any]:
        return _start(self._options, self._options.describe()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.messages_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what this run reads."""
        self._target = _end(self._options.describe())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """At most as many messages as asked for, of the highest priorities first."""
        end = _end(self._options.describe()) if self._target is None else self._target
        before = QueuePosition.of(start)
        if not before.is_in(end.queue_id):
            _lost(self._options, f"queue {self._options.queue!r} was deleted and declared again since it was read")
        firsts = _firsts(before, end)
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = {}
        for lane in sorted(end.lanes, reverse=True):
            first, last = firsts.get(lane, 0), end.lanes[lane]
            reached[lane] = max(first, last if left is None else min(last, first + left))
            left = None if left is None else left - (reached[lane] - first)
        return QueuePosition(lanes=reached, queue_id=end.queue_id).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _parts(QueuePosition.of(start), QueuePosition.of(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _blocks(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The listener of the driver acknowledges, since this comes only with the next batch."""


def _start(options: QueueOptions, found: QueueInfo) -> QueuePosition:
    return QueuePosition(
        lanes={
            number: lane.start if options.starting == "earliest" else lane.floor
            for number, lane in enumerate(found.lanes)
        },
        queue_id=found.id,
    )


def _end(found: QueueInfo) -> QueuePosition:
    return QueuePosition(lanes={number: lane.end for number, lane in enumerate(found.lanes)}, queue_id=found.id)


def _firsts(start: QueuePosition, end: QueuePosition) -> Mapping[int, int]:
    """Where reading begins in each lane; from the beginning in a queue that was made after ``start``."""
    return start.lanes if start.is_in(end.queue_id) else {}


def _parts(start: QueuePosition, end: QueuePosition) -> list[InputPartition]:
    firsts = _firsts(start, end)
    return [
        LanePart(lane, first, min(last, first + MESSAGES_PER_TASK), end.queue_id)
        for lane, last in sorted(end.lanes.items())
        for first in range(firsts.get(lane, 0), last, MESSAGES_PER_TASK)
    ]


def _lost(options: QueueOptions, what: str) -> None:
    if options.fails_on_loss:
        raise DataLost(what)
    logger.warning("%s; the query goes on with what is there", what)


def _blocks(options: QueueOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, LanePart):  # Spark makes one without a range when there is nothing to read
        return
    with options.connect() as client:
        queues = Queues(client, options.vhost)
        found = queues.describe(options.queue)
        if partition.queue_id not in ("", found.id):
            _lost(options, f"queue {options.queue!r} was deleted and declared again while it was read")
            return
        start = found.lanes[partition.lane].start
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
