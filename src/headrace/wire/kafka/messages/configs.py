"""Settings of topics, brokers and groups, and where the data lies."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, boolean, i8, i16, i32, i64, message, string, struct, structs, u16, uuid

__all__ = [
    "AlterConfigsRequest",
    "AlterConfigsResource",
    "AlterConfigsResourceResponse",
    "AlterConfigsResponse",
    "AlterReplicaLogDir",
    "AlterReplicaLogDirPartitionResult",
    "AlterReplicaLogDirTopic",
    "AlterReplicaLogDirTopicResult",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponse",
    "AlterableConfig",
    "ConfigResource",
    "DescribableLogDirTopic",
    "DescribeConfigsRequest",
    "DescribeConfigsResource",
    "DescribeConfigsResourceResult",
    "DescribeConfigsResponse",
    "DescribeConfigsResult",
    "DescribeConfigsSynonym",
    "DescribeLogDirsPartition",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeLogDirsResult",
    "DescribeLogDirsTopic",
    "DescribeQuorumRequest",
    "DescribeQuorumResponse",
    "DescribeQuorumResponsePartitionData",
    "DescribeQuorumResponseTopicData",
    "FeatureUpdateKey",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsRequestAlterConfigsResource",
    "IncrementalAlterConfigsRequestAlterableConfig",
    "IncrementalAlterConfigsResponse",
    "IncrementalAlterConfigsResponseAlterConfigsResourceResponse",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponse",
    "Listener",
    "Node",
    "PartitionData",
    "ReplicaState",
    "TopicData",
    "UpdatableFeatureResult",
    "UpdateFeaturesRequest",
    "UpdateFeaturesResponse",
]


@struct
class DescribeConfigsResource:
    resource_type: int = i8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array("string", null=0)


@message(api_key=32, versions=(1, 4), flexible=4)
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = structs(DescribeConfigsResource)
    include_synonyms: bool = boolean()
    include_documentation: bool = boolean(since=3)


@struct
class DescribeConfigsSynonym:
    name: str = string()
    value: str | None = string(null=0)
    source: int = i8()


@struct
class DescribeConfigsResourceResult:
    name: str = string()
    value: str | None = string(null=0)
    read_only: bool = boolean()
    config_source: int = i8(default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = structs(DescribeConfigsSynonym)
    config_type: int = i8(since=3)
    documentation: str | None = string(since=3, null=0)


@struct
class DescribeConfigsResult:
    error_code: int = i16()
    error_message: str | None = string(null=0)
    resource_type: int = i8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = structs(DescribeConfigsResourceResult)


@message(api_key=32, versions=(1, 4), flexible=4)
class DescribeConfigsResponse:
    throttle_time_ms: int = i32()
    results: list[DescribeConfigsResult] = structs(DescribeConfigsResult)


@struct
class AlterableConfig:
    name: str = string()
    value: str | None = string(null=0)


@struct
class AlterConfigsResource:
    resource_type: int = i8()
    resource_name: str = string()
    configs: list[AlterableConfig] = structs(AlterableConfig)


@message(api_key=33, versions=(0, 2), flexible=2)
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = structs(AlterConfigsResource)
    validate_only: bool = boolean()


@struct
class AlterConfigsResourceResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0)
    resource_type: int = i8()
    resource_name: str = string()


@message(api_key=33, versions=(0, 2), flexible=2)
class AlterConfigsResponse:
    throttle_time_ms: int = i32()
    responses: list[AlterConfigsResourceResponse] = structs(AlterConfigsResourceResponse)


@struct
class IncrementalAlterConfigsRequestAlterableConfig:
    name: str = string()
    config_operation: int = i8()
    value: str | None = string(null=0)


@struct
class IncrementalAlterConfigsRequestAlterConfigsResource:
    resource_type: int = i8()
    resource_name: str = string()
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = structs(
        IncrementalAlterConfigsRequestAlterableConfig
    )


@message(api_key=44, versions=(0, 1), flexible=1)
class IncrementalAlterConfigsRequest:
    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = structs(
        IncrementalAlterConfigsRequestAlterConfigsResource
    )
    validate_only: bool = boolean()


@struct
class IncrementalAlterConfigsResponseAlterConfigsResourceResponse:
    error_code: int = i16()
    error_message: str | None = string(null=0)
    resource_type: int = i8()
    resource_name: str = string()


@message(api_key=44, versions=(0, 1), flexible=1)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = i32()
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = structs(
        IncrementalAlterConfigsResponseAlterConfigsResourceResponse
    )


@message(api_key=74, versions=(0, 1), flexible=0)
class ListConfigResourcesRequest:
    resource_types: list[int] = array("int8", since=1)


@struct
class ConfigResource:
    resource_name: str = string()
    resource_type: int = i8(since=1, default=16)


@message(api_key=74, versions=(0, 1), flexible=0)
class ListConfigResourcesResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    config_resources: list[ConfigResource] = structs(ConfigResource)


@struct
class DescribableLogDirTopic:
    topic: str = string()
    partitions: list[int] = array("int32")


@message(api_key=35, versions=(1, 5), flexible=2)
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = structs(DescribableLogDirTopic, null=0)


@struct
class DescribeLogDirsPartition:
    partition_index: int = i32()
    partition_size: int = i64()
    offset_lag: int = i64()
    is_future_key: bool = boolean()


@struct
class DescribeLogDirsTopic:
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = structs(DescribeLogDirsPartition)


@struct
class DescribeLogDirsResult:
    error_code: int = i16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = structs(DescribeLogDirsTopic)
    total_bytes: int = i64(since=4, default=-1)
    usable_bytes: int = i64(since=4, default=-1)
    is_cordoned: bool = boolean(since=5)


@message(api_key=35, versions=(1, 5), flexible=2)
class DescribeLogDirsResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16(since=3)
    results: list[DescribeLogDirsResult] = structs(DescribeLogDirsResult)


@struct
class AlterReplicaLogDirTopic:
    name: str = string()
    partitions: list[int] = array("int32")


@struct
class AlterReplicaLogDir:
    path: str = string()
    topics: list[AlterReplicaLogDirTopic] = structs(AlterReplicaLogDirTopic)


@message(api_key=34, versions=(1, 2), flexible=2)
class AlterReplicaLogDirsRequest:
    dirs: list[AlterReplicaLogDir] = structs(AlterReplicaLogDir)


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: int = i32()
    error_code: int = i16()


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: str = string()
    partitions: list[AlterReplicaLogDirPartitionResult] = structs(AlterReplicaLogDirPartitionResult)


@message(api_key=34, versions=(1, 2), flexible=2)
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int = i32()
    results: list[AlterReplicaLogDirTopicResult] = structs(AlterReplicaLogDirTopicResult)


@struct
class FeatureUpdateKey:
    feature: str = string()
    max_version_level: int = i16()
    allow_downgrade: bool = boolean(until=0)
    upgrade_type: int = i8(since=1, default=1)


@message(api_key=57, versions=(0, 2), flexible=0)
class UpdateFeaturesRequest:
    timeout_ms: int = i32(default=60000)
    feature_updates: list[FeatureUpdateKey] = structs(FeatureUpdateKey)
    validate_only: bool = boolean(since=1)


@struct
class UpdatableFeatureResult:
    feature: str = string()
    error_code: int = i16()
    error_message: str | None = string(null=0)


@message(api_key=57, versions=(0, 2), flexible=0)
class UpdateFeaturesResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0)
    results: list[UpdatableFeatureResult] = structs(UpdatableFeatureResult, until=1)


@struct
class PartitionData:
    partition_index: int = i32()


@struct
class TopicData:
    topic_name: str = string()
    partitions: list[PartitionData] = structs(PartitionData)


@message(api_key=55, versions=(0, 2), flexible=0)
class DescribeQuorumRequest:
    topics: list[TopicData] = structs(TopicData)


@struct
class ReplicaState:
    replica_id: int = i32()
    replica_directory_id: bytes = uuid(since=2)
    log_end_offset: int = i64()
    last_fetch_timestamp: int = i64(since=1, default=-1)
    last_caught_up_timestamp: int = i64(since=1, default=-1)


@struct
class DescribeQuorumResponsePartitionData:
    partition_index: int = i32()
    error_code: int = i16()
    error_message: str | None = string(since=2, null=2)
    leader_id: int = i32()
    leader_epoch: int = i32()
    high_watermark: int = i64()
    current_voters: list[ReplicaState] = structs(ReplicaState)
    observers: list[ReplicaState] = structs(ReplicaState)


@struct
class DescribeQuorumResponseTopicData:
    topic_name: str = string()
    partitions: list[DescribeQuorumResponsePartitionData] = structs(DescribeQuorumResponsePartitionData)


@struct
class Listener:
    name: str = string(since=2)
    host: str = string(since=2)
    port: int = u16(since=2)


@struct
class Node:
    node_id: int = i32(since=2)
    listeners: list[Listener] = structs(Listener, since=2)


@message(api_key=55, versions=(0, 2), flexible=0)
class DescribeQuorumResponse:
    error_code: int = i16()
    error_message: str | None = string(since=2, null=2)
    topics: list[DescribeQuorumResponseTopicData] = structs(DescribeQuorumResponseTopicData)
    nodes: list[Node] = structs(Node, since=2)
