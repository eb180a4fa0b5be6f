"""What happens by itself: interval flushes, checkpoints, retention, compaction, forgetting of idle producers.

Everything that touches the disk for long runs elsewhere: a checkpoint's sync in a thread, a compaction in a child
process with low priority, so that neither holds up a request. Only the swap of finished segments happens on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.errors import KafkaError
from headrace.log import compaction, retention
from headrace.ports import TimerHandle

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["Upkeep"]

LOG = logging.getLogger("headrace.upkeep")
CHECKPOINT_INTERVAL_S = 5.0
FLUSH_TICK_S = 0.1


class Upkeep:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timers: dict[str, TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.compactions = 0

    def start(self) -> None:
        settings = self._broker.settings
        self._every("flush", FLUSH_TICK_S, self._tick_flusher)
        self._every("checkpoint", CHECKPOINT_INTERVAL_S, self._spawn_checkpoint)
        self._every("retention", settings.integer("log.retention.check.interval.ms") / 1000, self.apply_retention)
        if settings.boolean("log.cleaner.enable"):
            self._every("compaction", settings.integer("log.cleaner.backoff.ms") / 1000, self._spawn_compaction)

    async def stop(self) -> None:
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _every(self, name: str, interval_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            if self._stopping:
                return
            try:
                action()
            except KafkaError as error:
                LOG.error("%s: %s", name, error)
            self._timers[name] = self._broker.clock.call_later(interval_s, run)

        self._timers[name] = self._broker.clock.call_later(interval_s, run)

    def _tick_flusher(self) -> None:
        self._broker.flusher.tick()

    # ---- checkpoints ----

    def _spawn_checkpoint(self) -> None:
        if not any(task.get_name() == "checkpoint" for task in self._tasks):
            self._spawn("checkpoint", self._checkpoint())

    async def _checkpoint(self) -> None:
        job = self._broker.store.begin_checkpoint()
        if not job.points:
            return
        await asyncio.get_running_loop().run_in_executor(None, job.run)
        self._broker.store.finish_checkpoint(job)

    # ---- retention ----

    def apply_retention(self) -> None:
        now_ms = self._broker.clock.wall_ms()
        for topic in self._broker.topics.all():
            for partition in topic.partitions:
                partition.log.producers.expire(now_ms, self._broker.settings.integer("producer.id.expiration.ms"))
                retention.apply(partition.log, now_ms, upto=partition.high_watermark)

    # ---- compaction ----

    def _spawn_compaction(self) -> None:
        if not any(task.get_name() == "compaction" for task in self._tasks):
            self._spawn("compaction", self.compact_once())

    async def compact_once(self) -> None:
        """Compact the logs that are due, one after the other."""
        for topic in self._broker.topics.all():
            if topic.config.compacted:
                for partition in topic.partitions:
                    if not partition.removed:
                        await self._compact(partition)

    async def _compact(self, partition: Partition) -> None:
        memory = self._broker.settings.integer("compaction.memory.bytes")
        job = compaction.plan(partition.log, self._broker.clock.wall_ms(), memory_bytes=memory)
        if job is None:
            return
        result = await compaction.run_in_child(job)
        if not partition.removed:
            partition.log.swap_in(result)
            self.compactions += 1
            LOG.info("compacted %s-%d: %s", partition.topic, partition.index, result)

    def _spawn(self, name: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, OSError):
                self._broker.flusher.fail(error)
            else:
                LOG.error("%s failed: %s", task.get_name(), error, exc_info=error)
