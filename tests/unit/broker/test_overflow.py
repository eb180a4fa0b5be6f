"""What happens when producers outrun consumers, by the topic owner's choice."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.broker.request import Peer
from headrace.errors import ErrorCode
from headrace.log.errors import CorruptLog
from headrace.testing import VirtualClock
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.unit.broker.harness import Harness, running
from tests.waiting import eventually_on_loop

BOUND = 10_000
BIG = b"x" * 1_000


async def commit(harness: Harness, group: str, topic: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    body = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    answer = await harness.ask(body, 8)
    assert answer.topics[0].partitions[0].error_code == 0


def test_drop_newest_refuses_with_an_error_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t", headrace_overflow="drop-newest", headrace_overflow_bytes=str(BOUND))
            codes = [(await harness.produce("t", [BIG])).error_code for _ in range(15)]
            kept = codes.count(0)
            assert 8 <= kept <= 9
            assert codes[kept:] == [ErrorCode.POLICY_VIOLATION] * (15 - kept)
            assert len(await harness.values("t")) == kept
            assert harness.partition("t", 0).refused_batches == 15 - kept

    asyncio.run(scenario())


async def batch_size(harness: Harness) -> int:
    await harness.create("measured")
    await harness.produce("measured", [BIG])
    return harness.partition("measured", 0).log.size_bytes


def test_a_topic_that_refuses_the_newest_takes_what_fits_to_the_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            size = await batch_size(harness)
            for name, bound, fitting in (("exact", 3 * size, 3), ("short", 3 * size - 1, 2)):
                await harness.create(name, headrace_overflow="drop-newest", headrace_overflow_bytes=str(bound))
                codes = [(await harness.produce(name, [BIG])).error_code for _ in range(4)]
                assert codes == [0] * fitting + [ErrorCode.POLICY_VIOLATION] * (4 - fitting)

    asyncio.run(scenario())


def test_a_group_that_is_behind_by_the_bound_itself_holds_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            bound = 3 * await batch_size(harness)
            await harness.create(
                "t",
                headrace_overflow="backpressure",
                headrace_overflow_bytes=str(bound),
                headrace_overflow_groups="readers",
            )
            held: list[bool] = []
            producer = Peer(id=7, on_hold=held.append)
            for _ in range(4):
                await harness.produce("t", [BIG], peer=producer)
            assert held == [], "the fourth came when three batches were unread"
            await harness.produce("t", [BIG], peer=producer)
            assert held == [True]

    asyncio.run(scenario())


def test_drop_oldest_takes_what_a_producer_has_in_flight_although_nothing_of_it_is_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t", headrace_overflow="drop-oldest", headrace_overflow_bytes=str(BOUND))
            answers = await asyncio.gather(*(harness.produce("t", [BIG * 6]) for _ in range(4)))
            assert [answer.error_code for answer in answers] == [0, 0, 0, 0]
            assert [answer.base_offset for answer in answers] == [0, 1, 2, 3]
            await harness.produce("t", [BIG * 6])
            topic = harness.broker.topics.get("t")
            assert topic is not None
            assert topic.partitions[0].log.start_offset == 4

    asyncio.run(scenario())


def test_drop_oldest_takes_everything_and_counts_what_it_gave_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t", headrace_overflow="drop-oldest", headrace_overflow_bytes=str(BOUND))
            for index in range(30):
                assert (await harness.produce("t", [b"%04d" % index + BIG])).error_code == 0
            partition = harness.partition("t", 0)
            assert partition.log.start_offset > 15
            assert partition.dropped_records == partition.log.start_offset
            values = await harness.values("t", partition.log.start_offset)
            assert [int(value[:4]) for value in values if value] == list(range(partition.log.start_offset, 30))
            assert sum(len(value or b"") for value in values) <= BOUND

    asyncio.run(scenario())


def test_backpressure_holds_the_producers_connection_until_the_group_has_caught_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create(
                "t",
                headrace_overflow="backpressure",
                headrace_overflow_bytes=str(BOUND),
                headrace_overflow_groups="readers",
            )
            held: list[bool] = []
            producer = Peer(id=7, on_hold=held.append)
            for _ in range(5):
                await harness.produce("t", [BIG], peer=producer)
            assert held == [], "within the bound nobody is held"
            for _ in range(10):
                await harness.produce("t", [BIG], peer=producer)
            assert held == [True], "told once, however often it is over the bound"
            assert harness.broker.overflow.held_connections() == {"t": 1}
            await commit(harness, "readers", "t", 14)
            await eventually_on_loop(lambda: held, lambda told: len(told) > 1)
            assert held == [True, False]
            assert harness.broker.overflow.held_connections() == {}

    asyncio.run(scenario())


def test_a_group_that_never_comes_stops_counting_after_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        async with running(tmp_path, clock=clock) as harness:
            await harness.create(
                "t",
                headrace_overflow="backpressure",
                headrace_overflow_bytes="1000",
                headrace_overflow_groups="nobody",
                headrace_overflow_group_timeout_ms="100",
            )
            held: list[bool] = []
            producer = Peer(id=7, on_hold=held.append)
            for _ in range(3):
                await harness.produce("t", [BIG], peer=producer)
            await clock.advance_on_loop(99)
            assert held == [True]
            await clock.advance_on_loop(51)  # producers are looked at every 50 ms
            assert held == [True, False]

    asyncio.run(scenario())


def test_a_damaged_partition_releases_its_producers_and_those_of_other_topics_are_still_looked_at(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            told: dict[str, list[bool]] = {"bad": [], "good": []}
            for number, (name, heard) in enumerate(told.items()):
                await harness.create(
                    name,
                    headrace_overflow="backpressure",
                    headrace_overflow_bytes="1000",
                    headrace_overflow_groups="readers",
                )
                producer = Peer(id=number, on_hold=heard.append)
                for _ in range(3):
                    await harness.produce(name, [BIG], peer=producer)
            assert told == {"bad": [True], "good": [True]}
            log = harness.partition("bad", 0).log
            harness.broker.topics.set_damaged(log, CorruptLog(log.directory, 0, "a test says so"))
            await eventually_on_loop(lambda: told["bad"], lambda heard: heard == [True, False])
            await commit(harness, "readers", "good", 3)
            await eventually_on_loop(lambda: told["good"], lambda heard: heard == [True, False])

    asyncio.run(scenario())
