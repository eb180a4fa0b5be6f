"""The data source ``headrace``: topics of any Kafka broker as batch and streaming DataFrames, without a jar.

Three kinds of process take part. The *driver's* Python only describes the read. A *planner*, one Python process that
Spark keeps for a query, asks the broker where partitions end and decides how far the next micro-batch goes. *Tasks*, in
Python workers that Spark reuses, fetch raw batches and give Arrow back. Planner and workers keep their connections.

Every option is checked when the read is described. What a task reads is in its ``RangePartition`` and the options; it
asks nobody else.
"""

# ruff: noqa: N802 the names of methods are Spark's
from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.client import Client, TopicPartition, end_offsets, list_offsets, start_offsets
from headrace.errors import KafkaError
from headrace.spark.source.alignment import Aligner
from headrace.spark.source.columns import plain_schema
from headrace.spark.source.group_positions import GroupPositions
from headrace.spark.source.options import SourceOptions, connect
from headrace.spark.source.positions import (
    OffsetRange,
    Positions,
    admit,
    ending_positions,
    find_partitions,
    from_json,
    ids_in,
    split,
    starting_positions,
    to_json,
)
from headrace.spark.source.tasks import GONE, DataLost, Plan, read_range
from headrace.spark.source.values import output_schema
from headrace.wire.kafka.schema import NO_ID

__all__ = ["HeadraceDataSource", "RangePartition"]

SINK = "headrace.spark.topic_sink.sink"
"""Loaded when something is written: it is above this folder, and a read does not need it."""
DISCOVERY_INTERVAL_S = 1.0
"""Spark asks for offsets up to a hundred times a second; new topics need not be looked for that often."""

logger = logging.getLogger(__name__)


@dataclass
class RangePartition(InputPartition):
    """What one task reads."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes | None = None

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.start, self.end)


class HeadraceDataSource(DataSource):
    """``spark.read.format("headrace")`` and ``spark.readStream.format("headrace")``."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType | str:
        """Whether the read is a stream is not known here, so only what holds for both is checked."""
        options = SourceOptions.parse(self.options, streaming=None)
        if options["valueFormat"] is None:
            return plain_schema(options["includeHeaders"])
        return output_schema(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(SourceOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return importlib.import_module(SINK).make_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return importlib.import_module(SINK).make_stream_writer(schema, self.options, overwrite)


class BatchReader(DataSourceReader):
    """Reads from one set of offsets to another, both fixed when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.plan = Plan.of(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self.plan.options
        with connect(options, role="driver") as client:
            start = starting_positions(client, options)
            end = ending_positions(client, options, start)
            ids = {topic: client.topic_id(topic) for topic in {place.topic for place in start}}
        return _tasks(options, start, end, ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition without a range when there is nothing to read.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self.plan, partition.range, partition.topic_id)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Decides, batch after batch, how far to read. Lives in the planner; only ``read`` runs in tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.plan = Plan.of(options, schema)
        self._client: Client | None = None
        self._group: GroupPositions | None = None
        self._ends: Positions = {}
        self._target: Positions | None = None
        self._places: list[TopicPartition] = []
        self._aligner = Aligner()
        self._ids: dict[str, bytes] = {}
        self._looked_s = float("-inf")
        self._last_batch_s = float("-inf")

    def initialOffset(self) -> dict[str, dict[str, int]]:
        start = starting_positions(self._connected(), self.plan.options)
        return to_json(start, self._ids_of(start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark carries one limit; when both are asked for, ``latestOffset`` looks at the other one itself."""
        most, least = self.plan.options["maxOffsetsPerTrigger"], self.plan.options["minOffsetsPerTrigger"]
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what this run reads; partitions that come later are for the next run."""
        self._look()
        self._target = self._current_ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Being asked what follows ``start`` means that everything before it has been processed."""
        begin = from_json(start)
        self._show(begin)
        self._discover()
        self._ends = self._current_ends()
        replaced = self._replaced(ids_in(start))
        end = self._reachable(begin, self._target if self._target is not None else self._ends, replaced)
        if self._waits_for_more(begin, end, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            end = self._admit(begin, end, limit.max_rows)
        if end != begin:
            self._last_batch_s = time.monotonic()
        return to_json(end, self._ids)

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:
        """For the progress report: what is in the log, beside what has been read."""
        return to_json(self._ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A topic created again between the two gives no rows in this batch: it is read from the next one on."""
        before, ids = ids_in(start), ids_in(end)
        same = {place: at for place, at in from_json(start).items() if _is_same(place.topic, before, ids)}
        return _tasks(self.plan.options, same, from_json(end), ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition), f"a partition that this source did not make: {partition!r}"
        return read_range(self.plan, partition.range, partition.topic_id)

    def commit(self, end: dict[str, Any]) -> None:
        self._show(from_json(end))

    def stop(self) -> None:
        if self._group is not None:
            self._group.stop()
        if self._client is not None:
            self._client.close()

    # ---- what is there ---------------------------------------------------------------------------------------------

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self.plan.options, role="driver")
        return self._client

    def _discover(self) -> None:
        if self._target is None and time.monotonic() - self._looked_s >= DISCOVERY_INTERVAL_S:
            self._look()
            self._looked_s = time.monotonic()

    def _look(self) -> None:
        self._places = find_partitions(self._connected(), self.plan.options.selection)
        self._ids = self._ids_of(self._places)

    def _ids_of(self, places: Iterable[TopicPartition]) -> dict[str, bytes]:
        """From what was asked a moment ago, so it costs no question."""
        return {topic: self._connected().topic_id(topic) for topic in {place.topic for place in places}}

    def _current_ends(self) -> Positions:
        """A topic that is gone since it was last looked for is left out; ``_reachable`` reports it."""
        try:
            return self._ask_ends()
        except KafkaError as error:
            if error.code not in GONE:
                raise
            self._look()
            return self._ask_ends()

    def _ask_ends(self) -> Positions:
        return end_offsets(self._connected(), self._places, read_committed=self.plan.options.read_committed)

    def _replaced(self, before: dict[str, bytes]) -> set[str]:
        """Topics that are others than those that were read under their names."""
        replaced = {topic for topic in self._ids if not _is_same(topic, before, self._ids)}
        if replaced:
            self._lost(f"topic {', '.join(sorted(replaced))} was deleted and created again since it was read")
        return replaced

    def _reachable(self, begin: Positions, ends: Positions, replaced: set[str]) -> Positions:
        """The ends; for new partitions and those of replaced topics their beginning: they are read a batch later."""
        anew = [place for place in begin if place in ends and place.topic in replaced]
        gone = sorted(set(begin) - set(ends))
        cut = sorted(place for place in begin if place in ends and ends[place] < begin[place] and place not in anew)
        if gone:
            self._lost(f"{', '.join(map(str, gone))} no longer exists")
        if cut:
            place = cut[0]
            self._lost(
                f"{place} was read up to {begin[place]} but ends at {ends[place]}; it was deleted and created again"
            )
        entering = [place for place in ends if place not in begin] + cut + anew
        return {**ends, **(start_offsets(self._connected(), entering) if entering else {})}

    def _admit(self, begin: Positions, end: Positions, offsets_max: int) -> Positions:
        if self.plan.options["alignBy"] is None:
            return admit(begin, end, offsets_max)
        client = self._connected()
        return self._aligner.admit(
            begin, end, offsets_max, lambda time_ms: list_offsets(client, dict.fromkeys(end, time_ms))
        )

    def _lost(self, what: str) -> None:
        if self.plan.options["failOnDataLoss"]:
            raise DataLost(what)
        logger.warning("%s; reading goes on because failOnDataLoss=false", what)

    def _waits_for_more(self, begin: Positions, end: Positions, limit: ReadLimit) -> bool:
        least = self.plan.options["minOffsetsPerTrigger"]
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if time.monotonic() - self._last_batch_s >= self.plan.options["maxTriggerDelay"] / 1000:
            return False
        waiting = sum(max(0, at - begin.get(place, at)) for place, at in end.items())
        return bool(waiting < least)

    def _show(self, positions: Positions) -> None:
        """Only under a group asked for: which query this is, and so its own group, is known to the listener alone."""
        group = self.plan.options.group()
        if group is None:
            return
        if self._group is None:
            self._group = GroupPositions(group, lambda: connect(self.plan.options, role="driver"))
        self._group.show(positions)


def _is_same(topic: str, before: Mapping[str, bytes], now: Mapping[str, bytes]) -> bool:
    """As far as is known: an id that one side does not tell says nothing."""
    ids = {known[topic] for known in (before, now) if known.get(topic, NO_ID) != NO_ID}
    return len(ids) < 2


def _tasks(options: SourceOptions, start: Positions, end: Positions, ids: Mapping[str, bytes]) -> list[InputPartition]:
    ranges = split(start, end, pieces_min=options["minPartitions"], records_max=options["maxRecordsPerPartition"])
    return [RangePartition(each.topic, each.partition, each.start, each.end, ids.get(each.topic)) for each in ranges]
