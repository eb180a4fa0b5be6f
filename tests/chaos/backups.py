"""A load whose moments can be told apart, and what a backup of any moment must hold.

Three writers work without pause. Each numbers what it does, and notes what was acknowledged:

* *pairs*: transactions that write one number to every partition of a topic and commit it as the offset of a group;
* *plain*: records without a transaction, and a group whose offset follows them;
* *jobs*: messages of a queue, confirmed, and acknowledged by a consumer.

A ``Moment`` is what was acknowledged by then. ``faults_in`` compares a broker that was restored from a backup with the
moments before and after it was made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field

import pika
from pika.exceptions import AMQPError

from headrace.client import (
    Admin,
    Client,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    FetchOptions,
    Groups,
    Producer,
    TopicPartition,
    TransactionalProducer,
    start_offsets,
)
from headrace.errors import KafkaError
from tests.waiting import PATIENCE_S, eventually

__all__ = ["BackupLoad", "Moment", "faults_in"]

PAIRS, PLAIN, JOBS = "pairs", "plain", "jobs"
ETL, READERS = "etl", "readers"
"""Groups: the offset of the first is committed with transactions, that of the second by itself."""
PARTITIONS = 3
RECORDS_AT_ONCE = 10
TIMEOUT_MS = 1_000
"""Of a transaction. The one that is open in a backup is aborted so long after the restored broker starts."""
OPTIONS = ClientOptions(retry_timeout_ms=1_000)
"""A client whose broker was killed gives up, and the writer makes another."""
PAUSE_S = 0.01
"""Between two of each kind: the machine has others to serve."""


@dataclass(frozen=True, slots=True)
class Moment:
    pairs: int
    plain: int
    confirmed: frozenset[int]
    taken: frozenset[int]
    """Acknowledgements were sent for these."""
    settled: frozenset[int]
    """And the broker has handled them."""


@dataclass
class BackupLoad:
    """Starts with ``with``. ``bootstrap`` and ``amqp_port`` are asked for at each connection."""

    bootstrap: Callable[[], str]
    amqp_port: Callable[[], int]
    pairs: int = 0
    """The largest number of a transaction whose commit was acknowledged, and one more. The same for the others."""
    plain: int = 0
    confirmed: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> BackupLoad:
        with Client(self.bootstrap()) as client:
            for topic, partitions in ((PAIRS, PARTITIONS), (PLAIN, 1)):
                Admin(client).create_topic(topic, partitions=partitions, config={"segment.ms": "500"})
        for job in (self._write_pairs, self._write_plain, self._publish, self._consume):
            thread = threading.Thread(target=self._again_and_again, args=(job,), name=job.__name__)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def moment(self) -> Moment:
        with self._lock:
            confirmed, taken, settled = map(frozenset, (self.confirmed, self.taken, self.settled))
            return Moment(self.pairs, self.plain, confirmed, taken, settled)

    def until_more(self, count: int = 20) -> None:
        """Wait until each writer has done so much more."""
        start = self._progress()
        eventually(
            self._progress, lambda now: all(each >= before + count for each, before in zip(now, start, strict=True))
        )

    def _progress(self) -> tuple[int, ...]:
        with self._lock:
            return self.pairs, self.plain, len(self.confirmed), len(self.settled)

    def _again_and_again(self, job: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            with suppress(KafkaError, AMQPError, OSError):
                job()  # which ends when the broker is killed
            self._stopping.wait(0.05)

    def _write_pairs(self) -> None:
        with (
            Client(self.bootstrap(), OPTIONS) as client,
            TransactionalProducer(client, "pairs", TIMEOUT_MS) as producer,
        ):
            producer.init()
            number = _committed(client, ETL, PAIRS)  # whatever became of the last one
            while not self._stopping.wait(PAUSE_S):
                producer.begin()
                for partition in range(PARTITIONS):
                    producer.send(PAIRS, b"%d" % number, partition=partition)
                producer.send_offsets(ETL, {TopicPartition(PAIRS, 0): number + 1})
                producer.commit()
                number += 1
                with self._lock:
                    self.pairs = number

    def _write_plain(self) -> None:
        with Client(self.bootstrap(), OPTIONS) as client, Producer(client) as producer:
            while not self._stopping.wait(PAUSE_S):
                for _ in range(RECORDS_AT_ONCE):
                    producer.send(PLAIN, bytes(100), partition=0)
                producer.flush()
                with self._lock:
                    self.plain += RECORDS_AT_ONCE
                Groups(client).commit(READERS, {TopicPartition(PLAIN, 0): self.plain})

    def _publish(self) -> None:
        with closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp_port()))) as connection:
            channel = connection.channel()
            channel.queue_declare(JOBS, durable=True)
            channel.confirm_delivery()
            number = max(self.confirmed, default=-1) + 1000  # what was sent and not confirmed may be there
            while not self._stopping.wait(PAUSE_S):
                channel.basic_publish("", JOBS, b"%d" % number, pika.BasicProperties(delivery_mode=2))
                with self._lock:
                    self.confirmed.add(number)
                number += 1

    def _consume(self) -> None:
        with closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp_port()))) as connection:
            channel = connection.channel()
            channel.queue_declare(JOBS, durable=True)
            acknowledged: list[int] = []
            for method, _, body in channel.consume(JOBS, inactivity_timeout=0.1):
                if self._stopping.is_set():
                    return
                if method is None or int(body) % 10 == 0:
                    continue  # some stay unacknowledged
                with self._lock:
                    self.taken.add(int(body))
                channel.basic_ack(method.delivery_tag)
                acknowledged.append(int(body))
                if len(acknowledged) >= 5:
                    channel.queue_declare(JOBS, durable=True, passive=True)  # is answered after acknowledgements
                    with self._lock:
                        self.settled.update(acknowledged)
                    acknowledged.clear()


def faults_in(bootstrap: str, amqp_port: int, before: Moment, after: Moment) -> list[str]:
    """What a broker that was restored from a backup lacks, or has and must not have."""
    with Client(bootstrap) as client:
        found = [*_transaction_faults(client, before), *_record_faults(client, before)]
    return [*found, *_queue_faults(amqp_port, before, after)]


def _transaction_faults(client: Client, before: Moment) -> Iterator[str]:
    partitions = [_read(client, TopicPartition(PAIRS, index)) for index in range(PARTITIONS)]
    committed = _committed(client, ETL, PAIRS)
    if any(each != partitions[0] for each in partitions):
        yield f"partitions have {[len(each) for each in partitions]} transactions"
    if partitions[0] != [b"%d" % number for number in range(len(partitions[0]))]:
        yield "transactions are missing in the middle"
    if len(partitions[0]) != committed:
        yield f"the group's offset says {committed} transactions, {len(partitions[0])} are there"
    if committed < before.pairs:
        yield f"{before.pairs} transactions were committed, {committed} are there"


def _record_faults(client: Client, before: Moment) -> Iterator[str]:
    count, committed = len(_read(client, TopicPartition(PLAIN, 0))), _committed(client, READERS, PLAIN)
    if count < before.plain:
        yield f"{before.plain} records were acknowledged, {count} are there"
    if committed > count:
        yield f"a group is at {committed}, and the log ends at {count}"


def _queue_faults(amqp_port: int, before: Moment, after: Moment) -> Iterator[str]:
    with closing(pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port))) as connection:
        channel = connection.channel()
        held = []
        while (body := channel.basic_get(JOBS, auto_ack=True)[2]) is not None:
            held.append(int(body))
    if len(set(held)) < len(held):
        yield "a message is there twice"
    for number in sorted(before.settled & set(held))[:3]:
        yield f"message {number} was acknowledged and is back"
    for number in sorted(before.confirmed - after.taken - set(held))[:3]:
        yield f"message {number} was confirmed and is not there"


def _read(client: Client, partition: TopicPartition) -> list[bytes]:
    """Everything that is committed, up to the end, where a transaction that was open is aborted first."""
    consumer = Consumer(client, ConsumerOptions(fetch=FetchOptions(read_committed=True)))
    consumer.assign(start_offsets(client, [partition]))
    found: list[bytes] = []
    while not consumer.at_end():
        for records in consumer.poll(timeout_ms=100).values():
            found += [each.value or b"" for each in records]
    return found


def _committed(client: Client, group: str, topic: str) -> int:
    place = TopicPartition(topic, 0)
    return Groups(client).committed(group, [place]).get(place, 0)
