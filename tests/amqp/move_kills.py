"""Moves, redrives and restores while the broker is killed, and the judge of them.

Messages are published with confirms, moved to another queue, rejected there into a third, redriven from it, and at the
end acknowledged and restored. The broker is killed at any moment of that. The judge takes everything out of all queues:

    lost         confirmed, and in no queue
    unexpected   in a queue, and never sent
    doubled      in the queues more than once, and more than one of the copies says nothing of it

A copy says that it may be one of several by ``redelivered``, or by the header ``x-headrace-moved-again``.

    python -m tests.amqp.move_kills --kills 50
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
from pika.exceptions import AMQPError

from headrace import testing
from headrace.client import Client, Queues
from headrace.errors import HeadraceError
from headrace.testing import ChildBroker
from tests.amqp.kills import start_again

WORK, SIDE, DEAD = "work", "side", "dead"
AGAIN = "x-headrace-moved-again"
BURST = 50
PUBLISH_PAUSE_S = 0.005
"""Moves and kills are the point, not how much is moved."""


@dataclass
class MoveHistory:
    """What was sent and confirmed, and the copies that were found: name, and whether a copy is marked."""

    sent: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    found: list[tuple[str, bool]] = field(default_factory=list)

    def judged(self) -> list[tuple[str, str]]:
        copies = Counter(name for name, _ in self.found)
        silent = Counter(name for name, is_marked in self.found if not is_marked)
        return (
            [("lost", name) for name in sorted(self.confirmed) if not copies[name]]
            + [("unexpected", name) for name in sorted(copies) if name not in self.sent]
            + [("doubled", name) for name in sorted(silent) if silent[name] > 1]
        )


def channel_of(broker: ChildBroker) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)).channel()


class Mover:
    """Publishes, moves and redrives on its own thread, through kills, until ``stop``."""

    def __init__(self, broker: ChildBroker) -> None:
        self.history = MoveHistory()
        self.moved: Counter[str] = Counter()
        self._broker = broker
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(job,)) for job in (self._publish, self._move)]
        self._next = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, job: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                job()
            except (AMQPError, OSError, HeadraceError):
                time.sleep(0.02)

    def _publish(self) -> None:
        channel = channel_of(self._broker)
        try:
            declare(channel)
            channel.confirm_delivery()
            while not self._stopping.is_set():
                name = f"m{self._next}"
                self._next += 1
                self.history.sent.add(name)
                channel.basic_publish("", WORK, name.encode(), pika.BasicProperties(delivery_mode=2))
                self.history.confirmed.add(name)
                time.sleep(PUBLISH_PAUSE_S)
        finally:
            close(channel)

    def _move(self) -> None:
        """From work to side; rejected there, so that they are dead; and back from there to side."""
        with Client(self._broker.bootstrap) as client:
            queues = Queues(client)
            while not self._stopping.is_set():
                for done in queues.move(WORK, ready(queues, WORK), routing_key=SIDE):
                    self.moved["moved"] += done.moved
                self._reject()
                for done in queues.redrive(DEAD, ready(queues, DEAD)):
                    self.moved["redriven"] += done.moved

    def _reject(self) -> None:
        channel = channel_of(self._broker)
        try:
            declare(channel)
            for _ in range(BURST):
                method, _, _ = channel.basic_get(SIDE)
                if method is None:
                    return
                if not method.redelivered:  # one that is may be dead already, and a dead letter does not tell
                    channel.basic_reject(method.delivery_tag, requeue=False)
        finally:
            close(channel)


def ready(queues: Queues, name: str) -> Iterator[Any]:
    return (each for each in queues.messages(name, body_bytes_max=0) if each.state == "ready")


def declare(channel: Any) -> None:
    kept = {"x-headrace-retention-ms": -1}
    channel.queue_declare(WORK, durable=True, arguments=kept)
    channel.queue_declare(DEAD, durable=True, arguments=kept)
    dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    channel.queue_declare(SIDE, durable=True, arguments={**kept, **dying})


def close(channel: Any) -> None:
    if channel.connection.is_open:
        channel.connection.close()


def drained(broker: ChildBroker, names: Iterable[str]) -> list[tuple[str, bool]]:
    """Every message of these queues, acknowledged, and whether it is marked."""
    found = []
    channel = channel_of(broker)
    for queue in names:
        for method, properties, body in channel.consume(queue, inactivity_timeout=1.0, auto_ack=True):
            if method is None:
                break
            found.append((body.decode(), method.redelivered or AGAIN in (properties.headers or {})))
        channel.cancel()
    channel.queue_declare(WORK, passive=True)  # the acknowledgements before it were handled
    close(channel)
    return found


def restored(broker: ChildBroker, name: str, chance: random.Random) -> None:
    """Restore everything of a queue, with a kill in between; what was restored is not restored again."""
    killer = threading.Timer(chance.uniform(0.0, 0.05), broker.kill)
    killer.start()
    try:
        with Client(broker.bootstrap) as client:
            for _ in Queues(client).restore(name, gone(Queues(client), name)):
                pass
    except (HeadraceError, OSError):
        pass
    killer.join()
    start_again(broker)
    with Client(broker.bootstrap) as client:
        for _ in Queues(client).restore(name, gone(Queues(client), name)):
            pass


def gone(queues: Queues, name: str) -> list[Any]:
    return [each for each in queues.messages(name, body_bytes_max=0, with_gone=True) if each.state == "acknowledged"]


def run(data: Path, kills: int, seed: int) -> tuple[MoveHistory, Counter[str], list[str]]:
    """The history, what was done, and what is wrong with the restore at the end."""
    chance = random.Random(seed)
    with testing.broker(in_process=False, amqp=True, data=data) as broker:
        mover = Mover(broker)
        mover.start()
        for _ in range(kills):
            time.sleep(chance.uniform(0.3, 1.2))
            broker.kill()
            start_again(broker)
        time.sleep(0.3)
        mover.stop()
        history = mover.history
        history.found = drained(broker, (WORK, SIDE, DEAD))
        in_side = Counter(each.offset for each in _all_of(broker, SIDE))
        restored(broker, SIDE, chance)
        again = drained(broker, [SIDE])
        wrong = [] if len(again) == len(in_side) else [f"{len(in_side)} were kept and {len(again)} restored"]
        wrong += [f"{name} came back without a mark" for name, is_marked in again if not is_marked]
        return history, mover.moved, wrong


def _all_of(broker: ChildBroker, name: str) -> list[Any]:
    with Client(broker.bootstrap) as client:
        return gone(Queues(client), name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        history, done, wrong = run(Path(folder), arguments.kills, arguments.seed)
    sys.stdout.write(f"{len(history.confirmed)} confirmed, {dict(done)}, {len(history.found)} found\n")
    for fault in [*history.judged(), *wrong]:
        sys.stdout.write(f"{fault}\n")
    return 1 if history.judged() or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
