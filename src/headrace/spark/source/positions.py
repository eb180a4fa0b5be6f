"""Positions in topics: as JSON for Spark's checkpoint, where a query starts and ends, how a range is cut into tasks.

An offset of the source is ``{"orders": {"0": 17, "1": 23}, "orders@6a0f…": {}}``: per partition the next offset to
read, as Spark's own Kafka source has it, and which topic of that name is meant: one that was deleted and created again
has other records at the same offsets. The id stands in a name that no topic can have, with nothing below it, so that a
reader that does not know about ids can still read the positions.

Everything that decides which rows a task reads is computed from two such offsets and the options, and from nothing
else: a micro-batch that is run again after a crash has the same tasks with the same rows.

A partition that appears while a query runs enters an offset at its beginning, with no rows; the next micro-batch reads
it. So even its first range is written in the checkpoint, and does not depend on when it is planned.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client import EARLIEST, LATEST, Client, TopicPartition, end_offsets, list_offsets, start_offsets
from headrace.errors import ErrorCode, KafkaError, UsageError
from headrace.spark.source.options import Selection, SourceOptions
from headrace.wire.kafka.schema import NO_ID

__all__ = [
    "OffsetRange",
    "Positions",
    "admit",
    "ending_positions",
    "find_partitions",
    "from_json",
    "ids_in",
    "split",
    "starting_positions",
    "to_json",
]

Positions = dict[TopicPartition, int]
JsonPositions = dict[str, dict[str, int]]

ID_MARK = "@"

WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The part of a partition that one task reads: ``start <= offset < end``."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] from {self.start} to {self.end}"


def to_json(positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes] | None = None) -> JsonPositions:
    """Sorted, so that equal positions have equal text: Spark compares offsets as text."""
    found: JsonPositions = {}
    for place in sorted(positions):
        found.setdefault(place.topic, {})[str(place.partition)] = positions[place]
    for topic in list(found):
        topic_id = (ids or {}).get(topic, NO_ID)
        if topic_id != NO_ID:
            found[f"{topic}{ID_MARK}{topic_id.hex()}"] = {}
    return found


def from_json(offset: Mapping[str, Any]) -> Positions:
    return {TopicPartition(topic, int(index)): int(at) for topic, each in offset.items() for index, at in each.items()}


def ids_in(offset: Mapping[str, Any]) -> dict[str, bytes]:
    """The ids of the topics, where they are known: neither old checkpoints nor old brokers tell."""
    marked = [name.rpartition(ID_MARK) for name in offset if ID_MARK in name]
    return {topic: bytes.fromhex(topic_id) for topic, _, topic_id in marked}


# ---- which partitions ----------------------------------------------------------------------------------------------


def find_partitions(client: Client, selection: Selection) -> list[TopicPartition]:
    """The partitions that exist now, sorted, with one request. The caller reports missing partitions."""
    if selection.pattern:
        wanted = re.compile(selection.pattern)
        topics = [topic for topic in client.topics() if not topic.internal and wanted.fullmatch(topic.name)]
        return sorted(TopicPartition(topic.name, each.index) for topic in topics for each in topic.partitions)
    names = selection.topics or tuple(sorted({topic for topic, _ in selection.partitions}))
    answer = client.retrying(lambda: client.refresh(names))
    found = {
        TopicPartition(topic.name, each.partition_index)
        for topic in answer.topics
        if topic.name is not None and topic.error_code == ErrorCode.NONE
        for each in topic.partitions
    }
    if selection.partitions:
        found &= {TopicPartition(*each) for each in selection.partitions}
    return sorted(found)


def _find_all(client: Client, selection: Selection) -> list[TopicPartition]:
    """As above, but everything that was named must be there, if only after a moment."""

    def attempt() -> list[TopicPartition]:
        found = find_partitions(client, selection)
        _require_all(selection, found)
        return found

    return client.retrying(attempt)


def _require_all(selection: Selection, found: Iterable[TopicPartition]) -> None:
    topics = {place.topic for place in found}
    missing = [name for name in selection.topics if name not in topics]
    missing += [f"{topic}[{index}]" for topic, index in selection.partitions if (topic, index) not in set(found)]
    if missing:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {', '.join(missing)} to read: create it first"
        )


# ---- where to start and end ----------------------------------------------------------------------------------------


def starting_positions(client: Client, options: SourceOptions) -> Positions:
    """Where a query without a checkpoint begins, in every partition that exists now."""
    places = _find_all(client, options.selection)
    return _resolve(client, options, places, "starting", "earliest")


def ending_positions(client: Client, options: SourceOptions, start: Positions) -> Positions:
    """Where a batch read ends."""
    found = _resolve(client, options, sorted(start), "ending", "latest")
    wrong = [place for place in sorted(start) if found[place] < start[place]]
    if wrong:
        place = wrong[0]
        raise UsageError(f"{place} would be read from {start[place]} to {found[place]}, which is backwards")
    return found


def _resolve(
    client: Client, options: SourceOptions, places: list[TopicPartition], which: str, default: str
) -> Positions:
    """Spark's order of precedence: one time for all, then times per partition, then offsets."""
    one_time = options[f"{which}Timestamp"]
    times_text = options[f"{which}OffsetsByTimestamp"]
    if one_time is not None:
        return _by_time(client, options, dict.fromkeys(places, one_time), which)
    if times_text is not None:
        times = from_json(json.loads(times_text))
        return _by_time(client, options, _complete(times, places, f"{which}OffsetsByTimestamp"), which)
    text = options[f"{which}Offsets"] or default
    word = WORDS.get(text.lower())
    if word is not None:
        wanted = dict.fromkeys(places, word)
    else:
        wanted = _complete(from_json(json.loads(text)), places, f"{which}Offsets")
    return _resolve_words(client, wanted, options.read_committed)


def _complete(given: Positions, places: list[TopicPartition], option: str) -> Positions:
    """Each partition must be named: a forgotten one would silently begin somewhere."""
    missing = [str(place) for place in places if place not in given]
    surplus = [str(place) for place in sorted(given) if place not in set(places)]
    if missing or surplus:
        told = f"it lacks {', '.join(missing)}" if missing else f"it names {', '.join(surplus)}, which is not read"
        raise UsageError(f"{option} must name exactly the partitions that are read; {told}")
    return given


def _resolve_words(client: Client, wanted: Positions, read_committed: bool) -> Positions:
    """Replace -2 and -1 by the offsets they stand for, in one question each."""
    earliest = [place for place, at in wanted.items() if at == EARLIEST]
    latest = [place for place, at in wanted.items() if at == LATEST]
    found = dict(wanted)
    if earliest:
        found.update(start_offsets(client, earliest))
    if latest:
        found.update(end_offsets(client, latest, read_committed=read_committed))
    wrong = [f"{place}={at}" for place, at in found.items() if at < 0]
    if wrong:
        raise UsageError(f"offsets may be -2 (earliest), -1 (latest) or from 0 on, not {', '.join(wrong)}")
    return found


def _by_time(client: Client, options: SourceOptions, times: Positions, which: str) -> Positions:
    """The first offsets at or after the times; an end by time that nothing has reached yet is the latest offset."""
    found = list_offsets(client, times)
    positions = {place: at.offset for place, at in found.items() if at.offset >= 0}
    young = [place for place in times if place not in positions]
    if young and which == "starting" and options["startingOffsetsByTimestampStrategy"] == "error":
        raise UsageError(
            f"no record of {young[0]} is at or after {times[young[0]]} ms",
            "startingOffsetsByTimestampStrategy=latest starts at the end then",
        )
    if young:
        positions.update(end_offsets(client, young, read_committed=options.read_committed))
    return positions


# ---- how much, and in which pieces ---------------------------------------------------------------------------------


def admit(start: Positions, end: Positions, offsets_max: int) -> Positions:
    """An end with about ``offsets_max`` offsets after ``start``, each partition in proportion to what it has.

    Every partition that has something gets at least one offset, so none starves, however small its share.
    """
    sizes = {place: max(0, at - start.get(place, at)) for place, at in end.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(end)
    admitted = {}
    for place, at in end.items():
        share = offsets_max * sizes[place] / total
        count = math.ceil(share) if share < 1 else math.floor(share)
        admitted[place] = min(at, start[place] + count) if sizes[place] else at
    return admitted


def split(
    start: Positions, end: Positions, *, pieces_min: int | None = None, records_max: int | None = None
) -> list[OffsetRange]:
    """The tasks of a micro-batch: a pure function of its arguments, in the order of topic, partition and offset.

    One task per partition, unless more are asked for: then long ranges are cut first, into equal pieces.
    """
    ranges = [
        OffsetRange(place.topic, place.partition, start[place], end[place])
        for place in sorted(end)
        if place in start and end[place] > start[place]
    ]
    if records_max is not None:
        ranges = [piece for each in ranges for piece in _cut(each, math.ceil(len(each) / records_max))]
    if pieces_min is not None and len(ranges) < pieces_min:
        total = sum(map(len, ranges))
        ranges = [piece for each in ranges for piece in _cut(each, max(1, round(len(each) / total * pieces_min)))]
    return ranges


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = max(1, min(count, len(whole)))
    bounds = [whole.start + len(whole) * index // count for index in range(count + 1)]
    return [OffsetRange(whole.topic, whole.partition, low, high) for low, high in itertools.pairwise(bounds)]
