"""The judges of captured topics report every planted fault, and nothing of a sound topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.capture.judge import Fault, Tolerance, check_counter, check_transactions, compare, folded
from tests.capture.world import Event

History = dict[str, list[Event]]


def read_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"op": "r", "after": row, "transaction": {"id": "0:0", "total_order": 1}}


class Scribe:
    """Plays two writers and keeps the tables beside the topics that a faultless capture would write."""

    def __init__(self) -> None:
        self.topics: History = {"ledger": [], "work": [], "bag": []}
        self.rows: dict[int, dict[str, Any]] = {}
        self.bag: list[dict[str, Any]] = []
        self.ledger = {1: 0, 2: 0}
        self._transaction, self._order = 0, 0
        for writer in self.ledger:
            self.topics["ledger"].append(Event("ledger", {"id": writer}, read_row({"id": writer, "n": 0}), {}))

    def tell(self, table: str, op: str, key: Any, before: Any, after: Any, **headers: bytes) -> None:
        self._order += 1
        place = {"id": f"{self._transaction}:{self._transaction * 10}", "total_order": self._order}
        value = {"op": op, "before": before, "after": after, "transaction": place, "source": {"table": table}}
        self.topics[table].append(Event(table, key, json.loads(json.dumps(value)), dict(headers)))

    def tick(self, writer: int) -> None:
        self.ledger[writer] += 1
        self.tell("ledger", "u", {"id": writer}, None, {"id": writer, "n": self.ledger[writer]})

    def transaction(self, writer: int, *work: Callable[[], None]) -> None:
        self._transaction, self._order = self._transaction + 1, 0
        for each in (lambda: self.tick(writer), *work, lambda: self.tick(writer)):
            each()

    def put(self, key: int) -> Callable[[], None]:
        def work() -> None:
            before = self.rows.get(key)
            self.rows[key] = {"id": key, "n": before["n"] + 1 if before else 0}
            self.tell("work", "u" if before else "c", {"id": key}, before, self.rows[key])

        return work

    def take(self, key: int) -> Callable[[], None]:
        def work() -> None:
            self.tell("work", "d", {"id": key}, self.rows.pop(key), None)
            self.topics["work"].append(Event("work", {"id": key}, None, {}))

        return work

    def move(self, key: int, to: int) -> Callable[[], None]:
        def work() -> None:
            row = self.rows.pop(key)
            self.tell("work", "d", {"id": key}, row, None, **{"__debezium.newkey": b"{}"})
            self.rows[to] = {"id": to, "n": row["n"] + 1}
            self.tell("work", "c", {"id": to}, None, self.rows[to], **{"__debezium.oldkey": b"{}"})

        return work

    def truncate(self) -> None:
        self.rows.clear()
        self.tell("work", "t", None, None, None)

    def drop_in_bag(self) -> None:
        self.bag.append({"a": 1, "b": "x"})
        self.tell("bag", "c", None, None, {"a": 1, "b": "x"})

    def take_from_bag(self) -> None:
        self.tell("bag", "d", None, self.bag.pop(), None)


def history() -> Scribe:
    scribe = Scribe()
    scribe.transaction(1, scribe.put(1), scribe.put(2), scribe.drop_in_bag, scribe.drop_in_bag)
    scribe.transaction(2, scribe.put(1), scribe.put(1))
    scribe.transaction(1, scribe.take(2), scribe.put(3), scribe.move(3, 4))
    scribe.transaction(2, scribe.truncate, scribe.put(5), scribe.put(1))
    scribe.transaction(1, scribe.put(5), scribe.put(5), scribe.take_from_bag)
    scribe.transaction(2, scribe.put(5), scribe.put(1))
    return scribe


def judge(topics: History, scribe: Scribe) -> None:
    compare("work", folded(topics["work"]), [*scribe.rows.values()])
    compare("bag", folded(topics["bag"]), scribe.bag)
    compare("ledger", folded(topics["ledger"]), [{"id": key, "n": n} for key, n in scribe.ledger.items()])
    check_counter(topics["work"], first=0)
    check_transactions(topics, "ledger")


def test_a_sound_history_has_no_fault() -> None:
    scribe = history()
    judge(scribe.topics, scribe)


def places(topics: History) -> list[tuple[str, int]]:
    return [
        (table, at) for table, told in topics.items() for at, each in enumerate(told) if each.value and each.op != "r"
    ]


@pytest.mark.parametrize("place", places(history().topics), ids=str)
def test_an_event_that_is_lost_is_reported_whichever_it_is(place: tuple[str, int]) -> None:
    scribe = history()
    del scribe.topics[place[0]][place[1]]
    with pytest.raises(Fault):
        judge(scribe.topics, scribe)


@pytest.mark.parametrize("place", places(history().topics), ids=str)
def test_an_event_that_is_there_twice_is_reported_whichever_it_is(place: tuple[str, int]) -> None:
    scribe = history()
    told = scribe.topics[place[0]]
    told.insert(place[1], told[place[1]])
    with pytest.raises(Fault):
        judge(scribe.topics, scribe)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_transaction_that_is_lost_as_a_whole_is_reported_even_if_its_rows_are_overwritten(number: int) -> None:
    scribe = history()
    lost = f"{number}:{number * 10}"
    for table, told in scribe.topics.items():
        scribe.topics[table] = [each for each in told if not each.value or each.value["transaction"]["id"] != lost]
    with pytest.raises(Fault):
        judge(scribe.topics, scribe)


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("count", [1, 2])
def test_the_last_events_of_a_transaction_that_are_lost_are_reported(number: int, count: int) -> None:
    scribe = history()
    named = f"{number}:{number * 10}"
    orders = [
        each.value["transaction"]["total_order"]
        for told in scribe.topics.values()
        for each in told
        if each.value and each.value["transaction"]["id"] == named
    ]

    def is_kept(event: Event) -> bool:
        place = event.value and event.value["transaction"]
        return not place or place["id"] != named or place["total_order"] <= max(orders) - count

    for table, told in scribe.topics.items():
        scribe.topics[table] = [each for each in told if is_kept(each)]
    with pytest.raises(Fault):
        judge(scribe.topics, scribe)


def pairs_of_one_key(topics: History) -> list[tuple[str, int, int]]:
    """Events of the same key that follow each other."""
    found = []
    for table in ("work", "ledger"):
        last: dict[str, int] = {}
        for at, each in enumerate(topics[table]):
            if each.value is not None and each.op not in ("t", "r"):
                if (key := json.dumps(each.key)) in last:
                    found.append((table, last[key], at))
                last[key] = at
    return found


@pytest.mark.parametrize("pair", pairs_of_one_key(history().topics), ids=str)
def test_two_events_of_one_key_in_the_wrong_order_are_reported(pair: tuple[str, int, int]) -> None:
    scribe = history()
    table, one, other = pair
    told = scribe.topics[table]
    told[one], told[other] = told[other], told[one]
    with pytest.raises(Fault):
        judge(scribe.topics, scribe)


def test_a_truncation_that_is_swallowed_is_reported_even_if_the_numbers_are_made_to_fit() -> None:
    scribe = Scribe()
    scribe.transaction(1, scribe.put(1), scribe.put(2))
    scribe.transaction(1, scribe.truncate)
    scribe.topics["work"] = [each for each in scribe.topics["work"] if each.op != "t"]
    with pytest.raises(Fault, match="the topic has 2 rows and the table 0"):
        compare("work", folded(scribe.topics["work"]), [*scribe.rows.values()])
    with pytest.raises(Fault, match="lacks events"):
        check_transactions(scribe.topics, "ledger")


def test_a_row_that_is_stale_in_the_topic_is_reported() -> None:
    scribe = history()
    told = scribe.topics["work"]
    stale = {**told[-1].value, "after": {**told[-1].value["after"], "n": 0}}
    told[-1] = replace(told[-1], value=stale)
    with pytest.raises(Fault, match="only in the topic"):
        compare("work", folded(told), [*scribe.rows.values()])


def test_a_row_that_only_the_topic_has_and_one_that_only_the_table_has_are_reported() -> None:
    with pytest.raises(Fault, match="only in the topic"):
        compare("t", [{"id": 1}], [])
    with pytest.raises(Fault, match="only in the table"):
        compare("t", [], [{"id": 1}])
    with pytest.raises(Fault, match="rows"):
        compare("t", [{"id": 1}], [{"id": 1}, {"id": 1}])


def test_a_tombstone_of_a_row_that_is_there_is_reported() -> None:
    scribe = history()
    scribe.topics["work"].append(Event("work", {"id": 5}, None, {}))
    with pytest.raises(Fault, match="without its deletion"):
        folded(scribe.topics["work"])


def read(key: int, n: int) -> Event:
    return Event("work", {"id": key}, {"op": "r", "after": {"id": key, "n": n}}, {})


def change(op: str, key: int, n: int) -> Event:
    return Event("work", {"id": key}, {"op": op, "after": {"id": key, "n": n}}, {})


def test_a_row_read_by_the_snapshot_has_the_changes_before_it_and_no_other() -> None:
    check_counter([change("u", 1, 7), read(1, 7), change("u", 1, 8)])
    for stale in (6, 8):
        with pytest.raises(Fault):
            check_counter([change("u", 1, 7), read(1, stale)])
    with pytest.raises(Fault):
        check_counter([change("u", 1, 7), Event("work", {"id": 1}, {"op": "d"}, {}), read(1, 7)])


def test_after_a_truncation_that_no_snapshot_follows_no_row_is_there() -> None:
    emptied = Event("work", None, {"op": "t"}, {})
    check_counter([change("c", 1, 0), emptied, change("c", 1, 0)], first=0)
    check_counter([change("c", 1, 0), emptied, change("u", 1, 1), read(1, 1)], first=0)
    with pytest.raises(Fault):
        check_counter([change("c", 1, 0), emptied, change("u", 1, 1)], first=0)


def test_only_columns_that_an_alter_touched_may_differ() -> None:
    tolerance = Tolerance(added=("c1",), retyped=("k",))
    compare("t", [{"id": 1, "k": 5}], [{"id": 1, "k": "5", "c1": 3}], tolerance)
    with pytest.raises(Fault):
        compare("t", [{"id": 1, "k": 5}], [{"id": 1, "k": "6", "c1": 3}], tolerance)
