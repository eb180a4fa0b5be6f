"""What the pages of groups, queues, captures, pipelines and dashboards show in tests: made by real clients."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika

from headrace.client import (
    Admin,
    Client,
    Groups,
    Producer,
    StatePublisher,
    StateRecord,
    TopicPartition,
)
from tests.waiting import eventually

RECORDED = Path(__file__).with_name("recorded_states.json")
"""State records of ``headrace run`` and ``headrace capture run``, as they were read from their topic."""


def produced(bootstrap: str, topic: str, values: list[Any], *, partitions: int = 1) -> None:
    """A topic with JSON values, keyed by their number."""
    with Client(bootstrap) as client:
        Admin(client).create_topic(topic, partitions=partitions)
        with Producer(client) as producer:
            for number, value in enumerate(values):
                text = value if isinstance(value, bytes) else json.dumps(value).encode()
                producer.send(topic, text, key=str(number).encode(), partition=number % partitions)


def committed(bootstrap: str, group: str, topic: str, offsets: list[int]) -> None:
    with Client(bootstrap) as client:
        Groups(client).commit(group, {TopicPartition(topic, index): at for index, at in enumerate(offsets)})


def offsets_of(bootstrap: str, group: str) -> dict[int, int]:
    with Client(bootstrap) as client:
        return {place.partition: at for place, at in Groups(client).committed(group).items()}


@contextmanager
def channel_to(url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        connection.close()


def with_dead_letters(url: str, work: str, dead: str, count: int) -> None:
    """``count`` messages of a queue that a consumer rejected, in the queue for dead letters."""
    with channel_to(url) as channel:
        channel.exchange_declare(f"{work}-events", "topic")
        channel.exchange_declare(f"{work}-dead", "fanout")
        channel.queue_declare(dead, durable=True)
        channel.queue_bind(dead, f"{work}-dead")
        channel.queue_declare(work, durable=True, arguments={"x-dead-letter-exchange": f"{work}-dead"})
        channel.queue_bind(work, f"{work}-events", "order.*")
        for number in range(count):
            channel.basic_publish(f"{work}-events", "order.placed", json.dumps({"order": number}).encode())
        for _ in range(count):
            method, _, _ = channel.basic_get(work)
            channel.basic_reject(method.delivery_tag, requeue=False)
        # A rejection is not answered: the messages are in the other queue a moment later.
        eventually(lambda: channel.queue_declare(dead, passive=True).method.message_count == count)


def recorded() -> dict[str, StateRecord]:
    found = {
        key: StateRecord.from_json(json.dumps(value).encode())
        for key, value in json.loads(RECORDED.read_text()).items()
    }
    return {key: record for key, record in found.items() if record is not None}


def publish(publisher: StatePublisher, record: StateRecord, **changes: Any) -> None:
    """A recorded state, as of now, under the name of the test."""
    record = replace(record, **changes)
    publisher.publish(
        record.kind,
        record.name,
        state=record.state,
        error=record.error,
        ended=record.ended,
        details=recent(record.details),
        heartbeat_ms=record.heartbeat_ms,
    )


def recent(details: Any) -> dict[str, Any]:
    """With its batches and its watermark moved to now."""
    found: dict[str, Any] = dict(details)
    batches = found.get("batches") or []
    if batches:
        later_ms = time.time_ns() // 1_000_000 - batches[-1]["at_ms"]
        found["batches"] = [{**each, "at_ms": each["at_ms"] + later_ms} for each in batches]
        if found.get("watermark_ms"):
            found["watermark_ms"] += later_ms
    return found
