"""Offsets that groups commit."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, boolean, i16, i32, i64, message, string, struct, structs, uuid

__all__ = [
    "OffsetCommitRequest",
    "OffsetCommitRequestPartition",
    "OffsetCommitRequestTopic",
    "OffsetCommitResponse",
    "OffsetCommitResponsePartition",
    "OffsetCommitResponseTopic",
    "OffsetDeleteRequest",
    "OffsetDeleteRequestPartition",
    "OffsetDeleteRequestTopic",
    "OffsetDeleteResponse",
    "OffsetDeleteResponsePartition",
    "OffsetDeleteResponseTopic",
    "OffsetFetchRequest",
    "OffsetFetchRequestGroup",
    "OffsetFetchRequestTopic",
    "OffsetFetchRequestTopics",
    "OffsetFetchResponse",
    "OffsetFetchResponseGroup",
    "OffsetFetchResponsePartition",
    "OffsetFetchResponsePartitions",
    "OffsetFetchResponseTopic",
    "OffsetFetchResponseTopics",
]


@struct
class OffsetCommitRequestPartition:
    partition_index: int = i32()
    committed_offset: int = i64()
    committed_leader_epoch: int = i32(since=6, default=-1)
    committed_metadata: str | None = string(null=0)


@struct
class OffsetCommitRequestTopic:
    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetCommitRequestPartition] = structs(OffsetCommitRequestPartition)


@message(api_key=8, versions=(2, 10), flexible=8)
class OffsetCommitRequest:
    group_id: str = string()
    generation_id_or_member_epoch: int = i32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=7, null=7, default=None)
    retention_time_ms: int = i64(until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = structs(OffsetCommitRequestTopic)


@struct
class OffsetCommitResponsePartition:
    partition_index: int = i32()
    error_code: int = i16()


@struct
class OffsetCommitResponseTopic:
    name: str = string(until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetCommitResponsePartition] = structs(OffsetCommitResponsePartition)


@message(api_key=8, versions=(2, 10), flexible=8)
class OffsetCommitResponse:
    throttle_time_ms: int = i32(since=3)
    topics: list[OffsetCommitResponseTopic] = structs(OffsetCommitResponseTopic)


@struct
class OffsetFetchRequestTopic:
    name: str = string(until=7)
    partition_indexes: list[int] = array("int32", until=7)


@struct
class OffsetFetchRequestTopics:
    name: str = string(since=8, until=9)
    topic_id: bytes = uuid(since=10)
    partition_indexes: list[int] = array("int32", since=8)


@struct
class OffsetFetchRequestGroup:
    group_id: str = string(since=8)
    member_id: str | None = string(since=9, null=9, default=None)
    member_epoch: int = i32(since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = structs(OffsetFetchRequestTopics, since=8, null=8)


@message(api_key=9, versions=(1, 10), flexible=6)
class OffsetFetchRequest:
    group_id: str = string(until=7)
    topics: list[OffsetFetchRequestTopic] | None = structs(OffsetFetchRequestTopic, until=7, null=2)
    groups: list[OffsetFetchRequestGroup] = structs(OffsetFetchRequestGroup, since=8)
    require_stable: bool = boolean(since=7)


@struct
class OffsetFetchResponsePartition:
    partition_index: int = i32(until=7)
    committed_offset: int = i64(until=7)
    committed_leader_epoch: int = i32(since=5, until=7, default=-1)
    metadata: str | None = string(until=7, null=0)
    error_code: int = i16(until=7)


@struct
class OffsetFetchResponseTopic:
    name: str = string(until=7)
    partitions: list[OffsetFetchResponsePartition] = structs(OffsetFetchResponsePartition, until=7)


@struct
class OffsetFetchResponsePartitions:
    partition_index: int = i32(since=8)
    committed_offset: int = i64(since=8)
    committed_leader_epoch: int = i32(since=8, default=-1)
    metadata: str | None = string(since=8, null=8)
    error_code: int = i16(since=8)


@struct
class OffsetFetchResponseTopics:
    name: str = string(since=8, until=9)
    topic_id: bytes = uuid(since=10)
    partitions: list[OffsetFetchResponsePartitions] = structs(OffsetFetchResponsePartitions, since=8)


@struct
class OffsetFetchResponseGroup:
    group_id: str = string(since=8)
    topics: list[OffsetFetchResponseTopics] = structs(OffsetFetchResponseTopics, since=8)
    error_code: int = i16(since=8)


@message(api_key=9, versions=(1, 10), flexible=6)
class OffsetFetchResponse:
    throttle_time_ms: int = i32(since=3)
    topics: list[OffsetFetchResponseTopic] = structs(OffsetFetchResponseTopic, until=7)
    error_code: int = i16(since=2, until=7)
    groups: list[OffsetFetchResponseGroup] = structs(OffsetFetchResponseGroup, since=8)


@struct
class OffsetDeleteRequestPartition:
    partition_index: int = i32()


@struct
class OffsetDeleteRequestTopic:
    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = structs(OffsetDeleteRequestPartition)


@message(api_key=47, versions=(0, 0))
class OffsetDeleteRequest:
    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = structs(OffsetDeleteRequestTopic)


@struct
class OffsetDeleteResponsePartition:
    partition_index: int = i32()
    error_code: int = i16()


@struct
class OffsetDeleteResponseTopic:
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = structs(OffsetDeleteResponsePartition)


@message(api_key=47, versions=(0, 0))
class OffsetDeleteResponse:
    error_code: int = i16()
    throttle_time_ms: int = i32()
    topics: list[OffsetDeleteResponseTopic] = structs(OffsetDeleteResponseTopic)
