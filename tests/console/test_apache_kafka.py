"""The console in front of Apache Kafka: what it shows and does there is what it shows and does here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.client import Admin, Client, Groups, Producer, TopicPartition
from tests.console.browser import Chromium
from tests.console.conftest import RunningConsole, console_server, events, searched
from tests.servers.process import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def in_front(apache_kafka: RunningServer) -> Iterator[RunningConsole]:
    with console_server(apache_kafka.bootstrap) as running:
        yield running


def test_topics_messages_groups_and_disks_of_apache_kafka_are_shown(
    in_front: RunningConsole, unique: Callable[[str], str], chromium: Chromium
) -> None:
    console, topic, group = in_front, unique("shown"), unique("group")
    console.post("topic/create", name=topic, partitions=2, settings={"retention.ms": "86400000"})
    with Client(console.bootstrap) as client:
        with Producer(client) as producer:
            for number in range(200):
                producer.send(topic, b'{"id": %d}' % number, key=b"k-%d" % number, partition=number % 2)
        Groups(client).commit(group, {TopicPartition(topic, 0): 40, TopicPartition(topic, 1): 100})
    seen = eventually(lambda: console.get("topic", name=topic), lambda seen: seen["groups"])
    assert (seen["messages"], len(seen["partitions"])) == (200, 2)
    assert [(each["name"], each["lag"]) for each in seen["groups"]] == [(group, 60)]
    assert console.get("overview")["disk"]["total"] > 0
    settings = {each["name"]: each for each in console.get("topic/settings", name=topic)["settings"]}
    assert (settings["retention.ms"]["value"], settings["retention.ms"]["own"]) == ("86400000", True)
    assert settings["retention.ms"]["doc"]
    found, end = searched(console, topic=topic, q="^k-77$", regex=1, where="key")
    assert [each["value"]["text"] for each in found] == ['{"id": 77}']
    assert end["records"] == 200
    with events(console, "tail", topic=topic) as stream:
        assert next(stream).name == "began"
        console.post("produce", topic=topic, value="just now", partition=0)
        assert next(stream).data["messages"][0]["value"]["text"] == "just now"
    with chromium.tab() as tab:
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        tab.open(f"{console.base}#/topics/{topic}")
        tab.wait_for_text("just now")
        assert tab.errors() == []
    console.post("topic/delete", name=topic, confirm=topic)
    eventually(lambda: console.get("topics", q=topic)["total"] == 0)
    with Client(console.bootstrap) as client:
        assert topic not in [each.name for each in Admin(client).topics()]
