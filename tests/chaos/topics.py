"""Clients of topics whose records go: compacted ones, shortened ones, and one that is deleted and created again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.consumers import read_whole
from tests.chaos.faults import STANDSTILL_S_MAX
from tests.chaos.history import Worker
from tests.chaos.operations import make_value
from tests.chaos.producers import MESSAGE_TIMEOUT_MS, PATIENCE_S

__all__ = ["KeyedProducer", "Recreator", "TableReader", "Trimmer"]

ANSWER_TIMEOUT_S = 20.0
KEEP_ALL = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
"""Whatever the broker's clock says: by default it removes records that are a week old, and refuses records that are an
hour ahead of it, as Kafka does."""


class KeyedProducer(Worker):
    """Writes new values of its keys to a compacted topic, and now and then a tombstone. No other writes its keys."""

    def __init__(self, *args: Any, topic: str, partitions: int, keys: int, per_second: int, seed: int) -> None:
        super().__init__(*args)
        self.topic = topic
        self.partitions = partitions
        self.keys = keys
        self.per_second = per_second
        self.chance = random.Random(seed)
        self.number = 0

    def work(self) -> None:
        producer = Producer(
            {**self.common(), "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": MESSAGE_TIMEOUT_MS}
        )
        while not self.stopping.is_set():
            for _ in range(max(1, self.per_second // 20)):
                self.put(producer)
            producer.poll(0.05)
            self.stopping.wait(0.02)
        if producer.flush(PATIENCE_S):
            self.recorder.fail(self.name, f"{len(producer)} messages were not delivered within {PATIENCE_S:g} s")

    def put(self, producer: Producer) -> None:
        number = self.number
        self.number += 1
        which = self.chance.randrange(self.keys)
        key = f"{self.name}.{which}"
        value = None if self.chance.random() < 0.1 else make_value(key, self.name, number)
        attempt = {"key": key, "number": number, "topic": self.topic, "value": value}
        partition = which % self.partitions

        def delivered(error: Any, message: Message) -> None:
            known = {"type": "info"} if error is not None else {"type": "ok", "offset": message.offset()}
            self.recorder.write("put", partition=partition, **attempt, **known)

        data = None if value is None else value.encode()
        while True:
            try:
                producer.produce(self.topic, data, key, partition=partition, on_delivery=delivered)
                return
            except BufferError:
                producer.poll(0.1)


class TableReader(Worker):
    """Reads a compacted topic whole, again and again, and keeps the last record of each key."""

    def __init__(self, *args: Any, topic: str, partitions: int) -> None:
        super().__init__(*args)
        self.topic = topic
        self.partitions = partitions

    def work(self) -> None:
        while not self.stopping.is_set():
            self.read_all()
            self.stopping.wait(0.5)

    def read_all(self) -> bool:
        """Whether every partition was read to its end."""
        return min(self.read(partition) for partition in range(self.partitions))

    def read(self, partition: int) -> bool:
        began = self.recorder.now()
        messages = read_whole(self.common(), TopicPartition(self.topic, partition, 0))
        if messages is None:
            return False
        table = {
            (each.key() or b"").decode(): (each.offset(), None if each.value() is None else each.value().decode())
            for each in messages
        }
        self.recorder.write("fold", topic=self.topic, partition=partition, table=table, began=began)
        return True


class Trimmer(Worker):
    """Deletes records from the front of a topic, a little at a time."""

    def __init__(self, *args: Any, topic: str, partitions: int, seed: int) -> None:
        super().__init__(*args)
        self.topic = topic
        self.partitions = partitions
        self.chance = random.Random(seed)
        self.before = dict.fromkeys(range(partitions), 0)

    def work(self) -> None:
        admin = AdminClient(self.common())
        while not self.stopping.is_set():
            self.trim(admin, self.chance.randrange(self.partitions))
            self.stopping.wait(self.chance.random())

    def trim(self, admin: AdminClient, partition: int) -> None:
        offset = self.before[partition] + self.chance.randint(1, 60)
        place = TopicPartition(self.topic, partition, offset)
        try:
            (future,) = admin.delete_records([place], request_timeout=ANSWER_TIMEOUT_S).values()
            low = future.result().low_watermark
        except KafkaException as error:
            refused = error.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE  # there are not so many records yet
            if not refused:
                self.write(partition, offset, "info")
            return
        self.before[partition] = low
        self.write(partition, low, "ok")

    def write(self, partition: int, offset: int, type_: str) -> None:
        self.recorder.write("trim", topic=self.topic, partition=partition, offset=offset, type=type_)


class Recreator(Worker):
    """Creates a topic, fills it, reads it, deletes it, and creates it again under its name.

    A client that gives up a connection sends its requests again on another one. When the topic is then deleted and
    created again, and the first connection delivers its copy at last, that copy is appended to the new topic: requests
    of librdkafka name a topic, and do not say which one of that name (Apache Kafka does the same, see
    tests/differential/test_produce.py). A late DeleteTopics would delete the new topic. So these clients wait for
    longer than any fault holds a request: what is sent again was lost, and a record of an earlier life is a defect.
    """

    def __init__(self, *args: Any, topic: str, seed: int) -> None:
        super().__init__(*args)
        self.topic = topic
        self.chance = random.Random(seed)
        self.life = 0
        self.number = 0

    def common(self) -> dict[str, Any]:
        return {**super().common(), "socket.timeout.ms": int(2_000 * STANDSTILL_S_MAX)}

    def work(self) -> None:
        while True:
            self.live()
            if self.stopping.is_set():
                return  # the last one stays, to be judged
            self.until_done(self.delete)
            self.recorder.write("life-end", life=self.life, topic=self.topic)
            self.life += 1

    def live(self) -> None:
        self.until_done(self.create)
        producer = self.make_producer()
        for _ in range(self.chance.randint(1, 4)):
            for _ in range(self.chance.randint(1, 50)):
                self.produce(producer)
            if left := producer.flush(PATIENCE_S):
                self.recorder.fail(self.name, f"{left} messages were not delivered within {PATIENCE_S:g} s")
            self.read(final=False)
            self.stopping.wait(self.chance.random() * 0.5)

    def make_producer(self) -> Producer:
        return Producer(
            {**self.common(), "enable.idempotence": True, "message.timeout.ms": MESSAGE_TIMEOUT_MS, "linger.ms": 2}
        )

    def produce(self, producer: Producer) -> None:
        value = make_value(str(self.life), self.name, self.number)
        life = self.life
        self.number += 1

        def delivered(error: Any, message: Message) -> None:
            known = {"type": "info"} if error is not None else {"type": "ok", "offset": message.offset()}
            self.recorder.write("life-put", life=life, topic=self.topic, partition=0, value=value, **known)

        producer.produce(self.topic, value.encode(), partition=0, on_delivery=delivered)

    def read(self, *, final: bool) -> bool:
        began = self.recorder.now()
        messages = read_whole(self.common(), TopicPartition(self.topic, 0, 0))
        if messages is None:
            return False
        records = [(each.offset(), (each.value() or b"").decode(errors="replace")) for each in messages]
        self.recorder.write("life-read", topic=self.topic, partition=0, records=records, began=began, final=final)
        return True

    def create(self, admin: AdminClient) -> None:
        self.asked(
            admin.create_topics([NewTopic(self.topic, 1, config=KEEP_ALL)], request_timeout=ANSWER_TIMEOUT_S),
            KafkaError.TOPIC_ALREADY_EXISTS,
        )

    def delete(self, admin: AdminClient) -> None:
        self.asked(
            admin.delete_topics([self.topic], request_timeout=ANSWER_TIMEOUT_S), KafkaError.UNKNOWN_TOPIC_OR_PART
        )

    def asked(self, futures: dict[str, Any], done_before: int) -> None:
        """An earlier attempt, of which no answer came, may have done it."""
        try:
            futures[self.topic].result()
        except KafkaException as error:
            if error.args[0].code() != done_before:
                raise

    def until_done(self, step: Callable[[AdminClient], None]) -> None:
        """A broker that is away is asked again."""
        admin = AdminClient(self.common())
        deadline = self.recorder.now() + PATIENCE_S
        while True:
            try:
                step(admin)
                return
            except KafkaException:
                if self.recorder.now() > deadline:
                    raise
                time.sleep(0.1)
