"""What a checkpoint holds: totals, and the state of one key. For people and tests, while a query runs or after.

It reads what the last committed batch left, through Spark's own reader of state stores, and knows no operator: chunks
say themselves what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.errors import UsageError
from headrace.spark.state import BUCKET, bucket_of
from headrace.spark.state_bucket import NEVER, VERSION_FIELD, Bucket, Layout, Manifest

__all__ = ["KeyState", "StateTotals", "state_of", "state_totals"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTotals:
    """Over all buckets of an operator."""

    keys: int
    timers: int
    bytes: int
    late_rows: int
    buckets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    state: dict[str, Any]
    wake: datetime | None
    """When the operator looks at the key again, by its clock."""
    expire: datetime | None


def state_totals(spark: SparkSession, checkpoint: str, *, operator: int = 0) -> StateTotals:
    """What the stateful operator of this number (in the order of the query, from 0) holds."""
    found = list(_manifests(spark, checkpoint, operator).values())
    return StateTotals(
        keys=sum(each.key_count for each in found),
        timers=sum(each.timer_count for each in found),
        bytes=sum(each.byte_count for each in found),
        late_rows=sum(each.late_rows for each in found),
        buckets=len(found),
    )


def state_of(spark: SparkSession, checkpoint: str, key: Mapping[str, Any], *, operator: int = 0) -> KeyState | None:
    """What is held of one key, as ``{"user": "anna"}``; None when nothing is."""
    manifests = _manifests(spark, checkpoint, operator)
    chunks = _stored(spark, checkpoint, operator, "chunks")
    sample = chunks.select("user_map_value.data").limit(1).collect()
    if not sample:
        return None
    layout = _layout(bytes(sample[0].data))
    names = [each.name for each in layout.keys]
    if sorted(names) != sorted(key):
        raise UsageError(
            f"the key {dict(key)} does not name the columns of the state's keys", f"they are {', '.join(names)}"
        )
    values = tuple(key[name] for name in names)
    bucket_count = next(iter(manifests.values())).bucket_count
    one = spark.createDataFrame([values], from_arrow_schema(pa.schema(list(layout.keys))))
    number = int(one.select(bucket_of(names, bucket_count)).collect()[0][0])
    if number not in manifests:
        return None
    rows = chunks.where(F.col("key")[BUCKET] == number).select("user_map_key.id", "user_map_value.data").collect()
    bucket = Bucket(layout)
    bucket.refresh(manifests[number], _Collected({row.id: bytes(row.data) for row in rows}))
    return _in_bucket(bucket, one.toArrow(), names)


def _in_bucket(bucket: Bucket, keys: pa.Table, names: list[str]) -> KeyState | None:
    columns = [keys.column(each.name).cast(each.type).combine_chunks() for each in bucket.layout.keys]
    wanted = bucket.layout.python_keys(pa.StructArray.from_arrays(columns, fields=list(bucket.layout.keys)))
    places = bucket.find(wanted)
    if not bucket.alive(places)[0]:
        return None
    wake, expire = (bucket.gather(places, name)[0].as_py() for name in ("wake", "expire"))
    return KeyState(state=bucket.gather(places)[0].as_py(), wake=_when(wake), expire=_when(expire))


def _when(deadline_us: int) -> datetime | None:
    return None if deadline_us == NEVER else EPOCH + timedelta(microseconds=int(np.int64(deadline_us)))


@dataclass(frozen=True, slots=True)
class _Collected:
    """Chunks of a bucket, to be read only."""

    chunks: Mapping[str, bytes]

    def chunk(self, chunk_id: str) -> bytes:
        return self.chunks[chunk_id]


def _manifests(spark: SparkSession, checkpoint: str, operator: int) -> dict[int, Manifest]:
    rows = _stored(spark, checkpoint, operator, "manifest").select(F.col("key")[BUCKET], "value.manifest").collect()
    return {int(row[0]): Manifest.decode(bytes(row[1])) for row in rows}


def _stored(spark: SparkSession, checkpoint: str, operator: int, variable: str) -> DataFrame:
    reader = spark.read.format("statestore").option("operatorId", operator).option("stateVarName", variable)
    return reader.load(checkpoint)


def _layout(chunk: bytes) -> Layout:
    with pa.ipc.open_stream(chunk) as reader:
        schema = reader.schema
    return Layout(schema.field("key").type, schema.field("state").type, int(schema.metadata[VERSION_FIELD]))
