"""Batches of a few KB that hold very many records: work on them is done in slices, and few errors are listed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.batch import Batch, build_batch, reseal
from headrace.broker.broker import settled
from headrace.broker.slices import UNITS_PER_TURN
from headrace.errors import ErrorCode
from headrace.record import Codec, Record, compress
from headrace.wire.kafka.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.kafka.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.unit.broker.harness import Harness, Scenario
from tests.waiting import PATIENCE_S

COUNT = 100_000
STEP_UNITS = 100
FUTURE_MS = 10_000_000_000_000


@pytest.fixture
def with_broker(with_broker: Callable[..., None]) -> Callable[..., None]:
    """Runs a scenario; afterwards no turn of the loop has taken more than a slice and a step."""

    def run(scenario: Scenario, **settings: Any) -> None:
        async def checked(harness: Harness) -> None:
            await scenario(harness)
            assert harness.broker.slices.units_in_turn_max < UNITS_PER_TURN + STEP_UNITS

        with_broker(checked, **settings)

    return run


def many(count: int, *, key: bytes | None = None, timestamp: int = 1000, last: Record | None = None) -> Batch:
    """A batch of equal records that compresses to almost nothing; ``last`` replaces the last of them."""
    one = build_batch([Record(key=key, value=None, timestamp=timestamp)])
    payload = one.body[40:] * (count - 1)
    end = build_batch([last]).body[40:] if last is not None else one.body[40:]
    one.record_count = count
    one.last_offset_delta = count - 1
    one.attributes = int(Codec.ZSTD)
    reseal(one, compress(Codec.ZSTD, payload + end))
    assert one.size < 4000
    return one


def test_a_batch_with_more_records_than_the_limit_is_refused_by_its_header(with_broker: Callable[..., None]) -> None:
    lying = many(1001)
    reseal(lying, b"not even compressed")

    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        answer = await harness.produce("t", lying)
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "1001 records exceeds max.batch.records=1000" in (answer.error_message or "")
        assert (await harness.produce("t", many(1000))).error_code == 0

    with_broker(scenario, **{"max.batch.records": 1000})


def test_refused_timestamps_are_found_in_slices_and_the_first_thousand_are_named(
    with_broker: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        answer = await harness.produce("t", many(COUNT, timestamp=FUTURE_MS))
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert [each.batch_index for each in answer.record_errors] == list(range(1000))

    with_broker(scenario)


def test_a_header_that_claims_a_late_time_is_refused_though_no_record_has_it(
    with_broker: Callable[..., None],
) -> None:
    late = many(COUNT)
    late.max_timestamp = FUTURE_MS
    reseal(late, late.body[40:])

    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        answer = await harness.produce("t", late)
        assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
        assert answer.record_errors == []

    with_broker(scenario)


@pytest.mark.parametrize(("key", "code"), [(b"k", ErrorCode.NONE), (None, ErrorCode.INVALID_RECORD)])
def test_keys_are_looked_for_in_slices(key: bytes | None, code: ErrorCode, with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", cleanup_policy="compact")
        answer = await harness.produce("t", many(COUNT, key=key))
        assert answer.error_code == code
        assert len(answer.record_errors) == (0 if key else 1000)

    with_broker(scenario)


def test_nothing_is_written_to_a_topic_that_is_deleted_while_a_batch_is_looked_through(
    with_broker: Callable[..., None],
) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", cleanup_policy="compact")
        partition = harness.partition("t", 0)
        data = PartitionProduceData(index=0, records=many(COUNT, key=b"k").data)
        body = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[data])])
        reply = harness.start(body, 9)
        assert not reply.ready
        topic = harness.broker.topics.get("t")
        assert topic is not None
        harness.broker.topics.delete(topic)
        answer = (await asyncio.wait_for(settled(reply), PATIENCE_S)).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert partition.log.end_offset == 0

    with_broker(scenario)


def test_the_one_record_without_a_key_is_found(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", cleanup_policy="compact")
        answer = await harness.produce("t", many(COUNT, key=b"k", last=Record(key=None, value=None, timestamp=1000)))
        assert [each.batch_index for each in answer.record_errors] == [COUNT - 1]

    with_broker(scenario)


def test_checking_every_record_is_done_in_slices(with_broker: Callable[..., None]) -> None:
    records = [Record(key=b"k", value=b"v", timestamp=1000, headers=[("h", b"x")]) for _ in range(20_000)]

    async def scenario(harness: Harness) -> None:
        await harness.create("t", headrace_validate="records")
        assert (await harness.produce("t", build_batch(records, codec=Codec.ZSTD))).error_code == 0
        assert (await harness.produce("t", many(20_000))).error_code == ErrorCode.INVALID_RECORD

    with_broker(scenario)


def test_record_errors_of_all_partitions_together_are_bounded(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t", 4, cleanup_policy="compact")
        data = [PartitionProduceData(index=index, records=many(700).data) for index in range(4)]
        body = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)])
        answer = await harness.ask(body, 9)
        found = answer.responses[0].partition_responses
        assert [each.error_code for each in found] == [ErrorCode.INVALID_RECORD] * 4
        assert [len(each.record_errors) for each in found] == [700, 300, 0, 0]

    with_broker(scenario)


async def offset_at(harness: Harness, timestamp: int) -> tuple[int, int]:
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    answer = (await harness.ask(ListOffsetsRequest(topics=[asked]))).topics[0].partitions[0]
    assert answer.error_code == 0
    return answer.timestamp, answer.offset


def test_a_time_is_looked_for_in_a_stored_batch_of_many_records_in_slices(with_broker: Callable[..., None]) -> None:
    stored = many(COUNT, last=Record(key=None, value=None, timestamp=1000))
    stored.max_timestamp = 2000
    reseal(stored, stored.body[40:])

    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        assert (await harness.produce("t", stored)).error_code == 0
        assert await offset_at(harness, 1000) == (1000, 0)
        assert await offset_at(harness, 1500) == (-1, -1), "the header claims a time that no record has"

    with_broker(scenario)


def test_headers_that_claim_late_times_cost_a_bounded_look_each(with_broker: Callable[..., None]) -> None:
    """A batch whose header claims a late time and whose records do not have it, before very many others."""
    lying = many(2)
    lying.max_timestamp = 5000
    reseal(lying, lying.body[40:])

    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        await harness.produce("t", lying)
        partition = harness.partition("t", 0)
        for _ in range(3000):
            partition.append(many(2))
        await harness.produce("t", [Record(key=None, value=b"x", timestamp=9000)])
        assert await offset_at(harness, 5000) == (9000, 6002)
        assert await offset_at(harness, 9001) == (-1, -1)
        assert (await offset_at(harness, -3)) == (9000, 6002)

    with_broker(scenario)


def test_the_latest_time_is_that_of_the_records_that_are_left(with_broker: Callable[..., None]) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.create("t")
        times = (10, 90, 50, 40, 30)
        await harness.produce("t", [Record(key=None, value=b"x", timestamp=each) for each in times])
        await harness.produce("t", [Record(key=None, value=b"x", timestamp=20)])
        assert await offset_at(harness, -3) == (90, 1)
        for offset, found in ((2, (50, 2)), (4, (30, 4)), (5, (20, 5))):
            asked = DeleteRecordsPartition(partition_index=0, offset=offset)
            await harness.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[asked])]))
            assert await offset_at(harness, -3) == found

    with_broker(scenario)
