"""What a killed broker still knows, and what it may not have said before it knew it for good."""

from __future__ import annotations

from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tests.unit.broker.fakes import settle
from tests.unit.broker.groups.test_consumer import Consumer, settle_all
from tests.unit.broker.groups.world import SESSION_MS, World, run


@run
async def test_members_go_on_heartbeating_after_a_crash_as_if_nothing_had_happened() -> None:
    world = World()
    generation, members = await world.stable(3)
    world.crash()
    for index, member in enumerate(members):
        assert await world.beat(member, generation) == ErrorCode.NONE
        assert (await world.sync(member, generation)).assignment == b"a%d" % index


@run
async def test_after_a_crash_every_member_has_a_whole_session_again() -> None:
    world = World()
    generation, (leader, silent) = await world.stable(2)
    await world.clock.advance(SESSION_MS / 1000 - 1)
    world.crash()
    await world.clock.advance(SESSION_MS / 1000 - 1)
    assert await world.beat(leader, generation) == ErrorCode.NONE
    await world.clock.advance(2)
    assert await world.beat(silent, generation) == ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_no_assignment_is_told_before_it_is_durable() -> None:
    world = World(group_initial_rebalance_delay_ms=100)
    first, second = await world.new_member(), await world.new_member()
    await world.clock.advance(0.3)
    leader, follower = await first, await second
    world.state.auto_flush = False
    follows = world.sync(follower.member_id, 1)
    leads = world.sync(leader.member_id, 1, {leader.member_id: b"l", follower.member_id: b"f"})
    await settle()
    late = world.sync(follower.member_id, 1)
    await settle()
    assert not follows.done()
    assert not leads.done()
    assert not late.done()
    world.state.flush()
    assert [(await each).assignment for each in (leads, late)] == [b"l", b"f"]


@run
async def test_no_generation_is_told_before_it_is_durable() -> None:
    world = World(auto_flush=False)
    joining = await world.new_member()
    await settle()
    assert not joining.done()
    world.state.flush()
    assert (await joining).generation_id == 1


@run
async def test_a_generation_that_was_told_is_never_used_again_though_the_crash_came_before_its_sync() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    waiting = world.join(leader)
    world.join(follower)
    assert (await waiting).generation_id == generation + 1
    world.crash()
    assert (await world.sync(leader, generation + 1)).error_code == ErrorCode.ILLEGAL_GENERATION
    assert await world.beat(follower, generation) == ErrorCode.NONE, "the last complete generation goes on"
    waiting = world.join(leader)
    world.join(follower)
    assert (await waiting).generation_id == generation + 2


@run
async def test_whoever_joins_after_such_a_crash_is_not_told_the_older_generation_again() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    waiting = world.join(leader)
    world.join(follower)
    await waiting
    world.crash()
    unchanged = world.join(follower)
    await settle()
    assert not unchanged.done()
    world.join(leader)
    assert (await unchanged).generation_id == generation + 2


@run
async def test_a_new_group_that_crashed_in_its_first_rebalance_goes_on_counting() -> None:
    world = World()
    joined = await (await world.new_member())
    assert joined.generation_id == 1
    world.crash()
    assert (await world.join(joined.member_id)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await (await world.new_member())).generation_id == 2


@run
async def test_a_crash_before_the_flush_leaves_the_generation_before() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    waiting = world.join(leader)
    world.join(follower)
    await waiting
    world.state.auto_flush = False
    world.sync(leader, generation + 1, {leader: b"new", follower: b"new"})
    await settle()
    world.crash()
    assert await world.beat(leader, generation) == ErrorCode.NONE
    assert (await world.sync(leader, generation)).assignment == b"a0"


@run
async def test_a_static_member_that_came_back_is_known_by_its_new_id_after_a_crash() -> None:
    world = World()
    first = await world.join(instance="i1")
    await world.sync(first.member_id, 1, {first.member_id: b"part"}, instance="i1")
    back = await world.join(instance="i1")
    world.crash()
    assert await world.beat(back.member_id, 1, instance="i1") == ErrorCode.NONE
    assert await world.beat(first.member_id, 1, instance="i1") == ErrorCode.FENCED_INSTANCE_ID


@run
async def test_an_empty_group_keeps_its_generation_over_a_crash() -> None:
    world = World()
    generation, (leader,) = await world.stable(1)
    await world.leave((leader, None))
    world.crash()
    assert (await (await world.new_member())).generation_id == generation + 2


@run
async def test_a_full_disk_delays_a_rebalance_and_ends_nothing() -> None:
    world = World()
    generation, (leader,) = await world.stable(1)
    world.state.full = True
    waiting = world.join(leader)
    await world.clock.advance(3)
    assert not waiting.done()
    world.state.full = False
    await world.clock.advance(1.1)
    assert (await waiting).generation_id == generation + 1


@run
async def test_an_assignment_that_cannot_be_written_is_refused_and_the_group_rebalances() -> None:
    world = World()
    joined = await (await world.new_member())
    world.state.full = True
    refused = await world.sync(joined.member_id, 1, {joined.member_id: b"x"})
    assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.state.full = False
    assert await world.beat(joined.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert (await world.join(joined.member_id)).generation_id == 2


@run
async def test_consumers_keep_epochs_and_partitions_over_a_crash() -> None:
    world = World()
    one = await world.consumer_beat("one", 0, topics=["orders"])
    assert one.assignment is not None
    owned = {each.topic_id: each.partitions for each in one.assignment.topic_partitions}
    world.crash()
    again = await world.consumer_beat("one", one.member_epoch, owned=owned)
    assert again.error_code == ErrorCode.NONE
    assert again.member_epoch == one.member_epoch
    assert again.assignment is None, "nothing changed, so nothing is said"


@run
async def test_no_partition_is_told_to_a_consumer_before_that_is_durable() -> None:
    world = World(auto_flush=False)
    joining = world.call(
        "consumer_group_heartbeat",
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="one",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["orders"],
            topic_partitions=[],
        ),
        1,
    )
    await settle()
    assert not joining.done()
    world.state.flush()
    assert (await joining).member_epoch == 2


@run
async def test_a_member_that_gives_up_nothing_is_removed_though_the_disk_was_full_when_its_time_was_over() -> None:
    world = World()
    one, two = Consumer(world, "one", rebalance_timeout_ms=4_000), Consumer(world, "two")
    await one.beat()
    await two.beat()
    await one.beat()  # it is asked to give up a part
    await world.clock.advance(3.9)
    world.state.full = True
    await world.clock.advance(0.2)
    await world.consumer_beat("one", 2)
    world.state.full = False
    await world.clock.advance(1.1)
    assert (await world.consumer_beat("one", 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    await settle_all(two)
    assert two.count() == 4
