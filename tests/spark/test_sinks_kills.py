"""Derived systems behind ``headrace run``; its driver, broker and servers are killed. ``make chaos`` has more of it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.sinks.spark_kills import World
from tests.skips import or_skip

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_table_a_cache_and_a_warehouse_equal_the_topic_after_a_death_between_the_commits_and_of_all_servers(
    tmp_path: Path,
) -> None:
    """Kills wait for progress and not for a time; two targets have no key, where a repetition would show."""
    with ExitStack() as stack:
        with or_skip():
            world = World(stack, tmp_path, seed=1, pipelines=["events", "cache", "ledger"])
        world.feeder.start()
        world.begin("events")
        world.kill_between("events")
        world.until_all_moved()
        world.kill("broker", "postgres", "redis")
        world.until_all_moved()
        assert world.finish() > 0


def test_a_table_a_topic_and_a_warehouse_that_one_read_fills_are_equal_after_deaths_between_any_two_of_them(
    tmp_path: Path,
) -> None:
    """After the first target's commit the others lack the batch; after the last one's only Spark does."""
    with ExitStack() as stack:
        with or_skip():
            world = World(stack, tmp_path, seed=2, pipelines=["both"])
        world.feeder.start()
        world.begin()
        world.kill_between("both")
        world.kill_between("both", "both-last")
        world.until_all_moved()
        world.kill("broker")
        world.until_all_moved()
        assert world.finish() > 0
