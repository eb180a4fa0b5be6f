"""Bytes written out by hand from Kafka's schemas, for the messages that kafka-python has no schema of."""

from __future__ import annotations

import pytest

from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.consumer_groups import (
    Assignment,
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
    DescribedGroup,
    Member,
    TopicPartitions,
)

TOPIC = bytes(range(16))
TOPIC_HEX = TOPIC.hex()

HEARTBEAT_JOINING = """
    02 67                   group id "g"
    02 6d                   member id "m"
    00000000                member epoch 0
    00                      instance id null
    00                      rack id null
    0000afc8                rebalance timeout 45000
    02 02 74                subscribed topic names ["t"]
    00                      subscribed topic regex null (version 1)
    00                      server assignor null
    01                      topic partitions []
    00                      no tags
"""

HEARTBEAT_OWNING = f"""
    02 67
    02 6d
    00000003
    02 69                   instance id "i"
    02 72                   rack id "r"
    ffffffff                rebalance timeout not given
    00                      subscribed topic names null
    03 742e                 subscribed topic regex "t."
    08 756e69666f726d       server assignor "uniform"
    02 {TOPIC_HEX}          topic partitions: one topic id
       03 00000000 00000001 partitions [0, 1]
       00                   no tags
    00
"""

HEARTBEAT_ANSWER = f"""
    00000000                throttle time
    0000                    error code
    00                      error message null
    02 6d                   member id "m"
    00000003                member epoch
    00001388                heartbeat interval 5000
    01                      assignment is given
      02 {TOPIC_HEX}
         02 00000007
         00
      00
    00
"""

HEARTBEAT_ANSWER_BARE = """
    00000000
    0071                    STALE_MEMBER_EPOCH is 113
    02 78                   error message "x"
    00                      member id null
    00000000
    00000000
    ff                      assignment null
    00
"""

DESCRIBE = """
    03 02 61 02 62          group ids ["a", "b"]
    01                      include authorized operations
    00
"""

DESCRIBE_ANSWER = f"""
    00000000                throttle time
    02                      one group
      0000                  error code
      00                    error message null
      02 67                 group id "g"
      07 537461626c65       state "Stable"
      00000004              group epoch
      00000003              assignment epoch
      06 72616e6765         assignor "range"
      02                    one member
        02 6d               member id
        00                  instance id null
        00                  rack id null
        00000003            member epoch
        02 63               client id "c"
        02 68               client host "h"
        02 02 74            subscribed topic names ["t"]
        00                  subscribed topic regex null
        02 {TOPIC_HEX}      assignment: topic id,
           02 74            its name "t",
           02 00000001      partitions [1]
           00
        00
        01                  target assignment: no topics
        00
        01                  member type 1 (version 1)
        00
      80000000              authorized operations not given
      00
    00
"""


def golden(text: str) -> bytes:
    """The hexadecimal at the beginning of each line; the words behind it are for people."""
    digits = []
    for line in text.splitlines():
        for word in line.split():
            if len(word) % 2 or set(word) - set("0123456789abcdef"):
                break
            digits.append(word)
    return bytes.fromhex("".join(digits))


CASES = {
    "joining": (
        HEARTBEAT_JOINING,
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            rebalance_timeout_ms=45_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
    ),
    "owning": (
        HEARTBEAT_OWNING,
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=3,
            instance_id="i",
            rack_id="r",
            subscribed_topic_regex="t.",
            server_assignor="uniform",
            topic_partitions=[TopicPartitions(topic_id=TOPIC, partitions=[0, 1])],
        ),
    ),
    "assigned": (
        HEARTBEAT_ANSWER,
        ConsumerGroupHeartbeatResponse(
            member_id="m",
            member_epoch=3,
            heartbeat_interval_ms=5_000,
            assignment=Assignment(
                topic_partitions=[ConsumerGroupHeartbeatTopicPartitions(topic_id=TOPIC, partitions=[7])]
            ),
        ),
    ),
    "refused": (HEARTBEAT_ANSWER_BARE, ConsumerGroupHeartbeatResponse(error_code=113, error_message="x")),
    "describe": (DESCRIBE, ConsumerGroupDescribeRequest(group_ids=["a", "b"], include_authorized_operations=True)),
    "described": (
        DESCRIBE_ANSWER,
        ConsumerGroupDescribeResponse(
            groups=[
                DescribedGroup(
                    group_id="g",
                    group_state="Stable",
                    group_epoch=4,
                    assignment_epoch=3,
                    assignor_name="range",
                    members=[
                        Member(
                            member_id="m",
                            member_epoch=3,
                            client_id="c",
                            client_host="h",
                            subscribed_topic_names=["t"],
                            assignment=ConsumerGroupDescribeAssignment(
                                topic_partitions=[
                                    ConsumerGroupDescribeTopicPartitions(topic_id=TOPIC, topic_name="t", partitions=[1])
                                ]
                            ),
                            member_type=1,
                        )
                    ],
                )
            ]
        ),
    ),
}


@pytest.mark.parametrize(("text", "message"), CASES.values(), ids=CASES)
def test_a_message_of_the_consumer_protocol_has_the_bytes_of_its_schema(text: str, message: object) -> None:
    raw = golden(text)
    assert b"".join(write_message(message, 1)).hex() == raw.hex()
    assert read_message(type(message), 1, raw) == (message, len(raw))
