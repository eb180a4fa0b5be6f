"""Faithful stand-ins for what the coordinators use: a clock that is turned by hand, tables whose flushes are let
through by hand, and topics without logs.

``FakeState`` keeps two copies: ``tables`` is what was written, ``durable`` is what a crash at this moment would leave.
Values pass through JSON, as they do through the journal, so a value that JSON cannot carry fails here too.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
import json
from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Any

from headrace.broker.replies import PendingReply
from headrace.broker.request import Peer, Request
from headrace.broker.slices import Slices
from headrace.broker.state import Encoded
from headrace.log.errors import DiskFull
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.schema import spec_of


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time moves when ``advance`` says so; timers fire in order, each at its own instant."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._timers: list[tuple[float, int, Timer, Callable[[], None]]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + round(self.now * 1000)

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        timer = Timer()
        self._count += 1
        heapq.heappush(self._timers, (self.now + delay_s, self._count, timer, fn))
        return timer

    def pending(self) -> int:
        return sum(not timer.cancelled for _, _, timer, _ in self._timers)

    async def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            due, _, timer, fn = heapq.heappop(self._timers)
            self.now = max(self.now, due)
            if not timer.cancelled:
                fn()
                await settle()
        self.now = until
        await settle()


async def settle() -> None:
    """Let callbacks of finished futures run, and those that they cause."""
    for _ in range(5):
        await asyncio.sleep(0)


class FakeState:
    """``StateStore`` without a disk. With ``auto_flush`` everything is durable at once."""

    start_offset = 0
    has_lost_changes = False

    def __init__(self, tables: dict[str, dict[str, Any]] | None = None, *, auto_flush: bool = True) -> None:
        self.tables: dict[str, dict[str, Any]] = copy.deepcopy(tables or {})
        self.durable: dict[str, dict[str, Any]] = copy.deepcopy(tables or {})
        self.auto_flush = auto_flush
        self.full = False
        self.batches: list[list[tuple[str, str, Any]]] = []
        self._unflushed: list[list[tuple[str, str, Any]]] = []
        self._flushed_until = 0
        self._waiting: list[Callable[[], None]] = []

    def table(self, name: str) -> dict[str, Any]:
        return self.tables.setdefault(name, {})

    @property
    def end_offset(self) -> int:
        return len(self.batches)

    def put(self, table: str, key: str, value: Any | None) -> int:
        return self.put_many([(table, key, value)])

    def put_many(self, changes: Sequence[tuple[str, str, Any]]) -> int:
        if self.full:
            raise DiskFull("the state", 100)
        assert changes, "an empty batch cannot be written"
        written = []
        for table, key, value in changes:
            assert isinstance(key, str)
            if isinstance(value, Encoded):
                row, raw = value
                assert json.loads(raw) == row, f"{row!r} is not what is written"
                value = row
            assert json.loads(json.dumps(value)) == value, f"{value!r} does not survive JSON"
            _fold(self.tables, table, key, value)
            written.append((table, key, json.loads(json.dumps(value))))
        self.batches.append(written)
        self._unflushed.append(written)
        if self.auto_flush:
            self.flush()
        return len(self.batches) - 1

    def when_flushed(self, offset: int, callback: Callable[[], None]) -> None:
        if offset < self._flushed_until:
            callback()
        else:
            self._waiting.append(callback)

    def flush(self) -> None:
        for batch in self._unflushed:
            for table, key, value in batch:
                _fold(self.durable, table, key, value)
        self._unflushed.clear()
        self._flushed_until = len(self.batches)
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def after_crash(self, *, auto_flush: bool = True) -> FakeState:
        """What a new process finds."""
        return FakeState(self.durable, auto_flush=auto_flush)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Tables that have rows."""
        return {name: rows for name, rows in self.tables.items() if rows}


def _fold(tables: dict[str, dict[str, Any]], table: str, key: str, value: Any | None) -> None:
    rows = tables.setdefault(table, {})
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value


class FakeTopic:
    def __init__(self, name: str, topic_id: bytes, partitions: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = [object() for _ in range(partitions)]
        self.internal = False

    def partition(self, index: int) -> object | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


class FakeTopics:
    def __init__(self, **partitions: int) -> None:
        self._by_name: dict[str, FakeTopic] = {}
        self.version = 0
        self._on_deleted: list[Callable[[str], None]] = []
        self._before_creation: list[Callable[[str], None]] = []
        self._made = 0
        for name, count in partitions.items():
            self.create(name, count)

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> FakeTopic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> FakeTopic | None:
        return next((topic for topic in self._by_name.values() if topic.topic_id == topic_id), None)

    def exists(self, name: str) -> bool:
        return name in self._by_name

    def all(self) -> list[FakeTopic]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def subscribe(
        self, on_deleted: Callable[[str], None], *, before_creation: Callable[[str], None] = lambda name: None
    ) -> None:
        self._on_deleted.append(on_deleted)
        self._before_creation.append(before_creation)

    def forget_listeners(self) -> None:
        """The process that listened is gone."""
        self._on_deleted.clear()
        self._before_creation.clear()

    def create(self, name: str, partitions: int) -> FakeTopic:
        self._made += 1
        for prepare in self._before_creation:
            prepare(name)
        self._by_name[name] = FakeTopic(name, self._made.to_bytes(16, "big"), partitions)
        self.version += 1
        return self._by_name[name]

    def grow(self, name: str, partitions: int) -> None:
        topic = self._by_name[name]
        topic.partitions += [object() for _ in range(partitions - len(topic.partitions))]
        self.version += 1

    def delete(self, name: str) -> None:
        del self._by_name[name]
        self.version += 1
        for on_deleted in self._on_deleted:
            on_deleted(name)


def request(body: Any, version: int, *, client_id: str | None = "test", host: str = "10.0.0.1") -> Request[Any]:
    """As it would come off the wire: fields that the version does not carry are lost on the way."""
    api_key = spec_of(type(body)).api_key
    wire = b"".join(bytes(chunk) for chunk in write_message(body, version))
    arrived, _ = read_message(type(body), version, wire)
    return Request(api_key=api_key, version=version, body=arrived, peer=Peer(id=1, host=host), client_id=client_id)


def when_answered(reply: Any, then: Callable[[Any], None]) -> None:
    """Call with the response, now or when a reply that waits has it, however often one gives another."""
    if not isinstance(reply, PendingReply):
        then(reply)
    elif reply.ready:
        when_answered(reply.response, then)
    else:
        reply.taker = lambda: when_answered(reply.response, then)


def executed(reply: Any, slices: Slices) -> Any:
    """What ``Broker.handle`` makes of a handler's reply."""
    return slices.run(reply) if isinstance(reply, GeneratorType) else reply


def over_wire(response: Any, version: int) -> Any:
    """What the client reads: an answer that its version cannot carry fails here."""
    wire = b"".join(bytes(chunk) for chunk in write_message(response, version))
    arrived, rest = read_message(type(response), version, wire)
    assert rest == len(wire)
    return arrived
