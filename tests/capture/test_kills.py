"""A few kills of capture, broker and database in every test run; ``make chaos`` runs the same for long."""

from __future__ import annotations

import re

import pytest

from tests.capture.judge import Fault
from tests.capture.kills import run
from tests.skips import or_skip

OLDER_ROW = re.compile(r"event \d+: r of \{.*\} has n=\d+ after \d+, expected")
"""A defect that is not understood yet: of hundreds of readings of a MariaDB under kills, one shows a row as it was one
transaction before the place at which the server says that the reading stands. Every other fault fails the test."""

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
        try:
            verdict = run(database, 4, seed, least_s=0.1, most_s=1.0)
        except Fault as fault:
            if database == "mariadb" and OLDER_ROW.search(str(fault)):
                pytest.xfail(f"open defect, see docs/capture.md: a snapshot row that is older than its place ({fault})")
            raise
    assert verdict.startswith("sound")
