"""Producer ids and transactions."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, boolean, i16, i32, i64, message, string, struct, structs, uuid

__all__ = [
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnPartitionResult",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AddPartitionsToTxnResult",
    "AddPartitionsToTxnTopic",
    "AddPartitionsToTxnTopicResult",
    "AddPartitionsToTxnTransaction",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "ListTransactionsResponseTransactionState",
    "PartitionResponse",
    "ProducerState",
    "TopicData",
    "TopicRequest",
    "TopicResponse",
    "TransactionState",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitRequestPartition",
    "TxnOffsetCommitRequestTopic",
    "TxnOffsetCommitResponse",
    "TxnOffsetCommitResponsePartition",
    "TxnOffsetCommitResponseTopic",
]


@message(api_key=22, versions=(0, 6), flexible=2)
class InitProducerIdRequest:
    transactional_id: str | None = string(null=0)
    transaction_timeout_ms: int = i32()
    producer_id: int = i64(since=3, default=-1)
    producer_epoch: int = i16(since=3, default=-1)
    enable2_pc: bool = boolean(since=6)
    keep_prepared_txn: bool = boolean(since=6)


@message(api_key=22, versions=(0, 6), flexible=2)
class InitProducerIdResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    producer_id: int = i64(default=-1)
    producer_epoch: int = i16()
    ongoing_txn_producer_id: int = i64(since=6, default=-1)
    ongoing_txn_producer_epoch: int = i16(since=6, default=-1)


@struct
class AddPartitionsToTxnTopic:
    name: str = string()
    partitions: list[int] = array("int32")


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str = string(since=4)
    producer_id: int = i64(since=4)
    producer_epoch: int = i16(since=4)
    verify_only: bool = boolean(since=4)
    topics: list[AddPartitionsToTxnTopic] = structs(AddPartitionsToTxnTopic, since=4)


@message(api_key=24, versions=(0, 5), flexible=3)
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = structs(AddPartitionsToTxnTransaction, since=4)
    v3_and_below_transactional_id: str = string(until=3)
    v3_and_below_producer_id: int = i64(until=3)
    v3_and_below_producer_epoch: int = i16(until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = structs(AddPartitionsToTxnTopic, until=3)


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: int = i32()
    partition_error_code: int = i16()


@struct
class AddPartitionsToTxnTopicResult:
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = structs(AddPartitionsToTxnPartitionResult)


@struct
class AddPartitionsToTxnResult:
    transactional_id: str = string(since=4)
    topic_results: list[AddPartitionsToTxnTopicResult] = structs(AddPartitionsToTxnTopicResult, since=4)


@message(api_key=24, versions=(0, 5), flexible=3)
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16(since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = structs(AddPartitionsToTxnResult, since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = structs(AddPartitionsToTxnTopicResult, until=3)


@message(api_key=25, versions=(0, 4), flexible=3)
class AddOffsetsToTxnRequest:
    transactional_id: str = string()
    producer_id: int = i64()
    producer_epoch: int = i16()
    group_id: str = string()


@message(api_key=25, versions=(0, 4), flexible=3)
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()


@message(api_key=26, versions=(0, 5), flexible=3)
class EndTxnRequest:
    transactional_id: str = string()
    producer_id: int = i64()
    producer_epoch: int = i16()
    committed: bool = boolean()


@message(api_key=26, versions=(0, 5), flexible=3)
class EndTxnResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    producer_id: int = i64(since=5, default=-1)
    producer_epoch: int = i16(since=5, default=-1)


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: int = i32()
    committed_offset: int = i64()
    committed_leader_epoch: int = i32(since=2, default=-1)
    committed_metadata: str | None = string(null=0)


@struct
class TxnOffsetCommitRequestTopic:
    name: str = string(until=5)
    topic_id: bytes = uuid(since=6)
    partitions: list[TxnOffsetCommitRequestPartition] = structs(TxnOffsetCommitRequestPartition)


@message(api_key=28, versions=(0, 6), flexible=3)
class TxnOffsetCommitRequest:
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = i64()
    producer_epoch: int = i16()
    generation_id_or_member_epoch: int = i32(since=3, default=-1)
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, null=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = structs(TxnOffsetCommitRequestTopic)


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: int = i32()
    error_code: int = i16()


@struct
class TxnOffsetCommitResponseTopic:
    name: str = string(until=5)
    topic_id: bytes = uuid(since=6)
    partitions: list[TxnOffsetCommitResponsePartition] = structs(TxnOffsetCommitResponsePartition)


@message(api_key=28, versions=(0, 6), flexible=3)
class TxnOffsetCommitResponse:
    throttle_time_ms: int = i32()
    topics: list[TxnOffsetCommitResponseTopic] = structs(TxnOffsetCommitResponseTopic)


@struct
class TopicRequest:
    name: str = string()
    partition_indexes: list[int] = array("int32")


@message(api_key=61, versions=(0, 0), flexible=0)
class DescribeProducersRequest:
    topics: list[TopicRequest] = structs(TopicRequest)


@struct
class ProducerState:
    producer_id: int = i64()
    producer_epoch: int = i32()
    last_sequence: int = i32(default=-1)
    last_timestamp: int = i64(default=-1)
    coordinator_epoch: int = i32()
    current_txn_start_offset: int = i64(default=-1)


@struct
class PartitionResponse:
    partition_index: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    active_producers: list[ProducerState] = structs(ProducerState)


@struct
class TopicResponse:
    name: str = string()
    partitions: list[PartitionResponse] = structs(PartitionResponse)


@message(api_key=61, versions=(0, 0), flexible=0)
class DescribeProducersResponse:
    throttle_time_ms: int = i32()
    topics: list[TopicResponse] = structs(TopicResponse)


@message(api_key=65, versions=(0, 0), flexible=0)
class DescribeTransactionsRequest:
    transactional_ids: list[str] = array("string")


@struct
class TopicData:
    topic: str = string()
    partitions: list[int] = array("int32")


@struct
class TransactionState:
    error_code: int = i16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = i32()
    transaction_start_time_ms: int = i64()
    producer_id: int = i64()
    producer_epoch: int = i16()
    topics: list[TopicData] = structs(TopicData)


@message(api_key=65, versions=(0, 0), flexible=0)
class DescribeTransactionsResponse:
    throttle_time_ms: int = i32()
    transaction_states: list[TransactionState] = structs(TransactionState)


@message(api_key=66, versions=(0, 2), flexible=0)
class ListTransactionsRequest:
    state_filters: list[str] = array("string")
    producer_id_filters: list[int] = array("int64")
    duration_filter: int = i64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, null=2, default=None)


@struct
class ListTransactionsResponseTransactionState:
    transactional_id: str = string()
    producer_id: int = i64()
    transaction_state: str = string()


@message(api_key=66, versions=(0, 2), flexible=0)
class ListTransactionsResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    unknown_state_filters: list[str] = array("string")
    transaction_states: list[ListTransactionsResponseTransactionState] = structs(
        ListTransactionsResponseTransactionState
    )
