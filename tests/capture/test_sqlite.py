"""A real SQLite file into a real log."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from headrace.capture import Capture, CaptureOptions
from headrace.capture.shapes import table_topic
from headrace.capture.source import open_source
from headrace.capture.sqlite.change_table import ChangeTable
from headrace.capture.sqlite.file import SqliteFile
from headrace.capture.sqlite.source import SqliteSource
from tests.capture.conftest import File
from tests.capture.world import catch_up, check_numbering, committed, events, fold, fold_bag

pytestmark = pytest.mark.slow


def test_rows_that_were_there_come_first_and_then_every_change_once(log: str, file: File) -> None:
    file.run("create table t (id integer primary key, name text)", "insert into t values (1, 'a'), (2, 'b'), (3, 'c')")
    catch_up(log, file.options(chunk_rows=2))
    file.run("insert into t values (4, 'd')", "update t set name = 'B' where id = 2", "delete from t where id = 1")
    file.run("update t set id = 9 where id = 3", "begin", "insert into t values (100, 'never')", "rollback")
    catch_up(log, file.options())
    catch_up(log, file.options())
    found = events(log, f"{file.name}.main.t")
    assert [each.op for each in found] == ["r", "r", "r", "c", "u", "d", "tombstone", "d", "tombstone", "c"]
    assert fold(found) == {json.dumps({"id": each["id"]}): each for each in file.all("select * from t")}
    assert len(file.all(f"select * from _headrace_{file.name}")) == 1, "only the last change stays, as a witness"
    check_numbering(found)


def test_a_snapshot_under_change_gives_the_table(log: str, file: File) -> None:
    file.run("create table t (a integer, b text, n integer, primary key (a, b))", "create table bag (n)")
    for number in range(50):
        file.run(f"insert into t values ({number % 7}, 'k{number}', 0)", f"insert into bag values ({number % 5})")
    step = itertools.count(1)

    class Disturbed(threading.Event):
        def is_set(self) -> bool:
            number = next(step)
            if number < 40:
                file.run(f"update t set n = n + 1 where b = 'k{number}'", f"insert into bag values ({number})")
                file.run(
                    f"delete from t where b = 'k{number * 3}'", f"update t set a = a + 10 where b = 'k{number * 2}'"
                )
            return False

    Capture(log, file.options(chunk_rows=7)).run(Disturbed(), until_current=True)
    catch_up(log, file.options())
    found, bag = events(log, f"{file.name}.main.t"), events(log, f"{file.name}.main.bag")
    assert fold(found) == {json.dumps({"a": each["a"], "b": each["b"]}): each for each in file.all("select * from t")}
    assert fold_bag(bag) == sorted(json.dumps(each) for each in file.all("select * from bag"))
    check_numbering([*found, *bag])


def test_every_kind_of_value_is_the_same_from_the_snapshot_and_from_the_triggers(log: str, file: File) -> None:
    values = "9223372036854775807, 0.1, 'a\"b\u00e9', x'00ff', null"
    file.run(
        'create table "t""%d" (id integer primary key, i, f, t, b, n)', f'insert into "t""%d" values (1, {values})'
    )
    catch_up(log, file.options())
    file.run(f'insert into "t""%d" values (2, {values})')
    catch_up(log, file.options())
    read, created = [each.value["after"] for each in events(log, table_topic(file.name, "main", 't"%d'))]
    expected = {"i": 9223372036854775807, "f": 0.1, "t": 'a"b\u00e9', "b": "AP8=", "n": None}
    assert (read, created) == ({"id": 1, **expected}, {"id": 2, **expected})


def test_reals_keep_all_their_digits_and_infinities_do_not_stop_capture(log: str, file: File) -> None:
    reals = [0.1 + 0.2, 1 / 3, -2 / 3, 5e-324, 1.7976931348623157e308, 123456789.12345679, 1e22, math.inf, -math.inf]
    file.run("create table t (id integer primary key, r real)")
    insert = "insert into t (r) values (?)"
    file.session.executemany(insert, [(each,) for each in reals])
    catch_up(log, file.options())
    file.session.executemany(insert, [(each,) for each in reals])
    catch_up(log, file.options())
    told = [each.value["after"]["r"] for each in events(log, f"{file.name}.main.t")]
    expected = [*reals[:-2], "Infinity", "-Infinity"]
    assert (told[: len(reals)], told[len(reals) :]) == (expected, expected)


def test_a_new_column_is_followed_and_announced_while_capture_runs(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)")
    file.run("insert into t values (1)")
    catch_up(log, file.options())
    file.run("alter table t add column name text")
    catch_up(log, file.options())
    file.run("insert into t values (2, 'b')")
    catch_up(log, file.options())
    after = [each.value["after"] for each in events(log, f"{file.name}.main.t")]
    assert after == [{"id": 1}, {"id": 2, "name": "b"}], "nothing was missed, so nothing is announced again"
    announced = [json.loads(each.value or b"")["tableChanges"][0]["type"] for each in committed(log, file.name)]
    assert announced == ["CREATE", "ALTER"]


def test_values_of_a_column_that_the_triggers_did_not_know_yet_are_told(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)", "create table other (id)")
    catch_up(log, file.options())
    file.run("alter table t add column name text", "insert into t values (2, 'b')", "update t set name = 'a'")
    file.run("insert into other values (1)")
    catch_up(log, file.options())
    found = events(log, f"{file.name}.main.t")
    assert fold(found) == {json.dumps({"id": each["id"]}): each for each in file.all("select * from t")}
    assert [each.op for each in events(log, f"{file.name}.main.other")] == ["c"], "other tables are not announced again"
    check_numbering(found)


@pytest.mark.parametrize("key", ["integer primary key", "integer"])
def test_a_table_that_a_migration_built_anew_is_told_anew_also_after_a_kill(
    log: str, file: File, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.run(f"create table t (id {key}, n integer)", "insert into t values (1, 1), (2, 2), (3, 3)")
    catch_up(log, file.options(chunk_rows=2))
    file.run("begin", f"create table new_t (id {key}, n integer)", "insert into new_t select id, n * 10 from t")
    file.run("drop table t", "alter table new_t rename to t", "commit")
    file.run("insert into t values (4, 40)", "delete from t where id = 1")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ChangeTable, "newest", _killed_behind_the_triggers(file))
        catch_up(log, file.options())
    catch_up(log, file.options(chunk_rows=2))
    file.run("update t set n = 21 where id = 2")
    catch_up(log, file.options())
    found = events(log, f"{file.name}.main.t")
    rows = file.all("select * from t")
    if key == "integer":
        assert fold_bag(found) == sorted(json.dumps(each) for each in rows)
    else:
        assert fold(found) == {json.dumps({"id": each["id"]}): each for each in rows}
    assert [each.op for each in found] == ["r", "r", "r", "t", "r", "r", "r", "u"]
    check_numbering(found)


def _killed_behind_the_triggers(file: File) -> Callable[[ChangeTable], int]:
    newest = ChangeTable.newest

    def killed(table: ChangeTable) -> int:
        if file.all("select 1 from sqlite_schema where type = 'trigger'"):
            raise KeyboardInterrupt
        return newest(table)

    return killed


def test_a_column_is_dropped_and_renamed_by_the_application_without_further_ado(log: str, file: File) -> None:
    file.run(
        "create table t (id integer primary key, a text, b text, c text)", "insert into t values (1, 'a', 'b', 'c')"
    )
    file.run("create table bag (x unique, y)", "insert into bag values (1, 2)")
    catch_up(log, file.options())
    file.run("alter table t drop column a", "alter table bag drop column y", "insert into t values (2, 'B', 'C')")
    file.run("update t set b = 'BB'", "delete from t where id = 1", "insert or replace into bag values (1)")
    catch_up(log, file.options())
    file.run("alter table t rename column b to d")
    catch_up(log, file.options())
    file.run("alter table t drop column c")
    catch_up(log, file.options())
    file.run("insert into t values (3, 'D')")
    catch_up(log, file.options())
    found = events(log, f"{file.name}.main.t")
    assert [(each.op, each.value["after"]) for each in found if each.op in "trc"][1:] == [
        ("t", None),
        ("r", {"id": 2, "b": "BB", "c": "C"}),
        ("t", None),
        ("r", {"id": 2, "d": "BB", "c": "C"}),
        ("c", {"id": 3, "d": "D"}),
    ]
    assert fold_bag(events(log, f"{file.name}.main.bag")) == ['{"x": 1}']


def test_a_gap_in_a_table_without_a_snapshot_is_warned_of(log: str, file: File) -> None:
    said: list[str] = []
    file.run("create table t (id integer primary key)")
    catch_up(log, file.options(snapshot=False))
    file.run(f"drop trigger _headrace_{file.name}$t$c", "insert into t values (1)")
    Capture(log, file.options(snapshot=False), say=said.append).run(threading.Event(), until_current=True)
    file.run("insert into t values (2)")
    catch_up(log, file.options(snapshot=False))
    assert [each.op for each in events(log, f"{file.name}.main.t")] == ["c"]
    assert any("changes of t may be missing" in each for each in said)


def before_statements(monkeypatch: pytest.MonkeyPatch, do: Callable[[str], None]) -> None:
    """Another program gets its turn before every statement of capture."""
    run = SqliteFile.run

    def disturbed(opened: SqliteFile, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        do(statement)
        return run(opened, statement, *arguments)

    monkeypatch.setattr(SqliteFile, "run", disturbed)


def test_a_schema_changed_just_behind_a_read_is_noticed(log: str, file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.run("create table t (id integer primary key)")
    seen = ["", ""]
    altered, stop, turns = threading.Event(), threading.Event(), itertools.count()

    def alter_behind_the_first_read(statement: str) -> None:
        seen.append(statement)
        if "pragma data_version" in seen and seen[-2] == "commit" and not altered.is_set():
            altered.set()
            file.run("alter table t add column name text")

    class Turn(threading.Event):
        """Asked once per read: a row is written when the triggers know the column, or have had many turns to."""

        def is_set(self) -> bool:
            knows = file.all("select 1 from sqlite_schema where type = 'trigger' and sql like '%\"name\"%'")
            if not stop.is_set() and altered.is_set() and (knows or next(turns) == 20):
                file.run("insert into t values (1, 'a')")
                stop.set()
            return False

    before_statements(monkeypatch, alter_behind_the_first_read)
    monkeypatch.setattr(SqliteSource, "caught_up", lambda source: stop.is_set())
    Capture(log, file.options()).run(Turn(), until_current=True)
    catch_up(log, file.options())
    assert [each.value["after"] for each in events(log, f"{file.name}.main.t")] == [{"id": 1, "name": "a"}]


def test_a_row_written_while_triggers_are_made_anew_is_told(
    log: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.run("create table t (id integer primary key)", "pragma busy_timeout = 0")
    catch_up(log, file.options())
    file.run("alter table t add column name text")
    seen: list[str] = []
    refused: list[str] = []

    def write_behind_the_drop(statement: str) -> None:
        if seen and seen[-1].startswith("drop trigger") and not refused:
            try:
                file.run("insert into t values (1, 'a')")
            except sqlite3.OperationalError as error:
                refused.append(str(error))
        seen.append(statement)

    with monkeypatch.context() as patch:
        before_statements(patch, write_behind_the_drop)
        catch_up(log, file.options())
    assert refused == ["database is locked"], "a writer waits, and then finds the new triggers"
    file.run("insert into t values (1, 'a')")
    catch_up(log, file.options())
    assert [each.value["after"] for each in events(log, f"{file.name}.main.t")] == [{"id": 1, "name": "a"}]


def test_large_rows_are_taken_by_bytes_and_not_by_thousands(
    log: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_max = 17 * 1024 * 1024 + 4096  # 16 MB and the row that goes beyond
    file.run("create table t (id integer primary key, x text)", "create table bag (x text)")
    insert = "insert into t (x) select printf('%.1048576c', 'x') from generate where n <= 20"
    file.run(
        "create view generate as with recursive s (n) as (values (1) union all select n + 1 from s limit 20) "
        "select n from s"
    )
    file.run(insert, insert.replace("into t", "into bag"))
    grown, fetched = _watched(monkeypatch)
    catch_up(log, file.options())
    file.run(insert)
    catch_up(log, file.options())
    found = events(log, f"{file.name}.main.t")
    assert [(each.op, each.key["id"]) for each in found] == [("c" if n > 20 else "r", n) for n in range(1, 41)]
    assert len(events(log, f"{file.name}.main.bag")) == 20
    check_numbering(found)
    assert max(fetched) < 1_000_000, "no large rows are held together"
    assert sorted(grown)[-2] < bytes_max < max(grown), "only a table without a key is read in one piece"


def _watched(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Bytes of events that each reading made, and of text that each statement gave at once."""
    grown: list[int] = []
    fetched: list[int] = []
    read, run = SqliteSource.read, SqliteFile.run

    def watched_read(source: SqliteSource, wait_s: float) -> bool:
        assert source._writer is not None
        before = source._writer.bytes_pending
        more = read(source, wait_s)
        grown.append(source._writer.bytes_pending - before)
        return more

    def watched_run(opened: SqliteFile, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        rows = run(opened, statement, *arguments)
        fetched.append(sum(len(each) for row in rows for each in row if isinstance(each, str)))
        return rows

    monkeypatch.setattr(SqliteSource, "read", watched_read)
    monkeypatch.setattr(SqliteFile, "run", watched_run)
    return grown, fetched


def test_removing_a_capture_leaves_nothing_in_the_file(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)")
    catch_up(log, file.options())
    source = open_source(file.options(), None)
    assert len(source.remove()) == 4
    source.close()
    assert file.all("select name from sqlite_schema where name like '%headrace%'") == []


def test_removing_a_capture_leaves_another_one_whose_name_begins_as_its_own_does(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)")
    longer = CaptureOptions(name=f"{file.name}_b", url=f"sqlite:///{file.path}")
    catch_up(log, file.options())
    catch_up(log, longer)
    with closing(open_source(file.options(), None)) as source:
        source.remove()
    file.run("insert into t values (1)")
    catch_up(log, longer)
    assert [each.op for each in events(log, f"{longer.name}.main.t")] == ["c"]


@pytest.mark.parametrize("suffix", ["", " without rowid"])
def test_no_row_is_left_out_between_two_chunks(log: str, file: File, suffix: str) -> None:
    file.run(f"create table t (a text, b, n integer, primary key (a, b)){suffix}")
    keys = itertools.product(["x", "y", "Y"], [1, 2.5, "z", b"z"])
    for number, (a, b) in enumerate(keys):
        file.session.execute("insert into t values (?, ?, ?)", (a, b, number))
    for chunk_rows in (1, 2, 5):
        options = CaptureOptions(name=f"{file.name}_{chunk_rows}", url=f"sqlite:///{file.path}", chunk_rows=chunk_rows)
        catch_up(log, options)
        found = events(log, f"{options.name}.main.t")
        assert sorted(each.value["after"]["n"] for each in found) == list(range(12))
        assert len(fold(found)) == 12


@pytest.mark.parametrize("chosen", [(), ("main.a", "main.b")])
def test_a_table_dropped_in_mid_snapshot_ends_its_snapshot_and_nothing_else(
    log: str, file: File, chosen: tuple[str, ...]
) -> None:
    file.run("create table a (id integer primary key)", "create table b (id integer primary key)")
    file.run("insert into a values (1), (2), (3), (4), (5)", "insert into b values (1)")
    turn = itertools.count(1)

    class Dropped(threading.Event):
        def is_set(self) -> bool:
            if next(turn) == 4:
                file.run("drop table a")
            return False

    Capture(log, file.options(chunk_rows=2, tables=chosen)).run(Dropped(), until_current=True)
    assert [each.op for each in events(log, f"{file.name}.main.a")] == ["r", "r", "r", "r", "t"]
    assert [each.op for each in events(log, f"{file.name}.main.b")] == ["r"]


def test_rows_that_only_the_collation_of_the_key_tells_apart_are_all_read(log: str, file: File) -> None:
    file.run("create table t (id text collate nocase, n, primary key (id collate binary)) without rowid")
    file.run("insert into t values ('a', 1), ('A', 2), ('b', 3), ('B', 4)")
    catch_up(log, file.options(chunk_rows=1))
    assert sorted(row["n"] for row in fold(events(log, f"{file.name}.main.t")).values()) == [1, 2, 3, 4]


def test_an_outbox_row_that_cannot_be_an_event_is_a_dead_letter_and_capture_goes_on(log: str, file: File) -> None:
    file.run("create table outbox (id integer primary key, aggregatetype text, aggregateid text, payload text)")
    options = file.options(outbox="outbox", topic_config={"max.message.bytes": "4000"})
    catch_up(log, options)
    kind = f"kind-{file.name}"
    for payload in ("cast(x'ff' as text)", "hex(randomblob(9000))", "'fine'"):
        file.run(f"insert into outbox (aggregatetype, aggregateid, payload) values ('{kind}', '7', {payload})")
    catch_up(log, options)
    assert [each.value for each in committed(log, f"outbox.event.{kind}")] == [b"fine"]
    letters = [json.loads(each.value or b"") for each in committed(log, f"{file.name}.dead-letters")]
    assert [each["row"] for each in letters] == [{"id": "1"}, {"id": "2"}]
    assert "not valid Unicode" in letters[0]["reason"]
    assert "takes 3744" in letters[1]["reason"]
