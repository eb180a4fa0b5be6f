"""Kafka messages to Python objects and back, beside kafka-python, which also compiles its codecs from schemas.

Both libraries get the same bytes and give the same bytes, which is checked before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kafka.protocol.consumer import fetch as peer_fetch
from kafka.protocol.metadata import metadata as peer_metadata
from kafka.protocol.producer import produce as peer_produce

from benchmarks.figures import Figure
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from headrace.wire.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

__all__ = ["run"]

BATCH = bytes(1000)


def messages() -> list[tuple[str, object, int, Any]]:
    """(what, message, version, kafka-python's class): what a busy broker reads and writes all day."""
    return [
        ("Produce request, 1 partition", produce_request(1), 11, peer_produce.ProduceRequest),
        ("Produce request, 16 partitions", produce_request(16), 11, peer_produce.ProduceRequest),
        ("Produce response, 16 partitions", produce_response(16), 11, peer_produce.ProduceResponse),
        ("Fetch request, 16 partitions", fetch_request(16), 12, peer_fetch.FetchRequest),
        ("Fetch response, 16 partitions", fetch_response(16), 12, peer_fetch.FetchResponse),
        ("Metadata response, 1,000 partitions", metadata_response(1000), 12, peer_metadata.MetadataResponse),
    ]


def produce_request(partitions: int) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=BATCH) for index in range(partitions)]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="orders", partition_data=data)])


def produce_response(partitions: int) -> ProduceResponse:
    answers = [
        PartitionProduceResponse(index=index, base_offset=index, log_start_offset=0) for index in range(partitions)
    ]
    return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=answers)])


def fetch_request(partitions: int) -> FetchRequest:
    asked = [
        FetchPartition(partition=index, fetch_offset=index * 1000, partition_max_bytes=1 << 20)
        for index in range(partitions)
    ]
    return FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[FetchTopic(topic="orders", partitions=asked)]
    )


def fetch_response(partitions: int) -> FetchResponse:
    answers = [
        PartitionData(
            partition_index=index,
            high_watermark=5000,
            last_stable_offset=5000,
            log_start_offset=0,
            aborted_transactions=None,
            records=BATCH,
        )
        for index in range(partitions)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=answers)])


def metadata_response(partitions: int) -> MetadataResponse:
    described = [
        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])
        for index in range(partitions)
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092)],
        cluster_id="bench",
        controller_id=1,
        topics=[MetadataResponseTopic(name="orders", partitions=described)],
    )


def run(*, quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    for what, message, version, peer in messages():
        figures += measure(what, message, version, peer, 1 if quick else 5)
    return figures


def measure(what: str, message: Any, version: int, peer: Any, rounds: int) -> list[Figure]:
    data = b"".join(bytes(chunk) for chunk in write_message(message, version))
    theirs = peer.decode(data, version=version)
    theirs._header = None  # what its constructor does and its decoder leaves out, and its encoder asks for
    if bytes(theirs.encode(version=version)) != data:
        raise AssertionError(f"{what}: the two libraries disagree")
    view = memoryview(data)
    cls = type(message)
    pairs = {
        "decode": (lambda: read_message(cls, version, view), lambda: peer.decode(view, version=version)),
        "encode": (lambda: write_message(message, version), lambda: theirs.encode(version=version)),
    }
    return [
        Figure(
            hop="codec",
            case=f"{verb} {what}",
            unit="messages/s",
            ours=[rate(ours) for _ in range(rounds)],
            peers=[rate(peers) for _ in range(rounds)],
            peer="kafka-python",
            goal=1.0,
        )
        for verb, (ours, peers) in pairs.items()
    ]


def rate(call: Callable[[], object], seconds: float = 0.08) -> float:
    """Calls per CPU second of this thread, so that other processes do not count."""
    call()
    calls = 0
    began = time.thread_time()
    while (spent := time.thread_time() - began) < seconds:
        for _ in range(20):
            call()
        calls += 20
    return calls / spent
