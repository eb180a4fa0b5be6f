"""Where a partition begins, ends, and stood at a time or an epoch."""

from __future__ import annotations

from headrace.wire.kafka.schema import i8, i16, i32, i64, message, string, struct, structs

__all__ = [
    "EpochEndOffset",
    "ListOffsetsPartition",
    "ListOffsetsPartitionResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "OffsetForLeaderPartition",
    "OffsetForLeaderTopic",
    "OffsetForLeaderTopicResult",
]


@struct
class ListOffsetsPartition:
    partition_index: int = i32()
    current_leader_epoch: int = i32(since=4, default=-1)
    timestamp: int = i64()


@struct
class ListOffsetsTopic:
    name: str = string()
    partitions: list[ListOffsetsPartition] = structs(ListOffsetsPartition)


@message(api_key=2, versions=(1, 11), flexible=6)
class ListOffsetsRequest:
    replica_id: int = i32()
    isolation_level: int = i8(since=2)
    topics: list[ListOffsetsTopic] = structs(ListOffsetsTopic)
    timeout_ms: int = i32(since=10)


@struct
class ListOffsetsPartitionResponse:
    partition_index: int = i32()
    error_code: int = i16()
    timestamp: int = i64(default=-1)
    offset: int = i64(default=-1)
    leader_epoch: int = i32(since=4, default=-1)


@struct
class ListOffsetsTopicResponse:
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = structs(ListOffsetsPartitionResponse)


@message(api_key=2, versions=(1, 11), flexible=6)
class ListOffsetsResponse:
    throttle_time_ms: int = i32(since=2)
    topics: list[ListOffsetsTopicResponse] = structs(ListOffsetsTopicResponse)


@struct
class OffsetForLeaderPartition:
    partition: int = i32()
    current_leader_epoch: int = i32(default=-1)
    leader_epoch: int = i32()


@struct
class OffsetForLeaderTopic:
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = structs(OffsetForLeaderPartition)


@message(api_key=23, versions=(2, 4), flexible=4)
class OffsetForLeaderEpochRequest:
    replica_id: int = i32(since=3, default=-2)
    topics: list[OffsetForLeaderTopic] = structs(OffsetForLeaderTopic)


@struct
class EpochEndOffset:
    error_code: int = i16()
    partition: int = i32()
    leader_epoch: int = i32(default=-1)
    end_offset: int = i64(default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: str = string()
    partitions: list[EpochEndOffset] = structs(EpochEndOffset)


@message(api_key=23, versions=(2, 4), flexible=4)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = i32()
    topics: list[OffsetForLeaderTopicResult] = structs(OffsetForLeaderTopicResult)
