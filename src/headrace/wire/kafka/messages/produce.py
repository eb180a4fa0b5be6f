"""Produce."""

from __future__ import annotations

from typing import Any

from headrace.wire.kafka.schema import data, i16, i32, i64, message, records, string, struct, structs, uuid

__all__ = [
    "BatchIndexAndErrorMessage",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "PartitionProduceData",
    "PartitionProduceResponse",
    "ProduceRequest",
    "ProduceResponse",
    "TopicProduceData",
    "TopicProduceResponse",
]


@struct
class PartitionProduceData:
    index: int = i32()
    records: Any = records(null=0)


@struct
class TopicProduceData:
    name: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partition_data: list[PartitionProduceData] = structs(PartitionProduceData)


@message(api_key=0, versions=(3, 13), flexible=9)
class ProduceRequest:
    transactional_id: str | None = string(null=3, default=None)
    acks: int = i16()
    timeout_ms: int = i32()
    topic_data: list[TopicProduceData] = structs(TopicProduceData)


@struct
class BatchIndexAndErrorMessage:
    batch_index: int = i32(since=8)
    batch_index_error_message: str | None = string(since=8, null=8, default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: int = i32(since=10, default=-1)
    leader_epoch: int = i32(since=10, default=-1)


@struct
class PartitionProduceResponse:
    index: int = i32()
    error_code: int = i16()
    base_offset: int = i64()
    log_append_time_ms: int = i64(default=-1)
    log_start_offset: int = i64(since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = structs(BatchIndexAndErrorMessage, since=8)
    error_message: str | None = string(since=8, null=8, default=None)
    current_leader: LeaderIdAndEpoch = data(LeaderIdAndEpoch, since=10, tag=0)


@struct
class TopicProduceResponse:
    name: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partition_responses: list[PartitionProduceResponse] = structs(PartitionProduceResponse)


@struct
class NodeEndpoint:
    node_id: int = i32(since=10)
    host: str = string(since=10)
    port: int = i32(since=10)
    rack: str | None = string(since=10, null=10, default=None)


@message(api_key=0, versions=(3, 13), flexible=9)
class ProduceResponse:
    responses: list[TopicProduceResponse] = structs(TopicProduceResponse)
    throttle_time_ms: int = i32()
    node_endpoints: list[NodeEndpoint] = structs(NodeEndpoint, since=10, tag=0)
