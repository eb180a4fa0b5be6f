"""What captures leave in the log besides events: which there are, and how far each has come.

    __headrace_captures          key: the capture's name, value: its options (never a password); compacted
    __headrace_capture_<name>    key: the part of the state, value: JSON; compacted, written in the same transaction as
                                 the events that it covers

A capture's state topic has one writer, whose transactional id belongs to the name: when the id has been taken over,
nothing of it is open, and what is committed is final until the new holder writes.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.capture.options import CaptureOptions
from headrace.client import Admin, Client, Producer, positioned, remove_state_record
from headrace.client.positioned import STATE_CONFIG, committed_records, ensure_topic, topic_exists
from headrace.errors import UsageError

__all__ = ["CAPTURES_TOPIC", "Registry", "known_format", "read_state", "state_topic"]

CAPTURES_TOPIC = "__headrace_captures"
FORMAT = 1


def state_topic(name: str) -> str:
    return f"__headrace_capture_{name}"


def read_state(client: Client, name: str) -> dict[str, Any]:
    """The parts of a capture's state, as they were committed last; {} when it has never run."""
    return known_format(name, positioned.read_state(client, state_topic(name)))


def known_format(name: str, state: dict[str, Any]) -> dict[str, Any]:
    """The state, if this version of headrace can read it."""
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
        if not topic_exists(self._client, CAPTURES_TOPIC):
            return {}
        found: dict[str, CaptureOptions] = {}
        for record in committed_records(self._client, CAPTURES_TOPIC):
            name = (record.key or b"").decode()
            found.pop(name, None)
            if record.value is not None:
                found[name] = CaptureOptions.from_stored(json.loads(record.value))
        return dict(sorted(found.items()))

    def find(self, name: str) -> CaptureOptions | None:
        return self.all().get(name)

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
        if topic_exists(self._client, state_topic(name)):
            Admin(self._client).delete_topic(state_topic(name))
        remove_state_record(self._client, "capture", name)

    def _write(self, name: str, value: bytes | None) -> None:
        ensure_topic(self._client, CAPTURES_TOPIC, partitions=1, config=STATE_CONFIG)
        with Producer(self._client) as producer:
            producer.send(CAPTURES_TOPIC, value, key=name.encode(), partition=0)
