"""Whatever is done to tables of a real MariaDB: the folded topic is the table, or capture says why not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from headrace.capture import Capture
from headrace.capture.mariadb import source as mariadb_source
from headrace.capture.mariadb.binlog import BinlogReader
from headrace.capture.mariadb.events import Xid
from headrace.capture.mariadb.snapshot import SnapshotReader
from headrace.capture.mariadb.tables import is_reached
from headrace.capture.source import PositionLost, Progress, TableReplaced
from headrace.capture.state import read_state
from headrace.client import Client
from headrace.errors import UsageError
from tests.capture.shop import Shop
from tests.capture.world import all_read, catch_up, check_numbering, events, fold, fold_bag

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def operations(log: str, shop: Shop, table: str) -> list[str]:
    return [each.op for each in events(log, shop.topic(table))]


@contextmanager
def running(log: str, shop: Shop, **options: Any) -> Iterator[Capture]:
    """A capture at work, which has read every table; what ends it early is raised at the end."""
    capture = Capture(log, shop.options(**options))
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            capture.run(stop)
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        wait_for(lambda: bool(failures) or all_read(log, shop.name))
        yield capture
    finally:
        stop.set()
        worker.join()
    if failures:
        raise failures[0]


def wait_for(condition: Callable[[], bool], seconds: float = 40) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("it did not come")


# ---- truncations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("t", "/* cleaning up */ truncate table t"),
        ("my-orders", "truncate `my-orders`"),
        ("we ird", "truncate table `we ird`"),
        ("gr\u00f6\u00dfe", "truncate table gr\u00f6\u00dfe"),
        ("t", "truncate table {schema}.t"),
        ("t", "/*!50000 truncate */ table t wait 5"),
    ],
)
def test_a_truncation_is_reported_in_whatever_form(log: str, shop: Shop, table: str, statement: str) -> None:
    shop.run(f"create table `{table}` (id int primary key)", f"insert into `{table}` values (1), (2)")
    catch_up(log, shop.options())
    shop.run(statement.format(schema=shop.name), f"insert into `{table}` values (3)")
    catch_up(log, shop.options())
    assert operations(log, shop, table) == ["r", "r", "t", "c"]
    shop.check(log, table)


def test_a_truncated_temporary_table_of_the_same_name_is_another_one(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, shop.options())
    shop.run("set session binlog_format = 'MIXED'", "create temporary table t (id int)", "truncate table t")
    shop.run("drop table t")
    catch_up(log, shop.options())
    assert operations(log, shop, "t") == ["r"]


@pytest.mark.parametrize(
    "change",
    [
        "alter table t truncate partition p0",
        "alter table t drop partition p0",
        "alter table t exchange partition p0 with table other",
        "alter table t reorganize partition p0, p1 into (partition p values less than maxvalue)",
        "alter table t remove partitioning",
    ],
)
def test_rows_that_come_and_go_with_partitions_are_followed(log: str, shop: Shop, change: str) -> None:
    shop.run(
        "create table t (id int primary key, n int) partition by range (id) "
        "(partition p0 values less than (10), partition p1 values less than maxvalue)",
        "create table other (id int primary key, n int)",
        "insert into t values (1, 1), (7, 7), (12, 12)",
        "insert into other values (3, 3)",
    )
    catch_up(log, shop.options())
    shop.run(change, "insert into t values (20, 20), (2, 2)", "insert into other values (5, 5)")
    catch_up(log, shop.options())
    shop.check(log, "t")
    shop.check(log, "other")


# ---- replaced tables ------------------------------------------------------------------------------------------------

REPLACEMENTS = {
    "create or replace": ["create or replace table t (id int primary key, n int)"],
    "drop and create": ["drop table t", "create table t (id int primary key, n int)"],
    "drop and create with rows": ["drop table t", "create table t (primary key (id)) as select 7 as id, 7 as n"],
    "swap": [
        "create table t_new (id int primary key, n int)",
        "insert into t_new values (1, 9), (5, 5)",
        "rename table t to t_old, t_new to t",
    ],
    "alter rename": [
        "create table t_new (id int primary key, n int)",
        "insert into t_new values (1, 9), (5, 5)",
        "alter table t rename to t_old",
        "alter table t_new rename to t",
    ],
    "drop the database": [
        "drop database {schema}",
        "create database {schema}",
        "use {schema}",
        "create table t (id int primary key, n int)",
    ],
    "another key": ["alter table t drop primary key, add primary key (n, id)"],
    "another column of the same name": ["alter table t drop column n", "alter table t add column n int"],
}


@pytest.mark.parametrize("how", REPLACEMENTS)
@pytest.mark.parametrize("while_running", [False, True])
def test_a_table_that_is_replaced_is_followed(log: str, shop: Shop, how: str, while_running: bool) -> None:
    shop.run("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    statements = [each.format(schema=shop.name) for each in REPLACEMENTS[how]]
    if while_running:
        with running(log, shop):
            shop.run(*statements, "insert into t values (8, 8)", "update t set n = n + 1 where id = 8")
            wait_for(lambda: 8 in [(each.key or {}).get("id") for each in events(log, shop.topic("t"))])
    else:
        catch_up(log, shop.options())
        shop.run(*statements, "insert into t values (8, 8)", "update t set n = n + 1 where id = 8")
    catch_up(log, shop.options())
    check_numbering([each for name in ("t", "t_old", "t_new") for each in events(log, shop.topic(name))])
    shop.check(log, "t", *(("n", "id") if how == "another key" else ("id",)))


@pytest.mark.parametrize(
    "alteration",
    ["add column m int not null default 7", "add column m int as (n + 1)", "modify n varchar(9)", "change n m int"],
)
@pytest.mark.parametrize("settings", ["", "set statement lock_wait_timeout = 5, max_statement_time = 9 for "])
def test_a_table_whose_old_rows_look_different_after_an_alteration_is_read_again(
    log: str, shop: Shop, alteration: str, settings: str
) -> None:
    shop.run("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2)")
    catch_up(log, shop.options())
    shop.run(f"{settings}alter table t {alteration}", "insert into t (id) values (8)")
    catch_up(log, shop.options())
    shop.check(log, "t")


def test_a_new_timestamp_has_a_value_in_old_rows_where_the_server_gives_it_a_default(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "insert into t values (1), (2)")
    catch_up(log, shop.options())
    shop.run("set session explicit_defaults_for_timestamp = 0", "alter table t add column at timestamp")
    catch_up(log, shop.options())
    shown = [f"{row['at'].isoformat()}Z" for row in shop.all("select * from t order by id")]
    assert [row["at"] for row in fold(events(log, shop.topic("t"))).values()] == shown


def test_a_column_that_comes_back_under_its_old_name_does_not_bring_its_old_values(log: str, shop: Shop) -> None:
    """Its drop was seen and cost nothing. Rows in the topic still have its values, so its return costs a snapshot."""
    shop.run("create table t (id int primary key, n int, m int)", "insert into t values (1, 1, 1), (2, 2, 2)")
    catch_up(log, shop.options())
    shop.run("alter table t drop N, add k int")
    catch_up(log, shop.options())
    assert "t" not in [each.op for each in events(log, shop.topic("t"))]
    shop.run("alter table t add (n int)", "update t set n = 7 where id = 2")
    catch_up(log, shop.options())
    shop.check(log, "t")
    shop.run("alter table t drop n, add o int")
    catch_up(log, shop.options(on_replaced="stop"))
    shop.run("truncate t", "alter table t add n int", "insert into t (id) values (4)")
    catch_up(log, shop.options(on_replaced="stop"))
    shop.check(log, "t")


def test_a_replaced_table_stops_capture_where_the_user_wants_to_decide(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, shop.options(on_replaced="stop"))
    shop.run("create table t_new (id int primary key)", "rename table t to t_old, t_new to t")
    with pytest.raises(TableReplaced, match=r"\.t is called .*t_old now.*--on-replaced resnapshot"):
        catch_up(log, shop.options(on_replaced="stop"))
    catch_up(log, shop.options())
    shop.check(log, "t")


def test_a_dropped_table_is_truncated_and_that_is_said(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, shop.options())
    shop.run("insert into t values (2)", "drop table t")
    said: list[str] = []
    Capture(log, shop.options(), say=said.append).run(threading.Event(), until_current=True)
    assert operations(log, shop, "t") == ["r", "c", "t"]
    assert any("t was dropped" in line for line in said)


@pytest.mark.parametrize("while_running", [False, True])
def test_a_table_replaced_without_a_trace_in_the_binlog_is_noticed(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch, while_running: bool
) -> None:
    monkeypatch.setattr(mariadb_source, "LOOK_S", 0.2)
    shop.run(
        "create table t (id int primary key)", "insert into t values (1)", "create table gone (id int primary key)"
    )
    shop.run("insert into gone values (1)")
    catch_up(log, shop.options())
    silent = ["set sql_log_bin = 0", "drop table t, gone", "create table t (id int primary key)"]
    silent += ["insert into t values (5)", "set sql_log_bin = 1"]
    if while_running:
        with running(log, shop):
            shop.run(*silent)
            wait_for(lambda: fold(events(log, shop.topic("t"))) == {'{"id": 5}': {"id": 5}})
            wait_for(lambda: operations(log, shop, "gone")[-1] == "t")
    else:
        shop.run(*silent)
        catch_up(log, shop.options())
    shop.check(log, "t")
    assert operations(log, shop, "gone") == ["r", "t"]
    ops = operations(log, shop, "t")
    catch_up(log, shop.options())
    assert operations(log, shop, "t") == ops, "it is noticed once"


@pytest.mark.parametrize(
    "change",
    ["alter table t engine = InnoDB", "optimize table t", "alter table t add column m int", "truncate table t"],
)
def test_a_rebuilt_table_is_still_the_same_one(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(mariadb_source, "LOOK_S", 0.1)
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    with running(log, shop):
        shop.run(change)
        threading.Event().wait(1.5)
        shop.run("insert into t (id) values (2)")
        wait_for(lambda: operations(log, shop, "t")[-1] == "c")
    shop.run(change.replace("column m", "column k"))
    catch_up(log, shop.options())
    assert operations(log, shop, "t").count("r") == 1


def test_new_tables_that_match_are_followed_without_a_restart(log: str, shop: Shop) -> None:
    shop.run("create table a_1 (id int primary key)")
    with running(log, shop, tables=("a_*",)):
        shop.run("create table a_2 (id int primary key)", "insert into a_2 values (1)")
        shop.run("create table b_2 (id int primary key)", "insert into b_2 values (1)")
        shop.run("create table a_3 as select 1 as id", "create table a_4 like a_2", "insert into a_4 values (4)")
        wait_for(lambda: bool(events(log, shop.topic("a_4"))))
    for name in ("a_2", "a_4"):
        shop.check(log, name)
    assert [each.value["after"] for each in events(log, shop.topic("a_3"))] == [{"id": 1}]
    assert events(log, shop.topic("b_2")) == []


def test_creating_a_table_that_is_there_already_changes_nothing(log: str, shop: Shop) -> None:
    """Whether or not the server writes a statement that did nothing into the binlog."""
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, shop.options())
    shop.run("create table if not exists t (id int primary key)", "insert into t values (2)")
    catch_up(log, shop.options())
    assert operations(log, shop, "t") == ["r", "c"]


def test_the_mark_of_a_position_moves_with_every_transaction(log: str, shop: Shop) -> None:
    """A server that was put back to an old copy and written to since has the same files, and other events in them."""
    shop.run("create table t (id int primary key)")
    marks = []
    for number in range(3):
        shop.run(f"insert into t values ({number})")
        catch_up(log, shop.options())
        with Client(log) as client:
            marks.append(read_state(client, shop.name)["position"]["mark"])
    files, places, prints = zip(*marks, strict=True)
    assert len(set(files)) == 1
    assert list(places) == sorted(set(places))
    assert len(set(prints)) == 3


# ---- what the binlog does not say -----------------------------------------------------------------------------------

STATEMENTS = {
    "insert": "insert into t values (2, 2)",
    "delete": "delete from t where id = 1",
    "replace": "replace into t values (1, 5)",
    "update": "update t set n = 5",
    "create as": "create table u as select * from t",
    "through a view": "update seen set n = 7",
    "through a trigger": "insert into excluded values (1)",
    "from another database": "update `{schema}`.t set n = 8",
    "measured": "analyze format=json update t set n = 9",
    "with its own settings": "set statement lock_wait_timeout = 5 for delete from t",
}


@pytest.mark.parametrize("how", STATEMENTS)
def test_changes_written_as_statements_are_refused_and_not_lost(log: str, shop: Shop, how: str) -> None:
    shop.run("create table t (id int primary key, n int)", "insert into t values (1, 1)")
    shop.run("create view seen as select * from t", "create table excluded (id int primary key)")
    shop.run("create trigger g after insert on excluded for each row update t set n = n + 1")
    options = shop.options(exclude_tables=(f"{shop.name}.excluded",))
    catch_up(log, options)
    shop.run("set session binlog_format = 'STATEMENT'", "use mysql" if "another" in how else "do 0")
    shop.run(STATEMENTS[how].format(schema=shop.name), "set session binlog_format = 'ROW'", f"use {shop.name}")
    if how == "create as":
        catch_up(log, options)
        rows = [json.dumps(each) for each in shop.all("select * from u")]
        assert fold_bag(events(log, shop.topic("u"))) == rows
        return
    with pytest.raises(UsageError, match=r"as a statement.*binlog_format") as refused:
        catch_up(log, options)
    assert "--resnapshot" in (refused.value.hint or "")
    catch_up(log, options, resnapshot=True)
    shop.check(log, "t")


def test_loaded_files_written_as_statements_are_refused(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)")
    catch_up(log, shop.options())
    file = shop.server.home / f"{shop.name}.txt"
    shop.run(f"select 5 into outfile '{file}'", "set session binlog_format = 'STATEMENT'")
    shop.run(f"load data infile '{file}' into table t")
    with pytest.raises(UsageError, match=r"LOAD as a statement"):
        catch_up(log, shop.options())


def test_statements_of_tables_that_are_not_captured_do_not_matter(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "create table other (id int primary key, n int)")
    options = shop.options(tables=("t",))
    catch_up(log, options)
    shop.run("set session binlog_format = 'STATEMENT'", "insert into other values (1, 1)", "update other set n = 2")
    elsewhere = f"{shop.name}_elsewhere"
    shop.run(f"create database {elsewhere}", f"create table {elsewhere}.t (id int)", f"use {elsewhere}")
    shop.run("insert into t values (1)", f"drop database {elsewhere}", f"use {shop.name}")
    shop.run("set session binlog_format = 'ROW'", "insert into t values (1)")
    catch_up(log, options)
    shop.check(log, "t")


def test_a_binlog_that_was_reset_is_noticed_though_its_numbers_have_passed_ours(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "insert into t values (1)", "insert into t values (2)")
    catch_up(log, shop.options())
    shop.run("insert into t values (3)")
    catch_up(log, shop.options())
    (before,) = shop.all("select @@gtid_binlog_pos as place")
    shop.run("reset master")
    for number in range(100, 100 + 3 + int(before["place"].split("-")[2])):
        shop.run(f"insert into t values ({number})")
    with pytest.raises(PositionLost, match=r"is not the one that capture has read.*--resnapshot"):
        catch_up(log, shop.options())
    catch_up(log, shop.options(), resnapshot=True)
    shop.check(log, "t")


def test_a_binlog_that_was_reset_before_anything_happened_is_noticed_too(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, shop.options())
    threading.Event().wait(1.1)  # files of the same second are distinguished only by what is in them
    shop.run("reset master", "delete from t")
    with pytest.raises(PositionLost):
        catch_up(log, shop.options())


def test_rotated_and_purged_files_are_no_loss_while_capture_runs(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key)", "insert into t values (1)")
    with running(log, shop, heartbeat_ms=100):
        shop.run("flush logs")
        threading.Event().wait(2)
    (newest,) = shop.all("show master status")
    shop.run(f"purge binary logs to '{newest['File']}'")
    shop.run("insert into t values (2)")
    catch_up(log, shop.options())
    shop.check(log, "t")


# ---- system-versioned tables ----------------------------------------------------------------------------------------

VERSIONED = {
    "implicit": "create table t (id int primary key, n int) with system versioning",
    "explicit": "create table t (id int primary key, n int, s timestamp(6) generated always as row start invisible, "
    "e timestamp(6) generated always as row end invisible, period for system_time(s, e)) with system versioning",
}


@pytest.mark.parametrize("kind", VERSIONED)
def test_the_current_rows_of_a_versioned_table_are_followed_and_its_history_is_not(
    log: str, shop: Shop, kind: str
) -> None:
    shop.run(VERSIONED[kind], "insert into t (id, n) values (1, 1), (2, 2), (3, 3)", "update t set n = 9 where id = 1")
    catch_up(log, shop.options())
    shop.run("update t set n = n + 1", "delete from t where id = 2", "insert into t (id, n) values (2, 7)")
    shop.run("delete history from t", "update t set id = 30 where id = 3")
    catch_up(log, shop.options())
    found = fold(events(log, shop.topic("t")))
    assert {name: (row["id"], row["n"]) for name, row in found.items()} == {
        '{"id": 1}': (1, 10),
        '{"id": 2}': (2, 7),
        '{"id": 30}': (30, 4),
    }
    assert all(set(row) == set(found['{"id": 1}']) for row in found.values())


def test_a_table_versioned_by_transactions_is_refused_since_the_server_writes_it_as_statements(
    log: str, shop: Shop
) -> None:
    shop.run(
        "create table t (id int primary key, s bigint unsigned generated always as row start invisible, "
        "e bigint unsigned generated always as row end invisible, period for system_time(s, e)) with system versioning"
    )
    catch_up(log, shop.options())
    shop.run("insert into t (id) values (1)")
    with pytest.raises(UsageError, match="INSERT as a statement"):
        catch_up(log, shop.options())


# ---- the window of a snapshot ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [False, True])
def test_changes_between_the_read_of_a_chunk_and_its_place_are_not_undone(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    """With the planted fault, a chunk is emitted as soon as it is read, before what it shows already."""
    shop.run("create table t (id int primary key, n int)", "insert into t select seq, 0 from seq_1_to_30")
    read = SnapshotReader.read
    turn = iter(range(1, 4))

    def disturbed(snapshots: Any, name: str, *more: Any) -> Any:
        number = next(turn, 0)
        if number:
            first = 10 * number - 9
            shop.run(f"update t set n = 1 where id = {first}", f"update t set n = 2 where id = {first}")
            shop.run(f"delete from t where id = {first + 1}", f"update t set id = {first + 100} where id = {first + 2}")
            shop.run(f"delete from t where id = {first + 3}", f"insert into t values ({first + 3}, 3)")
        chunk = read(snapshots, name, *more)
        if number:
            shop.run(f"update t set n = 4 where id = {first + 4}", f"delete from t where id = {first + 5}")
            shop.run(f"update t set id = {first + 200} where id = {first + 6}")
        if fault and chunk is not None:
            return chunk._replace(place={})
        return chunk

    monkeypatch.setattr(SnapshotReader, "read", disturbed)
    catch_up(log, shop.options(chunk_rows=10))
    monkeypatch.undo()
    catch_up(log, shop.options())
    found = events(log, shop.topic("t"))
    seen: dict[str, Any] = {}
    is_consistent = True
    for each in found:  # every change finds the row as the stream has left it
        before = each.value and each.value["before"]
        if before is not None and str(each.key) in seen:
            is_consistent = is_consistent and seen[str(each.key)] == before
        if each.op in ("c", "r", "u"):
            seen[str(each.key)] = each.value["after"]
    assert is_consistent is not fault
    if not fault:
        shop.check(log, "t")


def test_rows_read_exactly_where_the_stream_stands_come_before_what_it_has_next(
    log: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not show it: after it, they would be older than the topic."""
    shop.run("create table t (id int primary key, n int)", "insert into t select seq, 0 from seq_1_to_200")
    read, take = SnapshotReader.read, BinlogReader.take
    at_place: list[str] = []
    unseen: list[str] = []

    def change_after_reading(snapshots: Any, name: str, progress: Progress, reached: Any) -> Any:
        chunk = read(snapshots, name, progress, reached)
        if chunk is not None and is_reached(reached, chunk.place):
            at_place.append(name)
            if len(at_place) == 10:  # the stream has passed its first events: what it has next is this change
                shop.run("update t set n = 1 where id = 95")
                unseen.append(name)
        return chunk

    def take_patiently(reader: Any, wait_s: float) -> Any:
        if not unseen:
            return take(reader, wait_s)
        item = take(reader, 5.0)
        if item is None or isinstance(item.what, Xid):
            unseen.clear()
        return item

    monkeypatch.setattr(SnapshotReader, "read", change_after_reading)
    monkeypatch.setattr(BinlogReader, "take", take_patiently)
    catch_up(log, shop.options(chunk_rows=10))
    monkeypatch.undo()
    catch_up(log, shop.options())
    assert len(at_place) >= 10, "no chunk was read where the stream stood"
    shop.check(log, "t")


# ---- values that cannot be written ----------------------------------------------------------------------------------


def test_a_bad_row_of_a_table_that_is_not_captured_is_never_looked_at(log: str, shop: Shop) -> None:
    other = f"{shop.name}_other"
    shop.run("create table t (id int primary key)", f"create database {other}", "set sql_mode = 'ALLOW_INVALID_DATES'")
    try:
        catch_up(log, shop.options())
        shop.run(
            f"create table {other}.b (a varchar(9) character set latin1, d date, c varchar(900) compressed, "
            "x text compressed, e enum('a', 'b') character set utf16)",
            f"insert into {other}.b values (x'81', '2026-02-31', repeat('c', 500), repeat('x', 500), 'b')",
            "insert into t values (1)",
        )
        catch_up(log, shop.options())
        shop.check(log, "t")
    finally:
        shop.run(f"drop database {other}")


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_a_value_that_is_no_date_is_a_dead_letter_and_capture_goes_on(
    log: str, shop: Shop, from_snapshot: bool
) -> None:
    shop.run("set sql_mode = 'ALLOW_INVALID_DATES'", "create table t (id int primary key, d date, m datetime)")
    rows = "insert into t values (1, '2026-02-31', null), (2, '2026-02-03', null), (3, null, '2026-04-31 01:00:00')"
    if not from_snapshot:
        catch_up(log, shop.options())
    shop.run(rows)
    catch_up(log, shop.options())
    assert [each.key["id"] for each in events(log, shop.topic("t"))] == [2]
    letters = events(log, f"{shop.name}.dead-letters")
    assert [each.value["key"] for each in letters] == [{"id": 1}, {"id": 3}]
    assert "2026-02-31 is no date" in letters[0].value["reason"]
    shop.run("update t set d = '2026-02-28' where id = 1", "delete from t where id = 3")
    catch_up(log, shop.options())
    assert fold(events(log, shop.topic("t")))['{"id": 1}']["d"] == "2026-02-28"


def test_a_text_that_is_none_is_a_dead_letter(log: str, shop: Shop) -> None:
    shop.run("create table t (id int primary key, a varchar(9) character set ascii)", "insert into t values (1, 'a')")
    catch_up(log, shop.options())
    with closing(shop.server.connect(shop.name)) as session, session.cursor() as cursor:
        cursor.execute("set sql_mode = ''")
        cursor.execute("create table raw (id int primary key, a varbinary(9))")
        cursor.execute("insert into raw values (2, x'ff41')")
        cursor.execute("alter table raw modify a varchar(9) character set ascii")
        cursor.execute("insert into t select * from raw")
    catch_up(log, shop.options(exclude_tables=("raw",)))
    found = [each.value["after"] for each in events(log, shop.topic("t")) if each.key == {"id": 2}]
    letters = [each.value["key"] for each in events(log, f"{shop.name}.dead-letters")]
    assert bool(found) != bool(letters), "the row is in one place"


def test_a_new_snapshot_of_everything_empties_the_topics_of_tables_that_are_gone(log: str, shop: Shop) -> None:
    for table in ("t", "gone"):
        shop.run(f"create table {table} (id int primary key)", f"insert into {table} values (1)")
    catch_up(log, shop.options())
    shop.run("set sql_log_bin = 0", "drop table gone", "set sql_log_bin = 1")
    said: list[str] = []
    Capture(log, shop.options(), say=said.append).run(threading.Event(), until_current=True, resnapshot=True)
    assert ["gone is gone" in each for each in said] == [True]
    shop.check(log, "t")
    assert fold(events(log, shop.topic("gone"))) == {}


CASCADES = [
    ("on delete cascade", "delete from parent where id = 1"),
    ("on delete set null", "delete from parent where id = 1"),
    ("on update cascade", "update parent set id = 9 where id = 1"),
    ("on update set null", "update parent set id = 9 where id = 1"),
]


@pytest.mark.parametrize(("rule", "statement"), CASCADES)
@pytest.mark.parametrize("is_parent_captured", [True, False])
def test_rows_that_a_foreign_key_changes_are_followed_though_the_binlog_hides_them(
    log: str, shop: Shop, rule: str, statement: str, is_parent_captured: bool
) -> None:
    reference = f"foreign key (of) references parent (id) {rule}"
    grand = "foreign key (of) references child (id) on delete cascade on update cascade"
    shop.run("create table parent (id int primary key, n int)")
    shop.run(f"create table child (id int primary key, of int, {reference})")
    shop.run(f"create table grandchild (id int primary key, of int, {grand})")
    for table in ("parent", "child", "grandchild"):
        shop.run(f"insert into {table} values (1, 1), (2, 2)")
    options = shop.options() if is_parent_captured else shop.options(exclude_tables=(f"{shop.name}.parent",))
    said: list[str] = []
    catch_up(log, options, said.append)
    shop.run("update parent set n = n + 1", "insert into parent values (3, 3)")
    catch_up(log, options, said.append)
    assert said == []
    shop.run(statement, "insert into child values (3, 3)")
    catch_up(log, options, said.append)
    for table in ("child", "grandchild"):
        shop.check(log, table)
        assert len([line for line in said if f".{table} may have other rows" in line]) == 1


UNIQUE = [
    ("id int not null, k int not null, n int, unique (k), unique (id)", ["k"]),
    ("id int not null, k int, n int, unique (k), unique (id)", ["id"]),
    ("id int not null, k varchar(9) not null, n int, unique (k(3)), unique (n), unique b (id, k)", ["id", "k"]),
    ("id int not null, k int not null, n int, unique (id)) with system versioning (", ["id"]),
    ("id int not null, k text not null, n int, unique (k)", []),
]


def test_a_row_that_came_after_a_truncation_and_went_by_a_foreign_key_is_not_kept(log: str, shop: Shop) -> None:
    """The child is to be read again already, but what is read does not say that the row is gone."""
    shop.run("create table parent (id int primary key)")
    shop.run("create table child (id int primary key, foreign key (id) references parent (id) on delete cascade)")
    shop.run("insert into parent values (1), (9)", "insert into child values (1), (9)")
    catch_up(log, shop.options())
    shop.run("delete from parent where id = 1", "insert into parent values (2)", "insert into child values (2)")
    shop.run("delete from parent where id = 2")
    catch_up(log, shop.options())
    shop.check(log, "child")


@pytest.mark.parametrize(("columns", "key"), UNIQUE)
def test_a_unique_index_without_nulls_is_the_key_of_a_table_that_has_no_primary_one(
    log: str, shop: Shop, columns: str, key: list[str]
) -> None:
    """The server calls it the key in the binlog, so the snapshot must too."""
    columns, is_versioned, _ = columns.partition(") with system versioning (")
    shop.run(f"create table t ({columns}){' with system versioning' if is_versioned else ''}")
    shop.run("insert into t values (1, 1, 1), (2, 2, 2), (3, 3, 3)")
    said: list[str] = []
    catch_up(log, shop.options(), said.append)
    shop.run("update t set n = 9 where id = 1", "delete from t where id = 2", "insert into t values (4, 4, 4)")
    catch_up(log, shop.options(), said.append)
    found = events(log, shop.topic("t"))
    assert not any("primary key" in line for line in said)
    assert [each.op for each in found if each.op != "tombstone"] == ["r", "r", "r", "u", "d", "c"]
    assert {tuple(each.key or ()) for each in found} == {tuple(key)}
    if key:
        shop.check(log, "t", *key)
