"""PostgreSQL by triggers: replaced tables, partitions, and changes that are noted in another order than made."""

from __future__ import annotations

import json
import random
import threading
import time

import psycopg
import pytest

from headrace.capture import Capture, CaptureOptions
from headrace.capture.source import PositionLost, TableReplaced
from headrace.errors import UsageError
from tests.capture.conftest import Database
from tests.capture.world import catch_up, check_numbering, events, fold

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def options(database: Database, **more: object) -> CaptureOptions:
    return CaptureOptions(name=database.name, url=database.url, triggers=True, **more)  # type: ignore[arg-type]


def said_by(log: str, capture: CaptureOptions) -> list[str]:
    said: list[str] = []
    Capture(log, capture, say=said.append).run(threading.Event(), until_current=True)
    return said


def assert_same(log: str, database: Database, table: str = "t", *, rows: str = "only t", alone: bool = True) -> None:
    """``alone``: no transaction changes other tables as well, so its events are all in this topic."""
    found = events(log, f"{database.name}.public.{table}")
    names = [row[0] for row in database.all(f"select to_jsonb(x) from {rows} x")]
    assert fold(found) == {json.dumps({"id": each["id"]}): each for each in names}  # type: ignore[index]
    if alone:
        check_numbering(found)


REPLACEMENTS = {
    "dropped and made again": [
        "drop table t",
        "create table t (id int primary key, n int)",
        "insert into t values (8, 8)",
    ],
    "swapped": [
        "create table new_t (id int primary key, n int)",
        "insert into new_t select id + 1, n * 10 from t",
        "drop table t",
        "alter table new_t rename to t",
    ],
    "exchanged": ["alter table t rename to swap", "alter table u rename to t", "alter table swap rename to u"],
    "written without triggers": [
        "alter table t disable trigger user",
        "update t set n = n + 50",
        "alter table t enable trigger user",
    ],
    "another key": ["alter table t drop constraint t_pkey", "alter table t add primary key (id, n)"],
}


@pytest.mark.parametrize("how", REPLACEMENTS)
def test_a_replaced_table_is_truncated_and_read_again(log: str, database: Database, how: str) -> None:
    for name in "tu":
        database.run(f"create table {name} (id int primary key, n int)", f"insert into {name} values (1, 1), (2, 2)")
    database.run("insert into u values (5, 5)")
    catch_up(log, options(database, on_replaced="stop"))
    database.run("delete from t where id = 1", *REPLACEMENTS[how])
    with pytest.raises(TableReplaced, match=r"public\.[tu] (is another|was without|has another key)"):
        catch_up(log, options(database, on_replaced="stop"))
    assert any("public.t" in each and "a truncation" in each for each in said_by(log, options(database)))
    database.run("update t set n = n + 1")
    catch_up(log, options(database))
    found = fold(events(log, f"{database.name}.public.t"))
    assert sorted((each["id"], each["n"]) for each in found.values()) == database.all("select id, n from t order by 1")
    if how == "exchanged":
        assert_same(log, database, "u", rows="u")
    assert said_by(log, options(database)) == []


PARTITIONS = [
    "truncate t_1",
    "alter table t detach partition t_2",
    "create table t_9 (id int not null primary key, n int)",
    "insert into t_9 values (95, 1)",
    "alter table t attach partition t_9 for values from (90) to (100)",
    "truncate t",
    "insert into t values (3, 3), (93, 93)",
    "drop table t_9",
]


def test_operations_on_partitions_are_noticed(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, n int) partition by range (id)")
    database.run("create table t_1 partition of t for values from (0) to (10)")
    database.run("create table t_2 partition of t for values from (10) to (20)", "insert into t values (1, 1), (11, 1)")
    catch_up(log, options(database, tables=("public.t",)))
    for statement in PARTITIONS:
        database.run(statement)
        catch_up(log, options(database, tables=("public.t",)))
        assert_same(log, database, rows="t")
        if statement.startswith("insert into t "):
            assert said_by(log, options(database, tables=("public.t",))) == []


def test_rows_of_a_table_that_inherits_are_in_its_own_topic_only(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, n int)", "create table child (primary key (id)) inherits (t)")
    database.run("insert into t values (1, 1)", "insert into child values (2, 2)")
    catch_up(log, options(database))
    database.run("update t set n = n + 1", "delete from t where id = 2", "insert into child values (3, 3)")
    catch_up(log, options(database))
    assert_same(log, database, alone=False)
    assert_same(log, database, "child", rows="child", alone=False)
    check_numbering([each for name in ("t", "child") for each in events(log, f"{database.name}.public.{name}")])


def test_a_new_table_is_followed_and_a_gone_one_truncated_while_capture_runs(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1)")
    deadline_s = time.monotonic() + 20
    steps = [
        (lambda: events(log, f"{database.name}.public.t"), "create table fresh (id int primary key)"),
        (lambda: True, "insert into fresh values (1)"),
        (lambda: events(log, f"{database.name}.public.fresh"), "insert into fresh values (2)"),
        (lambda: len(events(log, f"{database.name}.public.fresh")) == 2, "drop table t"),
    ]

    class Stop(threading.Event):
        def is_set(self) -> bool:
            if steps and steps[0][0]():
                database.run(steps.pop(0)[1])
            over = not steps and events(log, f"{database.name}.public.t")[-1].op == "t"
            return over or time.monotonic() > deadline_s

    Capture(log, options(database)).run(Stop())
    assert_same(log, database, "fresh", rows="fresh")
    assert fold(events(log, f"{database.name}.public.t")) == {}


def test_what_a_subscription_writes_is_told(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, n int)")
    catch_up(log, options(database))
    database.run("set session_replication_role = replica", "insert into t values (1, 1)")
    database.run("set session_replication_role = origin")
    catch_up(log, options(database))
    assert_same(log, database)


@pytest.mark.parametrize("when", ["update", "insert", "delete"])
def test_triggers_that_change_other_rows_of_the_statement_leave_the_topic_right(
    log: str, database: Database, when: str
) -> None:
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2), (3, 3)")
    row = "old" if when == "delete" else "new"
    work = (
        "delete from t where id = new.id + 1"
        if when == "insert"
        else f"update t set n = n + 100 where id = {row}.id + 1"
    )
    database.run(
        f"create function other() returns trigger language plpgsql as 'begin {work}; return null; end'",
        f"create trigger other after {when} on t for each row when (pg_trigger_depth() = 0) execute function other()",
    )
    catch_up(log, options(database))
    database.run(
        "update t set n = n + 10", "insert into t values (11, 1), (12, 2), (13, 3)", "delete from t where id = 2"
    )
    said = said_by(log, options(database))
    assert_same(log, database)
    assert any("changed a row again" in each for each in said) == (when != "delete")


def test_an_older_copy_is_refused_even_when_it_has_had_more_transactions(log: str, database: Database) -> None:
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 1)")
    catch_up(log, options(database))
    database.run("update t set n = 2")
    catch_up(log, options(database))
    database.run(f"update _headrace_{database.name}.flushed set number = number - 1")
    with pytest.raises(PositionLost, match="older copy"):
        catch_up(log, options(database))


def test_a_new_snapshot_of_everything_empties_the_topics_of_tables_that_are_gone(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "create table gone (id int primary key)")
    database.run("insert into t values (1)", "insert into gone values (1)")
    catch_up(log, options(database))
    database.run("drop table gone")
    said: list[str] = []
    Capture(log, options(database), say=said.append).run(threading.Event(), until_current=True, resnapshot=True)
    assert ["public.gone is gone" in each for each in said] == [True]
    assert_same(log, database)
    assert fold(events(log, f"{database.name}.public.gone")) == {}


def test_rows_that_row_security_hides_are_an_error_and_not_left_out(log: str, database: Database) -> None:
    role = f"app_{database.name}"
    database.run(f"create role {role} login", f"grant create on database {database.name} to {role}")
    database.run("create table t (id int primary key, n int)", f"grant select, trigger on t to {role}")
    database.run("alter table t enable row level security", "create policy others on t using (id > 1)")
    url = psycopg.conninfo.conninfo_to_dict(database.url)
    capture = CaptureOptions(
        name=database.name, url=f"postgresql://{role}@{url['host']}:{url['port']}/{url['dbname']}", triggers=True
    )
    with pytest.raises(UsageError, match="row-level security"):
        catch_up(log, capture)


def test_a_table_without_columns_does_not_stop_capture(log: str, database: Database) -> None:
    database.run("create table nothing ()", "insert into nothing default values", "create table t (id int primary key)")
    catch_up(log, options(database))
    database.run("insert into nothing default values", "insert into t values (1)")
    catch_up(log, options(database))
    assert_same(log, database)


@pytest.mark.parametrize("seed", range(2))
def test_the_topic_is_the_table_whatever_is_done_to_it(log: str, database: Database, seed: int) -> None:
    chosen = random.Random(seed)
    make = "create table if not exists t (id int primary key, n int)"
    database.run(make)
    steps = [
        "insert into t select i, {n} from generate_series({n}, {n} + 3) i on conflict (id) do update set n = {n}",
        "update t set n = n + 1",
        "update t set id = id + 100 where id = {n}",
        "delete from t where id < {n}",
        "truncate t",
        "drop table t",
        "alter table t rename to gone_{number}",
        "create table if not exists new_t as select 1 as id, {n} as n; alter table new_t add primary key (id)",
        "alter table t rename to gone_{number}; alter table new_t rename to t",
        "alter table t disable trigger user; update t set n = 7; alter table t enable trigger user",
        "alter table t alter n type bigint",
    ]
    for number in range(40):
        try:
            database.run(chosen.choice(steps).format(n=chosen.randint(1, 9), number=number))
        except psycopg.Error:
            continue
        if chosen.random() < 0.3:
            database.run(make)
            catch_up(log, options(database, exclude_tables=("public.gone_*",)))
            assert_same(log, database)
