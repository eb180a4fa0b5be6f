"""What a task does: fetch the raw batches of a range and give Arrow batches with the columns that were asked for.

Memory stays within a few fetches, however long the range is: batches are decoded in groups of ``bytesPerBatch`` and
handed to Spark one group after the other. A broker that is away is waited for, up to ``retryTimeoutMs``; reading then
goes on at the exact offset where it stopped, so no row is lost or doubled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.batch import Batch
from headrace.client import BrokerUnreachable, Client, FetchOptions, fetch_batches, start_offsets
from headrace.client.consumer import committed_batches
from headrace.client.fetch import Fetched
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.spark.columns import check_plain, metadata
from headrace.spark.decode import Decoded, decode, grouped
from headrace.spark.options import SourceOptions, connect
from headrace.spark.positions import OffsetRange

__all__ = ["DataLost", "Plan", "read_range"]

FETCH_WAIT_MS = 500
PAUSE_S = 0.2

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
        return cls(options, schema)


def read_range(plan: Plan, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the range, with exactly the schema that Spark expects."""
    options = plan.options
    make = _maker(plan, wanted)
    names = set(plan.schema.fieldNames())
    typed = options["valueFormat"] is not None
    raw = _raw_batches(options, wanted)
    for group in grouped(raw, bytes_max=options["bytesPerBatch"]):
        decoded = decode(
            group,
            start=wanted.start,
            end=wanted.end,
            keys=bool(names & {"key", "_key"}) or options["onBadRecord"] == "deadletter",
            values=typed or "value" in names,
            headers=bool(names & {"headers", "_headers"}) or options["onBadRecord"] == "deadletter",
        )
        if decoded.row_count:
            yield from make(decoded)


class _PlainMaker:
    """Columns of the records as they are."""

    def __init__(self, plan: Plan, wanted: OffsetRange) -> None:
        self._schema = to_arrow_schema(plan.schema, timezone="UTC")
        self._wanted = wanted

    def __call__(self, decoded: Decoded) -> Iterator[pa.RecordBatch]:
        arrays = [metadata(name, decoded, self._wanted) for name in self._schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _maker(plan: Plan, wanted: OffsetRange) -> _PlainMaker:
    return _PlainMaker(plan, wanted)


# ---- raw batches ---------------------------------------------------------------------------------------------------


def _client_for(options: SourceOptions) -> Client:
    key = (options.bootstrap, tuple(sorted(options.kafka.items())))
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = connect(options, role="task")
    return client


def _raw_batches(options: SourceOptions, wanted: OffsetRange) -> Iterator[Batch]:
    client = _client_for(options)
    position = wanted.start
    fetch = FetchOptions(
        read_committed=options.read_committed, bytes_max=options.fetch_bytes, partition_bytes_max=options.fetch_bytes
    )
    while position < wanted.end:
        try:
            fetched = _patiently(options, partial(_fetch, client, wanted, position, fetch))
        except KafkaError as error:
            following = _after_loss(client, options, wanted, position, error)
            logger.warning("records of %s from %d to %d are gone", wanted.place, position, following)
            position = following
            continue
        yield from committed_batches(fetched) if options.read_committed else fetched.batches
        if fetched.batches:
            position = fetched.batches[-1].next_offset


def _fetch(client: Client, wanted: OffsetRange, position: int, fetch: FetchOptions) -> Fetched:
    def attempt() -> Fetched:
        fetched = fetch_batches(client, {wanted.place: position}, wait_ms=FETCH_WAIT_MS, options=fetch)[0]
        if fetched.error is not None:
            raise fetched.error
        return fetched

    return client.retrying(attempt)


def _patiently(options: SourceOptions, attempt: partial[Fetched]) -> Fetched:
    """A worker that has never reached the broker waits for it like one that has."""
    deadline = time.monotonic() + options["retryTimeoutMs"] / 1000
    while True:
        try:
            return attempt()
        except BrokerUnreachable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(PAUSE_S)


def _after_loss(client: Client, options: SourceOptions, wanted: OffsetRange, position: int, error: KafkaError) -> int:
    """Where to go on when the log no longer has a position; raises unless the user accepts the loss."""
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        loss = DataLost(f"{wanted.place} no longer exists")
        following = wanted.end
    elif error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
        earliest = start_offsets(client, [wanted.place])[wanted.place]
        loss = DataLost(f"{wanted.place} begins at {earliest}, and offset {position} was to be read")
        following = min(wanted.end, earliest) if earliest > position else wanted.end
    else:
        raise error
    if options["failOnDataLoss"]:
        raise loss from error
    return following
