"""A few kills of followers and of targets; ``make chaos`` has many."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.sinks import kills
from tests.skips import or_skip

KILLS = 3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.servers if kind in ("postgresql", "mariadb", "redis") else ())
        for kind in kills.KINDS
    ],
)
def test_a_target_equals_the_folded_changes_whoever_was_killed(kind: str, tmp_path: Path) -> None:
    with or_skip():
        kills.run(kind, KILLS, tmp_path, random.Random(7))
