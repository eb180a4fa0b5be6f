"""``headrace status``: what it shows, what it calls wrong, and its exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import testing
from headrace.cli import status
from headrace.cli.main import run
from headrace.client import Admin, Client, Groups, Producer, Queues, StateRecord, TopicPartition
from headrace.client.state_records import STATE_TOPIC
from headrace.log.errors import CorruptLog


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[testing.InProcessBroker]:
    monkeypatch.setattr(status, "DISK_FREE_SHARE_MIN", 0.0)  # this machine's disk may be full
    with testing.broker() as running:
        yield running


def looked(broker: testing.TestBroker, capsys: pytest.CaptureFixture[str], code: int) -> dict[str, Any]:
    assert run(["status", "--bootstrap", broker.bootstrap, "--output", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def report(client: Client, record: StateRecord) -> None:
    if STATE_TOPIC not in {each.name for each in client.topics()}:
        Admin(client).create_topic(STATE_TOPIC, partitions=1, config={"cleanup.policy": "compact"})
    with Producer(client) as producer:
        producer.send(STATE_TOPIC, record.to_json(), key=record.key.encode(), partition=0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_broker_that_is_well_is_shown_with_lag_queues_and_disk(
    broker: testing.InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=2)
        with Producer(client) as producer:
            for number in range(10):
                producer.send("orders", b"x", partition=number % 2)
        Groups(client).commit("slow", {TopicPartition("orders", 0): 2, TopicPartition("orders", 1): 4})
        Admin(client).delete_records({TopicPartition("orders", 1): 3})
        Groups(client).commit("quick", {TopicPartition("orders", 0): 5})
        Groups(client).commit("behind retention", {TopicPartition("orders", 1): 0})
        Queues(client).create_queue("work")
        at = now_ms()
        report(client, StateRecord(kind="pipeline", name="revenue", at_ms=at, details={"lag": 7, "rows_per_s": 1.5}))
        report(client, StateRecord(kind="capture", name="shop", at_ms=at, details={"lag_ms": 12}))
        report(client, StateRecord(kind="capture", name="old", state="stopped", ended=True, at_ms=1))
    found = looked(broker, capsys, 0)
    assert found["broker"]["addresses"] == [broker.bootstrap]
    assert found["topics"] == {"topics": 1, "internal": 1, "partitions": 3, "without_leader": []}
    assert [(each["name"], each["lag"]) for each in found["groups"]] == [
        ("slow", 4),
        ("behind retention", 2),
        ("quick", 0),
    ], "what retention removed cannot be read any more"
    assert [(each["name"], each["state"], each["lag"]) for each in found["pipelines"]] == [("revenue", "running", 7)]
    assert {each["name"]: (each["state"], each["lag"]) for each in found["captures"]} == {
        "shop": ("running", "12 ms"),
        "old": ("stopped", None),
    }
    assert [each["name"] for each in found["queues"]] == ["work"]
    assert found["disks"][0]["free_bytes"] > 0
    assert found["problems"] == []
    assert run(["status", "--bootstrap", broker.bootstrap]) == 0
    screen = capsys.readouterr().out
    assert "all is well" in screen
    assert "slow" in screen


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (StateRecord(kind="pipeline", name="p", at_ms=1, host="there", pid=7), "process 7 on there"),
        (
            StateRecord(kind="capture", name="p", state="trying again", error="no route\nto host"),
            "trying again: no route",
        ),
        (StateRecord(kind="pipeline", name="p", state="failed", ended=True), "failed; its log says why"),
        (StateRecord(kind="pipeline", name="p", state="failed", error=" \n", ended=True), "failed; its log says why"),
    ],
)
def test_a_report_of_trouble_is_wrong(
    broker: testing.InProcessBroker, capsys: pytest.CaptureFixture[str], record: StateRecord, problem: str
) -> None:
    from dataclasses import replace

    with Client(broker.bootstrap) as client:
        report(client, record if record.at_ms else replace(record, at_ms=now_ms()))
    (found,) = looked(broker, capsys, 1)["problems"]
    assert found.startswith(f"{record.kind} p: ")
    assert problem in found
    assert "\n" not in found


def test_a_partition_that_is_not_served_is_wrong(
    broker: testing.InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=2)
        Groups(client).commit("readers", {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 0})
    topics = broker._node.broker.topics
    log = topics.get("orders").partition(1).log
    topics.set_damaged(log, CorruptLog("orders", 0, "a test"))
    found = looked(broker, capsys, 1)
    assert found["topics"]["without_leader"] == ["orders[1]"]
    assert "1 partition has no leader (orders[1])" in found["problems"][0]
    assert [each["lag"] for each in found["groups"]] == [0]


def test_a_disk_that_is_nearly_full_is_wrong(
    broker: testing.InProcessBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "DISK_FREE_SHARE_MIN", 1.1)
    (found,) = looked(broker, capsys, 1)["problems"]
    assert "free: producers are refused when it is full" in found


def test_a_broker_that_cannot_be_reached_is_another_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--bootstrap", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_names_that_would_control_the_terminal_are_shown_by_their_characters_numbers(
    broker: testing.TestBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(broker.bootstrap) as client:
        Admin(client).create_topic("orders", partitions=1)
        Groups(client).commit("bell\x07 \u202eevil", {TopicPartition("orders", 0): 0})
    for command in (["status"], ["group", "list"]):
        run([*command, "--bootstrap", broker.bootstrap])
        shown = capsys.readouterr().out
        assert "bell[U+0007] [U+202E]evil" in shown
        assert "\x07" not in shown
