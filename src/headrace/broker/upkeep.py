"""What happens by itself: interval flushes, checkpoints, retention, compaction, forgetting of idle producers.

Everything that touches the disk for long runs elsewhere: a checkpoint's sync in a thread, a compaction in a child
process with low priority, so that neither holds up a request. Only the swap of finished segments happens on the loop.

Records are removed in three steps: a log's start offset moves (at once, for readers), a checkpoint makes that durable,
and only then do files go. Whoever must not answer before the second step waits for ``checkpointed()``.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from headrace.broker.partition import Partition
from headrace.errors import HeadraceError
from headrace.log.compaction.child import command, job_to_json
from headrace.log.compaction.cleaner import CleaningJob, CleaningResult
from headrace.log.compaction.planning import plan
from headrace.log.retention import advance_by_retention
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.log.waiters import Waiters
from headrace.ports import TimerHandle

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["Upkeep"]

LOG = logging.getLogger("headrace.upkeep")
CHECKPOINT_INTERVAL_S = 5.0
FILES_REMOVED_PER_STEP = 50


class Upkeep:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timers: dict[str, TimerHandle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._checkpoints_begun = 0
        self._waiters: Waiters[int] = Waiters()
        self._everything = False
        self._stopping = False
        self.compactions = 0

    def start(self) -> None:
        settings = self._broker.settings
        self._broker.flusher.on_waiting = self._tick_later
        self._every("checkpoint", CHECKPOINT_INTERVAL_S, lambda: self._spawn("checkpoint", self._checkpoints))
        self._every("retention", settings.integer("log.retention.check.interval.ms") / 1000, self.apply_retention)
        if settings.boolean("log.cleaner.enable"):
            interval_s = max(0.05, settings.integer("log.cleaner.backoff.ms") / 1000)
            self._every("compaction", interval_s, lambda: self._spawn("compaction", self.compact_once))
        self.remove_deleted()

    async def stop(self) -> None:
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        checkpoint = self._tasks.pop("checkpoint", None)
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if checkpoint is not None:
            await asyncio.gather(checkpoint, return_exceptions=True)  # its thread writes a file: let it end

    def _every(self, name: str, interval_s: float, action: Callable[[], object]) -> None:
        def run() -> None:
            if self._stopping:
                return
            try:
                action()
            except HeadraceError as error:
                LOG.error("%s: %s", name, error)
            self._timers[name] = self._broker.clock.call_later(interval_s, run)

        self._timers[name] = self._broker.clock.call_later(interval_s, run)

    def _tick_later(self, delay_s: float) -> None:
        """Logs with headrace.flush=interval are synced when they are due; nothing ticks while none waits."""
        if "flush" not in self._timers and not self._stopping:
            self._timers["flush"] = self._broker.clock.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timers.pop("flush", None)
        delay_s = self._broker.flusher.tick()
        if delay_s is not None:
            self._tick_later(delay_s)

    # ---- checkpoints ----

    def checkpointed(self) -> asyncio.Future[None]:
        """Done when a checkpoint that began after this call is on disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(self._checkpoints_begun, lambda: None if future.done() else future.set_result(None))
        self._spawn("checkpoint", self._checkpoints)
        return future

    async def _checkpoints(self) -> None:
        """One checkpoint, and another while somebody has begun to wait meanwhile."""
        await self._checkpoint()
        while len(self._waiters) and not self._stopping:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        self._checkpoints_begun += 1
        number = self._checkpoints_begun
        store = self._broker.store
        shrunk = [log for log in store.logs.values() if log.has_dead_segments]
        job = store.begin_checkpoint(everything=self._everything or bool(shrunk))
        self._everything = False
        if not (len(self._waiters) or shrunk or job.points):
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, job.sync)
        try:
            await loop.run_in_executor(None, job.write)
        except OSError as error:
            LOG.error("the checkpoint could not be written: %s; the older one stands", error)
            for log in shrunk:
                log.remove_dead_segments(regardless=True)  # the only way out of a full disk
            await asyncio.sleep(1.0)
            return
        store.finish_checkpoint(job)
        for log in shrunk:
            log.remove_dead_segments()
        self._waiters.release_below(number)

    # ---- retention and deletion ----

    def space_wanted(self) -> None:
        """Records were dropped: their files go with a checkpoint, soon."""
        self._spawn("checkpoint", self._checkpoints)

    def apply_retention(self) -> None:
        """Move the start offsets that retention asks for; the next checkpoint removes the files."""
        now_ms = self._broker.clock.wall_ms()
        expiration_ms = self._broker.settings.integer("producer.id.expiration.ms")
        moved = False
        for topic in self._broker.topics.all():
            for partition in topic.served:
                partition.log.producers.expire(now_ms, expiration_ms)
                moved = advance_by_retention(partition.log, now_ms) or moved
        if moved:
            self._spawn("checkpoint", self._checkpoints)

    def remove_deleted(self) -> None:
        """Free the space of deleted topics, a few files at a time."""
        self._spawn("removal", self._remove_deleted)

    async def _remove_deleted(self) -> None:
        loop = asyncio.get_running_loop()
        more = True
        while more:
            more = await loop.run_in_executor(None, self._broker.store.remove_deleted, FILES_REMOVED_PER_STEP)

    # ---- compaction ----

    async def compact_once(self) -> None:
        """Compact the logs that are due, one after the other."""
        compacted = [topic for topic in self._broker.topics.all() if topic.config.compacted]
        partitions = [partition for topic in compacted for partition in topic.served]
        if any(each.log.segments[-1].base_offset > each.log.mark.recovery_offset for each in partitions):
            # Only what no recovery can cut any more is rewritten.
            self._everything = True
            await self.checkpointed()
        for partition in partitions:
            if not partition.removed:
                await self._compact(partition)

    async def _compact(self, partition: Partition) -> None:
        memory = self._broker.settings.integer("compaction.memory.bytes")
        job = plan(partition.log, self._broker.clock.wall_ms(), map_bytes_max=memory)
        if job is None:
            return
        result = await _clean_in_child(job, self._broker.flusher.disk)
        if not partition.removed:
            saved_bytes = partition.log.swap_in(result.groups, result.cleaned_offset)
            self.compactions += 1
            LOG.info(
                "compacted %s-%d: %d keys, %d bytes saved", partition.topic, partition.index, result.keys, saved_bytes
            )

    # ---- tasks ----

    def _spawn(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run ``work`` unless the same work is under way."""
        if name in self._tasks or self._stopping:
            return
        task = asyncio.get_running_loop().create_task(work(), name=name)
        self._tasks[name] = task
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        name = task.get_name()
        self._tasks.pop(name, None)
        if task.cancelled() or (error := task.exception()) is None:
            if name == "checkpoint" and len(self._waiters):
                self._spawn("checkpoint", self._checkpoints)
            return
        if not isinstance(error, SyncFailed):  # which has been reported
            LOG.error("%s failed: %s", name, error, exc_info=error)


class CompactionFailed(HeadraceError):
    """The child that compacts could not; the log is as it was."""


async def _clean_in_child(job: CleaningJob, guard: SyncGuard) -> CleaningResult:
    """Rewriting gigabytes happens in another process, so that no request waits for it."""
    child = await asyncio.create_subprocess_exec(
        *command(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await child.communicate(job_to_json(job).encode())
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    answer = json.loads(output) if output else {"error": f"it ended with status {child.returncode}"}
    if "sync_failed" in answer:
        guard.fail(OSError(errno.EIO, answer["sync_failed"], job.directory))
        guard.check()
    if "error" in answer:
        raise CompactionFailed(f"compaction of {job.directory} failed: {answer['error']}")
    return CleaningResult.from_json(answer)
