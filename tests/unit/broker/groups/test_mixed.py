"""Groups that change their protocol while they run."""

from __future__ import annotations

import struct

import pytest

from headrace.broker.groups.classic import ClassicGroup
from headrace.broker.groups.consumer import ConsumerGroup
from headrace.errors import ErrorCode
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupDescribeRequest
from headrace.wire.kafka.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tests.unit.broker.fakes import settle
from tests.unit.broker.groups.test_consumer import Consumer, settle_all
from tests.unit.broker.groups.world import REBALANCE_MS, SESSION_MS, World, run, subscription


def owning(*partitions: int) -> list[tuple[str, bytes]]:
    """The protocols of a cooperative consumer of ``orders`` that has these partitions."""
    has = [TopicPartition(topic="orders", partitions=list(partitions))] if partitions else []
    message = ConsumerProtocolSubscription(topics=["orders"], owned_partitions=has)
    return [("sticky", struct.pack(">h", 1) + b"".join(bytes(each) for each in write_message(message, 1)))]


def part(*partitions: int, user_data: bytes | None = None) -> bytes:
    given = [ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=list(partitions))]
    message = ConsumerProtocolAssignment(assigned_partitions=given, user_data=user_data)
    return struct.pack(">h", 1) + b"".join(bytes(each) for each in write_message(message, 1))


def parts_of(assignment: bytes) -> list[int]:
    message, _ = read_message(ConsumerProtocolAssignment, 1, assignment, 2)
    return [partition for topic in message.assigned_partitions for partition in topic.partitions]


async def classic_group(world: World, assignment: bytes | None = None, **join: object) -> str:
    """One classic member that has all of ``orders``, in generation 1."""
    joined = await (await world.new_member(protocols=owning(), **join))
    everything = part(0, 1, 2, 3) if assignment is None else assignment
    await world.sync(joined.member_id, 1, {joined.member_id: everything})
    return joined.member_id


def group_of(world: World) -> object:
    return world.registry["g"]


def classic_of(world: World) -> ClassicGroup:
    group = group_of(world)
    assert isinstance(group, ClassicGroup)
    return group


@run
async def test_a_consumer_that_joins_a_classic_group_upgrades_it_and_takes_its_share_only_when_it_is_given_up() -> None:
    world = World()
    old = await classic_group(world)
    new = Consumer(world, "new")
    await new.beat()
    assert isinstance(group_of(world), ConsumerGroup)
    assert (new.epoch, new.count()) == (2, 0)
    assert await world.beat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = await world.join(old, protocols=owning(0, 1, 2, 3))
    assert (rejoined.generation_id, rejoined.leader, rejoined.members) == (1, "", [])
    kept = parts_of((await world.sync(old, 1)).assignment)
    assert len(kept) == 2
    await new.beat()
    assert new.count() == 0, "the old member has not said yet that it gave them up"
    assert await world.beat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = await world.join(old, protocols=owning(*kept))
    assert rejoined.generation_id == 2
    assert parts_of((await world.sync(old, 2)).assignment) == kept
    await new.beat()
    assert sorted(kept + next(iter(new.owned.values()))) == [0, 1, 2, 3]
    assert await world.beat(old, 2) == ErrorCode.NONE


@run
async def test_an_eager_member_gives_up_everything_by_joining_again() -> None:
    world = World()
    old = await classic_group(world)
    new = Consumer(world, "new")
    await new.beat()
    rejoined = await world.join(old, protocols=owning())
    assert rejoined.generation_id == 2
    await new.beat()
    kept = parts_of((await world.sync(old, 2)).assignment)
    assert sorted(kept + next(iter(new.owned.values()))) == [0, 1, 2, 3]


@run
async def test_the_upgraded_group_survives_a_crash() -> None:
    world = World()
    old = await classic_group(world)
    new = Consumer(world, "new")
    await new.beat()
    world.crash()
    assert await world.beat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    await world.join(old, protocols=owning())
    await settle_all(new)
    assert new.count() == 2
    world.crash()
    assert await world.beat(old, 2) == ErrorCode.NONE


@run
async def test_members_that_wait_in_a_classic_rebalance_are_told_to_join_again_when_the_group_is_upgraded() -> None:
    world = World()
    old = await classic_group(world)
    second = await world.new_member(protocols=owning())
    waiting = world.join(old, protocols=owning())
    await waiting
    late = await second
    syncing = world.sync(late.member_id, 2)
    await settle()
    await Consumer(world, "new").beat()
    assert (await syncing).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert await world.beat(late.member_id, 2) == ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_when_the_last_consumer_is_gone_the_group_is_classic_again_and_rebalances() -> None:
    world = World()
    old = await classic_group(world)
    new = Consumer(world, "new")
    await new.beat()
    await world.join(old, protocols=owning())
    await settle_all(new)
    await world.consumer_beat("new", -1)
    assert isinstance(group_of(world), ClassicGroup)
    assert await world.beat(old, 2) == ErrorCode.ILLEGAL_GENERATION
    rejoined = await world.join(old, protocols=owning())
    assert (rejoined.generation_id, rejoined.leader) == (4, old)
    await world.sync(old, 4, {old: part(0, 1, 2, 3)})
    world.crash()
    assert await world.beat(old, 4) == ErrorCode.NONE


@run
async def test_a_silent_static_member_of_a_group_that_is_classic_again_is_gone_after_its_session() -> None:
    world = World()
    await Consumer(world, "new").beat()
    silent = await world.join(instance="i1", protocols=owning())
    await world.consumer_beat("new", -1)
    assert list(classic_of(world).members) == [silent.member_id]
    await world.clock.advance(SESSION_MS / 1000 + 1)
    assert list(classic_of(world).members) == []


@run
async def test_the_last_consumer_and_a_classic_member_leave_in_one_request_and_the_group_stays_classic() -> None:
    """The first of them makes the group classic again; the second is then a member of that."""
    world = World()
    await Consumer(world, "new").beat()
    classic = []
    for _ in range(2):
        asked = await world.join(protocols=owning())
        classic.append(asked.member_id)
        await world.join(asked.member_id, protocols=owning())
    gone, stays = classic
    assert await world.leave(("new", None), (gone, None)) == [ErrorCode.NONE, ErrorCode.NONE]
    assert list(classic_of(world).members) == [stays]
    joined = await world.join(stays, protocols=owning())
    await world.sync(stays, joined.generation_id, {stays: part(0, 1, 2, 3)})
    for _ in range(REBALANCE_MS // 6_000):
        await world.clock.advance(7)
        assert await world.beat(stays, joined.generation_id) == ErrorCode.NONE
    world.crash()
    assert isinstance(group_of(world), ClassicGroup)
    assert await world.beat(stays, joined.generation_id) == ErrorCode.NONE


@run
async def test_a_classic_member_joins_a_group_of_consumers_as_one_of_them() -> None:
    world = World()
    one = Consumer(world, "one")
    await one.beat()
    asked = await world.join(protocols=owning())
    assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = await world.join(asked.member_id, protocols=owning())
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.NONE, 3, "sticky")
    await settle_all(one)
    assert await world.beat(asked.member_id, 3) == ErrorCode.REBALANCE_IN_PROGRESS, "its part is free now"
    await world.join(asked.member_id, protocols=owning())
    assert len(parts_of((await world.sync(asked.member_id, 3)).assignment)) == 2
    described = await world.call("consumer_group_describe", ConsumerGroupDescribeRequest(group_ids=["g"]), 1)
    assert [member.member_type for member in described.groups[0].members] == [1, 0]


@run
async def test_a_classic_member_commits_in_its_generation_with_any_version() -> None:
    world = World()
    old = await classic_group(world)
    await Consumer(world, "new").beat()
    assert await world.commit({("orders", 0): 1}, member=old, generation=1, version=5) == [ErrorCode.NONE]
    assert await world.commit({("orders", 0): 1}, member=old, generation=7, version=5) == [ErrorCode.ILLEGAL_GENERATION]


@run
async def test_a_classic_member_that_does_not_join_again_in_time_is_gone() -> None:
    world = World()
    old = await classic_group(world, rebalance_ms=12_000)
    new = Consumer(world, "new")
    await new.beat()
    for _ in range(2):
        assert await world.beat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
        await world.clock.advance(6.5)
    assert await world.beat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    await settle_all(new)
    assert new.count() == 4


@run
async def test_a_classic_member_keeps_its_own_session_timeout() -> None:
    world = World()
    old = await classic_group(world, session_ms=6_000)
    await Consumer(world, "new").beat()
    await world.clock.advance(6.1)
    assert await world.beat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_requests_of_classic_members_are_checked() -> None:
    world = World()
    old = await classic_group(world)
    await Consumer(world, "new").beat()
    assert await world.beat(old, 9) == ErrorCode.ILLEGAL_GENERATION
    assert await world.beat("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await world.beat("new", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await world.beat(old, 1, instance="i9") == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await world.sync(old, 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    await world.join(old, protocols=owning())
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    refused = await world.sync(old, 2, version=5, **named)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [
        ("connect", owning()),
        ("consumer", []),
        ("consumer", [("range", subscription("orders"))]),
        ("consumer", [("sticky", b"?")]),
    ],
)
@run
async def test_a_classic_member_that_does_not_fit_is_refused(
    protocol_type: str, protocols: list[tuple[str, bytes]]
) -> None:
    world = World()
    await classic_group(world)
    await Consumer(world, "new").beat()
    refused = await world.join(protocol_type=protocol_type, protocols=protocols)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
@run
async def test_without_leave_to_upgrade_a_consumer_is_refused(policy: str) -> None:
    world = World(group_consumer_migration_policy=policy)
    old = await classic_group(world)
    refused = await Consumer(world, "new").beat()
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "disabled" in (refused.error_message or "")
    assert await world.beat(old, 1) == ErrorCode.NONE


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
@run
async def test_without_leave_to_downgrade_the_group_stays_one_of_the_new_protocol(policy: str) -> None:
    world = World(group_consumer_migration_policy=policy)
    await Consumer(world, "new").beat()
    asked = await world.join(protocols=owning())
    await world.join(asked.member_id, protocols=owning())
    await world.consumer_beat("new", -1)
    assert isinstance(group_of(world), ConsumerGroup)
    rejoined = await world.join(asked.member_id, protocols=owning())
    assert len(parts_of((await world.sync(asked.member_id, rejoined.generation_id)).assignment)) == 4


@run
async def test_groups_that_cannot_be_upgraded_say_why() -> None:
    for assignment, words in ((part(0, user_data=b"mine"), "custom assignor"), (b"\0\0?", "malformed")):
        world = World()
        await classic_group(world, assignment)
        refused = await Consumer(world, "new").beat()
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert words in (refused.error_message or "")
        assert isinstance(group_of(world), ClassicGroup)


@run
async def test_a_group_in_which_a_partition_was_assigned_twice_is_not_taken_over() -> None:
    world = World(group_initial_rebalance_delay_ms=100)
    first, second = await world.new_member(protocols=owning()), await world.new_member(protocols=owning())
    await world.clock.advance(0.3)
    leader, follower = await first, await second
    parts = {leader.member_id: part(0, 1), follower.member_id: part(1, 2)}
    await world.sync(leader.member_id, 1, parts)
    refused = await Consumer(world, "new").beat()
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "same partition" in (refused.error_message or "")


@run
async def test_a_static_member_changes_its_protocol_and_keeps_its_part() -> None:
    world = World()
    one, two = Consumer(world, "one", instance_id="i1"), Consumer(world, "two")
    await settle_all(one, two)
    joined = await world.join(instance="i1", protocols=owning())
    assert joined.error_code == ErrorCode.NONE
    kept = parts_of((await world.sync(joined.member_id, joined.generation_id, instance="i1")).assignment)
    assert kept == next(iter(one.owned.values()))
    assert (await one.beat(instance_id="i1")).error_code == ErrorCode.FENCED_INSTANCE_ID
    back = Consumer(world, "three", instance_id="i1")
    await back.beat()
    assert back.owned == one.owned


@run
async def test_a_full_disk_leaves_a_classic_group_classic() -> None:
    world = World()
    old = await classic_group(world)
    world.state.full = True
    assert (await Consumer(world, "new").beat()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.state.full = False
    assert isinstance(group_of(world), ClassicGroup)
    assert await world.beat(old, 1) == ErrorCode.NONE
