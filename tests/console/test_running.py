"""Captures, pipelines and dashboards, from state records as real runs have published them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.client import Client, Producer, StatePublisher, StateRecord
from headrace.console.watch import Watch
from tests.console.browser import Chromium, Tab
from tests.console.conftest import SCREENSHOTS, RunningConsole
from tests.console.test_browser import THEMES
from tests.console.test_groups import show
from tests.console.world import committed, produced, publish, recorded
from tests.waiting import eventually

HOSTILE = "<img src=x onerror=boom()>"
DEFINED = {"state": "defined", "heartbeat_ms": 0}


def listed(console: RunningConsole, page: str, name: str) -> Any:
    return next((row for row in console.get(page, q=name)["rows"] if row["name"] == name), None)


# ---- pipelines and captures ----------------------------------------------------------------------------------------


def test_a_pipeline_is_shown_with_its_graph_its_batches_and_its_results(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    name, topic = unique("revenue"), unique("results")
    produced(
        console.bootstrap, topic, [{"shop": "north", "amount": "12.50"}, {"shop": HOSTILE, "amount": "7"}, b"no json"]
    )
    record = recorded()["pipeline/revenue"]
    publish(publisher, record, name=name, details={**record.details, "results_topic": topic})
    eventually(lambda: listed(console, "pipelines", name))
    show(tab, "pipelines", name)
    tab.wait("document.querySelectorAll('.flow-node').length === 3")
    for text in ("windows", "payments", "topic revenue", "holds it back", "Batch time by phase", HOSTILE):
        tab.wait(f"document.querySelector('main').textContent.includes({json.dumps(text)})")
    assert tab.value("document.querySelectorAll('.flow-link.moving').length") == 2
    assert tab.value("document.querySelectorAll('rect.bar').length") > 10
    assert "/s" in tab.value("document.querySelector('.flow-label').textContent")
    tab.wait_for_text("1 records are no JSON objects")
    tab.click("button", "Chart")
    tab.wait("document.querySelector('.pad path.line')")
    assert tab.value("document.querySelectorAll('main img').length") == 0


def test_records_that_somebody_made_up_do_not_stop_the_console_from_looking(
    console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    odd, sound = unique("odd"), unique("sound")
    record = {"format": 1, "kind": "pipeline", "name": odd, "at_ms": time.time_ns() // 1_000_000, "pid": 1}
    huge = {"lag": 10**400, "events": 10**400, "rows_per_s": 1}
    with Client(console.bootstrap) as client, Producer(client) as producer:
        for key, value in ((odd, json.dumps({**record, "details": huge})), (unique("deep"), "[" * 100_000)):
            producer.send("__headrace_state", value.encode(), key=f"pipeline/{key}".encode(), partition=0)
    eventually(lambda: listed(console, "pipelines", odd))
    publish(publisher, recorded()["pipeline/revenue"], name=sound)
    eventually(lambda: listed(console, "pipelines", sound))


def test_a_record_without_the_form_of_its_kind_spoils_no_list_and_no_overview(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    """An older version, a newer one or anybody may have written it."""
    odd, sound = unique("odd"), unique("sound")
    tables = {"public.orders": {"rows": "many", "expected": None, "done": 1}, "public.gone": "no object"}
    figures = {"rows_per_s": "fast", "lag": [1], "lag_ms": "late", "events": {}, "batch_ms": "long", "late_rows": True}
    for number, details in enumerate(({"tables": [1]}, {"tables": tables, "dead_letters": {"a": "b"}}, {})):
        for kind in ("capture", "pipeline"):
            name = f"{odd}-{number}"
            publisher.publish(kind, name, state="running", error="", details={**figures, **details})
    publish(publisher, recorded()["capture/shop"], name=sound)
    eventually(lambda: listed(console, "captures", sound))
    eventually(lambda: listed(console, "captures", f"{odd}-2"))
    assert listed(console, "captures", f"{odd}-1") | {"tables": 1, "rows": 0, "dead_letters": 0, "lag_ms": None} == (
        listed(console, "captures", f"{odd}-1")
    )
    for page, text in (("#/captures", f"{odd}-1"), ("#/pipelines", f"{odd}-1"), (f"#/captures/{odd}-1", "0 rows read")):
        tab.value(f"location.hash = {json.dumps(page)}")
        tab.wait_for_text(text)
    tab.value("location.hash = '#/'")
    tab.wait_for_text("Pipelines and captures")
    tab.wait("document.querySelector('main').textContent.includes('Busiest topics')")
    for kind in ("capture", "pipeline"):
        for number in range(3):
            publisher.publish(kind, f"{odd}-{number}", state="done", ended=True, details={})


def test_a_pipeline_that_was_killed_is_lost_and_can_be_forgotten(
    tab: Tab, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    name = unique("mortal")
    program = (
        "import sys, time\n"
        "from headrace.client import StatePublisher\n"
        "publisher = StatePublisher(sys.argv[1])\n"
        "while True:\n"
        "    publisher.publish('pipeline', sys.argv[2], state='running', details={'rows_per_s': 9}, heartbeat_ms=100)\n"
        "    time.sleep(0.05)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, console.bootstrap, name]) as child:
        try:
            row = eventually(lambda: listed(console, "pipelines", name))
            assert (row["state"], row["alive"], row["rows_per_s"]) == ("running", True, 9)
            body = json.dumps({"name": name}).encode()
            assert console.refusal("api/pipeline/forget", data=body) == (400, f"pipeline {name!r} runs")
        finally:
            child.send_signal(signal.SIGKILL)
    row = eventually(lambda: listed(console, "pipelines", name), lambda row: row["state"] == "lost", pause_s=0.1)
    assert "no sign of life for" in row["error"]
    assert row["rows_per_s"] is None, "what it said last is not so any more"
    rates = eventually(
        lambda: console.get("pipeline", name=name)["charts"]["rows"]["series"][0]["values"],
        lambda each: each[-1] is None,
    )
    assert 9 in rates, "the chart shows what it did before"
    alarms = console.get("overview")["alarms"]
    assert [each["level"] for each in alarms if each["title"] == f"Pipeline {name} is lost"] == ["error"]
    show(tab, "pipelines", name)
    tab.wait_for_text("it was killed, or its machine is away")
    tab.wait("document.querySelector('main .chart-figure')")
    figures = "[...document.querySelectorAll('main .chart-figure')].map((each) => each.textContent).join('')"
    assert tab.value(figures) == "", "a chart beside '–' does not show an old value as the one of now"
    tab.click("button", "Forget")
    tab.click("dialog button[type=submit]", "Forget")
    tab.wait("location.hash === '#/pipelines'")
    eventually(lambda: listed(console, "pipelines", name) is None)


def test_a_capture_is_shown_with_its_tables_and_its_last_error(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    name = unique("shop")
    record = recorded()["capture/shop"]
    tables = {**record.details["tables"], "orders": {"done": False, "rows": 250, "expected": 1000, "rows_per_s": 50}}
    details = {**record.details, "tables": tables, "lag_ms": 1500, "health": "behind", "advice": "make it faster"}
    publish(publisher, record, name=name, details=details)
    row = eventually(lambda: listed(console, "captures", name))
    assert (row["tables"], row["tables_done"], row["lag_ms"]) == (2, 1, 1500)
    show(tab, "captures", name)
    for text in ("25 % of about 1,000, 15 s left", "1.5 s", "make it faster", "sqlite:///"):
        tab.wait_for_text(text)
    error = f"no slot {HOSTILE}. Is it there?"
    publish(publisher, record, name=name, details=details, state="failed", error=error, ended=True)
    tab.wait_for_text(error)
    tab.wait("!document.querySelector('main').innerText.includes('15 s left')")  # nobody reads any more
    told = [each["text"] for each in console.get("overview")["alarms"] if name in each["title"]]
    assert told == [f"{error} Correct this and start it again."]
    assert tab.value("document.querySelectorAll('main img').length") == 0


def test_a_capture_of_sqlite_has_no_slot_and_no_chart_that_waits_for_its_bytes(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    name = unique("shop")
    publish(publisher, recorded()["capture/shop"], name=name)
    eventually(lambda: listed(console, "captures", name))
    show(tab, "captures", name)
    tab.wait_for_text("only PostgreSQL has slots")
    assert "Behind, and kept by the database" not in tab.text()
    assert "– behind" not in tab.text()


def test_what_others_wrote_into_the_topic_is_shown_as_far_as_it_is_text(
    console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    name, topic = unique("half"), unique("results")
    produced(console.bootstrap, topic, [b'{"text": "\\ud800", "number": NaN}'])
    details = {"results_topic": topic, "origin": "\ud800", "graph": 7, "batches": "x", "nodes": None}
    publisher.publish("pipeline", name, state="running", details=details)
    eventually(lambda: listed(console, "pipelines", name))
    found = console.get("pipeline", name=name)
    assert (found["origin"], found["graph"]["nodes"], found["batches"], found["nodes"]) == ("\ufffd", [], [], {})
    assert console.get("pipeline/results", name=name)["rows"][0]["values"] == ["\ufffd", "NaN"]


def test_a_name_that_never_reported_is_said_to_be_unknown(console: RunningConsole) -> None:
    for page in ("pipeline", "capture", "dashboard"):
        status, told = console.refusal(f"api/{page}?name=nobody")
        assert (status, told) == (404, f"no {page} 'nobody' has reported")


# ---- dashboards ----------------------------------------------------------------------------------------------------


def data_of(console: RunningConsole, name: str) -> Any:
    eventually(lambda: any(each["name"] == name for each in console.get("dashboards")["dashboards"]))
    return console.get("dashboard", name=name)


def test_a_line_has_a_series_for_each_value_and_the_newest_of_a_time_counts(
    console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    topic, name = unique("revenue"), unique("Revenue")
    first = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
    rows = [
        {"at": (first + timedelta(minutes=n)).isoformat(), "shop": shop, "sum": f"{n}.5"}
        for n in (1, 0)
        for shop in "ab"
    ]
    again = {"at": first.isoformat(), "shop": "a", "sum": 9}
    produced(console.bootstrap, topic, [*rows, again, {"at": None, "shop": "a", "sum": 1}, b"\xff", {"other": 1}])
    details = {"topic": topic, "kind": "line", "x": "at", "y": ["sum"], "series": "shop"}
    publisher.publish("dashboard", name, details=details, **DEFINED)
    found = data_of(console, name)
    at_ms = round(first.timestamp() * 1000)
    assert found["x_kind"] == "time"
    assert found["lines"] == [
        {"name": "a", "points": [[at_ms, 9.0], [at_ms + 60_000, 1.5]]},
        {"name": "b", "points": [[at_ms, 0.5], [at_ms + 60_000, 1.5]]},
    ]
    assert found["unreadable"] == 1


def test_a_number_without_bounds_is_a_text_and_no_end_of_the_chart(
    console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    topic, name = unique("measures"), unique("Measures")
    produced(console.bootstrap, topic, [{"x": 1, "y": 2}, b'{"x": 1e999, "y": 3}', b'{"x": 2, "y": 1e999}'])
    publisher.publish("dashboard", name, details={"topic": topic, "kind": "line", "x": "x", "y": ["y"]}, **DEFINED)
    found = data_of(console, name)
    assert found["lines"] == [{"name": "y", "points": [["inf", 3.0], ["1", 2.0]]}]


def test_a_view_counts_the_newest_record_of_every_key_and_captured_changes_are_rows(
    console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    topic, name = unique("sellers"), unique("Best sellers")
    produced(
        console.bootstrap,
        topic,
        [{"product": "cup", "sold": 1}, {"op": "u", "before": None, "after": {"product": "pot", "sold": 5}}],
    )
    produced_again(
        console.bootstrap, topic, {b"0": {"product": "cup", "sold": 9}, b"2": {"product": "tray", "sold": 3}}
    )
    produced_again(console.bootstrap, topic, {b"2": None})
    details = {"topic": topic, "kind": "bar", "x": "product", "y": ["sold"], "by_key": True}
    publisher.publish("dashboard", name, details=details, **DEFINED)
    found = data_of(console, name)
    assert found["lines"] == [{"name": "sold", "points": [["cup", 9.0], ["pot", 5.0]]}]
    publisher.publish("dashboard", name, details={"topic": topic, "kind": "table", "by_key": True}, **DEFINED)
    table = eventually(lambda: console.get("dashboard", name=name), lambda each: each["kind"] == "table")
    assert table["columns"] == ["product", "sold"]
    assert sorted(table["rows"]) == [["cup", 9], ["pot", 5]]


def produced_again(bootstrap: str, topic: str, values: dict[bytes, Any]) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        for key, value in values.items():
            producer.send(topic, None if value is None else json.dumps(value).encode(), key=key)


@pytest.mark.parametrize(
    "details", [{}, {"topic": ""}, {"topic": 7, "last": "x", "y": 3}, {"kind": "<b>", "topic": "no such topic"}]
)
def test_a_definition_that_makes_no_sense_harms_nobody(
    console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str], details: dict[str, Any]
) -> None:
    name = unique("odd")
    publisher.publish("dashboard", name, details=details, **DEFINED)
    shown = eventually(lambda: [each for each in console.get("dashboards")["dashboards"] if each["name"] == name])
    assert shown[0]["kind"] == "table"
    assert shown[0]["last"] == 500
    publisher.remove("dashboard", name)
    eventually(lambda: all(each["name"] != name for each in console.get("dashboards")["dashboards"]))


@pytest.mark.parametrize("theme", THEMES)
def test_every_page_of_what_runs_looks_as_it_should(
    chromium: Chromium, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str], theme: str
) -> None:
    """Screenshots go to build/screenshots, to be looked at. Nothing is wider than the screen, and no text is faint."""
    group, topic = unique("billing"), unique("orders")
    minutes = [f"2026-01-31T10:{n:02}:00Z" for n in range(15)]
    rows = [{"window_start": each, "shop": shop, "amount": n} for n, each in enumerate(minutes) for shop in "ab"]
    produced(console.bootstrap, topic, rows)
    committed(console.bootstrap, group, topic, [20])
    for record in recorded().values():
        publish(publisher, record, details={**record.details, "topic": topic})
    dark, width, height = THEMES[theme]
    places = {
        f"groups/{group}": "10 behind",
        "groups": group,
        "queues": "No queues yet",
        "captures/shop": "customers",
        "captures": "shop",
        "pipelines/paid": "join of two streams",
        "pipelines": "revenue",
        "dashboards": "newest 30 records",
    }
    with chromium.tab(dark=dark, width=width, height=height) as tab:
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        for place, text in places.items():
            tab.value(f"location.hash = '#/{place}'")
            tab.wait(f"document.querySelector('main').textContent.includes({json.dumps(text)})")
            assert tab.value("document.documentElement.scrollWidth <= innerWidth"), f"{place} is too wide"
            assert tab.faint() == [], place
            tab.screenshot(SCREENSHOTS / f"{place.partition('/')[0]}{'-one' if '/' in place else ''}-{theme}.png")
        assert tab.errors() == []


def test_the_rate_of_a_capture_stays_until_it_reports_again() -> None:
    """A capture reports every few seconds; a chart of seconds would be single dots."""
    watch, now_ms = Watch("127.0.0.1:1"), time.time_ns() // 1_000_000

    def rate(at_ms: int, events: int) -> float | None:
        record = StateRecord(kind="capture", name="shop", at_ms=at_ms, details={"events": events})
        return watch._values_of_states({record.key: record}, at_ms).get("events_per_s/capture/shop")

    assert rate(now_ms, 100) is None, "one record is no rate"
    assert [rate(now_ms + 5_000, 150), rate(now_ms + 5_000, 150), rate(now_ms + 10_000, 150)] == [10.0, 10.0, 0.0]


def test_dashboards_are_drawn_and_follow_their_topics(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    topic, name = unique("numbers"), unique(f"Numbers {HOSTILE}")
    produced(console.bootstrap, topic, [{"n": n, "text": HOSTILE} for n in range(20)])
    kinds = {"line": {"x": "n", "y": ["n"]}, "bar": {"x": "text", "y": ["n"]}, "number": {"y": ["n"]}, "table": {}}
    for kind, fields in kinds.items():
        details = {"topic": topic, "kind": kind, "unit": "€", "refresh_s": 1, **fields}
        publisher.publish("dashboard", f"{name} {kind}", details=details, **DEFINED)
    tab.value("location.hash = '#/dashboards'")
    titled = json.dumps(f"{name} number")
    card = f"[...document.querySelectorAll('.dashboard')].find(e => e.textContent.includes({titled}))"
    tab.wait(f"({card})?.textContent.includes('19')")
    for kind, part in (("line", "path.line"), ("bar", "rect.bar"), ("table", "td")):
        own = (
            f"[...document.querySelectorAll('.dashboard.{kind}')].find(e => e.textContent.includes({json.dumps(name)}))"
        )
        tab.wait(f"({own})?.querySelector('{part}')")
    produced_again(console.bootstrap, topic, {b"20": {"n": 4711}})
    tab.wait(f"({card})?.textContent.includes('4,711')")
    assert tab.value("document.querySelectorAll('main img').length") == 0


@pytest.mark.parametrize("kind", ["bar", "line"])
def test_a_chart_of_days_names_the_days_in_every_zone_of_the_browser(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str], kind: str
) -> None:
    topic, name = unique("days"), unique("Days")
    produced(console.bootstrap, topic, [{"day": f"2026-01-{day}", "sum": day} for day in (29, 30)])
    details = {"topic": topic, "kind": kind, "x": "day", "y": ["sum"]}
    publisher.publish("dashboard", name, details=details, **DEFINED)
    data_of(console, name)
    tab.call("Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"})
    tab.value("location.hash = '#/dashboards'")
    card = f"[...document.querySelectorAll('.dashboard')].find(e => e.textContent.includes({json.dumps(name)}))"
    texts = f"[...(({card})?.querySelectorAll('svg text.axis') ?? [])].map(e => e.textContent)"
    tab.wait(f"{texts}.includes('2026-01-29') && {texts}.includes('2026-01-30')")


def test_the_tooltip_of_a_chart_has_the_day_and_the_time(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    """The axis has room for one of them: over several days it shows dates, so a point said no time at all."""
    topic, name = unique("hours"), unique("Hours")
    rows = [{"at": f"2026-01-{day}T07:30:00Z", "n": day} for day in range(10, 18)]
    produced(console.bootstrap, topic, rows)
    details = {"topic": topic, "kind": "line", "x": "at", "y": ["n"]}
    publisher.publish("dashboard", name, details=details, **DEFINED)
    data_of(console, name)
    tab.call("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})
    tab.value("location.hash = '#/dashboards'")
    card = f"[...document.querySelectorAll('.dashboard')].find(e => e.textContent.includes({json.dumps(name)}))"
    tab.wait(f"({card})?.querySelector('svg path.line')")
    tab.value(
        f"(() => {{ const image = ({card}).querySelector('.chart-plot svg'); const box = image.getBoundingClientRect();"
        "image.dataset.first = 1; image.dispatchEvent("
        "new PointerEvent('pointermove', {bubbles: true, clientX: box.right - 5, clientY: box.top + 50})) })()"
    )
    assert tab.value(f"({card}).querySelector('.tip-time').textContent") == "2026-01-17 07:30:00"
    tab.wait(f"!({card}).querySelector('svg[data-first]')")  # the next answer is drawn
    assert tab.value(f"({card}).querySelector('.chart-tip').checkVisibility()")


def test_a_dashboard_whose_fields_no_record_has_says_so(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    topic, name = unique("orders"), unique("Misspelt")
    produced(console.bootstrap, topic, [{"minute": "2026-01-31T10:00:00Z", "amount": 3}])
    details = {"topic": topic, "kind": "line", "x": "minuet", "y": ["amount"]}
    publisher.publish("dashboard", name, details=details, **DEFINED)
    data_of(console, name)
    tab.value("location.hash = '#/dashboards'")
    tab.wait_for_text("No record has both minuet and a number in amount")


def test_a_dashboard_is_found_with_the_keyboard(
    tab: Tab, console: RunningConsole, publisher: StatePublisher, unique: Callable[[str], str]
) -> None:
    name = unique("Zebra")
    publisher.publish("dashboard", name, details={"topic": "zebras"}, **DEFINED)
    eventually(lambda: name in console.get("names")["dashboards"])
    tab.press("/")
    tab.wait("document.activeElement.closest('dialog.palette')")
    tab.type(name)
    tab.wait("document.querySelector('.palette li[aria-selected=true]')?.textContent.includes('Dashboard')")
    tab.press("Enter")
    tab.wait("location.hash === '#/dashboards'")
    tab.wait_for_text(name)
