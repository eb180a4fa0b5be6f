"""Queues: what waits in them is looked at and not taken, and dead letters go back where they came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from headrace import testing
from headrace.client import Client, Queues
from headrace.testing import TestBroker
from tests.console.browser import Chromium
from tests.console.conftest import SCREENSHOTS, RunningConsole, console_server
from tests.console.test_browser import THEMES
from tests.console.test_groups import hash_of
from tests.console.world import channel_to, with_dead_letters
from tests.waiting import eventually


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with testing.broker(settings={"amqp": "127.0.0.1:0"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def console(broker: TestBroker) -> Iterator[RunningConsole]:
    with console_server(broker.bootstrap) as running:
        yield running


def ready(broker: TestBroker, queue: str) -> int:
    with Client(broker.bootstrap) as client:
        return Queues(client).describe(queue).ready


def test_messages_are_shown_with_why_they_died_and_stay(
    broker: TestBroker, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    work, dead = unique("work"), unique("dead")
    with_dead_letters(broker.amqp_url, work, dead, 3)
    # What is ready is shown when it is on disk.
    found = eventually(lambda: console.get("queue/messages", name=dead)["messages"], lambda shown: len(shown) == 3)
    assert [json.loads(each["body"]) for each in found] == [{"order": 0}, {"order": 1}, {"order": 2}]
    assert found[0]["died"] == {"reason": "rejected", "queue": work}
    died_at = datetime.fromisoformat(found[0]["properties"]["headers"]["x-death"][0]["time"])
    assert abs(datetime.now(UTC) - died_at) < timedelta(hours=1)
    assert [each["offset"] for each in console.get("queue/messages", name=dead, q='"order": 1')["messages"]] == [1]
    for wanted, count in (("ORDER.placed", 3), ("x-death", 3), ("no such text", 0)):  # the key, a header, nothing
        assert len(console.get("queue/messages", name=dead, q=wanted)["messages"]) == count
    assert ready(broker, dead) == 3
    listed = eventually(lambda: console.get("queues", q=dead)["rows"])
    assert (listed[0]["ready"], listed[0]["unacknowledged"]) == (3, 0)


def test_bindings_over_several_exchanges_are_found(
    broker: TestBroker, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    first, second, queue = unique("first"), unique("second"), unique("queue")
    with channel_to(broker.amqp_url) as channel:
        channel.exchange_declare(first, "fanout")
        channel.exchange_declare(second, "topic")
        channel.exchange_bind(second, first, "any")
        channel.queue_declare(queue, durable=True, arguments={"x-max-length": 10})
        channel.queue_bind(queue, second, "order.#")
    found = console.get("queue", name=queue)
    links = {(each["source"], each["destination"], each["key"]) for each in found["routes"]["links"]}
    assert {(first, second, "any"), (second, queue, "order.#")} <= links
    assert {first: "fanout", second: "topic"}.items() <= {
        each["name"]: each["kind"] for each in found["routes"]["exchanges"]
    }.items()
    assert found["arguments"] == {"x-max-length": 10}


def test_one_message_or_all_dead_letters_are_redriven_and_others_dropped(
    broker: TestBroker, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    work, dead = unique("work"), unique("dead")
    with_dead_letters(broker.amqp_url, work, dead, 5)
    with channel_to(broker.amqp_url) as channel:
        channel.basic_publish("", dead, b"was never dead")
    chosen = console.get("queue/messages", name=dead)["messages"][1]
    assert console.post("queue/redrive", name=dead, messages=[[chosen["lane"], chosen["offset"]]])["moved"] == 1
    assert (ready(broker, work), ready(broker, dead)) == (1, 5)
    first = console.get("queue/messages", name=dead)["messages"][0]
    assert console.post("queue/drop", name=dead, messages=[[first["lane"], first["offset"]]])["moved"] == 1
    assert console.post("queue/redrive", name=dead, messages="dead")["moved"] == 3
    assert (ready(broker, work), ready(broker, dead)) == (4, 1)
    with channel_to(broker.amqp_url) as channel:
        bodies = [json.loads(channel.basic_get(work, auto_ack=True)[2]) for _ in range(4)]
    assert bodies == [{"order": 1}, {"order": 2}, {"order": 3}, {"order": 4}]


def test_what_goes_in_and_what_goes_out_are_two_rates(
    broker: TestBroker, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    name = unique("rates")

    def rates() -> tuple[float, float]:
        found = {each["name"]: each["values"] for each in console.get("queue", name=name)["charts"]["rates"]["series"]}
        return max(filter(None, found["published"]), default=0.0), max(filter(None, found["delivered"]), default=0.0)

    with channel_to(broker.amqp_url) as channel:
        channel.queue_declare(name, durable=True)
        eventually(lambda: [row for row in console.get("queues", q=name)["rows"] if row["name"] == name])
        for number in range(20):
            channel.basic_publish("", name, b"%d" % number)
        eventually(rates, lambda seen: seen[0] > 0)
        assert rates()[1] == 0.0
        channel.basic_get(name)
        eventually(rates, lambda seen: seen[1] > 0)


def test_removing_the_dead_letters_of_a_queue_leaves_its_other_messages(
    broker: TestBroker, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    work, dead = unique("work"), unique("dead")
    with_dead_letters(broker.amqp_url, work, dead, 3)
    with channel_to(broker.amqp_url) as channel:
        channel.basic_publish("", dead, b"was never dead")
    assert console.post("queue/drop", name=dead, messages="dead")["moved"] == 3
    (kept,) = console.get("queue/messages", name=dead)["messages"]
    assert kept["body"] == "was never dead"


def test_dead_letters_that_a_consumer_holds_are_not_redriven(
    broker: TestBroker, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    work, dead = unique("work"), unique("dead")
    with_dead_letters(broker.amqp_url, work, dead, 3)
    # What is ready is shown when it is on disk.
    eventually(lambda: console.get("queue/messages", name=dead)["messages"], lambda shown: len(shown) == 3)
    with channel_to(broker.amqp_url) as channel:
        assert channel.basic_get(dead)[0] is not None
        done = console.post("queue/redrive", name=dead, messages="dead")
        assert (done["moved"], done["not_ready"]) == (2, 0), "what is held is not asked for"


def test_a_purge_needs_the_name_and_what_is_no_place_is_refused(
    broker: TestBroker, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    work, dead = unique("work"), unique("dead")
    with_dead_letters(broker.amqp_url, work, dead, 2)
    for path, body in (
        ("api/queue/purge", {"name": dead, "confirm": "yes"}),
        ("api/queue/purge", {"confirm": dead}),
        ("api/queue/redrive", {"name": dead, "messages": [["0", 0]]}),
        ("api/queue/redrive", {"name": dead}),
    ):
        assert console.refusal(path, data=json.dumps(body).encode())[0] == 400
    assert ready(broker, dead) == 2
    assert console.post("queue/purge", name=dead, confirm=dead) == {"purged": 2}
    assert ready(broker, dead) == 0


def test_a_person_redrives_dead_letters_and_hostile_names_stay_text(
    broker: TestBroker, console: RunningConsole, chromium: Chromium, unique: Callable[[str], str]
) -> None:
    work, dead = unique("<img src=x onerror=boom()>"), unique("dead</script><script>boom()</script>")
    with_dead_letters(broker.amqp_url, work, dead, 3)
    with chromium.tab() as tab:
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        tab.value(f"location.hash = {json.dumps(hash_of('queues', dead))}")
        tab.wait("document.querySelectorAll('.queue-message').length === 3")
        tab.wait("document.querySelector('.flow')")
        tab.click(".queue-message input")
        tab.click("button", "Redrive chosen")
        tab.click("dialog button[type=submit]", "Redrive")
        tab.wait("document.querySelectorAll('.queue-message').length === 2")
        assert (ready(broker, work), ready(broker, dead)) == (1, 2)
        tab.click("button", "Redrive all dead letters")
        tab.click("dialog button[type=submit]", "Redrive all")
        tab.wait_for_text("The queue is empty.")
        assert (ready(broker, work), ready(broker, dead)) == (3, 0)
        assert tab.value("document.querySelectorAll('main img, main script').length") == 0
        assert tab.errors() == []


@pytest.mark.parametrize("theme", THEMES)
def test_the_page_of_a_queue_looks_as_it_should(
    broker: TestBroker, console: RunningConsole, chromium: Chromium, unique: Callable[[str], str], theme: str
) -> None:
    """With a dead letter that is ready and one that a consumer holds."""
    work, dead = unique("work"), unique("dead")
    with_dead_letters(broker.amqp_url, work, dead, 2)
    dark, width, height = THEMES[theme]
    with channel_to(broker.amqp_url) as channel, chromium.tab(dark=dark, width=width, height=height) as tab:
        channel.basic_get(dead)
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        tab.value(f"location.hash = {json.dumps(hash_of('queues', dead))}")
        tab.wait("document.querySelector('.queue-message .badge.warn') && document.querySelector('.chart .line')")
        assert tab.value("document.documentElement.scrollWidth <= innerWidth")
        assert tab.faint() == []
        tab.screenshot(SCREENSHOTS / f"queues-one-{theme}.png")
        assert tab.errors() == []


def test_what_a_filter_shows_is_redriven_and_nothing_else(
    broker: TestBroker, console: RunningConsole, chromium: Chromium, unique: Callable[[str], str]
) -> None:
    work, dead = unique("work"), unique("dead")
    with_dead_letters(broker.amqp_url, work, dead, 12)
    with chromium.tab() as tab:
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        tab.value(f"location.hash = {json.dumps(hash_of('queues', dead))}")
        tab.wait("document.querySelectorAll('.queue-message').length === 12")
        tab.fill("input[aria-label='Filter messages']", '"order": 1')
        tab.click("button", "Refresh")
        tab.wait("document.querySelectorAll('.queue-message').length === 3")
        assert "Redrive all" not in tab.text()
        tab.click("button", "Redrive the 3 shown")
        tab.click("dialog button[type=submit]", "Redrive")
        tab.wait_for_text("None of the messages that were read matches.")
        assert (ready(broker, work), ready(broker, dead)) == (3, 9)
        assert tab.errors() == []


def test_several_bindings_between_the_same_two_are_all_told(
    broker: TestBroker, console: RunningConsole, chromium: Chromium, unique: Callable[[str], str]
) -> None:
    """Their labels would lie on each other. And no link runs through an exchange that it does not belong to."""
    work, events, raw = unique("work"), unique("events"), unique("raw")
    with channel_to(broker.amqp_url) as channel:
        channel.exchange_declare(events, "topic")
        channel.exchange_declare(raw, "fanout")
        channel.exchange_bind(events, raw)
        channel.queue_declare(work, durable=True)
        for key in ("order.*", "refund.#"):
            channel.queue_bind(work, events, key)
    with chromium.tab() as tab:
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        tab.value(f"location.hash = {json.dumps(hash_of('queues', work))}")
        tab.wait("[...document.querySelectorAll('.flow-label')].some(e => e.textContent.includes('2 bindings'))")
        assert tab.value("document.querySelector('.flow').textContent.includes('order.*\\nrefund.#')")
        places = (
            "Object.fromEntries([...document.querySelectorAll('.flow-node')].map(e =>"
            "[e.querySelector('.flow-title').textContent, Number(e.querySelector('rect').getAttribute('x'))]))"
        )
        at = tab.value(places)
        assert at["(default exchange)"] == next(x for name, x in at.items() if name.startswith("events"))
        assert tab.errors() == []
