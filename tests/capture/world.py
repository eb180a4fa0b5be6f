"""What tests of capture share: running one to the end of what is there, reading its topics and folding them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.capture import Capture, CaptureOptions
from headrace.capture.state import read_state
from headrace.client import Client, Consumer, ConsumerOptions, FetchOptions, TopicPartition, end_offsets, start_offsets
from headrace.record import Record
from headrace.vocabulary import UNAVAILABLE


def catch_up(
    bootstrap: str, options: CaptureOptions, say: Callable[[str], None] = lambda line: None, **how: Any
) -> Capture:
    """Run a capture until the log has all that the database has committed by now."""
    capture = Capture(bootstrap, options, say=say)
    capture.run(threading.Event(), until_current=True, **how)
    return capture


def all_read(bootstrap: str, name: str) -> bool:
    """Whether a capture has read every table, and the log says so: the next capture reads none of them again."""
    with Client(bootstrap) as client:
        progress = read_state(client, name).get("snapshots", {})
    return bool(progress) and all(each["done"] for each in progress.values())


def committed(bootstrap: str, topic: str) -> list[Record]:
    """Every committed record of a topic, partition by partition; none when there is no such topic."""
    return list(_committed(bootstrap, topic))


def _committed(bootstrap: str, topic: str) -> Iterator[Record]:
    with Client(bootstrap) as client:
        found = [each for each in client.topics() if each.name == topic]
        places = [TopicPartition(topic, part.index) for each in found for part in each.partitions]
        consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(read_committed=True)))
        consumer.assign(start_offsets(client, places))
        ends = end_offsets(client, places)
        while any(consumer.positions[each] < ends[each] for each in places):
            polled = consumer.poll(timeout_ms=1000)
            for part in polled.values():
                yield from part
            if not polled and consumer.at_end():
                break


def topics(bootstrap: str, prefix: str) -> list[str]:
    with Client(bootstrap) as client:
        return [each.name for each in client.topics() if each.name.startswith(prefix)]


@dataclass(frozen=True, slots=True)
class Event:
    topic: str
    key: Any
    value: Any
    headers: dict[str, bytes | None]

    @property
    def op(self) -> str:
        return "tombstone" if self.value is None else str(self.value["op"])


def events(bootstrap: str, topic: str) -> list[Event]:
    return [
        Event(topic, _parsed(each.key), _parsed(each.value), dict(each.headers))
        for each in _committed(bootstrap, topic)
    ]


def slim_events(bootstrap: str, topic: str) -> list[Event]:
    """``events`` of very many: equal texts are one, large ones too, and of the source only ``snapshot`` is kept."""
    shared: dict[str, str] = {}

    def slim(found: dict[str, Any]) -> dict[str, Any]:
        if "connector" in found:
            found = {"snapshot": found.get("snapshot", "false")}
        return {name: shared.setdefault(each, each) if isinstance(each, str) else each for name, each in found.items()}

    def parsed(text: bytes | None) -> Any:
        return None if text is None else json.loads(text, object_hook=slim)

    return [
        Event(topic, parsed(each.key), parsed(each.value), dict(each.headers)) for each in _committed(bootstrap, topic)
    ]


def _parsed(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def fold(changes: list[Event]) -> dict[str, Any]:
    """The table that a consumer of its topic would build: the newest row of every key."""
    rows: dict[str, Any] = {}
    for each in changes:
        key = json.dumps(each.key)
        if each.op == "t":
            rows.clear()
        elif each.op == "d":
            rows.pop(key, None)
        elif each.op == "tombstone":
            assert key not in rows, f"a tombstone for {key} without its deletion"
        else:
            before = rows.get(key, {})
            rows[key] = {
                name: before.get(name) if value == UNAVAILABLE else value for name, value in each.value["after"].items()
            }
    return rows


def fold_bag(changes: list[Event]) -> list[str]:
    """The rows of a table without a key, as a sorted bag."""
    bag: list[str] = []
    for each in changes:
        if each.op == "t":
            bag.clear()
        if each.op in ("d", "u"):
            bag.remove(json.dumps(each.value["before"]))
        if each.op in ("c", "r", "u"):
            bag.append(json.dumps(each.value["after"]))
    return sorted(bag)


def check_numbering(changes: list[Event]) -> None:
    """Of every transaction all events are there, once: (commit position, index) has no gap and no duplicate."""
    seen: dict[str, list[int]] = {}
    for each in changes:
        if each.value is not None:
            transaction = each.value["transaction"]
            seen.setdefault(transaction["id"], []).append(transaction["total_order"])
    wrong = {name: orders for name, orders in seen.items() if sorted(orders) != [*range(1, len(orders) + 1)]}
    assert wrong == {}


def commit_position(transaction: str) -> int:
    """Of PostgreSQL's transactions."""
    return int(transaction.partition(":")[2])


def check_order(changes: list[Event], place: Callable[[str], int] = commit_position) -> None:
    """Events of one table come in the order of commits; ``place`` is where a transaction's id says that it stands."""
    told = [each.value["transaction"] for each in changes if each.value is not None]
    places = [(place(each["id"]), each["total_order"]) for each in told]
    assert places == sorted(places)
