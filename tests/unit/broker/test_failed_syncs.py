"""Every sync of a broker's life fails once: after it nothing is acknowledged, and nothing claims to be clean.

A scenario calls everything that syncs. It runs again and again, and in run number k its k-th sync fails.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.client import Admin, Client, ClientOptions, Producer
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.log.checkpoint import read_checkpoint
from headrace.log.compaction.cleaner import CleaningJob, CleaningResult, clean
from headrace.log.disk import OsDisk, OsFile
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.node import Node
from headrace.record import Record
from headrace.testing.disk import SimulatedDisk
from headrace.wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from headrace.wire.kafka.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.kafka.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from headrace.wire.kafka.messages.transactions import EndTxnRequest, InitProducerIdRequest
from tests.unit.broker.fakes import settle
from tests.unit.broker.harness import Harness, batch
from tests.waiting import eventually

SYNCS = ("datasync", "sync_dir", "syncfs")
RUNS_MAX = 200


class FailingDisk(SimulatedDisk):
    """Its sync number ``fails_at`` fails, and no other."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.fails_at = fails_at
        self.syncs = 0
        self.where = ""
        self.checkpoint: bytes | None = None

    def maybe_fail(self, operation: str, path: str) -> None:
        if operation in SYNCS:
            self.syncs += 1
            if self.syncs == self.fails_at:
                self.where = f"{operation} of {path} on {threading.current_thread().name}"
                self.checkpoint = checkpoint_of(self)
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super().maybe_fail(operation, path)


def checkpoint_of(disk: SimulatedDisk) -> bytes | None:
    path = "/data/checkpoint"
    return disk.open(path).pread(1 << 20, 0) if disk.exists(path) else None


class Stopped(Exception):
    """The broker will not answer."""


@dataclass
class Run:
    """One life, or two, of a broker on one disk."""

    disk: FailingDisk
    failures: list[BaseException] = field(default_factory=list)
    acknowledged: int = 0
    """Records of the topic ``one`` that were acknowledged."""

    async def life(self, scenario: Callable[[Life], Awaitable[None]]) -> None:
        settings = {
            "data": "/data",
            "kafka": "off",
            "amqp": "off",
            "log.cleaner.enable": "false",
            "compaction.memory.bytes": 1 << 20,
        }
        node = Node(Settings(settings), disk=self.disk, on_failure=self.failures.append)
        try:
            await node.start()
            life = Life(self, node)
            try:
                await scenario(life)
            except (SyncFailed, Stopped):
                await life.check_that_nothing_is_acknowledged()
        except SyncFailed:
            pass
        finally:
            await node.stop()


async def clean_here(job: CleaningJob, guard: SyncGuard) -> CleaningResult:
    """Without a child, which would look for the files on the real disk."""
    return clean(guard, job)


class Life(Harness):
    """Asks, and notices when no answer will come."""

    def __init__(self, run: Run, node: Node) -> None:
        super().__init__(node.broker)
        self.run = run
        self.node = node

    async def ask(self, *request: Any, **options: Any) -> Any:
        answer = asyncio.ensure_future(super().ask(*request, **options))
        while not answer.done():
            if self.run.failures:
                await settle()
                if not answer.done():
                    answer.cancel()
                    raise Stopped
            await asyncio.wait({answer}, timeout=0.002)
        return answer.result()

    async def put(self, topic: str, value: bytes = b"v") -> None:
        answer = await self.produce(topic, [Record(key=b"k", value=value, timestamp=1000)])
        assert answer.error_code == 0, answer
        self.run.acknowledged += topic == "one"

    async def check_that_nothing_is_acknowledged(self) -> None:
        attempts = [lambda: self.create("another")]
        if self.broker.topics.get("one") is not None:
            attempts += [lambda: self.put("one"), self.commit]
        if self.broker.topics.get("os") is not None:
            attempts += [lambda: self.put("os")]
        for attempt in attempts:
            with pytest.raises((SyncFailed, Stopped)):
                await attempt()

    async def commit(self) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequestTopic(name="one", partitions=[partition])
        answer = await self.ask(OffsetCommitRequest(group_id="g", topics=[topic]), 8)
        assert answer.topics[0].partitions[0].error_code == 0

    async def transaction(self) -> None:
        init = await self.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4)
        assert init.error_code == 0
        sent = batch(
            b"t",
            producer_id=init.producer_id,
            producer_epoch=init.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        answer = await self.produce("five", sent, transactional_id="x", version=12)
        assert answer.error_code == 0, answer
        ended = await self.ask(
            EndTxnRequest(
                transactional_id="x", producer_id=init.producer_id, producer_epoch=init.producer_epoch, committed=False
            ),
            4,
        )
        assert ended.error_code == 0

    async def delete_records(self) -> None:
        partition = DeleteRecordsPartition(partition_index=0, offset=2)
        topic = DeleteRecordsTopic(name="one", partitions=[partition])
        answer = await self.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=1000))
        assert answer.topics[0].partitions[0].error_code == 0

    async def alter(self) -> None:
        change = IncrementalAlterConfigsRequestAlterableConfig(name="headrace.flush", config_operation=0, value="ack")
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name="interval", configs=[change]
        )
        answer = await self.ask(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0

    async def delete_topic(self) -> None:
        answer = await self.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="five")], timeout_ms=1000))
        assert answer.responses[0].error_code == 0
        while self.broker.state.table("deleted"):
            if self.run.failures:
                raise Stopped
            await asyncio.sleep(0.001)

    async def compact(self) -> None:
        log = self.broker.topics.get("compacted").partition(0).log
        for _ in range(3):
            await self.put("compacted")
        log.roll()
        await self.put("compacted")
        maintenance = self.broker.maintenance
        maintenance._clean = clean_here
        await self.until(asyncio.ensure_future(maintenance.compact()))
        assert maintenance.compactions == 1

    async def checkpoint(self) -> None:
        await self.until(self.broker.maintenance.after_checkpoint())

    async def until(self, done: asyncio.Future[None]) -> None:
        while not done.done():
            if self.run.failures:
                raise Stopped
            await asyncio.wait({done}, timeout=0.002)
        done.result()


async def first_life(life: Life) -> None:
    await life.create("one")
    await life.create("five", 5)
    await life.create("os", headrace_flush="os")
    await life.create("interval", headrace_flush="interval")
    await life.create("compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    for _ in range(2):
        await life.put("one")
    life.broker.topics.get("one").partition(0).log.roll()
    for topic in ("one", "os", "interval"):
        await life.put(topic)
    await life.commit()
    await life.transaction()
    await life.compact()
    await life.delete_records()
    await life.alter()
    await life.delete_topic()


async def second_life(life: Life) -> None:
    await life.put("one")
    await life.checkpoint()
    await life.put("os")


@pytest.mark.slow
def test_whichever_sync_fails_nothing_is_acknowledged_afterwards_and_no_checkpoint_is_written() -> None:
    places = []
    for number in range(1, RUNS_MAX):
        run = Run(FailingDisk(number))
        for scenario in (first_life, second_life):
            if not run.failures:
                asyncio.run(run.life(scenario))
        if not run.disk.where:
            assert not run.failures
            assert read_checkpoint(run.disk, "/data/checkpoint").clean
            break
        places.append(run.disk.where)
        assert run.failures, f"{run.disk.where} failed and nobody heard of it"
        assert [error.errno for error in run.failures if isinstance(error, OSError)] == [errno.EIO]
        assert checkpoint_of(run.disk) == run.disk.checkpoint, f"written after the failed {run.disk.where}"
        run.disk.crash(number)
        assert asyncio.run(records_after_restart(run.disk)) >= run.acknowledged, run.disk.where
    else:
        pytest.fail("the scenario did not end")
    assert len(places) > 30
    for expected in ("syncfs", "sync_dir", "datasync", "checkpoint", "flusher", "Main", "deleted", "cleaned"):
        assert any(expected in place for place in places), f"no sync of the scenario was one of: {expected}"


async def records_after_restart(disk: SimulatedDisk) -> int:
    node = Node(Settings({"data": "/data", "kafka": "off", "amqp": "off"}), disk=disk, on_failure=lambda _: None)
    await node.start()
    topic = node.broker.topics.get("one")
    end = 0 if topic is None else topic.partition(0).log.end_offset
    await node.stop()
    return end


# ---- on the real disk, through a whole node -------------------------------------------------------------------------


class FailingFile(OsFile):
    __slots__ = ()

    def datasync(self) -> None:
        FailingOsDisk.fail_if_asked(self.path)
        super().datasync()


class FailingOsDisk(OsDisk):
    """Fails the syncs of the thread named in ``failing``."""

    failing: str | None = None

    @classmethod
    def fail_if_asked(cls, path: str) -> None:
        if cls.failing == threading.current_thread().name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
        file = super().open(path, create=create, writable=writable)
        failing = FailingFile(file.path, file._fd)
        file._fd = -1
        return failing

    def sync_dir(self, path: str) -> None:
        self.fail_if_asked(path)
        super().sync_dir(path)

    def syncfs(self, path: str) -> None:
        self.fail_if_asked(path)
        super().syncfs(path)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_sync_that_fails_while_a_topic_is_made_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    broker = testing.InProcessBroker(tmp_path, {}, disk=FailingOsDisk())
    broker.start()
    with Client(broker.bootstrap, ClientOptions(retry_timeout_ms=500)) as client:
        with Producer(client) as producer:
            producer.send("before", b"1")
        monkeypatch.setattr(FailingOsDisk, "failing", "headrace-broker")
        Admin(client).create_topic("nothing-is-synced-on-the-loop", partitions=partitions)
        monkeypatch.setattr(FailingOsDisk, "failing", "headrace-disk_0")
        with pytest.raises((HeadraceError, OSError)):
            Admin(client).create_topic("new", partitions=partitions)
        eventually(lambda: broker.failed is not None)
        with pytest.raises((HeadraceError, OSError)), Producer(client) as producer:
            producer.send("before", b"2")
    broker.stop()
    assert not read_checkpoint(OsDisk(), f"{tmp_path}/checkpoint").clean


def test_a_sync_that_fails_while_the_node_stops_leaves_no_clean_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"headrace.flush": "interval", "flush.interval.ms": 600_000}
    broker = testing.InProcessBroker(tmp_path, settings, disk=FailingOsDisk())
    broker.start()
    with Client(broker.bootstrap) as client, Producer(client) as producer:
        producer.send("t", b"acknowledged")
    monkeypatch.setattr(FailingOsDisk, "failing", "headrace-flusher")
    with suppress(SyncFailed):
        broker.stop()
    assert isinstance(broker.failed, OSError)
    assert not read_checkpoint(OsDisk(), f"{tmp_path}/checkpoint").clean
