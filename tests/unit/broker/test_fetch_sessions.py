"""Which reader has a fetch session, when there are more readers than sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.fetch_sessions import FetchSessions
from headrace.config import Settings
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.unit.broker.fakes import FakeClock

EVICTION_S = 120


class World:
    def __init__(self, slots: int = 2, **settings: Any) -> None:
        self.clock = FakeClock()
        self.sessions = FetchSessions(
            clock=self.clock, settings=Settings({"max.incremental.fetch.session.cache.slots": slots, **settings})
        )

    def opened(self, partitions: int = 1) -> int:
        """The id that a new reader of so many partitions gets; 0 for none."""
        session, wanted = self.sessions.wanted(asking(range(partitions), session_epoch=0))
        assert len(wanted) == partitions
        return 0 if session is None else session.id

    def used(self, session_id: int, epoch: int = 1, **fields: Any) -> None:
        self.sessions.wanted(FetchRequest(session_id=session_id, session_epoch=epoch, **fields))

    def wait(self, seconds: float) -> None:
        asyncio.run(self.clock.advance(seconds))


def asking(partitions: range, **fields: Any) -> FetchRequest:
    asks = [FetchPartition(partition=index) for index in partitions]
    return FetchRequest(topics=[FetchTopic(topic="t", partitions=asks)], **fields)


def test_a_reader_without_a_free_slot_gets_no_session_and_takes_nobodys() -> None:
    world = World(slots=2)
    first, second = world.opened(), world.opened()
    assert world.opened() == 0
    world.used(first)
    world.used(second)
    assert len(world.sessions) == 2


def test_more_readers_than_slots_leave_those_that_have_a_session_their_own() -> None:
    world = World(slots=1000)
    kept = [world.opened() for _ in range(1000)]
    for epoch in range(1, 4):
        assert [world.opened() for _ in range(200)] == [0] * 200
        for session_id in kept:
            world.used(session_id, epoch)
        world.wait(EVICTION_S / 2)


def test_a_session_that_nobody_has_used_for_long_gives_way() -> None:
    world = World(slots=1)
    idle = world.opened(5)
    world.wait(EVICTION_S + 1)
    assert world.opened(1) > 0
    with pytest.raises(KafkaError) as refused:
        world.used(idle)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_old_session_gives_way_to_a_larger_one_and_to_no_other() -> None:
    world = World(slots=1)
    small = world.opened(3)
    world.used(small, 1)
    assert world.opened(100) == 0, "it is too young"
    world.wait(EVICTION_S - 1)
    world.used(small, 2)
    world.wait(2)
    world.used(small, 3)
    assert world.opened(3) == 0
    assert world.opened(4) > 0
    with pytest.raises(KafkaError):
        world.used(small, 4)


def test_the_smallest_of_the_old_sessions_gives_way_by_its_size_of_today() -> None:
    world = World(slots=2)
    growing, fixed = world.opened(1), world.opened(3)
    world.wait(EVICTION_S - 1)
    world.used(growing, 1)
    world.used(fixed, 1)
    world.wait(2)
    world.used(growing, 2)
    world.used(fixed, 2)
    world.sessions.wanted(asking(range(10), session_id=growing, session_epoch=3))
    assert world.opened(5) > 0
    world.used(growing, 4)
    with pytest.raises(KafkaError):
        world.used(fixed, 3)


def test_sessions_whose_size_changes_with_every_fetch_leave_nothing_behind() -> None:
    world = World(slots=4)
    session_id = world.opened(1)
    world.wait(EVICTION_S - 1)
    world.used(session_id, 1)
    world.wait(2)
    for epoch in range(2, 500):
        forgotten = [ForgottenTopic(topic="t", partitions=[7])] if epoch % 2 else []
        topics = [] if epoch % 2 else asking(range(7, 8)).topics
        world.used(session_id, epoch, topics=topics, forgotten_topics_data=forgotten)
    assert len(world.sessions._evictable) < 50


def test_a_session_cannot_collect_more_partitions_than_a_request_may_name() -> None:
    world = World(**{"request.elements.max": 100})
    session_id = world.opened(60)
    with pytest.raises(KafkaError) as refused:
        world.sessions.wanted(asking(range(60, 120), session_id=session_id, session_epoch=1))
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(world.sessions) == 0


def test_no_slots_mean_no_sessions() -> None:
    assert World(slots=0).opened() == 0
