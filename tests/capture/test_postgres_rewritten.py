"""What changes rows from before without a trace of it in the server's log, by the log and by triggers."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.capture.conftest import Database
from tests.capture.test_postgres import ops, options
from tests.capture.world import catch_up, events, fold

pytestmark = [pytest.mark.servers, pytest.mark.slow]


class Rewriting(NamedTuple):
    """``made``: the columns of a table besides its key; ``rows``: how a row of it looks in the topic."""

    made: str
    change: str
    rows: str = "select to_jsonb(t) from t order by id"
    before: str = "select 1"


GENERATED = "n int default 7, g int generated always as (n * 2) stored"
REWRITINGS = {
    "values of the same type": Rewriting("n int default 7", "alter table t alter n type int using n + 100"),
    "another expression": Rewriting(
        GENERATED,
        "alter table t alter g set expression as (n * 3)",
        rows="select case when {triggers} then to_jsonb(t) - 'g' else to_jsonb(t) end from t order by id",
    ),
    "no expression any more": Rewriting(GENERATED, "alter table t alter g drop expression"),
    "another column of a composite type": Rewriting(
        "n pair default (1, 'x')",
        "alter type pair add attribute c int",
        "select jsonb_build_object('id', id, 'n', n::text) from t order by id",
        "create type pair as (a int, b text)",
    ),
    "no column of a composite type in an array": Rewriting(
        "n pair[] default array[(1, 'x')::pair]",
        "alter type pair drop attribute a",
        "select jsonb_build_object('id', id, 'n', array[n[1]::text]) from t order by id",
        "create type pair as (a int, b text)",
    ),
    "another column of the table whose rows are values": Rewriting(
        "n pair default (1, 'x')",
        "alter table pair add column c int",
        "select jsonb_build_object('id', id, 'n', n::text) from t order by id",
        "create table pair (a int primary key, b text)",
    ),
}


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("what", REWRITINGS)
def test_a_table_whose_rows_changed_unlogged_is_read_again(
    log: str, database: Database, what: str, triggers: bool
) -> None:
    case = REWRITINGS[what]
    database.run(case.before, f"create table t (id int primary key, {case.made})", "insert into t values (1), (2)")
    capture = options(database, triggers=triggers)
    catch_up(log, capture)
    database.run(*case.change.split("; "))
    said: list[str] = []
    catch_up(log, capture, said.append)
    found = events(log, f"{database.name}.public.t")
    assert ops(found) == ["r", "r", "t", "r", "r"]
    assert [row for (row,) in database.all(case.rows.format(triggers=triggers))] == list(fold(found).values())
    assert any("public.t " in each for each in said)


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_a_table_that_is_written_anew_with_the_same_values_is_not_read_again(
    log: str, database: Database, triggers: bool
) -> None:
    database.run("create type pair as (a int, b text)")
    database.run(f"create table t (id int primary key, p pair, {GENERATED})", "insert into t values (1), (2)")
    capture = options(database, triggers=triggers)
    catch_up(log, capture)
    database.run("vacuum full t", "alter type pair rename attribute a to aa", "alter table t set (fillfactor = 50)")
    catch_up(log, capture)
    database.run("alter table t alter n set statistics 7", "alter table t alter n set not null")
    catch_up(log, capture)
    assert ops(events(log, f"{database.name}.public.t")) == ["r", "r"]
