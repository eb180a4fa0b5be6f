"""What classic consumers put into JoinGroup and SyncGroup; the broker passes it through, tools look inside."""

from __future__ import annotations

from headrace.wire.kafka.schema import array, bits, i32, message, string, struct, structs

__all__ = [
    "ConsumerProtocolAssignment",
    "ConsumerProtocolAssignmentTopicPartition",
    "ConsumerProtocolSubscription",
    "TopicPartition",
]


@struct
class TopicPartition:
    topic: str = string(since=1)
    partitions: list[int] = array("int32", since=1)


@message(api_key=-1, versions=(0, 3))
class ConsumerProtocolSubscription:
    topics: list[str] = array("string")
    user_data: bytes | None = bits(null=0, default=None)
    owned_partitions: list[TopicPartition] = structs(TopicPartition, since=1)
    generation_id: int = i32(since=2, default=-1)
    rack_id: str | None = string(since=3, null=3, default=None)


@struct
class ConsumerProtocolAssignmentTopicPartition:
    topic: str = string()
    partitions: list[int] = array("int32")


@message(api_key=-1, versions=(0, 3))
class ConsumerProtocolAssignment:
    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = structs(
        ConsumerProtocolAssignmentTopicPartition
    )
    user_data: bytes | None = bits(null=0, default=None)
