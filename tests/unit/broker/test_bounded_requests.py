"""Requests that repeat themselves, or ask for very much: answered as Kafka answers them, in slices and bounded answers.

What Apache Kafka answers to repeated names is in ``tests/differential/test_repeated.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import settled
from headrace.broker.slices import UNITS_PER_TURN
from headrace.config import TOPIC_SETTINGS
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupDescribeRequest
from headrace.wire.kafka.messages.coordinator import FindCoordinatorRequest
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
from headrace.wire.kafka.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from headrace.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.unit.broker.harness import Harness, running

MIB = 1 << 20
PARTITIONS = 1100
REPEATED = 2400

Scenario = Callable[[Harness], Awaitable[None]]


@pytest.fixture
def with_broker(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario; afterwards no turn of the loop has taken much more than a slice."""

    def run(scenario: Scenario, **settings: Any) -> None:
        async def whole() -> None:
            async with running(tmp_path, settings) as harness:
                await scenario(harness)
                assert UNITS_PER_TURN / 2 < harness.broker.slices.units_in_turn_max < 2 * UNITS_PER_TURN

        asyncio.run(whole())

    return run


async def raw(harness: Harness, body: Any, version: int | None = None) -> Any:
    """The answer as its handler made it, elements encoded."""
    return await settled(harness.start(body, version))


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


def test_a_group_that_is_asked_for_again_and_again_is_looked_up_once(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g")
        asked = [OffsetFetchRequestGroup(group_id="g", topics=None)] * REPEATED
        answer = await raw(harness, OffsetFetchRequest(groups=asked), 9)
        assert len(answer.groups) == REPEATED
        assert len({id(each) for each in answer.groups}) == 1
        few = await harness.ask(OffsetFetchRequest(groups=asked[:2]), 9)
        assert [len(each.topics[0].partitions) for each in few.groups] == [PARTITIONS, PARTITIONS]

    with_broker(scenario)


def test_groups_beyond_the_size_of_an_answer_are_refused_and_not_looked_up(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g", "h")
        asked = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "h")] * 100
        answer = await harness.ask(OffsetFetchRequest(groups=asked), 9)
        codes = [each.error_code for each in answer.groups]
        given = codes.count(0)
        assert 10 < given < 100
        assert codes == [0] * given + [ErrorCode.POLICY_VIOLATION] * (200 - given)

    with_broker(scenario, **{"response.bytes.max": MIB})


def test_the_single_group_of_old_versions_is_answered_in_slices_too(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g")
        answer = await harness.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert [each.partition_index for each in answer.topics[0].partitions] == list(range(PARTITIONS))

    with_broker(scenario)


def test_offsets_of_many_partitions_are_committed_and_deleted_in_slices(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g")
        partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in range(PARTITIONS)]
        topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions * 2)]
        answer = await harness.ask(OffsetDeleteRequest(group_id="g", topics=topics))
        assert [each.error_code for each in answer.topics[0].partitions] == [0] * 2 * PARTITIONS
        left = await harness.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 9)
        assert left.groups[0].topics == []

    with_broker(scenario)


def test_a_deleted_group_leaves_nothing_though_it_is_deleted_in_slices(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness, "g", "h")
        deleting = asyncio.ensure_future(harness.ask(DeleteGroupsRequest(groups_names=["g", "h", "g", "none"])))
        answer = await deleting
        codes = [(each.group_id, each.error_code) for each in answer.results]
        assert codes == [("g", 0), ("h", 0), ("none", ErrorCode.GROUP_ID_NOT_FOUND)]
        assert harness.broker.state.table("offsets") == {}

    with_broker(scenario)


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
    asked: Any, with_broker: Callable[..., None]
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        await harness.ask(commit("t", 1), 9)
        ids = ["g"] * REPEATED
        body = asked(groups=ids) if asked is DescribeGroupsRequest else asked(group_ids=ids)
        answer = await raw(harness, body)
        assert len(answer.groups) == REPEATED
        assert len({id(each) for each in answer.groups}) == 1

    with_broker(scenario)


def test_thousands_of_groups_are_listed_in_slices(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        for number in range(3000):
            harness.broker.group_coordinator.ensure(f"group-{number}")
        answer = await harness.ask(ListGroupsRequest())
        assert len(answer.groups) == 3000

    with_broker(scenario)


def test_a_list_of_groups_larger_than_an_answer_is_refused(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        for number in range(2000):
            harness.broker.group_coordinator.ensure(f"{number:0500}")
        assert (await harness.ask(ListGroupsRequest())).error_code == ErrorCode.POLICY_VIOLATION

    with_broker(scenario, **{"response.bytes.max": MIB})


def test_coordinators_are_found_in_slices(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        answer = await harness.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * REPEATED))
        assert [each.error_code for each in answer.coordinators] == [0] * REPEATED

    with_broker(scenario)


# ---- topics ---------------------------------------------------------------------------------------------------------


def test_metadata_has_a_topic_once_however_often_it_is_asked_for(with_broker: Callable[..., None]) -> None:
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

    with_broker(scenario)


def test_metadata_of_all_topics_is_made_in_slices(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await wide(harness)
        await harness.create("u", PARTITIONS)
        answer = await harness.ask(MetadataRequest(topics=None))
        assert [len(each.partitions) for each in answer.topics] == [PARTITIONS, PARTITIONS]

    with_broker(scenario)


# ---- settings -------------------------------------------------------------------------------------------------------


def described(name: str, keys: list[str] | None = None, kind: int = 2) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)


def test_settings_that_are_asked_for_again_and_again_are_described_once(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        asked = [described("t"), described("t", ["retention.ms"])] * 5000
        answer = await raw(harness, DescribeConfigsRequest(resources=asked))
        assert len(answer.results) == 10_000
        assert len({id(each) for each in answer.results}) == 2
        few = await harness.ask(DescribeConfigsRequest(resources=asked[:4]))
        assert [len(each.configs) for each in few.results] == [len(TOPIC_SETTINGS), 1] * 2

    with_broker(scenario)


def test_settings_beyond_the_size_of_an_answer_are_refused(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        asked = DescribeConfigsRequest(resources=[described("t")] * 2000, include_synonyms=True)
        answer = await harness.ask(asked)
        codes = [each.error_code for each in answer.results]
        given = codes.count(0)
        assert given > 50
        assert codes == [0] * given + [ErrorCode.POLICY_VIOLATION] * (2000 - given)
        assert "response.bytes.max" in answer.results[-1].error_message

    with_broker(scenario, **{"response.bytes.max": MIB})


def alteration(name: str, value: str | None, kind: int = 2, key: str = "retention.ms", operation: int = 0) -> Any:
    change = IncrementalAlterConfigsRequestAlterableConfig(name=key, value=value, config_operation=operation)
    return IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])


def test_many_alterations_are_made_in_slices(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        names = [f"t-{number}" for number in range(60)]
        for name in names:
            await harness.create(name)
        resources = [alteration(name, "5") for name in names] + [alteration("none", "5")] * 2000
        answer = await harness.ask(IncrementalAlterConfigsRequest(resources=resources))
        assert [each.error_code for each in answer.responses[:60]] == [0] * 60
        assert {each.error_code for each in answer.responses[60:]} == {ErrorCode.INVALID_REQUEST}
        assert harness.partition("t-59", 0).log.config.retention_ms == 5

    with_broker(scenario)


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
