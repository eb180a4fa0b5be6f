"""A few kills under load in every test run; ``make chaos`` runs the same for long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_clients_saw_holds_after_six_kills_under_load() -> None:
    command = [sys.executable, "-m", "tests.chaos.run", "--kills", "6", "--least-s", "1", "--most-s", "3"]
    run = subprocess.run([*command, "--per-second", "200"], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "result: sound" in run.stdout
