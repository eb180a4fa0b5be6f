"""A table whose key becomes another one while its snapshot is under way: the snapshot begins again, nothing fails.

What is kept of a snapshot is the key of the last row that was read. A key of other columns, or of another type, cannot
go on from there. Each alteration comes between two chunks, once while capture runs and once while it does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.capture import Capture, CaptureOptions
from tests.capture.conftest import Database, File
from tests.capture.shop import Shop
from tests.capture.test_postgres import Died, options
from tests.capture.test_postgres_snapshot import Disturbed
from tests.capture.world import all_read, catch_up, events, fold

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ROWS = 9
CREATE = "create table t (k varchar(10) not null, id int not null, n int, primary key (k, id))"
INSERT = [f"insert into t values ('k{number}', {number}, 0)" for number in range(ROWS)]
POSTGRESQL = {
    "fewer columns": ["alter table t drop constraint t_pkey", "alter table t add primary key (id)"],
    "other columns": ["alter table t drop constraint t_pkey", "alter table t add primary key (id, k)"],
    "another name": ["alter table t rename column k to kk"],
    "another type": ["alter table t alter column k type int using substr(k, 2)::int"],
    "no key": ["alter table t drop constraint t_pkey", "alter table t replica identity full"],
    "no such column": ["alter table t drop column k", "alter table t add primary key (id)"],
}
MARIADB = {
    "fewer columns": ["alter table t drop primary key, add primary key (id)"],
    "other columns": ["alter table t drop primary key, add primary key (id, k)"],
    "another name": ["alter table t change k kk varchar(10) not null"],
    "another type": ["update t set k = substr(k, 2)", "alter table t modify k int not null"],
    "no key": ["alter table t drop primary key"],
    "no such column": ["alter table t drop primary key, drop column k, add primary key (id)"],
}
WHEN = ["while it runs", "while it does not run"]


@pytest.fixture(autouse=True)
def commit_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.capture.run.COMMIT_AGE_S", 0.0)


def run_through(log: str, options: CaptureOptions, when: str, alter: Callable[[], None]) -> None:
    """Take a snapshot with the alteration in it, and follow the table to its end."""
    capture = Capture(log, options)
    altered: list[bool] = []

    def between(asked: int) -> None:
        if not altered and any(0 < each.rows < ROWS for each in capture.snapshots().values()):
            altered.append(True)
            if when != "while it runs":
                raise Died
            alter()

    if when == "while it runs":
        capture.run(Disturbed(between), until_current=True)
    else:
        with pytest.raises(Died):
            capture.run(Disturbed(between))
        alter()
    assert altered == [True], "the snapshot was not met halfway"
    catch_up(log, options)
    catch_up(log, options)
    assert all_read(log, options.name)


@pytest.mark.parametrize("source", ["log", "triggers", "mariadb", "sqlite"])
def test_a_truncation_says_whether_the_rows_are_read_again(
    log: str, database: Database, shop: Shop, file: File, source: str
) -> None:
    """A consumer, or a checker, that meets another truncation before the first row could not know otherwise."""
    place: Database | Shop | File = {"mariadb": shop, "sqlite": file}.get(source, database)  # type: ignore[assignment]
    schema = {"mariadb": shop.name, "sqlite": "main"}.get(source, "public")
    if isinstance(place, Database):
        capture = options(place, triggers=source == "triggers")
    else:
        capture = place.options()
    place.run("create table t (id int primary key)", "insert into t values (1)")
    catch_up(log, capture)
    place.run("alter table t add column c int default 5")
    catch_up(log, capture)
    found = events(log, f"{place.name}.{schema}.t")
    assert [(each.op, each.value["source"]["snapshot"]) for each in found[1:]] == [
        ("t", "incremental"),
        ("r", "incremental"),
    ]
    if source != "sqlite":
        place.run("truncate table t")
        catch_up(log, capture)
        assert events(log, f"{place.name}.{schema}.t")[-1].value["source"]["snapshot"] == "false"


def check_rows(log: str, topic: str, rows: list[dict[str, Any]]) -> None:
    told = sorted(json.dumps(each, sort_keys=True) for each in fold_rows(log, topic))
    assert told == sorted(json.dumps(each, sort_keys=True) for each in rows)


def fold_rows(log: str, topic: str) -> list[dict[str, Any]]:
    found = events(log, topic)
    if found[-1].key is not None:
        return list(fold(found).values())
    since = max(place for place, each in enumerate(found) if each.op == "t")
    return [each.value["after"] for each in found[since + 1 :]]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("triggers", [False, True], ids=["log", "triggers"])
@pytest.mark.parametrize("alteration", POSTGRESQL)
def test_postgresql(log: str, database: Database, alteration: str, triggers: bool, when: str) -> None:
    database.run(CREATE, *INSERT)
    topic = f"{database.name}.public.t"
    capture = options(database, chunk_rows=2, triggers=triggers)
    run_through(log, capture, when, lambda: database.run(*POSTGRESQL[alteration]))
    cursor = database.session.execute("select * from t")
    names = [each.name for each in cursor.description or ()]
    check_rows(log, topic, [dict(zip(names, row, strict=True)) for row in cursor.fetchall()])


def test_a_key_that_was_another_one_for_a_time_is_the_key_of_every_event(log: str, database: Database) -> None:
    """Capture starts while the table has another key, and before its topic can change over the key is back."""
    database.run(CREATE, *INSERT)
    capture = Capture(log, options(database, chunk_rows=2))

    def die(asked: int) -> None:
        if any(0 < each.rows < ROWS for each in capture.snapshots().values()):
            raise Died

    with pytest.raises(Died):
        capture.run(Disturbed(die))
    database.run(*POSTGRESQL["fewer columns"])
    writer = database.another()
    writer.execute("update t set n = 1 where id = 0")  # which holds up the change-over
    reads: list[int] = []

    def put_back(asked: int) -> None:
        reads.append(asked)
        if len(reads) == 5:
            writer.commit()
            database.run("alter table t drop constraint t_pkey", "alter table t add primary key (k, id)")

    Capture(log, options(database, chunk_rows=2)).run(Disturbed(put_back), until_current=True)
    writer.close()
    catch_up(log, options(database))
    found = events(log, f"{database.name}.public.t")
    assert {tuple(each.key) for each in found if each.key is not None} == {("k", "id")}
    assert len(fold(found)) == ROWS


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("alteration", MARIADB)
def test_mariadb(log: str, shop: Shop, alteration: str, when: str) -> None:
    shop.run(CREATE, *INSERT)
    topic = f"{shop.name}.{shop.name}.t"
    capture = shop.options(chunk_rows=2)
    run_through(log, capture, when, lambda: shop.run(*MARIADB[alteration]))
    check_rows(log, topic, shop.all("select * from t"))


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("columns", ["id int primary key, k text", "k text, id int, primary key (id, k)"])
@pytest.mark.parametrize("suffix", ["", "without rowid"])
def test_sqlite(log: str, file: File, columns: str, suffix: str, when: str) -> None:
    """SQLite has no other way to change a key than another table under the same name."""
    file.run(f"create table t (k text, id int, primary key (k, id)) {suffix}")
    for number in range(ROWS):
        file.run(f"insert into t values ('k{number}', {number})")
    topic = f"{file.name}.main.t"

    def alter() -> None:
        file.run("begin", f"create table other ({columns}) {suffix}", "insert into other (k, id) select k, id from t")
        file.run("drop table t", "alter table other rename to t", "commit")

    capture = file.options(chunk_rows=2, tables=("main.t",))
    run_through(log, capture, when, alter)
    check_rows(log, topic, file.all("select * from t"))
