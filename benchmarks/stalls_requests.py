"""The worst requests, by API, and the broker's contents that make them so; for ``benchmarks.stalls``.

A request has up to 20,000 array elements (``request.elements.max``). ``MANY`` leaves room for those around them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.batch import build_batch
from headrace.record import Codec, Record
from headrace.wire.kafka.api_key import ApiKey
from headrace.wire.kafka.messages import (
    configs,
    consumer_groups,
    coordinator,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    topics,
    transactions,
)

__all__ = ["GROUPS", "MEMBERS", "PRODUCERS", "REQUESTS", "TRANSACTIONS", "WIDE", "Asked", "World", "setup"]

MANY = 19_000
WIDE = 10_000
NARROW = 500
SEVERAL = 2_000
GROUPS = 300
MEMBERS = 300
PRODUCERS = 5_000
TRANSACTIONS = 300

TOPIC, BROKER = 2, 4

Asked = list[tuple[Any, int | None]]
"""Bodies with their versions, None for the newest."""


@dataclass(slots=True)
class World:
    """What the broker holds, and how to ask it."""

    ask: Callable[..., Any]
    ask_all: Callable[[list[Any], int], None]
    wide_id: bytes = b""
    producer: tuple[int, int] = (0, 0)
    """Producer id and epoch of the transactional id ``txn-0``."""
    members: list[str] = field(default_factory=list)

    def begin(self, number: int) -> tuple[str, int, int]:
        """A fresh transactional id."""
        name = f"round-{number}-{time.monotonic_ns()}"
        answer = self.ask(transactions.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000))
        return name, answer.producer_id, answer.producer_epoch


def setup(world: World) -> None:
    create = [topics.CreatableTopic(name="wide", num_partitions=WIDE, replication_factor=1)]
    create += [topics.CreatableTopic(name=f"narrow-{n}", num_partitions=1, replication_factor=1) for n in range(NARROW)]
    for each in (create[:1], create[1:]):
        answer = world.ask(topics.CreateTopicsRequest(topics=each, timeout_ms=60_000))
        assert {one.error_code for one in answer.topics} == {0}, answer.topics[0]
    found = world.ask(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="wide")]))
    world.wide_id = found.topics[0].topic_id
    for number in range(GROUPS):
        world.ask(_commit(f"group-{number}", [0]), 9)
    world.ask(_commit("wide-group", range(WIDE)), 9)
    world.ask_all([_produce([(0, _batch(1, producer_id=10**6 + number))]) for number in range(PRODUCERS)], 9)
    for number in range(TRANSACTIONS):
        world.ask(
            transactions.InitProducerIdRequest(transactional_id=f"txn-{number}", transaction_timeout_ms=60_000),
        )
    for number in range(MEMBERS):
        heartbeat = _heartbeat(world, f"member-{number}", ["narrow-0"])
        answer = world.ask(heartbeat)
        assert answer.error_code == 0, answer


# ---- pieces ---------------------------------------------------------------------------------------------------------


def _batch(records: int, *, producer_id: int = -1, codec: Codec = Codec.NONE, transactional: bool = False) -> bytes:
    now_ms = int(time.time() * 1000)
    values = [Record(key=None, value=b"", timestamp=now_ms)] * records
    epoch, sequence = (0, 0) if producer_id >= 0 else (-1, -1)
    return build_batch(
        values,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    ).data


def _produce(batches: list[tuple[int, bytes]], transactional_id: str | None = None) -> produce.ProduceRequest:
    data = [produce.PartitionProduceData(index=index, records=records) for index, records in batches]
    return produce.ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        transactional_id=transactional_id,
        topic_data=[produce.TopicProduceData(name="wide", partition_data=data)],
    )


def _commit(group: str, partitions: Any) -> group_offsets.OffsetCommitRequest:
    rows = [group_offsets.OffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in partitions]
    commits = [group_offsets.OffsetCommitRequestTopic(name="wide", partitions=rows)]
    return group_offsets.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=commits
    )


def _heartbeat(
    world: World, member: str, names: list[str], group: str = "assigned"
) -> consumer_groups.ConsumerGroupHeartbeatRequest:
    return consumer_groups.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=names,
        topic_partitions=[],
    )


def _fetch(world: World, count: int, wait_ms: int = 0) -> fetch.FetchRequest:
    asked = [fetch.FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20) for n in range(count)]
    return fetch.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1 << 20,
        max_bytes=1 << 25,
        topics=[fetch.FetchTopic(topic="wide", topic_id=world.wide_id, partitions=asked)],
    )


# ---- requests -------------------------------------------------------------------------------------------------------


def _produce_many(world: World, number: int) -> Asked:
    one = _batch(1)
    return [(_produce([(index, one) for index in range(WIDE)]), 9)]


def _produce_transactional(world: World, number: int) -> Asked:
    name, producer_id, _ = world.begin(number)
    one = _batch(1, producer_id=producer_id, transactional=True)
    end = transactions.EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=0, committed=True)
    return [(_produce([(index, one) for index in range(WIDE)], name), 12), (end, 4)]


def _produce_records(world: World, number: int) -> Asked:
    return [(_produce([(1, _batch(1_000_000, codec=Codec.ZSTD))]), 9)]


def _fetch_many(world: World, number: int) -> Asked:
    return [(_fetch(world, WIDE), None)]


def _fetch_waiting(world: World, number: int) -> Asked:
    return [(_fetch(world, WIDE, wait_ms=300), None)]


def _list_offsets(world: World, number: int) -> Asked:
    rows = [offsets.ListOffsetsPartition(partition_index=n % WIDE, timestamp=1) for n in range(MANY)]
    return [(offsets.ListOffsetsRequest(topics=[offsets.ListOffsetsTopic(name="wide", partitions=rows)]), None)]


def _epochs(world: World, number: int) -> Asked:
    rows = [offsets.OffsetForLeaderPartition(partition=n % WIDE, leader_epoch=0) for n in range(MANY)]
    wanted = [offsets.OffsetForLeaderTopic(topic="wide", partitions=rows)]
    return [(offsets.OffsetForLeaderEpochRequest(topics=wanted), None)]


def _metadata(world: World, number: int) -> Asked:
    return [(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="wide")] * MANY), None)]


def _metadata_all(world: World, number: int) -> Asked:
    return [(metadata.MetadataRequest(topics=None, include_topic_authorized_operations=True), None)]


def _offset_commit(world: World, number: int) -> Asked:
    return [(_commit(f"new-{number}", range(WIDE)), 9)]


def _offset_fetch(world: World, number: int) -> Asked:
    wanted = [group_offsets.OffsetFetchRequestGroup(group_id="wide-group", topics=None)] * MANY
    return [(group_offsets.OffsetFetchRequest(groups=wanted), 9)]


def _find_coordinator(world: World, number: int) -> Asked:
    return [(coordinator.FindCoordinatorRequest(key_type=0, coordinator_keys=[f"g{n}" for n in range(MANY)]), None)]


def _join(world: World, number: int) -> Asked:
    protocols = [groups.JoinGroupRequestProtocol(name=f"p{n}", metadata=bytes(500)) for n in range(MANY)]
    join = groups.JoinGroupRequest(
        group_id=f"classic-{number}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    return [(join, 3)]


def _heartbeats(world: World, number: int) -> Asked:
    return [(groups.HeartbeatRequest(group_id="x" * 30_000, generation_id=1, member_id="y" * 30_000), None)]


def _leave(world: World, number: int) -> Asked:
    gone = [groups.MemberIdentity(member_id=f"member-{n}") for n in range(MANY)]
    return [(groups.LeaveGroupRequest(group_id="assigned", members=gone), None)]


def _sync(world: World, number: int) -> Asked:
    given = [groups.SyncGroupRequestAssignment(member_id=f"m{n}", assignment=bytes(500)) for n in range(MANY)]
    body = groups.SyncGroupRequest(
        group_id="classic", generation_id=1, member_id="m", protocol_type="a", protocol_name="b", assignments=given
    )
    return [(body, None)]


def _describe_groups(world: World, number: int) -> Asked:
    return [(groups.DescribeGroupsRequest(groups=["wide-group"] * MANY), None)]


def _create_topics(world: World, number: int) -> Asked:
    made = [topics.CreatableTopic(name=f"made-{number}", num_partitions=WIDE, replication_factor=1)]
    return [(topics.CreateTopicsRequest(topics=made, timeout_ms=60_000), None)]


def _create_topics_checked(world: World, number: int) -> Asked:
    made = [topics.CreatableTopic(name=f"checked-{n}", num_partitions=1, replication_factor=1) for n in range(MANY)]
    return [(topics.CreateTopicsRequest(topics=made, timeout_ms=60_000, validate_only=True), None)]


def _create_several(world: World, number: int) -> Asked:
    names = [f"several-{number}-{n}" for n in range(SEVERAL)]
    made = [topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return [(topics.CreateTopicsRequest(topics=made, timeout_ms=60_000), None)]


def _delete_several(world: World, number: int) -> Asked:
    states = [topics.DeleteTopicState(name=f"several-{number}-{n}") for n in range(SEVERAL)]
    return [(topics.DeleteTopicsRequest(topics=states, timeout_ms=60_000), None)]


def _delete_topics(world: World, number: int) -> Asked:
    state = topics.DeleteTopicState(name=f"made-{number}")
    return [(topics.DeleteTopicsRequest(topics=[state], timeout_ms=60_000), None)]


def _delete_records(world: World, number: int) -> Asked:
    rows = [topics.DeleteRecordsPartition(partition_index=n, offset=-1) for n in range(WIDE)]
    wanted = [topics.DeleteRecordsTopic(name="wide", partitions=rows)]
    return [(_produce_many(world, number)[0]), (topics.DeleteRecordsRequest(topics=wanted, timeout_ms=60_000), None)]


def _init_producer(world: World, number: int) -> Asked:
    body = transactions.InitProducerIdRequest(transactional_id="t" * 30_000, transaction_timeout_ms=60_000)
    return [(body, None)]


def _add_partitions(world: World, number: int) -> Asked:
    name, producer_id, epoch = world.begin(number)
    wanted = [transactions.AddPartitionsToTxnTopic(name="wide", partitions=list(range(WIDE)))]
    add = transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=wanted,
    )
    return [(add, 3)]


def _end_txn(world: World, number: int) -> Asked:
    [(add, version)] = _add_partitions(world, number)
    end = transactions.EndTxnRequest(
        transactional_id=add.v3_and_below_transactional_id,
        producer_id=add.v3_and_below_producer_id,
        producer_epoch=add.v3_and_below_producer_epoch,
        committed=True,
    )
    return [(add, version), (end, 3)]


def _add_offsets(world: World, number: int) -> Asked:
    name, producer_id, epoch = world.begin(number)
    body = transactions.AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, group_id="g" * 30_000
    )
    return [(body, None)]


def _txn_commit(world: World, number: int) -> Asked:
    name, producer_id, epoch = world.begin(number)
    rows = [transactions.TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in range(WIDE)]
    commit = transactions.TxnOffsetCommitRequest(
        transactional_id=name,
        group_id="wide-group",
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[transactions.TxnOffsetCommitRequestTopic(name="wide", partitions=rows)],
    )
    end = transactions.EndTxnRequest(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True
    )
    return [(commit, 5), (end, 4)]


def _describe_configs(world: World, number: int) -> Asked:
    wanted = [configs.DescribeConfigsResource(resource_type=TOPIC, resource_name="wide", configuration_keys=None)]
    return [(configs.DescribeConfigsRequest(resources=wanted * MANY, include_synonyms=True), None)]


def _alter_configs(world: World, number: int) -> Asked:
    setting = [configs.AlterableConfig(name="retention.ms", value="1000000000")]
    wanted = [
        configs.AlterConfigsResource(resource_type=TOPIC, resource_name=f"narrow-{n}", configs=setting)
        for n in range(NARROW)
    ]
    return [(configs.AlterConfigsRequest(resources=wanted), None)]


def _incremental(world: World, number: int) -> Asked:
    setting = [
        configs.IncrementalAlterConfigsRequestAlterableConfig(
            name="retention.ms", config_operation=0, value=str(10**9 + number)
        )
    ]
    wanted = [
        configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=TOPIC, resource_name=name, configs=setting
        )
        for name in ["wide", *(f"narrow-{n}" for n in range(NARROW))]
    ]
    return [(configs.IncrementalAlterConfigsRequest(resources=wanted), None)]


def _move(world: World, number: int) -> Asked:
    moved = [configs.AlterReplicaLogDirTopic(name="wide", partitions=list(range(MANY)))]
    return [(configs.AlterReplicaLogDirsRequest(dirs=[configs.AlterReplicaLogDir(path="/x", topics=moved)]), None)]


def _log_dirs(world: World, number: int) -> Asked:
    return [(configs.DescribeLogDirsRequest(topics=None), None)]


def _create_partitions(world: World, number: int) -> Asked:
    grown = [topics.CreatePartitionsTopic(name=f"narrow-{100 + number}", count=WIDE, assignments=None)]
    return [(topics.CreatePartitionsRequest(topics=grown, timeout_ms=60_000), None)]


def _delete_groups(world: World, number: int) -> Asked:
    world.ask(_commit("to-delete", range(WIDE)), 9)
    names = ["to-delete", *(f"group-{n}" for n in range(100 * number, 100 * number + 100))]
    return [(groups.DeleteGroupsRequest(groups_names=names), None)]


def _elect(world: World, number: int) -> Asked:
    wanted = [topics.TopicPartitions(topic="wide", partitions=list(range(MANY)))]
    return [(topics.ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=1000), None)]


def _reassign(world: World, number: int) -> Asked:
    rows = [topics.ReassignablePartition(partition_index=n, replicas=[0]) for n in range(MANY // 2)]
    wanted = [topics.ReassignableTopic(name="wide", partitions=rows)]
    return [(topics.AlterPartitionReassignmentsRequest(topics=wanted), None)]


def _reassignments(world: World, number: int) -> Asked:
    wanted = [topics.ListPartitionReassignmentsTopics(name="wide", partition_indexes=list(range(MANY)))]
    return [(topics.ListPartitionReassignmentsRequest(topics=wanted), None)]


def _offset_delete(world: World, number: int) -> Asked:
    world.ask(_commit("wide-group", range(WIDE)), 9)
    rows = [group_offsets.OffsetDeleteRequestPartition(partition_index=n) for n in range(WIDE)]
    wanted = [group_offsets.OffsetDeleteRequestTopic(name="wide", partitions=rows)]
    return [(group_offsets.OffsetDeleteRequest(group_id="wide-group", topics=wanted), None)]


def _quorum(world: World, number: int) -> Asked:
    rows = [configs.PartitionData(partition_index=n) for n in range(MANY)]
    wanted = [configs.TopicData(topic_name="__cluster_metadata", partitions=rows)]
    return [(configs.DescribeQuorumRequest(topics=wanted), None)]


def _features(world: World, number: int) -> Asked:
    updates = [configs.FeatureUpdateKey(feature=f"f{n}", max_version_level=1) for n in range(MANY)]
    return [(configs.UpdateFeaturesRequest(feature_updates=updates), None)]


def _producers(world: World, number: int) -> Asked:
    wanted = [transactions.TopicRequest(name="wide", partition_indexes=[0] * MANY)]
    return [(transactions.DescribeProducersRequest(topics=wanted), None)]


def _describe_transactions(world: World, number: int) -> Asked:
    [(add, version)] = _add_partitions(world, number)
    name = add.v3_and_below_transactional_id
    return [(add, version), (transactions.DescribeTransactionsRequest(transactional_ids=[name] * MANY), None)]


def _list_transactions(world: World, number: int) -> Asked:
    body = transactions.ListTransactionsRequest(
        producer_id_filters=list(range(MANY)), transactional_id_pattern="(.*t){1,50}.*"
    )
    return [(body, None)]


def _consumer_heartbeat(world: World, number: int) -> Asked:
    names = ["wide", *(f"narrow-{n}" for n in range(NARROW))]
    return [(_heartbeat(world, f"joins-{number}", names, "large"), None)]


def _consumer_join(world: World, number: int) -> Asked:
    return [(_heartbeat(world, f"late-{number}", ["wide"]), None)]


def _consumer_pattern(world: World, number: int) -> Asked:
    body = _heartbeat(world, f"pattern-{number}", [], "pattern")
    body.subscribed_topic_regex = "(.*[a-z]){1,50}.*"
    return [(body, None)]


def _consumer_describe(world: World, number: int) -> Asked:
    return [(consumer_groups.ConsumerGroupDescribeRequest(group_ids=["assigned"] * MANY), None)]


def _describe_partitions(world: World, number: int) -> Asked:
    return [
        (metadata.DescribeTopicPartitionsRequest(topics=[metadata.TopicRequest(name="wide")] * MANY), None),
    ]


REQUESTS: dict[int, dict[str, Callable[[World, int], Asked]]] = {
    ApiKey.PRODUCE: {
        f"{WIDE:,} partitions": _produce_many,
        f"{WIDE:,} partitions of a transaction, and its end": _produce_transactional,
        "a million records, zstd": _produce_records,
    },
    ApiKey.FETCH: {f"{WIDE:,} partitions": _fetch_many, f"{WIDE:,} partitions, waiting": _fetch_waiting},
    ApiKey.LIST_OFFSETS: {f"{MANY:,} partitions by time": _list_offsets},
    ApiKey.METADATA: {f"{MANY:,} times the same": _metadata, "all topics": _metadata_all},
    ApiKey.OFFSET_COMMIT: {f"{WIDE:,} partitions": _offset_commit},
    ApiKey.OFFSET_FETCH: {f"{MANY:,} times {WIDE:,} offsets": _offset_fetch},
    ApiKey.FIND_COORDINATOR: {f"{MANY:,} groups": _find_coordinator},
    ApiKey.JOIN_GROUP: {f"{MANY:,} protocols": _join},
    ApiKey.HEARTBEAT: {"long names": _heartbeats},
    ApiKey.LEAVE_GROUP: {f"{MANY:,} members": _leave},
    ApiKey.SYNC_GROUP: {f"{MANY:,} assignments": _sync},
    ApiKey.DESCRIBE_GROUPS: {f"{MANY:,} times the same": _describe_groups},
    ApiKey.LIST_GROUPS: {"all": lambda world, number: [(groups.ListGroupsRequest(), None)]},
    ApiKey.CREATE_TOPICS: {
        f"{WIDE:,} partitions": _create_topics,
        f"{MANY:,} checked": _create_topics_checked,
        f"{SEVERAL:,} topics": _create_several,
    },
    ApiKey.DELETE_TOPICS: {f"{WIDE:,} partitions": _delete_topics, f"{SEVERAL:,} topics": _delete_several},
    ApiKey.DELETE_RECORDS: {f"{WIDE:,} partitions": _delete_records},
    ApiKey.INIT_PRODUCER_ID: {"a long id": _init_producer},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {f"{MANY:,} partitions": _epochs},
    ApiKey.ADD_PARTITIONS_TO_TXN: {f"{WIDE:,} partitions": _add_partitions},
    ApiKey.ADD_OFFSETS_TO_TXN: {"a long group": _add_offsets},
    ApiKey.END_TXN: {f"{WIDE:,} partitions": _end_txn},
    ApiKey.TXN_OFFSET_COMMIT: {f"{WIDE:,} partitions, and the end": _txn_commit},
    ApiKey.DESCRIBE_CONFIGS: {f"{MANY:,} times the same": _describe_configs},
    ApiKey.ALTER_CONFIGS: {f"{NARROW:,} topics": _alter_configs},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {f"{NARROW:,} topics": _incremental},
    ApiKey.ALTER_REPLICA_LOG_DIRS: {f"{MANY:,} partitions": _move},
    ApiKey.DESCRIBE_LOG_DIRS: {"all": _log_dirs},
    ApiKey.CREATE_PARTITIONS: {f"{WIDE:,} partitions": _create_partitions},
    ApiKey.DELETE_GROUPS: {f"100 groups, one with {WIDE:,} offsets": _delete_groups},
    ApiKey.ELECT_LEADERS: {f"{MANY:,} partitions": _elect},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {f"{MANY // 2:,} partitions": _reassign},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {f"{MANY:,} partitions": _reassignments},
    ApiKey.OFFSET_DELETE: {f"{WIDE:,} partitions": _offset_delete},
    ApiKey.DESCRIBE_QUORUM: {f"{MANY:,} partitions": _quorum},
    ApiKey.UPDATE_FEATURES: {f"{MANY:,} features": _features},
    ApiKey.DESCRIBE_PRODUCERS: {f"{MANY:,} times {PRODUCERS:,} producers": _producers},
    ApiKey.DESCRIBE_TRANSACTIONS: {f"{MANY:,} times {WIDE:,} partitions": _describe_transactions},
    ApiKey.LIST_TRANSACTIONS: {f"{MANY:,} filters and a pattern": _list_transactions},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {
        f"{NARROW:,} topics": _consumer_heartbeat,
        f"{MEMBERS:,} members, {WIDE:,} partitions": _consumer_join,
        "a pattern": _consumer_pattern,
    },
    ApiKey.CONSUMER_GROUP_DESCRIBE: {f"{MANY:,} times the same": _consumer_describe},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {f"{MANY:,} times the same": _describe_partitions},
}
"""Other APIs get a request with nothing in it."""
