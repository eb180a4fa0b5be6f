"""aiokafka: the asyncio client, which speaks the oldest versions of the protocol among those we know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import ProducerFenced, TopicAlreadyExistsError

from tests.servers.process import RunningServer
from tests.waiting import PATIENCE_S, eventually_on_loop

pytestmark = pytest.mark.servers

Name = Callable[[str], str]


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


def producer(broker: RunningServer, **config: Any) -> Any:
    return started(AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **config))


def consumer(broker: RunningServer, *topics: str, **config: Any) -> Any:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 300}
    return started(AIOKafkaConsumer(*topics, bootstrap_servers=broker.bootstrap, **{**defaults, **config}))


@asynccontextmanager
async def admin(broker: RunningServer) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


async def make(broker: RunningServer, name: str, partitions: int = 1, **config: str) -> str:
    async with admin(broker) as client:
        await client.create_topics([NewTopic(name, partitions, 1, topic_configs=config)])
    return name


async def read(reader: AIOKafkaConsumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    return [await asyncio.wait_for(reader.getone(), PATIENCE_S) for _ in range(count)]


async def values(reader: AIOKafkaConsumer, count: int) -> list[bytes]:
    return [record.value for record in await read(reader, count)]


def test_keys_values_headers_and_timestamps_come_back_as_they_went_in(broker: RunningServer, unique: Name) -> None:
    async def main() -> None:
        name = await make(broker, unique("topic"))
        headers = [("one", b"1"), ("one", b"2"), ("empty", b"")]
        async with producer(broker) as to:
            sent = await to.send_and_wait(name, b"value", key=b"key", headers=headers, timestamp_ms=1_600_000_000_123)
            await to.send_and_wait(name, None, key=b"tombstone")
        assert (sent.offset, sent.timestamp) == (0, 1_600_000_000_123)
        async with consumer(broker, name) as reader:
            first, tombstone = await read(reader, 2)
        assert (first.key, first.value, list(first.headers)) == (b"key", b"value", headers)
        assert first.timestamp == 1_600_000_000_123
        assert (tombstone.key, tombstone.value) == (b"tombstone", None)

    asyncio.run(main())


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_passes_through(broker: RunningServer, unique: Name, codec: str | None) -> None:
    async def main() -> None:
        name = await make(broker, unique("topic"))
        expected = [f"{codec} {n} {'x' * 100}".encode() for n in range(200)]
        async with producer(broker, compression_type=codec) as to:
            for value in expected:
                await to.send(name, value)
            await to.flush()
        async with consumer(broker, name) as reader:
            assert await values(reader, 200) == expected

    asyncio.run(main())


def test_an_idempotent_producer_keeps_order(broker: RunningServer, unique: Name) -> None:
    async def main() -> None:
        name = await make(broker, unique("topic"))
        async with producer(broker, enable_idempotence=True, max_batch_size=200) as to:
            for n in range(300):
                await to.send(name, str(n).encode())
            await to.flush()
        async with consumer(broker, name) as reader:
            assert await values(reader, 300) == [str(n).encode() for n in range(300)]

    asyncio.run(main())


def test_a_consumer_seeks_and_finds_offsets_by_time(broker: RunningServer, unique: Name) -> None:
    async def main() -> None:
        name = await make(broker, unique("topic"))
        async with producer(broker) as to:
            for n in range(5):
                await to.send_and_wait(name, str(n).encode(), timestamp_ms=1_700_000_000_000 + n)
        where = TopicPartition(name, 0)
        async with consumer(broker) as reader:
            reader.assign([where])
            assert await reader.beginning_offsets([where]) == {where: 0}
            assert await reader.end_offsets([where]) == {where: 5}
            found = await reader.offsets_for_times({where: 1_700_000_000_003})
            assert found[where].offset == 3
            reader.seek(where, 4)
            assert await values(reader, 1) == [b"4"]

    asyncio.run(main())


def test_a_group_goes_on_where_it_committed(broker: RunningServer, unique: Name) -> None:
    async def main() -> None:
        name, group = await make(broker, unique("topic")), unique("group")
        async with producer(broker) as to:
            for text in "abcd":
                await to.send_and_wait(name, text.encode())
        async with consumer(broker, name, group_id=group) as reader:
            await read(reader, 2)
            await reader.commit({TopicPartition(name, 0): (2, "note")})
        async with consumer(broker, name, group_id=group) as reader:
            assert await reader.committed(TopicPartition(name, 0)) == 2
            assert await values(reader, 2) == [b"c", b"d"]

    asyncio.run(main())


async def settle(readers: list[AIOKafkaConsumer], partitions: int) -> list[int]:
    owned = await eventually_on_loop(
        lambda: [{each.partition for each in reader.assignment()} for reader in readers],
        lambda sets: all(sets) and sum(map(len, sets)) == partitions == len(set().union(*sets)),
    )
    return sorted(map(len, owned))


@pytest.mark.parametrize("static", [False, True])
def test_members_share_the_partitions_as_they_come_and_go(broker: RunningServer, unique: Name, static: bool) -> None:
    async def main() -> None:
        name, group = await make(broker, unique("topic"), partitions=4), unique("group")

        def member(number: int) -> Any:
            instance = {"group_instance_id": f"static-{number}"} if static else {}
            return consumer(broker, name, group_id=group, **instance)

        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(member(1))
            assert await settle([one], 4) == [4]
            async with member(2) as two:
                assert await settle([one, two], 4) == [2, 2]
            if not static:
                assert await settle([one], 4) == [4]

    asyncio.run(main())


def test_only_committed_transactions_are_read(broker: RunningServer, unique: Name) -> None:
    async def main() -> None:
        name = await make(broker, unique("topic"))
        async with producer(broker, transactional_id=unique("transaction")) as to:
            for value, commit in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
                await to.begin_transaction()
                await to.send_and_wait(name, value)
                await (to.commit_transaction() if commit else to.abort_transaction())
        async with consumer(broker, name, isolation_level="read_committed") as reader:
            assert await values(reader, 2) == [b"kept", b"kept too"]
        async with consumer(broker, name) as reader:
            assert await values(reader, 3) == [b"kept", b"dropped", b"kept too"]

    asyncio.run(main())


def test_positions_travel_with_the_transaction(broker: RunningServer, unique: Name) -> None:
    async def main() -> None:
        source, group = await make(broker, unique("source")), unique("group")
        target = await make(broker, unique("target"))
        where = TopicPartition(source, 0)
        async with producer(broker, transactional_id=unique("transaction")) as to:
            async with to.transaction():
                await to.send(target, b"result")
                await to.send_offsets_to_transaction({where: 7}, group)
            await to.begin_transaction()
            await to.send_offsets_to_transaction({where: 9}, group)
            await to.abort_transaction()
        async with consumer(broker, source, group_id=group) as reader:
            assert await reader.committed(where) == 7

    asyncio.run(main())


def test_a_second_producer_of_the_same_transactional_id_fences_the_first(broker: RunningServer, unique: Name) -> None:
    async def main() -> None:
        name, identifier = await make(broker, unique("topic")), unique("transaction")
        async with producer(broker, transactional_id=identifier) as old:
            await old.begin_transaction()
            await old.send_and_wait(name, b"zombie")
            async with producer(broker, transactional_id=identifier) as new:
                with pytest.raises(ProducerFenced):
                    await old.commit_transaction()
                async with new.transaction():
                    await new.send_and_wait(name, b"alive")

    asyncio.run(main())


def test_topics_configs_and_groups_are_administered(broker: RunningServer, unique: Name) -> None:
    async def main() -> None:
        name, group = await make(broker, unique("topic"), **{"retention.ms": "5000"}), unique("group")
        async with producer(broker) as to:
            await to.send_and_wait(name, b"a")
        async with admin(broker) as client:
            assert name in await client.list_topics()
            again = await client.create_topics([NewTopic(name, 1, 1)])
            assert [error[1] for error in again.topic_errors] == [TopicAlreadyExistsError.errno]
            await client.create_partitions({name: NewPartitions(3)})
            resource = ConfigResource(ConfigResourceType.TOPIC, name)
            described = (await client.describe_configs([resource]))[0].resources[0]
            assert {entry[0]: entry[1] for entry in described[4]}["retention.ms"] == "5000"
            async with consumer(broker, name, group_id=group) as reader:
                await read(reader, 1)
                await reader.commit()
                listed = await client.list_consumer_groups()
                assert group in [each[0] for each in listed]
                offsets = await client.list_consumer_group_offsets(group)
                assert offsets[TopicPartition(name, 0)].offset == 1
            await client.delete_topics([name])

    asyncio.run(main())
