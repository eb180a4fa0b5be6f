"""A few runs of random DDL and DML in every test run; ``make chaos`` does the same for long.

Beside them the single things that are done to a table, one by one, so that a failure names what is not followed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.testing import broker
from headrace.testing.broker import ChildBroker
from tests.capture.ddl import Outcome, attempt
from tests.capture.ddl_steps import Step, steps
from tests.capture.ddl_worlds import WORLDS, World
from tests.skips import or_skip

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

numbers = itertools.count(1)
TABLE = "create table alpha (id int primary key, k int, n int)"
ROWS = ("insert into alpha values (1, 1, 1)", "insert into alpha values (2, 2, 2)", "commit")


@pytest.fixture(scope="module")
def child_broker() -> Iterator[ChildBroker]:
    with broker(in_process=False) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Server:
    database: str
    make: Callable[[str], World]
    log: ChildBroker

    def run(self, home: Path, work: Sequence[Step]) -> Outcome:
        name = f"random{next(numbers)}"
        return attempt(self.make(name), self.log.bootstrap, name, home, work)


@pytest.fixture(scope="module", params=WORLDS)
def server(
    request: pytest.FixtureRequest, child_broker: ChildBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with or_skip(), WORLDS[request.param](tmp_path_factory.mktemp("ddl")) as make:
        yield Server(request.param, make, child_broker)


def transaction(*statements: str) -> Step:
    return Step("transaction", (*statements, "commit"))


START, SETTLE, KILL, STOP = (Step(each) for each in ("start", "settle", "kill", "stop"))
MADE = (Step("transaction", (TABLE, *ROWS)), START, SETTLE)
AGAIN = (TABLE, "insert into alpha values (2, 9, 9)", "insert into alpha values (7, 7, 7)")
SCENARIOS = {
    "dropped": [transaction("drop table alpha")],
    "dropped and made again": [transaction("drop table alpha", *AGAIN)],
    "dropped and made again later": [transaction("drop table alpha"), SETTLE, transaction(*AGAIN)],
    "renamed": [transaction("alter table alpha rename to beta"), transaction("update beta set n = 5")],
    "swapped": [
        transaction(
            "create table fresh (id int primary key, k int, n int)",
            "insert into fresh values (2, 9, 9)",
            "alter table alpha rename to kept",
            "alter table fresh rename to alpha",
        ),
        transaction("insert into alpha values (8, 8, 8)", "update kept set n = 6"),
    ],
    "made while capture runs": [transaction("create table beta (id int primary key)", "insert into beta values (1)")],
    "emptied": [transaction("delete from alpha"), transaction("insert into alpha values (3, 3, 3)")],
    "altered": [
        transaction("alter table alpha add column c1 int default 5"),
        transaction("update alpha set c1 = 6, n = 6 where id = 1", "insert into alpha values (3, 3, 3, 3)"),
        transaction("alter table alpha rename column c1 to c2"),
        transaction("update alpha set c2 = 8, n = 8 where id = 2"),
    ],
}


CASES = [*((what, "running") for what in SCENARIOS), ("dropped and made again", "killed"), ("swapped", "killed")]


@pytest.mark.parametrize(("what", "when"), CASES)
def test_a_topic_is_its_table_after_the_table_was(what: str, when: str, server: Server, tmp_path: Path) -> None:
    before = [KILL] if when == "killed" else []
    outcome = server.run(tmp_path, [*MADE, *before, *SCENARIOS[what], START, SETTLE, STOP])
    assert outcome.refused == 0
    assert outcome.stops == []


@pytest.mark.parametrize("seed", [2])
def test_a_topic_is_its_table_after_random_changes_and_kills(seed: int, server: Server, tmp_path: Path) -> None:
    outcome = server.run(tmp_path, steps(server.database, seed, 30, restores=False))
    assert outcome.stops == []


def test_a_database_that_is_put_back_to_a_copy_is_refused_and_a_new_snapshot_gives_what_it_has(
    server: Server, tmp_path: Path
) -> None:
    made = ["create table later (id int primary key)", "insert into later values (1)"]
    later = transaction(*made, "update alpha set n = 4")
    work = [*MADE, Step("backup"), later, SETTLE, STOP, Step("restore"), transaction("update alpha set n = 5")]
    outcome = server.run(tmp_path, [*work, START, SETTLE, STOP])
    assert len(outcome.stops) == 1
