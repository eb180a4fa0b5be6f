"""Produce: where a batch becomes an offset.

The steps of a batch:

1. its topic and partition are found, through the access gate;
2. it is checked by its header (``batch.read_batches``: length, magic, CRC, counts), and by its records only where the
   topic asks for that (compaction needs keys, ``headrace.validate=records``, a codec of the topic's own);
3. a transactional batch must belong to an open transaction of its producer (``AdditionHandler.check_produce``);
4. an idempotent batch is compared with what its producer wrote before: a repeated one is answered with the offset it
   got the first time, a gap is refused;
5. the log appends it, and the answer waits until it is flushed.

A failure at any step concerns its partition only; the other partitions of the request are written. A request with many
partitions or bytes, or with a batch whose records take long to check, is executed in slices.
"""

from __future__ import annotations

import logging

from headrace.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    PREFIX_BYTES,
    TRANSACTIONAL,
    Batch,
    InvalidBatch,
    RecordTooLarge,
    TooManyRecords,
    UnreadableBatch,
    read_batches,
    reseal,
    stamp_log_append_time,
)
from headrace.broker.access import AccessDenied, Operation
from headrace.broker.errors import code_of
from headrace.broker.overflow import Overflow
from headrace.broker.partition import Partition
from headrace.broker.record_checks import RefusedRecords, check_records, is_out_of_range, recompress
from headrace.broker.replies import PendingReply, Reply
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.broker.topic_config import ProducePolicy
from headrace.broker.topics import Topic
from headrace.broker.transactions.additions import AdditionHandler
from headrace.broker.transactions.registry import TopicPartition
from headrace.config import INT_MAX
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.errors import DiskFull, InvalidProducerEpoch, OutOfOrderSequence, StorageError
from headrace.log.producers import Duplicate, NewBatch
from headrace.ports import Clock
from headrace.record import Codec
from headrace.vocabulary import Offset
from headrace.wire.kafka.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

__all__ = ["ProduceHandler"]

LOG = logging.getLogger("headrace.broker")

ACKS = (-1, 0, 1)
WRITE = Operation.WRITE
TOPIC_IDS_SINCE = 13
TRANSACTIONS_V2_SINCE = 12

UNKNOWN_ID = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
UNKNOWN_PARTITION = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

RECORD_ERRORS_MAX = 1000
"""Records that one answer names as refused. A client fails the others of their batch with its own words for that."""

UNITS_PER_STEP = 100
PARTITION_UNITS = 5
"""An append takes some 50 µs if its file must be opened, as it must where there are thousands."""
BYTES_PER_UNIT = 16 << 10
"""Checking, copying and writing that many bytes takes about as long as the rest of a batch's way."""

PARTITIONS_JOINED_PER_UNIT = 10

UNWRITTEN_S = 60.0
"""For so long a client may send a batch again that could not be written, and those after it wait for that."""
UNWRITTEN_MAX = 1000
"""Producers of a partition with such a batch."""

Waiting = list[tuple[Partition, Offset, PartitionProduceResponse]]
"""What the answer waits for: the partition, the last offset to be flushed, and the part of the answer that says so."""


class ProduceReply(PendingReply[ProduceResponse]):
    """Waits for the flush of each partition. One whose topic is deleted meanwhile is answered with an error: nobody
    knows whether its records were flushed, and nobody will read them."""

    __slots__ = ("by_id", "waiting")

    def __init__(self, response: ProduceResponse, waiting: Waiting, *, by_id: bool) -> None:
        super().__init__(response, waits=len(waiting))
        self.waiting = waiting
        self.by_id = by_id

    def one_done(self) -> None:
        self.waits -= 1
        if self.waits:
            return
        for partition, offset, answer in self.waiting:
            if partition.removed_at is not None and offset >= partition.removed_at:
                answer.error_code = (UNKNOWN_ID if self.by_id else UNKNOWN_PARTITION).code
                answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
        self._ready()


class ProduceHandler:
    """Answers Produce."""

    def __init__(
        self,
        *,
        transactions: AdditionHandler,
        overflow: Overflow,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._overflow = overflow
        self._clock = clock
        self._last_append_ms = 0

    def produce(self, request: Request[ProduceRequest]) -> Reply:
        """The reply, or the steps to it if they take long."""
        steps = self._steps(request)
        try:
            next(steps)
        except StopIteration as done:
            return done.value
        return steps

    def _steps(self, request: Request[ProduceRequest]) -> Steps[Reply]:
        body = request.body
        progress = _Progress()
        for given in body.topic_data:
            answer = TopicProduceResponse(name=given.name, topic_id=given.topic_id)
            progress.responses.append(answer)
            topic, missing = self._find(request, given)
            for each in given.partition_data:
                partition = topic.partition(each.index) if topic is not None else None
                if topic is None or partition is None:
                    answer.partition_responses.append(_refused(each.index, missing, progress))
                else:
                    try:
                        policy = topic.config.produce_policy
                        batch = self._batch(request, policy, partition, each)
                        progress.units += batch.size // BYTES_PER_UNIT
                        if policy.reads_records or is_out_of_range(policy, batch, self._clock.wall_ms()):
                            yield from self._check_records(policy, batch, progress)
                        answered = self._append(request, topic, partition, policy, batch, progress)
                    except HeadraceError as error:
                        answered = _refused(each.index, error, progress, partition)
                    answer.partition_responses.append(answered)
                progress.units += PARTITION_UNITS
                if progress.units >= UNITS_PER_STEP:
                    yield progress.units
                    progress.units = 0
        if body.acks == 0:
            return self._without_answer(request, progress.responses)
        return progress.reply(by_id=request.version >= TOPIC_IDS_SINCE)

    @staticmethod
    def _without_answer(request: Request[ProduceRequest], responses: list[TopicProduceResponse]) -> None:
        """With acks=0 there is no answer. An error is reported by closing the connection, as in Kafka."""
        codes = {each.error_code for topic in responses for each in topic.partition_responses} - {0}
        if codes:
            names = ", ".join(ErrorCode(code).name for code in sorted(codes))
            request.peer.hang_up(f"a Produce with acks=0 failed: {names}")

    @staticmethod
    def _find(request: Request[ProduceRequest], given: TopicProduceData) -> tuple[Topic | None, HeadraceError]:
        """The topic, and the error for partitions that it does not have."""
        access = request.access
        by_id = request.version >= TOPIC_IDS_SINCE
        try:
            topic = access.topic_by_id(given.topic_id, WRITE) if by_id else access.topic(given.name, WRITE)
        except AccessDenied as denied:
            return None, denied
        return topic, UNKNOWN_ID if by_id and topic is None else UNKNOWN_PARTITION

    def _check_records(self, policy: ProducePolicy, batch: Batch, progress: _Progress) -> Steps[None]:
        yield from check_records(policy, batch, self._clock.wall_ms(), progress.record_errors_left)
        if policy.codec is not None and policy.codec is not batch.codec:
            yield from recompress(batch, policy.codec, policy.decoded_bytes_max)

    def _append(
        self,
        request: Request[ProduceRequest],
        topic: Topic,
        partition: Partition,
        policy: ProducePolicy,
        batch: Batch,
        progress: _Progress,
    ) -> PartitionProduceResponse:
        if partition.removed:  # between two steps
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if batch.attributes & TRANSACTIONAL or request.body.transactional_id is not None:
            self._check_transaction(request, partition, batch, progress)
        if batch.producer_id >= 0:
            seen = self._check_producer(partition, batch)
            if isinstance(seen, Duplicate):
                answer = self._accepted(partition, seen.base_offset, seen.timestamp)
                progress.waiting.append((partition, Offset(seen.last_offset), answer))
                return answer
        append_time = -1
        if policy.stamps_append_time:
            append_time = self._append_time_ms()
            stamp_log_append_time(batch, append_time)
        elif batch.attributes & LOG_APPEND_TIME:
            batch.attributes &= ~LOG_APPEND_TIME  # the producer's clock is not ours
            reseal(batch, batch.body[HEADER_BYTES - PREFIX_BYTES :])
        if policy.may_overflow:
            self._overflow.admit(topic, partition, batch, request.peer)
        answer = self._accepted(partition, self._write(partition, batch), append_time)
        progress.waiting.append((partition, batch.last_offset, answer))
        return answer

    def _check_producer(self, partition: Partition, batch: Batch) -> NewBatch | Duplicate:
        """Batches that follow one which could not be written are refused for its reason. Their client sends all of them
        again. As out of order they would make librdkafka begin a new epoch, and send in it again whatever is not
        acknowledged in any partition, written or not."""
        try:
            return partition.log.producers.check(batch)
        except OutOfOrderSequence:
            epoch, failed_at = partition.unwritten.get(batch.producer_id, (None, 0.0))
            if epoch == batch.producer_epoch and self._clock.monotonic() < failed_at + UNWRITTEN_S:
                words = "an earlier batch of its producer could not be written"
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, words) from None
            raise

    def _write(self, partition: Partition, batch: Batch) -> Offset:
        unwritten = partition.unwritten
        try:
            base_offset = partition.append(batch)
        except StorageError:
            if batch.producer_id >= 0 and len(unwritten) < UNWRITTEN_MAX:
                unwritten[batch.producer_id] = (batch.producer_epoch, self._clock.monotonic())
            raise
        if unwritten:
            unwritten.pop(batch.producer_id, None)
        return base_offset

    def _append_time_ms(self) -> int:
        """The wall time, but never earlier than the last one given: the clock may be set back."""
        self._last_append_ms = max(self._last_append_ms, self._clock.wall_ms())
        return self._last_append_ms

    @staticmethod
    def _accepted(partition: Partition, base_offset: int, append_time_ms: int) -> PartitionProduceResponse:
        return PartitionProduceResponse(
            index=partition.index,
            base_offset=base_offset,
            log_append_time_ms=append_time_ms,
            log_start_offset=partition.log.start_offset,
        )

    @staticmethod
    def _batch(
        request: Request[ProduceRequest], policy: ProducePolicy, partition: Partition, given: PartitionProduceData
    ) -> Batch:
        """The one batch for this partition, checked by its header."""
        if partition.fault is not None:
            raise partition.fault
        if request.body.acks not in ACKS:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.body.acks}")
        if given.records is None:
            raise InvalidBatch(
                "Produce requests must contain exactly one record batch per partition, and this has none"
            )
        batches = read_batches(given.records, batch_bytes_max=INT_MAX)
        if len(batches) != 1:
            raise UnreadableBatch(
                f"Produce requests with version {request.version} must contain exactly one record batch per partition, "
                f"and this has {len(batches)}"
            )
        batch = batches[0]
        if batch.size > policy.batch_bytes_max:
            raise RecordTooLarge(batch.size, policy.batch_bytes_max)
        if batch.record_count > policy.batch_records_max:
            raise TooManyRecords(batch.record_count, policy.batch_records_max)
        if request.version < 7 and batch.codec is Codec.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce below version 7 may not carry zstd")
        return batch

    def _check_transaction(
        self, request: Request[ProduceRequest], partition: Partition, batch: Batch, progress: _Progress
    ) -> None:
        if not batch.is_transactional:
            if request.body.transactional_id is not None and batch.producer_id < 0:
                raise KafkaError(ErrorCode.INVALID_RECORD, "a transactional producer sent a batch without producer id")
            return
        if request.body.transactional_id is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch needs a transactional id"
            )
        code = self._transactions.check_produce(
            request.access.transaction(request.body.transactional_id, WRITE),
            request.body.transactional_id,
            batch.producer_id,
            batch.producer_epoch,
            (partition.topic, partition.index),
            lambda: self._joining(request, progress),
            request.version,
        )
        if code:
            raise KafkaError(code)

    def _joining(self, request: Request[ProduceRequest], progress: _Progress) -> frozenset[TopicPartition]:
        """Every partition of the request that is there. The first batch adds them all to its transaction: one change of
        its row instead of one per partition."""
        if progress.joining is None:
            found = []
            for given in request.body.topic_data:
                topic, _ = self._find(request, given)
                if topic is not None:
                    indexes = (each.index for each in given.partition_data)
                    found += [(topic.name, index) for index in indexes if topic.partition(index) is not None]
            progress.joining = frozenset(found)
            progress.units += len(found) // PARTITIONS_JOINED_PER_UNIT
        return progress.joining


class _Progress:
    """What a Produce has done so far."""

    __slots__ = ("joining", "record_errors_left", "responses", "units", "waiting")

    def __init__(self) -> None:
        self.responses: list[TopicProduceResponse] = []
        self.waiting: Waiting = []
        self.joining: frozenset[TopicPartition] | None = None
        """The partitions that it adds to its transaction, once they were asked for."""
        self.record_errors_left = RECORD_ERRORS_MAX
        self.units = 0

    def reply(self, *, by_id: bool) -> Reply:
        response = ProduceResponse(responses=self.responses)
        if not self.waiting:
            return response
        reply = ProduceReply(response, self.waiting, by_id=by_id)
        for partition, offset, _ in self.waiting:
            if partition.removed_at is None:
                partition.log.when_acknowledged(offset, reply.one_done)
            else:
                reply.one_done()
        return reply if reply.waits else response


TELLS_START = (InvalidBatch, RefusedRecords, OutOfOrderSequence, InvalidProducerEpoch)
"""Errors found in the log. With these Kafka also sends the log start offset."""


def _refused(
    index: int, error: HeadraceError, progress: _Progress, partition: Partition | None = None
) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(
        index=index, error_code=code_of(error), base_offset=-1, error_message=error.message
    )
    if partition is not None and isinstance(error, TELLS_START) and not isinstance(error, UnreadableBatch):
        answer.log_start_offset = partition.log.start_offset
    is_logged = isinstance(error, DiskFull) or (partition is not None and partition.fault is not None)
    if partition is not None and isinstance(error, StorageError) and not is_logged:
        LOG.error("%s-%d: a write failed: %s", partition.topic, index, error)
    if isinstance(error, RefusedRecords):
        reported = error.indexes[: progress.record_errors_left]
        progress.record_errors_left -= len(reported)
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each, batch_index_error_message=error.message) for each in reported
        ]
    return answer
