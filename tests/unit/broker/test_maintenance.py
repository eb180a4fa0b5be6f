"""Retention, compaction and checkpoints, as the broker runs them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from headrace.record import Record
from tests.unit.broker.harness import Harness, fetched, running


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


def test_retention_by_bytes_and_by_time_removes_whole_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            await harness.create("bytes", segment_bytes="1048576", retention_bytes="2000000")
            await harness.create("time", segment_bytes="1048576", retention_ms="1000")
            await fill(harness, "bytes", rounds=30, keys=10)
            await fill(harness, "time", rounds=10, keys=10)
            await asyncio.sleep(1.1)
            await harness.broker.maintenance.apply_retention()
            await harness.broker.maintenance.checkpointed()
            by_bytes = harness.partition("bytes", 0).log
            assert 2_000_000 <= by_bytes.size_bytes <= 4_000_000
            assert by_bytes.start_offset > 0
            by_time = harness.partition("time", 0).log
            assert by_time.start_offset == by_time.end_offset == 100
            assert by_time.size_bytes == 0

    asyncio.run(scenario())
