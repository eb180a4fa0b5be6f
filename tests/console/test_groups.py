"""Groups: what is shown is what the broker says, and a reset does what its dry run said."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from dataclasses import replace

from headrace.client import Client, ConsumerOptions, GroupConsumer, GroupOptions, StatePublisher
from tests.console.browser import Tab
from tests.console.conftest import RunningConsole
from tests.console.world import committed, offsets_of, produced
from tests.waiting import eventually

FROM_START = GroupOptions(consumer=ConsumerOptions(reset="earliest"))


def hash_of(page: str, name: str) -> str:
    return f"#/{page}/{urllib.parse.quote(name, safe='')}"


def show(tab: Tab, page: str, name: str) -> None:
    tab.value(f"location.hash = {json.dumps(hash_of(page, name))}")


def test_a_group_has_its_lag_by_partition_and_over_time(console: RunningConsole, unique: Callable[[str], str]) -> None:
    topic, group = unique("orders"), unique("billing")
    produced(console.bootstrap, topic, list(range(30)), partitions=2)
    committed(console.bootstrap, group, topic, [15, 5])
    found = console.get("group", name=group)
    assert [(row["partition"], row["committed"], row["end"], row["lag"]) for row in found["partitions"]] == [
        (0, 15, 15, 0),
        (1, 5, 15, 10),
    ]
    assert (found["lag"], found["members"], found["state"]) == (10, [], "Empty")
    listed = eventually(lambda: console.get("groups", q=group)["rows"], lambda rows: rows and rows[0]["lag"] == 10)
    assert listed[0]["topics"] == [topic]
    chart = eventually(lambda: console.get("group", name=group)["charts"]["lag"]["series"][0]["values"], any)
    assert chart[-1] in (10, None)


def test_a_plan_changes_nothing_and_a_reset_sets_exactly_what_the_plan_said(
    console: RunningConsole, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("billing")
    produced(console.bootstrap, topic, list(range(30)), partitions=2)
    committed(console.bootstrap, group, topic, [15, 5])
    plans = {
        place: {row["partition"]: row["to"] for row in console.get("group/reset-plan", name=group, to=place)["rows"]}
        for place in ("earliest", "latest", "7", "-3", "@0")
    }
    assert plans == {
        "earliest": {0: 0, 1: 0},
        "latest": {0: 15, 1: 15},
        "7": {0: 7, 1: 7},
        "-3": {0: 12, 1: 12},
        "@0": {0: 0, 1: 0},
    }
    assert offsets_of(console.bootstrap, group) == {0: 15, 1: 5}
    rows = [{"topic": topic, "partition": index, "to": at} for index, at in plans["-3"].items()]
    assert console.post("group/reset", name=group, offsets=rows) == {"done": 2}
    assert offsets_of(console.bootstrap, group) == {0: 12, 1: 12}


def test_a_group_with_members_is_not_reset(console: RunningConsole, unique: Callable[[str], str]) -> None:
    topic, group = unique("orders"), unique("busy")
    produced(console.bootstrap, topic, [1, 2, 3])
    with (
        Client(console.bootstrap) as client,
        GroupConsumer(client, group, [topic], FROM_START) as consumer,
    ):
        eventually(lambda: consumer.poll(timeout_ms=500))
        plan = console.get("group/reset-plan", name=group, to="latest", topic=topic)
        assert "it has 1 member: stop it first" in plan["refusal"]
        body = {"name": group, "offsets": [{"topic": topic, "partition": 0, "to": 0}]}
        status, told = console.refusal("api/group/reset", data=json.dumps(body).encode())
        assert (status, told) == (400, f"group {group!r} cannot be reset: it has 1 member: stop it first")
        members = console.get("group", name=group)["members"]
        assert members[0]["partitions"] == [f"{topic}[0]"]


def test_the_group_of_a_pipeline_is_not_reset_and_leads_to_it(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    """Spark goes on from its checkpoint: nothing would come of a reset."""
    topic, pipeline = unique("orders"), unique("revenue")
    group = f"headrace-spark-{pipeline}"
    produced(console.bootstrap, topic, list(range(30)))
    committed(console.bootstrap, group, topic, [15])
    publisher.publish("pipeline", pipeline, state="running", details={})
    eventually(lambda: console.get("group", name=group)["pipeline"] == pipeline)
    assert pipeline in console.get("group/reset-plan", name=group, to="earliest")["refusal"]
    body = {"name": group, "offsets": [{"topic": topic, "partition": 0, "to": 0}]}
    assert console.refusal("api/group/reset", data=json.dumps(body).encode())[0] == 400
    assert offsets_of(console.bootstrap, group) == {0: 15}
    show(tab, "groups", group)
    tab.click("main a.button", pipeline)
    tab.wait(f"location.hash === {json.dumps(hash_of('pipelines', pipeline))}")


def test_a_partition_without_a_commit_has_no_lag_and_all_places_say_the_same(
    console: RunningConsole, unique: Callable[[str], str]
) -> None:
    """What its member will begin with is known to the member alone; the list and the chart do not count it either."""
    topic, group = unique("orders"), unique("busy")
    produced(console.bootstrap, topic, list(range(30)), partitions=2)
    committed(console.bootstrap, group, topic, [5])
    without_commits = replace(FROM_START, commit_interval_ms=None)
    with (
        Client(console.bootstrap) as client,
        GroupConsumer(client, group, [topic], without_commits) as consumer,
    ):
        eventually(lambda: consumer.poll(timeout_ms=500))
        found = console.get("group", name=group)
        assert [row["lag"] for row in found["partitions"]] == [10, None]
        assert found["lag"] == 10
        eventually(lambda: console.get("groups", q=group)["rows"], lambda rows: rows and rows[0]["lag"] == 10)


def test_what_is_no_plan_is_refused(console: RunningConsole) -> None:
    for offsets in ([], "all", [{"topic": "t", "partition": 0, "to": -1}], [{"topic": "t"}], [1]):
        data = json.dumps({"name": "g", "offsets": offsets}).encode()
        assert console.refusal("api/group/reset", data=data)[0] == 400
    assert console.refusal("api/group/reset-plan?name=nobody&to=earliest")[0] == 404


def test_a_person_resets_a_group_after_seeing_the_dry_run_and_deletes_it(
    tab: Tab, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("<img src=x onerror=boom()>")
    produced(console.bootstrap, topic, list(range(40)))
    committed(console.bootstrap, group, topic, [30])
    show(tab, "groups", group)
    tab.wait_for_text("10 behind")
    tab.click("button", "Reset offsets")
    tab.fill("dialog select[name=where]", "back")
    tab.fill("dialog input[name=number]", "25")
    tab.click("dialog button", "Preview")
    tab.wait_for_text("Dry run, nothing is changed: 1 partition of 1 would move.")
    assert offsets_of(console.bootstrap, group) == {0: 30}
    tab.click("dialog button", "Reset to these offsets")
    tab.wait("!document.querySelector('dialog')")
    assert offsets_of(console.bootstrap, group) == {0: 15}
    tab.wait_for_text("25 behind")
    tab.click("button", "Delete")
    tab.click("dialog button[type=submit]", "Delete")
    tab.wait("location.hash === '#/groups'")
    assert offsets_of(console.bootstrap, group) == {}
    assert tab.value("document.querySelectorAll('main img').length") == 0
