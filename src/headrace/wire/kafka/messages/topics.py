"""Topics, partitions and records: made and removed."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, boolean, i8, i16, i32, i64, message, string, struct, structs, uuid

__all__ = [
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "CreatableReplicaAssignment",
    "CreatableTopic",
    "CreatableTopicConfig",
    "CreatableTopicConfigs",
    "CreatableTopicResult",
    "CreatePartitionsAssignment",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreatePartitionsTopic",
    "CreatePartitionsTopicResult",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeletableTopicResult",
    "DeleteRecordsPartition",
    "DeleteRecordsPartitionResult",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteRecordsTopic",
    "DeleteRecordsTopicResult",
    "DeleteTopicState",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListPartitionReassignmentsTopics",
    "OngoingPartitionReassignment",
    "OngoingTopicReassignment",
    "PartitionResult",
    "ReassignablePartition",
    "ReassignablePartitionResponse",
    "ReassignableTopic",
    "ReassignableTopicResponse",
    "ReplicaElectionResult",
    "TopicPartitions",
]


@struct
class CreatableReplicaAssignment:
    partition_index: int = i32()
    broker_ids: list[int] = array("int32")


@struct
class CreatableTopicConfig:
    name: str = string()
    value: str | None = string(null=0)


@struct
class CreatableTopic:
    name: str = string()
    num_partitions: int = i32()
    replication_factor: int = i16()
    assignments: list[CreatableReplicaAssignment] = structs(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = structs(CreatableTopicConfig)


@message(api_key=19, versions=(2, 7), flexible=5)
class CreateTopicsRequest:
    topics: list[CreatableTopic] = structs(CreatableTopic)
    timeout_ms: int = i32(default=60000)
    validate_only: bool = boolean()


@struct
class CreatableTopicConfigs:
    name: str = string(since=5)
    value: str | None = string(since=5, null=5)
    read_only: bool = boolean(since=5)
    config_source: int = i8(since=5, default=-1)
    is_sensitive: bool = boolean(since=5)


@struct
class CreatableTopicResult:
    name: str = string()
    topic_id: bytes = uuid(since=7)
    error_code: int = i16()
    error_message: str | None = string(null=0)
    topic_config_error_code: int = i16(since=5, tag=0)
    num_partitions: int = i32(since=5, default=-1)
    replication_factor: int = i16(since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = structs(CreatableTopicConfigs, since=5, null=5)


@message(api_key=19, versions=(2, 7), flexible=5)
class CreateTopicsResponse:
    throttle_time_ms: int = i32()
    topics: list[CreatableTopicResult] = structs(CreatableTopicResult)


@struct
class DeleteTopicState:
    name: str | None = string(since=6, null=6, default=None)
    topic_id: bytes = uuid(since=6)


@message(api_key=20, versions=(1, 6), flexible=4)
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = structs(DeleteTopicState, since=6)
    topic_names: list[str] = array("string", until=5)
    timeout_ms: int = i32()


@struct
class DeletableTopicResult:
    name: str | None = string(null=6)
    topic_id: bytes = uuid(since=6)
    error_code: int = i16()
    error_message: str | None = string(since=5, null=5, default=None)


@message(api_key=20, versions=(1, 6), flexible=4)
class DeleteTopicsResponse:
    throttle_time_ms: int = i32()
    responses: list[DeletableTopicResult] = structs(DeletableTopicResult)


@struct
class CreatePartitionsAssignment:
    broker_ids: list[int] = array("int32")


@struct
class CreatePartitionsTopic:
    name: str = string()
    count: int = i32()
    assignments: list[CreatePartitionsAssignment] | None = structs(CreatePartitionsAssignment, null=0)


@message(api_key=37, versions=(0, 3), flexible=2)
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = structs(CreatePartitionsTopic)
    timeout_ms: int = i32()
    validate_only: bool = boolean()


@struct
class CreatePartitionsTopicResult:
    name: str = string()
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)


@message(api_key=37, versions=(0, 3), flexible=2)
class CreatePartitionsResponse:
    throttle_time_ms: int = i32()
    results: list[CreatePartitionsTopicResult] = structs(CreatePartitionsTopicResult)


@struct
class DeleteRecordsPartition:
    partition_index: int = i32()
    offset: int = i64()


@struct
class DeleteRecordsTopic:
    name: str = string()
    partitions: list[DeleteRecordsPartition] = structs(DeleteRecordsPartition)


@message(api_key=21, versions=(0, 2), flexible=2)
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = structs(DeleteRecordsTopic)
    timeout_ms: int = i32()


@struct
class DeleteRecordsPartitionResult:
    partition_index: int = i32()
    low_watermark: int = i64()
    error_code: int = i16()


@struct
class DeleteRecordsTopicResult:
    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = structs(DeleteRecordsPartitionResult)


@message(api_key=21, versions=(0, 2), flexible=2)
class DeleteRecordsResponse:
    throttle_time_ms: int = i32()
    topics: list[DeleteRecordsTopicResult] = structs(DeleteRecordsTopicResult)


@struct
class TopicPartitions:
    topic: str = string()
    partitions: list[int] = array("int32")


@message(api_key=43, versions=(0, 2), flexible=2)
class ElectLeadersRequest:
    election_type: int = i8(since=1)
    topic_partitions: list[TopicPartitions] | None = structs(TopicPartitions, null=0)
    timeout_ms: int = i32(default=60000)


@struct
class PartitionResult:
    partition_id: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0)


@struct
class ReplicaElectionResult:
    topic: str = string()
    partition_result: list[PartitionResult] = structs(PartitionResult)


@message(api_key=43, versions=(0, 2), flexible=2)
class ElectLeadersResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16(since=1)
    replica_election_results: list[ReplicaElectionResult] = structs(ReplicaElectionResult)


@struct
class ReassignablePartition:
    partition_index: int = i32()
    replicas: list[int] | None = array("int32", null=0, default=None)


@struct
class ReassignableTopic:
    name: str = string()
    partitions: list[ReassignablePartition] = structs(ReassignablePartition)


@message(api_key=45, versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = i32(default=60000)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    topics: list[ReassignableTopic] = structs(ReassignableTopic)


@struct
class ReassignablePartitionResponse:
    partition_index: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0)


@struct
class ReassignableTopicResponse:
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = structs(ReassignablePartitionResponse)


@message(api_key=45, versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = i32()
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    error_code: int = i16()
    error_message: str | None = string(null=0)
    responses: list[ReassignableTopicResponse] = structs(ReassignableTopicResponse)


@struct
class ListPartitionReassignmentsTopics:
    name: str = string()
    partition_indexes: list[int] = array("int32")


@message(api_key=46, versions=(0, 0), flexible=0)
class ListPartitionReassignmentsRequest:
    timeout_ms: int = i32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = structs(
        ListPartitionReassignmentsTopics, null=0, default=None
    )


@struct
class OngoingPartitionReassignment:
    partition_index: int = i32()
    replicas: list[int] = array("int32")
    adding_replicas: list[int] = array("int32")
    removing_replicas: list[int] = array("int32")


@struct
class OngoingTopicReassignment:
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = structs(OngoingPartitionReassignment)


@message(api_key=46, versions=(0, 0), flexible=0)
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0)
    topics: list[OngoingTopicReassignment] = structs(OngoingTopicReassignment)
