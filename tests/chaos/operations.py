"""What clients did and saw while the broker was being killed: JSON lines, sorted into what the checks ask for.

Each line is one operation. ``type`` is what its client knows: ``ok`` it happened, ``fail`` it did not, ``info`` nobody
can tell (a request without an answer may have been executed). Times are seconds of one clock; ``began`` is when the
request was sent and ``time`` when its answer was there.

    produce   producer, number, topic, partition, value, txn or null, type, offset if ok, time
              ``number`` counts the values of a producer
    end       txn, commit (bool), type, began, time
    read      reader, isolation ("committed" | "uncommitted"), topic, partition, records [[offset, value], …], time,
              final; ``final`` marks the drain at the end: everything in the partition, read by a fresh consumer;
              began, if nothing was fetched before that; odd [[offset, key and headers], …], see ``attributes``
    ends      isolation, topic, partition, low, high, began, time        where the broker says that it begins and ends
    commit    group, topic, partition, offset, type, began, time         an offset committed outside a transaction
    observe   group, topic, partition, offset, began, time               the offset that the broker says is committed
    own       group, member, partitions [[topic, partition], …], time
    release   group, member, partitions, time
    beat      member, kept_s, began, time                a heartbeat or SyncGroup that was answered without an error
              ``kept_s`` is how long the broker keeps the member at least, counted from ``began``, when it hears no
              more of it: for its session, or for the rebalance timeout when a rebalance begins
    held      began, time            what clients sent to the broker waited in the network, and arrived after ``time``
    trim      topic, partition, offset, type, time                       DeleteRecords before an offset
    put       key, number, topic, partition, value or null, type, offset if ok, time        to a compacted topic
    fold      topic, partition, table {key: [offset, value or null]}, began, time           it was read whole
    life-put  life, topic, partition, value, type, offset if ok, time    to a topic that is deleted and created again
    life-end  life, topic, time                                          its deletion was acknowledged
    life-read topic, partition, records, began, time, final

A value is ``kind/producer/number/txn/source/checksum``; ``source`` is ``topic:partition:offset`` of the record that a
transformation was made from. The checksum is over all before it, so that a value that was altered, cut or mixed up
is noticed whatever the broker's own checksums say.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Attempt",
    "History",
    "Operation",
    "Place",
    "Value",
    "attributes",
    "make_value",
    "parse_value",
    "place_of",
    "read_lines",
    "where",
]

Operation = dict[str, Any]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Value:
    kind: str
    producer: str
    number: int
    txn: str
    source: str


def make_value(kind: str, producer: str, number: int, txn: str = "", source: str = "") -> str:
    body = f"{kind}/{producer}/{number}/{txn}/{source}"
    return f"{body}/{zlib.crc32(body.encode()):08x}"


def parse_value(text: str) -> Value | None:
    """The parts, or None when the checksum does not fit."""
    body, _, checksum = text.rpartition("/")
    parts = body.split("/")
    if len(parts) != 5 or checksum != f"{zlib.crc32(body.encode()):08x}":
        return None
    return Value(parts[0], parts[1], int(parts[2]), parts[3], parts[4])


def attributes(value: str) -> tuple[str, list[tuple[str, str]]]:
    """The key and the headers that a value is written with: they follow from it, so that a reader can check them."""
    return f"key of {value}", [("checksum", value[-8:]), ("length", str(len(value)))]


def read_lines(lines: Iterable[str]) -> Iterator[Operation]:
    for line in lines:
        if line.strip():
            yield json.loads(line)


@dataclass(slots=True)
class Attempt:
    """One value that somebody tried to write."""

    place: Place
    type: str
    offset: int | None
    txn: str
    time: float


@dataclass
class History:
    """The operations, sorted into what the checks ask for."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    operations: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[str, Operation] = field(default_factory=dict)
    """The last word on each transaction."""
    repeated: list[str] = field(default_factory=list)
    trimmed: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    """Before which offset records may be gone: somebody has tried to delete them."""
    final: dict[str, dict[Place, dict[int, str]]] = field(
        default_factory=lambda: {"committed": defaultdict(dict), "uncommitted": defaultdict(dict)}
    )
    _values: dict[str, str] = field(default_factory=dict)
    _parsed: dict[str, Value | None] = field(default_factory=dict)

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> History:
        history = cls()
        for each in operations:
            history.add(each)
        return history

    def add(self, each: Operation) -> None:
        op = each["op"]
        if op == "produce":
            self._add_attempt(each)
            return
        if op == "end":
            self.ends[each["txn"]] = each
            return
        if op == "read":
            each["records"] = [(offset, self.same(value)) for offset, value in each["records"]]
            if each["final"]:
                self.final[each["isolation"]][place_of(each)].update(each["records"])
        elif op == "trim":
            self.trimmed[place_of(each)] = max(self.trimmed[place_of(each)], each["offset"])
        self.operations["ownership" if op in ("own", "release") else op].append(each)

    def _add_attempt(self, each: Operation) -> None:
        if each["value"] in self.attempts:
            self.repeated.append(each["value"])
        self.attempts[self.same(each["value"])] = Attempt(
            place_of(each), each["type"], each.get("offset"), each["txn"] or "", each["time"]
        )

    def same(self, value: str) -> str:
        """One object per value: a long history is read by several readers, and memory is bounded."""
        return self._values.setdefault(value, value)

    def parsed(self, value: str) -> Value | None:
        if value not in self._parsed:
            self._parsed[value] = parse_value(value)
        return self._parsed[value]

    def outcome(self, txn: str) -> str:
        """``committed``, ``aborted`` or ``unknown``, as its client knows it."""
        end = self.ends.get(txn)
        if end is None:
            return "aborted"  # nobody asked to commit it
        if not end["commit"]:
            return "aborted"
        return {"ok": "committed", "fail": "aborted", "info": "unknown"}[end["type"]]

    @property
    def reads(self) -> list[Operation]:
        return self.operations["read"]

    def records(self) -> Iterator[tuple[Operation, int, str]]:
        for read in self.reads:
            for offset, value in read["records"]:
                yield read, offset, value


def where(place: Place, offset: int) -> str:
    return f"{place[0]}-{place[1]} at {offset}"


def place_of(operation: Operation) -> Place:
    return operation["topic"], operation["partition"]
