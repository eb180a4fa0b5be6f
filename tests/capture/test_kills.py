"""A few kills of capture, broker and database in every test run; ``make chaos`` runs the same for long."""

from __future__ import annotations

import pytest

from tests.capture.kills import run
from tests.skips import or_skip

SUBJECTS = {
    "whole": ("postgresql", 7),
    "streamed": ("postgresql", 8),
    "triggers": ("triggers", 7),
    "mariadb": ("mariadb", 7),
    "sqlite": ("sqlite", 7),
    "sqlite-without-wal": ("sqlite", 8),
}


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", SUBJECTS)
def test_folding_the_topics_gives_the_tables_after_kills_of_capture_broker_and_database(which: str) -> None:
    database, seed = SUBJECTS[which]
    with or_skip():
        assert run(database, 4, seed, least_s=0.1, most_s=1.0).startswith("sound")
