"""Columns of SQLite tables that are added, renamed and dropped: what makes capture read the table again."""

from __future__ import annotations

import json

import pytest

from tests.capture.conftest import File
from tests.capture.test_sqlite_identity import said_by
from tests.capture.world import catch_up, check_numbering, committed, events, fold, fold_bag

pytestmark = pytest.mark.slow

READ_AGAIN = {
    "renamed": ["rename column v to w"],
    "a key that is renamed": ["rename column id to ident"],
    "another case of letters": ["rename column v to V"],
    "with a default": ["add column w default 5"],
    "generated": ["add column w as (id + 1)"],
    "renamed, and another added under its name": ["rename column v to w", "add column v"],
    "exchanged": ["rename column u to x", "rename column v to u", "rename column x to v"],
    "exchanged, and one dropped": [
        "rename column u to x",
        "rename column v to u",
        "rename column x to v",
        "drop column v",
    ],
    "dropped and added at the end": ["drop column u", "add column u"],
    "dropped, and another took its name": ["drop column u", "rename column v to u", "add column v"],
}


@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("how", READ_AGAIN)
def test_a_table_whose_old_rows_look_other_is_read_again(log: str, file: File, how: str, has_key: bool) -> None:
    file.run(f"create table t (id integer {'primary key' if has_key else ''}, u, v)")
    file.run("insert into t values (1, 'u', 'v'), (2, 'U', 'V')")
    catch_up(log, file.options())
    file.run(*(f"alter table t {each}" for each in READ_AGAIN[how]))
    assert [each for each in said_by(log, file.options()) if " t has " in each and "a truncation" in each]
    assert_same(log, file, has_key=has_key)
    file.run("update t set u = u || 'x'", "delete from t where u = 'Ux'")
    assert said_by(log, file.options()) == []
    assert_same(log, file, has_key=has_key)


def assert_same(log: str, file: File, *, has_key: bool = True) -> None:
    found = events(log, f"{file.name}.main.t")
    check_numbering(found)
    rows = sorted(json.dumps(each) for each in file.all("select * from t"))
    assert (sorted(map(json.dumps, fold(found).values())) if has_key else fold_bag(found)) == rows


@pytest.mark.parametrize("has_key", [True, False])
def test_a_row_that_was_written_while_its_table_lacked_a_column_is_told(log: str, file: File, has_key: bool) -> None:
    file.run(f"create table t (id integer {'primary key' if has_key else ''}, u, v)", "insert into t values (1, 2, 3)")
    catch_up(log, file.options())
    file.run("alter table t drop column v", "insert into t values (4, 5)", "alter table t add column v")
    assert [each for each in said_by(log, file.options()) if "t was without a column" in each]
    assert_same(log, file, has_key=has_key)
    assert said_by(log, file.options()) == []


def test_columns_without_values_and_dropped_ones_cost_nothing(log: str, file: File) -> None:
    file.run("create table t (id integer primary key, u, v)", "insert into t values (1, 'u', 'v')")
    catch_up(log, file.options())
    for statement in ["add column w", "add column x default null", "drop column u", "drop column w"]:
        file.run(f"alter table t {statement}")
        assert said_by(log, file.options()) == []
    file.run("insert into t values (2, 'V', 'X')")
    catch_up(log, file.options())
    assert [each.value["after"] for each in events(log, f"{file.name}.main.t")] == [
        {"id": 1, "u": "u", "v": "v"},
        {"id": 2, "v": "V", "x": "X"},
    ]


def test_a_column_that_comes_back_does_not_have_its_old_values(log: str, file: File) -> None:
    file.run("create table t (id integer primary key, u, v)", "insert into t values (1, 'u', 'v')")
    for statement in ["drop column v", "add column v"]:
        catch_up(log, file.options())
        file.run(f"alter table t {statement}")
    catch_up(log, file.options())
    assert_same(log, file)


def test_an_outbox_with_other_columns_goes_on(log: str, file: File) -> None:
    file.run("create table outbox (id text primary key, aggregatetype, aggregateid, payload)")
    options = file.options(outbox="main.outbox")
    catch_up(log, options)
    file.run("alter table outbox add column more default 1", "alter table outbox add column type")
    assert said_by(log, options) == []


def test_a_table_that_has_its_old_columns_again_is_announced_with_them(log: str, file: File) -> None:
    file.run("create table t (id integer primary key)", "insert into t values (1)")
    catch_up(log, file.options())
    for statements in [["alter table t add column w"], ["alter table t drop column w"]]:
        file.run(*statements, "insert into t (id) select max(id) + 1 from t")
        catch_up(log, file.options())
    file.run("create table new_t (id integer primary key)", "drop table t", "alter table new_t rename to t")
    catch_up(log, file.options(tables=("main.t",)))
    announced = [json.loads(each.value or b"")["tableChanges"][0]["table"] for each in committed(log, file.name)]
    assert [[each["name"] for each in table["columns"]] for table in announced] == [["id"], ["id", "w"], ["id"]]
