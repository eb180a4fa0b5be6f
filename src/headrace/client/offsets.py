"""Where partitions begin and end, and where they stood at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.client.client import Client, TopicPartition, check
from headrace.wire.kafka.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

__all__ = ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "OffsetAt", "end_offsets", "list_offsets", "start_offsets"]

LATEST: Final = -1
"""Instead of a timestamp: the end, which is the offset that the next record will get."""
EARLIEST: Final = -2
"""Instead of a timestamp: the first offset that is still there."""
MAX_TIMESTAMP: Final = -3
"""Instead of a timestamp: the record with the greatest timestamp."""
PARTITIONS_PER_REQUEST = 4_000
"""Brokers bound their requests; a topic of 50,000 partitions is asked for in several."""


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """``offset`` is -1 when no record is at or after the time asked for."""

    offset: int
    timestamp: int = -1


def list_offsets(
    client: Client, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, OffsetAt]:
    """For each partition the first offset at or after a timestamp (ms), or one of EARLIEST, LATEST, MAX_TIMESTAMP."""
    return client.retrying(lambda: _ask(client, wanted, read_committed))


def start_offsets(client: Client, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The first offset that each partition still has."""
    found = list_offsets(client, dict.fromkeys(partitions, EARLIEST))
    return {partition: at.offset for partition, at in found.items()}


def end_offsets(
    client: Client, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """The offset that the next record of each partition will get; with ``read_committed``, the last stable offset."""
    found = list_offsets(client, dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return {partition: at.offset for partition, at in found.items()}


def _ask(client: Client, wanted: Mapping[TopicPartition, int], read_committed: bool) -> dict[TopicPartition, OffsetAt]:
    waiting = [
        client.send(node, _request(client, part, wanted, read_committed), ListOffsetsResponse)
        for node, partitions in client.by_leader(wanted).items()
        for part in _parted(partitions, PARTITIONS_PER_REQUEST)
    ]
    found = {}
    for connection, pending in waiting:
        for topic in connection.wait(pending).topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                check(each.error_code, None, f"asking for offsets of {partition}")
                found[partition] = OffsetAt(each.offset, each.timestamp)
    return found


def _parted(partitions: list[TopicPartition], size: int) -> Iterator[list[TopicPartition]]:
    for start in range(0, len(partitions), size):
        yield partitions[start : start + size]


def _request(
    client: Client, partitions: list[TopicPartition], wanted: Mapping[TopicPartition, int], read_committed: bool
) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for each in partitions:
        asked = ListOffsetsPartition(partition_index=each.partition, timestamp=wanted[each])
        by_topic.setdefault(each.topic, []).append(asked)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if read_committed else 0,
        topics=[ListOffsetsTopic(name=name, partitions=asked) for name, asked in by_topic.items()],
        timeout_ms=client.options.request_timeout_ms,
    )
