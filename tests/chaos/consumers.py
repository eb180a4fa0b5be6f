"""Those who read: members of groups in both protocols, readers of both isolation levels, and observers of offsets."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.protocol.group import HeartbeatRequest, SyncGroupRequest
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.history import Recorder, Worker
from tests.chaos.operations import attributes

__all__ = ["AioMember", "Member", "Observer", "Reader", "Rereader", "Watcher", "drain", "odd", "read_whole"]

OBSERVE_TIMEOUT_S = 5.0
COMMIT_EVERY_S = 0.4
LIFE_S = (5.0, 30.0)
CALM_FAREWELLS = 0.85
READ_TIMEOUT_S = 10.0
REREAD_RECORDS_MAX = 2000


class Member(Worker):
    """A group member that comes and goes, and commits where it is."""

    def __init__(self, *args: Any, group: str, topic: str, protocol: dict[str, Any], seed: int) -> None:
        super().__init__(*args)
        self.group = group
        self.topic = topic
        self.protocol = protocol
        self.chance = random.Random(seed)
        self.lives = 0
        self.owned: set[tuple[str, int]] = set()
        self.positions: dict[int, int] = {}
        """Where it is in what it owns, and has not committed yet."""

    @property
    def member(self) -> str:
        return f"{self.name}.{self.lives}"

    def work(self) -> None:
        while not self.stopping.is_set():
            self.lives += 1
            self.live(time.monotonic() + self.chance.uniform(*LIFE_S))

    def live(self, until: float) -> None:
        consumer = Consumer(
            {**self.common(), **self.protocol, "group.id": self.group}
            | {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe([self.topic], on_assign=self.gained, on_revoke=self.revoked, on_lost=self.lost)
        self.positions.clear()
        commit_at = 0.0
        while not self.stopping.is_set() and time.monotonic() < until:
            for each in consumer.consume(500, 0.2):
                if each.error() is None:
                    self.positions[each.partition() or 0] = (each.offset() or 0) + 1
            if time.monotonic() > commit_at:
                commit_at = time.monotonic() + COMMIT_EVERY_S
                self.commit(consumer)
        self.commit(consumer)
        with self.farewell():
            consumer.close()
        self.release(self.owned)

    def farewell(self) -> AbstractContextManager[Any]:
        """Most members leave while the broker can hear it: one that it does not hear stays as a ghost for long."""
        return self.recorder.calm if self.chance.random() < CALM_FAREWELLS else nullcontext()

    def commit(self, consumer: Consumer) -> None:
        """Commit what is owned; the answer counts for each partition."""
        offsets = [
            TopicPartition(self.topic, partition, offset)
            for partition, offset in self.positions.items()
            if (self.topic, partition) in self.owned
        ]
        self.positions.clear()
        if not offsets:
            return
        began = self.recorder.now()
        try:
            answers = consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException:
            answers = []
        fine = {each.partition for each in answers if each.error is None}
        for each in offsets:
            self.recorder.write(
                "commit",
                type="ok" if each.partition in fine else "info",
                group=self.group,
                topic=self.topic,
                began=began,
                partition=each.partition,
                offset=each.offset,
            )

    def gained(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        self.owned.update(places)
        self.recorder.write("own", group=self.group, member=self.member, partitions=places)

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.release({(each.topic, each.partition) for each in partitions})

    lost = revoked

    def release(self, places: Iterable[tuple[str, int]]) -> None:
        """What was read of them is forgotten: given back at once, they are read again from the committed offset, and a
        commit of the old position would be followed by lower ones."""
        gone = list(places)
        self.owned.difference_update(gone)
        for _, partition in gone:
            self.positions.pop(partition, None)
        if gone:
            self.recorder.write("release", group=self.group, member=self.member, partitions=gone)


class AioMember(Member):
    """The same with aiokafka, which shares no code with librdkafka.

    It has one timeout for all requests, which must be longer than a rebalance. So when a connection dies without a
    word, it may hear of a rebalance only after it was removed. It writes down what it hears.
    """

    leaving = False
    """What it is assigned from here on it does not take: it may still be in a rebalance."""

    def live(self, until: float) -> None:
        asyncio.run(self.live_async(until))

    async def live_async(self, until: float) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            client_id=self.name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            retry_backoff_ms=100,
            heartbeat_interval_ms=1000,
            **self.protocol,
        )
        self.leaving = False
        try:
            if await start_patiently(consumer, self.stopping.is_set):
                self.note_heartbeats(consumer)
            consumer.subscribe([self.topic], listener=AioListener(self))
            while not self.stopping.is_set() and time.monotonic() < until:
                await self.poll_and_commit(consumer)
        finally:
            await self.leave(consumer)

    def note_heartbeats(self, consumer: AIOKafkaConsumer) -> None:
        """Write down each answer that says: you are a member, and nothing has changed. Nothing public tells of them."""
        kept_s = min(self.protocol["session_timeout_ms"], self.protocol["rebalance_timeout_ms"]) / 1000
        coordinator = consumer._coordinator
        send = coordinator._send_req

        async def send_and_note(request: Any) -> Any:
            began = self.recorder.now()
            response = await send(request)
            if isinstance(request, HeartbeatRequest | SyncGroupRequest) and response.error_code == 0:
                self.recorder.write("beat", member=self.member, kept_s=kept_s, began=began)
            return response

        coordinator._send_req = send_and_note

    async def leave(self, consumer: AIOKafkaConsumer) -> None:
        """Waits on a thread for the moment to leave: heartbeats need the loop, and so does a member that leaves while
        it waits for this one to join again.

        aiokafka does not say when it sends its farewell, and its answer may come late or never: so the partitions are
        given up before.
        """
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, self.farewell())
            self.leaving = True
            self.release(self.owned)
            try:
                await asyncio.wait_for(consumer.stop(), 15)
            except (AioKafkaError, TimeoutError, asyncio.CancelledError):
                pass  # the broker is away: its end of the membership times out

    async def poll_and_commit(self, consumer: AIOKafkaConsumer) -> None:
        try:
            batches = await consumer.getmany(timeout_ms=int(COMMIT_EVERY_S * 1000), max_records=500)
        except AioKafkaError:
            await asyncio.sleep(0.2)
            return
        offsets = {place: records[-1].offset + 1 for place, records in batches.items() if records}
        offsets = {place: offset for place, offset in offsets.items() if (place.topic, place.partition) in self.owned}
        if not offsets:
            return
        began = self.recorder.now()
        try:
            await consumer.commit(offsets)
            outcome = "ok"
        except (AioKafkaError, ValueError):
            outcome = "info"
        for place, offset in offsets.items():
            self.recorder.write(
                "commit",
                type=outcome,
                group=self.group,
                topic=place.topic,
                partition=place.partition,
                offset=offset,
                began=began,
            )


async def start_patiently(consumer: AIOKafkaConsumer, stopped: Any) -> bool:
    while not stopped():
        try:
            await consumer.start()
            return True
        except AioKafkaError:
            await asyncio.sleep(0.2)
    return False


class AioListener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, owner: AioMember) -> None:
        self.owner = owner

    async def on_partitions_revoked(self, revoked: set[AioPartition]) -> None:
        self.owner.release({(each.topic, each.partition) for each in revoked})

    async def on_partitions_assigned(self, assigned: set[AioPartition]) -> None:
        places = [(each.topic, each.partition) for each in assigned if not self.owner.leaving]
        self.owner.owned.update(places)
        if places:
            self.owner.recorder.write("own", group=self.owner.group, member=self.owner.member, partitions=places)


class Reader(Worker):
    """Follows whole topics without a group, at one isolation level."""

    def __init__(self, *args: Any, topics: dict[str, int], isolation: str) -> None:
        super().__init__(*args)
        self.topics = topics
        self.isolation = isolation

    def work(self) -> None:
        consumer = Consumer(
            {**self.common(), "group.id": self.name, "isolation.level": f"read_{self.isolation}"}
            | {"auto.offset.reset": "error", "enable.auto.commit": False}
        )
        consumer.assign(beginning(self.topics))
        while not self.stopping.is_set():
            messages = [each for each in consumer.consume(2000, 0.3) if each.error() is None]
            record(self.recorder, self.name, self.isolation, messages, final=False)
        consumer.close()


def beginning(topics: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, index, 0) for topic, count in topics.items() for index in range(count)]


def odd(message: Any) -> str | None:
    """The key and headers of a message that are not those its value was written with."""
    key, headers = attributes((message.value() or b"").decode(errors="replace"))
    expected = (key.encode(), [(name, value.encode()) for name, value in headers])
    found = (message.key(), message.headers())
    return None if found == expected else repr(found)[:200]


def record(
    recorder: Recorder, reader: str, isolation: str, messages: list[Any], *, final: bool, began: float | None = None
) -> None:
    """Write down what was read. Give ``began`` if none of it was fetched before that."""
    by_place: dict[tuple[str, int], list[Any]] = {}
    for each in messages:
        by_place.setdefault((each.topic(), each.partition()), []).append(each)
    for (topic, partition), found in by_place.items():
        recorder.write(
            "read",
            reader=reader,
            isolation=isolation,
            topic=topic,
            partition=partition,
            records=[(each.offset(), (each.value() or b"").decode(errors="replace")) for each in found],
            odd=[(each.offset(), text) for each in found if (text := odd(each)) is not None],
            final=final,
            **({} if began is None else {"began": began}),
        )


def read_whole(
    common: dict[str, Any], place: TopicPartition, *, isolation: str = "uncommitted", count_max: int = 1 << 30
) -> list[Any] | None:
    """From an offset to the end with a fresh consumer; an offset that is gone means the first. None if interrupted."""
    consumer = Consumer(
        {**common, "group.id": "whole", "isolation.level": f"read_{isolation}", "enable.partition.eof": True}
        | {"auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    )
    consumer.assign([place])
    found: list[Any] = []
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            for each in consumer.consume(count_max if count_max < 1000 else 1000, 0.2):
                error = each.error()
                if error is None:
                    found.append(each)
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
            if len(found) >= count_max:
                return found
        return None
    finally:
        consumer.close()


class Rereader(Worker):
    """Reads again what others have read: some partition, from its beginning or from somewhere in it."""

    def __init__(self, *args: Any, topics: dict[str, int], seed: int) -> None:
        super().__init__(*args)
        self.places = beginning(topics)
        self.chance = random.Random(seed)
        self.ends: dict[tuple[str, int], int] = {}

    def work(self) -> None:
        while not self.stopping.is_set():
            self.reread(self.chance.choice(self.places), self.chance.choice(["committed", "uncommitted"]))
            self.stopping.wait(0.3)

    def reread(self, place: TopicPartition, isolation: str) -> None:
        key = (place.topic, place.partition)
        first = self.chance.choice([0, self.chance.randint(0, self.ends.get(key, 0))])
        began = self.recorder.now()
        start = TopicPartition(place.topic, place.partition, first)
        messages = read_whole(self.common(), start, isolation=isolation, count_max=REREAD_RECORDS_MAX)
        if messages:
            self.ends[key] = max(self.ends.get(key, 0), messages[-1].offset())
            record(self.recorder, self.name, isolation, messages, final=False, began=began)


class Watcher(Worker):
    """Asks the broker again and again where partitions begin and end."""

    def __init__(self, *args: Any, topics: dict[str, int], isolation: str) -> None:
        super().__init__(*args)
        self.places = beginning(topics)
        self.isolation = isolation

    def work(self) -> None:
        consumer = Consumer(
            {**self.common(), "group.id": self.name, "isolation.level": f"read_{self.isolation}"}
            | {"enable.auto.commit": False}
        )
        while not self.stopping.is_set():
            self.look(consumer)
            self.stopping.wait(0.3)
        self.look(consumer)
        consumer.close()

    def look(self, consumer: Consumer) -> None:
        for place in self.places:
            began = self.recorder.now()
            try:
                low, high = consumer.get_watermark_offsets(place, OBSERVE_TIMEOUT_S, cached=False)
            except KafkaException:
                return
            self.recorder.write(
                "ends",
                isolation=self.isolation,
                topic=place.topic,
                partition=place.partition,
                low=low,
                high=high,
                began=began,
            )


class Observer(Worker):
    """Asks the broker again and again what a group has committed."""

    def __init__(self, *args: Any, group: str, topic: str, partitions: int) -> None:
        super().__init__(*args)
        self.group = group
        self.topic = topic
        self.partitions = partitions

    def work(self) -> None:
        consumer = Consumer({**self.common(), "group.id": self.group, "enable.auto.commit": False})
        places = [TopicPartition(self.topic, index) for index in range(self.partitions)]
        while not self.stopping.is_set():
            self.observe(consumer, places)
            self.stopping.wait(0.25)
        self.observe(consumer, places)
        consumer.close()

    def observe(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        began = self.recorder.now()
        try:
            found = consumer.committed(places, OBSERVE_TIMEOUT_S)
        except KafkaException:
            return
        for each in found:
            if each.error is None:
                self.recorder.write(
                    "observe",
                    group=self.group,
                    topic=each.topic,
                    partition=each.partition,
                    began=began,
                    offset=max(each.offset, -1),
                )


def drain(
    recorder: Recorder, common: dict[str, Any], topics: dict[str, int], isolation: str, timeout_s: float
) -> dict[tuple[str, int], int]:
    """Read everything from the beginning to the end with a fresh consumer; the end of each partition."""
    consumer = Consumer(
        {
            **common,
            "group.id": f"drain-{isolation}",
            "isolation.level": f"read_{isolation}",
            "enable.partition.eof": True,
        }
        | {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    places = beginning(topics)
    consumer.assign(places)
    ends: dict[tuple[str, int], int] = {}
    deadline = time.monotonic() + timeout_s
    while len(ends) < len(places) and time.monotonic() < deadline:
        messages = []
        for each in consumer.consume(5000, 0.5):
            error = each.error()
            if error is None:
                messages.append(each)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[each.topic(), each.partition()] = each.offset()
        record(recorder, f"drain-{isolation}", isolation, messages, final=True)
    consumer.close()
    if len(ends) < len(places):
        recorder.fail(f"drain-{isolation}", f"only {len(ends)} of {len(places)} partitions were read to their end")
    return ends
