"""What clients may make the broker keep: the length of names, and the number and size of things.

Kafka has few such limits; what it cannot store in one record of its own topics fails there with an error of the
storage. Here each limit has a name, a number and the error of Kafka's that fits. ``docs/bounds.md`` is printed from
this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ErrorCode

__all__ = [
    "GROUPS_MAX",
    "GROUPS_PER_TRANSACTION_MAX",
    "GROUP_BYTES_MAX",
    "GROUP_ID_CHARS_MAX",
    "LIMITS",
    "MEMBERS_PER_GROUP_MAX",
    "MEMBER_BYTES_MAX",
    "OFFSETS_PER_TRANSACTION_MAX",
    "PARTITIONS_PER_TOPIC_MAX",
    "PATTERN_CHARS_MAX",
    "PENDING_MEMBERS_MAX",
    "TOPIC_NAME_CHARS_MAX",
    "TRANSACTIONAL_IDS_MAX",
    "TRANSACTIONAL_ID_CHARS_MAX",
    "Limit",
]

TOPIC_NAME_CHARS_MAX = 249
PARTITIONS_PER_TOPIC_MAX = 10_000
GROUP_ID_CHARS_MAX = 10_000
GROUPS_MAX = 100_000
MEMBERS_PER_GROUP_MAX = 10_000
PENDING_MEMBERS_MAX = 10_000
MEMBER_BYTES_MAX = 1 << 20
GROUP_BYTES_MAX = 4 << 20
PATTERN_CHARS_MAX = 2_000
"""RE2 compiles on the event loop: 3,000 times ``\\pL``, in 9,000 characters, took it 0.2 s."""
TRANSACTIONAL_ID_CHARS_MAX = 10_000
TRANSACTIONAL_IDS_MAX = 100_000
GROUPS_PER_TRANSACTION_MAX = 1_000
OFFSETS_PER_TRANSACTION_MAX = 5_000


@dataclass(frozen=True, slots=True)
class Limit:
    what: str
    most: int
    error: ErrorCode


LIMITS = (
    Limit("characters of a topic's name, as in Kafka", TOPIC_NAME_CHARS_MAX, ErrorCode.INVALID_TOPIC_EXCEPTION),
    Limit("partitions of a topic", PARTITIONS_PER_TOPIC_MAX, ErrorCode.INVALID_PARTITIONS),
    Limit("characters of a group id", GROUP_ID_CHARS_MAX, ErrorCode.INVALID_GROUP_ID),
    Limit("groups", GROUPS_MAX, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    Limit(
        "members of a group; `group.max.size` and `group.consumer.max.size` may set less",
        MEMBERS_PER_GROUP_MAX,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ),
    Limit(
        "members of a classic group that were given an id and have not joined with it yet",
        PENDING_MEMBERS_MAX,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ),
    Limit(
        "bytes of one member: its ids, its protocols with their metadata, the topics it subscribes to",
        MEMBER_BYTES_MAX,
        ErrorCode.INVALID_REQUEST,
    ),
    Limit(
        "bytes of all members of a classic group, their ids and protocols with metadata",
        GROUP_BYTES_MAX,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ),
    Limit("bytes of all assignments in a SyncGroup", GROUP_BYTES_MAX, ErrorCode.INVALID_REQUEST),
    Limit(
        "characters of a pattern, of topics or of transactional ids",
        PATTERN_CHARS_MAX,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    ),
    Limit("characters of a transactional id", TRANSACTIONAL_ID_CHARS_MAX, ErrorCode.INVALID_REQUEST),
    Limit("transactional ids", TRANSACTIONAL_IDS_MAX, ErrorCode.POLICY_VIOLATION),
    Limit("groups in one transaction", GROUPS_PER_TRANSACTION_MAX, ErrorCode.POLICY_VIOLATION),
    Limit(
        "offsets of groups in one transaction, which are committed with its end",
        OFFSETS_PER_TRANSACTION_MAX,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ),
)
