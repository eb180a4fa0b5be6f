"""A fence is a lock: one run of a pipeline writes into a target at a time, and rows are there once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.errors import Refused
from headrace.spark.owner import PipelineRun, owner_text
from headrace.targets.changes import Changes
from headrace.targets.delta import DeltaTarget
from headrace.targets.sql import table as to_sql
from headrace.targets.sql.dialect import TableName
from headrace.targets.sql.rebuild import SqlRebuild
from headrace.targets.sql.table import SqlSession
from headrace.targets.target import Delivery, Fence, RefusedRows, Target, Unavailable
from tests.sinks.world import SCHEMA, Base, changes_of, deliver, fence
from tests.waiting import eventually

THREADS = 8
TOGETHER = 30.0


def held_back(
    target: Target, at: Fence, rows: list[tuple[Any, ...]], inside: threading.Event, gate: threading.Event
) -> Any:
    """Write a batch that says when it is inside, and goes on when the gate opens."""

    def chunks() -> Iterator[Changes]:
        inside.set()
        assert gate.wait(TOGETHER), "the gate stays closed"
        yield changes_of(rows)

    session = target.open()
    try:
        return session.write(Delivery(SCHEMA, chunks(), RefusedRows(target.shown), at))
    finally:
        session.close()


def someone_waits(base: Base) -> bool:
    """Whether a session waits for a lock. SQLite does not say, and need not: its writers never meet.

    MariaDB's innodb_trx is a cache that is refreshed only after 100 ms without a reader. A loop that looks more often
    never sees a wait that began after its first look, so the counter of waits is read instead.
    """
    queries = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
        "mariadb": "SELECT CAST(variable_value AS INT) FROM information_schema.global_status"
        " WHERE variable_name = 'Innodb_row_lock_current_waits'",
    }
    return base.kind == "sqlite" or base.run(queries[base.kind])[0][0] > 0


def two_at_once(base: Base, first: Fence, second: Fence) -> tuple[Any, Any]:
    """Two drivers with the same batch: the second comes while the first is in the middle of it."""
    target, inside, gate = base.target(key=()), threading.Event(), threading.Event()
    rows = [(number, "x") for number in range(10, 20)]
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(held_back, target, first, rows, inside, gate)
        assert inside.wait(TOGETHER)
        two = threads.submit(deliver, target, rows, at=second)
        eventually(lambda: someone_waits(base) or two.done())
        gate.set()
        return one.result(), two.result()


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_two_drivers_with_the_same_batch_write_it_once(base: Base, isolation: str) -> None:
    if base.kind == "postgresql":
        base.run(f"ALTER DATABASE {base.url.rsplit('/', 1)[1]} SET default_transaction_isolation = '{isolation}'")
    deliver(base.target(key=()), [(number, "x") for number in range(10)], at=fence(0, owner="A"))
    one, two = two_at_once(base, fence(1, owner="A", first=False), fence(1, owner="B"))
    assert (one.replayed, two.replayed) == (False, True)
    assert base.rows(columns="count(*), count(distinct id)") == [(20, 20)]
    with pytest.raises(Refused, match=r"another run of pipeline p has taken over: B\. This one stops"):
        deliver(base.target(key=()), [(99, "x")], at=fence(2, owner="A", first=False))


@pytest.mark.servers
@pytest.mark.parametrize("base", ["postgresql", "mariadb"], indirect=True)
def test_a_run_that_takes_over_from_one_that_is_stopped_in_a_batch_says_who_is_in_its_way_and_then_goes_on(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has one bound for all waits, and says that its file is locked."""
    monkeypatch.setattr(to_sql, "FENCE_WAIT_S_MAX", 1)
    target, inside, gate = base.target(key=()), threading.Event(), threading.Event()
    deliver(target, [(0, "x")], at=fence(0, owner="A"))
    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(held_back, target, fence(1, owner="A", first=False), [(1, "x")], inside, gate)
        assert inside.wait(TOGETHER)
        with pytest.raises(Unavailable, match=r"another run of pipeline p \(A\) has been in the middle of a batch"):
            deliver(target, [(1, "x")], at=fence(1, owner="B"))
        gate.set()
        stopped.result()
    assert deliver(target, [(1, "x")], at=fence(1, owner="B")).replayed
    assert base.rows(columns="count(*), count(distinct id)") == [(2, 2)]


def test_two_drivers_that_both_begin_with_the_first_batch_write_it_once(base: Base) -> None:
    one, two = two_at_once(base, fence(0, owner="A"), fence(0, owner="B"))
    assert (one.replayed, two.replayed) == (False, True)
    assert base.rows(columns="count(*), count(distinct id)") == [(10, 10)]


def test_two_new_checkpoints_of_one_pipeline_at_once_write_into_an_empty_table_once(base: Base) -> None:
    with pytest.raises(Refused, match=r"from another checkpoint \(query one, batch 0 at \S+, by A\)"):
        two_at_once(base, fence(0, owner="A", query="one"), fence(0, owner="B", query="two"))
    assert base.rows(columns="count(*), count(distinct id)") == [(10, 10)]


def test_a_run_that_waits_while_its_table_is_rebuilt_finds_the_fence_of_the_rebuild_and_adds_no_row(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver on another machine, with a copy of the checkpoint from before the rebuild."""
    target, inside, gate = base.target(key=()), threading.Event(), threading.Event()
    deliver(target, [(0, "x"), (1, "x")], at=fence(0, query="old", owner="A"))
    version = target.version()
    version.begin("p")
    deliver(version.target, [(0, "x"), (1, "x"), (2, "x")], at=fence(0, query="new", owner="R"))
    hand_over, claim, claimed = SqlRebuild._hand_over_fence, SqlSession._claim, threading.Event()

    def handed_over(self: SqlRebuild, filled: TableName) -> None:
        hand_over(self, filled)
        inside.set()
        assert gate.wait(TOGETHER), "the gate stays closed"

    def claim_before(self: SqlSession, at: Fence) -> None:
        claim(self, at)
        claimed.set()
        assert inside.wait(TOGETHER), "the rebuild does not get there"

    monkeypatch.setattr(SqlRebuild, "_hand_over_fence", handed_over)
    monkeypatch.setattr(SqlSession, "_claim", claim_before)
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(deliver, target, [(2, "x")], at=fence(1, query="old", owner="B"))
        assert claimed.wait(TOGETHER)
        switch = threads.submit(version.switch)
        assert inside.wait(TOGETHER)
        eventually(lambda: someone_waits(base) or late.done())
        gate.set()
        switch.result()
        with pytest.raises(Refused, match="was rebuilt, and has the rows that this older checkpoint"):
            late.result()
    assert base.rows(columns="count(*), count(distinct id)") == [(3, 3)]
    deliver(target, [(3, "x")], at=fence(1, query="new", owner="C"))


@pytest.mark.parametrize("key", [(), ("id",)])
def test_another_checkpoint_of_a_pipeline_is_refused_unless_the_user_starts_over(
    base: Base, key: tuple[str, ...]
) -> None:
    target = base.target(key=key)
    deliver(target, [(1, "a")], at=fence(7, query="old", owner="process 3 on host"))
    with pytest.raises(Refused, match=r"query old, batch 7 .*process 3 on host.*--start-over"):
        deliver(target, [(1, "again")], at=fence(0, query="new", owner="B"))
    assert base.rows() == [(1, "a")]
    deliver(target, [(1, "again")], at=fence(0, query="new", owner="B", starts_over=True))
    deliver(target, [(2, "next")], at=fence(1, query="new", owner="B", first=False, starts_over=True))
    with pytest.raises(Refused, match="has taken over: B"):
        deliver(target, [(1, "stale")], at=fence(8, query="old", owner="process 3 on host", first=False))
    assert base.rows()[-2:] == [(1, "again"), (2, "next")]


def test_pipelines_that_start_together_in_an_empty_database_all_write(base: Base) -> None:
    barrier = threading.Barrier(THREADS)

    def first_batch(number: int) -> None:
        barrier.wait(TOGETHER)
        table = "shared" if number % 2 else f"table{number}"
        schema = pa.schema([*SCHEMA, pa.field(f"more{number}", pa.string())])
        target = base.target(table, widen=True)
        deliver(target, [(number, "a")], at=fence(0, query=f"q{number}", pipeline=f"p{number}"), schema=schema)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(first_batch, range(THREADS)))
    assert base.run("SELECT count(*) FROM headrace_fences WHERE batch_id = 0") == [(THREADS,)]
    assert [row[0] for row in base.rows("shared")] == [1, 3, 5, 7]


def test_of_two_runs_that_append_to_a_delta_table_at_once_one_fails_and_then_finds_the_name_of_the_other(
    tmp_path: Path,
) -> None:
    target, inside, gate = DeltaTarget(str(tmp_path / "table")), threading.Event(), threading.Event()
    deliver(target, [(0, "x")], at=fence(0, owner="A"))
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(held_back, target, fence(1, owner="A", first=False), [(1, "x")], inside, gate)
        assert inside.wait(TOGETHER)
        deliver(target, [(1, "x")], at=fence(1, owner="B"))
        gate.set()
        with pytest.raises(Unavailable, match="Concurrent transaction"):
            slow.result()
    with pytest.raises(Refused, match="has taken over: B"):
        deliver(target, [(1, "x")], at=fence(1, owner="A", first=False))
    assert sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table().column("id").to_pylist()) == [0, 1]


def test_a_run_that_takes_a_delta_table_over_by_a_replay_has_its_name_there(tmp_path: Path) -> None:
    target = DeltaTarget(str(tmp_path / "table"))
    deliver(target, [(0, "x")], at=fence(0, owner="A"))
    assert deliver(target, [(0, "x")], at=fence(0, owner="B")).replayed
    with pytest.raises(Refused, match="has taken over: B"):
        deliver(target, [(1, "x")], at=fence(1, owner="A", first=False))
    deliver(target, [(1, "x")], at=fence(1, owner="B", first=False))
    with pytest.raises(Refused, match="another checkpoint"):
        deliver(target, [(0, "x")], at=fence(0, query="other", owner="C"))


def test_an_owner_is_a_process_that_can_be_found_and_no_two_runs_are_the_same() -> None:
    import os
    import socket

    assert f"process {os.getpid()} on {socket.gethostname()[:100]} since 20" in owner_text()
    assert PipelineRun("p").owner != PipelineRun("p").owner
