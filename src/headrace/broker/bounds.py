"""What bounds the cost of each API, so that no request holds the loop for long. ``docs/bounds.md`` is printed from it.

Every request has at most ``request.elements.max`` array elements, and all but Produce at most
``request.other.bytes.max`` bytes; one with more than 1,000 elements is decoded in slices. What a handler does beyond
that is said here; the tests compare it with what the handlers are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.broker.limits import LIMITS
from headrace.wire.kafka.api_key import ApiKey
from headrace.wire.kafka.apis import APIS
from headrace.wire.kafka.connection import DECODED_AT_ONCE_MAX

__all__ = ["BOUNDS", "Bound", "Execution", "bounds_document"]


class Execution(Enum):
    """How a handler runs."""

    AT_ONCE = "at once"
    SLICES = "in slices"
    SLICES_IF_LARGE = "in slices if it is large"


@dataclass(frozen=True, slots=True)
class Bound:
    how: Execution
    why: str


def _at_once(why: str) -> Bound:
    return Bound(Execution.AT_ONCE, why)


def _slices(what: str) -> Bound:
    return Bound(Execution.SLICES, what)


BOUNDS: dict[ApiKey, Bound] = {
    ApiKey.PRODUCE: Bound(
        Execution.SLICES_IF_LARGE,
        "20 partitions or 1.6 MB at a time; records that must be read are decompressed on a thread and checked in "
        "slices; a batch has at most `max.batch.records` records",
    ),
    ApiKey.FETCH: Bound(
        Execution.SLICES_IF_LARGE,
        "more than 200 partitions are watched, read and encoded 20 at a time; files are sent as is",
    ),
    ApiKey.LIST_OFFSETS: _slices("a partition at a time; a lookup by time decodes one batch on a thread"),
    ApiKey.METADATA: _slices("partitions at a time; a topic that is named again is answered once"),
    ApiKey.OFFSET_COMMIT: _slices("50 partitions at a time are checked, 1,000 rows at a time written"),
    ApiKey.OFFSET_FETCH: _slices("offsets at a time; a group that is named again shares its bytes"),
    ApiKey.FIND_COORDINATOR: _slices("a key at a time"),
    ApiKey.JOIN_GROUP: _at_once("a member has a limited size, and so has its group"),
    ApiKey.HEARTBEAT: _at_once("one member"),
    ApiKey.LEAVE_GROUP: _slices("a member at a time"),
    ApiKey.SYNC_GROUP: _at_once("the assignments have a limited size"),
    ApiKey.DESCRIBE_GROUPS: _slices("members at a time; a group that is named again shares its bytes"),
    ApiKey.LIST_GROUPS: _slices("groups at a time"),
    ApiKey.API_VERSIONS: _at_once("the answer is always the same"),
    ApiKey.CREATE_TOPICS: _slices("a topic or partition at a time; files are made and synced on a thread"),
    ApiKey.DELETE_TOPICS: _slices("a topic at a time; files go on a thread, offsets of groups 1,000 at a time"),
    ApiKey.DELETE_RECORDS: _slices("a partition at a time; a checkpoint, on a thread, and then the answer"),
    ApiKey.INIT_PRODUCER_ID: _at_once("one producer"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _slices("a partition at a time"),
    ApiKey.ADD_PARTITIONS_TO_TXN: _slices("50 partitions at a time; those of a transaction are one row"),
    ApiKey.ADD_OFFSETS_TO_TXN: _at_once("one group; a transaction has a limited number"),
    ApiKey.END_TXN: _at_once(
        "one decision, with a limited number of offsets; markers are written 100 at a time between other requests"
    ),
    ApiKey.TXN_OFFSET_COMMIT: _slices("as OffsetCommit; a transaction has a limited number of offsets"),
    ApiKey.DESCRIBE_ACLS: _at_once("there are none"),
    ApiKey.CREATE_ACLS: _slices("entries at a time"),
    ApiKey.DELETE_ACLS: _slices("filters at a time"),
    ApiKey.DESCRIBE_CONFIGS: _slices("a resource at a time; one that is named again shares its bytes"),
    ApiKey.ALTER_CONFIGS: _slices("a resource at a time"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _slices("a partition at a time"),
    ApiKey.DESCRIBE_LOG_DIRS: _slices("50 partitions at a time; free space is asked for on a thread"),
    ApiKey.CREATE_PARTITIONS: _slices("as CreateTopics"),
    ApiKey.DELETE_GROUPS: _slices("a group at a time, 1,000 rows at a time"),
    ApiKey.ELECT_LEADERS: _slices("a partition at a time"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _slices("a resource at a time"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _slices("a partition at a time"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _at_once("there are none"),
    ApiKey.OFFSET_DELETE: _slices("1,000 rows at a time"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _at_once("there are none"),
    ApiKey.ALTER_CLIENT_QUOTAS: _slices("entries at a time"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _slices("users at a time"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _slices("users at a time"),
    ApiKey.DESCRIBE_QUORUM: _at_once("one partition is answered"),
    ApiKey.UPDATE_FEATURES: _slices("a feature at a time"),
    ApiKey.DESCRIBE_CLUSTER: _at_once("one broker"),
    ApiKey.DESCRIBE_PRODUCERS: _slices("50 producers at a time; a partition that is named again shares its bytes"),
    ApiKey.DESCRIBE_TRANSACTIONS: _slices("a transaction at a time; one that is named again shares its bytes"),
    ApiKey.LIST_TRANSACTIONS: _slices("50 transactions at a time; patterns are RE2's, which take linear time"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _slices(
        "one member; a pattern is matched with names in slices, and an assignment of more than 1,000 partitions is "
        "computed on a thread"
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _slices("members at a time; a group that is named again shares its bytes"),
    ApiKey.LIST_CONFIG_RESOURCES: _slices("resources at a time"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _slices("partitions at a time, as many as the request's limit"),
    ApiKey.DESCRIBE_QUEUES: _slices("a queue at a time, at most 1,000; bindings 100 at a time, at most 10,000 of each"),
    ApiKey.READ_QUEUE: _slices("a message at a time, at most 1,000 or 8 MB"),
    ApiKey.MOVE_MESSAGES: _slices("a message at a time, at most 1,000, with a flush after each 4 MB"),
    ApiKey.RESTORE_MESSAGES: _slices("a range at a time, at most 1,000 messages"),
    ApiKey.PURGE_QUEUE: _at_once("ranges of offsets, however many messages they have"),
    ApiKey.CREATE_QUEUE: _slices("one queue; its files are made on a thread"),
    ApiKey.DELETE_QUEUE: _slices("one queue; its files go on a thread"),
    ApiKey.DESCRIBE_EXCHANGES: _slices("an exchange at a time, at most 1,000, with at most 10,000 bindings"),
    ApiKey.CREATE_EXCHANGE: _slices("one exchange"),
    ApiKey.DELETE_EXCHANGE: _slices("one exchange"),
    ApiKey.ALTER_BINDINGS: _slices("a binding at a time, at most 1,000"),
    ApiKey.CREATE_SNAPSHOT: _slices(
        "100 logs at a time, a log that changes meanwhile before it does; links are made on a thread"
    ),
}


def bounds_document() -> str:
    """The text of docs/bounds.md."""
    lines = [
        "# What bounds the cost of a request",
        "",
        "Printed from the code by `make docs`; a test compares. One event loop serves all connections, so a request",
        "must not hold it for long: long work runs in slices, with other requests in between, or on a thread. The goal",
        "is that none holds it for more than 50 ms; `python -m benchmarks stalls` measures the worst of each API.",
        "",
        "A request has at most `request.elements.max` array elements and, if it is no Produce, at most",
        f"`request.other.bytes.max` bytes; one with more than {DECODED_AT_ONCE_MAX:,} elements is decoded in slices.",
        "An answer has at most `response.bytes.max` bytes besides records; what does not fit is refused with",
        "POLICY_VIOLATION.",
        "",
        "| API | runs | what bounds it |",
        "|---|---|---|",
    ]
    lines += [f"| {api.name} | {BOUNDS[api.key].how.value} | {BOUNDS[api.key].why} |" for api in APIS.values()]
    lines += [
        "",
        "## What clients may make the broker keep",
        "",
        "| what | most | error beyond it |",
        "|---|---:|---|",
    ]
    lines += [f"| {limit.what} | {limit.most:,} | {limit.error.name} |" for limit in LIMITS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(bounds_document())
