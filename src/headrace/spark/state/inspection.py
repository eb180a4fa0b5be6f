"""What a checkpoint holds: totals, and the state of one key. For people and tests, while a query runs or after.

It reads what the last committed batch left, through Spark's own reader of state stores, and knows no operator: chunks
say themselves what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.errors import UsageError
from headrace.spark.plan import SparkFiles, refuse_connect
from headrace.spark.state.bucket import NEVER, VERSION_FIELD, Bucket, Layout, Manifest
from headrace.spark.state.kernel import BUCKET, MANIFEST_ID, VARIABLE
from headrace.spark.state.placement import bucket_of

__all__ = [
    "STATE_FORMAT",
    "KeyState",
    "StateTotals",
    "key_of",
    "names_files_once",
    "state_of",
    "state_operators",
    "state_totals",
]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
NAMED_ONCE = "v2"
"""How commits begin in a checkpoint whose state files have names that are used once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTotals:
    """Over all buckets of an operator."""

    keys: int
    timers: int
    bytes: int
    late_rows: int
    buckets: int
    keyed_by: str = ""
    """Names and types of the key's columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    state: dict[str, Any]
    wake: datetime | None
    """When the operator looks at the key again, by its clock."""
    expire: datetime | None


def state_totals(spark: SparkSession, checkpoint: str, *, operator: int = 0) -> StateTotals:
    """Keys, timers, bytes and late rows of a stateful operator; ``operator`` is its number in the query, from 0."""
    with _reading(spark, checkpoint):
        found = list(_manifests(spark, checkpoint, operator).values())
    return StateTotals(
        keys=sum(each.key_count for each in found),
        timers=sum(each.timer_count for each in found),
        bytes=sum(each.byte_count for each in found),
        late_rows=sum(each.late_rows for each in found),
        buckets=len(found),
        keyed_by=found[0].keys_type.removeprefix("struct<").removesuffix(">") if found else "",
    )


def state_operators(spark: SparkSession, checkpoint: str) -> list[int]:
    """The numbers of the operators of this kernel in a checkpoint; Spark's own keep their state otherwise."""
    known = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").distinct()
    ours = [int(row.operatorId) for row in known.collect() if str(row.operatorName).startswith("transformWithState")]
    return sorted(ours)


def key_of(text: str, columns: Sequence[str]) -> dict[str, Any]:
    """A key as people write it: ``anna``, ``shop=7,user=anna`` or ``{"shop": 7, "user": "anna"}``."""
    try:
        if text.startswith("{"):
            return dict(json.loads(text))
    except ValueError:
        raise UsageError(f"{text!r} is no JSON object", '{"user": "anna"}, say') from None
    if len(columns) == 1 and not text.startswith(f"{columns[0]}="):
        return {columns[0]: text}
    pairs = [each.partition("=") for each in text.split(",")]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError(f"{text!r} does not say which column has which value", f"the key is {', '.join(columns)}")
    return {name.strip(): value for name, _, value in pairs}


def state_of(
    spark: SparkSession, checkpoint: str, key: Mapping[str, Any] | str, *, operator: int = 0
) -> KeyState | None:
    """The state of one key, given as ``{"user": "anna"}`` or as text that ``key_of`` reads; None if there is none.

    A value that is given as text is read as the type of its column.
    """
    with _reading(spark, checkpoint):
        return _state_of(spark, checkpoint, key, operator)


def names_files_once(spark: SparkSession, checkpoint: str) -> bool | None:
    """Whether the state files of a checkpoint have names that are used once; None before its first commit."""
    files, folder = SparkFiles(spark), f"{checkpoint}/commits"
    commits = [int(each) for each in files.names(folder) if each.isdecimal()] if files.exists(folder) else []
    return files.read(f"{folder}/{max(commits)}").startswith(NAMED_ONCE) if commits else None


@contextmanager
def _reading(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Spark's reader goes by the session's format of state files, whatever the checkpoint has."""
    refuse_connect(spark)
    before = spark.conf.get(STATE_FORMAT, None)
    spark.conf.set(STATE_FORMAT, "2" if names_files_once(spark, checkpoint) else "1")
    try:
        yield
    finally:
        spark.conf.unset(STATE_FORMAT) if before is None else spark.conf.set(STATE_FORMAT, before)


def _state_of(spark: SparkSession, checkpoint: str, key: Mapping[str, Any] | str, operator: int) -> KeyState | None:
    manifests = _manifests(spark, checkpoint, operator)
    chunks = _stored(spark, checkpoint, operator).where(F.col("user_map_key.id") != MANIFEST_ID)
    sample = chunks.select("user_map_value.data").limit(1).collect()
    if not sample:
        return None
    layout = _layout(bytes(sample[0].data))
    names = [each.name for each in layout.keys]
    wanted = key_of(key, names) if isinstance(key, str) else dict(key)
    if sorted(names) != sorted(wanted):
        raise UsageError(
            f"the key {wanted} does not name the columns of the state's keys", f"they are {', '.join(names)}"
        )
    values = tuple(_typed(wanted[each.name], each) for each in layout.keys)
    bucket_count = next(iter(manifests.values())).bucket_count
    one = spark.createDataFrame([values], from_arrow_schema(pa.schema(list(layout.keys))))
    number = int(one.select(bucket_of(names, bucket_count)).collect()[0][0])
    if number not in manifests:
        return None
    rows = chunks.where(F.col("key")[BUCKET] == number).select("user_map_key.id", "user_map_value.data").collect()
    bucket = Bucket(layout)
    bucket.refresh(manifests[number], _Collected({row.id: bytes(row.data) for row in rows}))
    return _in_bucket(bucket, one.toArrow(), names)


def _typed(value: Any, column: pa.Field) -> Any:
    if not isinstance(value, str) or pa.types.is_string(column.type):
        return value
    try:
        return pa.scalar(value).cast(column.type).as_py()
    except pa.ArrowInvalid:
        raise UsageError(f"{value!r} is no {column.type}, as which {column.name} is kept") from None


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
    stored = _stored(spark, checkpoint, operator).where(F.col("user_map_key.id") == MANIFEST_ID)
    rows = stored.select(F.col("key")[BUCKET], "user_map_value.data").collect()
    return {int(row[0]): Manifest.decode(bytes(row[1])) for row in rows}


def _stored(spark: SparkSession, checkpoint: str, operator: int) -> DataFrame:
    """Manifests and chunks."""
    reader = spark.read.format("statestore").option("operatorId", operator).option("stateVarName", VARIABLE)
    return reader.load(checkpoint)


def _layout(chunk: bytes) -> Layout:
    with pa.ipc.open_stream(chunk) as reader:
        schema = reader.schema
    return Layout(schema.field("key").type, schema.field("state").type, int(schema.metadata[VERSION_FIELD]))
