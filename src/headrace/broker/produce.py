"""Produce: where a batch becomes an offset.

The steps of a batch:

1. its topic and partition are found, through the access gate;
2. it is checked by its header (``batch.read_batches``: length, magic, CRC, counts), and by its records only where the
   topic asks for that (compaction needs keys, ``headrace.validate=records``, a codec of the topic's own);
3. a transactional batch must belong to an open transaction of its producer (``AdditionHandler.check_produce``);
4. an idempotent batch is compared with what its producer wrote before: a repeated one is answered with the offset it
   got the first time, a gap is refused;
5. the log appends it, and the answer waits until it is flushed.

A failure at any step concerns its partition only; the other partitions of the request are written.
"""

from __future__ import annotations

from headrace.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    PREFIX_BYTES,
    Batch,
    InvalidBatch,
    RecordTooLarge,
    UnreadableBatch,
    read_batches,
    reseal,
    stamp_log_append_time,
)
from headrace.broker.access import AccessDenied, Operation
from headrace.broker.errors import code_of
from headrace.broker.overflow import Overflow
from headrace.broker.partition import Partition
from headrace.broker.replies import PendingReply, Reply
from headrace.broker.request import Request
from headrace.broker.topics import ProducePolicy, Topic
from headrace.broker.transactions.additions import AdditionHandler
from headrace.config import INT_MAX
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.log.errors import InvalidProducerEpoch, OutOfOrderSequence
from headrace.log.producers import Duplicate
from headrace.ports import Clock
from headrace.record import Codec, compress, decode_records, decompress, record_keys, validate_records
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

ACKS = (-1, 0, 1)
WRITE = Operation.WRITE
TOPIC_IDS_SINCE = 13
TRANSACTIONS_V2_SINCE = 12

Waiting = list[tuple[Partition, Offset]]
"""(partition, offset) pairs whose flush the answer waits for."""


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
        body = request.body
        waiting: Waiting = []
        responses = [self._topic(request, each, waiting) for each in body.topic_data]
        if body.acks == 0:
            return self._without_answer(request, responses)
        response = ProduceResponse(responses=responses)
        if not waiting:
            return response
        reply = PendingReply(response, waits=len(waiting))
        for partition, offset in waiting:
            partition.log.when_acknowledged(offset, reply.one_done)
        return reply if reply.waits else response

    @staticmethod
    def _without_answer(request: Request[ProduceRequest], responses: list[TopicProduceResponse]) -> None:
        """With acks=0 there is no answer. An error is reported by closing the connection, as in Kafka."""
        codes = {each.error_code for topic in responses for each in topic.partition_responses} - {0}
        if codes:
            names = ", ".join(ErrorCode(code).name for code in sorted(codes))
            request.peer.hang_up(f"a Produce with acks=0 failed: {names}")

    def _topic(
        self, request: Request[ProduceRequest], given: TopicProduceData, waiting: Waiting
    ) -> TopicProduceResponse:
        access = request.access
        by_id = request.version >= TOPIC_IDS_SINCE
        missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = TopicProduceResponse(name=given.name, topic_id=given.topic_id)
        try:
            topic = access.topic_by_id(given.topic_id, WRITE) if by_id else access.topic(given.name, WRITE)
        except AccessDenied as denied:
            answer.partition_responses = [_refused(each.index, denied) for each in given.partition_data]
            return answer
        for each in given.partition_data:
            partition = topic.partition(each.index) if topic is not None else None
            if topic is None or partition is None:
                code = missing if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.partition_responses.append(_refused(each.index, KafkaError(code)))
                continue
            if partition.fault is not None:
                answer.partition_responses.append(_refused(each.index, partition.fault))
                continue
            try:
                answer.partition_responses.append(self._partition(request, topic, partition, each, waiting))
            except HeadraceError as error:
                answer.partition_responses.append(_refused(each.index, error, partition))
        return answer

    def _partition(
        self,
        request: Request[ProduceRequest],
        topic: Topic,
        partition: Partition,
        given: PartitionProduceData,
        waiting: Waiting,
    ) -> PartitionProduceResponse:
        if request.body.acks not in ACKS:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.body.acks}")
        policy = topic.config.produce_policy
        batch = self._checked(request, policy, given)
        self._check_transaction(request, partition, batch)
        if batch.producer_id >= 0:
            seen = partition.log.producers.check([batch])
            if isinstance(seen, Duplicate):
                waiting.append((partition, Offset(seen.last_offset)))
                return self._accepted(partition, seen.base_offset, seen.timestamp)
        append_time = -1
        if policy.stamps_append_time:
            append_time = self._append_time_ms()
            stamp_log_append_time(batch, append_time)
        elif batch.is_log_append_time:
            batch.attributes &= ~LOG_APPEND_TIME  # the producer's clock is not ours
            reseal(batch, batch.body[HEADER_BYTES - PREFIX_BYTES :])
        if policy.may_overflow:
            self._overflow.admit(topic, partition, batch, request.peer)
        result = partition.append([batch])
        waiting.append((partition, result.last_offset))
        return self._accepted(partition, result.base_offset, append_time)

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

    def _checked(self, request: Request[ProduceRequest], policy: ProducePolicy, given: PartitionProduceData) -> Batch:
        """The one batch of this partition, if it is one that the topic takes."""
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
        if request.version < 7 and batch.codec is Codec.ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce below version 7 may not carry zstd")
        if policy.validates_records:
            validate_records(batch, policy.decoded_bytes_max)
        if policy.is_compacted:
            _check_keys(batch, policy.decoded_bytes_max)
        if not policy.stamps_append_time and batch.max_timestamp >= 0:
            self._check_timestamps(policy, batch)
        if policy.codec is not None and policy.codec is not batch.codec:
            _recompress(batch, policy.codec, policy.decoded_bytes_max)
        return batch

    def _check_timestamps(self, policy: ProducePolicy, batch: Batch) -> None:
        now = self._clock.wall_ms()
        after_max = policy.timestamp_after_ms_max
        before_max = policy.timestamp_before_ms_max
        if batch.max_timestamp - now > after_max or now - batch.base_timestamp > before_max:
            records = decode_records(batch, policy.decoded_bytes_max)
            earliest, latest = now - before_max, now + after_max
            wrong = [index for index, each in enumerate(records) if not earliest <= each.timestamp <= latest]
            raise RefusedRecords(
                ErrorCode.INVALID_TIMESTAMP,
                f"Timestamp {batch.max_timestamp} of the batch is out of range: the timestamp should be within "
                f"[{earliest}, {latest}]",
                wrong,
            )

    def _check_transaction(self, request: Request[ProduceRequest], partition: Partition, batch: Batch) -> None:
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
            partition.topic,
            partition.index,
            request.version,
        )
        if code:
            raise KafkaError(code)


def _recompress(batch: Batch, codec: Codec, decoded_bytes_max: int) -> None:
    """Compress the records again with the topic's ``compression.type``."""
    records = decompress(batch.codec, batch.body[HEADER_BYTES - PREFIX_BYTES :], decoded_bytes_max)
    batch.attributes = batch.attributes & ~CODEC_MASK | codec
    reseal(batch, compress(codec, records))


class RefusedRecords(KafkaError):
    """Some records of a batch are not taken, and so none is; ``indexes`` says which."""

    def __init__(self, code: ErrorCode, message: str, indexes: list[int]) -> None:
        super().__init__(code, message)
        self.indexes = indexes


def _check_keys(batch: Batch, decoded_bytes_max: int) -> None:
    keyless = [index for index, (_, key, _) in enumerate(record_keys(batch, decoded_bytes_max)) if key is None]
    if keyless:
        raise RefusedRecords(ErrorCode.INVALID_RECORD, "Compacted topic cannot accept message without key.", keyless)


TELLS_START = (InvalidBatch, RefusedRecords, OutOfOrderSequence, InvalidProducerEpoch)
"""Errors found in the log. With these Kafka also sends the log start offset."""


def _refused(index: int, error: HeadraceError, partition: Partition | None = None) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(
        index=index, error_code=code_of(error), base_offset=-1, error_message=error.message
    )
    if partition is not None and isinstance(error, TELLS_START) and not isinstance(error, UnreadableBatch):
        answer.log_start_offset = partition.log.start_offset
    if isinstance(error, RefusedRecords):
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each, batch_index_error_message=error.message)
            for each in error.indexes
        ]
    return answer
