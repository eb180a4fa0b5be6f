"""Reading raw batches from given offsets: what the consumer stands on, and what reads batches as they are.

Records are not decoded here. A broker may cut the last batch of an answer short; the cut piece is left out and asked
for again. A fetch at an offset inside a batch gives that whole batch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.batch import LENGTH_FIELD_END, PREFIX_BYTES, Batch, CorruptBatch, parse_header
from headrace.client.client import Client, TopicPartition, check
from headrace.errors import KafkaError
from headrace.wire.kafka.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from headrace.wire.kafka.schema import NO_ID

__all__ = ["FetchOptions", "Fetched", "fetch_batches", "split_batches"]

FETCH_VERSION_BY_NAME_MAX = 12

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How much a fetch returns, and whether it sees open transactions."""

    read_committed: bool = False
    bytes_min: int = 1
    bytes_max: int = 32 * 1024 * 1024
    partition_bytes_max: int = 4 * 1024 * 1024
    check_crc: bool = True


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What one partition answered. With an ``error`` there are no batches."""

    partition: TopicPartition
    batches: list[Batch] = field(default_factory=list)
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] = field(default_factory=list)  # (producer id, first offset), by first offset
    error: KafkaError | None = None


def fetch_batches(
    client: Client, positions: Mapping[TopicPartition, int], *, wait_ms: int, options: FetchOptions
) -> list[Fetched]:
    """Ask every leader once, all at the same time; each waits up to ``wait_ms`` for ``bytes_min``."""
    waiting = []
    for node, partitions in client.by_leader(positions).items():
        request, version_max = _request(client, partitions, positions, wait_ms, options)
        waiting.append(client.send(node, request, FetchResponse, version_max=version_max))
    timeout_s = (wait_ms + client.options.request_timeout_ms) / 1000
    found: list[Fetched] = []
    for connection, pending in waiting:
        answer = connection.wait(pending, timeout_s=timeout_s)
        check(answer.error_code, None, f"fetching from {connection.address}")
        for topic in answer.responses:
            found.extend(_read_topic(client, topic, positions, options))
    return found


def _request(
    client: Client,
    partitions: list[TopicPartition],
    positions: Mapping[TopicPartition, int],
    wait_ms: int,
    options: FetchOptions,
) -> tuple[FetchRequest, int | None]:
    by_topic: dict[str, list[FetchPartition]] = {}
    for each in partitions:
        asked = FetchPartition(
            partition=each.partition, fetch_offset=positions[each], partition_max_bytes=options.partition_bytes_max
        )
        by_topic.setdefault(each.topic, []).append(asked)
    topics = [
        FetchTopic(topic=name, topic_id=client.topic_id(name), partitions=asked) for name, asked in by_topic.items()
    ]
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=options.bytes_min,
        max_bytes=options.bytes_max,
        isolation_level=1 if options.read_committed else 0,
        topics=topics,
    )
    by_name = any(topic.topic_id == NO_ID for topic in topics)
    return request, FETCH_VERSION_BY_NAME_MAX if by_name else None


def _read_topic(
    client: Client, topic: FetchableTopicResponse, positions: Mapping[TopicPartition, int], options: FetchOptions
) -> list[Fetched]:
    name = topic.topic or client.topic_name(topic.topic_id)
    return [_read_partition(TopicPartition(name, each.partition_index), each, options) for each in topic.partitions]


def _read_partition(partition: TopicPartition, data: PartitionData, options: FetchOptions) -> Fetched:
    found = Fetched(
        partition=partition,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
    )
    try:
        check(data.error_code, None, f"fetching {partition}")
        found.batches = split_batches(data.records or b"", check_crc=options.check_crc)
    except CorruptBatch as error:
        found.error = CorruptBatch(f"fetching {partition}: {error.message}")
    except KafkaError as error:
        found.error = error
    if data.aborted_transactions:
        aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions]
        found.aborted = sorted(aborted, key=lambda each: each[1])
    return found


def split_batches(data: bytes | bytearray | memoryview, *, check_crc: bool = True) -> list[Batch]:
    """The whole batches at the front of ``data``; a last one that is cut short is left out. It ends before bytes that
    are no batch, and raises if they come first: the next fetch begins there."""
    view = memoryview(data)
    position = 0
    batches: list[Batch] = []
    while len(view) - position >= LENGTH_FIELD_END:
        end = position + LENGTH_FIELD_END + _LENGTH.unpack_from(view, position + 8)[0]
        if end > len(view):
            break
        header = parse_header(view, position)
        if header is None and not batches:
            raise CorruptBatch("the bytes that arrived are not a record batch of format 2")
        if header is None:
            break
        batch = Batch(header, bytes(view[position + PREFIX_BYTES : end]))
        if check_crc and not batch.checksum_holds():
            if batches:
                break
            raise CorruptBatch(f"the batch at offset {batch.base_offset} arrived with a wrong checksum")
        batches.append(batch)
        position = end
    return batches
