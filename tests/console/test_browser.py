"""The console in a real browser, with real data: what a person sees and does."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace import testing
from headrace.client import Admin, Client, Groups, Producer, StatePublisher, TopicPartition
from tests.console.browser import Chromium, Tab
from tests.console.conftest import SCREENSHOTS, RunningConsole, console_server
from tests.servers.process import RunningServer

pytestmark = pytest.mark.servers

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"`${1}'
THEMES = {"light": (False, 1360, 860), "dark": (True, 1360, 860), "phone": (False, 390, 844)}


def go(tab: Tab, console: RunningConsole, place: str) -> None:
    tab.open(f"{console.base}#{place}")


def test_the_token_is_gone_from_the_address_and_scripts_cannot_read_the_cookie(
    tab: Tab, console: RunningConsole
) -> None:
    assert tab.value("location.href").startswith(console.base)
    assert console.token not in tab.value("location.href")
    assert tab.value("document.cookie") == ""


def test_without_a_token_the_browser_is_asked_for_one_and_taken_in_with_it(
    chromium: Chromium, console: RunningConsole
) -> None:
    with chromium.tab() as tab:
        tab.open(console.base)
        tab.wait_for_text("paste its token")
        tab.fill("input[name=token]", console.token)
        tab.click("button", "Open")
        tab.wait("document.querySelector('main h1')?.textContent === 'Overview'")


def test_a_wrong_token_is_said_and_the_right_one_opens_the_page_that_was_asked_for(
    chromium: Chromium, console: RunningConsole
) -> None:
    with chromium.tab() as tab:
        tab.open(f"{console.base}?token=wrong")
        tab.wait_for_text("This token is not that of this console")
        tab.open("about:blank")
        tab.open(f"{console.base}#/groups")
        tab.wait_for_text("paste its token")
        tab.fill("input[name=token]", console.token)
        tab.click("button", "Open")
        tab.wait("document.querySelector('main h1')?.textContent === 'Groups'")


def test_the_overview_shows_figures_that_move(tab: Tab, console: RunningConsole, orders: str) -> None:
    tab.wait_for_text("Written to disk")
    tab.wait("document.querySelectorAll('.chart svg .line').length >= 4")
    with writing_to(console, "moving"):
        tab.wait_for_text("moving")
        tab.wait("parseFloat(document.querySelector('.tile-figure').textContent) > 0")
    tab.click(".segmented button", "5 min")
    tab.wait("location.hash.includes('range=300')")


@contextmanager
def writing_to(console: RunningConsole, topic: str) -> Iterator[None]:
    """Somebody writes all the time, however long the browser takes to look."""
    enough = threading.Event()

    def write() -> None:
        with Client(console.bootstrap) as client, Producer(client) as producer:
            while not enough.wait(0.05):
                for _ in range(10):
                    producer.send(topic, b"x")
                producer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_a_topic_is_found_with_the_keyboard(tab: Tab, orders: str) -> None:
    tab.press("/")
    tab.wait("document.activeElement.closest('dialog.palette')")
    tab.type("orders")
    tab.wait(f"document.querySelector('.palette li[aria-selected=true]')?.textContent.includes({json.dumps(orders)})")
    tab.press("Enter")
    tab.wait(f"location.hash === '#/topics/{orders}'")
    tab.wait_for_text("key-299")


def test_the_list_of_topics_is_filtered_and_sorted(tab: Tab, console: RunningConsole, orders: str) -> None:
    go(tab, console, "/topics")
    tab.wait("document.querySelector('tbody tr.link')")
    tab.fill("main input[type=search]", "shop")
    tab.wait(f"[...document.querySelectorAll('tbody tr')].map(e => e.cells[0].innerText).join() === '{orders}'")
    assert tab.value("document.activeElement.type") == "search"
    tab.click("th button", "Messages")
    tab.wait("location.hash.includes('sort=-messages')")
    tab.wait("document.querySelector('th[aria-sort=descending]')?.innerText.includes('Messages')")


def test_a_live_tail_shows_a_message_that_was_just_produced(tab: Tab, console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("live.tail", partitions=2)
        go(tab, console, "/topics/live.tail?live=1")
        tab.wait_for_text("Waiting for messages")
        tab.wait(
            "document.querySelector('.scan.live')?.dataset.open === 'true'"
        )  # what was written before is not in it
        with Producer(client) as producer:
            producer.send("live.tail", b"hello from a producer", key=b"k")
        tab.wait_for_text("hello from a producer")


def test_a_search_finds_one_message_and_opens_it(tab: Tab, console: RunningConsole, orders: str) -> None:
    go(tab, console, f"/topics/{orders}")
    tab.wait_for_text("key-299")
    tab.fill(".search-group input", '"name-123"')
    tab.click(".search-group button", "Search")
    tab.wait_for_text("1 match among 300 messages")
    assert tab.value("document.querySelectorAll('.message-table tr.link').length") == 1
    tab.click(".message-table tr.link")
    tab.wait_for_text("t-123")
    tab.click("button.json-key", '"amount"')
    tab.wait("[...document.querySelectorAll('.message-table th')].some(e => e.innerText.includes('amount'))")
    assert "30.75" in tab.value("document.querySelector('.message-table tr.link').innerText")
    tab.click(".segmented.small button", "Hex")
    tab.wait_for_text("00000000  7b 22")
    tab.screenshot(SCREENSHOTS / "message-light.png")


def test_the_same_search_can_be_made_again(tab: Tab, console: RunningConsole, orders: str) -> None:
    go(tab, console, f"/topics/{orders}?q=name-123")
    tab.wait_for_text("1 match among")
    tab.value("document.querySelector('.scan-status').textContent = ''")
    tab.click("button", "Search")
    tab.click("button[type=submit]", "Search")
    tab.wait_for_text("1 match among")


BREAKING_STREAM = """window.EventSource = class extends EventTarget {
  constructor() {
    super();
    const message = {partition: 0, offset: 7, timestamp: 0, key: null, value: {text: "found", size: 5}, headers: []};
    const found = () => Object.assign(new Event("matches"), {data: JSON.stringify([message])});
    const send = () => this.closed || this.dispatchEvent(found());
    const steps = [send, () => this.onerror(), send, () => { window.over = true }];
    steps.forEach((step, index) => setTimeout(step, 50 * index));
  }
  close() { this.closed = true }
}"""


def test_a_search_whose_console_goes_away_is_not_made_again_by_itself(
    tab: Tab, console: RunningConsole, orders: str
) -> None:
    """A browser opens a stream again that broke: the search would begin again, and every match be there twice."""
    tab.value(BREAKING_STREAM + ", 1")
    tab.value(f"location.hash = '#/topics/{orders}?q=found'")
    tab.wait("window.over === true")
    tab.wait_for_text("Interrupted.")
    assert tab.value("document.querySelectorAll('.message-table tr.link').length") == 1


def test_a_tail_says_that_its_console_is_gone(chromium: Chromium, console_broker: RunningServer, orders: str) -> None:
    with ExitStack() as stack, chromium.tab() as tab:
        console = stack.enter_context(console_server(console_broker.bootstrap))
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        go(tab, console, f"/topics/{orders}?live=1")
        tab.wait("document.querySelector('.scan.live')?.dataset.open === 'true'")
        stack.close()
        tab.wait_for_text("The console does not answer.")


def test_broken_json_is_said_before_it_is_sent(tab: Tab, console: RunningConsole, orders: str) -> None:
    go(tab, console, f"/topics/{orders}")
    tab.click("button", "Produce")
    tab.fill("dialog textarea[aria-label=Value]", '{"a": ')
    tab.wait_for_text("This is not JSON, and is sent as it is")
    for text in ('{"a": {{n}}}', "plain text", "[1]"):
        tab.fill("dialog textarea[aria-label=Value]", text)
        assert "This is not JSON" not in tab.text()


def test_a_filter_is_saved_and_comes_back(tab: Tab, console: RunningConsole, orders: str) -> None:
    go(tab, console, f"/topics/{orders}?q=name-42&where=value")
    tab.wait_for_text("1 match among")
    tab.click("details.menu summary", "Filters")
    tab.click(".menu-list button", "Save what is shown now")
    tab.fill("dialog input", "mine")
    tab.click("dialog button", "Save")
    go(tab, console, f"/topics/{orders}")
    tab.wait_for_text("key-299")
    tab.click("details.menu summary", "Filters")
    tab.click(".menu-row button", "mine")
    tab.wait("location.hash.includes('q=name-42')")
    tab.wait_for_text("1 match among")


def test_a_topic_is_created_written_to_and_deleted(tab: Tab, console: RunningConsole) -> None:
    go(tab, console, "/topics")
    tab.click("button.primary", "Create topic")
    tab.fill("dialog input", "made.here")
    tab.screenshot(SCREENSHOTS / "create-topic-light.png")
    tab.click("dialog button.primary", "Create")
    tab.wait("location.hash === '#/topics/made.here'")
    tab.wait_for_text("There are none in this range")
    tab.click(".actions button", "Produce")
    tab.fill("dialog textarea[aria-label=Value]", '{"hello": "world"}')
    tab.screenshot(SCREENSHOTS / "produce-light.png")
    tab.click("dialog button.primary", "Send")
    tab.wait_for_text("Sent to partition 0, offset 0")
    go(tab, console, "/topics/made.here?from=beginning")
    tab.wait_for_text('{"hello": "world"}')
    tab.click("details.menu summary", "More")
    tab.click(".menu-list button.bad", "Delete topic")
    assert tab.value("document.querySelector('dialog button.danger').disabled") is True
    tab.fill("dialog input", "made.here")
    tab.click("dialog button.danger", "Delete topic")
    tab.wait("location.hash === '#/topics'")
    tab.wait("!document.querySelector('tbody').innerText.includes('made.here')")


def test_the_menu_of_a_topic_is_on_the_screen_of_a_phone(tab: Tab, console: RunningConsole, orders: str) -> None:
    for width in (390, 560):
        tab.resize(width, 844)
        go(tab, console, f"/topics/{orders}")
        tab.click(".actions details.menu summary", "More")
        box = "document.querySelector('.actions .menu-list').getBoundingClientRect()"
        assert tab.value(f"{box}.left >= 0 && {box}.right <= innerWidth && {box}.width > 0"), width
        tab.click(".actions details.menu summary", "More")


def test_the_values_of_settings_are_on_the_screen_of_a_phone(tab: Tab, console: RunningConsole, orders: str) -> None:
    tab.resize(390, 844)
    go(tab, console, f"/topics/{orders}?tab=settings")
    tab.wait("document.querySelector('.settings tbody td.number .mono')")
    values = "[...document.querySelectorAll('.settings tbody td.number .mono')]"
    assert tab.value(f"{values}.filter(e => e.getBoundingClientRect().right > innerWidth).length") == 0


def test_a_setting_is_changed_after_its_change_was_described(tab: Tab, console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("to.set", partitions=1)
    go(tab, console, "/topics/to.set?tab=settings")
    tab.fill("main .toolbar input", "retention.ms")
    tab.click("button[aria-label='Change retention.ms']")
    tab.fill("dialog input.mono", "3600000")
    tab.wait("document.querySelector('.plan').innerText.includes('604800000 (7 d) → 3600000 (1 h)')")
    tab.screenshot(SCREENSHOTS / "setting-light.png")
    tab.click("dialog button.primary", "Change")
    tab.wait("document.querySelector('table .badge.accent')?.innerText === 'this topic'")
    found = console.get("topic/settings", name="to.set")["settings"]
    assert next(each["value"] for each in found if each["name"] == "retention.ms") == "3600000"


def test_hostile_names_keys_values_and_headers_are_text_and_nothing_else(tab: Tab, console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("hostile", partitions=1)
        with Producer(client) as producer:
            producer.send("hostile", HOSTILE.encode(), key=HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
            producer.send("hostile", json.dumps({HOSTILE: HOSTILE}).encode(), key=b"json")
        Groups(client).commit(HOSTILE, {TopicPartition("hostile", 0): 1})
    go(tab, console, "/topics/hostile")
    tab.wait_for_text(HOSTILE)
    for line in (1, 0):
        tab.value(f"document.querySelectorAll('.message-table tr.link')[{line}].click()")
    tab.wait("document.querySelectorAll('.message-detail').length === 2")
    tab.click("button.json-key")
    go(tab, console, "/topics/hostile?tab=groups")
    tab.wait_for_text(HOSTILE)
    go(tab, console, "/groups?q=onerror")
    tab.wait_for_text(HOSTILE)
    go(tab, console, f"/topics?q={re.sub('.', lambda each: f'%{ord(each[0]):02x}', HOSTILE)}")
    tab.wait_for_text("No topic has that name")
    assert tab.value("window.hacked === undefined && !document.querySelector('main img, main script')") is True


def test_characters_that_are_not_seen_or_turn_text_around_are_shown(tab: Tab, console: RunningConsole) -> None:
    """A name that reads "live" and is "evil" backwards, and one that ends in escape sequences of a terminal."""
    with Client(console.bootstrap) as client, Producer(client) as producer:
        producer.send("unseen", b"value", key="pay \u202eevil\u202c".encode(), headers=[("bell\x07", b"x\x7f")])
    console.sampled("unseen")
    go(tab, console, "/topics/unseen")
    tab.wait_for_text("pay [U+202E]evil[U+202C]")
    tab.value("document.querySelector('.message-table tr.link').click()")
    tab.wait_for_text("bell[U+0007]")


def test_names_of_the_usual_length_are_whole_on_the_screen_of_a_phone(
    tab: Tab, console: RunningConsole, publisher: StatePublisher
) -> None:
    """Those of captured tables differ at their ends alone."""
    name, group = "shop.public.payments", "headrace-spark-orders"
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(name, partitions=1)
        Groups(client).commit(group, {TopicPartition(name, 0): 0})
        with Producer(client) as producer:
            for _ in range(3_000):
                producer.send(name, b"x", partition=0)
    publisher.publish("capture", "shop", state="running", details={"lag_ms": 5})
    console.sampled(name)
    tab.resize(390, 844)
    places = {
        "/topics?q=shop.public": "Topics",
        "/topics?internal=1": "Topics",
        f"/groups/{group}": group,
        "/": "Overview",
    }
    for place, title in places.items():
        go(tab, console, place)
        shown = "__headrace_state" if "internal" in place else name
        cell = f"[...document.querySelectorAll('main td a')].find((each) => each.textContent === '{shown}')"
        tab.wait(f"document.querySelector('h1').textContent === '{title}' && Boolean({cell})")
        for part in (cell, f"{cell}.closest('td')", f"{cell}.closest('.table-frame')"):
            wide, room = tab.value(f"[{part}.scrollWidth, {part}.clientWidth]")
            assert wide <= room, f"{place}: {part}"


def test_names_and_errors_stay_in_their_column_on_the_screen_of_a_phone(
    tab: Tab, console: RunningConsole, publisher: StatePublisher
) -> None:
    error = 'connection to server at "10.0.0.9", port 5432 failed: Connection refused'
    publisher.publish("capture", "shop_of_the_year[1]>'&", state="trying again", error=error, details={})
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("sold", partitions=1)
        Groups(client).commit("headrace-spark-best_sellers", {TopicPartition("sold", 0): 0})
    tab.resize(390, 844)
    places = {
        "/captures": "shop_of_the_year",
        "/groups": "headrace-spark-best_sellers",
        "/topics/sold?tab=groups": "headrace-spark-best_sellers",
    }
    for place, name in places.items():
        go(tab, console, place)
        cell = f"[...document.querySelectorAll('main td')].find((each) => each.textContent.startsWith('{name}'))"
        tab.wait(f"Boolean({cell})")
        for part in (cell, f"{cell}.querySelector('a')"):
            wide, room = tab.value(f"[{part}.scrollWidth, {part}.clientWidth || {part}.scrollWidth]")
            assert wide <= room, place


def test_the_box_that_filters_a_table_shows_what_the_address_says(tab: Tab, console: RunningConsole) -> None:
    for query in ("one", "", "two"):
        go(tab, console, f"/topics?q={query}")
        tab.wait(f"document.querySelector('main input[type=search]')?.value === {json.dumps(query)}")


@pytest.mark.parametrize("range_s", [60, 300])
def test_the_time_at_the_end_of_a_chart_is_not_cut(tab: Tab, range_s: int) -> None:
    first_ms = 1_800_000_000_000 - range_s * 1000
    data = {"from": first_ms, "to": 1_800_000_000_000, "times": [first_ms], "series": [{"name": "a", "values": [1]}]}
    tab.value(
        "import('/static/lib/chart.js').then(({chart}) => { const made = chart({title: 'Made'});"
        f"document.querySelector('main').replaceChildren(made.node); made.update({json.dumps(data)}) }})"
    )
    tab.wait("document.querySelector('main text.axis[text-anchor=middle]')")
    ends = (
        "[...document.querySelectorAll('main text.axis')].map((each) => each.getBBox()).map((box) => box.x + box.width)"
    )
    assert tab.value(f"Math.max(...{ends})") <= tab.value("document.querySelector('main svg[role=img]').clientWidth")


def test_the_axis_of_a_lag_of_minutes_has_round_times(tab: Tab) -> None:
    data = {"from": 0, "to": 60_000, "times": [0, 60_000], "series": [{"name": "lag", "values": [0, 91_000]}]}
    tab.value(
        "import('/static/lib/chart.js').then(({chart}) => { const made = chart({title: 'Made', unit: 'ms'});"
        f"document.querySelector('main').replaceChildren(made.node); made.update({json.dumps(data)}) }})"
    )
    texts = "[...document.querySelectorAll('main text.axis[text-anchor=end]')].map((each) => each.textContent)"
    tab.wait(f"{texts}.length === 5")
    assert tab.value(texts) == ["0 ms", "30 s", "1 min", "1.5 min", "2 min"]


def test_the_axis_of_batches_that_take_minutes_has_round_times(tab: Tab) -> None:
    tab.value("import('/static/lib/plot.js').then(({durationTicksOf}) => { window.ticks = durationTicksOf })")
    assert tab.value("ticks(0, 83_000, 3)") == [0, 30_000, 60_000, 90_000]
    assert tab.value("ticks(0, 1_500_000, 3)") == [0, 600_000, 1_200_000, 1_800_000]
    assert tab.value("ticks(0, 900, 3)") == [0, 500, 1_000]


def test_sizes_are_counted_as_headrace_status_counts_them(tab: Tab) -> None:
    sizes = [999, 1_500, 10**6, 4_250_000, 10**9, 2 * 10**12]
    tab.value("import('/static/lib/format.js').then((format) => { window.format = format; })")
    assert tab.value(f"{sizes}.map(window.format.bytes)") == ["999 B", "1.5 kB", "1 MB", "4.25 MB", "1 GB", "2 TB"]
    settings = [10**9, 2**30, 4096, 1048588]
    assert tab.value(f"{settings}.map((each) => window.format.explained('segment.bytes', String(each)))") == [
        *("1 GB", "1 GiB", "4 KiB", "1.05 MB")
    ]


def test_a_message_whose_header_is_cut_in_the_list_is_published_again_whole(
    tab: Tab, console: RunningConsole, unique: Callable[[str], str]
) -> None:
    topic, trace = unique("long-header"), b"x" * 20_000
    with Client(console.bootstrap) as client, Producer(client) as producer:
        producer.send(topic, b"value", headers=[("trace", trace)], partition=0)
    console.sampled(topic)
    go(tab, console, f"/topics/{topic}")
    found = f"fetch('/api/messages?topic={topic}').then((answer) => answer.json())"
    again = f"([produce, {{messages}}]) => produce.produceDialog('{topic}', messages[0])"
    tab.value(f"Promise.all([import('/static/pages/produce.js'), {found}]).then({again})")
    tab.click("dialog button[type=submit]")
    sizes = "({messages}) => messages.map((each) => each.headers[0][1].size).join()"
    tab.wait(f"{found}.then({sizes}).then((text) => text === '20000,20000')")


def test_a_long_name_leaves_room_for_the_other_columns(tab: Tab, console: RunningConsole) -> None:
    name = "long-" + "y" * 240
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(name, partitions=1)
        Groups(client).commit(name, {TopicPartition(name, 0): 0})
    console.sampled(name)
    for width in (1360, 390):
        tab.resize(width, 860)
        for page in ("topics", "groups"):
            go(tab, console, f"/{page}?q=long-yyy")
            tab.wait(f"document.querySelector('main .table a[title={name}]')")
            room = "document.querySelector('main .table-frame').clientWidth"
            assert tab.value(f"document.querySelector('main .table').scrollWidth <= {room} * 1.5"), (page, width)


def test_a_live_table_keeps_the_focus_and_what_is_clicked(tab: Tab, console: RunningConsole) -> None:
    """Rows are drawn again every second or two; a link that is being clicked must not be exchanged for another."""
    topic = "written.all.the.time"
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=1)
    console.sampled(topic)
    link = f"[...document.querySelectorAll('main .table a.name')].find(e => e.textContent === '{topic}')"
    go(tab, console, "/topics?q=written")
    tab.wait(f"document.querySelector('main h1').textContent === 'Topics' && {link}")
    tab.value(f"{link}.focus()")
    with writing_to(console, topic):
        rate = "document.activeElement.closest('tr')?.cells[5].textContent"
        tab.wait(f"{rate} && {rate} !== '0'")
    assert tab.value("document.activeElement.textContent") == topic
    tab.value("document.activeElement.closest('tr').click()")
    tab.wait(f"location.hash === '#/topics/{topic}'")


TITLES = {"": "Overview", "topics/there": "there"}


def test_every_page_says_when_the_broker_is_gone_and_goes_on_when_it_is_back(chromium: Chromium) -> None:
    pages = ("", "topics", "groups", "queues", "captures", "pipelines", "dashboards", "topics/there")
    with testing.broker() as server, console_server(server.bootstrap) as console, ExitStack() as stack:
        with Client(server.bootstrap) as client:
            Admin(client).create_topic("there", partitions=1)
        console.sampled("there")
        tabs = {page: stack.enter_context(chromium.tab()) for page in pages}
        for page, tab in tabs.items():
            tab.open(console.url)
            tab.wait("location.search === '' && document.querySelector('main h1')")
            go(tab, console, f"/{page}")
            tab.wait(f"document.querySelector('main h1').textContent === {json.dumps(TITLES.get(page, page.title()))}")
            tab.wait("!document.querySelector('.notice.error')")
        server.stop()
        tabs["topics/there"].click("[role=tab]", "Settings")  # which is asked for once, as messages are
        for tab in tabs.values():
            tab.wait("document.querySelector('.notice.error')")
        tabs["topics/there"].forgive()  # the answer 503 is in the browser's log
        server.start()
        for page, tab in tabs.items():
            tab.wait("!document.querySelector('.notice.error')")
            assert page == "topics/there" or tab.errors() == []
        tabs["topics/there"].wait_for_text("cleanup.policy")


def test_a_script_that_got_into_the_page_could_not_make_html(tab: Tab) -> None:
    """The policy stands behind the code: Trusted Types and no inline scripts."""
    for attempt in (
        "document.body.innerHTML = '<b id=made>x</b>'",
        "document.body.setAttribute('onclick', 'window.hacked = 1'); document.body.click()",
        "window.setTimeout('window.hacked = 1', 0)",
    ):
        refused = f"(() => {{ try {{ {attempt}; return false }} catch {{ return true }} }})()"
        assert tab.value(refused) is True, attempt
    assert tab.value("document.getElementById('made') === null") is True
    assert tab.value("window.hacked === undefined") is True
    assert tab.errors() != []
    tab.forgive()


def test_a_read_only_console_offers_no_changes(chromium: Chromium, console_broker: RunningServer, orders: str) -> None:
    with console_server(console_broker.bootstrap, "--read-only") as console, chromium.tab() as tab:
        tab.open(console.url)
        tab.wait_for_text("read-only")
        go(tab, console, "/topics?q=shop")
        tab.wait_for_text(orders)
        assert "Create topic" not in tab.text()
        go(tab, console, f"/topics/{orders}")
        tab.wait_for_text("key-299")
        assert "Produce" not in tab.text()
        assert tab.value("document.querySelector('.actions details') === null") is True
        assert tab.errors() == []


@pytest.mark.parametrize(
    "place",
    [
        "/topics/no.such",
        "/topics/no.such?tab=settings",
        "/topics/no.such?tab=groups",
        "/groups/no.such",
        "/queues/no.such",
        "/captures/no.such",
        "/pipelines/no.such",
    ],
)
def test_of_what_does_not_exist_only_that_is_said(tab: Tab, console: RunningConsole, place: str) -> None:
    """No empty charts, and no button that would do something to it."""
    go(tab, console, place)
    tab.wait("document.querySelector('h1')?.textContent === 'no.such' && document.querySelector('.notice.error')")
    tab.wait("!document.querySelector('.page-body').checkVisibility()")
    assert [
        each for each in ("Produce", "Purge", "Delete", "Reset", "Search keys", "Setting") if each in shown(tab)
    ] == []
    tab.forgive()  # the answer 404 is in the browser's log


def shown(tab: Tab) -> str:
    return str(tab.value("document.querySelector('main').innerText"))


def test_a_tab_of_a_topic_does_not_show_what_another_tab_did(tab: Tab, console: RunningConsole, orders: str) -> None:
    go(tab, console, f"/topics/{orders}?tab=settings")
    tab.wait_for_text("cleanup.policy")
    tab.value("window.EventSource = class { addEventListener() {} close() {} }")  # an answer that takes long
    tab.click("[role=tab]", "Groups")
    tab.wait("document.querySelector('[role=tab][aria-selected=true]').textContent === 'Groups'")
    assert "cleanup.policy" not in tab.text()


def test_a_view_can_be_copied_as_a_command(tab: Tab, console: RunningConsole, orders: str) -> None:
    for place, words in (
        ("/topics", "headrace topic list"),
        (f"/topics/{orders}", f"headrace consume {orders} --offset -50 --exit"),
        (
            f"/topics/{orders}?from=7&uncommitted=1",
            f"headrace consume {orders} --offset 7 --isolation uncommitted --exit",
        ),
        (f"/topics/{orders}?tab=partitions", f"headrace topic describe {orders}"),
    ):
        go(tab, console, place)
        tab.wait("document.querySelector('.copy-command')")
        tab.value("document.querySelector('.copy-command').dispatchEvent(new PointerEvent('pointerenter'))")
        tab.wait(f"document.querySelector('.copy-command').title.startsWith({json.dumps(words)})")
        assert f"--bootstrap {console.bootstrap}" in tab.value("document.querySelector('.copy-command').title")


def test_everything_comes_from_the_console_and_is_light(tab: Tab, console: RunningConsole, tmp_path: Path) -> None:
    """Nothing is loaded from elsewhere. Page weight and first paint are written down, not asserted as times."""
    tab.wait_for_text("Written to disk")
    assert [url for url in tab.requests() if not url.startswith((console.base, "data:", "about:"))] == []
    weight = tab.bytes_received()
    tab.screenshot(tmp_path / "painted.png")
    paint = tab.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
    files = tab.value("performance.getEntriesByType('resource').length")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    figures = {"bytes": weight, "files": files, "first_contentful_paint_ms": paint}
    (SCREENSHOTS / "weight.json").write_text(json.dumps(figures) + "\n")
    assert 10_000 < weight < 300_000


PLACES = {
    "overview": ("/", "messages stored"),
    "topics": ("/topics?q=shop", "shop.orders"),
    "messages": ("/topics/shop.orders", "key-299"),
    "partitions": ("/topics/shop.orders?tab=partitions", "Leader"),
    "settings": ("/topics/shop.orders?tab=settings", "cleanup.policy"),
    "groups-of-topic": ("/topics/shop.orders?tab=groups", "Group"),
}


@pytest.mark.parametrize("theme", THEMES)
def test_every_page_looks_as_it_should_and_reports_no_error(
    chromium: Chromium, console: RunningConsole, orders: str, theme: str
) -> None:
    """Screenshots go to build/screenshots, to be looked at. Nothing is wider than the screen, and no text is faint."""
    dark, width, height = THEMES[theme]
    with chromium.tab(dark=dark, width=width, height=height) as tab:
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        for name, (place, text) in PLACES.items():
            go(tab, console, place)
            tab.wait_for_text(text)
            assert tab.value("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
            assert tab.faint() == [], name
            tab.screenshot(SCREENSHOTS / f"{name}-{theme}.png")
        assert tab.errors() == []
