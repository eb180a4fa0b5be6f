"""Events into topics, one topic for each kind: JSON values, in batches that are encoded column by column.

After the last event each topic gets one that closes it: its time is far ahead, so that the watermark passes all
others and what waits for it comes out. Readers filter it out after the watermark (``streams``), so results know nothing
of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.chance import Ints
from benchmarks.nexmark.generator import KINDS, TIME, House
from headrace.client import Admin, Client, Producer
from headrace.spark.topic_sink.encode import Encoder, Rows

__all__ = ["BATCH_BYTES", "CLOSING", "STEP", "Loaded", "as_json", "closing", "load", "records"]

CLOSING = datetime(2100, 1, 1, tzinfo=UTC)
"""The time of the event that closes a topic."""
PREFIX = "nexmark"
STEP = 50_000
BATCH_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Loaded:
    """What stands in the topics, and how long it took to make and write it."""

    rows: dict[str, int]
    """Events of each kind, those that close not among them."""
    topics: dict[str, str]
    seconds: float
    schemas: Mapping[str, pa.Schema] = field(default_factory=lambda: KINDS)


def load(bootstrap: str, house: House, count: int, *, prefix: str = PREFIX, partitions: int = 2) -> Loaded:
    """Make ``count`` events and write them, in the order of their positions."""
    rows = dict.fromkeys(KINDS, 0)
    topics = {kind: f"{prefix}-{kind}" for kind in KINDS}
    began = time.monotonic()
    with Client(bootstrap) as client, Producer(client) as producer:
        for topic in topics.values():
            Admin(client).create_topic(topic, partitions=partitions)
        encoders = {kind: Encoder(topic, lambda _: partitions, BATCH_BYTES) for kind, topic in topics.items()}
        for first in range(0, count, STEP):
            for kind, made in house.events(first, min(first + STEP, count)):
                rows[kind] += made.rows.num_rows
                producer.send_all_prepared(encoders[kind].encode(records(made.rows, made.places % partitions)))
        producer.flush()
        seconds = time.monotonic() - began
        for kind, encoder in encoders.items():
            producer.send_all_prepared(encoder.encode(records(closing(KINDS[kind]), np.zeros(1, np.int64))))
    return Loaded(rows, topics, seconds)


def records(rows: pa.Table, places: Ints) -> Rows:
    return Rows(values=as_json(rows).cast(pa.binary()), partitions=pa.array(places, pa.int32()))


def closing(schema: pa.Schema) -> pa.Table:
    """The event that closes a topic: a time, and values that nothing else has.

    They are not null: Spark leaves out rows with a null in a join's key as early as it can, before the watermark.
    """
    values = {TIME: CLOSING, pa.int64(): -1, pa.float64(): -1.0, pa.bool_(): False, pa.string(): ""}
    return pa.Table.from_arrays([pa.array([values[each.type]], each.type) for each in schema], schema=schema)


def as_json(rows: pa.Table) -> pa.StringArray:
    """A JSON object for each row. No text of the generator needs escapes."""
    pieces = [piece for name in rows.column_names for piece in _member(name, rows.column(name).combine_chunks())]
    joined = pc.binary_join_element_wise("{", *pieces[1:], "}", "")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _member(name: str, values: pa.Array) -> Iterator[pa.Array | str]:
    """A comma (the first is left out), the name, and the value."""
    yield ","
    quoted = values.type in (TIME, pa.string())
    yield f'"{name}":"' if quoted else f'"{name}":'
    if values.type == TIME:  # zones are written slowly, and all times are UTC
        yield values.cast(pa.timestamp("ms")).cast(pa.string())
        yield 'Z"'
        return
    yield values.cast(pa.string())
    if quoted:
        yield '"'
