"""The state store: durable tables whose journal is a log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.broker import state as state_module
from headrace.broker.broker import settled
from headrace.broker.replies import once_flushed
from tests.unit.broker.harness import running
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
