"""A damaged partition harms nobody else: it answers with its fault, and transactions end without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.transactions.owed_markers import OwedMarkers
from headrace.errors import ErrorCode
from headrace.wire.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headrace.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.wire.kafka.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from headrace.wire.kafka.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    TopicRequest,
)
from tests.unit.broker.harness import Harness, Scenario, batch, fetched, running
from tests.unit.broker.test_read_committed import Transactions
from tests.waiting import PATIENCE_S

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def run(data: Path, scenario: Scenario) -> None:
    async def whole() -> None:
        async with running(data) as harness:
            await scenario(harness)

    asyncio.run(whole())


def log_of(data: Path, topic: str, partition: int) -> Path:
    (found,) = sorted((data / "topics").glob(f"{topic}~*/{partition}/*.log"))
    return found


def damage(data: Path, topic: str, partition: int) -> bytes:
    """Cut a log that was closed in good order in its first batch; what it was before."""
    path = log_of(data, topic, partition)
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    return whole


async def eventually(ready: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await ready():  # noqa: ASYNC110 - what is waited for is only seen by asking
            await asyncio.sleep(0.01)


async def state_of(harness: Harness, name: str = "tx") -> str:
    answer = await harness.ask(DescribeTransactionsRequest(transactional_ids=[name]))
    return str(answer.transaction_states[0].transaction_state)


async def last_stable_offset(harness: Harness, partition: int) -> int:
    return (await harness.fetch("t", 0, partition, isolation_level=1)).last_stable_offset


# ---- every request --------------------------------------------------------------------------------------------------


async def produced(harness: Harness, records: Any) -> int:
    return (await harness.produce("t", records)).error_code


async def fetch_code(harness: Harness) -> int:
    return (await harness.fetch("t", 0)).error_code


async def list_offsets_code(harness: Harness, timestamp: int) -> int:
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    return int((await harness.ask(ListOffsetsRequest(topics=[asked]))).topics[0].partitions[0].error_code)


async def epoch_code(harness: Harness, epoch: int) -> int:
    asked = OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=epoch)])
    answer = await harness.ask(OffsetForLeaderEpochRequest(topics=[asked]))
    return int(answer.topics[0].partitions[0].error_code)


async def delete_records_code(harness: Harness) -> int:
    asked = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
    return int((await harness.ask(DeleteRecordsRequest(topics=[asked]))).topics[0].partitions[0].error_code)


async def producers_code(harness: Harness) -> int:
    asked = TopicRequest(name="t", partition_indexes=[0])
    return int((await harness.ask(DescribeProducersRequest(topics=[asked]))).topics[0].partitions[0].error_code)


REFUSED: dict[str, Callable[[Harness], Awaitable[int]]] = {
    "produce": lambda harness: produced(harness, [b"x"]),
    "produce of an invalid batch": lambda harness: produced(harness, batch(b"x", base_offset=7)),
    "fetch": fetch_code,
    "offsets, latest": lambda harness: list_offsets_code(harness, -1),
    "offsets, earliest": lambda harness: list_offsets_code(harness, -2),
    "offsets, by time": lambda harness: list_offsets_code(harness, 5),
    "the end of this epoch": lambda harness: epoch_code(harness, 1),
    "the end of an earlier epoch": lambda harness: epoch_code(harness, 0),
    "the end of a later epoch": lambda harness: epoch_code(harness, 9),
    "delete records": delete_records_code,
    "describe producers": producers_code,
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=REFUSED)
def test_what_needs_the_log_of_a_damaged_partition_is_told_its_fault(
    ask: Callable[[Harness], Awaitable[int]], tmp_path: Path
) -> None:
    run(tmp_path, written)
    damage(tmp_path, "t", 0)

    async def asked(harness: Harness) -> None:
        assert ErrorCode(await ask(harness)) is STORAGE_ERROR
        assert (await harness.produce("t", [b"y"], 1)).error_code == 0

    run(tmp_path, asked)


async def written(harness: Harness) -> None:
    await harness.create("t", 2)
    for partition in (0, 1):
        await harness.produce("t", [b"x" * 100], partition)


def test_what_needs_no_log_goes_on_with_a_damaged_partition(tmp_path: Path) -> None:
    run(tmp_path, written)
    damage(tmp_path, "t", 0)

    async def asked(harness: Harness) -> None:
        metadata = await harness.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
        codes = [each.error_code for each in metadata.topics[0].partitions]
        assert codes == [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE]
        dirs = await harness.ask(DescribeLogDirsRequest(topics=None))
        assert [each.partition_index for each in dirs.results[0].topics[0].partitions] == [1]
        resource = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
        assert (await harness.ask(DescribeConfigsRequest(resources=[resource]))).results[0].error_code == 0
        change = IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", value="5")
        altered = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name="t", configs=[change]
        )
        answer = await harness.ask(IncrementalAlterConfigsRequest(resources=[altered]))
        assert answer.responses[0].error_code == 0
        wider = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)])
        assert (await harness.ask(wider)).results[0].error_code == 0
        gone = await harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
        assert gone.responses[0].error_code == 0

    run(tmp_path, asked)


# ---- transactions ---------------------------------------------------------------------------------------------------


async def open_transaction(harness: Harness) -> None:
    """Records of one transaction in both partitions, and no end."""
    await harness.create("t", 2, segment_ms=str(2**62))
    producer = Transactions(harness, "tx")
    await producer.start()
    for partition in (0, 1):
        await producer.write(partition)


async def take_over(harness: Harness) -> int:
    """A new process of the producer: the transaction is aborted first. The epoch it gets."""
    answers = []

    async def done() -> bool:
        asked = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
        answers.append(await harness.ask(asked, 4))
        return answers[-1].error_code != ErrorCode.CONCURRENT_TRANSACTIONS

    await eventually(done)
    assert answers[-1].error_code == 0
    return int(answers[-1].producer_epoch)


async def ended_in_the_healthy_partition(harness: Harness) -> None:
    async def stable() -> bool:
        return await last_stable_offset(harness, 1) == 2

    await eventually(stable)


def test_a_transaction_ends_in_its_healthy_partitions_and_its_id_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, open_transaction)
    damage(tmp_path, "t", 0)

    async def taken_over(harness: Harness) -> None:
        assert await take_over(harness) > 0
        await ended_in_the_healthy_partition(harness)

    with caplog.at_level(logging.ERROR):
        run(tmp_path, taken_over)
    (line,) = [each for each in caplog.messages if "has ended except in t-0" in each]
    assert "is written there when the files are restored" in line

    async def later(harness: Harness) -> None:
        assert await state_of(harness) == "Empty"
        assert await last_stable_offset(harness, 1) == 2
        producer = Transactions(harness, "tx")
        await producer.start()
        await producer.write(1)
        await producer.end(commit=True)

    run(tmp_path, later)


def test_a_decision_found_after_a_restart_is_carried_out_where_that_is_possible(tmp_path: Path) -> None:
    run(tmp_path, open_transaction)
    whole = damage(tmp_path, "t", 0)

    async def decided(harness: Harness) -> None:
        """The decision is written; the process ends before the first marker."""
        transaction = harness.broker.transactions.find("tx")
        assert transaction is not None
        harness.broker.transaction_coordinator.endings.decide(transaction, commit=True, bump=False)
        harness.broker.transaction_coordinator.close()

    run(tmp_path, decided)

    async def restarted(harness: Harness) -> None:
        await ended_in_the_healthy_partition(harness)
        assert await state_of(harness) == "CompleteCommit"

    run(tmp_path, restarted)
    log_of(tmp_path, "t", 0).write_bytes(whole)

    async def restored(harness: Harness) -> None:
        async def stable() -> bool:
            return await last_stable_offset(harness, 0) == 2

        await eventually(stable)
        answer = await harness.fetch("t", 0, 0, isolation_level=1)
        assert [each.value for each in fetched(answer)] == [b"x"], "the transaction was committed"
        assert answer.aborted_transactions == []
        assert await state_of(harness) == "CompleteCommit", "and is no part of another"

    run(tmp_path, restored)


def test_a_restored_partition_gets_the_marker_it_was_owed_once(tmp_path: Path) -> None:
    run(tmp_path, open_transaction)
    whole = damage(tmp_path, "t", 0)

    async def taken_over(harness: Harness) -> None:
        await take_over(harness)
        await ended_in_the_healthy_partition(harness)

    run(tmp_path, taken_over)
    log_of(tmp_path, "t", 0).write_bytes(whole)

    async def restored(harness: Harness) -> None:
        async def paid() -> bool:
            return not harness.broker.state.table("owed_markers")

        await eventually(paid)
        answer = await harness.fetch("t", 0, 0, isolation_level=1)
        assert [each.first_offset for each in answer.aborted_transactions or []] == [0]
        assert answer.last_stable_offset == 2
        assert harness.partition("t", 0).log.end_offset == 2

    for _ in range(2):
        run(tmp_path, restored)


def test_a_marker_that_could_not_be_written_at_a_start_is_still_owed_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then its records are nobody's: they are not aborted as a transaction that has no owner."""
    run(tmp_path, open_transaction)
    whole = damage(tmp_path, "t", 0)

    async def decided(harness: Harness) -> None:
        transaction = harness.broker.transactions.find("tx")
        assert transaction is not None
        harness.broker.transaction_coordinator.endings.decide(transaction, commit=True, bump=False)
        await ended_in_the_healthy_partition(harness)

    run(tmp_path, decided)
    log_of(tmp_path, "t", 0).write_bytes(whole)

    async def refused(harness: Harness) -> None:
        await Transactions(harness, "tx").start()
        assert len(harness.broker.state.table("owed_markers")) == 1
        assert await last_stable_offset(harness, 0) == 0

    (tmp_path / "checkpoint").unlink()  # every log is scanned, and its open transactions looked at
    with monkeypatch.context() as full_disk:
        full_disk.setattr(OwedMarkers, "_write", lambda *_: None)
        run(tmp_path, refused)

    async def paid(harness: Harness) -> None:
        async def stable() -> bool:
            return await last_stable_offset(harness, 0) == 2

        await eventually(stable)
        answer = await harness.fetch("t", 0, 0, isolation_level=1)
        assert [each.value for each in fetched(answer)] == [b"x"]
        assert answer.aborted_transactions == []

    run(tmp_path, paid)


def test_a_deleted_topic_is_owed_nothing(tmp_path: Path) -> None:
    run(tmp_path, open_transaction)
    damage(tmp_path, "t", 0)

    async def deleted(harness: Harness) -> None:
        await take_over(harness)
        await ended_in_the_healthy_partition(harness)
        assert len(harness.broker.state.table("owed_markers")) == 1
        await harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))

    run(tmp_path, deleted)

    async def later(harness: Harness) -> None:
        assert harness.broker.state.table("owed_markers") == {}

    run(tmp_path, later)
