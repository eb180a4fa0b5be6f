"""Retention, compaction and checkpoints, as the broker runs them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from headrace.broker.broker import settled
from headrace.errors import ErrorCode
from headrace.record import Record
from headrace.wire.kafka.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.unit.broker.harness import Harness, fetched, running
from tests.waiting import PATIENCE_S


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def fill(harness: Harness, topic: str, rounds: int, keys: int, size: int = 20_000) -> None:
    """Enough for several segments of 1 MiB, the same keys over and over."""
    for turn in range(rounds):
        records = [
            Record(key=b"k%d" % key, value=b"%d-%d-" % (turn, key) + b"x" * size, timestamp=now_ms())
            for key in range(keys)
        ]
        answer = await harness.produce(topic, records)
        assert answer.error_code == 0


async def everything(harness: Harness, topic: str) -> list[Record]:
    log = harness.partition(topic, 0).log
    offset, records = log.start_offset, []
    while offset < log.end_offset:
        found = fetched(await harness.fetch(topic, offset, partition_max_bytes=1 << 26, max_bytes=1 << 26))
        records += [each for each in found if each.offset >= offset]
        if not found:
            break
        offset = found[-1].offset + 1
    return records


@pytest.mark.slow
def test_compaction_in_a_child_keeps_the_last_record_of_each_key_and_its_offset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, {"log.cleaner.enable": "false"}) as harness:
            await harness.create(
                "t", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.01"
            )
            await fill(harness, "t", rounds=20, keys=10)
            before = {each.key: each for each in await everything(harness, "t")}
            log = harness.partition("t", 0).log
            size_before = log.size_bytes
            await harness.broker.maintenance.compact()
            assert harness.broker.maintenance.compactions == 1
            after = await everything(harness, "t")
            assert {each.key: each for each in after} == before
            assert [each.offset for each in after] == sorted(each.offset for each in after)
            assert log.size_bytes < size_before / 2
        async with running(tmp_path, {"log.cleaner.enable": "false"}) as harness:
            assert {each.key: each for each in await everything(harness, "t")} == before

    asyncio.run(scenario())


def test_what_must_be_compacted_in_time_does_not_stay_in_the_active_segment(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, {"log.cleaner.enable": "false"}) as harness:
            await harness.create(
                "t", cleanup_policy="compact", max_compaction_lag_ms="60000", min_cleanable_dirty_ratio="1"
            )
            await harness.create("plain", max_compaction_lag_ms="60000")
            begun = now_ms() - 120_000
            for topic in ("t", "plain"):
                for number, time_ms in enumerate((begun, begun + 1000, begun + 61_000)):
                    record = Record(key=b"k", value=b"%d" % number, timestamp=time_ms)
                    assert (await harness.produce(topic, [record])).error_code == 0
            assert len(harness.partition("plain", 0).log.segments) == 1
            assert len(harness.partition("t", 0).log.segments) == 2
            await harness.broker.maintenance.compact()
            assert [each.value for each in await everything(harness, "t")] == [b"1", b"2"]

    asyncio.run(scenario())


def test_retention_by_bytes_and_by_time_removes_whole_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("bytes", segment_bytes="1048576", retention_bytes="2000000")
            await harness.create("time", segment_bytes="1048576", retention_ms="1000")
            await fill(harness, "bytes", rounds=30, keys=10)
            await fill(harness, "time", rounds=10, keys=10)
            await asyncio.sleep(1.1)
            await harness.broker.maintenance.apply_retention()
            await harness.broker.maintenance.after_checkpoint()
            by_bytes = harness.partition("bytes", 0).log
            assert 2_000_000 <= by_bytes.size_bytes <= 4_000_000
            assert by_bytes.start_offset > 0
            by_time = harness.partition("time", 0).log
            assert by_time.start_offset == by_time.end_offset == 100
            assert by_time.size_bytes == 0

    asyncio.run(scenario())


def test_deleted_records_are_served_until_their_deletion_is_durable(tmp_path: Path) -> None:
    """Else a client could see a start offset that a crash takes back."""

    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            await harness.produce("t", [b"a"])
            await harness.produce("t", [b"b"])
            log = harness.partition("t", 0).log
            asked = [DeleteRecordsPartition(partition_index=0, offset=1)]
            request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=asked)], timeout_ms=60_000)
            reply = harness.start(request)
            assert not reply.ready
            answer = await harness.fetch("t", 0)
            assert [each.value for each in fetched(answer)] == [b"a", b"b"]
            assert (answer.log_start_offset, log.durable_start_offset) == (0, 0)
            answer = (await asyncio.wait_for(settled(reply), PATIENCE_S)).topics[0].partitions[0]
            assert (answer.error_code, answer.low_watermark) == (0, 1)
            assert (log.start_offset, log.durable_start_offset) == (1, 1)
            assert (await harness.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    asyncio.run(scenario())


def test_records_whose_removal_the_disk_refuses_to_remember_are_answered_with_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("t")
            await harness.produce("t", [b"a"])
            await harness.produce("t", [b"b"])
            obstacle = f"{harness.partition('t', 0).log.directory}/{1:020d}.start"
            os.mkdir(obstacle)  # where the start marker would be
            asked = [DeleteRecordsPartition(partition_index=0, offset=1)]
            request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=asked)], timeout_ms=60_000)
            answer = await harness.ask(request)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert answer.topics[0].partitions[0].low_watermark == -1
            os.rmdir(obstacle)
            answer = await harness.ask(request)
            assert (answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].low_watermark) == (0, 1)

    asyncio.run(scenario())
