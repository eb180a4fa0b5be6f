"""A few kills under load in every test run; ``make chaos`` runs the same for long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_clients_saw_holds_after_six_kills_under_load() -> None:
    command = [sys.executable, "-m", "tests.chaos.run", "--kills", "6", "--least-s", "1", "--most-s", "3"]
    # On a busy machine a living member may be silent for long, and must not be taken for dead.
    command += ["--per-second", "200", "--seed", "7", "--session-ms", "45000"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "result: sound" in run.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_clients_saw_holds_after_a_backup_was_restored_under_load() -> None:
    """Kills and restores of a backup take turns: groups, transactions and records go on from one moment."""
    command = [sys.executable, "-m", "tests.chaos.run", "--kills", "5", "--least-s", "2", "--most-s", "4"]
    command += ["--faults", "restore,kill", "--per-second", "100", "--seed", "9", "--session-ms", "45000", "--verbose"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "result: sound" in run.stdout
    assert run.stdout.count(": restore;") >= 2
