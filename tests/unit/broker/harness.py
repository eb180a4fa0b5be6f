"""A whole broker without sockets: real logs in a folder, a real flusher, requests as objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from headrace.batch import Batch, build_batch, read_batches
from headrace.broker.access import Authorizer
from headrace.broker.broker import Broker, settled
from headrace.broker.partition import Partition
from headrace.broker.request import Peer, Request
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.log.disk import OsDisk
from headrace.log.flush import Flusher
from headrace.log.store import LogStore
from headrace.log.sync_guard import SyncGuard
from headrace.ports import Clock
from headrace.record import Codec, Record, decode_records
from headrace.wire.kafka.apis import APIS
from headrace.wire.kafka.codec import read_message, write_message
from headrace.wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from headrace.wire.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from headrace.wire.kafka.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.kafka.schema import fields_of
from tests.waiting import PATIENCE_S

T = TypeVar("T")

KEYS = {api.request: api.key for api in APIS.values()}


class Harness:
    """One running broker, and short words for what tests ask of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peer = Peer(id=1)

    async def ask(self, body: Any, version: int | None = None, peer: Peer | None = None) -> Any:
        answer = await asyncio.wait_for(settled(self.start(body, version, peer)), PATIENCE_S)
        return decoded(answer, APIS[KEYS[type(body)]].version_max if version is None else version)

    def start(self, body: Any, version: int | None = None, peer: Peer | None = None) -> Any:
        key = KEYS[type(body)]
        chosen = APIS[key].version_max if version is None else version
        return self.broker.handle(Request(api_key=key, version=chosen, body=body, peer=peer or self.peer))

    def partition(self, topic: str, index: int) -> Partition:
        found = self.broker.topics.get(topic)
        partition = found.partition(index) if found is not None else None
        assert partition is not None
        return partition

    async def create(self, name: str, partitions: int = 1, **config: str) -> None:
        configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        answer = await self.ask(CreateTopicsRequest(topics=[topic]))
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message

    async def produce(
        self,
        topic: str,
        records: Any,
        partition: int = 0,
        *,
        acks: int = -1,
        peer: Peer | None = None,
        transactional_id: str | None = None,
        version: int = 9,
    ) -> PartitionProduceResponse:
        """``records`` are values, ``Record``s, a ``Batch``, or raw bytes."""
        data = PartitionProduceData(index=partition, records=payload(records))
        topics = [TopicProduceData(name=topic, partition_data=[data])]
        body = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics, transactional_id=transactional_id)
        answer = await self.ask(body, version, peer)
        found: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        return found

    def fetch_body(self, topic: str, offset: int, partition: int = 0, **fields: Any) -> FetchRequest:
        bytes_max = fields.pop("partition_max_bytes", 1 << 20)
        ask = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=bytes_max)
        return FetchRequest(
            topics=[FetchTopic(topic=topic, partitions=[ask])],
            **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24, **fields},
        )

    async def fetch(self, topic: str, offset: int, partition: int = 0, **fields: Any) -> PartitionData:
        answer: FetchResponse = await self.ask(self.fetch_body(topic, offset, partition, **fields), 12)
        return answer.responses[0].partitions[0]

    async def values(self, topic: str, offset: int = 0, partition: int = 0, **fields: Any) -> list[bytes | None]:
        return [record.value for record in fetched(await self.fetch(topic, offset, partition, **fields))]


def decoded(answer: Any, version: int) -> Any:
    """An answer with structs in the place of elements that its handler has encoded."""
    if not is_dataclass(answer) or not _has_encoded(answer):
        return answer
    return read_message(type(answer), version, b"".join(write_message(answer, version)))[0]


def _has_encoded(message: Any) -> bool:
    for name, wire, _ in fields_of(type(message)):
        value = getattr(message, name)
        of_structs = wire.item is not None and wire.item.kind == "struct" and value
        if of_structs and (type(value[0]) is bytes or any(_has_encoded(each) for each in value)):
            return True
    return False


def payload(records: Any) -> bytes:
    if isinstance(records, bytes):
        return records
    if isinstance(records, Batch):
        return records.data
    made = [each if isinstance(each, Record) else Record(key=None, value=each, timestamp=1_000) for each in records]
    return build_batch(made).data


def fetched(answer: PartitionData) -> list[Record]:
    """The records of an answer, control records left out as a client would."""
    chunks = answer.records if isinstance(answer.records, list) else [answer.records]
    data = b"".join(chunk.read() if hasattr(chunk, "read") else chunk for chunk in chunks)
    if not data:
        return []
    batches = read_batches(data, batch_bytes_max=1 << 30, from_client=False)
    return [record for batch in batches if not batch.is_control for record in decode_records(batch, 1 << 30)]


Scenario = Callable[[Harness], Awaitable[None]]


async def raw(harness: Harness, body: Any, version: int | None = None) -> Any:
    """The answer as its handler made it, elements encoded."""
    return await settled(harness.start(body, version))


@asynccontextmanager
async def running(
    data: Path,
    settings: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    authorizer: Authorizer | None = None,
) -> AsyncIterator[Harness]:
    """A broker on ``data``; leaving in good order closes it cleanly."""
    loop = asyncio.get_running_loop()

    def failed(error: BaseException) -> None:
        raise error

    disk = SyncGuard(OsDisk(), failed)
    clock = clock or SystemClock()
    store = LogStore.open(disk, str(data))
    flusher = Flusher(disk, str(data), post=loop.call_soon_threadsafe, monotonic=clock.monotonic)
    flusher.start()
    given = {"group.initial.rebalance.delay.ms": 0, **(settings or {})}
    broker = Broker(store=store, flusher=flusher, clock=clock, settings=Settings(given), authorizer=authorizer)
    broker.start()
    try:
        yield Harness(broker)
    finally:
        await broker.stop()
        flusher.stop()
        await asyncio.sleep(0)
        store.close()


def batch(*values: bytes, codec: Codec = Codec.NONE, **fields: Any) -> Batch:
    return build_batch([Record(key=None, value=value, timestamp=1_000) for value in values], codec=codec, **fields)
