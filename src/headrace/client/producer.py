"""The sending side: records are gathered into batches, batches into one request per broker.

There is no thread. ``send`` encodes and returns; when a batch is full, or older than ``linger_ms``, it goes out while
the caller fills the next one, and its answer is read when the next request to that broker is due. So at most one
request per broker is under way, and one batch per partition: order survives retries, and memory is bounded by the
batches being filled. ``flush`` returns when everything is acknowledged.

An idempotent producer (the default) stamps each batch with its id and a sequence before the first attempt; the broker
recognises a resent batch by them, so a lost answer does not become a duplicate.

Records that are encoded already are given as ``PreparedRecords``, a batch at a time. ``transactional.py`` builds on
this with transactions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headrace.client.accumulator import Headers, OpenBatch, PreparedRecords
from headrace.client.client import ANY, Client, TopicPartition, check, error_of
from headrace.client.connection import Connection, Pending
from headrace.client.partitioner import partition_for_key
from headrace.errors import ErrorCode, KafkaError
from headrace.record import Codec
from headrace.wire.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from headrace.wire.kafka.schema import NO_ID

__all__ = ["Delivery", "DeliveryFailed", "Producer", "ProducerOptions"]

PRODUCE_VERSION_BY_NAME_MAX = 12
SEQUENCES = 2**31
NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """One batch that was acknowledged, or given up with an ``error``; ``base_offset`` is -1 if it is not known."""

    partition: TopicPartition
    base_offset: int
    count: int
    error: KafkaError | None = None


class DeliveryFailed(KafkaError):
    """Records were given up: the broker refused them for good, or the delivery timeout passed."""

    def __init__(self, code: ErrorCode, partition: TopicPartition, count: int, reason: str) -> None:
        super().__init__(code, f"{count} records for {partition} were not delivered: {reason}")
        self.partition = partition
        self.count = count


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer batches, compresses and retries."""

    acks: int = -1  # -1: durable as the topic's settings say; 1: the leader has it; 0: nobody answers
    codec: Codec = Codec.NONE
    batch_bytes: int = 256 * 1024
    linger_ms: int = 5
    delivery_timeout_ms: int = 120_000
    idempotent: bool = True
    create_topics: bool = True  # a missing topic is asked for with the broker's leave to create it


@dataclass(slots=True)
class _Identity:
    producer_id: int
    epoch: int


@dataclass(slots=True)
class _Flight:
    """A request whose answer has not been read."""

    connection: Connection
    pending: Pending[ProduceResponse]
    batches: dict[TopicPartition, OpenBatch]


class Producer:
    """Sends records; see the module for what it promises. Used by one thread at a time."""

    def __init__(
        self,
        client: Client,
        options: ProducerOptions | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        self.options = options or ProducerOptions()
        self._client = client
        self._on_delivery = on_delivery
        self._open: dict[TopicPartition, OpenBatch] = {}
        self._ready: dict[TopicPartition, deque[OpenBatch]] = {}
        self._flights: dict[int, _Flight] = {}
        self._identity: _Identity | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._sticky: dict[str, int] = {}
        self._linger_until = float("inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> TopicPartition:
        """Take one record. Errors of earlier batches are raised here or by ``flush``."""
        now = time.time()
        target = TopicPartition(topic, self._partition(topic, key, partition))
        size = (len(key) if key else 0) + (len(value) if value else 0)
        batch = self._open.get(target)
        if batch is not None and len(batch) + size > self.options.batch_bytes:
            self._seal(target)
            self._pump()
            batch = None
        if batch is None:
            batch = self._open[target] = self._new_batch(target)
            self._linger_until = min(self._linger_until, now + self.options.linger_ms / 1000)
        batch.add(key, value, headers, int(now * 1000) if timestamp is None else timestamp)
        if now >= self._linger_until:
            self._linger_passed(now)
        return target

    def send_prepared(self, partition: TopicPartition, records: PreparedRecords) -> None:
        """Take a batch of encoded records, after what was sent to the partition before."""
        self.send_all_prepared([(partition, records)])

    def send_all_prepared(self, batches: Iterable[tuple[TopicPartition, PreparedRecords]]) -> None:
        """Take batches of several partitions at once: one request per broker carries them, and one sync serves."""
        for partition, records in batches:
            if partition in self._open:
                self._seal(partition)
            batch = self._new_batch(partition)
            batch.fill(records)
            self._ready.setdefault(partition, deque()).append(batch)
        self._pump()

    def _new_batch(self, partition: TopicPartition) -> OpenBatch:
        return OpenBatch(partition, self.options.codec, self._client.options.retry_pause_ms)

    def flush(self) -> None:
        """Return when every record is acknowledged; raise when one cannot be."""
        self._seal_all()
        while self._ready or self._flights:
            self._pump()
            for node in list(self._flights):
                self._land(node)

    def _linger_passed(self, now: float) -> None:
        """Batches are old enough to go. While a broker is still busy with our last request they may as well grow."""
        if all(flight.connection.has_answer() for flight in self._flights.values()):
            self._seal_all()
            self._pump()
        else:
            self._linger_until = now + self.options.linger_ms / 1000

    # ---- gathering --------------------------------------------------------------------------------------------------

    def _partition(self, topic: str, key: bytes | None, wanted: int | None) -> int:
        """By key as the Java client does; records without a key stay with one partition until its batch is full."""
        count = len(self._client.topic(topic, create=self.options.create_topics).partitions)
        if wanted is not None:
            return wanted
        if key is not None:
            return partition_for_key(key, count)
        chosen = self._sticky.get(topic)
        if chosen is None or chosen >= count:
            chosen = self._sticky[topic] = time.monotonic_ns() % count
        return chosen

    def _seal(self, partition: TopicPartition) -> None:
        batch = self._open.pop(partition)
        self._ready.setdefault(partition, deque()).append(batch)
        if self._sticky.get(partition.topic) == partition.partition:
            count = len(self._client.topic(partition.topic).partitions)
            self._sticky[partition.topic] = (partition.partition + 1) % count

    def _seal_all(self) -> None:
        for partition in list(self._open):
            self._seal(partition)
        self._linger_until = float("inf")

    # ---- sending ----------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what is ready, one request per leader, first reading the answer to that leader's last request."""
        for node in list(self._flights):
            if any(partition in self._ready for partition in self._flights[node].batches):
                self._land(node)
        for node, partitions in self._ready_by_leader().items():
            if node in self._flights:
                self._land(node)
            self._launch(node, [each for each in partitions if each in self._ready])

    def _ready_by_leader(self) -> dict[int, list[TopicPartition]]:
        grouped: dict[int, list[TopicPartition]] = {}
        for partition in list(self._ready):
            try:
                node = self._client.retrying(lambda: self._client.leader(partition))  # noqa: B023
            except KafkaError as error:
                batch = self._ready[partition].popleft()
                self._tidy(partition)
                raise self._give_up(partition, batch, error) from error
            grouped.setdefault(node, []).append(partition)
        return grouped

    def _tidy(self, partition: TopicPartition) -> None:
        if not self._ready[partition]:
            del self._ready[partition]

    def _launch(self, node: int, partitions: list[TopicPartition]) -> None:
        batches = {}
        for partition in partitions:
            batches[partition] = self._ready[partition].popleft()
            self._tidy(partition)
        if not batches:
            return
        try:
            self._identify(batches)
            request, version_max = self._request(batches)
            connection = self._client.connection(node)
            if self.options.acks == 0:
                connection.send_unanswered(request, version_max=version_max)
                self._delivered_blindly(batches)
                return
            pending = connection.send(request, ProduceResponse, version_max=version_max)
        except KafkaError as error:
            self._retry_all(batches, error)
            return
        self._flights[node] = _Flight(connection, pending, batches)

    def _identify(self, batches: dict[TopicPartition, OpenBatch]) -> None:
        """Give new batches the producer's id and their sequence; a batch that was sent before keeps its own."""
        if not self.options.idempotent or self.options.acks == 0:
            return
        if self._identity is None:
            self._identity = self._client.retrying(self._ask_identity)
            self._sequences.clear()
        for partition, batch in batches.items():
            if batch.identity is None:
                sequence = self._take_sequences(partition, batch.count)
                batch.identity = self._identity.producer_id, self._identity.epoch, sequence

    def _take_sequences(self, partition: TopicPartition, count: int) -> int:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + count) % SEQUENCES
        return sequence

    def _ask_identity(self) -> _Identity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS)
        answer = self._client.call(ANY, request, InitProducerIdResponse)
        check(answer.error_code, None, "asking for a producer id")
        return _Identity(answer.producer_id, answer.producer_epoch)

    def _request(self, batches: dict[TopicPartition, OpenBatch]) -> tuple[ProduceRequest, int | None]:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for partition, batch in batches.items():
            data = PartitionProduceData(index=partition.partition, records=batch.seal())
            by_topic.setdefault(partition.topic, []).append(data)
        topics = [
            TopicProduceData(name=name, topic_id=self._client.topic_id(name), partition_data=data)
            for name, data in by_topic.items()
        ]
        request = ProduceRequest(
            acks=self.options.acks, timeout_ms=self._client.options.request_timeout_ms, topic_data=topics
        )
        by_name = any(topic.topic_id == NO_ID for topic in topics)
        return request, PRODUCE_VERSION_BY_NAME_MAX if by_name else None

    def _delivered_blindly(self, batches: dict[TopicPartition, OpenBatch]) -> None:
        for partition, batch in batches.items():
            self._report(Delivery(partition, -1, batch.count))

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _land(self, node: int) -> None:
        """Read a request's answer: report what was delivered, put back what may be retried, raise for the rest."""
        flight = self._flights.pop(node)
        try:
            answer = flight.connection.wait(flight.pending)
        except KafkaError as lost:
            self._retry_all(flight.batches, lost)
            return
        failures: list[KafkaError] = []
        retried: dict[TopicPartition, OpenBatch] = {}
        reason = KafkaError(ErrorCode.NONE)
        for topic in answer.responses:
            name = topic.name or self._client.topic_name(topic.topic_id)
            for each in topic.partition_responses:
                partition = TopicPartition(name, each.index)
                batch = flight.batches.pop(partition)
                error = self._judge(partition, batch, each)
                if error is None:
                    continue
                if error.retriable:
                    retried[partition], reason = batch, error
                else:
                    failures.append(self._give_up(partition, batch, error))
        if retried:
            self._retry_all(retried, reason)
        if failures:
            raise failures[0]

    def _judge(
        self, partition: TopicPartition, batch: OpenBatch, answer: PartitionProduceResponse
    ) -> KafkaError | None:
        """A duplicate is a batch that arrived the first time, when only its answer was lost."""
        if answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._report(Delivery(partition, answer.base_offset, batch.count))
            return None
        return error_of(answer.error_code, answer.error_message, "the broker answered")

    def _give_up(self, partition: TopicPartition, batch: OpenBatch, error: KafkaError) -> KafkaError:
        """Report records as lost. Later batches get a new producer id, since their sequences would show a gap."""
        self._identity = None
        self._report(Delivery(partition, -1, batch.count, error))
        return DeliveryFailed(error.code, partition, batch.count, error.message)

    def _report(self, delivery: Delivery) -> None:
        if self._on_delivery is not None:
            self._on_delivery(delivery)

    def _retry_all(self, batches: dict[TopicPartition, OpenBatch], error: KafkaError) -> None:
        """Put batches back in front of their queues and pause; give up those that have waited too long."""
        self._client.learn_from(error.code)
        now = time.monotonic()
        failure: KafkaError | None = None
        pause_ms = 0.0
        for partition, batch in batches.items():
            limit_ms = self._client.patience_ms(error, self.options.delivery_timeout_ms)
            if not error.retriable or (now - batch.created) * 1000 > limit_ms:
                failure = self._give_up(partition, batch, error)
                continue
            self._ready.setdefault(partition, deque()).appendleft(batch)
            pause_ms = max(pause_ms, batch.pause_ms)
            batch.pause_ms = min(batch.pause_ms * 2, self._client.options.retry_pause_ms_max)
        if failure is not None:
            raise failure
        time.sleep(pause_ms / 1000)
