"""Waiting for what a test claims, and never for a time: a busy machine makes a test slower, not red."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""When something has not come about by now, it will not."""


def eventually(
    look: Callable[[], T],
    holds: Callable[[T], object] = bool,
    *,
    pause_s: float = 0.02,
    patience_s: float = PATIENCE_S,
) -> T:
    """Look until what is seen holds, and give it; the failure shows what the last look saw."""
    deadline = time.monotonic() + patience_s
    while not holds(seen := look()):
        assert time.monotonic() < deadline, f"it did not come about within {patience_s:g} s; last seen: {seen!r}"
        time.sleep(pause_s)
    return seen


async def eventually_on_loop(look: Callable[[], T], holds: Callable[[T], object] = bool) -> T:
    """``eventually`` while the loop goes on."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(seen := look()):
        assert time.monotonic() < deadline, f"it did not come about within {PATIENCE_S:g} s; last seen: {seen!r}"
        await asyncio.sleep(0.005)
    return seen
