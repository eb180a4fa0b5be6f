"""The message browser as a program sees it: pages, search, tail, export, produce."""

from __future__ import annotations

import base64
import csv
import io
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import testing
from headrace.client import (
    Admin,
    Client,
    PreparedRecords,
    Producer,
    ProducerOptions,
    RangeOptions,
    TopicPartition,
    TransactionalProducer,
    fetch_range,
)
from headrace.console import messages, scanning
from headrace.console.limits import SEARCHES_MAX, TAILS_MAX
from headrace.console.matching import Matcher
from headrace.console.page import Ask
from headrace.record import Codec, Record
from tests.console.conftest import RunningConsole, events, searched
from tests.waiting import eventually


def offsets(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(each["partition"], each["offset"]) for each in found]


def exported(console: RunningConsole, **parameters: str) -> bytes:
    url = f"{console.base}api/export?{urllib.parse.urlencode(parameters)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {console.token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


# ---- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest_first", [False, True])
def test_large_messages_are_found_each_once_and_few_are_held_at_a_time(
    console: RunningConsole, unique: Callable[[str], str], newest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, size, held_max = unique("large"), 10_000, 100_000
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=2)
        with Producer(client, ProducerOptions(batch_bytes=20_000)) as producer:
            for number in range(300):
                producer.send(topic, bytes(size), partition=number % 2)
        monkeypatch.setattr(scanning, "HELD_BYTES_MAX", held_max)
        progress = scanning.Progress()
        parts = scanning.scan(
            client, scanning.select(client, topic), Matcher(), newest_first=newest_first, progress=progress
        )
        found = []
        for part in parts:
            assert len(part) * size <= held_max
            found += [(each.partition.partition, each.record.offset) for each in part]
    assert sorted(found) == [(index, offset) for index in range(2) for offset in range(150)]
    of_one = [offset for index, offset in found if index == 0]
    assert of_one == sorted(of_one, reverse=newest_first)


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_page_of_large_messages_has_fewer_and_the_next_goes_on_without_a_gap(
    console: RunningConsole, unique: Callable[[str], str], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, size = unique("large"), 10_000
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=2)
        with Producer(client, ProducerOptions(batch_bytes=20_000)) as producer:
            for number in range(60):
                producer.send(topic, b"x", headers=[("large", bytes(size))], partition=number % 2, timestamp=number)
        monkeypatch.setattr(scanning, "HELD_BYTES_MAX", 100_000)
        selection, seen = scanning.select(client, topic), []
        while selection.ranges:
            look = scanning.newest if order == "newest" else scanning.oldest
            page = look(client, selection, 50)
            assert 0 < len(page.found) * size <= 100_000
            assert not page.is_late
            seen += [each.record.timestamp for each in page.found]
            selection = scanning.Selection(ranges=page.left)
    assert seen == sorted(range(60), reverse=order == "newest")


def after_a_thousand_that_were_aborted(client: Client, topic: str, count: int) -> None:
    """Batches of one message each, in a chunk that is a large one because those before them had none."""
    Admin(client).create_topic(topic, partitions=1)
    with TransactionalProducer(client, topic) as producer:
        producer.begin()
        for _ in range(1_000):
            producer.send(topic, b"aborted", partition=0)
        producer.flush()
        producer.abort()
    with Producer(client) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)
            producer.flush()


def test_a_page_that_ends_within_a_chunk_is_gone_on_with_after_its_last_message(
    console: RunningConsole, unique: Callable[[str], str]
) -> None:
    topic = unique("sparse")
    with Client(console.bootstrap) as client:
        after_a_thousand_that_were_aborted(client, topic, 60)
    first = console.get("messages", topic=topic, order="oldest", count=50, **{"from": "beginning"})
    second = console.get("messages", topic=topic, order="oldest", count=50, ranges=first["left"])
    assert [int(each["value"]["text"]) for each in first["messages"] + second["messages"]] == list(range(60))


def test_a_search_that_has_read_all_it_may_goes_on_after_the_last_message(
    console: RunningConsole, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, given = unique("sparse"), list[tuple[str, Any]]()
    told: Any = SimpleNamespace(event=lambda *event: given.append(event), check=lambda: None)
    asked = {"topic": topic, "from": "beginning", "order": "oldest", "limit": "500"}
    monkeypatch.setattr(messages, "SEARCH_RECORDS_MAX", 30)
    with Client(console.bootstrap) as client:
        after_a_thousand_that_were_aborted(client, topic, 60)
        nobody: Any = None
        while True:
            messages.search(Ask(console=nobody, client=client, parameters=asked), told)
            end = given[-1][1]
            if not end["left"]:
                break
            assert end["why"] == "records"
            asked = {**asked, "ranges": end["left"]}
    found = [each for name, data in given if name == "matches" for each in data]
    assert [int(each["value"]["text"]) for each in found] == list(range(60))


def test_the_headers_of_a_list_are_cut_and_all_of_them_there_when_the_message_is_opened(
    console: RunningConsole, unique: Callable[[str], str]
) -> None:
    topic, headers = unique("headers"), [(f"h-{number}", bytes(100)) for number in range(1_000)]
    with Client(console.bootstrap) as client, Producer(client) as producer:
        producer.send(topic, b"value", headers=headers, partition=0)
    listed = console.get("messages", topic=topic)["messages"][0]
    assert (0 < len(listed["headers"]) < 100, listed["headers_cut"]) == (True, True)
    opened = console.get("message", topic=topic, partition=0, offset=0)
    assert ([name for name, _ in opened["headers"]], opened["headers_cut"]) == ([name for name, _ in headers], False)


def test_a_range_beyond_the_messages_that_there_are_has_none_and_takes_no_time(
    console: RunningConsole, orders: str
) -> None:
    page = console.get("messages", topic=orders, ranges=f"0:{10**17}:{10**18}")
    assert (page["messages"], page["offsets"]) == ([], 0)
    around = console.get("messages", topic=orders, count=500, ranges=f"0:-5:{10**18}")
    assert around["messages"] == console.get("messages", topic=orders, count=500, partitions="0")["messages"]


def test_the_newest_messages_come_first_and_older_ones_follow_without_a_gap(
    console: RunningConsole, orders: str
) -> None:
    seen: list[tuple[int, int]] = []
    ranges = ""
    while True:
        page = console.get("messages", topic=orders, count=40, ranges=ranges)
        if not page["messages"]:
            break
        times = [each["timestamp"] for each in page["messages"]]
        assert times == sorted(times, reverse=True)
        seen += offsets(page["messages"])
        left = {int(index): list(bounds) for index, bounds in page["ranges"].items()}
        for index, bounds in left.items():
            shown = [offset for partition, offset in offsets(page["messages"]) if partition == index]
            bounds[1] = min([*shown, bounds[1]])
        ranges = ",".join(f"{index}:{low}:{high}" for index, (low, high) in left.items())
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(100)]


def test_the_next_page_can_be_asked_for_in_a_topic_of_thousands_of_partitions(
    console: RunningConsole, orders: str
) -> None:
    ranges = ",".join(f"{index}:1000000000:2000000000" for index in range(5_000))
    path = f"api/messages?{urllib.parse.urlencode({'topic': orders, 'ranges': ranges})}"
    assert console.refusal(path) == (400, f"topic {orders!r} has partitions 0 to 2, not 3")


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_go_on_without_a_gap_also_where_clocks_went_back(
    console: RunningConsole, unique: Callable[[str], str], order: str
) -> None:
    topic, count = unique("clocks"), 90
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=2)
        with Producer(client) as producer:
            for number in range(count):
                at_ms = 1_700_000_000_000 + (number * 37 % count) * 1000
                producer.send(topic, b"%d" % number, partition=number % 2, timestamp=at_ms)
    seen: list[tuple[int, int]] = []
    why, ranges = "count", ""
    while why == "count":
        page = console.get("messages", topic=topic, count=20, order=order, ranges=ranges)
        seen += offsets(page["messages"])
        why, ranges = page["why"], page["left"]
    assert why == "end"
    assert sorted(seen) == [(index, offset) for index in range(2) for offset in range(count // 2)]


def pages(client: Client, topic: str, look: Callable[..., scanning.MessagePage]) -> tuple[list[bytes | None], int]:
    """Everything a person finds who goes on as long as there is more, with no time at all for each page; and how many
    pages that took."""
    selection = scanning.select(client, topic)
    found: list[bytes | None] = []
    for number in range(1, 200):
        page = look(client, selection, 10, seconds=0.0)
        found += [each.record.value for each in page.found]
        left = sum(high - low for low, high in page.left.values())
        assert left < selection.offsets, "every page gets further"
        if not page.left:
            return found, number
        assert page.is_late or len(page.found) == 10
        selection = scanning.Selection(ranges=page.left, committed=True)
    raise AssertionError("it does not come to an end")


def test_a_page_of_a_partition_that_was_aborted_almost_whole_ends_in_time_and_can_be_gone_on_with(
    console: RunningConsole, unique: Callable[[str], str]
) -> None:
    topic = unique("aborted")
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=1)
        with TransactionalProducer(client, topic) as producer:
            producer.init()
            for name in (b"first", b"last"):
                producer.begin()
                producer.send(topic, name, partition=0)
                producer.commit()
                for _ in range(4 if name == b"first" else 0):
                    producer.begin()
                    for _ in range(3_000):
                        producer.send(topic, bytes(20), partition=0)
                    producer.flush()  # an abort drops what has not been sent
                    producer.abort()
        looked: list[int] = []
        options = RangeOptions(read_committed=True, bytes_per_fetch=1_000, check=looked.append)
        end = scanning.select(client, topic).offsets
        list(fetch_range(client, TopicPartition(topic, 0), 0, end, options=options))
        assert len(looked) >= 3, "an answer in which all is aborted is time that passes too"
        for look, order in ((scanning.newest, [b"last", b"first"]), (scanning.oldest, [b"first", b"last"])):
            found, count = pages(client, topic, look)
            assert found == order
            assert count > 3
            whole = look(client, scanning.select(client, topic), 10)
            assert ([each.record.value for each in whole.found], whole.is_late) == (order, False)
    page = console.get("messages", topic=topic, count=1)
    assert (len(page["messages"]), page["why"]) == (1, "count")
    page = console.get("messages", topic=topic, ranges=page["left"])
    assert (len(page["messages"]), page["why"], page["left"]) == (1, "end", "")


def test_a_page_of_a_partition_that_was_compacted_almost_whole_ends_in_time_too() -> None:
    quick = {"log.cleaner.backoff.ms": 100, "log.retention.check.interval.ms": 100}
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "200"}
    with testing.broker(settings=quick) as broker, Client(broker.bootstrap) as client:
        Admin(client).create_topic("table", partitions=1, config=config)
        place = TopicPartition("table", 0)
        with Producer(client, ProducerOptions(batch_bytes=5_000)) as producer:
            producer.send("table", b"first", key=b"other", partition=0)
            for _ in range(20_000):
                producer.send("table", bytes(50), key=b"same", partition=0)
            producer.flush()
            time.sleep(0.3)
            producer.send("table", b"last", key=b"end", partition=0)  # begins another segment
        selection = scanning.select(client, "table")

        def records() -> int:
            return sum(each.record_count for each in fetch_range(client, place, 0, 20_000))

        eventually(records, lambda count: count < 10, pause_s=0.2)
        page = scanning.oldest(client, selection, 10, seconds=0.0)
        assert page.is_late
        assert [each.record.value for each in page.found] == [b"first"]
        assert pages(client, "table", scanning.newest)[0] == [b"last", bytes(50), b"first"]


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_messages_of_one_millisecond_come_from_all_partitions(console: RunningConsole, order: str) -> None:
    topic = f"burst-{order}"
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=3)
        with Producer(client) as producer:
            for number in range(60):
                producer.send(topic, b"x", partition=number % 3, timestamp=1_700_000_000_000)
        read = scanning.newest if order == "newest" else scanning.oldest
        page = read(client, scanning.select(client, topic), 9)
    places = [(each.partition.partition, each.record.offset) for each in page.found]
    offsets = [19, 18, 17] if order == "newest" else [0, 1, 2]
    assert sorted(places) == sorted((partition, offset) for partition in range(3) for offset in offsets)


def test_every_partition_has_its_share_of_the_time_of_a_page(
    console: RunningConsole, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scanning.scan
    shares: list[float] = []

    def measured(*arguments: Any, until_s: float, **keywords: Any) -> Any:
        shares.append(until_s - time.monotonic())
        return real(*arguments, until_s=until_s, **keywords)

    monkeypatch.setattr(scanning, "scan", measured)
    with Client(console.bootstrap) as client:
        scanning.newest(client, scanning.select(client, orders), 10, seconds=300.0)
        assert [round(each, -1) for each in shares] == [100, 150, 300]
        late = scanning.newest(client, scanning.select(client, orders), 10, seconds=-1.0)
    assert late.is_late
    assert sorted(each.partition for each in late.left) == [0, 1, 2], "the first is looked at, the others are left"
    assert late.left[TopicPartition(orders, 1)] == (0, 100)


def test_messages_are_read_from_an_offset_and_from_a_time(console: RunningConsole, orders: str) -> None:
    page = console.get("messages", topic=orders, order="oldest", partitions="1", **{"from": "95"})
    assert offsets(page["messages"]) == [(1, offset) for offset in range(95, 100)]
    moment = page["messages"][2]["timestamp"]
    later = console.get("messages", topic=orders, order="oldest", partitions="1", **{"from": f"@{moment}"})
    assert offsets(later["messages"]) == [(1, 97), (1, 98), (1, 99)]
    beyond = console.get("messages", topic=orders, order="oldest", **{"from": "@99999999999999"})
    assert beyond["messages"] == []


def test_bytes_that_are_no_text_come_as_base64_and_null_as_null(console: RunningConsole, orders: str) -> None:
    def message(number: int) -> dict[str, Any]:
        found: dict[str, Any] = console.get("message", topic=orders, partition=number % 3, offset=number // 3)
        return found

    assert message(7)["value"] == {"size": 10, "text": "plain text"}
    assert base64.b64decode(message(8)["value"]["base64"]) == b"\xff\x00\x01binary"
    assert message(9)["value"] is None
    assert message(10)["key"] is None
    assert message(0)["headers"] == [
        ["trace", {"size": 3, "text": "t-0"}],
        ["bytes", {"size": 2, "base64": "/v8="}],
        ["none", None],
    ]


def test_a_long_value_is_cut_in_the_list_and_whole_when_it_is_opened(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client, Producer(client) as producer:
        producer.send("long", ("ä" * 50_000).encode())
    (listed,) = console.get("messages", topic="long")["messages"]
    assert listed["value"]["cut"] is True
    assert len(listed["value"]["text"]) < 10_000
    opened = console.get("message", topic="long", partition=0, offset=0)
    assert opened["value"] == {"size": 100_000, "text": "ä" * 50_000}


def test_what_a_transaction_took_back_is_not_shown_unless_asked_for(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("taken.back", partitions=1)
        with TransactionalProducer(client, "console-test") as producer:
            for value, keep in ((b"kept", True), (b"aborted", False)):
                producer.begin()
                producer.send("taken.back", value)
                producer.flush()
                producer.commit() if keep else producer.abort()
    shown = console.get("messages", topic="taken.back")["messages"]
    assert [each["value"]["text"] for each in shown] == ["kept"]
    everything = console.get("messages", topic="taken.back", uncommitted=1)["messages"]
    assert [each["value"]["text"] for each in everything] == ["aborted", "kept"]


def test_what_cannot_be_is_said_in_words(console: RunningConsole, orders: str) -> None:
    assert console.refusal("api/messages?topic=no-such-topic")[0] == 404
    assert "0 to 2" in console.refusal(f"api/messages?topic={orders}&partitions=3")[1]
    assert "place" in console.refusal(f"api/messages?topic={orders}&from=soon")[1]
    assert "compaction or retention" not in console.refusal(f"api/message?topic={orders}&partition=0")[1]


# ---- search ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "numbers"),
    [
        ({"q": '"name-42"'}, {42}),
        ({"q": "NAME-42", "ignore_case": 1}, {42, *()}),
        ({"q": "NAME-42"}, set()),
        ({"q": "key-17", "where": "key"}, {17, *range(170, 180)}),
        ({"q": "key-17", "where": "value"}, set()),
        ({"q": "t-299", "where": "header"}, {299}),
        ({"q": "trace", "where": "header", "limit": 500}, set(range(300))),
        ({"q": "^key-17$", "where": "key", "regex": 1}, {17}),
        ({"q": "name-29[0-9]", "regex": 1}, set(range(290, 300))),
        ({"q": "binary"}, {8}),
        ({"q": "plain text", "where": "value"}, {7}),
    ],
    ids=lambda value: str(value.get("q")) if isinstance(value, dict) else "",
)
def test_a_search_finds_what_it_asks_for_and_nothing_else(
    console: RunningConsole, orders: str, question: dict[str, Any], numbers: set[int]
) -> None:
    for order in ("newest", "oldest"):
        found, end = searched(console, topic=orders, order=order, **question)
        assert {each["offset"] * 3 + each["partition"] for each in found} == numbers
        assert (end["why"], end["records"], end["matches"]) == ("end", 300, len(numbers))


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("count", [300, 9_000])
def test_a_search_that_is_full_says_where_to_go_on_and_nothing_is_missed_or_found_twice(
    console: RunningConsole, orders: str, order: str, count: int
) -> None:
    topic, question = orders, {"q": "trace", "where": "header"}
    if count != 300:
        topic, question = f"long.{order}", {"q": "match"}
        with Client(console.bootstrap) as client:
            Admin(client).create_topic(topic, partitions=3)
            with Producer(client) as producer:
                for number in range(count):
                    producer.send(topic, b"match" if number % 7 == 0 else b"other", partition=number % 3)
    found: list[dict[str, Any]] = []
    left = ""
    for _ in range(100):
        part, end = searched(
            console, topic=topic, order=order, limit=20 if count == 300 else 150, ranges=left, **question
        )
        found += part
        left = end["left"]
        if not left:
            break
    every = [number for number in range(count) if count == 300 or number % 7 == 0]
    assert sorted(each["offset"] * 3 + each["partition"] for each in found) == every


def test_a_search_that_is_full_at_the_end_of_a_chunk_goes_on_with_the_next_message(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client, Producer(client) as producer:
        for number in range(scanning.CHUNK_OFFSETS_FIRST + 50):
            producer.send("chunk.edge", b"match %d" % number, partition=0)
    asked = {"topic": "chunk.edge", "q": "match", "order": "oldest", "partitions": "0"}
    first, end = searched(console, limit=scanning.CHUNK_OFFSETS_FIRST, **asked)
    second, _ = searched(console, limit=100, ranges=end["left"], **asked)
    assert [each["offset"] for each in (*first, *second)] == list(range(scanning.CHUNK_OFFSETS_FIRST + 50))


def test_the_newest_match_is_that_of_all_partitions(console: RunningConsole, orders: str) -> None:
    found, _ = searched(console, topic=orders, q="trace", where="header", limit=30)
    times = [each["timestamp"] for each in found]
    assert times == sorted(times, reverse=True)
    newest = console.get("messages", topic=orders, count=1)["messages"][0]
    assert times[0] == newest["timestamp"]


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_one_message_is_found_among_many_whatever_compressed_them(console: RunningConsole, codec: Codec) -> None:
    topic = f"hay.{codec.name.lower()}"
    fill_with_hay(console, topic, batches=10, codec=codec)
    found, end = searched(console, topic=topic, q="the needle")
    assert [each["value"]["text"] for each in found] == ["here is the needle"]
    assert end["records"] == end["total"] == 10_001


def test_one_message_is_found_among_a_million(console: RunningConsole) -> None:
    fill_with_hay(console, "hay.million", batches=1_000)
    for order in ("newest", "oldest"):
        found, end = searched(console, topic="hay.million", q="the needle", order=order)
        assert [each["value"]["text"] for each in found] == ["here is the needle"]
        assert end["records"] == end["total"] == 1_000_001
        assert end["why"] == "end"


def fill_with_hay(console: RunningConsole, topic: str, *, batches: int, codec: Codec = Codec.NONE) -> None:
    """Batches of a thousand messages, encoded once, and one with the needle after a third of them."""
    now_ms = 1_790_000_000_000
    straws = [
        Record(key=b"%d" % number, value=b'{"id": %d, "straw": "hay hay hay"}' % number, timestamp=now_ms)
        for number in range(1_000)
    ]
    hay = PreparedRecords.of(straws)
    needle = PreparedRecords.of([Record(key=b"n", value=b"here is the needle", timestamp=now_ms)])
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=2)
        with Producer(client, ProducerOptions(codec=codec)) as producer:
            for number in range(batches):
                producer.send_prepared(TopicPartition(topic, number % 2), hay)
                if number == batches // 3:
                    producer.send_prepared(TopicPartition(topic, 1), needle)


def test_a_pattern_that_cannot_be_read_is_refused_in_words(console: RunningConsole, orders: str) -> None:
    with events(console, "search", topic=orders, q="(", regex=1) as stream:
        event = next(stream)
    assert event.name == "problem"
    assert "pattern" in event.data["error"]


def test_a_search_ends_when_its_reader_leaves_and_searches_have_a_limit(console: RunningConsole, orders: str) -> None:
    """Each opened and left; were they not ended, the limit would be reached. Some are left before they begin."""
    for turn in range(SEARCHES_MAX * 4):
        try:
            with events(console, "search", topic=orders, q="x") as stream:
                if turn % 2:
                    next(stream)
        except urllib.error.HTTPError as error:  # those before are being ended
            error.close()

    def again() -> int:
        try:
            return int(searched(console, topic=orders, q='"name-5"')[1]["matches"])
        except urllib.error.HTTPError as error:
            error.close()
            return 0

    assert eventually(again) == 1


def test_a_matcher_that_looks_around_asks_records_and_not_batches() -> None:
    record = Record(key=b"a", value=b"b", headers=[("h", b"c")])
    assert not Matcher("zz").may_be_in(b"a b c")
    assert Matcher("^b$", pattern=True).may_be_in(b"a b c")
    assert Matcher("^b$", pattern=True).matches(record)
    assert not Matcher("^b$", pattern=True, where="key").matches(record)
    assert Matcher("C", ignore_case=True, where="header").matches(record)
    assert Matcher().matches(record)


# ---- live tail ------------------------------------------------------------------------------------------------------


def test_a_tail_shows_what_is_written_after_it_began(console: RunningConsole, orders: str) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("tailed", partitions=2)
        with Producer(client) as producer:
            producer.send("tailed", b"before")
        with events(console, "tail", topic="tailed", q="wanted") as stream:
            assert next(stream).name == "began"
            with Producer(client) as producer:
                producer.send("tailed", b"not this")
                producer.send("tailed", b"wanted: this")
            event = next(stream)
    assert event.name == "messages"
    assert [each["value"]["text"] for each in event.data["messages"]] == ["wanted: this"]


def test_tails_have_a_limit_and_give_their_place_back(console: RunningConsole, orders: str) -> None:
    opened = []
    try:
        for _ in range(TAILS_MAX):
            context = events(console, "tail", topic=orders)
            stream = context.__enter__()
            opened.append(context)
            assert next(stream).name == "began"
        status, words = console.refusal(f"live/tail?topic={orders}")
        assert status == 503
        assert str(TAILS_MAX) in words
    finally:
        for context in opened:
            context.__exit__(None, None, None)

    def again() -> bool:
        try:
            with events(console, "tail", topic=orders) as stream:
                return next(stream).name == "began"
        except urllib.error.HTTPError as error:
            error.close()
            return False

    eventually(again)


def test_a_flood_is_counted_and_not_all_of_it_is_shown(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("flood", partitions=1)
        with events(console, "tail", topic="flood") as stream:
            assert next(stream).name == "began"

            def flood() -> None:
                with Client(console.bootstrap) as own, Producer(own) as producer:
                    for number in range(20_000):
                        producer.send("flood", b"%d" % number)

            thread = threading.Thread(target=flood)
            thread.start()
            shown = skipped = 0
            while shown + skipped < 20_000:
                event = next(stream)
                shown += len(event.data["messages"])
                skipped += event.data["skipped"]
            thread.join()
    assert shown < 10_000
    assert shown + skipped == 20_000


# ---- export ---------------------------------------------------------------------------------------------------------


def test_an_export_has_every_message_that_was_selected(console: RunningConsole, orders: str) -> None:
    lines = [json.loads(line) for line in exported(console, topic=orders, format="jsonl").splitlines()]
    assert sorted((each["partition"], each["offset"]) for each in lines) == [
        (partition, offset) for partition in range(3) for offset in range(100)
    ]
    by_number = {each["offset"] * 3 + each["partition"]: each for each in lines}
    assert base64.b64decode(by_number[8]["value_base64"]) == b"\xff\x00\x01binary"
    assert by_number[9]["value"] is None
    assert by_number[0]["headers"][1] == ["bytes", {"base64": "/v8="}]
    some = exported(console, topic=orders, format="jsonl", q="name-29", where="value").splitlines()
    assert len(some) == 11
    assert len(exported(console, topic=orders, format="jsonl", limit=7).splitlines()) == 7


def test_an_export_as_csv_has_no_formulas(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client, Producer(client) as producer:
        for value in (
            b'=HYPERLINK("x")',
            b"-1.5",
            b"@x",
            b'with "quotes", and\nlines',
            b"-2+3+cmd|' /C calc'!A0",
            b"+1e3",
        ):
            producer.send("formulas", value)
    rows = list(csv.DictReader(io.StringIO(exported(console, topic="formulas", format="csv").decode(), newline="")))
    assert [row["value"] for row in rows] == [
        '\'=HYPERLINK("x")',
        "-1.5",
        "'@x",
        'with "quotes", and\nlines',
        "'-2+3+cmd|' /C calc'!A0",
        "+1e3",
    ]
    assert console.refusal("api/export?topic=formulas&format=xml")[0] == 400


# ---- produce --------------------------------------------------------------------------------------------------------


def test_a_message_is_produced_as_it_was_given(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("made", partitions=3)
    headers = [["a", "b"], ["c", {"base64": "/v8="}], ["d", None]]
    sent = console.post("produce", topic="made", key="k", value={"base64": "AAH/"}, partition=2, headers=headers)
    assert sent == {"sent": 1, "at": [{"partition": 2, "offset": 0}]}
    found = console.get("message", topic="made", partition=2, offset=0)
    assert (found["key"]["text"], found["value"]["base64"]) == ("k", "AAH/")
    assert [each[1] and each[1].get("text", each[1].get("base64")) for each in found["headers"]] == ["b", "/v8=", None]


def test_a_template_makes_messages_that_differ(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("templated", partitions=1)
    value = '{"n": {{n}}, "id": "{{uuid}}", "at": "{{now}}", "other": "{{other}}"}'
    console.post("produce", topic="templated", value=value, key="{{n}}", template=True, count=3)
    made = [each["value"]["text"] for each in console.get("messages", topic="templated", order="oldest")["messages"]]
    parsed = [json.loads(text) for text in made]
    assert [each["n"] for each in parsed] == [1, 2, 3]
    assert len({each["id"] for each in parsed}) == 3
    assert parsed[0]["other"] == "{{other}}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"topic": ""}, "no topic"),
        ({"topic": "made", "count": 0}, "count"),
        ({"topic": "made", "count": 10**9}, "count"),
        ({"topic": "made", "value": 5}, "value"),
        ({"topic": "made", "value": {"base64": "!"}}, "base64"),
        ({"topic": "made", "value": "\ud800"}, "surrogate"),
        ({"topic": "made", "headers": 5}, "headers are a list of pairs"),
        ({"topic": "made", "headers": ["ab"]}, "headers are a list of pairs"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(console: RunningConsole, body: dict[str, Any], words: str) -> None:
    with Client(console.bootstrap) as client:
        if "made" not in [each.name for each in client.topics()]:
            Admin(client).create_topic("made", partitions=3)
    assert words in console.refusal("api/produce", data=json.dumps(body).encode())[1]


def test_records_that_retention_removes_are_passed_over(console: RunningConsole) -> None:
    with Client(console.bootstrap) as client:
        Admin(client).create_topic("trimmed", partitions=1)
        with Producer(client) as producer:
            for number in range(50):
                producer.send("trimmed", b"%d" % number)
        Admin(client).delete_records({TopicPartition("trimmed", 0): 40})
    found, end = searched(console, topic="trimmed", ranges="0:0:50", q="4", limit=50)
    assert {each["offset"] for each in found} == set(range(40, 50))
    assert end["why"] == "end"
