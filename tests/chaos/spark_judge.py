"""What the pipelines must have written, recomputed from their input in one go, and what they have written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headrace.client import Client, Consumer, ConsumerOptions, FetchOptions, TopicPartition, end_offsets, start_offsets
from headrace.record import Record
from headrace.spark.topic_sink.checkpoint import read_checkpoint
from tests.chaos.spark_job import LATENESS_S, SOURCE, WINDOW_S
from tests.chaos.spark_stored import matched, searched

__all__ = ["CLOSING_S", "Verdict", "committed", "compare", "has_read_all", "out_of_order"]

CLOSING_S = 10_000_000_000
"""The event time of the last row: behind every window, so that all of them are complete. Its own never is."""
SHOWN_MAX = 5

Row = tuple[int, Record]
"""With its partition."""


class Verdict:
    """What is missing, and what is there that should not be: of the second, no waiting makes it right."""

    def __init__(self, missing: Mapping[str, int], wrong: Mapping[str, int]) -> None:
        self.missing = dict(missing)
        self.wrong = dict(wrong)

    @property
    def complete(self) -> bool:
        return not self.missing and not self.wrong

    def __str__(self) -> str:
        parts = []
        for what, rows in (("missing", self.missing), ("doubled or wrong", self.wrong)):
            if rows:
                shown = ", ".join(f"{row} (×{count})" for row, count in list(rows.items())[:SHOWN_MAX])
                parts.append(f"{sum(rows.values())} rows {what}, such as {shown}")
        return "; ".join(parts) or "complete"


def committed(client: Client, topic: str) -> list[Row]:
    """Every committed record with its partition, in the order of each partition."""
    places = [TopicPartition(topic, each.index) for each in client.topic(topic).partitions]
    consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(read_committed=True), wait_ms_max=50))
    consumer.assign(start_offsets(client, places))
    found: list[Row] = []
    while not consumer.at_end():
        for place, records in consumer.poll(100).items():
            found += [(place.partition, each) for each in records]
    return found


def has_read_all(client: Client, topic: str, checkpoint: Path) -> bool:
    """Whether a query has finished a batch that ends where its topic ends."""
    places = [TopicPartition(topic, each.index) for each in client.topic(topic).partitions]
    ends = {str(place.partition): end for place, end in end_offsets(client, places).items()}
    known = read_checkpoint(str(checkpoint)) if (checkpoint / "metadata").exists() else None
    if known is None or known.ends is None:
        return False
    read = {name: each for line in known.ends.splitlines() for name, each in json.loads(line).items()}
    if read[topic] != ends:
        return False
    return (checkpoint / "commits" / str(known.batch_id)).exists()


def compare(client: Client, name: str) -> Verdict:
    """One pipeline's output with what its input, read at once, comes to."""
    rows = committed(client, SOURCE)
    found = [text(record.value) for _, record in committed(client, name)]
    if name == "updates":
        return judge_updates(found, rows)
    wanted = Counter(WANTED[name](rows))
    there = Counter(found)
    return Verdict(wanted - there, there - wanted)


def text(value: bytes | None) -> str:
    return (value or b"").decode()


def origins(rows: Iterable[Row]) -> list[str]:
    return [f"{partition}:{record.offset}:{text(record.value)}" for partition, record in rows]


def windows(rows: Iterable[Row]) -> list[str]:
    """Those that are closed when the watermark has passed the last row."""
    numbers = [(text(record.key), int(text(record.value))) for _, record in rows]
    watermark = max((number for _, number in numbers), default=0) - LATENESS_S
    counts: Counter[tuple[int, str]] = Counter()
    totals: Counter[tuple[int, str]] = Counter()
    for key, number in numbers:
        start = number - number % WINDOW_S
        counts[start, key] += 1
        totals[start, key] += number
    closed = [each for each in counts if each[0] + WINDOW_S <= watermark]
    return [f"{start}:{key}:{counts[start, key]}:{totals[start, key]}" for start, key in closed]


def by_key(rows: Iterable[Row]) -> dict[str, list[int]]:
    """The numbers of each key; the closing row is never behind the watermark."""
    found: dict[str, list[int]] = {}
    for _, record in rows:
        if int(text(record.value)) < CLOSING_S:
            found.setdefault(text(record.key), []).append(int(text(record.value)))
    return found


WANTED: dict[str, Callable[[list[Row]], list[str]]] = {
    "transform": origins,
    "windows": windows,
    "patterns": lambda rows: matched(by_key(rows)),
    "searches": lambda rows: searched(int(text(record.value)) for _, record in rows),
}


def out_of_order(rows: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Of rows with numbers that grow for each key, those that come after a larger number, or a second time."""
    last: dict[str, int] = {}
    found = []
    for key, number in rows:
        if number <= last.get(key, -1):
            found.append((key, number))
        last[key] = max(number, last.get(key, -1))
    return found


def judge_updates(found: Iterable[str], rows: Iterable[Row]) -> Verdict:
    """How input is cut into batches decides which updates there are, but a key's counts only ever grow."""
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for _, record in rows:
        counts[text(record.key)] += 1
        totals[text(record.key)] += int(text(record.value))
    last: dict[str, int] = {}
    wrong: Counter[str] = Counter()
    for update in found:
        key, count, _ = update.split(":")
        if int(count) <= last.get(key, 0) or int(count) > counts[key]:
            wrong[update] += 1
        last[key] = int(count)
    seen = set(found)
    wanted = [f"{key}:{counts[key]}:{totals[key]}" for key in counts]
    return Verdict(Counter(each for each in wanted if each not in seen), wrong)
