"""Take the picture of the console that the README shows: a broker with live traffic, a real browser.

make screenshot        # needs Chromium; writes docs/pictures/console.png
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from headrace.client import Admin, Client, GroupConsumer, GroupOptions, Producer  # noqa: E402 the path is set above
from tests.console.browser import Chromium  # noqa: E402
from tests.console.conftest import console_server  # noqa: E402
from tests.servers.headrace import headrace_server  # noqa: E402

PICTURE = ROOT / "docs" / "pictures" / "console.png"
TOPICS = {"shop.orders": 30, "shop.customers": 4, "clicks": 160, "revenue": 8}
"""Records per second, on average."""
TRAFFIC_S = 300


def main() -> None:
    with headrace_server() as server, console_server(server.bootstrap) as console:
        stop = threading.Event()
        workers = [threading.Thread(target=each, args=(server.bootstrap, stop)) for each in (produce, consume)]
        for worker in workers:
            worker.start()
        try:
            stop.wait(TRAFFIC_S)
            browser = Chromium()
            try:
                with browser.tab(width=1280, height=800) as tab:
                    tab.open(console.url)
                    tab.wait("location.search === '' && document.querySelector('main h1')")
                    tab.click("button", "5 min")
                    tab.value("document.documentElement.style.scrollbarWidth = 'none'")
                    stop.wait(5)  # the curves are drawn
                    tab.screenshot(PICTURE)
            finally:
                browser.close()
        finally:
            stop.set()
            for worker in workers:
                worker.join()
    print(f"{PICTURE.relative_to(ROOT)} written, {PICTURE.stat().st_size:,} bytes")


def produce(bootstrap: str, stop: threading.Event) -> None:
    """Traffic with a slow wave, as of a day that is over in a minute."""
    with Client(bootstrap) as client:
        for topic in TOPICS:
            Admin(client).create_topic(topic, partitions=3)
        with Producer(client) as producer:
            started, number = time.monotonic(), 0
            while not stop.wait(0.1):
                wave = 1 + 0.5 * math.sin((time.monotonic() - started) / 8)
                for topic, rate in TOPICS.items():
                    for _ in range(round(rate * wave / 10)):
                        number += 1
                        value = json.dumps({"id": number, "customer": f"c-{number % 97}", "amount": number % 50 / 4})
                        producer.send(topic, value.encode(), key=f"c-{number % 97}".encode())
                producer.flush()


def consume(bootstrap: str, stop: threading.Event) -> None:
    """A group that keeps up with the orders."""
    with Client(bootstrap) as client:
        while "shop.orders" not in [each.name for each in client.topics()] and not stop.wait(0.2):
            pass
        consumer = GroupConsumer(client, "billing", ["shop.orders"], GroupOptions(commit_interval_ms=1_000))
        while not stop.is_set():
            consumer.poll(timeout_ms=500)
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
