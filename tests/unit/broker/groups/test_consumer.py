"""The consumer protocol (KIP-848), seen from members."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.groups import matching
from headrace.broker.groups.assigning import AssignmentInputs
from headrace.broker.groups.consumer import ConsumerGroup, Target
from headrace.broker.slices import UNITS_PER_TURN
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatResponse
from headrace.wire.kafka.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.wire.kafka.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest
from tests.unit.broker.fakes import FakeTopics
from tests.unit.broker.groups.world import World, run

Owned = dict[bytes, list[int]]


class Consumer:
    """A member that follows the protocol: it takes what it is given and gives up what it no longer is."""

    def __init__(self, world: World, member_id: str, **fields: Any) -> None:
        self.world = world
        self.member_id = member_id
        self.fields = {"topics": ["orders"], **fields}
        self.epoch = 0
        self.owned: Owned = {}
        self.said: Owned | None = None

    async def beat(self, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat: everything when joining, afterwards only what changed."""
        if self.epoch == 0:
            fields = {**self.fields, **fields}
            self.owned = {}
        owned = self.owned if self.owned != self.said else None
        answer = await self.world.consumer_beat(self.member_id, self.epoch, owned=owned, **fields)
        if answer.error_code == ErrorCode.NONE:
            self.epoch = answer.member_epoch
            self.said = dict(self.owned)
            if answer.assignment is not None:
                self.owned = {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}
        return answer

    def count(self) -> int:
        return sum(len(partitions) for partitions in self.owned.values())


async def settle_all(*consumers: Consumer) -> None:
    """Heartbeats until nobody has anything to do."""
    for _ in range(20):
        before = [(each.epoch, dict(each.owned)) for each in consumers]
        for each in consumers:
            assert (await each.beat()).error_code == ErrorCode.NONE
        if before == [(each.epoch, dict(each.owned)) for each in consumers]:
            return
    raise AssertionError("the group does not come to rest")


def group_of(world: World) -> ConsumerGroup:
    group = world.registry["g"]
    assert isinstance(group, ConsumerGroup)
    return group


async def state_of(world: World) -> str:
    answer = await world.call("consumer_group_describe", ConsumerGroupDescribeRequest(group_ids=["g"]), 1)
    return str(answer.groups[0].group_state)


@run
async def test_the_first_member_gets_everything_it_subscribes_to_at_once() -> None:
    world = World()
    one = Consumer(world, "one")
    answer = await one.beat()
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("one", 2, 5000)
    assert list(one.owned.values()) == [[0, 1, 2, 3]]


@run
async def test_version_zero_lets_the_broker_choose_the_member_id() -> None:
    world = World()
    answer = await world.consumer_beat("", 0, topics=["orders"], version=0)
    assert (answer.error_code, answer.member_id) == (ErrorCode.NONE, "id1")


@run
async def test_a_partition_goes_to_its_new_owner_only_after_the_old_one_said_it_gave_it_up() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await one.beat()
    await two.beat()
    assert (two.epoch, two.count()) == (3, 0), "all is still with the first"
    asked = await one.beat()
    assert one.epoch == 2, "its epoch moves when it has given up its part"
    assert asked.assignment is not None
    assert one.count() == 2
    await two.beat()
    assert two.count() == 0, "the first has not confirmed yet"
    await one.beat()
    assert one.epoch == 3
    await two.beat()
    assert two.count() == 2
    assert await state_of(world) == "Stable"


@run
async def test_a_heartbeat_that_does_not_say_what_it_owns_confirms_nothing() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await one.beat()
    await two.beat()
    await one.beat()
    silent = await world.consumer_beat("one", one.epoch)
    assert silent.member_epoch == 2
    assert await state_of(world) == "Reconciling"


@run
async def test_a_member_that_is_still_taking_its_partitions_over_has_not_given_any_up() -> None:
    """After an error a client reports all it owns: nothing yet, if its application is still taking over partitions."""
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await one.beat()
    await two.beat()
    everything = {**one.fields, "rebalance_timeout_ms": 60_000}
    asked = await world.consumer_beat("one", one.epoch, owned={}, **everything)
    assert asked.member_epoch == 2, "its epoch moves when it has given up its part"
    await two.beat()
    assert (one.count(), two.count()) == (4, 0), "the first has taken everything over by now"
    assert asked.assignment is not None
    one.owned = {each.topic_id: each.partitions for each in asked.assignment.topic_partitions}
    await settle_all(one, two)
    assert (one.epoch, one.count(), two.count()) == (3, 2, 2)


@run
async def test_a_member_that_leaves_frees_its_partitions() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await settle_all(one, two)
    left = await world.consumer_beat("one", -1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -1)
    await settle_all(two)
    assert two.count() == 4


@run
async def test_a_member_that_is_silent_for_its_session_is_gone() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await settle_all(one, two)
    await world.clock.advance(40)
    await two.beat()
    await world.clock.advance(6)
    await settle_all(two)
    assert two.count() == 4
    assert (await one.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_a_member_that_holds_on_to_partitions_beyond_its_rebalance_timeout_is_fenced() -> None:
    world = World()
    one, two = Consumer(world, "one", rebalance_timeout_ms=20_000), Consumer(world, "two")
    await one.beat()
    everything = dict(one.owned)
    await two.beat()
    for _ in range(3):
        answer = await world.consumer_beat("one", 2, owned=everything)
        assert answer.error_code == ErrorCode.NONE
        await world.clock.advance(9)
        await two.beat()
    refused = await world.consumer_beat("one", 2, owned=everything)
    assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    await settle_all(two)
    assert two.count() == 4


@run
async def test_new_partitions_and_new_topics_are_picked_up_with_the_next_heartbeat() -> None:
    world = World()
    one = Consumer(world, "one", topics=["orders", "later"])
    await one.beat()
    world.topics.grow("orders", 6)
    await settle_all(one)
    assert one.count() == 6
    world.topics.create("later", 2)
    await settle_all(one)
    assert one.count() == 8
    world.topics.delete("orders")
    await settle_all(one)
    assert one.count() == 2


@run
async def test_topics_that_nobody_subscribes_to_move_no_epoch() -> None:
    world = World()
    one = Consumer(world, "one")
    await one.beat()
    world.topics.create("unrelated", 5)
    await settle_all(one)
    assert one.epoch == 2


@run
async def test_partitions_added_while_the_broker_was_down_are_picked_up() -> None:
    world = World()
    one = Consumer(world, "one")
    await one.beat()
    world.topics.forget_listeners()
    world.topics.grow("orders", 5)
    world.crash()
    await settle_all(one)
    assert one.count() == 5


@run
async def test_a_changed_subscription_is_followed() -> None:
    world = World()
    one = Consumer(world, "one")
    await one.beat()
    await one.beat(topics=["payments"])
    await settle_all(one)
    payments = world.topics.get("payments")
    assert payments is not None
    assert one.owned == {payments.topic_id: [0, 1, 2]}


@run
async def test_a_pattern_subscribes_to_the_topics_it_matches_whole_and_to_those_to_come() -> None:
    topics = FakeTopics(shop_a=1, shop_b=2, my_shop_a=4)
    topics.create("shop_internal", 8).internal = True
    world = World(topics=topics)
    one = Consumer(world, "one", topics=None, subscribed_topic_regex="shop_.+")
    await one.beat()
    assert one.count() == 3
    topics.create("shop_c", 3)
    await settle_all(one)
    assert one.count() == 6
    world.crash()
    await settle_all(one)
    assert one.count() == 6
    await one.beat(subscribed_topic_regex="")
    await settle_all(one)
    assert one.count() == 0
    assert group_of(world).matches == {}


class Tried:
    """How many names were tried with patterns in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.in_turns = [0]
        compile_pattern = matching.compile_pattern

        def counted(pattern: str, field: str) -> Any:
            compiled = compile_pattern(pattern, field)

            def fullmatch(name: str) -> Any:
                self.in_turns[-1] += 1
                return compiled.fullmatch(name)

            return SimpleNamespace(fullmatch=fullmatch)

        monkeypatch.setattr(matching, "compile_pattern", counted)

    async def count(self) -> None:
        while True:
            self.in_turns.append(0)
            await asyncio.sleep(0)


@run
async def test_patterns_are_matched_in_slices_also_when_every_member_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """300 members whose patterns take RE2 5 µs a name, and 500 topics: the heartbeat after a topic was created took
    most of a second."""
    tried = Tried(monkeypatch)
    world = World(topics=FakeTopics(**{f"shop_{number}": 1 for number in range(200)}))
    members = [
        Consumer(world, f"m{number}", topics=None, subscribed_topic_regex=f"shop_[{number % 10}-9].*|m{number}")
        for number in range(20)
    ]
    counting = asyncio.create_task(tried.count())
    await settle_all(*members)
    assert sum(each.count() for each in members) == 200
    before = sum(tried.in_turns)
    world.topics.create("shop_9999", 1)
    tried.in_turns.append(0)
    await members[0].beat()
    assert sum(tried.in_turns) - before == 20 * 201
    await settle_all(*members)
    assert sum(tried.in_turns) - before == 20 * 201, "matched once for all"
    counting.cancel()
    assert sum(each.count() for each in members) == 201
    assert max(tried.in_turns) <= UNITS_PER_TURN


@run
async def test_what_many_members_subscribe_to_alike_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 300 members of 500 topics each, a member that joined held the loop for 54 ms."""
    names = [f"t{number}" for number in range(50)]
    world = World(topics=FakeTopics(**dict.fromkeys(names, 1)))
    members = [Consumer(world, f"m{number}", topics=list(names)) for number in range(20)]
    members += [Consumer(world, "pattern", topics=names[:2], subscribed_topic_regex="t4.")]
    await settle_all(*members)
    looked_up: list[str] = []
    get = world.topics.get

    def counted(name: str) -> Any:
        looked_up.append(name)
        return get(name)

    late = Consumer(world, "late", topics=list(names))
    monkeypatch.setattr(world.topics, "get", counted)
    await late.beat()
    # Once for each name of the request, for the digest, and for each of the two subscriptions.
    assert len(looked_up) <= 3 * len(names) + 12
    monkeypatch.undo()
    await settle_all(late, *members)
    assert sum(each.count() for each in [late, *members]) == 50
    assert late.count() >= 2


@run
async def test_topics_that_come_while_patterns_are_matched_are_seen_by_this_heartbeat_or_the_next() -> None:
    world = World(topics=FakeTopics(**{f"shop_{number}": 1 for number in range(1000)}))
    one = Consumer(world, "one", topics=None, subscribed_topic_regex="shop_.+")
    joining = asyncio.create_task(one.beat())
    for number in range(1000, 1010):
        await asyncio.sleep(0)
        world.topics.create(f"shop_{number}", 1)
    await joining
    assert one.count() >= 1000
    await settle_all(one)
    assert one.count() == 1010


@pytest.mark.parametrize("pattern", ["(", "a**", "(?=x)", r"\1", "x" * 2_001])
@run
async def test_a_pattern_that_re2_does_not_take_is_refused(pattern: str) -> None:
    world = World()
    answer = await world.consumer_beat("one", 0, subscribed_topic_regex=pattern)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.error_message
    assert world.registry == {}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"group": ""}, "GroupId"),
        ({"member": ""}, "MemberId"),
        ({"instance_id": ""}, "InstanceId"),
        ({"rack_id": ""}, "RackId"),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs"),
        ({"owned": {b"1" * 16: [0]}}, "TopicPartitions"),
        ({"topics": None}, "SubscribedTopicNames"),
        ({"epoch": -3}, "MemberEpoch"),
        ({"topics": ["x" * 1_050_000]}, "too long"),
        ({"epoch": -2}, "InstanceId"),
    ],
)
@run
async def test_a_heartbeat_that_no_member_may_send_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    asked = {"member": "one", "epoch": 0, "topics": ["orders"], **fields}
    answer = await World().consumer_beat(asked.pop("member"), asked.pop("epoch"), **asked)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert words in (answer.error_message or "")


@run
async def test_an_unknown_assignor_is_refused_with_the_known_ones() -> None:
    answer = await World().consumer_beat("one", 0, topics=["orders"], server_assignor="magic")
    assert answer.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in (answer.error_message or "")


@run
async def test_the_assignor_most_members_ask_for_is_used() -> None:
    world = World()
    one = Consumer(world, "one", topics=["orders", "payments"], server_assignor="range")
    two = Consumer(world, "two", topics=["orders", "payments"], server_assignor="range")
    await settle_all(one, two)
    assert sorted(one.owned.values()) == [[0, 1], [0, 1]]
    assert sorted(two.owned.values()) == [[2], [2, 3]]
    assert group_of(world).assignor == "range"


@run
async def test_unknown_groups_and_members_are_told_apart() -> None:
    world = World()
    assert (await world.consumer_beat("one", 5)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (await world.consumer_beat("one", -1)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await Consumer(world, "one").beat()
    assert (await world.consumer_beat("two", 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await world.consumer_beat("two", -1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@run
async def test_an_epoch_from_the_future_or_the_past_is_fenced() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await settle_all(one, two)
    for epoch in (one.epoch + 1, one.epoch - 1):
        assert (await world.consumer_beat("one", epoch)).error_code == ErrorCode.FENCED_MEMBER_EPOCH


@run
async def test_the_epoch_before_is_accepted_when_the_answer_may_have_been_lost() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await settle_all(one, two)
    again = await world.consumer_beat("one", 2, owned=one.owned)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, 3)
    too_much = {topic_id: [0, 1, 2, 3] for topic_id in one.owned}
    assert (await world.consumer_beat("one", 2, owned=too_much)).error_code == ErrorCode.FENCED_MEMBER_EPOCH


@run
async def test_a_fenced_member_rejoins_with_epoch_zero_and_gets_its_part_again() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await settle_all(one, two)
    one.epoch = 0
    answer = await one.beat()
    assert (answer.error_code, one.count()) == (ErrorCode.NONE, 2)
    await settle_all(one, two)
    assert (one.count(), two.count()) == (2, 2)


@run
async def test_a_full_request_brings_the_whole_assignment_again() -> None:
    world = World()
    one = Consumer(world, "one")
    await one.beat()
    plain = await world.consumer_beat("one", 2)
    full = await world.consumer_beat("one", 2, topics=["orders"], owned=one.owned, rebalance_timeout_ms=60_000)
    assert plain.assignment is None
    assert full.assignment is not None


@run
async def test_a_full_group_takes_no_new_member() -> None:
    world = World(group_consumer_max_size=1)
    one = Consumer(world, "one")
    await one.beat()
    assert (await Consumer(world, "two").beat()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await one.beat()).error_code == ErrorCode.NONE


@run
async def test_one_group_may_have_its_own_timeouts() -> None:
    world = World()
    world.state.put(
        "group_config", "g", {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "9000"}
    )
    one = Consumer(world, "one")
    assert (await one.beat()).heartbeat_interval_ms == 7000
    await world.clock.advance(9.1)
    assert (await one.beat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# ---- static members ----


@run
async def test_a_static_member_that_said_it_will_be_back_finds_its_partitions_kept() -> None:
    world = World()
    one, two = Consumer(world, "one", instance_id="i1"), Consumer(world, "two")
    await settle_all(one, two)
    left = await world.consumer_beat("one", -2, instance_id="i1")
    assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -2)
    await settle_all(two)
    assert two.count() == 2, "nobody took them"
    world.crash()
    back = Consumer(world, "one-again", instance_id="i1")
    await back.beat()
    assert (back.epoch, back.owned) == (two.epoch, one.owned)
    assert list(group_of(world).members) == ["two", "one-again"]


@run
async def test_a_static_member_that_does_not_come_back_in_its_session_is_gone() -> None:
    world = World()
    one, two = Consumer(world, "one", instance_id="i1"), Consumer(world, "two")
    await settle_all(one, two)
    await world.consumer_beat("one", -2, instance_id="i1")
    await world.clock.advance(40)
    await two.beat()
    await world.clock.advance(6)
    await settle_all(two)
    assert two.count() == 4


@run
async def test_an_instance_that_lives_cannot_be_taken_over() -> None:
    world = World()
    one = Consumer(world, "one", instance_id="i1")
    await one.beat()
    refused = await Consumer(world, "two", instance_id="i1").beat()
    assert refused.error_code == ErrorCode.UNRELEASED_INSTANCE_ID


@run
async def test_the_process_before_is_fenced_when_its_instance_was_taken_over() -> None:
    world = World()
    await Consumer(world, "one", instance_id="i1").beat()
    await world.consumer_beat("one", -2, instance_id="i1")
    await Consumer(world, "two", instance_id="i1").beat()
    for epoch in (1, -1, -2):
        answer = await world.consumer_beat("one", epoch, instance_id="i1")
        assert answer.error_code == ErrorCode.FENCED_INSTANCE_ID


@run
async def test_an_unknown_instance_is_an_unknown_member() -> None:
    world = World()
    await Consumer(world, "one").beat()
    for epoch in (1, -1, -2):
        answer = await world.consumer_beat("one", epoch, instance_id="i9")
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


# ---- offsets ----


@run
async def test_a_member_commits_with_its_epoch_and_version_nine() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await settle_all(one, two)
    mine = one.owned[next(iter(one.owned))][0]
    theirs = two.owned[next(iter(two.owned))][0]
    commit = {"member": "one", "generation": 3}
    assert await world.commit({("orders", mine): 1}, **commit) == [ErrorCode.NONE]
    assert await world.commit({("orders", mine): 1}, version=8, **commit) == [ErrorCode.UNSUPPORTED_VERSION]
    assert await world.commit({("orders", mine): 1}, member="one", generation=4) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert await world.commit({("orders", mine): 1}, member="nobody", generation=2) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await world.commit({("orders", mine): 1}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    older = {"member": "one", "generation": 2}
    assert await world.commit({("orders", mine): 2}, **older) == [ErrorCode.NONE], "it has had it all the time"
    assert await world.commit({("orders", theirs): 2}, **older) == [ErrorCode.STALE_MEMBER_EPOCH]


@run
async def test_fetching_with_a_member_checks_its_epoch() -> None:
    world = World()
    await Consumer(world, "one").beat()

    async def fetch(member: str | None, epoch: int) -> ErrorCode:
        asked = OffsetFetchRequestGroup(group_id="g", member_id=member, member_epoch=epoch, topics=None)
        return ErrorCode((await world.call("offset_fetch", OffsetFetchRequest(groups=[asked]), 9)).groups[0].error_code)

    assert await fetch(None, -1) == ErrorCode.NONE
    assert await fetch("one", 2) == ErrorCode.NONE
    assert await fetch("one", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert await fetch("two", 1) == ErrorCode.UNKNOWN_MEMBER_ID


# ---- the two protocols side by side ----


@run
async def test_an_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets() -> None:
    world = World(group_consumer_migration_policy="disabled")
    generation, (leader,) = await world.stable(1)
    await world.commit({("orders", 0): 7}, member=leader, generation=generation)
    one = Consumer(world, "one")
    assert (await one.beat()).error_code == ErrorCode.GROUP_ID_NOT_FOUND, "it still has a classic member"
    await world.leave((leader, None))
    assert (await one.beat()).member_epoch == 2
    world.crash()
    assert await world.fetched("orders", 0) == 7
    assert (await one.beat()).error_code == ErrorCode.NONE


@run
async def test_an_empty_consumer_group_becomes_a_classic_group_and_keeps_its_offsets() -> None:
    world = World()
    one = Consumer(world, "one")
    await one.beat()
    assert await world.commit({("orders", 0): 7}, member="one", generation=2) == [ErrorCode.NONE]
    await world.consumer_beat("one", -1)
    generation, (leader,) = await world.stable(1)
    assert generation == 1
    world.crash()
    assert await world.beat(leader, generation) == ErrorCode.NONE
    assert await world.fetched("orders", 0) == 7


@run
async def test_classic_requests_do_not_find_consumers() -> None:
    world = World()
    await Consumer(world, "one").beat()
    assert await world.beat("one", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await world.sync("one", 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    described = await world.call("describe_groups", DescribeGroupsRequest(groups=["g"]), 6)
    assert described.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


@run
async def test_an_administrator_removes_consumers_with_the_classic_request() -> None:
    world = World()
    one, two = Consumer(world, "one", instance_id="i1"), Consumer(world, "two")
    await settle_all(one, two)
    assert await world.leave(("", "i1"), ("other", "i1"), ("nobody", None), ("two", None)) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert await state_of(world) == "Empty"


@run
async def test_a_consumer_group_is_deleted_when_it_is_empty_and_leaves_nothing() -> None:
    world = World()
    one = Consumer(world, "one")
    await one.beat()
    assert await world.commit({("orders", 0): 7}, member="one", generation=2) == [ErrorCode.NONE]
    busy = await world.call("delete_groups", DeleteGroupsRequest(groups_names=["g"]), 2)
    assert busy.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    await world.consumer_beat("one", -1)
    gone = await world.call("delete_groups", DeleteGroupsRequest(groups_names=["g"]), 2)
    assert gone.results[0].error_code == ErrorCode.NONE
    assert world.state.rows() == {}


@run
async def test_a_full_disk_changes_nothing_and_is_told_as_a_reason_to_try_again() -> None:
    world = World()
    one, two = Consumer(world, "one"), Consumer(world, "two")
    await one.beat()
    world.state.full = True
    assert (await two.beat()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(group_of(world).members) == ["one"]
    assert (await one.beat()).error_code == ErrorCode.NONE, "nothing to write"
    await world.clock.advance(50)
    assert list(group_of(world).members) == ["one"], "its end cannot be written down yet"
    world.state.full = False
    await world.clock.advance(1.1)
    assert list(group_of(world).members) == []


@run
async def test_describe_shows_members_with_what_they_have_and_should_have() -> None:
    world = World()
    one, two = Consumer(world, "one", rack_id="r1"), Consumer(world, "two", instance_id="i2")
    await one.beat()
    await two.beat()
    answer = await world.call("consumer_group_describe", ConsumerGroupDescribeRequest(group_ids=["g", "no"]), 1)
    group, missing = answer.groups
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Reconciling", 3, 3)
    assert group.assignor_name == "uniform"
    first, second = group.members
    assert (first.member_id, first.rack_id, first.member_epoch, first.member_type) == ("one", "r1", 2, 1)
    assert first.subscribed_topic_names == ["orders"]
    assert first.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert first.assignment.topic_partitions[0].topic_name == "orders"
    assert len(first.target_assignment.topic_partitions[0].partitions) == 2
    assert (second.instance_id, second.client_host) == ("i2", "/10.0.0.1")
    assert second.assignment.topic_partitions == []
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@run
async def test_a_large_assignment_is_computed_elsewhere_and_again_when_the_group_has_changed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    compute = AssignmentInputs.compute

    def noted(inputs: AssignmentInputs) -> dict[str, Target]:
        threads.append(threading.current_thread().name)
        return compute(inputs)

    monkeypatch.setattr(AssignmentInputs, "compute", noted)
    world = World(topics=FakeTopics(wide=1500))
    beats = [world.consumer_beat(name, 0, topics=["wide"]) for name in ("one", "two")]
    answers = await asyncio.gather(*beats)
    assert [each.error_code for each in answers] == [ErrorCode.NONE] * 2
    assert len(threads) >= 2
    assert all(name.startswith("headrace-work") for name in threads)
    group = world.registry["g"]
    assert isinstance(group, ConsumerGroup)
    assert sorted(sum(map(len, target.values())) for target in group.targets.values()) == [750, 750]
