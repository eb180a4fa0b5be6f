"""Which operation each API asks the authorizer about: Apache Kafka's table "Operations and Resources on Protocols".

An API that asks for DESCRIBE where Kafka wants READ denies the same names in ``test_access.py`` and lets others in.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

from headrace.broker.access import OPERATIONS, ResourceType
from tests.differential.denials import CASES, prepare, with_id
from tests.unit.broker.harness import running
from tests.unit.broker.test_access import Denying, ask

ON_TOPICS = ", ".join(f"{each.name} TOPIC" for each in OPERATIONS[ResourceType.TOPIC])
"""For answers that list what the caller may do with a topic."""

KAFKAS_TABLE = {
    "AddOffsetsToTxn": "WRITE TRANSACTIONAL_ID, READ GROUP",
    "AddPartitionsToTxn": "WRITE TRANSACTIONAL_ID, WRITE TOPIC, CLUSTER_ACTION CLUSTER",
    "AlterClientQuotas": "ALTER_CONFIGS CLUSTER",
    "AlterConfigs": "ALTER_CONFIGS CLUSTER, ALTER_CONFIGS TOPIC, ALTER_CONFIGS GROUP",
    "AlterPartitionReassignments": "ALTER CLUSTER",
    "AlterReplicaLogDirs": "ALTER CLUSTER",
    "AlterUserScramCredentials": "ALTER CLUSTER",
    "ConsumerGroupDescribe": "DESCRIBE GROUP, DESCRIBE TOPIC",
    "ConsumerGroupHeartbeat": "READ GROUP, DESCRIBE TOPIC",
    "CreateAcls": "ALTER CLUSTER",
    "CreatePartitions": "ALTER TOPIC",
    "CreateTopics": "CREATE CLUSTER, CREATE TOPIC, DESCRIBE_CONFIGS TOPIC",
    "DeleteAcls": "ALTER CLUSTER",
    "DeleteGroups": "DELETE GROUP",
    "DeleteRecords": "DELETE TOPIC",
    "DeleteTopics": "DELETE TOPIC, DELETE CLUSTER",
    "DescribeAcls": "DESCRIBE CLUSTER",
    "DescribeClientQuotas": "DESCRIBE_CONFIGS CLUSTER",
    "DescribeCluster": "DESCRIBE CLUSTER",
    "DescribeConfigs": "DESCRIBE_CONFIGS CLUSTER, DESCRIBE_CONFIGS TOPIC, DESCRIBE_CONFIGS GROUP",
    "DescribeGroups": "DESCRIBE GROUP",
    "DescribeLogDirs": "DESCRIBE CLUSTER",
    "DescribeProducers": "READ TOPIC",
    "DescribeQuorum": "DESCRIBE CLUSTER",
    "DescribeTopicPartitions": ON_TOPICS,
    "DescribeTransactions": "DESCRIBE TRANSACTIONAL_ID, DESCRIBE TOPIC",
    "DescribeUserScramCredentials": "DESCRIBE CLUSTER",
    "ElectLeaders": "ALTER CLUSTER",
    "EndTxn": "WRITE TRANSACTIONAL_ID",
    "Fetch": "READ TOPIC, CLUSTER_ACTION CLUSTER",
    "FindCoordinator": "DESCRIBE GROUP, DESCRIBE TRANSACTIONAL_ID",
    "Heartbeat": "READ GROUP",
    "IncrementalAlterConfigs": "ALTER_CONFIGS CLUSTER, ALTER_CONFIGS TOPIC, ALTER_CONFIGS GROUP",
    "InitProducerId": "WRITE TRANSACTIONAL_ID, IDEMPOTENT_WRITE CLUSTER",
    "JoinGroup": "READ GROUP",
    "LeaveGroup": "READ GROUP",
    "ListConfigResources": "DESCRIBE_CONFIGS CLUSTER",
    "ListGroups": "DESCRIBE CLUSTER, DESCRIBE GROUP",
    "ListOffsets": "DESCRIBE TOPIC",
    "ListPartitionReassignments": "DESCRIBE CLUSTER",
    "ListTransactions": "DESCRIBE TRANSACTIONAL_ID",
    "Metadata": f"DESCRIBE CLUSTER, {ON_TOPICS}",
    "OffsetCommit": "READ GROUP, READ TOPIC",
    "OffsetDelete": "DELETE GROUP, READ TOPIC",
    "OffsetFetch": "DESCRIBE GROUP, DESCRIBE TOPIC",
    "OffsetForLeaderEpoch": "DESCRIBE TOPIC, CLUSTER_ACTION CLUSTER",
    "Produce": "WRITE TOPIC, WRITE TRANSACTIONAL_ID",
    "SyncGroup": "READ GROUP",
    "TxnOffsetCommit": "WRITE TRANSACTIONAL_ID, READ GROUP, READ TOPIC",
    "UpdateFeatures": "ALTER CLUSTER",
}


def test_every_api_asks_for_the_operations_that_kafka_asks_for(tmp_path: Path) -> None:
    async def play() -> None:
        asked: dict[str, set[str]] = defaultdict(set)
        authorizer = Denying()
        async with running(tmp_path, authorizer=authorizer) as harness:
            closed_id = await prepare(lambda api, version, **values: ask(harness, api, version, **values))
            authorizer.closed = True
            for case in sorted(CASES, key=lambda each: each.cluster):
                authorizer.cluster = case.cluster
                authorizer.asked.clear()
                await ask(harness, case.api, case.version, **with_id(case.values, closed_id))
                asked[case.api] |= {f"{operation.name} {kind.name}" for operation, kind, _ in authorizer.asked}
        assert asked == {api: set(operations.split(", ")) for api, operations in KAFKAS_TABLE.items()}

    asyncio.run(play())
