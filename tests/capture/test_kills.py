"""A few kills of capture, broker and database in every test run; ``make chaos`` runs the same for long."""

from __future__ import annotations

import pytest

from tests.capture.kills import run
from tests.servers.process import CannotRun, skip_or_fail


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [7, 8], ids=["whole", "streamed"])
def test_folding_the_topics_gives_the_tables_after_kills_of_capture_broker_and_database(seed: int) -> None:
    try:
        assert run(5, seed, least_s=0.1, most_s=1.0).startswith("sound")
    except CannotRun as why:
        skip_or_fail(str(why))
