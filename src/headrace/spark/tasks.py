"""What a task does: fetch the raw batches of a range and give Arrow batches with the columns that were asked for.

Memory stays within a few fetches, however long the range is: batches are decoded in groups of ``bytesPerBatch`` and
handed to Spark one group after the other. A broker that is away is waited for, up to ``retryTimeoutMs``; reading then
goes on at the exact offset where it stopped, so no row is lost or doubled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client import Client, OffsetOutOfRange, RawBatch, TopicReplaced, fetch_range
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.spark.columns import check_plain, metadata
from headrace.spark.decode import Decoded, decode, grouped
from headrace.spark.options import SourceOptions, connect
from headrace.spark.positions import OffsetRange
from headrace.spark.typed import TypedMaker

__all__ = ["DataLost", "Plan", "read_range"]

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


def read_range(plan: Plan, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the range, with exactly the schema that Spark expects."""
    options = plan.options
    names = set(plan.schema.fieldNames())
    typed = options["valueFormat"] is not None
    letters = typed and options["onBadRecord"] == "deadletter"
    make = TypedMaker(options, plan.schema, wanted) if typed else _PlainMaker(plan, wanted)
    try:
        for group in grouped(_raw_batches(options, wanted), bytes_max=options["bytesPerBatch"]):
            decoded = decode(
                group,
                start=wanted.start,
                end=wanted.end,
                keys=bool(names & {"key", "_key"}) or letters,
                values=typed or "value" in names,
                headers=bool(names & {"headers", "_headers"}) or letters,
            )
            if decoded.row_count:
                yield from make(decoded)
    finally:
        make.close()


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


def _raw_batches(options: SourceOptions, wanted: OffsetRange) -> Iterator[RawBatch]:
    """The batches of the range, over what is gone if the user accepts that."""
    client = _client_for(options)
    position = wanted.start
    while position < wanted.end:
        batches = fetch_range(
            client,
            wanted.place,
            position,
            wanted.end,
            read_committed=options.read_committed,
            bytes_per_fetch=options.fetch_bytes,
            timeout_ms=options["retryTimeoutMs"],
        )
        try:
            for batch in batches:
                position = batch.next_offset
                yield batch
            return
        except KafkaError as error:
            position = _after_loss(options, wanted, position, error)


def _after_loss(options: SourceOptions, wanted: OffsetRange, position: int, error: KafkaError) -> int:
    """Where to go on when the log no longer has a position; raises unless the user accepts the loss."""
    if isinstance(error, OffsetOutOfRange):
        loss = DataLost(
            f"{wanted.place} holds offsets {error.earliest} to {error.latest}, and {error.offset} was to be read"
        )
        following = min(wanted.end, error.earliest) if error.earliest > position else wanted.end
    elif isinstance(error, TopicReplaced) or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        loss = DataLost(f"{wanted.place} is not there any more ({error.message})")
        following = wanted.end
    else:
        raise error
    if options["failOnDataLoss"]:
        raise loss from error
    logger.warning("records of %s from %d to %d are gone: %s", wanted.place, position, following, error.message)
    return following
