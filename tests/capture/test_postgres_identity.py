"""A table is known by its identity: whatever is done to it, its topic folds to what it holds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from headrace.capture import Capture, CaptureOptions
from headrace.capture.postgres.source import PostgresSource
from headrace.capture.source import TableReplaced
from headrace.errors import UsageError
from tests.capture.conftest import Database
from tests.capture.test_postgres import ops, options
from tests.capture.world import catch_up, events, fold, fold_bag, topics
from tests.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def folded(log: str, database: Database, table: str) -> dict[str, Any]:
    return fold(events(log, f"{database.name}.public.{table}"))


def rows(database: Database, table: str, key: str = "id") -> dict[str, Any]:
    """What the topic of a table with one key column must fold to."""
    found = database.all(f"select to_jsonb(t) from {table} t")
    return {json.dumps({key: row[0][key]}): row[0] for row in found}  # type: ignore[index]


@contextmanager
def running(log: str, capture: CaptureOptions, said: list[str] | None = None) -> Iterator[Capture]:
    """A capture in a thread; what it fails with is raised here."""
    stop = threading.Event()
    failed: list[BaseException] = []
    made = Capture(log, capture, say=(said if said is not None else []).append)

    def run() -> None:
        try:
            made.run(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="capture")
    thread.start()
    try:
        yield made
    finally:
        stop.set()
        thread.join(30)
    if failed:
        raise failed[0]


def follows(log: str, database: Database, table: str, key: str = "id") -> None:
    eventually(lambda: folded(log, database, table) == rows(database, table, key))


REPLACED: dict[str, tuple[str, ...]] = {
    "dropped and made again": (
        "drop table t",
        "create table t (id int primary key, n int)",
        "insert into t values (7, 7), (8, 8)",
    ),
    "swapped": (
        "create table t_new (id int primary key, n int)",
        "insert into t_new values (7, 7)",
        "begin; alter table t rename to t_old; alter table t_new rename to t; commit",
        "insert into t values (8, 8)",
    ),
    "out of the publication": (
        "alter publication headrace_{name} drop table t",
        "insert into t values (7, 7)",
        "delete from t where id = 1",
    ),
    "out of the publication and in again": (
        "alter publication headrace_{name} drop table t",
        "insert into t values (7, 7)",
        "alter publication headrace_{name} add table t",
        "insert into t values (8, 8)",
    ),
    "published in part": (
        "alter publication headrace_{name} set (publish = 'insert')",
        "update t set n = 9",
        "delete from t where id = 1",
    ),
    "given another key": (
        "alter table t drop constraint t_pkey",
        "alter table t add primary key (n)",
        "delete from t where n = 1",
        "update t set id = 5 where n = 2",
    ),
    "given a column with a value": ("alter table t add column m int default 5", "insert into t values (3, 3, 3)"),
    "given another type": ("alter table t alter n type bigint using n + 100",),
    "given another name of a column": ("alter table t rename n to m",),
    "given a column in the place of one of the same name": ("alter table t drop n", "alter table t add n int"),
}


@pytest.mark.parametrize("what", REPLACED)
@pytest.mark.parametrize("while_running", [False, True], ids=["while away", "while running"])
def test_a_table_that_was_replaced_is_read_again_after_a_truncation(
    log: str, database: Database, what: str, while_running: bool
) -> None:
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    statements = [each.format(name=database.name) for each in REPLACED[what]]
    key = "n" if what == "given another key" else "id"
    capture, said = options(database, tables=("public.t",)), list[str]()
    if while_running:
        with running(log, capture, said):
            follows(log, database, "t")
            database.run(*statements)
            follows(log, database, "t", key)
            database.run("insert into t select * from (values (90, 90)) v")
            follows(log, database, "t", key)
    else:
        catch_up(log, capture)
        database.run(*statements)
        Capture(log, capture, say=said.append).run(threading.Event(), until_current=True)
        assert folded(log, database, "t") == rows(database, "t", key)
    assert "t" in ops(events(log, f"{database.name}.public.t"))
    assert any(each.startswith("public.t ") for each in said)
    before = len(events(log, f"{database.name}.public.t"))
    database.run("insert into t select * from (values (91, 91)) v")
    catch_up(log, capture)
    assert len(events(log, f"{database.name}.public.t")) == before + 1, "it is read again once"
    assert folded(log, database, "t") == rows(database, "t", key)


def test_a_table_that_is_replaced_while_capture_starts_is_noticed(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the catalogue was read, and before anything was compared with it."""
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    catch_up(log, options(database, tables=("public.t",)))
    check_history, swapped = PostgresSource._check_history, threading.Event()

    def swapping(self: PostgresSource, position: Any) -> None:
        if not swapped.is_set():
            database.run(*REPLACED["swapped"])
            swapped.set()
        check_history(self, position)

    monkeypatch.setattr(PostgresSource, "_check_history", swapping)
    with running(log, options(database, tables=("public.t",))):
        assert swapped.wait(60)
        follows(log, database, "t")


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_a_column_that_comes_back_under_its_old_name_does_not_bring_its_old_values(
    log: str, database: Database, triggers: bool
) -> None:
    """Its drop was seen and cost nothing. Rows in the topic still have its values, so its return costs a snapshot."""
    database.run("create table t (id int primary key, n int, m int)", "insert into t values (1, 1, 1), (2, 2, 2)")
    capture = options(database, triggers=triggers)
    catch_up(log, capture)
    database.run("alter table t drop n")
    catch_up(log, capture)
    assert "t" not in ops(events(log, f"{database.name}.public.t"))
    database.run("alter table t add k int", "update t set k = 5 where id = 1")
    catch_up(log, capture)
    assert "t" not in ops(events(log, f"{database.name}.public.t"))
    database.run("alter table t add n int", "update t set n = 7 where id = 2")
    catch_up(log, capture)
    assert folded(log, database, "t") == rows(database, "t")
    before = len(events(log, f"{database.name}.public.t"))
    catch_up(log, capture)
    assert len(events(log, f"{database.name}.public.t")) == before, "it is read again once"


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("kind", ["color", "color[]", "colored", "pair"])
def test_a_renamed_value_of_an_enum_is_renamed_in_the_topic(
    log: str, database: Database, kind: str, triggers: bool
) -> None:
    """Every row that has it looks other than before, and no row was changed."""
    database.run("create type color as enum ('red', 'green')", "create domain colored as color")
    database.run("create type pair as (a color, b int)", f"create table t (id int primary key, c {kind})")
    red = {"color[]": "'{red}'", "pair": "'(red,1)'"}.get(kind, "'red'")
    database.run(f"insert into t values (1, {red})", "create table other (id int primary key)")
    capture, topic = options(database, triggers=triggers), f"{database.name}.public.t"
    catch_up(log, capture)
    database.run("alter type color add value 'blue'")
    catch_up(log, capture)
    assert ops(events(log, topic)) == ["r"], "a further value changes no row"
    for name in ("crimson", "scarlet"):
        before, was = len(events(log, topic)), "red" if name == "crimson" else "crimson"
        database.run(f"alter type color rename value '{was}' to '{name}'")
        catch_up(log, capture)
        catch_up(log, capture)
        since = events(log, topic)[before:]
        assert ops(since) == ["t", "r"], "it is read again once"
        assert name in json.dumps(since[-1].value["after"])
    assert ops(events(log, f"{database.name}.public.other")) == []


def test_a_replaced_table_stops_a_capture_that_is_to_stop(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1)")
    stopping = options(database, on_replaced="stop")
    catch_up(log, stopping)
    database.run("drop table t", "create table t (id int primary key)")
    for _ in range(2):
        with pytest.raises(TableReplaced, match=r"public\.t is another table now"):
            catch_up(log, stopping)
    assert ops(events(log, f"{database.name}.public.t")) == ["r"]
    catch_up(log, options(database))
    assert folded(log, database, "t") == {}


def test_what_happened_to_the_old_table_is_told_before_the_new_one_begins(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, options(database))
    database.run("insert into t values (2)", "drop table t", "create table t (id int primary key)")
    database.run("insert into t values (3)")
    catch_up(log, options(database))
    found = events(log, f"{database.name}.public.t")
    assert [(each.op, each.key) for each in found] == [
        ("r", {"id": 1}),
        ("c", {"id": 2}),
        ("t", None),
        ("r", {"id": 3}),
    ]


def test_a_renamed_table_leaves_its_topic_and_is_a_new_one_where_it_is_chosen(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1)")
    said: list[str] = []
    with running(log, options(database, tables=("public.t*",)), said):
        follows(log, database, "t")
        database.run("alter table t rename to t2", "insert into t2 values (2)")
        follows(log, database, "t2")
        eventually(lambda: folded(log, database, "t") == {})
        database.run("alter table t2 rename to other", "insert into other values (3)")
        eventually(lambda: folded(log, database, "t2") == {})
    assert f"{database.name}.public.other" not in topics(log, database.name)
    assert any("public.t is gone" in each for each in said)


def test_a_new_table_is_followed_without_a_restart_and_what_was_being_written_to_it_is_not_lost(
    log: str, database: Database
) -> None:
    """A transaction that wrote to a table before it was published is not in the stream, whenever it commits."""
    database.run("create table t (id int primary key)", "insert into t values (1)")
    with running(log, options(database)), database.another() as writer:
        follows(log, database, "t")
        with database.another() as maker:
            maker.execute("create table late (id int primary key)")
            maker.execute("insert into late values (1)")
            maker.commit()
        writer.execute("insert into late values (2)")
        published = "select 1 from pg_publication_tables where tablename = 'late'"
        eventually(lambda: bool(database.all(published)))
        time.sleep(1.5)
        writer.execute("insert into late values (3)")
        writer.commit()
        follows(log, database, "late")
        database.run("insert into late values (4)", "delete from late where id = 2")
        follows(log, database, "late")


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_types_that_are_made_while_capture_runs_have_their_form_in_the_snapshot_of_a_new_table(
    log: str, database: Database, triggers: bool
) -> None:
    """Nobody has changed the table, so only its snapshot meets them."""
    database.run("create table t (id int primary key)", "insert into t values (1)")
    with running(log, options(database, triggers=triggers)):
        follows(log, database, "t")
        database.run("create domain days as int", "create type mood as enum ('good')")
        with database.another() as maker:
            maker.execute("create table late (id int primary key, lasts days, moods mood[])")
            maker.execute("insert into late values (1, 7, '{good}')")
            maker.commit()
        follows(log, database, "late")


def test_a_table_that_loses_its_key_does_not_refuse_the_applications_updates_for_long(
    log: str, database: Database
) -> None:
    database.run("create table t (id int primary key, n int)", "insert into t values (1, 1)")
    said: list[str] = []
    with running(log, options(database), said):
        follows(log, database, "t")
        database.run("alter table t drop constraint t_pkey")

        def may_update() -> bool:
            try:
                database.run("update t set n = n + 1")
            except psycopg.Error:
                return False
            return True

        eventually(may_update)
        eventually(lambda: any("only insertions" in each for each in said))
        database.run("alter table t add primary key (id)")
        follows(log, database, "t")
        database.run("update t set n = 77")
        follows(log, database, "t")


def test_a_replica_identity_that_is_changed_as_advised_makes_the_topic_whole(log: str, database: Database) -> None:
    database.run("create table bag (a int)", "insert into bag values (1), (2)")

    def right() -> bool:
        expected = sorted(json.dumps({"a": row[0]}) for row in database.all("select a from bag"))
        return fold_bag(events(log, f"{database.name}.public.bag")) == expected

    with running(log, options(database)):
        eventually(right)
        database.run("update bag set a = 5 where a = 1", "alter table bag replica identity full")
        database.run("update bag set a = 6 where a = 2")
        eventually(right)
        database.run("delete from bag where a = 5", "update bag set a = 7")
        eventually(right)


# ---- keys -----------------------------------------------------------------------------------------------------------

KEYS: dict[str, tuple[tuple[str, ...], list[str] | None]] = {
    "included columns are not part of it": (
        ("create table t (id int, name text, v text, primary key (id) include (name))",),
        ["id"],
    ),
    "an index of replica identity beside a primary key": (
        (
            "create table t (id int primary key, name text not null unique, v text)",
            "alter table t replica identity using index t_name_key",
        ),
        ["name"],
    ),
    "an index of replica identity that has the primary key in it": (
        (
            "create table t (id int primary key, name text not null, v text, unique (name, id))",
            "alter table t replica identity using index t_name_id_key",
        ),
        ["id"],
    ),
    "an index of replica identity and no primary key": (
        (
            "create table t (id int, name text not null unique, v text)",
            "alter table t replica identity using index t_name_key",
        ),
        ["name"],
    ),
    "a unique index and replica identity full": (
        ("create table t (id int not null unique, name text, v text)", "alter table t replica identity full"),
        ["id"],
    ),
    "a deferrable primary key and replica identity full": (
        (
            "create table t (id int primary key deferrable, name text, v text)",
            "alter table t replica identity full",
        ),
        ["id"],
    ),
    "a generated column": (
        ("create table t (name text, v text, id text primary key generated always as (name || '!') stored)",),
        ["id"],
    ),
}


@pytest.mark.parametrize("what", KEYS)
def test_the_key_is_one_function_of_the_catalogue(log: str, database: Database, what: str) -> None:
    """For the snapshot and the stream alike, and the application's own statements work."""
    made, key = KEYS[what]
    database.run(*made)
    columns = "name, v" if "generated" in what else "id, name, v"
    number = "" if "generated" in what else "%d, "
    values = [f"({number % each if number else ''}'n{each}', 'v')" for each in range(1, 7)]
    database.run(f"insert into t ({columns}) values {', '.join(values[:3])}")
    catch_up(log, options(database))
    database.run(f"insert into t ({columns}) values {', '.join(values[3:])}")
    database.run("update t set v = 'w' where name in ('n1', 'n4')", "delete from t where name in ('n2', 'n5')")
    database.run("update t set name = 'x' || name where name in ('n3', 'n6')")
    if "generated" not in what:
        database.run("update t set id = id + 10 where name in ('n1', 'n4')")
    catch_up(log, options(database))
    expected = {
        json.dumps({each: row[0][each] for each in key or []}): row[0]  # type: ignore[index]
        for row in database.all("select to_jsonb(t) from t")
    }
    assert folded(log, database, "t") == expected


HARMLESS = {
    "a deferrable primary key": ("create table t (id int primary key deferrable, v text)",),
    "replica identity nothing": (
        "create table t (id int primary key, v text)",
        "alter table t replica identity nothing",
    ),
    "an index of replica identity that was dropped": (
        "create table t (id int not null, v text)",
        "create unique index i on t (id)",
        "alter table t replica identity using index i",
        "drop index i",
    ),
    "partitions of another identity": (
        "create table t (id int, v text) partition by range (id)",
        "create table p1 partition of t for values from (0) to (100)",
        "alter table t replica identity full",
    ),
    "no columns": ("create table none ()", "insert into none default values", "create table t (id int, v text)"),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_published_never_makes_the_applications_statements_fail(
    log: str, database: Database, what: str
) -> None:
    database.run(*HARMLESS[what], "insert into t values (1, 'a'), (2, 'b')")
    catch_up(log, options(database))
    database.run("insert into t values (3, 'c')", "update t set v = 'z' where id = 1", "delete from t where id = 2")
    catch_up(log, options(database))
    assert [each for each in ops(events(log, f"{database.name}.public.t")) if each != "t"] == ["r", "r", "c"]
    if what == "no columns":
        database.run("insert into none default values")
        catch_up(log, options(database))
        assert [each.value["after"] for each in events(log, f"{database.name}.public.none")] == [{}, {}]


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("kind", ["unlogged", "foreign"])
def test_a_table_with_a_partition_that_the_server_does_not_log_is_refused(
    log: str, database: Database, kind: str, triggers: bool
) -> None:
    """Its rows would be in the snapshot, and later changes of them nowhere."""
    database.run("create table t (id int not null) partition by range (id)")
    database.run("create table p1 partition of t for values from (0) to (100)", "insert into t values (1)")
    part = "p2 partition of t for values from (100) to (200)"
    if kind == "unlogged":
        database.run(f"create unlogged table {part}", "insert into t values (101)")
    else:
        database.run("create extension file_fdw", "create server files foreign data wrapper file_fdw")
        database.run(f"create foreign table {part} server files options (filename '/dev/null')")
    with pytest.raises(UsageError, match=rf"public\.t has the {kind} partition (public\.)?p2") as error:
        catch_up(log, options(database, triggers=triggers))
    assert ("SET LOGGED" in str(error.value.hint)) == (kind == "unlogged")


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
def test_capture_ends_when_a_partition_is_not_logged_any_more(log: str, database: Database, triggers: bool) -> None:
    database.run("create table t (id int primary key) partition by range (id)")
    database.run("create table p1 partition of t for values from (0) to (100)", "insert into t values (1)")
    with pytest.raises(UsageError, match="unlogged partition"), running(log, options(database, triggers=triggers)):
        eventually(lambda: len(folded(log, database, "t")) == 1)
        database.run("alter table p1 set unlogged")
        eventually(lambda: not [each for each in threading.enumerate() if each.name == "capture"])


LARGE = "(select string_agg(md5(i::text), '') from generate_series({0}, {0} + 70) i)"


def test_a_primary_key_too_large_to_be_sent_again_is_known_from_the_old_row(log: str, database: Database) -> None:
    database.run("create table t (id text primary key, n int)", "alter table t alter id set storage external")
    for number in (1, 2, 3):
        database.run(f"insert into t values ({LARGE.format(number * 100)}, {number})")
    catch_up(log, options(database))
    database.run("update t set n = n + 10", "delete from t where n = 12")
    database.run(f"insert into t values ({LARGE.format(900)}, 9)", "update t set n = 99 where n = 9")
    catch_up(log, options(database))
    assert folded(log, database, "t") == rows(database, "t")


def test_large_values_that_the_snapshot_read_are_filled_in(log: str, database: Database) -> None:
    database.run(
        "create table t (id int primary key, n int, body text)", "alter table t alter body set storage external"
    )
    database.run("insert into t select i, 0, repeat(i::text, 5000) from generate_series(1, 5) i")
    with running(log, options(database)):
        follows(log, database, "t")
        database.run("update t set n = 1")
        follows(log, database, "t")
    after = [each.value["after"]["body"] for each in events(log, f"{database.name}.public.t") if each.op == "u"]
    assert after == [str(each) * 5000 for each in range(1, 6)]


# ---- inheritance and partitions -------------------------------------------------------------------------------------


def test_tables_that_inherit_have_topics_of_their_own(log: str, database: Database) -> None:
    database.run("create table parent (id int primary key)", "create table child (primary key (id)) inherits (parent)")
    database.run("insert into parent values (1)", "insert into child values (2)")
    only = options(database, tables=("public.parent",))
    catch_up(log, only)
    database.run("insert into parent values (3)", "insert into child values (4)", "update parent set id = id + 10")
    catch_up(log, only)
    assert list(folded(log, database, "parent")) == ['{"id": 11}', '{"id": 13}']
    assert f"{database.name}.public.child" not in topics(log, database.name)
    catch_up(log, options(database))
    database.run("delete from parent where id > 13")
    catch_up(log, options(database))
    assert list(folded(log, database, "parent")) == ['{"id": 11}', '{"id": 13}']
    assert list(folded(log, database, "child")) == ['{"id": 12}']


PARTITIONS: dict[str, tuple[str, ...]] = {
    "truncated": ("truncate p1", "insert into t values (5, 5)"),
    "attached": (
        "create table p3 (id int primary key, n int)",
        "insert into p3 values (250, 1)",
        "alter table t attach partition p3 for values from (200) to (300)",
    ),
    "attached in the transaction that made it": (
        "begin; create table p3 (id int primary key, n int); insert into p3 values (250, 1); "
        "alter table t attach partition p3 for values from (200) to (300); commit",
    ),
    "detached": ("alter table t detach partition p2",),
    "dropped": ("drop table p2", "insert into t values (7, 7)"),
}


@pytest.mark.parametrize("what", PARTITIONS)
@pytest.mark.parametrize("while_running", [False, True], ids=["while away", "while running"])
def test_what_is_done_to_a_partition_by_itself_is_seen_in_the_topic_of_its_table(
    log: str, database: Database, what: str, while_running: bool
) -> None:
    database.run(
        "create table t (id int primary key, n int) partition by range (id)",
        "create table p1 partition of t for values from (0) to (100)",
        "create table p2 partition of t for values from (100) to (200)",
        "insert into t values (1, 1), (150, 2)",
    )
    capture = options(database, tables=("public.t",))
    if while_running:
        with running(log, capture):
            follows(log, database, "t")
            database.run(*PARTITIONS[what])
            follows(log, database, "t")
            database.run("update t set n = n + 1")
            follows(log, database, "t")
    else:
        catch_up(log, capture)
        database.run(*PARTITIONS[what])
        catch_up(log, capture)
        assert folded(log, database, "t") == rows(database, "t")


def test_partitions_that_are_made_as_such_and_truncations_of_all_do_not_cost_a_snapshot(
    log: str, database: Database
) -> None:
    database.run(
        "create table t (id int primary key, n int) partition by range (id)",
        "create table p1 partition of t for values from (0) to (100)",
        "insert into t values (1, 1)",
    )
    catch_up(log, options(database))
    database.run("create table p2 partition of t for values from (100) to (200)", "insert into t values (150, 1)")
    catch_up(log, options(database))
    database.run("truncate t", "insert into t values (2, 2)")
    catch_up(log, options(database))
    assert ops(events(log, f"{database.name}.public.t")) == ["r", "c", "t", "c"]


LIKE_A_TRUNCATION: dict[str, tuple[str, ...]] = {
    "a partition is truncated after it": ("truncate t", "insert into t values (2, 2)", "truncate p1"),
    "a partition with rows is attached after it": (
        "truncate t",
        "insert into t values (2, 2)",
        "create table p3 (id int primary key, n int)",
        "insert into p3 values (250, 1)",
        "alter table t attach partition p3 for values from (200) to (300)",
    ),
    "a partition is truncated after it in its transaction": (
        "begin; truncate t; insert into t values (2, 2); truncate p1; commit",
    ),
    "a table of the same name is truncated": ("truncate s.t", "truncate p1"),
}


@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("what", LIKE_A_TRUNCATION)
def test_a_truncation_of_the_whole_table_is_all_that_a_truncation_of_it_is_taken_for(
    log: str, database: Database, monkeypatch: pytest.MonkeyPatch, what: str, triggers: bool
) -> None:
    """The catalogue is looked at when all of it has happened, and the truncation is reported by then."""
    monkeypatch.setattr("headrace.capture.run.REFRESH_S", 2.0)
    capture = options(database, triggers=triggers, exclude_tables=("public.p*",))
    database.run(
        "create table t (id int primary key, n int) partition by range (id)",
        "create table p1 partition of t for values from (0) to (100)",
        "insert into t values (1, 1)",
        "create schema s",
        "create table s.t (id int primary key)",
    )
    catch_up(log, capture)
    if triggers:
        with running(log, capture):
            database.run("insert into t values (3, 3)")
            follows(log, database, "t")
            database.run(*LIKE_A_TRUNCATION[what])
            follows(log, database, "t")
    else:
        database.run(*LIKE_A_TRUNCATION[what])
        catch_up(log, capture)
        assert folded(log, database, "t") == rows(database, "t")


# ---- what hides rows, or ends what takes long -----------------------------------------------------------------------


def test_rows_that_row_level_security_hides_are_an_error(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "insert into t values (1), (2)")
    database.run("alter table t enable row level security", "create policy first_only on t using (id = 1)")
    user = f"reader_{database.name}"
    database.run(f"create role {user} login replication", f"grant select on t to {user}")
    database.run(f"grant create on database {database.name} to {user}")
    url = database.url.replace("//", f"//{user}@", 1) if "@" not in database.url else database.url
    if "@" in database.url:
        head, _, tail = database.url.partition("//")
        url = f"{head}//{user}@{tail.partition('@')[2]}"
    try:
        with pytest.raises(UsageError, match="row-level security"):
            catch_up(log, CaptureOptions(name=database.name, url=url))
    finally:
        database.run(f"drop owned by {user}", f"drop role {user}")


def test_limits_of_time_that_a_database_sets_do_not_end_a_snapshot(log: str, database: Database) -> None:
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        database.run(f"alter database {database.name} set {name} = '1ms'")
    database.run("create table bag (a text)", "insert into bag select md5(i::text) from generate_series(1, 20000) i")
    catch_up(log, options(database))
    assert len(events(log, f"{database.name}.public.bag")) == 20_000


# ---- the server's history -------------------------------------------------------------------------------------------


def test_a_new_snapshot_of_everything_empties_the_topics_of_tables_that_are_gone(log: str, database: Database) -> None:
    database.run("create table t (id int primary key)", "create table gone (id int primary key)")
    database.run("insert into t values (1)", "insert into gone values (1)")
    catch_up(log, options(database))
    database.run("drop table gone")
    said: list[str] = []
    Capture(log, options(database), say=said.append).run(threading.Event(), until_current=True, resnapshot=True)
    assert ["public.gone is gone" in each for each in said] == [True]
    assert folded(log, database, "gone") == {}
    assert folded(log, database, "t") == rows(database, "t")
