"""Those who write: idempotent producers, transactional ones, and a transformation between topics."""

from __future__ import annotations

import random
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.history import Recorder, Worker
from tests.chaos.operations import attributes, make_value

__all__ = ["IdempotentProducer", "TransactionalProducer", "Transformer"]

PATIENCE_S = 180.0
MESSAGE_TIMEOUT_MS = 300_000
TRANSACTION_TIMEOUT_MS = 60_000


class Sending:
    """Values under way, each written into the history once: with its delivery report, or as unknown when dropped."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name
        self.number = 0
        self.under_way: dict[str, dict[str, Any]] = {}

    def send(self, producer: Producer, topic: str, partition: int, txn: str = "", source: str = "") -> None:
        value = make_value("v", self.name, self.number, txn, source)
        attempt = {"producer": self.name, "number": self.number, "topic": topic, "partition": partition}
        self.under_way[value] = attempt | {"value": value, "txn": txn or None}
        self.number += 1
        key, headers = attributes(value)
        while True:
            try:
                producer.produce(
                    topic, value.encode(), key, partition=partition, headers=headers, on_delivery=self.delivered
                )
                return
            except BufferError:
                producer.poll(0.1)

    def delivered(self, error: Any, message: Message) -> None:
        attempt = self.under_way.pop((message.value() or b"").decode(), None)
        if attempt is None:
            return
        if error is None:
            self.recorder.write("produce", type="ok", offset=message.offset(), **attempt)
        else:
            # Even a message purged from the queue may have been sent before and come back for a retry.
            self.recorder.write("produce", type="info", **attempt)

    def drop(self) -> None:
        for attempt in self.under_way.values():
            self.recorder.write("produce", type="info", **attempt)
        self.under_way.clear()


class IdempotentProducer(Worker):
    """Writes a steady stream over all partitions of a topic."""

    def __init__(self, *args: Any, topic: str, partitions: int, per_second: int, seed: int) -> None:
        super().__init__(*args)
        self.topic = topic
        self.partitions = partitions
        self.per_second = per_second
        self.chance = random.Random(seed)
        self.sending = Sending(self.recorder, self.name)

    def work(self) -> None:
        producer = Producer(
            {**self.common(), "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": MESSAGE_TIMEOUT_MS}
            | {"compression.type": self.chance.choice(["none", "lz4", "zstd", "snappy", "gzip"])}
        )
        while not self.stopping.is_set():
            for _ in range(max(1, self.per_second // 20)):
                self.sending.send(producer, self.topic, self.chance.randrange(self.partitions))
            producer.poll(0.05)
            self.stopping.wait(0.02)
        if producer.flush(PATIENCE_S):
            self.recorder.fail(self.name, f"{len(producer)} messages were not delivered within {PATIENCE_S:g} s")
        self.sending.drop()


class TransactionalProducer(Worker):
    """One transaction after the other, three in four committed. After a fatal error a new instance takes over."""

    def __init__(self, *args: Any, topic: str, partitions: int, seed: int) -> None:
        super().__init__(*args)
        self.topic = topic
        self.partitions = partitions
        self.chance = random.Random(seed)
        self.sending = Sending(self.recorder, self.name)
        self.count = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            producer = transactional(self.common(), self.name)
            try:
                retried(lambda producer=producer: producer.init_transactions(PATIENCE_S))
                while not self.stopping.is_set():
                    self.one(producer)
            except (KafkaException, SystemError) as error:
                self.recorder.restarted(self.name, reason(error))
            finally:
                self.sending.drop()
        # Nothing stays open: the next owner of the id aborts what the last instance left.
        retried(lambda: transactional(self.common(), self.name).init_transactions(PATIENCE_S))

    def one(self, producer: Producer) -> None:
        self.count += 1
        txn = f"{self.name}.{self.count}"
        producer.begin_transaction()
        for _ in range(self.chance.randint(1, 20)):
            self.sending.send(producer, self.topic, self.chance.randrange(self.partitions), txn)
        if self.chance.random() < 0.3:
            self.stopping.wait(self.chance.random() * 0.3)
        if self.chance.random() < 0.25:
            producer.flush(1.0)
            end(self.recorder, producer, txn, commit=False)
        else:
            end(self.recorder, producer, txn, commit=True)


def transactional(common: dict[str, Any], name: str) -> Producer:
    return Producer(
        {**common, "transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "linger.ms": 2}
    )


def reason(error: BaseException) -> str:
    """Why a producer is of no more use, without its numbers.

    librdkafka drops messages that it may have sent when a transaction is aborted, and numbers the next ones as if it
    had not; the broker then refuses them, and the instance is lost. A fatal error in a callback comes as SystemError.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    found = error.args[0] if error.args else error
    return found.name() if isinstance(found, KafkaError) else str(found)


def retried(call: Any) -> None:
    """Repeat what librdkafka says may be repeated."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def end(recorder: Recorder, producer: Producer, txn: str, *, commit: bool) -> bool:
    """Commit or abort. True if it was committed; raises when the producer is of no more use."""
    began = recorder.now()
    try:
        if commit:
            retried(lambda: producer.commit_transaction(PATIENCE_S))
        else:
            retried(lambda: producer.abort_transaction(PATIENCE_S))
    except KafkaException as error:
        recorder.write("end", txn=txn, commit=commit, type="info", began=began)
        if commit and error.args[0].txn_requires_abort():
            retried(lambda: producer.abort_transaction(PATIENCE_S))
            return False
        raise
    recorder.write("end", txn=txn, commit=commit, type="ok", began=began)
    return commit


class Transformer(Worker):
    """Reads committed input, writes one result per record, commits the input's offsets in the same transaction."""

    def __init__(self, *args: Any, source: str, target: str, partitions: int, seed: int) -> None:
        super().__init__(*args)
        self.source = source
        self.target = target
        self.partitions = partitions
        self.chance = random.Random(seed)
        self.sending = Sending(self.recorder, self.name)
        self.count = 0

    def work(self) -> None:
        while not self.stopping.is_set():
            producer = transactional(self.common(), self.name)
            consumer = Consumer(
                {**self.common(), "group.id": self.name, "isolation.level": "read_committed"}
                | {"auto.offset.reset": "earliest", "enable.auto.commit": False}
            )
            try:
                retried(lambda producer=producer: producer.init_transactions(PATIENCE_S))
                consumer.subscribe([self.source])
                while not self.stopping.is_set():
                    self.one(producer, consumer)
            except (KafkaException, SystemError) as error:
                self.recorder.restarted(self.name, reason(error))
            finally:
                self.sending.drop()
                consumer.close()
        retried(lambda: transactional(self.common(), self.name).init_transactions(PATIENCE_S))

    def one(self, producer: Producer, consumer: Consumer) -> None:
        messages = [each for each in consumer.consume(200, 0.3) if each.error() is None]
        if not messages:
            return
        self.count += 1
        txn = f"{self.name}.{self.count}"
        producer.begin_transaction()
        nexts: dict[int, int] = {}
        for each in messages:
            partition = each.partition() or 0
            nexts[partition] = (each.offset() or 0) + 1
            place = f"{self.source}:{partition}:{each.offset()}"
            self.sending.send(producer, self.target, self.chance.randrange(self.partitions), txn, place)
        offsets = [TopicPartition(self.source, partition, offset) for partition, offset in nexts.items()]
        try:
            metadata = consumer.consumer_group_metadata()
            retried(lambda: producer.send_offsets_to_transaction(offsets, metadata, PATIENCE_S))
            if end(self.recorder, producer, txn, commit=True):
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            end(self.recorder, producer, txn, commit=False)
        # What was read is to be read again: a consumer that starts over begins at what is committed.
        raise KafkaException(KafkaError(KafkaError._STATE, "aborted, so reading again from the committed offsets"))
