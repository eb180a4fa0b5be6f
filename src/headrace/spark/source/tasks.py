"""What a task does: fetch the raw batches of a range and give Arrow batches with the columns that were asked for.

Memory stays within a few fetches, however long the range is: batches are decoded in groups of ``bytesPerBatch`` and
handed to Spark one group after the other. A broker that is away is waited for, up to ``retryTimeoutMs``; reading then
goes on at the exact offset where it stopped, so no row is lost or doubled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client import Client, OffsetOutOfRange, RawBatch, TopicReplaced, fetch_range
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.spark.source.columns import check_plain, metadata
from headrace.spark.source.decode import Decoded, decode, grouped
from headrace.spark.source.options import SourceOptions, connect
from headrace.spark.source.positions import OffsetRange
from headrace.spark.source.values import TypedMaker
from headrace.spark.workers import settle

__all__ = ["GONE", "DataLost", "Plan", "read_range"]

GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""What a broker says of a topic that was deleted."""

logger = logging.getLogger(__name__)

_clients: dict[tuple[str, tuple[tuple[str, str], ...]], Client] = {}
"""Spark reuses its Python workers, and they reuse these connections. A worker runs one task at a time."""


class DataLost(HeadraceError):
    """Records are gone before they were read: retention or compaction removed them, or the topic was deleted."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Records were lost to this query; failOnDataLoss=false goes on with what is there")


@dataclass(frozen=True, slots=True)
class Plan:
    """How ranges are read; the same for all tasks of a query."""

    options: SourceOptions
    schema: StructType

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType) -> Plan:
        if options["valueFormat"] is None:
            for each in schema.fields:
                check_plain(each)
        else:
            TypedMaker.check(options, schema)
        return cls(options, schema)


def read_range(plan: Plan, wanted: OffsetRange, topic_id: bytes | None = None) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the range, with exactly the schema that Spark expects, of the topic with that id.

    Where records are gone and the user accepts that, reading goes on after them, in a separate range: what a batch
    still holds from before that point is not given.
    """
    settle()
    options = plan.options
    typed = options["valueFormat"] is not None
    make = TypedMaker(options, plan.schema, wanted) if typed else _PlainMaker(plan, wanted)
    position = wanted.start
    try:
        while position < wanted.end:
            rest = replace(wanted, start=position)
            try:
                for group in grouped(_raw_batches(options, rest, topic_id), bytes_max=options["bytesPerBatch"]):
                    decoded = _decode(plan, group, rest)
                    position = group[-1].next_offset
                    if decoded.row_count:
                        yield from make(decoded)
                    del decoded  # with the bytes of its records: the next ones are put where they were
                return
            except KafkaError as error:
                position = _after_loss(options, rest, error)
    finally:
        make.close()


def _decode(plan: Plan, group: list[RawBatch], wanted: OffsetRange) -> Decoded:
    """With the columns that the schema asks for, and those that a dead letter keeps."""
    names = set(plan.schema.fieldNames())
    typed = plan.options["valueFormat"] is not None
    letters = typed and plan.options["onBadRecord"] == "deadletter"
    return decode(
        group,
        start=wanted.start,
        end=wanted.end,
        keys=letters or bool(names & {"key", "_key"}),
        headers=letters or bool(names & {"headers", "_headers"}),
    )


class _PlainMaker:
    """Columns of the records as they are."""

    def __init__(self, plan: Plan, wanted: OffsetRange) -> None:
        self._schema = to_arrow_schema(plan.schema, timezone="UTC")
        self._wanted = wanted

    def __call__(self, decoded: Decoded) -> Iterator[pa.RecordBatch]:
        arrays = [metadata(name, decoded, self._wanted) for name in self._schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def close(self) -> None:
        """Nothing is held."""


# ---- raw batches ---------------------------------------------------------------------------------------------------


def _client_for(options: SourceOptions) -> Client:
    key = (options.bootstrap, tuple(sorted(options.kafka.items())))
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = connect(options, role="task")
    return client


def _raw_batches(options: SourceOptions, wanted: OffsetRange, topic_id: bytes | None) -> Iterator[RawBatch]:
    return fetch_range(
        _client_for(options),
        wanted.place,
        wanted.start,
        wanted.end,
        read_committed=options.read_committed,
        bytes_per_fetch=options.fetch_bytes,
        timeout_ms=options["retryTimeoutMs"],
        topic_id=topic_id,
    )


def _after_loss(options: SourceOptions, wanted: OffsetRange, error: KafkaError) -> int:
    """Where to go on when the log no longer has a position; raises unless the user accepts the loss."""
    if isinstance(error, OffsetOutOfRange):
        held = f"{wanted.place} holds offsets {error.earliest} to {error.latest}"
        loss = DataLost(f"{held}, and {error.offset} was to be read")
        following = min(wanted.end, error.earliest) if error.earliest > wanted.start else wanted.end
    elif isinstance(error, TopicReplaced) or error.code in GONE:
        loss = DataLost(f"{wanted.place} is not there any more ({error.message})")
        following = wanted.end
    else:
        raise error
    if options["failOnDataLoss"]:
        raise loss from error
    logger.warning("records of %s up to %d are gone: %s", wanted.place, following, error.message)
    return following
