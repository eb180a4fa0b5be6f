"""What captures leave in the log besides events: which there are, and how far each has come.

    __headrace_captures          key: the capture's name, value: its options (never a password); compacted
    __headrace_capture_<name>    key: the part of the state, value: JSON; compacted, written in the same transaction as
                                 the events it stands behind

A capture's state topic has one writer, whose transactional id belongs to the name: when the id has been taken over,
nothing of it is open, and what is committed is final until the new holder writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headrace.capture.options import CaptureOptions
from headrace.client import (
    Admin,
    Client,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    Producer,
    TopicPartition,
    end_offsets,
    start_offsets,
)
from headrace.errors import ErrorCode, KafkaError, UsageError
from headrace.record import Record

__all__ = ["CAPTURES_TOPIC", "Registry", "ensure_topic", "read_state", "state_topic"]

CAPTURES_TOPIC = "__headrace_captures"
STATE_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(1024 * 1024), "min.cleanable.dirty.ratio": "0.1"}
FORMAT = 1


def state_topic(name: str) -> str:
    return f"__headrace_capture_{name}"


def ensure_topic(client: Client, name: str, *, partitions: int = -1, config: dict[str, str] | None = None) -> None:
    """Make a topic unless it is there."""
    if _exists(client, name):
        return
    try:
        Admin(client).create_topic(name, partitions=partitions, config=config)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    client.forget_topic(name)


def _exists(client: Client, name: str) -> bool:
    return any(topic.name == name for topic in client.topics())


def _committed_records(client: Client, topic: str) -> Iterator[Record]:
    """Every committed record of a topic with one partition, to the end that it has now."""
    place = TopicPartition(topic, 0)
    consumer = Consumer(client, ConsumerOptions(reset="earliest", fetch=FetchOptions(read_committed=True)))
    consumer.assign(start_offsets(client, [place]))
    end = end_offsets(client, [place])[place]
    while consumer.positions[place] < end:
        before = consumer.positions[place]
        yield from consumer.poll(timeout_ms=1_000).get(place, [])
        if consumer.positions[place] == before and consumer.at_end():
            return  # what follows belongs to a transaction that is open


def read_state(client: Client, name: str) -> dict[str, Any]:
    """The parts of a capture's state, as they were committed last; {} when it has never run."""
    topic = state_topic(name)
    if not _exists(client, topic):
        return {}
    state: dict[str, Any] = {}
    for record in _committed_records(client, topic):
        key = (record.key or b"").decode()
        if record.value is None:
            state.pop(key, None)
        else:
            state[key] = json.loads(record.value)
    found = state.get("position", {}).get("format", FORMAT)
    if found != FORMAT:
        raise UsageError(
            f"the state of capture {name!r} has format {found}", f"this version of headrace knows {FORMAT}"
        )
    return state


class Registry:
    """The captures that were added."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> dict[str, CaptureOptions]:
        if not _exists(self._client, CAPTURES_TOPIC):
            return {}
        found: dict[str, CaptureOptions] = {}
        for record in _committed_records(self._client, CAPTURES_TOPIC):
            name = (record.key or b"").decode()
            found.pop(name, None)
            if record.value is not None:
                found[name] = CaptureOptions.from_stored(json.loads(record.value))
        return dict(sorted(found.items()))

    def get(self, name: str) -> CaptureOptions:
        captures = self.all()
        if name not in captures:
            known = ", ".join(captures) or "none"
            raise UsageError(f"there is no capture {name!r}; there are: {known}", "headrace capture add NAME URL")
        return captures[name]

    def put(self, options: CaptureOptions) -> None:
        self._write(options.name, json.dumps(options.stored()).encode())

    def remove(self, name: str) -> None:
        self._write(name, None)
        if _exists(self._client, state_topic(name)):
            Admin(self._client).delete_topic(state_topic(name))

    def _write(self, name: str, value: bytes | None) -> None:
        ensure_topic(self._client, CAPTURES_TOPIC, partitions=1, config=STATE_CONFIG)
        with Producer(self._client) as producer:
            producer.send(CAPTURES_TOPIC, value, key=name.encode(), partition=0)
