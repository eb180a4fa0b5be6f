"""A client that does nothing but send and receive: frames are made before the clock starts.

librdkafka spends a microsecond on each message and so meets its own limit before the broker's. This one meets the
broker's: answers are looked into no further than it must.
The same protocol of lines on stdin and stdout as ``benchmarks.client``.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from typing import Any

from benchmarks.client import result, wait_for_go
from headrace.batch import build_batch
from headrace.record import Record
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PRODUCE, PRODUCE_VERSION = 0, 9
FETCH, FETCH_VERSION = 1, 12
IN_FLIGHT = 5
RECEIVE_BYTES = 1 << 20
FETCH_BYTES = 8 << 20


def frame(api_key: int, version: int, body: object) -> bytes:
    payload = b"".join(map(bytes, write_message(body, version)))
    head = struct.pack(">hhih", api_key, version, 0, -1) + b"\x00"
    return struct.pack(">i", len(head) + len(payload)) + head + payload


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket, buffer: bytearray) -> memoryview:
    """One answer, behind its header (correlation id and tags), in the caller's buffer."""
    view = memoryview(buffer)
    read_exactly(connection, view[:4])
    size = struct.unpack_from(">i", buffer)[0]
    if size > len(buffer):
        raise ValueError(f"an answer of {size} bytes where {len(buffer)} were asked for")
    read_exactly(connection, view[:size])
    return view[5:size]


def read_exactly(connection: socket.socket, view: memoryview) -> None:
    while view:
        got = connection.recv_into(view, min(len(view), RECEIVE_BYTES))
        if not got:
            raise ConnectionError("the broker closed the connection")
        view = view[got:]


def produce_frame(topic: str, partition: int, records: int, size: int) -> bytes:
    now = int(time.time() * 1000)
    batch = build_batch([Record(key=None, value=bytes(size), timestamp=now) for _ in range(records)])
    data = [PartitionProduceData(index=partition, records=batch.data)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return frame(PRODUCE, PRODUCE_VERSION, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics))


def produce(task: dict[str, Any]) -> dict[str, Any]:
    """``requests`` batches of ``records`` messages, round the partitions, up to five on their way at a time."""
    frames = [produce_frame(task["topic"], index, task["records"], task["size"]) for index in range(task["partitions"])]
    connection = connect(task["bootstrap"])
    buffer = bytearray(1 << 16)
    failed = 0
    began, cpu_before = wait_for_go()
    for number in range(task["requests"] + IN_FLIGHT):
        if number >= IN_FLIGHT:
            failed += refused(receive(connection, buffer)) * task["records"]
        if number < task["requests"]:
            connection.sendall(frames[number % len(frames)])
    sent = len(frames[0]) * task["requests"]
    return result(began, cpu_before, failed=failed, error="the broker refused batches", bytes=sent)


def refused(answer: memoryview) -> int:
    response, _ = read_message(ProduceResponse, PRODUCE_VERSION, answer)
    return sum(each.error_code != 0 for topic in response.responses for each in topic.partition_responses)


def fetch(task: dict[str, Any]) -> dict[str, Any]:
    """Read partition 0 from ``offset`` on until ``count`` messages were passed, one fetch at a time."""
    connection = connect(task["bootstrap"])
    buffer = bytearray(FETCH_BYTES + (1 << 20))
    offset = task.get("offset", 0)
    end = offset + task["count"]
    received = 0
    began, cpu_before = wait_for_go()
    while offset < end:
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        topics = [FetchTopic(topic=task["topic"], partitions=[asked])]
        body = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
        connection.sendall(frame(FETCH, FETCH_VERSION, body))
        answer = receive(connection, buffer)
        received += len(answer)
        offset = next_offset(answer, offset)
    return result(began, cpu_before, failed=0, error="", bytes=received)


def next_offset(answer: memoryview, offset: int) -> int:
    response, _ = read_message(FetchResponse, FETCH_VERSION, answer)
    records = memoryview(response.responses[0].partitions[0].records)
    position = 0
    while position + 27 <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        if position + 12 + length > len(records):
            break
        offset = base + struct.unpack_from(">i", records, position + 23)[0] + 1
        position += 12 + length
    return offset


WORK = {"produce": produce, "fetch": fetch}


def main() -> None:
    task = json.loads(sys.argv[1])
    print(json.dumps(WORK[task["work"]](task)), flush=True)


if __name__ == "__main__":
    main()
