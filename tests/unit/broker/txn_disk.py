"""The whole broker on a simulated disk, in the clothes of ``txn_fakes.World``: one model runs on both.

Here files are files: a crash tears and forgets what was not synced byte by byte, recovery cuts, journals fold. Flushing
one file alone is not offered (the flusher syncs whatever is marked); which of them survive is the crash's choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from headrace.batch import Batch, read_batches
from headrace.broker.broker import Broker
from headrace.broker.partition import Partition
from headrace.broker.replies import PendingReply
from headrace.broker.request import Peer, Request
from headrace.broker.topics import NewTopic
from headrace.config import Settings
from headrace.log.store import LogStore
from headrace.testing.clock import VirtualClock
from headrace.testing.disk import SimulatedDisk
from headrace.wire.kafka.messages import transactions as messages
from tests.flushing import FlusherByHand
from tests.unit.broker.txn_fakes import Asking, Outcome, outcome

BATCH_BYTES_MAX = 1 << 24


class DiskPartition:
    """A real partition with the fake one's words."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.topic = partition.topic
        self.index = partition.index
        self.log = partition.log

    @property
    def waiters(self) -> SimpleNamespace:
        return SimpleNamespace(flushed=self.log.flushed_offset)

    def append(self, batch: Batch) -> int:
        self.partition.append(batch)
        return batch.last_offset

    def batches(self) -> Iterator[Batch]:
        offset = self.log.start_offset
        while offset < self.log.end_offset:
            for part in self.log.reader.read(offset, bytes_max=1 << 20, offset_max=self.log.end_offset):
                for batch in read_batches(part.read(), batch_bytes_max=BATCH_BYTES_MAX, from_client=False):
                    yield batch
                    offset = batch.next_offset

    def outcome(self) -> Outcome:
        return outcome(self.batches())


class DiskGroups:
    """Offsets in transactions by real requests; the model names a group after its client."""

    def __init__(self, world: DiskWorld) -> None:
        self.world = world

    def pend(self, producer_id: int, group: str, offset: int) -> int:
        name = group.removeprefix("group-of-")
        epoch = self.world.broker.transactions.find(name).producer_epoch
        place = messages.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        body = messages.TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[messages.TxnOffsetCommitRequestTopic(name="a", partitions=[place])],
        )
        request = Request(api_key=28, version=5, body=body, peer=Peer(id=1))
        self.world.do(lambda: self.world.broker.handle(request))
        return self.world.state_end() - 1

    def committed(self, group: str) -> int | None:
        return self.world.broker.offsets.committed_offset(group, "a", 0)


class DiskWorld(Asking):
    """A broker that lives on a disk and dies with it."""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        clock: VirtualClock | None = None,
        runner: asyncio.Runner | None = None,
    ) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = clock or VirtualClock()
        self.runner = runner or asyncio.Runner()
        self.do(self.open)
        if disk is None:
            self.runner.run(self.create_topics())
        self.partitions = [DiskPartition(each) for topic in self.broker.topics.all() for each in topic.partitions]
        self.groups = DiskGroups(self)
        self.advance(0)

    def open(self) -> None:
        store = LogStore.open(self.disk, "/data")
        self.flusher = FlusherByHand(self.disk, "/data", monotonic=self.clock.monotonic)
        settings = Settings({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000})
        self.broker = Broker(store=store, flusher=self.flusher, clock=self.clock, settings=settings)
        self.broker.group_coordinator.load()
        self.broker.transaction_coordinator.load()
        self.coordinator = self.broker.transaction_coordinator
        self.gate = self.broker._gate

    async def create_topics(self) -> None:
        reply = self.broker.slices.run(self.broker.topics.create([NewTopic("a", 2, {}), NewTopic("b", 1, {})]))
        assert isinstance(reply, PendingReply)
        while not reply.ready:
            self.flusher.flush()
            await asyncio.sleep(0.0001)

    @property
    def state(self) -> SimpleNamespace:
        return SimpleNamespace(waiters=SimpleNamespace(flushed=self.broker.state._log.flushed_offset))

    def state_end(self) -> int:
        return self.broker.state._log.end_offset

    def flush_state(self) -> None:
        self.do(self.flusher.flush)

    def flush_partitions(self, *_: Any) -> None:
        self.flush_state()

    def flush(self) -> None:
        """Flush until nobody writes any more."""
        ends: list[int] = []
        while True:
            self.flush_state()
            now = [self.state_end(), *(each.log.end_offset for each in getattr(self, "partitions", []))]
            if now == ends:
                return
            ends = now

    def crash(self, choose: Callable[[int, int], int]) -> DiskWorld:
        self.do(self.coordinator.close)
        self.do(self.broker.group_coordinator.close)
        self.disk.crash(choose(0, 1 << 30))
        return DiskWorld(self.disk, self.clock, self.runner)

    def close(self) -> None:
        self.do(self.coordinator.close)
        self.runner.close()
