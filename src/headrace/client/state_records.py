"""What runs, and how well, as small records of one compacted topic that any consumer can read.

    topic   __headrace_state, one partition, compacted
    key     kind/name: pipeline/revenue, capture/shop, dashboard/Revenue per minute
    value   {"format": 1, "kind": "pipeline", "name": "revenue", "state": "running", "error": "", "ended": false,
             "since_ms": …, "at_ms": …, "heartbeat_ms": 5000, "host": "…", "pid": 4711, "details": {…}}
            or null: removed

``state`` is a word for people. ``ended`` says that the process has said goodbye; nothing more is to be expected of it.
A process that is killed cannot say so: its record grows old. A record that is older than three heartbeats and five
seconds and has not ended is *lost* (``StateRecord.is_lost``). A heartbeat of 0 is for definitions, which do not age.

A ``StatePublisher`` never holds up the work that it reports on. ``publish`` notes the newest state and returns;
a thread sends it, at most once per second and subject, and without a change once per heartbeat. A broker that is away,
or refuses, is mentioned once, and what was not sent is replaced by what is newer: reports may be missing, and the work
that they are about never waits for them or fails with them.

The time of a record is that of the last ``publish``, so a process whose work hangs grows old as well, although its
thread still runs. Records carry the clock of their host; clocks that differ by many seconds make a record look lost.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from headrace.client.client import Client, ClientOptions, TopicPartition
from headrace.client.consumer import Consumer, ConsumerOptions
from headrace.client.offsets import start_offsets
from headrace.client.positioned import STATE_CONFIG, ensure_topic, topic_exists
from headrace.client.producer import Producer, ProducerOptions
from headrace.errors import ErrorCode, HeadraceError, KafkaError

__all__ = ["STATE_TOPIC", "StatePublisher", "StateReader", "StateRecord", "read_state_records", "remove_state_record"]

STATE_TOPIC = "__headrace_state"
"""The compacted topic that state records are in."""
FORMAT = 1
HEARTBEAT_MS = 5_000
HEARTBEATS_MISSED = 3
SLACK_MS = 5_000
"""A process that begins again has connections to make."""
INTERVAL_S = 1.0
"""Between two records of one subject."""
PAUSE_S_MAX = 30.0
"""Between attempts while the broker is away."""
CLOSE_S_MAX = 10.0
TIMEOUT_MS = 5_000
SUBJECTS_MAX = 10_000
VALUE_BYTES_MAX = 512 * 1024
READ_ROUNDS_MAX = 10_000
PLACE = TopicPartition(STATE_TOPIC, 0)

logger = logging.getLogger(__name__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """One subject, as it was at ``at_ms``."""

    kind: str
    name: str
    state: str = "running"
    error: str = ""
    ended: bool = False
    since_ms: int = 0
    at_ms: int = 0
    heartbeat_ms: int = HEARTBEAT_MS
    host: str = ""
    pid: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"

    def is_lost(self, now_ms: int | None = None) -> bool:
        """Whether it stopped without saying so: it has not ended and is many heartbeats old."""
        if self.ended or not self.heartbeat_ms:
            return False
        age_ms = (now_ms or _now_ms()) - self.at_ms
        return age_ms > HEARTBEATS_MISSED * self.heartbeat_ms + SLACK_MS

    def is_alive(self, now_ms: int | None = None) -> bool:
        return not self.ended and not self.is_lost(now_ms)

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: bytes) -> StateRecord | None:
        """None for what this version cannot read."""
        try:
            found = json.loads(value)
            if found.pop("format") != FORMAT:
                return None
            record = cls(**{name: found[name] for name in cls.__slots__ if name in found})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return record if _is_sound(record) else None


TYPES = {
    **dict.fromkeys(("kind", "name", "state", "error", "host"), str),
    **dict.fromkeys(("since_ms", "at_ms", "heartbeat_ms", "pid"), int),
    "ended": bool,
    "details": dict,
}


def _is_sound(record: StateRecord) -> bool:
    """Anybody who may write to the topic can write anything."""
    return all(isinstance(getattr(record, name), kind) for name, kind in TYPES.items())


# ---- publishing ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Subject:
    """What is to be sent of a subject, and what was."""

    newest: StateRecord | None
    """None: it is removed."""
    is_waiting: bool = True
    sent: StateRecord | None = None
    sent_s: float = float("-inf")

    def due_s(self) -> float:
        """When its newest record may go out."""
        pause_s = INTERVAL_S
        if self.newest is not None and self.sent is not None and self._is_unchanged(self.newest, self.sent):
            pause_s = max(INTERVAL_S, self.newest.heartbeat_ms / 1000)
        return self.sent_s + pause_s

    @staticmethod
    def _is_unchanged(newest: StateRecord, sent: StateRecord) -> bool:
        return replace(newest, at_ms=sent.at_ms) == sent


class StatePublisher:
    """Sends the newest states of some subjects, on its own thread. May be used by several threads."""

    def __init__(
        self,
        bootstrap: str,
        options: ClientOptions | None = None,
        *,
        trouble: Callable[[str], None] = logger.warning,
    ) -> None:
        """``trouble`` gets a line when records cannot be sent, once until they can be again."""
        given = options or ClientOptions(client_id="headrace-state")
        self._bootstrap = bootstrap
        self._options = replace(given, request_timeout_ms=TIMEOUT_MS, retry_timeout_ms=TIMEOUT_MS)
        self._trouble = trouble
        self._subjects: dict[str, _Subject] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._is_troubled = False
        self._client: Client | None = None
        self._since_ms: dict[str, int] = {}
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._thread = threading.Thread(target=self._run, name="headrace-state", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(
        self,
        kind: str,
        name: str,
        *,
        state: str,
        details: Mapping[str, Any],
        error: str = "",
        ended: bool = False,
        heartbeat_ms: int = HEARTBEAT_MS,
    ) -> None:
        """Note the newest state of a subject. ``details`` must not be changed afterwards."""
        now_ms = _now_ms()
        record = StateRecord(
            kind=kind,
            name=name,
            state=state,
            error=error,
            ended=ended,
            since_ms=self._since_ms.setdefault(f"{kind}/{name}", now_ms),
            at_ms=now_ms,
            heartbeat_ms=heartbeat_ms,
            host=self._host,
            pid=self._pid,
            details=details,
        )
        self._note(record.key, record)

    def remove(self, kind: str, name: str) -> None:
        """The subject is no more; its record is deleted."""
        self._note(f"{kind}/{name}", None)

    def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Send what waits, once, and end; within ``timeout_s``."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _note(self, key: str, record: StateRecord | None) -> None:
        with self._changed:
            if self._closing:
                return
            subject = self._subjects.get(key)
            if subject is None:
                if len(self._subjects) >= SUBJECTS_MAX:
                    return
                subject = self._subjects[key] = _Subject(record)
            subject.newest, subject.is_waiting = record, True
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = 0.0
        try:
            while due := self._due(pause_s):
                if self._sent(due):
                    pause_s = 0.0
                elif self._closing:
                    return
                else:
                    pause_s = min(PAUSE_S_MAX, max(INTERVAL_S, pause_s * 2))
        finally:
            self._disconnect()

    def _due(self, pause_s: float) -> dict[str, StateRecord | None]:
        """Waits for ``pause_s`` and then for records that may go out. On closing all that wait may; {} is the end."""
        resume_s = time.monotonic() + pause_s
        with self._changed:
            while not self._closing:
                now_s = time.monotonic()
                due_s = {key: max(resume_s, each.due_s()) for key, each in self._subjects.items() if each.is_waiting}
                if ready := [key for key, at_s in due_s.items() if at_s <= now_s]:
                    return self._taken(ready)
                self._changed.wait(min(due_s.values()) - now_s if due_s else None)
            return self._taken([key for key, each in self._subjects.items() if each.is_waiting])

    def _taken(self, keys: list[str]) -> dict[str, StateRecord | None]:
        for key in keys:
            self._subjects[key].is_waiting = False
        return {key: self._subjects[key].newest for key in keys}

    def _sent(self, due: Mapping[str, StateRecord | None]) -> bool:
        try:
            self._send(due)
        except Exception as error:  # whatever it is, it must not reach what is reported on
            self._failed(due, error)
            return False
        self._is_troubled = False
        now_s = time.monotonic()
        with self._changed:
            for key, record in due.items():
                subject = self._subjects.get(key)
                if subject is not None:
                    subject.sent, subject.sent_s = record, now_s
                    if record is None and not subject.is_waiting:
                        del self._subjects[key]
        return True

    def _failed(self, due: Mapping[str, StateRecord | None], error: Exception) -> None:
        self._disconnect()
        if not self._is_troubled:
            self._is_troubled = True
            why = error.message if isinstance(error, HeadraceError) else repr(error)
            self._trouble(f"the state of what runs here cannot be published to {STATE_TOPIC}: {why}")
        with self._changed:
            for key in due:
                if key in self._subjects:
                    self._subjects[key].is_waiting = True

    def _send(self, due: Mapping[str, StateRecord | None]) -> None:
        if self._client is None:
            self._client = Client(self._bootstrap, self._options)
            ensure_topic(self._client, STATE_TOPIC, partitions=1, config=STATE_CONFIG)
        options = ProducerOptions(delivery_timeout_ms=TIMEOUT_MS, create_topics=False)
        with Producer(self._client, options) as producer:
            for key, record in due.items():
                value = None if record is None else _bounded(record)
                producer.send(STATE_TOPIC, value, key=key.encode(), partition=0)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(HeadraceError, OSError):
                client.close()


def _bounded(record: StateRecord) -> bytes:
    """A record that no topic would take goes without its details."""
    value = record.to_json()
    return value if len(value) <= VALUE_BYTES_MAX else replace(record, details={"cut": len(value)}).to_json()


def remove_state_record(client: Client, kind: str, name: str) -> None:
    """Delete a subject's record; for commands that remove the subject."""
    if topic_exists(client, STATE_TOPIC):
        with Producer(client) as producer:
            producer.send(STATE_TOPIC, None, key=f"{kind}/{name}".encode(), partition=0)


# ---- reading -------------------------------------------------------------------------------------------------------


class StateReader:
    """The newest record of every subject; ``refresh`` reads what has come since. Used by one thread at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._consumer: Consumer | None = None
        self.records: dict[str, StateRecord] = {}

    def refresh(self) -> dict[str, StateRecord]:
        """By key. Empty where nothing has ever been published."""
        try:
            self._read()
        except KafkaError as error:
            self._consumer = None
            if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                raise
            self.records = {}  # the topic was deleted
        return self.records

    def of(self, kind: str) -> list[StateRecord]:
        return sorted((each for each in self.records.values() if each.kind == kind), key=lambda each: each.name)

    def _read(self) -> None:
        if self._consumer is None:
            if not topic_exists(self._client, STATE_TOPIC):
                self.records = {}
                return
            self._consumer = Consumer(self._client, ConsumerOptions(reset="earliest", wait_ms_max=0))
            self._consumer.assign(start_offsets(self._client, [PLACE]))
            self.records = {}
        for _ in range(READ_ROUNDS_MAX):
            for record in self._consumer.poll(timeout_ms=0).get(PLACE, []):
                self._take((record.key or b"").decode(errors="replace"), record.value)
            if self._consumer.at_end():
                return

    def _take(self, key: str, value: bytes | None) -> None:
        found = None if value is None else StateRecord.from_json(value)
        if found is None or found.key != key:
            if value is None:
                self.records.pop(key, None)
        elif key in self.records or len(self.records) < SUBJECTS_MAX:
            self.records[key] = found


def read_state_records(client: Client, kind: str) -> dict[str, StateRecord]:
    """The newest record of every subject of a kind, by name."""
    reader = StateReader(client)
    reader.refresh()
    return {each.name: each for each in reader.of(kind)}
