"""Committed offsets: who may commit, what is kept, what goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.broker.groups.offsets import key_of, parse_key
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.wire.kafka.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from tests.unit.broker.fakes import FakeTopics, settle
from tests.unit.broker.groups.world import World, run

DAY_S = 86_400


@pytest.mark.parametrize(
    ("group", "topic", "partition"),
    [("g", "t", 0), ("1:g", "t", 12), ("g:2", "a.b-c_d", 3), ("", "t", 1), ("ü:", "t", 9)],
)
def test_the_key_of_an_offset_names_its_group_topic_and_partition_whatever_they_are_called(
    group: str, topic: str, partition: int
) -> None:
    assert parse_key(key_of(group, topic, partition)) == (group, topic, partition)


@run
async def test_an_offset_comes_back_with_its_epoch_and_metadata_also_after_a_crash() -> None:
    world = World()
    assert await world.commit({("orders", 1): 42}, metadata="héllo") == [ErrorCode.NONE]
    for _ in range(2):
        found = await world.fetch("orders", 1)
        assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (42, 3, "héllo")
        world.crash()


@pytest.mark.parametrize("version", range(2, 11))
@run
async def test_every_version_commits(version: int) -> None:
    world = World()
    assert await world.commit({("orders", 0): 7}, version=version) == [ErrorCode.NONE]
    found = await world.fetch("orders", 0)
    assert found.committed_offset == 7
    assert found.committed_leader_epoch == (3 if version >= 6 else -1)
    assert found.metadata == ""


@run
async def test_a_commit_is_acknowledged_when_it_is_durable() -> None:
    world = World(auto_flush=False)
    committing = world.call("offset_commit", _commit_of(world, 1), 8)
    await settle()
    assert not committing.done()
    world.state.flush()
    assert (await committing).topics[0].partitions[0].error_code == ErrorCode.NONE


@run
async def test_a_commit_of_a_thousand_partitions_is_one_batch() -> None:
    world = World(topics=FakeTopics(wide=1000))
    before = len(world.state.batches)
    errors = await world.commit({("wide", index): index for index in range(1000)})
    assert set(errors) == {ErrorCode.NONE}
    assert len(world.state.batches) == before + 1
    assert await world.fetched("wide", 999) == 999


@run
async def test_what_does_not_exist_cannot_be_committed() -> None:
    world = World()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked = {("orders", 4): 1, ("orders", -1): 1, ("nothing", 0): 1, ("orders", 0): 1}
    assert await world.commit(asked) == [unknown, unknown, unknown, ErrorCode.NONE]
    assert await world.commit({("nothing", 0): 1}, version=10) == [ErrorCode.UNKNOWN_TOPIC_ID]


@run
async def test_metadata_may_be_as_long_as_the_setting_and_no_longer() -> None:
    world = World(offset_metadata_max_bytes=5)
    assert await world.commit({("orders", 0): 1}, metadata="12345") == [ErrorCode.NONE]
    assert await world.commit({("orders", 0): 2}, metadata="123456") == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert await world.fetched("orders", 0) == 1


@run
async def test_a_member_commits_in_its_generation_and_a_stranger_does_not() -> None:
    world = World()
    generation, (leader, _) = await world.stable(2)
    place = {("orders", 0): 5}
    assert await world.commit(place, member=leader, generation=generation) == [ErrorCode.NONE]
    assert await world.commit(place, member=leader, generation=generation + 1) == [ErrorCode.ILLEGAL_GENERATION]
    assert await world.commit(place, member="x", generation=generation) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert await world.commit(place) == [ErrorCode.UNKNOWN_MEMBER_ID], "a tool, while there are members"


@run
async def test_a_member_may_commit_while_others_still_join_but_not_between_the_barriers() -> None:
    world = World()
    generation, (leader, follower) = await world.stable(2)
    waiting = world.join(leader)
    place = {("orders", 0): 5}
    assert await world.commit(place, member=follower, generation=generation) == [ErrorCode.NONE]
    world.join(follower)
    await waiting
    refused = await world.commit(place, member=leader, generation=generation + 1)
    assert refused == [ErrorCode.REBALANCE_IN_PROGRESS]


@run
async def test_a_commit_is_a_sign_of_life() -> None:
    world = World()
    generation, (leader,) = await world.stable(1)
    for offset in range(4):
        await world.clock.advance(8)
        assert await world.commit({("orders", 0): offset}, member=leader, generation=generation) == [ErrorCode.NONE]


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
@run
async def test_a_member_of_a_group_that_is_gone_is_told_so(version: int, code: ErrorCode) -> None:
    assert await World().commit({("orders", 0): 1}, member="m", generation=3, version=version) == [code]


@run
async def test_tools_commit_into_an_empty_group() -> None:
    world = World()
    _, (leader,) = await world.stable(1)
    await world.leave((leader, None))
    assert await world.commit({("orders", 0): 9}) == [ErrorCode.NONE]


@run
async def test_a_full_disk_refuses_a_commit_and_the_offset_before_stays() -> None:
    world = World()
    await world.commit({("orders", 0): 1})
    world.state.full = True
    assert await world.commit({("orders", 0): 2}) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert await world.fetched("orders", 0) == 1


@run
async def test_a_group_id_that_is_far_too_long_is_refused() -> None:
    world = World()
    assert await world.commit({("orders", 0): 2}, group="g" * 10_001) == [ErrorCode.INVALID_GROUP_ID]
    assert (await world.join(group="g" * 10_001)).error_code == ErrorCode.INVALID_GROUP_ID
    beat = await world.consumer_beat("one", 0, topics=["orders"], group="g" * 10_001)
    assert beat.error_code == ErrorCode.INVALID_GROUP_ID


@run
async def test_there_is_a_most_of_groups_and_those_that_are_there_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.groups.registry.GROUPS_MAX", 1)
    world = World()
    refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await world.commit({("orders", 0): 1}) == [ErrorCode.NONE]
    assert await world.commit({("orders", 0): 2}) == [ErrorCode.NONE]
    assert await world.commit({("orders", 0): 1}, group="h") == [refused]
    assert (await world.join(group="h")).error_code == refused
    assert (await world.consumer_beat("one", 0, topics=["orders"], group="h")).error_code == refused


@run
async def test_an_offset_nobody_committed_is_minus_one_and_no_error() -> None:
    world = World()
    found = await world.fetch("orders", 0, group="unheard-of")
    assert (found.committed_offset, found.committed_leader_epoch, found.metadata, found.error_code) == (-1, -1, "", 0)


@pytest.mark.parametrize("version", [2, 7])
@run
async def test_no_topics_means_all_of_them(version: int) -> None:
    world = World()
    await world.commit({("orders", 2): 5, ("payments", 0): 6})
    answer = await world.call("offset_fetch", OffsetFetchRequest(group_id="g", topics=None), version)
    found = {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }
    assert found == {("orders", 2): 5, ("payments", 0): 6}


@run
async def test_several_groups_are_fetched_at_once() -> None:
    world = World()
    await world.commit({("orders", 0): 1}, group="a")
    await world.commit({("orders", 0): 2}, group="b")
    asked = [
        OffsetFetchRequestGroup(group_id="a", topics=[OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]),
        OffsetFetchRequestGroup(group_id="b", topics=None),
    ]
    answer = await world.call("offset_fetch", OffsetFetchRequest(groups=asked), 8)
    assert [(each.group_id, each.topics[0].partitions[0].committed_offset) for each in answer.groups] == [
        ("a", 1),
        ("b", 2),
    ]


@run
async def test_version_ten_names_topics_by_id() -> None:
    world = World()
    await world.commit({("orders", 0): 1})
    orders = world.topics.get("orders")
    assert orders is not None
    topics = [
        OffsetFetchRequestTopics(topic_id=orders.topic_id, partition_indexes=[0]),
        OffsetFetchRequestTopics(topic_id=b"?" * 16, partition_indexes=[0]),
    ]
    asked = [OffsetFetchRequestGroup(group_id="g", topics=topics), OffsetFetchRequestGroup(group_id="g", topics=None)]
    answer = await world.call("offset_fetch", OffsetFetchRequest(groups=asked), 10)
    known, unknown = answer.groups[0].topics
    assert (known.topic_id, known.partitions[0].committed_offset) == (orders.topic_id, 1)
    assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert answer.groups[1].topics[0].topic_id == orders.topic_id


@run
async def test_deleting_a_topic_removes_its_offsets_and_no_others() -> None:
    world = World()
    await world.commit({("orders", 0): 1, ("payments", 0): 2})
    world.topics.delete("orders")
    world.topics.create("orders", 1)
    assert await world.fetched("orders", 0) == -1
    assert await world.fetched("payments", 0) == 2
    world.crash()
    assert await world.fetched("orders", 0) == -1


@run
async def test_offsets_of_a_topic_that_was_deleted_just_before_a_crash_go_at_the_start() -> None:
    world = World()
    await world.commit({("orders", 0): 1})
    world.topics.forget_listeners()
    world.topics.delete("orders")
    world.crash()
    assert world.state.rows() == {}


@run
async def test_offset_delete_spares_topics_that_members_read() -> None:
    world = World()
    generation, (leader,) = await world.stable(1)
    for topic in ("orders", "payments"):
        await world.commit({(topic, 0): 1}, member=leader, generation=generation)
    assert await _delete(world, "orders", "payments", "nothing") == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await world.fetched("orders", 0) == 1
    assert await world.fetched("payments", 0) == -1


@run
async def test_offset_delete_of_an_unknown_group_says_so() -> None:
    answer = await World().call("offset_delete", OffsetDeleteRequest(group_id="g"), 0)
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@run
async def test_offset_delete_refuses_a_living_group_that_is_not_of_consumers() -> None:
    world = World()
    await world.stable(1, protocol_type="connect")
    answer = await world.call("offset_delete", OffsetDeleteRequest(group_id="g"), 0)
    assert answer.error_code == ErrorCode.NON_EMPTY_GROUP


@run
async def test_offsets_of_an_empty_group_expire_a_week_after_it_became_empty() -> None:
    world = World()
    generation, (leader,) = await world.stable(1, session_ms=1_800_000)
    await world.commit({("orders", 0): 1}, member=leader, generation=generation)
    for _ in range(8 * DAY_S // 1700):
        await world.clock.advance(1700)
        assert await world.beat(leader, generation) == ErrorCode.NONE
    await world.leave((leader, None))
    assert await world.fetched("orders", 0) == 1
    await world.clock.advance(6.9 * DAY_S)
    assert await world.fetched("orders", 0) == 1
    await world.clock.advance(0.2 * DAY_S)
    assert await world.fetched("orders", 0) == -1
    assert world.state.rows() == {}, "nothing is left of the group"


@run
async def test_offsets_that_expire_together_are_removed_a_thousand_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was away for a week finds everything expired at its first sweep."""
    world = World()
    world.topics.create("wide", 2500)
    rows_in_turn = [0]
    put_many = world.state.put_many

    def noted(changes: Sequence[Any]) -> int:
        rows_in_turn[-1] += len(changes)
        return put_many(changes)

    async def count_turns() -> None:
        while True:
            rows_in_turn.append(0)
            await asyncio.sleep(0)

    await world.commit({("wide", partition): 1 for partition in range(2500)}, group="large")
    for number in range(6):
        await world.commit({("wide", partition): 1 for partition in range(400)}, group=f"small-{number}")
    monkeypatch.setattr(world.state, "put_many", noted)
    counting = asyncio.create_task(count_turns())
    await world.clock.advance(8 * DAY_S)
    counting.cancel()
    assert world.state.rows() == {}
    assert sum(rows_in_turn) >= 2500 + 6 * 400
    assert max(rows_in_turn) < 1500


@run
async def test_offsets_of_a_consumer_that_assigns_itself_expire_a_week_after_each_commit() -> None:
    world = World()
    await world.commit({("orders", 0): 1, ("orders", 1): 1})
    await world.clock.advance(4 * DAY_S)
    await world.commit({("orders", 1): 2})
    await world.clock.advance(3.1 * DAY_S)
    assert [await world.fetched("orders", index) for index in (0, 1)] == [-1, 2]


@run
async def test_a_retention_that_an_old_client_asks_for_is_kept() -> None:
    world = World()
    await world.commit({("orders", 0): 1}, version=4, retention_time_ms=3_600_000)
    await world.clock.advance(3_500)
    assert await world.fetched("orders", 0) == 1
    await world.clock.advance(1_000)
    assert await world.fetched("orders", 0) == -1


@run
async def test_groups_are_deleted_with_everything_they_had() -> None:
    world = World()
    await world.commit({("orders", 0): 1}, group="simple")
    _, (leader,) = await world.stable(1, group="left")
    await world.leave((leader, None), group="left")
    await world.stable(1, group="busy")
    names = ["simple", "left", "busy", "unknown", ""]
    answer = await world.call("delete_groups", DeleteGroupsRequest(groups_names=names), 2)
    assert [each.error_code for each in answer.results] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert list(world.state.tables["groups"]) == ["busy"]
    assert world.state.tables["offsets"] == {}
    listed = await world.call("list_groups", ListGroupsRequest(), 5)
    assert [each.group_id for each in listed.groups] == ["busy"]


@run
async def test_an_empty_group_without_offsets_is_forgotten_by_the_sweep() -> None:
    world = World()
    _, (leader,) = await world.stable(1)
    await world.leave((leader, None))
    assert world.state.rows() != {}
    await world.clock.advance(601)
    assert world.state.rows() == {}
    listed = await world.call("list_groups", ListGroupsRequest(), 5)
    assert listed.groups == []


@run
async def test_a_topic_that_is_made_again_while_its_offsets_are_committed_gets_none_of_them() -> None:
    world = World()
    world.slices.units_per_turn = 1  # every request is interrupted
    committing = world.call("offset_commit", _commit_of(world, 7), 8)
    world.topics.delete("orders")
    world.topics.create("orders", 4)
    assert (await committing).topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await world.fetched("orders", 0) == -1


@run
async def test_a_member_that_is_gone_when_its_offsets_would_be_written_commits_nothing() -> None:
    world = World(topics=FakeTopics(orders=500))
    generation, (leader,) = await world.stable(1)
    world.slices.units_per_turn = 1
    partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=7) for index in range(500)]
    body = OffsetCommitRequest(
        group_id="g",
        member_id=leader,
        generation_id_or_member_epoch=generation,
        topics=[OffsetCommitRequestTopic(name="orders", partitions=partitions)],
    )
    committing = world.call("offset_commit", body, 8)
    await world.leave((leader, None))
    assert {each.error_code for each in (await committing).topics[0].partitions} == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert await world.fetched("orders", 0) == -1


def _commit_of(world: World, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="orders", partitions=[partition])])


async def _delete(world: World, *topics: str) -> list[ErrorCode]:
    body = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for topic in topics
        ],
    )
    answer = await world.call("offset_delete", body, 0)
    return [ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions]


@run
async def test_the_offsets_of_a_deleted_topic_are_forgotten_at_once_and_their_rows_removed_in_steps() -> None:
    world = World(topics=FakeTopics(wide=2500))
    await world.commit({("wide", index): index for index in range(2500)})
    world.topics.delete("wide")
    assert len(world.state.table("offsets")) == 1500
    world.topics.create("wide", 2500)
    assert await world.fetched("wide", 2499) == -1
    await world.commit({("wide", 2499): 7})
    for _ in range(3):
        await world.clock.advance(0.0)
    assert len(world.state.table("offsets")) == 1
    world.crash()
    assert await world.fetched("wide", 2499) == 7


@run
async def test_a_new_topic_never_gets_the_offsets_of_a_deleted_one_of_its_name() -> None:
    """The broker dies after the new topic was made and before all old rows would have been removed."""
    world = World(topics=FakeTopics(wide=2500))
    await world.commit({("wide", index): index for index in range(2500)})
    world.topics.delete("wide")
    world.topics.create("wide", 2500)
    world.crash()
    assert await world.fetched("wide", 2499) == -1
    assert len(world.state.table("offsets")) == 0
