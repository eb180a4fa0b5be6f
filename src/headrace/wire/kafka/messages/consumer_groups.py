"""The consumer protocol of KIP-848."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, boolean, data, i8, i16, i32, message, string, struct, structs, uuid

__all__ = [
    "Assignment",
    "ConsumerGroupDescribeAssignment",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupDescribeTopicPartitions",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupHeartbeatTopicPartitions",
    "DescribedGroup",
    "Member",
    "TopicPartitions",
]


@struct
class TopicPartitions:
    topic_id: bytes = uuid()
    partitions: list[int] = array("int32")


@message(api_key=68, versions=(0, 1), flexible=0)
class ConsumerGroupHeartbeatRequest:
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = i32()
    instance_id: str | None = string(null=0, default=None)
    rack_id: str | None = string(null=0, default=None)
    rebalance_timeout_ms: int = i32(default=-1)
    subscribed_topic_names: list[str] | None = array("string", null=0, default=None)
    subscribed_topic_regex: str | None = string(since=1, null=1, default=None)
    server_assignor: str | None = string(null=0, default=None)
    topic_partitions: list[TopicPartitions] | None = structs(TopicPartitions, null=0, default=None)


@struct
class ConsumerGroupHeartbeatTopicPartitions:
    topic_id: bytes = uuid()
    partitions: list[int] = array("int32")


@struct
class Assignment:
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] = structs(ConsumerGroupHeartbeatTopicPartitions)


@message(api_key=68, versions=(0, 1), flexible=0)
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = i32()
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    member_id: str | None = string(null=0, default=None)
    member_epoch: int = i32()
    heartbeat_interval_ms: int = i32()
    assignment: Assignment | None = data(Assignment, null=0, default=None)


@message(api_key=69, versions=(0, 1), flexible=0)
class ConsumerGroupDescribeRequest:
    group_ids: list[str] = array("string")
    include_authorized_operations: bool = boolean()


@struct
class ConsumerGroupDescribeTopicPartitions:
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array("int32")


@struct
class ConsumerGroupDescribeAssignment:
    topic_partitions: list[ConsumerGroupDescribeTopicPartitions] = structs(ConsumerGroupDescribeTopicPartitions)


@struct
class Member:
    member_id: str = string()
    instance_id: str | None = string(null=0, default=None)
    rack_id: str | None = string(null=0, default=None)
    member_epoch: int = i32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    subscribed_topic_regex: str | None = string(null=0, default=None)
    assignment: ConsumerGroupDescribeAssignment = data(ConsumerGroupDescribeAssignment)
    target_assignment: ConsumerGroupDescribeAssignment = data(ConsumerGroupDescribeAssignment)
    member_type: int = i8(since=1, default=-1)


@struct
class DescribedGroup:
    error_code: int = i16()
    error_message: str | None = string(null=0, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = i32()
    assignment_epoch: int = i32()
    assignor_name: str = string()
    members: list[Member] = structs(Member)
    authorized_operations: int = i32(default=-2147483648)


@message(api_key=69, versions=(0, 1), flexible=0)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = i32()
    groups: list[DescribedGroup] = structs(DescribedGroup)
