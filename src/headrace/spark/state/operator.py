"""What an operator with state is, and how a batch of rows goes through a bucket: no Spark in here.

An operator sees a batch and a bucket at once, in columns: the keys that the batch touches, what is held of each, and
the rows with the number of their key. A key is touched by rows, or by its deadline, or by both; there is no other
call. The operator answers with the rows to give out and, for every touched key, its new state and its next deadlines:

    wake    touch the key again when the clock has come here, with or without rows
    expire  forget the key when the clock has come here, without asking

The clock is the watermark for an operator in event time and the time of the micro-batch for one in processing time. One
without deadlines has none, and should say so: for an operator with a clock Spark runs batches without rows, without
end. Rows behind the watermark are late: they are counted and left out, unless the operator judges that itself. At the
end of a bounded input the clock jumps to the end of time, so all that waits comes out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.description import Description, parameters_of
from headrace.spark.state.bucket import BEGINNING, NEVER, Bucket, Flags, Ints, Key, Layout, StateMismatch

__all__ = [
    "BEGINNING",
    "END",
    "BucketContents",
    "Clock",
    "Operator",
    "Outcome",
    "Step",
    "Touched",
    "advance",
    "as_lists",
    "earliest",
    "factorize",
    "fields_of",
    "flatten",
    "furthest",
    "latest",
    "micros",
    "run_bounded",
    "search",
    "whole",
]

Clock = Literal["event", "processing", "none"]
END = NEVER - 1
"""The clock after the last row of a bounded input: all deadlines have come but NEVER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The keys that a batch touches, with their states and rows."""

    keys: pa.StructArray
    held: pa.StructArray
    """Their states, null where there is none."""
    rows: pa.Table
    codes: npt.NDArray[np.int64]
    """For each row the number of its key."""
    now_us: int
    late_before_us: int
    """Rows with earlier times are late. It is now, unless the rows come out of another operator."""
    shared: pa.Table
    """Rows that concern every key (``Operator.everywhere``). When there are any, all keys of the bucket are touched."""
    keyless: pa.Table
    """Rows without a key (``Operator.keyless``), which touch none."""
    whole: BucketContents
    memory: dict[str, Any]
    """What the operator wants to keep in this process, for all buckets of this use of it. It may be empty at any time,
    and may come from a batch that failed or from another bucket: what it says has to be checked against the state."""


@dataclass(frozen=True, slots=True)
class BucketContents:
    """All that a bucket held before the batch, for operators with rows that have no key."""

    bucket: Bucket

    @property
    def stamp(self) -> tuple[str, ...]:
        """The same stamp means the same states."""
        return tuple(each.chunk_id for each in self.bucket.chunks)

    def keys(self) -> list[Key]:
        return self.bucket.live_keys()

    def state_of(self, key: Key) -> dict[str, Any] | None:
        """What was held of one key."""
        places = self.bucket.find([key])
        if not self.bucket.alive(places)[0]:
            return None
        found: dict[str, Any] | None = self.bucket.gather(places)[0].as_py()
        return found

    def column(self, name: Literal["key", "state"]) -> pa.StructArray:
        """In the order of ``keys``."""
        kept = [each.batch.column(name).filter(pa.array(each.current & each.live)) for each in self.bucket.chunks]
        return pa.concat_arrays(kept) if kept else pa.array([], self.bucket.layout.schema.field(name).type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of a batch. Everything but the output is per touched key, in their order."""

    output: pa.Table
    states: pa.StructArray
    keep: Flags
    """False: nothing is to be held of the key."""
    wake_us: Ints | None = None
    expire_us: Ints | None = None
    changed: Flags | None = None
    """False: what is held of the key is right as it is. For operators without deadlines; all are changed when None."""
    late_rows: int = 0
    """How many of the rows were late, of an operator that judges that itself."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """By the names of ``Operator.counters``."""


class Operator(ABC):
    """Keyed logic in Arrow columns. It must hold no state in itself: it is copied to many processes."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raise it whenever the columns of the state change, and give ``upgrade``."""
    clock: ClassVar[Clock] = "event"
    free: ClassVar[tuple[str, ...]] = ()
    """Fields, without ``_us``, that may have other values than those that a checkpoint was made with."""
    judges_lateness: ClassVar[bool] = False
    """True: late rows, and those without a time, are handed to ``step`` as well, which says how many they were."""
    everywhere: ClassVar[str | None] = None
    """A boolean column of the input. A row where it is true goes to every bucket and touches every key there."""
    copied: ClassVar[str | None] = None
    """A boolean column of the input. A row where it is true goes to every bucket, under its own key: so every bucket
    holds that key. All others go to the bucket of their key."""
    keyless: ClassVar[str | None] = None
    """A boolean column of the input. A row where it is true has no key and goes to one bucket, whichever. All others go
    to every bucket, so that every bucket holds every key."""
    counters: ClassVar[Mapping[str, Literal["sum", "max"]]] = MappingProxyType({})
    """What the progress shows beside rows and late rows: a sum over the buckets of a batch, or the largest."""

    @property
    @abstractmethod
    def state(self) -> pa.StructType:
        """The columns held for each key."""

    @property
    @abstractmethod
    def output(self) -> pa.Schema: ...

    @property
    def output_time(self) -> str | None:
        """The event-time column of the output, for an operator that follows; None if the output has no order in time.

        Once the clock has reached a time and the operator has seen a batch at it, no row with an earlier time comes
        out.
        """
        return None

    @abstractmethod
    def step(self, touched: Touched) -> Step: ...

    def upgrade(self, states: pa.StructArray, version: int) -> pa.StructArray:
        """Convert states of an older version to the columns of this one."""
        raise StateMismatch(
            f"{self.name}: the checkpoint has states of version {version} and the program has {self.version}, without "
            f"upgrade(): give one, or start over with an empty checkpoint"
        )

    def describe(self, keys: pa.StructType, buckets: int, also: Mapping[str, str] | None = None) -> Description:
        """How a checkpoint knows the operator. ``also``: what else its state depends on."""
        return Description(
            kind=self.name,
            version=self.version,
            buckets=buckets,
            keys=tuple((each.name, str(each.type)) for each in keys),
            state=str(self.state),
            parameters={**parameters_of(self), **(also or {})},
            free=self.free,
        )

    def layout(self, keys: pa.StructType) -> Layout:
        return Layout(keys, self.state, self.version, self.upgrade)


@dataclass(frozen=True, slots=True)
class Outcome:
    output: pa.Table
    late_rows: int
    counts: Mapping[str, int]


def advance(
    bucket: Bucket,
    operator: Operator,
    rows: pa.Table,
    *,
    now_us: int,
    event_time: str | None = None,
    follows: bool = False,
    memory: dict[str, Any] | None = None,
) -> Outcome:
    """Take the rows of one batch into the bucket, and all deadlines that have come by now.

    ``follows``: the rows come out of another operator, which gives out what has become final by now, so with times
    before now. Then rows are late only if they are older than the clock was when this bucket was last worked on:
    nothing that was settled then concerns younger ones.
    """
    late_rows = 0
    late_before_us = bucket.clock_us if follows else now_us
    bucket.clock_us = max(bucket.clock_us, now_us)
    if not operator.judges_lateness:
        rows, late_rows = _in_time(rows, event_time, late_before_us if operator.clock == "event" else BEGINNING)
    keyless, rows = _divided(rows, operator.keyless)
    shared, rows = _divided(rows, operator.everywhere)
    codes, keys = factorize(rows, bucket.layout.keys)
    python_keys = bucket.layout.python_keys(keys)
    places = bucket.find(python_keys)
    woken, expired = _due(bucket, places, now_us)
    if shared.num_rows:
        known = np.r_[places, woken, expired]
        others = bucket.find(bucket.live_keys())
        woken = np.r_[woken, others[~np.isin(others, known)]]
    if len(woken):
        keys = pa.concat_arrays([keys, bucket.gather(woken, "key")])
        python_keys, places = python_keys + bucket.keys_at(woken), np.r_[places, woken]
    output = operator.output.empty_table()
    changes, counts = [], dict.fromkeys(operator.counters, 0)
    if python_keys or keyless.num_rows:
        valid = bucket.alive(places) & ~bucket.expired(places, late_before_us)
        held = bucket.gather(np.where(valid, places, -1))
        touched = Touched(
            keys=keys,
            held=held,
            rows=rows,
            codes=codes,
            now_us=now_us,
            late_before_us=late_before_us,
            shared=shared,
            keyless=keyless,
            whole=BucketContents(bucket),
            memory={} if memory is None else memory,
        )
        step = operator.step(touched)
        assert operator.clock != "none" or (step.wake_us is None and step.expire_us is None), operator.name
        output = step.output
        late_rows += step.late_rows
        counts |= step.counts
        changes.append(_changes(bucket, touched, python_keys, places, step))
    if len(expired):
        changes.append(_removal(bucket, expired))
    _write(bucket, changes)
    bucket.late_rows += late_rows
    return Outcome(output, late_rows, counts)


def _divided(rows: pa.Table, column: str | None) -> tuple[pa.Table, pa.Table]:
    """The rows where a boolean column is true, and the others."""
    if column is None:
        return rows.slice(0, 0), rows
    flags = rows.column(column).fill_null(False)
    return rows.filter(flags), rows.filter(pc.invert(flags))


def _due(bucket: Bucket, with_rows: Ints, now_us: int) -> tuple[Ints, Ints]:
    """Places of keys without rows whose deadline has come: of those to be woken, and those to be forgotten."""
    due = bucket.due(now_us)
    due = due[~np.isin(due, with_rows)]
    gone = bucket.expired(due, now_us)
    return due[~gone], due[gone]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """Rows for the bucket."""

    keys: pa.StructArray
    python_keys: list[Key]
    places: Ints
    """What is known of the keys."""
    live: Flags
    wake: Ints
    expire: Ints
    states: pa.StructArray


def _changes(bucket: Bucket, touched: Touched, python_keys: list[Key], places: Ints, step: Step) -> _Changes:
    count = len(python_keys)
    wake = np.full(count, NEVER) if step.wake_us is None else step.wake_us
    expire = np.full(count, NEVER) if step.expire_us is None else step.expire_us
    live = step.keep & (expire > touched.now_us)
    # Of a key that was not held and is not to be, nothing is written.
    needed = live | bucket.alive(places)
    written = np.flatnonzero(needed if step.changed is None else needed & step.changed)
    chosen = pa.array(written)
    return _Changes(
        keys=touched.keys.take(chosen),
        python_keys=[python_keys[each] for each in written.tolist()],
        places=places[written],
        live=live[written],
        wake=wake[written],
        expire=expire[written],
        states=step.states.take(chosen),
    )


def _removal(bucket: Bucket, places: Ints) -> _Changes:
    never = np.full(len(places), NEVER)
    return _Changes(
        keys=bucket.gather(places, "key"),
        python_keys=bucket.keys_at(places),
        places=places,
        live=np.zeros(len(places), np.bool_),
        wake=never,
        expire=never,
        states=pa.nulls(len(places), bucket.layout.state),
    )


def _write(bucket: Bucket, changes: list[_Changes]) -> None:
    """One chunk, whatever there is to write."""
    python_keys = [key for each in changes for key in each.python_keys]
    if python_keys:
        bucket.append(
            pa.concat_arrays([each.keys for each in changes]),
            python_keys,
            live=np.concatenate([each.live for each in changes]),
            wake=np.concatenate([each.wake for each in changes]),
            expire=np.concatenate([each.expire for each in changes]),
            states=pa.concat_arrays([each.states for each in changes]),
            places=np.concatenate([each.places for each in changes]),
        )


def run_bounded(operator: Operator, rows: pa.Table, keys: pa.StructType, event_time: str | None) -> pa.Table:
    """The operator on all rows at once."""
    bucket = Bucket(operator.layout(keys))
    first = advance(bucket, operator, rows, now_us=BEGINNING, event_time=event_time)
    last = advance(bucket, operator, rows.slice(0, 0), now_us=END, event_time=event_time)
    return pa.concat_tables([first.output, last.output])


def _in_time(rows: pa.Table, event_time: str | None, watermark_us: int) -> tuple[pa.Table, int]:
    """The rows that are not late, and how many are; a row without a time is late at any time."""
    if event_time is None or not rows.num_rows:
        return rows, 0
    times = rows.column(event_time).cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
    kept = pc.fill_null(pc.greater_equal(times, pa.scalar(watermark_us, pa.int64())), False)
    chosen = rows.filter(kept)
    return chosen, rows.num_rows - chosen.num_rows


# ---- columns by key ------------------------------------------------------------------------------------------------


def factorize(rows: pa.Table, kind: pa.StructType) -> tuple[Ints, pa.StructArray]:
    """For each row the number of its key, and the keys in the order of these numbers."""
    if len(kind) == 1:  # the dictionary is the keys
        (field,) = kind
        encoded = whole(rows.column(field.name)).dictionary_encode(null_encoding="encode")
        keys = encoded.dictionary.cast(field.type)
        return np.asarray(encoded.indices, np.int64), pa.StructArray.from_arrays([keys], fields=[field])
    codes = np.zeros(rows.num_rows, np.int64)
    for each in kind:
        encoded = whole(rows.column(each.name)).dictionary_encode(null_encoding="encode")
        codes = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy(zero_copy_only=False)
        _, codes = np.unique(codes, return_inverse=True)  # dense again, so that products stay small
    _, first = np.unique(codes, return_index=True)
    columns = [whole(rows.column(each.name)).take(pa.array(first)).cast(each.type) for each in kind]
    return codes.astype(np.int64), pa.StructArray.from_arrays(columns, fields=list(kind))


def whole(column: pa.ChunkedArray) -> pa.Array:
    """One array, also of no chunk at all."""
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def fields_of(structs: pa.StructArray) -> dict[str, pa.Array]:
    """The columns of structs by their names, null where the struct is."""
    return dict(zip([each.name for each in structs.type], structs.flatten(), strict=True))


def micros(column: pa.ChunkedArray | pa.Array) -> Ints:
    """Times as microseconds since 1970; there must be no nulls among them."""
    found: Ints = np.asarray(column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64()), np.int64)
    return found


def flatten(lists: pa.ListArray) -> tuple[Ints, pa.Array]:
    """The elements of all lists, and for each the number of its list; a null is an empty list."""
    return np.asarray(pc.list_parent_indices(lists), np.int64), lists.flatten()


def as_lists(codes: Ints, elements: pa.Array, count: int) -> pa.ListArray:
    """The opposite: elements in the order of their lists, which are ``count`` many."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(codes, minlength=count), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), elements)


def earliest(codes: Ints, times: Ints, count: int) -> Ints:
    """The earliest time of each key, NEVER without any."""
    found = np.full(count, NEVER)
    np.minimum.at(found, codes, times)
    return found


def latest(codes: Ints, times: Ints, count: int) -> Ints:
    found = np.full(count, BEGINNING)
    np.maximum.at(found, codes, times)
    return found


def furthest(codes: Ints, times: Ints) -> Ints:
    """The latest time so far of each row's key, of rows that are sorted by key."""
    values, ranks = np.unique(times, return_inverse=True)
    floor = codes * len(values)
    return values[np.maximum.accumulate(floor + ranks) - floor] if len(times) else times


def search(codes: Ints, times: Ints, wanted_codes: Ints, wanted_times: Ints) -> Ints:
    """``np.searchsorted`` within each key: how many of the sorted (key, time) pairs are before each wanted pair."""
    count = len(codes)
    is_row = np.r_[np.ones(count, np.int8), np.zeros(len(wanted_codes), np.int8)]
    order = np.lexsort((is_row, np.r_[times, wanted_times], np.r_[codes, wanted_codes]))
    rows_so_far = np.cumsum(order < count)
    found = np.empty(len(wanted_codes), np.int64)
    asked = order >= count
    found[order[asked] - count] = rows_so_far[asked]
    return found
