"""Topics and partitions are made whole or not at all, and off the loop, whatever the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from headrace.config import Settings
from headrace.errors import ErrorCode
from headrace.node import Node
from headrace.testing.disk import PowerLoss, SimulatedDisk
from headrace.wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headrace.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.kafka.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.unit.broker.fakes import settle
from tests.unit.broker.harness import Harness
from tests.waiting import PATIENCE_S, eventually_on_loop

STEPS_MAX = 200


@asynccontextmanager
async def running(disk: SimulatedDisk) -> AsyncIterator[Harness]:
    node = Node(Settings({"data": "/data", "kafka": "off", "amqp": "off"}), disk=disk, on_failure=lambda _: None)
    try:
        await node.start()
        yield Harness(node.broker)
    finally:
        with suppress(PowerLoss):
            await node.stop()


def topics_request(*names: str, partitions: int = 2) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names],
        timeout_ms=1000,
    )


async def codes(harness: Harness, request: CreateTopicsRequest) -> list[int]:
    return [each.error_code for each in (await harness.ask(request)).topics]


async def grow(harness: Harness, name: str, count: int) -> int:
    asked = CreatePartitionsTopic(name=name, count=count, assignments=None)
    answer = await harness.ask(CreatePartitionsRequest(topics=[asked], timeout_ms=1000))
    return int(answer.results[0].error_code)


def directories(disk: SimulatedDisk) -> dict[str, list[str]]:
    home = "/data/topics"
    return {name.partition("~")[0]: disk.listdir(f"{home}/{name}") for name in disk.listdir(home)}


def counts(harness: Harness) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in harness.broker.topics.all()}


class RefusingDisk(SimulatedDisk):
    """Its n-th attempt to make a file or directory of a topic fails, and no other."""

    def __init__(self) -> None:
        super().__init__()
        self.countdown = 0
        self.error_number = errno.ENOSPC

    def maybe_fail(self, operation: str, path: str) -> None:
        if self.countdown and operation in ("open", "mkdir") and path.startswith("/data/topics/"):
            self.countdown -= 1
            if self.countdown == 0:
                raise OSError(self.error_number, "refused", path)
        super().maybe_fail(operation, path)


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EDQUOT])
def test_a_topic_that_the_disk_refuses_leaves_nothing_and_does_not_come_back(error_number: int) -> None:
    async def scenario(step: int) -> bool:
        disk = RefusingDisk()
        disk.error_number = error_number
        async with running(disk) as harness:
            assert await codes(harness, topics_request("before")) == [0]
            disk.countdown = step
            found = await codes(harness, topics_request("a", "b"))
            disk.countdown = 0
            assert set(found) <= {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
            made = [name for name, code in zip("ab", found, strict=True) if code == 0]
            assert sorted(directories(disk)) == sorted(["before", *made])
            assert (await harness.produce("before", [b"v"])).error_code == 0
        async with running(disk) as harness:
            assert sorted(counts(harness)) == sorted(["before", *made])
            missing = [name for name in "ab" if name not in made]
            if missing:
                assert await codes(harness, topics_request(*missing)) == [0] * len(missing)
        return len(made) == 2

    steps = 0
    for step in range(1, STEPS_MAX):
        if asyncio.run(scenario(step)):
            break
        steps = step
    assert 4 < steps < STEPS_MAX - 1


def test_a_full_disk_that_takes_directories_and_no_row_leaves_no_topic() -> None:
    async def scenario() -> None:
        disk = SimulatedDisk()
        async with running(disk) as harness:
            disk.fail_next("write", errno.ENOSPC, "/data/state/")
            assert await codes(harness, topics_request("a")) == [ErrorCode.KAFKA_STORAGE_ERROR]
            assert directories(disk) == {}
            assert await codes(harness, topics_request("a")) == [0]

    asyncio.run(scenario())


def test_partitions_that_the_disk_refuses_leave_the_topic_as_it_was() -> None:
    async def scenario(step: int) -> bool:
        disk = RefusingDisk()
        async with running(disk) as harness:
            await codes(harness, topics_request("t"))
            disk.countdown = step
            code = await grow(harness, "t", 5)
            disk.countdown = 0
            assert counts(harness) == {"t": 2 if code else 5}
            assert directories(disk) == {"t": ["0", "1"] if code else ["0", "1", "2", "3", "4"]}
        async with running(disk) as harness:
            assert counts(harness) == {"t": 2 if code else 5}
            if code:
                assert await grow(harness, "t", 4) == 0
        return not code

    for step in range(1, STEPS_MAX):
        if asyncio.run(scenario(step)):
            return
    pytest.fail("it never succeeded")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("growing", [False, True])
def test_wherever_the_power_fails_a_topic_is_whole_or_nowhere(growing: bool, seed: int) -> None:
    async def until_the_power_fails(disk: SimulatedDisk, step: int) -> bool:
        """Whether the request was answered."""
        async with running(disk) as harness:
            await codes(harness, topics_request("t"))
            disk.crash_after = disk.operations + step
            request = grow(harness, "t", 4) if growing else codes(harness, topics_request("new", partitions=3))
            asked = asyncio.ensure_future(request)
            await eventually_on_loop(lambda: asked.done() or disk.operations > disk.crash_after)
            await settle()
            if not asked.done():
                asked.cancel()
                return False
            return asked.exception() is None

    async def afterwards(disk: SimulatedDisk, answered: bool) -> None:
        async with running(disk) as harness:
            found = counts(harness)
            if growing:
                assert found["t"] == 4 if answered else found["t"] in (2, 4)
            else:
                assert found.get("new") == 3 if answered else found.get("new") in (3, None)
            # A disk that keeps later changes of a directory and loses earlier ones may leave directories. They are
            # empty, and in nobody's way.
            again = grow(harness, "t", 7) if growing else codes(harness, topics_request("another", partitions=3))
            assert await again in (0, [0])
            assert not [
                log for log in harness.broker.store.logs.values() if log.end_offset and "topics" in log.directory
            ]

    for step in range(1, 60, 2):
        disk = SimulatedDisk()
        answered = False
        with suppress(PowerLoss):
            answered = asyncio.run(until_the_power_fails(disk, step))
        disk.crash(seed * 1000 + step)
        asyncio.run(afterwards(disk, answered))


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_kill_has_left_of_partitions_without_a_row_goes_at_the_next_start(count: int) -> None:
    async def before(disk: SimulatedDisk) -> None:
        async with running(disk) as harness:
            await codes(harness, topics_request("t"))
            space = harness.broker.store.space("topics")
            (group,) = space.groups_on_disk()
            assert space.make({group: range(2, 2 + count), f"other~{1:032x}": range(count)}) == {}

    async def after(disk: SimulatedDisk) -> None:
        async with running(disk) as harness:
            assert directories(disk) == {"t": ["0", "1"]}
            assert counts(harness) == {"t": 2}

    disk = SimulatedDisk()
    asyncio.run(before(disk))
    disk.kill()
    asyncio.run(after(disk))


class HeldJournalDisk(SimulatedDisk):
    """The journal is synced when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.held = threading.Event()

    def maybe_fail(self, operation: str, path: str) -> None:
        if operation == "datasync" and path.startswith("/data/state/") and not self.may_sync.is_set():
            self.held.set()
            assert self.may_sync.wait(PATIENCE_S)
        super().maybe_fail(operation, path)


def while_the_journal_waits(act: Callable[[Harness], Awaitable[Any]], check: Callable[[SimulatedDisk], None]) -> None:
    """``check`` runs when all has happened that may happen before the journal is flushed."""

    async def scenario() -> None:
        disk = HeldJournalDisk()
        async with running(disk) as harness:
            await codes(harness, topics_request("t"))
            disk.may_sync.clear()
            asked = asyncio.ensure_future(act(harness))
            try:
                await eventually_on_loop(disk.held.is_set)
                for _ in range(20):
                    await asyncio.sleep(0.005)
                check(disk)
                assert not asked.done()
            finally:
                disk.may_sync.set()
            await asked

    asyncio.run(scenario())


def test_a_topic_is_confirmed_when_its_row_is_flushed_and_not_before() -> None:
    while_the_journal_waits(
        lambda harness: codes(harness, topics_request("new")),
        lambda disk: None,
    )


def test_the_files_of_a_deleted_topic_stay_until_the_deletion_is_flushed() -> None:
    """Else a crash would leave a topic whose records are gone."""

    def check(disk: SimulatedDisk) -> None:
        assert directories(disk) == {"t": ["0", "1"]}

    while_the_journal_waits(
        lambda harness: harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)),
        check,
    )


def while_held(act: Callable[[Harness, SimulatedDisk], Awaitable[Any]]) -> None:
    async def scenario() -> None:
        disk = SimulatedDisk()
        async with running(disk) as harness:
            await codes(harness, topics_request("t"))
            await act(harness, disk)
        async with running(disk) as harness:
            assert sorted(directories(disk)) == sorted(counts(harness))
            for topic in harness.broker.topics.all():
                assert len(topic.partitions) == topic.partition_count

    asyncio.run(scenario())


def test_two_requests_for_the_same_topic_at_once_make_it_once() -> None:
    async def act(harness: Harness, disk: SimulatedDisk) -> None:
        found = await asyncio.gather(*(codes(harness, topics_request("twice", "t.1")) for _ in range(3)))
        assert sorted(code for each in found for code in each) == [0, 0] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 4
        assert await codes(harness, topics_request("t_1")) == [ErrorCode.INVALID_TOPIC_EXCEPTION]

    while_held(act)


def test_metadata_of_a_topic_that_is_being_made_asks_the_client_to_come_again() -> None:
    async def act(harness: Harness, disk: SimulatedDisk) -> None:
        body = MetadataRequest(topics=[MetadataRequestTopic(name="auto")], allow_auto_topic_creation=True)
        answers = await asyncio.gather(*(harness.ask(body, 9) for _ in range(3)))
        found = sorted(answer.topics[0].error_code for answer in answers)
        assert found == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await harness.ask(body, 9)).topics[0].error_code == 0

    while_held(act)


def test_settings_that_are_altered_while_a_topic_grows_do_not_undo_its_growth() -> None:
    async def act(harness: Harness, disk: SimulatedDisk) -> None:
        change = IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", config_operation=0, value="7")
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name="t", configs=[change]
        )
        growing = asyncio.ensure_future(grow(harness, "t", 6))
        while not growing.done():
            await harness.ask(IncrementalAlterConfigsRequest(resources=[resource]))
        assert growing.result() == 0
        assert harness.broker.state.table("topics")["t"]["partitions"] == 6
        assert {each.log.config.retention_ms for each in harness.broker.topics.get("t").partitions} == {7}

    while_held(act)


def test_a_topic_that_is_deleted_while_it_grows_stays_deleted() -> None:
    async def act(harness: Harness, disk: SimulatedDisk) -> None:
        growing = asyncio.ensure_future(grow(harness, "t", 6))
        await asyncio.sleep(0)
        await harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000))
        assert await growing in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert harness.broker.topics.get("t") is None
        assert not [name for name in harness.broker.store.logs if name.startswith("topics/")]

    while_held(act)


@pytest.mark.slow
def test_many_partitions_are_made_in_slices() -> None:
    async def scenario() -> None:
        async with running(SimulatedDisk()) as harness:
            assert await codes(harness, topics_request("large", partitions=2000)) == [0]
            slices = harness.broker.slices
            assert slices.units_in_turn_max < slices.units_per_turn + 100

    asyncio.run(scenario())
