"""A few kills of followers and of targets; ``make chaos`` has many. And proof that the judge of them is not blind."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sinks import kills, spark_kills
from tests.sinks.kills import Follower, Held, Unsound, folded, held, judge
from tests.sinks.spark_kills import compare
from tests.sinks.world import Base, changes_of, deliver, fence
from tests.skips import or_skip
from tests.waiting import eventually

KILLS = 3
SERVERS = ("postgresql", "mariadb", "redis", "postgresql-append", "mariadb-append")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.servers if kind in SERVERS else ()) for kind in kills.KINDS]
)
def test_a_target_equals_the_folded_changes_whoever_was_killed(kind: str, tmp_path: Path) -> None:
    with or_skip():
        kills.run(kind, 1 if kind.endswith(kills.APPEND) else KILLS, tmp_path, random.Random(7))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite-append", "delta-append"])
def test_without_a_fence_the_same_death_doubles_rows_and_the_judge_notices(kind: str, tmp_path: Path) -> None:
    batch = kills.added_rows(2)
    with pytest.raises(Unsound, match=rf"{kind}: 0 rows are missing and {sum(map(len, batch))} too many") as told:
        kills.run_without_fences(kind, tmp_path)
    assert f"({sum(map(len, batch))} doubled)" in str(told.value)


# ---- planted faults ------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[Held], Any]] = {
    "a row is lost": lambda rows: rows.subtract([next(iter(rows))]),
    "a row is doubled": lambda rows: rows.update([next(iter(rows))]),
    "a row has an older value": lambda rows: rows.update({(next(iter(rows))[0], "old"): 1, next(iter(rows)): -1}),
    "a row is there that never came": lambda rows: rows.update([(-1, "never")]),
    "all is lost": lambda rows: rows.clear(),
}


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-append"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_judge_notices_a_planted_fault(kind: str, fault: str) -> None:
    wanted = folded(kind, 4)
    judge(kind, folded(kind, 4), wanted)
    found = Counter(wanted)
    FAULTS[fault](found)
    with pytest.raises(Unsound, match="rows are missing and"):
        judge(kind, +found, wanted)


@pytest.mark.parametrize("where", ["followed__fts WHERE rowid = 2", "followed WHERE id = 2"])
def test_an_index_that_differs_from_its_rows_is_noticed(where: str, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/index.db"
    deliver(kills.target_for("search", place), changes_of([(1, "a"), (2, "b")]), at=fence(0))
    assert held("search", place) == Counter([(1, "a"), (2, "b")])
    Base("sqlite", place).run(f"DELETE FROM {where}")
    with pytest.raises(Unsound, match="the index of search"):
        held("search", place)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_judge_of_pipelines_on_spark_notices_a_planted_fault(fault: str) -> None:
    wanted = folded("sqlite-append", 2)
    compare("events", Counter(wanted), wanted)
    found = Counter(wanted)
    FAULTS[fault](found)
    with pytest.raises(spark_kills.Unsound, match="rows differ, such as"):
        compare("events", found, wanted)


def test_a_follower_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/followed.db"
    with pytest.raises(Unsound, match=r"ended by itself with 1(?s:.*)as a mistake would"):
        kills.finish("sqlite", place, tmp_path / "note", 4, **{kills.FAIL_AT: "1"})
    with pytest.raises(Unsound, match="rows are missing"):
        judge("sqlite", held("sqlite", place), folded("sqlite", 4))


# ---- a driver that sleeps --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite-append", "delta-append"])
def test_a_driver_that_slept_while_another_took_over_stops_and_writes_nothing(kind: str, tmp_path: Path) -> None:
    until, note = 8, tmp_path / "note"
    with kills.place_for(kind, tmp_path) as (place, _):
        sleeper = Follower(kind, place, note, until, **{kills.STOP_AFTER: "2"})
        try:
            eventually(sleeper.stopped, patience_s=120)
            kills.finish(kind, place, note, until)
            sleeper.child.send_signal(signal.SIGCONT)
            with pytest.raises(Unsound, match=r"(?s)another run of pipeline killed has taken over: process \d+ on "):
                sleeper.finish()
        finally:
            sleeper.kill()
        judge(kind, held(kind, place), folded(kind, until))
