"""A console in front of a broker, as users start it, and one browser for all tests of a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from headrace.client import Admin, Client, Producer, StatePublisher
from tests.console.browser import Chromium, Tab
from tests.servers.headrace import headrace_server as start_headrace
from tests.servers.headrace import lines_of
from tests.servers.process import RunningServer, end, log_tail, wait_until
from tests.skips import or_skip
from tests.waiting import eventually

COMMAND = Path(sys.executable).with_name("headrace")


@dataclass(frozen=True, slots=True)
class RunningConsole:
    """``url`` has the token."""

    url: str
    bootstrap: str

    @property
    def base(self) -> str:
        return self.url.partition("?")[0]

    @property
    def token(self) -> str:
        return urlsplit(self.url).query.removeprefix("token=")

    def get(self, view: str, /, **parameters: Any) -> Any:
        return self.ask(f"api/{view}?{urlencode(parameters)}")

    def post(self, action: str, /, **body: Any) -> Any:
        return self.ask(f"api/{action}", data=json.dumps(body).encode())

    def ask(self, path: str, *, data: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
        given = {"Authorization": f"Bearer {self.token}"} if headers is None else headers
        request = urllib.request.Request(self.base + path, data=data, headers=given)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def refusal(self, path: str, **given: Any) -> tuple[int, str]:
        """The status and the words of a request that is refused."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.ask(path, **given)
        with caught.value as answer:
            text = answer.read().decode()
        return answer.code, json.loads(text)["error"] if text.startswith("{") else text

    def sampled(self, topic: str) -> dict[str, Any]:
        """The figures of a topic, when the console has seen it."""

        def look() -> Any:
            return next((row for row in self.get("topics", q=topic, rows=500)["rows"] if row["name"] == topic), None)

        return dict(eventually(look))


@contextmanager
def console_server(bootstrap: str, *arguments: str) -> Iterator[RunningConsole]:
    """``headrace console`` on a port of its choice; SIGTERM leads to exit 0."""
    home = Path(tempfile.mkdtemp(prefix="headrace-console-"))
    log = home / "output.log"
    command = [str(COMMAND), "console", "--bootstrap", bootstrap, "--http", "127.0.0.1:0", *arguments]
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "ready" in lines_of(log), child, what="headrace console", log=log)
        line = next(line for line in lines_of(log) if line.startswith("console "))
        yield RunningConsole(line.split()[1], bootstrap)
        assert end(child) == 0, log_tail(log)
    finally:
        end(child)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def console_broker() -> Iterator[RunningServer]:
    """A broker that only these tests use: they look at all of its topics."""
    with start_headrace() as server:
        yield server


@pytest.fixture(scope="session")
def console(console_broker: RunningServer) -> Iterator[RunningConsole]:
    with console_server(console_broker.bootstrap) as running:
        yield running


@pytest.fixture
def publisher(console: RunningConsole) -> Iterator[StatePublisher]:
    with StatePublisher(console.bootstrap) as publisher:
        yield publisher


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    with or_skip():
        browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture
def tab(chromium: Chromium, console: RunningConsole) -> Iterator[Tab]:
    """A tab that has signed in. Its test fails when the browser has reported an error."""
    with chromium.tab() as tab:
        tab.open(console.url)
        tab.wait("location.search === '' && document.querySelector('main h1')")
        yield tab
        assert tab.errors() == []


SCREENSHOTS = Path(os.environ.get("HEADRACE_SCREENSHOTS", Path(__file__).resolve().parents[2] / "build/screenshots"))


@pytest.fixture(scope="session")
def orders(console: RunningConsole) -> str:
    """A topic with 300 messages, a millisecond apart, in three partitions: JSON, text, binary, nulls, headers."""
    topic = "shop.orders"
    first_ms = int(time.time() * 1000) - 300
    with Client(console.bootstrap) as client:
        Admin(client).create_topic(topic, partitions=3)
        with Producer(client) as producer:
            for number in range(300):
                value = json.dumps(
                    {"id": number, "customer": {"name": f"name-{number}"}, "amount": number / 4}
                ).encode()
                producer.send(
                    topic,
                    {7: b"plain text", 8: b"\xff\x00\x01binary", 9: None}.get(number, value),
                    key=None if number == 10 else f"key-{number}".encode(),
                    partition=number % 3,
                    headers=[("trace", f"t-{number}".encode()), ("bytes", b"\xfe\xff"), ("none", None)],
                    timestamp=first_ms + number,
                )
    console.sampled(topic)
    return topic


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: Any


@contextmanager
def events(console: RunningConsole, path: str, **parameters: Any) -> Iterator[Iterator[Event]]:
    """A stream of the console, read by a program."""
    url = f"{console.base}live/{path}?{urlencode(parameters)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {console.token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:

        def read() -> Iterator[Event]:
            name = ""
            for line in answer:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    yield Event(name, json.loads(text.removeprefix("data: ")))

        yield read()


def searched(console: RunningConsole, **parameters: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The matches of a search, and how it ended."""
    found: list[dict[str, Any]] = []
    with events(console, "search", **parameters) as stream:
        for event in stream:
            assert event.name != "problem", event.data
            if event.name == "matches":
                found += event.data
            if event.name == "done":
                return found, event.data
    raise AssertionError("the search did not end")
