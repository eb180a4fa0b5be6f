"""A crash at every step of a transaction's end, and what the next start makes of it.

Each test crashes with different parts of the disk kept: ``keep`` names what survives beyond what was flushed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from headrace.errors import ErrorCode
from tests.unit.broker.txn_fakes import FakePartition, FakeState, Producer, World, result


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def least(flushed: int, written: int) -> int:
    """Only what was flushed survives."""
    return flushed


def most(flushed: int, written: int) -> int:
    """Everything that was written survives, as with kill -9."""
    return written


def wrote(world: World, version: int) -> Producer:
    """A transaction with a record in two of three partitions and an offset of a group, all acknowledged."""
    producer = world.ready()
    if version < 12:
        world.add(producer, *world.partitions)
        world.flush()
    for index, value in ((0, "x"), (2, "y")):
        assert world.produce(producer, world.partitions[index], value, version=version) is ErrorCode.NONE
    world.groups.pend(producer.id, "g", 10)
    world.flush()
    return producer


def settle(world: World) -> None:
    """Let the restart finish its work."""
    world.advance(1000)
    world.flush()


def outcomes(world: World) -> list[tuple[list[str], list[str], list[str]]]:
    return [each.outcome() for each in world.partitions]


def not_flushed(world: World) -> list[str]:
    """The states that a crash would forget."""
    return [row["state"] for changes in world.state.journal[world.state.waiters.flushed :] for _, _, row in changes]


COMMITTED = [(["x"], [], []), ([], [], []), (["y"], [], [])]
ABORTED = [([], ["x"], []), ([], [], []), ([], ["y"], [])]
OPEN = [([], [], ["x"]), ([], [], []), ([], [], ["y"])]

CLIENTS = [(11, 4), (12, 5)]
"""(Produce, EndTxn) versions of clients that keep their epoch and of those that bump it."""


@pytest.mark.parametrize(("produce", "end"), CLIENTS)
def test_a_decision_that_was_not_flushed_never_was(world: World, produce: int, end: int) -> None:
    producer = wrote(world, produce)
    world.end(producer, commit=True, version=end)
    world = world.crash(least)
    settle(world)
    assert outcomes(world) == OPEN
    assert world.groups.committed("g") is None
    again = world.end(producer, commit=True, version=end)
    world.flush()
    assert result(again).error_code == 0
    assert outcomes(world) == COMMITTED
    assert world.groups.committed("g") == 10


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("produce", "end"), CLIENTS)
def test_a_flushed_decision_is_carried_out_by_the_next_start(
    world: World, produce: int, end: int, commit: bool
) -> None:
    producer = wrote(world, produce)
    world.end(producer, commit=commit, version=end)
    world.do(world.coordinator.close)  # nothing after the decision happens in this life
    world.flush_state()
    world = world.crash(least)
    assert world.state_of() == ("PrepareCommit" if commit else "PrepareAbort")
    settle(world)
    assert outcomes(world) == (COMMITTED if commit else ABORTED)
    assert world.groups.committed("g") == (10 if commit else None)
    retried = world.end(producer, commit=commit, version=end)
    assert result(retried).error_code == 0


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("produce", "end"), CLIENTS)
@pytest.mark.parametrize("survivors", list(itertools.product([least, most], repeat=3)))
def test_markers_that_survive_are_not_written_again_and_lost_ones_are(
    world: World, produce: int, end: int, commit: bool, survivors: tuple[Callable[[int, int], int], ...]
) -> None:
    producer = wrote(world, produce)
    world.end(producer, commit=commit, version=end)
    world.flush_state()
    choices = iter((least, *survivors))
    world = world.crash(lambda flushed, written: next(choices)(flushed, written))
    settle(world)
    assert outcomes(world) == (COMMITTED if commit else ABORTED)
    assert [len(each.markers()) for each in world.partitions if each.outcome() != ([], [], [])] == [1, 1]
    assert world.state_of() == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.parametrize(("produce", "end"), CLIENTS)
def test_a_crash_before_completion_is_flushed_writes_nothing_twice(world: World, produce: int, end: int) -> None:
    producer = wrote(world, produce)
    answer = world.end(producer, commit=True, version=end)
    world.flush_state()
    world.flush_partitions()
    assert result(answer).error_code == 0
    assert not_flushed(world) == ["CompleteCommit"]
    world = world.crash(least)
    settle(world)
    assert outcomes(world) == COMMITTED
    assert [len(each.markers()) for each in (world.partitions[0], world.partitions[2])] == [1, 1]


def test_the_next_transaction_behind_a_lost_completion_is_not_ended_by_the_first(world: World) -> None:
    producer = wrote(world, 12)
    answer = world.end(producer, commit=True, version=5)
    world.flush_state()
    world.flush_partitions()
    producer.moved(result(answer).producer_id, result(answer).producer_epoch)
    # The next transaction begins with a batch that is flushed, while Complete and the joining are not.
    assert world.produce(producer, world.partitions[0], "next", version=12) is ErrorCode.NONE
    world.flush_partitions()
    assert not_flushed(world) == ["CompleteCommit", "Ongoing"]
    world = world.crash(least)
    settle(world)
    assert world.partitions[0].outcome() == (["x"], [], ["next"])
    assert world.state_of() == "Ongoing", "the records themselves say that the next transaction has begun"
    again = world.end(producer, commit=True, version=5)
    world.flush()
    assert result(again).error_code == 0
    assert world.partitions[0].outcome() == (["x", "next"], [], [])


def test_an_acknowledged_batch_whose_joining_was_lost_still_belongs_to_its_transaction(world: World) -> None:
    producer = world.ready()
    world.produce(producer, world.partitions[0], "x", version=12)
    world.flush_partitions()
    world = world.crash(least)
    assert world.state_of() == "Ongoing"
    answer = world.end(producer, commit=True, version=5)
    world.flush()
    assert result(answer).error_code == 0
    assert world.partitions[0].outcome() == (["x"], [], [])


def test_a_batch_whose_joining_was_lost_is_aborted_when_its_producer_never_comes_back(world: World) -> None:
    producer = world.ready()
    world.produce(producer, world.partitions[0], "x", version=12)
    world.flush_partitions()
    world = world.crash(least)
    settle(world)
    world.advance(71_000)
    world.flush()
    assert world.partitions[0].outcome() == ([], ["x"], [])


def test_giving_a_batch_back_works_on_a_full_disk_too(world: World) -> None:
    producer = world.ready()
    world.produce(producer, world.partitions[0], "x", version=12)
    state = FakeState(world.state.journal[: world.state.waiters.flushed])
    state.full = True
    world.do(world.coordinator.close)
    world = World(state, world.partitions, world.clock, world.runner)
    assert world.state_of() == "Ongoing"
    state.full = False
    answer = world.end(producer, commit=True, version=5)
    world.flush()
    assert result(answer).error_code == 0
    assert world.partitions[0].outcome() == (["x"], [], [])


def test_records_that_no_transactional_id_stands_for_are_aborted_so_that_readers_can_go_on(world: World) -> None:
    stranger = Producer("gone", 4711, 3)
    stranger.append(world.partitions[1], "lost")
    world.flush()
    world = world.crash(most)
    settle(world)
    assert world.partitions[1].outcome() == ([], ["lost"], [])


def test_records_of_an_epoch_that_has_passed_are_aborted(world: World) -> None:
    old = world.ready()
    world.ready()
    old.append(world.partitions[1], "stale")
    world.flush()
    world = world.crash(most)
    settle(world)
    assert world.partitions[1].outcome() == ([], ["stale"], [])
    assert world.state_of() == "Empty"


def test_an_open_transaction_keeps_what_is_left_of_its_time_over_a_restart(world: World) -> None:
    wrote(world, 11)
    world.advance(40_000)
    world = world.crash(least)
    world.advance(10_000)
    assert world.state_of() == "Ongoing"
    world.advance(20_001)
    settle(world)
    assert outcomes(world) == ABORTED


def test_fencing_survives_a_crash_at_any_step(world: World) -> None:
    old = wrote(world, 11)
    world.init()
    world.flush_state()
    world = world.crash(least)
    settle(world)
    assert outcomes(world) == ABORTED
    assert world.produce(old, world.partitions[0], "zombie") is ErrorCode.INVALID_PRODUCER_EPOCH
    fresh = world.ready()
    assert fresh.epoch == old.epoch + 2


def test_a_topic_deleted_after_the_decision_does_not_stop_the_next_start(world: World) -> None:
    producer = wrote(world, 11)
    world.end(producer, commit=True)
    world.do(world.coordinator.close)
    world.flush_state()
    world.topics.delete("b")
    world = world.crash(least)
    settle(world)
    assert world.state_of() == "CompleteCommit"
    assert world.partitions[0].outcome() == (["x"], [], [])


def test_a_rotated_producer_id_is_known_after_a_crash_that_lost_the_completion(world: World) -> None:
    producer = world.ready()
    row = {**world.state.table("transactions")["t"], "producer_epoch": 32766}
    world.state.put("transactions", "t", row)
    world.flush()
    world = world.crash(most)
    producer = Producer("t", producer.id, 32766)
    world.produce(producer, world.partitions[0], "x", version=12)
    world.flush()
    answer = world.end(producer, commit=True, version=5)
    world.flush_state()
    world.flush_partitions()
    fresh = Producer("t", result(answer).producer_id, result(answer).producer_epoch)
    world.produce(fresh, world.partitions[1], "y", version=12)
    world.flush_partitions()
    world = world.crash(least)
    settle(world)
    assert world.partitions[1].outcome() == ([], [], ["y"])
    again = world.end(fresh, commit=True, version=5)
    world.flush()
    assert result(again).error_code == 0
    assert world.partitions[1].outcome() == (["y"], [], [])


def test_the_crash_of_these_tests_loses_what_was_not_flushed() -> None:
    partition = FakePartition("a", 0)
    Producer("t", 1, 0).append(partition, "x")
    world = World(partitions=[partition])
    assert world.crash(least).partitions[0].outcome() == ([], [], [])
    world.close()
