"""Two brokers of one cluster that move leaders, lose answers and go away when a test says so.

They share one log per partition, as replicas that are always in sync would, and speak as brokers before transactions
v2 do. What a test decides is ``leader``, ``coordinator``, ``take_down``, and ``on_request``, which is asked before a
request is handled and may change all of that, and whose True loses the answer after the request took effect.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from headrace.batch import Batch, read_batches, stamp
from headrace.errors import ErrorCode
from headrace.wire.kafka.apis import API_VERSIONS, APIS
from headrace.wire.kafka.codec import read_message, read_uvarint
from headrace.wire.kafka.messages.coordinator import Coordinator, FindCoordinatorResponse
from headrace.wire.kafka.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.wire.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.kafka.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.wire.kafka.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from headrace.wire.kafka.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnResponse,
    InitProducerIdResponse,
)
from tests.unit.client.scripted import Listening, answer_frame, read_frame, versions

TOPIC = "t"
TOPIC_ID = b"0123456789abcdef"


class ScriptedCluster:
    """Nodes 1 and 2; topic "t" with one partition."""

    def __init__(self) -> None:
        self.leader = 1
        self.coordinator = 1
        self.on_request: Callable[[int, str], bool | None] = lambda node, request: None
        self.log: list[Batch] = []
        self.ended: list[bool] = []
        self.asked: list[tuple[int, str]] = []
        self._ports = dict.fromkeys((1, 2), 0)
        self._up: dict[int, Listening] = {}
        self._all: list[Listening] = []
        self._lock = threading.RLock()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def bring_up(self, node: int) -> None:
        listening = Listening(partial(self._serve, node), self._ports[node])
        self._ports[node] = listening.port
        self._up[node] = listening
        self._all.append(listening)

    def take_down(self, node: int) -> None:
        """Also from ``on_request``, on the thread that serves."""
        listening = self._up.pop(node, None)
        if listening is not None:
            listening.hang_up()

    def close(self) -> None:
        for listening in self._all:
            listening.close()

    @property
    def end(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    def append(self, batch: Batch) -> int:
        """The offset; a batch that its producer sent before keeps the one it got."""
        for known in self.log:
            if known.has_producer and (known.producer_id, known.base_sequence) == (
                batch.producer_id,
                batch.base_sequence,
            ):
                return known.base_offset
        stamp(batch, self.end, 0)
        self.log.append(batch)
        return batch.base_offset

    # ---- the sockets ------------------------------------------------------------------------------------------------

    def _serve(self, node: int, peer: socket.socket) -> None:
        while data := read_frame(peer):
            with self._lock:
                reply = self._handle(node, data)
            if reply is None:
                return
            peer.sendall(reply)

    def _handle(self, node: int, data: bytes) -> bytes | None:
        key, version, correlation_id, client_id_bytes = struct.unpack_from(">hhih", data)
        if key == API_VERSIONS:
            return versions(correlation_id, version)
        api = APIS[key]
        position = 10 + client_id_bytes
        if version >= api.flexible:
            _, position = read_uvarint(memoryview(data), position)
        request: Any = read_message(api.request, version, data, position)[0]
        self.asked.append((node, api.name))
        lost = self.on_request(node, api.name)
        if node not in self._up:
            return None
        answer = getattr(self, f"_on_{api.name}")(node, request)
        return None if lost else answer_frame(answer, version, correlation_id)

    # ---- the answers ------------------------------------------------------------------------------------------------

    def _leads(self, node: int) -> ErrorCode:
        return ErrorCode.NONE if node == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _coordinates(self, node: int) -> ErrorCode:
        return ErrorCode.NONE if node == self.coordinator else ErrorCode.NOT_COORDINATOR

    def _on_Metadata(self, node: int, request: Any) -> MetadataResponse:
        missing = ErrorCode.LEADER_NOT_AVAILABLE if self.leader < 0 else ErrorCode.NONE
        partition = MetadataResponsePartition(error_code=missing, partition_index=0, leader_id=self.leader)
        topic = MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=[partition])
        brokers = [
            MetadataResponseBroker(node_id=each, host="127.0.0.1", port=port) for each, port in self._ports.items()
        ]
        wanted = request.topics is None or bool(request.topics)
        return MetadataResponse(brokers=brokers, controller_id=1, topics=[topic] if wanted else [])

    def _on_Fetch(self, node: int, request: Any) -> FetchResponse:
        (asked,) = request.topics[0].partitions
        batches = [each for each in self.log if each.last_offset >= asked.fetch_offset]
        code = self._leads(node)
        data = PartitionData(error_code=code, high_watermark=self.end, last_stable_offset=self.end)
        data.records = b"" if code else b"".join(each.data for each in batches)[: max(asked.partition_max_bytes, 200)]
        return FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[data])])

    def _on_Produce(self, node: int, request: Any) -> ProduceResponse:
        (given,) = request.topic_data[0].partition_data
        answer = PartitionProduceResponse(index=0, error_code=self._leads(node), base_offset=-1)
        if not answer.error_code:
            answer.base_offset = self.append(read_batches(given.records, batch_bytes_max=1 << 20)[0])
        return ProduceResponse(
            responses=[TopicProduceResponse(name=TOPIC, topic_id=TOPIC_ID, partition_responses=[answer])]
        )

    def _on_ListOffsets(self, node: int, request: Any) -> ListOffsetsResponse:
        (asked,) = request.topics[0].partitions
        offset = self.end if asked.timestamp == -1 else 0
        found = ListOffsetsPartitionResponse(partition_index=0, error_code=self._leads(node), offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[found])])

    def _on_FindCoordinator(self, node: int, request: Any) -> FindCoordinatorResponse:
        found = Coordinator(
            key=request.coordinator_keys[0],
            node_id=self.coordinator,
            host="127.0.0.1",
            port=self._ports[self.coordinator],
        )
        return FindCoordinatorResponse(coordinators=[found])

    def _on_InitProducerId(self, node: int, request: Any) -> InitProducerIdResponse:
        code = ErrorCode.NONE if request.transactional_id is None else self._coordinates(node)
        return InitProducerIdResponse(error_code=code, producer_id=7, producer_epoch=0)

    def _on_AddPartitionsToTxn(self, node: int, request: Any) -> AddPartitionsToTxnResponse:
        result = AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=self._coordinates(node))
        topic = AddPartitionsToTxnTopicResult(name=TOPIC, results_by_partition=[result])
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])

    def _on_EndTxn(self, node: int, request: Any) -> EndTxnResponse:
        code = self._coordinates(node)
        if not code:
            self.ended.append(request.committed)
        return EndTxnResponse(error_code=code)


@contextmanager
def scripted_cluster() -> Iterator[ScriptedCluster]:
    with closing(ScriptedCluster()) as cluster:
        for node in (1, 2):
            cluster.bring_up(node)
        yield cluster
