"""Requests that an authorizer denies, and what Apache Kafka answers to them.

``CASES`` holds at least one request per API and kind of resource. ``recorded/denials.json`` holds Kafka's answers, cut
down to names, codes and authorized operations; ``tests/unit/broker/test_access.py`` sends the same requests to our
broker behind an authorizer that denies the same things. To record them again:

    python -m tests.differential.denials

What is denied: topics, groups and transactional ids whose names begin with ``closed``. In cases marked ``cluster`` also
everything on the cluster, and WRITE on every topic.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.batch import build_batch
from headrace.record import Record
from tests.differential.client import Answer, RawClient
from tests.servers.kafka import apache_kafka_server

RECORDED = Path(__file__).parent / "recorded" / "denials.json"

TOPIC, BROKER, GROUP = 2, 4, 32
CLOSED_ID = "the id of closed"
"""In a request: replaced by the id that the topic ``closed`` has."""

KEPT = frozenset(
    {"name", "topic", "topic_name", "group_id", "key", "transactional_id", "resource_name", "feature", "member_id"}
    | {"partition_index", "partition", "partition_id", "index", "authorized_operations", "unknown_state_filters"}
    | {"user", "entity_type", "entity_name"}
    | {"topic_authorized_operations", "cluster_authorized_operations", "committed_offset", "base_offset"}
)
"""What is compared besides error codes."""

Ask = Callable[..., Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Case:
    label: str
    api: str
    version: int
    values: dict[str, Any]
    cluster: bool = False


def batch(**fields: Any) -> bytes:
    return build_batch([Record(key=None, value=b"x", timestamp=1_000)], **fields).data


TRANSACTIONAL = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


def produce(*names: str, records: bytes, **values: Any) -> dict[str, Any]:
    data = [{"name": name, "partition_data": [{"index": 0, "records": records}]} for name in names]
    return {"acks": -1, "timeout_ms": 10_000, "topic_data": data, **values}


def named(*names: str, partitions: Any) -> list[dict[str, Any]]:
    return [{"name": name, "partitions": partitions} for name in names]


def commit(group: str, *names: str, **values: Any) -> dict[str, Any]:
    return {"group_id": group, "topics": named(*names, partitions=[{"partition_index": 0}]), **values}


def resources(kind: int, *names: str, **values: Any) -> dict[str, Any]:
    return {"resources": [{"resource_type": kind, "resource_name": name, **values} for name in names]}


FETCH = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
WAIT = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20}
OWNER = {"producer_id": 1, "producer_epoch": 0}
SET = {"configs": [{"name": "retention.ms", "value": "1000"}]}
SET_INCREMENTALLY = {"configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]}
NOW = {"timestamp": -1, "partition_index": 0, "current_leader_epoch": -1}
JOIN = {"session_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
SUBSCRIBE = {"member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000, "topic_partitions": []}

DATA = [
    Case("topics", "Produce", 12, produce("closed", "closed-absent", records=batch())),
    Case(
        "topic by id",
        "Produce",
        13,
        {
            **produce(records=b""),
            "topic_data": [{"topic_id": CLOSED_ID, "partition_data": [{"index": 0, "records": batch()}]}],
        },
    ),
    Case(
        "transactional id",
        "Produce",
        11,
        produce("open", records=batch(**TRANSACTIONAL), transactional_id="closed"),
    ),
    Case("topics", "Fetch", 12, {**WAIT, "topics": [{"topic": "closed", "partitions": [FETCH]}]}),
    Case("absent topic", "Fetch", 12, {**WAIT, "topics": [{"topic": "closed-absent", "partitions": [FETCH]}]}),
    Case("topic by id", "Fetch", 13, {**WAIT, "topics": [{"topic_id": CLOSED_ID, "partitions": [FETCH]}]}),
    Case(
        "follower",
        "Fetch",
        12,
        {**WAIT, "replica_id": 5, "topics": [{"topic": "open", "partitions": [FETCH]}]},
        cluster=True,
    ),
    Case("topics", "ListOffsets", 9, {"topics": named("closed", "closed-absent", partitions=[NOW])}),
    Case(
        "follower",
        "OffsetForLeaderEpoch",
        4,
        {
            "replica_id": -1,
            "topics": [
                {"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]}
                for name in ("closed", "closed-absent")
            ],
        },
        cluster=True,
    ),
    Case("topics", "DeleteRecords", 2, {"topics": named("closed", "closed-absent", partitions=[{"offset": -1}])}),
    Case(
        "topics",
        "DescribeProducers",
        0,
        {"topics": [{"name": name, "partition_indexes": [0]} for name in ("closed", "closed-absent")]},
    ),
]

OPERATIONS = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}

METADATA = [
    Case("named", "Metadata", 13, {"topics": [{"name": "closed"}, {"name": "closed-absent"}]}),
    Case(
        "created by asking",
        "Metadata",
        13,
        {"topics": [{"name": "closed-absent"}], "allow_auto_topic_creation": True},
    ),
    Case("by id", "Metadata", 13, {"topics": [{"name": None, "topic_id": CLOSED_ID}]}),
    Case("all", "Metadata", 13, {"topics": None, "include_topic_authorized_operations": True}),
    Case("all", "Metadata", 8, {"topics": None, **OPERATIONS}, cluster=True),
    Case(
        "created by asking",
        "Metadata",
        13,
        {"topics": [{"name": "closed-absent"}], "allow_auto_topic_creation": True},
        cluster=True,
    ),
    Case("named", "DescribeTopicPartitions", 0, {"topics": [{"name": "closed"}, {"name": "closed-absent"}]}),
    Case("all", "DescribeTopicPartitions", 0, {"topics": []}),
    Case("group", "FindCoordinator", 6, {"key_type": 0, "coordinator_keys": ["closed"]}),
    Case("group", "FindCoordinator", 3, {"key_type": 0, "key": "closed"}),
    Case("transactional id", "FindCoordinator", 6, {"key_type": 1, "coordinator_keys": ["closed"]}),
    Case("cluster", "DescribeCluster", 2, {"include_cluster_authorized_operations": True}, cluster=True),
]

GROUPS = [
    Case("group", "OffsetCommit", 9, commit("closed", "open", "open-absent")),
    Case("topics", "OffsetCommit", 9, commit("open", "closed", "closed-absent")),
    Case(
        "topic by id",
        "OffsetCommit",
        10,
        {"group_id": "open", "topics": [{"topic_id": CLOSED_ID, "partitions": [{"partition_index": 0}]}]},
    ),
    Case(
        "group",
        "OffsetFetch",
        9,
        {"groups": [{"group_id": "closed", "topics": [{"name": "open", "partition_indexes": [0]}]}]},
    ),
    Case("group", "OffsetFetch", 7, {"group_id": "closed", "topics": [{"name": "open", "partition_indexes": [0]}]}),
    Case("group", "OffsetFetch", 1, {"group_id": "closed", "topics": [{"name": "open", "partition_indexes": [0]}]}),
    Case(
        "topics",
        "OffsetFetch",
        9,
        {"groups": [{"group_id": "open", "topics": [{"name": "closed", "partition_indexes": [0]}]}]},
    ),
    Case("topics", "OffsetFetch", 5, {"group_id": "open", "topics": [{"name": "closed", "partition_indexes": [0]}]}),
    Case(
        "topic by id",
        "OffsetFetch",
        10,
        {"groups": [{"group_id": "open", "topics": [{"topic_id": CLOSED_ID, "partition_indexes": [0]}]}]},
    ),
    Case("all topics", "OffsetFetch", 9, {"groups": [{"group_id": "open", "topics": None}]}),
    Case(
        "group",
        "OffsetDelete",
        0,
        {"group_id": "closed", "topics": named("open", partitions=[{"partition_index": 0}])},
    ),
    Case(
        "topics",
        "OffsetDelete",
        0,
        {"group_id": "open", "topics": named("closed", "closed-absent", partitions=[{"partition_index": 0}])},
    ),
    Case("group", "JoinGroup", 9, {"group_id": "closed", **JOIN}),
    Case("group", "JoinGroup", 5, {"group_id": "closed", **JOIN}),
    Case("group", "SyncGroup", 4, {"group_id": "closed", "generation_id": 1, "member_id": "m"}),
    Case("group", "Heartbeat", 4, {"group_id": "closed", "generation_id": 1, "member_id": "m"}),
    Case("group", "LeaveGroup", 5, {"group_id": "closed", "members": [{"member_id": "m"}]}),
    Case("group", "LeaveGroup", 2, {"group_id": "closed", "member_id": "m"}),
    Case("group", "DescribeGroups", 6, {"groups": ["closed"], "include_authorized_operations": True}),
    Case("group", "DescribeGroups", 5, {"groups": ["closed"], "include_authorized_operations": True}),
    Case("all", "ListGroups", 5, {}),
    Case("all", "ListGroups", 5, {}, cluster=True),
    Case("groups", "DeleteGroups", 2, {"groups_names": ["closed", "closed-absent"]}),
    Case(
        "group",
        "ConsumerGroupHeartbeat",
        1,
        {"group_id": "closed", **SUBSCRIBE, "subscribed_topic_names": ["open"]},
    ),
    Case(
        "topics",
        "ConsumerGroupHeartbeat",
        1,
        {"group_id": "new", **SUBSCRIBE, "subscribed_topic_names": ["open", "closed"]},
    ),
    Case("groups", "ConsumerGroupDescribe", 1, {"group_ids": ["closed", "closed-absent"]}),
    Case("topics", "ConsumerGroupDescribe", 1, {"group_ids": ["open-consumers"]}),
]

TRANSACTIONS = [
    Case("transactional id", "InitProducerId", 5, {"transactional_id": "closed", "transaction_timeout_ms": 1000}),
    Case("cluster", "InitProducerId", 5, {"transactional_id": None, "transaction_timeout_ms": 1000}, cluster=True),
    Case(
        "transactional id",
        "AddPartitionsToTxn",
        3,
        {
            "v3_and_below_transactional_id": "closed",
            "v3_and_below_producer_id": 1,
            "v3_and_below_topics": named("open", partitions=[0]),
        },
    ),
    Case(
        "topics",
        "AddPartitionsToTxn",
        3,
        {
            "v3_and_below_transactional_id": "open",
            "v3_and_below_producer_id": 1,
            "v3_and_below_topics": named("open", "closed", partitions=[0]),
        },
    ),
    Case(
        "coordinator",
        "AddPartitionsToTxn",
        5,
        {"transactions": [{"transactional_id": "open", "producer_id": 1, "topics": named("open", partitions=[0])}]},
        cluster=True,
    ),
    Case("transactional id", "AddOffsetsToTxn", 4, {"transactional_id": "closed", **OWNER, "group_id": "open"}),
    Case("group", "AddOffsetsToTxn", 4, {"transactional_id": "open", **OWNER, "group_id": "closed"}),
    Case("transactional id", "EndTxn", 5, {"transactional_id": "closed", **OWNER, "committed": True}),
    Case("transactional id", "TxnOffsetCommit", 5, commit("open", "open", transactional_id="closed", **OWNER)),
    Case("group", "TxnOffsetCommit", 5, commit("closed", "open", transactional_id="open", **OWNER)),
    Case("topics", "TxnOffsetCommit", 4, commit("open", "closed", transactional_id="open", **OWNER)),
    Case("transactional ids", "DescribeTransactions", 0, {"transactional_ids": ["closed", "closed-absent"]}),
    Case("topics", "DescribeTransactions", 0, {"transactional_ids": ["open"]}),
    Case("all", "ListTransactions", 2, {}),
]

NEW_TOPIC = {"num_partitions": 1, "replication_factor": 1}
REASSIGNED = {"name": "open", "partitions": [{"partition_index": 0, "replicas": [1]}]}

ADMIN = [
    Case(
        "topics",
        "CreateTopics",
        7,
        {"topics": [{"name": "closed-new", **NEW_TOPIC}, {"name": "closed", **NEW_TOPIC}], "timeout_ms": 10_000},
        cluster=True,
    ),
    Case(
        "settings of a topic",
        "CreateTopics",
        7,
        {"topics": [{"name": "closed-new", **NEW_TOPIC}], "timeout_ms": 10_000, "validate_only": True},
    ),
    Case(
        "topics",
        "DeleteTopics",
        6,
        {"topics": [{"name": "closed"}, {"name": "closed-absent"}], "timeout_ms": 10_000},
        cluster=True,
    ),
    Case("topics", "DeleteTopics", 5, {"topic_names": ["closed"], "timeout_ms": 10_000}, cluster=True),
    Case(
        "topic by id",
        "DeleteTopics",
        6,
        {"topics": [{"name": None, "topic_id": CLOSED_ID}], "timeout_ms": 10_000},
        cluster=True,
    ),
    Case(
        "topics",
        "CreatePartitions",
        3,
        {
            "topics": [{"name": name, "count": 5, "assignments": None} for name in ("closed", "closed-absent")],
            "timeout_ms": 10_000,
        },
    ),
    Case("topics", "DescribeConfigs", 4, resources(TOPIC, "closed", "closed-absent")),
    Case("group", "DescribeConfigs", 4, resources(GROUP, "closed")),
    Case("broker", "DescribeConfigs", 4, resources(BROKER, "1"), cluster=True),
    Case("topics", "AlterConfigs", 2, resources(TOPIC, "closed", "closed-absent", **SET)),
    Case("group", "AlterConfigs", 2, resources(GROUP, "closed", configs=[])),
    Case("broker", "AlterConfigs", 2, resources(BROKER, "1", configs=[]), cluster=True),
    Case("topics", "IncrementalAlterConfigs", 1, resources(TOPIC, "closed", "closed-absent", **SET_INCREMENTALLY)),
    Case("group", "IncrementalAlterConfigs", 1, resources(GROUP, "closed", configs=[])),
    Case("broker", "IncrementalAlterConfigs", 1, resources(BROKER, "1", configs=[]), cluster=True),
    Case("cluster", "ListConfigResources", 1, {"resource_types": []}, cluster=True),
    Case(
        "cluster",
        "AlterReplicaLogDirs",
        2,
        {"dirs": [{"path": "/nowhere", "topics": named("open", partitions=[0])}]},
        cluster=True,
    ),
    Case("cluster", "DescribeLogDirs", 4, {"topics": None}, cluster=True),
    Case("cluster", "DescribeLogDirs", 2, {"topics": None}, cluster=True),
    Case(
        "cluster",
        "ElectLeaders",
        2,
        {"topic_partitions": [{"topic": "open", "partitions": [0]}], "timeout_ms": 10_000},
        cluster=True,
    ),
    Case(
        "cluster",
        "ElectLeaders",
        0,
        {"topic_partitions": [{"topic": "open", "partitions": [0]}], "timeout_ms": 10_000},
        cluster=True,
    ),
    Case("cluster", "AlterPartitionReassignments", 1, {"topics": [REASSIGNED]}, cluster=True),
    Case("cluster", "ListPartitionReassignments", 0, {"topics": None}, cluster=True),
    Case(
        "cluster",
        "DescribeQuorum",
        2,
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        cluster=True,
    ),
    Case(
        "cluster",
        "UpdateFeatures",
        1,
        {"feature_updates": [{"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}]},
        cluster=True,
    ),
]

FILTER = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
ACL = {
    "resource_type": TOPIC,
    "resource_name": "open",
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
QUOTA = {"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": [{"key": "producer_byte_rate", "value": 1.0}]}

SECURITY = [
    Case("cluster", "DescribeAcls", 3, FILTER, cluster=True),
    Case("cluster", "CreateAcls", 3, {"creations": [ACL, ACL]}, cluster=True),
    Case("cluster", "DeleteAcls", 3, {"filters": [FILTER, FILTER]}, cluster=True),
    Case("cluster", "DescribeUserScramCredentials", 0, {"users": [{"name": "a"}]}, cluster=True),
    Case(
        "cluster",
        "AlterUserScramCredentials",
        0,
        {"deletions": [{"name": "a", "mechanism": 1}], "upsertions": [{"name": "b", "mechanism": 1}]},
        cluster=True,
    ),
    Case("cluster", "DescribeClientQuotas", 1, {"components": []}, cluster=True),
    Case("cluster", "AlterClientQuotas", 1, {"entries": [QUOTA]}, cluster=True),
]

CASES = [*DATA, *METADATA, *GROUPS, *TRANSACTIONS, *ADMIN, *SECURITY]


def key_of(case: Case) -> str:
    return f"{case.api} {case.version}, {case.label}{', no cluster' if case.cluster else ''}"


def with_id(value: Any, closed_id: bytes) -> Any:
    """The request with ``CLOSED_ID`` replaced."""
    if isinstance(value, dict):
        return {key: with_id(each, closed_id) for key, each in value.items()}
    if isinstance(value, list):
        return [with_id(each, closed_id) for each in value]
    return closed_id if value == CLOSED_ID else value


def essence(answer: Any) -> Any:
    """Names, codes and authorized operations; lists in the order of their text."""
    if isinstance(answer, list):
        kept = [each for each in map(essence, answer) if each and not is_internal(each)]
        return sorted(kept, key=lambda each: json.dumps(each, sort_keys=True))
    if not isinstance(answer, dict):
        return None
    found = {}
    for key, value in answer.items():
        if key.endswith("error_code") or key in KEPT:
            found[key] = value
        elif isinstance(value, dict | list) and (inside := essence(value)):
            found[key] = inside
    return {key: value for key, value in found.items() if value is not None}


def is_internal(entry: dict[str, Any]) -> bool:
    """Kafka keeps offsets and transactions in topics; we do not."""
    return str(entry.get("name", "")).startswith("__")


async def prepare(ask: Ask) -> bytes:
    """Make what the cases name, while everything is allowed; the id of the topic ``closed``."""
    topics = [{"name": name, **NEW_TOPIC} for name in ("open", "closed")]
    made = (await ask("CreateTopics", 7, topics=topics, timeout_ms=10_000))["topics"]
    for key, kind in (("open", 0), ("closed", 0), ("open", 1), ("closed", 1)):
        await settled(ask, "FindCoordinator", 6, key_type=kind, coordinator_keys=[key])
    for group in ("open", "closed"):
        topics = named("open", "closed", partitions=[{"partition_index": 0, "committed_offset": 3}])
        await settled(ask, "OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    for name in ("open", "closed"):
        who = await settled(ask, "InitProducerId", 4, transactional_id=name, transaction_timeout_ms=600_000)
        await settled(
            ask,
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=who["producer_id"],
            v3_and_below_producer_epoch=who["producer_epoch"],
            v3_and_below_topics=named("open", "closed", partitions=[0]),
        )
    subscribed = {**SUBSCRIBE, "rebalance_timeout_ms": 300_000, "subscribed_topic_names": ["open", "closed"]}
    await settled(ask, "ConsumerGroupHeartbeat", 1, group_id="open-consumers", **subscribed)
    return next(bytes(each["topic_id"]) for each in made if each["name"] == "closed")


async def settled(ask: Ask, api: str, version: int, **values: Any) -> Answer:
    """Kafka's coordinators need a moment after they are first asked for."""
    for _ in range(100):
        answer = await ask(api, version, **values)
        if not any(error_codes(answer)):
            return answer
        await asyncio.sleep(0.1)
    raise AssertionError(f"{api}: {answer}")


def error_codes(answer: Any) -> list[int]:
    if isinstance(answer, dict):
        own = [value for key, value in answer.items() if key.endswith("error_code")]
        return own + [code for value in answer.values() for code in error_codes(value)]
    return [code for each in answer for code in error_codes(each)] if isinstance(answer, list) else []


@dataclass(frozen=True, slots=True)
class Rule:
    """One ACL for the only principal there is. Where a resource has any, what no ACL allows is denied."""

    allow: bool
    kind: str
    name: str
    operation: str = "ALL"
    pattern: str = "LITERAL"


CLOSED = [Rule(False, kind, "closed", pattern="PREFIXED") for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID")]
NO_WRITES = [Rule(True, "TOPIC", "*"), Rule(False, "TOPIC", "*", "WRITE")]
ONLY_BETWEEN_BROKERS = [Rule(True, "BROKER", "kafka-cluster", "CLUSTER_ACTION")]
NOTHING_ON_THE_CLUSTER = [Rule(False, "BROKER", "kafka-cluster")]


def add_rules(bootstrap: str, rules: list[Rule]) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    bindings = [
        AclBinding(
            ResourceType[rule.kind],
            rule.name,
            ResourcePatternType[rule.pattern],
            "User:ANONYMOUS",
            "*",
            AclOperation[rule.operation],
            AclPermissionType.ALLOW if rule.allow else AclPermissionType.DENY,
        )
        for rule in rules
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_acls(bindings).values():
        future.result(30)


def play(phases: list[tuple[list[Rule], list[Case]]]) -> dict[str, Any]:
    """What Kafka answers when the rules of each phase are added."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    answers: dict[str, Any] = {}
    with apache_kafka_server(settings=settings) as server:
        client = RawClient(server.address)

        async def ask(api: str, version: int, **values: Any) -> Answer:
            return client.ask(api, version, **values)

        closed_id = asyncio.run(prepare(ask))
        for rules, cases in phases:
            add_rules(server.bootstrap, rules)
            for case in cases:
                answer = client.ask(case.api, case.version, **with_id(case.values, closed_id))
                answers[key_of(case)] = essence(answer)
    return answers


def record() -> None:
    ordinary = [case for case in CASES if not case.cluster]
    between_brokers = [case for case in CASES if case.label in ("follower", "coordinator")]
    others = [case for case in CASES if case.cluster and case not in between_brokers]
    answers = play([(CLOSED, ordinary), (NO_WRITES + ONLY_BETWEEN_BROKERS, others)])
    # On a server of their own, because a broker needs CLUSTER_ACTION for itself.
    answers |= play([(CLOSED + NO_WRITES + NOTHING_ON_THE_CLUSTER, between_brokers)])
    lines = [f"{json.dumps(key)}: {json.dumps(answer)}" for key, answer in answers.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
