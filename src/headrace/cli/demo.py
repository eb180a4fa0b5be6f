"""``headrace demo``: a broker of its own, orders produced by one client, read by a group of others, watched live.

Everything is real: a broker process on a spare port with its data on disk, clients that speak Kafka's protocol to it
(confluent-kafka where it is installed, headrace's own otherwise), and a check at the end that every order arrived.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import click

from headrace.cli.shared import table
from headrace.errors import UsageError

__all__ = ["command"]

TOPIC = "shop.orders"
GROUP = "billing"
PARTITIONS = 4
MEMBERS = 2
REFRESH_S = 0.5
SETTLE_S_MAX = 60.0
PRODUCTS = {"espresso": 320, "cappuccino": 450, "croissant": 290, "bagel": 380, "orange juice": 410}
CITIES = ["Lisbon", "Nairobi", "Oslo", "Quito", "Seoul"]


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(min=1), default=8.0, show_default=True, help="How long to produce.")
@click.option("--rate", type=click.IntRange(min=1), default=2000, show_default=True, help="Orders per second.")
@click.option(
    "--client",
    type=click.Choice(["auto", "confluent", "headrace"]),
    default="auto",
    show_default=True,
    help="Whose client; auto: confluent-kafka where it is installed.",
)
def command(seconds: float, rate: int, client: str) -> int:
    """Real events through real clients, for a few seconds.

    Starts a broker on a spare port, produces orders, reads them with a consumer group and shows rates and lag. All that
    it starts it stops.
    """
    from headrace import testing

    kind = _client_kind(client)
    # Members hear of a new assignment with their next heartbeat; a short demo cannot wait for the usual five seconds.
    settings = {"group.consumer.heartbeat.interval.ms": 300}
    with testing.broker(in_process=False, settings=settings) as broker:
        click.echo(f"broker   {broker.bootstrap}, process {broker.pid}, data in {broker.data}")
        click.echo(f"clients  {kind.describe()}: 1 producer, {MEMBERS} consumers in group '{GROUP}'")
        click.echo(f"topic    {TOPIC}, {PARTITIONS} partitions, acknowledged when on disk\n")
        shop = Shop(broker.bootstrap, kind, rate)
        shop.run(seconds)
    return shop.verdict()


class Source(Protocol):
    """Sends records and counts their acknowledgements."""

    acknowledged: int

    def send(self, key: bytes, value: bytes) -> None: ...
    def close(self) -> None:
        """Return when all is acknowledged."""


class Member(Protocol):
    """Reads its share of the topic."""

    def read(self) -> list[bytes]: ...
    def close(self) -> None: ...


class ClientKind(Protocol):
    def describe(self) -> str: ...
    def source(self, bootstrap: str) -> Source: ...
    def member(self, bootstrap: str) -> Member: ...


def _client_kind(wanted: str) -> ClientKind:
    installed = importlib.util.find_spec("confluent_kafka") is not None
    if wanted == "confluent" and not installed:
        raise UsageError("confluent-kafka is not installed", "pip install confluent-kafka")
    return ConfluentKind() if installed and wanted != "headrace" else HeadraceKind()


class ConfluentKind:
    def describe(self) -> str:
        import confluent_kafka

        return f"confluent-kafka {confluent_kafka.__version__}"

    def source(self, bootstrap: str) -> Source:
        return ConfluentSource(bootstrap)

    def member(self, bootstrap: str) -> Member:
        return ConfluentMember(bootstrap)


class ConfluentSource:
    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self.acknowledged = 0
        self._producer: Any = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})

    def _delivered(self, error: object, _message: object) -> None:
        if error is None:
            self.acknowledged += 1

    def send(self, key: bytes, value: bytes) -> None:
        self._producer.produce(TOPIC, value, key, on_delivery=self._delivered)
        self._producer.poll(0)

    def close(self) -> None:
        self._producer.flush(SETTLE_S_MAX)
        self._producer = None


class ConfluentMember:
    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Consumer

        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
        }
        self._consumer: Any = Consumer(settings)
        self._consumer.subscribe([TOPIC])

    def read(self) -> list[bytes]:
        messages = self._consumer.consume(1000, timeout=0.1)
        return [message.value() for message in messages if message.error() is None]

    def close(self) -> None:
        self._consumer.close()


class HeadraceKind:
    def describe(self) -> str:
        return "headrace's own client"

    def source(self, bootstrap: str) -> Source:
        return HeadraceSource(bootstrap)

    def member(self, bootstrap: str) -> Member:
        return HeadraceMember(bootstrap)


class HeadraceSource:
    def __init__(self, bootstrap: str) -> None:
        from headrace.client import Client, Delivery, Producer

        self.acknowledged = 0

        def delivered(delivery: Delivery) -> None:
            self.acknowledged += delivery.count if delivery.error is None else 0

        self._client = Client(bootstrap)
        self._producer = Producer(self._client, on_delivery=delivered)

    def send(self, key: bytes, value: bytes) -> None:
        self._producer.send(TOPIC, value, key=key)

    def close(self) -> None:
        self._producer.flush()
        self._client.close()


class HeadraceMember:
    def __init__(self, bootstrap: str) -> None:
        from headrace.client import Client, ConsumerOptions, GroupConsumer, GroupOptions

        options = GroupOptions(consumer=ConsumerOptions(reset="earliest"), commit_interval_ms=500)
        self._client = Client(bootstrap)
        self._consumer = GroupConsumer(self._client, GROUP, [TOPIC], options)

    def read(self) -> list[bytes]:
        polled = self._consumer.poll(100)
        return [record.value or b"" for records in polled.values() for record in records]

    def close(self) -> None:
        self._consumer.close()
        self._client.close()


@dataclass(slots=True)
class Tally:
    """What one reader has seen. Only its own thread writes to it."""

    read: int = 0
    ids: int = 0  # the sum of all order numbers: equal sums and equal counts mean that nothing is missing or double
    cents: Counter[str] = field(default_factory=Counter)
    failed: str = ""


class Shop:
    """One producer, some readers, and a table that shows them."""

    def __init__(self, bootstrap: str, kind: ClientKind, rate: int) -> None:
        from headrace.cli.shared import connect
        from headrace.client import Admin

        self._bootstrap = bootstrap
        self._kind = kind
        self._rate = rate
        self._source = kind.source(bootstrap)
        self._tallies = [Tally() for _ in range(MEMBERS)]
        self._sent = 0
        self._stop = threading.Event()
        self._client = connect(bootstrap)
        self._lines_drawn = 0
        Admin(self._client).create_topic(TOPIC, partitions=PARTITIONS)

    def run(self, seconds: float) -> None:
        readers = [threading.Thread(target=self._serve, args=(tally,), daemon=True) for tally in self._tallies]
        for reader in readers:
            reader.start()
        try:
            self._produce(seconds)
            self._settle()
        finally:
            self._stop.set()
            for reader in readers:
                reader.join(SETTLE_S_MAX)
        self._draw((self._source.acknowledged, self._read()), REFRESH_S)
        self._client.close()

    def verdict(self) -> int:
        """0 when every order that was acknowledged was read exactly once."""
        for tally in self._tallies:
            if tally.failed:
                click.echo(f"headrace: a consumer failed: {tally.failed}", err=True)
                return 1
        read, acknowledged = self._read(), self._source.acknowledged
        complete = read == acknowledged == self._sent and sum(each.ids for each in self._tallies) == sum(
            range(self._sent)
        )
        click.echo(f"\n{self._sent} orders sent, {acknowledged} acknowledged, {read} read:", nl=False)
        click.echo(" every one arrived, once" if complete else " these should be equal")
        return 0 if complete else 1

    def _read(self) -> int:
        return sum(tally.read for tally in self._tallies)

    def _serve(self, tally: Tally) -> None:
        try:
            member = self._kind.member(self._bootstrap)
            while not self._stop.is_set():
                for value in member.read():
                    order = json.loads(value)
                    tally.read += 1
                    tally.ids += order["id"]
                    tally.cents[order["city"]] += order["cents"]
            member.close()
        except Exception as error:
            tally.failed = f"{type(error).__name__}: {error}"

    def _produce(self, seconds: float) -> None:
        """Keep to the rate by the clock, so that a slow moment is made up for."""
        start = drawn = time.monotonic()
        seen = (0, 0)
        chance = random.Random(1)
        while (now := time.monotonic()) < start + seconds:
            while self._sent < (now - start) * self._rate:
                self._source.send(*_order(self._sent, chance))
                self._sent += 1
            if now - drawn >= REFRESH_S:
                seen = self._draw(seen, now - drawn)
                drawn = now
            time.sleep(0.005)
        self._source.close()

    def _settle(self) -> None:
        """Give readers the time to catch up with what was sent."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while self._read() < self._sent and time.monotonic() < deadline:
            if any(tally.failed for tally in self._tallies):
                return
            time.sleep(0.05)

    def _draw(self, before: tuple[int, int], elapsed_s: float) -> tuple[int, int]:
        acknowledged, read = self._source.acknowledged, self._read()
        row = {
            "acknowledged": acknowledged,
            "per_s": round((acknowledged - before[0]) / elapsed_s),
            "read": read,
            "read_per_s": round((read - before[1]) / elapsed_s),
            "lag": self._lag(),
        }
        cents: Counter[str] = sum((tally.cents for tally in self._tallies), Counter())
        revenue = [{"city": city, "revenue": f"{cents[city] / 100:.2f}"} for city in CITIES]
        lines = [*table([row], list(row)), "", *table(revenue, ["city", "revenue"])]
        if sys.stdout.isatty():
            # Up to where the last table began, clearing as we go.
            click.echo(f"\x1b[{self._lines_drawn}A\x1b[J" if self._lines_drawn else "", nl=False)
            click.echo("\n".join(lines))
            self._lines_drawn = len(lines)
        else:
            click.echo("  ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items()))
        return acknowledged, read

    def _lag(self) -> int:
        """What the broker says the group has not committed yet, as any lag tool would see it."""
        from headrace.client import Groups, TopicPartition, end_offsets

        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        ends = end_offsets(self._client, partitions)
        committed = Groups(self._client).committed(GROUP, partitions)
        return sum(ends[each] - committed.get(each, 0) for each in partitions)


def _order(number: int, chance: random.Random) -> tuple[bytes, bytes]:
    product = chance.choice(list(PRODUCTS))
    city = chance.choice(CITIES)
    order = {"id": number, "city": city, "product": product, "cents": PRODUCTS[product]}
    return city.encode(), json.dumps(order).encode()
