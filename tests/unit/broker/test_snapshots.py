"""Snapshots of a broker that serves: when they are made."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.replies import PendingReply
from headrace.broker.snapshots import Snapshots
from headrace.clock import SystemClock
from headrace.log.store import LogStore
from headrace.testing.disk import SimulatedDisk
from tests.unit.log.builders import SMALL, fill, open_log


def test_the_moment_comes_when_nobody_removes_or_replaces_files_and_they_stay_until_links_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    store = LogStore.open(disk, "/data")
    log = open_log(store, "a", UUID(int=7), 0, SMALL)
    fill(log, 3)
    anybody: Any = SimpleNamespace(access=SimpleNamespace(check_cluster=lambda operation: None))

    async def scenario() -> None:
        files = asyncio.Lock()
        link = disk.link

        def linked(source: str, target: str) -> None:
            assert files.locked()
            link(source, target)

        monkeypatch.setattr(disk, "link", linked)
        maintenance: Any = SimpleNamespace(files=files)
        snapshots = Snapshots(store=store, maintenance=maintenance, clock=SystemClock(), cluster_id="c")
        await files.acquire()  # a compaction puts its segments in place
        reply = cast("PendingReply[asyncio.Task[str]]", next(snapshots.create_snapshot(anybody)))
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert not disk.exists("/data/snapshots")
        fill(log, 2)
        ready = asyncio.Event()
        reply.taker = ready.set
        files.release()
        await ready.wait()
        assert reply.response is not None
        assert disk.exists(f"{reply.response.result()}/snapshot.json")
        assert not files.locked()
        await snapshots.stop()

    asyncio.run(scenario())
    assert log.end_offset == 5
