"""Judges a history of what clients saw while the broker was being killed. Pure functions over JSON lines.

Each line is one operation. ``type`` is what its client knows: ``ok`` it happened, ``fail`` it did not, ``info`` nobody
can tell (a request without an answer may have been executed). Times are seconds of one clock.

    produce   producer, number, topic, partition, value, txn or null, type, offset if ok
              ``number`` counts the values of a producer
    end       txn, commit (bool), type, began, time
    read      reader, isolation ("committed" | "uncommitted"), topic, partition, records [[offset, value], …], time,
              final; ``final`` marks the drain at the end: everything in the partition, read by somebody fresh
    commit    group, topic, partition, offset, type, began, time         an offset committed outside a transaction
    observe   group, topic, partition, offset, began, time               the offset that the broker says is committed
    own       group, member, partitions [[topic, partition], …], time
    release   group, member, partitions, time

A value is ``kind/producer/number/txn/source/checksum``; ``source`` is ``topic:partition:offset`` of the record that a
transformation was made from. The checksum is over all before it, so that a value that was altered, cut or mixed up
betrays itself whatever the broker's own checksums say.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CHECKS", "History", "Problem", "check", "make_value", "parse_value", "read_lines"]

Operation = dict[str, Any]
Place = tuple[str, int]
PROBLEMS_PER_CHECK_MAX = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """A property that does not hold, and where."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


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


@dataclass
class History:
    """The operations, sorted into what the checks ask for."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    ends: dict[str, Operation] = field(default_factory=dict)
    reads: list[Operation] = field(default_factory=list)
    commits: list[Operation] = field(default_factory=list)
    owning: list[Operation] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    _values: dict[str, str] = field(default_factory=dict)
    _parsed: dict[str, Value | None] = field(default_factory=dict)
    final: dict[str, dict[Place, dict[int, str]]] = field(
        default_factory=lambda: {"committed": defaultdict(dict), "uncommitted": defaultdict(dict)}
    )

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> History:
        history = cls()
        for each in operations:
            history.add(each)
        return history

    def add(self, each: Operation) -> None:
        op = each["op"]
        if op == "produce":
            if each["value"] in self.attempts:
                self.repeated.append(each["value"])
            place = (each["topic"], each["partition"])
            self.attempts[self.same(each["value"])] = Attempt(
                place, each["type"], each.get("offset"), each["txn"] or ""
            )
        elif op == "end":
            self.ends[each["txn"]] = each
        elif op == "read":
            each["records"] = [(offset, self.same(value)) for offset, value in each["records"]]
            self.reads.append(each)
            if each["final"]:
                self.final[each["isolation"]][each["topic"], each["partition"]].update(each["records"])
        elif op in ("commit", "observe"):
            self.commits.append(each)
        else:
            assert op in ("own", "release"), f"unknown operation {op}"
            self.owning.append(each)

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

    def records(self) -> Iterator[tuple[Operation, int, str]]:
        for read in self.reads:
            for offset, value in read["records"]:
                yield read, offset, value


def where(place: Place, offset: int) -> str:
    return f"{place[0]}-{place[1]} at {offset}"


def place_of(operation: Operation) -> Place:
    return operation["topic"], operation["partition"]


# ---- the checks ----


def checksums(history: History) -> Iterator[str]:
    """Every value read is one that its own checksum fits."""
    for read, offset, value in history.records():
        if history.parsed(value) is None:
            yield f"{where(place_of(read), offset)}: {value!r}"


def phantoms(history: History) -> Iterator[str]:
    """Every value read was written by somebody, to that partition, and not refused."""
    for read, offset, value in history.records():
        attempt = history.attempts.get(value)
        if attempt is None:
            yield f"{where(place_of(read), offset)}: nobody wrote {value!r}"
        elif attempt.place != place_of(read):
            yield f"{where(place_of(read), offset)}: {value!r} was written to {attempt.place}"
        elif attempt.type == "fail":
            yield f"{where(place_of(read), offset)}: {value!r} was refused"


def lost(history: History) -> Iterator[str]:
    """Every acknowledged value stands at the offset that was told."""
    for value, attempt in history.attempts.items():
        if attempt.type != "ok":
            continue
        levels = ["uncommitted"]
        if not attempt.txn or history.outcome(attempt.txn) == "committed":
            levels.append("committed")
        for level in levels:
            assert attempt.offset is not None
            found = history.final[level][attempt.place].get(attempt.offset)
            if found != value:
                told = where(attempt.place, attempt.offset)
                yield f"{told}: {value!r} was acknowledged; a read of {level} data finds {found!r}"


def duplicates(history: History) -> Iterator[str]:
    """No value stands in the log twice: every producer here is idempotent."""
    seen: dict[str, str] = {}
    for place, records in history.final["uncommitted"].items():
        for offset, value in sorted(records.items()):
            here = where(place, offset)
            if value in seen:
                yield f"{value!r} stands in {seen[value]} and in {here}"
            seen[value] = here


def order(history: History) -> Iterator[str]:
    """A producer's values stand in a partition in the order it wrote them, and readers see ascending offsets."""
    for place, records in history.final["uncommitted"].items():
        last: dict[str, int] = {}
        for offset, text in sorted(records.items()):
            value = history.parsed(text)
            if value is None:
                continue
            if last.get(value.producer, -1) >= value.number:
                before = last[value.producer]
                yield f"{where(place, offset)}: {value.producer} wrote {value.number} before {before}"
            last[value.producer] = value.number
    for read in history.reads:
        offsets = [offset for offset, _ in read["records"]]
        if offsets != sorted(set(offsets)):
            yield f"{read['reader']} read {place_of(read)} in the order {offsets[:20]}"


def stable_offsets(history: History) -> Iterator[str]:
    """An offset means the same value to everybody, always."""
    seen: dict[tuple[str, int, int], str] = {}
    for read, offset, value in history.records():
        key = (read["topic"], read["partition"], offset)
        before = seen.setdefault(key, value)
        if before != value:
            yield f"{where(place_of(read), offset)}: {before!r} once, {value!r} for {read['reader']}"


def uncommitted_reads(history: History) -> Iterator[str]:
    """A reader of committed data sees nothing of a transaction that is aborted or not yet asked to commit."""
    for read, offset, text in history.records():
        value = history.parsed(text)
        if read["isolation"] != "committed" or value is None or not value.txn:
            continue
        if history.outcome(value.txn) == "aborted":
            yield f"{where(place_of(read), offset)}: {text!r} is of an aborted transaction ({read['reader']})"
        elif read["time"] < history.ends[value.txn]["began"]:
            yield f"{where(place_of(read), offset)}: {text!r} was read before anybody asked to commit it"


def half_transactions(history: History) -> Iterator[str]:
    """What was acknowledged in a transaction is there whole or not at all."""
    written: dict[str, list[str]] = defaultdict(list)
    for value, attempt in history.attempts.items():
        if attempt.txn and attempt.type == "ok":
            written[attempt.txn].append(value)
    there: set[str] = {value for records in history.final["committed"].values() for value in records.values()}
    for txn, values in written.items():
        found = [value for value in values if value in there]
        if found and len(found) < len(values):
            missing = next(value for value in values if value not in there)
            yield f"transaction {txn}: {len(found)} of {len(values)} values are there; {missing!r} is not"
        if not found and history.outcome(txn) == "committed":
            yield f"transaction {txn} was committed and nothing of it is there"


def receding_offsets(history: History) -> Iterator[str]:
    """A committed offset never goes back: neither behind an acknowledged commit nor behind what was seen before."""
    by_place: dict[tuple[str, str, int], list[Operation]] = defaultdict(list)
    for each in history.commits:
        if each["op"] == "observe" or each["type"] == "ok":
            by_place[each["group"], each["topic"], each["partition"]].append(each)
    for (group, topic, partition), operations in by_place.items():
        # An observation must show what had been told or seen when it began. What overlaps with it may or may not show.
        ended = sorted(operations, key=lambda each: each["time"])
        highest, next_ended = -1, 0
        for each in sorted(operations, key=lambda each: each["began"]):
            while next_ended < len(ended) and ended[next_ended]["time"] < each["began"]:
                highest = max(highest, ended[next_ended]["offset"])
                next_ended += 1
            if each["op"] == "observe" and each["offset"] < highest:
                yield f"group {group}, {topic}-{partition}: {each['offset']} after {highest} had been committed"


def two_owners(history: History) -> Iterator[str]:
    """In one group a partition has one owner at a time."""
    owners: dict[tuple[str, str, int], str] = {}
    for each in sorted(history.owning, key=lambda each: each["time"]):
        for topic, partition in each["partitions"]:
            key = (each["group"], topic, partition)
            owner = owners.get(key)
            if each["op"] == "own":
                if owner is not None and owner != each["member"]:
                    yield f"group {each['group']}: {topic}-{partition} of {owner} was given to {each['member']}"
                owners[key] = each["member"]
            elif owner == each["member"]:
                del owners[key]


def transformations(history: History) -> Iterator[str]:
    """Consume, transform, produce, commit the offset, in one transaction: every input has exactly one result."""
    results: dict[str, list[str]] = defaultdict(list)
    for records in history.final["committed"].values():
        for text in records.values():
            value = history.parsed(text)
            if value is not None and value.source:
                results[value.source].append(text)
    for source, found in results.items():
        if len(found) > 1:
            yield f"{source} was transformed {len(found)} times"
    inputs = {source.rsplit(":", 2)[0] for source in results}
    for (topic, partition), records in history.final["committed"].items():
        if topic in inputs:
            for offset in records:
                if f"{topic}:{partition}:{offset}" not in results:
                    yield f"{topic}-{partition} at {offset} has no result"


def harness(history: History) -> Iterator[str]:
    """The history itself makes sense: nobody used a value twice."""
    for value in history.repeated:
        yield f"{value!r} was written twice by the harness itself"


CHECKS: dict[str, Callable[[History], Iterator[str]]] = {
    "altered value": checksums,
    "phantom": phantoms,
    "lost": lost,
    "duplicate": duplicates,
    "out of order": order,
    "offset changed": stable_offsets,
    "uncommitted read": uncommitted_reads,
    "half a transaction": half_transactions,
    "committed offset went back": receding_offsets,
    "two owners": two_owners,
    "transformed not exactly once": transformations,
    "broken harness": harness,
}


NEED_ALL = frozenset({"phantom", "lost", "half a transaction", "transformed not exactly once"})
"""Checks that make sense only if everybody came to an end and everything was drained."""


def check(operations: Iterable[Operation], *, complete: bool = True) -> list[Problem]:
    """Everything that is wrong, the first few of each kind. Not ``complete``: the run broke off."""
    history = History.of(operations)
    problems: list[Problem] = []
    for kind, property_ in CHECKS.items():
        if kind in NEED_ALL and not complete:
            continue
        for found, detail in enumerate(property_(history)):
            if found == PROBLEMS_PER_CHECK_MAX:
                problems.append(Problem(kind, "… and more"))
                break
            problems.append(Problem(kind, detail))
    return problems
