"""A kill loop for queues, and the judge of it.

Publishers wait for confirms, a consumer acknowledges and sometimes gives back, and the broker is killed again and
again. A message is *confirmed* when its confirm came, *settled* when a later answer on the same channel shows that its
acknowledgement was handled. The judge knows the wire only: what was sent, what came, and whether it was marked.

    lost         confirmed, and never delivered by anybody
    returned     settled, and delivered again
    unmarked     delivered a second time without ``redelivered``
    unexpected   delivered, and never sent
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pika
from pika.exceptions import AMQPError

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

    def received(self, name: str, *, is_redelivered: bool) -> None:
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
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.2):
            if self._stopping.is_set():
                break
            if method is None:
                continue
            self.history.received(body.decode(), is_redelivered=method.redelivered)
            if self._random.random() < 0.02:
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
    count = 0
    for method, _, body in channel.consume(QUEUE, inactivity_timeout=1.0, auto_ack=True):
        if method is None:
            break
        history.received(body.decode(), is_redelivered=method.redelivered)
        count += 1
    channel.cancel()
    channel.connection.close()
    return count
