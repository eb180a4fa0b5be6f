"""Test a pipeline in one call: events in, rows out, without a broker.

    rows = run_pipeline(revenue_per_minute, {"orders": [
        {"id": 1, "amount": "3.20", "placed_at": "2026-01-31T10:00:05Z"},
        {"id": 2, "amount": "4.50", "placed_at": "2026-01-31T10:00:01Z"},   # out of order
    ]})

Whatever the pipeline reads from the source ``headrace`` (``hr.stream``, ``hr.table``, ``spark.readStream``) comes from
the events given instead. They take the way of real records: they are encoded as a record batch and decoded by the
source's own code, so a value that does not fit its schema does here what it would do there.

Events come in one micro-batch, or in those that a list of lists says, empty ones among them. As always in Spark, a
watermark that one micro-batch moves closes windows in the next, and makes events late in the one after that.
Positions asked for (``startingOffsets`` and the like) are not looked at: all is read.
"""

# ruff: noqa: N802 the names of methods are Spark's
from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.batch import build_batch
from headrace.client import RawBatch, raw_batches
from headrace.errors import UsageError
from headrace.record import Record
from headrace.spark.plan import METRIC, shape_of
from headrace.spark.run.pipelines import Builder
from headrace.spark.run.session import session
from headrace.spark.source.columns import metadata
from headrace.spark.source.data_source import HeadraceDataSource
from headrace.spark.source.decode import decode
from headrace.spark.source.options import Selection, SourceOptions
from headrace.spark.source.positions import OffsetRange
from headrace.spark.source.tasks import Plan
from headrace.spark.source.values import BadRecord, TypedMaker

__all__ = ["Event", "Rows", "run_pipeline"]

FORMAT = "headrace-events"
FIRST_TIMESTAMP = datetime(2026, 1, 1, tzinfo=UTC)
"""When an event without a timestamp reached its topic; the following ones a millisecond later each."""
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Event:
    """A record with more than a value. ``value``: a dict or list becomes JSON, text UTF-8; None is a tombstone."""

    value: Any
    key: str | bytes | None = None
    timestamp: datetime | None = None
    partition: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


class Rows(list[Row]):
    """The rows in the order in which they came, with what else a test may ask for."""

    def __init__(self, batches: Sequence[Sequence[Row]], late: int = 0) -> None:
        super().__init__(row for batch in batches for row in batch)
        self.batches = [list(batch) for batch in batches]
        """The same rows, micro-batch by micro-batch."""
        self.late = late
        """Rows that came after the watermark had passed them, whether Spark or an operator of ours saw that."""

    def dicts(self) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self]


def run_pipeline(
    build: Builder,
    events: Mapping[str, Sequence[Any]],
    *,
    spark: SparkSession | None = None,
    output_mode: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Rows:
    """The rows that a pipeline makes of these events, by topic.

    An event is an ``Event``, or only its value. A list of lists is a list of micro-batches; topics go through them side
    by side. The sink of the pipeline plays no part.
    """
    spark = spark or session(master="local[2]", app_name="headrace tests")
    with tempfile.TemporaryDirectory(prefix="headrace-events-") as folder:
        _write_events(Path(folder), events)
        rows = build(_twin(spark, folder))
        if not isinstance(rows, DataFrame):
            raise UsageError(f"the pipeline returns {type(rows).__name__} and not a DataFrame")
        if not rows.isStreaming:
            return Rows([rows.collect()])
        return _stream(rows, output_mode, f"{folder}/checkpoint", timeout_s)


def _stream(rows: DataFrame, output_mode: str | None, checkpoint: str, timeout_s: float) -> Rows:
    batches: list[list[Row]] = []
    mode = output_mode or shape_of(rows, output_mode=None, sink="").output_mode
    writer = rows.writeStream.outputMode(mode).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.foreachBatch(lambda batch, _: batches.append(batch.collect())).start()
    try:
        if not query.awaitTermination(int(timeout_s)):
            raise TimeoutError(f"the pipeline was not done after {timeout_s:.0f} s")
    finally:
        query.stop()
    return Rows(batches, sum(map(_late, query.recentProgress)))


def _late(report: Mapping[str, Any]) -> int:
    """Spark's own operators count what they drop, ours what they see to be late."""
    by_spark = sum(int(operator["numRowsDroppedByWatermark"]) for operator in report["stateOperators"])
    held = [metrics for name, metrics in report["observedMetrics"].items() if name.startswith(METRIC)]
    return by_spark + sum(int(metrics["late_rows"] or 0) for metrics in held)


# ---- events, as the source finds them ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stored:
    """The events of one topic, in micro-batches; an event's offset counts within its partition."""

    topic: str
    batches: list[list[dict[str, Any]]] = field(default_factory=list)

    def partitions(self) -> list[int]:
        return sorted({event["partition"] for batch in self.batches for event in batch})

    def before(self, partition: int, batch: int) -> int:
        """The offset at which a micro-batch begins."""
        earlier = (event for events in self.batches[:batch] for event in events)
        return sum(event["partition"] == partition for event in earlier)


def _write_events(folder: Path, events: Mapping[str, Sequence[Any]]) -> None:
    stored = {topic: _in_batches(topic, given) for topic, given in events.items()}
    (folder / "events.json").write_text(json.dumps(stored))


def _in_batches(topic: str, given: Sequence[Any]) -> list[list[dict[str, Any]]]:
    nested = [isinstance(each, list) for each in given]
    if any(nested) and not all(nested):
        raise UsageError(f"the events of {topic!r} are neither all events nor all lists of events")
    count = 0
    batches: list[list[dict[str, Any]]] = []
    for batch in given if any(nested) else [list(given)]:
        batches.append([_event(each, count + index) for index, each in enumerate(batch)])
        count += len(batch)
    return batches


def _event(given: Any, index: int) -> dict[str, Any]:
    event = given if isinstance(given, Event) else Event(given)
    timestamp = event.timestamp or FIRST_TIMESTAMP
    stamped_ms = round(timestamp.timestamp() * 1000) + (0 if event.timestamp else index)
    return {
        "key": _text(_bytes(event.key)),
        "value": _text(_bytes(event.value)),
        "timestamp": stamped_ms,
        "partition": event.partition,
        "headers": [[name, _text(value)] for name, value in event.headers],
    }


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    """What JSON has no form for, as the typed source reads it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise UsageError(f"a test event has {value!r}, of type {type(value).__name__}, which JSON cannot hold")


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _stored(options: SourceOptions) -> list[_Stored]:
    """The topics that a source asks for. The folder with the events stands where a broker's address would."""
    everything = json.loads((Path(options.bootstrap) / "events.json").read_text())
    names = _selected(options.selection, list(everything))
    missing = sorted(set(names) - set(everything))
    if missing:
        given = ", ".join(sorted(everything)) or "no topic"
        raise UsageError(f"the pipeline reads topic {missing[0]!r}, and the test gives events for {given}")
    return [_Stored(name, everything[name]) for name in names]


def _selected(selection: Selection, names: Sequence[str]) -> list[str]:
    if selection.pattern:
        return [name for name in names if re.fullmatch(selection.pattern, name)]
    return list(dict.fromkeys([*selection.topics, *(topic for topic, _ in selection.partitions)]))


# ---- the source ----------------------------------------------------------------------------------------------------


@dataclass
class EventsPartition(InputPartition):
    """Some micro-batches of one partition of a topic."""

    topic: str
    partition: int
    first: int
    end: int


class EventsDataSource(HeadraceDataSource):
    """Options, columns and decoding of the source ``headrace``, with events from a file."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(Plan.of(SourceOptions.parse(self.options, streaming=False), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(Plan.of(SourceOptions.parse(self.options, streaming=True), schema))


def _partitions(plan: Plan, first: int, end: int) -> list[InputPartition]:
    return [
        EventsPartition(each.topic, partition, first, end)
        for each in _stored(plan.options)
        for partition in each.partitions()
    ]


def _read(plan: Plan, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, EventsPartition):
        return
    (topic,) = [each for each in _stored(plan.options) if each.topic == partition.topic]
    index = partition.partition
    events = [event for batch in topic.batches[partition.first : partition.end] for event in batch]
    records = [
        Record(
            key=_data(event["key"]),
            value=_data(event["value"]),
            timestamp=event["timestamp"],
            headers=[(name, _data(value)) for name, value in event["headers"]],
        )
        for event in events
        if event["partition"] == index
    ]
    if records:
        start = topic.before(index, partition.first)
        wanted = OffsetRange(topic.topic, index, start, start + len(records))
        count = len(topic.partitions())
        yield from _decoded(plan, wanted, raw_batches(build_batch(records, base_offset=start).data), count)


def _decoded(plan: Plan, wanted: OffsetRange, batches: list[RawBatch], partitions: int) -> Iterator[pa.RecordBatch]:
    """As a task of the source would; dead letters are left out and sent nowhere."""
    decoded = decode(batches, start=wanted.start, end=wanted.end, headers=True)
    if not decoded.row_count:
        return
    if plan.options["valueFormat"] is None:
        arrow = to_arrow_schema(plan.schema, timezone="UTC")
        arrays = [metadata(name, decoded, wanted) for name in arrow.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow)
        return
    dropping = plan.options["onBadRecord"] == "deadletter"
    values = {**plan.options.values, "onBadRecord": "fail"} if dropping else plan.options.values
    try:
        make = TypedMaker(replace(plan.options, values=values), plan.schema, wanted, lambda: partitions)
        yield from list(make(decoded))
    except BadRecord as bad:
        if not dropping:
            raise
        yield from _decoded(plan, replace(wanted, end=bad.offset), batches, partitions)
        yield from _decoded(plan, replace(wanted, start=bad.offset + 1), batches, partitions)


class _BatchReader(DataSourceReader):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        count = max((len(each.batches) for each in _stored(self.plan.options)), default=0)
        return _partitions(self.plan, 0, count)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.plan, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One micro-batch after the other; an offset is the number of micro-batches read."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def initialOffset(self) -> dict[str, int]:
        return {"batches": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """All events are there from the beginning."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        count = max((len(each.batches) for each in _stored(self.plan.options)), default=0)
        return {"batches": min(start["batches"] + 1, count)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _partitions(self.plan, start["batches"], end["batches"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.plan, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nobody waits for it."""


# ---- the session that a pipeline under test is given ---------------------------------------------------------------


class _Reader:
    """Spark's reader of batches or streams, which reads the events where ``headrace`` is asked for."""

    def __init__(self, reader: Any, folder: str) -> None:
        self._reader, self._folder = reader, folder
        self._redirected = False

    def format(self, name: str) -> _Reader:
        self._redirected = name == "headrace"
        self._reader = self._reader.format(FORMAT if self._redirected else name)
        return self

    def load(self, *arguments: Any, **options: Any) -> DataFrame:
        if options.pop("format", None) == "headrace":
            self.format("headrace")
        reader = self._reader.options(**options) if options else self._reader
        if self._redirected:
            reader = reader.option("kafka.bootstrap.servers", self._folder)
        rows: DataFrame = reader.load(*arguments)
        return rows

    def __getattr__(self, name: str) -> Any:
        """Everything else is Spark's; what gives Spark's reader back gives this one back."""
        found = getattr(self._reader, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            result = found(*arguments, **named)
            if isinstance(result, type(self._reader)):
                self._reader = result
                return self
            return result

        return call


class _EventsSession(SparkSession):
    """The very session, but for its two readers."""

    _folder: str

    @property
    def read(self) -> Any:
        return _Reader(SparkSession.read.fget(self), self._folder)  # type: ignore[attr-defined]

    @property
    def readStream(self) -> Any:
        return _Reader(SparkSession.readStream.fget(self), self._folder)  # type: ignore[attr-defined]


def _twin(spark: SparkSession, folder: str) -> SparkSession:
    spark.dataSource.register(EventsDataSource)
    twin = object.__new__(_EventsSession)
    twin.__dict__.update(spark.__dict__)
    twin._folder = folder
    return twin
