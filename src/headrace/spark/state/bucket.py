"""The state of many keys as a few pieces: what one bucket holds, in memory and as bytes.

A bucket is a short list of *chunks*, oldest first. A chunk is an Arrow record batch with a row per key: the key,
whether it lives (a dead row says that the key was removed), two deadlines and the state. A batch of input appends one
chunk with the keys that it touched, so its cost depends on them and not on the keys in state. A row of a newer chunk
hides the rows of its key in older ones.

Chunks are merged so that they stay few: eight or more at the end, none of them larger than all after it together,
become one; and when more rows are hidden or dead than live, all are merged without those. Either way a row is
rewritten a few times in its life. A chunk has at most ``CHUNK_BYTES_MAX`` bytes, unless one row alone has more: what is
larger is cut into several, and a chunk of more than half of that is full and only merged when all are. Only a run of
chunks that reaches the newest is ever merged, so a reader who knows an older list of chunks finds it changed from some
place on, and applies only what follows that place.

A chunk is never changed and its id is random, so a copy of a chunk of that id is always right. The *manifest*
lists the ids. It is what makes a copy in memory trustworthy: after a failed task, a replay, or a batch that ran in
another process, the manifest in the store says which chunks count, and the copy fetches those that it lacks.

Bytes of a chunk: an Arrow IPC stream of one batch, with the version of the state's shape in the metadata. Bytes of the
manifest: JSON.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import HeadraceError

__all__ = ["BEGINNING", "NEVER", "Bucket", "Chunk", "Chunks", "Layout", "Manifest", "StateMismatch", "Store"]

NEVER = int(np.iinfo(np.int64).max)
"""The deadline of a key that has none. Deadlines are microseconds since 1970."""
BEGINNING = int(np.iinfo(np.int64).min)
"""The clock before anything was seen."""

MERGE_CHUNKS_MIN = 8
CHUNK_BYTES_MAX = 64 << 20
"""A chunk travels through a socket and the JVM as one array of bytes."""
GARBAGE_ROWS_MIN = 1024
"""Fewer hidden rows are not worth a rewrite of everything."""
INDEX_ENTRY_BYTES = 200
VERSION_FIELD = b"headrace.state.version"
FORMAT = 1

Key = Any
"""A key as Python has it: the value of the key's column, or a tuple when there are several."""
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class StateMismatch(HeadraceError):
    """The stored state is not what this program can go on with."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What an operator keeps: the columns of keys and states, and the version of their shape."""

    keys: pa.StructType
    state: pa.StructType
    version: int = 1
    upgrade: Callable[[pa.StructArray, int], pa.StructArray] | None = None
    """States of an older version, in the shape of this one."""

    @property
    def schema(self) -> pa.Schema:
        fields = {"key": self.keys, "live": pa.bool_(), "wake": pa.int64(), "expire": pa.int64(), "state": self.state}
        return pa.schema(fields, metadata={VERSION_FIELD: str(self.version).encode()})

    def python_keys(self, keys: pa.StructArray) -> list[Key]:
        columns = [_hashable(each).to_pylist() for each in keys.flatten()]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _hashable(column: pa.Array) -> pa.Array:
    """Times as numbers: Python's have no year after 9999, Spark's do."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


class Chunks(Protocol):
    """Where the chunks of one bucket are read from."""

    def chunk(self, chunk_id: str) -> bytes: ...


class Store(Chunks, Protocol):
    """Where the bytes of one bucket are kept."""

    def put_chunk(self, chunk_id: str, data: bytes) -> None: ...

    def remove_chunk(self, chunk_id: str) -> None: ...

    def put_manifest(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of chunks, and what is worth knowing without reading them."""

    chunks: tuple[str, ...] = ()
    bucket_count: int = 0
    keys_type: str = ""
    version: int = 0
    key_count: int = 0
    timer_count: int = 0
    byte_count: int = 0
    late_rows: int = 0
    due_us: int = NEVER
    clock_us: int = BEGINNING
    meaning: str = ""
    """Of the operator (``Description.meaning``); empty where nobody says."""

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        found = json.loads(data)
        written = found.pop("format", None)
        if written != FORMAT:
            raise StateMismatch(f"state has format {written}, and this headrace reads {FORMAT}: use the newer headrace")
        return cls(**{**found, "chunks": tuple(found["chunks"])})


@dataclass(slots=True)
class Chunk:
    """Rows as they were written, and which of them nothing newer hides."""

    chunk_id: str
    batch: pa.RecordBatch
    keys: list[Key]
    live: Flags
    wake: Ints
    expire: Ints
    due: Ints
    current: Flags
    key_count: int
    timer_count: int
    byte_count: int = 0
    by_deadline: Ints | None = None
    """Rows with a deadline, the earliest first; made when it is first asked for."""
    passed: int = 0
    """How many of these are known to be hidden."""

    @classmethod
    def of(
        cls, batch: pa.RecordBatch, layout: Layout, *, keys: list[Key] | None = None, chunk_id: str | None = None
    ) -> Chunk:
        wake, expire = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("wake", "expire"))
        live = batch.column("live").to_numpy(zero_copy_only=False)
        due = np.where(live, np.minimum(wake, expire), NEVER)
        return cls(
            chunk_id=chunk_id or uuid.uuid4().hex,
            batch=batch,
            keys=layout.python_keys(batch.column("key")) if keys is None else keys,
            live=live,
            wake=wake,
            expire=expire,
            due=due,
            current=np.ones(len(live), np.bool_),
            key_count=int(np.count_nonzero(live)),
            timer_count=int(np.count_nonzero(due < NEVER)),
        )

    def anew(self) -> Chunk:
        """The same rows with nothing hidden."""
        return Chunk(
            self.chunk_id,
            self.batch,
            self.keys,
            self.live,
            self.wake,
            self.expire,
            self.due,
            np.ones(len(self.live), np.bool_),
            int(np.count_nonzero(self.live)),
            int(np.count_nonzero(self.due < NEVER)),
            self.byte_count,
        )

    @property
    def is_full(self) -> bool:
        return bool(self.batch.nbytes > CHUNK_BYTES_MAX // 2)

    def hide(self, rows: Ints) -> None:
        """Something newer is known of these keys."""
        fresh = rows[self.current[rows]]
        self.current[fresh] = False
        self.key_count -= int(np.count_nonzero(self.live[fresh]))
        self.timer_count -= int(np.count_nonzero(self.due[fresh] < NEVER))

    def due_rows(self, now_us: int) -> Ints:
        """Rows that count and whose deadline has come."""
        order = self._order()
        if self.next_due_us() > now_us:
            return order[:0]
        rows = order[self.passed : int(np.searchsorted(self.due[order], now_us, "right"))]
        return rows[self.current[rows]]

    def next_due_us(self) -> int:
        """The earliest deadline of a row that counts. A hidden row stays hidden, so none is looked at twice."""
        order, block = self._order(), 64
        while self.passed < len(order):
            ahead = self.current[order[self.passed : self.passed + block]]
            if ahead.any():
                self.passed += int(np.argmax(ahead))
                return int(self.due[order[self.passed]])
            self.passed += len(ahead)
            block *= 2
        return NEVER

    def _order(self) -> Ints:
        if self.by_deadline is None:
            rows = np.flatnonzero(self.due < NEVER)
            self.by_deadline = rows[np.argsort(self.due[rows], kind="stable")]
        return self.by_deadline

    def encode(self) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as writer:
            writer.write_batch(self.batch)
        data: bytes = sink.getvalue().to_pybytes()
        self.byte_count = len(data)
        return data

    @classmethod
    def decode(cls, chunk_id: str, data: bytes, layout: Layout) -> Chunk:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
        chunk = cls.of(_upgraded(batch, layout), layout, chunk_id=chunk_id)
        chunk.byte_count = len(data)
        return chunk


def _cut(batch: pa.RecordBatch, keys: list[Key]) -> Iterator[tuple[pa.RecordBatch, list[Key]]]:
    """The rows in pieces that a chunk may have, in order: halves, until each piece is small enough or a single row."""
    waiting = [(batch, keys)]
    while waiting:
        part, keys_of_part = waiting.pop()
        if part.num_rows <= 1 or part.nbytes <= CHUNK_BYTES_MAX:
            yield part, keys_of_part
            continue
        half = part.num_rows // 2
        waiting += [(part.slice(half), keys_of_part[half:]), (part.slice(0, half), keys_of_part[:half])]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many of the first are the same."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _upgraded(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    version = int((batch.schema.metadata or {}).get(VERSION_FIELD, b"0"))
    if version > layout.version:
        raise StateMismatch(
            f"state has version {version} and the program has {layout.version}: run the one that wrote it"
        )
    if version < layout.version:
        if layout.upgrade is None:
            raise StateMismatch(
                f"state has version {version} and the program has {layout.version}, with no upgrade function: give one"
            )
        states = layout.upgrade(batch.column("state"), version)
        batch = pa.RecordBatch.from_arrays([*batch.columns[:-1], states], schema=layout.schema)
    if batch.schema.field("state").type != layout.state:
        raise StateMismatch(
            f"state has the columns {batch.schema.field('state').type} and the program keeps {layout.state}: "
            f"raise the version and give an upgrade function, or start over with an empty checkpoint"
        )
    return batch


ROW_BITS = 32
"""A reference to a row is its chunk's number and, in the lower bits, its row."""
ROW_MASK = (1 << ROW_BITS) - 1
ABSENT = -1


class Bucket:
    """The state of the keys of one bucket, ready for use."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.chunks: list[Chunk] = []
        self.late_rows = 0
        self.clock_us = BEGINNING
        """What the operator's clock said when the bucket was last worked on."""
        self._forget()

    def _forget(self) -> None:
        self.chunks.clear()
        self._index: dict[Key, int] = {}

    # ---- reading ---------------------------------------------------------------------------------------------------

    @property
    def key_count(self) -> int:
        return sum(each.key_count for each in self.chunks)

    @property
    def timer_count(self) -> int:
        return sum(each.timer_count for each in self.chunks)

    @property
    def byte_count(self) -> int:
        return sum(each.byte_count for each in self.chunks)

    @property
    def memory_bytes(self) -> int:
        """About what it takes in memory: the chunks, and for each key an entry of the index."""
        return self.byte_count + INDEX_ENTRY_BYTES * len(self._index)

    def find(self, keys: Sequence[Key]) -> Ints:
        """Where the newest row of each key is; dead rows are found too."""
        return np.fromiter(map(self._index.get, keys, itertools.repeat(ABSENT)), np.int64, len(keys))

    def keys_at(self, places: Ints) -> list[Key]:
        """The keys of rows."""
        chunks = [each.keys for each in self.chunks]
        return [chunks[place >> ROW_BITS][place & ROW_MASK] for place in places.tolist()]

    def live_keys(self) -> list[Key]:
        """All keys that are held."""
        kept = [itertools.compress(each.keys, (each.current & each.live).tolist()) for each in self.chunks]
        return list(itertools.chain.from_iterable(kept))

    def alive(self, places: Ints) -> Flags:
        found = np.zeros(len(places), np.bool_)
        for number, positions, rows in self._by_chunk(places):
            found[positions] = self.chunks[number].live[rows]
        return found

    def expired(self, places: Ints, now_us: int) -> Flags:
        """Keys whose expiry has come. Timers that fire before the expiry run first."""
        found = np.zeros(len(places), np.bool_)
        for number, positions, rows in self._by_chunk(places):
            chunk = self.chunks[number]
            found[positions] = (chunk.expire[rows] <= now_us) & (chunk.wake[rows] > now_us)
        return found

    def _by_chunk(self, places: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """(chunk, positions among the places, rows of the chunk) for each chunk that any place is in."""
        numbers = places >> ROW_BITS
        for number in np.flatnonzero(np.bincount(numbers[places != ABSENT])).tolist():
            positions = np.flatnonzero(numbers == number)
            yield number, positions, places[positions] & ROW_MASK

    def gather(self, places: Ints, column: str = "state") -> pa.StructArray:
        """A column at these places; null where there is none."""
        order = np.full(len(places), -1, np.int64)
        parts, count = [], 0
        for number, positions, rows in self._by_chunk(places):
            parts.append(self.chunks[number].batch.column(column).take(pa.array(rows)))
            order[positions] = np.arange(count, count + len(rows))
            count += len(rows)
        together = pa.concat_arrays(parts) if parts else pa.array([], self.layout.schema.field(column).type)
        return together.take(pa.array(order, mask=order < 0))

    def due(self, now_us: int) -> Ints:
        """The places of keys whose deadline has come. They are given until they are written again."""
        found = [(number << ROW_BITS) + each.due_rows(now_us) for number, each in enumerate(self.chunks)]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def next_due_us(self) -> int:
        return min((each.next_due_us() for each in self.chunks), default=NEVER)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def append(
        self,
        keys: pa.StructArray,
        python_keys: list[Key],
        *,
        live: Flags,
        wake: Ints,
        expire: Ints,
        states: pa.StructArray,
        places: Ints | None = None,
    ) -> None:
        """The new rows of these keys; whatever was known of them is hidden. ``places``: where that is, if the caller
        has found it."""
        columns = [keys, pa.array(live), pa.array(wake), pa.array(expire), states]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)
        places, done = self.find(python_keys) if places is None else places, 0
        for part, keys_of_part in _cut(batch, python_keys):
            self._add(Chunk.of(part, self.layout, keys=keys_of_part), places[done : done + len(keys_of_part)])
            done += len(keys_of_part)
        self._merge_when_worth_it()

    def _add(self, chunk: Chunk, places: Ints) -> None:
        """``places``: what is known of its keys."""
        for number, _, rows in self._by_chunk(places):
            self.chunks[number].hide(rows)
        self._point_to(chunk)

    def _point_to(self, chunk: Chunk) -> None:
        base = len(self.chunks) << ROW_BITS
        self.chunks.append(chunk)
        self._index.update(zip(chunk.keys, range(base, base + len(chunk.keys)), strict=True))

    def _merge_when_worth_it(self) -> None:
        sizes = [len(each.keys) for each in self.chunks]
        if sum(sizes) - self.key_count > max(self.key_count, GARBAGE_ROWS_MIN):
            self._merge_from(0)
            return
        first, together = len(sizes) - 1, sizes[-1]
        while first > 0 and sizes[first - 1] <= together and not self.chunks[first - 1].is_full:
            first -= 1
            together += sizes[first]
        if len(sizes) - first >= MERGE_CHUNKS_MIN:
            self._merge_from(first)

    def _merge_from(self, first: int) -> None:
        """Merge the chunks from here on into as few as possible. Dead rows are needed while an older one may have the
        key."""
        parts: list[pa.RecordBatch] = []
        keys: list[Key] = []
        for chunk in self.chunks[first:]:
            kept = chunk.current & chunk.live if first == 0 else chunk.current
            parts.append(chunk.batch.filter(pa.array(kept)))
            keys += itertools.compress(chunk.keys, kept.tolist())
        del self.chunks[first:]
        if first == 0:
            self._index.clear()
        if keys:
            (merged,) = pa.Table.from_batches(parts, self.layout.schema).combine_chunks().to_batches()
            for part, keys_of_part in _cut(merged, keys):
                self._point_to(Chunk.of(part, self.layout, keys=keys_of_part))

    # ---- to and from the store -------------------------------------------------------------------------------------

    def refresh(self, manifest: Manifest, store: Chunks) -> None:
        """Become what the manifest says, fetching the chunks that are not here.

        What was merged elsewhere replaces a run of chunks at the end by one with the same keys; then only that one is
        read. Otherwise (all was merged, or a task failed after it had changed this copy) everything is read again,
        since rows that the vanished chunks hid may count again.
        """
        self.late_rows, self.clock_us = manifest.late_rows, manifest.clock_us
        same = _common(manifest.chunks, [each.chunk_id for each in self.chunks])
        if same == len(self.chunks) == len(manifest.chunks):
            return
        gone = {each.chunk_id: each for each in self.chunks[same:]}
        wanted = [
            gone[each].anew() if each in gone else Chunk.decode(each, store.chunk(each), self.layout)
            for each in manifest.chunks[same:]
        ]
        vanished = {key for chunk in gone.values() for key in chunk.keys}
        if same == 0 or not vanished <= {key for chunk in wanted for key in chunk.keys}:
            wanted = [each.anew() for each in self.chunks[:same]] + wanted
            self._forget()
        else:
            del self.chunks[same:]
            for key in vanished:
                del self._index[key]
        for chunk in wanted:
            self._add(chunk, self.find(chunk.keys))

    def save(self, before: Manifest, bucket_count: int, store: Store, meaning: str = "") -> Manifest:
        """Write what is not in the store yet, remove what no longer counts, and give the new manifest."""
        ids = [each.chunk_id for each in self.chunks]
        for chunk in self.chunks:
            if chunk.chunk_id not in before.chunks:
                store.put_chunk(chunk.chunk_id, chunk.encode())
        for gone in set(before.chunks) - set(ids):
            store.remove_chunk(gone)
        after = Manifest(
            chunks=tuple(ids),
            bucket_count=bucket_count,
            keys_type=str(self.layout.keys),
            version=self.layout.version,
            key_count=self.key_count,
            timer_count=self.timer_count,
            byte_count=self.byte_count,
            late_rows=self.late_rows,
            due_us=self.next_due_us(),
            clock_us=self.clock_us,
            meaning=meaning,
        )
        store.put_manifest(after.encode())
        return after
