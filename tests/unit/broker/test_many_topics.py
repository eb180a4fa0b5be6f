"""Thousands of topics in one request: made, checked and deleted a few per turn of the loop, at a cost that does not
depend on how many others there are."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.broker import topics as topics_module
from headrace.broker.elements import Elements
from headrace.broker.slices import UNITS_PER_TURN
from headrace.broker.topics import Topics
from headrace.config import Settings
from headrace.errors import ErrorCode
from headrace.log.store import LOGS_PER_STEP, LogStore
from headrace.node import Node
from headrace.testing.disk import SimulatedDisk
from headrace.wire.kafka.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.unit.broker.harness import Harness, raw
from tests.waiting import eventually_on_loop

MANY = 1200


@asynccontextmanager
async def running(disk: SimulatedDisk) -> AsyncIterator[Harness]:
    node = Node(Settings({"data": "/data", "kafka": "off", "amqp": "off"}), disk=disk, on_failure=lambda _: None)
    await node.start()
    try:
        yield Harness(node.broker)
    finally:
        await node.stop()


def creation(*names: str, partitions: int = 1, validate_only: bool = False) -> CreateTopicsRequest:
    made = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=made, timeout_ms=1000, validate_only=validate_only)


def deletion(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=1000)


def names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


class Turns:
    """Counts the calls of functions in each turn of the loop."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            self.most[name] = max(self.most.get(name, 0), self.calls[name])
            return function(*args, **kwargs)

        return call

    async def count(self) -> None:
        while True:
            self.calls.clear()
            await asyncio.sleep(0)


def test_thousands_of_topics_are_made_and_deleted_a_few_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    for owner, name in ((Topics, "_register"), (Topics, "delete"), (LogStore, "forget_group")):
        monkeypatch.setattr(owner, name, turns.counted(name, getattr(owner, name)))

    async def scenario() -> None:
        async with running(SimulatedDisk()) as harness:
            counting = asyncio.create_task(turns.count())
            made = await raw(harness, creation(*names(MANY)))
            assert (len(made.topics), made.topics.errors) == (MANY, {})
            gone = await raw(harness, deletion(*names(MANY)))
            assert (len(gone.responses), gone.responses.errors) == (MANY, {})
            await eventually_on_loop(lambda: harness.broker.store.logs, lambda logs: len(logs) == 1)
            counting.cancel()

    asyncio.run(scenario())
    assert turns.most.keys() == {"_register", "delete", "forget_group"}
    assert max(turns.most.values()) < UNITS_PER_TURN / 2, turns.most


def test_a_topic_of_thousands_of_partitions_is_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()

    async def scenario() -> None:
        async with running(SimulatedDisk()) as harness:
            await raw(harness, creation("wide", partitions=10 * LOGS_PER_STEP))
            flushed = harness.broker.store._flushed
            monkeypatch.setattr(flushed, "forget", turns.counted("forget", flushed.forget))
            counting = asyncio.create_task(turns.count())
            await raw(harness, deletion("wide"))
            await eventually_on_loop(lambda: harness.broker.store.logs, lambda logs: len(logs) == 1)
            counting.cancel()

    asyncio.run(scenario())
    assert turns.most == {"forget": LOGS_PER_STEP}


class Unwalked(dict[Any, Any]):
    """Can be asked for one thing, and not for all."""

    def __iter__(self) -> Any:
        raise AssertionError("all of them are looked at")

    items = keys = values = __iter__


def test_a_deleted_topic_costs_no_look_at_the_logs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 30,000 logs each of the topics that a request deleted took 5 ms, in one turn of the loop."""

    async def scenario() -> None:
        async with running(SimulatedDisk()) as harness:
            store = harness.broker.store
            await raw(harness, creation("a", "b", partitions=3))
            await harness.produce("a", [b"x"])
            await harness.produce("b", [b"x"])
            group = next(name for name in store.logs if name.startswith("topics/a~")).split("/")[1]
            open_before = len(store.cache)
            with monkeypatch.context() as patched:
                patched.setattr(store, "logs", Unwalked(store.logs))
                patched.setattr(store, "_marks", Unwalked(store._marks))
                patched.setattr(store._flushed, "_claimed", Unwalked(store._flushed._claimed))
                patched.setattr(store.cache, "_files", Unwalked(store.cache._files))
                store.space("topics").forget(group)
                assert len(store.logs) == 1 + 3
                assert len(store._flushed._claimed) == 1 + 3
                assert 0 < len(store.cache) < open_before, "its files are not held open"

    asyncio.run(scenario())


def test_checking_thousands_of_topics_takes_slices_and_keeps_none_of_them(
    with_slices: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freed together at the end, 19,000 of them held the loop for 20 ms."""
    checked: list[weakref.ref[Any]] = []
    left: list[int] = []
    validated, add = Topics.validated, Elements.add

    def noted(topics: Topics, wanted: Any) -> Any:
        topic = validated(topics, wanted)
        checked.append(weakref.ref(topic))
        return topic

    def added(elements: Elements, *args: Any) -> None:
        add(elements, *args)
        if len(elements.encoded) == MANY:
            left.append(sum(each() is not None for each in checked))

    monkeypatch.setattr(Topics, "validated", noted)
    monkeypatch.setattr(Elements, "add", added)

    async def scenario(harness: Harness) -> None:
        answer = await raw(harness, creation(*names(MANY), "wrong name", validate_only=True))
        assert len(answer.topics) == MANY + 1
        assert answer.topics.errors == {ErrorCode.INVALID_TOPIC_EXCEPTION: 1}
        assert len(harness.broker.topics) == 0

    with_slices(scenario)
    assert len(checked) == MANY
    assert left[0] < 10


def test_a_new_name_is_compared_with_no_other_and_collides_with_those_that_differ_in_dots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def codes(harness: Harness, body: CreateTopicsRequest) -> list[int]:
        return [each.error_code for each in (await harness.ask(body)).topics]

    async def scenario() -> None:
        async with running(SimulatedDisk()) as harness:
            assert set(await codes(harness, creation(*(f"a.{number}" for number in range(50))))) == {0}
            looked_at: list[str] = []
            metric_name = topics_module.metric_name
            monkeypatch.setattr(topics_module, "metric_name", lambda name: looked_at.append(name) or metric_name(name))
            assert await codes(harness, creation("a_7")) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
            assert await codes(harness, creation("b.c", "b_c")) == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]
            await harness.ask(deletion("a.7"))
            assert await codes(harness, creation("a_7")) == [0]
            assert set(looked_at) == {"a_7", "a.7", "b.c", "b_c"}

    asyncio.run(scenario())


class WatchedDisk(SimulatedDisk):
    """Notes what is synced by the thread of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.by_loop: list[str] = []
        self.by_others = 0
        self.watches = False

    def maybe_fail(self, operation: str, path: str) -> None:
        if self.watches and "sync" in operation:
            if threading.current_thread() is threading.main_thread():
                self.by_loop.append(f"{operation} {path}")
            else:
                self.by_others += 1
        super().maybe_fail(operation, path)


def test_no_sync_of_a_change_of_topics_holds_the_loop() -> None:
    async def scenario() -> None:
        disk = WatchedDisk()
        async with running(disk) as harness:
            disk.watches = True
            await harness.ask(creation("few", partitions=1))
            await harness.ask(creation("many", "more", partitions=9))
            assert (await harness.produce("few", [b"x"])).error_code == 0
            grown = CreatePartitionsTopic(name="few", count=4, assignments=None)
            await harness.ask(CreatePartitionsRequest(topics=[grown], timeout_ms=1000))
            deleted = [DeleteRecordsPartition(partition_index=0, offset=-1)]
            await harness.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="few", partitions=deleted)]))
            await harness.ask(deletion("few", "many"))
            await eventually_on_loop(lambda: disk.listdir("/data/topics"), lambda found: len(found) == 1)
            disk.watches = False
        assert disk.by_loop == []
        assert disk.by_others > 5

    asyncio.run(scenario())
