"""Rows become record batches without a Python step per row: the inverse of ``decode``.

A record is a few short numbers around key, value and headers (``headrace.record`` has the bytes). The numbers of all
rows are written as varints with numpy, and Arrow joins them with the columns, row by row, into one buffer: that buffer
is the batch. Rows are first brought in order by where they go; what decides that is, in this order, the column
``partition``, the key as the Java client hashes it, or nothing: such rows stay together and take turns between
partitions, so that batches are large.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import PreparedRecords, TopicPartition, partition_for_key
from headrace.errors import HeadraceError

__all__ = ["Encoder", "Rows", "Tally", "buffered", "murmur2_of_all"]

Ints = npt.NDArray[np.int64]
Pieces = list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]

BUFFER_BYTES = 4 * 1024 * 1024
"""Rows that are encoded together; with more of them each partition's batch is larger."""
VARINT_BYTES_MAX = 5
KEY_BYTES_TOGETHER_MAX = 256
"""Longer keys are hashed one by one: numpy would take a step per four bytes for a handful of rows."""

# Not by pa.scalar, which would import pandas: two seconds in every process that Spark starts for a sink.
_NOTHING = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]


@dataclass(slots=True)
class Rows:
    """Some rows of a task, each column as plain Arrow; what a frame does not have is None."""

    values: pa.BinaryArray
    keys: pa.BinaryArray | None = None
    headers: pa.ListArray | None = None
    topics: pa.StringArray | None = None
    partitions: pa.Int32Array | None = None

    @classmethod
    def of(cls, table: pa.Table) -> Rows:
        def column(name: str, kind: pa.DataType | None) -> Any:
            if name not in table.column_names:
                return None
            found = table.column(name).combine_chunks()
            if isinstance(found, pa.ChunkedArray):
                found = found.chunk(0) if found.num_chunks else pa.array([], found.type)
            return found if kind is None else found.cast(kind)

        return cls(
            values=column("value", pa.binary()),
            keys=column("key", pa.binary()),
            headers=column("headers", None),
            topics=column("topic", pa.string()),
            partitions=column("partition", pa.int32()),
        )

    def take(self, chosen: Ints) -> Rows:
        index = pa.array(chosen)

        def taken(column: Any) -> Any:
            return None if column is None else column.take(index)

        return Rows(taken(self.values), taken(self.keys), taken(self.headers))

    def slice(self, start: int, end: int) -> Rows:
        def part(column: Any) -> Any:
            return None if column is None else column.slice(start, end - start)

        return Rows(part(self.values), part(self.keys), part(self.headers))

    def __len__(self) -> int:
        return len(self.values)


def buffered(batches: Iterable[pa.RecordBatch], *, bytes_max: int = BUFFER_BYTES) -> Iterator[pa.Table]:
    """Batches joined to tables worth encoding at once."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= bytes_max:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


# ---- what was written, to recognise it again -----------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """Rows, bytes and a checksum that depends on their order, but not on how Spark cut them into batches."""

    rows: int = 0
    size: int = 0
    _crcs: dict[str, int] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        self.rows += len(rows)
        for name, column in (("key", rows.keys), ("value", rows.values), ("topic", rows.topics)):
            if column is not None:
                self._add_bytes(name, column.cast(pa.binary()))
        if rows.headers is not None:
            self._add_bytes("headers", _encoded_headers(rows.headers))
        if rows.partitions is not None:
            chosen = rows.partitions.fill_null(-1).to_numpy(zero_copy_only=False)
            self._extend("partition", np.ascontiguousarray(chosen, np.int32))

    def _add_bytes(self, name: str, column: pa.BinaryArray) -> None:
        self._extend(name + " size", lengths(column).astype(np.int32))
        data, start, end = _contents(column)
        self.size += end - start
        self._extend(name, data[start:end])

    def _extend(self, name: str, data: Any) -> None:
        self._crcs[name] = zlib.crc32(data, self._crcs.get(name, 0))

    @property
    def crc(self) -> int:
        return zlib.crc32(repr(sorted(self._crcs.items())).encode())


def lengths(column: pa.BinaryArray) -> Ints:
    """In bytes, -1 for null."""
    found = pc.binary_length(column)
    return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def _contents(column: pa.BinaryArray) -> tuple[memoryview, int, int]:
    """The bytes of all rows, one after the other: (buffer, first, last)."""
    if column.null_count:
        column = column.fill_null(b"")  # a null may have bytes
    _, offsets, data = column.buffers()
    if data is None or len(column) == 0:
        return memoryview(b""), 0, 0
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    return memoryview(data), int(ends[0]), int(ends[-1])


# ---- where rows go -------------------------------------------------------------------------------------------------


def murmur2_of_all(column: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """Kafka's hash of every key; see ``headrace.client.partitioner`` for the hash itself. Nulls hash as empty."""
    if column.null_count:
        column = column.fill_null(b"")
    sizes = lengths(column)
    data, first, last = _contents(column)
    raw = np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])) if len(sizes) else sizes
    hashed = np.zeros(len(sizes), np.uint32)
    for size in np.unique(sizes):
        of_size = np.nonzero(sizes == size)[0]
        hashed[of_size] = _murmur2(raw[starts[of_size][:, None] + np.arange(size)])
    return hashed


def _murmur2(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Of keys of one length, a row each."""
    count, size = keys.shape
    mix = np.uint32(0x5BD1E995)
    hashed = np.full(count, 0x9747B28C ^ size, np.uint32)
    words = np.ascontiguousarray(keys[:, : size // 4 * 4]).view("<u4")
    for word in words.T:
        word = word * mix
        word = (word ^ (word >> np.uint32(24))) * mix
        hashed = hashed * mix ^ word
    if size % 4:
        tail = np.zeros(count, np.uint32)
        for index in range(size // 4 * 4, size):
            tail |= keys[:, index].astype(np.uint32) << np.uint32(8 * (index % 4))
        hashed = (hashed ^ tail) * mix
    hashed = (hashed ^ (hashed >> np.uint32(13))) * mix
    return hashed ^ (hashed >> np.uint32(15))


def _by_key(keys: pa.BinaryArray, count: int) -> Ints:
    sizes = lengths(keys)
    if len(sizes) and sizes.max() > KEY_BYTES_TOGETHER_MAX:
        return np.array([partition_for_key(key or b"", count) for key in keys.to_pylist()], np.int64)
    return (murmur2_of_all(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count


# ---- records -------------------------------------------------------------------------------------------------------


class Encoder:
    """Encodes a task's rows. ``partition_count`` knows how many partitions a topic has."""

    def __init__(self, topic: str | None, partition_count: Callable[[str], int], batch_bytes: int) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._batch_bytes = batch_bytes
        self._turn = random.randrange(1 << 16)

    def encode(self, rows: Rows) -> Iterator[tuple[TopicPartition, PreparedRecords]]:
        """Batches for every partition, each partition's rows in their order."""
        if len(rows) == 0:
            return
        self._turn += 1
        timestamp = int(time.time() * 1000)
        names, topics = self._topics_of(rows)
        places = self._places(rows, names, topics)
        order = np.argsort(places, kind="stable")
        cuts = np.nonzero(np.diff(places[order]))[0] + 1
        for part in np.split(order, cuts):
            topic, partition = divmod(int(places[part[0]]), 1 << 32)
            chosen = rows if len(part) == len(rows) else rows.take(part)
            for batch in self._in_batches(chosen):
                yield TopicPartition(names[topic], partition), encode_rows(batch, timestamp)

    def _topics_of(self, rows: Rows) -> tuple[list[str], Ints]:
        """(names, which of them each row goes to). The option wins over the column, as in Spark's Kafka sink."""
        if self._topic is not None or rows.topics is None:
            assert self._topic is not None, "columns are checked before"
            return [self._topic], np.zeros(len(rows), np.int64)
        if rows.topics.null_count:
            raise HeadraceError("a row has no topic: its column topic is null; give option('topic', NAME) or filter it")
        found = rows.topics.dictionary_encode()
        return found.dictionary.to_pylist(), found.indices.to_numpy(zero_copy_only=False).astype(np.int64)

    def _places(self, rows: Rows, names: list[str], topics: Ints) -> Ints:
        """Topic and partition of each row in one number."""
        partitions = np.zeros(len(rows), np.int64)
        for index, name in enumerate(names):
            count = self._partition_count(name)
            if len(names) == 1:
                partitions = self._partitions(rows, name, count)
                continue
            here = np.nonzero(topics == index)[0]
            part = rows.take(here)
            if rows.partitions is not None:
                part.partitions = rows.partitions.take(pa.array(here))
            partitions[here] = self._partitions(part, name, count)
        return topics * (1 << 32) + partitions

    def _partitions(self, rows: Rows, topic: str, count: int) -> Ints:
        chosen = np.full(len(rows), self._turn % count, np.int64)
        if rows.keys is not None:
            with_key = rows.keys.is_valid().to_numpy(zero_copy_only=False)
            chosen = np.where(with_key, _by_key(rows.keys, count), chosen)
        if rows.partitions is None:
            return chosen
        wanted = rows.partitions.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        given = rows.partitions.is_valid().to_numpy(zero_copy_only=False)
        wrong = wanted[given & ((wanted < 0) | (wanted >= count))]
        if len(wrong):
            raise HeadraceError(f"a row's column partition is {wrong[0]}; topic {topic!r} has 0 to {count - 1}")
        return np.where(given, wanted, chosen)

    def _in_batches(self, rows: Rows) -> Iterator[Rows]:
        """Cut where a batch would become larger than ``batch_bytes``; a larger row is a separate batch."""
        sizes = lengths(rows.values).clip(0)
        if rows.keys is not None:
            sizes = sizes + lengths(rows.keys).clip(0)
        if rows.headers is not None:
            sizes = sizes + lengths(_encoded_headers(rows.headers))
        ends = np.cumsum(sizes + 16)
        start = 0
        while start < len(rows):
            before = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, before + self._batch_bytes, side="right")))
            yield rows if end - start == len(rows) else rows.slice(start, end)
            start = end


def encode_rows(rows: Rows, timestamp: int) -> PreparedRecords:
    """One batch, all of whose records have one timestamp."""
    count = len(rows)
    key_sizes = np.full(count, -1, np.int64) if rows.keys is None else lengths(rows.keys)
    value_sizes = lengths(rows.values)
    headers = None if rows.headers is None else _encoded_headers(rows.headers)
    header_sizes = np.ones(count, np.int64) if headers is None else lengths(headers)
    offset_deltas, key_lengths, value_lengths = (_varints(each) for each in (np.arange(count), key_sizes, value_sizes))
    sizes = 2 + sum(mask.sum(axis=1) for _, mask in (offset_deltas, key_lengths, value_lengths))
    sizes = sizes + key_sizes.clip(0) + value_sizes.clip(0) + header_sizes
    zeros = np.zeros((count, 2), np.uint8), np.ones((count, 2), np.bool_)  # attributes, and the timestamp's delta
    front = [_varints(sizes), zeros, offset_deltas, key_lengths]
    tail = pa.scalar(b"\x00", pa.binary()) if headers is None else headers
    columns = [_joined([*front, value_lengths])] if rows.keys is None else [_joined(front), rows.keys]
    columns += [] if rows.keys is None else [_joined([value_lengths])]
    joined = pc.binary_join_element_wise(*columns, rows.values, tail, _NOTHING, null_handling="skip")
    data, start, end = _contents(joined)
    return PreparedRecords(data[start:end], count, timestamp, timestamp)


def _varints(numbers: Ints) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Zig-zag varints, a row each: their bytes, and which of the columns they take."""
    rest = (numbers << 1) ^ (numbers >> 63)
    data = np.zeros((len(numbers), VARINT_BYTES_MAX), np.uint8)
    used = np.zeros((len(numbers), VARINT_BYTES_MAX), np.bool_)
    used[:, 0] = True
    for column in range(VARINT_BYTES_MAX):
        more = rest > 0x7F
        data[:, column] = (rest & 0x7F) | (more * 0x80)
        if column + 1 < VARINT_BYTES_MAX:
            used[:, column + 1] = used[:, column] & more
        rest = rest >> 7
    return data, used


def _joined(pieces: Pieces) -> pa.BinaryArray:
    """The used bytes of each row, as a binary column."""
    data = np.hstack([each for each, _ in pieces])
    used = np.hstack([each for _, each in pieces])
    offsets = np.concatenate(([0], np.cumsum(used.sum(axis=1)))).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(data), [None, pa.py_buffer(offsets), pa.py_buffer(data[used])])


def _encoded_headers(headers: pa.ListArray) -> pa.BinaryArray:
    """Each row's headers as they stand in a record: their number, then name and value of each with their lengths."""
    counts = np.asarray(pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    items = headers.flatten()
    names, values = (each.cast(pa.binary()) for each in items.flatten())
    if names.null_count:
        raise HeadraceError("a header has no name: the key of a header must not be null")
    encoded = pc.binary_join_element_wise(
        _joined([_varints(lengths(names))]),
        names,
        _joined([_varints(lengths(values))]),
        values,
        _NOTHING,
        null_handling="skip",
    )
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), encoded)
    return pc.binary_join_element_wise(_joined([_varints(counts)]), pc.binary_join(lists, _NOTHING), _NOTHING)
