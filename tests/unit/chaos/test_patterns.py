"""The checker of killed patterns and searches: its plain loops are right, and it notices planted faults."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.pattern_loops import asked, lost_of, nexts_of, series_of, stored_of, vees_of
from tests.chaos.patterns import Checker, Input
from tests.chaos.pipeline_kills import Wrong


def event(second: int, kind: str = "a", amount: int | None = 0, who: int | None = 1, n: int | None = None) -> Any:
    return {"n": second if n is None else n, "who": who, "s": second, "kind": kind, "amount": amount, "text": "w1 w2"}


def priced(*amounts: int | None, who: int | None = 1) -> list[Any]:
    return [event(second, amount=each, who=who) for second, each in enumerate(amounts)]


def test_a_v_shape_falls_and_rises_and_the_next_begins_at_its_last_rise() -> None:
    assert list(vees_of(priced(5, 3, 4, 6, 2, 7))) == [(1, 0, 1, 3, 4), (1, 3, 4, 5, 3)]
    assert list(vees_of(priced(5, None, 4, 6))) == [], "nothing is above or below null"
    far = [event(0, amount=5), event(1, amount=3), event(40, amount=6)]
    assert list(vees_of(far)) == []
    mixed = priced(5, 3, who=None) + [event(2, amount=6, who=2)]
    assert list(vees_of(mixed)) == [], "each key by itself"


def test_the_shortest_loop_wins_and_every_row_may_begin_a_match() -> None:
    assert list(nexts_of(priced(1, 2, 1, 3, 1))) == [(1, 0, 1, 1, 2), (1, 2, 3, 1, 4)]
    rows = [event(0, amount=1), event(1, "c", None), event(2, amount=2), event(3, amount=1)]
    assert list(nexts_of(rows)) == [(1, 0, 2, 2, 3)], "nothing is below the average of nulls"


def test_every_row_is_in_the_series_with_its_match_or_without() -> None:
    rows = [event(0, "b", 1), event(1, "a", 2), event(2, "b", 3), event(3, "b", 1), event(4, "a", None)]
    assert list(series_of(rows)) == [
        (1, 0, None, None, None),
        (1, 1, "A", 1, 2),
        (1, 2, "B", 1, 5),
        (1, 3, None, None, None),
        (1, 4, "A", 2, None),
    ]


def test_an_absence_is_a_match_and_what_was_begun_times_out() -> None:
    rows = [event(0, "a"), event(19, "d"), event(30, "a"), event(50, "d")]
    assert list(lost_of(rows)) == [("absent", 1, False, (("a", 30),))]
    rows = [event(0, "b", 1), event(1, "c", 1), event(2, "c", 2), event(3, "b", None), event(29, "d"), event(30, "d")]
    assert list(lost_of(rows)) == [
        ("paid", 1, False, (("x", 0), ("y", 2), ("z", 29))),
        ("paid", 1, True, (("x", 3),)),
    ]
    assert list(lost_of([event(0, "b", 1), event(2, "c", 2), event(30, "d")])) == [
        ("paid", 1, True, (("x", 0), ("y", 2)))
    ]


def test_a_stored_pattern_has_the_rows_from_its_change_to_the_next() -> None:
    rows = [event(second, "ab"[second % 2], second) for second in range(8)]
    then, rise = ("then", "a", "b", 10), ("rise", "a", 10)
    changes = [("p", 2, then), ("p", 3, then), ("p", 5, None), ("q", 0, ("bad",)), ("q", 4, rise)]
    assert list(stored_of(rows, changes)) == [
        ("p", 1, (("x", 2), ("y", 3))),
        ("q", 1, (("A", 4), ("B", 5))),
        ("q", 1, (("A", 6), ("B", 7))),
    ]


@pytest.mark.parametrize(
    ("spec", "event_of", "matches"),
    [
        (("word", "w1", 2), {"amount": 2}, True),
        (("word", "w1", 2), {"amount": 1}, False),
        (("word", "w1", 0), {"amount": None}, False),
        (("word", "w", 0), {"amount": 1}, False),
        (("phrase", "w1", "w2"), {}, True),
        (("phrase", "w2", "w1"), {}, False),
        (("but", "a", "w3"), {}, True),
        (("but", "a", "w2"), {}, False),
        (("but", "b", "w3"), {}, False),
        (("begins", "w"), {"amount": None}, True),
        (("begins", "w"), {"amount": 0}, False),
        (("bad",), {}, False),
    ],
)
def test_what_a_search_asks(spec: Any, event_of: Any, matches: bool) -> None:
    assert asked(spec)[1]({**event(0), **event_of}) is matches


def test_a_search_counts_for_the_micro_batch_in_which_it_was_read(tmp_path: Path) -> None:
    offsets = tmp_path / "checkpoints" / "searches" / "spark" / "offsets"
    offsets.mkdir(parents=True)
    for number, (events, searches) in enumerate(((1, "-"), (2, 1), (2, 1), (4, 3))):
        lines = [json.dumps({"events": {"0": events}})]
        lines.append("-" if searches == "-" else json.dumps({"stored-searches": {"0": searches}}))
        (offsets / str(number)).write_text("\n".join(["v1", "{}", *lines]))
    rows = [event(second) for second in range(4)]
    any_row, none = ("phrase", "w1", "w2"), ("bad",)
    sent = Input(events=rows, searches=[("s", any_row), ("t", any_row), ("s", none)])
    assert list(Checker(tmp_path, "", sent).searched()) == [(1, "s"), (2, "t"), (3, "t")]


RIGHT = {"who": 1, "first": 0, "between_n": 1, "between_count": 1, "last": 2, "match_id": "x"}


@pytest.mark.parametrize(
    "written",
    [
        [],
        [RIGHT] * 2,
        [{**RIGHT, "last": 3}],
        [RIGHT, {**RIGHT, "who": 2, "match_id": "y"}],
        [{**RIGHT, "match_id": None}],
    ],
    ids=["a match is missing", "one twice", "another row", "one too many", "without an id"],
)
def test_a_planted_fault_is_noticed(tmp_path: Path, written: list[dict[str, Any]]) -> None:
    sent = Input(events=priced(1, 2, 1))
    for number, rows in enumerate(([RIGHT], written)):
        home = tmp_path / str(number)
        home.mkdir()
        with closing(sqlite3.connect(home / "nexts.db")) as database, database:
            database.execute(f"CREATE TABLE nexts ({', '.join(RIGHT)})")
            database.executemany(f"INSERT INTO nexts VALUES ({', '.join(f':{name}' for name in RIGHT)})", rows)
    Checker(tmp_path / "0", "", sent).check(["nexts"], closed=True)
    with pytest.raises(Wrong):
        Checker(tmp_path / "1", "", sent).check(["nexts"], closed=True)


def test_another_id_than_in_the_calm_run_is_noticed(tmp_path: Path) -> None:
    for name, match_id in (("nexts", "x"), ("nexts-calm", "y")):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database, database:
            database.execute("CREATE TABLE nexts (match_id)")
            database.execute("INSERT INTO nexts VALUES (?)", (match_id,))
    with pytest.raises(Wrong, match="beside a calm run"):
        Checker(tmp_path, "", Input()).calm(["nexts"])
