"""Patterns and searches whose workers and driver are killed with SIGKILL; ``tests.chaos.patterns`` has more of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.testing import broker as start_broker
from tests.chaos.patterns import PIPELINES, compare_calm, run_of
from tests.chaos.pipeline_kills import kill_loop

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_matches_and_their_ids_are_those_of_a_calm_run_after_a_worker_and_a_driver_were_killed(
    tmp_path: Path,
) -> None:
    """MATCH_RECOGNIZE with three kinds of skipping, absences and time-outs, stored patterns and searches that change;
    plain loops say what has to come out."""
    with start_broker(in_process=False) as broker:
        run, _ = run_of(tmp_path, broker.bootstrap, PIPELINES, random.Random(2))
        kill_loop(run, 2)
        compare_calm(run)
    assert run.kills == 2
