"""The checker of killed joins and views: its plain loops are right, and it notices planted faults."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.vocabulary import UNAVAILABLE
from tests.chaos.pipeline_kills import Wrong
from tests.chaos.tables import Checker, Input, after, cities_of, groups_of, pairs_of, people_of, visited_of


def change(second: int, number: int, bio: str, age: int | None = 30, city: str | None = "Rome") -> dict[str, Any]:
    row = {"id": number, "city": city, "age": age, "paid": None, "bio": bio}
    return {"op": "u", "before": None, "after": row, "ts_ms": 1000 * second}


def deletion(second: int, number: int) -> dict[str, Any]:
    return {"op": "d", "before": {"id": number}, "after": None, "ts_ms": 1000 * second}


TRUNCATION = {"op": "t", "partitions": 2}


def test_a_value_that_was_not_sent_is_the_one_before_and_truncations_and_deletions_forget_it() -> None:
    records = [change(1, 2, "old"), change(2, 2, UNAVAILABLE, age=5)]
    assert after(records)[2] == ({"id": 2, "city": "Rome", "age": 5, "paid": None, "bio": "old"}, 1)
    for gone in (deletion(3, 2), {**TRUNCATION, "ts_ms": 3000}):
        forgotten = [*records, gone, change(4, 2, UNAVAILABLE)]
        assert after(forgotten, until_ms=3999) == {}
        assert people_of(Input(people=[forgotten, []])) == {}, "it lacks a value, so it is not shown"


def test_a_visit_has_the_row_of_its_time_and_a_late_one_has_none() -> None:
    people = [[change(10, 2, "a"), change(20, 2, "b"), {**TRUNCATION, "ts_ms": 30_000}], []]
    visits = [
        {"n": n, "who": who, "at": f"1970-01-01T00:00:{second}+00:00"}
        for n, who, second in ((1, 2, "09"), (2, 2, "10"), (3, 2, "20"), (4, 2, "30"), (5, None, "20"), (6, 2, "20"))
    ]
    found = visited_of(Input(people=people, visits=visits, late={6}))
    nothing = (None, None, None)
    assert set(found) == {
        (1, *nothing),
        (2, "people/0/0", "Rome", "a"),
        (3, "people/0/1", "Rome", "b"),
        (4, *nothing),
        (5, *nothing),
    }


def test_null_is_a_group_and_joins_nothing() -> None:
    people = people_of(Input(people=[[change(1, 2, "a", None, None), change(1, 4, "b", 7, "Oslo")], []]))
    assert {(row["city"], row["number"], row["known"]) for row in groups_of(people)} == {(None, 1, 0), ("Oslo", 1, 1)}
    cities = cities_of(Input(cities=[("Rome", "ann"), ("Bern", "bob"), ("Bern", None)]))
    assert set(pairs_of(people, cities)) == {
        (2, None, "a", None),
        (4, "Oslo", "b", None),
        (None, "Rome", None, "ann"),
    }


RIGHT = [(2, 3, "a")]
LATEST = [(1, 2, "people/0/0", "Rome")]


@pytest.mark.parametrize(
    ("adults", "latest"),
    [
        ([], LATEST),
        ([*RIGHT, (4, 3, "b")], LATEST),
        ([(2, 3, UNAVAILABLE)], LATEST),
        (RIGHT, []),
        (RIGHT, LATEST * 2),
        (RIGHT, [(1, 2, "people/0/1", "Rome")]),
    ],
    ids=["a row is missing", "one is too many", "a value is lost", "a visit is missing", "one twice", "another's row"],
)
def test_a_planted_fault_is_noticed(tmp_path: Path, adults: list[Any], latest: list[Any]) -> None:
    people = [[change(1, 2, "a"), change(1, 4, "b", age=17)], []]
    sent = Input(people=people, visits=[{"n": 1, "who": 2, "at": "1970-01-01T00:00:01+00:00"}])
    for number, (grown, visits) in enumerate(((RIGHT, LATEST), (adults, latest))):
        home = tmp_path / str(number)
        home.mkdir()
        for name, columns, rows in (("adults", "id, decade, bio", grown), ("latest", "n, who, version, city", visits)):
            with closing(sqlite3.connect(home / f"{name}.db")) as database, database:
                database.execute(f"create table {name} ({columns})")
                marks = ", ".join("?" * len(columns.split(", ")))
                database.executemany(f"insert into {name} values ({marks})", rows)
    Checker(tmp_path / "0", "", sent).check(["adults", "latest"], closed=True)
    with pytest.raises(Wrong):
        Checker(tmp_path / "1", "", sent).check(["adults", "latest"], closed=True)
