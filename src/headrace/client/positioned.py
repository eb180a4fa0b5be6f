"""Events and the position after them, committed together in one transaction of the log.

Whatever follows another system (a database, a socket, another broker) reads from a position, writes what it read, and
must find the same position again after any crash. So the position is itself a record:

    producer = PositionedProducer(client, "headrace-capture-shop", "__headrace_capture_shop")
    state = producer.start()            # fence everybody else of this id; the state that was committed last
    producer.add("shop.orders", b"key", b"value")
    producer.commit({"position": 17})   # events and state become visible together, or not at all

The state is a dict of named parts, each JSON. Its topic is compacted, with one record per part; ``commit`` writes only
the parts that changed.

Records are encoded as they come, into one batch per partition; full batches are compressed by another thread and go
out while the next ones are filled. The transaction begins with the first of them and ends with ``commit``. A process
that is killed in between leaves an open transaction, which no reader of committed records sees; the next ``start``
aborts it before it reads the state.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from headrace.client.accumulator import OpenBatch, PreparedRecords
from headrace.client.admin import Admin
from headrace.client.byte_column import ByteColumn
from headrace.client.client import Client, TopicPartition
from headrace.client.consumer import Consumer, ConsumerOptions
from headrace.client.fetch import FetchOptions
from headrace.client.offsets import end_offsets, start_offsets
from headrace.client.partitioner import partition_for_key
from headrace.client.producer import ProducerOptions
from headrace.client.transactional import TransactionalProducer
from headrace.client.transactions import describe_transaction
from headrace.errors import ErrorCode
from headrace.record import Codec, Record, compress

__all__ = [
    "STATE_CONFIG",
    "PositionedProducer",
    "committed_records",
    "ensure_topic",
    "ensure_topics",
    "read_state",
    "topic_exists",
]

Headers = Sequence[tuple[str, bytes | None]]

BATCH_BYTES = 512 * 1024
"""Every topic takes a batch of so many bytes by default, also where they do not compress."""
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Where a topic takes more. A batch goes out when the one before is acknowledged, which must not take longer than to
fill it."""
BATCH_RECORDS_MAX = 8192
"""Records beyond these are added one by one, which takes longer than another batch does."""
ROOMS_MAX = 3
CODEC = Codec.LZ4
TRANSACTION_TIMEOUT_MS = 600_000
"""Some sources must be read in one piece and written in one transaction; Kafka allows 15 minutes."""
STATE_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(1024 * 1024), "min.cleanable.dirty.ratio": "0.1"}


def topic_exists(client: Client, name: str) -> bool:
    """Asks for this topic only: a broker may have thousands."""
    answer = client.retrying(lambda: client.refresh([name]))
    return any(topic.name == name and topic.error_code == ErrorCode.NONE for topic in answer.topics)


def ensure_topic(client: Client, name: str, *, partitions: int = -1, config: Mapping[str, str] | None = None) -> None:
    """Make a topic unless it is there."""
    ensure_topics(client, [name], partitions=partitions, config=config)


def ensure_topics(
    client: Client, names: Sequence[str], *, partitions: int = -1, config: Mapping[str, str] | None = None
) -> None:
    """Make those of these topics that are not there: one request tells which, and one makes them."""
    answer = client.retrying(lambda: client.refresh(names))
    there = {topic.name for topic in answer.topics if topic.error_code == ErrorCode.NONE}
    missing = [name for name in names if name not in there]
    if not missing:
        return
    Admin(client).create_topics(missing, partitions=partitions, config=dict(config or {}), may_exist=True)
    for name in missing:
        client.forget_topic(name)


def committed_records(client: Client, topic: str) -> Iterator[Record]:
    """Every committed record of a topic with one partition, to the end that it has now."""
    place = TopicPartition(topic, 0)
    consumer = Consumer(client, ConsumerOptions(reset="earliest", fetch=FetchOptions(read_committed=True)))
    consumer.assign(start_offsets(client, [place]))
    end = end_offsets(client, [place])[place]
    while consumer.positions[place] < end:
        before = consumer.positions[place]
        yield from consumer.poll(timeout_ms=1_000).get(place, [])
        if consumer.positions[place] == before and consumer.at_end():
            return  # what follows belongs to a transaction that is open


def read_state(client: Client, topic: str) -> dict[str, Any]:
    """The parts of a state, as they were committed last; {} when there is none."""
    if not topic_exists(client, topic):
        return {}
    state: dict[str, Any] = {}
    for record in committed_records(client, topic):
        part = (record.key or b"").decode()
        if record.value is None:
            state.pop(part, None)
        else:
            state[part] = json.loads(record.value)
    return state


class PositionedProducer:
    """Gathers events and commits them with their position; see the module. Used by one thread.

    Topics that are not there are made with ``partitions`` and ``topic_config``.
    """

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        state_topic: str,
        *,
        partitions: int = 1,
        topic_config: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._producer = TransactionalProducer(
            client,
            transactional_id,
            TRANSACTION_TIMEOUT_MS,
            ProducerOptions(create_topics=False, codec=CODEC, batch_bytes=BATCH_BYTES),
        )
        self._state_topic = state_topic
        self._new_partitions = partitions
        self._new_config = dict(topic_config or {})
        self._written: dict[str, bytes] = {}
        self._partitions: dict[str, int] = {}
        self._ensured: set[str] = set()
        self._batch_bytes: dict[str, int] = {}
        self._only_partition: dict[str, TopicPartition] = {}
        self._open: dict[TopicPartition, OpenBatch] = {}
        self._held: list[OpenBatch] | None = None
        self._compressing: deque[tuple[OpenBatch, Future[bytes]]] = deque()
        self._rooms: list[bytearray] = []
        """Memory of batches that are sent, for the next ones: fresh pages cost more than what is written into them."""
        self._compressor = ThreadPoolExecutor(1, "headrace-compress")
        self._in_transaction = False
        self._now_ms = 0
        self.events = 0
        """Taken since the producer was made."""
        self.events_pending = 0
        self.bytes_pending = 0
        self.pending_since = 0.0

    def start(self) -> dict[str, Any]:
        """Become the only writer of this id; gives the state that was committed last."""
        ensure_topic(self._client, self._state_topic, partitions=1, config=STATE_CONFIG)
        self._producer.init()
        state = read_state(self._client, self._state_topic)
        self._written = {part: _json(value) for part, value in state.items()}
        return state

    def add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Take one record; it becomes visible with the next ``commit``. Without a partition its key decides."""
        place = self._only_partition.get(topic)
        if place is None:
            count = self.partitions(topic)
            if partition is None:
                partition = 0 if count == 1 or key is None else partition_for_key(key, count)
            place = TopicPartition(topic, partition)
            if count == 1:
                self._only_partition[topic] = place
        batch = self._batch(place, (len(key) if key else 0) + (len(value) if value else 0))
        before = len(batch)
        batch.add(key, value, headers, self._now_ms)
        self.events += 1
        self.events_pending += 1
        self.bytes_pending += len(batch) - before

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Within this context nothing is sent: full batches wait in memory until its end.

        For a source that reads in a transaction of its database: while it waits for a broker there, the database would
        make its own writers wait.
        """
        held = self._held = []
        try:
            yield
        finally:
            self._held = None
        for batch in held:
            self._send(batch)

    def _batch(self, place: TopicPartition, size: int) -> OpenBatch:
        """The batch that takes a record of ``size`` next: a full one goes out, and another is begun."""
        batch = self._open.get(place)
        is_full = batch is not None and batch.count >= BATCH_RECORDS_MAX
        # Before and not after: a large record must not make a batch that the topic refuses.
        if batch is not None and (is_full or len(batch) + size > self._batch_bytes[place.topic]):
            full = self._open.pop(place)
            if self._held is None:
                self._send(full)
            else:
                self._held.append(full)
            batch = None
        if batch is None:
            if not self.events_pending:
                self.pending_since = time.monotonic()
            self._now_ms = time.time_ns() // 1_000_000
            room = self._rooms.pop() if self._rooms else None
            batch = self._open[place] = OpenBatch(place, Codec.NONE, 0, room=room)
        return batch

    def add_many(self, topic: str, keys: ByteColumn | None, values: ByteColumn) -> None:
        """``add`` for many records without headers; faster where the topic has one partition."""
        if self.partitions(topic) > 1:
            for place in range(values.count):
                self.add(topic, None if keys is None else keys[place], values[place])
            return
        partition = TopicPartition(topic, 0)
        taken = 0
        while taken < values.count:
            batch = self._batch(partition, (0 if keys is None else keys.lengths[taken]) + values.lengths[taken])
            before, first = len(batch), taken
            taken = batch.add_many(keys, values, first, self._now_ms, self._batch_bytes[topic])
            self.events += taken - first
            self.events_pending += taken - first
            self.bytes_pending += len(batch) - before

    def partitions(self, topic: str) -> int:
        """The number of a topic's partitions; a topic that is not there is made."""
        known = self._partitions.get(topic)
        if known is not None:
            return known
        self.ensure(topic)
        count = self._partitions[topic] = len(self._client.topic(topic).partitions)
        self._batch_bytes[topic] = min(BATCH_BYTES_MAX, self.bytes_max(topic))
        return count

    def ensure(self, topic: str) -> None:
        """Make a topic unless it is there."""
        self.ensure_all([topic])

    def ensure_all(self, topics: Sequence[str]) -> None:
        """Make those of these topics that are not there."""
        unknown = [topic for topic in topics if topic not in self._ensured]
        if unknown:
            ensure_topics(self._client, unknown, partitions=self._new_partitions, config=self._new_config)
            self._ensured.update(unknown)

    def bytes_max(self, topic: str) -> int:
        """The bytes of records that a topic takes in one batch for certain."""
        return BATCH_BYTES

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make the events and the state visible together. When it raises, only ``start`` tells what has come of it."""
        changed = self._changed(state)
        if not changed and not self.events_pending:
            return
        self._begin()
        self._send_compressed()
        batches = [(batch.partition, _prepared(batch)) for batch in self._open.values()]
        self._open.clear()
        if changed:
            now_ms = time.time_ns() // 1_000_000
            records = [Record(part.encode(), text, now_ms) for part, text in changed.items()]
            batches.append((TopicPartition(self._state_topic, 0), PreparedRecords.of(records)))
        self._producer.send_all_prepared(batches)
        self._producer.commit()
        self._in_transaction = False
        self._written.update(changed)
        self.events_pending = self.bytes_pending = 0

    def is_current(self) -> bool:
        """Whether nobody seems to have taken the id over. One small request; ``commit`` is what decides."""
        found = describe_transaction(self._client, self._producer.transactional_id)
        mine = self._producer.identity
        return found is None or (found.producer_id, found.epoch) == (mine.producer_id, mine.epoch)

    def is_new(self, state: Mapping[str, Any]) -> bool:
        """Whether ``commit`` would write this state."""
        return bool(self._changed(state))

    def abandon(self) -> None:
        """Take back what was not committed."""
        self._open.clear()
        self._compressing.clear()
        self._in_transaction = False
        self.events_pending = self.bytes_pending = 0
        self._producer.abort()

    def _changed(self, state: Mapping[str, Any]) -> dict[str, bytes]:
        return {part: text for part, value in state.items() if self._written.get(part) != (text := _json(value))}

    def _begin(self) -> None:
        if not self._in_transaction:
            self._producer.begin()
            self._in_transaction = True

    def _send(self, batch: OpenBatch) -> None:
        """Compress a full batch while the next one is filled; the one before goes out."""
        self._begin()
        self._compressing.append((batch, self._compressor.submit(_compressed, batch)))
        self._send_compressed(left=1)

    def _send_compressed(self, left: int = 0) -> None:
        while len(self._compressing) > left:
            batch, compressed = self._compressing.popleft()
            self._producer.send_prepared(batch.partition, _prepared(batch, compressed.result()))
            if len(self._rooms) < ROOMS_MAX:
                self._rooms.append(batch.data)


def _compressed(batch: OpenBatch) -> bytes:
    return compress(CODEC, batch.records)


def _prepared(batch: OpenBatch, compressed: bytes | None = None) -> PreparedRecords:
    data = batch.records if compressed is None else b""
    return PreparedRecords(data, batch.count, batch.base_timestamp, batch.max_timestamp, compressed)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
