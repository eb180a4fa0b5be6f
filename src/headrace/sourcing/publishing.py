"""Every event of a store also becomes a record of a topic: once, in order, and never instead of the store.

    publish(store, "127.0.0.1:9092", "bank.events")

An application that writes to a database and to a topic will one day do only one of the two. So it writes to the store
alone, and this follows: it reads the store from a position and commits records together with the position after them,
in one transaction of the log (``headrace.client.positioned``, as capture does). A kill at any instant leaves neither
a gap nor a duplicate for readers of committed records. Since positions have no gaps, the order of a topic with one
partition is the order of the store, also while it catches up; with more partitions, that of each stream.

The position's record also has the id of the event at it: a store that was restored from an older copy, or another
store, is noticed and refused. One publisher of a topic runs at a time; a newer one takes over, and the older one
stops.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.client import Client, ClientOptions, PositionedProducer, TransactionLost
from headrace.client.positioned import read_state
from headrace.errors import KafkaError, UsageError
from headrace.sourcing.errors import TakenOver
from headrace.sourcing.events import EVERYTHING
from headrace.sourcing.records import record_of
from headrace.sourcing.store import EventStore

__all__ = ["EVENTS_CONFIG", "publish", "published_position", "state_topic"]

EVENTS_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(8 * 1024 * 1024),
}
"""Of topics that are made here: events are kept for ever, and the largest one fits. A character of its data may take
four bytes, so Kafka's default of a megabyte would not do: the publisher would stop at such an event for good."""
BATCH_EVENTS = 2_000
RETRY_PAUSE_S = 0.2
RETRY_PAUSE_S_MAX = 10.0
DAMAGE_TIMEOUT_MS = 5_000


def state_topic(topic: str) -> str:
    return f"__headrace_events_{topic}"


def publish(
    store: EventStore,
    bootstrap: str,
    topic: str,
    *,
    partitions: int = 1,
    stop: threading.Event | None = None,
    until_current: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Follow a store into a topic until ``stop`` is set, or to the end that the store has now; gives the position.

    A broker that goes away is waited for.
    """
    publisher = _Publisher(store, topic, partitions)
    stop = stop or threading.Event()
    options = ClientOptions(client_id=f"headrace-events-{topic}", damage_timeout_ms=DAMAGE_TIMEOUT_MS)
    pause_s = RETRY_PAUSE_S
    while True:
        try:
            with Client(bootstrap, options) as client:
                return publisher.session(client, stop, until_current)
        except KafkaError as error:
            if not error.retriable and not isinstance(error, TransactionLost):
                raise
            say(f"{error}; trying again in {pause_s:g} s")
        if stop.wait(pause_s):
            return publisher.position
        pause_s = min(pause_s * 2, RETRY_PAUSE_S_MAX)


def published_position(client: Client, topic: str) -> int:
    """How far a store has been published to a topic."""
    return int(read_state(client, state_topic(topic)).get("position", {}).get("position", 0))


class _Publisher:
    def __init__(self, store: EventStore, topic: str, partitions: int) -> None:
        self._store = store
        self._topic = topic
        self._partitions = partitions
        self._owner = f"{socket.gethostname()} process {os.getpid()} {os.urandom(3).hex()}"
        self._has_run = False
        self.position = 0

    def session(self, client: Client, stop: threading.Event, until_current: bool) -> int:
        if self._has_run:
            self._check_owner(client)
        producer = PositionedProducer(
            client,
            f"headrace-events-{self._topic}",
            state_topic(self._topic),
            partitions=self._partitions,
            topic_config=EVENTS_CONFIG,
        )
        if "lease" in read_state(client, state_topic(self._topic)):
            raise UsageError(f"topic {self._topic} is itself an event store", "publish to a topic with another name")
        state = producer.start()
        self._go_on_after(state.get("position", {}))
        producer.ensure(self._topic)
        producer.commit({"owner": {"name": self._owner, "since_ms": time.time_ns() // 1_000_000}})
        self._has_run = True
        try:
            self._follow(producer, stop, until_current)
        except BaseException:
            # Left open, the transaction would hold back every reader of the topic until it times out.
            try:
                producer.abandon()
            except KafkaError:
                pass  # the next session ends it, by taking the id over
            raise
        return self.position

    def _check_owner(self, client: Client) -> None:
        owner = read_state(client, state_topic(self._topic)).get("owner", {}).get("name")
        if owner != self._owner:
            raise TakenOver(f"topic {self._topic} is published to by {owner} now; this publisher stops")

    def _go_on_after(self, recorded: dict[str, Any]) -> None:
        self.position = recorded.get("position", 0)
        if not self.position:
            return
        found = [event.event_id for event in self._store.read_all(after=self.position - 1, until=self.position)]
        if found != [recorded["event_id"]]:
            raise UsageError(
                f"topic {self._topic} has the events of a store up to position {self.position}, and "
                f"{self._store.shown} {'has another event there' if found else 'is shorter'}: it is another store, or "
                "an older copy of it",
                "publish to a topic with another name",
            )

    def _follow(self, producer: PositionedProducer, stop: threading.Event, until_current: bool) -> None:
        pages = self._store.pages(
            EVERYTHING, after=self.position, stop=stop, until_current=until_current, limit=BATCH_EVENTS
        )
        for page in pages:
            for event in page.events:
                producer.add(self._topic, *record_of(event.row))
            last = page.events[-1]
            producer.commit({"position": {"position": last.position, "event_id": last.event_id}})
            self.position = page.scanned_to
