"""Changes that come in another order than they were made, or without a trigger of theirs: the topic is the table."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from headrace.capture import Capture
from headrace.capture.sqlite.change_table import ChangeTable
from tests.capture.conftest import File
from tests.capture.test_postgres import AfterSome, Died
from tests.capture.world import catch_up, check_numbering, events, fold, fold_bag

pytestmark = pytest.mark.slow

UPDATED_AT = "create trigger touch after update of n on t begin update t set at = at + 1 where {key} is new.{key}; end"


def rows_of(file: File, table: str) -> list[str]:
    return sorted(json.dumps(each) for each in file.all(f"select * from {table}"))


def folded(log: str, file: File, table: str, *, has_key: bool = True) -> list[str]:
    found = events(log, f"{file.name}.main.{table}")
    check_numbering(found)
    return sorted(map(json.dumps, fold(found).values())) if has_key else fold_bag(found)


@pytest.mark.parametrize("made", ["before capture's", "after capture's", "in a session of the application"])
@pytest.mark.parametrize("key", ["id", "rowid"])
def test_a_trigger_of_the_application_that_changes_the_row_again(log: str, file: File, made: str, key: str) -> None:
    file.run(f"create table t (id integer {'primary key' if key == 'id' else ''}, n integer, at integer default 0)")
    trigger = UPDATED_AT.format(key=key)
    if made == "before capture's":
        file.run(trigger)
    file.run("insert into t (id, n) values (1, 1), (2, 2)")
    catch_up(log, file.options())
    if made == "after capture's":
        file.run(trigger)
    elif made != "before capture's":
        file.run(trigger.replace("create trigger touch", "create temp trigger touch"))
    for number in range(2):
        file.run(f"update t set n = n + {number}", "insert into t (id, n) select max(id) + 1, 7 from t")
        catch_up(log, file.options())
        assert folded(log, file, "t", has_key=key == "id") == rows_of(file, "t")


def test_every_change_is_told_once_and_in_order_when_capture_has_seen_the_trigger(log: str, file: File) -> None:
    file.run(
        "create table t (id integer primary key, n integer, at integer default 0)", "insert into t values (1, 1, 0)"
    )
    catch_up(log, file.options())
    file.run(UPDATED_AT.format(key="id"))
    catch_up(log, file.options())
    file.run("update t set n = 5")
    catch_up(log, file.options())
    found = [(each.value["before"], each.value["after"]) for each in events(log, f"{file.name}.main.t")[1:]]
    assert [(before["at"], after["at"], after["n"]) for before, after in found] == [(0, 0, 5), (0, 1, 5)]


REPLACES = [
    "insert or replace into t values (7, 'a', 'new')",
    "insert or replace into t values (1, 'b', 'both')",
    "update or replace t set u = 'a' where u = 'c'",
    "insert into t values (7, 'a', 'upsert') on conflict (u) do update set v = excluded.v",
    "insert or ignore into t values (7, 'a', 'ignored')",
    "replace into t select id + 100, u, v from t",
    "insert into t values (7, 'a', 'nothing') on conflict do nothing",
]
KEYS = {
    "a rowid as the key": "id integer primary key, u text unique, v",
    "a text as the key": "id text primary key collate nocase, u text unique, v",
    "no rowids": "id text primary key, u text unique, v",
    "no key": "id, u text unique, v",
    "a unique expression": "id integer primary key, u text, v",
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("recursive", [False, True])
def test_rows_that_replace_removes_are_gone_from_the_topic(log: str, file: File, key: str, recursive: bool) -> None:
    suffix = "without rowid" if key == "no rowids" else ""
    file.run(f"create table t ({KEYS[key]}) {suffix}", f"pragma recursive_triggers = {recursive}")
    if key == "a unique expression":
        file.run("create unique index t_u on t (lower(u || ',') desc) where v is not null")
        file.run("insert into t values (50, 'A', null)")
    file.run("insert into t values (1, 'a', '1'), (2, 'b', '2'), (3, 'c', '3')")
    catch_up(log, file.options())
    for statement in REPLACES:
        with suppress(sqlite3.OperationalError):  # there is no constraint to name where the index is an expression
            file.run(statement)
        catch_up(log, file.options())
        assert folded(log, file, "t", has_key=key != "no key") == rows_of(file, "t"), statement


def test_a_key_that_differs_only_for_a_collation_is_another_key(log: str, file: File) -> None:
    file.run("create table t (id text collate nocase primary key, n)", "insert into t values ('a', 1), ('b', 2)")
    catch_up(log, file.options())
    file.run("insert or replace into t values ('A', 3)", "update t set id = 'B' where id = 'b'")
    catch_up(log, file.options())
    assert folded(log, file, "t") == rows_of(file, "t")


def test_a_row_that_a_trigger_tries_to_insert_again_is_not_taken_for_removed(log: str, file: File) -> None:
    """The trigger runs before capture's, finds the new row in the way, and ignores the conflict."""
    again = "create trigger again after insert on t begin insert or ignore into t values (new.id, new.n); end"
    file.run("create table t (id int unique, n)", "insert into t values (1, 1)")
    catch_up(log, file.options())
    file.run("begin", again, "insert or ignore into t values (2, 2)", "commit")
    catch_up(log, file.options())
    assert folded(log, file, "t", has_key=False) == rows_of(file, "t")
    file.run("insert or replace into t (rowid, id, n) values (1, 1, 1)", "replace into t (rowid, id) values (1, 3)")
    catch_up(log, file.options())
    assert folded(log, file, "t", has_key=False) == rows_of(file, "t")


@pytest.mark.parametrize("name", ["row_number", "old_row", "new_row", "operation", "table_name", "found", "number"])
def test_a_column_may_be_called_like_one_of_the_change_table(log: str, file: File, name: str) -> None:
    file.run(f"create table t (id int unique, {name})", "insert into t values (1, 1), (2, 2), (3, 3)")
    catch_up(log, file.options())
    for statement in (
        "replace into t values (1, 4)",
        f"update t set {name} = 5 where id = 3",
        f"update or replace t set id = 1, {name} = 2 where id = 3",
        "insert or ignore into t values (1, 1)",
        "delete from t where id = 2",
    ):
        file.run(statement)
        catch_up(log, file.options())
        assert folded(log, file, "t", has_key=False) == rows_of(file, "t"), statement


# ---- anything at all ------------------------------------------------------------------------------------------------

TABLES = {
    "keyed": "(id integer primary key, u text unique, v)",
    "texts": "(id text collate nocase primary key, u integer, v, g as (u + 1))",
    "pairs": "(id text, u, v, primary key (id, u)) without rowid",
    "bag": "(id, u unique, v)",
    "plain": "(id, u, v)",
    "strict_one": "(id integer primary key, u text, v any) strict",
    "child": "(id integer primary key, u references keyed (id) on delete cascade on update cascade, v)",
    "tree": "(id integer primary key, u references tree (id) on delete set null on update cascade, v)",
}
WITHOUT_KEY = {"bag", "plain"}
TRIGGERS = [
    "after update on {t} when new.v is not 'x' begin update {t} set v = 'x' where id is new.id; end",
    "after insert on {t} when new.v is 'gone' begin delete from {t} where id is new.id; end",
    "after insert on {t} when new.v is 'move' begin update {t} set id = id || '9' where id is new.id; end",
    "after delete on {t} when old.v is 'back' begin insert or replace into {t} (id, u) values (old.id, old.u); end",
    "before insert on {t} when new.v is 'pair' begin insert or replace into {t} (id, u, v) values (90, 90, 1); end",
    "after update on {t} begin update {t} set u = u || '' where id > new.id; end",
]


class Generator:
    """Random statements of an application; those that SQLite refuses have changed nothing."""

    def __init__(self, seed: int, file: File) -> None:
        self._random = random.Random(seed)
        self._file = file
        self._triggers: list[str] = []
        self._numbers = itertools.count()

    def step(self) -> None:
        chosen = self._random
        table = chosen.choice(list(TABLES))
        work = [
            chosen.choices([self._written, self._trigger, self._schema], [30, 1, 1])[0](table)
            for _ in range(chosen.randint(1, 5))
        ]
        self._try("pragma recursive_triggers = " + chosen.choice(["on", "off"]))
        grouped = chosen.random() < 0.4
        for statement in ["begin", *work, chosen.choice(["commit", "commit", "rollback"])] if grouped else work:
            self._try(statement)
        if self._file.session.in_transaction:
            self._try("commit")

    def _try(self, statement: str) -> None:
        with suppress(sqlite3.Error):
            self._file.run(statement)

    def _value(self) -> str:
        kinds = ["1", "2", "3", "'1'", "'a'", "'A'", "'b'", "4.5", "x'31'", "'gone'", "'move'", "'back'", "'pair'"]
        return self._random.choice(kinds)

    def _written(self, table: str) -> str:
        how = self._random.choice(["", "or replace", "or ignore", "or fail"])
        one, two, three = (self._value() for _ in range(3))
        key = str(self._random.randint(1, 6))
        return self._random.choice(
            [
                f"insert {how} into {table} (id, u, v) values ({key}, {two}, {three})",
                f"insert {how} into {table} (id, u, v) values ({one}, {two}, {three})",
                f"insert {how} into {table} (id, u, v) values ({key}, 1, 1), ({one}, 2, 2), ({two}, 3, {three})",
                f"insert into {table} (id, u, v) values ({key}, {two}, 1) on conflict do update set v = {three}",
                f"update {how} {table} set v = {one}, u = {two} where id is {key}",
                f"update {how} {table} set id = {one} where id is {key}",
                f"update {how} {table} set id = id + 1",
                f"update {how} {table} set u = {one} where id < {key}",
                f"delete from {table} where id is {key}",
                f"delete from {table} where u is {one}",
                f"replace into {table} (rowid, id, u, v) values ({key}, {one}, {two}, {three})",
            ]
        )

    def _trigger(self, table: str) -> str:
        if self._triggers and self._random.random() < 0.4:
            return f"drop trigger {self._triggers.pop()}"
        name = f"app{next(self._numbers)}"
        self._triggers.append(name)
        temporary = "temp" if self._random.random() < 0.3 else ""
        return f"create {temporary} trigger {name} {self._random.choice(TRIGGERS).format(t=table)}"

    def _schema(self, table: str) -> str:
        name = f"c{next(self._numbers)}"
        return self._random.choice(
            [
                f"alter table {table} add column {name}",
                f"alter table {table} rename to gone_{name}",
                f"alter table {table} rename column v to {name}",
                f"drop table {table}",
                f"create table {table} {TABLES[table]}",
                f"create unique index {name} on {table} (v) where v > 1",
                f"alter table {table} drop column v",
                "vacuum",
            ]
        )


@pytest.mark.parametrize("seed", [*range(6), 13, 23, 24])
def test_the_topic_is_the_table_whatever_the_application_does(
    log: str, file: File, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = random.Random(-seed)
    file.run("pragma foreign_keys = on", f"pragma journal_mode = {chosen.choice(['wal', 'delete'])}")
    for name, columns in TABLES.items():
        file.run(f"create table {name} {columns}")
    application = Generator(seed, file)
    for _ in range(10):
        for _ in range(chosen.randint(1, 8)):
            application.step()
        if chosen.random() < 0.3:
            with monkeypatch.context() as patch, pytest.raises(Died):
                patch.setattr("headrace.capture.sqlite.change_table.READ_CHANGES_MAX", 3)
                patch.setattr(ChangeTable, "forget", lambda table, before: None)
                Capture(log, file.options(chunk_rows=2)).run(AfterSome(chosen.randint(1, 9), Died()))
            continue
        catch_up(log, file.options(chunk_rows=chosen.choice([1, 3, 100])))
        for name in TABLES:
            compare(log, file, name)


def compare(log: str, file: File, table: str) -> None:
    exists = bool(file.all(f"select 1 from sqlite_schema where type = 'table' and name = '{table}'"))
    rows = [each for each in file.all(f"select * from {table}") if has_key(file, table, each)] if exists else []
    found = events(log, f"{file.name}.main.{table}")
    told = [json.loads(each) for each in fold_bag(found)] if table in WITHOUT_KEY else list(fold(found).values())
    # A new column without values may be missing in a row, and a dropped one may still be there.
    names = [each["name"] for each in file.all(f"select name from pragma_table_xinfo('{table}') where hidden <> 1")]
    assert Counter(plain(each, names) for each in told) == Counter(plain(each, names) for each in rows), table


def has_key(file: File, table: str, row: dict[str, Any]) -> bool:
    """A NULL in the key makes a row a dead letter."""
    keys = [each["name"] for each in file.all(f"select name from pragma_table_info('{table}') where pk")]
    return all(row[each] is not None for each in keys)


def plain(row: dict[str, Any], names: list[str]) -> str:
    """Values as they are shown, without the objects that name a class."""

    def shown(value: Any) -> Any:
        if isinstance(value, dict):
            (value,) = value.values()
        return "MQ==" if value == b"1" else value

    return json.dumps({name: shown(row.get(name)) for name in names})
