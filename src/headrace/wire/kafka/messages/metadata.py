"""Versions, topics and brokers: what a client asks first."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, boolean, data, i8, i16, i32, i64, message, string, struct, structs, uuid

__all__ = [
    "ApiVersion",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "Cursor",
    "DescribeClusterBroker",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTopicPartitionsResponseCursor",
    "DescribeTopicPartitionsResponsePartition",
    "DescribeTopicPartitionsResponseTopic",
    "FinalizedFeatureKey",
    "MetadataRequest",
    "MetadataRequestTopic",
    "MetadataResponse",
    "MetadataResponseBroker",
    "MetadataResponsePartition",
    "MetadataResponseTopic",
    "SupportedFeatureKey",
    "TopicRequest",
]


@message(api_key=18, versions=(0, 5), flexible=3)
class ApiVersionsRequest:
    client_software_name: str = string(since=3)
    client_software_version: str = string(since=3)
    cluster_id: str | None = string(since=5, null=5, default=None)
    node_id: int = i32(since=5, default=-1)


@struct
class ApiVersion:
    api_key: int = i16()
    min_version: int = i16()
    max_version: int = i16()


@struct
class SupportedFeatureKey:
    name: str = string(since=3)
    min_version: int = i16(since=3)
    max_version: int = i16(since=3)


@struct
class FinalizedFeatureKey:
    name: str = string(since=3)
    max_version_level: int = i16(since=3)
    min_version_level: int = i16(since=3)


@message(api_key=18, versions=(0, 5), flexible=3)
class ApiVersionsResponse:
    error_code: int = i16()
    api_keys: list[ApiVersion] = structs(ApiVersion)
    throttle_time_ms: int = i32(since=1)
    supported_features: list[SupportedFeatureKey] = structs(SupportedFeatureKey, since=3, tag=0)
    finalized_features_epoch: int = i64(since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = structs(FinalizedFeatureKey, since=3, tag=2)
    zk_migration_ready: bool = boolean(since=3, tag=3)


@struct
class MetadataRequestTopic:
    topic_id: bytes = uuid(since=10)
    name: str | None = string(null=10)


@message(api_key=3, versions=(0, 13), flexible=9)
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = structs(MetadataRequestTopic, null=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


@struct
class MetadataResponseBroker:
    node_id: int = i32()
    host: str = string()
    port: int = i32()
    rack: str | None = string(since=1, null=1, default=None)


@struct
class MetadataResponsePartition:
    error_code: int = i16()
    partition_index: int = i32()
    leader_id: int = i32()
    leader_epoch: int = i32(since=7, default=-1)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    offline_replicas: list[int] = array("int32", since=5)


@struct
class MetadataResponseTopic:
    error_code: int = i16()
    name: str | None = string(null=12)
    topic_id: bytes = uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[MetadataResponsePartition] = structs(MetadataResponsePartition)
    topic_authorized_operations: int = i32(since=8, default=-2147483648)


@message(api_key=3, versions=(0, 13), flexible=9)
class MetadataResponse:
    throttle_time_ms: int = i32(since=3)
    brokers: list[MetadataResponseBroker] = structs(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, null=2, default=None)
    controller_id: int = i32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = structs(MetadataResponseTopic)
    cluster_authorized_operations: int = i32(since=8, until=10, default=-2147483648)
    error_code: int = i16(since=13)


@message(api_key=60, versions=(0, 2), flexible=0)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = i8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2)


@struct
class DescribeClusterBroker:
    broker_id: int = i32()
    host: str = string()
    port: int = i32()
    rack: str | None = string(null=0, default=None)
    is_fenced: bool = boolean(since=2)


@message(api_key=60, versions=(0, 2), flexible=0)
class DescribeClusterResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    endpoint_type: int = i8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = i32(default=-1)
    brokers: list[DescribeClusterBroker] = structs(DescribeClusterBroker)
    cluster_authorized_operations: int = i32(default=-2147483648)


@struct
class TopicRequest:
    name: str = string()


@struct
class Cursor:
    topic_name: str = string()
    partition_index: int = i32()


@message(api_key=75, versions=(0, 0), flexible=0)
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = structs(TopicRequest)
    response_partition_limit: int = i32(default=2000)
    cursor: Cursor | None = data(Cursor, null=0, default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: int = i16()
    partition_index: int = i32()
    leader_id: int = i32()
    leader_epoch: int = i32(default=-1)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    eligible_leader_replicas: list[int] | None = array("int32", null=0, default=None)
    last_known_elr: list[int] | None = array("int32", null=0, default=None)
    offline_replicas: list[int] = array("int32")


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: int = i16()
    name: str | None = string(null=0)
    topic_id: bytes = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = structs(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = i32(default=-2147483648)


@struct
class DescribeTopicPartitionsResponseCursor:
    topic_name: str = string()
    partition_index: int = i32()


@message(api_key=75, versions=(0, 0), flexible=0)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = i32()
    topics: list[DescribeTopicPartitionsResponseTopic] = structs(DescribeTopicPartitionsResponseTopic)
    next_cursor: DescribeTopicPartitionsResponseCursor | None = data(
        DescribeTopicPartitionsResponseCursor, null=0, default=None
    )
