"""Keyed state on Spark: an operator (``operator``) applied to a DataFrame, bounded or not.

Spark's ``transformWithState`` pays a round trip through a socket for every call, and hands rows to Python one by one.
So a key is not its unit here. Rows go through three steps that each work on columns:

    pack      in the task that has the rows: sorted by bucket = hash(key) mod n, one Arrow message for each bucket
    keep      transformWithState, grouped by bucket: the messages of a bucket meet its state, in one call
    unpack    the results, Arrow messages too, become rows again

The state of a bucket is a manifest and chunks (``bucket``). They live in Spark's state store, so checkpoints,
restarts and replays are Spark's. A Python worker keeps the buckets that it has worked on in memory; the manifest tells
it what of that is still true, and it fetches only what it lacks. The cost of a batch depends on the keys it touches,
not on the keys in state.

Spark drops rows behind the watermark on their way into state when it can see their event time. In a packed message it
cannot, so late rows arrive and are counted here, by the same watermark. And it forgets which column has the event time
when Python has rewritten the rows; the results say it again, so that one operator can follow another.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 as all Spark programs call them
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from pyspark.sql.types import AtomicType as Atomic

from headrace.errors import UsageError
from headrace.spark.arguments import plain_columns, with_dots, without_dots
from headrace.spark.description import Description
from headrace.spark.plan import DESCRIPTION, METRIC, WATERMARK, event_times, keeps_state, observed_names, refuse_connect
from headrace.spark.state.bucket import NEVER, Bucket, Manifest, StateMismatch
from headrace.spark.state.operator import BEGINNING, Clock, Operator, advance, run_bounded
from headrace.spark.state.placement import BUCKET, part_of, with_buckets
from headrace.spark.state.spill import in_parts
from headrace.spark.workers import settle

__all__ = [
    "BUCKET",
    "BUCKETS",
    "BUCKETS_CONF",
    "CACHE_BYTES_CONF",
    "COMPARE_CONF",
    "Plan",
    "all_nullable",
    "apply_operator",
    "arrow_schema",
    "free_name",
    "key_type",
    "packing",
    "united",
    "unpacking",
    "watermarked",
]

BUCKETS_CONF = "spark.headrace.state.buckets"
BUCKETS = 8
"""Without that setting. Each bucket costs some milliseconds a batch, and is the work of one task at a time: more cores
can use more. A checkpoint keeps the number that it began with."""
CACHE_BYTES_CONF = "spark.headrace.state.cacheBytes"
CACHE_BYTES_MAX = 1 << 30
"""Without that setting. What a Python worker keeps of buckets in memory; the least recently used go first and are read
again when needed."""
COMPARE_CONF = "spark.headrace.state.compare"
"""Whether a query compares itself with the one whose state its checkpoint has; ``true`` without that setting.
``headrace run`` compares them before it starts a query, and says what differs."""
PACK_BYTES_MAX = 32 << 20
BOUNDED_BYTES_MAX = 128 << 20
"""Rows of a bounded frame that an operator works on at a time; more are put on disk first."""
OUTPUT_ROWS_MAX = 1 << 16
PART = "_part"
CHUNK_ID = StructType().add("id", StringType())
CHUNK = StructType().add("data", BinaryType())
"""Not as text, which Spark would parse in every task."""
VARIABLE = "chunks"
TIME_MODES: dict[Clock, str] = {"event": "EventTime", "processing": "ProcessingTime", "none": "None"}
MANIFEST_ID = ""
"""The manifest lies beside the chunks."""
KEPT = "_bucket int, payload binary, rows long, late_rows long, keys long, timers long, bytes long"
"""What comes out of a bucket, with the operator's counters after it."""
MEMORIES_MAX = 8
"""Uses of operators whose memory a worker keeps."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that tasks need to know; it is sent to them."""

    operator: Operator
    rows: pa.Schema
    keys: pa.StructType
    event_time: str | None
    buckets: int
    follows: bool
    """Whether the rows come out of another stateful operator."""
    cache_bytes: int
    uid: str
    """Of this use of the operator in this run, so that workers do not mix up what they keep."""
    meaning: str = ""
    """What the state means; state with another meaning is refused if ``compares``."""
    compares: bool = False


def apply_operator(
    rows: DataFrame | Mapping[str, DataFrame],
    operator: Operator,
    *,
    keys: Sequence[str],
    event_time: str | None = None,
    buckets: int | None = None,
    name: str | None = None,
    also: Mapping[str, str] | None = None,
) -> DataFrame:
    """Apply an operator to a bounded frame or to a stream.

    ``rows`` may be several inputs by name: the operator then sees the keys, ``event_time``, and a column per input, a
    struct of its other columns that is null in rows of the others (``united``). ``event_time``: the column by which
    rows can be late. ``buckets`` (or the setting ``spark.headrace.state.buckets``) is fixed by the first run of a
    checkpoint. ``name``: the progress of a stream shows its state as ``observedMetrics["state <name>"]``. ``also`` is
    added to the operator's description: how the rows were prepared.
    """
    if isinstance(rows, Mapping):
        rows = united(rows, [*keys, *([event_time] if event_time and event_time not in keys else [])])
    refuse_connect(rows.sparkSession)
    if buckets is None:
        buckets = _setting(rows, BUCKETS_CONF, BUCKETS)
    if not 1 <= buckets <= 4096:
        raise UsageError(f"buckets={buckets} is outside [1, 4096]", f"{BUCKETS} is right for most machines")
    if rows.isStreaming and operator.clock == "event":
        watermarked(rows, event_time, operator.name)
    schema = arrow_schema(rows.schema)
    follows = rows.isStreaming and keeps_state(rows)
    cache_bytes = _setting(rows, CACHE_BYTES_CONF, CACHE_BYTES_MAX)
    plan = Plan(operator, schema, key_type(rows, keys), event_time, buckets, follows, cache_bytes, uuid.uuid4().hex)
    output = _spark_schema(operator, rows.schema)
    numbered = with_buckets(rows, operator, keys, buckets)
    if not rows.isStreaming:
        parted = without_dots(numbered.withColumn(PART, part_of(operator, keys)), schema.names)
        return parted.groupBy(BUCKET).applyInArrow(_bounded(plan), output)
    description = operator.describe(plan.keys, buckets, also)
    compares = rows.sparkSession.conf.get(COMPARE_CONF, "true") == "true"
    plan = replace(plan, meaning=description.meaning(), compares=compares)
    packed = without_dots(numbered, schema.names).mapInArrow(packing(plan), f"{BUCKET} int, payload binary")
    kinds = ", ".join([KEPT, *(f"`{each}` long" for each in operator.counters)])
    kept = packed.groupBy(BUCKET).transformWithState(_Keeper(plan), kinds, "Append", TIME_MODES[operator.clock])
    shown = name or free_name(f"{operator.name}({', '.join(keys)})", rows)
    return _observed(kept, shown, description, operator).mapInArrow(unpacking(plan), output)


def united(inputs: Mapping[str, DataFrame], shared: Sequence[str]) -> DataFrame:
    """Several inputs as one, since Spark's state takes one: the columns that all have, and a struct for each input."""
    parts = {
        name: rows.select(
            *plain_columns(shared),
            F.struct(*plain_columns(each for each in rows.columns if each not in shared)).alias(name),
        )
        for name, rows in inputs.items()
    }
    filled = [
        part.withColumns({other: _nothing_like(parts[other], other) for other in parts if other != name})
        for name, part in parts.items()
    ]
    return functools.reduce(DataFrame.unionByName, filled)


def _nothing_like(frame: DataFrame, column: str) -> Column:
    """A null of the column's type, every part of which may be null: so its union with the column is the same type."""
    return F.lit(None).cast(all_nullable(frame.schema[column].dataType))


def _setting(rows: DataFrame, name: str, default: int) -> int:
    text = rows.sparkSession.conf.get(name, None)
    if text is None:
        return default
    if not str(text).isdecimal() or int(text) < 1:
        raise UsageError(f"{name}={text!r} is no number above 0", f"{default} is the default")
    return int(text)


def _spark_schema(operator: Operator, rows: StructType) -> StructType:
    """Columns that pass through keep Spark's type: several of those are one type of Arrow's."""
    passing = {field.name: field.dataType for field in rows}
    same = arrow_schema(rows)
    found = StructType()
    for field in operator.output:
        passes = field.name in passing and same.field(field.name).type == field.type
        kind = passing[field.name] if passes else from_arrow_type(field.type)
        # What ``withWatermark`` writes there. Spark looks for it where state has to be let go.
        remark = {WATERMARK: 0} if field.name == operator.output_time else None
        found.add(field.name, kind, True, remark)
    return found


def free_name(wanted: str, *frames: DataFrame, prefix: str = METRIC) -> str:
    """Spark takes a name of metrics once per query, and an operator may follow another one of its kind."""
    taken = {each for rows in frames for each in observed_names(rows)}
    numbered = itertools.chain([wanted], (f"{wanted} {number}" for number in itertools.count(2)))
    return next(each for each in numbered if f"{prefix}{each}" not in taken)


def _observed(kept: DataFrame, name: str, description: Description, operator: Operator) -> DataFrame:
    """The description stands in the plan, where ``plan`` finds it, and goes out with every progress."""
    sums = [F.sum(column).alias(column) for column in ("rows", "late_rows")]
    sums += [(F.sum if how == "sum" else F.max)(each).alias(each) for each, how in operator.counters.items()]
    held = F.collect_list(F.struct(BUCKET, "keys", "timers", "bytes")).alias("buckets")
    described = F.first(F.lit(description.to_json())).alias(DESCRIPTION)
    return kept.observe(f"{METRIC}{name}", *sums, held, described)


# ---- what is asked of a frame --------------------------------------------------------------------------------------


def watermarked(rows: DataFrame, event_time: str | None, what: str) -> None:
    """Refuse a stream whose state would never be let go, before it starts."""
    if event_time is not None and WATERMARK in rows.schema[event_time].metadata:
        return
    column = event_time or "…"
    if keeps_state(rows):
        known = event_times(rows)
        raise UsageError(
            f"{what} follows another stateful function, whose results have no order in time by {column}",
            f"use {' or '.join(known)}, which has" if known else "write those to a topic, and read them from there",
        )
    raise UsageError(
        f"{what} on a stream needs a watermark on {column}: without one nothing is ever final and state only grows",
        f'say how late rows may come: hr.watermark(rows, "{column}", "10 minutes")',
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's columns as Arrow has them, with times in UTC and without remarks such as the watermark's."""
    found = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([pa.field(each.name, each.type) for each in found])


def all_nullable(kind: DataType) -> DataType:
    """The type with every part of it nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, all_nullable(each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(all_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(all_nullable(kind.keyType), all_nullable(kind.valueType), True)
    return kind


def key_type(rows: DataFrame, keys: Sequence[str]) -> pa.StructType:
    if not keys:
        raise UsageError("no column was given as the key", 'keys=["user"], say')
    fields = []
    for name in keys:
        if name not in rows.columns:
            raise UsageError(f"there is no column {name!r} to be the key", f"the columns are {', '.join(rows.columns)}")
        fields.append(pa.field(name, _one_key_type(name, rows.schema[name].dataType)))
    return pa.struct(fields)


def _one_key_type(name: str, kind: DataType) -> pa.DataType:
    if not isinstance(kind, Atomic) or isinstance(kind, FloatType | DoubleType):
        raise UsageError(
            f"{name!r} of type {kind.simpleString()} cannot be a key: equal ones are not always the same",
            f'a string, number, date or time can: rows.withColumn("{name}", …cast("string"))',
        )
    return to_arrow_type(kind, timezone="UTC")


# ---- the three steps -----------------------------------------------------------------------------------------------


def _bounded(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for table in in_parts(batches, PART, BOUNDED_BYTES_MAX):
            rows = with_dots(table, plan.rows.names).select(plan.rows.names).cast(plan.rows)
            yield from run_bounded(plan.operator, rows, plan.keys, plan.event_time).to_batches(OUTPUT_ROWS_MAX)

    return run


def packing(plan: Plan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        waiting: list[pa.RecordBatch] = []
        byte_count = 0
        for batch in batches:
            waiting.append(batch)
            byte_count += batch.nbytes
            if byte_count > PACK_BYTES_MAX:
                yield _packed(waiting, plan.rows)
                waiting, byte_count = [], 0
        if waiting:
            yield _packed(waiting, plan.rows)

    return pack


def _packed(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    table = with_dots(pa.Table.from_batches(batches), schema.names)
    buckets = np.asarray(table.column(BUCKET), np.int64)
    order = np.argsort(buckets, kind="stable")
    rows = table.select(schema.names).cast(schema).take(pa.array(order))
    numbers, starts = np.unique(buckets[order], return_index=True)
    ends = np.r_[starts[1:], len(order)]
    messages = [_message(rows.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]
    return pa.record_batch({BUCKET: pa.array(numbers, pa.int32()), "payload": pa.array(messages, pa.binary())})


def _message(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read(message: Any) -> pa.Table:
    with pa.ipc.open_stream(message) as reader:
        return reader.read_all()


def unpacking(plan: Plan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for payload in batch.column("payload"):
                if payload.is_valid:
                    yield from _read(payload.as_buffer()).to_batches()

    return unpack


# ---- transformWithState --------------------------------------------------------------------------------------------


class _Cache:
    """The buckets that this process has worked on."""

    def __init__(self) -> None:
        self.buckets: OrderedDict[tuple[str, int], Bucket] = OrderedDict()
        self.memories: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def memory(self, plan: Plan) -> dict[str, Any]:
        """What the operator keeps in this process."""
        found = self.memories.setdefault(plan.uid, {})
        self.memories.move_to_end(plan.uid)
        if len(self.memories) > MEMORIES_MAX:
            self.memories.popitem(last=False)
        return found

    def take(self, plan: Plan, number: int) -> Bucket:
        """Take the bucket out of the cache: a task that fails while it works on it leaves no half-changed copy
        there."""
        found = self.buckets.pop((plan.uid, number), None)
        return found or Bucket(plan.operator.layout(plan.keys))

    def put(self, plan: Plan, number: int, bucket: Bucket) -> None:
        self.buckets[(plan.uid, number)] = bucket
        byte_count = sum(each.memory_bytes for each in self.buckets.values())
        while byte_count > plan.cache_bytes and len(self.buckets) > 1:
            _, gone = self.buckets.popitem(last=False)
            byte_count -= gone.memory_bytes


_CACHE = _Cache()


class _Keeper(StatefulProcessor):
    """One call for each bucket that a batch touches."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def init(self, handle: StatefulProcessorHandle) -> None:
        settle()
        self.handle = handle
        # One variable: each takes Spark some milliseconds of every task to set up.
        self.stored = handle.getMapState(VARIABLE, CHUNK_ID, CHUNK)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        tables = [_read(row.payload) for row in rows]
        return self._advance(int(key[0]), pa.concat_tables(tables), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        return self._advance(int(key[0]), self.plan.rows.empty_table(), timerValues)

    def close(self) -> None:
        pass

    def _advance(self, number: int, rows: pa.Table, times: Any) -> Iterator[Row]:
        plan = self.plan
        data = self.manifest()
        before = Manifest() if data is None else Manifest.decode(data)
        _check(before, plan)
        bucket = _CACHE.take(plan, number)
        bucket.refresh(before, self)
        now_us = _now_us(plan.operator, times)
        outcome = advance(
            bucket,
            plan.operator,
            rows,
            now_us=now_us,
            event_time=plan.event_time,
            follows=plan.follows,
            memory=_CACHE.memory(plan),
        )
        after = bucket.save(before, plan.buckets, self, plan.meaning)
        self._set_timer(before.due_us, after.due_us)
        _CACHE.put(plan, number, bucket)
        held = {"keys": after.key_count, "timers": after.timer_count, "bytes": after.byte_count}
        # The first row carries what is held and counted; further ones only results.
        messages = [
            _message(outcome.output.slice(at, OUTPUT_ROWS_MAX))
            for at in range(0, outcome.output.num_rows, OUTPUT_ROWS_MAX)
        ]
        for index, message in enumerate(messages or [None]):
            counts = (rows.num_rows, outcome.late_rows) if index == 0 else (0, 0)
            counted = outcome.counts if index == 0 else dict.fromkeys(outcome.counts, 0)
            yield Row(_bucket=number, payload=message, rows=counts[0], late_rows=counts[1], **held, **counted)

    def _set_timer(self, before_us: int, after_us: int) -> None:
        """One timer of Spark's stands for all deadlines of the bucket."""
        if before_us == after_us:
            return
        if before_us != NEVER:
            self.handle.deleteTimer(_timer_ms(before_us))
        if after_us != NEVER:
            self.handle.registerTimer(_timer_ms(after_us))

    # What a bucket needs of its store:

    def manifest(self) -> bytes | None:
        found = self.stored.getValue((MANIFEST_ID,))
        return None if found is None else bytes(found[0])

    def put_manifest(self, data: bytes) -> None:
        self.put_chunk(MANIFEST_ID, data)

    def chunk(self, chunk_id: str) -> bytes:
        found = self.stored.getValue((chunk_id,))
        if found is None:
            raise StateMismatch(
                f"chunk {chunk_id} is missing in the state store: the checkpoint is damaged; start over"
            )
        return bytes(found[0])

    def put_chunk(self, chunk_id: str, data: bytes) -> None:
        self.stored.updateValue((chunk_id,), (data,))

    def remove_chunk(self, chunk_id: str) -> None:
        self.stored.removeKey((chunk_id,))


def _check(stored: Manifest, plan: Plan) -> None:
    if not stored.bucket_count:
        return
    if stored.bucket_count != plan.buckets:
        raise StateMismatch(
            f"the checkpoint has {stored.bucket_count} buckets and the program asks for {plan.buckets}: keys would "
            f"not be found again; say buckets={stored.bucket_count}, or start over with an empty checkpoint"
        )
    if stored.keys_type != str(plan.keys):
        raise StateMismatch(
            f"the checkpoint has keys {stored.keys_type} and the program has {plan.keys}: name and type of keys cannot "
            f"change; undo that, or start over with an empty checkpoint"
        )
    if plan.compares and stored.version == plan.operator.version and stored.meaning not in ("", plan.meaning):
        raise StateMismatch(
            f"the state of {plan.operator.name} in this checkpoint was made with other parameters, and would get "
            "another meaning; undo the change, or start over with an empty checkpoint. "
            f"{COMPARE_CONF}=false goes on with the old state"
        )


def _now_us(operator: Operator, times: Any) -> int:
    if operator.clock == "none":
        return BEGINNING
    if operator.clock == "processing":
        return int(times.getCurrentProcessingTimeInMs()) * 1000
    watermark_ms = int(times.getCurrentWatermarkInMs())
    return watermark_ms * 1000 if watermark_ms > 0 else BEGINNING  # Spark says 0 before it knows any


def _timer_ms(due_us: int) -> int:
    """Spark's timers go off when the clock has come to them, as deadlines here do, but count in milliseconds. One that
    went off before its deadline would be lost: Spark removes it, and nothing has changed that would set it again."""
    return -(-due_us // 1000)
