"""What a store does by itself: interval flushes, checkpoints, retention, removal, compaction.

Everything that touches the disk for long runs elsewhere: a checkpoint's sync and the removal of files in a thread, a
compaction in a child process with low priority. The work that remains for the event loop is cut into slices.

Records are removed in three steps: a log's start offset moves (at once, for readers), a checkpoint makes that durable,
and only then do files go. A request that must not be answered before the second step waits for
``after_checkpoint()``.

No error ends this work for the life of the process. What a disk refuses is logged and tried again at the next
interval, and one log's error does not concern another. Only a failed sync is the end; ``sync_guard.py`` handles it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError
from headrace.log.compaction.cleaner import CleaningJob, CleaningResult
from headrace.log.compaction.owner import clean_in_child
from headrace.log.compaction.planning import plan
from headrace.log.errors import StorageError, SwapUnfinished
from headrace.log.flush import Flusher
from headrace.log.log import PartitionLog
from headrace.log.removal import Removal
from headrace.log.retention import advance_by_retention
from headrace.log.space import LogSpace
from headrace.log.store import CheckpointJob, LogStore, in_chunks
from headrace.log.sync_guard import SyncFailed, SyncGuard
from headrace.log.waiters import Waiters
from headrace.ports import Clock, TimerHandle

__all__ = ["Maintenance", "MaintenanceSettings"]

LOG = logging.getLogger("headrace.maintenance")
CHECKPOINT_INTERVAL_S = 5.0
RETRY_S = 1.0
FILES_REMOVED_PER_STEP = 50
LOGS_PER_SLICE = 100
LOGS_PER_REMOVAL = 20

_EXPECTED = (OSError, HeadraceError)
"""What a disk, or a file on it, can cause."""

Work = Callable[[], Coroutine[None, None, None]]
Cleaner = Callable[[CleaningJob, SyncGuard], Awaitable[CleaningResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """How often, and with how much memory. They are asked for before each use, so they may change."""

    retention_interval_s: float
    compaction_interval_s: float
    compaction_enabled: bool
    compaction_memory_bytes: int


class Maintenance:
    """Looks after all logs of a store. Everything here is called on the owner's event loop."""

    def __init__(
        self,
        *,
        store: LogStore,
        flusher: Flusher,
        clock: Clock,
        settings: Callable[[], MaintenanceSettings],
        on_damaged: Callable[[PartitionLog, StorageError], None],
        clean: Cleaner = clean_in_child,
    ) -> None:
        """``on_damaged`` is called with a log that can no longer be served."""
        self._store = store
        self._flusher = flusher
        self._clock = clock
        self._settings = settings
        self._on_damaged = on_damaged
        self._clean = clean
        self._timers: dict[str, TimerHandle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._checkpoints_begun = 0
        self._checkpoint_waiters: Waiters[int] = Waiters()
        self._space_wanted_at: int | None = None
        """A checkpoint after this one frees space."""
        self._to_forget: deque[tuple[LogSpace, str]] = deque()
        self._to_move: dict[tuple[LogSpace, str], Callable[[], None]] = {}
        self._reported: dict[str, str] = {}
        self._stopping = False
        self.files = asyncio.Lock()
        """Held while files of logs are removed, renamed or replaced. A snapshot holds it to keep them in place."""
        self.checkpoints = 0
        self.compactions = 0
        self.compaction_saved_bytes = 0
        self.removed_bytes = 0
        """Of segments that retention, deleted records or a full partition have made superfluous."""
        self.errors = 0

    def start(self) -> None:
        self._flusher.on_waiting = self._tick_later
        self._every("checkpoint", lambda: CHECKPOINT_INTERVAL_S, self._checkpoints)
        self._every("retention", lambda: self._settings().retention_interval_s, self.apply_retention)
        self._every("removal", lambda: self._settings().retention_interval_s, self._remove_deleted)
        self._every("compaction", lambda: self._settings().compaction_interval_s, self._compact_if_enabled)
        self._spawn("removal", self._remove_deleted)

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

    # Timers and tasks.

    def _every(self, name: str, interval_s: Callable[[], float], work: Work) -> None:
        def run() -> None:
            self._timers[name] = self._clock.call_later(interval_s(), run)
            self._spawn(name, work)

        self._timers[name] = self._clock.call_later(interval_s(), run)

    def _spawn(self, name: str, work: Work) -> None:
        """Run ``work`` unless the same work is under way."""
        if name in self._tasks or self._stopping:
            return
        task = asyncio.get_running_loop().create_task(work(), name=name)
        self._tasks[name] = task
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        name = task.get_name()
        self._tasks.pop(name, None)
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._reported.pop(name, None)
            if name == "checkpoint" and self._is_checkpoint_wanted:
                self._spawn("checkpoint", self._checkpoints)
            if name == "removal" and self._to_move:
                self._spawn("removal", self._remove_deleted)
        elif isinstance(error, _EXPECTED):
            self._report(name, f"{name}: {error}; it is tried again")
        elif not isinstance(error, SyncFailed):  # which has been reported
            LOG.error("%s failed: %s", name, error, exc_info=error)

    def _report(self, subject: str, message: str) -> None:
        """Say the same thing about the same subject once."""
        self.errors += 1
        if self._reported.get(subject) != message:
            self._reported[subject] = message
            LOG.error("%s", message)

    async def _pause(self, delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(delay_s, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    # Interval flushes.

    def _tick_later(self, delay_s: float) -> None:
        """Logs with headrace.flush=interval are synced when they are due; nothing ticks while none waits."""
        if "flush" not in self._timers and not self._stopping:
            self._timers["flush"] = self._clock.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timers.pop("flush", None)
        delay_s = self._flusher.tick()
        if delay_s is not None:
            self._tick_later(delay_s)

    # Checkpoints.

    def after_checkpoint(self) -> asyncio.Future[None]:
        """Done when a checkpoint that began after this call has been made, or refused by the disk. The logs say what is
        durable then."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._checkpoint_waiters.add(
            self._checkpoints_begun, lambda: None if future.done() else future.set_result(None)
        )
        self._spawn("checkpoint", self._checkpoints)
        return future

    def space_wanted(self) -> None:
        """Records were dropped: their files go with a checkpoint that begins now, or after the one under way.

        This may be called for every produced batch, also while checkpoints fail. Only the latest call is remembered.
        """
        self._space_wanted_at = self._checkpoints_begun
        self._spawn("checkpoint", self._checkpoints)

    @property
    def _is_checkpoint_wanted(self) -> bool:
        return self._space_wanted_at is not None or len(self._checkpoint_waiters) > 0

    async def _checkpoints(self) -> None:
        """One checkpoint, and more while somebody waits for one that began later."""
        await self._checkpoint()
        while self._is_checkpoint_wanted and not self._stopping:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        self._checkpoints_begun += 1
        number = self._checkpoints_begun
        store = self._store
        job = store.new_checkpoint()
        await _in_turns(store.collect(job))
        if not (self._is_checkpoint_wanted or job.shrunk or job.prepared or job.starts):
            return
        async with self.files:
            is_written = await self._carry_out(job)
        if is_written and self._space_wanted_at is not None and self._space_wanted_at < number:
            self._space_wanted_at = None
        self._checkpoint_waiters.release_below(number)
        if not is_written:
            await self._pause(RETRY_S)

    async def _carry_out(self, job: CheckpointJob) -> bool:
        """Whether the checkpoint was written."""
        store = self._store
        await asyncio.get_running_loop().run_in_executor(None, job.sync)
        is_written = await self._written(job)
        await _in_turns(store.synced(job))
        for log, error in job.refused:
            self._report(log.directory, f"{log.directory}: the start marker: {error}; it is tried again")
        if is_written:
            await _in_turns(store.written(job))
            self.checkpoints += 1
        refused = {log for log, _ in job.refused}
        await self._remove_dead_segments(job.shrunk, lambda log: not is_written or log in refused)
        return is_written

    async def _written(self, job: CheckpointJob) -> bool:
        try:
            await asyncio.get_running_loop().run_in_executor(None, job.write)
        except OSError as error:
            self._report("checkpoint", f"the checkpoint could not be written: {error}; the older one stands")
            return False
        return True

    async def _remove_dead_segments(
        self, logs: Sequence[PartitionLog], regardless: Callable[[PartitionLog], bool]
    ) -> None:
        """``regardless`` says for which logs no checkpoint was possible: removal is the only way out of a full disk."""
        loop = asyncio.get_running_loop()
        for some in in_chunks(logs, LOGS_PER_REMOVAL):
            removals = []
            for log in some:
                try:
                    removal = None if log.is_retired else log.begin_removal(regardless=regardless(log))
                    removals += [(log, removal)] if removal is not None else []
                except _EXPECTED as error:
                    self._report_removal(log, error)
            await loop.run_in_executor(None, _run_all, [removal for _, removal in removals])
            for log, removal in removals:
                self.removed_bytes += log.finish_removal(removal)
                if removal.error is not None and not log.is_retired:
                    self._report_removal(log, removal.error)

    def _report_removal(self, log: PartitionLog, error: Exception) -> None:
        self._report(log.directory, f"{log.directory}: removing old segments: {error}; it is tried again")

    # Retention and deletion.

    async def apply_retention(self) -> None:
        """Move the start offsets that retention asks for; the next checkpoint removes the files."""
        moved = False
        async for log in _some_per_turn(list(self._store.logs.values())):
            if log.is_retired:
                continue
            now_ms = self._clock.wall_ms()
            try:
                log.expire_producers(now_ms)
                moved = advance_by_retention(log, now_ms) or moved
            except _EXPECTED as error:
                self._report(log.directory, f"{log.directory}: retention: {error}; it is tried again")
        if moved:
            self.space_wanted()

    def delete_group(self, space: LogSpace, group: str, on_moved: Callable[[], None]) -> None:
        """Take a group out of its space, call ``on_moved`` when that is durable, then free its files. Thousands may be
        deleted at once, so this only notes the group."""
        self._to_forget.append((space, group))
        self._to_move[space, group] = on_moved
        self._spawn("removal", self._remove_deleted)

    async def _forget_deleted(self) -> None:
        while self._to_forget:
            space, group = self._to_forget.popleft()
            await _in_turns(space.forget_in_steps(group))

    async def _remove_deleted(self) -> None:
        """What the disk refuses to move or to remove keeps no other group from it. It is tried again with the next."""
        loop = asyncio.get_running_loop()
        refused: dict[tuple[LogSpace, str], OSError] = {}
        while following := next((each for each in self._to_move if each not in refused), None):
            await self._forget_deleted()
            space, group = following
            try:
                async with self.files:
                    await loop.run_in_executor(None, space.move_deleted, group)
            except OSError as error:
                refused[space, group] = error
            else:
                self._to_move.pop((space, group))()
        more = True
        while more:
            more = await loop.run_in_executor(None, self._store.remove_deleted, FILES_REMOVED_PER_STEP)
        for refusal in refused.values():
            raise refusal

    # Compaction.

    async def _compact_if_enabled(self) -> None:
        if self._settings().compaction_enabled:
            await self.compact()

    async def compact(self) -> None:
        """Compact the logs that are due, one after the other."""
        logs = [log for log in self._store.logs.values() if log.config.cleanup_compact]
        recovery_may_cut = False
        async for log in _some_per_turn(logs):
            recovery_may_cut |= log.segments[-1].base_offset > log.mark.recovery_offset
        if recovery_may_cut:
            await self.after_checkpoint()  # only what no recovery can cut any more is rewritten
        async for log in _some_per_turn(logs):
            if not log.is_retired:
                await self._compact(log)

    async def _compact(self, log: PartitionLog) -> None:
        try:
            job = plan(
                log,
                self._clock.wall_ms(),
                token=os.urandom(8).hex(),
                map_bytes_max=self._settings().compaction_memory_bytes,
            )
            if job is None:
                return
            result = await self._clean(job, self._flusher.disk)
            async with self.files:
                saved_bytes = await self._swap(log, result)
        except _EXPECTED as error:
            if log.is_retired:
                return
            if isinstance(error, SwapUnfinished):
                LOG.error("%s", error)
                self._on_damaged(log, error)
                return
            self._report(log.directory, f"compaction of {log.directory}: {error}; it is tried again")
            return
        self._reported.pop(log.directory, None)
        self.compactions += 1
        self.compaction_saved_bytes += saved_bytes
        LOG.info("compacted %s: %d keys, %d bytes saved", log.directory, result.keys, saved_bytes)

    async def _swap(self, log: PartitionLog, result: CleaningResult) -> int:
        swap = log.begin_swap(result)
        under_way = asyncio.get_running_loop().run_in_executor(None, swap.run)
        try:
            await asyncio.shield(under_way)
        finally:
            await asyncio.wait({under_way})  # cancelling this task does not stop the thread
            saved_bytes = log.finish_swap(swap)
        return saved_bytes


async def _in_turns(steps: Iterator[None]) -> None:
    """One step per turn of the loop."""
    for _ in steps:
        await asyncio.sleep(0)


async def _some_per_turn(logs: Sequence[PartitionLog]) -> AsyncIterator[PartitionLog]:
    """The logs one by one, with a turn of the loop after each slice: there may be tens of thousands."""
    for some in in_chunks(logs, LOGS_PER_SLICE):
        for log in some:
            yield log
        await asyncio.sleep(0)


def _run_all(removals: list[Removal]) -> None:
    for removal in removals:
        removal.run()
