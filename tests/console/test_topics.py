"""Topics as a program sees them: the list, one topic, its settings, and changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.client import Admin, Client, Groups, Producer, TopicPartition
from tests.console.conftest import RunningConsole
from tests.waiting import eventually


@pytest.fixture(scope="module", autouse=True)
def many(console: RunningConsole) -> None:
    """Sixty topics, so that there is more than one page."""
    with Client(console.bootstrap) as client:
        for number in range(60):
            Admin(client).create_topic(f"many.{number:02}", partitions=1 + number % 3)
    eventually(lambda: console.get("topics", q="many.")["total"] == 60)


def test_a_list_is_paged_sorted_and_searched_by_the_server(console: RunningConsole) -> None:
    first = console.get("topics", q="many.", rows=25)
    assert (first["total"], first["pages"], first["page"]) == (60, 3, 1)
    assert [row["name"] for row in first["rows"]] == [f"many.{number:02}" for number in range(25)]
    last = console.get("topics", q="many.", rows=25, page=9)
    assert (last["page"], len(last["rows"])) == (3, 10)
    by_size = console.get("topics", q="many.", sort="-partitions", rows=20)["rows"]
    assert {row["partitions"] for row in by_size} == {3}
    assert [row["name"] for row in console.get("topics", q="many 07")["rows"]] == ["many.07"]
    assert console.get("topics", q="no such")["rows"] == []


def test_a_list_refuses_what_it_does_not_have(console: RunningConsole) -> None:
    assert "no column" in console.refusal("api/topics?sort=password")[1]
    assert "rows" in console.refusal("api/topics?rows=100000")[1]
    assert "not a number" in console.refusal("api/topics?page=two")[1]


def test_internal_topics_are_hidden_until_asked_for(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("__headrace_hidden", partitions=1)
    eventually(lambda: console.get("topics", internal=1, q="__headrace_hidden")["total"] == 1)
    assert console.get("topics", q="__headrace_hidden")["total"] == 0
    assert console.get("topics")["hidden"] >= 1


def test_a_topic_shows_its_partitions_their_offsets_and_its_groups(console: RunningConsole, orders: str) -> None:
    with Client(console.bootstrap) as client:
        Groups(client).commit("readers", {TopicPartition(orders, 0): 60, TopicPartition(orders, 1): 100})
    found = eventually(lambda: console.get("topic", name=orders), lambda seen: seen["groups"] and seen["size"])
    assert [(each["partition"], each["start"], each["end"]) for each in found["partitions"]] == [
        (0, 0, 100),
        (1, 0, 100),
        (2, 0, 100),
    ]
    assert found["messages"] == 300
    assert found["size"] == sum(each["size"] for each in found["partitions"]) > 10_000
    assert [(each["name"], each["lag"]) for each in found["groups"]] == [("readers", 40)]


def test_a_topic_is_made_grown_emptied_and_deleted(console: RunningConsole) -> None:
    console.post("topic/create", name="life", partitions=2, settings={"retention.ms": "60000"})
    assert "exists" in console.refusal("api/topic/create", data=b'{"name": "life"}')[1]
    assert console.sampled("life")["partitions"] == 2
    console.post("topic/grow", name="life", partitions=5)
    assert len(console.get("topic", name="life")["partitions"]) == 5
    with Client(console.bootstrap) as client, Producer(client) as producer:
        producer.send("life", b"x", partition=0)
    for action in ("topic/empty", "topic/delete"):
        for wrong in ({"name": "life"}, {"name": "life", "confirm": "Life"}):
            assert "type life" in console.refusal(f"api/{action}", data=json.dumps(wrong).encode())[1]
    console.post("topic/empty", name="life", confirm="life")
    assert console.get("topic", name="life")["messages"] == 0
    console.post("topic/delete", name="life", confirm="life")
    eventually(lambda: console.get("topics", q="life")["total"] == 0)
    assert console.refusal("api/topic?name=life")[0] == 404


def test_a_setting_says_where_it_comes_from_and_what_holds_without_it(console: RunningConsole) -> None:
    def setting(name: str) -> dict[str, Any]:
        found = console.get("topic/settings", name="many.00")["settings"]
        return next(each for each in found if each["name"] == name)

    name = "max.message.bytes"
    before = setting(name)
    assert (before["value"], before["own"], before["from"]) == ("1048588", False, "default")
    assert before["doc"]
    console.post("topic/alter", name="many.00", put={name: "1000"})
    assert (setting(name)["value"], setting(name)["own"], setting(name)["inherited"]) == ("1000", True, "1048588")
    console.post("topic/alter", name="many.00", remove=[name])
    assert setting(name) == before
    refused = b'{"name": "many.00", "put": {"retention.ms": "soon"}}'
    assert "retention.ms" in console.refusal("api/topic/alter", data=refused)[1]
    assert "nothing" in console.refusal("api/topic/alter", data=b'{"name": "many.00"}')[1]
