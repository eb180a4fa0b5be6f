"""Static members (KIP-345): an instance id outlives its process."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ErrorCode
from tests.unit.broker.fakes import settle
from tests.unit.broker.groups.world import SESSION_MS, World, run, subscription


async def static_group(world: World, **join: Any) -> tuple[int, str, str]:
    """A stable group of instances i1 (leader) and i2; its generation and their member ids."""
    first = await world.join(instance="i1", **join)
    second = world.join(instance="i2", **join)
    await settle()
    rejoined = world.join(first.member_id, instance="i1", **join)
    leader, follower = await rejoined, await second
    assert leader.leader == leader.member_id
    waiting = world.sync(follower.member_id, leader.generation_id, instance="i2")
    parts = {leader.member_id: b"one", follower.member_id: b"two"}
    await world.sync(leader.member_id, leader.generation_id, parts, instance="i1")
    assert (await waiting).assignment == b"two"
    return leader.generation_id, leader.member_id, follower.member_id


@run
async def test_a_static_member_joins_in_one_step_and_its_id_names_the_instance() -> None:
    joined = await World().join(instance="i1")
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id.startswith("i1-")


@run
async def test_a_follower_that_comes_back_takes_its_place_without_a_rebalance() -> None:
    world = World()
    generation, leader, old = await static_group(world)
    back = await world.join(instance="i2")
    assert back.generation_id == generation
    assert back.member_id != old
    assert not back.skip_assignment
    assert (await world.sync(back.member_id, generation, instance="i2")).assignment == b"two"
    assert await world.beat(leader, generation, instance="i1") == ErrorCode.NONE


@run
async def test_a_leader_that_comes_back_is_told_to_skip_the_assignment() -> None:
    world = World()
    generation, _, follower = await static_group(world)
    back = await world.join(instance="i1")
    assert back.skip_assignment
    assert back.leader == back.member_id
    assert {each.member_id for each in back.members} == {back.member_id, follower}
    assert (await world.sync(back.member_id, generation, instance="i1")).assignment == b"one"


@run
async def test_an_older_leader_that_comes_back_is_not_shown_as_the_leader() -> None:
    world = World()
    _, old, _ = await static_group(world)
    back = await world.join(instance="i1", version=8)
    assert back.leader == old
    assert back.members == []


@run
async def test_the_process_that_was_replaced_is_fenced() -> None:
    world = World()
    generation, _, old = await static_group(world)
    await world.join(instance="i2")
    assert await world.beat(old, generation, instance="i2") == ErrorCode.FENCED_INSTANCE_ID
    assert (await world.sync(old, generation, instance="i2")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert (await world.join(old, instance="i2")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert await world.commit({("orders", 0): 1}, member=old, generation=generation, group_instance_id="i2") == [
        ErrorCode.FENCED_INSTANCE_ID
    ]
    assert await world.leave((old, "i2")) == [ErrorCode.FENCED_INSTANCE_ID]


@run
async def test_a_join_that_waits_is_fenced_when_another_process_takes_the_instance() -> None:
    world = World()
    _, leader, _ = await static_group(world)
    waiting = world.join(leader, instance="i1")
    world.join(instance="i1")
    assert (await waiting).error_code == ErrorCode.FENCED_INSTANCE_ID


@run
async def test_a_sync_that_waits_is_fenced_when_another_process_takes_the_instance() -> None:
    world = World()
    _, leader, follower = await static_group(world)
    rejoined, other = world.join(leader, instance="i1"), world.join(follower, instance="i2")
    generation = (await rejoined).generation_id
    await other
    waiting = world.sync(follower, generation, instance="i2")
    world.join(instance="i2")
    assert (await waiting).error_code == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", [5, 6, 7, 9])
@run
async def test_every_version_of_a_waiting_join_can_be_told_that_it_is_fenced(version: int) -> None:
    world = World()
    _, leader, _ = await static_group(world, version=version)
    waiting = world.join(leader, instance="i1", version=version)
    world.join(instance="i1", version=version)
    assert (await waiting).error_code == ErrorCode.FENCED_INSTANCE_ID


@run
async def test_an_unknown_instance_is_an_unknown_member() -> None:
    world = World()
    generation, leader, _ = await static_group(world)
    assert await world.beat(leader, generation, instance="i9") == ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_coming_back_with_other_topics_starts_a_rebalance() -> None:
    world = World()
    generation, leader, _ = await static_group(world)
    waiting = world.join(instance="i2", protocols=[("range", subscription("payments"))])
    assert await world.beat(leader, generation, instance="i1") == ErrorCode.REBALANCE_IN_PROGRESS
    world.join(leader, instance="i1")
    assert (await waiting).generation_id == generation + 1


@run
async def test_coming_back_with_a_protocol_that_changes_the_choice_starts_a_rebalance() -> None:
    world = World()
    both = [("range", subscription("orders")), ("sticky", subscription("orders"))]
    first = await world.join(instance="i1", protocols=both)
    await world.sync(first.member_id, 1, {first.member_id: b"one"}, instance="i1")
    back = await world.join(instance="i1", protocols=both[1:])
    assert (back.generation_id, back.protocol_name) == (2, "sticky")


@run
async def test_a_static_member_that_is_late_for_a_rebalance_stays_in_the_group() -> None:
    world = World()
    _, leader, follower = await static_group(world, rebalance_ms=4_000)
    waiting = world.join(leader, instance="i1", rebalance_ms=4_000)
    await world.clock.advance(3.9)
    assert not waiting.done()
    await world.clock.advance(0.2)
    assert [each.member_id for each in (await waiting).members] == [leader, follower]


@run
async def test_an_administrator_removes_a_static_member_by_its_instance_alone() -> None:
    world = World()
    generation, leader, follower = await static_group(world)
    assert await world.leave(("", "i2"), ("", "i9"), ("", None)) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert await world.beat(follower, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await world.beat(leader, generation, instance="i1") == ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_a_static_member_that_leaves_by_dying_is_gone_after_its_session() -> None:
    world = World()
    generation, leader, _ = await static_group(world)
    await world.clock.advance(SESSION_MS / 1000 - 1)
    await world.beat(leader, generation, instance="i1")
    await world.clock.advance(2)
    assert await world.beat(leader, generation, instance="i1") == ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_a_full_disk_leaves_the_old_process_in_its_place() -> None:
    world = World()
    generation, _, old = await static_group(world)
    world.state.full = True
    refused = await world.join(instance="i2")
    assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.state.full = False
    assert await world.beat(old, generation, instance="i2") == ErrorCode.NONE
    assert (await world.sync(old, generation, instance="i2")).assignment == b"two"


@run
async def test_a_process_that_took_over_in_a_rebalance_is_not_fenced_after_a_crash() -> None:
    """Its id is written with the assignment. Before that it has been told, and the id in the row is the older one."""
    world = World()
    generation, leader, _ = await static_group(world)
    waiting, back = world.join(leader, instance="i1"), world.join(instance="i2")
    assert (await waiting).generation_id == generation + 1
    told = await back
    world.crash()
    synced = await world.sync(told.member_id, told.generation_id, instance="i2")
    assert synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    again = world.join(instance="i2")
    world.join(leader, instance="i1")
    assert (await again).generation_id == generation + 2
