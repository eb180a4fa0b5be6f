"""Scenarios with a broker on real files: coroutines that are given its harness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.slices import UNITS_PER_TURN
from tests.unit.broker.harness import Harness, Scenario, running


@pytest.fixture
def with_broker(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario; keyword arguments are the broker's settings."""

    def run(scenario: Scenario, **settings: Any) -> None:
        async def whole() -> None:
            async with running(tmp_path, settings) as harness:
                await scenario(harness)

        asyncio.run(whole())

    return run


@pytest.fixture
def with_slices(with_broker: Callable[..., None]) -> Callable[..., None]:
    """The same; afterwards some turn of the loop has worked on a slice, and none on much more."""

    def run(scenario: Scenario, **settings: Any) -> None:
        async def checked(harness: Harness) -> None:
            await scenario(harness)
            assert UNITS_PER_TURN / 2 < harness.broker.slices.units_in_turn_max < 2 * UNITS_PER_TURN

        with_broker(checked, **settings)

    return run
