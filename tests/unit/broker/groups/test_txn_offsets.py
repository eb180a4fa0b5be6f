"""Offsets that wait for their transaction."""

from __future__ import annotations

import pytest

from headrace.broker.request import Request
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from headrace.wire.kafka.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.broker.fakes import FakeTopics, settle
from tests.unit.broker.groups.world import World, run


def asks(
    world: World, offset: int, *, partition: int = 0, topic: str = "orders", producer: int = 7, **fields: object
) -> TxnOffsetCommitRequest:
    known = world.topics.get(topic)
    return TxnOffsetCommitRequest(
        transactional_id="txn",
        group_id="g",
        producer_id=producer,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                topic_id=known.topic_id if known else b"?" * 16,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata="m"
                    )
                ],
            )
        ],
        **fields,  # type: ignore[arg-type]
    )


async def txn_commit(world: World, offset: int, *, version: int = 5, **fields: object) -> ErrorCode:
    answer = await world.call("txn_offset_commit", asks(world, offset, **fields), version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def end(world: World, commit: bool, producer: int = 7) -> None:
    """What the transaction coordinator does."""
    changes = world.offsets.complete_transaction(producer, commit)
    world.state.put_many([("transactions", "txn", {"state": "decided"}), *changes])
    world.offsets.apply_transaction(producer, commit)


@pytest.mark.parametrize("version", range(7))
@run
async def test_a_pending_offset_is_not_seen_until_its_transaction_commits(version: int) -> None:
    world = World()
    await world.commit({("orders", 0): 1})
    assert await txn_commit(world, 5, version=version) == ErrorCode.NONE
    assert await world.fetched("orders", 0) == 1
    end(world, commit=True)
    assert await world.fetched("orders", 0) == 5


@run
async def test_an_aborted_transaction_leaves_no_trace() -> None:
    world = World()
    await txn_commit(world, 5)
    end(world, commit=False)
    assert await world.fetched("orders", 0) == -1
    assert set(world.state.rows()) == {"transactions"}


@run
async def test_whoever_wants_stable_offsets_is_told_to_wait_for_the_transaction() -> None:
    world = World()
    await world.commit({("orders", 0): 1, ("orders", 1): 2})
    await txn_commit(world, 5)
    waits = await world.fetch("orders", 0, stable=True)
    assert (waits.error_code, waits.committed_offset) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert (await world.fetch("orders", 1, stable=True)).committed_offset == 2
    assert (await world.fetch("orders", 0, stable=False)).committed_offset == 1
    end(world, commit=True)
    assert (await world.fetch("orders", 0, stable=True)).committed_offset == 5


@pytest.mark.parametrize("commit", [True, False])
@run
async def test_pending_offsets_survive_a_crash_and_can_still_be_ended(commit: bool) -> None:
    world = World()
    await txn_commit(world, 5)
    world.crash()
    assert (await world.fetch("orders", 0, stable=True)).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    end(world, commit)
    world.crash()
    assert await world.fetched("orders", 0) == (5 if commit else -1)


@run
async def test_an_offset_committed_directly_after_the_pending_one_is_the_newer_and_stays() -> None:
    world = World()
    await txn_commit(world, 5)
    await world.commit({("orders", 0): 9})
    world.crash()
    end(world, commit=True)
    assert await world.fetched("orders", 0) == 9


@run
async def test_an_offset_committed_before_the_pending_one_is_replaced() -> None:
    world = World()
    await world.commit({("orders", 0): 9})
    world.crash()
    await txn_commit(world, 5)
    end(world, commit=True)
    assert await world.fetched("orders", 0) == 5


@run
async def test_a_second_commit_in_the_same_transaction_replaces_the_first() -> None:
    world = World()
    await txn_commit(world, 5)
    await txn_commit(world, 6)
    end(world, commit=True)
    assert await world.fetched("orders", 0) == 6


@run
async def test_two_transactions_may_wait_for_the_same_partition() -> None:
    world = World()
    await txn_commit(world, 5, producer=7)
    await txn_commit(world, 6, producer=8)
    end(world, True, producer=8)
    assert (await world.fetch("orders", 0, stable=True)).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    end(world, True, producer=7)
    assert (await world.fetch("orders", 0, stable=True)).committed_offset == 6


@run
async def test_a_pending_commit_is_acknowledged_when_it_is_durable() -> None:
    world = World(auto_flush=False)
    waiting = world.call("txn_offset_commit", asks(world, 5), 5)
    await settle()
    assert not waiting.done()
    world.state.flush()
    assert (await waiting).topics[0].partitions[0].error_code == ErrorCode.NONE


@run
async def test_the_producer_is_checked_before_anything_is_written() -> None:
    world = World()
    seen = []

    def refuse(request: Request[TxnOffsetCommitRequest]) -> ErrorCode:
        seen.append((request.body.transactional_id, request.body.producer_id, request.version))
        return ErrorCode.INVALID_PRODUCER_EPOCH

    world.check_producer = refuse
    assert await txn_commit(world, 5, version=4) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert seen == [("txn", 7, 4)]
    assert world.state.rows() == {}


@run
async def test_a_member_is_held_to_its_generation() -> None:
    world = World()
    generation, (leader,) = await world.stable(1)
    member = {"member_id": leader, "generation_id_or_member_epoch": generation}
    assert await txn_commit(world, 1, **member) == ErrorCode.NONE
    assert await txn_commit(world, 1, **{**member, "generation_id_or_member_epoch": 9}) == ErrorCode.ILLEGAL_GENERATION
    assert await txn_commit(world, 1, **{**member, "member_id": "x"}) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await txn_commit(world, 1) == ErrorCode.NONE, "a producer that names no member is not held to one"


@run
async def test_a_generation_of_a_group_that_is_not_there_is_illegal() -> None:
    refused = await txn_commit(World(), 1, member_id="m", generation_id_or_member_epoch=1)
    assert refused == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.STALE_MEMBER_EPOCH)])
@run
async def test_a_consumer_is_held_to_its_epoch(version: int, code: ErrorCode) -> None:
    world = World()
    await world.consumer_beat("one", 0, topics=["orders"])
    member = {"member_id": "one", "generation_id_or_member_epoch": 2}
    assert await txn_commit(world, 1, version=version, **member) == ErrorCode.NONE
    member["generation_id_or_member_epoch"] = 3
    assert await txn_commit(world, 1, version=version, **member) == code


@run
async def test_unknown_topics_partitions_and_long_metadata_are_refused() -> None:
    world = World(offset_metadata_max_bytes=0)
    assert await txn_commit(world, 1) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert await txn_commit(world, 1, topic="nothing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await txn_commit(world, 1, topic="nothing", version=6) == ErrorCode.UNKNOWN_TOPIC_ID
    assert await txn_commit(world, 1, partition=4) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@run
async def test_a_topic_deleted_meanwhile_gets_no_offset_when_the_transaction_commits() -> None:
    world = World()
    await txn_commit(world, 5)
    world.topics.delete("orders")
    end(world, commit=True)
    assert set(world.state.rows()) == {"transactions"}


@pytest.mark.parametrize("crash", ["none", "before the new topic", "after the new topic"])
@run
async def test_a_new_topic_never_gets_a_pending_offset_of_a_deleted_one_of_its_name(crash: str) -> None:
    world = World(topics=FakeTopics(orders=3, other=1))
    await txn_commit(world, 5)
    await txn_commit(world, 6, topic="other")
    world.topics.delete("orders")
    if crash == "before the new topic":
        world.crash()
    world.topics.create("orders", 3)
    if crash == "after the new topic":
        world.crash()
    assert (await world.fetch("orders", 0, stable=True)).error_code == ErrorCode.NONE
    await txn_commit(world, 7, partition=1)
    end(world, commit=True)
    world.crash()
    assert [await world.fetched("orders", each) for each in (0, 1)] == [-1, 7]
    assert await world.fetched("other", 0) == 6
    assert not world.state.rows().get("txn_offsets")


@run
async def test_a_pending_offset_keeps_its_group_and_the_offset_it_replaces_from_expiring() -> None:
    world = World()
    await world.commit({("orders", 0): 1})
    await txn_commit(world, 5)
    await world.clock.advance(8 * 86_400)
    assert await world.fetched("orders", 0) == 1


@run
async def test_a_group_that_has_only_pending_offsets_exists_and_is_deleted_with_them() -> None:
    world = World()
    await txn_commit(world, 5)
    world.crash()
    listed = await world.call("list_groups", ListGroupsRequest(), 5)
    assert [(each.group_id, each.group_state) for each in listed.groups] == [("g", "Empty")]
    await world.call("delete_groups", DeleteGroupsRequest(groups_names=["g"]), 2)
    assert world.state.rows() == {}
    end(world, commit=True)
    assert await world.fetched("orders", 0) == -1


@run
async def test_a_transaction_commits_so_many_offsets_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.groups.offsets.OFFSETS_PER_TRANSACTION_MAX", 1)
    world = World()
    assert await txn_commit(world, 5) == ErrorCode.NONE
    assert await txn_commit(world, 6) == ErrorCode.NONE
    assert await txn_commit(world, 5, partition=1) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert await txn_commit(world, 5, producer=8, partition=1) == ErrorCode.NONE
