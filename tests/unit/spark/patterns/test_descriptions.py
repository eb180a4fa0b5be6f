"""What a checkpoint knows of a pattern is the same text in every process that plans the same query."""

from __future__ import annotations

import os
import subprocess
import sys

TEXT = """PARTITION BY user ORDER BY at
    MEASURES COUNT(M.amount) AS n
    AFTER MATCH SKIP TO LAST M
    PATTERN (A (B | C | E)+ D) WITHIN '30 seconds' SUBSET M = (B, C, E)
    DEFINE B AS B.amount > A.amount, D AS D.amount < AVG(M.amount)"""
PROGRAM = f"""
from tests.unit.spark.patterns.world import Matching
from tests.unit.spark.state_world import KEYS
print(Matching({TEXT!r}).operator.describe(KEYS, 8).to_json())
"""
SEEDS = ("1", "2")
"""By these Python places texts in sets; without one, every process has its own."""


def described(seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_pattern_with_a_subset_has_one_description_in_all_processes() -> None:
    """A query that is started again compares it with the one in its checkpoint, and refuses to go on with another."""
    assert len({described(seed) for seed in SEEDS}) == 1
