"""What a reader of committed data gets: nothing of an open transaction, and which aborted ones are listed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import fetch, fetch_pending
from headrace.wire.kafka.messages.fetch import PartitionData
from headrace.wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.kafka.messages.transactions import EndTxnRequest, InitProducerIdRequest
from tests.unit.broker.harness import Harness, batch, fetched, running

READ_COMMITTED = 1


class Transactions:
    """One transactional producer that writes to the partitions of a topic ``t``."""

    def __init__(self, harness: Harness, name: str) -> None:
        self.harness = harness
        self.name = name
        self.epoch = -1
        self.sequences: dict[int, int] = {}

    async def start(self) -> None:
        answer = await self.harness.ask(
            InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000), 4
        )
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def write(self, partition: int = 0) -> None:
        sequence = self.sequences.get(partition, 0)
        sent = batch(
            b"x", transactional=True, producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence
        )
        self.sequences[partition] = sequence + 1
        data = PartitionProduceData(index=partition, records=sent.data)
        body = ProduceRequest(
            transactional_id=self.name, acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        answer = await self.harness.ask(body, 12)
        assert answer.responses[0].partition_responses[0].error_code == 0

    async def end(self, *, commit: bool) -> None:
        body = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        assert (await self.harness.ask(body, 4)).error_code == 0

    async def aborted(self, count: int, partition: int = 0) -> None:
        for _ in range(count):
            await self.write(partition)
            await self.end(commit=False)


@pytest.fixture
def with_producer(tmp_path: Path) -> Callable[..., None]:
    def run(scenario: Callable[[Harness, Transactions], Awaitable[None]], partitions: int = 1) -> None:
        async def whole() -> None:
            async with running(tmp_path) as harness:
                await harness.create("t", partitions, segment_ms=str(2**62))  # records of 1970 beside markers of today
                producer = Transactions(harness, "tx")
                await producer.start()
                await scenario(harness, producer)

        asyncio.run(whole())

    return run


async def committed(harness: Harness, offset: int, bytes_max: int, **fields: Any) -> PartitionData:
    return await harness.fetch(
        "t", offset, isolation_level=READ_COMMITTED, partition_max_bytes=bytes_max, max_bytes=bytes_max, **fields
    )


def first_offsets(answer: PartitionData) -> list[int]:
    return [each.first_offset for each in answer.aborted_transactions or []]


@pytest.mark.parametrize("commit", [True, False])
def test_nothing_from_an_open_transaction_on_is_given_before_its_end(
    with_producer: Callable[..., None], commit: bool
) -> None:
    async def scenario(harness: Harness, producer: Transactions) -> None:
        await harness.produce("t", [b"before"])
        await producer.write()
        await harness.produce("t", [b"after"])
        answer = await harness.fetch("t", 0, isolation_level=READ_COMMITTED)
        assert [each.value for each in fetched(answer)] == [b"before"]
        assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
        assert await harness.values("t", 1, isolation_level=READ_COMMITTED) == []
        assert await harness.values("t") == [b"before", b"x", b"after"]
        await producer.end(commit=commit)
        answer = await harness.fetch("t", 0, isolation_level=READ_COMMITTED)
        assert [each.value for each in fetched(answer)] == [b"before", b"x", b"after"]
        assert [each.first_offset for each in answer.aborted_transactions or []] == ([] if commit else [1])
        assert answer.last_stable_offset == 4

    with_producer(scenario)


def test_a_fetch_lists_the_aborted_transactions_of_the_records_it_returns_and_no_others(
    with_producer: Callable[..., None],
) -> None:
    async def scenario(harness: Harness, producer: Transactions) -> None:
        await producer.aborted(100)
        one = await committed(harness, 0, 1)
        assert [each.offset for each in fetched(one)] == [0]
        assert first_offsets(one) == [0]
        later = await committed(harness, 100, 1)
        assert first_offsets(later) == [100]
        everything = await committed(harness, 0, 1 << 20)
        assert first_offsets(everything) == list(range(0, 200, 2))

    with_producer(scenario)


def test_a_transaction_that_began_before_the_records_or_ends_after_them_is_listed(
    with_producer: Callable[..., None],
) -> None:
    async def scenario(harness: Harness, producer: Transactions) -> None:
        long = Transactions(harness, "long")
        await long.start()
        await long.write()  # offset 0
        await producer.aborted(3)  # 1 to 6
        await long.end(commit=False)  # 7
        answer = await committed(harness, 3, 1)
        assert sorted(first_offsets(answer)) == [0, 3]

    with_producer(scenario)


def test_an_answer_lists_a_bounded_number_of_aborted_transactions_and_reading_goes_on(
    with_producer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_pending, "ABORTED_PER_ANSWER_MAX", 10)
    monkeypatch.setattr(fetch, "ABORTED_READ_BYTES", 700)

    async def scenario(harness: Harness, producer: Transactions) -> None:
        await producer.aborted(40)
        offset, listed = 0, []
        while offset < 80:
            answer = await committed(harness, offset, 1 << 20)
            assert 0 < len(first_offsets(answer)) <= 10
            listed += [first for first in first_offsets(answer) if first not in listed]
            offset = answer.records[-1].end_offset
        assert listed == list(range(0, 80, 2))

    with_producer(scenario)
