"""Checks of heartbeats of the consumer protocol."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.groups.consumer import LEFT_STATIC, ConsumerMember, Owned
from headrace.broker.limits import MEMBER_BYTES_MAX
from headrace.broker.patterns import compile_pattern
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest

__all__ = ["JOIN", "SUBSCRIBED_PATTERN", "check_epoch", "check_heartbeat", "check_instance"]

JOIN = 0
SUBSCRIBED_PATTERN = "SubscribedTopicRegex"

MEMBER_ID_REQUIRED_SINCE = 1


def check_heartbeat(body: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]) -> None:
    """Refuse a request that no member may send."""

    def refuse(condition: bool, message: str) -> None:
        if condition:
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)

    joins = body.member_epoch == JOIN
    given = [body.member_id, body.instance_id, body.rack_id, *(body.subscribed_topic_names or ())]
    refuse(sum(len(text or "") for text in given) > MEMBER_BYTES_MAX, "The member's names are too long.")
    refuse(not body.group_id.strip(), "GroupId can't be empty.")
    refuse(body.instance_id == "", "InstanceId can't be empty.")
    refuse(body.rack_id == "", "RackId can't be empty.")
    refuse(
        (version >= MEMBER_ID_REQUIRED_SINCE or not joins) and not body.member_id.strip(), "MemberId can't be empty."
    )
    refuse(body.member_epoch < LEFT_STATIC, f"MemberEpoch is invalid: {body.member_epoch}.")
    refuse(body.member_epoch == LEFT_STATIC and body.instance_id is None, "InstanceId can't be null.")
    if joins:
        refuse(body.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request.")
        refuse(
            body.topic_partitions is None or len(body.topic_partitions) > 0,
            "TopicPartitions must be empty when (re-)joining.",
        )
        refuse(
            body.subscribed_topic_names is None and body.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    if body.server_assignor is not None and body.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )
    if body.subscribed_topic_regex:
        compile_pattern(body.subscribed_topic_regex, SUBSCRIBED_PATTERN)


def check_instance(member: ConsumerMember, body: ConsumerGroupHeartbeatRequest) -> None:
    if member.member_id != body.member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {body.member_id} with instance id {body.instance_id} was fenced by member "
            f"{member.member_id}.",
        )


def check_epoch(member: ConsumerMember, epoch: int, owned: Owned | None) -> None:
    """Accept the member's epoch, or the one before it: the answer may have been lost. Then it must own no more than it
    was assigned."""
    lost_answer = epoch == member.previous_epoch and _is_within(owned, member.assigned)
    if epoch > member.epoch or (epoch < member.epoch and not lost_answer):
        size = "greater" if epoch > member.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _is_within(owned: Owned | None, assigned: Owned) -> bool:
    if owned is None:
        return False
    return all(partition in assigned.get(topic_id, {}) for topic_id, each in owned.items() for partition in each)
