"""Spark as the sink's protocol sees it, without Spark: batches, tasks, attempts, a checkpoint, and deaths at will."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.client import (
    Client,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    TopicPartition,
    end_offsets,
)
from headrace.client.connection import Connection
from headrace.spark.topic_sink.decisions import BatchRef
from headrace.spark.topic_sink.protocol import Plan, Protocol, Reported, Settings

PATIENCE = ClientOptions(
    connect_timeout_ms=60_000,
    request_timeout_ms=60_000,
    retry_timeout_ms=60_000,
    missing_topic_timeout_ms=100,
    retry_pause_ms=2,
)


class Death(BaseException):
    """The process is gone. No handler for errors may catch it."""


class Fate:
    """Kills the caller of the n-th remote call: before it reaches the broker, or before its answer is heard."""

    def __init__(self, at: int = 0, *, heard: bool = False) -> None:
        self.at = at
        self.heard = heard
        self.calls = 0
        self.answers = 0
        self.dead = False

    def before(self) -> None:
        if self.dead:
            raise Death
        self.calls += 1
        if self.calls == self.at and not self.heard:
            self.die()

    def after(self) -> None:
        self.answers += 1
        if self.answers == self.at and self.heard:
            self.die()

    def die(self) -> None:
        self.dead = True
        raise Death


@contextmanager
def mortality(monkeypatch_setattr: Callable[..., None], fate: Fate) -> Iterator[None]:
    """Every call of this thread, and of those that end transactions for it, is in the hands of fate. Others have their
    own: a session of Spark in this process has listeners that speak to brokers whenever they like."""
    send, wait = Connection.send, Connection.wait
    owner = threading.current_thread()

    def mortal() -> bool:
        caller = threading.current_thread()
        return caller is owner or caller.name.startswith("headrace-end")

    def fated_send(self: Connection, *args: object, **named: object) -> object:
        if mortal():
            fate.before()
        return send(self, *args, **named)  # type: ignore[arg-type]

    def fated_wait(self: Connection, *args: object, **named: object) -> object:
        answer: object = wait(self, *args, **named)  # type: ignore[arg-type]
        if mortal():
            fate.after()
        return answer

    monkeypatch_setattr(Connection, "send", fated_send)
    monkeypatch_setattr(Connection, "wait", fated_wait)
    try:
        yield
    finally:
        monkeypatch_setattr(Connection, "send", send)
        monkeypatch_setattr(Connection, "wait", wait)


Layout = Callable[[int], list[list[bytes]]]
"""The rows of a batch, task by task."""


def spread(rows_per_batch: int, tasks: int) -> Layout:
    """Rows that tell where they come from, dealt out to tasks; the last task has none."""

    def rows_of(batch_id: int) -> list[list[bytes]]:
        rows = [b"%d-%d" % (batch_id, index) for index in range(rows_per_batch)]
        return [rows[task :: tasks - 1] for task in range(tasks - 1)] + [[]]

    return rows_of


class World:
    """A checkpoint that survives, and a topic of which this world sees what was written in its time.

    Worlds share their topics, one after the other: a transaction that one leaves open hides the rows of the next.
    """

    def __init__(self, bootstrap: str, topic: str, sink: str, settings: Settings) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.sink = sink
        self.settings = settings
        self.committed = -1
        with Client(bootstrap, PATIENCE) as client:
            count = len(client.topic(topic).partitions)
            self.starts = end_offsets(client, [TopicPartition(topic, index) for index in range(count)])

    def run(self, batches: int, layout: Layout, *, ends: Callable[[int], str | None] = str) -> None:
        """A run of the query: from the batch behind the checkpoint to the last."""
        for batch_id in range(self.committed + 1, batches):
            batch = BatchRef(self.sink, batch_id, ends(batch_id), "query")
            with Client(self.bootstrap, PATIENCE) as driver:
                self.one_batch(driver, batch, layout(batch_id))
            self.committed = batch_id

    def one_batch(self, driver: Client, batch: BatchRef, tasks: list[list[bytes]]) -> None:
        plan = Protocol(driver, self.settings).begin(self.sink)
        reported = self.write(plan, batch, tasks)
        # Another process commits than the one that planned.
        with Client(self.bootstrap, PATIENCE) as committer:
            Protocol(committer, self.settings).commit(plan.lease, batch, reported)

    def write(self, plan: Plan, batch: BatchRef, tasks: list[list[bytes]], *, attempt: int = 0) -> list[Reported]:
        return [self.task(plan, batch, task, rows, attempt=attempt) for task, rows in enumerate(tasks)]

    def task(self, plan: Plan, batch: BatchRef, task: int, rows: list[bytes], *, attempt: int = 0) -> Reported:
        with Client(self.bootstrap, PATIENCE) as client:
            opened = Protocol(client, self.settings).start_task(plan, batch, task, attempt)
            if opened.producer is not None:
                for row in rows:
                    opened.producer.send(self.topic, row, partition=zlib.crc32(row) % len(self.starts))
            return opened.report(len(rows), sum(map(len, rows)), zlib.crc32(b"\n".join(rows)))

    def visible(self) -> list[bytes]:
        """What a reader of committed records finds, sorted."""
        options = ConsumerOptions(fetch=FetchOptions(read_committed=True), wait_ms_max=50)
        found: list[bytes] = []
        with Client(self.bootstrap, PATIENCE) as client:
            consumer = Consumer(client, options)
            consumer.assign(self.starts)
            while not consumer.at_end():
                for records in consumer.poll(20).values():
                    found += [record.value for record in records if record.value is not None]
        return sorted(found)


def expected(batches: int, layout: Layout) -> list[bytes]:
    return sorted(row for batch_id in range(batches) for rows in layout(batch_id) for row in rows)
