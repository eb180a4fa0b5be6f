"""Values of SQLite, where any column holds any class of value: as JSON, in keys, and those that JSON cannot have."""

from __future__ import annotations

import json
import math
import sqlite3
from typing import Any

import pytest

from headrace.capture.sqlite.values import json_value, key_renderer, stored_row
from tests.capture.conftest import File
from tests.capture.world import catch_up, committed, events, fold

NOT_UTF8 = b"caf\xe9"
KEYS: list[Any] = [
    1,
    "1",
    b"1",
    "MQ==",
    2.5,
    "2.5",
    math.inf,
    "Infinity",
    b"",
    "",
    -(2**63),
    2**53 + 1,
    '{"blob":"MQ=="}',
]


def letters(log: str, file: File) -> list[Any]:
    return [json.loads(each.value or b"") for each in committed(log, f"{file.name}.dead-letters")]


@pytest.mark.parametrize("declared", ["", "TEXT", "BLOB", "VARBINARY(8)", "INTEGER", "REAL"])
def test_no_two_values_look_alike_in_a_key(declared: str) -> None:
    render = key_renderer(declared)
    shown = [render(each) for each in KEYS]
    assert len({json.dumps(json.loads(each)) for each in shown}) == len(KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", "without rowid"])
@pytest.mark.parametrize("declared", ["", "blob", "text"])
def test_keys_of_any_class_name_one_row_each(log: str, file: File, declared: str, suffix: str) -> None:
    file.run(f"create table t (id {declared} primary key, n integer) {suffix}")
    keys = [each for each in KEYS if declared != "text" or isinstance(each, str | bytes)]
    insert = "insert into t values (?, 0)"
    file.session.executemany(insert, [(each,) for each in keys[:4]])
    catch_up(log, file.options(chunk_rows=2))
    file.session.executemany(insert, [(each,) for each in keys[4:]])
    for number, key in enumerate(keys):
        file.session.execute("update t set n = ? where id is ?", (number, key))
    file.session.execute("delete from t where id is ?", (keys[1],))
    catch_up(log, file.options())
    rows = fold(events(log, f"{file.name}.main.t"))
    assert sorted(each["n"] for each in rows.values()) == [each for each in range(len(keys)) if each != 1]


@pytest.mark.slow
def test_text_that_is_not_unicode_is_a_dead_letter_and_capture_goes_on(log: str, file: File) -> None:
    file.run("create table t (id integer primary key, name text)", "create table k (id text primary key)")
    insert = "insert into t values (?, cast(? as text))"
    file.session.execute(insert, (1, NOT_UTF8))
    file.run("insert into t values (2, 'b')")
    catch_up(log, file.options())
    file.session.execute(insert, (3, NOT_UTF8))
    file.session.execute("insert into k values (cast(? as text))", (NOT_UTF8,))
    file.run("insert into t values (4, 'd')", "update t set name = 'a' where id = 1", "insert into k values ('k')")
    catch_up(log, file.options())
    file.run("delete from t where id = 3", "delete from k where id <> 'k'")
    catch_up(log, file.options())
    assert list(fold(events(log, f"{file.name}.main.t")).values()) == [
        {"id": 2, "name": "b"},
        {"id": 4, "name": "d"},
        {"id": 1, "name": "a"},
    ]
    found = letters(log, file)
    assert [(each["table"], each["op"], each["key"]) for each in found] == [
        ("main.t", "r", {"id": 1}),
        ("main.t", "c", {"id": 3}),
        ("main.k", "c", None),
        ("main.k", "d", None),
    ]
    assert all("not valid Unicode: x'636166e9'" in each["reason"] for each in found)


@pytest.mark.slow
def test_a_null_in_a_key_is_a_dead_letter_unless_other_columns_are_the_key(log: str, file: File) -> None:
    file.run("create table t (id text primary key, n integer)", "insert into t values (null, 1), (null, 2), ('a', 3)")
    catch_up(log, file.options())
    file.run(
        "update t set id = 'b' where n = 1", "update t set n = 4 where n = 2", "update t set id = null where n = 3"
    )
    catch_up(log, file.options())
    assert list(fold(events(log, f"{file.name}.main.t")).values()) == [{"id": "b", "n": 1}]
    assert all("its key has a NULL" in each["reason"] for each in letters(log, file))
    assert {each["row"]["n"] for each in letters(log, file)} == {1, 2, 3, 4}
    file.name += "_n"
    catch_up(log, file.options(key_columns={"main.t": ("n",)}))
    file.run("update t set id = 'c' where n = 3", "update t set n = n + 10")
    catch_up(log, file.options(key_columns={"main.t": ("n",)}))
    rows = fold(events(log, f"{file.name}.main.t"))
    assert rows == {json.dumps({"n": each["n"]}): each for each in file.all("select * from t")}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_texts_are_the_same_in_every_encoding_of_the_file(log: str, file: File, encoding: str) -> None:
    file.run(f"pragma encoding = '{encoding}'", "create table t (id integer primary key, name text, raw)")
    texts = ["", "a,b", "naïve", "\U0001f600", "with\0zero", "quote\"'`", "line\nbreak"]
    insert = "insert into t (name, raw) values (?, ?)"
    file.session.executemany(insert, [(each, each.encode()) for each in texts])
    catch_up(log, file.options())
    file.session.executemany(insert, [(each, each.encode()) for each in texts])
    catch_up(log, file.options())
    found = [each.value["after"]["name"] for each in events(log, f"{file.name}.main.t")]
    assert found == texts * 2


@pytest.mark.slow
def test_generated_columns_are_part_of_a_row_and_strict_tables_are_followed(log: str, file: File) -> None:
    file.run(
        "create table t (id integer primary key, a integer, b integer as (a * 2), c integer as (a * 3) stored) strict"
    )
    file.run("insert into t (a) values (1)")
    catch_up(log, file.options())
    file.run("insert into t (a) values (2)", "update t set a = 5 where id = 1")
    catch_up(log, file.options())
    rows = fold(events(log, f"{file.name}.main.t"))
    assert rows == {json.dumps({"id": each["id"]}): each for each in file.all("select * from t")}


@pytest.mark.slow
def test_a_value_too_large_to_be_written_down_does_not_fail_the_application(
    log: str, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.sqlite.triggers.VALUE_LENGTH_MAX", 1000)
    file.run("create table t (id integer primary key, x)", "create table bag (x)")
    catch_up(log, file.options())
    for table in ("t (x)", "bag"):
        file.run(f"insert into {table} values (zeroblob(1001))", f"insert into {table} values (zeroblob(1000))")
    catch_up(log, file.options())
    assert len(events(log, f"{file.name}.main.t")) == len(events(log, f"{file.name}.main.bag")) == 1
    assert ["too large" in each["reason"] for each in letters(log, file)] == [True, True]


def test_a_row_is_read_as_it_was_written_down() -> None:
    row = stored_row("n,i-5,r0.10000000000000000555,t6162,b00FF,rInf,l,t", "UTF-8")
    assert row[:6] == [None, -5, 0.1, "ab", b"\0\xff", math.inf]
    assert row[7] == ""


def test_numbers_are_json_with_all_their_digits() -> None:
    values = [2**63 - 1, 0.1 + 0.2, 5e-324, -0.0, 1e22]
    assert [json.loads(json_value(each)) for each in values] == values
    assert [json_value(each) for each in (math.inf, -math.inf)] == [b'"Infinity"', b'"-Infinity"']
    with sqlite3.connect(":memory:") as session:
        assert session.execute("select typeof(?)", (math.nan,)).fetchone() == ("null",), "there is no NaN"
