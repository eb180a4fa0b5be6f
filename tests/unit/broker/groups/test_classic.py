"""Classic groups: joining, syncing, staying, leaving."""

from __future__ import annotations

import itertools

import pytest

from headrace.broker.groups.classic import TRANSITIONS, ClassicGroup, ClassicState
from headrace.broker.groups.rebalance import Rebalancer
from headrace.config import Settings
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.groups import DescribeGroupsRequest, LeaveGroupRequest
from tests.unit.broker.fakes import FakeClock, FakeState, settle
from tests.unit.broker.groups.world import REBALANCE_MS, SESSION_MS, World, run, subscription


@pytest.mark.parametrize(("old", "new"), list(itertools.product(ClassicState, ClassicState)))
def test_a_group_enters_only_the_states_of_the_table(old: ClassicState, new: ClassicState) -> None:
    settings = Settings({})
    state = FakeState()
    rebalancer = Rebalancer(state=state, clock=FakeClock(), settings=settings, new_id=str)  # type: ignore[arg-type]
    group = ClassicGroup("g", rebalancer, state=old)
    if new in TRANSITIONS[old]:
        group.enter(new, 0)
        assert group.state is new
    else:
        with pytest.raises(AssertionError):
            group.enter(new, 0)


@run
async def test_a_first_join_without_an_id_is_given_one_and_asked_to_come_again() -> None:
    world = World()
    asked = await world.join(client_id="me")
    assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert asked.member_id == "me-id1"
    joined = await world.join(asked.member_id)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id == joined.leader == asked.member_id
    assert joined.generation_id == 1
    assert joined.protocol_type == "consumer"
    assert joined.protocol_name == "range"
    assert [member.metadata for member in joined.members] == [subscription("orders")]


@run
async def test_a_client_of_before_version_four_joins_in_one_step() -> None:
    world = World()
    joined = await world.join(version=3)
    assert joined.error_code == ErrorCode.NONE
    assert joined.generation_id == 1


@run
async def test_an_error_for_an_old_client_carries_an_empty_protocol_name() -> None:
    world = World()
    refused = await world.join("nobody", version=2)
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused.protocol_name == ""


@pytest.mark.parametrize("version", range(10))
@run
async def test_a_join_of_any_version_that_waits_can_be_refused(version: int) -> None:
    world = World(group_initial_rebalance_delay_ms=60_000)
    waiting = await world.new_member(version=version) if version >= 4 else world.join(version=version)
    await settle()
    world.groups.close()
    assert (await waiting).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@run
async def test_two_members_share_a_generation_and_each_gets_its_own_assignment() -> None:
    world = World()
    generation, members = await world.stable(2)
    for index, member in enumerate(members):
        again = await world.sync(member, generation)
        assert again.assignment == b"a%d" % index
        assert await world.beat(member, generation) == ErrorCode.NONE


@run
async def test_only_the_leader_sees_the_members() -> None:
    world = World()
    first = await world.new_member()
    one = await first
    second = await world.new_member()
    assert await world.beat(one.member_id, one.generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = world.join(one.member_id)
    leader, follower = await rejoined, await second
    assert leader.generation_id == follower.generation_id == 2
    assert {each.member_id for each in leader.members} == {leader.member_id, follower.member_id}
    assert follower.members == []
    assert follower.leader == leader.member_id


@run
async def test_a_new_group_waits_for_more_members_before_its_first_generation() -> None:
    world = World(group_initial_rebalance_delay_ms=3000)
    first = await world.new_member()
    await world.clock.advance(2.9)
    second = await world.new_member()
    await world.clock.advance(2.9)
    assert not first.done()
    await world.clock.advance(0.2)
    assert (await first).generation_id == (await second).generation_id == 1


@run
async def test_the_wait_for_more_members_ends_at_the_rebalance_timeout() -> None:
    world = World(group_initial_rebalance_delay_ms=3000)
    first = await world.new_member(rebalance_ms=7000)
    for _ in range(3):
        await world.clock.advance(2.0)
        await world.new_member(rebalance_ms=7000)
        assert not first.done()
    await world.clock.advance(3.5)
    assert len((await first).members) == 4


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
@run
async def test_a_session_timeout_outside_the_bounds_is_refused(session_ms: int) -> None:
    refused = await World().join(session_ms=session_ms)
    assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


@run
async def test_an_empty_group_id_is_refused_everywhere() -> None:
    world = World()
    assert (await world.join(group="")).error_code == ErrorCode.INVALID_GROUP_ID
    assert (await world.sync("m", 1, group="")).error_code == ErrorCode.INVALID_GROUP_ID
    assert await world.beat("m", 1, group="") == ErrorCode.INVALID_GROUP_ID
    left = await world.call("leave_group", LeaveGroupRequest(group_id=""), 5)
    assert left.error_code == ErrorCode.INVALID_GROUP_ID


@run
async def test_a_member_of_an_unknown_group_is_unknown() -> None:
    world = World()
    assert (await world.join("m")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await world.sync("m", 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert await world.beat("m", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await world.leave(("m", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.registry == {}, "asking leaves nothing behind"


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("consumer", []), ("", [("range", b"")]), ("connect", [("range", b"")]), ("consumer", [("sticky", b"")])],
)
@run
async def test_a_member_that_has_no_protocol_in_common_is_refused(
    protocol_type: str, protocols: list[tuple[str, bytes]]
) -> None:
    world = World()
    await world.stable(1)
    refused = await world.join(protocol_type=protocol_type, protocols=protocols)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@run
async def test_the_first_member_needs_some_protocol() -> None:
    refused = await World().join(protocols=[])
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@run
async def test_the_protocol_with_most_first_votes_among_the_common_ones_wins() -> None:
    world = World(group_initial_rebalance_delay_ms=1000)
    offers = [["only-a", "x", "y"], ["y", "x"], ["y", "x", "only-c"]]
    waiting = [await world.new_member(protocols=[(name, b"") for name in names]) for names in offers]
    await world.clock.advance(4)
    assert {(await each).protocol_name for each in waiting} == {"y"}


@run
async def test_a_member_that_says_nothing_for_its_session_is_gone_and_the_others_rebalance() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    await world.clock.advance(SESSION_MS / 1000 - 1)
    assert await world.beat(leader, generation) == ErrorCode.NONE
    await world.clock.advance(2)
    assert await world.beat(leader, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert await world.beat(follower, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert len((await world.join(leader)).members) == 1


@run
async def test_a_member_that_waits_in_a_join_keeps_its_session() -> None:
    world = World()
    _generation, (leader, _) = await world.stable(2)
    waiting = world.join(leader)
    await world.clock.advance(SESSION_MS / 1000 + 1)
    joined = await waiting
    assert joined.error_code == ErrorCode.NONE
    assert [each.member_id for each in joined.members] == [leader]


async def joined(world: World, *rebalance_ms: int) -> tuple[str, str]:
    """Leader and follower of generation 1; nobody has synced."""
    waiting = [await world.new_member(rebalance_ms=each) for each in rebalance_ms]
    await world.clock.advance(0.3)
    first, second = [await each for each in waiting]
    assert first.leader == first.member_id
    return first.member_id, second.member_id


@run
async def test_a_rebalance_waits_for_the_longest_timeout_of_its_members() -> None:
    world = World(group_initial_rebalance_delay_ms=100)
    leader, follower = await joined(world, 20_000, 40_000)
    waits, _ = world.sync(follower, 1), world.sync(leader, 1, {leader: b"a0", follower: b"a1"})
    assert (await waits).assignment == b"a1"
    waiting = world.join(leader, rebalance_ms=20_000)
    for _ in range(6):
        await world.clock.advance(6.5)
        assert await world.beat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert not waiting.done()
    await world.clock.advance(1.1)
    assert [each.member_id for each in (await waiting).members] == [leader]


@run
async def test_a_session_begins_again_when_a_join_is_answered() -> None:
    world = World(group_initial_rebalance_delay_ms=100)
    leader, silent = await joined(world, REBALANCE_MS, REBALANCE_MS)
    for _ in range(2):
        assert await world.beat(leader, 1) == ErrorCode.NONE
        await world.clock.advance(SESSION_MS / 1000 - 2)
    assert await world.beat(silent, 1) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("answered", [True, False])
@run
async def test_a_session_begins_again_when_a_sync_that_waited_for_longer_is_answered(answered: bool) -> None:
    """With its assignment, or because the group rebalances."""
    world = World(group_initial_rebalance_delay_ms=100)
    leader, silent = await joined(world, REBALANCE_MS, REBALANCE_MS)
    waiting = world.sync(silent, 1)
    for _ in range(2):
        await world.clock.advance(SESSION_MS / 1000 - 2)
        assert await world.beat(leader, 1) == ErrorCode.NONE
    if answered:
        await world.sync(leader, 1, {leader: b"a0", silent: b"a1"})
        assert (await waiting).assignment == b"a1"
    else:
        await world.new_member()
        assert (await waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(2):
        await world.clock.advance(SESSION_MS / 1000 - 2)
        await world.beat(leader, 1)
    assert await world.beat(silent, 1) == ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_dropped() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2, rebalance_ms=20_000)
    waiting = world.join(leader, rebalance_ms=20_000)
    for _ in range(5):
        await world.clock.advance(3.9)
        assert await world.beat(follower, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert not waiting.done()
    await world.clock.advance(1)
    assert [each.member_id for each in (await waiting).members] == [leader]
    assert await world.beat(follower, generation) == ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_a_member_that_joined_but_never_syncs_is_dropped_after_the_rebalance_timeout() -> None:
    world = World(group_initial_rebalance_delay_ms=100)
    first, second = await world.new_member(rebalance_ms=20_000), await world.new_member(rebalance_ms=20_000)
    await world.clock.advance(0.3)
    leader, silent = await first, await second
    synced = await world.sync(leader.member_id, 1, {leader.member_id: b"x"})
    assert synced.error_code == ErrorCode.NONE
    for _ in range(5):
        await world.clock.advance(4.1)
        await world.beat(leader.member_id, 1)
        await world.beat(silent.member_id, 1)
    assert await world.beat(leader.member_id, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert await world.beat(silent.member_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_a_follower_that_joins_a_stable_group_unchanged_is_told_what_is() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    again = await world.join(follower)
    assert (again.generation_id, again.leader, again.members) == (generation, leader, [])
    assert await world.beat(leader, generation) == ErrorCode.NONE


@run
async def test_a_leader_that_joins_a_stable_group_starts_a_rebalance() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    waiting = world.join(leader)
    assert await world.beat(follower, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    world.join(follower)
    assert (await waiting).generation_id == generation + 1


@run
async def test_a_follower_with_new_metadata_starts_a_rebalance() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    waiting = world.join(follower, protocols=[("range", subscription("orders", "payments"))])
    assert await world.beat(leader, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    world.join(leader)
    assert (await waiting).generation_id == generation + 1


@run
async def test_a_join_repeated_between_the_barriers_gives_the_same_generation() -> None:
    world = World()
    joined = await (await world.new_member())
    again = await world.join(joined.member_id)
    assert (again.generation_id, again.members) == (joined.generation_id, joined.members)


@run
async def test_a_second_join_of_a_waiting_member_takes_the_place_of_the_first() -> None:
    world = World()
    _, (leader, _) = await world.stable(2)
    first = world.join(leader)
    second = world.join(leader)
    assert (await first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not second.done()


@run
async def test_requests_of_another_generation_are_refused() -> None:
    world = World()
    generation, (leader, _) = await world.stable(2)
    assert await world.beat(leader, generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert (await world.sync(leader, generation - 1)).error_code == ErrorCode.ILLEGAL_GENERATION


@run
async def test_a_sync_that_names_another_protocol_is_refused() -> None:
    world = World()
    joined = await (await world.new_member())
    for named in (("connect", "range"), ("consumer", "sticky"), (None, "range"), ("consumer", None)):
        fields = {"protocol_type": named[0], "protocol_name": named[1]}
        refused = await world.sync(joined.member_id, 1, version=5, **fields)
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    fits = await world.sync(joined.member_id, 1, version=5, protocol_type="consumer", protocol_name="range")
    assert fits.error_code == ErrorCode.NONE


@run
async def test_a_sync_that_waits_is_told_when_a_new_rebalance_begins() -> None:
    world = World(group_initial_rebalance_delay_ms=100)
    first, second = await world.new_member(), await world.new_member()
    await world.clock.advance(0.3)
    leader, follower = await first, await second
    waiting = world.sync(follower.member_id, 1)
    await world.new_member()
    assert (await waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert (await world.sync(leader.member_id, 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_leaving_takes_several_members_at_once_and_answers_for_each() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    assert await world.leave((follower, None), ("stranger", None)) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert await world.beat(leader, generation) == ErrorCode.REBALANCE_IN_PROGRESS


@run
async def test_an_old_client_leaves_with_the_error_at_the_top() -> None:
    world = World()
    _, (leader, _) = await world.stable(2)
    gone = await world.call("leave_group", LeaveGroupRequest(group_id="g", member_id=leader), 1)
    again = await world.call("leave_group", LeaveGroupRequest(group_id="g", member_id=leader), 1)
    assert (gone.error_code, again.error_code) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)


@run
async def test_the_last_member_leaves_an_empty_group_of_the_next_generation() -> None:
    world = World()
    generation, (leader,) = await world.stable(1)
    assert await world.leave((leader, None)) == [ErrorCode.NONE]
    described = await world.call("describe_groups", DescribeGroupsRequest(groups=["g"]), 6)
    assert described.groups[0].group_state == "Empty"
    next_generation, _ = await world.stable(1)
    assert next_generation == generation + 2


@run
async def test_an_id_that_was_given_and_never_used_expires_and_no_longer_holds_up_the_join() -> None:
    world = World()
    generation, (leader,) = await world.stable(1)
    await world.join()
    waiting = world.join(leader)
    await settle()
    assert not waiting.done()
    await world.clock.advance(SESSION_MS / 1000 + 1)
    assert (await waiting).generation_id == generation + 1


@run
async def test_an_id_that_was_given_can_be_given_back() -> None:
    world = World()
    _, (leader,) = await world.stable(1)
    pending = (await world.join()).member_id
    waiting = world.join(leader)
    assert await world.leave((pending, None)) == [ErrorCode.NONE]
    assert (await waiting).error_code == ErrorCode.NONE


@run
async def test_a_full_group_turns_new_members_away_and_keeps_its_own() -> None:
    world = World(group_max_size=2)
    _, (leader, follower) = await world.stable(2)
    refused = await world.join()
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    waiting, _ = world.join(leader), world.join(follower)
    assert (await waiting).error_code == ErrorCode.NONE


@run
async def test_metadata_of_more_than_a_mebibyte_is_refused() -> None:
    refused = await World().join(protocols=[("range", bytes(1 << 20)), ("sticky", b"x")])
    assert refused.error_code == ErrorCode.INVALID_REQUEST


@run
async def test_closing_tells_those_who_wait_and_stops_every_timer() -> None:
    world = World()
    _, (leader, _) = await world.stable(2)
    waiting = world.join(leader)
    world.groups.close()
    assert (await waiting).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.clock.pending() == 0
    assert (await world.join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@run
async def test_a_group_whose_members_would_bring_too_much_metadata_takes_no_more() -> None:
    world = World(group_initial_rebalance_delay_ms=1000)
    large = [("range", subscription("orders") + bytes((1 << 20) - 200))]
    waiting = [world.join(protocols=large, version=3) for _ in range(4)]
    refused = await world.join(protocols=large, version=3)
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not any(each.done() for each in waiting)


@run
async def test_assignments_that_are_too_large_for_one_row_are_refused() -> None:
    world = World()
    joined = await world.join(version=3)
    answer = await world.sync(joined.member_id, joined.generation_id, {joined.member_id: bytes((4 << 20) + 1)})
    assert answer.error_code == ErrorCode.INVALID_REQUEST
