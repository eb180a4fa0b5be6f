"""Fetch."""

from __future__ import annotations

from typing import Any

from headrace.wire.kafka.schema import array, data, i8, i16, i32, i64, message, records, string, struct, structs, uuid

__all__ = [
    "AbortedTransaction",
    "EpochEndOffset",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchableTopicResponse",
    "ForgottenTopic",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "PartitionData",
    "ReplicaState",
    "SnapshotId",
]


@struct
class ReplicaState:
    replica_id: int = i32(since=15, default=-1)
    replica_epoch: int = i64(since=15, default=-1)


@struct
class FetchPartition:
    partition: int = i32()
    current_leader_epoch: int = i32(since=9, default=-1)
    fetch_offset: int = i64()
    last_fetched_epoch: int = i32(since=12, default=-1)
    log_start_offset: int = i64(since=5, default=-1)
    partition_max_bytes: int = i32()
    replica_directory_id: bytes = uuid(since=17, tag=0)
    high_watermark: int = i64(since=18, tag=1, default=9223372036854775807)


@struct
class FetchTopic:
    topic: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[FetchPartition] = structs(FetchPartition)


@struct
class ForgottenTopic:
    topic: str = string(since=7, until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[int] = array("int32", since=7)


@message(api_key=1, versions=(4, 18), flexible=12)
class FetchRequest:
    cluster_id: str | None = string(since=12, null=12, tag=0, default=None)
    replica_id: int = i32(until=14, default=-1)
    replica_state: ReplicaState = data(ReplicaState, since=15, tag=1)
    max_wait_ms: int = i32()
    min_bytes: int = i32()
    max_bytes: int = i32(default=2147483647)
    isolation_level: int = i8()
    session_id: int = i32(since=7)
    session_epoch: int = i32(since=7, default=-1)
    topics: list[FetchTopic] = structs(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = structs(ForgottenTopic, since=7)
    rack_id: str = string(since=11)


@struct
class EpochEndOffset:
    epoch: int = i32(since=12, default=-1)
    end_offset: int = i64(since=12, default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: int = i32(since=12, default=-1)
    leader_epoch: int = i32(since=12, default=-1)


@struct
class SnapshotId:
    end_offset: int = i64(default=-1)
    epoch: int = i32(default=-1)


@struct
class AbortedTransaction:
    producer_id: int = i64()
    first_offset: int = i64()


@struct
class PartitionData:
    partition_index: int = i32()
    error_code: int = i16()
    high_watermark: int = i64()
    last_stable_offset: int = i64(default=-1)
    log_start_offset: int = i64(since=5, default=-1)
    diverging_epoch: EpochEndOffset = data(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = data(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId = data(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = structs(AbortedTransaction, null=4)
    preferred_read_replica: int = i32(since=11, default=-1)
    records: Any = records(null=0)


@struct
class FetchableTopicResponse:
    topic: str = string(until=12)
    topic_id: bytes = uuid(since=13)
    partitions: list[PartitionData] = structs(PartitionData)


@struct
class NodeEndpoint:
    node_id: int = i32(since=16)
    host: str = string(since=16)
    port: int = i32(since=16)
    rack: str | None = string(since=16, null=16, default=None)


@message(api_key=1, versions=(4, 18), flexible=12)
class FetchResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16(since=7)
    session_id: int = i32(since=7)
    responses: list[FetchableTopicResponse] = structs(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = structs(NodeEndpoint, since=16, tag=0)
