"""Random histories give on every kind of store what a store of lists and dicts gives; the long run is ``histories``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.sourcing import sqlite, store
from headrace.sourcing.keys import KeyStore
from headrace.sourcing.sqlite import SqliteStore
from tests.sourcing.histories import Difference, History, addresses

# Random values of personal fields are also in others.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::headrace.sourcing.UnencryptedPersonalData")]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_history_is_as_in_the_model(url: str, tmp_path: Path, seed: int) -> None:
    counts = History(url, tmp_path, seed).run(steps=80, kills=0)
    assert counts["events"] > 0
    assert counts["append"] > 0


def test_a_history_whose_writer_is_killed_is_as_in_the_model(url: str, tmp_path: Path) -> None:
    """A writer of a topic that was killed has its lease for a second."""
    short = url if not url.startswith("kafka") else f"{url}?lease=1"
    counts = History(short, tmp_path, seed=4).run(steps=30, kills=1)
    assert sum(number for name, number in counts.items() if name.startswith("killed")) == 1


# What the comparison has to notice: where it is planted, and what takes its place.
PLANTED: dict[str, tuple[Any, str, Any]] = {
    "an expected version that is not checked": (sqlite, "check_expected", lambda *_: None),
    "a condition that is not checked": (SqliteStore, "_check_condition", lambda *_: None),
    "ids that are not looked for": (sqlite, "repeated_by_ids", lambda *_: None),
    "progress that may go back": (SqliteStore, "_advance", lambda *_: None),
    "snapshots that stay when somebody is forgotten": (SqliteStore, "delete_snapshots", lambda *_: 0),
    "a forgotten subject that gets a new key": (KeyStore, "destroy", lambda *_: None),
    "a moment that is one too early": (store.EventStore, "position_at", lambda self, _: max(self.head() - 1, 0)),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_comparison_notices_a_planted_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[fault])
    with addresses("sqlite", tmp_path) as address, pytest.raises(Difference):
        for seed in range(1, 11):
            History(address(seed), tmp_path, seed).run(steps=80, kills=0)
