"""Looking at groups."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.consumer_groups import ConsumerGroupDescribeRequest
from headrace.wire.kafka.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from tests.unit.broker.groups.world import World, run, subscription


async def three_groups() -> World:
    world = World()
    await world.stable(1, group="classic")
    await world.consumer_beat("one", 0, group="modern", topics=["orders"])
    await world.commit({("orders", 0): 1}, group="simple")
    return world


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["classic", "modern", "simple"]),
        (["stable"], [], ["classic", "modern"]),
        (["EMPTY"], [], ["simple"]),
        (["Dead", "Nonsense"], [], []),
        ([], ["consumer"], ["modern"]),
        (["Stable"], ["Classic"], ["classic"]),
    ],
)
@run
async def test_groups_are_listed_by_state_and_type(states: list[str], types: list[str], found: list[str]) -> None:
    world = await three_groups()
    answer = await world.call("list_groups", ListGroupsRequest(states_filter=states, types_filter=types), 5)
    assert sorted(each.group_id for each in answer.groups) == found


@run
async def test_the_list_names_type_state_and_protocol() -> None:
    world = await three_groups()
    answer = await world.call("list_groups", ListGroupsRequest(), 5)
    assert {(each.group_id, each.group_type, each.group_state, each.protocol_type) for each in answer.groups} == {
        ("classic", "classic", "Stable", "consumer"),
        ("modern", "consumer", "Stable", "consumer"),
        ("simple", "classic", "Empty", ""),
    }


@run
async def test_a_stable_classic_group_is_described_with_metadata_and_assignments() -> None:
    world = World()
    _, (leader,) = await world.stable(1)
    answer = await world.call(
        "describe_groups", DescribeGroupsRequest(groups=["g"], include_authorized_operations=True), 6
    )
    group = answer.groups[0]
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert group.authorized_operations == 3400
    member = group.members[0]
    assert (member.member_id, member.client_id, member.client_host) == (leader, "test", "/10.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("orders"), b"a0")


@run
async def test_a_group_that_rebalances_shows_no_metadata() -> None:
    world = World()
    _, (leader, _) = await world.stable(2)
    world.join(leader)
    group = (await world.call("describe_groups", DescribeGroupsRequest(groups=["g"]), 5)).groups[0]
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert [member.member_metadata for member in group.members] == [b"", b""]


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
@run
async def test_an_unknown_group_is_dead_and_from_version_six_on_not_found(version: int, code: ErrorCode) -> None:
    answer = await World().call("describe_groups", DescribeGroupsRequest(groups=["no"]), version)
    assert (answer.groups[0].group_state, answer.groups[0].error_code) == ("Dead", code)


@run
async def test_describing_consumers_refuses_an_empty_id_and_a_classic_group() -> None:
    world = await three_groups()
    body = ConsumerGroupDescribeRequest(group_ids=["", "classic", "modern"], include_authorized_operations=True)
    empty, classic, modern = (await world.call("consumer_group_describe", body, 1)).groups
    assert empty.error_code == ErrorCode.INVALID_GROUP_ID
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert modern.authorized_operations == 3400
