"""Snapshots of the data directory while the broker serves: for ``headrace backup``.

``log/snapshot.py`` says what a snapshot is. Here the moment is chosen. Maintenance is asked to leave the files of logs
in place, which waits for a checkpoint or a compaction that is under way. Then the cut is made; the broker goes on
serving while the cut is described, in steps, and links are made on a thread.

A process on this machine reads the snapshot and holds its lock. Those that no process holds are removed: at the start,
and ``SWEEP_INTERVAL_S`` after each other while there are any. A new one has ``GRACE_S`` to find its reader.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.broker.access import Operation
from headrace.broker.errors import code_of
from headrace.broker.replies import PendingReply
from headrace.broker.request import Request
from headrace.broker.slices import Steps
from headrace.errors import HeadraceError
from headrace.log.errors import storage_error
from headrace.log.maintenance import Maintenance
from headrace.log.snapshot import Cut, SnapshotJob, sweep
from headrace.log.store import LogStore
from headrace.ports import Clock, TimerHandle
from headrace.wire.kafka.messages.snapshots import CreateSnapshotRequest, CreateSnapshotResponse

__all__ = ["Snapshots"]

LOG = logging.getLogger("headrace.snapshots")

T = TypeVar("T")

GRACE_S = 60.0
SWEEP_INTERVAL_S = 60.0


class Snapshots:
    """Makes snapshots, one at a time, and removes those that nobody reads any more."""

    def __init__(self, *, store: LogStore, maintenance: Maintenance, clock: Clock, cluster_id: str) -> None:
        self._store = store
        self._maintenance = maintenance
        self._clock = clock
        self._cluster_id = cluster_id
        self._made: dict[str, float] = {}
        """When each that may still be there was made."""
        self._timer: TimerHandle | None = None
        self._directory = asyncio.Lock()
        """Held while snapshots are made or removed: one that is being made has no reader yet."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Remove what an earlier run has left."""
        self._spawn_sweep()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def create_snapshot(self, request: Request[CreateSnapshotRequest]) -> Steps[CreateSnapshotResponse]:
        try:
            request.access.check_cluster(Operation.ALTER)
            reply: PendingReply[asyncio.Task[str]] = PendingReply()
            self._spawn(self._create()).add_done_callback(reply.deliver)
            done: asyncio.Task[str] = yield reply
            return CreateSnapshotResponse(path=done.result())
        except HeadraceError as error:
            return CreateSnapshotResponse(error_code=code_of(error), error_message=error.message)

    async def _create(self) -> str:
        """The directory of a new snapshot. Raises StorageError."""
        async with self._directory:
            return await self._make()

    async def _make(self) -> str:
        store = self._store
        now_ms = self._clock.wall_ms()
        job = SnapshotJob(store.disk, store.directory, f"{now_ms}-{os.urandom(4).hex()}", now_ms, self._cluster_id)
        loop = asyncio.get_running_loop()
        began = self._clock.monotonic()
        async with self._maintenance.files:
            for _ in Cut(store).describe(job):
                await asyncio.sleep(0)
            try:
                await loop.run_in_executor(None, job.run)
            except OSError as error:
                raise storage_error(error, job.path) from error
        self._made[job.snapshot_id] = self._clock.monotonic()
        LOG.info("snapshot %s of %d logs made in %.1f s", job.path, len(job.logs), self._clock.monotonic() - began)
        self._sweep_later()
        return job.path

    # ---- removing ---------------------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(SWEEP_INTERVAL_S, self._spawn_sweep)

    def _spawn_sweep(self) -> None:
        self._timer = None
        self._spawn(self._sweep())

    def _spawn(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _sweep(self) -> None:
        async with self._directory:
            left = await self._swept()
        if left:
            self._sweep_later()

    async def _swept(self) -> frozenset[str]:
        """The snapshots that are left."""
        now = self._clock.monotonic()
        young = frozenset(each for each, made_at in self._made.items() if now - made_at < GRACE_S)
        store = self._store
        try:
            left = await asyncio.get_running_loop().run_in_executor(None, sweep, store.disk, store.directory, young)
        except OSError as error:
            LOG.warning("a snapshot could not be removed: %s; it is tried again", error)
            self._sweep_later()
            left = young
        self._made = {each: made_at for each, made_at in self._made.items() if each in left}
        return left
