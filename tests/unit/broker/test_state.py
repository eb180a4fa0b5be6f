"""The state store: durable tables whose journal is a log."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from headrace.broker import state as state_module
from headrace.broker.broker import settled
from headrace.broker.replies import once_flushed
from headrace.broker.state import Encoded, StateStore
from headrace.errors import HeadraceError
from headrace.log.config import LogConfig
from headrace.log.log import PartitionLog
from headrace.log.store import LogStore
from headrace.testing.disk import SimulatedDisk
from tests.flushing import FlusherByHand
from tests.unit.broker.fakes import FakeClock
from tests.unit.broker.harness import Harness, running
from tests.waiting import eventually_on_loop


def test_rows_are_there_after_a_restart_and_removed_ones_are_not(tmp_path: Path) -> None:
    async def before() -> None:
        async with running(tmp_path) as harness:
            state = harness.broker.state
            state.put("things", "a/b/c", {"offset": 5})
            offset = state.put_many([("things", "gone", 1), ("other", "x", [1, "two", None])])
            await settled(once_flushed(state, offset, None))
            await settled(once_flushed(state, state.put("things", "gone", None), None))

    async def after() -> None:
        async with running(tmp_path) as harness:
            assert harness.broker.state.table("things") == {"a/b/c": {"offset": 5}}
            assert harness.broker.state.table("other") == {"x": [1, "two", None]}

    asyncio.run(before())
    asyncio.run(after())


def test_a_change_is_acknowledged_when_the_journal_is_flushed_and_not_when_it_is_written() -> None:
    flusher = FlusherByHand(SimulatedDisk(), "/data")
    log = PartitionLog.open(flusher.disk, "/data/journal", LogConfig())
    state = StateStore(log, flusher, FakeClock())
    acknowledged: list[str] = []
    state.when_flushed(state.put("things", "a", 1), lambda: acknowledged.append("a"))
    assert state.table("things") == {"a": 1}
    assert acknowledged == []
    flusher.flush()
    assert acknowledged == ["a"]


def test_changes_that_the_disk_refuses_change_nothing() -> None:
    disk = SimulatedDisk()
    flusher = FlusherByHand(disk, "/data")
    log = PartitionLog.open(flusher.disk, "/data/journal", LogConfig())
    state = StateStore(log, flusher, FakeClock())
    state.put("things", "a", 1)
    before = (state.live_bytes, state.journal_bytes, state.end_offset)
    disk.fail_next("write", errno.ENOSPC)
    with pytest.raises(HeadraceError):
        state.put_many([("things", "a", None), ("things", "b", 2)])
    assert state.table("things") == {"a": 1}
    assert (state.live_bytes, state.journal_bytes, state.end_offset) == before


def test_the_journal_is_rewritten_when_it_is_much_longer_than_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "REWRITE_BYTES_MIN", 20_000)
    monkeypatch.setattr(state_module, "REWRITE_ROWS_PER_STEP", 7)

    async def churn() -> None:
        async with running(tmp_path) as harness:
            state = harness.broker.state
            for index in range(50):
                state.put("kept", f"k{index}", {"value": index})
            for turn in range(1500):
                state.put("churned", "same", {"turn": turn})
                if turn % 100 == 0:
                    await asyncio.sleep(0.002)
            state.put("kept", "k3", None)
            # The beginning of the journal goes.
            await eventually_on_loop(
                lambda: (state.rewriting, state.start_offset), lambda seen: not seen[0] and seen[1]
            )

    async def after() -> None:
        async with running(tmp_path) as harness:
            kept = harness.broker.state.table("kept")
            assert kept == {f"k{index}": {"value": index} for index in range(50) if index != 3}
            assert harness.broker.state.table("churned") == {"same": {"turn": 1499}}

    asyncio.run(churn())
    asyncio.run(after())


def journal_bytes_on_disk(harness: Harness) -> int:
    return harness.broker.state.size_bytes


async def churn_rows(state: StateStore, puts: int) -> int:
    """Change ten rows again and again; the bytes that the changes alone take in the journal."""
    before = state.end_offset
    for number in range(puts):
        state.put("churned", f"k{number % 10}", {"turn": number, "padding": "x" * 100})
        if number % 20 == 0:
            await asyncio.sleep(0)
    assert state.end_offset - before >= puts
    return puts * 250


def test_a_journal_is_rewritten_once_per_growth_and_its_files_go_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "REWRITE_BYTES_MIN", 50_000)

    async def scenario() -> None:
        async with running(tmp_path) as harness:
            state = harness.broker.state
            written_max = await churn_rows(state, 5_000)
            await eventually_on_loop(lambda: state.rewriting, lambda rewriting: not rewriting)
            # Rewriting adds the ten live rows once per 50 KB of changes.
            assert harness.broker.state.rewrites <= 2 * written_max // 50_000
            await eventually_on_loop(lambda: journal_bytes_on_disk(harness), lambda size: size < 150_000)

    asyncio.run(scenario())


def test_short_lives_do_not_make_the_journal_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "REWRITE_BYTES_MIN", 50_000)
    monkeypatch.setattr(LogStore, "close", LogStore.abandon)  # every life ends like a kill

    async def life() -> int:
        async with running(tmp_path) as harness:
            await churn_rows(harness.broker.state, 400)
            await eventually_on_loop(lambda: harness.broker.state.rewriting, lambda rewriting: not rewriting)
            return journal_bytes_on_disk(harness)

    sizes = [asyncio.run(life()) for _ in range(12)]
    assert max(sizes) < 300_000


def test_the_size_of_the_live_rows_is_known_without_counting_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as harness:
            state = harness.broker.state
            before = state.live_bytes
            state.put_many([("things", "a", "x" * 1000), ("things", "b", "y" * 1000)])
            assert 2000 < state.live_bytes - before < 2100
            state.put("things", "a", "x")
            state.put("things", "b", None)
            assert 0 < state.live_bytes - before < 100

    asyncio.run(scenario())


def test_a_row_that_comes_encoded_is_stored_and_recovered_as_any_other() -> None:
    flusher = FlusherByHand(SimulatedDisk(), "/data")
    row = [5, -1, "é", None]
    state = StateStore(PartitionLog.open(flusher.disk, "/data/journal", LogConfig()), flusher, FakeClock())
    state.put_many([("plain", "a", row), ("encoded", "a", Encoded.of(row))])
    assert state.table("encoded")["a"] is row
    size = state.live_bytes
    again = StateStore(PartitionLog.open(flusher.disk, "/data/journal", LogConfig()), flusher, FakeClock())
    assert again.table("encoded") == again.table("plain") == {"a": row}
    assert again.live_bytes == size
