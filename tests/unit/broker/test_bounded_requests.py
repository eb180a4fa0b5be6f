"""Requests that repeat themselves, or ask for very much: answered as Kafka answers them, in slices and bounded answers.

What Apache Kafka answers to repeated names is in ``tests/differential/test_repeated.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import settled
from headrace.broker.fetch_pending import LargeFetch
from headrace.broker.request import Peer, Request
from headrace.broker.transactions.states import Transaction
from headrace.config import TOPIC_SETTINGS
from headrace.errors import ErrorCode
from headrace.wire.kafka.api_key import ApiKey
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.configs import (
    DescribableLogDirTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    FeatureUpdateKey,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    UpdateFeaturesRequest,
)
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupDescribeRequest
from headrace.wire.kafka.messages.coordinator import FindCoordinatorRequest
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from headrace.wire.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
)
from headrace.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.kafka.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.kafka.messages.topics import (
    AlterPartitionReassignmentsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from headrace.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TopicRequest,
)
from tests.unit.broker.harness import Harness, batch, raw, running
from tests.waiting import eventually_on_loop

MIB = 1 << 20
PARTITIONS = 1100
REPEATED = 2400


def commit(topic: str, partitions: int, group: str = "g") -> OffsetCommitRequest:
    offsets = [OffsetCommitRequestPartition(partition_index=index, committed_offset=7) for index in range(partitions)]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=offsets)]
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics)


async def wide(harness: Harness, *groups: str) -> None:
    """A topic with many partitions, and groups with an offset in each."""
    await harness.create("t", PARTITIONS)
    for group in groups:
        answer = await harness.ask(commit("t", PARTITIONS, group), 9)
        assert {each.error_code for each in answer.topics[0].partitions} == {0}


# ---- groups ---------------------------------------------------------------------------------------------------------


def test_a_group_that_is_asked_for_again_and_again_is_looked_up_once(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g")
        asked = [OffsetFetchRequestGroup(group_id="g", topics=None)] * REPEATED
        answer = await raw(harness, OffsetFetchRequest(groups=asked), 9)
        assert len(answer.groups) == REPEATED
        assert len({id(each) for each in answer.groups}) == 1
        few = await harness.ask(OffsetFetchRequest(groups=asked[:2]), 9)
        assert [len(each.topics[0].partitions) for each in few.groups] == [PARTITIONS, PARTITIONS]

    with_slices(scenario)


def test_groups_beyond_the_size_of_an_answer_are_refused_and_not_looked_up(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g", "h")
        asked = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "h")] * 100
        answer = await harness.ask(OffsetFetchRequest(groups=asked), 9)
        codes = [each.error_code for each in answer.groups]
        given = codes.count(0)
        assert 10 < given < 100
        assert codes == [0] * given + [ErrorCode.POLICY_VIOLATION] * (200 - given)

    with_slices(scenario, **{"response.bytes.max": MIB})


def test_the_single_group_of_old_versions_is_answered_in_slices_too(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g")
        answer = await harness.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert [each.partition_index for each in answer.topics[0].partitions] == list(range(PARTITIONS))

    with_slices(scenario)


def test_offsets_of_many_partitions_are_committed_and_deleted_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g")
        partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in range(PARTITIONS)]
        topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions * 2)]
        answer = await harness.ask(OffsetDeleteRequest(group_id="g", topics=topics))
        assert [each.error_code for each in answer.topics[0].partitions] == [0] * 2 * PARTITIONS
        left = await harness.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 9)
        assert left.groups[0].topics == []

    with_slices(scenario)


def test_a_deleted_group_leaves_nothing_though_it_is_deleted_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g", "h")
        deleting = asyncio.ensure_future(harness.ask(DeleteGroupsRequest(groups_names=["g", "h", "g", "none"])))
        answer = await deleting
        codes = [(each.group_id, each.error_code) for each in answer.results]
        assert codes == [("g", 0), ("h", 0), ("none", ErrorCode.GROUP_ID_NOT_FOUND)]
        assert harness.broker.state.table("offsets") == {}

    with_slices(scenario)


def test_an_offset_committed_while_its_group_is_deleted_stays(tmp_path: Path) -> None:
    async def whole() -> None:
        async with running(tmp_path) as harness:
            await wide(harness, "g")
            deleting = harness.start(DeleteGroupsRequest(groups_names=["g"]))
            again = await harness.ask(commit("t", PARTITIONS), 9)
            assert {each.error_code for each in again.topics[0].partitions} == {0}
            await settled(deleting)
            assert len(harness.broker.state.table("offsets")) == PARTITIONS

    asyncio.run(whole())


@pytest.mark.parametrize("asked", [DescribeGroupsRequest, ConsumerGroupDescribeRequest])
def test_a_group_is_described_as_often_as_it_is_asked_for_and_once(
    asked: Any, with_slices: Callable[..., None]
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        await harness.ask(commit("t", 1), 9)
        ids = ["g"] * REPEATED
        body = asked(groups=ids) if asked is DescribeGroupsRequest else asked(group_ids=ids)
        answer = await raw(harness, body)
        assert len(answer.groups) == REPEATED
        assert len({id(each) for each in answer.groups}) == 1

    with_slices(scenario)


def test_thousands_of_groups_are_listed_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        for number in range(3000):
            harness.broker.group_coordinator.ensure(f"group-{number}")
        answer = await harness.ask(ListGroupsRequest())
        assert len(answer.groups) == 3000

    with_slices(scenario)


def test_a_list_of_groups_larger_than_an_answer_is_refused(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        for number in range(2000):
            harness.broker.group_coordinator.ensure(f"{number:0500}")
        assert (await harness.ask(ListGroupsRequest())).error_code == ErrorCode.POLICY_VIOLATION

    with_slices(scenario, **{"response.bytes.max": MIB})


def test_coordinators_are_found_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        answer = await harness.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * REPEATED))
        assert [each.error_code for each in answer.coordinators] == [0] * REPEATED

    with_slices(scenario)


# ---- topics ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_metadata_has_a_topic_once_however_often_it_is_asked_for(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness)
        first = await harness.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
        by_id = MetadataRequestTopic(name=None, topic_id=first.topics[0].topic_id)
        missing = [MetadataRequestTopic(name="none"), MetadataRequestTopic(name=None, topic_id=bytes(15) + b"x")]
        asked = [MetadataRequestTopic(name="t"), by_id, *missing] * 600
        answer = await harness.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
        assert [(each.name, each.error_code) for each in answer.topics] == [
            ("t", 0),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ]
        assert len(answer.topics[0].partitions) == PARTITIONS

    with_slices(scenario)


@pytest.mark.slow
def test_metadata_of_all_topics_is_made_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness)
        await harness.create("u", PARTITIONS)
        answer = await harness.ask(MetadataRequest(topics=None))
        assert [len(each.partitions) for each in answer.topics] == [PARTITIONS, PARTITIONS]

    with_slices(scenario)


# ---- settings -------------------------------------------------------------------------------------------------------


def described(name: str, keys: list[str] | None = None, kind: int = 2) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)


def test_settings_that_are_asked_for_again_and_again_are_described_once(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        asked = [described("t"), described("t", ["retention.ms"])] * 5000
        answer = await raw(harness, DescribeConfigsRequest(resources=asked))
        assert len(answer.results) == 10_000
        assert len({id(each) for each in answer.results}) == 2
        few = await harness.ask(DescribeConfigsRequest(resources=asked[:4]))
        assert [len(each.configs) for each in few.results] == [len(TOPIC_SETTINGS), 1] * 2

    with_slices(scenario)


def test_settings_beyond_the_size_of_an_answer_are_refused(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        asked = DescribeConfigsRequest(resources=[described("t")] * 2000, include_synonyms=True)
        answer = await harness.ask(asked)
        codes = [each.error_code for each in answer.results]
        given = codes.count(0)
        assert given > 50
        assert codes == [0] * given + [ErrorCode.POLICY_VIOLATION] * (2000 - given)
        assert "response.bytes.max" in answer.results[-1].error_message

    with_slices(scenario, **{"response.bytes.max": MIB})


def alteration(name: str, value: str | None, kind: int = 2, key: str = "retention.ms", operation: int = 0) -> Any:
    change = IncrementalAlterConfigsRequestAlterableConfig(name=key, value=value, config_operation=operation)
    return IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])


def test_many_alterations_are_made_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        names = [f"t-{number}" for number in range(60)]
        for name in names:
            await harness.create(name)
        resources = [alteration(name, "5") for name in names] + [alteration("none", "5")] * 2000
        answer = await harness.ask(IncrementalAlterConfigsRequest(resources=resources))
        assert [each.error_code for each in answer.responses[:60]] == [0] * 60
        assert {each.error_code for each in answer.responses[60:]} == {ErrorCode.INVALID_REQUEST}
        assert harness.partition("t-59", 0).log.config.retention_ms == 5

    with_slices(scenario)


async def altered(harness: Harness, *args: Any, **more: Any) -> ErrorCode:
    answer = await harness.ask(IncrementalAlterConfigsRequest(resources=[alteration(*args, **more)]))
    return ErrorCode(answer.responses[0].error_code)


def test_a_value_without_end_is_refused(tmp_path: Path) -> None:
    async def whole() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            endless = ",".join(f"{number}" for number in range(100_000))
            key = "leader.replication.throttled.replicas"
            for operation in (0, 2):
                code = await altered(harness, "t", endless, key=key, operation=operation)
                assert code is ErrorCode.INVALID_CONFIG

    asyncio.run(whole())


def test_a_setting_of_the_broker_that_nobody_knows_is_kept_and_said_to_have_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def whole() -> None:
        async with running(tmp_path) as harness:
            assert await altered(harness, "1", "5", kind=4, key="no.such.thing") is ErrorCode.NONE
            assert "'no.such.thing' is not known to headrace: it is kept and has no effect" in caplog.text
            asked = DescribeConfigsRequest(resources=[described("1", ["no.such.thing"], kind=4)])
            (entry,) = (await harness.ask(asked)).results[0].configs
            assert (entry.value, entry.read_only, entry.config_source, entry.is_sensitive) == (None, True, 2, True)
            assert await altered(harness, "1", None, kind=4, key="no.such.thing", operation=1) is ErrorCode.NONE
            assert (await harness.ask(asked)).results[0].configs == []

    asyncio.run(whole())


def test_settings_that_nobody_knows_are_kept_in_a_bounded_number(tmp_path: Path) -> None:
    async def whole() -> None:
        async with running(tmp_path) as harness:
            changes = [
                IncrementalAlterConfigsRequestAlterableConfig(name=f"unknown.{number}", value="1")
                for number in range(1001)
            ]
            resource = IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=4, resource_name="", configs=changes
            )
            answer = await harness.ask(IncrementalAlterConfigsRequest(resources=[resource]))
            assert answer.responses[0].error_code == ErrorCode.POLICY_VIOLATION
            assert await altered(harness, "", "1", kind=4, key="x" * 1001) is ErrorCode.POLICY_VIOLATION

    asyncio.run(whole())


# ---- partitions and transactions ------------------------------------------------------------------------------------


async def with_producers(harness: Harness, count: int) -> None:
    await harness.create("t", 2)
    partition = harness.partition("t", 0)
    for number in range(count):
        partition.append(batch(b"x", producer_id=number, producer_epoch=0, base_sequence=0))


def test_producers_are_described_in_slices_and_a_partition_named_again_shares_its_bytes(
    with_slices: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        await with_producers(harness, 3000)
        asked = [TopicRequest(name="t", partition_indexes=[0, 0, 1])] * 2
        answer = await harness.ask(DescribeProducersRequest(topics=asked))
        assert [[len(each.active_producers) for each in topic.partitions] for topic in answer.topics] == [
            [3000, 3000, 0]
        ] * 2

    with_slices(scenario)


def test_producers_beyond_the_size_of_an_answer_are_refused(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await with_producers(harness, 3000)
        asked = [TopicRequest(name="t", partition_indexes=[0] * 100)] * 3
        answer = await harness.ask(DescribeProducersRequest(topics=asked))
        codes = [each.error_code for topic in answer.topics for each in topic.partitions]
        given = codes.count(0)
        assert 3 < given < 20
        assert codes == [0] * given + [ErrorCode.POLICY_VIOLATION] * (300 - given)

    with_slices(scenario, **{"response.bytes.max": MIB})


def test_sizes_of_partitions_are_told_in_slices_and_once_for_each(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness)
        for topics in (None, [DescribableLogDirTopic(topic="t", partitions=list(range(PARTITIONS)) * 2)] * 2):
            answer = await harness.ask(DescribeLogDirsRequest(topics=topics))
            (topic,) = answer.results[0].topics
            assert [each.partition_index for each in topic.partitions] == list(range(PARTITIONS))

    with_slices(scenario)


def test_records_of_a_partition_named_again_are_deleted_once_up_to_its_last_offset(
    with_slices: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        await harness.produce("t", [b"0", b"1", b"2"])
        asked = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (1, 2)]
        unknown = [DeleteRecordsPartition(partition_index=index) for index in range(1, 1000)]
        topics = [DeleteRecordsTopic(name="t", partitions=asked), DeleteRecordsTopic(name="t", partitions=unknown)]
        answer = await harness.ask(DeleteRecordsRequest(topics=topics))
        (topic,) = answer.topics
        assert len(topic.partitions) == 1000
        assert (topic.partitions[0].partition_index, topic.partitions[0].low_watermark) == (0, 2)

    with_slices(scenario)


def test_transactions_are_described_as_often_as_they_are_asked_for_and_once(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.ask(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000), 4)
        answer = await raw(harness, DescribeTransactionsRequest(transactional_ids=["tx", "none"] * REPEATED))
        assert len(answer.transaction_states) == 2 * REPEATED
        assert len({id(each) for each in answer.transaction_states}) == 2

    with_slices(scenario)


def test_thousands_of_partitions_are_added_to_a_transaction_in_slices_and_as_one_row(
    with_slices: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", PARTITIONS)
        begun = await harness.ask(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000), 4)
        added = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=list(range(PARTITIONS)))],
        )
        before = harness.broker.state.end_offset
        (topic,) = (await harness.ask(added, 3)).results_by_topic_v3_and_below
        assert [each.partition_index for each in topic.results_by_partition] == list(range(PARTITIONS))
        assert {each.partition_error_code for each in topic.results_by_partition} == {0}
        assert harness.broker.state.end_offset == before + 1

    with_slices(scenario)


def test_thousands_of_transactions_are_listed_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        for number in range(2000):
            harness.broker.transactions.remember(
                Transaction(transactional_id=f"tx-{number}", producer_id=number, timeout_ms=1000)
            )
        answer = await harness.ask(ListTransactionsRequest(transactional_id_pattern="tx-1.*"))
        assert len(answer.transaction_states) == 1111
        twice = await harness.ask(ListTransactionsRequest(state_filters=["Odd", "Empty", "Odd"]))
        assert twice.unknown_state_filters == ["Odd"]

    with_slices(scenario)


SENSELESS: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "elections": (
        ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0] * REPEATED)]),
        lambda answer: len(answer.replica_election_results[0].partition_result),
    ),
    "reassignments": (
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0)] * REPEATED)]
        ),
        lambda answer: len(answer.responses[0].partitions),
    ),
    "epochs": (
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=0)] * REPEATED)]
        ),
        lambda answer: len(answer.topics[0].partitions),
    ),
    "members that leave": (
        LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")] * REPEATED),
        lambda answer: len(answer.members),
    ),
}


@pytest.mark.parametrize("name", SENSELESS)
def test_what_is_cheap_but_named_very_often_is_done_in_slices(name: str, with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        body, count = SENSELESS[name]
        assert count(await harness.ask(body)) == REPEATED

    with_slices(scenario)


def test_wrong_features_are_refused_with_a_message_that_does_not_grow_with_them(
    with_slices: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        updates = [FeatureUpdateKey(feature=f"f{number}", max_version_level=9) for number in range(REPEATED)]
        answer = await harness.ask(UpdateFeaturesRequest(feature_updates=updates), 1)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert len(answer.error_message) < 200

    with_slices(scenario)


def test_the_partitions_of_one_produce_join_their_transaction_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t", 50)
            producer = await harness.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000))
            fields = {"producer_id": producer.producer_id, "producer_epoch": 0, "base_sequence": 0}
            data = batch(b"v", transactional=True, **fields).data
            rows = [PartitionProduceData(index=index, records=data) for index in range(50)]
            topics = [TopicProduceData(name="t", partition_data=rows)]
            before = harness.broker.state.end_offset
            answer = await harness.ask(ProduceRequest(acks=-1, topic_data=topics, transactional_id="x"), 12)
            assert {each.error_code for each in answer.responses[0].partition_responses} == {0}
            assert harness.broker.state.end_offset == before + 1
            joined = harness.broker.transactions.find("x")
            assert joined is not None
            assert len(joined.partitions) == 50

    asyncio.run(scenario())


# ---- fetches of very many partitions --------------------------------------------------------------------------------


def fetch_all(count: int, offset: int = 0, **fields: Any) -> FetchRequest:
    asked = [FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=MIB) for index in range(count)]
    topics = [FetchTopic(topic="t", partitions=asked)]
    return FetchRequest(topics=topics, **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, **fields})


def bytes_of(answer: FetchResponse, version: int = 12) -> bytes:
    chunks = write_message(answer, version)
    return b"".join(chunk.read() if hasattr(chunk, "read") else chunk for chunk in chunks)


def test_a_fetch_of_very_many_partitions_is_read_in_slices(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", PARTITIONS)
        for index in (0, 700, PARTITIONS - 1):
            await harness.produce("t", [b"v%d" % index], index)
        answer = await raw(harness, fetch_all(PARTITIONS + 1), 12)
        read, _ = read_message(FetchResponse, 12, bytes_of(answer))
        partitions = read.responses[0].partitions
        assert [each.partition_index for each in partitions] == list(range(PARTITIONS + 1))
        assert [each.partition_index for each in partitions if each.records] == [0, 700, PARTITIONS - 1]
        assert partitions[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.responses[0].partitions.errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1}
        one = await raw(harness, harness.fetch_body("t", 0, 700), 12)
        assert partitions[700] == read_message(FetchResponse, 12, bytes_of(one))[0].responses[0].partitions[0]

    with_slices(scenario)


def test_a_fetch_of_very_many_partitions_waits_until_one_advances(with_slices: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", PARTITIONS)
        waiting = asyncio.ensure_future(raw(harness, fetch_all(PARTITIONS, max_wait_ms=60_000), 12))
        last = harness.partition("t", PARTITIONS - 1)
        await eventually_on_loop(lambda: last.watchers)
        await harness.produce("t", [b"v"], PARTITIONS - 1)
        read, _ = read_message(FetchResponse, 12, bytes_of(await waiting))
        assert [each.partition_index for each in read.responses[0].partitions if each.records] == [PARTITIONS - 1]
        assert not last.watchers

    with_slices(scenario)


def test_a_partition_that_advances_after_it_was_read_is_read_again_before_a_large_fetch_waits(
    with_broker: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", 60)
        fetches = harness.broker.fetches
        body = fetch_all(60, max_wait_ms=60_000)
        request = Request(api_key=ApiKey.FETCH, version=12, body=body, peer=harness.peer)
        request.access = harness.broker._gate.access("")
        fetch = LargeFetch(fetches, request, fetches.sessions.wanted(body)[1], None)
        steps = fetch.steps()
        while not fetch._idle:
            next(steps)
        await harness.produce("t", [b"v"], 0)
        with pytest.raises(StopIteration) as end:
            while True:
                assert isinstance(next(steps), int), "it waits"
        read, _ = read_message(FetchResponse, 12, bytes_of(end.value.value))
        assert [each.partition_index for each in read.responses[0].partitions if each.records] == [0]

    with_broker(scenario)


def test_a_fetch_of_very_many_partitions_ends_when_its_time_is_over_or_its_peer_gone(
    with_slices: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", PARTITIONS)
        read, _ = read_message(
            FetchResponse, 12, bytes_of(await raw(harness, fetch_all(PARTITIONS, max_wait_ms=1), 12))
        )
        assert len(read.responses[0].partitions) == PARTITIONS
        peer = Peer(id=2)
        reply = harness.start(fetch_all(PARTITIONS, max_wait_ms=60_000), 12, peer)
        watched = [harness.partition("t", index) for index in (0, PARTITIONS - 1)]
        await eventually_on_loop(lambda: all(each.watchers for each in watched))
        peer.closed = True
        reply.abandon()
        await eventually_on_loop(lambda: not any(each.watchers for each in watched))

    with_slices(scenario)


def test_an_answer_to_a_fetch_holds_so_many_files_open_and_no_more(
    with_broker: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", 300)
        for index in range(5):
            await harness.produce("t", [b"v"], index)
        for count in (5, 300):
            answer = await raw(harness, fetch_all(count), 12)
            read, _ = read_message(FetchResponse, 12, bytes_of(answer))
            assert [each.partition_index for each in read.responses[0].partitions if each.records] == [0, 1, 2]
            assert len(read.responses[0].partitions) == count

    monkeypatch.setattr("headrace.broker.fetch_pending.FILES_PER_ANSWER_MAX", 3)
    with_broker(scenario)
