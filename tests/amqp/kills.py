"""A kill loop for queues, and the judge of it.

Publishers wait for confirms, a consumer acknowledges and sometimes gives back, and the broker is killed again and
again. A message is *confirmed* when its confirm came, *settled* when a later answer on the same channel shows that its
acknowledgement was handled. The judge knows the wire only: what was sent, what came, and whether it was marked.

    lost         confirmed, and never delivered by anybody
    returned     settled, and delivered again
    unmarked     delivered a second time without ``redelivered``
    unexpected   delivered, and never sent
    disordered   delivered after a younger message of the same publisher, and this consumer had not given it back

Each publisher waits for a confirm before it sends the next message, so its numbers are the order of the queue. A
consumer that begins gets the oldest message first, whatever was handed out before it.

    python -m tests.amqp.kills --kills 50
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pika
from pika.exceptions import AMQPError

from headrace import testing
from headrace.errors import HeadraceError
from headrace.testing import ChildBroker

QUEUE = "kills"
PREFETCH = 50
ACKS_PER_ROUND_TRIP = 20


@dataclass
class History:
    """What clients did and saw."""

    sent: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    delivered: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, str]] = field(default_factory=list)
    _youngest: dict[str, int] = field(default_factory=dict)
    """By publisher, what this consumer got."""
    _given_back: set[str] = field(default_factory=set)

    def consumer_began(self) -> None:
        """From here on another consumer receives; there is one at a time."""
        self._youngest.clear()
        self._given_back.clear()

    def gave_back(self, name: str) -> None:
        self._given_back.add(name)

    def received(self, name: str, *, is_redelivered: bool) -> None:
        publisher, _, number = name.rpartition("-")
        if int(number) < self._youngest.get(publisher, -1) and name not in self._given_back:
            self.faults.append(("disordered", name))
        self._given_back.discard(name)
        self._youngest[publisher] = max(int(number), self._youngest.get(publisher, -1))
        if name not in self.sent:
            self.faults.append(("unexpected", name))
        if name in self.settled:
            self.faults.append(("returned", name))
        if self.delivered[name] and not is_redelivered:
            self.faults.append(("unmarked", name))
        self.delivered[name] += 1

    def judged(self) -> list[tuple[str, str]]:
        """Every fault, when the queue has been drained."""
        return self.faults + [("lost", name) for name in sorted(self.confirmed) if not self.delivered[name]]


def connected(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


class Load:
    """Two publishers and a consumer on their threads, until ``stop``."""

    def __init__(self, port: Callable[[], int], seed: int) -> None:
        self.history = History()
        self._port = port
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        jobs: list[Callable[[], None]] = [lambda: self._publish("a"), lambda: self._publish("b"), self._consume]
        self._threads = [threading.Thread(target=self._again_and_again, args=(job,)) for job in jobs]
        self._next: Counter[str] = Counter()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _again_and_again(self, job: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                job()
            except (AMQPError, OSError):
                time.sleep(0.05)

    def _publish(self, who: str) -> None:
        channel = connected(self._port()).channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        while not self._stopping.is_set():
            name = f"{who}-{self._next[who]}"
            self._next[who] += 1
            self.history.sent.add(name)
            channel.basic_publish("", QUEUE, name.encode(), pika.BasicProperties(delivery_mode=2))
            self.history.confirmed.add(name)
        channel.connection.close()

    def _consume(self) -> None:
        channel = connected(self._port()).channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.basic_qos(prefetch_count=PREFETCH)
        acknowledged: list[str] = []
        self.history.consumer_began()
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.2):
            if self._stopping.is_set():
                break
            if method is None:
                continue
            self.history.received(body.decode(), is_redelivered=method.redelivered)
            if self._random.random() < 0.02:
                self.history.gave_back(body.decode())
                channel.basic_nack(method.delivery_tag, requeue=True)
                continue
            channel.basic_ack(method.delivery_tag)
            acknowledged.append(body.decode())
            if len(acknowledged) == ACKS_PER_ROUND_TRIP:
                channel.queue_declare(QUEUE, durable=True, passive=True)
                self.history.settled.update(acknowledged)
                acknowledged.clear()
        channel.connection.close()


def drain(port: int, history: History) -> int:
    """Take what is left; how much it was."""
    channel = connected(port).channel()
    history.consumer_began()
    count = 0
    for method, _, body in channel.consume(QUEUE, inactivity_timeout=1.0, auto_ack=True):
        if method is None:
            break
        history.received(body.decode(), is_redelivered=method.redelivered)
        count += 1
    channel.cancel()
    channel.connection.close()
    return count


def start_again(broker: ChildBroker) -> None:
    """On the ports that it had, or on others if another process has got one of them, for one of its connections."""
    try:
        broker.start()
    except HeadraceError as error:
        if "is taken by" not in str(error):
            raise
        broker.settings.update(dict.fromkeys(("kafka", "amqp"), "127.0.0.1:0"))
        broker.start()


def run(broker: ChildBroker, kills: int, seed: int) -> History:
    """Kill a broker so often under load, and take everything out of it at the end."""
    chance = random.Random(seed)
    load = Load(lambda: broker.amqp_port, seed)
    load.start()
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.3, 1.5))
            broker.kill()
            start_again(broker)
        time.sleep(0.5)
    finally:
        load.stop()
    drain(broker.amqp_port, load.history)
    return load.history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        testing.broker(in_process=False, amqp=True, data=Path(folder)) as broker,
    ):
        history = run(broker, arguments.kills, arguments.seed)
    sys.stdout.write(
        f"{len(history.confirmed)} confirmed, {len(history.settled)} acknowledged, "
        f"{sum(history.delivered.values())} deliveries\n"
    )
    for fault in history.judged():
        sys.stdout.write(f"{fault}\n")
    return 1 if history.judged() else 0


if __name__ == "__main__":
    sys.exit(main())
